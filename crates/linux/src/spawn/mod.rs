//! Makes the command's process: cloned into its control group, set up, waiting at the gate.

pub mod child;
mod raw;
pub mod sandbox;
pub mod seccomp;
mod secrets;

pub use secrets::ChildSecret;

use crate::{
    attributes::{self, Attributes},
    pidfd::PidFd,
    reap,
};
use child::{Birth, ChildUser, Namespaces, Plan, Score, Strings};
use kennel_lifecycle::{Network, PidNamespace, Rlimit, Seccomp, StartFailure, StartStage};
use nix::{
    errno::Errno,
    fcntl::{FcntlArg, OFlag, fcntl},
    unistd::pipe2,
};
use std::{
    ffi::{CString, OsStr},
    fmt, io,
    mem::{ManuallyDrop, MaybeUninit},
    os::{
        fd::{AsFd, AsRawFd, FromRawFd, IntoRawFd, OwnedFd, RawFd},
        unix::ffi::OsStrExt,
    },
    path::Path,
    ptr,
    sync::atomic::{AtomicI32, Ordering},
};

/// First number for descriptors to be moved in the child: above the numbers that they get there.
const STAGING_FD: RawFd = child::STATUS_FD + 1;
/// Stack of a child that shares memory: it goes a few calls deep, and untouched pages cost nothing.
const STACK_BYTES: usize = 64 * 1024;

/// The program to execute; travels as a sealed file.
#[derive(PartialEq, Eq)]
pub struct ChildImage {
    /// Absolute path of the executable.
    pub executable: Vec<u8>,
    /// Its arguments, its name first.
    pub argv: Vec<Vec<u8>>,
    /// Its whole environment, in order.
    pub env: Vec<(String, String)>,
    /// Its working directory.
    pub cwd: Vec<u8>,
    /// Its secrets; each takes the place of a variable of its name.
    pub secrets: Vec<ChildSecret>,
}

/// For logs: without arguments, environment and secrets.
impl fmt::Debug for ChildImage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let executable = String::from_utf8_lossy(&self.executable);
        f.debug_struct("ChildImage")
            .field("executable", &executable)
            .finish_non_exhaustive()
    }
}

/// Descriptors of the child.
pub struct Ends {
    /// Standard input.
    pub stdin: OwnedFd,
    /// Standard output.
    pub stdout: OwnedFd,
    /// Standard error.
    pub stderr: OwnedFd,
    /// Read end of the gate.
    pub gate: OwnedFd,
    /// Whether stdin becomes the controlling terminal.
    pub terminal: bool,
    /// The control group in which the child is born.
    pub born_in: Option<OwnedFd>,
}

/// A child on its way to the gate.
pub struct Gated {
    /// Process id.
    pub pid: i32,
    /// The process as a descriptor.
    pub leader: PidFd,
    /// Read end of the status pipe, non-blocking; the child holds the only other end.
    pub status: OwnedFd,
    /// Memory of this process that the child uses; absent: it has a copy.
    pub lent: Option<Lent>,
}

/// Memory that a child uses until it executes the command or ends.
///
/// Dropping leaks it: a child at its gate may use it.
pub struct Lent(ManuallyDrop<Box<Birth>>);

impl Lent {
    /// Frees the memory: the child does not use it any more, since its end of the status pipe is closed.
    pub fn end(self) {
        drop(ManuallyDrop::into_inner(self.0));
    }
}

/// Whether the child begins in the memory of this process or in a copy of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChildMemory {
    /// In a copy, as after fork(2).
    Copied,
    /// In this memory, as after vfork(2), where that is possible. This process continues meanwhile.
    Shared,
}

