//! Durability: the part of the log that is known to survive a power loss.

use super::{NodeLog, format::LogPosition, segment::Written};
use std::io;

/// Ranges of lost frames that are stored separately; older ones are merged.
const LOST_RANGES_MAX: usize = 64;

/// Durable part of the log.
#[derive(Clone, Debug)]
pub(super) struct Synced {
    /// All frames up to here are durable, except those in `lost`.
    position: LogPosition,
    /// Frames after the first and up to the second position were written to a segment whose sync failed.
    lost: Vec<(LogPosition, LogPosition)>,
}

/// A sync has failed.
#[derive(Debug, thiserror::Error)]
#[error("cannot sync the log: frames behind {sure} and up to {lost_upto} are to be appended again")]
pub struct SyncError {
    /// The last durable position.
    pub sure: LogPosition,
    /// The last position that is not.
    pub lost_upto: LogPosition,
    /// The cause.
    #[source]
    pub source: io::Error,
}

impl Synced {
    pub(super) fn new(position: LogPosition) -> Self {
        let lost = Vec::new();
        Self { position, lost }
    }

    fn lost_range(&self, position: LogPosition) -> Option<(LogPosition, LogPosition)> {
        let covers =
            |(sure, upto): &&(LogPosition, LogPosition)| *sure < position && position <= *upto;
        self.lost.iter().find(covers).copied()
    }

    fn lose(&mut self, upto: LogPosition) {
        // Without a sync since the last failure, its range grows.
        match self.lost.last_mut() {
            Some(last) if last.1 >= self.position => last.1 = upto,
            _ => self.lost.push((self.position, upto)),
        }
        if self.lost.len() > LOST_RANGES_MAX {
            // Frames between the merged ranges count as lost: frames appended twice are read once.
            let (sure, _) = self.lost.remove(0);
            self.lost[0].0 = sure;
        }
    }
}

impl NodeLog {
    /// Makes all frames up to `position` survive a power loss; blocks. Callers that wait together share one sync.
    /// Returns the synced position, which may be further.
    ///
    /// # Errors
    ///
    /// The segments that were not synced are abandoned: the next append begins a new one, and frames after
    /// [`SyncError::sure`] count only when they were appended again and synced there.
    pub fn sync(&self, position: LogPosition) -> Result<LogPosition, SyncError> {
        let _turn = self.sync_turn.lock();
        let known = self.synced.lock().clone();
        if let Some((sure, lost_upto)) = known.lost_range(position) {
            let source = io::Error::other("an earlier sync has failed");
            return Err(SyncError {
                sure,
                lost_upto,
                source,
            });
        }
        if position <= known.position {
            return Ok(known.position);
        }
        let unsynced = self.head.lock().unsynced();
        for written in &unsynced {
            if let Err(source) = self.sync_segment(written) {
                return Err(self.abandon(source));
            }
            let end = written.end();
            self.synced.lock().position = end;
        }
        self.head.lock().set_synced(&unsynced);
        Ok(self.synced.lock().position)
    }

    fn sync_segment(&self, written: &Written) -> io::Result<()> {
        if !written.is_name_synced {
            self.disk.sync_dir(&self.dir)?;
        }
        self.disk.sync(&written.file)
    }

    /// After a failed sync the kernel may mark the same pages clean: a later success would prove nothing.
    fn abandon(&self, source: io::Error) -> SyncError {
        let mut head = self.head.lock();
        let lost_upto = head.abandon();
        let mut synced = self.synced.lock();
        let sure = synced.position;
        synced.lose(lost_upto);
        SyncError {
            sure,
            lost_upto,
            source,
        }
    }
}
