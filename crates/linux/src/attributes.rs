//! Attributes of a command beside its descriptors: limits, nice value, `oom_score_adj`. The keeper's own protection is
//! not inherited by commands.

use kennel_lifecycle::{
    Knob, LimitPowers, Policy, Privileges, Resource, Rlimit, UNLIMITED, limits as bounds, os_text,
};
use nix::errno::Errno;
use serde::{Deserialize, Serialize};
use std::{
    ffi::OsString,
    fs::{self, File, OpenOptions},
    io,
    os::unix::fs::FileExt,
    ptr,
};

/// File of a process's `oom_score_adj`; see `proc_pid_oom_score_adj(5)`.
pub const OOM_SCORE_ADJ: &str = "/proc/self/oom_score_adj";
/// Addition to Kennel's inherited score for commands.
const COMMAND_OOM_SCORE: i32 = 200;
/// The keeper's own score, where it may set it and none was chosen for it.
const OWN_OOM_SCORE_ADJ: i32 = -500;
/// Limits at which Kennel's own processes would stop.
const OWN_LIMITS: [Resource; 6] = [
    Resource::OpenFiles,
    Resource::FileSize,
    Resource::Cpu,
    Resource::Data,
    Resource::Processes,
    Resource::AddressSpace,
];
/// File mode creation mask of every command.
pub const UMASK: u32 = 0o022;

/// Attributes that this keeper was started with.
#[derive(Clone, Debug)]
pub struct Inherited {
    /// Limits before they were raised.
    pub raised: Vec<Rlimit>,
    /// Nice value.
    pub nice: i32,
    /// Score adjustment for the kernel's choice when memory is short.
    pub oom_score_adj: OomScoreAdj,
}

/// Order in which the kernel kills when memory is short: commands, then Kennel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OomScoreAdj {
    /// Score of shims.
    pub of_shims: i32,
    /// Score of commands whose specs name none.
    pub of_commands: i32,
}

/// Attributes to set for one command. Absent: it has them already.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attributes {
    /// Limits, in the order in which they are set.
    pub rlimits: Vec<Rlimit>,
    /// Nice value; absent: unchanged.
    pub nice: Option<i32>,
    /// Score adjustment; absent: unchanged.
    pub oom_score_adj: Option<i32>,
    /// User, groups and privileges. A shim takes them, as the next, from the policy, which its job has beside these.
    #[serde(skip)]
    pub privileges: Privileges,
    /// File mode creation mask; absent: unchanged.
    #[serde(skip)]
    pub umask: Option<u32>,
    /// Kennel's own places, if its command is in a sandbox.
    pub private: Option<PrivatePlaces>,
}

/// Kennel's own places, which a sandbox closes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PrivatePlaces {
    /// Directory of the run, below the data directory.
    pub run_dir: String,
    /// Files and directories beside the data directory: those of secrets, keys and configuration.
    #[serde(with = "os_text::list")]
    pub closed: Vec<OsString>,
    /// Sockets at which it serves.
    #[serde(with = "os_text::list")]
    pub sockets: Vec<OsString>,
    /// Whether commands can have mounts of their own.
    pub has_mounts: bool,
}

impl Inherited {
    /// Reads this process's present attributes, except the limits, which were raised.
    pub fn take(raised: Vec<Rlimit>, oom_score_adj: OomScoreAdj) -> io::Result<Self> {
        Ok(Self {
            raised,
            nice: nice()?,
            oom_score_adj,
        })
    }

    /// Returns the attributes of a command of this policy, made by a shim that has those of this keeper.
    pub fn attributes(&self, policy: &Policy) -> Attributes {
        let limits = &policy.limits;
        let mut rlimits = limits.rlimits.clone();
        let named = |raised: &&Rlimit| limits.rlimits.iter().all(|l| l.resource != raised.resource);
        rlimits.extend(self.raised.iter().filter(named));
        // A better priority is the keeper's own; restrictions and risks apply to the whole service.
        let other = |wanted: i32, has: i32| (wanted != has).then_some(wanted);
        let nice = limits.nice.unwrap_or(self.nice.max(0));
        let OomScoreAdj {
            of_shims,
            of_commands,
        } = self.oom_score_adj;
        let adj = limits.oom_score_adj.unwrap_or(of_commands);
        Attributes {
            rlimits,
            nice: other(nice, self.nice),
            oom_score_adj: other(adj, of_shims),
            privileges: policy.privileges.clone(),
            umask: policy.umask,
            private: None,
        }
    }
}

