//! `kennel audit`: the audit log, one line per record.

use crate::{
    complete,
    failure::Failure,
    link::{Link, refused},
    sentence, terminal_text, values,
};
use clap::Args;
use clap_complete::engine::ArgValueCompleter;
use kennel_client as client;
use kennel_lifecycle::Backoff;
use kennel_proto::pb::{self, audit_record::Record};
use std::{
    hash::{BuildHasher as _, RandomState},
    path::PathBuf,
    time::{Duration, SystemTime},
};

/// Flags of `audit`.
#[derive(Debug, Args)]
pub struct AuditArgs {
    /// Id of a run [default: all runs and the service]
    #[arg(add = ArgValueCompleter::new(complete::runs), value_name = "RUN")]
    pub(crate) run: Option<String>,
    /// Print only newer records: how long ago, such as 10m, or a time
    #[arg(long, value_name = "TIME", allow_hyphen_values = true, value_parser = values::moment)]
    pub(crate) since: Option<SystemTime>,
    /// Print only older records: how long ago, or a time
    #[arg(long, value_name = "TIME", allow_hyphen_values = true, value_parser = values::moment, conflicts_with = "follow")]
    pub(crate) until: Option<SystemTime>,
    /// Follow new records
    #[arg(short, long)]
    pub(crate) follow: bool,
    /// Check the chain of the files in this data directory, or of a file of --export, without a server, and print the newest
    /// record's SEQ:HASH
    #[arg(long, value_name = "PATH", conflicts_with_all = ["run", "since", "until", "follow"])]
    pub verify: Option<PathBuf>,
    /// Print the records of this data directory as they are there, lines of JSON with their chain, without a server
    #[arg(long, value_name = "DATA_DIR", conflicts_with_all = ["run", "since", "until", "follow", "verify"])]
    pub export: Option<PathBuf>,
    /// With --export: only records behind this one
    #[arg(
        long,
        value_name = "SEQ",
        requires = "export",
        default_value_t = 0,
        hide_default_value = true
    )]
    pub after: u64,
    /// With --verify: a SEQ:HASH printed earlier, which must still be part of the chain
    #[arg(long, value_name = "SEQ:HASH", requires = "verify")]
    pub head: Option<String>,
}

impl AuditArgs {
    /// Whether it reads files instead of calling a server.
    pub fn is_offline(&self) -> bool {
        self.verify.is_some() || self.export.is_some()
    }
}

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
    let mut record = record.clone();
    if let Some(Record::Signal(signal)) = &mut record.record {
        let more = signal.processes.len().saturating_sub(PROCESSES_SHOWN_MAX);
        signal.processes.truncate(PROCESSES_SHOWN_MAX);
        let more = u32::try_from(more).unwrap_or(u32::MAX);
        signal.unlisted = signal.unlisted.saturating_add(more);
    }
    sentence::of("auditRecord", &record)
}
