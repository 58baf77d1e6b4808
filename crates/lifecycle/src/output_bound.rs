//! How much of a run's output is kept.

use crate::names::named;
use crate::{Violation, limits};
use serde::{Deserialize, Serialize};

/// How much of a run's output is kept on disk, and what becomes of more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct OutputBound {
    /// Bytes of output and of what is written to find it again.
    pub max_bytes: u64,
    /// What becomes of more.
    pub on_full: OnOutputFull,
    /// What becomes of output while the disk is full.
    pub on_disk_full: OnDiskFull,
}

named! {
    /// What becomes of output beyond the bound. Stations and facts of the run are always kept.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub enum OnOutputFull {
        /// The oldest is removed.
        #[default]
        Rotate = "rotate",
        /// The first half is kept, and the newest of the rest.
        HeadTail = "head_tail",
        /// The run is stopped; until it has ended the oldest is removed.
        Abort = "abort",
        /// It waits in its pipe, and the command with it when that is full, until all consumers of the run have acknowledged the
        /// oldest.
        Block = "block",
    }
}

named! {
    /// What becomes of output while there is no room for it on the disk.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub enum OnDiskFull {
        /// It waits in its pipe, and the command with it when that is full.
        #[default]
        Block = "block",
        /// It is dropped and counted; the command goes on.
        Drop = "drop",
        /// The run is stopped; what comes until it has ended is dropped and counted.
        Abort = "abort",
    }
}

impl Default for OutputBound {
    fn default() -> Self {
        Self {
            max_bytes: limits::OUTPUT_MAX_BYTES_DEFAULT,
            on_full: OnOutputFull::default(),
            on_disk_full: OnDiskFull::default(),
        }
    }
}

impl OutputBound {
    /// What is wrong with it.
    pub(crate) fn check(&self, found: &mut Vec<Violation>) {
        if !limits::OUTPUT_MAX_BYTES.contains(&self.max_bytes) {
            let (low, high) = limits::OUTPUT_MAX_BYTES.into_inner();
            found.push(Violation::new(
                "spec.output.max_bytes",
                format!("must be {low} to {high}"),
            ));
        }
    }
}