/// The keeper's own `oom_score_adj`, which server and shims have too: without them runs are lost, so commands go first.
///
/// A child sets its own before it executes the command. That takes root: files in /proc of a process that is not dumpable
/// belong to root. Without it commands have what their shims have, which is then never below 0: one file is opened before
/// the keeper becomes undumpable, and its protection is given up for as long as a shim is forked.
#[derive(Debug, Default)]
pub struct Protection {
    /// Score that this process was started with.
    inherited: i32,
    /// Its present score.
    own: i32,
    file: Option<File>,
}

impl Protection {
    /// Protects this process, as far as permitted, while it is still dumpable.
    pub fn take() -> io::Result<Self> {
        let inherited = oom_score_adj()?;
        // A score other than 0 was chosen for this process.
        let own = match inherited {
            0 if set_oom_score_adj(OWN_OOM_SCORE_ADJ).is_ok() => OWN_OOM_SCORE_ADJ,
            chosen => chosen,
        };
        let file = match own {
            ..0 => Some(OpenOptions::new().write(true).open(OOM_SCORE_ADJ)?),
            _ => None,
        };
        Ok(Self {
            inherited,
            own,
            file,
        })
    }

    /// Returns the scores of shims and commands; `is_settable`: whether a child can set its own.
    pub fn shared_out(&mut self, is_settable: bool) -> OomScoreAdj {
        let inherited = self.inherited.max(0);
        if !is_settable {
            let of_shims = self.own.max(0);
            return OomScoreAdj {
                of_shims,
                of_commands: of_shims,
            };
        }
        self.file = None;
        OomScoreAdj {
            of_shims: self.own,
            of_commands: (inherited + COMMAND_OOM_SCORE).min(*bounds::OOM_SCORE_ADJ.end()),
        }
    }

    /// Runs `work` without the protection, where that is needed; a child that is forked meanwhile never gets it.
    pub fn without<T>(&self, work: impl FnOnce() -> T) -> io::Result<T> {
        let Some(file) = &self.file else {
            return Ok(work());
        };
        file.write_all_at(b"0\n", 0)?;
        let done = work();
        // The kernel lets every process return to a score that a privileged process has set.
        file.write_all_at(format!("{}\n", self.own).as_bytes(), 0)?;
        Ok(done)
    }
}

/// Raises this process's own soft limits to the hard ones, and returns those of before: commands have them.
pub fn raise_own_limits() -> io::Result<Vec<Rlimit>> {
    let mut raised = Vec::new();
    for resource in OWN_LIMITS {
        let [soft, hard] = rlimit(resource)?;
        if soft != hard {
            set_rlimit(resource, &[hard, hard])?;
            raised.push(Rlimit {
                resource,
                soft,
                hard,
            });
        }
    }
    Ok(raised)
}

/// Checks that this process has no hard limit of these resources; an error names those that it has.
pub fn has_no_hard_limit(resources: &[Resource]) -> io::Result<Result<(), String>> {
    for resource in resources {
        let [_, hard] = rlimit(*resource)?;
        if hard != UNLIMITED {
            return Ok(Err(format!("a hard limit, {} of {hard}", resource.name())));
        }
    }
    Ok(Ok(()))
}

/// Whether the kernel kills commands before Kennel when memory is short.
pub fn oom_order(powers: &LimitPowers) -> Result<(), String> {
    match powers.oom_score_adj_min {
        Some(_) => Ok(()),
        None => Err("only root can set the oom_score_adj of commands".to_owned()),
    }
}

/// Tries what this process can set, and restores everything. A capability may be present and still have no effect, as
/// in a user namespace, so capabilities are not read.
pub fn powers(knobs: Result<Vec<Knob>, String>) -> io::Result<LimitPowers> {
    let hard_max = Resource::ALL.iter().map(|r| Ok((*r, hard_max(*r)?)));
    let nice = nice()?;
    let nice_min = lowest(*bounds::NICE.start(), nice, |nice| set_nice(nice).is_ok());
    set_nice(nice)?;
    let adj = oom_score_adj()?;
    let settable = |adj| set_oom_score_adj(adj).is_ok();
    let oom_score_adj_min =
        settable(adj).then(|| lowest(*bounds::OOM_SCORE_ADJ.start(), adj, settable));
    if oom_score_adj_min.is_some() {
        set_oom_score_adj(adj)?;
    }
    Ok(LimitPowers {
        hard_max: hard_max.collect::<io::Result<_>>()?,
        nice_min,
        oom_score_adj_min,
        knobs,
    })
}

