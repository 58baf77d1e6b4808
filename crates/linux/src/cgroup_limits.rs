//! Limits of a run as a whole: control files of its own control group. Everything here takes directories, so that tests
//! can use recorded files.

use kennel_lifecycle::{CpuQuota, IoLimit, Knob, RunLimits, UNLIMITED};
use std::{collections::BTreeMap, fs, io, path::Path};

/// Controllers that Kennel uses for limits, and for what a run has used.
const CONTROLLERS: [&str; 4] = ["memory", "pids", "cpu", "io"];

/// A limit that could not be set.
#[derive(Debug)]
pub struct NotSet {
    /// The control file.
    pub file: String,
    /// The kernel's error.
    pub error: io::Error,
}

/// Returns those controllers that a directory has and does not enable for its subdirectories.
pub fn not_handed_on(dir: &Path) -> Vec<String> {
    let read = |file: &str| fs::read_to_string(dir.join(file)).unwrap_or_default();
    let (there, on) = (read("cgroup.controllers"), read("cgroup.subtree_control"));
    let is_off =
        |name: &&str| CONTROLLERS.contains(name) && !on.split_whitespace().any(|n| n == *name);
    let off = there.split_whitespace().filter(is_off);
    off.map(str::to_owned).collect()
}

/// Enables a controller for the directories below one.
pub fn enable(dir: &Path, controller: &str) -> io::Result<()> {
    set(dir, "cgroup.subtree_control", &format!("+{controller}"))
}

/// Disables the controller there; refused while a subdirectory enables it in turn.
pub fn disable(dir: &Path, controller: &str) -> io::Result<()> {
    set(dir, "cgroup.subtree_control", &format!("-{controller}"))
}

/// Enables a directory's controllers for its subdirectories, as far as the kernel permits: one by one, since a write of
/// several takes all or none.
pub fn hand_on(dir: &Path) {
    for controller in not_handed_on(dir) {
        // If this fails, the controller's files are missing below, and those are checked.
        let _ = enable(dir, &controller);
    }
}

/// Returns the knobs of a directory, by the files that it has.
pub fn knobs(dir: &Path) -> Vec<Knob> {
    let there = |knob: &&Knob| dir.join(file(**knob)).exists();
    Knob::ALL.iter().filter(there).copied().collect()
}

/// Sets every limit of a run as a whole, in a directory that is still empty.
pub fn apply(dir: &Path, limits: &RunLimits) -> Result<(), NotSet> {
    for (knob, value) in values(limits) {
        let file = file(knob);
        set(dir, file, &value).map_err(|error| NotSet {
            file: dir.join(file).display().to_string(),
            error,
        })?;
    }
    apply_io(dir, &limits.io)
}

/// Limits the transfers with each device, named by its numbers: a path is not looked at here, since a look at one may
/// take for ever. Of two limits of one device, which two paths may name, the lower one holds.
fn apply_io(dir: &Path, limits: &[IoLimit]) -> Result<(), NotSet> {
    let mut devices: BTreeMap<&str, [Option<u64>; 4]> = BTreeMap::new();
    for limit in limits {
        let device = limit.path.as_str();
        if !is_device(device) {
            return Err(NotSet {
                file: device.to_owned(),
                error: io::Error::from_raw_os_error(libc::EINVAL),
            });
        }
        let values = [
            limit.read_bytes,
            limit.written_bytes,
            limit.reads,
            limit.writes,
        ];
        let held = devices.entry(device).or_default();
        for (held, value) in held.iter_mut().zip(values) {
            *held = held.iter().copied().chain(value).min();
        }
    }
    let file = file(Knob::IoMax);
    for (device, values) in devices {
        let keys = ["rbps", "wbps", "riops", "wiops"].into_iter().zip(values);
        let keys = keys.filter_map(|(key, value)| Some(format!(" {key}={}", value?)));
        let line = device.to_owned() + &keys.collect::<String>();
        set(dir, file, &line).map_err(|error| NotSet {
            file: dir.join(file).display().to_string(),
            error,
        })?;
    }
    Ok(())
}

/// Whether these are the numbers of a device, as [`crate::block_device::of`] gives them.
fn is_device(text: &str) -> bool {
    let is_number = |text: &str| text.parse::<u32>().is_ok();
    text.split_once(':')
        .is_some_and(|(major, minor)| is_number(major) && is_number(minor))
}

/// Writes a control file.
pub fn set(dir: &Path, file: &str, value: &str) -> io::Result<()> {
    // Never created: a missing file is a limit that this kernel does not have.
    let mut file = fs::OpenOptions::new().write(true).open(dir.join(file))?;
    io::Write::write_all(&mut file, value.as_bytes())
}

fn file(knob: Knob) -> &'static str {
    match knob {
        Knob::MemoryMax => "memory.max",
        Knob::MemoryHigh => "memory.high",
        Knob::SwapMax => "memory.swap.max",
        Knob::PidsMax => "pids.max",
        Knob::CpuMax => "cpu.max",
        Knob::CpuWeight => "cpu.weight",
        Knob::IoMax => "io.max",
    }
}

