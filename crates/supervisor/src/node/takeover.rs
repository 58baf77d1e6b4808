//! Acquires the node: at a server's start, or later where the store is unavailable then.

use crate::{
    base::{clock, faults::BootError},
    node::{ROWS_MAX, adopt, forget, pending_ends, recover},
    record::{Delivery, KnownRow},
    registry::{Order, Shared, Supervisor},
    run::writes,
};
use kennel_keeper::client::HeldRun;
use kennel_lifecycle::{Backoff, EndReason, KeeperEpoch, RunId, recovery::ProcessPresence};
use kennel_linux::crash_point;
use kennel_store::{Age, Change, FoundRows, Opening, RunRow, StoreError, UnreadRow};
use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, atomic::Ordering},
    time::Duration,
};
use tokio::{sync::oneshot, task::JoinSet};

/// Time for which the runs of an earlier server wait for the store.
const STORE_WAIT: Duration = Duration::from_secs(2);
/// Delays between two attempts.
const RETRY: Backoff = Backoff::up_to(Duration::from_millis(100), Duration::from_secs(2));
/// Interval at which a lease of another keeper is requested, and time after its end for which it is.
const LEASE_POLL: Duration = Duration::from_millis(500);
const LEASE_MARGIN: Duration = Duration::from_secs(2);
/// Interval at which the store is checked for being the same one.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// The same interval while the store is unavailable: a new life of the store is to be met when it comes.
const LOOK_EVERY_AWAY: Duration = Duration::from_millis(100);

/// Result of acquiring the node in the store.
pub(crate) struct AcquiredNode {
    generation: i64,
    /// Age of the newest run of the database.
    newest: Age,
    /// The node's open rows.
    rows: Vec<RunRow>,
    /// Those that this version cannot read: their runs are left alone.
    unread: Vec<UnreadRow>,
    /// Runs that were open here and that an operator has forgotten with the node; with the operator.
    forgotten: Vec<(RunId, String)>,
}

/// Acquires the node at the start of a server. Absent: the store is unavailable, and runs wait for their adoption.
pub(crate) async fn first(
    shared: &Shared,
    held: &[HeldRun],
) -> Result<Option<AcquiredNode>, BootError> {
    if shared.hello.restarts == 0 && held.is_empty() {
        return match Box::pin(take_first(shared)).await {
            // The store is gone or read-only: it may recover by itself.
            Err(BootError::Store(
                error @ (StoreError::Unavailable(_) | StoreError::Unknown(_)),
            )) => {
                log_away(shared, &error.to_string());
                Ok(None)
            }
            taken => taken.map(Some),
        };
    }
    let given = held.iter().map(|held| held.run).collect();
    // No error is fatal here: an exit would end the runs, which are not at fault.
    let why = match tokio::time::timeout(STORE_WAIT, take(shared, given)).await {
        Ok(Ok(taken)) => return Ok(Some(taken)),
        Ok(Err(error)) => cause(&error),
        Err(_) => format!("it does not answer within {STORE_WAIT:?}"),
    };
    log_away(shared, &why);
    Ok(None)
}

fn log_away(shared: &Shared, why: &str) {
    shared.trail.note("store_away", [("why", why.to_owned())]);
    tracing::error!(%why, "cannot acquire the node in the database: runs continue, no new run is started");
}

/// Acquires the node at the start of a service. The lease of an earlier keeper whose end cannot be verified here
/// (another host, another boot) is waited for; a lease that is renewed meanwhile is another server's.
async fn take_first(shared: &Shared) -> Result<AcquiredNode, BootError> {
    let begun = clock::instant();
    let mut longest = None;
    loop {
        match take(shared, Vec::new()).await {
            Err(BootError::LeaseHeld { epoch, left }) => {
                let longest = *longest.get_or_insert_with(|| {
                    tracing::warn!(%epoch, left_seconds = left.as_secs_f64(), "an earlier keeper has the lease of this node: waiting until the lease ends");
                    left + LEASE_MARGIN
                });
                if begun.elapsed() > longest {
                    return Err(BootError::LeaseHeld { epoch, left });
                }
            }
            taken => return taken,
        }
        tokio::time::sleep(LEASE_POLL).await;
    }
}

/// Remaining work on runs after a start.
#[derive(Default)]
pub(crate) struct Begun {
    /// Runs whose key is another run's.
    pub(crate) left_alone: HashSet<RunId>,
    /// Open rows that no keeper holds.
    pub(crate) others: Vec<RunRow>,
}

