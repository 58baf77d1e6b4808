//! The audit log for a collector: from its files, in their order, each record at least once.
//!
//! No call waits for it, and it holds one batch: what the collector has not taken stays in the files.

use super::{losses::Losses, scope};
use crate::values::chain_head;
use kennel_lifecycle::Backoff;
use kennel_linux::own_file;
use kennel_supervisor::{
    ChainHead, Supervisor, TrailAsk, TrailEntry, TrailKind, TrailRecord,
    telemetry::{Telemetry, names},
};
use opentelemetry::{
    InstrumentationScope,
    logs::{LogRecord as _, Logger, LoggerProvider, Severity},
};
use opentelemetry_otlp::LogExporter;
use opentelemetry_sdk::{
    Resource,
    error::{OTelSdkError, OTelSdkResult},
    logs::{LogBatch, LogExporter as Exporter, SdkLogRecord, SdkLogger, SdkLoggerProvider},
};
use std::{
    fs,
    hash::{BuildHasher as _, RandomState},
    io,
    io::Write as _,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, SystemTime},
};
use tokio::{runtime::Handle, sync::watch};

/// Name of the event of a record.
const EVENT: &str = "kennel.audit";
/// File in the directory of the audit log with the head of the chain that was exported.
const POSITION: &str = "audit/exported";
/// Longest time of one export.
const EXPORT_MAX: Duration = Duration::from_secs(15);
/// Delays after a failure.
const RETRY: Backoff = Backoff::up_to(Duration::from_secs(1), Duration::from_secs(10));
/// Pause between log lines while the collector takes nothing.
const LOG_AGAIN: Duration = Duration::from_hours(1);

/// Sends the audit log to a collector.
#[derive(Debug)]
pub(crate) struct AuditExport {
    exporter: LogExporter,
    logger: SdkLogger,
    scope: InstrumentationScope,
    runtime: Handle,
    losses: Losses,
}

impl AuditExport {
    pub(super) fn new(
        mut exporter: LogExporter,
        runtime: &Handle,
        resource: &Resource,
        losses: Losses,
    ) -> Self {
        exporter.set_resource(resource);
        Self {
            exporter,
            // The logger makes records, and sends none.
            logger: SdkLoggerProvider::builder()
                .build()
                .logger_with_scope(scope()),
            scope: scope(),
            runtime: runtime.clone(),
            losses,
        }
    }

    /// Sends records until the exporters end.
    pub(crate) fn start(self, supervisor: Supervisor, telemetry: &Telemetry, data_dir: &Path) {
        let mut position = Position::read(data_dir.join(POSITION));
        let (runtime, telemetry) = (self.runtime.clone(), telemetry.clone());
        runtime.spawn(async move {
            let head = supervisor.audit_log().head().await;
            match supervisor
                .audit_log().read(lines_after(position.before()))
                .await
                .next()
                .await
            {
                Ok(found) if position.is_followed(found.as_deref().unwrap_or_default()) => {}
                // The files were removed, or a power loss has cut their end: later lines reuse these numbers.
                Ok(_) => position.begin_anew(),
                Err(error) => {
                    tracing::warn!(%error, "cannot check where the export of the audit log continues");
                }
            }
            measure(&telemetry, head, &position.seq);
            self.run(&supervisor, position).await;
        });
    }

    async fn run(self, supervisor: &Supervisor, mut position: Position) {
        let mut silent = None;
        let mut unread = RETRY.retries(seed());
        loop {
            let ask = TrailAsk {
                follow: true,
                ..lines_after(position.get())
            };
            let mut reader = supervisor.audit_log().read(ask).await;
            let failure = loop {
                match reader.next().await {
                    Ok(Some(records)) => {
                        unread.reset();
                        let removed = removed(position.get(), &records);
                        if removed > 0 {
                            tracing::warn!(
                                records = removed,
                                "audit records were removed before a collector has taken them"
                            );
                            self.losses.lost("audit", "removed", removed);
                        }
                        self.deliver(&records, &mut silent).await;
                        let last = records.last().map(TrailRecord::head);
                        if let Err(error) = position.set(last.unwrap_or_default()) {
                            // The next server repeats all records sent since then.
                            tracing::warn!(%error, "cannot store which audit records a collector has");
                        }
                    }
                    Ok(None) => return,
                    Err(error) => break error,
                }
            };
            tracing::warn!(error = %failure, "cannot read the audit log for a collector, retrying");
            tokio::time::sleep(unread.next_delay()).await;
        }
    }

