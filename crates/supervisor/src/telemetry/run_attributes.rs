//! Attributes of runs, for spans and events.

use crate::{
    base::clock,
    telemetry::{metrics, names},
};
use kennel_lifecycle::{EndReason, Exit, Outcome, TreeVerdict};
use kennel_linux::start_time;
use kennel_store::NewRun;
use opentelemetry::KeyValue;

/// Returns the attributes of run, attempt and process.
pub(super) fn identity_attributes(new: &NewRun) -> Vec<KeyValue> {
    let mut attributes = vec![
        KeyValue::new(names::RUN_ID, new.run.to_string()),
        KeyValue::new(names::RUN_ATTEMPT, i64::from(new.attempt)),
    ];
    let name = new.spec.name.clone();
    attributes.extend(name.map(|name| KeyValue::new(names::RUN_NAME, name)));
    attributes.extend(containment(new));
    if let Some(identity) = &new.identity {
        let command = &identity.command;
        let begun = start_time(command.start_ticks);
        attributes.extend([
            KeyValue::new(names::PROCESS_PID, i64::from(command.pid)),
            KeyValue::new(names::PROCESS_GROUP_LEADER_PID, i64::from(command.pgid)),
            KeyValue::new(names::PROCESS_CREATION_TIME, clock::rfc3339(begun)),
        ]);
    }
    attributes
}

/// Returns the attributes of outcome, reason and tree.
pub(super) fn outcome_attributes(outcome: &Outcome) -> Vec<KeyValue> {
    let mut attributes = vec![
        KeyValue::new(names::RUN_OUTCOME, outcome.state().name()),
        KeyValue::new(names::RUN_END_REASON, outcome.reason.name()),
        KeyValue::new(names::TREE_VERDICT, outcome.tree.name()),
    ];
    attributes.extend(exit_attribute(outcome.exit.as_ref()));
    attributes
}

/// Returns the leader's exit code, or the signal that has ended it.
pub(super) fn exit_attribute(exit: Option<&Exit>) -> Option<KeyValue> {
    match exit? {
        Exit::Code(code) => Some(KeyValue::new(names::PROCESS_EXIT_CODE, i64::from(*code))),
        Exit::Signal { signal, .. } => Some(KeyValue::new(names::EXIT_SIGNAL, signal.to_string())),
        Exit::Unknown => None,
    }
}

pub(super) fn containment(new: &NewRun) -> Option<KeyValue> {
    let held = new.held.as_ref()?;
    Some(metrics::containment(held.by))
}

pub(super) fn is_proved(tree: &TreeVerdict) -> bool {
    matches!(
        tree,
        TreeVerdict::Empty(_) | TreeVerdict::NeverRan | TreeVerdict::Kept(_)
    )
}

/// Returns the class of an error, of which there are few. `None`: the run has ended as intended.
pub(super) fn error_type(outcome: &Outcome) -> Option<&'static str> {
    match &outcome.tree {
        TreeVerdict::Survivors(_) => return Some("unkillable"),
        TreeVerdict::Unverified(_) => return Some("unverified"),
        TreeVerdict::Empty(_) | TreeVerdict::NeverRan | TreeVerdict::Kept(_) => {}
    }
    match &outcome.reason {
        EndReason::Exited => match outcome.exit {
            Some(Exit::Code(0)) => None,
            Some(Exit::Code(_)) => Some("exit_nonzero"),
            Some(Exit::Signal { .. }) => Some("signal"),
            Some(Exit::Unknown) | None => Some("lost"),
        },
        EndReason::SuccessExit
        | EndReason::Aborted { .. }
        | EndReason::Fenced { .. }
        | EndReason::ServerShutdown
        | EndReason::ParentEnded
        | EndReason::Restarted { .. }
        | EndReason::Result { .. } => None,
        EndReason::StartFailed(_) => Some("spawn_failed"),
        EndReason::ServiceLost
        | EndReason::Rebooted
        | EndReason::OrphanTerminated
        | EndReason::NodeForgotten { .. } => Some("lost"),
        EndReason::DeadlineExceeded(_) => Some("timeout"),
        EndReason::LimitExceeded(_) => Some("limit"),
        EndReason::NotReady => Some("not_ready"),
        EndReason::NotLive { .. } => Some("not_live"),
        EndReason::Watchdog { .. } => Some("watchdog"),
        EndReason::OomKilled(_) => Some("oom"),
        EndReason::MemoryReserve(_) => Some("memory_reserve"),
        EndReason::ShimLost => Some("shim_lost"),
        EndReason::RestartsExhausted { .. } => Some("restarts_exhausted"),
    }
}
