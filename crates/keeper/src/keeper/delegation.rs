//! The control group that the groups of runs are made in: whether it is delegated to Kennel, and the leaf in it that
//! the keeper moves to, because the kernel enables no controller below a group that has processes of its own
//! (cgroups(7), "no internal processes").
//!
//! Only the processes of a delegated group are moved: unrelated processes stay where they are.

use kennel_linux::{cgroup, cgroup_limits, procfs};
use std::{
    ffi::CStr,
    fs, io,
    path::{Path, PathBuf},
};

/// The leaf. All keepers of a delegated group share it, whatever their node.
const LEAF: &str = "kennel-keeper";
/// Prefix of the names of all groups of Kennel.
const OURS: &str = "kennel-";
/// Where systemd runs reload commands and the like of a unit with `Delegate=` (systemd.exec(5)).
const SYSTEMD_CONTROL: &str = ".control";
/// systemd sets these to "1" on the groups that it delegates (the first since 251), and an administrator may do so.
const MARKS: [&CStr; 2] = [c"user.delegate", c"trusted.delegate"];
/// How often a group is listed and its processes are moved: they may fork meanwhile.
const ROUNDS_MAX: usize = 64;

/// The group in which the groups of runs are made.
#[derive(Debug)]
pub(super) struct Delegation {
    /// The delegated group, or the keeper's own where that is not delegated.
    pub(super) group: PathBuf,
    /// Reason why its controllers are not enabled, where they are not.
    pub(super) refused: Option<String>,
    /// The leaf that this keeper has moved to, and the controllers that it has enabled.
    moved: Option<(PathBuf, Vec<String>)>,
}

/// State of the keeper's own group before any change.
#[derive(Clone, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is seen by itself")]
struct OwnGroup {
    own: PathBuf,
    /// Processes in the root of the hierarchy block no controller.
    is_root: bool,
    /// The group is marked, or it is the topmost one of this cgroup namespace or mount, as in a container.
    is_delegated: bool,
    /// The own group is a subgroup for the processes of a service (`DelegateSubgroup=`) or a container.
    is_parent_delegated: bool,
    /// A group that is not Kennel's, in the own one and beside it.
    other_below: Option<String>,
    other_beside: Option<String>,
    /// A process in the own group that is neither this one nor a descendant of it.
    other_process: Option<String>,
    is_first_process: bool,
    /// Whether systemd manages the control groups of this host.
    has_systemd: bool,
}

/// Way in which the group can enable its controllers.
#[derive(Debug, PartialEq, Eq)]
enum Plan {
    /// No process blocks them.
    Stay(PathBuf),
    /// All its processes move to the leaf.
    Move(PathBuf),
}

impl Delegation {
    /// Finds the delegated group, moves its processes to the leaf where that is needed, and enables its controllers.
    pub(super) fn take(own: PathBuf) -> Self {
        let seen = OwnGroup::of(own);
        let plan = match decide(&seen) {
            Ok(plan) => plan,
            Err(why) => return Self::without(seen.own, Some(why)),
        };
        let (Plan::Stay(group) | Plan::Move(group)) = &plan;
        let wanted = cgroup_limits::not_handed_on(group);
        if wanted.is_empty() {
            return Self::without(group.clone(), None);
        }
        let leaf = match &plan {
            Plan::Stay(_) => None,
            Plan::Move(group) => match move_to_leaf(group) {
                Ok(leaf) => Some(leaf),
                Err(why) => return Self::without(group.clone(), Some(why)),
            },
        };
        let (enabled, refused): (Vec<_>, Vec<_>) = wanted
            .into_iter()
            .map(|controller| {
                cgroup_limits::enable(group, &controller).map_err(|error| {
                    let file = group.join("cgroup.subtree_control");
                    let error = match error.raw_os_error() {
                        Some(libc::EBUSY) => "processes are in that group itself".to_owned(),
                        _ => error.to_string(),
                    };
                    format!("cannot write +{controller} to {}: {error}", file.display())
                })?;
                Ok(controller)
            })
            .partition(Result::is_ok);
        Self {
            group: group.clone(),
            refused: refused.into_iter().find_map(Result::<_, String>::err),
            moved: leaf.map(|leaf| (leaf, enabled.into_iter().flatten().collect())),
        }
    }

    /// A group whose controllers stay as they are.
    pub(super) fn without(group: PathBuf, refused: Option<String>) -> Self {
        Self {
            group,
            refused,
            moved: None,
        }
    }

