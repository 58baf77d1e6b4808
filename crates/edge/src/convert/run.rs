//! Runs and their ends, in the contract's form.

use super::{certificate, containment, retention, rules, spec, terminal, time, usage};
use crate::{
    convert::certificate::{exit, tree_verdict},
    enums::{self, mapped},
    pb::{self, end_reason},
};
use kennel_lifecycle::{
    Containment, Deadline, EndReason, Limit, Outcome, ProcessIdentity, RunIdentity, RunState,
    StartFailure, StartStage, StopReason, StreamsEnd, Wait,
};
use kennel_supervisor::{Desired, Elsewhere, LeftStop, PastAttempt, RunView, Times};

pub(crate) fn run(view: RunView) -> pb::Run {
    let attempt = attempt(&view);
    let waits = view.state == RunState::Backoff;
    let before = view.past.len() - usize::from(waits && !view.past.is_empty());
    let previous = view.past[..before].iter().map(past_attempt).collect();
    let tree_verdict = verdict(&view);
    let time_limits = time_limits(&view);
    let held_by = held_by(&view);
    let wait = view.waits_for().map_or(pb::Wait::Unspecified, wait);
    let ready = view.facets.ready.clone();
    let ready = ready.as_ref().filter(|ready| ready.attempt == view.attempt);
    let doing = view.facets.activity_of(view.attempt);
    let reported = view.facets.status_of(view.attempt).cloned();
    let reported = reported.as_ref();
    let switched_off_rules = rules::switched_off(&view.facets);
    let questions = rules::questions(&view.facets, view.attempt);
    let row = *view.row;
    let new = row.new;
    pb::Run {
        run_id: new.run.to_string(),
        owner: new.owner,
        node_id: new.node.to_string(),
        spec: spec::shown(&new.spec),
        kind: enums::kind(new.spec.policy.kind).into(),
        labels: new.spec.labels.clone(),
        state: state(view.state).into(),
        desired: desired(row.desired).into(),
        containment: held_by.into(),
        current_attempt: Some(attempt),
        end_reason: row.outcome.as_ref().map(|o| end_reason(&o.reason)),
        tree_verdict,
        grace: Some(time::duration(new.spec.policy.grace())),
        // A stop deadline applies only while the run is stopping.
        stop_deadline_time: row
            .stop_deadline
            .filter(|_| view.state == RunState::Stopping)
            .map(time::timestamp),
        create_time: Some(time::timestamp(new.created)),
        end_time: row.times.ended.map(time::timestamp),
        coverage: new.held.as_ref().map(containment::coverage),
        trace_parent: new.traceparent.unwrap_or_default(),
        restarted_from: new
            .restarted_from
            .map_or_else(String::new, |run| run.to_string()),
        deadline_time: view
            .limit_ends
            .get(&Deadline::MaxRuntime)
            .copied()
            .map(time::timestamp),
        pause_expires_at: view.pause_expires.map(time::timestamp),
        next_restart_time: row.next_restart.and_then(time::next_restart),
        consecutive_restarts: row.restarts,
        previous_attempts: previous,
        output_removed: row.output_removed.map(retention::removal),
        terminal_size: view.terminal.map(terminal::size),
        run_trace_parent: String::new(),
        other_node: view.elsewhere.map(node),
        left_stop: view.left_stop.map(left_stop),
        pinned: view.pinned.map(|pinned| pb::PinnedRun {
            by: pinned.by,
            since: Some(time::timestamp(pinned.since)),
        }),
        ready_time: ready.map(|ready| time::timestamp(ready.at)),
        ready_by: ready.map_or_else(String::new, |ready| ready.by.clone()),
        activity: doing
            .map_or(pb::Activity::Unspecified, rules::activity)
            .into(),
        status: reported.map_or_else(String::new, |status| status.text.clone()),
        is_ending_itself: reported.is_some_and(|status| status.stopping),
        annotations: row.facets.annotations.pairs,
        annotations_version: row.facets.annotations.version,
        wait: wait.into(),
        time_limits,
        switched_off_rules,
        questions,
    }
}

/// Limits of the present attempt that can be extended: those that count, and those that were extended.
fn time_limits(view: &RunView) -> Vec<pb::TimeLimit> {
    let policy = &view.spec.policy;
    let is_ready = view.facets.is_ready(view.attempt);
    let shown = Deadline::ALL.iter().copied().filter_map(|limit| {
        policy.extendable(limit)?;
        let extended = view.facets.extensions.of(view.attempt, limit).total;
        let is_over = view.outcome.is_some() || limit == Deadline::StartTimeout && is_ready;
        (!is_over || !extended.is_zero()).then(|| pb::TimeLimit {
            limit: deadline(limit).into(),
            end_time: view.limit_ends.get(&limit).copied().map(time::timestamp),
            extended: (!extended.is_zero()).then(|| time::duration(extended)),
        })
    });
    shown.collect()
}

