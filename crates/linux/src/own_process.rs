//! Settings and queries of a Kennel process about itself.

use crate::signal_set::SignalSet;
use nix::{errno::Errno, sys::prctl, unistd};
use std::{io, thread::sleep, time::Duration};

/// Makes this process undumpable: a process of the same uid then cannot read its environment, take its descriptors with
/// `pidfd_getfd` or trace it. exec(2) undoes it, so each Kennel process calls it first.
pub fn harden_process() -> Result<(), Errno> {
    prctl::set_dumpable(false)
}

/// Ignores every signal that would end this process by default without a fault of its own. For a server: its keeper
/// tells it when to exit. The kernel's signals for faults act as ever.
pub fn ignore_stray_signals() -> io::Result<()> {
    SignalSet::of_others().without_exits().ignore()
}

/// Returns the number of a group of this host; absent: there is no such group.
pub fn group_id(name: &str) -> std::io::Result<Option<u32>> {
    let group = nix::unistd::Group::from_name(name)?;
    Ok(group.map(|group| group.gid.as_raw()))
}

/// Returns the uid that this process acts as.
pub fn effective_uid() -> u32 {
    unistd::geteuid().as_raw()
}

/// Forks a process that is a child of this one's parent, as fork(2) does otherwise. Returns its pid here, and `None` in
/// the new process. This process must have one thread.
///
/// # Errors
///
/// Those of clone(2); `EINVAL` where this is the first process of a pid namespace.
pub fn fork_beside() -> Result<Option<i32>, Errno> {
    // With CLONE_PARENT, clone(2) also copies this process's exit signal.
    let flags = libc::c_ulong::try_from(libc::CLONE_PARENT).map_err(|_| Errno::EINVAL)?;
    // SAFETY: without a stack and without shared memory clone(2) is fork(2); with one thread, no other thread holds a
    // lock, and the choice of the parent does not affect memory.
    let pid = Errno::result(unsafe { libc::syscall(libc::SYS_clone, flags, 0, 0, 0, 0) })?;
    Ok(i32::try_from(pid).ok().filter(|pid| *pid > 0))
}

/// Gives the calling thread the lowest priority: it runs when no other thread of this user needs the processor.
pub fn lower_thread() {
    /// The lowest of all nice values.
    const NICE_MAX: libc::c_int = 19;
    // SAFETY: setpriority takes integers. According to setpriority(2), BUGS, `PRIO_PROCESS` (0) of process 0 is this
    // thread.
    unsafe {
        libc::setpriority(0, 0, NICE_MAX);
    }
}

/// Gives free memory of this process back to the kernel, where its C library can.
pub fn trim_memory() {
    // SAFETY: malloc_trim takes an integer, and touches only memory that is not allocated.
    #[cfg(target_env = "gnu")]
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Ends the calling thread, which must be the main one, and leaves the process to its other threads. If the kernel does
/// not do it, waits for `otherwise`.
pub fn end_main_thread(otherwise: Duration) -> ! {
    // SAFETY: exit(2) takes an integer and ends only this thread, without running any code of this program. The main
    // thread's stack stays mapped, so what other threads borrow from it stays valid.
    unsafe { libc::syscall(libc::SYS_exit, 0) };
    sleep(otherwise);
    std::process::abort()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hardened_process_is_not_dumpable() {
        harden_process().expect("PR_SET_DUMPABLE is always allowed");
        assert_eq!(prctl::get_dumpable(), Ok(false));
    }
}