/// Clones the child, into the pid namespace that this process has made for its children, if any. The caller is
/// single-threaded, has blocked all signals, and has reset them ([`SignalSet::reset`](crate::signal_set::SignalSet::reset)).
pub fn fork_gated(
    child: &ChildImage,
    ends: Ends,
    attributes: &Attributes,
    pid_namespace: PidNamespace,
    memory: ChildMemory,
) -> Result<Gated, StartFailure> {
    let prepare = |error: &io::Error| failure(StartStage::Prepare, error, None);
    // The child writes a few bytes, for which the pipe always has space: both ends may be non-blocking.
    let (status_read, status_write) =
        pipe2(OFlag::O_CLOEXEC | OFlag::O_NONBLOCK).map_err(|e| prepare(&e.into()))?;
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
            let copy = stage(source, STAGING_FD).map_err(|e| prepare(&e))?;
            *slot = copy.as_raw_fd();
            copies.push(copy);
        }
    }
    let secret = |error: &io::Error| failure(StartStage::Secret, error, None);
    let user = attributes.privileges.user.as_ref();
    let files = secrets::files(&child.secrets, user).map_err(|e| secret(&e))?;
    let cwd = Path::new(OsStr::from_bytes(&child.cwd));
    if let Some(sandbox) = &attributes.privileges.sandbox
        && let Some(path) = sandbox::indirect(sandbox, cwd)
    {
        let path = path.display().to_string();
        return Err(failure(
            StartStage::Prepare,
            &Errno::ELOOP.into(),
            Some(&path),
        ));
    }
    let plan = Plan {
        own_proc: pid_namespace == PidNamespace::Private,
        terminal: ends.terminal,
        secrets: files.iter().map(AsRawFd::as_raw_fd).collect(),
        ..plan(child, attributes, fds).map_err(|e| prepare(&e))?
    };
    let group = ends.born_in.as_ref();
    let born = match memory {
        ChildMemory::Shared if raw::CAN_CLONE && plan.suits_shared_memory() => lend(plan, group),
        ChildMemory::Shared | ChildMemory::Copied => copy(&plan, group),
    };
    let stage = match group {
        Some(_) => StartStage::Cgroup,
        None => StartStage::Fork,
    };
    let (pid, leader, lent) = born.map_err(|error| failure(stage, &error, None))?;
    // Only the child may have these ends open, above all the gate's.
    let Ends {
        stdin,
        stdout,
        stderr,
        gate,
        born_in,
        ..
    } = ends;
    let own = [stdin, stdout, stderr, gate, status_write];
    close_together(own.into_iter().chain(born_in));
    drop(files);
    Ok(Gated {
        pid,
        leader,
        status: status_read,
        lent,
    })
}

/// Builds the plan that the child will carry out.
fn plan(child: &ChildImage, attributes: &Attributes, fds: [RawFd; 5]) -> io::Result<Plan> {
    let is_secret = |name: &String| child.secrets.iter().any(|secret| secret.name == *name);
    let env = child.env.iter().filter(|(name, _)| !is_secret(name));
    let env = env.map(|(name, value)| format!("{name}={value}").into_bytes());
    let env = env.chain(secrets::variables(&child.secrets));
    let score = attributes.oom_score_adj.map(|adj| {
        let file = c_string(attributes::OOM_SCORE_ADJ)?;
        let text = adj.to_string();
        io::Result::Ok(Score { file, text })
    });
    let privileges = &attributes.privileges;
    let cwd = Path::new(OsStr::from_bytes(&child.cwd));
    // With default places no sandbox can be made.
    let places = attributes.private.clone().unwrap_or_default();
    let sandbox = privileges.sandbox.as_ref();
    let sandbox = sandbox.map(|sandbox| sandbox::rules(sandbox, &places, cwd));
    let (sandbox, mounts) = sandbox.transpose()?.unzip();
    let user = privileges.user.as_ref();
    let ids = user.map(|user| [user.uid, user.gid]);
    let namespaces = Namespaces::new(mounts.flatten(), privileges.network == Network::None, ids);
    Ok(Plan {
        executable: c_string(child.executable.as_slice())?,
        argv: c_strings(child.argv.iter().cloned())?,
        envp: c_strings(env)?,
        cwd: c_string(child.cwd.as_slice())?,
        fds,
        rlimits: attributes.rlimits.iter().map(numbers).collect(),
        nice: attributes.nice,
        umask: attributes.umask,
        user: user.map(|user| ChildUser {
            uid: user.uid,
            gid: user.gid,
            groups: user.groups.clone(),
        }),
        no_new_privileges: privileges.gains_nothing(),
        bound_capabilities: privileges.drop_capabilities.0,
        drop_capabilities: privileges.lost_capabilities().0,
        sandbox,
        namespaces,
        filter: match (privileges.seccomp, &privileges.sandbox) {
            (Seccomp::Baseline, _) => seccomp::baseline(),
            (Seccomp::None, Some(_)) => seccomp::of_sandbox(),
            (Seccomp::None, None) => Vec::new(),
        },
        score: score.transpose()?,
        secrets: Vec::new(),
        own_proc: false,
        terminal: false,
    })
}