/// Adopts what the keeper holds.
pub(crate) async fn with_rows(
    shared: &Arc<Shared>,
    held: Vec<HeldRun>,
    taken: AcquiredNode,
) -> Result<Begun, BootError> {
    let AcquiredNode {
        generation,
        newest,
        mut rows,
        unread,
        ..
    } = taken;
    let others = held.iter().map(|held| held.run);
    let others = others.chain(rows.iter().map(|row| row.new.run)).collect();
    pending_ends::finish_all(shared, others).await?;
    shared.store.open(generation, newest);
    let adopted = Box::pin(adopt::all(shared, held, &mut rows, unread)).await?;
    let (held, found) = (adopted.count, rows.len());
    tracing::info!(generation, held, found, "node acquired");
    Ok(Begun {
        left_alone: adopted.left_alone,
        others: rows,
    })
}

/// Adopts what the keeper holds; the other runs wait for the store.
pub(crate) async fn without_rows(
    shared: &Arc<Shared>,
    held: Vec<HeldRun>,
) -> Result<Begun, BootError> {
    let held = Box::pin(adopt::without_store(shared, held)).await?;
    tracing::warn!(held, "continuing without the database");
    let taking = Arc::clone(shared);
    let taking = async move { take_at_last(&taking, Again::No).await };
    shared.background.spawn(taking);
    Ok(Begun::default())
}

/// Whether this server had the node before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Again {
    No,
    Yes,
}

/// Acquires the node when the store is available.
async fn take_at_last(shared: &Arc<Shared>, again: Again) {
    let mut retries = RETRY.retries(("takeover", shared.config.node));
    let mut logged = String::new();
    loop {
        match Box::pin(take_late(shared, again)).await {
            Ok(()) => return,
            Err(error) => {
                if let BootError::LeaseHeld { epoch, .. } = error {
                    shared.store.lose(epoch);
                }
                let why = cause(&error);
                if why != logged {
                    tracing::error!(%why, "cannot acquire the node, retrying");
                    logged = why;
                }
            }
        }
        tokio::time::sleep(retries.next_delay()).await;
    }
}

async fn take_late(shared: &Arc<Shared>, again: Again) -> Result<(), BootError> {
    let given = shared.all().into_iter().map(|(run, _)| run).collect();
    let AcquiredNode {
        generation,
        newest,
        rows,
        forgotten,
        ..
    } = take(shared, given).await?;
    // Later, an unfinished run may be ending in this server.
    if again == Again::No {
        // Every run of the keeper has a task, which finds its row by itself.
        let live = shared.all().into_iter().map(|(run, _)| run);
        let others = live.chain(rows.iter().map(|row| row.new.run)).collect();
        pending_ends::finish_all(shared, others).await?;
    }
    let open: Vec<RunId> = rows.iter().map(|row| row.new.run).collect();
    let rows = rows.into_iter();
    // A run whose end became pending meanwhile is not open any more.
    let rows = rows.filter(|row| {
        !recover::has_task(shared, row) && !shared.record.has_pending_of(row.new.run)
    });
    let rows: Vec<RunRow> = rows.collect();
    shared.store.open(generation, newest);
    let taken = [("generation", generation.to_string())];
    shared.trail.note("store_back", taken);
    let found = rows.len();
    // A run that has ended here meanwhile is closed when it is observed.
    recover::take_all(shared, rows, again == Again::Yes);
    // Fences follow once all runs have entered: each fence looks for a run with its key.
    for run in open {
        if shared.record.has_pending_fence(run) {
            let fencing = Arc::clone(shared);
            let fencing = async move { carry_out_fence(&fencing, run).await };
            shared.background.spawn(fencing);
        }
    }
    for (run, by) in forgotten {
        forget::end(shared, run, &by);
    }
    let supervisor = Supervisor {
        shared: Arc::clone(shared),
    };
    supervisor.abort_drained();
    tracing::info!(generation, found, "node acquired");
    Ok(())
}

