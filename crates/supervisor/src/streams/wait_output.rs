//! Waits for a line of output that matches a pattern. The answer follows from the journal alone, so that a repeat finds
//! the same match.

use crate::{
    base::calls::{CallError, Event, Payload, RunView},
    base::matcher::{LineMatch, LineMatcher},
    registry::Supervisor,
    streams::events::Events,
};
use kennel_lifecycle::RunId;

/// Output read at a time.
const READ_BYTES: usize = 256 * 1024;
/// Longest line that is tested before it has ended: prompts are short, and testing each read of a long line would take
/// time that grows with its square.
const UNFINISHED_BYTES_MAX: usize = 4096;

/// A wait for a line of output.
#[derive(Clone, Debug)]
pub struct OutputWait {
    /// Id of the run.
    pub run: RunId,
    /// Pattern of the line.
    pub matcher: LineMatcher,
    /// Whether to search standard output and standard error.
    pub streams: [bool; 2],
    /// Seq of the last event before the search.
    pub after_seq: u64,
    /// Longest line that is tested as a whole.
    pub line_bytes_max: u32,
}

/// A line that matched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutputMatch {
    /// Seq of the event in which it ended, or of its newest event.
    pub seq: u64,
    /// Attempt that wrote it.
    pub attempt: u32,
    /// 1: standard output, 2: standard error.
    pub stream: u8,
    /// Offset of its first byte in the whole of the stream.
    pub offset: u64,
    /// The line.
    pub line: Vec<u8>,
    /// Whether the line continues, or has not ended.
    pub is_cut: bool,
    /// Matched part of it.
    pub found: LineMatch,
}

/// The answer to a wait for output.
#[derive(Clone, Debug)]
pub struct OutputWaited {
    /// The run at that moment.
    pub run: RunView,
    /// The first match; absent: the run has ended without one.
    pub found: Option<OutputMatch>,
    /// Whether output of the searched part is missing.
    pub is_incomplete: bool,
}

impl Supervisor {
    /// Waits for the first line that matches, or for the end of the run.
    pub async fn wait_output(&self, wait: OutputWait) -> Result<OutputWaited, CallError> {
        let most = wait.line_bytes_max;
        let lines = self.lines(wait.run, wait.after_seq, wait.streams, most);
        let events = lines.await?;
        let mut search = Search {
            wait: &wait,
            attempt: 1,
            is_incomplete: false,
        };
        let found = search.first(events).await?;
        Ok(OutputWaited {
            run: self.get(wait.run).await?,
            found,
            is_incomplete: search.is_incomplete,
        })
    }
}

struct Search<'a> {
    wait: &'a OutputWait,
    attempt: u32,
    is_incomplete: bool,
}

impl Search<'_> {
    async fn first(&mut self, mut events: Events) -> Result<Option<OutputMatch>, CallError> {
        while let Some(read) = events.step(READ_BYTES).await? {
            for event in read {
                if let Some(found) = self.test(event) {
                    return Ok(Some(found));
                }
            }
            if let Some(found) = self.test_unfinished(&events) {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    fn test(&mut self, event: Event) -> Option<OutputMatch> {
        self.attempt = event.attempt;
        match event.payload {
            Payload::Line {
                stream,
                offset,
                text,
                is_cut,
            } => Some(OutputMatch {
                seq: event.seq,
                attempt: event.attempt,
                stream,
                offset,
                found: self.wait.matcher.test(&text)?,
                line: text,
                is_cut,
            }),
            Payload::Gap(gap) => {
                let missing = |bytes: Option<u64>| bytes.is_none_or(|bytes| bytes > 0);
                self.is_incomplete |= gap.bytes.into_iter().any(missing);
                None
            }
            Payload::Lifecycle(_) | Payload::Output { .. } => None,
        }
    }

    /// Tests the unfinished lines, once all written output is read.
    fn test_unfinished(&self, events: &Events) -> Option<OutputMatch> {
        let at = events.position().seq;
        if !self.wait.matcher.tests_unfinished() || at < events.head() {
            return None;
        }
        (1..)
            .zip(self.wait.streams)
            .find_map(|(stream, is_wanted)| {
                let (offset, line) = events.unfinished(stream).filter(|_| is_wanted)?;
                if line.is_empty() || line.len() > UNFINISHED_BYTES_MAX {
                    return None;
                }
                Some(OutputMatch {
                    seq: at,
                    attempt: self.attempt,
                    stream,
                    offset,
                    found: self.wait.matcher.test(line)?,
                    line: line.to_vec(),
                    is_cut: true,
                })
            })
    }
}
