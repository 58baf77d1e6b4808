//! Upgrades, as server and keeper speak of them.

use crate::client::{Upgrade, UpgradeRefusal, UpgradeState};
use kennel_lifecycle::Timestamp;
use serde::{Deserialize, Serialize};

/// [`Upgrade`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct WireUpgrade {
    pub(crate) request: Option<String>,
    pub(crate) at_us: i64,
    pub(crate) from_version: String,
    pub(crate) to_version: String,
    pub(crate) state: WireUpgradeState,
}

/// [`UpgradeState`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum WireUpgradeState {
    Leaving,
    Done,
    FellBack(String),
}

/// [`UpgradeRefusal`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum WireUpgradeRefusal {
    UnderWay,
    ShuttingDown,
    Unfit {
        binary: String,
        why: String,
        speaks: Option<u32>,
    },
}

impl From<Upgrade> for WireUpgrade {
    fn from(real: Upgrade) -> Self {
        Self {
            request: real.request_id,
            at_us: real.at.0,
            from_version: real.from_version,
            to_version: real.to_version,
            state: match real.state {
                UpgradeState::Leaving => WireUpgradeState::Leaving,
                UpgradeState::Done => WireUpgradeState::Done,
                UpgradeState::FellBack(why) => WireUpgradeState::FellBack(why),
            },
        }
    }
}

impl From<WireUpgrade> for Upgrade {
    fn from(wire: WireUpgrade) -> Self {
        Self {
            request_id: wire.request,
            at: Timestamp(wire.at_us),
            from_version: wire.from_version,
            to_version: wire.to_version,
            state: match wire.state {
                WireUpgradeState::Leaving => UpgradeState::Leaving,
                WireUpgradeState::Done => UpgradeState::Done,
                WireUpgradeState::FellBack(why) => UpgradeState::FellBack(why),
            },
        }
    }
}

impl From<UpgradeRefusal> for WireUpgradeRefusal {
    fn from(real: UpgradeRefusal) -> Self {
        match real {
            UpgradeRefusal::UnderWay => Self::UnderWay,
            UpgradeRefusal::ShuttingDown => Self::ShuttingDown,
            UpgradeRefusal::Unfit {
                binary,
                why,
                speaks,
            } => Self::Unfit {
                binary,
                why,
                speaks,
            },
        }
    }
}

impl From<WireUpgradeRefusal> for UpgradeRefusal {
    fn from(wire: WireUpgradeRefusal) -> Self {
        match wire {
            WireUpgradeRefusal::UnderWay => Self::UnderWay,
            WireUpgradeRefusal::ShuttingDown => Self::ShuttingDown,
            WireUpgradeRefusal::Unfit {
                binary,
                why,
                speaks,
            } => Self::Unfit {
                binary,
                why,
                speaks,
            },
        }
    }
}