/// Returns the lowest of these values that can be set. Requires that each value above a settable one is settable, and
/// that `high` is.
fn lowest(low: i32, high: i32, mut settable: impl FnMut(i32) -> bool) -> i32 {
    let (mut low, mut high) = (low, high);
    while low < high {
        let middle = low + (high - low).div_euclid(2);
        if settable(middle) {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    high
}

/// Returns the highest hard limit that can be set.
fn hard_max(resource: Resource) -> io::Result<u64> {
    let has = rlimit(resource)?;
    let more = [has[0], has[1].saturating_add(1)];
    if has[1] == UNLIMITED || set_rlimit(resource, &more).is_err() {
        return Ok(has[1]);
    }
    // Lowering a limit is always allowed.
    set_rlimit(resource, &has)?;
    if resource != Resource::OpenFiles {
        return Ok(UNLIMITED);
    }
    // `fs.nr_open` is the maximum of RLIMIT_NOFILE.
    let text = fs::read_to_string("/proc/sys/fs/nr_open")?;
    text.trim().parse().map_err(io::Error::other)
}

/// Soft and hard limit, as the kernel has them: glibc and musl disagree on the types of their own calls.
fn rlimit(resource: Resource) -> io::Result<[u64; 2]> {
    let mut limit = [0u64; 2];
    let (keep, number) = (ptr::null::<u64>(), number(resource));
    // SAFETY: prlimit64(2) of this process writes one rlimit64, two 64-bit numbers, to `limit`, and reads no new one.
    let got = unsafe { libc::syscall(libc::SYS_prlimit64, 0, number, keep, limit.as_mut_ptr()) };
    Errno::result(got)?;
    Ok(limit)
}

fn set_rlimit(resource: Resource, limit: &[u64; 2]) -> io::Result<()> {
    let (old, number) = (ptr::null_mut::<u64>(), number(resource));
    // SAFETY: `limit` has the two numbers of an rlimit64; the old limit is not requested.
    let set = unsafe { libc::syscall(libc::SYS_prlimit64, 0, number, limit.as_ptr(), old) };
    Errno::result(set)?;
    Ok(())
}

fn nice() -> io::Result<i32> {
    Errno::clear();
    // SAFETY: getpriority takes integers.
    let nice = unsafe { libc::getpriority(libc::PRIO_PROCESS, 0) };
    // -1 is also a valid nice value.
    match Errno::last() {
        errno if nice == -1 && errno != Errno::UnknownErrno => Err(errno.into()),
        _ => Ok(nice),
    }
}

fn set_nice(nice: i32) -> io::Result<()> {
    // SAFETY: setpriority takes integers.
    Errno::result(unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, nice) })?;
    Ok(())
}

fn oom_score_adj() -> io::Result<i32> {
    let text = fs::read_to_string(OOM_SCORE_ADJ)?;
    text.trim().parse().map_err(io::Error::other)
}

fn set_oom_score_adj(value: i32) -> io::Result<()> {
    fs::write(OOM_SCORE_ADJ, value.to_string())
}

/// Returns the kernel's number of the resource. They are in its order, without those that it does not enforce, 5 and 10.
pub fn number(resource: Resource) -> libc::c_long {
    let skipped = [Resource::Processes, Resource::PendingSignals];
    let skipped = skipped.iter().filter(|first| resource >= **first).count();
    resource as libc::c_long + skipped.cast_signed() as libc::c_long
}

#[cfg(test)]
mod tests {
    use super::*;
    use kennel_lifecycle::RunLimits;

    fn inherited(nice: i32, oom_score_adj: i32) -> Inherited {
        Inherited {
            raised: vec![Rlimit {
                resource: Resource::OpenFiles,
                soft: 1024,
                hard: 4096,
            }],
            nice,
            oom_score_adj: OomScoreAdj {
                of_shims: oom_score_adj,
                of_commands: oom_score_adj,
            },
        }
    }

    #[test]
    fn rlimit_numbers_match_the_kernel() {
        let numbers = [
            libc::RLIMIT_CPU,
            libc::RLIMIT_FSIZE,
            libc::RLIMIT_DATA,
            libc::RLIMIT_STACK,
            libc::RLIMIT_CORE,
            libc::RLIMIT_NPROC,
            libc::RLIMIT_NOFILE,
            libc::RLIMIT_MEMLOCK,
            libc::RLIMIT_AS,
            libc::RLIMIT_SIGPENDING,
            libc::RLIMIT_MSGQUEUE,
            libc::RLIMIT_NICE,
            libc::RLIMIT_RTPRIO,
            libc::RLIMIT_RTTIME,
        ];
        let ours = Resource::ALL.iter().map(|resource| number(*resource));
        assert!(ours.eq(numbers.map(libc::c_long::from)));
    }

    // promise: Q-4
    #[test]
    fn run_does_not_inherit_raised_priority() {
        let none = Policy::default();
        let default = inherited(0, 0).attributes(&none);
        let files = Rlimit {
            resource: Resource::OpenFiles,
            soft: 1024,
            hard: 4096,
        };
        assert_eq!(default.rlimits, [files]);
        assert_eq!((default.nice, default.oom_score_adj), (None, None));
        assert_eq!(inherited(-5, 0).attributes(&none).nice, Some(0));
        let burdened = inherited(5, 300).attributes(&none);
        assert_eq!((burdened.nice, burdened.oom_score_adj), (None, None));
    }

