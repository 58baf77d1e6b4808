//! The child between clone and exec: no allocation, no lock, no log, no panic. Its resources were made before.
//!
//! It may share the memory of its shim, and so its errno: the calls of such a child go through [`super::raw`]. Calls
//! that need a copy of that memory may go through libc.

mod namespaces;
mod profile;

use super::{
    raw::{self, call},
    sandbox::Rules,
    secrets::FIRST_FD,
};
use libc::{c_char, c_int, c_long, c_void};
pub(super) use namespaces::Namespaces;
use profile::{bound_capabilities, drop_capabilities, enter_sandbox, filter_calls};
use std::{
    ffi::CString,
    mem::MaybeUninit,
    ptr,
    sync::atomic::{AtomicI32, Ordering},
};

/// Message of the child: it is set up and waits at the gate.
pub const READY: u8 = b'r';
/// Message of the child: the gate was opened, it executes.
pub const GOING: u8 = b'g';
/// Message of the child: a step failed; the step and errno (little endian) follow.
pub const FAILED: u8 = b'F';
/// Message of the keeper: the gate is open.
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
/// `drop_capabilities`.
pub const STEP_CAPABILITIES: u8 = 11;
/// `sandbox`.
pub const STEP_SANDBOX: u8 = 12;
/// `seccomp_profile`.
pub const STEP_SECCOMP: u8 = 13;
/// Files with secrets.
pub const STEP_SECRETS: u8 = 14;
/// `network`.
pub const STEP_NETWORK: u8 = 15;
/// The first of the limits, the others after it.
pub const STEP_RLIMITS: u8 = 32;

/// Numbers of gate and status pipe in the child.
const GATE_FD: c_int = 3;
pub(super) const STATUS_FD: c_int = 4;
/// Most descriptors that are closed one by one.
const DESCRIPTORS_MAX: u64 = 1 << 20;
#[expect(
    clippy::cast_possible_truncation,
    reason = "the kernel reads 32 bits of it"
)]
const TAKE_TERMINAL: usize = libc::TIOCSCTTY as usize;
/// How often a file that is open for writing is executed again, and the pause before: seconds and nanoseconds.
const BUSY_TRIES: u32 = 4;
static BUSY_PAUSE: [c_long; 2] = [0, 25_000_000];
/// Exit codes that no process sees: the shim judges by the status pipe.
const EXIT_NOT_RELEASED: c_int = 125;
const EXIT_NOT_EXECUTED: c_int = 127;

/// Memory that the child uses. All of it stays unchanged until the child executes the command or exits.
pub(super) struct Plan {
    pub(super) executable: CString,
    pub(super) argv: Strings,
    pub(super) envp: Strings,
    pub(super) cwd: CString,
    /// Descriptors of stdin, stdout, stderr, gate, status, all above 4.
    pub(super) fds: [c_int; 5],
    /// Descriptors of files with secrets, above all that they get.
    pub(super) secrets: Vec<c_int>,
    /// Number, soft and hard limit of each resource.
    pub(super) rlimits: Vec<[u64; 3]>,
    pub(super) nice: Option<c_int>,
    pub(super) umask: Option<u32>,
    /// User of the command; absent: that of this process.
    pub(super) user: Option<ChildUser>,
    /// Whether no program may add privileges.
    pub(super) no_new_privileges: bool,
    /// A bit for each capability that no program it executes has.
    pub(super) bound_capabilities: u64,
    /// A bit for each capability that it loses itself.
    pub(super) drop_capabilities: u64,
    /// Access to the host; absent: all that its user has.
    pub(super) sandbox: Option<Rules>,
    /// Its mounts and its network; absent: those of the host.
    pub(super) namespaces: Option<Namespaces>,
    /// Filter of its system calls; empty: none.
    pub(super) filter: Vec<libc::sock_filter>,
    /// Score to set; absent: the child was born with it.
    pub(super) score: Option<Score>,
    /// Whether it was born into a pid namespace of its own, and so needs that namespace's /proc.
    pub(super) own_proc: bool,
    /// Whether stdin is a terminal that becomes its session's.
    pub(super) terminal: bool,
}

