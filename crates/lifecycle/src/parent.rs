//! The run that another run belongs to, and what its end means to that one.

use crate::names::named;
use crate::{RunId, StopOrder, StopReason};
use serde::{Deserialize, Serialize};
use std::time::Duration;

named! {
    /// What the end of its parent means to a run.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub enum OnParentEnd {
        /// It is stopped.
        #[default]
        End = "end",
        /// It continues.
        Keep = "keep",
    }
}

/// The run that a run belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Parent {
    /// Its id.
    pub run: RunId,
    /// What its end means.
    #[serde(default)]
    pub on_end: OnParentEnd,
}

impl Parent {
    /// The stop that the end of the parent comes to, with this grace of the run's own. The only home of that decision: the run's
    /// task asks for it when the parent ends, and after a start when it has ended. `None`: the run continues.
    #[must_use]
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
