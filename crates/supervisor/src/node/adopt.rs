//! Adoption: runs that this server's keeper holds from an earlier server are resumed in their present state.
//!
//! The description of a run comes from its row; where the database has lost the row, from the node log; where neither
//! exists, from the keeper.

use crate::{
    base::{blocking::blocking, calls::RunView, faults::BootError, log_words, view::Live},
    node::forget,
    registry::{Entered, Handle, Order, Shared},
    run::{
        intake,
        reopened::{Left, Reopened},
        task::{KeeperRun, RunTask},
        writes,
    },
    telemetry::log_span,
};
use kennel_keeper::client::HeldRun;
use kennel_lifecycle::{NodeId, Policy, Refusal, RestartPolicy, RunId, RunSpec};
use kennel_linux::crash_point;
use kennel_store::{NewRun, RunRow, StoreError, StoredState, UnreadRow};
use std::{
    collections::{HashMap, HashSet},
    io,
    sync::Arc,
};
use tokio::{sync::watch, task::JoinSet};
use tracing::Instrument;

/// Result of adopting the runs that were handed over.
#[derive(Debug, Default)]
pub(crate) struct Adopted {
    /// Number of adopted runs.
    pub(crate) count: usize,
    /// Runs whose keys have another row: they are neither signalled nor acknowledged.
    pub(crate) left_alone: HashSet<RunId>,
}

/// Adopts all of them. `rows` are the open rows of the node; rows without a run here stay in it. `unread` are those that
/// this version cannot read.
pub(crate) async fn all(
    shared: &Arc<Shared>,
    held: Vec<HeldRun>,
    rows: &mut Vec<RunRow>,
    unread: Vec<UnreadRow>,
) -> Result<Adopted, BootError> {
    let mut unread = unread.into_iter().map(|row| (row.run, row)).collect();
    let known = take_rows(shared, &held, rows, &mut unread).await?;
    let mut opened = open_all(shared, held, known);
    let mut adopted = Adopted::default();
    while let Some(part) = next(&mut opened).await? {
        for found in part {
            let run = found.held.run;
            let started = match unread.remove(&run) {
                Some(row) => found.resume_unread(shared, &row),
                None => found.start(shared).await?,
            };
            if started {
                adopted.count += 1;
            } else {
                adopted.left_alone.insert(run);
            }
        }
    }
    Ok(adopted)
}

/// Adopts all of them while the store is unavailable: a run's description comes from the node log, and the task reads
/// the rest from its row once the store is back. Returns their number.
pub(crate) async fn without_store(
    shared: &Arc<Shared>,
    held: Vec<HeldRun>,
) -> Result<usize, BootError> {
    let count = held.len();
    let (released, shut): (Vec<_>, Vec<_>) = held.into_iter().partition(|held| held.released);
    let mut opened = open_all(shared, released, HashMap::new());
    while let Some(part) = next(&mut opened).await? {
        for found in part {
            found.resume_without_row(shared);
        }
    }
    for held in shut {
        await_row(shared, held);
    }
    Ok(count)
}

/// Opens what is left of each run, in as many parts at once as the host has processors, twice: the whole index of a
/// journal is read, which may be long.
fn open_all(
    shared: &Arc<Shared>,
    held: Vec<HeldRun>,
    mut known: HashMap<RunId, RunRow>,
) -> JoinSet<Vec<AdoptableRun>> {
    let parts = 2 * std::thread::available_parallelism().map_or(1, usize::from);
    let in_part = held.len().div_ceil(parts);
    let mut held = held.into_iter().map(|held| {
        let row = known.remove(&held.run);
        (held, row)
    });
    let mut opened = JoinSet::new();
    loop {
        let part: Vec<_> = held.by_ref().take(in_part).collect();
        if part.is_empty() {
            return opened;
        }
        let shared = Arc::clone(shared);
        opened.spawn_blocking(move || {
            let part = part.into_iter();
            part.map(|(held, row)| AdoptableRun::open(&shared, held, row))
                .collect()
        });
    }
}

