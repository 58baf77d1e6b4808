//! The events, in the order of their times. Pure.

use super::{Records, UNREAD_AUDIT};
use crate::{
    audit, command,
    event_line::event_words,
    limits,
    sentence::{self, Fields},
    terminal_text,
    view::DetailView,
};
use kennel_client::Time;
use kennel_proto::{
    fields::ToFields as _,
    pb::{self, audit_record::Record, event::Payload},
};
use serde_json::json;

/// Largest difference between two records of one signal.
const SAME_SIGNAL_SECS: i64 = 2;
/// Width of the names of facts in force.
const NAME_WIDTH: usize = 11;

/// An event.
pub(super) struct Moment {
    pub(super) at: Time,
    pub(super) what: String,
    /// Source of the record: `run`, `journal` or `audit`.
    pub(super) from: &'static str,
}

impl Moment {
    fn new(at: Time, what: String, from: &'static str) -> Self {
        Self { at, what, from }
    }
}

/// Returns all known events, in order.
pub(super) fn moments(known: &Records, unknown: &mut Vec<String>) -> Vec<Moment> {
    let mut moments = Vec::new();
    created(known, &mut moments, unknown);
    for attempt in &known.run.previous_attempts {
        former_attempt(attempt, &mut moments);
    }
    for (at, payload) in &known.events {
        if let Payload::SignalSent(sent) = payload
            && known.audit.iter().any(|record| is_same(record, *at, sent))
        {
            continue;
        }
        if let Some(what) = event_words(payload) {
            let what = terminal_text::one_line(&what);
            moments.push(Moment::new(*at, what, "journal"));
        }
    }
    if known.events.is_empty() {
        times(&known.run, &mut moments);
    }
    actions(&known.run, &mut moments);
    let asked = known.audit.iter().filter(|record| !is_spawn(record));
    for record in asked.chain(&known.node) {
        let Some(at) = record.time else { continue };
        let mut what = audit::reported(record);
        if is_unannounced_start(record, &known.node, known.run.create_time) {
            what.push_str("; the service before it had not been stopped: its keeper was killed, or its host died");
        }
        moments.push(Moment::new(at, what, "audit"));
    }
    if known.run.end_reason.is_some()
        && let Some(at) = known.run.end_time
    {
        let what = sentence::of("closedRun", &known.run);
        moments.push(Moment::new(at, what, "run"));
    }
    // Simultaneous events stay in the order in which they were recorded.
    moments.sort_by_key(|moment| (moment.at.seconds, moment.at.nanos));
    moments
}

fn created(known: &Records, moments: &mut Vec<Moment>, unknown: &mut Vec<String>) {
    let run = &known.run;
    let Some(at) = run.create_time else { return };
    let spawn = known.audit.iter().find(|record| is_spawn(record));
    let by = match spawn.map(|record| &record.record) {
        Some(Some(Record::Request(request))) => {
            let pid = request.pid.map(|pid| format!(" (pid {pid})"));
            format!("{}{}", request.by, pid.unwrap_or_default())
        }
        _ => {
            // Unreadable records are reported once.
            if !known
                .unread
                .iter()
                .any(|what| what.starts_with(UNREAD_AUDIT))
            {
                unknown
                    .push("which process requested it: the audit log has no record of it".into());
            }
            run.owner.clone()
        }
    };
    let command = command::line(run)
        .unwrap_or_else(|| "nothing: the run was ended before it was spawned".into());
    let again = match run.restarted_from.as_str() {
        "" => String::new(),
        former => format!(", as {former} again"),
    };
    moments.push(Moment::new(
        at,
        format!(
            "{} requested {command}{again}",
            terminal_text::one_line(&by)
        ),
        "run",
    ));
}

/// Adds an earlier attempt, whose journal may be gone.
fn former_attempt(attempt: &pb::Attempt, moments: &mut Vec<Moment>) {
    let Some(at) = attempt.end_time else { return };
    let what = sentence::of("formerAttempt", attempt);
    moments.push(Moment::new(at, what, "run"));
}

