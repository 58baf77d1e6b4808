//! The calls that write and read the audit log.

use crate::{
    audit_log::{DeniedCaller, TrailAsk, TrailReader, TrailRecord},
    registry::Supervisor,
};
use tokio::sync::watch;

impl Supervisor {
    /// Records that a caller requested a change. Waits a moment for the disk, never longer.
    pub async fn audit_recorded(&self, record: TrailRecord) {
        self.shared.trail.record_written(record).await;
    }

    /// Records one of many similar calls, where the caller cannot wait.
    pub fn audit_counted(&self, record: TrailRecord) {
        self.shared.trail.count(record);
    }

    /// Records that a caller without permission was refused: the first refusal at once, then those of a minute as one
    /// line, so that a flood of refusals pushes nothing else out.
    pub fn audit_denied(&self, record: TrailRecord, of: DeniedCaller) {
        self.shared.trail.deny(record, of);
    }

    /// Queues a record at once and does not report whether it was written.
    pub fn audit_noted(&self, record: TrailRecord) {
        self.shared.trail.record(record);
    }

    /// Reads the audit log, with every record queued by now.
    pub async fn audit_trail(&self, ask: TrailAsk) -> TrailReader {
        self.shared.trail.flush().await;
        self.shared.trail.read(ask)
    }

    /// Follows the seq of the newest record in the files; it begins with every one queued by now.
    pub async fn audit_head(&self) -> watch::Receiver<u64> {
        self.shared.trail.flush().await;
        self.shared.trail.head()
    }

    /// Number of lines that were dropped and that the audit log does not account for yet.
    pub fn audit_lost(&self) -> u64 {
        self.shared.trail.lost()
    }
}
