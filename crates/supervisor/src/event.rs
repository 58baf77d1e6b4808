//! From the machine's announcements to the lines of a journal, and back from a journal to events.

use crate::{CallError, Event, LifecycleEvent, Payload, SignalWent};
use kennel_journal::{Item, Kind};
use kennel_lifecycle::{
    Announcement, Deadline, EndReason, Exit, Limit, MemoryKills, Proof, ResumeReason, RunId,
    RunIdentity, RunState, SignalScope, SignalSender, StopReason, StopStep, StreamsEnd, Stuck,
    Timestamp, TreeVerdict,
};

/// The line for an announcement; `identity` is the attempt's, where it has one, and its output begins at `outputs`.
pub(crate) fn line(
    announcement: &Announcement,
    identity: Option<&RunIdentity>,
    outputs: [u64; 2],
) -> LifecycleEvent {
    match announcement {
        Announcement::Recorded => LifecycleEvent::Recorded {
            pid: identity.map_or(0, |i| i.command.pid),
            pgid: identity.map_or(0, |i| i.command.pgid),
            stdout_offset: outputs[0],
            stderr_offset: outputs[1],
        },
        Announcement::Started => LifecycleEvent::Started,
        Announcement::Paused => LifecycleEvent::Paused,
        Announcement::Resumed(why) => LifecycleEvent::Resumed {
            reason: match why {
                ResumeReason::Asked => "resume".into(),
                ResumeReason::MaxPause => "max_pause".into(),
            },
        },
        Announcement::Stopping { order, deadline } => {
            let (by, request_id) = match &order.reason {
                StopReason::Abort { by, request_id } | StopReason::Restart { by, request_id } => {
                    (Some(by.clone()), request_id.clone())
                }
                StopReason::ServerShutdown
                | StopReason::DeadlineExceeded(_)
                | StopReason::LimitExceeded(_)
                | StopReason::Orphaned
                | StopReason::ShimLost => (None, None),
            };
            LifecycleEvent::Stopping {
                reason: stop_reason_word(&order.reason).into(),
                by,
                request_id,
                grace_us: u64::try_from(order.grace.as_micros()).unwrap_or(u64::MAX),
                deadline_us: deadline.0,
            }
        }
        Announcement::LeaderExited(exit) => leader_exited(*exit),
        Announcement::StreamsClosed(how) => streams_closed(*how),
        Announcement::Stuck(stuck) => stuck_line(stuck),
        Announcement::TreeEnded(tree) => tree_empty(tree),
        Announcement::MemoryKills(kills) => memory_kills(kills),
        Announcement::Ended(outcome) => ended(outcome.state(), &outcome.reason),
    }
}

/// Whom SIGKILL does not end.
pub(crate) fn stuck_line(stuck: &Stuck) -> LifecycleEvent {
    let processes = stuck.processes.iter();
    LifecycleEvent::Stuck {
        processes: processes
            .map(|p| (p.pid, p.start_ticks, p.state, p.why.clone()))
            .collect(),
        unlisted: stuck.unlisted,
    }
}

/// A round of the stop ladder.
pub(crate) fn stop_step(step: &StopStep) -> LifecycleEvent {
    let scope = scope_word(step.scope);
    let sender = match step.sender {
        SignalSender::Keeper => "keeper",
        SignalSender::Shim => "shim",
    };
    LifecycleEvent::SignalSent {
        signal: step.signal.to_string(),
        targets: Some(step.targets()),
        errno: step.errno,
        went: Some(SignalWent {
            scope: scope.into(),
            sender: sender.into(),
            delivered: step.delivered,
            gone: step.gone,
            refused: step.refused,
        }),
    }
}

/// By which address a signal went out.
pub(crate) fn scope_word(scope: SignalScope) -> &'static str {
    match scope {
        SignalScope::Tree => "tree",
        SignalScope::ControlGroup => "cgroup_kill",
        SignalScope::ShimChildren => "shim_children",
        SignalScope::PidNamespace => "pid_namespace",
    }
}

/// First end.
pub(crate) fn leader_exited(exit: Exit) -> LifecycleEvent {
    let (code, signal, core_dumped) = match exit {
        Exit::Code(code) => (Some(code), None, false),
        Exit::Signal {
            signal,
            core_dumped,
        } => (None, Some(signal.number()), core_dumped),
        Exit::Unknown => (None, None, false),
    };
    LifecycleEvent::LeaderExited {
        code,
        signal,
        core_dumped,
    }
}

/// Second end.
pub(crate) fn streams_closed(how: StreamsEnd) -> LifecycleEvent {
    LifecycleEvent::StreamsClosed {
        how: streams_end_word(how).into(),
    }
}

/// How they have ended.
pub(crate) fn streams_end_word(how: StreamsEnd) -> &'static str {
    match how {
        StreamsEnd::Eof => "eof",
        StreamsEnd::Cut => "cut",
        StreamsEnd::Lost => "lost",
    }
}

/// Third end.
pub(crate) fn tree_empty(tree: &TreeVerdict) -> LifecycleEvent {
    let mut kept = None;
    let (detail, survivors) = match tree {
        TreeVerdict::Empty(proof) => (proof_word(*proof).to_owned(), Vec::new()),
        TreeVerdict::Survivors(pids) => (String::new(), pids.clone()),
        TreeVerdict::Unverified(why) => (why.clone(), Vec::new()),
        TreeVerdict::NeverRan => (String::new(), Vec::new()),
        TreeVerdict::Kept(left) => {
            kept = Some(left.into());
            (String::new(), Vec::new())
        }
    };
    LifecycleEvent::TreeEmpty {
        verdict: verdict_word(tree).into(),
        detail,
        survivors,
        kept,
    }
}

