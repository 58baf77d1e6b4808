//! Every point, the action during which it is reached, and the victim.

use Victim::{Both, Keeper, Server};

/// Victim of a crash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Victim {
    Server,
    Keeper,
    Both,
}

/// Action of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Act {
    /// The subject is spawned.
    Spawn,
    /// The subject exits by itself.
    Exit,
    /// The subject is aborted, and obeys.
    Abort,
    /// The subject is aborted, and does not obey.
    Kill,
    Pause,
    Resume,
    /// Nothing: the bystander writes.
    Write,
    /// A client writes to the input of a run, and closes it.
    Input,
    /// A command writes to its terminal, whose size is changed.
    Terminal,
    /// A client annotates the subject.
    Annotate,
    /// A client extends the subject's limit of time.
    Extend,
    /// The subject reports that it is ready, and writes a line that its rules match.
    Say,
    /// The node is drained.
    Drain,
    /// The subject exits by itself while the store cannot be written; the store is released when the exit is recorded
    /// locally.
    Owe,
    /// The server was killed, and another one takes over.
    Restart,
    /// The server is replaced by the installed binary.
    Upgrade,
    /// Keeper and server were killed, and the service starts again.
    Recover,
    /// The same with runs that outlive it.
    Adopt,
    /// A command that is restarted exits by itself.
    Again,
    /// Keeper and server were killed, and the service restarts the runs that come back with it.
    ComeBack,
    /// A run has ended, and its output is not to be retained.
    Retain,
    /// A run with a child has ended.
    Orphan,
}

/// A point.
pub(crate) struct Point {
    pub(crate) name: &'static str,
    pub(crate) act: Act,
    pub(crate) victims: &'static [Victim],
}

const fn of(name: &'static str, act: Act, victims: &'static [Victim]) -> Point {
    Point { name, act, victims }
}

/// The point is in the server or the keeper.
const ALL: &[Victim] = &[Server, Keeper, Both];
/// The point is in a shim, which knows its keeper alone.
const OF_SHIM: &[Victim] = &[Keeper];
/// The point is in the keeper, at a time when it may have no server.
const OF_KEEPER: &[Victim] = &[Keeper];
/// A run that dies with its keeper cannot continue.
const OF_SERVER: &[Victim] = &[Server];

