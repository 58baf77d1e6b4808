//! Sets of signals by the kernel's own numbers: libc hides those that it uses itself, and they end a process all the same.

use nix::{
    errno::Errno,
    sys::signalfd::{SfdFlags, SignalFd},
};
use std::{
    io,
    os::fd::{FromRawFd, OwnedFd},
    ptr,
    sync::OnceLock,
};

/// The highest number (signal(7)).
const NUMBER_MAX: i32 = 64;

/// Signals, one bit each, as in the kernel's `sigset_t`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SignalSet(u64);

impl SignalSet {
    /// All signals; the kernel leaves out KILL and STOP, which cannot be blocked.
    pub const ALL: Self = Self(u64::MAX);

    /// Faults of the program itself, which it must not survive, and the request for a core.
    const FAULTS: [i32; 7] = [
        libc::SIGILL,
        libc::SIGTRAP,
        libc::SIGABRT,
        libc::SIGBUS,
        libc::SIGFPE,
        libc::SIGSEGV,
        libc::SIGSYS,
    ];
    /// Signals that by default end no process: job control, and ignored ones. SIGPIPE is ignored by this program.
    const HARMLESS: [i32; 7] = [
        libc::SIGPIPE,
        libc::SIGCONT,
        libc::SIGTSTP,
        libc::SIGTTIN,
        libc::SIGTTOU,
        libc::SIGURG,
        libc::SIGWINCH,
    ];

    /// Returns the signals that would end a process by default without a fault of its own, and SIGCHLD.
    pub const fn of_others() -> Self {
        Self::ALL.without(&Self::FAULTS).without(&Self::HARMLESS)
    }

    /// Returns all of these but SIGCHLD: exits of children that are ignored cannot be waited for.
    #[must_use]
    pub const fn without_exits(self) -> Self {
        self.without(&[libc::SIGCHLD])
    }

    /// Returns SIGCHLD alone.
    pub const fn exits() -> Self {
        Self(bit(libc::SIGCHLD))
    }

    const fn without(mut self, numbers: &[i32]) -> Self {
        let mut i = 0;
        while i < numbers.len() {
            self.0 &= !bit(numbers[i]);
            i += 1;
        }
        self
    }

    fn has(self, number: i32) -> bool {
        self.0 & bit(number) != 0
    }

    /// Blocks these in this thread, beside those that are blocked already.
    pub fn block(self) -> io::Result<()> {
        let old = ptr::null_mut::<u64>();
        // SAFETY: the kernel's sigset is 8 bytes, like `self.0`, which outlives the call; a null old set is allowed.
        let blocked = unsafe {
            libc::syscall(
                libc::SYS_rt_sigprocmask,
                libc::SIG_BLOCK,
                &raw const self.0,
                old,
                size_of::<u64>(),
            )
        };
        Errno::result(blocked)?;
        Ok(())
    }

    /// Ignores these in this process, whatever their earlier disposition.
    pub fn ignore(self) -> io::Result<()> {
        self.dispose(libc::SIG_IGN)
    }

    /// Resets all signals to what they do by default, which children inherit: those that this program ignores, and the
    /// two that Rust handles.
    pub fn reset() -> io::Result<()> {
        let faults = bit(libc::SIGSEGV) | bit(libc::SIGBUS);
        Self(Self::ignored().0 | faults).dispose(libc::SIG_DFL)
    }

    fn dispose(self, handler: libc::sighandler_t) -> io::Result<()> {
        // The handler comes first in the kernel's sigaction.
        let action = [handler as u64, 0, 0, 0];
        for number in self.numbers() {
            // SAFETY: `action` is as long as the kernel's sigaction is on any architecture; a null old action is allowed.
            let disposed = unsafe {
                libc::syscall(
                    libc::SYS_rt_sigaction,
                    number,
                    action.as_ptr(),
                    ptr::null::<u64>(),
                    size_of::<u64>(),
                )
            };
            // The kernel lets no process change SIGKILL and SIGSTOP.
            if disposed != 0 && !matches!(number, libc::SIGKILL | libc::SIGSTOP) {
                return Err(io::Error::last_os_error());
            }
        }
        Ok(())
    }

    /// The signals that this process ignored at its start. Read once: a process forked after that inherits the answer, so
    /// the keeper and its zygote read it before they fork shims.
    pub fn ignored() -> Self {
        static IGNORED: OnceLock<SignalSet> = OnceLock::new();
        *IGNORED.get_or_init(|| {
            let ignored = (1..=NUMBER_MAX).filter(|number| is_ignored(*number));
            Self(ignored.fold(0, |set, number| set | bit(number)))
        })
    }

    /// Returns the numbers in the set. Allocates nothing.
    pub fn numbers(self) -> impl Iterator<Item = i32> {
        (1..=NUMBER_MAX).filter(move |number| self.has(*number))
    }

    /// Makes a descriptor from which these are read while they are blocked; close-on-exec, non-blocking.
    pub fn descriptor(self) -> io::Result<SignalFd> {
        let flags = SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK;
        // SAFETY: the kernel's sigset is 8 bytes, like `self.0`, which outlives the call; -1 requests a new descriptor.
        let made = unsafe {
            libc::syscall(
                libc::SYS_signalfd4,
                -1,
                &raw const self.0,
                size_of::<u64>(),
                flags.bits(),
            )
        };
        let number = i32::try_from(Errno::result(made)?).map_err(io::Error::other)?;
        // SAFETY: the kernel has just made this descriptor for us; nothing else owns it.
        let owned = unsafe { OwnedFd::from_raw_fd(number) };
        // SAFETY: `owned` is a signalfd.
        Ok(unsafe { SignalFd::from_owned_fd(owned) })
    }
}

/// Whether this process ignores this signal; nohup(1) and shells without job control start one so. Asks the kernel:
/// libc's own call refuses the two numbers that it uses itself, which may be ignored all the same.
pub fn is_ignored(number: i32) -> bool {
    // The handler comes first in the kernel's sigaction; 1 is SIG_IGN.
    let mut now = [0u64; 4];
    // SAFETY: `now` is as long as the kernel's sigaction is on any architecture; a null action changes nothing.
    let asked = unsafe {
        libc::syscall(
            libc::SYS_rt_sigaction,
            number,
            ptr::null::<u64>(),
            now.as_mut_ptr(),
            size_of::<u64>(),
        )
    };
    asked == 0 && now[0] == 1
}

const fn bit(number: i32) -> u64 {
    1 << (number - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ignored_signals_match_proc_status() {
        let status = std::fs::read_to_string("/proc/self/status").expect("own status");
        let line = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
        let mask = u64::from_str_radix(line.expect("a line").trim(), 16).expect("a mask");
        // std ignores SIGPIPE, so the set is never empty.
        assert_ne!(mask, 0);
        assert_eq!(SignalSet::ignored(), SignalSet(mask));
        assert!(
            SignalSet::ignored()
                .numbers()
                .any(|number| number == libc::SIGPIPE)
        );
    }

    #[test]
    fn signal_set_has_signals_terminating_by_default() {
        let set = SignalSet::of_others();
        for number in [1, 2, 3, 10, 12, 14, 15, 16, 17, 24, 25, 26, 27, 29, 30] {
            assert!(set.has(number), "{number}");
        }
        assert!((32..=64).all(|number| set.has(number)));
        for number in [4, 5, 6, 7, 8, 11, 13, 18, 20, 21, 22, 23, 28, 31] {
            assert!(!set.has(number), "{number}");
        }
    }
}
