//! Commands beside the run's own: the shim makes them and ends them; here is who waits for them.

use super::{Pause, Run, Stage};
use crate::{
    values::HelperEnd,
    wire::{Answer, ToShim},
};
use kennel_lifecycle::limits::HELPERS_MAX;
use kennel_linux::clock;

/// Requests that wait.
#[derive(Default)]
pub(super) struct Helpers {
    /// The last number that was given to one.
    last: u64,
    /// Number and request.
    waiting: Vec<(u64, u64)>,
}

impl Run {
    /// Has the shim run a command, and answers how it ended. Not while the run is paused or being stopped.
    pub(in crate::keeper) fn help(&mut self, seq: u64, argv: Vec<String>, timeout_ms: u64) {
        let runs = self.stage == Stage::Ran
            && !self.ended
            && !self.heard.leader_exited
            && self.ladder.is_none()
            && matches!(self.pause, Pause::None | Pause::Expired)
            && self.shim.is_some();
        if !runs || self.helpers.waiting.len() >= HELPERS_MAX {
            return self.answer(seq, Answer::Helped(HelperEnd::Refused));
        }
        // A shim may still have some of an earlier keeper: none of theirs has such a number.
        self.helpers.last = (self.helpers.last + 1).max(clock::boot_ms() << 10);
        let id = self.helpers.last;
        self.helpers.waiting.push((id, seq));
        self.for_shim.push(ToShim::Help {
            id,
            argv,
            timeout_ms,
        });
    }

    /// One has ended.
    pub(super) fn helped(&mut self, id: u64, end: HelperEnd) {
        let waiting = &mut self.helpers.waiting;
        if let Some(at) = waiting.iter().position(|(known, _)| *known == id) {
            let (_, seq) = waiting.remove(at);
            self.answer(seq, Answer::Helped(end));
        }
    }

    /// No end of one will be heard.
    pub(super) fn refuse_helpers(&mut self) {
        for (_, seq) in std::mem::take(&mut self.helpers.waiting) {
            self.answer(seq, Answer::Helped(HelperEnd::Refused));
        }
    }

    /// Whoever waited is gone.
    pub(super) fn forget_helpers_waiting(&mut self) {
        self.helpers.waiting.clear();
    }
}
