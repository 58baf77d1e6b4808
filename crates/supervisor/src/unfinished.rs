//! Runs that no keeper holds and whose rows are closed, but whose end is not wholly told: who told it has died meanwhile.
//!
//! The spare copy of the row is the last thing of a run that is removed, so wherever one is, something is left to do.

use crate::{BootError, adopt, past::Past, recover::Journal, tracker::Shared};
use kennel_journal::Writer;
use kennel_lifecycle::RunId;
use kennel_linux::rundir;
use kennel_store::RunRow;
use std::{
    collections::{HashMap, HashSet},
    io,
    path::Path,
    sync::Arc,
};

/// Most rows that are asked for at once.
const ROWS_MAX: usize = 500;

/// Finishes all but those that somebody else goes on with. Nobody reads yet.
pub(crate) async fn finish_all(
    shared: &Arc<Shared>,
    others: HashSet<RunId>,
) -> Result<(), BootError> {
    let data_dir = shared.config.data_dir.clone();
    let left = blocking(move || {
        let runs = rundir::all(&data_dir).into_iter();
        let unfinished = |run: &RunId| !others.contains(run) && adopt::has_spare(&data_dir, *run);
        runs.filter(unfinished).collect::<Vec<RunId>>()
    });
    for runs in left.await?.chunks(ROWS_MAX) {
        let rows = shared.store.get_all(runs).await.map_err(BootError::Store)?;
        let mut rows: HashMap<RunId, RunRow> =
            rows.into_iter().map(|row| (row.new.run, row)).collect();
        let runs = runs.to_vec();
        let data_dir = shared.config.data_dir.clone();
        blocking(move || {
            for run in runs {
                if let Err(error) = finish(&data_dir, run, rows.remove(&run)) {
                    tracing::warn!(%run, %error, "what a crash has left of this run stays as it is");
                }
            }
        })
        .await?;
    }
    Ok(())
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, BootError> {
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(|error| BootError::Adoption(io::Error::other(error)))
}

fn finish(data_dir: &Path, run: RunId, row: Option<RunRow>) -> io::Result<()> {
    let dir = rundir::path(data_dir, run);
    match row {
        // A row without an identity says that nothing ran, and the journal that something did: its own row was lost.
        Some(row) if row.new.identity.is_none() && was_recorded(&dir)? => {
            tracing::warn!(%run, "the row of this run says that it never ran, and its journal that it did; its output stays");
            Ok(())
        }
        // Another's row stands under its key.
        Some(row) if row.new.identity.is_none() => rundir::remove(data_dir, run),
        Some(RunRow {
            outcome: Some(outcome),
            ..
        }) => {
            Journal::open(&dir)?.end(&outcome)?;
            tracing::info!(%run, "its end is told in full");
            adopt::tidy(data_dir, run)
        }
        // It is another node's to close.
        Some(_) => Ok(()),
        None if was_recorded(&dir)? => {
            tracing::warn!(%run, "the store has lost the row of a run that nobody holds any more; its output stays");
            Ok(())
        }
        None => rundir::remove(data_dir, run),
    }
}

/// What was not recorded was never let go.
fn was_recorded(dir: &Path) -> io::Result<bool> {
    let writer = match Writer::recover(dir, crate::clock::now()) {
        Ok(writer) => writer,
        // The journal was not made any more.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(error),
    };
    Ok(Past::of(&writer.facts()?).announced.recorded)
}
