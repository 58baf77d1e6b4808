//! `kennel why`: explains a run in the order of its events, from the records: the run, its journal, the audit log.
//! Unknown parts are listed.

mod answer;
mod story;

use crate::{
    args::RunRefs,
    audit,
    each::each,
    failure::Failure,
    link::{Link, run_of},
    terminal_text, values,
};
use answer::Answer;
use clap::Args;
use kennel_client as client;
use kennel_client::{EventReader, Start, Time};
use kennel_proto::pb::{self, audit_record::Record, event::Payload};
use serde_json::json;
use std::fmt::Write as _;
use story::Moment;

#[derive(Debug, Args)]
pub struct WhyArgs {
    #[command(flatten)]
    pub(crate) runs: RunRefs,
    /// Number of last output lines to show
    #[arg(long, value_name = "NUMBER", default_value_t = 10, value_parser = clap::value_parser!(u16).range(0..=1000))]
    pub(crate) lines: u16,
}

/// Time after a run's end in which events of the service belong to its story.
const AFTER_SECS: i64 = 2;

/// Subject of a message about unreadable records.
const UNREAD_AUDIT: &str = "the audit log";

/// All records.
#[derive(Default)]
pub(super) struct Records {
    pub(super) run: pb::Run,
    /// Lifecycle events, signals and warnings, with their times.
    pub(super) events: Vec<(Time, Payload)>,
    /// Audit records about this run.
    pub(super) audit: Vec<pb::AuditRecord>,
    /// Audit records about the service, in the run's time.
    pub(super) node: Vec<pb::AuditRecord>,
    pub(super) output: Vec<pb::Line>,
    /// Records that could not be read.
    pub(super) unread: Vec<String>,
}

pub(crate) async fn why(link: &Link, args: WhyArgs) -> Result<u8, Failure> {
    each(link, &args.runs, async |run_id| {
        let known = Box::pin(known(link, &run_id, args.lines)).await?;
        let Answer { line, mut unknown } = answer::answer(&known);
        let moments = story::moments(&known, &mut unknown);
        unknown.extend(known.unread.iter().cloned());
        let shown = link.either_of(
            &known.run,
            || as_json(&known, &line, &moments, &unknown),
            || as_text(&known, &line, &moments, &unknown),
        );
        Ok((shown, 0))
    })
    .await
}

async fn known(link: &Link, run_id: &str, lines: u16) -> Result<Records, Failure> {
    let request = pb::GetRunRequest {
        run_id: run_id.to_owned(),
    };
    let run = run_of(link.call(request).await?.run)?;
    let mut known = Records {
        run,
        ..Records::default()
    };
    if let Err(failure) = read_journal(link, &mut known, lines).await {
        known.unread.push(format!("its journal: {failure}"));
    }
    let of_run = pb::StreamAuditRequest {
        run_id: run_id.to_owned(),
        ..pb::StreamAuditRequest::default()
    };
    known.audit = trail(link, of_run, &mut known.unread).await;
    known.audit.retain(|record| !is_refused_elsewhere(record));
    let end = known.run.end_time.map(|mut end| {
        end.seconds += AFTER_SECS;
        end
    });
    let of_node = pb::StreamAuditRequest {
        since_time: known.run.create_time,
        until_time: end,
        kinds: vec![pb::AuditKind::Node.into()],
        ..pb::StreamAuditRequest::default()
    };
    known.node = trail(link, of_node, &mut known.unread).await;
    known.node.retain(|record| !is_refused_elsewhere(record));
    Ok(known)
}

/// Whether it is a refused call about no run, which has changed nothing of this one.
fn is_refused_elsewhere(record: &pb::AuditRecord) -> bool {
    let Some(Record::Request(request)) = &record.record else {
        return false;
    };
    record.run_id.is_empty() && request.code != "OK"
}