async fn next(
    opened: &mut JoinSet<Vec<AdoptableRun>>,
) -> Result<Option<Vec<AdoptableRun>>, BootError> {
    let found = opened.join_next().await.transpose();
    found.map_err(|e| BootError::Adoption(io::Error::other(e)))
}

/// Returns the state of a run that the keeper found late; absent where its key is another run's.
pub(crate) async fn late(
    shared: &Arc<Shared>,
    held: HeldRun,
    row: Option<RunRow>,
) -> Result<Option<KeeperRun>, BootError> {
    let opening = Arc::clone(shared);
    let found = blocking(move || AdoptableRun::open(&opening, held, row)).await;
    let found = found.map_err(BootError::Adoption)?;
    found.keeper_run(shared).await.map_err(BootError::Store)
}

/// Takes the rows of the runs that the keeper holds, open or closed. An open row under the key of a child that was never
/// released, and is not of that row, stays: nothing is held of its run.
async fn take_rows(
    shared: &Shared,
    held: &[HeldRun],
    rows: &mut Vec<RunRow>,
    unread: &mut HashMap<RunId, UnreadRow>,
) -> Result<HashMap<RunId, RunRow>, BootError> {
    let children: HashMap<RunId, &HeldRun> = held.iter().map(|held| (held.run, held)).collect();
    let open: HashSet<RunId> = rows.iter().map(|row| row.new.run).collect();
    let is_held = |row: &RunRow| {
        let child = children.get(&row.new.run);
        let belongs = |held| held_attempt(shared.config.node, row, held) != HeldAttempt::Other;
        child.is_some_and(|held| held.released || belongs(held))
    };
    let (known, others): (Vec<_>, _) = std::mem::take(rows).into_iter().partition(is_held);
    *rows = others;
    let mut known: HashMap<_, _> = known.into_iter().map(|row| (row.new.run, row)).collect();
    for held in held.iter().filter(|held| !open.contains(&held.run)) {
        // Rows are read singly: only `get` returns their entries.
        match shared.store.raw().get(held.run).await {
            Err(StoreError::Unread(row)) => drop(unread.insert(row.run, *row)),
            row => known.extend(row.map_err(BootError::Store)?.map(|row| (held.run, row))),
        }
    }
    Ok(known)
}

/// A run with all that its server left.
struct AdoptableRun {
    held: HeldRun,
    row: Option<RunRow>,
    /// The attempt that was intended last.
    intended: Option<NewRun>,
    journal: io::Result<Reopened>,
}

impl AdoptableRun {
    fn open(shared: &Shared, held: HeldRun, row: Option<RunRow>) -> Self {
        let intended = shared.record.intended(held.run);
        let journal = Reopened::open(shared, held.run, row.as_ref());
        crash_point!("adopt.journal_mended");
        Self {
            held,
            row,
            intended,
            journal,
        }
    }

    /// Starts the run's task. `false`: its key is another run's.
    async fn start(self, shared: &Arc<Shared>) -> Result<bool, BootError> {
        let run = self.held.run;
        let keeper_run = self.keeper_run(shared).await.map_err(BootError::Store)?;
        let Some(keeper_run) = keeper_run else {
            return Ok(false);
        };
        let forgotten = forget::forgotten_by(&keeper_run.left.row).map(str::to_owned);
        enter(shared, keeper_run, None);
        if let Some(by) = forgotten {
            forget::end(shared, run, &by);
        }
        Ok(true)
    }

