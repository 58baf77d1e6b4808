//! Removes rows of ended runs: those beyond the limits of this node, in small steps, and those that a caller names.
//!
//! Pruning takes a row only when nothing else is left of its run: its output goes by the limits of output, before. What a
//! caller removes loses its row first, and then its directory: a crash in between leaves a directory whose id is remembered.

use crate::{
    base::{
        blocking::blocking,
        calls::{CallError, RunView},
        clock,
    },
    node::retention::{self, Swept},
    record::node_store::read,
    registry::{Shared, Supervisor, first_id},
};
use kennel_keeper::rundir;
use kennel_lifecycle::{NodeId, Refusal, RowLimits, RowWalk, RunId, Timestamp};
use kennel_linux::crash_point;
use kennel_store::{Age, EndedRow, RowRemoval, StoreError};
use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

/// Rows read in one step.
const ROWS_READ: u32 = 500;
/// Pause after each step.
const STEP_EVERY: Duration = Duration::from_millis(250);
/// Time of the store that the removals of one step may take: other writes wait for it.
const STEP_MAX: Duration = Duration::from_millis(2);
/// Least and most rows that are removed in one step.
const ROWS_REMOVED: (usize, usize) = (8, 200);
/// Shortest pause between two walks over all rows, and how many times as long as the walk it is.
const WALK_EVERY: (Duration, u32) = (Duration::from_mins(1), 10);
/// Time for which a removed id is remembered beyond the age at which it is refused: the wall clock may be set back.
const REMEMBERED_LONGER: Duration = Duration::from_hours(24);
/// Interval of the looks for the end of a run's work, and their number before its removal is refused.
const LOOK_EVERY: Duration = Duration::from_millis(20);
const LOOKS_MAX: u32 = 500;
/// Interval at which the record of the service says how many rows were removed.
const NOTED_EVERY: Duration = Duration::from_hours(1);

/// Pace of the removals.
struct Pruning {
    /// Rows to remove in one step.
    at_once: usize,
    /// Rows that were removed since this was recorded last.
    removed: usize,
    noted: tokio::time::Instant,
}

/// Prunes for as long as this server has the node.
pub(crate) async fn look_after(shared: Arc<Shared>) {
    let limits = shared.config.rows;
    if limits.per_owner.is_none() && limits.at_most.is_none() {
        return;
    }
    let mut pruning = Pruning {
        at_once: ROWS_REMOVED.0,
        removed: 0,
        noted: clock::instant(),
    };
    let mut walk = RowWalk::default();
    let (mut is_first, mut logged) = (true, String::new());
    loop {
        let _ = shared.store.taken_over().await;
        let begun = clock::instant();
        match pruning.walk_all(&shared, &mut walk).await {
            Ok(()) => logged.clear(),
            Err(error) => {
                let why = error.to_string();
                if why != logged {
                    tracing::warn!(%why, "cannot remove rows of ended runs, retrying");
                    logged = why;
                }
            }
        }
        // The first walk counted the rows.
        let pause = if std::mem::take(&mut is_first) {
            STEP_EVERY
        } else {
            WALK_EVERY.0.max(begun.elapsed() * WALK_EVERY.1)
        };
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            () = shared.serving.until_leaving() => return,
            () = shared.serving.until_keeper_lost() => return,
        }
    }
}

impl Pruning {
    async fn walk_all(
        &mut self,
        shared: &Arc<Shared>,
        walk: &mut RowWalk,
    ) -> Result<(), StoreError> {
        let limits = shared.config.rows;
        walk.begin();
        self.walk_node(shared, shared.config.node, &limits, walk)
            .await?;
        let left = walk.end(&limits);
        shared.rows_ended.store(left, Ordering::Relaxed);
        // Rows of nodes missing from the database are limited by age only: no start counts them.
        let by_age = RowLimits {
            per_owner: None,
            ..limits
        };
        let mut stray = None;
        while let Some(node) = read!(shared.store, stray_node(stray))? {
            let mut walk = RowWalk::default();
            self.walk_node(shared, node, &by_age, &mut walk).await?;
            stray = Some(node);
        }
        if self.removed > 0 && self.noted.elapsed() >= NOTED_EVERY {
            let count = std::mem::take(&mut self.removed);
            shared
                .trail
                .note("rows_removed", [("count", count.to_string())]);
            self.noted = clock::instant();
        }
        Ok(())
    }

