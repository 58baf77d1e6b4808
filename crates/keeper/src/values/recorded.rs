//! A run as an earlier keeper has recorded it.

use kennel_lifecycle::{RunId, RunIdentity};
use std::path::PathBuf;

/// A recorded run, for the keeper to look for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recorded {
    /// Id of the run.
    pub run: RunId,
    /// Its recorded identity.
    pub identity: RunIdentity,
    /// Its private directory.
    pub run_dir: PathBuf,
}
