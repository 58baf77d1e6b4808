//! Resource limits of a run, and whether this host can enforce them.

use crate::names::{named, sparse};
use crate::{
    Violation,
    limits::{
        CPU_PERIOD_MICROS, CPU_QUOTA_MICROS, CPU_WEIGHT, CWD_BYTES_MAX, IO_BYTES, IO_LIMITS_MAX,
        IO_OPERATIONS, MEMORY_BYTES, NICE, OOM_SCORE_ADJ, PIDS,
    },
};
use serde::{Deserialize, Serialize};
use std::{ops::RangeInclusive, time::Duration};

/// No limit, as getrlimit(2) says it.
pub const UNLIMITED: u64 = u64::MAX;

named! {
    /// A resource of getrlimit(2), of those that Linux enforces; its name is the one in C.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
    pub enum Resource {
        /// Seconds of processor time.
        Cpu = "RLIMIT_CPU",
        /// Bytes of a file that is written.
        FileSize = "RLIMIT_FSIZE",
        /// Bytes of data segment.
        Data = "RLIMIT_DATA",
        /// Bytes of stack.
        Stack = "RLIMIT_STACK",
        /// Bytes of a core dump.
        Core = "RLIMIT_CORE",
        /// Processes and threads of the user.
        Processes = "RLIMIT_NPROC",
        /// One more than the highest descriptor.
        OpenFiles = "RLIMIT_NOFILE",
        /// Bytes of locked memory.
        LockedMemory = "RLIMIT_MEMLOCK",
        /// Bytes of address space.
        AddressSpace = "RLIMIT_AS",
        /// Signals that are queued for the user.
        PendingSignals = "RLIMIT_SIGPENDING",
        /// Bytes of the user's message queues.
        MessageQueues = "RLIMIT_MSGQUEUE",
        /// 20 minus the lowest nice value that may be set.
        Nice = "RLIMIT_NICE",
        /// Highest real-time priority that may be set.
        RealTimePriority = "RLIMIT_RTPRIO",
        /// Microseconds of processor time without a blocking call, under a real-time policy.
        RealTime = "RLIMIT_RTTIME",
    }
}

impl Resource {
    /// Returns its name as a shell's ulimit and `kennel run --limit` have it, such as `nofile`.
    pub fn short_name(self) -> String {
        let name = self.name();
        name.strip_prefix("RLIMIT_").unwrap_or(name).to_lowercase()
    }
}

/// A limit of each process of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rlimit {
    /// The limited resource.
    pub resource: Resource,
    /// Limit in force; a process may set it to anything up to `hard`.
    pub soft: u64,
    /// Most that `soft` may be set to.
    pub hard: u64,
}

sparse! {
    /// Resource limits of a run. An absent one does not apply.
    #[derive(Clone, Debug, Default, PartialEq, Eq)]
    pub struct RunLimits {
        /// Limits of each process, each resource at most once.
        pub rlimits: Vec<Rlimit>,
        /// Nice value.
        pub nice: Option<i32>,
        /// `oom_score_adj`: how soon the kernel ends the run where memory is short.
        pub oom_score_adj: Option<i32>,
        /// Bytes of memory of the whole run; beyond, the kernel ends processes of it.
        pub memory_max: Option<u64>,
        /// Bytes of memory of the whole run above which it is slowed down.
        pub memory_high: Option<u64>,
        /// Bytes of swap of the whole run.
        pub swap_max: Option<u64>,
        /// Processes and threads of the whole run.
        pub pids_max: Option<u64>,
        /// Processor time of the whole run.
        pub cpu_quota: Option<CpuQuota>,
        /// Its share where other processes want the processor too.
        pub cpu_weight: Option<u32>,
        /// Transfers of the whole run, each path at most once.
        pub io: Vec<IoLimit>,
    }
}

