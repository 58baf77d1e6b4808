//! What a run may use, and what a keeper can hold it to.

use super::{IntoReal, IntoWire};
use kennel_lifecycle::{CpuQuota, Knob, LimitPowers, Resource, Rlimit, RunLimits};
use serde::{Deserialize, Serialize};
use std::time::Duration;

mirror_enum!(
    /// [`Resource`].
    WireResource = Resource {
        Cpu, FileSize, Data, Stack, Core, Processes, OpenFiles, LockedMemory, AddressSpace, PendingSignals,
        MessageQueues, Nice, RealTimePriority, RealTime,
    }
);
mirror_struct!(
    /// [`Rlimit`].
    WireRlimit = Rlimit { resource: WireResource, soft: u64, hard: u64 }
);

mirror_struct!(
    /// [`CpuQuota`].
    #[derive(Copy)]
    WireQuota = CpuQuota { quota: Duration, period: Duration }
);
mirror_enum!(
    /// [`Knob`].
    WireKnob = Knob { MemoryMax, MemoryHigh, SwapMax, PidsMax, CpuMax, CpuWeight }
);

/// [`RunLimits`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct WireLimits {
    pub(crate) rlimits: Vec<WireRlimit>,
    pub(crate) nice: Option<i32>,
    pub(crate) oom_score_adj: Option<i32>,
    pub(crate) memory_max: Option<u64>,
    pub(crate) memory_high: Option<u64>,
    pub(crate) swap_max: Option<u64>,
    pub(crate) pids_max: Option<u64>,
    pub(crate) cpu_quota: Option<WireQuota>,
    pub(crate) cpu_weight: Option<u32>,
}

impl From<&RunLimits> for WireLimits {
    fn from(real: &RunLimits) -> Self {
        Self {
            rlimits: real.rlimits.iter().map(|l| (*l).into()).collect(),
            nice: real.nice,
            oom_score_adj: real.oom_score_adj,
            memory_max: real.memory_max,
            memory_high: real.memory_high,
            swap_max: real.swap_max,
            pids_max: real.pids_max,
            cpu_quota: real.cpu_quota.map(Into::into),
            cpu_weight: real.cpu_weight,
        }
    }
}

impl From<WireLimits> for RunLimits {
    fn from(wire: WireLimits) -> Self {
        Self {
            rlimits: wire.rlimits.into_iter().map(Into::into).collect(),
            nice: wire.nice,
            oom_score_adj: wire.oom_score_adj,
            memory_max: wire.memory_max,
            memory_high: wire.memory_high,
            swap_max: wire.swap_max,
            pids_max: wire.pids_max,
            cpu_quota: wire.cpu_quota.map(Into::into),
            cpu_weight: wire.cpu_weight,
        }
    }
}

/// [`LimitPowers`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct WirePowers {
    pub(crate) hard_max: Vec<(WireResource, u64)>,
    pub(crate) nice_min: i32,
    pub(crate) oom_score_adj_min: Option<i32>,
    pub(crate) knobs: Result<Vec<WireKnob>, String>,
}

impl From<LimitPowers> for WirePowers {
    fn from(real: LimitPowers) -> Self {
        let hard_max = real.hard_max.into_iter();
        Self {
            hard_max: hard_max.map(|(r, most)| (r.into(), most)).collect(),
            nice_min: real.nice_min,
            oom_score_adj_min: real.oom_score_adj_min,
            knobs: real
                .knobs
                .map(|knobs| knobs.into_iter().map(Into::into).collect()),
        }
    }
}

impl From<WirePowers> for LimitPowers {
    fn from(wire: WirePowers) -> Self {
        let hard_max = wire.hard_max.into_iter();
        Self {
            hard_max: hard_max.map(|(r, most)| (r.into(), most)).collect(),
            nice_min: wire.nice_min,
            oom_score_adj_min: wire.oom_score_adj_min,
            knobs: wire
                .knobs
                .map(|knobs| knobs.into_iter().map(Into::into).collect()),
        }
    }
}
