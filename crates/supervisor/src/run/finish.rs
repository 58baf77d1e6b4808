//! The last entries of a run whose row is closed, and whose journal does not have its end: its server died meanwhile, or
//! the write of an earlier one came first.

use crate::{
    base::blocking::blocking,
    record,
    registry::Shared,
    run::{cleanup::Cleanup, reopened::Reopened},
};
use kennel_keeper::rundir;
use kennel_store::RunRow;
use std::{io, sync::Arc};

/// Appends what the journal of this run lacks, and removes what an ended run no longer needs. An open row is another
/// server's to close. Blocks.
pub(crate) fn finish(shared: &Shared, row: &RunRow) -> io::Result<()> {
    let run = row.new.run;
    let Some(outcome) = &row.outcome else {
        return Ok(());
    };
    let dir = rundir::path(&shared.config.data_dir, run);
    if record::silent(row).is_some() && !kennel_journal::is_made(&dir) {
        return Cleanup::of_ended(outcome, true).carry_out(shared, run);
    }
    if Reopened::open(shared, run, Some(row))?.end(row.new.attempt, outcome) {
        tracing::info!(run_id = %run, "the end of the run is recorded in full");
        Cleanup::Ended.carry_out(shared, run)?;
    }
    Ok(())
}

/// Does the same for a run whose task has dropped its journal and ends; what fails is left to the next start.
pub(crate) async fn at_once(shared: &Arc<Shared>, row: RunRow) {
    let (run, shared) = (row.new.run, Arc::clone(shared));
    let finished = blocking(move || finish(&shared, &row)).await;
    if let Err(error) = finished.flatten() {
        tracing::warn!(run_id = %run, %error, "cannot record the end of the run in full, leaving it to the next start");
    }
}
