//! Signals that mean nothing to the keeper.

use crate::client::StraySignal;
use serde::{Deserialize, Serialize};

/// [`StraySignal`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct WireStray {
    pub(crate) number: i32,
    pub(crate) pid: i32,
    pub(crate) uid: u32,
    pub(crate) count: u32,
}

impl From<StraySignal> for WireStray {
    fn from(real: StraySignal) -> Self {
        let StraySignal {
            number,
            pid,
            uid,
            count,
        } = real;
        Self {
            number,
            pid,
            uid,
            count,
        }
    }
}

impl From<WireStray> for StraySignal {
    fn from(wire: WireStray) -> Self {
        let WireStray {
            number,
            pid,
            uid,
            count,
        } = wire;
        Self {
            number,
            pid,
            uid,
            count,
        }
    }
}
