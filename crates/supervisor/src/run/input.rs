//! Calls on a run's standard input. They bypass the run's task: a write waits for as long as the command takes, and
//! only the keeper knows the state of the input.

use crate::{
    base::{
        blocking::blocking,
        calls::{CallError, InputEnd},
        clock,
    },
    registry::{Handle, InputNews, Order, Supervisor},
};
use kennel_keeper::{
    client::{InputAnswer, InputResult, InputState},
    input_note, rundir,
};
use kennel_lifecycle::{
    ANSWER, Answered, AnsweredBy, AnsweringWrite, InputClosed, InputRefusal, InputWrite,
    OutputRule, Refusal, RunId, RunKind, RunState,
};

/// A request to write.
#[derive(Clone, Debug)]
pub struct WriteCall {
    /// Id of the run.
    pub run: RunId,
    /// Not empty.
    pub data: Vec<u8>,
    /// Offset of the first byte; absent: behind all accepted bytes.
    pub offset: Option<u64>,
    /// Id of the write.
    pub write_id: Option<String>,
    /// Expected attempt; absent: the present one.
    pub expected_attempt: Option<u32>,
    /// Number of the question that it answers: nothing is written unless that waits.
    pub answers: Option<u64>,
    /// The caller, as a principal.
    pub by: String,
}

/// A request to close.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CloseCall {
    /// Id of the run.
    pub run: RunId,
    /// Close only if exactly so many bytes were accepted; absent: always.
    pub offset: Option<u64>,
    /// Expected attempt; absent: the present one.
    pub expected_attempt: Option<u32>,
}

/// State of an attempt's input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InputProgress {
    /// Number of the attempt.
    pub attempt: u32,
    /// Number of accepted bytes; absent: not known.
    pub accepted: Option<u64>,
    /// Accepted bytes that no process has read; absent: no longer known.
    pub unread: Option<u64>,
    /// Reason why no more is accepted; absent: the input is open.
    pub end: Option<InputEnd>,
}

/// A write that was accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InputWritten {
    /// State of the input.
    pub progress: InputProgress,
    /// Offset of the first byte.
    pub start: u64,
    /// The write had been accepted before.
    pub repeated: bool,
}

impl From<InputState> for InputProgress {
    fn from(state: InputState) -> Self {
        Self {
            attempt: state.attempt,
            accepted: (state.in_doubt == 0).then_some(state.accepted),
            unread: state.unread,
            end: state.closed.map(InputEnd::Closed),
        }
    }
}

impl Supervisor {
    /// Writes; answers when the pipe has taken all bytes. A write that is dropped before leaves the bytes accepted by
    /// then.
    pub async fn write_input(&self, call: WriteCall) -> Result<InputWritten, CallError> {
        if call.answers.is_none() {
            return self.write_input_now(call).await;
        }
        // A spawned write records who answered, even if the caller goes away meanwhile.
        let (supervisor, run) = (self.clone(), call.run);
        let written = tokio::spawn(async move { supervisor.write_input_now(call).await });
        let failed =
            |error| CallError::Internal(format!("the answer to run {run} failed: {error}"));
        written.await.map_err(failed)?
    }

