//! Signals of a client to itself as a job of a shell: see signal(7), termios(3).

use nix::sys::{
    prctl::set_dumpable,
    signal::{SaFlags, SigAction, SigHandler, SigSet, Signal as Caught, raise, sigaction},
};
use std::io;

/// Stops this process as Ctrl-Z stops one that has no handler for it, and returns when it is continued. The kernel stops no
/// process whose group has no shell left that could continue it: then it returns at once.
pub fn stop_self() -> io::Result<()> {
    let default = SigAction::new(SigHandler::SigDfl, SaFlags::empty(), SigSet::empty());
    // SAFETY: the default action runs no code of this program.
    let handler = unsafe { sigaction(Caught::SIGTSTP, &default) }?;
    // `raise` targets this thread: the signal takes effect before the call returns.
    let stopped = raise(Caught::SIGTSTP);
    // SAFETY: this handler was installed before, so it is safe to run.
    unsafe { sigaction(Caught::SIGTSTP, &handler) }?;
    Ok(stopped?)
}

/// Ends this process by a signal, as one without a handler for it, and without a core file. Returns where the signal does
/// not end it: to process 1 of a pid namespace.
pub fn die_of(signal_number: i32) {
    // A dump would be of this program. For dumps to a pipe the kernel checks this flag and not RLIMIT_CORE (core(5)).
    let _ = set_dumpable(false);
    // SAFETY: the default action runs no code of this program; an invalid signal number is refused.
    unsafe { libc::signal(signal_number, libc::SIG_DFL) };
    let _ = SigSet::all().thread_unblock();
    // SAFETY: raise takes a number, and sends the signal to this thread, where it takes effect before the call returns.
    unsafe { libc::raise(signal_number) };
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::signal_set::is_ignored;

    #[test]
    fn ignored_signal_differs_from_default() {
        let ignore = SigAction::new(SigHandler::SigIgn, SaFlags::empty(), SigSet::empty());
        assert!(!is_ignored(libc::SIGHUP));
        // SAFETY: ignoring a signal runs no code of this program.
        unsafe { sigaction(Caught::SIGHUP, &ignore) }.expect("it may be");
        assert!(is_ignored(libc::SIGHUP));
    }
}
