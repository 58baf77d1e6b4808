//! What the row of a run is still to say.

use super::STOP_RECORD_WAIT;
use crate::base::{RUNNING_RECORD_DELAY, clock};
use kennel_lifecycle::Facets;
use kennel_store::{Change, RunRow};
use std::collections::VecDeque;
use tokio::time::Instant;

/// Writes in their order, one of them under way, and those that are not due yet.
#[derive(Debug, Default)]
pub(super) struct Projection {
    writes: VecDeque<Change>,
    writing: bool,
    /// Time at which the row is to say that the command runs.
    pub(super) running_due: Option<Instant>,
    /// Time until which a stop waits for its record.
    pub(super) stop_due: Option<Instant>,
    /// Number of requested stops that are not on the row yet.
    pub(super) pending_stops: u32,
    /// The row, where that has another end than the task was to write.
    pub(super) closed_row: Option<Box<RunRow>>,
}

impl Projection {
    /// Whether writes are left.
    pub(super) fn is_busy(&self) -> bool {
        self.writing || !self.writes.is_empty()
    }

    /// Queues a write.
    pub(super) fn push(&mut self, write: Change) {
        self.writes.push_back(write);
    }

    /// Queues facets; they take the place of older ones that are the last in the queue. Returns whether they did.
    pub(super) fn replace_facets(&mut self, facets: &Facets) -> bool {
        let Some(Change::Facets(queued)) = self.writes.back_mut() else {
            return false;
        };
        (**queued).clone_from(facets);
        true
    }

    /// Takes the write that is next, unless one is under way.
    pub(super) fn next(&mut self) -> Option<Change> {
        let next = if self.writing {
            None
        } else {
            self.writes.pop_front()
        };
        self.writing |= next.is_some();
        next
    }

    /// The write that was under way is done.
    pub(super) fn written(&mut self) {
        self.writing = false;
    }

    /// Forgets what is queued: the row is another's.
    pub(super) fn clear(&mut self) {
        self.writes.clear();
    }

    /// Has the row say after a while that the command runs, unless it ends before.
    pub(super) fn run_later(&mut self) {
        self.running_due = Some(clock::instant() + RUNNING_RECORD_DELAY);
    }

    /// A stop is on its way to the row.
    pub(super) fn await_stop(&mut self) {
        self.stop_due
            .get_or_insert(clock::instant() + STOP_RECORD_WAIT);
        self.pending_stops += 1;
    }

    /// A stop is on the row.
    pub(super) fn stop_recorded(&mut self) {
        self.stop_due = None;
        self.pending_stops = self.pending_stops.saturating_sub(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn newer_facets_replace_queued_ones() {
        let mut projection = Projection::default();
        let facets = |revision| {
            let facets = Facets {
                revision,
                ..Facets::default()
            };
            Change::Facets(Box::new(facets))
        };
        assert!(!projection.replace_facets(&Facets::default()));
        projection.push(facets(1));
        assert!(matches!(projection.next(), Some(Change::Facets(first)) if first.revision == 1));
        assert!(projection.is_busy());
        // A write under way is not changed any more.
        assert!(!projection.replace_facets(&Facets::default()));
        projection.push(facets(2));
        let newest = Facets {
            revision: 3,
            ..Facets::default()
        };
        assert!(projection.replace_facets(&newest));
        assert!(projection.next().is_none());
        projection.written();
        assert!(matches!(projection.next(), Some(Change::Facets(last)) if last.revision == 3));
        projection.written();
        assert!(!projection.is_busy());
    }
}
