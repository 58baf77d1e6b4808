//! The names of all attributes, spans and metrics that Kennel emits, in one place.
//!
//! Those that the semantic conventions of OpenTelemetry know are theirs, of the version of [`SCHEMA_URL`]; all others begin with
//! `kennel.`. Metrics follow the rules for names: no unit and no `_total` in a name.

pub use opentelemetry_semantic_conventions::{
    SCHEMA_URL,
    attribute::{
        ERROR_TYPE, NETWORK_PEER_ADDRESS, PROCESS_CREATION_TIME, PROCESS_EXECUTABLE_NAME,
        PROCESS_EXIT_CODE, PROCESS_GROUP_LEADER_PID, PROCESS_PID, RPC_METHOD,
        RPC_RESPONSE_STATUS_CODE, RPC_SYSTEM_NAME,
    },
    metric::RPC_SERVER_CALL_DURATION,
};

/// The run's id.
pub const RUN_ID: &str = "kennel.run.id";
/// Its name, where it has one.
pub const RUN_NAME: &str = "kennel.run.name";
/// Owner of the run.
pub const RUN_OWNER: &str = "kennel.run.owner";
/// `heartbeat`, `service`, `terminal` or `job`.
pub const RUN_KIND: &str = "kennel.run.kind";
/// Number of the attempt, from 1 on.
pub const RUN_ATTEMPT: &str = "kennel.run.attempt";
/// The state that clients see, such as `running`.
pub const RUN_STATE: &str = "kennel.run.state";
/// What a live run waits for: `ready` or `input`.
pub const WAIT_REASON: &str = "kennel.wait.reason";
/// What was not read: a `file` of a run, or a name in a message (`wire`).
pub const UNREADABLE_WHAT: &str = "kennel.unreadable.what";
/// Its outcome: `succeeded`, `failed`, `cancelled` or `lost`.
pub const RUN_OUTCOME: &str = "kennel.run.outcome";
/// Reason of its end, such as `aborted` or `oom_killed`.
pub const RUN_END_REASON: &str = "kennel.run.end_reason";
/// Containment of the run: `subreaper`, `cgroup` or `private_pidns`.
pub const CONTAINMENT: &str = "kennel.containment";
/// The signal that has ended the command, such as `SIGKILL`.
pub const EXIT_SIGNAL: &str = "kennel.exit.signal";
/// Verdict on the rest of the tree: `empty`, `survivors`, `unverified`, `never_ran` or `kept`.
pub const TREE_VERDICT: &str = "kennel.tree.verdict";
/// Whether SIGKILL was needed.
pub const STOP_ESCALATED: &str = "kennel.stop.escalated";
/// The signal of a step of a stop.
pub const STOP_SIGNAL: &str = "kennel.stop.signal";
/// Number of processes that it reached.
pub const STOP_DELIVERED: &str = "kennel.stop.delivered";
/// Number of processes that had exited before it reached them.
pub const STOP_GONE: &str = "kennel.stop.gone";
/// Number of processes that the kernel refused to signal.
pub const STOP_REFUSED: &str = "kennel.stop.refused";
/// The part of a start: `prepare`, `commit` or `exec`.
pub const SPAWN_PHASE: &str = "kennel.spawn.phase";
/// Action of recovery on a run: `adopted`, `killed`, `already_gone` or `unverified`.
pub const RECOVERY_ACTION: &str = "kennel.recovery.action";
/// `stdout` or `stderr`.
pub const STREAM: &str = "kennel.stream";
/// Reason of missing output, such as `retention`.
pub const DROP_REASON: &str = "kennel.drop.reason";
/// Operation of the store: `insert`, `close` and so on.
pub const STORE_OPERATION: &str = "kennel.store.operation";
/// The reason of an error that Kennel gave, such as `QUOTA_EXCEEDED`.
pub const REASON: &str = "kennel.reason";
/// Reason of a stop, such as `abort`.
pub const STOP_REASON: &str = "kennel.stop.reason";
/// End of its streams: `eof`, `cut` or `lost`.
pub const STREAMS_END: &str = "kennel.streams.end";
/// Number of processes that SIGKILL does not end.
pub const STUCK_PROCESSES: &str = "kennel.stuck.processes";
/// Number of processes that the kernel has killed for want of memory.
pub const OOM_KILLS: &str = "kennel.oom.kills";
/// Evidence that a process is a run's: `leaked_cgroup`, `shim_child` and so on; `recovery`: a start found it alive.
pub const EVIDENCE: &str = "kennel.evidence";
/// `traces`, `metrics` or `logs`.
pub const SIGNAL: &str = "kennel.telemetry.signal";

/// A run, from its acceptance to its end.
pub const SPAN_RUN: &str = "run";
/// From its acceptance to the beginning of its preparation.
pub const SPAN_ADMIT: &str = "run.admit";
/// Making the child that waits at its gate.
pub const SPAN_PREPARE: &str = "run.prepare";
/// Writing the row, before which the gate is not opened.
pub const SPAN_COMMIT: &str = "run.commit";
/// From the opening of the gate to the confirmed execve(2).
pub const SPAN_EXEC: &str = "run.exec";
/// From all tasks stopped to all continued.
pub const SPAN_PAUSE: &str = "run.pause";
/// From the beginning of a stop to the verdict on the tree.
pub const SPAN_STOP: &str = "run.stop";
/// One round of one signal, to the next round or the verdict.
pub const SPAN_STOP_STEP: &str = "run.stop.step";
/// From the leader's end to the end of all streams.
pub const SPAN_DRAIN: &str = "run.drain";
/// From the leader's end to the verdict on the tree.
pub const SPAN_REAP: &str = "run.reap";
/// Adoption or recovery of a run by a server that has not begun it.
pub const SPAN_RECOVER: &str = "run.recover";
/// An attempt after the first.
pub const SPAN_ATTEMPT: &str = "run.attempt";

/// Its row is written.
pub const EVENT_RECORDED: &str = "kennel.run.recorded";
/// The command runs.
pub const EVENT_STARTED: &str = "kennel.run.started";
/// Every task is stopped.
pub const EVENT_PAUSED: &str = "kennel.run.paused";
/// The tree runs again.
pub const EVENT_RESUMED: &str = "kennel.run.resumed";
/// A stop is in force.
pub const EVENT_STOPPING: &str = "kennel.run.stopping";
/// The leader's end.
pub const EVENT_LEADER_EXITED: &str = "kennel.run.leader_exited";
/// The streams' end.
pub const EVENT_STREAMS_CLOSED: &str = "kennel.run.streams_closed";
/// SIGKILL does not end some of its processes.
pub const EVENT_STUCK: &str = "kennel.run.stuck";
/// The tree's end.
pub const EVENT_TREE_ENDED: &str = "kennel.run.tree_ended";
/// The kernel has killed processes of it for want of memory.
pub const EVENT_MEMORY_KILLS: &str = "kennel.run.memory_kills";
/// A server that had not begun the run has adopted or recovered it.
pub const EVENT_RECOVERED: &str = "kennel.run.recovered";
/// An attempt has ended and another one follows.
pub const EVENT_ATTEMPT_ENDED: &str = "kennel.run.attempt_ended";
/// The run has ended.
pub const EVENT_ENDED: &str = "kennel.run.ended";
