//! The keeper's own control group directory, and a fresh one in it for each run.

use super::CgroupChoice;
use crate::{
    cgroup,
    reap::{self, Waited},
    spawn::{self, Cloned},
    wire::Placement,
};
use kennel_lifecycle::{CgroupIdentity, Exit, KeeperEpoch, NodeId, RunId};
use std::{
    fs, io,
    path::{Path, PathBuf},
};

/// What the probe's child ends with.
const PROBE_CODE: i32 = 42;

/// Where runs get their control groups, if they get any.
pub(super) struct Groups {
    base: Result<PathBuf, String>,
    placement: Placement,
    made: u64,
}

impl Groups {
    /// Makes the base directory and tries out how a child gets into a fresh group below it.
    pub(super) fn new(choice: CgroupChoice, node: NodeId, epoch: KeeperEpoch) -> Self {
        let without = |why: String| Self {
            base: Err(why),
            placement: Placement::ByWrite,
            made: 0,
        };
        if choice == CgroupChoice::Off {
            return without("switched off".into());
        }
        let Some(own) = cgroup::path_of(std::process::id().cast_signed()) else {
            return without(
                "cgroup v2 is not mounted, or this process is outside of what is".into(),
            );
        };
        sweep(&own, node);
        let base = own.join(format!("{}{epoch}", base_prefix(node)));
        if let Err(error) = fs::create_dir(&base) {
            return without(format!("cannot make {}: {error}", base.display()));
        }
        match probe(&base) {
            Ok(placement) => Self {
                base: Ok(base),
                placement,
                made: 0,
            },
            Err(error) => {
                cgroup::remove_empty(&base);
                without(format!("cannot use {}: {error}", base.display()))
            }
        }
    }

    /// The base directory, or why there is none.
    pub(super) fn base(&self) -> &Result<PathBuf, String> {
        &self.base
    }

    /// How children get in.
    pub(super) fn placement(&self) -> Placement {
        self.placement
    }

    /// A fresh directory for a run; a name is never used twice.
    pub(super) fn create(&mut self, run: RunId) -> Result<CgroupIdentity, String> {
        let base = self.base.as_ref().map_err(Clone::clone)?;
        self.made += 1;
        let path = base.join(format!("run-{run}-{}", self.made));
        cgroup::create(&path).map_err(|error| format!("cannot make {}: {error}", path.display()))
    }

    /// Removes the base directory if nobody is left below it.
    pub(super) fn remove(&self) {
        if let Ok(base) = &self.base {
            cgroup::remove_empty(base);
        }
    }
}

fn base_prefix(node: NodeId) -> String {
    format!("kennel-{node}-")
}

/// Removes what earlier keepers of this node have left empty. The lock says that none of them is alive; a directory
/// with somebody in it is left alone.
fn sweep(own: &Path, node: NodeId) {
    let prefix = base_prefix(node);
    for entry in fs::read_dir(own).into_iter().flatten().flatten() {
        if entry.file_name().to_string_lossy().starts_with(&prefix) {
            cgroup::remove_empty(&entry.path());
        }
    }
}

/// A child of ours must live in a fresh group. Where this keeper itself sits in a group that was killed once, the kernel
/// kills what is cloned from here into another at birth (`cgroup_css_set_fork` compares kill counters); a filter may
/// refuse clone3(2). Then children are moved in while they wait at their gates.
fn probe(base: &Path) -> io::Result<Placement> {
    let group = cgroup::create(&base.join("probe"))?;
    let probed = probe_clone(&group).and_then(|lived| {
        if lived {
            return Ok(Placement::ByClone);
        }
        probe_write(&group).map(|()| Placement::ByWrite)
    });
    cgroup::remove(&group);
    probed
}

fn probe_clone(group: &CgroupIdentity) -> io::Result<bool> {
    let dir = cgroup::open(group)?.ok_or(io::ErrorKind::NotFound)?;
    match spawn::clone_into(&dir) {
        // SAFETY: _exit runs no handlers and does not return.
        Ok(Cloned::Child) => unsafe { libc::_exit(PROBE_CODE) },
        Ok(Cloned::Parent(pid, _)) => Ok(matches!(
            reap::await_end(pid)?,
            Waited::Ended {
                exit: Exit::Code(PROBE_CODE),
                ..
            }
        )),
        Err(_) => Ok(false),
    }
}

/// A child waits at a pipe until it has been moved.
fn probe_write(group: &CgroupIdentity) -> io::Result<()> {
    let (read, write) = spawn::small_pipe()?;
    match spawn::clone_here()? {
        Cloned::Child => {
            drop(write);
            let mut byte = [0];
            let _ = nix::unistd::read(&read, &mut byte);
            // SAFETY: _exit runs no handlers and does not return.
            unsafe { libc::_exit(PROBE_CODE) }
        }
        Cloned::Parent(pid, _) => {
            drop(read);
            let entered = cgroup::enter(group, pid);
            drop(write);
            reap::await_end(pid)?;
            entered
        }
    }
}