pub(crate) const POINTS: &[Point] = &[
    of("spawn.begun", Act::Spawn, ALL),
    of("log.intended", Act::Spawn, ALL),
    of("spawn.room_made", Act::Spawn, ALL),
    of("keeper.prepare", Act::Spawn, ALL),
    of("keeper.group_made", Act::Spawn, ALL),
    of("keeper.job_given", Act::Spawn, ALL),
    of("shim.at_gate", Act::Spawn, OF_SHIM),
    of("keeper.prepared", Act::Spawn, ALL),
    of("spawn.prepared", Act::Spawn, ALL),
    of("spawn.record", Act::Spawn, ALL),
    of("spawn.recorded", Act::Spawn, ALL),
    of("spawn.recorded_told", Act::Spawn, ALL),
    of("spawn.release", Act::Spawn, ALL),
    of("spawn.released", Act::Spawn, ALL),
    of("keeper.release", Act::Spawn, ALL),
    of("keeper.released", Act::Spawn, ALL),
    of("shim.executed", Act::Spawn, OF_SHIM),
    of("keeper.executed", Act::Spawn, ALL),
    of("spawn.executed", Act::Spawn, ALL),
    of("spawn.started_told", Act::Spawn, ALL),
    of("spawn.running_recorded", Act::Spawn, ALL),
    of("output.journal_made", Act::Spawn, ALL),
    of("output.moved", Act::Write, ALL),
    of("output.indexed", Act::Write, ALL),
    of("output.relayed", Act::Terminal, OF_SERVER),
    of("terminal.resized", Act::Terminal, OF_SERVER),
    of("shim.exit", Act::Exit, OF_SHIM),
    of("shim.exit_written", Act::Exit, OF_SHIM),
    of("shim.childless", Act::Exit, OF_SHIM),
    of("shim.free", Act::Exit, OF_SHIM),
    of("keeper.leader_exited", Act::Exit, ALL),
    of("keeper.tree_ended", Act::Exit, ALL),
    of("exit.leader", Act::Exit, ALL),
    of("exit.leader_told", Act::Exit, ALL),
    of("exit.streams_told", Act::Exit, ALL),
    of("exit.tree", Act::Exit, ALL),
    of("exit.tree_told", Act::Exit, ALL),
    of("exit.close", Act::Exit, ALL),
    of("exit.closed", Act::Exit, ALL),
    of("exit.end", Act::Exit, ALL),
    of("exit.end_told", Act::Exit, ALL),
    of("exit.acknowledge", Act::Exit, ALL),
    of("exit.acknowledged", Act::Exit, ALL),
    of("keeper.acknowledge", Act::Exit, ALL),
    of("keeper.acknowledged", Act::Exit, ALL),
    of("log.append", Act::Owe, ALL),
    of("log.appended", Act::Owe, ALL),
    of("outbox.deliver", Act::Owe, ALL),
    of("outbox.delivered", Act::Owe, ALL),
    of("outbox.noted", Act::Owe, ALL),
    of("stop.record", Act::Abort, ALL),
    of("stop.recorded", Act::Abort, ALL),
    of("stop.answered", Act::Abort, ALL),
    of("stop.sent", Act::Abort, ALL),
    of("keeper.stop", Act::Abort, ALL),
    of("keeper.termed", Act::Abort, ALL),
    of("keeper.killed", Act::Kill, ALL),
    of("pause.pausing_recorded", Act::Pause, ALL),
    of("keeper.pause_noted", Act::Pause, ALL),
    of("keeper.pause_complete", Act::Pause, ALL),
    of("pause.frozen", Act::Pause, ALL),
    of("pause.paused_recorded", Act::Pause, ALL),
    of("pause.answered", Act::Pause, ALL),
    of("resume.thaw", Act::Resume, ALL),
    of("keeper.resume", Act::Resume, ALL),
    of("keeper.resumed", Act::Resume, ALL),
    of("resume.thawed", Act::Resume, ALL),
    of("resume.answered", Act::Resume, ALL),
    of("keeper.input", Act::Input, ALL),
    of("keeper.input_written", Act::Input, ALL),
    of("keeper.input_noted", Act::Input, ALL),
    of("keeper.input_close", Act::Input, ALL),
    of("facets.record", Act::Annotate, ALL),
    of("facets.recorded", Act::Annotate, ALL),
    of("extend.ask", Act::Extend, ALL),
    of("extend.asked", Act::Extend, ALL),
    of("keeper.notice", Act::Say, ALL),
    of("rule.acted", Act::Say, ALL),
    of("rule.noted", Act::Say, ALL),
    of("drain.kept", Act::Drain, ALL),
    of("keeper.server_lost", Act::Restart, &[Keeper]),
    of("keeper.server_reaped", Act::Restart, &[Keeper]),
    of("keeper.server_started", Act::Restart, ALL),
    of("keeper.handed_over", Act::Restart, ALL),
    of("boot.begun", Act::Restart, ALL),
    of("boot.node_opened", Act::Restart, ALL),
    of("adopt.journal_mended", Act::Restart, ALL),
    of("adopt.task_made", Act::Restart, ALL),
    of("boot.adopted", Act::Restart, ALL),
    of("boot.serving", Act::Restart, ALL),
    of("boot.ready", Act::Restart, ALL),
    of("keeper.upgrade_checked", Act::Upgrade, ALL),
    of("keeper.leave_sent", Act::Upgrade, ALL),
    of("leave.begun", Act::Upgrade, ALL),
    of("leave.answered", Act::Upgrade, ALL),
    of("leave.done", Act::Upgrade, ALL),
    of("keeper.left", Act::Upgrade, &[Keeper]),
    of("keeper.upgraded", Act::Upgrade, ALL),
    of("keeper.shims_asked", Act::Adopt, &[Keeper]),
    of("keeper.adopted", Act::Adopt, ALL),
    of("keeper.exits_kept", Act::Recover, OF_KEEPER),
    of("recover.observed", Act::Recover, ALL),
    of("exit.close", Act::Recover, ALL),
    of("exit.closed", Act::Recover, ALL),
    of("exit.end", Act::Recover, ALL),
    of("exit.end_told", Act::Recover, ALL),
    of("attempt.rest", Act::Again, ALL),
    of("attempt.rested", Act::Again, ALL),
    of("attempt.end_told", Act::Again, ALL),
    of("attempt.over", Act::Again, ALL),
    of("attempt.begin", Act::Again, ALL),
    of("attempt.record", Act::Again, ALL),
    of("attempt.recorded", Act::Again, ALL),
    of("attempt.rest", Act::ComeBack, ALL),
    of("attempt.rested", Act::ComeBack, ALL),
    of("parent.ended", Act::Orphan, ALL),
    of("retention.mark", Act::Retain, ALL),
    of("retention.marked", Act::Retain, ALL),
    of("retention.set_aside", Act::Retain, ALL),
];
