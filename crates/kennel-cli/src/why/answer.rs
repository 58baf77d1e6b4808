//! The answer: one plain sentence as the first line. Pure.

use super::Records;
use crate::{render, sentence, terminal_text, words};
use kennel_client as client;
use kennel_proto::{
    fields::ToFields as _,
    pb::{self, audit_record::Record, end_reason::Reason},
};
use serde_json::json;

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
        line.push_str(&sentence::verdict(verdict));
        line.push('.');
    }
    Answer { line, unknown }
}

/// Answers for a run that has not ended.
fn stands(run: &pb::Run) -> String {
    let waits_to_be_ready = render::ready(run).is_some();
    sentence::of_with("stands", run, &json!({"waitsToBeReady": waits_to_be_ready}))
}

fn ended(known: &Records, reason: &pb::EndReason, unknown: &mut Vec<String>) -> String {
    let run = &known.run;
    let attempt = run.current_attempt.clone().unwrap_or_default();
    let end = attempt.leader_exited_time.or(run.end_time);
    let end = end.map_or_else(|| "at a time that is not known".to_owned(), at);
    let mut more = run.to_fields();
    more["took"] = took(&attempt).into();
    more["exit"] = exit(&attempt).into();
    more["end"] = end.into();
    more["reason"] = sentence::end_reason(reason).into();
    more["extendedBy"] = extension(run, reason).unwrap_or_default().into();
    more["endedByShim"] = is_ended_by_shim(&attempt).into();
    if let Some(pb::exit::Result::Signal(signal)) =
        attempt.exit.as_ref().and_then(|e| e.result.as_ref())
    {
        more["signal"] = signal.name.clone().into();
        more["usual"] = usual_cause(&signal.name).into();
        if let Some(asked) = asked_signal(known, &attempt, &signal.name) {
            more["asked"] = asked.to_fields();
        }
    }
    let not_known = sentence::of_field("notKnown", reason, &more);
    unknown.extend(not_known.filter(|what| !what.is_empty()));
    sentence::of_with("why", reason, &more)
}

/// Returns where a signal comes from as a rule that Kennel did not send.
fn usual_cause(signal: &str) -> &'static str {
    match signal {
        "SIGSEGV" | "SIGBUS" | "SIGILL" | "SIGFPE" | "SIGABRT" | "SIGSYS" | "SIGTRAP" => "fault",
        "SIGXCPU" | "SIGXFSZ" => "limit",
        _ => "outside",
    }
}

fn is_ended_by_shim(attempt: &pb::Attempt) -> bool {
    let mut steps = attempt.certificate.iter().flat_map(|c| &c.steps);
    steps.any(|step| step.sender() == pb::SignalSender::Shim)
}

/// Formats the extension of the limit of time that ended the last attempt.
fn extension(run: &pb::Run, reason: &pb::EndReason) -> Option<String> {
    let which = match &reason.reason {
        Some(Reason::DeadlineExceeded(exceeded)) => exceeded.which(),
        _ => pb::Deadline::StartTimeout,
    };
    let own = run.time_limits.iter().find(|own| own.limit() == which);
    let extended = words::millis(own?.extended?)?;
    Some(format!("{extended:?}"))
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
    sentence::of("commandExit", &attempt.exit.clone().unwrap_or_default())
}

/// Formats the time to the second, which is enough for a sentence.
fn at(mut time: client::Time) -> String {
    time.nanos = 0;
    time.to_string()
}

#[cfg(test)]
mod tests;
