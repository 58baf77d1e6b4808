//! The child between clone and exec: no allocation, no lock, no log, no panic. Everything it needs was made before.

use crate::signal_set::SignalSet;
use libc::{c_char, c_int};
use std::ptr;

/// The child says: all is set up, I wait at the gate.
pub const READY: u8 = b'r';
/// The child says: the gate was opened, I execute.
pub const GOING: u8 = b'g';
/// The child says: a step failed; the step and errno (little endian) follow.
pub const FAILED: u8 = b'F';
/// The keeper says: go.
pub const OPEN: u8 = b'G';

/// Steps, as they follow [`FAILED`].
pub const STEP_SESSION: u8 = 1;
/// Standard streams and controlling terminal.
pub const STEP_STDIO: u8 = 2;
/// Working directory.
pub const STEP_WORK_DIR: u8 = 3;
/// execve(2).
pub const STEP_EXEC: u8 = 4;
/// Nice value.
pub const STEP_NICE: u8 = 5;
/// Score adjustment.
pub const STEP_OOM_SCORE: u8 = 6;
/// Mount namespace of its own.
pub const STEP_NAMESPACE: u8 = 7;
/// /proc of the pid namespace.
pub const STEP_PROC: u8 = 8;
/// User and groups.
pub const STEP_USER: u8 = 9;
/// `no_new_privileges`.
pub const STEP_NO_NEW_PRIVILEGES: u8 = 10;
/// The first of the limits, the others after it.
pub const STEP_RLIMITS: u8 = 32;

/// Where gate and status pipe are in the child.
const GATE_FD: c_int = 3;
pub(super) const STATUS_FD: c_int = 4;
/// Most descriptors that are closed one by one.
const DESCRIPTORS_MAX: libc::rlim_t = 1 << 20;
/// Exit codes that nobody sees: the shim judges by the status pipe.
const EXIT_NOT_RELEASED: c_int = 125;
const EXIT_NOT_EXECUTED: c_int = 127;

/// What the child uses. The pointers stay good because the parent's copy of memory is the child's.
pub(super) struct Plan<'a> {
    pub(super) executable: *const c_char,
    pub(super) argv: *const *const c_char,
    pub(super) envp: *const *const c_char,
    pub(super) cwd: *const c_char,
    /// Descriptors of stdin, stdout, stderr, gate, status, all above 4.
    pub(super) fds: [c_int; 5],
    /// Number, soft and hard limit of each.
    pub(super) rlimits: &'a [[u64; 3]],
    pub(super) nice: Option<c_int>,
    /// Absent: it keeps the user of this process.
    pub(super) user: Option<User<'a>>,
    /// Whether no program may give it more than it has.
    pub(super) no_new_privileges: bool,
    /// Path of the file, and what goes into it; empty: it stays as it is.
    pub(super) oom_score_file: *const c_char,
    pub(super) oom_score_adj: &'a [u8],
    /// Whether it was born into a pid namespace of its own, and so needs the /proc of that.
    pub(super) own_proc: bool,
    /// What this process ignores, and the command is not to inherit.
    pub(super) ignored: SignalSet,
    /// Whether stdin is a terminal that is to be its session's.
    pub(super) terminal: bool,
}

/// A user, with all its groups.
pub(super) struct User<'a> {
    pub(super) uid: libc::uid_t,
    pub(super) gid: libc::gid_t,
    pub(super) groups: &'a [libc::gid_t],
}

/// Sets the child up, waits at the gate, executes. Its caller has just been cloned.
pub(super) fn run(plan: &Plan) -> ! {
    reset_signals(plan.ignored);
    // SAFETY: setsid takes nothing and is async-signal-safe.
    if unsafe { libc::setsid() } < 0 {
        fail(plan.fds[4], STEP_SESSION, EXIT_NOT_RELEASED);
    }
    place_descriptors(plan);
    // SAFETY: the request takes an integer; 0 steals the terminal from nobody (ioctl_tty(2)).
    if plan.terminal && unsafe { libc::ioctl(0, libc::TIOCSCTTY, 0) } != 0 {
        fail(STATUS_FD, STEP_SESSION, EXIT_NOT_RELEASED);
    }
    if plan.own_proc
        && let Err(step) = mount_own_proc()
    {
        fail(STATUS_FD, step, EXIT_NOT_RELEASED);
    }
    hold_back(plan);
    if let Some(user) = &plan.user {
        become_user(user, plan.terminal);
    }
    // As that user: it must be allowed to be there.
    // SAFETY: `cwd` points to a NUL-terminated string that the caller keeps alive.
    if unsafe { libc::chdir(plan.cwd) } != 0 {
        fail(STATUS_FD, STEP_WORK_DIR, EXIT_NOT_RELEASED);
    }
    // SAFETY: this prctl takes integers.
    if plan.no_new_privileges && unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) } != 0
    {
        fail(STATUS_FD, STEP_NO_NEW_PRIVILEGES, EXIT_NOT_RELEASED);
    }
    say(STATUS_FD, &[READY]);
    wait_at_gate();
    say(STATUS_FD, &[GOING]);
    // SAFETY: the three pointers lead to NUL-terminated strings and NULL-terminated arrays that the caller keeps alive.
    unsafe { libc::execve(plan.executable, plan.argv, plan.envp) };
    fail(STATUS_FD, STEP_EXEC, EXIT_NOT_EXECUTED)
}

