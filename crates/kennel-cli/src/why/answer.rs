//! The answer: one plain sentence as the first line. Pure.

use super::Records;
use crate::{list, render, terminal_text, values, words};
use kennel_client as client;
use kennel_proto::pb::{self, audit_record::Record, end_reason::Reason};
use std::time::Duration;

/// Longest time between a signal and an end that it may have caused.
const CAUSE_WITHIN_SECS: i64 = 60;

/// The answer, and its uncertainties.
pub(super) struct Answer {
    pub(super) line: String,
    pub(super) unknown: Vec<String>,
}

pub(super) fn answer(known: &Records) -> Answer {
    use pb::tree_verdict::Verdict;
    let run = &known.run;
    let Some(reason) = &run.end_reason else {
        return Answer {
            line: stands(run),
            unknown: Vec::new(),
        };
    };
    let mut unknown = Vec::new();
    let mut line = ended(known, reason, &mut unknown);
    if let Some(verdict) = &run.tree_verdict
        && !matches!(
            verdict.verdict,
            Some(Verdict::Empty(_) | Verdict::NeverRan(_))
        )
    {
        line.push_str(" What is left of it: ");
        line.push_str(&terminal_text::one_line(&words::verdict(verdict)));
        line.push('.');
    }
    Answer { line, unknown }
}

/// Answers for a run that has not ended.
fn stands(run: &pb::Run) -> String {
    let mut said = state(run);
    if let Some(stop) = &run.left_stop {
        said.push_str(" A stop is left for its node: ");
        said.push_str(&terminal_text::one_line(&words::left_stop(stop)));
        said.push('.');
    }
    if let Some(pinned) = &run.pinned {
        let by = terminal_text::one_line(&words::pinned(pinned));
        said.push_str(
            " It is pinned: its server is older than what recorded it, and does not know ",
        );
        said.push_str(&by);
        said.push_str(
            ". It is supervised, no attempt begins, and of calls that change it only Abort acts.",
        );
    }
    said
}

fn state(run: &pb::Run) -> String {
    if let Some(node) = &run.other_node
        && node.reachability() == pb::NodeReachability::Unreachable
    {
        let why = match (node.unreachable_since, node.last_heard_time) {
            (None, Some(_)) => "is back and has not looked at it yet".to_owned(),
            (since, _) => format!("is unreachable since {}", when(since)),
        };
        return format!(
            "Not known: its node {} {why}; {} is its last known state.",
            terminal_text::one_line(&node.node_name),
            words::state(run.state())
        );
    }
    let attempt = run.current_attempt.clone().unwrap_or_default();
    match run.state() {
        pb::RunState::Starting => "Not ended: it is being started.".into(),
        pb::RunState::Running => {
            let ready = match (run.ready_time, render::ready(run)) {
                (Some(since), _) => format!(", ready since {}", at(since)),
                (None, Some(_)) => ", and is not ready yet".into(),
                (None, None) => String::new(),
            };
            let doing = match run.activity() {
                pb::Activity::Unspecified => String::new(),
                known => format!("; activity: {}", words::activity(known)),
            };
            let since = when(attempt.start_time);
            let says = match terminal_text::one_line(&run.status) {
                empty if empty.is_empty() => String::new(),
                says => format!(" It says: {says}"),
            };
            format!("Not ended: it runs since {since}{ready}{doing}.{says}")
        }
        pb::RunState::Paused => match run.pause_expires_at {
            Some(over) => format!("Not ended: it is paused, until {} at most.", at(over)),
            None => "Not ended: it is paused, until it is resumed.".into(),
        },
        pb::RunState::Stopping => match (&run.tree_verdict, run.stop_deadline_time) {
            (Some(stuck), _) => format!(
                "Not ended: SIGKILL does not end it. {}.",
                terminal_text::one_line(&words::verdict(stuck))
            ),
            (None, Some(due)) => {
                format!(
                    "Not ended: it is being stopped, SIGKILL is due {}.",
                    at(due)
                )
            }
            (None, None) if attempt.leader_exited_time.is_some() => {
                "Not ended: its command has, and the rest of it has not.".into()
            }
            (None, None) => "Not ended: it is being stopped.".into(),
        },
        pb::RunState::Backoff => format!(
            "Not ended: attempt {} has ({}), and the next one begins {}.",
            attempt.number,
            attempt
                .end_reason
                .as_ref()
                .map_or_else(|| "why is not known".to_owned(), words::end_reason),
            run.next_restart_time.map_or_else(
                || "at `kennel restart`: it was restarted too often in a row".to_owned(),
                |due| when(Some(due))
            )
        ),
        _ => "This version of kennel does not know how it stands.".into(),
    }
}

