//! Capabilities of this kernel for processes, tried at the start. Control groups are tried in [`super::groups`].

use super::groups::RunGroups;
use crate::shim;
use kennel_lifecycle::{Exit, HostFacts};
use kennel_linux::{
    capability::{Capability, CapabilityName},
    pidfd::PidFd,
    reap::{self, Waited},
    spawn::{self, Cloned, sandbox, seccomp},
    terminal::{self, NoPty},
};
use nix::errno::Errno;
use std::{fs, io, path::Path, ptr};

/// Numbers of capabilities(7).
const CAP_CHOWN: u32 = 0;
const CAP_KILL: u32 = 5;
const CAP_SETGID: u32 = 6;
const CAP_SETUID: u32 = 7;
const CAP_SETPCAP: u32 = 8;
const CAP_SYS_ADMIN: u32 = 21;

/// Exit code of the probe's child.
const PROBE_CODE: i32 = 42;

/// Tries everything. The caller is single-threaded.
pub(super) fn processes() -> io::Result<Vec<Capability>> {
    let me = PidFd::open(std::process::id().cast_signed())?;
    let lacking = |is_there: bool, why: &str| is_there.then_some(()).ok_or_else(|| why.to_owned());
    let pidfs = lacking(me.handle().is_some(), "this kernel gives no pidfs inode");
    let group = lacking(
        me.addresses_groups(),
        "this kernel has no PIDFD_SIGNAL_PROCESS_GROUP",
    );
    Ok(vec![
        Capability::tried(CapabilityName::Clone3, clone3()),
        Capability::tried(CapabilityName::Pidfs, pidfs),
        Capability::tried(CapabilityName::PidfdGroupSignal, group),
        Capability::tried(CapabilityName::PidfdExit, exit_by_pidfd()?),
        Capability::tried(CapabilityName::PidNamespace, shim::try_pid_namespace()?),
        Capability::tried(CapabilityName::Terminal, terminal()?),
    ])
}

/// Whether a command can be on a terminal.
fn terminal() -> io::Result<Result<(), String>> {
    Ok(terminal::probe()?.map_err(|none| match none {
        NoPty::Unavailable { why, .. } => why,
        NoPty::Exhausted { .. } => "the terminals of this host are used up".to_owned(),
    }))
}

/// Whether a capability is effective, by the `status` of a process in /proc.
fn is_effective(status: &str, capability: u32) -> bool {
    let line = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let set = line.and_then(|digits| u64::from_str_radix(digits.trim(), 16).ok());
    set.is_some_and(|set| set >> capability & 1 == 1)
}

/// Whether a command can run as another user: by the capabilities of this process. In a user namespace that lacks the
/// user, its start fails.
pub(super) fn run_as() -> io::Result<Result<(), String>> {
    const NEEDED: [(u32, &str); 4] = [
        (CAP_CHOWN, "CAP_CHOWN"),
        (CAP_KILL, "CAP_KILL"),
        (CAP_SETGID, "CAP_SETGID"),
        (CAP_SETUID, "CAP_SETUID"),
    ];
    let status = fs::read_to_string("/proc/self/status")?;
    let missing = NEEDED
        .iter()
        .filter(|(number, _)| !is_effective(&status, *number));
    let missing: Vec<&str> = missing.map(|(_, name)| *name).collect();
    Ok(match missing[..] {
        [] => Ok(()),
        _ => Err(format!("the server lacks {}", missing.join(", "))),
    })
}

/// Whether capabilities can be taken from a command for good: by the capabilities of this process.
pub(super) fn drop_capabilities() -> io::Result<Result<(), String>> {
    let status = fs::read_to_string("/proc/self/status")?;
    let has = is_effective(&status, CAP_SETPCAP);
    Ok(has
        .then_some(())
        .ok_or_else(|| "the server lacks CAP_SETPCAP".to_owned()))
}

