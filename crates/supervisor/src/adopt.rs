//! Runs that this server's keeper holds from an earlier server: each is gone on with where it stands.
//!
//! What a run is comes from its row; where the database has lost the row, from a spare copy in the run's directory,
//! which was left there before the keeper was asked for the child. A run of which neither is there is left alone.

use crate::{
    BootError, RunView,
    cause::Chain,
    clock,
    output::Output,
    past::Past,
    run_task::{RunTask, Standing},
    tracker::{Entered, Handle, ORDERS_QUEUED_MAX, REPORTS_QUEUED_MAX, Shared},
    view::Live,
};
use kennel_journal::Writer;
use kennel_lifecycle::{RunId, RunKind};
use kennel_linux::{client::HeldRun, crash_point, rundir};
use kennel_store::{Desired, Inserted, NewRun, RunRow, StoredState, Times};
use std::{
    collections::{HashMap, HashSet},
    fs::{self, OpenOptions},
    io::{self, Write},
    os::unix::fs::OpenOptionsExt,
    path::Path,
    sync::Arc,
    time::Duration,
};
use tokio::{
    sync::{mpsc, watch},
    task::JoinSet,
};

/// The spare copy of a row, in the run's directory.
const SPARE: &str = "record";

/// Leaves the copy, readable by nobody else. A host that goes down takes the run with it, so it need not be synced.
pub(crate) fn leave_spare(dir: &Path, new: &NewRun) -> io::Result<()> {
    let mut how = OpenOptions::new();
    how.write(true).create(true).truncate(true).mode(0o600);
    how.open(dir.join(SPARE))?.write_all(&new.spare())
}

fn spare(dir: &Path) -> Result<NewRun, String> {
    let bytes = fs::read(dir.join(SPARE)).map_err(|e| e.to_string())?;
    NewRun::from_spare(&bytes)
}

/// Whether it is there: then this run is not done with.
pub(crate) fn has_spare(data_dir: &Path, run: RunId) -> bool {
    rundir::path(data_dir, run).join(SPARE).exists()
}

/// Removes what a run that has ended needs no more: what its command was told of, and the spare copy. That goes last, so
/// that whoever comes after a crash finds what is left to do.
pub(crate) fn tidy(data_dir: &Path, run: RunId) -> io::Result<()> {
    rundir::remove_tmp(data_dir, run)?;
    match fs::remove_file(rundir::path(data_dir, run).join(SPARE)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        Ok(()) | Err(_) => Ok(()),
    }
}

/// What came of the runs that were handed over.
#[derive(Debug, Default)]
pub(crate) struct Adopted {
    /// How many are gone on with.
    pub(crate) count: usize,
    /// Of these nothing is known: they are neither signalled nor acknowledged.
    pub(crate) left_alone: HashSet<RunId>,
}

/// Goes on with all of them. `rows` are the open ones of the node; those that are nobody's here stay in it.
pub(crate) async fn all(
    shared: &Arc<Shared>,
    held: Vec<HeldRun>,
    rows: &mut Vec<RunRow>,
) -> Result<Adopted, BootError> {
    let mut known = take_rows(shared, &held, rows).await?;
    let mut opened = JoinSet::new();
    for held in held {
        let (shared, row) = (Arc::clone(shared), known.remove(&held.run));
        // The whole index of each journal is looked through, which may be long.
        opened.spawn_blocking(move || Found::open(&shared, held, row));
    }
    let mut adopted = Adopted::default();
    while let Some(found) = opened.join_next().await {
        let found = found.map_err(|e| BootError::Adoption(io::Error::other(e)))?;
        let run = found.held.run;
        if found.go_on(shared).await? {
            adopted.count += 1;
        } else {
            adopted.left_alone.insert(run);
        }
    }
    Ok(adopted)
}

/// The rows of the runs that are held, open or closed.
async fn take_rows(
    shared: &Shared,
    held: &[HeldRun],
    rows: &mut Vec<RunRow>,
) -> Result<HashMap<RunId, RunRow>, BootError> {
    let wanted: HashSet<RunId> = held.iter().map(|held| held.run).collect();
    let (known, others) = std::mem::take(rows)
        .into_iter()
        .partition(|row| wanted.contains(&row.new.run));
    *rows = others;
    let known: Vec<RunRow> = known;
    let mut known: HashMap<RunId, RunRow> =
        known.into_iter().map(|row| (row.new.run, row)).collect();
    let closed: Vec<RunId> = wanted
        .into_iter()
        .filter(|run| !known.contains_key(run))
        .collect();
    if !closed.is_empty() {
        let closed = shared.store.get_all(&closed).await;
        let closed = closed.map_err(BootError::Store)?;
        known.extend(closed.into_iter().map(|row| (row.new.run, row)));
    }
    Ok(known)
}

/// A run with all that is left of its server.
struct Found {
    held: HeldRun,
    row: Option<RunRow>,
    spare: Result<NewRun, String>,
    journal: io::Result<(Writer, Past)>,
}

