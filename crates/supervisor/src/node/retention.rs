//! Removes the output of ended runs, within the limits of this node: runs per owner, age, bytes.
//!
//! The order: the row is marked; the directory is moved away in one step; the moved directory is removed. Whatever a
//! crash leaves in between, the next server continues with: a directory whose row is marked, or a moved one. A
//! directory without an ended row of this node always stays.

use crate::{
    base::{
        blocking::blocking,
        calls::{CallError, Payload},
        cause::Chain,
        clock, event,
    },
    node::{ROWS_MAX, floors},
    record::node_store::read,
    registry::{Shared, floors::Floor, retained::size_bytes},
};
use kennel_journal::Item;
use kennel_keeper::{rundir, unreadable};
use kennel_lifecycle::{
    Entry, OnOutputFull, OutputRemoval, RemovalReason, Retained, RetentionLimits, RunId,
    retention::due,
};
use kennel_linux::crash_point;
use kennel_store::{Change, ConsumerChange, NodeRemoval, StoreError};
use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    path::PathBuf,
    sync::Arc,
    time::Duration,
};
use tokio::task::JoinSet;

/// Interval at which the limits are checked.
const LOOK_EVERY: Duration = Duration::from_secs(10);
/// Time for which a consumer stays after its run's output was removed: a reader may return and must get that report.
const CONSUMER_REST: Duration = Duration::from_hours(24);
/// Checks of the limits between two removals of such consumers.
const CONSUMERS_EVERY: u32 = 60;
/// Rows read at a time.
const PAGE: u32 = 5_000;
/// Rows marked at a time: they share a commit.
const MARKED_AT_ONCE: usize = 64;

/// State carried from one check to the next.
#[derive(Debug, Default)]
struct SweepState {
    /// Whether the remains of earlier servers were searched.
    has_looked_back: bool,
    /// Marked runs whose directories are not moved away yet.
    marked: BTreeSet<RunId>,
    /// Runs that have a journal, which their rows do not know of: it was made after their ends were written.
    unlisted: Vec<Retained>,
    /// Runs whose output cannot be removed: there is no journal, or it cannot be read.
    left: HashSet<RunId>,
    /// Sizes of the journals of ended runs.
    bytes: HashMap<RunId, u64>,
    /// The last failure that was logged, so that it is not logged each time.
    logged_failure: String,
    is_over: bool,
    /// Whether the rows of earlier servers are counted.
    has_counted: bool,
    /// Checks left until consumers are removed.
    consumers_in: u32,
    /// Unreadable files that were logged.
    unreadable: BTreeSet<PathBuf>,
}

/// Result for one run.
enum Went {
    Marked,
    /// The output may be removed.
    Unknown,
    /// Not now: its end is not fully written yet.
    NotYet,
    /// Not now: the store is unavailable.
    Away,
    /// The output stays, for a permanent reason.
    Left,
}

/// Checks for as long as this server has the node.
pub(crate) async fn look_after(shared: Arc<Shared>) {
    let mut sweep = SweepState::default();
    loop {
        report_unreadable(&shared, &mut sweep).await;
        let _ = shared.store.taken_over().await;
        match look(&shared, &mut sweep).await {
            Ok(()) => sweep.logged_failure.clear(),
            Err(why) if why != sweep.logged_failure => {
                tracing::warn!(%why, "cannot remove output of ended runs, retrying");
                sweep.logged_failure = why;
            }
            Err(_) => {}
        }
        tokio::select! {
            () = tokio::time::sleep(LOOK_EVERY) => {}
            () = shared.serving.until_leaving() => return,
            () = shared.serving.until_keeper_lost() => return,
        }
    }
}

/// Logs each file of a run that could not be read, whichever process has found it, and removes the oldest beyond their
/// bound, and those of runs that had no output once these had retained it for long enough.
async fn report_unreadable(shared: &Arc<Shared>, sweep: &mut SweepState) {
    let mut logged = std::mem::take(&mut sweep.unreadable);
    let (shared, now) = (Arc::clone(shared), clock::now());
    let found = blocking(move || {
        let limits = &shared.config.retention;
        let is_old = |at| {
            *limits != RetentionLimits::NONE && shared.clock.between(at, now) >= limits.at_least
        };
        let found = unreadable::sweep(&shared.config.data_dir, &mut logged, is_old);
        (found, logged)
    });
    let found = found.await;
    let (found, logged) = found.unwrap_or_default();
    for one in found {
        let (path, bytes, why) = (one.path.display(), one.bytes, &one.why);
        tracing::error!(%path, bytes, %why, "cannot read a file of a run, keeping it aside");
    }
    sweep.unreadable = logged;
}

