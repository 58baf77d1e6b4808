//! Removal of a run's files on this node, and of its unfinished work from the record.

use crate::{record::persisted_spec, registry::Shared};
use kennel_keeper::rundir;
use kennel_lifecycle::{Outcome, RunId, TreeVerdict};
use std::{io, path::Path};

/// Extent of a removal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cleanup {
    /// Removes what an ended run no longer needs. Its end is not wholly in its journal: the next start handles the run
    /// again.
    Needless,
    /// Removes the same, and no work remains.
    Ended,
    /// Removes the same, of a run of which provably no process lives.
    Empty {
        /// The run made no file: its directory is removed, for the row has all that happened.
        is_silent: bool,
    },
    /// Removes everything of a run that leaves no trace.
    All,
}

impl Cleanup {
    /// Returns the cleanup of a run with this outcome. A process that may be left has the directory's name in its
    /// marker, so then the directory stays.
    pub(crate) fn of_ended(outcome: &Outcome, is_silent: bool) -> Self {
        match outcome.tree {
            TreeVerdict::Empty(_) | TreeVerdict::NeverRan => Self::Empty { is_silent },
            _ => Self::Ended,
        }
    }

    /// Carries out the cleanup. The record is changed last, so that a server that starts after a crash finds the
    /// remaining work. Blocks.
    pub(crate) fn carry_out(self, shared: &Shared, run: RunId) -> io::Result<()> {
        let data_dir = &shared.config.data_dir;
        match self {
            Self::Needless => return remove_needless(data_dir, run),
            Self::Ended => remove_needless(data_dir, run)?,
            Self::Empty { is_silent } => {
                remove_secrets(data_dir, run)?;
                if !shared.spare_dirs.take_back(run, is_silent) {
                    rundir::remove_tmp(data_dir, run)?;
                    if is_silent {
                        rundir::remove_empty(data_dir, run)?;
                    }
                }
            }
            Self::All => rundir::remove(data_dir, run)?,
        }
        shared.record.forget(run);
        Ok(())
    }
}

/// Carries out [`Cleanup::Empty`] of a run without a token and a persisted spec, where it takes few steps: the run's
/// directory for temporary files is empty. `false`: it takes more steps, which may block.
pub(crate) fn carry_out_at_once(shared: &Shared, run: RunId, is_silent: bool) -> bool {
    let is_done = shared.spare_dirs.take_back(run, is_silent);
    if is_done {
        shared.record.forget(run);
    }
    is_done
}

/// Removes what an attempt is made of, and the token of the last one.
fn remove_secrets(data_dir: &Path, run: RunId) -> io::Result<()> {
    let dir = rundir::path(data_dir, run);
    rundir::remove_token(&dir)?;
    persisted_spec::remove(&dir)
}

/// Removes the environment of the command's attempts, and its temporary files.
fn remove_needless(data_dir: &Path, run: RunId) -> io::Result<()> {
    remove_secrets(data_dir, run)?;
    rundir::remove_tmp(data_dir, run)
}
