//! A guest: boots, reports on its console, and is gone when this is dropped.

use crate::initramfs::Initramfs;
use kennel_tests::programs;
use std::{
    fs,
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::mpsc::{Receiver, RecvTimeoutError, channel},
    time::{Duration, Instant},
};
use tempfile::TempDir;

/// Longest time of a guest from its start to its last line, also on a busy machine without virtualisation.
const GUEST_MAX: Duration = Duration::from_mins(9);
/// Programs of this machine that guests need beside Kennel, and their paths there.
const PROGRAMS: [(&str, &str); 3] = [
    ("/bin/busybox", "/bin/busybox"),
    ("/usr/bin/setfattr", "/usr/bin/setfattr"),
    ("/usr/bin/unshare", "/usr/bin/unshare"),
];
/// The kernel's command line. Its errors, as that a process was killed for memory, stay off the console, since they may come
/// in the middle of a line of the scenario. On a busy host the emulated timer may come too late for the kernel's test of it.
const KERNEL_WORDS: &str = "console=ttyS0 quiet loglevel=2 panic=-1 no_timer_check";
/// Last line of the guest.
const END: &str = "end";

/// The machine to boot.
pub(crate) struct Machine {
    /// A shell script, with access to `guest/words.sh` and `guest/limits.sh`.
    pub(crate) scenario: &'static str,
    pub(crate) memory_mib: u32,
    /// An image that the guest has as `/dev/nvme0n1`.
    pub(crate) disk: Option<PathBuf>,
    /// Further files, by their paths.
    pub(crate) files: Vec<(&'static str, &'static str)>,
}

/// A running guest.
pub(crate) struct Guest {
    qemu: Child,
    console: Receiver<String>,
    seen: Vec<String>,
    deadline: Instant,
    _files: TempDir,
}

/// Lines that a guest has reported.
pub(crate) struct Checks(Vec<String>);

impl Guest {
    /// Boots it.
    pub(crate) fn boot(machine: &Machine) -> Self {
        let files = tempfile::Builder::new()
            .prefix("kennel-vm-")
            .tempdir()
            .expect("a temporary directory can be made");
        let initramfs = files.path().join("initramfs");
        fs::write(&initramfs, pack(machine, files.path())).expect("it can be written");
        let mut command = Command::new("qemu-system-x86_64");
        // Emulate without /dev/kvm, which may exist and hang.
        command.args([
            "-accel",
            "tcg",
            "-smp",
            "2",
            "-nodefaults",
            "-nographic",
            "-no-reboot",
        ]);
        command.args(["-serial", "stdio", "-m", &machine.memory_mib.to_string()]);
        command
            .arg("-kernel")
            .arg(kernel())
            .arg("-initrd")
            .arg(&initramfs);
        command.args(["-append", KERNEL_WORDS]);
        if let Some(disk) = &machine.disk {
            let drive = format!("file={},format=raw,if=none,id=disk", disk.display());
            command.args(["-drive", &drive, "-device", "nvme,drive=disk,serial=1"]);
        }
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        let mut qemu = command
            .spawn()
            .expect("qemu-system-x86_64 starts; `make tools` installs it");
        let stdout = qemu.stdout.take().expect("it is piped");
        let (sender, console) = channel();
        std::thread::spawn(move || {
            let mut lines = BufReader::new(stdout).split(b'\n');
            while let Some(Ok(line)) = lines.next() {
                let line = String::from_utf8_lossy(&line).trim_end().to_owned();
                if sender.send(line).is_err() {
                    break;
                }
            }
        });
        Self {
            qemu,
            console,
            seen: Vec::new(),
            deadline: Instant::now() + GUEST_MAX,
            _files: files,
        }
    }

    /// Reads the console up to this line.
    pub(crate) fn read_until(&mut self, wanted: &str) {
        self.read_to(wanted, |line| line == wanted);
    }

    /// Reads the console up to the next line with this beginning.
    pub(crate) fn read_until_any(&mut self, beginning: &str) {
        self.read_to(beginning, |line| line.starts_with(beginning));
    }

    fn read_to(&mut self, wanted: &str, is_wanted: impl Fn(&str) -> bool) {
        loop {
            let left = self.deadline.saturating_duration_since(Instant::now());
            let line = match self.console.recv_timeout(left) {
                Ok(line) => line,
                Err(RecvTimeoutError::Timeout) => panic!("no {wanted:?} in time: {}", self.text()),
                Err(RecvTimeoutError::Disconnected) => panic!("no {wanted:?}: {}", self.text()),
            };
            let found = is_wanted(&line);
            self.seen.push(line);
            if found {
                return;
            }
        }
    }

    /// Reads all that it reports.
    pub(crate) fn finish(mut self) -> Checks {
        self.read_until(END);
        let seen = std::mem::take(&mut self.seen);
        for line in &seen {
            println!("{line}");
        }
        Checks(seen)
    }

    /// Returns the console output so far.
    pub(crate) fn text(&self) -> String {
        self.seen.join("\n")
    }
}

impl Drop for Guest {
    /// Kills it like a power loss: the guest cannot react.
    fn drop(&mut self) {
        let _ = self.qemu.kill();
        self.qemu.wait().expect("own child");
    }
}

impl Checks {
    /// Asserts that each of these was reported as passed, and none as failed.
    pub(crate) fn all_passed(&self, names: &[&str]) {
        let failed = self.0.iter().filter(|line| line.starts_with("failed "));
        let failed: Vec<&String> = failed.collect();
        assert!(failed.is_empty(), "{failed:#?}");
        let is_missing = |name: &&&str| !self.0.contains(&format!("ok {name}"));
        let missing: Vec<&&str> = names.iter().filter(is_missing).collect();
        assert!(
            missing.is_empty(),
            "not reported: {missing:?}\n{}",
            self.0.join("\n")
        );
    }
}

/// Returns Debian's kernel, as downloaded by `.ci/tools`.
fn kernel() -> PathBuf {
    let dir = programs::tools().join("linux/boot");
    let entries = fs::read_dir(&dir).into_iter().flatten().flatten();
    let mut kernels: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
    kernels.retain(|path| path.to_string_lossy().contains("/vmlinuz-"));
    kernels.sort();
    kernels
        .pop()
        .unwrap_or_else(|| panic!("no kernel in {}; `make tools` fetches one", dir.display()))
}

fn pack(machine: &Machine, scratch: &Path) -> Vec<u8> {
    let mut initramfs = Initramfs::new();
    let scripts = [
        ("init", include_str!("guest/init.sh")),
        ("words.sh", include_str!("guest/words.sh")),
        ("limits.sh", include_str!("guest/limits.sh")),
        ("inside.sh", include_str!("guest/inside.sh")),
        ("scenario.sh", machine.scenario),
    ];
    for (name, text) in scripts {
        initramfs.file(name, 0o755, text.as_bytes());
    }
    for (name, text) in &machine.files {
        initramfs.file(name, 0o644, text.as_bytes());
    }
    for (from, at) in PROGRAMS {
        initramfs.program(Path::new(from), at);
    }
    // Debug information is most of the binary.
    let stripped = scratch.join("kennel");
    let mut strip = Command::new("strip");
    strip.arg("-o").arg(&stripped).arg(programs::kennel());
    let status = strip.status().expect("strip starts");
    assert!(status.success(), "kennel can be stripped");
    initramfs.program(&stripped, "/usr/bin/kennel");
    initramfs.finish()
}
