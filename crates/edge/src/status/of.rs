//! The status of a call that failed: one arm for each of its causes.

use super::{
    Fault, RETRY_NEXT_SERVER, RETRY_SOON, capability_missing, draining, internal, invalid,
    name_taken, node::of_node, quota, spec_mismatch, used_up,
};
use crate::{
    enums::{containment, input_end},
    reason::Reason,
};
use kennel_lifecycle::{Deadline, Refusal, RunId, RunState, StartFailure, StartStage};
use kennel_supervisor::{CallError, NoPty, SCREEN_CELLS_MAX, Unstopped, UpgradeRefusal};
use tonic::{Code, Status};
use tonic_types::QuotaViolation;

/// Returns the status of a call that failed.
#[expect(clippy::too_many_lines, reason = "a table: one arm for each error")]
pub(crate) fn of(error: &CallError) -> Status {
    let text = error.to_string();
    let new = |reason: Reason| Fault::new(reason, text.as_str());
    let of = |reason: Reason, run: &RunId| new(reason).run(*run);
    let violated =
        |reason: Reason, run: &RunId, kind: &str| of(reason, run).precondition(kind, run);
    let of_consumer = |reason: Reason, run: &Option<RunId>, name: &str| {
        let run = run.map(|run| run.to_string()).unwrap_or_default();
        new(reason).fact("run_id", &run).fact("consumer", name)
    };
    let fault = match error {
        CallError::RunNotFound(run) => of(Reason::RunNotFound, run),
        CallError::NoRunNamed(name) => new(Reason::RunNotFound).fact("name", name),
        CallError::NameTaken { name, holder } => return name_taken(text, name, Some(holder)),
        CallError::SpecMismatch { run, .. } => return spec_mismatch(text, *run, &[]),
        CallError::RunFenced(run) => violated(Reason::RunFenced, run, "RUN_FENCE"),
        CallError::RunRemoved(run) => violated(Reason::RunRemoved, run, "RUN_REMOVAL"),
        CallError::RunIdExpired {
            run,
            time,
            oldest,
            newest,
        } => violated(Reason::RunIdExpired, run, "RUN_ID_TIME")
            .fact("id_time", time)
            .fact("oldest_time", oldest)
            .fact("newest_time", newest),
        CallError::StoppedFirst(run) => violated(Reason::RunStopped, run, "RUN_STOP"),
        CallError::Refused {
            run,
            refusal,
            state,
        } => {
            let reason = match refusal {
                Refusal::Ended => Reason::RunEnded,
                Refusal::AlreadyAdmitted
                | Refusal::NotRunningYet
                | Refusal::NotPaused
                | Refusal::NotRestartable
                | Refusal::NotEnded
                | Refusal::MayLive
                | Refusal::Paused
                | Refusal::Stopping => Reason::InvalidState,
            };
            let is_refused = |verb: &str| verb == "Restart" && *refusal == Refusal::NotRestartable;
            let allowed = allowed_verbs(*state).iter().copied();
            let allowed: Vec<_> = allowed.filter(|verb| !is_refused(verb)).collect();
            violated(reason, run, "RUN_STATE")
                .fact("state", state.api_name())
                .fact("allowed", &allowed.join(","))
        }
        CallError::Pinned { run, by, state } => violated(Reason::InvalidState, run, "RUN_STATE")
            .fact("state", state.map_or("", RunState::api_name))
            .fact("allowed", "Abort")
            .fact("pinned_by", by),
        CallError::AnsweredAlready { run, question, by } => of(Reason::AnsweredAlready, run)
            .fact("question", question)
            .fact("by", by),
        CallError::QuestionGone {
            run,
            question,
            open,
        } => of(Reason::QuestionGone, run)
            .fact("question", question)
            .fact("open", &format!("{open:?}")),
        CallError::AnnotationsChanged {
            run,
            expected,
            present,
        } => of(Reason::AnnotationsChanged, run)
            .fact("expected_version", expected)
            .fact("present_version", present),
        CallError::NoTimeLimit { run, limit } => {
            of(Reason::NoTimeLimit, run).fact("limit", limit.map_or("", Deadline::name))
        }
        CallError::ExtensionTooLong {
            run,
            limit,
            possible,
        } => of(Reason::ExtensionTooLong, run)
            .fact("limit", limit.name())
            .fact("possible_seconds", &possible.as_secs()),
        CallError::CapabilityMissing(missing) => return capability_missing(missing),
        CallError::InvalidSpec(violation) => return invalid(std::slice::from_ref(violation)),
        CallError::SecretUnavailable { name, origin, why } => new(Reason::SecretUnavailable)
            .fact("secret", name)
            .fact("source", origin)
            .fact("why", why)
            .precondition("SECRET", name),
        CallError::CommandNotFound { command, looked_in } => not_found(command, looked_in),
        CallError::SpawnFailed { run, failure } => spawn_failed(*run, failure),
        CallError::QuotaExceeded { what, limit } => return quota(what, *limit),
        CallError::TooManyConsumers { what, limit } => return quota(what, *limit),
        // A repeated call uses as much processor time.
        CallError::PatternTooDear(run) => {
            let what = "processor time of a pattern";
            used_up(what, text, None).run(*run)
        }
        // The host's limit is not known here.
        CallError::HostFull(_) => used_up("room of the host", text, None).retry(RETRY_SOON),
        CallError::ContainmentUnavailable {
            run,
            wanted,
            reached,
            why,
        } => of(Reason::ContainmentUnavailable, run)
            .fact("wanted", containment(*wanted).as_str_name())
            .fact("reached", containment(*reached).as_str_name())
            .fact("why", why.as_deref().unwrap_or_default())
            .precondition("CONTAINMENT", "spec.min_containment"),
        CallError::StoreUnavailable => new(Reason::StoreUnavailable).retry(RETRY_SOON),
        // Other nodes may accept the call.
        CallError::NodeDrained => new(Reason::NodeDraining).retry(RETRY_NEXT_SERVER),
        CallError::NodeFenced => new(Reason::NodeFenced).retry(RETRY_NEXT_SERVER),
        CallError::Draining | CallError::NotUpgraded(UpgradeRefusal::ShuttingDown) => {
            return draining();
        }
        CallError::NotUpgraded(UpgradeRefusal::UnderWay) => {
            new(Reason::UpgradeUnderWay).precondition("UPGRADE", "server")
        }
        CallError::NotUpgraded(UpgradeRefusal::Unfit {
            binary,
            why,
            speaks,
        }) => new(Reason::UpgradeRefused)
            .fact("binary", binary)
            .fact("why", why)
            .fact_if_known("protocol", *speaks)
            .precondition("UPGRADE", "server"),
        CallError::NoPty(NoPty::Exhausted { current, max }) => {
            let mut fault = new(Reason::PtyExhausted)
                .fact_if_known("current", *current)
                .fact_if_known("max", *max);
            let violation = QuotaViolation::new("terminals of the host", text);
            fault.details.set_quota_failure(vec![violation]);
            fault.retry(RETRY_SOON)
        }
        CallError::NoPty(NoPty::Unavailable { why, errno }) => new(Reason::PtyUnavailable)
            .fact("why", why)
            .fact_if_known("errno", *errno)
            .precondition("TERMINAL", "spec.terminal"),
        CallError::ScreenTooLarge { run, size } => {
            violated(Reason::ScreenTooLarge, run, "TERMINAL")
                .fact("rows", &size.rows)
                .fact("cols", &size.cols)
                .fact("cells_max", &SCREEN_CELLS_MAX)
        }
        CallError::TerminalInput { run } => violated(Reason::TerminalInput, run, "RUN_TERMINAL"),
        CallError::NoTerminal { run } | CallError::NotOnTerminal { run } => {
            violated(Reason::NoTerminal, run, "RUN_TERMINAL")
        }
        CallError::NotPaused { run, moving } => {
            let pids: Vec<String> = moving.iter().map(|one| one.pid.to_string()).collect();
            let known = moving.iter().filter(|one| !one.why.is_empty());
            let why: Vec<String> = known
                .map(|Unstopped { pid, why }| format!("{pid}: {why}"))
                .collect();
            violated(Reason::PausePartial, run, "TASKS_STOPPED")
                .fact("pids", &pids.join(","))
                .fact("why", &why.join("; "))
        }
        CallError::SignalFailed { run, errno } => {
            let fault = of(Reason::SignalFailed, run).fact("errno", errno);
            if is_passing(*errno) {
                fault.code(Code::ResourceExhausted).retry(RETRY_SOON)
            } else {
                fault
            }
        }
        CallError::InputOffset { run, accepted, .. } => {
            of(Reason::InputOffsetMismatch, run).fact("accepted_offset", accepted)
        }
        CallError::InputClosed { run, end, accepted } => {
            violated(Reason::InputClosed, run, "RUN_INPUT")
                .fact("accepted_offset", accepted)
                .fact("closed_by", input_end(*end).as_str_name())
        }
        CallError::InputUnknown { run, least, most } => {
            violated(Reason::InputOffsetUnknown, run, "RUN_INPUT")
                .fact("accepted_least", least)
                .fact("accepted_most", most)
        }
        CallError::InputEnded {
            run,
            state,
            accepted,
        } => violated(Reason::RunEnded, run, "RUN_INPUT")
            .fact_if_known("accepted_offset", *accepted)
            .fact("state", state.api_name()),
        CallError::OtherAttempt { run, attempt } => {
            violated(Reason::AttemptMismatch, run, "RUN_INPUT").fact("attempt", attempt)
        }
        CallError::ConsumerNotFound { run, name } => {
            of_consumer(Reason::ConsumerNotFound, run, name)
        }
        CallError::ConsumerTakenOver { run, name } => {
            of_consumer(Reason::ConsumerTakenOver, run, name).precondition("CONSUMER_READER", name)
        }
        CallError::CursorAhead { run, asked, head } => of(Reason::CursorAhead, run)
            .fact("asked_seq", asked)
            .fact("head_seq", head),
        CallError::OffsetAhead { run, asked, end } => of(Reason::CursorAhead, run)
            .fact("asked_offset", asked)
            .fact("end_offset", end),
        CallError::CursorExpired {
            run,
            first_seq,
            last_seq,
        } => of(Reason::CursorExpired, run)
            .fact("first_seq", first_seq)
            .fact("last_seq", last_seq),
        CallError::RunElsewhere { run, elsewhere } => {
            of_node(Reason::RunOnOtherNode, text, elsewhere)
                .run(*run)
                .precondition("NODE", &elsewhere.address)
        }
        CallError::AbortQueued {
            run,
            elsewhere: node,
        }
        | CallError::AbortUndelivered { run, node } => of_node(Reason::AbortQueued, text, node)
            .run(*run)
            .precondition("NODE", &node.address),
        CallError::NodeHasLease(node) => {
            of_node(Reason::NodeHasLease, text, node).precondition("NODE_LEASE", &node.node)
        }
        CallError::NodeNotFound { name, .. } => new(Reason::NodeNotFound).fact("node", name),
        CallError::JournalUnreadable { run, why } => {
            tracing::error!(run_id = %run, why, "cannot read the journal, answering DATA_LOSS");
            of(Reason::JournalUnreadable, run)
        }
        CallError::Internal(what) => return internal(what),
    };
    fault.status()
}

