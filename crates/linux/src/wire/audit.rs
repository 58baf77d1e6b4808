//! What an audit asks of the keeper, and what it is told. All of it travels in sealed files: lists may be long.

use super::mirror::{WireCgroup, WireProcess};
use crate::client::{Books, Fate, Holding, Reaped, SocketSeen, Victim};
use kennel_lifecycle::{RunId, Signal};
use serde::{Deserialize, Serialize};

/// Most processes that one order ends.
pub(crate) const VICTIMS_MAX: usize = 4096;
/// Longest encoded list of what the keeper knows, or of whom it is to end: paths are the long part.
pub(crate) const AUDIT_BYTES_MAX: u64 = 32 * 1024 * 1024;

/// [`Books`].
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct WireBooks {
    pub(crate) server: i32,
    pub(crate) spare_shims: Vec<i32>,
    pub(crate) shims: Vec<(i32, u128)>,
    pub(crate) sockets: Vec<(String, WireSocketSeen)>,
    pub(crate) fds: Option<u64>,
}

/// [`SocketSeen`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum WireSocketSeen {
    InPlace,
    Missing,
    Replaced,
}

/// Who is to be ended, and which empty directories are to be removed.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct WireVictims {
    pub(crate) victims: Vec<WireVictim>,
    pub(crate) directories: Vec<WireCgroup>,
}

/// [`Victim`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct WireVictim {
    pub(crate) process: WireProcess,
    pub(crate) holding: WireHolding,
}

/// [`Holding`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum WireHolding {
    Descent,
    Cgroup(WireCgroup),
    Marker(u128),
}

/// [`Reaped`].
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct WireReaped {
    pub(crate) fates: Vec<WireFate>,
    pub(crate) directories_removed: u32,
}

/// [`Fate`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum WireFate {
    Ended(i32),
    Gone,
    Changed,
    Failed(i32),
    Survived,
}

impl From<WireBooks> for Books {
    fn from(wire: WireBooks) -> Self {
        let shims = wire.shims.into_iter();
        let sockets = wire.sockets.into_iter();
        Self {
            server: wire.server,
            spare_shims: wire.spare_shims,
            shims: shims
                .map(|(pid, run)| (pid, RunId::from_u128(run)))
                .collect(),
            sockets: sockets.map(|(path, seen)| (path, seen.into())).collect(),
            fds: wire.fds,
        }
    }
}

impl From<WireSocketSeen> for SocketSeen {
    fn from(wire: WireSocketSeen) -> Self {
        match wire {
            WireSocketSeen::InPlace => Self::InPlace,
            WireSocketSeen::Missing => Self::Missing,
            WireSocketSeen::Replaced => Self::Replaced,
        }
    }
}

impl From<&Victim> for WireVictim {
    fn from(real: &Victim) -> Self {
        Self {
            process: real.process.into(),
            holding: match &real.holding {
                Holding::Descent => WireHolding::Descent,
                Holding::Cgroup(group) => WireHolding::Cgroup(group.clone().into()),
                Holding::Marker(run) => WireHolding::Marker(run.as_u128()),
            },
        }
    }
}

impl From<WireVictim> for Victim {
    fn from(wire: WireVictim) -> Self {
        Self {
            process: wire.process.into(),
            holding: match wire.holding {
                WireHolding::Descent => Holding::Descent,
                WireHolding::Cgroup(group) => Holding::Cgroup(group.into()),
                WireHolding::Marker(run) => Holding::Marker(RunId::from_u128(run)),
            },
        }
    }
}

impl From<Fate> for WireFate {
    fn from(real: Fate) -> Self {
        match real {
            Fate::Ended(signal) => Self::Ended(signal.number()),
            Fate::Gone => Self::Gone,
            Fate::Changed => Self::Changed,
            Fate::Failed(errno) => Self::Failed(errno),
            Fate::Survived => Self::Survived,
        }
    }
}

impl TryFrom<WireFate> for Fate {
    type Error = ();

    fn try_from(wire: WireFate) -> Result<Self, ()> {
        Ok(match wire {
            WireFate::Ended(number) => Self::Ended(Signal::from_number(number).ok_or(())?),
            WireFate::Gone => Self::Gone,
            WireFate::Changed => Self::Changed,
            WireFate::Failed(errno) => Self::Failed(errno),
            WireFate::Survived => Self::Survived,
        })
    }
}

impl TryFrom<WireReaped> for Reaped {
    type Error = ();

    fn try_from(wire: WireReaped) -> Result<Self, ()> {
        let fates = wire.fates.into_iter().map(Fate::try_from);
        Ok(Self {
            fates: fates.collect::<Result<_, _>>()?,
            directories_removed: wire.directories_removed,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{decode, encode};

    #[test]
    fn the_longest_order_fits_into_its_file() {
        let group = WireCgroup {
            path: "x".repeat(libc::PATH_MAX.unsigned_abs() as usize),
            inode: u64::MAX,
        };
        let victim = WireVictim {
            process: WireProcess {
                pid: i32::MIN,
                pgid: i32::MIN,
                sid: i32::MIN,
                start_ticks: u64::MAX,
                pidfs_handle: Some(u64::MAX),
            },
            holding: WireHolding::Cgroup(group.clone()),
        };
        let order = WireVictims {
            victims: vec![victim; VICTIMS_MAX],
            directories: vec![group; VICTIMS_MAX / 2],
        };
        let bytes = encode(&order).expect("it can be encoded");
        assert!(bytes.len() as u64 <= AUDIT_BYTES_MAX, "{}", bytes.len());
        assert_eq!(decode::<WireVictims>(&bytes).expect("our own"), order);
    }

    #[test]
    fn what_came_of_each_comes_back_as_it_was() {
        let all = [
            Fate::Ended(Signal::TERM),
            Fate::Gone,
            Fate::Changed,
            Fate::Failed(1),
            Fate::Survived,
        ];
        for fate in all {
            assert_eq!(Fate::try_from(WireFate::from(fate)), Ok(fate));
        }
        assert_eq!(Fate::try_from(WireFate::Ended(0)), Err(()));
    }
}
