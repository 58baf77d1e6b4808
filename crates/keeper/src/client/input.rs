//! A run's standard input, as the server uses it.

use super::{ClientError, InputResult, InputState, KeeperClient, link::Link};
use crate::wire::{
    Answer, ToKeeper,
    input::{WireBytes, WireInputRequest},
};
use kennel_lifecycle::{InputWrite, RunId};
use std::time::Duration;

/// Bytes of one message to the keeper, which has to stay under 64 KiB. It is also how much the keeper buffers of a run
/// while its command does not read.
const CHUNK_BYTES: usize = 48 * 1024;
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

impl KeeperClient {
    /// Writes to the input of an attempt; returns when the pipe has taken all of it, however long that takes. Where the
    /// future is dropped before, what was taken by then stays taken, and no more is.
    pub async fn write_input(
        &self,
        run: RunId,
        attempt: u32,
        write: &InputWrite,
        data: &[u8],
    ) -> Result<InputAnswer, ClientError> {
        let mut at = 0;
        let mut repeated_first = None;
        let mut write = write.clone();
        loop {
            let end = data.len().min(at + CHUNK_BYTES);
            let chunk = WireBytes(data[at..end].to_vec());
            let (run, of, from) = (run.as_u128(), write.clone(), at as u64);
            let request = WireInputRequest::Write {
                attempt,
                write: of,
                at: from,
                data: chunk,
            };
            let asked = |seq| ToKeeper::Input { seq, run, request };
            let asking = Asking {
                link: &self.link,
                run,
                seq: None,
            };
            let answer = asking.ask(asked).await?;
            let InputAnswer::Result(state, InputResult::Taken { start, repeated }) = answer else {
                return Ok(answer);
            };
            let repeated = *repeated_first.get_or_insert(repeated);
            // From here on its offset is fixed.
            write.offset = Some(start);
            let taken = usize::try_from(state.accepted.saturating_sub(start)).unwrap_or(usize::MAX);
            if taken >= data.len() {
                return Ok(InputAnswer::Result(
                    state,
                    InputResult::Taken { start, repeated },
                ));
            }
            at = taken;
        }
    }

    /// Closes the input of an attempt, where it stands at this offset if one is given. Returns when no copy of the
    /// pipe's end is left except with a shim that was ordered to close its own.
    pub async fn close_input(
        &self,
        run: RunId,
        attempt: u32,
        offset: Option<u64>,
    ) -> Result<InputAnswer, ClientError> {
        let run = run.as_u128();
        let request = WireInputRequest::Close { attempt, offset };
        let asked = |seq| ToKeeper::Input { seq, run, request };
        Ok(input_answer(&self.link.ask(asked, Vec::new()).await?.0))
    }

    /// Returns the state of an attempt's input.
    pub async fn input_state(&self, run: RunId, attempt: u32) -> Result<InputAnswer, ClientError> {
        let run = run.as_u128();
        let request = WireInputRequest::State { attempt };
        let asked = |seq| ToKeeper::Input { seq, run, request };
        Ok(input_answer(&self.link.ask(asked, Vec::new()).await?.0))
    }
}

fn input_answer(answer: &Answer) -> InputAnswer {
    match answer {
        Answer::Input { state, said } => InputAnswer::Result(*state, *said),
        Answer::OtherAttempt => InputAnswer::OtherAttempt,
        Answer::Signal(_) => InputAnswer::UnknownRun,
        _ => InputAnswer::None,
    }
}

/// A request that is withdrawn when no caller waits for its answer any more.
struct Asking<'a> {
    link: &'a Link,
    run: u128,
    seq: Option<u64>,
}

impl Asking<'_> {
    async fn ask(
        mut self,
        message: impl FnOnce(u64) -> ToKeeper,
    ) -> Result<InputAnswer, ClientError> {
        let seq = &mut self.seq;
        let asked = |number| {
            *seq = Some(number);
            message(number)
        };
        let answered = self.link.ask_for(asked, Vec::new(), FOR_EVER).await;
        self.seq = None;
        Ok(input_answer(&answered?.0))
    }
}

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        let Some(seq) = self.seq else { return };
        self.link.forget(seq);
        let run = self.run;
        let request = WireInputRequest::Leave;
        self.link.post(&ToKeeper::Input { seq, run, request });
    }
}