/// Returns the calls that are permitted for a run in this state. For information: the machine alone decides.
fn allowed_verbs(state: RunState) -> &'static [&'static str] {
    match state {
        RunState::Starting | RunState::Stopping => &["Abort"],
        RunState::Backoff => &["Abort", "Restart"],
        RunState::Running => &["Abort", "Interrupt", "Pause", "Restart", "Signal"],
        RunState::Paused => &["Abort", "Restart", "Resume"],
        RunState::Succeeded | RunState::Failed | RunState::Cancelled | RunState::Lost => &[],
    }
}

fn not_found(command: &str, looked_in: &[String]) -> Fault {
    // PATH may be long: only the metadata has it.
    let message = match looked_in {
        [] => format!("command {command:?} was not found"),
        [path] if command.contains('/') => format!("command {command:?} was not found in {path}"),
        _ => format!("command {command:?} was not found in PATH"),
    };
    Fault::new(Reason::CommandNotFound, message)
        .fact("command", command)
        .fact("looked_in", &looked_in.join(":"))
}

fn spawn_failed(run: RunId, failure: &StartFailure) -> Fault {
    let name = failure.stage.api_name();
    let message = format!("the command could not be started: {failure}");
    let fault = Fault::new(Reason::SpawnFailed, message)
        .code(start_code(failure))
        .run(run)
        .fact("stage", name)
        .fact_if_known("path", failure.path.as_ref())
        .fact_if_known("errno", failure.errno);
    match fault.code {
        Code::FailedPrecondition => {
            let subject = failure.path.clone().unwrap_or_else(|| run.to_string());
            fault.precondition(name, &subject)
        }
        Code::ResourceExhausted => fault.retry(RETRY_SOON),
        _ => fault,
    }
}

