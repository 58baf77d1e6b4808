//! Runs that no keeper holds and whose rows are closed, but whose end is not wholly told: who told it has died meanwhile.
//!
//! Wherever a spare copy of a row is, something is left to do.

use crate::{
    BootError, adopt, blocking::blocking, event, recover::Journal, spare, tracker::Shared,
};
use kennel_journal::{Boot, Writer};
use kennel_lifecycle::RunId;
use kennel_linux::rundir;
use kennel_store::RunRow;
use std::{collections::HashSet, io, path::Path, sync::Arc};

/// Finishes all but those that somebody else goes on with. Nobody reads yet.
pub(crate) async fn finish_all(
    shared: &Arc<Shared>,
    others: HashSet<RunId>,
) -> Result<(), BootError> {
    let data_dir = shared.config.data_dir.clone();
    let all = blocking(move || spare::all(&data_dir)).await.flatten();
    let mut left = all.map_err(BootError::Adoption)?;
    left.retain(|run| !others.contains(run));
    let mut rows = adopt::rows(shared, &left).await?;
    let data_dir = shared.config.data_dir.clone();
    let boot = shared.boot();
    blocking(move || {
        for run in left {
            if let Err(error) = finish(&data_dir, run, rows.remove(&run), boot) {
                tracing::warn!(run_id = %run, %error, "what a crash has left of this run stays as it is");
            }
        }
    })
    .await
    .map_err(BootError::Adoption)
}

fn finish(data_dir: &Path, run: RunId, row: Option<RunRow>, boot: Boot) -> io::Result<()> {
    let dir = rundir::path(data_dir, run);
    // A row without an identity says that nothing ran: it is another's, which stands under this run's key.
    match row.filter(|row| row.new.identity.is_some()) {
        Some(RunRow {
            new,
            outcome: Some(outcome),
            ..
        }) => {
            Journal::open(&dir, new.attempt, boot)?.end(&outcome)?;
            tracing::info!(run_id = %run, "its end is told in full");
            spare::tidy(data_dir, run)
        }
        // It is another node's to close.
        Some(_) => Ok(()),
        None if was_recorded(&dir, boot)? => {
            tracing::warn!(run_id = %run, "the store has lost the row of a run that nobody holds any more; its output stays");
            Ok(())
        }
        None => spare::forget(data_dir, run),
    }
}

/// What was not recorded was never let go.
fn was_recorded(dir: &Path, boot: Boot) -> io::Result<bool> {
    let writer = match Writer::recover(dir, boot, crate::clock::now()) {
        Ok(writer) => writer,
        // The journal was not made any more.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(error),
    };
    Ok(event::record(&writer.facts()?, 1).recorded)
}
