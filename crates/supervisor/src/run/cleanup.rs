//! What is removed of a run on this node, and when nothing is left to do for it.

use crate::{record::persisted_spec, registry::Shared};
use kennel_keeper::rundir;
use kennel_lifecycle::{Outcome, RunId, TreeVerdict};
use std::{io, path::Path};

/// How much of a run goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cleanup {
    /// What a run needs no more that has ended. Its end is not wholly in its journal: the next start goes through it again.
    Needless,
    /// The same, and nothing is left to do.
    Ended,
    /// The same, and nothing of it lives, by proof.
    Empty {
        /// It has made no file: its directory goes, for the row has all that happened.
        is_silent: bool,
    },
    /// All of a run that leaves no trace.
    All,
}

impl Cleanup {
    /// Of a run that has ended so. A process that may be left of it bears the name of its directory, which stays for that.
    pub(crate) fn of_ended(outcome: &Outcome, is_silent: bool) -> Self {
        match outcome.tree {
            TreeVerdict::Empty(_) | TreeVerdict::NeverRan => Self::Empty { is_silent },
            _ => Self::Ended,
        }
    }

    /// The record is changed last, so that a server that comes after a crash finds what is left to do. Blocks.
    pub(crate) fn carry_out(self, shared: &Shared, run: RunId) -> io::Result<()> {
        let data_dir = &shared.config.data_dir;
        match self {
            Self::Needless => return remove_needless(data_dir, run),
            Self::Ended => remove_needless(data_dir, run)?,
            Self::Empty { is_silent } => {
                persisted_spec::remove(&rundir::path(data_dir, run))?;
                if !shared.spare_dirs.take_back(run, is_silent) {
                    rundir::remove_tmp(data_dir, run)?;
                }
                if is_silent {
                    rundir::remove_empty(data_dir, run)?;
                }
            }
            Self::All => rundir::remove(data_dir, run)?,
        }
        shared.record.forget(run);
        Ok(())
    }
}

/// The same of [`Cleanup::Empty`], where it takes but a few steps: the run has left nothing in its directory for temporary
/// files. `false`: it takes more, which may block.
pub(crate) fn carry_out_at_once(shared: &Shared, run: RunId, is_silent: bool) -> bool {
    let data_dir = &shared.config.data_dir;
    let is_done = persisted_spec::remove(&rundir::path(data_dir, run)).is_ok()
        && shared.spare_dirs.take_back(run, is_silent)
        && (!is_silent || rundir::remove_empty(data_dir, run).is_ok());
    if is_done {
        shared.record.forget(run);
    }
    is_done
}

/// The environment of the command's attempts, and its temporary files.
fn remove_needless(data_dir: &Path, run: RunId) -> io::Result<()> {
    persisted_spec::remove(&rundir::path(data_dir, run))?;
    rundir::remove_tmp(data_dir, run)
}
