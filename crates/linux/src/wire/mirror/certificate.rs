//! What a stop certificate is made of, in a form that can be encoded.

use super::{IntoReal, IntoWire};
use kennel_lifecycle::{
    Signal, SignalScope, SignalSender, StopStep, Stuck, StuckProcess, Timestamp,
};
use serde::{Deserialize, Serialize};

mirror_enum!(
    /// [`SignalScope`].
    WireScope = SignalScope { Tree, ControlGroup, ShimChildren, PidNamespace }
);
mirror_enum!(
    /// [`SignalSender`].
    WireSender = SignalSender { Keeper, Shim }
);

/// [`StopStep`]. The signal travels by number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct WireStep {
    pub(crate) at_us: i64,
    pub(crate) number: i32,
    pub(crate) scope: WireScope,
    pub(crate) sender: WireSender,
    pub(crate) delivered: u32,
    pub(crate) gone: u32,
    pub(crate) refused: u32,
    pub(crate) errno: Option<i32>,
}

impl From<StopStep> for WireStep {
    fn from(real: StopStep) -> Self {
        Self {
            at_us: real.at.0,
            number: real.signal.number(),
            scope: real.scope.into(),
            sender: real.sender.into(),
            delivered: real.delivered,
            gone: real.gone,
            refused: real.refused,
            errno: real.errno,
        }
    }
}

impl TryFrom<WireStep> for StopStep {
    type Error = ();

    /// Fails where the number is no signal.
    fn try_from(wire: WireStep) -> Result<Self, ()> {
        Ok(Self {
            at: Timestamp(wire.at_us),
            signal: Signal::from_number(wire.number).ok_or(())?,
            scope: wire.scope.into(),
            sender: wire.sender.into(),
            delivered: wire.delivered,
            gone: wire.gone,
            refused: wire.refused,
            errno: wire.errno,
        })
    }
}

/// Steps out of a message; one whose number is no signal is left out.
pub(crate) fn steps(wire: Vec<WireStep>) -> Vec<StopStep> {
    wire.into_iter().filter_map(|s| s.try_into().ok()).collect()
}

/// [`Stuck`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct WireStuck {
    pub(crate) processes: Vec<WireStuckProcess>,
    pub(crate) unlisted: u32,
}

mirror_struct!(
    /// [`StuckProcess`].
    WireStuckProcess = StuckProcess { pid: i32, start_ticks: u64, state: char, why: String }
);

impl From<Stuck> for WireStuck {
    fn from(real: Stuck) -> Self {
        Self {
            processes: real.processes.into_iter().map(Into::into).collect(),
            unlisted: real.unlisted,
        }
    }
}

impl From<WireStuck> for Stuck {
    fn from(wire: WireStuck) -> Self {
        Self {
            processes: wire.processes.into_iter().map(Into::into).collect(),
            unlisted: wire.unlisted,
        }
    }
}
