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
    /// A run has ended, and a client removes it.
    Remove,
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

/// The point is in the server: it dies there while its keeper lives, and with it. A keeper that dies alone leaves the
/// server a way that no point of the server decides: it reads all output, and exits.
const OF_SERVER: &[Victim] = &[Server, Both];
/// The first point of the server in a stage of a run: there its keeper dies alone too.
const OF_STAGE: &[Victim] = &[Server, Keeper, Both];
/// The point is in the keeper: what its death leaves is what it has done until then. What the server had written is the
/// same as at the server's own point before.
const OF_KEEPER: &[Victim] = &[Keeper];
/// The last point of the keeper in a step that it completes before it sees the death of its server.
const OF_STEP: &[Victim] = &[Server, Keeper];
/// The keeper leaves something by itself that the next one finds, whatever the server writes meanwhile.
const OF_TRACE: &[Victim] = &[Server, Keeper, Both];
/// The point is in a shim, which knows its keeper alone.
const OF_SHIM: &[Victim] = &[Keeper];
/// A run that dies with its keeper cannot continue.
const OF_TERMINAL: &[Victim] = &[Server];

pub(crate) const POINTS: &[Point] = &[
    of("spawn.begun", Act::Spawn, OF_SERVER),
    of("log.intended", Act::Spawn, OF_SERVER),
    of("spawn.room_made", Act::Spawn, OF_SERVER),
    of("keeper.prepare", Act::Spawn, OF_KEEPER),
    of("keeper.group_made", Act::Spawn, OF_TRACE),
    of("keeper.job_given", Act::Spawn, OF_STEP),
    of("shim.at_gate", Act::Spawn, OF_SHIM),
    of("keeper.prepared", Act::Spawn, OF_STEP),
    of("spawn.prepared", Act::Spawn, OF_SERVER),
    of("spawn.record", Act::Spawn, OF_STAGE),
    of("spawn.recorded", Act::Spawn, OF_SERVER),
    of("spawn.recorded_told", Act::Spawn, OF_SERVER),
    of("spawn.release", Act::Spawn, OF_SERVER),
    of("spawn.released", Act::Spawn, OF_STAGE),
    of("keeper.release", Act::Spawn, OF_KEEPER),
    of("keeper.released", Act::Spawn, OF_STEP),
    of("shim.executed", Act::Spawn, OF_SHIM),
    of("keeper.executed", Act::Spawn, OF_STEP),
    of("spawn.executed", Act::Spawn, OF_SERVER),
    of("spawn.started_told", Act::Spawn, OF_SERVER),
    of("spawn.running_recorded", Act::Spawn, OF_STAGE),
    of("output.journal_made", Act::Spawn, OF_SERVER),
    of("output.moved", Act::Write, OF_STAGE),
    of("output.indexed", Act::Write, OF_SERVER),
    of("output.relayed", Act::Terminal, OF_TERMINAL),
    of("terminal.resized", Act::Terminal, OF_TERMINAL),
    of("shim.exit", Act::Exit, OF_SHIM),
    of("shim.exit_written", Act::Exit, OF_SHIM),
    of("shim.childless", Act::Exit, OF_SHIM),
    of("shim.free", Act::Exit, OF_SHIM),
    of("keeper.leader_exited", Act::Exit, OF_STEP),
    of("keeper.tree_ended", Act::Exit, OF_STEP),
    of("exit.leader", Act::Exit, OF_STAGE),
    of("exit.leader_told", Act::Exit, OF_SERVER),
    of("exit.streams_told", Act::Exit, OF_SERVER),
    of("exit.tree", Act::Exit, OF_STAGE),
    of("exit.tree_told", Act::Exit, OF_SERVER),
    of("exit.close", Act::Exit, OF_SERVER),
    of("exit.closed", Act::Exit, OF_SERVER),
    of("exit.end", Act::Exit, OF_SERVER),
    of("exit.end_told", Act::Exit, OF_SERVER),
    of("exit.acknowledge", Act::Exit, OF_SERVER),
    of("exit.acknowledged", Act::Exit, OF_SERVER),
    of("keeper.acknowledge", Act::Exit, OF_KEEPER),
    of("keeper.acknowledged", Act::Exit, OF_STEP),
    of("log.append", Act::Owe, OF_SERVER),
    of("log.appended", Act::Owe, OF_SERVER),
    of("outbox.deliver", Act::Owe, OF_STAGE),
    of("outbox.delivered", Act::Owe, OF_SERVER),
    of("outbox.noted", Act::Owe, OF_SERVER),
    of("stop.record", Act::Abort, OF_SERVER),
    of("stop.recorded", Act::Abort, OF_STAGE),
    of("stop.answered", Act::Abort, OF_SERVER),
    of("stop.sent", Act::Abort, OF_SERVER),
    of("keeper.stop", Act::Abort, OF_KEEPER),
    of("keeper.termed", Act::Abort, OF_STEP),
    of("keeper.killed", Act::Kill, OF_STEP),
    of("pause.pausing_recorded", Act::Pause, OF_STAGE),
    of("keeper.pause_noted", Act::Pause, OF_TRACE),
    of("keeper.pause_complete", Act::Pause, OF_TRACE),
    of("pause.frozen", Act::Pause, OF_STAGE),
    of("pause.paused_recorded", Act::Pause, OF_SERVER),
    of("pause.answered", Act::Pause, OF_SERVER),
    of("resume.thaw", Act::Resume, OF_SERVER),
    of("keeper.resume", Act::Resume, OF_KEEPER),
    of("keeper.resumed", Act::Resume, OF_STEP),
    of("resume.thawed", Act::Resume, OF_STAGE),
    of("resume.answered", Act::Resume, OF_SERVER),
    of("keeper.input", Act::Input, OF_KEEPER),
    of("keeper.input_written", Act::Input, OF_KEEPER),
    of("keeper.input_noted", Act::Input, OF_STEP),
    of("keeper.input_close", Act::Input, OF_STEP),
    of("facets.record", Act::Annotate, OF_STAGE),
    of("facets.recorded", Act::Annotate, OF_SERVER),
    of("extend.ask", Act::Extend, OF_STAGE),
    of("extend.asked", Act::Extend, OF_SERVER),
    of("keeper.notice", Act::Say, OF_STEP),
    of("rule.acted", Act::Say, OF_STAGE),
    of("rule.noted", Act::Say, OF_SERVER),
    of("drain.kept", Act::Drain, OF_SERVER),
    of("keeper.server_lost", Act::Restart, OF_KEEPER),
    of("keeper.server_reaped", Act::Restart, OF_KEEPER),
    of("keeper.server_started", Act::Restart, OF_STEP),
    of("keeper.handed_over", Act::Restart, OF_STEP),
    of("boot.begun", Act::Restart, OF_STAGE),
    of("boot.node_opened", Act::Restart, OF_SERVER),
    of("adopt.journal_mended", Act::Restart, OF_SERVER),
    of("adopt.task_made", Act::Restart, OF_SERVER),
    of("boot.adopted", Act::Restart, OF_STAGE),
    of("boot.serving", Act::Restart, OF_SERVER),
    of("boot.ready", Act::Restart, OF_SERVER),
    of("keeper.upgrade_checked", Act::Upgrade, OF_STEP),
    of("keeper.leave_sent", Act::Upgrade, OF_STEP),
    of("leave.begun", Act::Upgrade, OF_STAGE),
    of("leave.answered", Act::Upgrade, OF_SERVER),
    of("leave.done", Act::Upgrade, OF_SERVER),
    of("keeper.left", Act::Upgrade, OF_KEEPER),
    of("keeper.upgraded", Act::Upgrade, OF_STEP),
    of("keeper.shims_asked", Act::Adopt, OF_KEEPER),
    of("keeper.adopted", Act::Adopt, OF_STEP),
    of("keeper.exits_kept", Act::Recover, OF_KEEPER),
    of("recover.observed", Act::Recover, OF_STAGE),
    of("exit.close", Act::Recover, OF_SERVER),
    of("exit.closed", Act::Recover, OF_SERVER),
    of("exit.end", Act::Recover, OF_SERVER),
    of("exit.end_told", Act::Recover, OF_SERVER),
    of("attempt.rest", Act::Again, OF_STAGE),
    of("attempt.rested", Act::Again, OF_SERVER),
    of("attempt.end_told", Act::Again, OF_SERVER),
    of("attempt.over", Act::Again, OF_SERVER),
    of("attempt.begin", Act::Again, OF_SERVER),
    of("attempt.record", Act::Again, OF_SERVER),
    of("attempt.recorded", Act::Again, OF_STAGE),
    of("attempt.rest", Act::ComeBack, OF_SERVER),
    of("attempt.rested", Act::ComeBack, OF_SERVER),
    of("parent.ended", Act::Orphan, OF_STAGE),
    of("retention.mark", Act::Retain, OF_SERVER),
    of("retention.marked", Act::Retain, OF_STAGE),
    of("retention.set_aside", Act::Retain, OF_SERVER),
    of("history.remove", Act::Remove, OF_SERVER),
    of("history.removed", Act::Remove, OF_SERVER),
];

/// Points at which a run that is to be adopted shows nothing else than any other: it has ended, and its next point shows
/// what the service still does about it, or no server has begun with it.
const ALIKE: [&str; 8] = [
    "exit.tree_told",
    "exit.close",
    "exit.end_told",
    "exit.acknowledge",
    "keeper.server_reaped",
    "keeper.server_started",
    "boot.begun",
    "boot.ready",
];

/// Whether the death of this victim shows more of a run that is to be adopted than of any other.
pub(crate) fn shows_adoption(point: &Point, victim: Victim) -> bool {
    // The recovery policy shows only once the keeper has died.
    (victim != Victim::Server || point.act == Act::Adopt) && !ALIKE.contains(&point.name)
}