fn values(limits: &RunLimits) -> Vec<(Knob, String)> {
    let number = |n: u64| {
        if n == UNLIMITED {
            "max".to_owned()
        } else {
            n.to_string()
        }
    };
    let quota = |q: CpuQuota| format!("{} {}", q.quota.as_micros(), q.period.as_micros());
    let values = [
        (Knob::MemoryMax, limits.memory_max.map(number)),
        (Knob::MemoryHigh, limits.memory_high.map(number)),
        (Knob::SwapMax, limits.swap_max.map(number)),
        (Knob::PidsMax, limits.pids_max.map(number)),
        (Knob::CpuMax, limits.cpu_quota.map(quota)),
        (Knob::CpuWeight, limits.cpu_weight.map(|w| w.to_string())),
    ];
    let values = values.into_iter();
    values
        .filter_map(|(knob, value)| Some((knob, value?)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn all() -> RunLimits {
        RunLimits {
            memory_max: Some(512 << 20),
            memory_high: Some(256 << 20),
            swap_max: Some(0),
            pids_max: Some(100),
            cpu_quota: Some(CpuQuota {
                quota: Duration::from_millis(150),
                period: Duration::from_millis(100),
            }),
            cpu_weight: Some(50),
            ..RunLimits::default()
        }
    }

    // promise: Q-6
    #[test]
    fn each_cgroup_limit_is_written_in_kernel_format() {
        let dir = tempfile::tempdir().expect("a directory");
        for knob in Knob::ALL {
            fs::write(dir.path().join(file(*knob)), "").expect("a file");
        }
        apply(dir.path(), &all()).expect("they are set");
        let text = |name: &str| fs::read_to_string(dir.path().join(name)).expect("it is there");
        assert_eq!(text("memory.max"), "536870912");
        assert_eq!(text("memory.high"), "268435456");
        assert_eq!(text("memory.swap.max"), "0");
        assert_eq!(text("pids.max"), "100");
        assert_eq!(text("cpu.max"), "150000 100000");
        assert_eq!(text("cpu.weight"), "50");
    }

    fn io(path: &str, reads: u64) -> IoLimit {
        IoLimit {
            path: path.into(),
            reads: Some(reads),
            ..IoLimit::default()
        }
    }

    // promise: RW-123
    #[test]
    fn lowest_io_limit_of_a_device_is_written() {
        let dir = tempfile::tempdir().expect("a directory");
        fs::write(dir.path().join("io.max"), "").expect("a file");
        let limits = RunLimits {
            io: vec![io("259:0", 7), io("259:0", 5)],
            ..RunLimits::default()
        };
        apply(dir.path(), &limits).expect("it is set");
        let written = fs::read_to_string(dir.path().join("io.max")).expect("it is there");
        assert_eq!(written, "259:0 riops=5");
    }

    // promise: RW-123a
    #[test]
    fn io_limit_must_name_a_device_number() {
        let dir = tempfile::tempdir().expect("a directory");
        fs::write(dir.path().join("io.max"), "").expect("a file");
        for path in ["/", "/dev/sda", "8", "8:", "8:x"] {
            let limits = RunLimits {
                io: vec![io(path, 1)],
                ..RunLimits::default()
            };
            let refused = apply(dir.path(), &limits).expect_err("it names no device");
            assert_eq!(refused.file, path);
            assert_eq!(refused.error.raw_os_error(), Some(libc::EINVAL));
        }
    }

    // promise: Q-6a
    #[test]
    fn missing_limit_file_is_an_error() {
        let dir = tempfile::tempdir().expect("a directory");
        fs::write(dir.path().join("memory.max"), "max\n").expect("a file");
        assert_eq!(knobs(dir.path()), [Knob::MemoryMax]);
        let refused = apply(dir.path(), &all()).expect_err("there is no memory.high");
        assert!(refused.file.ends_with("/memory.high"), "{refused:?}");
        assert_eq!(refused.error.kind(), io::ErrorKind::NotFound);
        assert!(!dir.path().join("memory.high").exists(), "nothing is made");
        apply(dir.path(), &RunLimits::default()).expect("nothing was asked for");
    }

    // promise: Q-6
    #[test]
    fn available_controllers_are_delegated() {
        let dir = tempfile::tempdir().expect("a directory");
        let file = |name: &str| dir.path().join(name);
        fs::write(file("cgroup.subtree_control"), "").expect("a file");
        // Controllers as on a systemd host.
        fs::write(file("cgroup.controllers"), "cpuset hugetlb pids\n").expect("a file");
        hand_on(dir.path());
        let written = fs::read_to_string(file("cgroup.subtree_control")).expect("it is there");
        assert_eq!(written, "+pids");
    }
}