/// Continues what was begun, then removes what exceeds the limits. The error says what failed.
async fn look(shared: &Arc<Shared>, sweep: &mut SweepState) -> Result<(), String> {
    if !sweep.has_looked_back {
        look_back(shared, sweep).await.map_err(|e| e.to_string())?;
        sweep.has_looked_back = true;
    }
    let limits = &shared.config.retention;
    if *limits != RetentionLimits::NONE {
        let (retained, others) = retained(shared, sweep).await.map_err(|e| e.to_string())?;
        let mut going = due(&retained, others, limits, clock::now());
        warn_if_over(sweep, limits, others);
        // Runs that still have a task are counted, but not removed.
        going.retain(|(run, _)| !sweep.left.contains(run) && shared.find(*run).is_none());
        mark_all(shared, sweep, &going).await;
    }
    take_away(shared, sweep).await?;
    match sweep.consumers_in.checked_sub(1) {
        Some(left) => sweep.consumers_in = left,
        None => {
            let before = shared.clock.before(CONSUMER_REST);
            let expired = ConsumerChange::Expire(shared.config.node, before);
            let expired = shared.store.change_consumers(&expired).await;
            expired.map_err(|e| e.to_string())?;
            remove_dead_nodes(shared).await.map_err(|e| e.to_string())?;
            sweep.consumers_in = CONSUMERS_EVERY;
            if !sweep.has_counted {
                let counted = shared.add_stored_records().await;
                counted.map_err(|e| e.to_string())?;
                sweep.has_counted = true;
            }
        }
    }
    Ok(())
}

/// Removes nodes of the database that have had no lease for longer than the retention, and no open run.
async fn remove_dead_nodes(shared: &Shared) -> Result<(), StoreError> {
    let dead = NodeRemoval::WithoutLeaseFor {
        time: shared.config.node_retention,
        own: shared.config.node,
    };
    while shared.store.raw().remove_nodes(dead.clone()).await? {
        tracing::info!("nodes without a lease are removed from the database");
    }
    Ok(())
}

/// Finds what earlier servers marked and did not move away, and directories whose rows are removed. Another one without a row
/// of this node stays, for its owner is not known: returns these.
async fn look_back(
    shared: &Arc<Shared>,
    sweep: &mut SweepState,
) -> Result<BTreeSet<RunId>, StoreError> {
    let data_dir = shared.config.data_dir.clone();
    let all = blocking(move || rundir::all(&data_dir)).await;
    let mut dirs = all.map_err(|e| StoreError::Unavailable(e.to_string()))?;
    dirs.retain(|run| shared.find(*run).is_none());
    let mut strange: BTreeSet<RunId> = dirs.iter().copied().collect();
    sweep.unlisted.clear();
    for runs in dirs.chunks(ROWS_MAX) {
        let found = read!(shared.store, get_all(runs))?;
        for row in &found.unread {
            if row.node == shared.config.node {
                strange.remove(&row.run);
            }
        }
        for row in found.rows {
            if row.new.node != shared.config.node {
                continue;
            }
            strange.remove(&row.new.run);
            if row.outcome.is_some() && row.output_removed.is_some() {
                sweep.marked.insert(row.new.run);
            } else if let (Some(ended), None) = (row.times.ended, row.output_age)
                && !shared.record.is_unfinished(row.new.run)
            {
                sweep.unlisted.push(Retained {
                    run: row.new.run,
                    owner: row.new.owner.as_str().into(),
                    ended,
                    bytes: 0,
                });
            }
        }
        // These runs' rows were removed first.
        for run in read!(shared.store, removed_ids(runs))? {
            if strange.remove(&run) {
                sweep.marked.insert(run);
            }
        }
    }
    // Some of these runs may have started and ended since.
    if !strange.is_empty() {
        tracing::warn!(
            count = strange.len(),
            "keeping directories of runs that the database does not have for this node"
        );
    }
    Ok(strange)
}

/// Directories that a sweep has found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Swept {
    /// Removed ones, whose runs have no output any more.
    pub removed: u64,
    /// Their size in bytes.
    pub removed_bytes: u64,
    /// Those that stay because the database has no such run of this node.
    pub unknown: u64,
    /// Their size in bytes.
    pub unknown_bytes: u64,
}

