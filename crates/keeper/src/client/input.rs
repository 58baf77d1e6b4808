//! A run's standard input, as the server uses it.

use super::{ClientError, InputResult, InputState, link::Link};
use crate::wire::{Answer, Head, ToKeeper, input::WireInputRequest};
use kennel_lifecycle::RunId;
use std::time::Duration;

/// Bytes of one message to the keeper, which has to stay under 64 KiB. It is also how much the keeper buffers of a run
/// while its command does not read.
pub(super) const CHUNK_BYTES: usize = 48 * 1024;
/// A command may read at any time; a caller that waits for that gives up by dropping the future.
const FOR_EVER: Duration = Duration::from_hours(10 * 365 * 24);

/// Answer to a request about input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InputAnswer {
    /// The result, and the state of the input.
    Result(InputState, InputResult),
    /// The command has no writable input.
    None,
    /// The keeper holds another attempt.
    OtherAttempt,
    /// The keeper holds no such run.
    UnknownRun,
}

pub(super) fn input_answer(answer: &Answer) -> InputAnswer {
    match answer {
        Answer::Input { state, said } => InputAnswer::Result(*state, *said),
        Answer::OtherAttempt {} => InputAnswer::OtherAttempt,
        Answer::Signal(_) => InputAnswer::UnknownRun,
        _ => InputAnswer::None,
    }
}

/// A request that is withdrawn when no caller waits for its answer any more.
pub(super) struct Asking<'a> {
    pub(super) link: &'a Link,
    pub(super) run: RunId,
    pub(super) seq: Option<u64>,
}

impl Asking<'_> {
    pub(super) async fn ask(mut self, message: ToKeeper) -> Result<InputAnswer, ClientError> {
        let (seq, answer) = self.link.number()?;
        self.seq = Some(seq);
        let run = Some(self.run);
        let answered = self
            .link
            .exchange(seq, answer, run, message, Vec::new(), FOR_EVER)
            .await;
        self.seq = None;
        Ok(input_answer(&answered?.0))
    }
}

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        let Some(seq) = self.seq else { return };
        self.link.forget(seq);
        let request = WireInputRequest::Leave {};
        let (seq, run) = (Some(seq), Some(self.run));
        self.link
            .send(Head { seq, run }, &ToKeeper::Input { request }, Vec::new());
    }
}
