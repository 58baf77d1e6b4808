//! Exits of commands, and exit codes of what has no exit.

use crate::{
    failure::Failure,
    link::{Link, run_of},
    sentence,
};
use kennel_linux::own_signals;
use kennel_proto::pb;
use std::process::ExitCode;

/// Exit code of timeout(1) for a command, or a wait, that took too long.
pub(super) const TIMED_OUT: u8 = 124;

/// Exit code of `run`'s own failures.
pub const OWN_FAILURE: u8 = 125;

pub(super) const SIGKILL: u8 = 9;

/// Exit of a command, or of this process in its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// Its exit code.
    Code(u8),
    /// The signal that ended it.
    Signal(u8),
}

impl From<u8> for Exit {
    fn from(code: u8) -> Self {
        Self::Code(code)
    }
}

impl Exit {
    /// Returns the exit code, or a shell's for the signal.
    pub fn code(self) -> u8 {
        match self {
            Self::Code(code) => code,
            Self::Signal(signal) => signal.saturating_add(128),
        }
    }

    /// Ends this process by the signal, and else returns the exit code. A shell ends its loop after Ctrl-C only if the
    /// child has died of SIGINT.
    pub(super) fn repeat(self) -> ExitCode {
        if let Self::Signal(signal) = self {
            own_signals::die_of(signal.into());
        }
        ExitCode::from(self.code())
    }
}

/// Returns the exit by the run itself, where no event has it.
pub(crate) async fn exit_of_ended(link: &Link, run_id: &str) -> Result<Exit, Failure> {
    let request = pb::GetRunRequest {
        run_id: run_id.to_owned(),
    };
    exit_of(&run_of(link.ask(request).await?.run)?)
}

/// Returns the exit of a run that has ended.
pub(crate) fn exit_of(run: &pb::Run) -> Result<Exit, Failure> {
    use pb::end_reason::Reason;
    let reason = run.end_reason.as_ref().and_then(|end| end.reason.as_ref());
    let reason = match reason {
        Some(Reason::DeadlineExceeded(_)) => "deadline_exceeded",
        Some(Reason::OomKilled(_)) => "oom_killed",
        Some(Reason::MemoryReserve(_)) => "memory_reserve",
        Some(Reason::ShimLost(_)) => "shim_lost",
        Some(Reason::LimitExceeded(_)) => "limit_exceeded",
        _ => "",
    };
    let run_id = &run.run_id;
    if let Some(failure) = reported_by_reason(reason, run_id) {
        return Err(failure);
    }
    if let Some(exit) = run.current_attempt.as_ref().and_then(|a| a.exit.as_ref()) {
        return known(exit, run_id);
    }
    let why = run.end_reason.as_ref().map(sentence::end_reason);
    let why = why.unwrap_or_else(|| "it has not ended".to_owned());
    Err(Failure::new(format!("run {run_id} has no exit: {why}")).code(OWN_FAILURE))
}

/// Returns the exit, which must be known.
pub(super) fn known(exit: &pb::Exit, run_id: &str) -> Result<Exit, Failure> {
    let known = match &exit.result {
        Some(pb::exit::Result::Code(code)) => u8::try_from(*code).ok().map(Exit::Code),
        Some(pb::exit::Result::Signal(signal)) => {
            u8::try_from(signal.number).ok().map(Exit::Signal)
        }
        Some(pb::exit::Result::Unknown(_)) | None => None,
    };
    known.ok_or_else(|| {
        Failure::new(format!("how run {run_id} ended is not known"))
            .code(OWN_FAILURE)
            .hint(format!("kennel get {run_id} shows what is known"))
    })
}

/// Returns the failure that the reason of an end adds to the command's exit.
pub(super) fn reported_by_reason(reason: &str, run_id: &str) -> Option<Failure> {
    let (code, what) = code_of_reason(reason)?;
    Some(Failure::new(format!("run {run_id} {what}")).code(code))
}

/// A shell's exit code for a command that SIGKILL ended.
const KILLED: u8 = 137;

/// Exit code as of a command that SIGXFSZ has ended.
const LIMITED: u8 = 153;

fn code_of_reason(reason: &str) -> Option<(u8, &'static str)> {
    match reason {
        "deadline_exceeded" => Some((
            TIMED_OUT,
            "exceeded its time limit (--timeout or --inactivity) and was stopped",
        )),
        "limit_exceeded" => Some((
            LIMITED,
            "exceeded its output limit (--output-full, --disk-full) and was stopped",
        )),
        "shim_lost" => Some((
            OWN_FAILURE,
            "was stopped by the server, because the run's shim is lost",
        )),
        "oom_killed" => Some((KILLED, "was killed by the kernel for lack of memory")),
        "memory_reserve" => Some((
            KILLED,
            "was the largest run when the memory of its node was short (serve --memory-reserve), and was stopped",
        )),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code(result: pb::exit::Result) -> Option<u8> {
        let exit = pb::Exit {
            result: Some(result),
            ..pb::Exit::default()
        };
        known(&exit, "R").ok().map(Exit::code)
    }

    // promise: C-1
    #[test]
    fn exit_code_follows_the_command_or_signal() {
        let signal = |number| {
            let name = String::new();
            pb::exit::Result::Signal(pb::exit::Signal { name, number })
        };
        assert_eq!(code(pb::exit::Result::Code(0)), Some(0));
        assert_eq!(code(pb::exit::Result::Code(255)), Some(255));
        assert_eq!(code(signal(9)), Some(137));
        assert_eq!(code(signal(64)), Some(192));
        let unknown = pb::exit::Result::Unknown(pb::exit::Unknown {});
        assert_eq!(code(unknown), None, "an exit code is never invented");
    }

    // promise: C-11
    #[test]
    fn end_reason_determines_exit_code() {
        let code = |reason| code_of_reason(reason).map(|(code, _)| code);
        assert_eq!(code("deadline_exceeded"), Some(124));
        assert_eq!(code("oom_killed"), Some(137));
        assert_eq!(code("memory_reserve"), Some(137));
        assert_eq!(code("limit_exceeded"), Some(153));
        assert_eq!(code("shim_lost"), Some(125));
        assert_eq!(code("exited"), None);
    }
}