impl Found {
    fn open(shared: &Shared, held: HeldRun, row: Option<RunRow>) -> Self {
        let dir = rundir::path(&shared.config.data_dir, held.run);
        let journal = Writer::recover(&dir, clock::now()).and_then(|writer| {
            let past = Past::of(&writer.facts()?);
            Ok((writer, past))
        });
        crash_point!("adopt.journal_mended");
        Self {
            spare: spare(&dir),
            held,
            row,
            journal,
        }
    }

    /// Starts the run's task. `false`: nothing is known of the run.
    async fn go_on(self, shared: &Arc<Shared>) -> Result<bool, BootError> {
        let Self {
            held,
            row,
            spare,
            journal,
        } = self;
        let run = held.run;
        let spare_new = spare.as_ref().ok().cloned();
        let its_own = |row: &RunRow| row.new.identity.as_ref() == Some(&held.identity);
        let row = match (row, spare) {
            (Some(row), _) if its_own(&row) => Some(row),
            (Some(row), _) if held.released => {
                tracing::error!(%run, recorded = ?row.new.identity, held = ?held.identity, "the keeper holds another run than the row says, it is left alone");
                return Ok(false);
            }
            (None, Ok(new)) if held.released => {
                tracing::error!(%run, "the store has lost the row of a run, writing it again");
                let new = NewRun {
                    generation: shared.generation,
                    keeper_epoch: shared.hello.epoch,
                    identity: Some(held.identity.clone()),
                    held: Some(held.held.clone()),
                    ..new
                };
                match shared.store.insert(&new).await.map_err(BootError::Store)? {
                    Inserted::New => Some(open_row(new)),
                    Inserted::Taken(row) => {
                        tracing::error!(%run, ?row, "another row has come under the key of a run, it is left alone");
                        return Ok(false);
                    }
                }
            }
            (None, Err(why)) if held.released => {
                tracing::error!(%run, %why, "nothing is known of a run that the keeper holds: there is no row and no copy of one; it is left alone");
                return Ok(false);
            }
            // Its gate was shut before it was recorded, or another row stands under its key.
            (_, Ok(_) | Err(_)) => None,
        };
        let (output, past) = match journal {
            Ok((writer, past)) => {
                let open = Arc::clone(&shared.pipes_open);
                (Some(Output::over(run, writer, open)), past)
            }
            Err(error) => {
                let error = Chain(&error);
                tracing::error!(%run, %error, "the journal cannot be read, nothing is written to it");
                (None, Past::default())
            }
        };
        let recorded = row.is_some();
        let unrecorded = || open_row(spare_new.unwrap_or_else(|| placeholder(shared, &held)));
        let standing = Standing {
            row: row.unwrap_or_else(unrecorded),
            recorded,
            held,
            output,
            past,
        };
        enter(shared, standing);
        Ok(true)
    }
}

fn enter(shared: &Arc<Shared>, standing: Standing) {
    let run = standing.row.new.run;
    let make = || {
        let (orders_sender, orders) = mpsc::channel(ORDERS_QUEUED_MAX);
        let (reports_sender, reports) = mpsc::channel(REPORTS_QUEUED_MAX);
        let new = &standing.row.new;
        let (live_sender, live) = watch::channel(Live {
            view: RunView::from(standing.row.clone()),
            start: None,
            hub: None,
            stop_owed: false,
            over: false,
        });
        let handle = Handle {
            spec_digest: new.spec_digest.clone().into(),
            spec_digest_version: new.spec_digest_version,
            owner: new.owner.clone().into(),
            orders: orders_sender,
            reports: reports_sender,
            live,
        };
        let task = RunTask::adopt(Arc::clone(shared), standing, live_sender, orders, reports);
        crash_point!("adopt.task_made");
        shared.tasks.spawn(task.go_on());
        handle
    };
    match shared.enter(run, None, make) {
        Ok(Entered::New(_)) => tracing::info!(%run, "held by the keeper, going on with it"),
        // Nothing else has entered at a start, and nothing is refused.
        Ok(Entered::Existing) | Err(_) => {}
    }
}

fn open_row(new: NewRun) -> RunRow {
    RunRow {
        new,
        state: StoredState::Starting,
        desired: Desired::Run,
        stop_deadline: None,
        stop: None,
        times: Times::default(),
        outcome: None,
    }
}

/// In the place of the row of a run that was never recorded and leaves no trace.
fn placeholder(shared: &Shared, held: &HeldRun) -> NewRun {
    NewRun {
        run: held.run,
        owner: String::new(),
        attempt: 1,
        kind: RunKind::default(),
        node: shared.config.node,
        generation: shared.generation,
        keeper_epoch: shared.hello.epoch,
        identity: Some(held.identity.clone()),
        held: Some(held.held.clone()),
        grace: Duration::ZERO,
        traceparent: None,
        spec: "{}".into(),
        spec_digest: Vec::new(),
        spec_digest_version: 0,
        labels: Arc::default(),
        created: clock::now(),
    }
}