/// Carries out a fence that was promised for the key of an open run, while only the store could know that it is open:
/// delivered, it is a stop on the row, which no task of the run has seen.
async fn carry_out_fence(shared: &Arc<Shared>, run: RunId) {
    shared.record.delivered(run).await;
    let Ok(row) = writes::row_of(&shared.store, run).await else {
        return;
    };
    let Some(row) = row.filter(|row| row.outcome.is_none()) else {
        return;
    };
    match (shared.find(run), row.stop.clone()) {
        (None, _) => recover::start_recovery(shared, row),
        (Some(handle), Some(order)) => {
            // The stop is on the row: no caller waits for an answer.
            let (reply, _) = oneshot::channel();
            handle.send(Order::Stop(order, reply), &shared.background);
        }
        // The row belongs to another run.
        (Some(_), None) => {}
    }
}

/// Checks each second, and on request, whether the store is the same one. Where it is not, the node is acquired in it
/// as at a start: until then it is unavailable to all callers, and the rows that it lacks are written again.
pub(crate) async fn watch_lives(shared: &Arc<Shared>) {
    let store = &shared.store;
    let mut pause = LOOK_EVERY;
    let mut away = false;
    loop {
        let _ = store.taken_over().await;
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            () = store.doubted() => {}
        }
        let stored_node = store.raw().stored_node(shared.config.node).await;
        if away != stored_node.is_err() {
            away = stored_node.is_err();
            record_store_state(shared, stored_node.as_ref().err());
        }
        pause = match stored_node {
            Ok(stored_node) if shared.record.differs(&stored_node) => {
                tracing::warn!(life = %stored_node.life, generation = stored_node.generation, "the database was restarted or restored, acquiring the node again");
                store.shut().await;
                take_at_last(shared, Again::Yes).await;
                LOOK_EVERY
            }
            Ok(stored_node) => {
                if let Some(by) = shared.store.lost_to(&stored_node) {
                    log_fenced(shared, by);
                    store.shut().await;
                    take_at_last(shared, Again::Yes).await;
                }
                LOOK_EVERY
            }
            Err(_) => LOOK_EVERY_AWAY,
        };
    }
}

/// Logs the loss of the lease. The runs continue: only their node's records are another server's.
fn log_fenced(shared: &Shared, by: KeeperEpoch) {
    tracing::error!(keeper_epoch = %by, "another server has the lease of this node: starting no runs until the lease is regained; runs continue");
    shared.store.lose(by);
    let epoch = [("keeper_epoch", by.to_string())];
    shared.trail.note("node_fenced", epoch);
}

fn record_store_state(shared: &Shared, away: Option<&StoreError>) {
    match away {
        Some(error) => {
            if matches!(error, StoreError::SchemaTooNew { .. }) {
                tracing::error!(%error, "the database counts as unavailable until this node is upgraded; runs continue");
            }
            shared
                .trail
                .note("store_away", [("why", error.to_string())]);
        }
        None => shared.trail.note("store_back", []),
    }
}

/// State of the node in the store before it is acquired.
#[derive(Clone, Copy)]
struct Former {
    /// The store has gone back.
    is_lost: bool,
    /// Another keeper had the node, or none.
    is_anothers: bool,
}

