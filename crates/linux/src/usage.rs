//! Resources that the processes of a control group have used, from its control files.

use crate::{cgroup, memory_events::count};
use kennel_lifecycle::{CgroupIdentity, Present, Pressure, Stall, Usage};
use std::os::fd::OwnedFd;

/// Controllers that count in a group, or may: the files of the others are not looked for. Processor time is counted
/// without one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counting {
    /// `memory.peak` and `memory.events`.
    pub memory: bool,
    /// `pids.peak`.
    pub pids: bool,
    /// `io.stat`.
    pub io: bool,
}

impl Counting {
    /// Which ones count is not known.
    pub const PERHAPS: Self = Self {
        memory: true,
        pids: true,
        io: true,
    };
}

/// Returns what the processes of an opened group have used up to its end; `None`: nothing is counted.
pub fn counted(dir: &OwnedFd, counting: Counting) -> Option<Usage> {
    read(dir, counting).known()
}

/// Returns what the processes of a group have used up to now, and use; `None`: the group is gone, or nothing is counted.
pub fn live(group: &CgroupIdentity) -> Option<Usage> {
    let dir = cgroup::open(group).ok()??;
    let present = Present {
        memory_bytes: whole(text(&dir, "memory.current")),
        pids: whole(text(&dir, "pids.current")),
        cpu_pressure: pressure(&dir, "cpu.pressure"),
        memory_pressure: pressure(&dir, "memory.pressure"),
        io_pressure: pressure(&dir, "io.pressure"),
    };
    let usage = Usage {
        present: Some(present),
        ..read(&dir, Counting::PERHAPS)
    };
    usage.known()
}

fn read(dir: &OwnedFd, counting: Counting) -> Usage {
    let of = |counts: bool, file| counts.then(|| text(dir, file)).flatten();
    let cpu = text(dir, "cpu.stat").unwrap_or_default();
    let memory = of(counting.memory, "memory.events").unwrap_or_default();
    let io = of(counting.io, "io.stat");
    let moved = |key| io.as_deref().map(|io| sum(io, key));
    Usage {
        cpu_user_us: count(&cpu, "user_usec"),
        cpu_system_us: count(&cpu, "system_usec"),
        cpu_throttled_us: count(&cpu, "throttled_usec"),
        memory_peak_bytes: whole(of(counting.memory, "memory.peak")),
        memory_kills: count(&memory, "oom_kill"),
        pids_peak: whole(of(counting.pids, "pids.peak")),
        io_read_bytes: moved("rbytes"),
        io_written_bytes: moved("wbytes"),
        present: None,
    }
}

/// Returns the text of a control file; `None`: this kernel, or the controllers of the group, have none.
fn text(dir: &OwnedFd, file: &str) -> Option<String> {
    cgroup::read_in(dir, file).ok().flatten()
}

/// Returns the number that is all of a control file.
fn whole(text: Option<String>) -> Option<u64> {
    text?.trim().parse().ok()
}

/// Returns the pressure on a resource; `None`: the kernel does not count it, or was started without.
fn pressure(dir: &OwnedFd, file: &str) -> Option<Pressure> {
    let text = text(dir, file)?;
    Some(Pressure {
        some: stall(&text, "some")?,
        full: stall(&text, "full"),
    })
}

/// Reads a line such as `some avg10=1.25 avg60=0.00 avg300=0.00 total=3000`.
fn stall(text: &str, kind: &str) -> Option<Stall> {
    let rest = text.lines().find_map(|line| line.strip_prefix(kind))?;
    let value = |key: &str| {
        let mut pairs = rest
            .split_whitespace()
            .filter_map(|pair| pair.split_once('='));
        pairs.find(|(name, _)| *name == key).map(|(_, value)| value)
    };
    let (whole, hundredths) = value("avg10")?.split_once('.')?;
    let (whole, hundredths) = (whole.parse::<u32>().ok()?, hundredths.parse::<u32>().ok()?);
    Some(Stall {
        avg10: whole.checked_mul(100)?.checked_add(hundredths)?,
        total_us: value("total")?.parse().ok()?,
    })
}