    async fn write_input_now(&self, call: WriteCall) -> Result<InputWritten, CallError> {
        let run = call.run;
        let handle = self.writable(run).await?;
        let _turn = handle.input_turn.lock().await;
        let attempt = present(run, &handle, call.expected_attempt)?;
        let kind = match (call.answers, &call.write_id) {
            (Some(_), _) => ANSWER,
            (None, Some(_)) => 'w',
            (None, None) => 'c',
        };
        // A fresh id joins the parts of this one write.
        let own_id = || self.shared.next_id().to_string();
        let id = format!("{kind}{}", call.write_id.unwrap_or_else(own_id));
        let mut write = InputWrite {
            id,
            offset: call.offset,
            len: call.data.len() as u64,
        };
        if let Some(question) = call.answers {
            let offset = waiting_at(run, &handle, question, &write.id)?;
            write.offset = write.offset.or(offset);
        }
        let kernel = &self.shared.kernel;
        let (at, waiting, is_news) = {
            let view = &handle.live.borrow().view;
            let open = view.facets.questions.numbers(attempt);
            let policy = view.policy();
            let is_news = !open.is_empty()
                || policy.timeouts.inactivity.is_some()
                || policy.output_rules.iter().any(OutputRule::asks);
            (clock::instant(), open, is_news)
        };
        let answer = kernel.write_input(run, attempt, &write, &call.data).await;
        let (state, said) = self.input_result(run, &handle, answer).await?;
        let news = match said {
            InputResult::Taken { start, repeated } if !repeated || call.answers.is_some() => {
                let write = AnsweringWrite {
                    end: start + write.len,
                    id: write.id,
                    start,
                };
                Some((Some(write), !repeated))
            }
            // Another write preceded the answer, at a server that has died since.
            InputResult::Refused(InputRefusal::Offset) if call.answers.is_some() => {
                Some((None, false))
            }
            _ => None,
        };
        if let Some((write, is_new)) = news.filter(|_| is_news) {
            let (by, how) = match (&write, call.answers) {
                (Some(_), Some(_)) => (call.by, AnsweredBy::Answer),
                (Some(_), None) => (call.by, AnsweredBy::Input),
                (None, _) => (String::new(), AnsweredBy::Input),
            };
            let news = Box::new(InputNews {
                questions: call.answers.map_or(waiting, |number| vec![number]),
                how,
                by,
                write,
                is_new,
                at,
            });
            let _ = handle.ask(|reply| Order::InputAccepted(news, reply)).await;
        }
        match said {
            InputResult::Refused(InputRefusal::Offset) if let Some(question) = call.answers => {
                let by = String::new();
                Err(CallError::AnsweredAlready { run, question, by })
            }
            InputResult::Taken { start, repeated } => Ok(InputWritten {
                progress: state.into(),
                start,
                repeated,
            }),
            InputResult::Refused(refusal) => Err(refused(run, &state, refusal)),
            InputResult::Stands | InputResult::Displaced => Err(CallError::Internal(format!(
                "the keeper says {said:?} to a write"
            ))),
        }
    }

    /// Closes the input; answers when the pipe is closed.
    ///
    /// A repeated call is answered as the first was, also when the command has exited upon EOF in between.
    pub async fn close_input(&self, call: CloseCall) -> Result<InputProgress, CallError> {
        let closed = self.close_live_input(&call).await;
        let Err(CallError::InputEnded { run, .. }) = closed else {
            return closed;
        };
        let noted = self.noted(run).await;
        noted
            .filter(|noted| is_repeated(&call, noted))
            .map_or(closed, Ok)
    }

    async fn close_live_input(&self, call: &CloseCall) -> Result<InputProgress, CallError> {
        let run = call.run;
        let handle = self.writable(run).await?;
        if handle.live.borrow().view.policy().kind == RunKind::Terminal {
            return Err(CallError::TerminalInput { run });
        }
        let _turn = handle.input_turn.lock().await;
        let attempt = present(run, &handle, call.expected_attempt)?;
        let answer = self.shared.kernel.close_input(run, attempt, call.offset);
        let (state, said) = self.input_result(run, &handle, answer.await).await?;
        match said {
            InputResult::Refused(refusal) => Err(refused(run, &state, refusal)),
            _ => Ok(state.into()),
        }
    }

    /// Returns the state of the input; the recorded state where no keeper holds the run any more.
    pub async fn input_progress(&self, run: RunId) -> Result<InputProgress, CallError> {
        let view = self.get(run).await?;
        self.refuse_unless_here(&view).await?;
        if !view.state.is_terminal() {
            let asked = self.shared.kernel.input_state(run, view.attempt).await?;
            if let InputAnswer::Result(state, _) = asked {
                return Ok(state.into());
            }
        }
        let without = InputProgress {
            attempt: view.attempt,
            accepted: Some(0),
            unread: None,
            end: Some(InputEnd::Spec),
        };
        Ok(self.noted(run).await.map_or(without, |mut noted| {
            // The keeper may have died before reporting the input's end.
            let over = InputEnd::Closed(InputClosed::AttemptEnded);
            noted.end.get_or_insert(over);
            noted
        }))
    }

    /// Returns a run that may be written to.
    async fn writable(&self, run: RunId) -> Result<Handle, CallError> {
        match self.shared.find(run) {
            Some(handle) if !handle.live.borrow().view.state.is_terminal() => {
                handle.live.borrow().view.refuse_pinned()?;
                Ok(handle)
            }
            _ => {
                let view = self.get(run).await?;
                self.refuse_unless_here(&view).await?;
                Err(self.over(run, view.state).await)
            }
        }
    }

