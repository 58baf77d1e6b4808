//! Commands beside the run's own: the shim makes and ends them; this module has the requests that wait for them.

use super::{CommandStage, Pause, Run};
use crate::{
    values::{Fact, HelperEnd},
    wire::{Answer, ToShim},
};
use kennel_lifecycle::{StopCommand, StopCommandEnd, Timestamp, limits::HELPERS_MAX};
use kennel_linux::clock;

/// Waiting requests.
#[derive(Default)]
pub(super) struct HelperRequests {
    /// The last number that was assigned.
    last: u64,
    /// Number and request.
    waiting: Vec<(u64, u64)>,
    /// The command of a stop: number, start time, name.
    of_stop: Option<(u64, Timestamp, String)>,
}

impl Run {
    /// Has the shim run a command, and answers how it ended. Refused while the run is paused or being stopped.
    pub(in crate::keeper) fn help(&mut self, seq: u64, argv: Vec<String>, timeout_ms: u64) {
        let runs = self.stage == CommandStage::Ran
            && !self.ended
            && !self.heard.leader_exited
            && self.ladder.is_none()
            && matches!(self.pause, Pause::None | Pause::Expired)
            && self.shim.is_some();
        if !runs || self.helpers.waiting.len() >= HELPERS_MAX {
            return self.answer(seq, Answer::Helped(HelperEnd::Refused));
        }
        let id = self.ask_shim(argv, timeout_ms, false);
        self.helpers.waiting.push((id, seq));
    }

    /// Has the shim run a command. Returns its number.
    fn ask_shim(&mut self, argv: Vec<String>, timeout_ms: u64, stops: bool) -> u64 {
        // The shim may still run helpers of an earlier keeper: boot time makes new ids differ.
        let id = (self.helpers.last + 1).max(clock::boot_ms() << 10);
        self.helpers.last = id;
        self.for_shim.push(ToShim::Help {
            id,
            argv,
            timeout_ms,
            stops,
        });
        id
    }

    /// Has the shim run a command as an action of a stop, until the next rung at most. A paused tree could not react.
    pub(super) fn stop_command(&mut self, argv: Vec<String>, now: u64) {
        self.end_pause();
        let ladder = self.ladder.as_ref();
        let timeout_ms = ladder.map_or(0, |ladder| ladder.time_of_command(now));
        let name = argv.first().cloned().unwrap_or_default();
        if self.shim.is_none() {
            return self.stop_command_over(clock::wall(), name, HelperEnd::Refused);
        }
        let id = self.ask_shim(argv, timeout_ms, true);
        self.helpers.of_stop = Some((id, clock::wall(), name));
    }

    /// Continues the stop after its command has ended.
    fn stop_command_over(&mut self, at: Timestamp, name: String, end: HelperEnd) {
        let end = match end {
            HelperEnd::Exited(exit) => StopCommandEnd::Exited(exit),
            HelperEnd::TimedOut => StopCommandEnd::TimedOut,
            HelperEnd::Failed(failure) => StopCommandEnd::NotStarted(failure.errno),
            HelperEnd::Refused => StopCommandEnd::CutOff,
        };
        self.report(Fact::StopCommand(StopCommand { at, name, end }));
        if let Some(ladder) = &mut self.ladder {
            ladder.hurry(clock::boot_ms());
        }
    }

    /// Handles the end of a command.
    pub(super) fn helped(&mut self, id: u64, end: HelperEnd) {
        if let Some((_, at, name)) = self.helpers.of_stop.take_if(|(known, ..)| *known == id) {
            return self.stop_command_over(at, name, end);
        }
        let waiting = &mut self.helpers.waiting;
        if let Some(at) = waiting.iter().position(|(known, _)| *known == id) {
            let (_, seq) = waiting.remove(at);
            self.answer(seq, Answer::Helped(end));
        }
    }

    /// Answers all requests, because no end of a command will be reported.
    pub(super) fn refuse_helpers(&mut self) {
        if let Some((_, at, name)) = self.helpers.of_stop.take() {
            self.stop_command_over(at, name, HelperEnd::Refused);
        }
        for (_, seq) in std::mem::take(&mut self.helpers.waiting) {
            self.answer(seq, Answer::Helped(HelperEnd::Refused));
        }
    }

    /// Drops all requests: their server is gone.
    pub(super) fn forget_helpers_waiting(&mut self) {
        self.helpers.waiting.clear();
    }
}