/// Adds one value of all devices. Each line is of a device; one without this value has moved no byte yet.
fn sum(io: &str, key: &str) -> u64 {
    let pairs = io.lines().flat_map(str::split_whitespace);
    let values = pairs.filter_map(|pair| pair.split_once('=').filter(|(name, _)| *name == key));
    let values = values.filter_map(|(_, value)| value.parse::<u64>().ok());
    values.fold(0, u64::saturating_add)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{fs, path::Path};

    fn counted(group: &CgroupIdentity) -> Option<Usage> {
        let dir = cgroup::open(group).ok()??;
        super::counted(&dir, Counting::PERHAPS)
    }

    fn without_processor_time(found: &Usage) -> Usage {
        Usage {
            cpu_user_us: None,
            cpu_system_us: None,
            cpu_throttled_us: None,
            ..*found
        }
    }

    fn group(dir: &Path, files: &[(&str, &str)]) -> CgroupIdentity {
        for (name, text) in files {
            fs::write(dir.join(name), text).expect("a file");
        }
        cgroup::identify(dir).expect("it is there")
    }

    /// As read on 6.18 after a build: every controller, two devices, and one that has moved nothing.
    const FILES: &[(&str, &str)] = &[
        (
            "cpu.stat",
            "usage_usec 621\nuser_usec 518\nsystem_usec 102\nnice_usec 0\nnr_throttled 2\nthrottled_usec 77\n",
        ),
        ("memory.peak", "5242880\n"),
        ("memory.current", "1048576\n"),
        (
            "memory.events",
            "low 0\nhigh 0\nmax 3\noom 1\noom_kill 1\noom_group_kill 0\n",
        ),
        ("pids.peak", "9\n"),
        ("pids.current", "2\n"),
        // Before Linux 5.13 cpu.pressure has no second line.
        (
            "cpu.pressure",
            "some avg10=12.05 avg60=0.00 avg300=0.00 total=3000\n",
        ),
        (
            "memory.pressure",
            "some avg10=100.00 avg60=0.00 avg300=0.00 total=77\nfull avg10=0.02 avg60=0.00 avg300=0.00 total=11\n",
        ),
        ("io.pressure", "some avg10=many total=1\n"),
        (
            "io.stat",
            "254:0 rbytes=4096 wbytes=100 rios=1 wios=1 dbytes=0 dios=0\n8:0 \n8:16 rbytes=1 wbytes=2 rios=1 wios=1\n",
        ),
    ];

    // promise: RW-120
    #[test]
    fn usage_counters_are_read_and_summed() {
        let dir = tempfile::tempdir().expect("a directory");
        let group = group(dir.path(), FILES);
        let used = Usage {
            cpu_user_us: Some(518),
            cpu_system_us: Some(102),
            cpu_throttled_us: Some(77),
            memory_peak_bytes: Some(5_242_880),
            memory_kills: Some(1),
            pids_peak: Some(9),
            io_read_bytes: Some(4097),
            io_written_bytes: Some(102),
            present: None,
        };
        assert_eq!(counted(&group), Some(used));
        let stalled = |avg10, total_us| Stall { avg10, total_us };
        let present = Present {
            memory_bytes: Some(1_048_576),
            pids: Some(2),
            cpu_pressure: Some(Pressure {
                some: stalled(1205, 3000),
                full: None,
            }),
            memory_pressure: Some(Pressure {
                some: stalled(10_000, 77),
                full: Some(stalled(2, 11)),
            }),
            io_pressure: None,
        };
        let now = Usage {
            present: Some(present),
            ..used
        };
        assert_eq!(live(&group), Some(now));
    }

    // promise: RW-120a
    #[test]
    fn missing_counters_are_absent_not_zero() {
        let dir = tempfile::tempdir().expect("a directory");
        let group = group(dir.path(), &FILES[..1]);
        let found = counted(&group).expect("processor time is counted");
        assert_eq!(found.cpu_user_us, Some(518));
        assert_eq!(without_processor_time(&found), Usage::default());
        // Before 5.19 and 6.1 the peak files are missing, and without a CPU limit nothing is throttled.
        fs::write(
            dir.path().join("cpu.stat"),
            "user_usec 1\nsystem_usec many\n",
        )
        .expect("a file");
        let found = counted(&group).expect("it is counted");
        assert_eq!((found.cpu_user_us, found.cpu_system_us), (Some(1), None));
        // An empty io.stat means zero bytes, not an unknown count.
        fs::write(dir.path().join("io.stat"), "").expect("a file");
        let found = counted(&group).expect("it is counted");
        assert_eq!(found.io_read_bytes, Some(0));
    }

    #[test]
    fn files_of_disabled_controllers_are_not_read() {
        let dir = tempfile::tempdir().expect("a directory");
        let group = group(dir.path(), FILES);
        let none = Counting {
            memory: false,
            pids: false,
            io: false,
        };
        let dir = cgroup::open(&group)
            .expect("readable")
            .expect("it is there");
        let found = super::counted(&dir, none).expect("processor time is counted");
        assert_eq!(without_processor_time(&found), Usage::default());
    }

    // promise: RW-120a
    #[test]
    fn removed_cgroup_has_no_usage() {
        let dir = tempfile::tempdir().expect("a directory");
        let mut other = group(dir.path(), FILES);
        other.inode += 1;
        assert_eq!((counted(&other), live(&other)), (None, None));
        let empty = tempfile::tempdir().expect("a directory");
        let nothing = group(empty.path(), &[]);
        assert_eq!((counted(&nothing), live(&nothing)), (None, None));
    }
}
