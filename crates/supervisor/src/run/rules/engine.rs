//! Tests each line of a run's output by its rules, once and in order, from the journal.
//!
//! A new server begins at the last line whose entry exists, so that it repeats the tests that the one before has not
//! finished, and nothing else.

use crate::{
    base::{
        blocking::blocking,
        calls::{CallError, Event, Payload},
        matcher::{LineMatch, LineMatcher},
    },
    registry::{Shared, Supervisor},
    run::task::Done,
    streams::events::Events,
};
use kennel_lifecycle::{OutputRule, RuleMark, RunId, limits};
use std::sync::Arc;
use tokio::sync::{mpsc, watch};

/// Output read at a time.
const READ_BYTES: usize = 256 * 1024;
/// Longest line that is tested without leaving the threads of the runtime.
const SHORT_LINE_BYTES_MAX: usize = 64 * 1024;

/// Report of the engine to the run's task.
#[derive(Debug)]
pub(crate) enum RuleStep {
    /// A line matched.
    Matched(Box<MatchedLine>),
    /// Every line of this attempt was tested, or cannot be tested.
    Tested(u32),
}

/// A line that matched rules.
#[derive(Debug)]
pub(crate) struct MatchedLine {
    pub(crate) attempt: u32,
    /// Seq of the event in which it ended.
    pub(crate) seq: u64,
    /// 1: standard output, 2: standard error.
    pub(crate) stream: u8,
    /// Offset of its first byte in the whole of the stream.
    pub(crate) offset: u64,
    /// Indexes of the rules, and their matches in the line.
    pub(crate) rules: Vec<(usize, LineMatch)>,
}

/// Position up to which the output of an attempt has to be tested before the attempt may end.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Flush {
    /// Number of the attempt; 0: none yet.
    pub(crate) attempt: u32,
    /// Its last seq.
    pub(crate) seq: u64,
}

/// Runs until the run's last event, or until its task has ended.
pub(crate) async fn run(
    shared: Arc<Shared>,
    run: RunId,
    rules: Vec<OutputRule>,
    mark: RuleMark,
    flush: watch::Receiver<Flush>,
    done: mpsc::Sender<Done>,
) {
    let mut engine = Engine {
        rules: compiled(run, rules),
        seen: mark.offsets,
        attempt: 1,
        flush,
        flushed: 0,
        done,
    };
    let supervisor = Supervisor { shared };
    let read = async {
        let most = limits::MATCH_LINE_BYTES_MAX;
        let lines = supervisor.lines(run, mark.seq.saturating_sub(1), [true; 2], most);
        engine.read(lines.await?).await
    };
    if let Err(error) = read.await {
        tracing::error!(run_id = %run, %error, "cannot read the output for the rules of the run");
    }
    // The end of an attempt must not wait for a test that cannot happen.
    engine.answer_alone().await;
}

/// Patterns were compiled when the spec was accepted; one that no longer compiles matches nothing.
fn compiled(run: RunId, rules: Vec<OutputRule>) -> Arc<Vec<(OutputRule, Option<LineMatcher>)>> {
    let compile = |rule: OutputRule| match LineMatcher::new(&rule.pattern) {
        Ok(matcher) => (rule, Some(matcher)),
        Err(why) => {
            tracing::error!(run_id = %run, rule = rule.name, why, "the pattern of an output rule is refused");
            (rule, None)
        }
    };
    Arc::new(rules.into_iter().map(compile).collect())
}

struct Engine {
    rules: Arc<Vec<(OutputRule, Option<LineMatcher>)>>,
    /// For each stream, offset of the last line that was tested, or whose entry exists.
    seen: [Option<u64>; 2],
    attempt: u32,
    flush: watch::Receiver<Flush>,
    /// The last attempt whose end was answered.
    flushed: u32,
    done: mpsc::Sender<Done>,
}

impl Engine {
    async fn read(&mut self, mut events: Events) -> Result<(), CallError> {
        loop {
            let wanted = *self.flush.borrow_and_update();
            if wanted.attempt > self.flushed && events.position().seq >= wanted.seq {
                self.test_unfinished(&events).await;
                self.answer(wanted.attempt).await;
            }
            let done = self.done.clone();
            tokio::select! { biased;
                () = done.closed() => return Ok(()),
                changed = self.flush.changed() => {
                    if changed.is_err() {
                        return Ok(());
                    }
                    continue;
                }
                () = events.ready() => {}
            }
            let Some(read) = events.step(READ_BYTES).await? else {
                return Ok(());
            };
            for event in read {
                self.test(event).await;
            }
        }
    }

    async fn test(&mut self, event: Event) {
        self.attempt = event.attempt;
        if let Payload::Line {
            stream,
            offset,
            text,
            ..
        } = event.payload
        {
            self.test_line(event.seq, stream, offset, text).await;
        }
    }

    /// Tests the last lines of an attempt, which need no line end.
    async fn test_unfinished(&mut self, events: &Events) {
        let seq = events.position().seq;
        for stream in [1, 2] {
            let unfinished = events.unfinished(stream);
            if let Some((offset, line)) = unfinished.filter(|(_, line)| !line.is_empty()) {
                self.test_line(seq, stream, offset, line.to_vec()).await;
            }
        }
    }

    async fn test_line(&mut self, seq: u64, stream: u8, offset: u64, line: Vec<u8>) {
        let Some(seen) = self.seen.get_mut(usize::from(stream) - 1) else {
            return;
        };
        if seen.is_some_and(|seen| offset <= seen) {
            return;
        }
        *seen = Some(offset);
        let rules = Arc::clone(&self.rules);
        let matched = if line.len() > SHORT_LINE_BYTES_MAX {
            let tested = blocking(move || matches(&rules, stream, &line)).await;
            tested.unwrap_or_default()
        } else {
            matches(&rules, stream, &line)
        };
        if matched.is_empty() {
            return;
        }
        let line = MatchedLine {
            attempt: self.attempt,
            seq,
            stream,
            offset,
            rules: matched,
        };
        self.send(RuleStep::Matched(Box::new(line))).await;
    }

    async fn answer(&mut self, attempt: u32) {
        self.flushed = attempt;
        self.send(RuleStep::Tested(attempt)).await;
    }

    /// Answers that nothing more is tested, until the task has ended.
    async fn answer_alone(&mut self) {
        loop {
            let wanted = *self.flush.borrow_and_update();
            if wanted.attempt > self.flushed {
                self.answer(wanted.attempt).await;
            }
            let done = self.done.clone();
            tokio::select! {
                () = done.closed() => return,
                changed = self.flush.changed() => {
                    if changed.is_err() {
                        return;
                    }
                }
            }
        }
    }

    async fn send(&self, step: RuleStep) {
        // A task that has ended has nothing to do any more.
        let _ = self.done.send(Done::Rule(step)).await;
    }
}

fn matches(
    rules: &[(OutputRule, Option<LineMatcher>)],
    stream: u8,
    line: &[u8],
) -> Vec<(usize, LineMatch)> {
    let tested = rules.iter().enumerate();
    let tested = tested.filter(|(_, (rule, _))| rule.streams[usize::from(stream) - 1]);
    let matched = tested.filter_map(|(at, (_, matcher))| Some((at, matcher.as_ref()?.test(line)?)));
    matched.collect()
}