/// Adds the milestones of the run itself, where there is no journal.
fn times(run: &pb::Run, moments: &mut Vec<Moment>) {
    let attempt = run.current_attempt.clone().unwrap_or_default();
    let exit = attempt
        .exit
        .as_ref()
        .map(sentence::exit)
        .unwrap_or_default();
    let reported = [
        (attempt.start_time, "started".to_owned()),
        (attempt.leader_exited_time, format!("leader exited: {exit}")),
        (attempt.streams_closed_time, "streams closed".to_owned()),
        (attempt.tree_empty_time, "tree empty".to_owned()),
    ];
    for (at, what) in reported {
        let Some(at) = at else { continue };
        moments.push(Moment::new(at, what, "run"));
    }
    for step in attempt.certificate.iter().flat_map(|c| &c.steps) {
        let Some(at) = step.time else { continue };
        let what = sentence::of("stopStep", step);
        moments.push(Moment::new(at, what, "run"));
    }
}

/// Adds what a stop did beside signals, of which there are no events.
fn actions(run: &pb::Run, moments: &mut Vec<Moment>) {
    let attempt = run.current_attempt.as_ref();
    let Some(certificate) = attempt.and_then(|attempt| attempt.certificate.as_ref()) else {
        return;
    };
    let inputs = certificate.inputs.iter();
    let inputs = inputs.map(|input| (input.time, sentence::of("stopInput", input)));
    let commands = certificate.commands.iter();
    let commands = commands.map(|command| (command.time, sentence::of("stopCommand", command)));
    for (at, what) in inputs.chain(commands) {
        let Some(at) = at else { continue };
        moments.push(Moment::new(at, format!("stop step: {what}"), "run"));
    }
}

fn is_spawn(record: &pb::AuditRecord) -> bool {
    matches!(&record.record, Some(Record::Request(request)) if request.rpc == "Spawn" && request.code == "OK")
}

/// Whether the audit log has the same signal, with more detail.
fn is_same(record: &pb::AuditRecord, at: Time, sent: &pb::SignalSent) -> bool {
    let (Some(Record::Signal(reported)), Some(reported_at)) = (&record.record, record.time) else {
        return false;
    };
    let counts = (sent.delivered, sent.gone, sent.refused);
    let same = match counts {
        (Some(delivered), Some(gone), Some(refused)) => {
            (delivered, gone, refused) == (reported.delivered, reported.gone, reported.refused)
        }
        _ => reported.scope == "client",
    };
    same && reported.signal == sent.signal
        && (reported_at.seconds - at.seconds).abs() <= SAME_SIGNAL_SECS
}

/// Whether it is a start of the service in the run's time without an earlier stop.
fn is_unannounced_start(
    record: &pb::AuditRecord,
    node: &[pb::AuditRecord],
    created: Option<Time>,
) -> bool {
    let word = |record: &pb::AuditRecord| match &record.record {
        Some(Record::Node(node)) => node.what.clone(),
        _ => String::new(),
    };
    let began = |time: Option<Time>| time.map_or((0, 0), |time| (time.seconds, time.nanos));
    if word(record) != "service_started" || began(record.time) <= began(created) {
        return false;
    }
    let before = node.iter().filter(|other| other.seq < record.seq);
    let mut before = before.map(word);
    !before.any(|what| what == "service_stopped")
}

/// Returns the run's command and the limits in force.
pub(super) fn in_force(run: &pb::Run) -> Vec<String> {
    let limits = run.spec.as_ref().and_then(|spec| spec.limits.as_ref());
    let call = trace_id(&run.trace_parent);
    let own = trace_id(&run.run_trace_parent).filter(|own| Some(*own) != call);
    let more = json!({
        "cwd": command::shown_directory(run).unwrap_or_default(),
        "limits": limits.map(limits::words).unwrap_or_default(),
        "trace": own.or(call).unwrap_or_default(),
        "callersTrace": own.and(call).unwrap_or_default(),
    });
    let mut view = DetailView::new(NAME_WIDTH);
    let lines = include_str!("in_force.txt");
    view.lines(lines, &Fields::of(&more).inner(&run.to_fields()));
    view.text.lines().map(str::to_owned).collect()
}

/// Returns the trace id of a `traceparent`: `00-<trace id>-<span id>-<flags>`.
fn trace_id(traceparent: &str) -> Option<&str> {
    traceparent.split('-').nth(1)
}