/// Finishes now what earlier checks and servers have begun, and counts.
pub(crate) async fn sweep(shared: &Arc<Shared>) -> Result<Swept, CallError> {
    let mut state = SweepState::default();
    let strange = look_back(shared, &mut state).await?;
    let (data_dir, marked) = (shared.config.data_dir.clone(), state.marked.clone());
    let measured = blocking(move || {
        let size = |run: &RunId| size_bytes(&data_dir, *run);
        let sum = |runs: &BTreeSet<RunId>| (runs.len() as u64, runs.iter().map(size).sum());
        (sum(&marked), sum(&strange))
    });
    let ((removed, removed_bytes), (unknown, unknown_bytes)) = measured
        .await
        .map_err(|error| CallError::Internal(error.to_string()))?;
    take_away(shared, &mut state)
        .await
        .map_err(CallError::Internal)?;
    Ok(Swept {
        removed,
        removed_bytes,
        unknown,
        unknown_bytes,
    })
}

/// Removes the directory of a run whose row is removed, and no other: its caller waits.
pub(crate) async fn remove_directory(shared: &Shared, run: RunId) -> std::io::Result<()> {
    let data_dir = shared.config.data_dir.clone();
    let removing = blocking(move || {
        rundir::set_aside(&data_dir, run)?;
        rundir::remove_one_set_aside(&data_dir, run)
    });
    removing.await?
}

/// Lists ended runs that have their output, the newest first, and the total size of all other journals. Sizes are read
/// only where a limit needs them.
async fn retained(
    shared: &Arc<Shared>,
    sweep: &mut SweepState,
) -> Result<(Vec<Retained>, u64), CallError> {
    let mut owners: BTreeMap<String, Arc<str>> = BTreeMap::new();
    let (mut retained, mut start) = (Vec::new(), None);
    loop {
        let rows = read!(shared.store, with_output(shared.config.node, start, PAGE))?;
        start = rows.last().map(|row| row.age);
        let is_last = rows.len() < PAGE as usize;
        retained.extend(rows.into_iter().map(|row| {
            let owner = owners
                .entry(row.owner)
                .or_insert_with_key(|o| o.as_str().into());
            Retained {
                run: row.run,
                owner: Arc::clone(owner),
                ended: row.ended,
                bytes: 0,
            }
        }));
        if is_last {
            break;
        }
    }
    retained.extend(sweep.unlisted.iter().cloned());
    let now = clock::now();
    for one in &mut retained {
        // Known clock settings convert the end times: a clock change must not make output older.
        let age = shared.clock.between(one.ended, now);
        if !age.is_zero() {
            one.ended = now.minus(age);
        }
    }
    let there: HashSet<RunId> = retained.iter().map(|one| one.run).collect();
    sweep.left.retain(|run| there.contains(run));
    if shared.config.retention.node_bytes.is_none() {
        return Ok((retained, 0));
    }
    let mut known = std::mem::take(&mut sweep.bytes);
    known.retain(|run, _| there.contains(run));
    let data_dir = shared.config.data_dir.clone();
    let measured = blocking(move || {
        let (mut known, mut others) = (known, 0u64);
        for run in rundir::all(&data_dir) {
            let size = || size_bytes(&data_dir, run);
            if there.contains(&run) {
                known.entry(run).or_insert_with(size);
            } else {
                others = others.saturating_add(size());
            }
        }
        (known, others)
    });
    let (known, others) = measured
        .await
        .map_err(|e| CallError::Internal(e.to_string()))?;
    let all = known.values().fold(others, |sum, b| sum.saturating_add(*b));
    *shared.journals_bytes.lock() = Some(all);
    for one in &mut retained {
        one.bytes = known.get(&one.run).copied().unwrap_or(0);
    }
    sweep.bytes = known;
    Ok((retained, others))
}

fn warn_if_over(sweep: &mut SweepState, limits: &RetentionLimits, others: u64) {
    let is_over = limits.node_bytes.is_some_and(|most| others > most);
    if is_over && !sweep.is_over {
        tracing::warn!(
            bytes = others,
            "live runs have more output than this node retains; it is removed after they end"
        );
    }
    sweep.is_over = is_over;
}