/// Reads the audit log; the rest of the story does not depend on it.
async fn trail(
    link: &Link,
    request: pb::StreamAuditRequest,
    unread: &mut Vec<String>,
) -> Vec<pb::AuditRecord> {
    match audit::all(link, request).await {
        Ok(records) => records,
        Err(failure) => {
            let what = format!("{UNREAD_AUDIT}: {}", failure.message());
            // One reason refuses both calls: it is listed once.
            if !unread.contains(&what) {
                unread.push(what);
            }
            Vec::new()
        }
    }
}

async fn read_journal(link: &Link, known: &mut Records, lines: u16) -> Result<(), client::Failure> {
    use pb::EventKind::{Lifecycle, SignalSent, Warning};
    let run_id = known.run.run_id.clone();
    let mut facts = EventReader::new(&link.connection, &run_id, Start::Beginning);
    facts.request.kinds = [Lifecycle, SignalSent, Warning].map(Into::into).to_vec();
    facts.request.until = pb::StreamUntil::Head.into();
    while let Some(message) = facts.next().await? {
        for (time, payload) in payloads(message) {
            known.events.push((time, payload));
        }
    }
    if lines > 0 {
        known.output = client::last_lines(&link.connection, &run_id, lines.into()).await?;
    }
    Ok(())
}

fn payloads(message: pb::StreamEventsResponse) -> impl Iterator<Item = (Time, Payload)> {
    message.run_events.into_iter().flat_map(|events| {
        let base = events.base_time;
        let events = events.events.into_iter();
        events.filter_map(move |event| {
            let at = client::time_of(base, &event);
            Some((at, event.payload?))
        })
    })
}

fn as_text(known: &Records, line: &str, moments: &[Moment], unknown: &[String]) -> String {
    let mut text = format!("{line}\n\n");
    for fact in story::in_force(&known.run) {
        text.push_str(&fact);
        text.push('\n');
    }
    text.push('\n');
    for moment in moments {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{} {}", moment.at, moment.what);
    }
    if !known.output.is_empty() {
        text.push_str("\nlast lines of its output:\n");
        for line in &known.output {
            let stream = match line.stream() {
                pb::OutputStream::Stderr => '!',
                _ => '|',
            };
            let more = values::only_if(line.truncated, "...");
            let _ = writeln!(
                text,
                "  {stream} {}{more}",
                terminal_text::one_line(&line.text)
            );
        }
    }
    if !unknown.is_empty() {
        text.push_str("\nnot known:\n");
        for what in unknown {
            let _ = writeln!(text, "  {}", terminal_text::one_line(what));
        }
    }
    text
}

fn as_json(known: &Records, line: &str, moments: &[Moment], unknown: &[String]) -> String {
    let Records { run, output, .. } = known;
    let moments: Vec<_> = moments
        .iter()
        .map(|m| json!({"time": m.at.to_string(), "what": m.what, "from": m.from}))
        .collect();
    let output: Vec<_> = output
        .iter()
        .map(|line| {
            let stream = super::words::stream(line.stream());
            json!({"stream": stream, "text": line.text, "truncated": line.truncated})
        })
        .collect();
    let state = super::words::state(run.state());
    json!({
        "runId": run.run_id,
        "state": state,
        "answer": line,
        "inForce": story::in_force(run),
        "story": moments,
        "output": output,
        "unknown": unknown,
        "traceParent": run.trace_parent,
        "runTraceParent": run.run_trace_parent,
    })
    .to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    // promise: AU-6
    #[test]
    fn timeline_omits_refused_calls_of_other_runs() {
        let record = |run_id: &str, code: &str| pb::AuditRecord {
            run_id: run_id.to_owned(),
            record: Some(Record::Request(pb::AuditRequest {
                code: code.to_owned(),
                ..pb::AuditRequest::default()
            })),
            ..pb::AuditRecord::default()
        };
        assert!(is_refused_elsewhere(&record("", "PERMISSION_DENIED")));
        assert!(!is_refused_elsewhere(&record("01", "PERMISSION_DENIED")));
        assert!(!is_refused_elsewhere(&record("", "OK")));
        assert!(!is_refused_elsewhere(&pb::AuditRecord::default()));
    }
}