    /// Starts the task of a run without a store: the run exists, for its gate was opened. An end in the node log stands;
    /// otherwise the row is not known.
    fn resume_without_row(self, shared: &Arc<Shared>) {
        let ended = shared.record.ended_row(self.held.run);
        let is_held = |row: &RunRow| row.new.identity.as_ref() == Some(&self.held.identity);
        let (row, meet) = match ended.filter(is_held) {
            Some(row) => (row, None),
            None => {
                if self.intended.is_none() {
                    tracing::error!(run_id = %self.held.run, "the node log lacks this run, its row comes with the database");
                }
                let row = RunRow::open(described(shared, &self.held));
                shared.record.assume(&row);
                let row = shared.record.with_pending(row);
                let meet = Box::new(row.new.clone());
                (row, Some(meet))
            }
        };
        self.enter(shared, row, meet);
    }

    /// Starts the task of a run whose row this version cannot read, and pins it; its attempts are only in the row.
    /// `false`: it never ran, or has ended; a server that can read the row does the rest.
    fn resume_unread(mut self, shared: &Arc<Shared>, unread: &UnreadRow) -> bool {
        if unread.has_ended || !self.held.released {
            return false;
        }
        let row = unread.open(described(shared, &self.held));
        let is_held = |known: &RunRow| {
            held_attempt(shared.config.node, known, &self.held) == HeldAttempt::Present
        };
        // The node log also has accepted stops.
        let row = match shared.record.open_row(row.new.run).filter(is_held) {
            Some(known) => RunRow {
                new: row.new,
                ..known
            },
            None => row,
        };
        let meet = Some(Box::new(row.new.clone()));
        self.held.pinned.get_or_insert_with(|| unread.why.clone());
        self.enter(shared, row, meet);
        true
    }

    /// Starts the task of a run that has a row, as far as that is known.
    fn enter(self, shared: &Arc<Shared>, row: RunRow, meet: Option<Box<NewRun>>) {
        let keeper_run = KeeperRun {
            held: self.held,
            recorded: true,
            left: Left::new(row, self.journal),
        };
        enter(shared, keeper_run, meet);
    }

    /// Returns the state of the run by its row; absent where its key is another run's.
    async fn keeper_run(self, shared: &Arc<Shared>) -> Result<Option<KeeperRun>, StoreError> {
        let Self {
            held,
            row,
            intended,
            journal,
        } = self;
        let run = held.run;
        let node = shared.config.node;
        let attempt = row.as_ref().map(|row| held_attempt(node, row, &held));
        let row = match (row, &intended) {
            (Some(row), _) if attempt == Some(HeldAttempt::Present) => Some(row),
            (Some(row), _) if attempt == Some(HeldAttempt::Next) => {
                Some(not_begun(shared, &held, row))
            }
            (Some(row), _) if held.released => {
                tracing::error!(run_id = %run, recorded = log_words::identity(row.new.identity.as_ref()), held = log_words::identity(Some(&held.identity)), "the run of the keeper and its row differ, skipping it");
                return Ok(None);
            }
            (None, intended) if held.released => {
                let new = match intended {
                    Some(new) => as_held(shared, &held, new.clone()),
                    None => {
                        tracing::error!(run_id = %run, "the node log lacks the run: its row is written from the keeper's state, without owner, spec and labels");
                        placeholder(shared, &held)
                    }
                };
                let row = shared.store.rewrite(&new).await?;
                if row.new.identity != new.identity {
                    tracing::error!(run_id = %run, state = log_words::stored_state(row.state), attempt = row.new.attempt, "another row exists under the key of a run, skipping it");
                    return Ok(None);
                }
                Some(row)
            }
            // The gate was shut before the run was recorded, or the key has another row.
            (_, Some(_) | None) => None,
        };
        let recorded = row.is_some();
        let unrecorded = || RunRow::open(intended.unwrap_or_else(|| placeholder(shared, &held)));
        let row = row.unwrap_or_else(unrecorded);
        Ok(Some(KeeperRun {
            held,
            recorded,
            left: Left::new(row, journal),
        }))
    }
}

