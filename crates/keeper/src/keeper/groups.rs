//! The keeper's own control group directory, and a fresh one in it for each run.

use super::{CgroupChoice, delegation::Delegation, group_record::GroupRecord};
use crate::wire::Placement;
use kennel_lifecycle::{CgroupIdentity, Exit, KeeperEpoch, Knob, NodeId, RunId};
use kennel_linux::{
    capability::{Capability, CapabilityName},
    cgroup, cgroup_limits,
    reap::{self, Waited},
    spawn::{self, Cloned},
    usage::Counting,
};
use nix::{fcntl::OFlag, unistd::pipe2};
use std::{
    fs, io,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
};

/// Exit code of the probe's child.
const PROBE_CODE: i32 = 42;

/// Makes the control groups of runs, if runs get any.
pub(super) struct RunGroups {
    base: Result<PathBuf, String>,
    placement: Placement,
    capabilities: Vec<Capability>,
    knobs: Vec<Knob>,
    made: u64,
    delegation: Option<Delegation>,
}

/// A run's own group.
pub(super) struct Group {
    pub(super) identity: CgroupIdentity,
    pub(super) dir: OwnedFd,
}

/// Capabilities of a run's control group; all are missing where there is none.
const OF_GROUPS: &[CapabilityName] = &[
    CapabilityName::Cgroup,
    CapabilityName::CgroupSealed,
    CapabilityName::CgroupClone,
    CapabilityName::CgroupKill,
    CapabilityName::CgroupFreeze,
    CapabilityName::CgroupMemory,
    CapabilityName::CgroupPids,
    CapabilityName::CgroupCpu,
    CapabilityName::CgroupIo,
];

/// Result of a trial in a fresh group.
struct Probed {
    /// Reason why a child cannot be cloned into a group.
    not_by_clone: Option<String>,
    has_kill: bool,
    has_freeze: bool,
    knobs: Vec<Knob>,
}

impl RunGroups {
    /// Makes the base directory and finds out how a child gets into a fresh group below it.
    pub(super) fn new(
        choice: CgroupChoice,
        node: NodeId,
        epoch: KeeperEpoch,
        data_dir: &Path,
    ) -> Self {
        let prefix = cgroup::base_prefix(node);
        let mut record = GroupRecord::read(data_dir);
        record.sweep(&prefix);
        let without = |why: String| Self {
            capabilities: none(&why),
            knobs: Vec::new(),
            base: Err(why),
            placement: Placement::ByWrite,
            made: 0,
            delegation: None,
        };
        if choice == CgroupChoice::Off {
            return without("switched off".into());
        }
        let Some(own) = cgroup::path_of(std::process::id().cast_signed()) else {
            return without(
                "cgroup v2 is not mounted, or this process is outside of what is".into(),
            );
        };
        let delegation = match choice {
            CgroupChoice::Stay => {
                let why = "--cgroup stay leaves the keeper in its control group";
                Delegation::without(own.clone(), Some(why.into()))
            }
            CgroupChoice::Auto | CgroupChoice::Off => Delegation::take(own.clone()),
        };
        for dir in [&own, &delegation.group] {
            sweep(dir, &prefix);
        }
        let base = delegation.group.join(format!("{prefix}{epoch}"));
        match cgroup::create(&base) {
            Ok(made) => record.add(made),
            Err(error) => {
                delegation.release();
                return without(format!("cannot make {}: {error}", base.display()));
            }
        }
        cgroup_limits::hand_on(&base);
        match probe(&base) {
            Ok(probed) => Self {
                placement: match probed.not_by_clone {
                    None => Placement::ByClone,
                    Some(_) => Placement::ByWrite,
                },
                capabilities: found(&base, &probed, &delegation),
                knobs: probed.knobs,
                base: Ok(base),
                made: 0,
                delegation: Some(delegation),
            },
            Err(error) => {
                cgroup::remove_empty(&base);
                delegation.release();
                without(format!("cannot use {}: {error}", base.display()))
            }
        }
    }

    /// Returns the base directory, or why there is none.
    pub(super) fn base(&self) -> &Result<PathBuf, String> {
        &self.base
    }