/// Strings, and their array as execve(2) requires it.
pub(super) struct Strings {
    /// Targets of the pointers.
    _strings: Vec<CString>,
    pointers: Vec<*const c_char>,
}

impl Strings {
    pub(super) fn new(strings: Vec<CString>) -> Self {
        let pointers = strings.iter().map(|string| string.as_ptr());
        Self {
            pointers: pointers.chain([ptr::null()]).collect(),
            _strings: strings,
        }
    }
}

/// An `oom_score_adj`.
pub(super) struct Score {
    /// Path of the file.
    pub(super) file: CString,
    /// Text to write to it.
    pub(super) text: String,
}

impl Score {
    /// Sets the score of this process. The error is an errno.
    fn take(&self) -> Result<(), c_int> {
        let flags = wide(libc::O_WRONLY | libc::O_CLOEXEC);
        let open = [
            wide(libc::AT_FDCWD),
            self.file.as_ptr() as usize,
            flags,
            0,
            0,
        ];
        // SAFETY: the path is a NUL-terminated string.
        let fd = unsafe { call(libc::SYS_openat, open) }?;
        let write = [fd, self.text.as_ptr() as usize, self.text.len(), 0, 0];
        // SAFETY: the text is readable for its length.
        let written = unsafe { call(libc::SYS_write, write) };
        // SAFETY: close takes an integer: the descriptor of the file opened above.
        let _ = unsafe { call(libc::SYS_close, [fd, 0, 0, 0, 0]) };
        match written {
            Ok(len) if len == self.text.len() => Ok(()),
            Ok(_) => Err(libc::EIO),
            Err(errno) => Err(errno),
        }
    }
}

/// A user, with all its groups.
pub(super) struct ChildUser {
    pub(super) uid: libc::uid_t,
    pub(super) gid: libc::gid_t,
    pub(super) groups: Vec<libc::gid_t>,
}

impl Plan {
    /// Whether a child that shares this process's memory, and is born with its score, can carry out the plan: another
    /// user or user namespace would change the access to that memory, and mounts of /proc are made by libc.
    pub(super) fn suits_shared_memory(&self) -> bool {
        let is_held =
            self.drop_capabilities != 0 || self.sandbox.is_some() || !self.filter.is_empty();
        self.user.is_none() && !self.own_proc && self.namespaces.is_none() && !is_held
    }
}

/// Calls [`run`]: entry of a child that shares memory.
pub(super) extern "C" fn begin(plan: *const c_void) -> ! {
    // SAFETY: `plan` points to a value that stays unchanged: see [`super::raw::clone`].
    run(unsafe { &*plan.cast::<Plan>() })
}

/// Start of a child that shares memory, and the memory that it uses until its exec.
pub(super) struct Birth {
    pub(super) plan: Plan,
    /// Score that an intermediate process takes for it.
    pub(super) score: Option<Score>,
    /// Number and arguments of the call.
    pub(super) call: (c_long, raw::Arguments),
    pub(super) entry: raw::Entry,
    /// The child's number as that process reports it; negative: an errno.
    pub(super) made: AtomicI32,
    /// Stack of the child.
    pub(super) _stack: Box<[MaybeUninit<u128>]>,
}

/// Entry of the process between shim and child: it takes the child's score, makes the child beside itself, which
/// inherits that, and exits. Its shim waits for that, as after vfork(2), and so its writing visits no other process, as
/// it does where two processes share a memory and neither waits.
pub(super) extern "C" fn deliver(birth: *const c_void) -> ! {
    // SAFETY: `birth` outlives this process, for whose exit the parent waits.
    let birth = unsafe { &*birth.cast::<Birth>() };
    let scored = birth.score.as_ref().map_or(Ok(()), Score::take);
    let made = scored.and_then(|()| {
        // SAFETY: the arguments are complete; stack and plan stay unchanged.
        unsafe { raw::clone(birth.call.0, birth.call.1, birth.entry) }
    });
    let made = made.unwrap_or_else(|errno| -errno);
    birth.made.store(made, Ordering::Release);
    exit(0)
}

