//! Makes the command's process: cloned into its control group, set up, waiting at the gate.

pub mod child;

use crate::{
    attributes::{self, Attributes},
    pidfd::PidFd,
    signal_set::SignalSet,
};
use child::{Plan, User};
use kennel_lifecycle::{PidNamespace, Rlimit, StartFailure, StartStage};
use nix::{
    errno::Errno,
    fcntl::{FcntlArg, OFlag, fcntl},
    unistd::pipe2,
};
use serde::{Deserialize, Serialize};
use std::{
    ffi::CString,
    io,
    os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd},
    ptr,
};

/// First number for descriptors on their way into the child: above the numbers that they get there.
const STAGING_FD: RawFd = child::STATUS_FD + 1;
/// Size of gate and status pipes: one page, since they carry a few bytes and count against the user's pipe budget.
const SMALL_PIPE_BYTES: i32 = 4096;

/// What is executed; travels as a sealed file.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChildImage {
    /// Absolute path of the executable.
    pub executable: Vec<u8>,
    /// Its arguments, its name first.
    pub argv: Vec<Vec<u8>>,
    /// Its whole environment, in order.
    pub env: Vec<(String, String)>,
    /// Its working directory.
    pub cwd: Vec<u8>,
}

/// What the child gets.
pub struct Ends {
    /// Standard input.
    pub stdin: OwnedFd,
    /// Standard output.
    pub stdout: OwnedFd,
    /// Standard error.
    pub stderr: OwnedFd,
    /// Read end.
    pub gate: OwnedFd,
    /// Whether stdin is to be the controlling terminal.
    pub terminal: bool,
    /// The control group to be born in.
    pub born_in: Option<OwnedFd>,
}

/// A child on its way to the gate.
pub struct Gated {
    /// Process id.
    pub pid: i32,
    /// The same as a descriptor.
    pub leader: PidFd,
    /// Read end, non-blocking; the child holds the only other end.
    pub status: OwnedFd,
}

/// A pipe for a few bytes, close-on-exec.
pub fn small_pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    pipe_of(OFlag::empty())
}

fn pipe_of(flags: OFlag) -> io::Result<(OwnedFd, OwnedFd)> {
    let (read, write) = pipe2(OFlag::O_CLOEXEC | flags)?;
    // Beyond the user's budget the kernel says EPERM; then the pipe stays as it is.
    let _ = fcntl(&write, FcntlArg::F_SETPIPE_SZ(SMALL_PIPE_BYTES));
    Ok((read, write))
}

/// Clones the child, into the pid namespace that this process has made for its children if it has made one. The caller is
/// single-threaded.
pub fn fork_gated(
    child: &ChildImage,
    ends: Ends,
    attributes: &Attributes,
    pid_namespace: PidNamespace,
) -> Result<Gated, StartFailure> {
    let prepare = |error: &io::Error| failure(StartStage::Prepare, error, None);
    let executable = c_string(child.executable.as_slice()).map_err(|e| prepare(&e))?;
    let cwd = c_string(child.cwd.as_slice()).map_err(|e| prepare(&e))?;
    let argv = c_strings(child.argv.iter().cloned()).map_err(|e| prepare(&e))?;
    let env = child
        .env
        .iter()
        .map(|(name, value)| format!("{name}={value}"));
    let env = c_strings(env).map_err(|e| prepare(&e))?;
    // The child writes a few bytes, for which there is always room: its end need not wait either.
    let (status_read, status_write) = pipe_of(OFlag::O_NONBLOCK).map_err(|e| prepare(&e))?;
    let sources = [
        &ends.stdin,
        &ends.stdout,
        &ends.stderr,
        &ends.gate,
        &status_write,
    ];
    let mut fds = [0; 5];
    let mut copies = Vec::new();
    for (slot, source) in fds.iter_mut().zip(sources) {
        *slot = source.as_raw_fd();
        if *slot < STAGING_FD {
            let copy = stage(source).map_err(|e| prepare(&e))?;
            *slot = copy.as_raw_fd();
            copies.push(copy);
        }
    }
    let (argv, env) = (pointers(&argv), pointers(&env));
    let rlimits: Vec<[u64; 3]> = attributes.rlimits.iter().map(numbers).collect();
    let oom_score_file = c_string(attributes::OOM_SCORE_ADJ).map_err(|e| prepare(&e))?;
    let oom_score_adj = attributes.oom_score_adj.map(|adj| adj.to_string());
    let oom_score_adj = oom_score_adj.unwrap_or_default();
    let privileges = &attributes.privileges;
    let plan = Plan {
        executable: executable.as_ptr(),
        argv: argv.as_ptr(),
        envp: env.as_ptr(),
        cwd: cwd.as_ptr(),
        fds,
        rlimits: &rlimits,
        nice: attributes.nice,
        user: privileges.user.as_ref().map(|user| User {
            uid: user.uid,
            gid: user.gid,
            groups: &user.groups,
        }),
        no_new_privileges: privileges.no_new_privileges,
        oom_score_file: oom_score_file.as_ptr(),
        oom_score_adj: oom_score_adj.as_bytes(),
        own_proc: pid_namespace == PidNamespace::Private,
        ignored: SignalSet::ignored(),
        terminal: ends.terminal,
    };
    let cloned = match &ends.born_in {
        Some(group) => clone_into(group),
        None => clone_here(),
    };
    match cloned {
        Ok(Cloned::Child) => child::run(&plan),
        Ok(Cloned::Parent(pid, leader)) => {
            // Only the child may hold its ends, above all the gate's.
            drop(ends);
            Ok(Gated {
                pid,
                leader,
                status: status_read,
            })
        }
        Err(error) => {
            let stage = if ends.born_in.is_some() {
                StartStage::Cgroup
            } else {
                StartStage::Fork
            };
            Err(failure(stage, &error, None))
        }
    }
}