/// Makes the namespaces of a command without a network, or in a sandbox with this data directory, in this process: the
/// error says why it cannot.
pub fn try_namespaces(data_dir: Option<&Path>) -> Result<(), String> {
    let mounts = data_dir.map(sandbox::mounts::Mounts::of).transpose();
    let mounts = mounts.map_err(|error| error.to_string())?;
    let has_network = mounts.is_none();
    let Some(namespaces) = Namespaces::new(mounts, has_network, None) else {
        return Ok(());
    };
    let failed = |(_, errno)| format!("in a namespace: {}", io::Error::from_raw_os_error(errno));
    if namespaces.enter(false).map_err(failed)? {
        return Ok(());
    }
    if nix::unistd::geteuid().is_root() {
        return Err("the server is root and lacks CAP_SYS_ADMIN".into());
    }
    let failed = |(_, errno)| {
        let error = io::Error::from_raw_os_error(errno);
        format!("in a user namespace: {error}")
    };
    namespaces.enter_as_user().map_err(failed)
}

type Born = (i32, PidFd, Option<Lent>);

/// Makes a child with a copy of this memory.
fn copy(plan: &Plan, group: Option<&OwnedFd>) -> io::Result<Born> {
    let cloned = match group {
        Some(group) => clone_into(group),
        None => clone_here(),
    };
    match cloned? {
        Cloned::Child => child::run(plan),
        Cloned::Parent(pid, leader) => Ok((pid, leader, None)),
    }
}

/// Makes a child in this memory, on a stack of its own; where that is impossible, one with a copy.
fn lend(mut plan: Plan, group: Option<&OwnedFd>) -> io::Result<Born> {
    let score = plan.score.take();
    let mut stack = new_stack();
    let base = stack.as_mut_ptr() as usize;
    let mut pidfd: RawFd = -1;
    // With CLONE_PARENT the child inherits the intermediate process's exit signal, and may request none.
    let (beside, signal) = match score {
        Some(_) => (libc::CLONE_PARENT, 0),
        None => (0, libc::SIGCHLD),
    };
    let args = group.map(|group| {
        let mut args = into_group(group, &mut pidfd);
        args.flags |= u64::from((libc::CLONE_VM | beside).cast_unsigned());
        args.exit_signal = u64::from(signal.cast_unsigned());
        (args.stack, args.stack_size) = (base as u64, STACK_BYTES as u64);
        args
    });
    let call = if let Some(args) = &args {
        let arguments = [ptr::from_ref(args) as usize, size_of_val(args), 0, 0, 0];
        (libc::SYS_clone3, arguments)
    } else {
        let flags = libc::CLONE_VM | libc::CLONE_PIDFD | beside | signal;
        let flags = usize::try_from(flags).unwrap_or_default();
        let place = ptr::from_mut(&mut pidfd) as usize;
        // A stack begins at its upper end.
        (libc::SYS_clone, [flags, base + STACK_BYTES, place, 0, 0])
    };
    let mut birth = Box::new(Birth {
        plan,
        score,
        call,
        entry: raw::Entry {
            function: child::begin,
            argument: ptr::null(),
        },
        made: AtomicI32::new(0),
        _stack: stack,
    });
    birth.entry.argument = ptr::from_ref(&birth.plan).cast();
    let made = match &birth.score {
        Some(_) => deliver(&birth),
        // SAFETY: the arguments are complete and outlive the call. Plan and stack stay unchanged until the child no
        // longer needs them, or for ever: see [`Lent`].
        None => unsafe { raw::clone(call.0, call.1, birth.entry) },
    };
    match made {
        Ok(0) => {
            // A child may exist until its gate closes: its memory is leaked.
            std::mem::forget(birth);
            Err(Errno::ECHILD.into())
        }
        Ok(pid) => {
            let lent = Lent(ManuallyDrop::new(birth));
            Ok((pid, process(pidfd), Some(lent)))
        }
        Err(_) => {
            let Birth { plan, score, .. } = *birth;
            copy(&Plan { score, ..plan }, group)
        }
    }
}

fn new_stack() -> Box<[MaybeUninit<u128>]> {
    Box::new_uninit_slice(STACK_BYTES / size_of::<u128>())
}