    #[test]
    fn run_attributes_override_inherited_ones() {
        let files = Rlimit {
            resource: Resource::OpenFiles,
            soft: 10,
            hard: 20,
        };
        let asked = RunLimits {
            rlimits: vec![files],
            nice: Some(7),
            oom_score_adj: Some(300),
            ..RunLimits::default()
        };
        let asked = Policy {
            limits: asked,
            ..Policy::default()
        };
        let given = inherited(-5, 300).attributes(&asked);
        assert_eq!(given.rlimits, [files]);
        assert_eq!((given.nice, given.oom_score_adj), (Some(7), None));
    }

    // promise: L-2c, L-2f
    #[test]
    fn own_soft_limits_are_raised_to_hard_limits() {
        let file_size = Resource::FileSize;
        let [_, hard] = rlimit(file_size).expect("it can be read");
        set_rlimit(file_size, &[hard / 2, hard]).expect("it can be lowered");
        let raised = raise_own_limits().expect("they can be raised");
        let was = raised.iter().find(|limit| limit.resource == file_size);
        assert_eq!(
            was.map(|limit| (limit.soft, limit.hard)),
            Some((hard / 2, hard))
        );
        for resource in OWN_LIMITS {
            let [soft, hard] = rlimit(resource).expect("it can be read");
            assert_eq!(soft, hard, "{resource:?}");
        }
        assert!(raise_own_limits().expect("nothing to do").is_empty());
        // Far above the CPU time that this test uses.
        let cpu = Resource::Cpu;
        set_rlimit(cpu, &[86_400, 86_400]).expect("it can be lowered");
        let named = has_no_hard_limit(&[cpu]).expect("it can be read");
        assert_eq!(named, Err("a hard limit, RLIMIT_CPU of 86400".to_owned()));
    }

    #[test]
    fn lowest_settable_value_is_found() {
        for wanted in -20..=3 {
            assert_eq!(lowest(-20, 3, |value| value >= wanted), wanted);
        }
    }

    // promise: Q-2
    #[test]
    fn probing_limits_leaves_them_unchanged() {
        let before = |r: &Resource| rlimit(*r).expect("it can be read");
        let limits: Vec<[u64; 2]> = Resource::ALL.iter().map(before).collect();
        let (nice_before, adj) = (nice().expect("read"), oom_score_adj().expect("read"));
        let powers = powers(Ok(Vec::new())).expect("it can be tried");
        assert_eq!(Resource::ALL.iter().map(before).collect::<Vec<_>>(), limits);
        assert_eq!(nice().expect("read"), nice_before);
        assert_eq!(oom_score_adj().expect("read"), adj);
        assert!(powers.nice_min <= nice_before);
        // A dumpable process may adjust its score.
        assert!(powers.oom_score_adj_min.is_some_and(|min| min <= adj));
        for ((_, most), [_, hard]) in powers.hard_max.iter().zip(limits) {
            assert!(*most >= hard);
        }
    }

    // promise: Q-4
    #[test]
    fn oom_protection_is_dropped_only_temporarily() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        let value = || {
            let text = fs::read_to_string(file.path()).expect("it can be read");
            text.lines().next().map(str::to_owned).unwrap_or_default()
        };
        let protection = Protection {
            inherited: -900,
            own: -900,
            file: Some(file.reopen().expect("it is there")),
        };
        assert_eq!(protection.without(value).expect("it can be written"), "0");
        assert_eq!(value(), "-900");
        assert_eq!(
            Protection::default().without(|| 3).expect("nothing to do"),
            3
        );
    }

    // promise: Q-11, Q-11a
    #[test]
    fn oom_killer_prefers_commands_over_kennel() {
        let shared_out = |inherited, own, is_settable| {
            let mut protection = Protection {
                inherited,
                own,
                file: None,
            };
            let OomScoreAdj {
                of_shims,
                of_commands,
            } = protection.shared_out(is_settable);
            (of_shims, of_commands)
        };
        assert_eq!(shared_out(0, -500, true), (-500, 200));
        assert_eq!(shared_out(0, 0, true), (0, 200), "without CAP_SYS_RESOURCE");
        assert_eq!(shared_out(-900, -900, true), (-900, 200));
        assert_eq!(shared_out(300, 300, true), (300, 500));
        assert_eq!(shared_out(990, 990, true), (990, 1000));
        assert_eq!(shared_out(-900, -900, false), (0, 0), "not root");
        assert_eq!(shared_out(300, 300, false), (300, 300), "not root");
    }
}