/// Ignored signals back to their default, nothing blocked: the command must not inherit what Kennel ignores. What Kennel
/// handles, exec resets by itself.
fn reset_signals(ignored: SignalSet) {
    // All zeroes is the kernel's sigaction for SIG_DFL: no handler, no flags, no mask. libc's own signal(2) refuses the
    // two numbers that it uses itself, which may be ignored all the same.
    let default = [0u64; 4];
    for signal in ignored.numbers() {
        // SAFETY: `default` is as long as the kernel's sigaction is on any architecture; a null old action is allowed;
        // KILL and STOP are refused and left as they are.
        unsafe {
            libc::syscall(
                libc::SYS_rt_sigaction,
                signal,
                default.as_ptr(),
                ptr::null::<u64>(),
                size_of::<u64>(),
            )
        };
    }
    let none: u64 = 0;
    // SAFETY: the kernel's sigset is 8 bytes, which `none` has; a null old set is allowed.
    unsafe {
        libc::syscall(
            libc::SYS_rt_sigprocmask,
            libc::SIG_SETMASK,
            &raw const none,
            ptr::null::<u64>(),
            size_of::<u64>(),
        )
    };
}

/// stdin, stdout, stderr to 0 to 2; gate and status to 3 and 4, closed by exec; all else closed.
fn place_descriptors(plan: &Plan) {
    for (target, source) in (0..).zip(plan.fds) {
        let flags = if target < GATE_FD { 0 } else { libc::O_CLOEXEC };
        // SAFETY: dup3 takes integers; all sources are above all targets, so none is overwritten before its turn.
        if unsafe { libc::dup3(source, target, flags) } < 0 {
            fail(plan.fds[4], STEP_STDIO, EXIT_NOT_RELEASED);
        }
    }
    let first = STATUS_FD + 1;
    // SAFETY: close_range takes integers; nothing in this process uses a descriptor above `STATUS_FD` any more.
    let closed = unsafe { libc::syscall(libc::SYS_close_range, first, c_int::MAX, 0) };
    if closed != 0 {
        for fd in first..descriptors_end() {
            // SAFETY: as above.
            unsafe { libc::close(fd) };
        }
    }
}

/// One more than the highest descriptor that may be open.
fn descriptors_end() -> c_int {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: DESCRIPTORS_MAX,
    };
    // SAFETY: `limit` is a local of the right type; getrlimit is a system call and no more. Where it fails, the most are
    // closed.
    unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) };
    c_int::try_from(limit.rlim_max.min(DESCRIPTORS_MAX)).unwrap_or(c_int::MAX)
}

/// Mounts of its own, with the /proc of this process's pid namespace. What the host mounts and unmounts from here on is
/// followed, so that a run holds no file system that the host has let go; nothing goes back. `Err`: the step, with errno.
pub fn mount_own_proc() -> Result<(), u8> {
    // SAFETY: unshare takes an integer, and this process has one thread.
    if unsafe { libc::unshare(libc::CLONE_NEWNS) } != 0 {
        return Err(STEP_NAMESPACE);
    }
    let none = ptr::null();
    let follow = libc::MS_REC | libc::MS_SLAVE;
    // SAFETY: the target is a NUL-terminated string; a change of propagation uses no other argument.
    if unsafe { libc::mount(none, c"/".as_ptr(), none, follow, none.cast()) } != 0 {
        return Err(STEP_NAMESPACE);
    }
    let (proc, at) = (c"proc".as_ptr(), c"/proc".as_ptr());
    let flags = libc::MS_NOSUID | libc::MS_NODEV | libc::MS_NOEXEC;
    // SAFETY: source, target and type are NUL-terminated strings; proc(5) needs no data.
    if unsafe { libc::mount(proc, at, proc, flags, ptr::null()) } != 0 {
        return Err(STEP_PROC);
    }
    Ok(())
}