    /// Sends records until the collector has taken them. `silent`: pauses since a failure was logged; absent: none was
    /// since the last success.
    async fn deliver(&self, records: &[TrailRecord], silent: &mut Option<Duration>) {
        let made: Vec<SdkLogRecord> = records.iter().map(|one| self.record(one)).collect();
        let batch: Vec<_> = made.iter().map(|record| (record, &self.scope)).collect();
        let mut retries = RETRY.retries(seed());
        loop {
            let sending = self.exporter.export(LogBatch::new(&batch));
            let sent: OTelSdkResult = tokio::time::timeout(EXPORT_MAX, sending)
                .await
                .unwrap_or(Err(OTelSdkError::Timeout(EXPORT_MAX)));
            match sent {
                Ok(()) => {
                    self.losses.sent("audit", batch.len(), &Ok(()));
                    *silent = None;
                    return;
                }
                Err(error) => {
                    if is_due(*silent) {
                        *silent = Some(Duration::ZERO);
                        tracing::warn!(%error, "the collector has not taken audit records, they stay in their files");
                    }
                }
            }
            let delay = retries.next_delay();
            tokio::time::sleep(delay).await;
            *silent.get_or_insert_default() += delay;
        }
    }

    fn record(&self, line: &TrailRecord) -> SdkLogRecord {
        let mut record = self.logger.create_log_record();
        record.set_event_name(EVENT);
        let since = Duration::from_micros(line.at_us.unsigned_abs());
        record.set_timestamp(SystemTime::UNIX_EPOCH + since);
        // The exporter fails without an observed time, which the logger sets only when it emits.
        record.set_observed_timestamp(SystemTime::UNIX_EPOCH + since);
        record.set_severity_number(Severity::Info);
        record.set_severity_text("INFO");
        // The line as in its file: its hash chain can be checked.
        record.set_body(serde_json::to_string(line).unwrap_or_default().into());
        let seq = i64::try_from(line.seq).unwrap_or(i64::MAX);
        record.add_attribute("kennel.audit.seq", seq);
        if let Some(run) = &line.run {
            record.add_attribute(names::RUN_ID, run.clone());
        }
        if let TrailEntry::Request(request) = &line.entry {
            record.add_attribute("kennel.audit.rpc", request.rpc.clone());
            record.add_attribute("kennel.audit.principal", request.by.clone());
            record.add_attribute("kennel.audit.code", request.code.clone());
        }
        record
    }
}

/// Returns a random seed of delays.
fn seed() -> u64 {
    RandomState::new().hash_one(())
}

/// Whether a failure is logged. `silent`: pauses since one was.
fn is_due(silent: Option<Duration>) -> bool {
    silent.is_none_or(|silent| silent >= LOG_AGAIN)
}

/// Selects all lines behind this seq.
fn lines_after(after_seq: u64) -> TrailAsk {
    TrailAsk {
        after_seq,
        kinds: vec![TrailKind::Request, TrailKind::Signal, TrailKind::Node],
        repeats: true,
        ..TrailAsk::default()
    }
}

/// Returns how many records behind this seq are not there before the last of these: their files were removed. What was
/// there before the first export is not counted.
fn removed(after: u64, records: &[TrailRecord]) -> u64 {
    let last = records.last().map_or(0, |record| record.seq);
    let expected = last.saturating_sub(after);
    match after {
        0 => 0,
        _ => expected.saturating_sub(records.len() as u64),
    }
}

fn measure(telemetry: &Telemetry, head: watch::Receiver<u64>, exported: &Arc<AtomicU64>) {
    let exported = Arc::clone(exported);
    telemetry
        .meter()
        .u64_observable_gauge("kennel.audit.unexported")
        .with_unit("{record}")
        .with_description("Audit records that the collector has not taken yet")
        .with_callback(move |observer| {
            let exported = exported.load(Ordering::Relaxed);
            observer.observe(head.borrow().saturating_sub(exported), &[]);
        })
        .build();
}