/// Limit of the transfers between a run and one block device, in each second.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct IoLimit {
    /// Path that names the device: the device itself, or a file or directory on it. The keeper gets the numbers of the
    /// device in its place, such as `8:0`.
    pub path: String,
    /// Bytes read.
    #[serde(skip_serializing_if = "crate::is_default")]
    pub read_bytes: Option<u64>,
    /// Bytes written.
    #[serde(skip_serializing_if = "crate::is_default")]
    pub written_bytes: Option<u64>,
    /// Operations that read.
    #[serde(skip_serializing_if = "crate::is_default")]
    pub reads: Option<u64>,
    /// Operations that write.
    #[serde(skip_serializing_if = "crate::is_default")]
    pub writes: Option<u64>,
}

/// Processor time in a period, of all processors together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CpuQuota {
    /// Processor time in each period.
    pub quota: Duration,
    /// Length of the period.
    pub period: Duration,
}

named! {
    /// A limit that is set on the control group of a run.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Knob {
        /// [`RunLimits::memory_max`].
        MemoryMax = "memory_max",
        /// [`RunLimits::memory_high`].
        MemoryHigh = "memory_high",
        /// [`RunLimits::swap_max`].
        SwapMax = "swap_max",
        /// [`RunLimits::pids_max`].
        PidsMax = "pids_max",
        /// [`RunLimits::cpu_quota`].
        CpuMax = "cpu_max",
        /// [`RunLimits::cpu_weight`].
        CpuWeight = "cpu_weight",
        /// [`RunLimits::io`].
        IoMax = "io_max",
    }
}

impl Knob {
    /// Returns the spec field that requests it, and its controller.
    fn field(self) -> (&'static str, &'static str) {
        match self {
            Self::MemoryMax => ("spec.limits.memory.max_bytes", "memory"),
            Self::MemoryHigh => ("spec.limits.memory.high_bytes", "memory"),
            Self::SwapMax => ("spec.limits.memory.swap_max_bytes", "memory (swap)"),
            Self::PidsMax => ("spec.limits.pids_max", "pids"),
            Self::CpuMax => ("spec.limits.cpu.quota", "cpu"),
            Self::CpuWeight => ("spec.limits.cpu.weight", "cpu"),
            Self::IoMax => ("spec.limits.io", "io"),
        }
    }
}

/// Limits that the keeper can set, as tried at its start.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LimitPowers {
    /// The highest hard limit that can be set for each resource.
    #[serde(deserialize_with = "crate::known")]
    pub hard_max: Vec<(Resource, u64)>,
    /// The lowest nice value that can be set.
    pub nice_min: i32,
    /// The lowest `oom_score_adj` that can be set; absent: none can be.
    pub oom_score_adj_min: Option<i32>,
    /// Knobs that can be set on the control group of a run; an error: runs have none, and why.
    #[serde(deserialize_with = "crate::known_or_why")]
    pub knobs: Result<Vec<Knob>, String>,
}

/// A requested limit that this host cannot enforce.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Missing {
    /// Path of the field that requests it.
    pub field: String,
    /// The missing capability.
    pub capability: String,
}

impl IoLimit {
    /// Returns each value with its field in the contract and its valid range.
    fn values(&self) -> [(&'static str, Option<u64>, RangeInclusive<u64>); 4] {
        [
            ("read_bytes_per_second", self.read_bytes, IO_BYTES),
            ("written_bytes_per_second", self.written_bytes, IO_BYTES),
            ("reads_per_second", self.reads, IO_OPERATIONS),
            ("writes_per_second", self.writes, IO_OPERATIONS),
        ]
    }
}

impl RunLimits {
    /// Whether there is no limit.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Returns the knobs to set on the run's control group.
    pub fn knobs(&self) -> Vec<Knob> {
        let asked = |knob: &&Knob| match knob {
            Knob::MemoryMax => self.memory_max.is_some(),
            Knob::MemoryHigh => self.memory_high.is_some(),
            Knob::SwapMax => self.swap_max.is_some(),
            Knob::PidsMax => self.pids_max.is_some(),
            Knob::CpuMax => self.cpu_quota.is_some(),
            Knob::CpuWeight => self.cpu_weight.is_some(),
            Knob::IoMax => !self.io.is_empty(),
        };
        Knob::ALL.iter().filter(asked).copied().collect()
    }