/// Sets the child up, waits at the gate, executes. Its caller has just been cloned.
pub(super) fn run(plan: &Plan) -> ! {
    unblock_signals();
    // SAFETY: setsid takes no arguments.
    if let Err(errno) = unsafe { call(libc::SYS_setsid, [0; 5]) } {
        fail(plan.fds[4], STEP_SESSION, errno, EXIT_NOT_RELEASED);
    }
    place_descriptors(plan);
    if plan.terminal {
        // SAFETY: the request takes an integer; 0 steals no terminal of another session (ioctl_tty(2)).
        let taken = unsafe { call(libc::SYS_ioctl, [0, TAKE_TERMINAL, 0, 0, 0]) };
        must(taken, STEP_SESSION);
    }
    if plan.own_proc
        && let Err(step) = mount_own_proc()
    {
        fail(STATUS_FD, step, errno(), EXIT_NOT_RELEASED);
    }
    // The score is set before /proc becomes read-only.
    if let Some(score) = &plan.score
        && let Err(errno) = score.take()
    {
        fail(STATUS_FD, STEP_OOM_SCORE, errno, EXIT_NOT_RELEASED);
    }
    // Namespaces need capabilities and limits that this process then loses.
    let needs_user_namespace = plan.namespaces.as_ref().filter(|namespaces| {
        let entered = namespaces.enter(plan.own_proc);
        !entered.unwrap_or_else(|(step, errno)| fail(STATUS_FD, step, errno, EXIT_NOT_RELEASED))
    });
    hold_back(plan);
    bound_capabilities(plan.bound_capabilities);
    if let Some(user) = &plan.user {
        become_user(user, plan.terminal);
    }
    if let Some(namespaces) = needs_user_namespace {
        if let Err((step, errno)) = namespaces.enter_as_user() {
            fail(STATUS_FD, step, errno, EXIT_NOT_RELEASED);
        }
        // Capabilities in the new user namespace could undo its mounts.
        bound_capabilities(u64::MAX);
        drop_capabilities(u64::MAX);
    }
    drop_capabilities(plan.drop_capabilities);
    // Entered as the command's user, who must have access to the directory. SAFETY: `cwd` is a NUL-terminated string.
    let there = unsafe { call(libc::SYS_chdir, [plan.cwd.as_ptr() as usize, 0, 0, 0, 0]) };
    must(there, STEP_WORK_DIR);
    if plan.no_new_privileges {
        let set = [wide(libc::PR_SET_NO_NEW_PRIVS), 1, 0, 0, 0];
        // SAFETY: this prctl takes integers.
        let held = unsafe { call(libc::SYS_prctl, set) };
        must(held, STEP_NO_NEW_PRIVILEGES);
    }
    if let Some(rules) = &plan.sandbox {
        enter_sandbox(rules);
    }
    filter_calls(&plan.filter);
    say(STATUS_FD, &[READY]);
    wait_at_gate();
    say(STATUS_FD, &[GOING]);
    let image = [
        plan.executable.as_ptr() as usize,
        plan.argv.pointers.as_ptr() as usize,
        plan.envp.pointers.as_ptr() as usize,
        0,
        0,
    ];
    let mut tries = 0;
    loop {
        // SAFETY: the three pointers lead to NUL-terminated strings and NULL-terminated arrays that stay unchanged.
        let Err(errno) = (unsafe { call(libc::SYS_execve, image) }) else {
            exit(EXIT_NOT_EXECUTED)
        };
        // A child forked by the file's writer has the file open until its execve: golang/go#22315.
        if errno != libc::ETXTBSY || tries == BUSY_TRIES {
            fail(STATUS_FD, STEP_EXEC, errno, EXIT_NOT_EXECUTED);
        }
        tries += 1;
        let pause = [BUSY_PAUSE.as_ptr() as usize, 0, 0, 0, 0];
        // SAFETY: the time is a static; the remaining time of an interrupted pause is not requested.
        let _ = unsafe { call(libc::SYS_nanosleep, pause) };
    }
}

