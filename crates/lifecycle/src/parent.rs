//! The parent of a run, and the effect of its end on the child.

use crate::names::named;
use crate::{RunId, StopOrder, StopReason};
use serde::{Deserialize, Serialize};
use std::time::Duration;

named! {
    /// Effect of the parent's end on a run.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub enum OnParentEnd {
        /// The run is stopped.
        #[default]
        End = "end",
        /// The run continues.
        Keep = "keep",
    }
}

/// The parent of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Parent {
    /// Run id of the parent.
    pub run: RunId,
    /// Effect of its end.
    #[serde(default)]
    pub on_end: OnParentEnd,
}

impl Parent {
    /// Returns the stop that the end of the parent causes, with this grace of the run's own. The only home of that
    /// decision: the run's task asks for it when the parent ends, and after a start when it has ended. `None`: the run
    /// continues.
    pub fn stop_at_end(&self, grace: Duration) -> Option<StopOrder> {
        match self.on_end {
            OnParentEnd::End => Some(StopOrder {
                reason: StopReason::ParentEnded,
                grace,
            }),
            OnParentEnd::Keep => None,
        }
    }
}