/// Makes sure that no other keeper lives, raises the generation, and writes again what the store has lost.
async fn take(shared: &Shared, held: Vec<RunId>) -> Result<AcquiredNode, BootError> {
    // A concurrent delivery would name an outdated generation.
    let delivery = shared.record.delivery().await;
    let gone = refuse_beside_another(shared).await?;
    let (store, record) = (shared.store.raw(), &shared.record);
    let node = shared.config.node;
    let stored_node = store.stored_node(node).await.map_err(BootError::Store)?;
    let opening = Opening {
        node,
        node_name: shared.config.node_name.clone(),
        address: shared.config.address.clone(),
        keeper_epoch: shared.hello.epoch,
        keeper: shared.hello.keeper,
        host: shared.hello.host.clone(),
        held,
        above: record.generation(),
        lease: shared.config.lease,
        gone,
        draining: shared.drain.borrow().as_ref().map(|drain| drain.since),
        now: clock::now(),
    };
    let former = Former {
        is_lost: record.differs(&stored_node),
        is_anothers: stored_node.keeper_epoch != Some(shared.hello.epoch),
    };
    let generation = match store.open_node(&opening).await {
        Ok(generation) => generation,
        Err(StoreError::Held) => {
            return Err(BootError::LeaseHeld {
                epoch: stored_node.keeper_epoch.unwrap_or(shared.hello.epoch),
                left: stored_node.lease_left,
            });
        }
        Err(error) => return Err(BootError::Store(error)),
    };
    crash_point!("boot.node_opened");
    record.raised(generation);
    let rows = current_rows(shared, &opening, &delivery, generation, former).await;
    let rows = rows.map_err(BootError::Store)?;
    let mut ended = Vec::new();
    for runs in record.open_beside(&rows).chunks(ROWS_MAX) {
        let read = store.get_all(runs).await.map_err(BootError::Store)?;
        for row in read.rows.into_iter().filter(|row| row.outcome.is_some()) {
            // Rows are read singly: only `get` returns entries. A silent run has entries only in its row, and the node
            // log needs them too in case the store goes back.
            let whole = store.get(row.new.run).await.map_err(BootError::Store)?;
            ended.push(whole.unwrap_or(row));
        }
    }
    let forgotten = ended.iter();
    let forgotten = forgotten.filter_map(|row| {
        let by = forget::forgotten_by(row)?;
        Some((row.new.run, by.to_owned()))
    });
    let forgotten = forgotten.collect();
    record.acquired(stored_node.life, &rows, ended);
    let newest = store.newest_age().await.map_err(BootError::Store)?;
    let FoundRows { rows, unread } = rows;
    for UnreadRow { run, why, .. } in &unread {
        tracing::error!(run_id = %run, why, "cannot read the row of an open run: the run is pinned if the keeper has it, and left alone otherwise");
    }
    shared.rows_unread.store(unread.len(), Ordering::Relaxed);
    Ok(AcquiredNode {
        generation,
        newest,
        rows,
        unread,
        forgotten,
    })
}

/// Returns the node's open rows, after the store has what it lacked and what was pending for it: before that no row is
/// taken for open. Where that is nothing they are read once.
async fn current_rows(
    shared: &Shared,
    opening: &Opening,
    delivery: &Delivery<'_>,
    generation: i64,
    former: Former,
) -> Result<FoundRows, StoreError> {
    let store = shared.store.raw();
    let rows = store.open_runs(opening.node).await?;
    let mended = mend(shared, opening, generation, former, &rows).await?;
    let delivered = delivery.deliver_all(&shared.store, generation).await?;
    if mended + delivered == 0 {
        return Ok(rows);
    }
    store.open_runs(opening.node).await
}