    /// Returns the group that holds Kennel and all runs, if this process is in one.
    pub(super) fn shared(&self) -> Option<PathBuf> {
        match &self.delegation {
            Some(delegation) => Some(delegation.group.clone()),
            None => cgroup::path_of(std::process::id().cast_signed()),
        }
    }

    /// Returns the capabilities of a run's control group here.
    pub(super) fn capabilities(&self) -> &[Capability] {
        &self.capabilities
    }

    /// Returns the limits that a run's control group can have, or why there are none.
    pub(super) fn knobs(&self) -> Result<Vec<Knob>, String> {
        self.base.clone().map(|_| self.knobs.clone())
    }

    /// Returns how children enter their group.
    pub(super) fn placement(&self) -> Placement {
        self.placement
    }

    /// Whether commands may write to `cgroup.procs` above the groups of runs.
    pub(super) fn are_open(&self) -> bool {
        self.lacks(CapabilityName::CgroupSealed)
    }

    pub(super) fn have_kill(&self) -> bool {
        !self.lacks(CapabilityName::CgroupKill)
    }

    /// Returns what the kernel counts in them.
    pub(super) fn counting(&self) -> Counting {
        Counting {
            memory: !self.lacks(CapabilityName::CgroupMemory),
            pids: !self.lacks(CapabilityName::CgroupPids),
            io: !self.lacks(CapabilityName::CgroupIo),
        }
    }

    fn lacks(&self, name: CapabilityName) -> bool {
        let found = self.capabilities.iter().find(|c| c.name == name);
        found.is_none_or(|c| c.missing.is_some())
    }

    /// Makes a fresh directory for a run; a name is never used twice. The host may allow no more of them
    /// (`cgroup.max.descendants`: EAGAIN), or no longer any.
    pub(super) fn create(&mut self, run: RunId) -> Result<Group, String> {
        let base = self.base.as_ref().map_err(Clone::clone)?;
        self.made += 1;
        let path = base.join(format!("run-{run}-{}", self.made));
        let refused = |error: io::Error| format!("cannot make {}: {error}", path.display());
        let (identity, dir) = cgroup::create_open(&path).map_err(refused)?;
        Ok(Group { identity, dir })
    }

    /// Removes the group of an ended run, and the base directory of an earlier keeper with the last group in it.
    pub(super) fn clear(&self, group: &CgroupIdentity) -> bool {
        // The path belongs to this run only: no keeper makes it twice.
        let removed = cgroup::remove_empty(Path::new(&group.path));
        if removed
            && let Some(base) = Path::new(&group.path).parent()
            && self.base.as_ref().is_ok_and(|own| own != base)
        {
            let _ = fs::remove_dir(base);
        }
        removed
    }

    /// Removes the base directory if no process is left below it, and restores the delegated group.
    pub(super) fn remove(&self) {
        if let Ok(base) = &self.base {
            cgroup::remove_empty(base);
        }
        if let Some(delegation) = &self.delegation {
            delegation.release();
        }
    }
}

/// Removes empty directories of earlier keepers of this node. The lock proves that none of them is alive; a directory
/// with a process in it is not touched.
fn sweep(own: &Path, prefix: &str) {
    for entry in fs::read_dir(own).into_iter().flatten().flatten() {
        if entry.file_name().to_string_lossy().starts_with(prefix) {
            cgroup::remove_empty(&entry.path());
        }
    }
}

fn none(why: &str) -> Vec<Capability> {
    let missing = |name: &CapabilityName| Capability {
        name: *name,
        missing: Some(format!("no control groups: {why}")),
    };
    OF_GROUPS.iter().map(missing).collect()
}