pub(crate) fn verdict_word(tree: &TreeVerdict) -> &'static str {
    match tree {
        TreeVerdict::Empty(_) => "empty",
        TreeVerdict::Survivors(_) => "survivors",
        TreeVerdict::Unverified(_) => "unverified",
        TreeVerdict::NeverRan => "never_ran",
        TreeVerdict::Kept(_) => "kept",
    }
}

/// How a line about kills for want of memory begins.
pub(crate) const KERNEL_KILLED: &str = "the kernel killed ";
/// How every warning of a process begins that is in the control group of a run and not of the run.
pub(crate) const SPARED: &str = "not of this run, and spared: process ";

/// The warning of such a process.
pub(crate) fn spared(pid: i32, start_ticks: u64) -> String {
    format!(
        "{SPARED}{pid} (started {start_ticks} ticks after boot), which is in its control group; the group proves nothing while it is there"
    )
}

fn memory_kills(killed: &MemoryKills) -> LifecycleEvent {
    let whom = match killed.kills {
        1 => "a process of this run".to_owned(),
        more => format!("{more} processes of this run"),
    };
    let limit = killed.memory_max.map(|bytes| format!(" of {bytes} bytes"));
    let limit = limit.map_or_else(String::new, |limit| {
        format!("; the run has a memory limit{limit}")
    });
    LifecycleEvent::Warning {
        message: format!("{KERNEL_KILLED}{whom} for want of memory{limit}"),
    }
}

/// The last line.
pub(crate) fn ended(state: RunState, reason: &EndReason) -> LifecycleEvent {
    LifecycleEvent::Ended {
        state: state_word(state).into(),
        reason: reason_word(reason).into(),
    }
}

/// How a run has ended; one that has not is `open`.
pub(crate) fn state_word(state: RunState) -> &'static str {
    match state {
        RunState::Succeeded => "succeeded",
        RunState::Failed => "failed",
        RunState::Cancelled => "cancelled",
        RunState::Lost => "lost",
        RunState::Starting
        | RunState::Running
        | RunState::Paused
        | RunState::Stopping
        | RunState::Backoff => "open",
    }
}

/// The line that ends an attempt which another follows.
pub(crate) fn attempt_ended(reason: &EndReason, restarts: u32, next: Timestamp) -> LifecycleEvent {
    LifecycleEvent::AttemptEnded {
        reason: reason_word(reason).into(),
        restarts,
        next_us: next.0,
    }
}

pub(crate) fn reason_word(reason: &EndReason) -> &'static str {
    match reason {
        EndReason::Exited => "exited",
        EndReason::Aborted { .. } => "aborted",
        EndReason::StartFailed(_) => "start_failed",
        EndReason::Fenced { .. } => "fenced",
        EndReason::ServerShutdown => "server_shutdown",
        EndReason::ServiceLost => "service_lost",
        EndReason::Rebooted => "rebooted",
        EndReason::OrphanTerminated => "orphan_terminated",
        EndReason::ShimLost => "shim_lost",
        EndReason::DeadlineExceeded(_) => "deadline_exceeded",
        EndReason::LimitExceeded(_) => "limit_exceeded",
        EndReason::OomKilled(_) => "oom_killed",
        EndReason::Restarted { .. } => "restarted",
        EndReason::RestartsExhausted { .. } => "restarts_exhausted",
    }
}

/// Why it is stopped.
pub(crate) fn stop_reason_word(reason: &StopReason) -> &'static str {
    match reason {
        StopReason::Abort { .. } => "abort",
        StopReason::Restart { .. } => "restart",
        StopReason::ServerShutdown => "server_shutdown",
        StopReason::DeadlineExceeded(which) => deadline_word(*which),
        StopReason::LimitExceeded(limit) => limit_word(*limit),
        StopReason::Orphaned => "orphaned",
        StopReason::ShimLost => "shim_lost",
    }
}

fn deadline_word(which: Deadline) -> &'static str {
    match which {
        Deadline::MaxRuntime => "max_runtime",
        Deadline::MaxPause => "max_pause",
    }
}

pub(crate) fn limit_word(limit: Limit) -> &'static str {
    match limit {
        Limit::OutputBytes => "output_bytes",
        Limit::Disk => "disk",
    }
}

fn proof_word(proof: Proof) -> &'static str {
    match proof {
        Proof::CgroupAndEchild => "cgroup_and_echild",
        Proof::Echild => "echild",
        Proof::Cgroup => "cgroup",
        Proof::PrivatePidns => "private_pidns",
    }
}

/// The journal's form of a line.
pub(crate) fn encode(line: &LifecycleEvent) -> Vec<u8> {
    // Numbers and strings only: there is nothing in it that JSON could refuse.
    serde_json::to_vec(line).unwrap_or_default()
}

/// An event from what a journal gives.
pub(crate) fn decode(run: RunId, item: Item) -> Result<Event, CallError> {
    let entry = match item {
        Item::Entry(entry) => entry,
        Item::Gap(gap) => {
            return Ok(Event {
                seq: gap.last_seq,
                attempt: gap.attempt,
                at: gap.at,
                payload: Payload::Gap(gap),
            });
        }
    };
    let payload = match entry.kind {
        Kind::Lifecycle => {
            Payload::Lifecycle(serde_json::from_slice(&entry.data).map_err(|e| {
                CallError::JournalUnreadable {
                    run,
                    why: format!("entry {}: {e}", entry.seq),
                }
            })?)
        }
        Kind::Stdout => Payload::Output {
            stream: 1,
            offset: entry.offset,
            data: entry.data,
        },
        Kind::Stderr => Payload::Output {
            stream: 2,
            offset: entry.offset,
            data: entry.data,
        },
    };
    Ok(Event {
        seq: entry.seq,
        attempt: entry.attempt,
        at: entry.at,
        payload,
    })
}
