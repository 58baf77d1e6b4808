//! Recovery's decision on each open row that a restart finds.
//!
//! Observation is three-valued: the same process, gone, or unknown. Unknown never leads to a signal.

use crate::names::{named, sparse};
use crate::{
    EndReason, Exit, Leftovers, Outcome, StopCertificate, StopStep, StreamsEnd, Stuck, Timestamp,
    TreeVerdict,
    verdict::{GroupEvidence, ShimEvidence, TreeEvidence},
};
use serde::{Deserialize, Serialize};

named! {
    /// Presence of the recorded process.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum ProcessPresence {
        /// The very same process is there.
        Same = "same",
        /// The process is verified to be gone.
        Gone = "gone",
        /// The presence cannot be determined.
        Unknown = "unknown",
    }
}

named! {
    /// The recorded host against this one.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Host {
        /// Same boot, same pid namespace: recorded numbers are valid.
        Same = "same",
        /// Another boot or pid namespace: recorded numbers are invalid.
        Other = "other",
    }
}

named! {
    /// State of the recorded control group.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum CgroupSeen {
        /// No group was recorded.
        None = "none",
        /// The very directory, with no process in it, or removed since.
        Empty = "empty",
        /// The very directory, with a process in it.
        Populated = "populated",
        /// It cannot be read, so its members are not known.
        Unknown = "unknown",
    }
}

/// Observation of a recorded run, in the order in which it counts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Observation {
    /// Boot and pid namespace.
    pub host: Host,
    /// Exit record that the shim wrote before it exited.
    pub exit_record: Option<ExitRecord>,
    /// Presence of the shim.
    pub shim: ProcessPresence,
    /// Presence of the leader.
    pub command: ProcessPresence,
    /// State of the control group.
    pub cgroup: CgroupSeen,
    /// Living processes that a pause had stopped and that were not continued since, recorded by their identity at that
    /// time: verified members of the run.
    pub held: Vec<i32>,
    /// Living processes that carry the run's marker or descend from its leader: a hint, never a proof.
    pub hints: Vec<i32>,
    /// Presence of the first process of its private pid namespace; absent: it has none, or it is not known.
    pub namespace: Option<ProcessPresence>,
    /// Whether an earlier start had begun to terminate the run, and has not recorded the result.
    pub end_begun: bool,
    /// The rounds of signals by which that start and this one have terminated living members, in order.
    pub steps: Vec<StopStep>,
    /// Verified members of the run, and its shim, that SIGKILL of this start has not ended.
    pub stuck: Stuck,
    /// Time of the observation.
    pub at: Timestamp,
}

impl Observation {
    /// Whether a verified member of the run, or its shim, is alive.
    pub fn has_survivors(&self) -> bool {
        self.shim == ProcessPresence::Same
            || self.command == ProcessPresence::Same
            || self.cgroup == CgroupSeen::Populated
            || !self.held.is_empty()
            || self.namespace == Some(ProcessPresence::Same)
            || !self.stuck.is_empty()
    }
}

sparse! {
    /// A shim's exit record.
    #[derive(Clone, Debug, Default, PartialEq, Eq)]
    pub struct ExitRecord {
        /// Exit of the leader, where the shim saw it.
        pub exit: Option<Exit>,
        /// Time of that exit, where the leader exited by itself: no stop was in progress, and no resource that the run
        /// has of its keeper was gone.
        pub by_itself: Option<Timestamp>,
        /// The shim's verdict on the tree, where it reached one that this version knows.
        #[serde(deserialize_with = "crate::known_or_default")]
        pub tree: Option<TreeVerdict>,
        /// Whether the command was never released.
        pub never_ran: bool,
        /// The first rounds of signals that the shim sent on its own, after its keeper had died.
        #[serde(deserialize_with = "crate::known")]
        pub steps: Vec<StopStep>,
        /// Time of the scan that the shim's verdict on the tree rests on.
        pub census: Option<Timestamp>,
        /// Whether the keeper had been asked to shut down, and ended the run without a server.
        pub shutdown: bool,
    }
}

/// Contents of the row, and actions of this start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Before {
    /// Whether a stop was accepted: then all remaining processes are to end.
    pub stop_wanted: bool,
    /// Whether this start has terminated living members of the run; then findings are judged as effects of that.
    pub terminated: bool,
}

/// Decision on the row.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(
    clippy::large_enum_variant,
    reason = "made a few times for each recovered run"
)]
pub enum Decision {
    /// The shim lives and is ending the run by the run's own plan: check again later.
    AwaitShim,
    /// A verified member of the run is alive: terminate it, then check again.
    Terminate,
    /// SIGKILL of this start has not ended a verified member: check and kill again later, for as long as that takes.
    Watch(Stuck),
    /// No process is left, or none can be identified: write this outcome.
    Close(Outcome),
}

/// Decides about one open row of this node whose keeper is gone.
pub fn decide(seen: &Observation, before: Before) -> Decision {
    let terminated = before.terminated;
    let record = seen.exit_record.as_ref();
    let exit = record.and_then(|r| r.exit).unwrap_or(Exit::Unknown);
    let never_ran = record.is_some_and(|r| r.never_ran);
    // The row of an accepted stop that the keeper has not begun does not name the requester.
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
    if seen.shim == ProcessPresence::Same && !terminated {
        return Decision::AwaitShim;
    }
    // INVARIANT: no run is closed while a verified member of it, or its shim, is alive.
    if seen.has_survivors() {
        return if terminated {
            Decision::Watch(seen.stuck.clone())
        } else {
            Decision::Terminate
        };
    }
    // An earlier accepted stop ended the run, not the shutdown that followed.
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

/// Lists the shim's own actions, then those of this start. Only the shim can have scanned on another boot.
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

/// Returns the processes that the shim was to detach, by its record.
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
        namespace_ended: seen.namespace == Some(ProcessPresence::Gone),
        hints: seen.hints.clone(),
        leader_unknown: seen.command == ProcessPresence::Unknown,
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

/// Closes a run whose shim reports that the gate was never opened: there was no exit and no output.
fn close_never_ran(reason: EndReason, certificate: StopCertificate) -> Decision {
    Decision::Close(Outcome {
        reason,
        exit: None,
        tree: TreeVerdict::NeverRan,
        streams: None,
        certificate,
    })
}
