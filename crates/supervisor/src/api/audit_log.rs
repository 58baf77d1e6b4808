//! The calls that write and read the audit log.

use crate::{
    audit_log::{TrailAsk, TrailReader, TrailRecord},
    registry::Supervisor,
};

impl Supervisor {
    /// Writes down that somebody has asked for a change. Waits a moment for the disk, never longer.
    pub async fn audit_told(&self, record: TrailRecord) {
        self.shared.trail.told(record).await;
    }

    /// The same for one of many, and where nobody can wait.
    pub fn audit_counted(&self, record: TrailRecord) {
        self.shared.trail.count(record);
    }

    /// Writes down that a caller was refused who may not call: the first at once, then so many in a minute as one line, so that
    /// a flood of them pushes nothing else out.
    pub fn audit_denied(&self, record: TrailRecord) {
        self.shared.trail.deny(record);
    }

    /// The same, at once and without a word about how it went.
    pub fn audit_noted(&self, record: TrailRecord) {
        self.shared.trail.tell(record);
    }

    /// Reads the trail, with all that was handed in by now.
    pub async fn audit_trail(&self, ask: TrailAsk) -> TrailReader {
        self.shared.trail.flush().await;
        self.shared.trail.read(ask)
    }

    /// How many lines of the trail were dropped and are not accounted for in it yet.
    #[must_use]
    pub fn audit_lost(&self) -> u64 {
        self.shared.trail.lost()
    }
}
