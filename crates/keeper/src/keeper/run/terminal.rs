//! Requests for a run's terminal.

use super::Run;
use crate::{client::SignalResult, wire::Answer};
use kennel_lifecycle::TerminalSize;

impl Run {
    /// Makes the terminal of an attempt so large.
    pub(in crate::keeper) fn resize(&mut self, seq: u64, attempt: u32, size: TerminalSize) {
        if self.ended {
            return self.answer_signal(seq, SignalResult::Gone);
        }
        // A terminal belongs to the same attempt as its input.
        if self
            .input
            .as_ref()
            .is_some_and(|input| !input.is_of(attempt))
        {
            return self.answer(seq, Answer::OtherAttempt {});
        }
        let Some(terminal) = self.terminal() else {
            return self.answer(seq, Answer::NoTerminal {});
        };
        let result = match terminal.resize(size) {
            Ok(()) => SignalResult::Done,
            Err(error) => SignalResult::Failed(error.raw_os_error().unwrap_or(libc::EIO)),
        };
        self.answer_signal(seq, result);
    }
}