fn found(base: &Path, probed: &Probed, delegation: &Delegation) -> Vec<Capability> {
    let controllers = fs::read_to_string(base.join("cgroup.controllers")).unwrap_or_default();
    let tried = |name: &CapabilityName| match name {
        CapabilityName::CgroupSealed => sealed(base),
        CapabilityName::CgroupClone => probed.not_by_clone.clone().map_or(Ok(()), Err),
        CapabilityName::CgroupKill => there(probed.has_kill, "cgroup.kill"),
        CapabilityName::CgroupFreeze => there(probed.has_freeze, "cgroup.freeze"),
        CapabilityName::CgroupMemory => delegated(&controllers, "memory", delegation),
        CapabilityName::CgroupPids => delegated(&controllers, "pids", delegation),
        CapabilityName::CgroupCpu => delegated(&controllers, "cpu", delegation),
        CapabilityName::CgroupIo => delegated(&controllers, "io", delegation),
        _ => Ok(()),
    };
    let names = OF_GROUPS.iter();
    names
        .map(|name| Capability::tried(*name, tried(name)))
        .collect()
}

/// A process that may write to `cgroup.procs` above its group can move itself into another one.
fn sealed(base: &Path) -> Result<(), String> {
    let procs = base.join("cgroup.procs");
    let flags = nix::fcntl::AtFlags::AT_EACCESS;
    let here = nix::fcntl::AT_FDCWD;
    match nix::unistd::faccessat(here, &procs, nix::unistd::AccessFlags::W_OK, flags) {
        Ok(()) => Err(format!(
            "commands run as uid {}, which may write to {}",
            nix::unistd::geteuid(),
            procs.display()
        )),
        Err(_) => Ok(()),
    }
}

fn there(is_there: bool, file: &str) -> Result<(), String> {
    if is_there {
        return Ok(());
    }
    Err(format!("this kernel has no {file}"))
}

fn delegated(controllers: &str, name: &str, delegation: &Delegation) -> Result<(), String> {
    if controllers.split_whitespace().any(|found| found == name) {
        return Ok(());
    }
    let file = delegation.group.join("cgroup.controllers");
    let there = fs::read_to_string(&file).unwrap_or_default();
    Err(match &delegation.refused {
        Some(why) if there.split_whitespace().any(|found| found == name) => why.clone(),
        _ => format!(
            "not in {}: the kernel, cgroup v1 or a group above keeps it",
            file.display()
        ),
    })
}

/// Finds out whether a child stays alive in a fresh group. Where this keeper itself sits in a group that was killed
/// once, the kernel kills what is cloned from here into another at birth (`cgroup_css_set_fork` compares kill
/// counters); a filter may refuse clone3(2). Then children are moved in while they wait at their gates.
fn probe(base: &Path) -> io::Result<Probed> {
    let group = cgroup::create(&base.join("probe"))?;
    let probed = probe_clone(&group).and_then(|not_by_clone| {
        if not_by_clone.is_some() {
            probe_write(&group)?;
        }
        let has = |file: &str| Path::new(&group.path).join(file).exists();
        Ok(Probed {
            not_by_clone,
            has_kill: has("cgroup.kill"),
            has_freeze: has("cgroup.freeze"),
            knobs: cgroup_limits::knobs(Path::new(&group.path)),
        })
    });
    cgroup::remove(&group);
    probed
}

/// Returns why a child cannot be cloned into this group, where it cannot.
fn probe_clone(group: &CgroupIdentity) -> io::Result<Option<String>> {
    let dir = cgroup::open(group)?.ok_or(io::ErrorKind::NotFound)?;
    match spawn::clone_into(&dir) {
        // SAFETY: _exit runs no handlers and does not return.
        Ok(Cloned::Child) => unsafe { libc::_exit(PROBE_CODE) },
        Ok(Cloned::Parent(pid, _)) => Ok(match reap::await_end(pid)? {
            Waited::Ended {
                exit: Exit::Code(PROBE_CODE),
                ..
            } => None,
            Waited::Ended {
                exit: Exit::Signal { signal, .. },
                ..
            } => Some(format!(
                "{signal} at birth: this keeper is in a control group that was killed once"
            )),
            _ => Some("a child that was born in a control group did not run".into()),
        }),
        Err(error) => Ok(Some(format!("clone3: {error}"))),
    }
}

/// Moves a child into the group while it waits at a pipe.
fn probe_write(group: &CgroupIdentity) -> io::Result<()> {
    let (read, write) = pipe2(OFlag::O_CLOEXEC)?;
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