    fn check_group(&self, found: &mut Vec<Violation>) {
        let mut within = |field: &str, value: Option<u64>, range: RangeInclusive<u64>| {
            if value.is_some_and(|value| !range.contains(&value)) {
                let (low, high) = range.into_inner();
                let is_time = matches!(field, "spec.limits.cpu.quota" | "spec.limits.cpu.period");
                let unit = if is_time { " microseconds" } else { "" };
                found.push(Violation::new(
                    field,
                    format!("must be {low} to {high}{unit}"),
                ));
            }
        };
        let micros = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        within(
            "spec.limits.memory.max_bytes",
            self.memory_max,
            MEMORY_BYTES,
        );
        // `memory_high` above the maximum is never reached.
        let high = *MEMORY_BYTES.start()..=self.memory_max.unwrap_or(*MEMORY_BYTES.end());
        within("spec.limits.memory.high_bytes", self.memory_high, high);
        let swap = 0..=*MEMORY_BYTES.end();
        within("spec.limits.memory.swap_max_bytes", self.swap_max, swap);
        within("spec.limits.pids_max", self.pids_max, PIDS);
        let quota = self.cpu_quota.map(|q| micros(q.quota));
        within("spec.limits.cpu.quota", quota, CPU_QUOTA_MICROS);
        let period = self.cpu_quota.map(|q| micros(q.period));
        within("spec.limits.cpu.period", period, CPU_PERIOD_MICROS);
        let weight = self.cpu_weight.map(u64::from);
        within("spec.limits.cpu.weight", weight, CPU_WEIGHT);
        for (i, limit) in self.io.iter().enumerate() {
            for (name, value, range) in limit.values() {
                within(&format!("spec.limits.io[{i}].{name}"), value, range);
            }
        }
    }

    fn check_io(&self, found: &mut Vec<Violation>) {
        if self.io.len() > IO_LIMITS_MAX {
            let most = format!("must be at most {IO_LIMITS_MAX}");
            found.push(Violation::new("spec.limits.io", most));
        }
        for (i, limit) in self.io.iter().enumerate() {
            let path = &limit.path;
            let mut wrong = |field: &str, what: &str| {
                found.push(Violation::new(format!("spec.limits.io[{i}]{field}"), what));
            };
            if !path.starts_with('/') || path.contains('\0') || path.len() > CWD_BYTES_MAX {
                wrong(".path", "must be an absolute path of at most 4095 bytes");
            }
            if self.io[..i].iter().any(|other| other.path == *path) {
                wrong(".path", "is named twice");
            }
            if limit.values().iter().all(|(_, value, _)| value.is_none()) {
                wrong("", "must have a limit");
            }
        }
    }

    /// Takes the limits of `node` that are not set here, except for transfers and priorities. Returns their names, as
    /// `kennel run` has them.
    pub fn fill(&mut self, node: &Self) -> Vec<String> {
        fn take<T: Copy>(own: &mut Option<T>, node: Option<T>) -> bool {
            let takes = own.is_none() && node.is_some();
            *own = own.or(node);
            takes
        }
        let mut taken = Vec::new();
        for limit in &node.rlimits {
            let same = |own: &Rlimit| own.resource == limit.resource;
            if !self.rlimits.iter().any(same) {
                self.rlimits.push(*limit);
                taken.push(limit.resource.short_name());
            }
        }
        let others = [
            ("memory-max", take(&mut self.memory_max, node.memory_max)),
            ("memory-high", take(&mut self.memory_high, node.memory_high)),
            ("swap-max", take(&mut self.swap_max, node.swap_max)),
            ("pids-max", take(&mut self.pids_max, node.pids_max)),
            ("cpus", take(&mut self.cpu_quota, node.cpu_quota)),
            ("cpu-weight", take(&mut self.cpu_weight, node.cpu_weight)),
        ];
        let others = others.into_iter().filter(|(_, is_taken)| *is_taken);
        taken.extend(others.map(|(name, _)| name.to_owned()));
        taken
    }

