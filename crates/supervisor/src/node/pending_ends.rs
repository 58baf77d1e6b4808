//! Runs that no keeper holds and whose rows are closed, but whose end is not wholly in their journal: their server has died
//! meanwhile. The record of the node says for which runs something is left to do.

use crate::{
    base::{blocking::blocking, event, faults::BootError},
    node::{adopt, recover::Journal},
    registry::Shared,
    run::cleanup::Cleanup,
};
use kennel_journal::Writer;
use kennel_keeper::rundir;
use kennel_lifecycle::RunId;
use kennel_store::RunRow;
use std::{collections::HashSet, io, path::Path, sync::Arc};

/// Finishes all but those that another part goes on with. No reader is served yet.
pub(crate) async fn finish_all(
    shared: &Arc<Shared>,
    others: HashSet<RunId>,
) -> Result<(), BootError> {
    let mut left = shared.record.unfinished();
    left.retain(|run| !others.contains(run));
    let mut rows = adopt::rows(shared, &left).await?;
    let finishing = Arc::clone(shared);
    blocking(move || {
        for run in left {
            if let Err(error) = finish(&finishing, run, rows.remove(&run)) {
                tracing::warn!(run_id = %run, %error, "what a crash has left of this run stays as it is");
            }
        }
    })
    .await
    .map_err(BootError::Adoption)
}

fn finish(shared: &Shared, run: RunId, row: Option<RunRow>) -> io::Result<()> {
    let dir = rundir::path(&shared.config.data_dir, run);
    // A row without an identity says that nothing ran: it is another run's, which stands under this key.
    match row.filter(|row| row.new.identity.is_some()) {
        Some(RunRow {
            new,
            outcome: Some(outcome),
            ..
        }) => {
            let mut journal = Journal::open(&dir, new.attempt, shared.boot())?;
            journal.end(&outcome, crate::base::clock::now())?;
            tracing::info!(run_id = %run, "its end is told in full");
            Cleanup::Ended.carry_out(shared, run)
        }
        // It is another node's to close.
        Some(_) => Ok(()),
        None if was_recorded(&dir, shared)? => {
            tracing::warn!(run_id = %run, "the store has lost the row of a run that nobody holds any more; its output stays");
            Ok(())
        }
        None => Cleanup::All.carry_out(shared, run),
    }
}

/// What was not recorded was never released.
fn was_recorded(dir: &Path, shared: &Shared) -> io::Result<bool> {
    let writer = match Writer::recover(dir, shared.boot(), crate::base::clock::now()) {
        Ok(writer) => writer,
        // The journal was not made any more.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(error),
    };
    Ok(event::record(&writer.facts()?, 1).recorded)
}
