//! Output of an owner on the disk of this node: the files of its journals, measured where they are.

use super::Shared;
use crate::{
    base::{blocking::blocking, calls::CallError, clock},
    record::node_store::read,
};
use kennel_keeper::rundir;
use kennel_lifecycle::RunId;
use kennel_store::FoundRows;
use parking_lot::Mutex;
use std::{
    collections::{HashMap, HashSet},
    path::Path,
    sync::Arc,
    time::Duration,
};
use tokio::time::Instant;

/// Rows read at a time.
const ROWS_MAX: usize = 500;

/// Time for which a measured sum is used.
const SUM_KEPT: Duration = Duration::from_secs(1);

/// What is known of the output on the disk.
#[derive(Debug, Default)]
pub(crate) struct RetainedOutput {
    /// What was read of ended runs that have a directory: it does not change until the directory is removed.
    ended: Mutex<HashMap<RunId, EndedOutput>>,
    /// Sums of owners that were measured a moment ago. One is measured at a time, and others wait for it.
    sums: tokio::sync::Mutex<Sums>,
}

/// Sums of owners, with the times from which on they are too old.
#[derive(Debug, Default)]
struct Sums(HashMap<String, (Instant, u64)>);

impl Sums {
    fn get(&mut self, owner: &str, now: Instant) -> Option<u64> {
        self.0.retain(|_, (end, _)| *end > now);
        self.0.get(owner).map(|(_, sum)| *sum)
    }

    fn set(&mut self, owner: &str, sum: u64, now: Instant) {
        self.0.insert(owner.to_owned(), (now + SUM_KEPT, sum));
    }
}

#[derive(Clone, Debug)]
struct EndedOutput {
    /// Absent: the database has no such run of this node.
    owner: Option<Arc<str>>,
    /// Size of the journal; absent: not measured.
    bytes: Option<u64>,
}

impl RetainedOutput {}

impl Shared {
    /// Checks that the output of this owner takes less than `most` bytes on the disk. Runs that begin within a second are
    /// checked against the same sum, and may then exceed it.
    pub(crate) async fn check_retained(
        self: &Arc<Self>,
        owner: &str,
        most: u64,
    ) -> Result<(), CallError> {
        let mut sums = self.retained.sums.lock().await;
        let kept = match sums.get(owner, clock::instant()) {
            Some(kept) => kept,
            None => {
                let kept = self.retained_bytes(owner).await?;
                sums.set(owner, kept, clock::instant());
                kept
            }
        };
        drop(sums);
        if kept < most {
            return Ok(());
        }
        Err(CallError::QuotaExceeded {
            what: "bytes of output on disk of this owner".into(),
            limit: most,
        })
    }

    /// Measures the output of all runs of an owner, live ones included, in whole blocks.
    async fn retained_bytes(self: &Arc<Self>, owner: &str) -> Result<u64, CallError> {
        let data_dir = self.config.data_dir.clone();
        let dirs = blocking(move || rundir::all(&data_dir)).await;
        let dirs: HashSet<RunId> = dirs
            .map_err(|error| internal(&error))?
            .into_iter()
            .collect();
        // A run that ends from here on is measured as a live run.
        let live: HashMap<RunId, Arc<str>> = self
            .all()
            .into_iter()
            .map(|(run, handle)| (run, handle.owner))
            .collect();
        self.learn_owners(&dirs, &live).await?;
        let own = live.iter().filter(|(_, of)| ***of == *owner);
        let mut unmeasured: Vec<RunId> = own.map(|(run, _)| *run).collect();
        let mut sum = 0u64;
        for (run, ended) in &*self.retained.ended.lock() {
            match ended.bytes {
                _ if ended.owner.as_deref() != Some(owner) => {}
                Some(bytes) => sum = sum.saturating_add(bytes),
                None => unmeasured.push(*run),
            }
        }
        let data_dir = self.config.data_dir.clone();
        let measured = blocking(move || {
            let size = |run: RunId| (run, size_bytes(&data_dir, run));
            unmeasured.into_iter().map(size).collect::<Vec<_>>()
        });
        let measured = measured.await.map_err(|error| internal(&error))?;
        let mut ended = self.retained.ended.lock();
        for (run, bytes) in measured {
            sum = sum.saturating_add(bytes);
            if let Some(ended) = ended.get_mut(&run) {
                ended.bytes = Some(bytes);
            }
        }
        Ok(sum)
    }

    /// Reads who owns the ended runs that are not known yet, and forgets those without a directory.
    async fn learn_owners(
        &self,
        dirs: &HashSet<RunId>,
        live: &HashMap<RunId, Arc<str>>,
    ) -> Result<(), CallError> {
        let unknown: Vec<RunId> = {
            let mut ended = self.retained.ended.lock();
            ended.retain(|run, _| dirs.contains(run) && !live.contains_key(run));
            let new = |run: &&RunId| !live.contains_key(run) && !ended.contains_key(run);
            // The directory of an unfinished run may grow.
            let new = dirs.iter().filter(new).copied();
            new.filter(|run| !self.record.is_unfinished(*run)).collect()
        };
        for runs in unknown.chunks(ROWS_MAX) {
            let FoundRows { rows, unread } = read!(self.store, get_all(runs))?;
            let mut ended = self.retained.ended.lock();
            for run in runs {
                let row = rows.iter().find(|row| row.new.run == *run);
                let row = row.filter(|row| row.new.node == self.config.node);
                let unread = unread.iter().find(|row| row.run == *run);
                let unread = unread.filter(|row| row.node == self.config.node);
                let owner = row.map(|row| &row.new.owner);
                let owner = owner.or(unread.map(|row| &row.owner));
                let owner = owner.map(|owner| Arc::from(owner.as_str()));
                ended.insert(*run, EndedOutput { owner, bytes: None });
            }
        }
        Ok(())
    }
}

/// A journal that cannot be listed counts as empty: it cannot be removed either.
pub(crate) fn size_bytes(data_dir: &Path, run: RunId) -> u64 {
    kennel_journal::size_bytes(&rundir::path(data_dir, run)).unwrap_or(0)
}

fn internal(error: &std::io::Error) -> CallError {
    CallError::Internal(error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn retained_sums_are_cached_for_a_second() {
        let (mut sums, now) = (Sums::default(), Instant::now());
        sums.set("team", 7, now);
        let moment = Duration::from_millis(1);
        assert_eq!(sums.get("team", now + SUM_KEPT - moment), Some(7));
        assert_eq!(sums.get("other", now), None);
        assert_eq!(sums.get("team", now + SUM_KEPT), None);
        assert!(sums.0.is_empty());
    }
}