/// Has the child made by an intermediate process, and waits for the exit of that one. Returns the child's number, 0
/// where that process ended before it reported one, or an errno.
fn deliver(birth: &Birth) -> Result<libc::c_int, libc::c_int> {
    let mut stack = new_stack();
    let end = stack.as_mut_ptr() as usize + STACK_BYTES;
    // Descriptors are shared: the child's pidfd becomes this process's.
    let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::CLONE_FILES | libc::SIGCHLD;
    let flags = usize::try_from(flags).unwrap_or_default();
    let entry = raw::Entry {
        function: child::deliver,
        argument: ptr::from_ref(birth).cast(),
    };
    // SAFETY: the call returns once the new process has exited; its stack and argument live that long.
    let between = unsafe { raw::clone(libc::SYS_clone, [flags, end, 0, 0, 0], entry) }?;
    // No other code reaps `between`: this process has one thread.
    let _ = reap::await_end(between);
    match birth.made.load(Ordering::Acquire) {
        made @ 0.. => Ok(made),
        errno => Err(-errno),
    }
}

/// Makes a failure with its errno.
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

fn c_strings(texts: impl Iterator<Item: Into<Vec<u8>>>) -> io::Result<Strings> {
    let strings: io::Result<Vec<CString>> = texts.map(c_string).collect();
    Ok(Strings::new(strings?))
}

/// Closes descriptors; those with neighbouring numbers, as they come with one message, by one call.
fn close_together(fds: impl Iterator<Item = OwnedFd>) {
    let mut numbers: Vec<RawFd> = fds.map(IntoRawFd::into_raw_fd).collect();
    numbers.sort_unstable();
    for range in numbers.chunk_by(|one, next| one + 1 == *next) {
        child::close_all(range[0], range[range.len() - 1]);
    }
}

/// Copies the descriptor to a number that is not below this one.
fn stage(fd: &impl AsFd, least: RawFd) -> io::Result<OwnedFd> {
    let staged = fcntl(fd, FcntlArg::F_DUPFD_CLOEXEC(least))?;
    // SAFETY: the kernel has just made this descriptor for us; no other code owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(staged) })
}

/// Which side of a clone this is.
pub enum Cloned {
    /// The new process.
    Child,
    /// The caller, with the child's number and descriptor.
    Parent(i32, PidFd),
}

/// clone3(2) into a control group. The child may do async-signal-safe work only.
pub fn clone_into(group: &OwnedFd) -> io::Result<Cloned> {
    let mut pidfd: RawFd = -1;
    let args = into_group(group, &mut pidfd);
    // SAFETY: `args` is complete and outlives the call; without CLONE_VM and with a null stack the child continues in a
    // copy of this memory, as after fork(2).
    let pid = unsafe { libc::syscall(libc::SYS_clone3, &raw const args, size_of_val(&args)) };
    side(pid, pidfd)
}

fn into_group(group: &OwnedFd, pidfd: &mut RawFd) -> libc::clone_args {
    libc::clone_args {
        flags: libc::CLONE_PIDFD as u64 | CLONE_INTO_CGROUP,
        pidfd: ptr::from_mut(pidfd) as u64,
        child_tid: 0,
        parent_tid: 0,
        exit_signal: libc::SIGCHLD as u64,
        stack: 0,
        stack_size: 0,
        tls: 0,
        set_tid: 0,
        set_tid_size: 0,
        cgroup: u64::try_from(group.as_raw_fd()).unwrap_or(u64::MAX),
    }
}

/// `CLONE_INTO_CGROUP` (Linux 5.7).
const CLONE_INTO_CGROUP: u64 = 0x2_0000_0000;

/// Calls clone(2), which every seccomp profile permits. The same restriction applies.
pub fn clone_here() -> io::Result<Cloned> {
    let mut pidfd: RawFd = -1;
    let flags = libc::CLONE_PIDFD | libc::SIGCHLD;
    let none = 0usize;
    // SAFETY: the third argument is the place for the pidfd on every architecture; a null stack means a copy of this
    // one, as after fork(2); other arguments are not used with these flags.
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
            let pid = i32::try_from(pid).map_err(io::Error::other)?;
            Ok(Cloned::Parent(pid, process(pidfd)))
        }
    }
}

/// Returns the child that a call with `CLONE_PIDFD` has made.
fn process(pidfd: RawFd) -> PidFd {
    // SAFETY: CLONE_PIDFD has made this descriptor for us; no other code owns it.
    PidFd::from_fd(unsafe { OwnedFd::from_raw_fd(pidfd) })
}