/// Unblocks all signals. None is ignored or handled: the caller of the clone has reset them.
fn unblock_signals() {
    let none: u64 = 0;
    let mask = [
        wide(libc::SIG_SETMASK),
        &raw const none as usize,
        0,
        size_of::<u64>(),
        0,
    ];
    // SAFETY: the kernel's sigset is 8 bytes, which `none` has; a null old set is allowed.
    let _ = unsafe { call(libc::SYS_rt_sigprocmask, mask) };
}

/// Moves stdin, stdout, stderr to 0 to 2; gate and status to 3 and 4, closed by exec; files with secrets to their
/// numbers; closes all other descriptors.
fn place_descriptors(plan: &Plan) {
    for (target, source) in (0..).zip(plan.fds) {
        let flags = if target < GATE_FD { 0 } else { libc::O_CLOEXEC };
        let copy = [wide(source), wide(target), wide(flags), 0, 0];
        // SAFETY: dup3 takes integers; all sources are above all targets, so none is overwritten before its turn.
        if let Err(errno) = unsafe { call(libc::SYS_dup3, copy) } {
            fail(plan.fds[4], STEP_STDIO, errno, EXIT_NOT_RELEASED);
        }
    }
    let mut end = FIRST_FD;
    for source in &plan.secrets {
        let copy = [wide(*source), wide(end), 0, 0, 0];
        // SAFETY: this call also takes only integers.
        must(unsafe { call(libc::SYS_dup3, copy) }, STEP_SECRETS);
        end += 1;
    }
    if end == FIRST_FD {
        return close_all(STATUS_FD + 1, c_int::MAX);
    }
    close_all(STATUS_FD + 1, FIRST_FD - 1);
    close_all(end, c_int::MAX);
}

/// Closes the descriptors with these numbers: no code in this process uses them any more.
pub(super) fn close_all(first: c_int, last: c_int) {
    let all = [wide(first), wide(last), 0, 0, 0];
    // SAFETY: close_range takes integers.
    if unsafe { call(libc::SYS_close_range, all) }.is_err() {
        for fd in first..=last.min(descriptors_end()) {
            // SAFETY: this call also takes only integers.
            let _ = unsafe { call(libc::SYS_close, [wide(fd), 0, 0, 0, 0]) };
        }
    }
}

/// Returns one more than the highest descriptor that may be open.
fn descriptors_end() -> c_int {
    let mut limit = [0, DESCRIPTORS_MAX];
    let get = [
        0,
        wide(libc::RLIMIT_NOFILE.cast_signed()),
        0,
        limit.as_mut_ptr() as usize,
        0,
    ];
    // SAFETY: `limit` has space for soft and hard limit; no new limit is set. If the call fails, the maximum number is
    // closed.
    let _ = unsafe { call(libc::SYS_prlimit64, get) };
    c_int::try_from(limit[1].min(DESCRIPTORS_MAX)).unwrap_or(c_int::MAX)
}

/// Gives this process mounts of its own, with the /proc of this process's pid namespace. Later mounts and unmounts of
/// the host are followed, so that a run holds no file system that the host has unmounted; nothing propagates back.
/// `Err`: the step, with errno.
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

/// Applies the limits of the command. Resource limits come last: they could prevent the other steps.
fn hold_back(plan: &Plan) {
    if let Some(mask) = plan.umask {
        // SAFETY: umask takes an integer. It does not fail.
        let _ = unsafe { call(libc::SYS_umask, [mask as usize, 0, 0, 0, 0]) };
    }
    if let Some(nice) = plan.nice {
        let process = libc::PRIO_PROCESS.cast_signed();
        // SAFETY: setpriority takes integers.
        let set = unsafe { call(libc::SYS_setpriority, [wide(process), 0, wide(nice), 0, 0]) };
        must(set, STEP_NICE);
    }
    for (step, &[number, soft, hard]) in (STEP_RLIMITS..).zip(&plan.rlimits) {
        let limit = [soft, hard];
        #[expect(
            clippy::cast_possible_truncation,
            reason = "a resource's number is small"
        )]
        let set = [0, number as usize, limit.as_ptr() as usize, 0, 0];
        // SAFETY: `limit` has the two numbers of an rlimit64 and outlives the call; the old limit is not requested.
        must(unsafe { call(libc::SYS_prlimit64, set) }, step);
    }
}

