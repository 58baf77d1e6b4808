//! Bound on the stored output of a run.

use crate::names::named;
use crate::{Violation, limits};
use serde::{Deserialize, Serialize};

/// Bound on a run's output on disk, and the policy beyond it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct OutputBound {
    /// Bytes of output and of its index.
    pub max_bytes: u64,
    /// Policy for output beyond the bound.
    #[serde(skip_serializing_if = "crate::is_default")]
    pub on_full: OnOutputFull,
    /// Policy for output while the disk is full.
    #[serde(skip_serializing_if = "crate::is_default")]
    pub on_disk_full: OnDiskFull,
}

named! {
    /// Policy for output beyond the bound. Lifecycle events of the run stay.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub enum OnOutputFull {
        /// The oldest output is removed.
        #[default]
        Rotate = "rotate",
        /// The first half and the newest output are retained.
        HeadTail = "head_tail",
        /// The run is stopped; until it has ended the oldest output is removed.
        Abort = "abort",
        /// Output waits in its pipe, and the command with it when that is full, until all consumers of the run have
        /// acknowledged the oldest.
        Block = "block",
    }
}

named! {
    /// Policy for output while the disk has no space for it.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub enum OnDiskFull {
        /// Output waits in its pipe, and the command with it when that is full.
        #[default]
        Block = "block",
        /// Output is dropped and counted; the command continues.
        Drop = "drop",
        /// The run is stopped; output until it has ended is dropped and counted.
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
    /// Adds the violations of the bound.
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