/// Returns the code for a failed start, by errno(3): change the request, try again, or neither.
fn start_code(failure: &StartFailure) -> Code {
    // Errno values of Linux on all 64-bit architectures.
    const ENOENT: i32 = 2;
    const E2BIG: i32 = 7;
    const ENOEXEC: i32 = 8;
    const EACCES: i32 = 13;
    const ENOTDIR: i32 = 20;
    const EISDIR: i32 = 21;
    const ENAMETOOLONG: i32 = 36;
    const ELOOP: i32 = 40;
    match failure.errno {
        Some(ENOENT | E2BIG | ENOEXEC | EACCES | ENOTDIR | EISDIR | ENAMETOOLONG | ELOOP) => {
            Code::FailedPrecondition
        }
        Some(errno) if is_passing(errno) => Code::ResourceExhausted,
        // The file system of the command did not answer.
        None if failure.stage == StartStage::Exec => Code::FailedPrecondition,
        // The host refuses the server these settings; the other steps of the start are the server's own.
        _ if matches!(
            failure.stage,
            StartStage::Limits
                | StartStage::Namespace
                | StartStage::Privileges
                | StartStage::Secret
        ) =>
        {
            Code::FailedPrecondition
        }
        _ => Code::Internal,
    }
}

/// Whether an error of errno(3) may be gone at the next try: the host is short of something, or a file is written.
fn is_passing(errno: i32) -> bool {
    const EAGAIN: i32 = 11;
    const ENOMEM: i32 = 12;
    const ENFILE: i32 = 23;
    const EMFILE: i32 = 24;
    const ETXTBSY: i32 = 26;
    const ENOSPC: i32 = 28;
    const EDQUOT: i32 = 122;
    [EAGAIN, ENOMEM, ENFILE, EMFILE, ETXTBSY, ENOSPC, EDQUOT].contains(&errno)
}
