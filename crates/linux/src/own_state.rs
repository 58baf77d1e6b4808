//! State of a Kennel process that other processes can change, read so that two moments can be compared.

use crate::attributes::OOM_SCORE_ADJ;
use nix::{
    errno::Errno,
    fcntl::{OFlag, open},
    sys::stat::Mode,
    unistd::read,
};
use std::io;

/// Upper bound of the size of each of the files on any usual host.
const FILE_BYTES_MAX: usize = 16 * 1024;
/// Lines of `/proc/self/status` that only another process changes.
const LASTING: &[&str] = &[
    "Umask:",
    "TracerPid:",
    "Uid:",
    "Gid:",
    "Groups:",
    "SigBlk:",
    "SigIgn:",
    "SigCgt:",
    "Cap",
    "NoNewPrivs:",
    "Seccomp",
    "Cpus_allowed:",
    "Mems_allowed:",
];
/// Target of `ioprio_get(2)`: this process.
const IOPRIO_WHO_PROCESS: libc::c_long = 1;

/// Tracer, ids, signal masks, capabilities, processors, limits, control group, scores and priorities of this process:
/// settings that a command may change in the process above it, by mistake or on purpose.
#[derive(Debug, PartialEq, Eq)]
pub struct OwnState {
    status: String,
    limits: String,
    cgroup: String,
    oom_score_adj: String,
    scheduling: [u8; SCHEDULING_BYTES],
    io_priority: libc::c_long,
    /// Id of the session keyring, which a child can replace; or why there is none.
    keyring: Result<libc::c_long, Errno>,
}

/// Size of `struct sched_attr` in its second version: policy, flags, nice value, priority, times, bounds of
/// utilization.
const SCHEDULING_BYTES: usize = 56;

impl OwnState {
    /// Reads the present state. The error means that it cannot be known.
    pub fn take() -> io::Result<Self> {
        let is_lasting = |line: &&str| LASTING.iter().any(|name| line.starts_with(name));
        let status = file("/proc/self/status")?;
        let status = status.lines().filter(is_lasting).collect::<Vec<_>>();
        Ok(Self {
            status: status.join("\n"),
            limits: file("/proc/self/limits")?,
            cgroup: file("/proc/self/cgroup")?,
            oom_score_adj: file(OOM_SCORE_ADJ)?,
            scheduling: scheduling()?,
            io_priority: io_priority()?,
            keyring: keyring(),
        })
    }
}

/// Returns the contents of a small file of /proc, by one read.
fn file(path: &str) -> io::Result<String> {
    let opened = open(path, OFlag::O_RDONLY | OFlag::O_CLOEXEC, Mode::empty())?;
    let mut bytes = vec![0; FILE_BYTES_MAX];
    let got = read(&opened, &mut bytes)?;
    if got == bytes.len() {
        return Err(io::ErrorKind::FileTooLarge.into());
    }
    // Copied, since a shim keeps this text for later comparison, and the buffer is freed.
    let text = std::str::from_utf8(&bytes[..got]);
    text.map(str::to_owned)
        .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}

fn scheduling() -> io::Result<[u8; SCHEDULING_BYTES]> {
    let mut attributes = [0u8; SCHEDULING_BYTES];
    let (own, bytes, flags) = (0, SCHEDULING_BYTES, 0);
    // SAFETY: sched_getattr(2) writes at most `bytes` bytes, the size of `attributes`.
    let got = unsafe {
        libc::syscall(
            libc::SYS_sched_getattr,
            own,
            attributes.as_mut_ptr(),
            bytes,
            flags,
        )
    };
    Errno::result(got)?;
    Ok(attributes)
}

fn io_priority() -> io::Result<libc::c_long> {
    // SAFETY: ioprio_get(2) takes integers.
    let got = unsafe { libc::syscall(libc::SYS_ioprio_get, IOPRIO_WHO_PROCESS, 0) };
    Ok(Errno::result(got)?)
}

fn keyring() -> Result<libc::c_long, Errno> {
    let (keyring, create) = (libc::KEY_SPEC_SESSION_KEYRING, 0);
    // SAFETY: this operation of keyctl(2) takes integers.
    Errno::result(unsafe {
        libc::syscall(
            libc::SYS_keyctl,
            libc::KEYCTL_GET_KEYRING_ID,
            keyring,
            create,
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    /// Changes one setting of this very process from another one, as a command may do.
    fn changed_by(program: &str, args: &[&str]) -> bool {
        let before = OwnState::take().expect("it can be read");
        assert_eq!(OwnState::take().expect("it can be read"), before);
        // Priorities belong to a thread, and a test does not run on the main thread.
        let own = nix::unistd::gettid().to_string();
        let args = args
            .iter()
            .map(|arg| if *arg == "PID" { &own } else { *arg });
        let done = Command::new(program).args(args).output().expect("it runs");
        assert!(done.status.success(), "{done:?}");
        OwnState::take().expect("it can be read") != before
    }

    // promise: T-54
    #[test]
    fn limits_set_by_another_process_are_read() {
        assert!(changed_by("renice", &["-n", "3", "-p", "PID"]));
        assert!(changed_by("prlimit", &["--pid", "PID", "--nofile=800:800"]));
        assert!(changed_by("ionice", &["-c", "3", "-p", "PID"]));
        assert!(changed_by("choom", &["-n", "700", "-p", "PID"]));
        assert!(!changed_by("true", &[]));
    }
}
