//! Signals that mean nothing to the keeper: each is reported to the server, which logs it, and changes nothing else.

use crate::values::StraySignal;
use nix::{sys::signalfd::siginfo, unistd::getsid};
use std::fs::File;

/// Time between two reports of one signal: a process that sends it all the time fills no log.
const REPORT_EVERY_MS: u64 = 10_000;
/// One slot for each signal number (signal(7)).
const NUMBERS: usize = 65;

/// History of each signal.
pub(super) struct Stray([StraySignals; NUMBERS]);

#[derive(Clone, Copy, Default)]
struct StraySignals {
    /// Earliest time of the next report.
    report_at: u64,
    /// Signals received since the last report.
    unreported: u32,
}

impl Default for Stray {
    fn default() -> Self {
        Self([StraySignals::default(); NUMBERS])
    }
}

impl Stray {
    /// Counts a signal, and returns a report of it, if one is due.
    pub(super) fn count(
        &mut self,
        number: i32,
        (pid, uid): (i32, u32),
        now: u64,
    ) -> Option<StraySignal> {
        let seen = self.0.get_mut(usize::try_from(number).ok()?)?;
        seen.unreported = seen.unreported.saturating_add(1);
        if now < seen.report_at {
            return None;
        }
        seen.report_at = now.saturating_add(REPORT_EVERY_MS);
        Some(StraySignal {
            number,
            pid,
            uid,
            count: std::mem::take(&mut seen.unreported),
        })
    }
}

/// Whether this SIGHUP is a hang-up of the terminal and no request: the kernel has sent it, or the shell that leads the
/// session passes it on to its jobs.
pub(super) fn is_hang_up(signal: &siginfo, had_terminal: bool) -> bool {
    let sender = signal.ssi_pid.cast_signed();
    let is_leader = || getsid(None).is_ok_and(|leader| leader.as_raw() == sender);
    // The kernel sends codes above 0 (sigaction(2)).
    signal.ssi_code > 0 || (had_terminal && is_leader() && !has_terminal())
}

/// Whether a terminal controls this process: a hang-up takes it from the session.
pub(super) fn has_terminal() -> bool {
    File::open("/dev/tty").is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeated_signal_is_reported_once_with_its_count() {
        let mut stray = Stray::default();
        let sender = (7, 0);
        let mut counts = |number, now| stray.count(number, sender, now).map(|seen| seen.count);
        assert_eq!(counts(10, 5), Some(1));
        assert_eq!(counts(10, 6), None);
        assert_eq!(counts(12, 6), Some(1), "another signal");
        assert_eq!(counts(10, 7), None);
        assert_eq!(counts(10, 5 + REPORT_EVERY_MS), Some(3));
        assert_eq!(counts(65, 5), None, "no signal");
    }
}
