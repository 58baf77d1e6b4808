//! The verdict on a tree: the one place that decides whether processes of a run are left, and by which proof. The
//! keeper, the shim and recovery call it with their own evidence (INV-5).

use crate::{Proof, TreeVerdict};

/// Evidence of a tree in which an observer finds no living member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TreeEvidence {
    /// Whether the gate was never opened.
    pub never_ran: bool,
    /// Whether the first process of the run's private pid namespace has exited: the kernel lets it exit as the last of
    /// all in it.
    pub namespace_ended: bool,
    /// Evidence of the shim.
    pub shim: ShimEvidence,
    /// Evidence of the control group.
    pub group: GroupEvidence,
    /// Living processes that carry the run's marker or descend from its leader: a hint, never a proof.
    pub hints: Vec<i32>,
    /// Whether the recorded leader cannot be distinguished from an unrelated process, so that nothing was signalled.
    pub leader_unknown: bool,
}

/// The shim's evidence of the tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ShimEvidence {
    /// The shim has no child left (wait(2): ECHILD).
    Childless {
        /// Living processes with the run's marker in another pid namespace, out of its sight.
        elsewhere: Vec<i32>,
    },
    /// The shim's exit record has this verdict.
    Recorded(TreeVerdict),
    /// The shim was lost without a verdict.
    Lost,
}

/// Evidence of a run's control group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GroupEvidence {
    /// The run has none, or the observer leaves it out.
    Absent,
    /// No process is in the group, or it is removed.
    Empty,
    /// Only these processes are in it, and none of them is of the run: it proves nothing.
    Unrelated(Vec<i32>),
    /// The group cannot be read, for this reason.
    Unreadable(String),
    /// The group is not known to be empty, and no member is seen after SIGKILL.
    NotEmptied,
}

impl TreeEvidence {
    /// Evidence of an observer that knows no more than these two.
    pub fn of(shim: ShimEvidence, group: GroupEvidence) -> Self {
        Self {
            never_ran: false,
            namespace_ended: false,
            shim,
            group,
            hints: Vec::new(),
            leader_unknown: false,
        }
    }

    /// Returns the verdict. INV-5: `Empty` comes from nowhere else.
    pub fn verdict(self) -> TreeVerdict {
        let private = TreeVerdict::Empty(Proof::PrivatePidns);
        if self.never_ran {
            return TreeVerdict::NeverRan;
        }
        // No later observation changes this verdict: no process leaves such a namespace.
        if self.namespace_ended || self.shim == ShimEvidence::Recorded(private.clone()) {
            return private;
        }
        match (self.shim, self.group) {
            (ShimEvidence::Childless { elsewhere }, group) => childless(&elsewhere, group),
            (ShimEvidence::Recorded(TreeVerdict::Empty(_)), GroupEvidence::Empty) => {
                TreeVerdict::Empty(Proof::CgroupAndEchild)
            }
            // The shim's scan of the control group counts like a later one; its other verdict excludes the group.
            (
                ShimEvidence::Recorded(
                    verdict @ (TreeVerdict::Empty(_) | TreeVerdict::Unverified(_)),
                ),
                GroupEvidence::Absent,
            )
            | (
                ShimEvidence::Recorded(
                    verdict @ (TreeVerdict::Empty(Proof::CgroupAndEchild)
                    | TreeVerdict::Unverified(_)),
                ),
                GroupEvidence::Unreadable(_),
            ) => verdict,
            (_, group) => without_shim(group, self.hints, self.leader_unknown),
        }
    }
}

/// Returns the verdict for a shim that has no child left.
fn childless(elsewhere: &[i32], group: GroupEvidence) -> TreeVerdict {
    match group {
        GroupEvidence::Empty => TreeVerdict::Empty(Proof::CgroupAndEchild),
        GroupEvidence::Unreadable(why) => TreeVerdict::Unverified(format!(
            "no process is left below the shim, and the control group cannot be read: {why}"
        )),
        GroupEvidence::NotEmptied => not_emptied(),
        // A marker is not proof: no process is signalled or called a survivor, but the tree is not called empty either.
        GroupEvidence::Absent | GroupEvidence::Unrelated(_) if !elsewhere.is_empty() => {
            TreeVerdict::Unverified(format!(
                "processes in another pid namespace bear this run's marker, out of the shim's sight: {elsewhere:?}"
            ))
        }
        GroupEvidence::Absent | GroupEvidence::Unrelated(_) => TreeVerdict::Empty(Proof::Echild),
    }
}

/// Returns the verdict where the shim's evidence does not count. An empty group does not show a process that left it as
/// root, so a hint is reason enough to doubt it.
fn without_shim(group: GroupEvidence, hints: Vec<i32>, leader_unknown: bool) -> TreeVerdict {
    match group {
        GroupEvidence::Empty if hints.is_empty() => TreeVerdict::Empty(Proof::Cgroup),
        GroupEvidence::Unrelated(pids) => TreeVerdict::Unverified(format!(
            "the shim was lost, and processes that are not of the run are in its control group: {pids:?}"
        )),
        _ if !hints.is_empty() => TreeVerdict::Survivors(hints),
        _ if leader_unknown => TreeVerdict::Unverified(
            "the recorded process cannot be distinguished from an unrelated one, so nothing was signalled"
                .into(),
        ),
        GroupEvidence::Unreadable(why) => TreeVerdict::Unverified(format!(
            "the control group cannot be read, so its members are not known: {why}"
        )),
        GroupEvidence::NotEmptied => not_emptied(),
        GroupEvidence::Absent | GroupEvidence::Empty => TreeVerdict::Unverified(
            "the shim was lost and there is no control group to look into".into(),
        ),
    }
}

fn not_emptied() -> TreeVerdict {
    TreeVerdict::Unverified(
        "SIGKILL was sent and no process of the run is to be seen, but the control group is not known to be empty"
            .into(),
    )
}