mapped! { pub(crate) fn wait(Wait) -> Wait, fn wait_of { Input Ready Attempt Restart } }

/// Converts a stop that is left for another node.
fn left_stop(stop: LeftStop) -> pb::LeftStop {
    pb::LeftStop {
        by: match stop.order.reason {
            StopReason::Abort { by, .. } => by,
            _ => String::new(),
        },
        grace: Some(time::duration(stop.order.grace)),
        leave_time: Some(time::timestamp(stop.asked)),
    }
}

/// Converts a node of the database.
pub(crate) fn node(elsewhere: Elsewhere) -> pb::Node {
    let reachability = match elsewhere.forgotten {
        _ if elsewhere.is_reachable && elsewhere.has_run => pb::NodeReachability::Reachable,
        Some(_) if !elsewhere.is_reachable => pb::NodeReachability::Forgotten,
        _ => pb::NodeReachability::Unreachable,
    };
    pb::Node {
        node_id: elsewhere.node.to_string(),
        unreachable_since: elsewhere.unreachable_since.map(time::timestamp),
        node_name: elsewhere.name,
        address: elsewhere.address,
        reachability: reachability.into(),
        last_heard_time: elsewhere.last_heard.map(time::timestamp),
        drain_time: elsewhere.draining.map(time::timestamp),
    }
}

/// Converts what is known of every attempt: its leader, its milestones, and how it ended.
fn attempt_of(
    number: u32,
    leader: Option<ProcessIdentity>,
    outcome: Option<&Outcome>,
    times: &Times,
) -> pb::Attempt {
    let streams_end = outcome.and_then(|o| o.streams);
    pb::Attempt {
        number,
        pid: leader.map_or(0, |leader| leader.pid),
        process_group_id: leader.map_or(0, |leader| leader.pgid),
        session_id: leader.map_or(0, |leader| leader.sid),
        identity: None,
        shim_pid: 0,
        exit: outcome.and_then(|o| o.exit).map(exit),
        start_time: times.started.map(time::timestamp),
        leader_exited_time: times.leader_exited.map(time::timestamp),
        streams_closed_time: times.streams_closed.map(time::timestamp),
        tree_empty_time: times.tree_empty.map(time::timestamp),
        streams_end: streams_end
            .map_or(pb::StreamsEnd::Unspecified, streams)
            .into(),
        certificate: None,
        end_reason: outcome.map(|o| end_reason(&o.reason)),
        tree_verdict: outcome.map(|o| tree_verdict(&o.tree)),
        end_time: times.ended.map(time::timestamp),
        usage: outcome.and_then(usage::counted),
    }
}

/// Converts an attempt before the present one.
fn past_attempt(past: &PastAttempt) -> pb::Attempt {
    attempt_of(past.number, past.leader, Some(&past.outcome), &past.times)
}

fn verdict(view: &RunView) -> Option<pb::TreeVerdict> {
    let ended = view.outcome.as_ref().map(|o| tree_verdict(&o.tree));
    ended.or_else(|| view.stuck.as_ref().map(certificate::stuck))
}

fn attempt(view: &RunView) -> pb::Attempt {
    let made = view.identity.as_ref();
    let waits = view.state == RunState::Backoff;
    let last = view.past.last().filter(|_| waits);
    let outcome = view.outcome.as_ref().or(last.map(|last| &last.outcome));
    let ended = view.times.ended.or(last.and_then(|last| last.times.ended));
    pb::Attempt {
        identity: made.map(identity),
        shim_pid: made.map_or(0, |i| i.shim.pid),
        exit: view.exit.or_else(|| outcome.and_then(|o| o.exit)).map(exit),
        certificate: outcome.map(|o| certificate::certificate(o, held_by(view))),
        end_time: ended.filter(|_| outcome.is_some()).map(time::timestamp),
        ..attempt_of(view.attempt, made.map(|i| i.command), outcome, &view.times)
    }
}

fn identity(identity: &RunIdentity) -> pb::ProcessIdentity {
    pb::ProcessIdentity {
        start_ticks: identity.command.start_ticks,
        pidfs_handle: identity.command.pidfs_handle,
        boot_id: identity.host.boot_id.clone(),
        pid_namespace_inode: identity.host.pidns_inode,
        pid_namespace_init_start_ticks: identity.host.init_start_ticks,
        cgroup_path: identity.cgroup.as_ref().map(|c| c.path.clone()),
        cgroup_inode: identity.cgroup.as_ref().map(|c| c.inode),
    }
}