fn decided(by: &str, unknown: &mut Vec<String>) -> String {
    unknown.push("whether and how its command ended: its node was unreachable".into());
    format!(
        "Closed as lost because {} has forgotten its node, which was unreachable.",
        terminal_text::one_line(by)
    )
}

fn rebooted(unknown: &mut Vec<String>) -> String {
    unknown.push("how its command ended: it went with its host".into());
    "Ended with its host, which was started anew while it ran (or its pid namespace was made anew)."
        .into()
}

fn ended(known: &Records, reason: &pb::EndReason, unknown: &mut Vec<String>) -> String {
    let run = &known.run;
    let attempt = run.current_attempt.clone().unwrap_or_default();
    let end = when(attempt.leader_exited_time.or(run.end_time));
    let took = took(&attempt);
    match &reason.reason {
        Some(Reason::Exited(_)) => by_itself(known, &attempt, &end, unknown),
        Some(Reason::SuccessExit(_)) => format!(
            "Ended by itself: its command {} at {end}, which its spec counts as success.",
            exit(&attempt)
        ),
        Some(Reason::Aborted(aborted)) => format!(
            "Ended because {} requested it{}: {took}.",
            terminal_text::one_line(&aborted.by),
            request(&aborted.request_id)
        ),
        Some(Reason::Restarted(restarted)) => format!(
            "Ended because {} requested another attempt{}, and none could follow: {took}.",
            terminal_text::one_line(&restarted.by),
            request(&restarted.request_id)
        ),
        Some(Reason::StartFailed(_)) => {
            let why = terminal_text::one_line(&words::end_reason(reason));
            format!("Never started: {why}.")
        }
        Some(Reason::Fenced(fenced)) => format!(
            "Never started: {} requested its end before it was spawned.",
            terminal_text::one_line(&fenced.by)
        ),
        Some(Reason::ParentEnded(_)) => format!(
            "Ended because its parent, run {}, has ended: {took}.",
            list::parent_of(run).unwrap_or_default()
        ),
        Some(Reason::ServerShutdown(_)) => {
            format!("Ended because the service was shut down: {took}.")
        }
        Some(Reason::ServiceLost(_)) => lost(&attempt, unknown),
        Some(Reason::Rebooted(_)) => rebooted(unknown),
        Some(Reason::OrphanTerminated(_)) => format!(
            "Ended by Kennel, which could not continue it: its service had died, or no server came back in time; {took}."
        ),
        Some(Reason::NodeForgotten(forgotten)) => decided(&forgotten.by, unknown),
        Some(Reason::ShimLost(_)) => format!(
            "Ended by Kennel, which had lost the run's shim, its own process beside the command; {took}."
        ),
        Some(Reason::DeadlineExceeded(exceeded)) => too_long(run, &took, exceeded.which()),
        Some(Reason::OomKilled(killed)) => {
            unknown.push(
                "whether its own limit or the whole host was short of memory, and which of its processes were killed: the kernel does not say"
                    .into(),
            );
            let processes = values::counted(killed.kills, "process", "processes");
            let limit = match killed.memory_max_bytes {
                Some(bytes) => format!("its limit of memory was {bytes} bytes"),
                None => "it had no limit of memory of its own, or none that could be read".into(),
            };
            format!(
                "Ended for lack of memory: the kernel killed {processes} of its control group, its command among them, at {end}; {limit}."
            )
        }
        Some(Reason::MemoryReserve(short)) => format!(
            "Ended by Kennel as the largest run, because the memory of its node was short: {} of {} bytes used, and {} reserved (serve --memory-reserve); {took}.",
            short.used_bytes, short.limit_bytes, short.reserve_bytes
        ),
        Some(Reason::LimitExceeded(exceeded)) => over_limit(run, &took, exceeded.limit()),
        Some(Reason::NotReady(_)) => {
            let readiness = run.spec.as_ref().and_then(|spec| spec.readiness.as_ref());
            let limit = readiness.and_then(|readiness| readiness.start_timeout);
            let limit = limit.and_then(|limit| limit.try_into().ok());
            let limit = limit_text(run, pb::Deadline::StartTimeout, limit);
            format!("Ended because it was not ready within its start timeout{limit}; {took}.")
        }
        Some(Reason::NotLive(not_live)) => format!(
            "Ended because it was not live: {} failed in a row, the last with: {}; {took}.",
            values::counted(not_live.failures, "probe", "probes"),
            terminal_text::one_line(&not_live.error)
        ),
        Some(Reason::Watchdog(watchdog)) => no_sign(run, &took, watchdog.triggered),
        Some(Reason::Result(result)) => format!(
            "Ended after its result: the output rule {} had seen it, and the run did not end by itself; {took}.",
            result.rule
        ),
        Some(Reason::RestartsExhausted(exhausted)) => format!(
            "Ended because it had been started again as often as it may: after {} the last attempt {}, at {end}.",
            values::counted(exhausted.restarts, "restart in a row", "restarts in a row"),
            exit(&attempt)
        ),
        None => "Ended for a reason that this version of kennel does not know.".into(),
    }
}

