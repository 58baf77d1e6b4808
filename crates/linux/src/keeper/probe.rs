//! What this kernel can do for processes, tried out at the start. Control groups are tried in [`super::groups`].

use crate::{
    capability::{Capability, CapabilityName},
    pidfd::PidFd,
    reap,
    spawn::{self, Cloned},
};
use kennel_lifecycle::Exit;
use nix::errno::Errno;
use std::{io, ptr};

/// What the probe's child ends with.
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
    ])
}

/// Without arguments clone3(2) is EINVAL; where a filter refuses it, it is something else.
fn clone3() -> Result<(), String> {
    let none = ptr::null::<libc::clone_args>();
    // SAFETY: a size below that of the first version is refused before the arguments are looked at.
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
            let told = fd.exit() == Some(Exit::Code(PROBE_CODE));
            let why = || "this kernel has no PIDFD_INFO_EXIT".to_owned();
            Ok(told.then_some(()).ok_or_else(why))
        }
    }
}