/// Waits for the row of a child whose gate was shut and which never ran. Only the store knows whether that is to be
/// written; nothing is done before.
fn await_row(shared: &Arc<Shared>, held: HeldRun) {
    let run = held.run;
    let new = described(shared, &held);
    let waiting = Arc::clone(shared);
    let make = || {
        let (handle, mut seat) = Handle::new(&new, intake::unborn(&new), None);
        let marks = log_span(&shared.config.telemetry, &new);
        let meeting = async move {
            let row = loop {
                tokio::select! {
                    Ok(row) = writes::row_of(&waiting.store, run) => break row,
                    Some(order) = seat.orders.recv() => answer(*order, &seat.live.subscribe()),
                    // The keeper reports this run again to the next server.
                    () = waiting.serving.until_refusing() => return drop(waiting.place(run)),
                }
            };
            match late(&waiting, held, row).await {
                Ok(Some(keeper_run)) => {
                    let task = Box::new(RunTask::adopt(waiting, keeper_run, seat));
                    task.resume_supervision().await;
                }
                // The next server gets the run in this case too.
                Ok(None) | Err(_) => drop(waiting.place(run)),
            }
        };
        shared.tasks.spawn(meeting.instrument(marks));
        handle
    };
    // During startup no other run enters, and no entry is refused.
    let _ = shared.enter(run, None, make);
}

/// Describes a run without the store. The intended attempt may be the one after the keeper's: it is recorded before the
/// keeper is asked for it.
fn described(shared: &Shared, held: &HeldRun) -> NewRun {
    let noted = shared.record.open_row(held.run);
    let noted = noted.filter(|row| row.new.identity.as_ref() == Some(&held.identity));
    let new = noted.map(|row| row.new);
    match new.or_else(|| shared.record.intended(held.run)) {
        Some(new) => as_held(shared, held, new),
        None => placeholder(shared, held),
    }
}

/// Starts the run's task; it meets the row given here.
fn enter(shared: &Arc<Shared>, keeper_run: KeeperRun, meet: Option<Box<NewRun>>) {
    let row = &keeper_run.left.row;
    let run = row.new.run;
    let marks = log_span(&shared.config.telemetry, &row.new);
    let make = || {
        let row = &keeper_run.left.row;
        let (handle, seat) = Handle::new(&row.new, RunView::from(row.clone()), None);
        let task = RunTask::adopt(Arc::clone(shared), keeper_run, seat).meeting(meet);
        let task = Box::new(task);
        crash_point!("adopt.task_made");
        shared
            .tasks
            .spawn(task.resume_supervision().instrument(marks.clone()));
        handle
    };
    match shared.enter(run, None, make) {
        Ok(Entered::New(_)) => {
            shared.announce(run);
            marks.in_scope(|| tracing::info!(run_id = %run, "run adopted from the keeper"));
        }
        // During startup no other run enters, and no entry is refused.
        Ok(Entered::Existing) | Err(_) => {}
    }
}

/// The attempt of the child that the keeper holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum HeldAttempt {
    /// The attempt of the row.
    Present,
    /// The attempt after it: its server died before it was recorded, so its gate was shut.
    Next,
    /// No attempt that the row knows.
    Other,
}

fn held_attempt(node: NodeId, row: &RunRow, held: &HeldRun) -> HeldAttempt {
    let present = match row.past.last() {
        Some(last) if row.state == StoredState::Backoff => {
            last.leader == Some(held.identity.command)
        }
        _ => row.new.identity.as_ref() == Some(&held.identity),
    };
    // The run ended before this attempt was recorded: the row has the previous attempt.
    let ended = row.outcome.is_some() && !held.released && row.new.policy().restart.restarts();
    let ours = ended && row.new.identity.is_some() && row.new.node == node;
    match row.state {
        _ if present || ours => HeldAttempt::Present,
        StoredState::Backoff if !held.released => HeldAttempt::Next,
        _ => HeldAttempt::Other,
    }
}