fn over_limit(run: &pb::Run, took: &str, limit: pb::Limit) -> String {
    let max = run.spec.as_ref().and_then(|spec| spec.output);
    let max = max.and_then(|output| output.max_bytes);
    match limit {
        pb::Limit::OutputBytes => {
            let max = max.map_or_else(String::new, |max| format!(" ({max} bytes)"));
            format!(
                "Ended by its limit of output: it had written more than is kept of it{max}; {took}."
            )
        }
        pb::Limit::Disk => {
            format!("Ended because there was no room for its output on the server's disk; {took}.")
        }
        pb::Limit::Unspecified => {
            format!("Ended by a limit that this version of kennel does not know; {took}.")
        }
    }
}

/// Formats a limit of time of the last attempt, with its extension.
fn limit_text(run: &pb::Run, which: pb::Deadline, limit: Option<Duration>) -> String {
    let own = run.time_limits.iter().find(|own| own.limit() == which);
    let extended = own.and_then(|own| words::millis(own.extended?));
    match (limit, extended) {
        (Some(limit), Some(extended)) => format!(" ({limit:?}, extended by {extended:?})"),
        (Some(limit), None) => format!(" ({limit:?})"),
        (None, _) => String::new(),
    }
}

fn too_long(run: &pb::Run, took: &str, which: pb::Deadline) -> String {
    let spec = run.spec.as_ref();
    let (what, limit) = match which {
        pb::Deadline::MaxRuntime => (
            "it had run for longer than max_runtime allows",
            spec.and_then(|spec| spec.timeouts?.max_runtime),
        ),
        pb::Deadline::MaxPause => (
            "it had been paused for longer than max_pause allows",
            spec.and_then(|spec| spec.pause?.max_pause),
        ),
        pb::Deadline::Inactivity => (
            "it had no output and no input for longer than inactivity allows",
            spec.and_then(|spec| spec.timeouts?.inactivity),
        ),
        pb::Deadline::StartTimeout | pb::Deadline::Unspecified => {
            ("a limit of time was exceeded", None)
        }
    };
    let limit = limit_text(run, which, limit.and_then(|limit| limit.try_into().ok()));
    format!("Ended by its limit of time: {what}{limit}; {took}.")
}

fn no_sign(run: &pb::Run, took: &str, triggered: bool) -> String {
    if triggered {
        return format!(
            "Ended by its watchdog: its command reported that it does not work (WATCHDOG=trigger); {took}."
        );
    }
    let liveness = run.spec.as_ref().and_then(|spec| spec.liveness.as_ref());
    let limit = match liveness.and_then(|liveness| liveness.probe.as_ref()) {
        Some(pb::liveness::Probe::Watchdog(limit)) => Duration::try_from(*limit).ok(),
        _ => None,
    };
    let limit = limit.map_or_else(String::new, |limit| format!(" for {limit:?}"));
    format!("Ended by its watchdog: its command gave no sign{limit}; {took}.")
}

