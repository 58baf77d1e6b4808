//! Waits for a line of output that matches a pattern. The answer follows from the journal alone, so that a repeat finds
//! the same match.

use crate::{
    base::calls::{CallError, Event, Payload, RunView},
    base::matcher::{LineMatch, LineMatcher, Scratch},
    registry::{
        Supervisor,
        allowance::Allowance,
        owner_threads::{OwnerThreads, TurnEnd},
    },
    streams::events::Events,
};
use kennel_lifecycle::{RuleOff, RunId};
use std::sync::Arc;

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
    /// Waits for the first line that matches, or for the end of the run. Lines are tested in the turns of the principal
    /// `by`.
    pub async fn wait_output(
        &self,
        wait: OutputWait,
        by: Arc<str>,
    ) -> Result<OutputWaited, CallError> {
        let most = wait.line_bytes_max;
        let lines = self.lines(wait.run, wait.after_seq, wait.streams, most);
        let events = lines.await?;
        let mut search = Search {
            allowance: Some(Allowance::default()),
            supervisor: self,
            by,
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
    /// Absent: its thread has failed.
    allowance: Option<Allowance>,
    supervisor: &'a Supervisor,
    by: Arc<str>,
    wait: &'a OutputWait,
    attempt: u32,
    is_incomplete: bool,
}

impl Search<'_> {
    async fn first(&mut self, mut events: Events) -> Result<Option<OutputMatch>, CallError> {
        while let Some(read) = events.step(READ_BYTES).await? {
            let mut lines: Vec<_> = read
                .into_iter()
                .filter_map(|event| self.line(event))
                .collect();
            lines.extend(self.unfinished(&events));
            if let Some(found) = self.test(lines).await? {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    /// Returns the line of this event, as it is found where it matches.
    fn line(&mut self, event: Event) -> Option<OutputMatch> {
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
                found: LineMatch::default(),
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

    /// Returns the unfinished lines, once all written output is read.
    fn unfinished(&self, events: &Events) -> Vec<OutputMatch> {
        let at = events.position().seq;
        if !self.wait.matcher.tests_unfinished() || at < events.head() {
            return Vec::new();
        }
        let streams = (1..).zip(self.wait.streams);
        let lines = streams.filter_map(|(stream, is_wanted)| {
            let (offset, line) = events.unfinished(stream).filter(|_| is_wanted)?;
            if line.is_empty() || line.len() > UNFINISHED_BYTES_MAX {
                return None;
            }
            Some(OutputMatch {
                seq: at,
                attempt: self.attempt,
                stream,
                offset,
                found: LineMatch::default(),
                line: line.to_vec(),
                is_cut: true,
            })
        });
        lines.collect()
    }

    /// Tests lines in turns. Returns the first that matches.
    async fn test(&mut self, lines: Vec<OutputMatch>) -> Result<Option<OutputMatch>, CallError> {
        let threads = &self.supervisor.shared.owner_threads;
        let mut lines = lines.into_iter();
        while !lines.as_slice().is_empty() {
            let mut allowance = self.allowance.take().ok_or_else(OwnerThreads::failed)?;
            let matcher = self.wait.matcher.clone();
            let turn = threads.turn(&self.by, move |scratch| {
                let tested = test_lines(&matcher, &mut allowance, scratch, &mut lines);
                (allowance, lines, tested)
            });
            let (allowance, rest, tested) = turn.await?;
            self.allowance = Some(allowance);
            lines = rest;
            match tested {
                Ok(None) => {}
                Ok(found) => return Ok(found),
                Err(_) => return Err(CallError::PatternTooDear(self.wait.run)),
            }
        }
        Ok(None)
    }
}

/// Tests lines until one matches, or the turn is over.
fn test_lines(
    matcher: &LineMatcher,
    allowance: &mut Allowance,
    scratch: &mut Scratch,
    lines: &mut std::vec::IntoIter<OutputMatch>,
) -> Result<Option<OutputMatch>, RuleOff> {
    let end = TurnEnd::begin();
    let mut tests = allowance.begin(0, matcher, scratch);
    for line in lines {
        let tested = tests.test(&line.line);
        if let Some(found) = tested.found {
            return Ok(Some(OutputMatch { found, ..line }));
        }
        if let Some((_, reason)) = tested.off {
            return Err(reason);
        }
        if tests.has_reached(end) {
            break;
        }
    }
    Ok(None)
}