    /// Reverts at the end what was done at the start, unless another process needs it: processes can be started in the
    /// group again.
    pub(super) fn release(&self) {
        let Some((leaf, controllers)) = &self.moved else {
            return;
        };
        let me = std::process::id().cast_signed();
        if !processes(leaf).is_ok_and(|pids| pids == [me]) {
            return;
        }
        for controller in controllers {
            // The kernel refuses while another keeper's runs have limits.
            let _ = cgroup_limits::disable(&self.group, controller);
        }
        if enter(&self.group, me).is_ok() {
            let _ = fs::remove_dir(leaf);
        }
    }
}

impl OwnGroup {
    fn of(own: PathBuf) -> Self {
        let parent = own.parent().map(Path::to_owned).unwrap_or_default();
        let is_top = |group: &Path| cgroup::mount_point().is_some_and(|top| top == group);
        // Every group but the root has `cgroup.type`.
        let is_root = |group: &Path| is_top(group) && !group.join("cgroup.type").exists();
        let is_delegated = |group: &Path| is_marked(group) || (is_top(group) && !is_root(group));
        Self {
            is_root: is_root(&own),
            is_delegated: is_delegated(&own),
            is_parent_delegated: !is_top(&own) && is_delegated(&parent),
            other_below: other_group(&own, None),
            other_beside: other_group(&parent, own.file_name().and_then(|name| name.to_str())),
            other_process: other_process(&own),
            is_first_process: std::process::id() == 1,
            has_systemd: Path::new("/run/systemd/system").exists(),
            own,
        }
    }
}

/// Decides which group is Kennel's to manage, and how. An error says why none is, and what to do.
fn decide(seen: &OwnGroup) -> Result<Plan, String> {
    let own = seen.own.display();
    let advice = "start Kennel in one that is delegated to it (Delegate=yes in its unit, or xattr user.delegate=1)";
    let managed = |other: &str| {
        format!("{other} is not Kennel's, so another manager uses its group; {advice}")
    };
    let parent = || seen.own.parent().map(Path::to_owned).unwrap_or_default();
    let is_leaf = seen.own.file_name().is_some_and(|name| name == LEAF);
    if seen.is_root {
        return match &seen.other_below {
            Some(other) if !seen.is_first_process => Err(managed(other)),
            _ => Ok(Plan::Stay(seen.own.clone())),
        };
    }
    if !seen.is_delegated && (is_leaf || seen.is_parent_delegated) {
        return match &seen.other_beside {
            Some(other) => Err(managed(other)),
            None => Ok(Plan::Stay(parent())),
        };
    }
    if let Some(other) = &seen.other_below {
        return Err(managed(other));
    }
    if seen.is_delegated {
        return Ok(Plan::Move(seen.own.clone()));
    }
    match &seen.other_process {
        Some(other) => Err(format!("{own} is shared with {other}; {advice}")),
        None if seen.has_systemd => Err(format!(
            "systemd manages {own} and has not delegated it; {advice}"
        )),
        None => Ok(Plan::Move(seen.own.clone())),
    }
}

fn is_marked(group: &Path) -> bool {
    let is_one = |mark| cgroup::attribute(group, mark).is_some_and(|value| value == b"1");
    MARKS.iter().any(|mark| is_one(mark))
}

/// Returns a group in this one that Kennel has not made; `own` is the keeper's.
fn other_group(group: &Path, own: Option<&str>) -> Option<String> {
    let below = cgroup::directories(group);
    below.iter().find_map(|dir| {
        let name = dir.file_name()?.to_str()?;
        let is_ours = name.starts_with(OURS) || name == SYSTEMD_CONTROL || Some(name) == own;
        (!is_ours).then(|| dir.display().to_string())
    })
}

/// Returns a process in this group that is neither this one nor a descendant of it. A descendant whose parent dies
/// stays one: this process is a subreaper.
fn other_process(group: &Path) -> Option<String> {
    let me = std::process::id().cast_signed();
    let pids = match processes(group) {
        Ok(pids) => pids,
        Err(error) => return Some(format!("processes that cannot be listed ({error})")),
    };
    let other = pids
        .into_iter()
        .find(|pid| !kennel_linux::peer::descends_from(*pid, &[me]))?;
    Some(format!("process {other} ({})", procfs::comm(other)))
}

