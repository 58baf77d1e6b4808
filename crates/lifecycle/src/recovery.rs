//! What a restart does with a row it finds.
//!
//! Observation is three-valued: the same process, gone, or unknown. Unknown never leads to a signal.

use crate::names::named;
use crate::{
    EndReason, Exit, Leftovers, Outcome, StopCertificate, StopStep, StreamsEnd, Stuck, Timestamp,
    TreeVerdict,
    verdict::{GroupEvidence, ShimEvidence, TreeEvidence},
};
use serde::{Deserialize, Serialize};

named! {
    /// Whether the process that was recorded is there.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Seen {
        /// The very same one.
        Same = "same",
        /// Certainly not there any more.
        Gone = "gone",
        /// It cannot be determined.
        Unknown = "unknown",
    }
}

named! {
    /// The recorded host against this one.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Host {
        /// Same boot, same pid namespace: recorded numbers mean what they say.
        Same = "same",
        /// Another boot or pid namespace: recorded numbers mean nothing here.
        Other = "other",
    }
}

named! {
    /// The recorded control group.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum CgroupSeen {
        /// None was recorded.
        None = "none",
        /// The very directory, with no process in it, or removed since.
        Empty = "empty",
        /// The very directory, with a process in it.
        Populated = "populated",
        /// It cannot be read, so its members are not known.
        Unknown = "unknown",
    }
}

/// All that can be seen of a recorded run, in the order in which it counts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Observation {
    /// Boot and pid namespace.
    pub host: Host,
    /// What the shim wrote before it went.
    pub exit_record: Option<ExitRecord>,
    /// The shim.
    pub shim: Seen,
    /// The leader.
    pub command: Seen,
    /// The control group.
    pub cgroup: CgroupSeen,
    /// Living processes that a pause had stopped and nobody has let go since, named by their identity when that was
    /// done: certainly of the run.
    pub held: Vec<i32>,
    /// Living processes that carry the run's marker or descend from its leader: a hint, never a proof.
    pub hints: Vec<i32>,
    /// The first process of its private pid namespace; absent: it has none, or it is not known.
    pub namespace: Option<Seen>,
    /// An earlier start had begun to end it, and has not come to say so.
    pub end_begun: bool,
    /// The rounds of signals by which that start and this one have ended living members, in order.
    pub steps: Vec<StopStep>,
    /// Certain members of the run, and its shim, that SIGKILL of this start has not ended.
    pub stuck: Stuck,
    /// When this was seen.
    pub at: Timestamp,
}

impl Observation {
    /// Whether somebody is there who is certainly of the run, or its shim.
    #[must_use]
    pub fn somebody_is_left(&self) -> bool {
        self.shim == Seen::Same
            || self.command == Seen::Same
            || self.cgroup == CgroupSeen::Populated
            || !self.held.is_empty()
            || self.namespace == Some(Seen::Same)
            || !self.stuck.is_empty()
    }
}

/// A shim's last will.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExitRecord {
    /// The leader's end, where the shim saw it.
    pub exit: Option<Exit>,
    /// When that was, where the leader ended by itself: no stop was on its way, and nothing of what the run has of its
    /// keeper was gone.
    pub by_itself: Option<Timestamp>,
    /// The shim's word on the tree, where it got that far.
    pub tree: Option<TreeVerdict>,
    /// The command was never let go.
    pub never_ran: bool,
    /// The first rounds of signals that the shim sent on its own, after its keeper had died.
    pub steps: Vec<StopStep>,
    /// When the shim took the look that its word on the tree rests on.
    pub census: Option<Timestamp>,
    /// The keeper had been asked to end, and ended the run without a server.
    pub shutdown: bool,
}

/// What the row says, and what this start has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Before {
    /// A stop was accepted: whatever is left is to end.
    pub stop_wanted: bool,
    /// This start has ended living members of the run; what is found is judged as our own doing.
    pub terminated: bool,
}

/// What to do with the row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// The shim lives and is ending the run by the run's own plan: look again later.
    AwaitShim,
    /// Somebody of the run is alive, and is certainly of the run: end it, then look again.
    Terminate,
    /// SIGKILL of this start has not ended somebody who is certainly of the run: look and kill again later, for as long as
    /// that takes.
    Watch(Stuck),
    /// Nobody is left, or nobody can be named: write this.
    Close(Outcome),
}