/// Extent to which commands can be isolated. The caller is single-threaded.
pub(super) fn profiles(data_dir: &Path) -> io::Result<[Capability; 5]> {
    let sandbox = sandbox::support();
    let tried = |data_dir: Option<&Path>| {
        let tried = shim::in_child(|| spawn::try_namespaces(data_dir));
        tried.map_err(|(_, error)| error)
    };
    Ok([
        Capability::tried(CapabilityName::Sandbox, sandbox.files),
        Capability::tried(CapabilityName::SandboxSignals, sandbox.processes),
        Capability::tried(CapabilityName::SandboxMounts, tried(Some(data_dir))?),
        Capability::tried(CapabilityName::NetworkNamespace, tried(None)?),
        Capability::tried(CapabilityName::Seccomp, seccomp::support()),
    ])
}

/// Finds what decides on the gaps of a run's containment. The caller is single-threaded.
pub(super) fn facts(groups: &RunGroups, capabilities: &[Capability]) -> io::Result<HostFacts> {
    let status = fs::read_to_string("/proc/self/status")?;
    let field = |name: &str| {
        let lines = &mut status.lines();
        lines.find_map(|line| Some(line.strip_prefix(name)?.trim()))
    };
    let has = |capability: u32| is_effective(&status, capability);
    let is_there = |name| {
        let mut all = capabilities.iter();
        all.any(|one| one.name == name && one.missing.is_none())
    };
    Ok(HostFacts {
        uid: nix::unistd::geteuid().as_raw(),
        groups_are_open: groups.are_open(),
        has_cgroup_kill: groups.have_kill(),
        namespaces_are_open: has(CAP_SYS_ADMIN) || makes_user_namespaces()?,
        may_signal_everybody: has(CAP_KILL),
        no_new_privileges: field("NoNewPrivs:") == Some("1"),
        sandbox_holds_signals: is_there(CapabilityName::SandboxSignals),
        sandbox_has_mounts: is_there(CapabilityName::SandboxMounts),
    })
}

/// Whether commands can make user namespaces: a process that can may enter those that others of its user have made, and
/// the pid namespaces in them.
fn makes_user_namespaces() -> io::Result<bool> {
    match spawn::clone_here()? {
        Cloned::Child => {
            // SAFETY: unshare takes an integer, and this process has one thread.
            let apart = unsafe { libc::unshare(libc::CLONE_NEWUSER) };
            // SAFETY: _exit runs no handlers and does not return.
            unsafe { libc::_exit(if apart == 0 { PROBE_CODE } else { 1 }) }
        }
        Cloned::Parent(pid, _) => Ok(matches!(
            reap::await_end(pid)?,
            Waited::Ended {
                exit: Exit::Code(PROBE_CODE),
                ..
            }
        )),
    }
}

/// Whether clone3(2) is available. Without arguments it fails with EINVAL; where a filter refuses it, with another
/// error.
fn clone3() -> Result<(), String> {
    let none = ptr::null::<libc::clone_args>();
    // SAFETY: the kernel refuses a size below the first version's before it reads the arguments.
    let tried = unsafe { libc::syscall(libc::SYS_clone3, none, 0usize) };
    match Errno::result(tried) {
        Err(Errno::EINVAL) => Ok(()),
        Err(errno) => Err(format!("clone3: {}", io::Error::from(errno))),
        Ok(_) => Err("clone3 without arguments did not fail".into()),
    }
}

fn exit_by_pidfd() -> io::Result<Result<(), String>> {
    match spawn::clone_here()? {
        // SAFETY: _exit runs no handlers and does not return.
        Cloned::Child => unsafe { libc::_exit(PROBE_CODE) },
        Cloned::Parent(pid, fd) => {
            reap::await_end(pid)?;
            let is_as_expected = fd.exit() == Some(Exit::Code(PROBE_CODE));
            let why = || "this kernel has no PIDFD_INFO_EXIT".to_owned();
            Ok(is_as_expected.then_some(()).ok_or_else(why))
        }
    }
}