    async fn input_result(
        &self,
        run: RunId,
        handle: &Handle,
        answer: Result<InputAnswer, kennel_keeper::client::ClientError>,
    ) -> Result<(InputState, InputResult), CallError> {
        match answer? {
            InputAnswer::Result(state, said) => Ok((state, said)),
            InputAnswer::None => Err(CallError::InputClosed {
                run,
                end: InputEnd::Spec,
                accepted: 0,
            }),
            InputAnswer::OtherAttempt => Err(CallError::OtherAttempt {
                run,
                attempt: handle.live.borrow().view.attempt,
            }),
            // The run has left the keeper: it has ended, or waits for its next attempt.
            InputAnswer::UnknownRun => {
                let view = self.get(run).await?;
                Err(self.over(run, view.state).await)
            }
        }
    }

    async fn over(&self, run: RunId, state: RunState) -> CallError {
        if !state.is_terminal() {
            return not_running(run, state);
        }
        let noted = self.noted(run).await;
        CallError::InputEnded {
            run,
            state,
            accepted: noted.and_then(|noted| noted.accepted),
        }
    }

    async fn noted(&self, run: RunId) -> Option<InputProgress> {
        let dir = rundir::path(&self.shared.config.data_dir, run);
        let noted = blocking(move || input_note::read(&dir)).await;
        noted.ok()?.ok().flatten().map(Into::into)
    }
}

/// Returns the offset of an answer to this question, which waits, or was answered by the write of this id.
fn waiting_at(
    run: RunId,
    handle: &Handle,
    question: u64,
    write: &str,
) -> Result<Option<u64>, CallError> {
    let view = &handle.live.borrow().view;
    let questions = &view.facets.questions;
    let mut open = questions.of(view.attempt);
    if let Some(waiting) = open.find(|waiting| waiting.asked.number == question) {
        return Ok(waiting.asked.accepted);
    }
    match questions.answer_to(question) {
        Some(Answered {
            write: Some(AnsweringWrite { id, start, .. }),
            ..
        }) if id == write => Ok(Some(*start)),
        Some(answered) => Err(CallError::AnsweredAlready {
            run,
            question,
            by: answered.by.clone(),
        }),
        None => Err(CallError::QuestionGone {
            run,
            question,
            open: questions.numbers(view.attempt),
        }),
    }
}

fn not_running(run: RunId, state: RunState) -> CallError {
    CallError::Refused {
        run,
        refusal: Refusal::NotRunningYet,
        state,
    }
}

/// Returns the attempt that may be written to.
fn present(run: RunId, handle: &Handle, expected: Option<u32>) -> Result<u32, CallError> {
    let live = handle.live.borrow();
    let (state, attempt) = (live.view.state, live.view.attempt);
    match state {
        _ if expected.is_some_and(|expected| expected != attempt) => {
            Err(CallError::OtherAttempt { run, attempt })
        }
        RunState::Starting | RunState::Backoff => Err(not_running(run, state)),
        // For an attempt that ends, the keeper reports the state.
        _ => Ok(attempt),
    }
}

/// Returns whether a client had closed the input of an ended run as the call asks.
fn is_repeated(call: &CloseCall, noted: &InputProgress) -> bool {
    noted.end == Some(InputEnd::Closed(InputClosed::Client))
        && call
            .expected_attempt
            .is_none_or(|expected| expected == noted.attempt)
        && call
            .offset
            .is_none_or(|offset| noted.accepted == Some(offset))
}

fn refused(run: RunId, state: &InputState, refusal: InputRefusal) -> CallError {
    let accepted = state.accepted;
    match refusal {
        InputRefusal::Offset | InputRefusal::Unfinished => CallError::InputOffset {
            run,
            accepted,
            unfinished: refusal == InputRefusal::Unfinished,
        },
        InputRefusal::Closed(why) => CallError::InputClosed {
            run,
            end: InputEnd::Closed(why),
            accepted,
        },
        InputRefusal::Unknown(most) => CallError::InputUnknown {
            run,
            least: accepted,
            most,
        },
    }
}