    async fn walk_node(
        &mut self,
        shared: &Arc<Shared>,
        node: NodeId,
        limits: &RowLimits,
        walk: &mut RowWalk,
    ) -> Result<(), StoreError> {
        let is_own = node == shared.config.node;
        let boot = &shared.hello.host.boot_id;
        let mut start = Age::NONE;
        loop {
            let rows = read!(shared.store, ended_rows(node, boot, start, ROWS_READ))?;
            let Some(last) = rows.last() else {
                return Ok(());
            };
            start = last.age;
            let now = clock::now();
            let mut due: Vec<RunId> = Vec::new();
            for row in rows {
                let age = shared.clock.between(row.ended, now);
                let is_free = !row.may_live && (!is_own || is_settled(shared, &row));
                if walk.is_due(&row.owner, age, is_free, limits) {
                    due.push(row.run);
                }
            }
            if is_own {
                due = without_directory(shared, due).await;
            }
            while !due.is_empty() {
                let rest = due.split_off(self.at_once.min(due.len()));
                let runs = std::mem::replace(&mut due, rest);
                self.remove(shared, node, runs).await?;
                tokio::time::sleep(STEP_EVERY).await;
            }
            tokio::time::sleep(STEP_EVERY).await;
        }
    }

    async fn remove(
        &mut self,
        shared: &Shared,
        node: NodeId,
        runs: Vec<RunId>,
    ) -> Result<(), StoreError> {
        let begun = clock::instant();
        self.removed += remove(shared, node, runs).await?;
        self.at_once = if begun.elapsed() > STEP_MAX {
            (self.at_once / 2).max(ROWS_REMOVED.0)
        } else {
            (self.at_once + ROWS_REMOVED.0).min(ROWS_REMOVED.1)
        };
        Ok(())
    }
}

/// Whether nothing but the row is left of an ended run of this node.
fn is_settled(shared: &Shared, row: &EndedRow) -> bool {
    !row.has_files && has_no_work(shared, row.run)
}

fn has_no_work(shared: &Shared, run: RunId) -> bool {
    let record = &shared.record;
    shared.find(run).is_none() && !record.is_unfinished(run) && !record.has_pending_of(run)
}

/// Leaves out the runs that have a directory: the directory goes before the row, which says whose it is.
async fn without_directory(shared: &Shared, mut runs: Vec<RunId>) -> Vec<RunId> {
    let data_dir = shared.config.data_dir.clone();
    let looked = blocking(move || {
        let is_there = |run| rundir::path(&data_dir, run).try_exists().unwrap_or(true);
        runs.retain(|run| !is_there(*run));
        runs
    });
    looked.await.unwrap_or_default()
}

/// Returns the least id that stays remembered.
fn oldest_remembered(shared: &Shared) -> RunId {
    let longer = shared.config.rows.ids.saturating_add(REMEMBERED_LONGER);
    // The earlier clock decides: rather one id too many is remembered than one too few.
    let now = clock::now().min(Timestamp(shared.store.newest().0));
    first_id(now.minus(longer))
}

/// Removes rows of ended runs; returns the number of those that were there.
async fn remove(shared: &Shared, node: NodeId, runs: Vec<RunId>) -> Result<usize, StoreError> {
    let removal = RowRemoval {
        node,
        generation: None,
        runs,
        forgotten_before: oldest_remembered(shared),
    };
    crash_point!("history.remove");
    let removed = shared.store.remove_rows(removal).await?;
    crash_point!("history.removed");
    // Rows of other nodes are not counted here.
    for row in removed.iter().filter(|_| node == shared.config.node) {
        shared.record_bytes.change(&row.owner, row.bytes, 0);
    }
    shared.config.telemetry.metrics.removed_rows(removed.len());
    Ok(removed.len())
}

impl Supervisor {
    /// Removes an ended run of this node: its row with what refers to it, and then its output.
    pub async fn remove_run(&self, run: RunId) -> Result<(), CallError> {
        let shared = &self.shared;
        let row = self.row(run).await?;
        let identity = row.new.identity.clone();
        let view = RunView::from(row);
        self.refuse_unless_here(&view).await?;
        let Some(outcome) = &view.outcome else {
            return Err(view.refuse_call(Refusal::NotEnded));
        };
        let boot = &shared.hello.host.boot_id;
        if !outcome.tree.is_proven()
            && identity.is_some_and(|identity| identity.host.boot_id == *boot)
        {
            return Err(view.refuse_call(Refusal::MayLive));
        }
        if let Some(handle) = shared.find(run) {
            // The run's end is recorded; its task finishes in a moment.
            let _ = handle.live.clone().wait_for(|live| live.over).await;
        }
        let mut looks = 0;
        // The run's files are being removed, or its end is pending for the store.
        while !has_no_work(shared, run) {
            looks += 1;
            if looks == LOOKS_MAX {
                return Err(CallError::StoreUnavailable);
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
        if remove(shared, view.node, vec![run]).await? == 0 {
            return Err(CallError::RunNotFound(run));
        }
        if let Err(why) = retention::remove_directory(shared, run).await {
            tracing::warn!(run_id = %run, %why, "cannot remove the output of a removed run, the next start or sweep does");
        }
        Ok(())
    }

    /// Removes directories of runs that are to have none: those whose removal was not finished.
    pub async fn sweep(&self) -> Result<Swept, CallError> {
        retention::sweep(&self.shared).await
    }
}