/// Moves all processes of the group to the leaf in it.
fn move_to_leaf(group: &Path) -> Result<PathBuf, String> {
    let leaf = group.join(LEAF);
    let failed = |error: io::Error| {
        format!(
            "cannot move the processes of {} to {}: {error}",
            group.display(),
            leaf.display()
        )
    };
    match fs::create_dir(&leaf) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(failed(error)),
        _ => {}
    }
    for _ in 0..ROUNDS_MAX {
        let pids = processes(group).map_err(failed)?;
        if pids.is_empty() {
            return Ok(leaf);
        }
        for pid in pids {
            match enter(&leaf, pid) {
                // The process has exited.
                Err(error) if error.raw_os_error() == Some(libc::ESRCH) => {}
                entered => entered.map_err(failed)?,
            }
        }
    }
    Err(failed(io::Error::other("more and more of them appear")))
}

/// Lists the processes of the group itself. A process that this pid namespace does not show is 0.
fn processes(group: &Path) -> io::Result<Vec<i32>> {
    let text = fs::read_to_string(group.join("cgroup.procs"))?;
    Ok(text.lines().filter_map(|pid| pid.parse().ok()).collect())
}

fn enter(group: &Path, pid: i32) -> io::Result<()> {
    if pid == 0 {
        return Err(io::Error::other(
            "one of them is in a pid namespace that cannot be seen",
        ));
    }
    cgroup_limits::set(group, "cgroup.procs", &pid.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A group of a host without systemd, in which only this process is.
    fn alone() -> OwnGroup {
        OwnGroup {
            own: "/c/a/b".into(),
            is_root: false,
            is_delegated: false,
            is_parent_delegated: false,
            other_below: None,
            other_beside: None,
            other_process: None,
            is_first_process: false,
            has_systemd: false,
        }
    }

    fn stay(group: &str) -> Plan {
        Plan::Stay(group.into())
    }

    fn moves(group: &str) -> Plan {
        Plan::Move(group.into())
    }

    // promise: Q-9
    #[test]
    fn processes_of_a_delegated_group_are_moved() {
        assert_eq!(decide(&alone()), Ok(moves("/c/a/b")));
        let shared = OwnGroup {
            is_delegated: true,
            other_process: Some("process 7 (sh)".into()),
            has_systemd: true,
            ..alone()
        };
        assert_eq!(decide(&shared), Ok(moves("/c/a/b")));
    }

    // promise: Q-9
    #[test]
    fn subgroup_of_delegated_cgroup_is_used_as_leaf() {
        let beside = OwnGroup {
            is_parent_delegated: true,
            has_systemd: true,
            other_process: Some("process 7 (sh)".into()),
            ..alone()
        };
        assert_eq!(decide(&beside), Ok(stay("/c/a")));
        let again = OwnGroup {
            own: "/c/a/kennel-keeper".into(),
            ..alone()
        };
        assert_eq!(decide(&again), Ok(stay("/c/a")));
    }

    // promise: Q-9
    #[test]
    fn root_cgroup_is_used_unless_managed_by_another() {
        let root = OwnGroup {
            own: "/c".into(),
            is_root: true,
            ..alone()
        };
        assert_eq!(decide(&root), Ok(stay("/c")));
        let managed = OwnGroup {
            other_below: Some("/c/system.slice".into()),
            ..root
        };
        let why = decide(&managed).expect_err("it is not ours");
        assert!(why.starts_with("/c/system.slice is not Kennel's"), "{why}");
        let first = OwnGroup {
            is_first_process: true,
            ..managed
        };
        assert_eq!(decide(&first), Ok(stay("/c")));
    }

    // promise: Q-10
    #[test]
    fn undelegated_group_is_left_unchanged() {
        let session = OwnGroup {
            other_process: Some("process 7 (sshd)".into()),
            ..alone()
        };
        let unit = OwnGroup {
            has_systemd: true,
            ..alone()
        };
        let used = OwnGroup {
            is_delegated: true,
            other_below: Some("/c/a/b/other".into()),
            ..alone()
        };
        let beside = OwnGroup {
            is_parent_delegated: true,
            other_beside: Some("/c/a/app.slice".into()),
            ..alone()
        };
        for (seen, why) in [
            (session, "is shared with process 7 (sshd)"),
            (unit, "systemd manages /c/a/b"),
            (used, "/c/a/b/other is not Kennel's"),
            (beside, "/c/a/app.slice is not Kennel's"),
        ] {
            let refused = decide(&seen).expect_err("it is not ours");
            assert!(refused.contains(why), "{refused}");
            assert!(refused.contains("Delegate=yes"), "{refused}");
        }
    }
}