/// The last exported record, in a file.
#[derive(Debug)]
struct Position {
    path: PathBuf,
    hash: String,
    seq: Arc<AtomicU64>,
}

impl Position {
    /// Reads it; seq 0 where there is none: records are sent again rather than never.
    fn read(path: PathBuf) -> Self {
        let text = fs::read_to_string(&path).unwrap_or_default();
        let head = chain_head(text.trim()).unwrap_or_default();
        Self {
            path,
            hash: head.hash,
            seq: Arc::new(AtomicU64::new(head.seq)),
        }
    }

    fn get(&self) -> u64 {
        self.seq.load(Ordering::Relaxed)
    }

    /// Returns the seq of the line before it.
    fn before(&self) -> u64 {
        self.get().saturating_sub(1)
    }

    /// Whether the export can go on behind it. `lines`: the first ones after [`Self::before`].
    fn is_followed(&self, lines: &[TrailRecord]) -> bool {
        let (seq, first) = (self.get(), lines.first());
        let is_same = |first: &TrailRecord| first.seq > seq || first.head().hash == self.hash;
        // The exported line's file may have been removed by age.
        seq == 0 || first.is_some_and(is_same)
    }

    fn begin_anew(&mut self) {
        self.hash.clear();
        self.seq.store(0, Ordering::Relaxed);
    }

    /// Stores it: a crash leaves this one or the one before it.
    fn set(&mut self, head: ChainHead) -> io::Result<()> {
        let text = format!("{}:{}\n", head.seq, head.hash);
        self.seq.store(head.seq, Ordering::Relaxed);
        self.hash = head.hash;
        let new = self.path.with_extension("new");
        let mut how = own_file::options();
        let mut file = how.write(true).create(true).truncate(true).open(&new)?;
        file.write_all(text.as_bytes())?;
        fs::rename(&new, &self.path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kennel_supervisor::LoggedRequest;

    fn records(seqs: &[u64]) -> Vec<TrailRecord> {
        let one = |seq: &u64| TrailRecord {
            seq: *seq,
            ..TrailRecord::now(None, TrailEntry::Request(LoggedRequest::default()))
        };
        seqs.iter().map(one).collect()
    }

    // promise: RW-142
    #[test]
    fn unexported_removed_records_are_counted() {
        assert_eq!(removed(7, &records(&[8, 9])), 0);
        assert_eq!(removed(7, &records(&[20, 21, 25])), 15);
        assert_eq!(removed(0, &records(&[20, 21])), 0, "it has exported none");
    }

    #[test]
    fn lasting_export_refusal_is_logged_every_hour() {
        assert!(is_due(None), "it is the first one");
        assert!(!is_due(Some(LOG_AGAIN / 2)));
        assert!(is_due(Some(LOG_AGAIN)));
    }

    #[test]
    fn export_position_persists_and_damage_resets_it() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("exported");
        assert_eq!(Position::read(path.clone()).get(), 0);
        let mut position = Position::read(path.clone());
        for record in records(&[7, 12]) {
            position.set(record.head()).expect("own directory");
        }
        assert_eq!(Position::read(path.clone()).get(), 12);
        fs::write(&path, "12").expect("own directory");
        assert_eq!(Position::read(path).get(), 0);
    }

    // promise: RW-142
    #[test]
    fn export_resumes_only_after_its_last_record() {
        let dir = tempfile::tempdir().expect("a directory");
        let mut position = Position::read(dir.path().join("exported"));
        assert!(position.is_followed(&[]), "it has exported none");
        let lines = records(&[7, 8]);
        position.set(lines[0].head()).expect("own directory");
        assert!(position.is_followed(&lines));
        assert!(position.is_followed(&lines[1..]), "its file was removed");
        assert!(!position.is_followed(&[]), "the log ends before it");
        let another = TrailRecord {
            run: Some("another".to_owned()),
            ..lines[0].clone()
        };
        assert!(!position.is_followed(&[another]));
    }
}
