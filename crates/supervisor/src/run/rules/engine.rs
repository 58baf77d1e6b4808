//! Reads each line of a run's output for its rules, once and in order, from the journal. The lines are tested in turns
//! by [`Tester`], on threads of their own.
//!
//! A new server begins at the last line whose entry exists, so that it repeats the tests that the one before has not
//! finished, and nothing else.

use super::tester::Tester;
use crate::{
    base::{calls::CallError, clock},
    registry::{Shared, Supervisor},
    run::rules::tester::MatchedLine,
    streams::{events::Events, line::OutputLine},
};
use kennel_lifecycle::{OutputRule, RuleMark, RuleOff, RunId, limits};
use std::{collections::BTreeSet, pin::pin, sync::Arc, time::Duration};
use tokio::{
    sync::{mpsc, watch},
    time::{Instant, sleep_until},
};

/// Output read at a time.
const READ_BYTES: usize = 256 * 1024;
/// How long the end of an attempt waits for the tests of its output.
const END_WAITS_MAX: Duration = Duration::from_secs(5);
/// Most reports queued for the run's task.
pub(crate) const STEPS_QUEUED_MAX: usize = 16;

/// Report of the engine to the run's task.
#[derive(Debug)]
pub(crate) enum RuleStep {
    /// A line matched.
    Matched(Box<MatchedLine>),
    /// No more lines are tested by the rule of this index.
    SwitchedOff(usize, RuleOff),
    /// Every line of this attempt was tested, or cannot be tested.
    Tested(u32),
    /// The end of this attempt has waited long enough: some of its lines are not tested yet.
    Late(u32),
}

/// Position up to which the output of an attempt has to be tested before the attempt may end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Flush {
    /// Number of the attempt; 0: none yet.
    attempt: u32,
    /// Its last seq.
    seq: u64,
    /// Time at which the attempt ends all the same.
    due: Instant,
}

impl Flush {
    pub(crate) fn now(attempt: u32, seq: u64) -> Self {
        let due = clock::instant() + END_WAITS_MAX;
        Self { attempt, seq, due }
    }
}

/// What the engine of a run is given.
pub(crate) struct RuleWork {
    pub(crate) owner: Arc<str>,
    pub(crate) rules: Vec<OutputRule>,
    /// Names of rules that are switched off.
    pub(crate) off: BTreeSet<String>,
    pub(crate) mark: RuleMark,
    pub(crate) flush: watch::Receiver<Flush>,
    pub(crate) steps: mpsc::Sender<RuleStep>,
}

/// Runs until the run's last event, or until its task has ended.
pub(crate) async fn run(shared: Arc<Shared>, run: RunId, work: RuleWork) {
    let mut engine = Engine {
        tester: Some(Tester::new(run, work.rules, &work.off)),
        supervisor: Supervisor { shared },
        owner: work.owner,
        seen: work.mark.offsets,
        flush: work.flush,
        flushed: 0,
        steps: work.steps,
    };
    let read = async {
        let most = limits::MATCH_LINE_BYTES_MAX;
        let from = work.mark.seq.saturating_sub(1);
        let lines = engine.supervisor.lines(run, from, [true; 2], most).await?;
        engine.read(lines).await
    };
    if let Err(error) = read.await {
        tracing::error!(run_id = %run, %error, "cannot read the output for the rules of the run");
    }
    // The end of an attempt must not wait for a test that cannot happen.
    engine.answer_alone().await;
}

struct Engine {
    /// Absent: its thread has failed.
    tester: Option<Tester>,
    supervisor: Supervisor,
    owner: Arc<str>,
    /// For each stream, offset of the last line that was tested, or whose entry exists.
    seen: [Option<u64>; 2],
    flush: watch::Receiver<Flush>,
    /// The last attempt whose end was answered.
    flushed: u32,
    steps: mpsc::Sender<RuleStep>,
}

impl Engine {
    /// Reads until the run's last event, until the task has ended, or until a test has failed.
    async fn read(&mut self, mut events: Events) -> Result<(), CallError> {
        let mut attempt = 1;
        loop {
            let wanted = *self.flush.borrow_and_update();
            if wanted.attempt > self.flushed && events.position().seq >= wanted.seq {
                // The last lines of an attempt need no line end.
                let mut unfinished: Vec<_> = events.unfinished_lines(attempt).collect();
                unfinished.retain(|line| self.unseen(line.stream, line.offset));
                if !self.test(unfinished).await {
                    return Ok(());
                }
                if wanted.attempt > self.flushed {
                    self.answer(RuleStep::Tested(wanted.attempt)).await;
                }
            }
            tokio::select! { biased;
                () = self.steps.closed() => return Ok(()),
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
            let mut lines = Vec::new();
            for event in read {
                attempt = event.attempt;
                let line = OutputLine::of(event);
                lines.extend(line.filter(|line| self.unseen(line.stream, line.offset)));
            }
            if !self.test(lines).await {
                return Ok(());
            }
        }
    }

    fn unseen(&mut self, stream: u8, offset: u64) -> bool {
        let Some(seen) = self.seen.get_mut(usize::from(stream) - 1) else {
            return false;
        };
        let is_new = seen.is_none_or(|seen| offset > seen);
        if is_new {
            *seen = Some(offset);
        }
        is_new
    }

    /// Tests lines in turns. Returns `false` where nothing more can be tested, or need be.
    async fn test(&mut self, lines: Vec<OutputLine>) -> bool {
        let Some(mut tester) = self.tester.take() else {
            return false;
        };
        tester.begin(lines);
        while !tester.is_done() {
            let shared = Arc::clone(&self.supervisor.shared);
            let owner = Arc::clone(&self.owner);
            let mut turn = pin!(shared.owner_threads.turn(&owner, move |scratch| {
                tester.turn(scratch);
                tester
            }));
            let ended = loop {
                tokio::select! { biased;
                    () = self.steps.closed() => return false,
                    ended = &mut turn => break ended,
                    attempt = over_time(&mut self.flush, self.flushed) => {
                        self.answer(RuleStep::Late(attempt)).await;
                    }
                }
            };
            tester = match ended {
                Ok(tester) => tester,
                Err(_) => return false,
            };
            for line in tester.matched() {
                self.send(RuleStep::Matched(Box::new(line))).await;
            }
            for (rule, reason) in tester.switched_off() {
                self.send(RuleStep::SwitchedOff(rule, reason)).await;
            }
        }
        self.tester = Some(tester);
        true
    }

    async fn answer(&mut self, step: RuleStep) {
        if let RuleStep::Tested(attempt) | RuleStep::Late(attempt) = step {
            self.flushed = attempt;
        }
        self.send(step).await;
    }

    /// Answers that nothing more is tested, until the task has ended.
    async fn answer_alone(&mut self) {
        loop {
            let wanted = *self.flush.borrow_and_update();
            if wanted.attempt > self.flushed {
                self.answer(RuleStep::Tested(wanted.attempt)).await;
            }
            tokio::select! {
                () = self.steps.closed() => return,
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
        let _ = self.steps.send(step).await;
    }
}

/// Waits until the end of an attempt has waited long enough for tests. Returns its number.
async fn over_time(flush: &mut watch::Receiver<Flush>, flushed: u32) -> u32 {
    loop {
        let wanted = *flush.borrow_and_update();
        if wanted.attempt > flushed {
            sleep_until(wanted.due).await;
            return wanted.attempt;
        }
        if flush.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}
