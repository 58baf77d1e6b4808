//! The children of a shim, as it ends them itself.

use kennel_lifecycle::{Signal, SignalScope, SignalSender, StopStep, Timestamp};
use kennel_linux::{procfs, targets::SignalOutcome, tree::SignalRound};
use nix::errno::Errno;

/// Most rounds of signals in the exit record.
const STEPS_RECORDED_MAX: usize = 16;

/// Sends SIGKILL to the children of this process; counted where that is requested, except for `init`, which is no
/// member. Their pids cannot be reused: only this process reaps them.
pub(super) fn kill_children(count: bool, init: Option<i32>) -> SignalRound {
    let mut round = SignalRound::new(SignalScope::ShimChildren);
    for child in procfs::children(own_pid()) {
        let counts = count && init != Some(child);
        let living = counts && procfs::stat(child).is_ok_and(|stat| !stat.is_dead());
        // SAFETY: kill takes integers; `child` is an unreaped child of this process.
        let sent = Errno::result(unsafe { libc::kill(child, libc::SIGKILL) });
        // A process that was already dead does not count as signalled.
        if living {
            round.count(sent.map_or_else(
                |errno| SignalOutcome::Failed(errno as i32),
                |_| SignalOutcome::Delivered,
            ));
        }
    }
    round
}

/// Adds the signals sent, as far as there is space for them.
pub(super) fn note(
    steps: &mut Vec<StopStep>,
    at: Timestamp,
    signal: Signal,
    rounds: &[SignalRound],
) {
    let sent = rounds.iter().filter(|round| !round.is_empty());
    let room = STEPS_RECORDED_MAX.saturating_sub(steps.len());
    let sent = sent.map(|round| round.step(at, signal, SignalSender::Shim));
    steps.extend(sent.take(room));
}

/// Whether this shim has children beside init and a leader that was reaped: processes that the leader has made with
/// `CLONE_PARENT` (clone(2)). Init does not know of them.
pub(super) fn is_parent_beside(init: i32) -> bool {
    procfs::children(own_pid()).iter().any(|pid| *pid != init)
}

pub(super) fn own_pid() -> i32 {
    std::process::id().cast_signed()
}