/// A failure with its errno.
pub fn failure(stage: StartStage, error: &io::Error, path: Option<&str>) -> StartFailure {
    StartFailure {
        stage,
        errno: error.raw_os_error(),
        path: path.map(str::to_owned),
    }
}

fn numbers(limit: &Rlimit) -> [u64; 3] {
    let Rlimit {
        resource,
        soft,
        hard,
    } = *limit;
    [attributes::number(resource).cast_unsigned(), soft, hard]
}

fn c_string(text: impl Into<Vec<u8>>) -> io::Result<CString> {
    CString::new(text).map_err(|_| Errno::EINVAL.into())
}

fn c_strings(texts: impl Iterator<Item: Into<Vec<u8>>>) -> io::Result<Vec<CString>> {
    texts.map(c_string).collect()
}

/// The array that execve(2) wants; good as long as the strings are.
fn pointers(strings: &[CString]) -> Vec<*const libc::c_char> {
    let pointers = strings.iter().map(|s| s.as_ptr());
    pointers.chain([ptr::null()]).collect()
}

fn stage(fd: &impl AsFd) -> io::Result<OwnedFd> {
    let staged = fcntl(fd, FcntlArg::F_DUPFD_CLOEXEC(STAGING_FD))?;
    // SAFETY: the kernel has just made this descriptor for us; nobody else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(staged) })
}

/// Which side of a clone this is.
pub enum Cloned {
    /// The new process.
    Child,
    /// The caller, with the child's number and descriptor.
    Parent(i32, PidFd),
}

/// clone3(2) into a control group. The child must do nothing but async-signal-safe work.
pub fn clone_into(group: &OwnedFd) -> io::Result<Cloned> {
    let mut pidfd: RawFd = -1;
    let flags = libc::CLONE_PIDFD as u64 | CLONE_INTO_CGROUP;
    let args = libc::clone_args {
        flags,
        pidfd: ptr::from_mut(&mut pidfd) as u64,
        child_tid: 0,
        parent_tid: 0,
        exit_signal: libc::SIGCHLD as u64,
        stack: 0,
        stack_size: 0,
        tls: 0,
        set_tid: 0,
        set_tid_size: 0,
        cgroup: u64::try_from(group.as_raw_fd()).unwrap_or(u64::MAX),
    };
    // SAFETY: `args` is complete and outlives the call; without CLONE_VM and with a null stack the child goes on in a
    // copy of this memory, as after fork(2).
    let pid = unsafe { libc::syscall(libc::SYS_clone3, &raw const args, size_of_val(&args)) };
    side(pid, pidfd)
}

/// `CLONE_INTO_CGROUP` (Linux 5.7).
const CLONE_INTO_CGROUP: u64 = 0x2_0000_0000;

/// clone(2), which every seccomp profile allows. The same care is due.
pub fn clone_here() -> io::Result<Cloned> {
    let mut pidfd: RawFd = -1;
    let flags = libc::CLONE_PIDFD | libc::SIGCHLD;
    let none = 0usize;
    // SAFETY: the third argument is the place for the pidfd on every architecture; a null stack means a copy of this
    // one, as after fork(2); the rest is not used with these flags.
    let pid = unsafe {
        libc::syscall(
            libc::SYS_clone,
            flags,
            none,
            ptr::from_mut(&mut pidfd),
            none,
            none,
        )
    };
    side(pid, pidfd)
}

fn side(pid: libc::c_long, pidfd: RawFd) -> io::Result<Cloned> {
    match Errno::result(pid)? {
        0 => Ok(Cloned::Child),
        pid => {
            // SAFETY: CLONE_PIDFD has made this descriptor for us; nobody else owns it.
            let fd = unsafe { OwnedFd::from_raw_fd(pidfd) };
            let pid = i32::try_from(pid).map_err(io::Error::other)?;
            Ok(Cloned::Parent(pid, PidFd::from_fd(fd)))
        }
    }
}