/// Makes the row of an attempt that did not start.
fn not_begun(shared: &Shared, held: &HeldRun, row: RunRow) -> RunRow {
    let attempt = row.new.attempt + 1;
    let new = NewRun {
        attempt,
        ..as_held(shared, held, row.new)
    };
    RunRow {
        past: row.past,
        restarts: row.restarts,
        desired: row.desired,
        stop: row.stop,
        stop_deadline: row.stop_deadline,
        ..RunRow::open(new)
    }
}

/// Makes the row of a run that has lived on under this keeper.
fn as_held(shared: &Shared, held: &HeldRun, new: NewRun) -> NewRun {
    NewRun {
        keeper_epoch: shared.hello.epoch,
        identity: Some(held.identity.clone()),
        held: Some(held.held.clone()),
        ..new
    }
}

/// Makes a row of what the keeper knows, where nothing is left of the run's own.
fn placeholder(shared: &Shared, held: &HeldRun) -> NewRun {
    // Without its row the run gets no further attempt.
    let policy = Policy {
        restart: RestartPolicy::default(),
        ..held.policy.clone()
    };
    let spec = RunSpec {
        policy,
        ..RunSpec::default()
    };
    NewRun {
        spec: Arc::new(spec.into()),
        identity: Some(held.identity.clone()),
        held: Some(held.held.clone()),
        ..intake::undescribed(shared, held.run, String::new())
    }
}

/// Answers an order to this run, on which nothing can act any more: it is being ended already.
pub(crate) fn answer(order: Order, live: &watch::Receiver<Live>) {
    match order {
        // A caller that has gone needs no answer.
        Order::Stop(_, reply) => drop(reply.send(Ok(()))),
        order => order.refuse(live.borrow().view.refuse_call(Refusal::Stopping)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kennel_lifecycle::{
        Containment, EndReason, Held, HostIdentity, Outcome, ProcessIdentity, RunIdentity,
        StopCertificate, TreeVerdict,
    };

    fn identity(pid: i32) -> RunIdentity {
        let process = |pid| ProcessIdentity {
            pid,
            pgid: pid,
            sid: pid,
            start_ticks: 1,
            pidfs_handle: None,
        };
        RunIdentity {
            command: process(pid),
            shim: process(pid + 1),
            cgroup: None,
            host: HostIdentity {
                boot_id: "b".into(),
                pidns_inode: 1,
                init_start_ticks: Some(7),
            },
        }
    }

    /// An attempt was aborted before its gate was opened; its row says so with the identity of the attempt before.
    #[test]
    fn unstarted_child_is_assigned_to_its_ended_run() {
        let mut new = crate::registry::tests::new_run();
        new.identity = Some(identity(10));
        let mut spec = RunSpec::default();
        spec.policy.restart = RestartPolicy::agent();
        new.spec = Arc::new(spec.into());
        let node = new.node;
        let mut row = RunRow::open(new);
        row.outcome = Some(Outcome {
            reason: EndReason::Aborted {
                by: "uid:0".into(),
                request_id: None,
            },
            exit: None,
            tree: TreeVerdict::NeverRan,
            streams: None,
            certificate: StopCertificate::default(),
        });
        let held = |released| HeldRun {
            run: row.new.run,
            identity: identity(20),
            held: Held {
                by: Containment::Subreaper,
                gaps: Vec::new(),
            },
            policy: Policy::default(),
            released,
            pause: kennel_keeper::client::HeldPause::None,
            stopping: false,
            pinned: None,
            outputs: None,
            terminal: None,
        };
        assert_eq!(held_attempt(node, &row, &held(false)), HeldAttempt::Present);
        // A released child belongs to another run, and so does a child if another node ended the run or the run has
        // only one attempt.
        assert_eq!(held_attempt(node, &row, &held(true)), HeldAttempt::Other);
        let elsewhere = NodeId::from_u128(2);
        assert_eq!(
            held_attempt(elsewhere, &row, &held(false)),
            HeldAttempt::Other
        );
        let mut once = row.clone();
        once.new.spec = Arc::default();
        assert_eq!(held_attempt(node, &once, &held(false)), HeldAttempt::Other);
    }
}
