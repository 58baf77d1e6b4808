//! What holds a run, and what that leaves open.

use kennel_lifecycle::{Containment, Gap, Held};
use serde::{Deserialize, Serialize};

mirror_enum!(
    /// [`Containment`].
    WireContainment = Containment { Subreaper, Cgroup, PrivatePidns }
);

/// [`Held`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct WireHeld {
    pub(crate) by: WireContainment,
    pub(crate) gaps: Vec<WireGap>,
}

impl From<Held> for WireHeld {
    fn from(real: Held) -> Self {
        Self {
            by: real.by.into(),
            gaps: real.gaps.into_iter().map(Into::into).collect(),
        }
    }
}

impl From<WireHeld> for Held {
    fn from(wire: WireHeld) -> Self {
        Self {
            by: wire.by.into(),
            gaps: wire.gaps.into_iter().map(Into::into).collect(),
        }
    }
}

/// [`Gap`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum WireGap {
    NoCgroup(String),
    RootMayLeaveCgroup,
    OwnerMayMove,
    ForeignPidNamespace,
    SetuidChildUnkillable,
    WorkHandedToDaemons,
}

impl From<Gap> for WireGap {
    fn from(real: Gap) -> Self {
        match real {
            Gap::NoCgroup(why) => Self::NoCgroup(why),
            Gap::RootMayLeaveCgroup => Self::RootMayLeaveCgroup,
            Gap::OwnerMayMove => Self::OwnerMayMove,
            Gap::ForeignPidNamespace => Self::ForeignPidNamespace,
            Gap::SetuidChildUnkillable => Self::SetuidChildUnkillable,
            Gap::WorkHandedToDaemons => Self::WorkHandedToDaemons,
        }
    }
}

impl From<WireGap> for Gap {
    fn from(wire: WireGap) -> Self {
        match wire {
            WireGap::NoCgroup(why) => Self::NoCgroup(why),
            WireGap::RootMayLeaveCgroup => Self::RootMayLeaveCgroup,
            WireGap::OwnerMayMove => Self::OwnerMayMove,
            WireGap::ForeignPidNamespace => Self::ForeignPidNamespace,
            WireGap::SetuidChildUnkillable => Self::SetuidChildUnkillable,
            WireGap::WorkHandedToDaemons => Self::WorkHandedToDaemons,
        }
    }
}