/// What it may use. Its limits come last: they could stand in the way of the rest.
fn hold_back(plan: &Plan) {
    if !plan.oom_score_adj.is_empty() && !write_oom_score(plan) {
        fail(STATUS_FD, STEP_OOM_SCORE, EXIT_NOT_RELEASED);
    }
    if let Some(nice) = plan.nice {
        // SAFETY: setpriority takes integers.
        if unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, nice) } != 0 {
            fail(STATUS_FD, STEP_NICE, EXIT_NOT_RELEASED);
        }
    }
    for (step, &[number, soft, hard]) in (STEP_RLIMITS..).zip(plan.rlimits) {
        let (limit, old) = ([soft, hard], ptr::null_mut::<u64>());
        // SAFETY: `limit` has the two numbers of an rlimit64 and outlives the call; no old one is asked for.
        let set = unsafe { libc::syscall(libc::SYS_prlimit64, 0, number, limit.as_ptr(), old) };
        if set != 0 {
            fail(STATUS_FD, step, EXIT_NOT_RELEASED);
        }
    }
}

/// Gives the command another user and its groups, and that user what the command reads and writes. By the bare system calls:
/// libc's own would look for other threads.
fn become_user(user: &User, terminal: bool) {
    for fd in 0..3 {
        // SAFETY: fchown takes integers.
        if is_own_stream(fd, terminal) && unsafe { libc::fchown(fd, user.uid, user.gid) } != 0 {
            fail(STATUS_FD, STEP_USER, EXIT_NOT_RELEASED);
        }
    }
    let (uid, gid, groups) = (user.uid, user.gid, user.groups);
    let check = |result: libc::c_long| {
        if result != 0 {
            fail(STATUS_FD, STEP_USER, EXIT_NOT_RELEASED);
        }
    };
    // A server that is not root may have capabilities that its children would keep. Kernels without them refuse this.
    // SAFETY: this prctl takes integers.
    unsafe {
        libc::prctl(
            libc::PR_CAP_AMBIENT,
            libc::PR_CAP_AMBIENT_CLEAR_ALL,
            0,
            0,
            0,
        )
    };
    // SAFETY: `groups` is readable for its length.
    check(unsafe { libc::syscall(libc::SYS_setgroups, groups.len(), groups.as_ptr()) });
    // SAFETY: setresgid takes integers.
    check(unsafe { libc::syscall(libc::SYS_setresgid, gid, gid, gid) });
    // SAFETY: setresuid takes integers.
    check(unsafe { libc::syscall(libc::SYS_setresuid, uid, uid, uid) });
}

/// Whether the descriptor is a pipe or terminal that was made for this run. /dev/null and files are not.
fn is_own_stream(fd: c_int, terminal: bool) -> bool {
    if terminal {
        return true;
    }
    let mut about = std::mem::MaybeUninit::<libc::stat>::uninit();
    // SAFETY: there is room for a stat at `about`.
    if unsafe { libc::fstat(fd, about.as_mut_ptr()) } != 0 {
        return false;
    }
    // SAFETY: fstat has filled it.
    let mode = unsafe { about.assume_init() }.st_mode;
    mode & libc::S_IFMT == libc::S_IFIFO
}

fn write_oom_score(plan: &Plan) -> bool {
    let flags = libc::O_WRONLY | libc::O_CLOEXEC;
    // SAFETY: the path is a NUL-terminated string that the caller keeps alive.
    let fd = unsafe { libc::open(plan.oom_score_file, flags) };
    if fd < 0 {
        return false;
    }
    let text = plan.oom_score_adj;
    // SAFETY: `text` is readable for its length. exec closes the descriptor.
    let written = unsafe { libc::write(fd, text.as_ptr().cast(), text.len()) };
    usize::try_from(written) == Ok(text.len())
}

/// Returns when exactly [`OPEN`] was read. End of file: the keeper is gone or shut the gate, and nothing may run.
fn wait_at_gate() {
    let mut byte = 0u8;
    loop {
        // SAFETY: one byte of room at `byte`, a local that outlives the call.
        let got = unsafe { libc::read(GATE_FD, (&raw mut byte).cast(), 1) };
        if got == 1 && byte == OPEN {
            return;
        }
        if got < 0 && errno() == libc::EINTR {
            continue;
        }
        exit(EXIT_NOT_RELEASED);
    }
}

fn fail(status: c_int, step: u8, code: c_int) -> ! {
    let e = errno().to_le_bytes();
    say(status, &[FAILED, step, e[0], e[1], e[2], e[3]]);
    exit(code)
}

/// Tells the shim. A shim that is gone cannot account for this child, so it ends (SIGPIPE has its default action).
fn say(status: c_int, words: &[u8]) {
    // SAFETY: `words` is readable for its length.
    let said = unsafe { libc::write(status, words.as_ptr().cast(), words.len()) };
    if usize::try_from(said) != Ok(words.len()) {
        exit(EXIT_NOT_RELEASED);
    }
}

fn errno() -> c_int {
    // SAFETY: the location is valid in every thread.
    let location = unsafe { libc::__errno_location() };
    // SAFETY: it points to this thread's errno.
    unsafe { *location }
}

fn exit(code: c_int) -> ! {
    // SAFETY: _exit runs no handlers and does not return.
    unsafe { libc::_exit(code) }
}