/// Decides about one open row of this node whose keeper is gone.
#[must_use]
pub fn decide(seen: &Observation, before: Before) -> Decision {
    let terminated = before.terminated;
    let record = seen.exit_record.as_ref();
    let exit = record.and_then(|r| r.exit).unwrap_or(Exit::Unknown);
    let never_ran = record.is_some_and(|r| r.never_ran);
    // A stop that was accepted and that the keeper has not begun with: the row does not say by whom.
    let by_itself = !before.stop_wanted && record.is_some_and(|r| r.by_itself.is_some());
    let because = |reason| {
        if by_itself { EndReason::Exited } else { reason }
    };
    if seen.host == Host::Other {
        if never_ran {
            return close_never_ran(EndReason::Rebooted, certificate(seen));
        }
        let why = "another boot or pid namespace: there is nothing to look at";
        let tree = TreeVerdict::Unverified(why.into());
        return close(because(EndReason::Rebooted), exit, tree, certificate(seen));
    }
    if let (
        Some(left),
        Before {
            stop_wanted: false,
            terminated: false,
        },
    ) = (kept(record), before)
        && seen.held.is_empty()
    {
        let tree = TreeVerdict::Kept(left);
        return close(
            because(EndReason::ServiceLost),
            exit,
            tree,
            certificate(seen),
        );
    }
    if seen.shim == Seen::Same && !terminated {
        return Decision::AwaitShim;
    }
    // INVARIANT: no run is called ended while somebody lives who is certainly of it, or its shim.
    if seen.somebody_is_left() {
        return if terminated {
            Decision::Watch(seen.stuck.clone())
        } else {
            Decision::Terminate
        };
    }
    // A stop that was accepted before has ended the run, not the shutdown that came while it did.
    let by_shutdown = record.is_some_and(|r| r.shutdown) && !before.stop_wanted;
    let reason = if by_shutdown && !terminated {
        EndReason::ServerShutdown
    } else if terminated || seen.end_begun {
        EndReason::OrphanTerminated
    } else {
        EndReason::ServiceLost
    };
    if never_ran {
        return close_never_ran(reason, certificate(seen));
    }
    close(because(reason), exit, tree_verdict(seen), certificate(seen))
}

/// What the shim did on its own, then what this start did. Only the shim can have looked on another boot.
fn certificate(seen: &Observation) -> StopCertificate {
    let record = seen.exit_record.as_ref();
    let mut certificate = StopCertificate {
        census: match seen.host {
            Host::Same => Some(seen.at),
            Host::Other => record.and_then(|r| r.census),
        },
        ..StopCertificate::default()
    };
    let willed = record.map_or(&[][..], |r| &r.steps);
    for step in willed.iter().chain(&seen.steps) {
        certificate.add(*step);
    }
    certificate
}

/// Whom the shim was to leave alone, by its word.
fn kept(record: Option<&ExitRecord>) -> Option<Leftovers> {
    match record?.tree.as_ref()? {
        TreeVerdict::Kept(left) => Some(left.clone()),
        _ => None,
    }
}

fn tree_verdict(seen: &Observation) -> TreeVerdict {
    let recorded = seen.exit_record.as_ref().and_then(|r| r.tree.clone());
    let group = match seen.cgroup {
        CgroupSeen::None => GroupEvidence::Absent,
        CgroupSeen::Empty => GroupEvidence::Empty,
        CgroupSeen::Unknown => GroupEvidence::Unreadable("it was not to be read".into()),
        CgroupSeen::Populated => GroupEvidence::NotEmptied,
    };
    TreeEvidence {
        namespace_ended: seen.namespace == Some(Seen::Gone),
        hints: seen.hints.clone(),
        leader_unknown: seen.command == Seen::Unknown,
        ..TreeEvidence::of(
            recorded.map_or(ShimEvidence::Lost, ShimEvidence::Recorded),
            group,
        )
    }
    .verdict()
}

fn close(
    reason: EndReason,
    exit: Exit,
    tree: TreeVerdict,
    certificate: StopCertificate,
) -> Decision {
    Decision::Close(Outcome {
        reason,
        exit: Some(exit),
        tree,
        streams: Some(StreamsEnd::Lost),
        certificate,
    })
}

/// The shim's word that the gate was never opened: there was no exit and no output.
fn close_never_ran(reason: EndReason, certificate: StopCertificate) -> Decision {
    Decision::Close(Outcome {
        reason,
        exit: None,
        tree: TreeVerdict::NeverRan,
        streams: None,
        certificate,
    })
}
