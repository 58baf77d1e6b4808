//! Requests about a run's terminal, its limits of time, and the interrupt, which may be a key of the terminal.

use super::{ClientError, ExtendResult, InterruptWay, KeeperClient, SignalResult};
use crate::wire::{Answer, ToKeeper, WireExtend, WireResize};
use kennel_lifecycle::{Deadline, RunId, TerminalSize};
use std::time::Duration;

/// Result of an interrupt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interrupted {
    /// `Done` also where a signal was sent under this request id before.
    pub result: SignalResult,
    /// How the interrupt was sent; absent: none was sent now.
    pub way: Option<InterruptWay>,
}

/// Result of a change of size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resized {
    /// The terminal has the size now.
    Done,
    /// The run has no terminal.
    NoTerminal,
    /// The keeper holds another attempt.
    OtherAttempt,
    /// The attempt has ended, or the keeper holds no such run.
    Gone,
    /// The call failed with this errno(3).
    Failed(i32),
}

impl KeeperClient {
    /// Sends SIGINT to the leader's process group, or on a terminal the key for that, once.
    pub async fn interrupt(
        &self,
        run: RunId,
        request_id: Option<&str>,
    ) -> Result<Interrupted, ClientError> {
        let (run, request) = (run.as_u128(), request_id.map(str::to_owned));
        let asked = |seq| ToKeeper::Interrupt { seq, run, request };
        let (result, way) = match self.link.ask(asked, Vec::new()).await?.0 {
            Answer::Interrupted(way) => (SignalResult::Done, Some(way)),
            Answer::SentBefore => (SignalResult::Done, None),
            Answer::Signal(result) => (result, None),
            _ => return Err(ClientError::KeeperGone),
        };
        Ok(Interrupted { result, way })
    }

    /// Extends limits of time that the keeper counts: all of them or none, to at least this long from now on.
    pub async fn extend(
        &self,
        run: RunId,
        limits: &[Deadline],
        time: Duration,
        by: &str,
    ) -> Result<ExtendResult, ClientError> {
        let (run, limits, by) = (run.as_u128(), limits.to_vec(), by.to_owned());
        let asked = |seq| {
            ToKeeper::Extend(WireExtend {
                seq,
                run,
                limits,
                time,
                by,
            })
        };
        Ok(match self.link.ask(asked, Vec::new()).await?.0 {
            Answer::Extended(result) => result,
            Answer::Signal(_) => ExtendResult::Gone,
            _ => return Err(ClientError::KeeperGone),
        })
    }

    /// Sets the size of an attempt's terminal.
    pub async fn resize(
        &self,
        run: RunId,
        attempt: u32,
        size: TerminalSize,
    ) -> Result<Resized, ClientError> {
        let run = run.as_u128();
        let asked = |seq| {
            ToKeeper::Resize(WireResize {
                seq,
                run,
                attempt,
                size,
            })
        };
        Ok(match self.link.ask(asked, Vec::new()).await?.0 {
            Answer::NoTerminal => Resized::NoTerminal,
            Answer::OtherAttempt => Resized::OtherAttempt,
            Answer::Signal(result) => match result {
                SignalResult::Done => Resized::Done,
                SignalResult::Failed(errno) => Resized::Failed(errno),
                SignalResult::Gone | SignalResult::UnknownRun | SignalResult::Partial(_) => {
                    Resized::Gone
                }
            },
            _ => return Err(ClientError::KeeperGone),
        })
    }
}