/// Gives the command another user and its groups, and that user the command's streams. By the bare system calls: libc's
/// own would search for other threads.
fn become_user(user: &ChildUser, terminal: bool) {
    for fd in 0..3 {
        // SAFETY: fchown takes integers.
        if is_own_stream(fd, terminal) && unsafe { libc::fchown(fd, user.uid, user.gid) } != 0 {
            fail(STATUS_FD, STEP_USER, errno(), EXIT_NOT_RELEASED);
        }
    }
    let (uid, gid, groups) = (user.uid, user.gid, &user.groups);
    let check = |result: libc::c_long| {
        if result != 0 {
            fail(STATUS_FD, STEP_USER, errno(), EXIT_NOT_RELEASED);
        }
    };
    // A server that is not root may have ambient capabilities, which its children would retain. Kernels without that
    // set refuse. SAFETY: this prctl takes integers.
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
    // SAFETY: there is space for a stat at `about`.
    if unsafe { libc::fstat(fd, about.as_mut_ptr()) } != 0 {
        return false;
    }
    // SAFETY: fstat has filled `about`.
    let mode = unsafe { about.assume_init() }.st_mode;
    mode & libc::S_IFMT == libc::S_IFIFO
}

/// Returns when exactly [`OPEN`] was read. End of file: the keeper is gone or shut the gate, and nothing may run.
fn wait_at_gate() {
    let mut byte = 0u8;
    loop {
        let into = [wide(GATE_FD), &raw mut byte as usize, 1, 0, 0];
        // SAFETY: `byte` has space for one byte and outlives the call.
        match unsafe { call(libc::SYS_read, into) } {
            Ok(1) if byte == OPEN => return,
            Err(libc::EINTR) => {}
            _ => exit(EXIT_NOT_RELEASED),
        }
    }
}

/// Exits with the failure, if the step failed.
fn must(done: Result<usize, c_int>, step: u8) {
    if let Err(errno) = done {
        fail(STATUS_FD, step, errno, EXIT_NOT_RELEASED);
    }
}

fn fail(status: c_int, step: u8, errno: c_int, code: c_int) -> ! {
    let e = errno.to_le_bytes();
    say(status, &[FAILED, step, e[0], e[1], e[2], e[3]]);
    exit(code)
}

/// Reports to the shim. Without its shim no process can account for this child, so it exits (SIGPIPE has its default
/// action).
fn say(status: c_int, words: &[u8]) {
    let from = [wide(status), words.as_ptr() as usize, words.len(), 0, 0];
    // SAFETY: `words` is readable for its length.
    let said = unsafe { call(libc::SYS_write, from) };
    if said != Ok(words.len()) {
        exit(EXIT_NOT_RELEASED);
    }
}

/// Returns the errno of libc's calls, which only a child makes that shares no memory.
fn errno() -> c_int {
    // SAFETY: the errno location is valid in every thread.
    let location = unsafe { libc::__errno_location() };
    // SAFETY: `location` points to this thread's errno.
    unsafe { *location }
}

/// Exits without running any handler: this process's memory is its parent's.
fn exit(code: c_int) -> ! {
    loop {
        // SAFETY: exit_group takes an integer and does not return.
        let _ = unsafe { call(libc::SYS_exit_group, [wide(code), 0, 0, 0, 0]) };
    }
}

/// Converts to an argument of a system call.
fn wide(number: impl Into<i64>) -> usize {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "the kernel takes the lower half, with its sign"
    )]
    let wide = number.into() as usize;
    wide
}
