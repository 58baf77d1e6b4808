//! `kennel audit`: the audit log, one line per record.

use super::link::{Link, refused};
use crate::{args::AuditArgs, failure::Failure, sentence, terminal_text, values};
use kennel_client as client;
use kennel_lifecycle::Backoff;
use kennel_proto::pb::{self, audit_record::Record};
use std::{
    fmt::Write as _,
    hash::{BuildHasher as _, RandomState},
    time::Duration,
};

/// Delays before the next call after a server was lost.
const RETRY: Backoff = Backoff::up_to(Duration::from_millis(400), Duration::from_millis(400));
/// Most such calls in a row.
const AGAIN_MAX: u32 = 50;
/// Processes of a signal that are shown.
const PROCESSES_SHOWN_MAX: usize = 8;

pub(crate) async fn audit(link: &Link, args: AuditArgs) -> Result<(), Failure> {
    let mut request = pb::StreamAuditRequest {
        run_id: link.run_id_or_none(args.run.as_deref()).await?,
        since_time: args.since.map(Into::into),
        until_time: args.until.map(Into::into),
        follow: args.follow,
        ..pb::StreamAuditRequest::default()
    };
    let mut lost = 0;
    let mut retries = RETRY.retries(RandomState::new().hash_one(()));
    loop {
        let read = read(link, &mut request, &mut lost).await;
        let Err(failure) = read else { return Ok(()) };
        let passes = failure.is_lost && request.follow && lost < AGAIN_MAX;
        if !passes {
            return Err(failure.failure);
        }
        lost += 1;
        tokio::time::sleep(retries.next_delay()).await;
    }
}

/// The end of a stream before the end of the log.
struct Broken {
    failure: Failure,
    /// Whether another server can continue it.
    is_lost: bool,
}

impl From<client::Failure> for Broken {
    fn from(failure: client::Failure) -> Self {
        Self {
            is_lost: failure.connection_lost
                || failure.is("SERVER_REPLACED")
                || failure.is("NODE_DRAINING"),
            failure: refused(failure),
        }
    }
}

async fn read(
    link: &Link,
    request: &mut pb::StreamAuditRequest,
    lost: &mut u32,
) -> Result<(), Broken> {
    let mut admin = link.connection.admin();
    let asked = admin.stream_audit(request.clone()).await;
    let mut stream = asked.map_err(client::Failure::from)?.into_inner();
    loop {
        let message = stream.message().await.map_err(client::Failure::from)?;
        let Some(message) = message else {
            return Ok(());
        };
        *lost = 0;
        for record in &message.records {
            request.after_seq = record.seq;
            let printed = link.print(record, || terminal_text::one_line(&line(record)) + "\n");
            printed.map_err(|failure| Broken {
                failure,
                is_lost: false,
            })?;
        }
    }
}

/// Returns all existing records of a filter.
pub(crate) async fn all(
    link: &Link,
    request: pb::StreamAuditRequest,
) -> Result<Vec<pb::AuditRecord>, Failure> {
    let mut admin = link.connection.admin();
    let asked = admin.stream_audit(request).await;
    let mut stream = asked.map_err(refused)?.into_inner();
    let mut records = Vec::new();
    while let Some(message) = stream.message().await.map_err(refused)? {
        records.extend(message.records);
    }
    Ok(records)
}

/// `TIME RUN WORDS`.
fn line(record: &pb::AuditRecord) -> String {
    let at = record
        .time
        .map_or_else(|| "-".to_owned(), |at| at.to_string());
    let about = match record.run_id.as_str() {
        "" => "node".to_owned(),
        run => values::command_line([run]),
    };
    format!("{at} {about} {}", reported(record))
}

/// Formats a record on one line.
pub(crate) fn reported(record: &pb::AuditRecord) -> String {
    match &record.record {
        Some(Record::Request(request)) => asked(request),
        Some(Record::Signal(signal)) => signalled(signal),
        Some(Record::Node(node)) => {
            let mut text = node.what.replace('_', " ");
            for (name, value) in &node.detail {
                let _ = write!(text, " {name}={}", values::command_line([value.as_str()]));
            }
            text
        }
        None => "something that this version of kennel does not know".to_owned(),
    }
}

fn asked(request: &pb::AuditRequest) -> String {
    let mut text = request.rpc.clone();
    let by = values::command_line([request.by.as_str()]);
    let _ = write!(text, " by {by}");
    if let Some(pid) = request.pid {
        let _ = write!(text, " (pid {pid})");
    }
    if !request.credential.is_empty() {
        let shown = values::command_line([request.credential.as_str()]);
        let _ = write!(text, " ({shown})");
    }
    for (name, value) in &request.asked {
        let _ = write!(text, " {name}={}", values::command_line([value.as_str()]));
    }
    if request.bytes > 0 {
        let _ = write!(text, " bytes={}", request.bytes);
    }
    if request.calls > 1 {
        let _ = write!(text, " calls={}", request.calls);
    }
    if !request.request_id.is_empty() {
        let id = values::command_line([request.request_id.as_str()]);
        let _ = write!(text, " request={id}");
    }
    let _ = match (request.code.as_str(), request.reason.as_str()) {
        // Its answer comes before the new server, which may fall back.
        ("OK", _) if request.rpc == "Upgrade" => write!(text, ": begun"),
        ("OK", _) => write!(text, ": done"),
        ("CANCELLED", "") => write!(text, ": the caller did not wait for the answer"),
        (code, "") => write!(text, ": refused, {code}"),
        (_, reason) => write!(text, ": refused, {reason}"),
    };
    text
}

fn signalled(signal: &pb::AuditSignal) -> String {
    let mut text = format!(
        "{} by {} ({}), {}: {}",
        terminal_text::one_line(&signal.signal),
        signal.sender,
        signal.scope,
        terminal_text::one_line(&signal.why),
        sentence::of("signalCounts", signal)
    );
    for process in signal.processes.iter().take(PROCESSES_SHOWN_MAX) {
        let pb::AuditProcess {
            pid,
            start_ticks,
            evidence,
            result,
        } = process;
        let evidence = evidence.join("+");
        let _ = write!(text, "; {pid}:{start_ticks} ({evidence}) {result}");
    }
    let more = signal.processes.len().saturating_sub(PROCESSES_SHOWN_MAX);
    let more = u64::from(signal.unlisted) + u64::try_from(more).unwrap_or(u64::MAX);
    if more > 0 && !signal.processes.is_empty() {
        let _ = write!(text, "; and {more} more");
    }
    text
}