/// Returns the containment; a row without one has that of its identity.
fn held_by(view: &RunView) -> pb::Containment {
    let Some(identity) = &view.identity else {
        return pb::Containment::Unspecified;
    };
    let shown = match identity.cgroup {
        Some(_) => Containment::Cgroup,
        None => Containment::Subreaper,
    };
    enums::containment(view.held.as_ref().map_or(shown, |held| held.by))
}

mapped! {
    pub(crate) fn state(RunState) -> RunState, fn state_of
    { Starting Running Paused Stopping Backoff Succeeded Failed Cancelled Lost }
}

mapped! { fn desired(Desired) -> DesiredState { Run Stop } }

mapped! { pub(crate) fn streams(StreamsEnd) -> StreamsEnd { Eof Cut Lost } }

fn end_reason(reason: &EndReason) -> pb::EndReason {
    use end_reason::Reason;
    let reason = match reason {
        EndReason::Exited => Reason::Exited(end_reason::Exited {}),
        EndReason::SuccessExit => Reason::SuccessExit(end_reason::SuccessExit {}),
        EndReason::Aborted { by, request_id } => Reason::Aborted(end_reason::Aborted {
            by: by.clone(),
            request_id: request_id.clone().unwrap_or_default(),
        }),
        EndReason::StartFailed(failure) => Reason::StartFailed(start_failed(failure)),
        EndReason::Fenced { by } => Reason::Fenced(end_reason::Fenced { by: by.clone() }),
        EndReason::ParentEnded => Reason::ParentEnded(end_reason::ParentEnded {}),
        EndReason::ServerShutdown => Reason::ServerShutdown(end_reason::ServerShutdown {}),
        EndReason::ServiceLost => Reason::ServiceLost(end_reason::ServiceLost {}),
        EndReason::Rebooted => Reason::Rebooted(end_reason::Rebooted {}),
        EndReason::OrphanTerminated => Reason::OrphanTerminated(end_reason::OrphanTerminated {}),
        EndReason::NodeForgotten { by } => {
            Reason::NodeForgotten(end_reason::NodeForgotten { by: by.clone() })
        }
        EndReason::ShimLost => Reason::ShimLost(end_reason::ShimLost {}),
        EndReason::DeadlineExceeded(which) => {
            Reason::DeadlineExceeded(end_reason::DeadlineExceeded {
                which: deadline(*which).into(),
            })
        }
        EndReason::Restarted { by, request_id } => Reason::Restarted(end_reason::Restarted {
            by: by.clone(),
            request_id: request_id.clone().unwrap_or_default(),
        }),
        EndReason::RestartsExhausted { restarts } => {
            Reason::RestartsExhausted(end_reason::RestartsExhausted {
                restarts: *restarts,
            })
        }
        EndReason::LimitExceeded(which) => Reason::LimitExceeded(end_reason::LimitExceeded {
            limit: limit(*which).into(),
        }),
        EndReason::NotReady => Reason::NotReady(end_reason::NotReady {}),
        EndReason::NotLive { failures, error } => Reason::NotLive(end_reason::NotLive {
            failures: *failures,
            error: error.clone(),
        }),
        EndReason::Watchdog { triggered } => Reason::Watchdog(end_reason::Watchdog {
            triggered: *triggered,
        }),
        EndReason::Result { rule } => Reason::Result(end_reason::Result { rule: rule.clone() }),
        EndReason::MemoryReserve(short) => Reason::MemoryReserve(end_reason::MemoryReserve {
            limit_bytes: short.limit,
            used_bytes: short.used,
            reserve_bytes: short.reserve,
        }),
        EndReason::OomKilled(killed) => Reason::OomKilled(end_reason::OomKilled {
            kills: killed.kills,
            memory_max_bytes: killed.memory_max,
        }),
    };
    pb::EndReason {
        reason: Some(reason),
    }
}

mapped! { pub(super) fn deadline(Deadline) -> Deadline { MaxRuntime MaxPause Inactivity StartTimeout } }

mapped! { fn limit(Limit) -> Limit { OutputBytes Disk } }

mapped! {
    fn stage(StartStage) -> StartStage
    { Prepare Cgroup Fork Session Stdio WorkDir Limits Record Gate Exec Namespace Privileges Secret }
}

fn start_failed(failure: &StartFailure) -> end_reason::StartFailed {
    end_reason::StartFailed {
        stage: stage(failure.stage).into(),
        error_number: failure.errno,
        path: failure.path.clone(),
    }
}

#[cfg(test)]
pub(crate) mod tests;
