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
use kennel_keeper::client::InputAnswer;
use kennel_lifecycle::{AskedLine, OutputRule, RuleMark, RuleOff, RunId, limits};
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
    /// When the last input was written: it answers what was shown by then.
    pub(crate) input: Option<Instant>,
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
        Self {
            input: None,
            attempt,
            seq,
            due,
        }
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
    let asked = work.mark.asked.map(Option::unwrap_or_default);
    let mut engine = Engine {
        run,
        asks: work.rules.iter().any(OutputRule::asks_in_unfinished_lines),
        asked,
        shown: [((0, 0), clock::instant()); 2],
        input: None,
        quiet: None,
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
    run: RunId,
    /// Whether a rule may see a question in an unfinished line.
    asks: bool,
    /// For each stream, the offset of a line, and the length of its beginning that is no question any more.
    asked: [(u64, usize); 2],
    /// For each stream, the unfinished line likewise, and when it became so.
    shown: [((u64, usize), Instant); 2],
    /// When the last input was written.
    input: Option<Instant>,
    /// Time at which what is shown may be a question.
    quiet: Option<Instant>,
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
            if self.asks {
                self.look(&events, attempt);
            }
            if wanted.input > self.input {
                self.input = wanted.input;
                for ((place, since), asked) in self.shown.iter().zip(&mut self.asked) {
                    // Later output may be an answer to the input.
                    if Some(*since) <= wanted.input {
                        *asked = (*asked).max(*place);
                    }
                }
            }
            if wanted.attempt > self.flushed && events.position().seq >= wanted.seq {
                // The last lines of an attempt need no line end.
                let unfinished = self.unseen(events.unfinished_lines(attempt));
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
                () = sleep_until(self.quiet.unwrap_or_else(clock::instant)), if self.quiet.is_some() => {
                    self.quiet = None;
                    if !self.ask(&events).await {
                        return Ok(());
                    }
                    continue;
                }
            }
            let Some(read) = events.step(READ_BYTES).await? else {
                return Ok(());
            };
            let mut lines = Vec::new();
            for event in read {
                attempt = event.attempt;
                lines.extend(self.unseen(OutputLine::of(event)));
            }
            if !self.test(lines).await {
                return Ok(());
            }
        }
    }

    /// Notes what is shown, and when it may be a question.
    fn look(&mut self, events: &Events, attempt: u32) {
        let now = clock::instant();
        for line in events.unfinished_lines(attempt) {
            let (shown, place) = (
                &mut self.shown[usize::from(line.stream) - 1],
                (line.offset, line.text.len()),
            );
            if shown.0 != place {
                *shown = (place, now);
                self.quiet = Some(now + limits::QUIET);
            }
        }
    }

    fn without_asked(&self, mut line: OutputLine) -> OutputLine {
        let (offset, len) = self.asked[usize::from(line.stream) - 1];
        line.asked = if line.offset == offset { len } else { 0 };
        line
    }

    /// Tests whether the ends of the output, after which nothing has come for a while, are questions.
    async fn ask(&mut self, events: &Events) -> bool {
        let Some(handle) = self.supervisor.shared.find(self.run) else {
            return true;
        };
        let attempt = handle.live.borrow().view.attempt;
        let lines = events.unfinished_lines(attempt).map(|line| OutputLine {
            is_quiet: true,
            ..self.without_asked(line)
        });
        let mut lines: Vec<_> = lines.collect();
        lines.retain(|line| !line.question().is_empty());
        self.test(lines).await
    }

    /// Completes a question by the state of the input. Returns `false` where the command cannot wait for it now.
    async fn complete(&mut self, line: &mut MatchedLine) -> bool {
        let Some(question) = &mut line.question else {
            return true;
        };
        let kernel = &self.supervisor.shared.kernel;
        let input = kernel.input_state(self.run, line.line.attempt).await;
        let state = match input {
            Ok(InputAnswer::Result(state, _)) if state.closed.is_none() => state,
            _ => return !line.line.is_quiet,
        };
        question.accepted = Some(state.accepted);
        question.echo_off = state.echo_off;
        if line.line.is_quiet && state.unread.is_some_and(|unread| unread > 0) {
            // The command has not read its earlier input.
            self.quiet = Some(clock::instant() + limits::QUIET);
            return false;
        }
        if let Some(AskedLine {
            stream,
            offset,
            len,
        }) = question.line
        {
            self.asked[usize::from(stream) - 1] = (offset, len);
        }
        true
    }

    /// Returns the lines that were not tested before, and takes note of them.
    fn unseen(&mut self, lines: impl IntoIterator<Item = OutputLine>) -> Vec<OutputLine> {
        let mut new = Vec::new();
        for line in lines {
            let seen = &mut self.seen[usize::from(line.stream) - 1];
            if seen.is_none_or(|seen| line.offset > seen) {
                *seen = Some(line.offset);
                new.push(self.without_asked(line));
            }
        }
        new
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
            for mut line in tester.matched() {
                if !self.complete(&mut line).await {
                    continue;
                }
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
        // A send fails only if the task has ended.
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
