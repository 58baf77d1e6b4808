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
    streams::{events::Events, line::OutputLine},
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
    /// The line.
    pub line: OutputLine,
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

    /// Returns the line of this event. Notes its attempt, and missing output.
    fn line(&mut self, event: Event) -> Option<OutputLine> {
        self.attempt = event.attempt;
        if let Payload::Gap(gap) = &event.payload {
            let missing = |bytes: Option<u64>| bytes.is_none_or(|bytes| bytes > 0);
            self.is_incomplete |= gap.bytes.into_iter().any(missing);
        }
        OutputLine::of(event)
    }

    /// Returns the unfinished lines, once all written output is read.
    fn unfinished(&self, events: &Events) -> Vec<OutputLine> {
        if !self.wait.matcher.tests_unfinished() || events.position().seq < events.head() {
            return Vec::new();
        }
        let is_wanted = |line: &OutputLine| {
            self.wait.streams[usize::from(line.stream) - 1]
                && line.text.len() <= UNFINISHED_BYTES_MAX
        };
        let lines = events.unfinished_lines(self.attempt);
        lines.filter(is_wanted).collect()
    }

    /// Tests lines in turns. Returns the first that matches.
    async fn test(&mut self, lines: Vec<OutputLine>) -> Result<Option<OutputMatch>, CallError> {
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
    lines: &mut std::vec::IntoIter<OutputLine>,
) -> Result<Option<OutputMatch>, RuleOff> {
    let end = TurnEnd::begin();
    let mut tests = allowance.begin(0, matcher, scratch);
    for line in lines {
        let tested = tests.test(&line.text);
        if let Some(found) = tested.found {
            return Ok(Some(OutputMatch { line, found }));
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
