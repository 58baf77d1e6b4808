//! Resources that the processes of an attempt use, as the kernel counts them for its control group.

use serde::{Deserialize, Serialize};

/// Counters of an attempt's control group. Each is absent where this kernel, or a controller that is not enabled,
/// does not count it: nothing is estimated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Usage {
    /// Processor time in user mode, in microseconds.
    pub cpu_user_us: Option<u64>,
    /// Processor time in the kernel, in microseconds.
    pub cpu_system_us: Option<u64>,
    /// Time for which its processor limit has kept it from running, in microseconds.
    pub cpu_throttled_us: Option<u64>,
    /// Most memory at a time, in bytes, page cache included.
    pub memory_peak_bytes: Option<u64>,
    /// Processes that the kernel has killed for want of memory.
    pub memory_kills: Option<u64>,
    /// Most processes and threads at a time.
    pub pids_peak: Option<u64>,
    /// Bytes read from block devices; a stacked device counts beside the one below it.
    pub io_read_bytes: Option<u64>,
    /// Bytes written to block devices, counted in the same way.
    pub io_written_bytes: Option<u64>,
    /// Values at this moment; absent: the attempt has ended.
    pub present: Option<Present>,
}

/// Values of a live attempt at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Present {
    /// Memory in bytes, page cache included.
    pub memory_bytes: Option<u64>,
    /// Processes and threads.
    pub pids: Option<u64>,
    /// Pressure on the processor.
    pub cpu_pressure: Option<Pressure>,
    /// Pressure on memory.
    pub memory_pressure: Option<Pressure>,
    /// Pressure on block devices.
    pub io_pressure: Option<Pressure>,
}

/// Time in which tasks had to wait for a resource ("pressure stall information" of the kernel).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pressure {
    /// At least one task waited.
    pub some: Stall,
    /// No task could run; absent: this kernel does not count it.
    pub full: Option<Stall>,
}

/// Time of waiting.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stall {
    /// Share of the last ten seconds, in hundredths of a percent.
    pub avg10: u32,
    /// All of it, in microseconds.
    pub total_us: u64,
}

impl Usage {
    /// Returns the usage; `None`: no counter is there.
    pub fn known(self) -> Option<Self> {
        let is_known = self != Self::default() && self != Self::empty_at_present();
        is_known.then_some(self)
    }

    fn empty_at_present() -> Self {
        Self {
            present: Some(Present::default()),
            ..Self::default()
        }
    }
}
