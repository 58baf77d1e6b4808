//! Runs that no keeper holds and whose rows are closed, but whose end is not wholly in their journal: their server died
//! meanwhile. The node log names the runs for which work remains.

use crate::{
    base::{blocking::blocking, faults::BootError},
    registry::Shared,
    run::{cleanup::Cleanup, finish, reopened::Reopened},
};
use kennel_lifecycle::RunId;
use kennel_linux::own_file;
use kennel_store::{RunRow, StoreError};
use std::{collections::HashSet, io, sync::Arc};

/// Finishes all but those that other code resumes. No reader is served yet.
pub(crate) async fn finish_all(
    shared: &Arc<Shared>,
    others: HashSet<RunId>,
) -> Result<(), BootError> {
    let mut left = shared.record.unfinished();
    left.retain(|run| !others.contains(run));
    for run in left {
        // Rows are read singly: only `get` returns their entries.
        let row = match shared.store.raw().get(run).await {
            // An unreadable row is left to a server of its version.
            Err(StoreError::Unread(_)) => continue,
            row => row.map_err(BootError::Store)?,
        };
        let finishing = Arc::clone(shared);
        let finished = blocking(move || finish(&finishing, run, row)).await;
        if let Err(error) = finished.flatten() {
            tracing::warn!(run_id = %run, %error, "leaving the remains of a crashed start of this run");
        }
    }
    Ok(())
}

fn finish(shared: &Shared, run: RunId, row: Option<RunRow>) -> io::Result<()> {
    // A row without an identity says that nothing ran: another run has this key.
    match row.filter(|row| row.new.identity.is_some()) {
        Some(row) => finish::finish(shared, &row),
        None if was_recorded(shared, run)? => {
            tracing::warn!(run_id = %run, "the database lost the row of a run that no keeper has any more; its output is kept");
            Ok(())
        }
        None => Cleanup::All.carry_out(shared, run),
    }
}

/// Whether the run was recorded: a run that was not recorded was never released.
fn was_recorded(shared: &Shared, run: RunId) -> io::Result<bool> {
    // Without a journal the run directory was never made.
    let journal = own_file::none_if_absent(Reopened::open(shared, run, None))?;
    Ok(journal.is_some_and(|journal| journal.record(1).recorded))
}