/// Writes again what the store had taken and lacks: the rows of runs that the keeper holds, and where the store has
/// gone back all that is known, ends of runs as well as states. Returns their number.
async fn mend(
    shared: &Shared,
    opening: &Opening,
    generation: i64,
    former: Former,
    open: &FoundRows,
) -> Result<usize, StoreError> {
    let held: HashSet<RunId> = opening.held.iter().copied().collect();
    let open: HashSet<RunId> = open.runs().collect();
    let mut wanted = shared.record.known_rows();
    wanted.retain(|entry| {
        let run = &entry.row.new.run;
        former.is_lost || held.contains(run) && !open.contains(run)
    });
    let mut count = 0;
    for entries in wanted.chunks(ROWS_MAX) {
        let runs: Vec<RunId> = entries.iter().map(|entry| entry.row.new.run).collect();
        let FoundRows { rows, unread } = shared.store.raw().get_all(&runs).await?;
        let unread: HashSet<RunId> = unread.iter().map(|row| row.run).collect();
        let rows = rows.into_iter();
        let there: HashMap<RunId, RunRow> = rows.map(|row| (row.new.run, row)).collect();
        let lost = entries.iter().map(|entry| &entry.row);
        let lost = lost.filter(|row| row.outcome.is_some() && !there.contains_key(&row.new.run));
        let lost: Vec<RunId> = lost.map(|row| row.new.run).collect();
        let removed = match lost[..] {
            [] => Vec::new(),
            _ => shared.store.raw().removed_ids(&lost).await?,
        };
        let mut mending = JoinSet::new();
        for KnownRow { row, assumed } in entries {
            let run = row.new.run;
            // The row was removed, or a later version wrote it.
            if unread.contains(&run) || removed.contains(&run) {
                continue;
            }
            if there
                .get(&run)
                .is_some_and(|row| row.new.node != opening.node)
            {
                tracing::error!(run_id = %run, "the database lost the row of this run, and another node has a run of this id");
                continue;
            }
            let mut row = row.clone();
            if held.contains(&row.new.run) {
                row.new.keeper_epoch = opening.keeper_epoch;
            }
            // The server that stored the stop died before logging it.
            if let (Some(there), None) = (there.get(&row.new.run), &row.stop) {
                row.desired = there.desired;
                row.stop.clone_from(&there.stop);
                row.stop_deadline = there.stop_deadline;
            }
            if let (Some(there), Some(removal)) = (there.get(&row.new.run), row.output_removed)
                && there.outcome.is_some()
                && there.output_removed.is_none()
            {
                // A closed row is not rewritten, but an output removal must not be lost.
                let marked = Change::OutputRemoved(removal);
                let raw = shared.store.raw();
                match raw.change(opening.node, generation, run, &marked).await {
                    Ok(_) | Err(StoreError::Fenced(_)) => count += 1,
                    Err(error) => return Err(error),
                }
            }
            let is_contested = former.is_anothers
                && held.contains(&run)
                && there
                    .get(&run)
                    .is_some_and(|there| is_contested(there, &row))
                && !shared.record.has_pending_of(run);
            if is_contested {
                tracing::error!(run_id = %run, "another keeper closed the record of this run as lost, and it lives: rewriting it");
            }
            let keep = |there: &RunRow| {
                let stays = !former.is_lost || there.outcome.is_some() || is_same(there, &row);
                *assumed || stays && !is_contested
            };
            if there.get(&row.new.run).is_some_and(keep) {
                continue;
            }
            count += 1;
            let (store, node) = (Arc::clone(shared.store.raw()), opening.node);
            mending.spawn(async move {
                let row = Change::Snapshot(Box::new(row));
                (run, store.change(node, generation, run, &row).await)
            });
        }
        while let Some(mended) = mending.join_next().await {
            match mended {
                Ok((_, Ok(_))) => {}
                Ok((run, Err(error @ (StoreError::Corrupt(_) | StoreError::Unread(_))))) => {
                    tracing::error!(run_id = %run, %error, "the row of this run is lost and cannot be rewritten");
                }
                Ok((_, Err(error))) => return Err(error),
                Err(error) => return Err(StoreError::Unavailable(error.to_string())),
            }
        }
    }
    if count > 0 {
        tracing::warn!(count, "rows that the database had lost are written again");
    }
    Ok(count)
}

/// Whether a keeper that took the node from this one, as on a copy of the data directory, closed the row of a run that
/// is open here: it could not see the run.
fn is_contested(there: &RunRow, known: &RunRow) -> bool {
    let reason = there.outcome.as_ref().map(|outcome| &outcome.reason);
    let is_lost = matches!(reason, Some(EndReason::ServiceLost | EndReason::Rebooted));
    is_lost && known.outcome.is_none()
}

/// Whether a row is as it is known, but for the generation: that of one write of it.
fn is_same(there: &RunRow, known: &RunRow) -> bool {
    let mut known = known.clone();
    known.new.generation = there.new.generation;
    *there == known
}

/// Refuses to start beside a living keeper: its runs would be ended. Returns the keeper of the lease, where it is
/// verified to have ended: it was one of this boot and this pid namespace.
async fn refuse_beside_another(shared: &Shared) -> Result<Option<KeeperEpoch>, BootError> {
    let mut gone = None;
    let stored_node = shared.store.raw().stored_node(shared.config.node).await;
    let holder = stored_node.map_err(BootError::Store)?.keeper_epoch;
    let epochs = shared.store.raw().open_epochs(shared.config.node).await;
    let epochs = epochs.map_err(BootError::Store)?.into_iter();
    for row in epochs.filter(|row| row.keeper_epoch != shared.hello.epoch) {
        let (epoch, pid) = (row.keeper_epoch, row.keeper.pid);
        let is_here = row.host.is_same_as(&shared.hello.host);
        let seen = shared.kernel.keeper_seen(row.keeper, row.host).await;
        match seen.map_err(BootError::Keeper)? {
            ProcessPresence::Gone if is_here && holder == Some(epoch) => gone = Some(epoch),
            ProcessPresence::Gone => {}
            ProcessPresence::Same => return Err(BootError::KeeperAlive { epoch, pid }),
            // The node's lease decides.
            ProcessPresence::Unknown if !row.has_open => {}
            ProcessPresence::Unknown => return Err(BootError::KeeperUnknown { epoch, pid }),
        }
    }
    Ok(gone)
}

fn cause(error: &BootError) -> String {
    crate::base::cause::Chain(error).to_string()
}