    /// Takes the limits of its node that are not set here and fit those that are. Returns their names.
    pub(crate) fn fill_fitting(&mut self, node: &Self) -> Vec<String> {
        let mut node = node.clone();
        let fits = |high: Option<u64>, max: Option<u64>| high.zip(max).is_none_or(|(h, m)| h <= m);
        if !fits(self.memory_high, node.memory_max) {
            node.memory_max = None;
        }
        if !fits(node.memory_high, self.memory_max.or(node.memory_max)) {
            node.memory_high = None;
        }
        self.fill(&node)
    }

    /// Returns the first violation.
    pub(crate) fn violation(&self) -> Option<Violation> {
        let mut found = Vec::new();
        self.check(&mut found);
        found.into_iter().next()
    }

    /// Adds the violations of the limits.
    pub(crate) fn check(&self, found: &mut Vec<Violation>) {
        for (i, limit) in self.rlimits.iter().enumerate() {
            let mut wrong = |what: String| {
                found.push(Violation::new(format!("spec.limits.rlimits[{i}]"), what));
            };
            let name = limit.resource.name();
            let before = &self.rlimits[..i];
            if before.iter().any(|other| other.resource == limit.resource) {
                wrong(format!("{name} is named twice"));
            }
            if limit.soft > limit.hard {
                wrong(format!(
                    "the soft limit of {name} must be at most the hard one"
                ));
            }
        }
        self.check_group(found);
        self.check_io(found);
        let bounds = [
            ("spec.limits.nice", self.nice, NICE),
            (
                "spec.limits.oom_score_adj",
                self.oom_score_adj,
                OOM_SCORE_ADJ,
            ),
        ];
        for (field, value, range) in bounds {
            if value.is_some_and(|value| !range.contains(&value)) {
                let (low, high) = range.into_inner();
                found.push(Violation::new(field, format!("must be {low} to {high}")));
            }
        }
    }

    /// Returns all limits that a keeper with these powers cannot set. None is left out silently: a run whose limits
    /// cannot all be set does not start.
    pub fn missing(&self, powers: &LimitPowers) -> Vec<Missing> {
        let mut missing = Vec::new();
        let mut lacks = |field: String, capability: String| {
            missing.push(Missing { field, capability });
        };
        for (i, limit) in self.rlimits.iter().enumerate() {
            let most = powers.hard_max.iter().find(|(r, _)| *r == limit.resource);
            let most = most.map_or(0, |(_, most)| *most);
            if limit.hard > most {
                let name = limit.resource.name();
                lacks(
                    format!("spec.limits.rlimits[{i}]"),
                    format!("a hard limit of {name} above {most}"),
                );
            }
        }
        if self.nice.is_some_and(|nice| nice < powers.nice_min) {
            lacks(
                "spec.limits.nice".into(),
                format!("a nice value below {}", powers.nice_min),
            );
        }
        if let Some(adj) = self.oom_score_adj {
            match powers.oom_score_adj_min {
                Some(min) if adj < min => lacks(
                    "spec.limits.oom_score_adj".into(),
                    format!("an oom_score_adj below {min}"),
                ),
                Some(_) => {}
                None => lacks(
                    "spec.limits.oom_score_adj".into(),
                    "the right to set the oom_score_adj of others, which root has".into(),
                ),
            }
        }
        for knob in self.knobs() {
            let (field, controller) = knob.field();
            match &powers.knobs {
                Ok(there) if there.contains(&knob) => {}
                Ok(_) => lacks(
                    field.into(),
                    format!("the {controller} controller in the control groups of runs"),
                ),
                Err(why) => lacks(field.into(), format!("a control group for each run: {why}")),
            }
        }
        missing
    }
}