fn by_itself(
    known: &Records,
    attempt: &pb::Attempt,
    end: &str,
    unknown: &mut Vec<String>,
) -> String {
    let Some(pb::exit::Result::Signal(signal)) =
        attempt.exit.as_ref().and_then(|exit| exit.result.as_ref())
    else {
        return format!("Ended by itself: its command {} at {end}.", exit(attempt));
    };
    let name = terminal_text::one_line(&signal.name);
    if let Some(asked) = asked_signal(known, attempt, &signal.name) {
        let by = terminal_text::one_line(&asked.by);
        return format!(
            "Ended by {name}, which {by} had requested ({}), at {end}.",
            asked.rpc
        );
    }
    match signal.name.as_str() {
        "SIGSEGV" | "SIGBUS" | "SIGILL" | "SIGFPE" | "SIGABRT" | "SIGSYS" | "SIGTRAP" => {
            unknown.push(format!(
                "whether the command failed by itself, as {name} says as a rule, or that was sent"
            ));
            format!(
                "Ended by {name} at {end}: as a rule a failure of the command itself; Kennel did not send it."
            )
        }
        "SIGXCPU" | "SIGXFSZ" => {
            unknown.push(format!("whether the kernel sent {name} for a limit of the command, as is the rule, or another process did"));
            format!(
                "Ended by {name} at {end}: as a rule a limit of the process (setrlimit); Kennel did not send it."
            )
        }
        _ => {
            unknown.push(format!("who sent {name}: the kernel does not say"));
            format!(
                "Ended by {name} from outside at {end}: Kennel did not send it, and who did is not known."
            )
        }
    }
}

/// Returns a request for this very signal shortly before the end.
fn asked_signal<'a>(
    known: &'a Records,
    attempt: &pb::Attempt,
    signal: &str,
) -> Option<&'a pb::AuditRequest> {
    let ended = attempt.leader_exited_time?.seconds;
    known.audit.iter().rev().find_map(|record| {
        let Some(Record::Request(request)) = &record.record else {
            return None;
        };
        let before = ended - record.time?.seconds;
        let is_near = (-1..=CAUSE_WITHIN_SECS).contains(&before);
        let is_it = match request.rpc.as_str() {
            "Signal" => {
                let asked = request.asked.get("signal").map(String::as_str);
                asked.map(bare) == Some(bare(signal))
            }
            "Interrupt" => signal == "SIGINT",
            _ => false,
        };
        (is_near && is_it && request.code == "OK").then_some(request)
    })
}

/// Returns the name without prefix: `USR1` is another name of `SIGUSR1`.
fn bare(signal: &str) -> &str {
    signal.strip_prefix("SIG").unwrap_or(signal)
}

/// Answers for a run whose service died.
fn lost(attempt: &pb::Attempt, unknown: &mut Vec<String>) -> String {
    let by_shim = attempt.certificate.iter().flat_map(|c| &c.steps);
    let signalled = by_shim
        .filter(|s| s.sender() == pb::SignalSender::Shim)
        .count()
        > 0;
    let how = match (&attempt.exit, signalled) {
        (_, true) => format!(
            "its shim ended it by its own plan, and it {}",
            exit(attempt)
        ),
        (Some(_), false) => format!("what ended it then is not known; it {}", exit(attempt)),
        (None, false) => "how is not known".into(),
    };
    if !signalled {
        unknown.push("what ended it: no server watched".into());
    }
    format!("Ended while its service was dead: {how}.")
}

/// Describes the steps of the stop, and the exit of its command.
fn took(attempt: &pb::Attempt) -> String {
    let exit = exit(attempt);
    let steps = attempt.certificate.iter().flat_map(|c| &c.steps);
    let mut signals: Vec<&str> = steps
        .filter(|step| step.delivered > 0 && step.signal != "SIGCONT")
        .map(|step| step.signal.as_str())
        .collect();
    signals.dedup();
    if signals.is_empty() {
        return format!("its command {exit}, and no signal was needed");
    }
    format!(
        "after {} its command {exit}",
        terminal_text::one_line(&signals.join(", "))
    )
}

/// Describes the exit: `exited with code 3`.
fn exit(attempt: &pb::Attempt) -> String {
    let result = attempt.exit.as_ref().and_then(|exit| exit.result.as_ref());
    match result {
        Some(pb::exit::Result::Code(code)) => format!("exited with code {code}"),
        Some(pb::exit::Result::Signal(signal)) => {
            format!("was ended by {}", terminal_text::one_line(&signal.name))
        }
        Some(pb::exit::Result::Unknown(_)) => "ended, how is not known".into(),
        None => "never ran, or how it ended is not known".into(),
    }
}

fn request(id: &str) -> String {
    match id {
        "" => String::new(),
        id => format!(" (request {})", terminal_text::one_line(id)),
    }
}

/// Formats the time to the second, which is enough for a sentence.
fn at(mut time: client::Time) -> String {
    time.nanos = 0;
    time.to_string()
}

fn when(time: Option<client::Time>) -> String {
    time.map_or_else(|| "at a time that is not known".into(), at)
}

#[cfg(test)]
mod tests;