/// Marks the rows of these runs. Where the store is unavailable nothing is marked, and so nothing removed.
async fn mark_all(shared: &Arc<Shared>, sweep: &mut SweepState, going: &[(RunId, RemovalReason)]) {
    let mut counts: BTreeMap<&'static str, usize> = BTreeMap::new();
    for runs in going.chunks(MARKED_AT_ONCE) {
        let mut marking = JoinSet::new();
        for (run, reason) in runs.iter().copied() {
            let shared = Arc::clone(shared);
            marking.spawn(async move { (run, reason, mark(&shared, run, reason).await) });
        }
        let mut is_away = false;
        while let Some(marked) = marking.join_next().await {
            match marked {
                Ok((run, reason, Went::Marked)) => {
                    sweep.unlisted.retain(|one| one.run != run);
                    sweep.marked.insert(run);
                    *counts.entry(word(reason)).or_default() += 1;
                }
                Ok((_, _, Went::Unknown)) => sweep.has_looked_back = false,
                Ok((_, _, Went::NotYet)) => {}
                Ok((_, _, Went::Away)) => is_away = true,
                Ok((run, _, Went::Left)) => drop(sweep.left.insert(run)),
                Err(error) => tracing::error!(%error, "marking a run failed"),
            }
        }
        if is_away {
            break;
        }
    }
    for (reason, count) in counts {
        tracing::info!(count, reason, "removing output of ended runs");
    }
}

/// Marks on the row that the output of this run is removed.
async fn mark(shared: &Shared, run: RunId, reason: RemovalReason) -> Went {
    let data_dir = shared.config.data_dir.clone();
    if shared.record.is_unfinished(run) {
        return Went::NotYet;
    }
    let looked = blocking(move || kennel_journal::whole(&rundir::path(&data_dir, run)));
    let whole = match looked.await.flatten() {
        Ok(whole) => whole,
        Err(error) => {
            tracing::warn!(run_id = %run, why = %Chain(&error), "cannot read the journal of an ended run, keeping it");
            return Went::Left;
        }
    };
    let is_end = |payload| matches!(payload, Payload::Lifecycle(Entry::Ended(_)));
    let last = whole
        .last
        .map(|entry| event::decode(run, Item::Entry(entry)));
    if !last.is_some_and(|last| last.is_ok_and(|event| is_end(event.payload))) {
        tracing::warn!(run_id = %run, "the journal of an ended run lacks its end, keeping it");
        return Went::Left;
    }
    let removal = OutputRemoval {
        at: clock::now(),
        reason,
        seq: whole.end.seq,
        lens: whole.end.lens,
        counted: whole.counted,
    };
    write_mark(shared, run, whole.on_full, removal).await
}

async fn write_mark(
    shared: &Shared,
    run: RunId,
    on_full: OnOutputFull,
    removal: OutputRemoval,
) -> Went {
    if removal.reason == RemovalReason::OwnerRuns && on_full == OnOutputFull::Block {
        match floors::read(shared, run).await {
            // A consumer has not acknowledged the end.
            Ok(Floor::UpTo(acked)) if acked < removal.seq => return Went::NotYet,
            Ok(_) => {}
            Err(_) => return Went::Away,
        }
    }
    crash_point!("retention.mark");
    let marked = Change::OutputRemoved(removal);
    match shared.store.write(run, &marked).await {
        Ok(()) => Went::Marked,
        Err(StoreError::Unknown(_)) => Went::Unknown,
        Err(StoreError::Unavailable(_) | StoreError::Held | StoreError::SchemaTooNew { .. }) => {
            Went::Away
        }
        // Another server has the node by now, and removes the output.
        Err(StoreError::Fenced(_)) => Went::NotYet,
        Err(error @ (StoreError::Corrupt(_) | StoreError::Unread(_))) => {
            tracing::warn!(run_id = %run, %error, "cannot remove the output of an ended run");
            Went::Left
        }
    }
}

/// Moves the marked directories away, then removes them. The next check retries both.
async fn take_away(shared: &Shared, sweep: &mut SweepState) -> Result<(), String> {
    let data_dir = shared.config.data_dir.clone();
    let marked = std::mem::take(&mut sweep.marked);
    let done = blocking(move || {
        crash_point!("retention.marked", !marked.is_empty());
        let (mut left, mut failed) = (BTreeSet::new(), None);
        for run in marked {
            if let Err(error) = rundir::set_aside(&data_dir, run) {
                left.insert(run);
                failed.get_or_insert_with(|| format!("run {run}: {}", Chain(&error)));
            }
            crash_point!("retention.set_aside");
        }
        if let Err(error) = rundir::remove_set_aside(&data_dir) {
            failed.get_or_insert_with(|| Chain(&error).to_string());
        }
        (left, failed)
    });
    let (left, failed) = done.await.map_err(|e| e.to_string())?;
    sweep.marked = left;
    failed.map_or(Ok(()), Err)
}

fn word(reason: RemovalReason) -> &'static str {
    match reason {
        RemovalReason::OwnerRuns => "runs of an owner",
        RemovalReason::Age => "age",
        RemovalReason::NodeBytes => "bytes of the node",
    }
}
