//! A process as a descriptor: it cannot refer to another process later.

use crate::{reap, targets::SignalOutcome};
use kennel_lifecycle::{Exit, Signal};
use nix::{
    errno::Errno,
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::statfs::fstatfs,
};
use std::{
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd},
    ptr,
    sync::OnceLock,
};

/// `PID_FS_MAGIC`: on kernels before 6.9 all pidfds share one anonymous inode, which identifies nothing.
const PIDFS_MAGIC: i64 = 0x5049_4446;
/// `PIDFD_SIGNAL_PROCESS_GROUP` (Linux 6.9).
const SIGNAL_PROCESS_GROUP: u32 = 1 << 2;
/// Handle type of pidfs (`FILEID_KERNFS`).
const HANDLE_TYPE: i32 = 0xfe;

/// `PIDFD_INFO_CGROUPID`.
const INFO_CGROUP: u64 = 1 << 2;
/// `PIDFD_INFO_EXIT` (Linux 6.15).
const INFO_EXIT: u64 = 1 << 3;
/// `PIDFD_GET_INFO`: `_IOWR(0xFF, 11, struct pidfd_info)` in its first published size.
const GET_INFO: libc::Ioctl =
    nix::request_code_readwrite!(0xff, 11, size_of::<Info>()) as libc::Ioctl;

/// `struct pidfd_info`, first published size: 64 bytes.
#[repr(C)]
#[derive(Default)]
struct Info {
    mask: u64,
    cgroup: u64,
    /// pid, tgid, ppid, and four pairs of uid and gid.
    ids: [u32; 11],
    /// Wait status as in wait(2).
    exit_code: i32,
}

/// Owns a pidfd.
#[derive(Debug)]
pub struct PidFd(OwnedFd);

/// `struct file_handle` with space for the 8 bytes that pidfs uses.
#[repr(C)]
struct Handle {
    bytes: u32,
    kind: i32,
    inode: [u8; 8],
}

impl PidFd {
    /// Calls `pidfd_open(2)`. The caller must check afterwards that the process is the intended one.
    pub fn open(pid: i32) -> io::Result<Self> {
        // SAFETY: pidfd_open takes two integers and touches no memory of ours.
        let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
        let fd = RawFd::try_from(Errno::result(fd)?).map_err(io::Error::other)?;
        // SAFETY: the kernel has just made this descriptor for us; no other code owns it.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// Takes a pidfd that came from clone3(2) or from a message.
    pub fn from_fd(fd: OwnedFd) -> Self {
        Self(fd)
    }

    /// Sends a signal to this process.
    pub fn signal(&self, signal: Signal) -> SignalOutcome {
        self.send(signal.number(), 0)
    }

    /// Sends a signal to the process group that this process leads or led: it stays addressable while a member lives,
    /// and returns `Gone` after that, never an unrelated process. `Failed(EINVAL)` before Linux 6.9.
    pub fn signal_group(&self, signal: Signal) -> SignalOutcome {
        self.send(signal.number(), SIGNAL_PROCESS_GROUP)
    }

    fn send(&self, number: i32, flags: u32) -> SignalOutcome {
        let no_info = ptr::null::<libc::siginfo_t>();
        let fd = self.0.as_raw_fd();
        // SAFETY: `fd` is owned by self, so it stays open for the call; a null siginfo is allowed
        // (pidfd_send_signal(2)).
        let sent =
            unsafe { libc::syscall(libc::SYS_pidfd_send_signal, fd, number, no_info, flags) };
        match Errno::result(sent) {
            Ok(_) => SignalOutcome::Delivered,
            Err(Errno::ESRCH) => SignalOutcome::Gone,
            Err(errno) => SignalOutcome::Failed(errno as i32),
        }
    }

    /// Waits until the process has exited, for so many milliseconds at most.
    pub fn await_end(&self, most_ms: u16) {
        let mut end = [PollFd::new(self.as_fd(), PollFlags::POLLIN)];
        // A signal may interrupt the wait.
        let _ = poll(&mut end, PollTimeout::from(most_ms));
    }

    /// Whether the process has exited, reaped or not. A thread group leader that exited before its threads has not.
    pub fn has_ended(&self) -> bool {
        let mut wait = [PollFd::new(self.0.as_fd(), PollFlags::POLLIN)];
        poll(&mut wait, PollTimeout::ZERO).is_ok_and(|ready| ready > 0)
    }

    /// Whether its number cannot be another's: the process is alive, or a zombie.
    pub fn is_unreaped(&self) -> bool {
        self.send(0, 0) != SignalOutcome::Gone
    }

    /// Whether the kernel addresses process groups by descriptor. Sends no signal.
    pub fn addresses_groups(&self) -> bool {
        self.send(0, SIGNAL_PROCESS_GROUP) != SignalOutcome::Failed(libc::EINVAL)
    }

    /// Returns the exit of the process, if any parent reaped it after this descriptor was opened (Linux 6.15).
    pub fn exit(&self) -> Option<Exit> {
        self.end_info().map(|info| reap::of_status(info.exit_code))
    }

    /// Returns the id of the control group in which the process has ended, as [`Self::exit`] returns its exit.
    pub fn exit_group(&self) -> Option<u64> {
        let info = self.end_info()?;
        (info.mask & INFO_CGROUP != 0).then_some(info.cgroup)
    }

    fn end_info(&self) -> Option<Info> {
        let mut info = Info {
            mask: INFO_EXIT | INFO_CGROUP,
            ..Info::default()
        };
        let fd = self.0.as_raw_fd();
        // SAFETY: `fd` is owned by self; `info` is a local of the size in the request's number.
        let asked = unsafe { libc::ioctl(fd, GET_INFO, &raw mut info) };
        Errno::result(asked).ok()?;
        (info.mask & INFO_EXIT != 0).then_some(info)
    }

    /// Returns the pidfs inode: unique per boot. Absent before Linux 6.9.
    pub fn handle(&self) -> Option<u64> {
        if !self.is_of_pidfs()? {
            return None;
        }
        let mut handle = Handle {
            bytes: 8,
            kind: 0,
            inode: [0; 8],
        };
        let mut mount_id: i32 = 0;
        let fd = self.0.as_raw_fd();
        // SAFETY: path is a NUL-terminated empty string, `handle` has the 8 bytes given by `bytes`, and both
        // out-pointers are to locals that outlive the call.
        let named = unsafe {
            libc::syscall(
                libc::SYS_name_to_handle_at,
                fd,
                c"".as_ptr(),
                ptr::from_mut(&mut handle),
                ptr::from_mut(&mut mount_id),
                libc::AT_EMPTY_PATH,
            )
        };
        Errno::result(named).ok()?;
        (handle.bytes == 8).then(|| u64::from_ne_bytes(handle.inode))
    }

    /// Whether this kernel has pidfs: all pidfds are of it, or none is. Read once; a fork inherits the answer.
    fn is_of_pidfs(&self) -> Option<bool> {
        static OF_PIDFS: OnceLock<bool> = OnceLock::new();
        if let Some(known) = OF_PIDFS.get() {
            return Some(*known);
        }
        let found = fstatfs(&self.0).ok()?.filesystem_type().0 == PIDFS_MAGIC;
        Some(*OF_PIDFS.get_or_init(|| found))
    }

    /// Opens the process with this handle: `Ok(None)` when it is gone; an error when that cannot be determined.
    pub fn open_handle(inode: u64) -> io::Result<Option<Self>> {
        let me = Self::open(std::process::id().cast_signed())?;
        let handle = Handle {
            bytes: 8,
            kind: HANDLE_TYPE,
            inode: inode.to_ne_bytes(),
        };
        let mount = me.0.as_raw_fd();
        // SAFETY: `mount` is a pidfd owned by `me`; `handle` is a local with the 8 bytes given by `bytes`.
        let opened = unsafe {
            libc::syscall(
                libc::SYS_open_by_handle_at,
                mount,
                ptr::from_ref(&handle),
                libc::O_CLOEXEC,
            )
        };
        match Errno::result(opened) {
            Ok(fd) => {
                let fd = RawFd::try_from(fd).map_err(io::Error::other)?;
                // SAFETY: the kernel has just made this descriptor for us; no other code owns it.
                Ok(Some(Self(unsafe { OwnedFd::from_raw_fd(fd) })))
            }
            Err(Errno::ESTALE | Errno::ENOENT | Errno::ESRCH) => Ok(None),
            Err(errno) => Err(errno.into()),
        }
    }
}

impl AsFd for PidFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // promise: I-6
    #[test]
    fn pidfd_handle_opens_only_its_process() {
        let mut child = std::process::Command::new("sleep")
            .arg("60")
            .spawn()
            .expect("sleep starts");
        let fd = PidFd::open(child.id().cast_signed()).expect("a pidfd");
        let Some(handle) = fd.handle() else {
            child.kill().expect("it can be killed");
            child.wait().expect("it can be reaped");
            return;
        };
        let again = PidFd::open_handle(handle).expect("the call works");
        assert!(again.is_some_and(|p| !p.has_ended()));
        assert_eq!(fd.signal(Signal::KILL), SignalOutcome::Delivered);
        child.wait().expect("it can be reaped");
        assert!(!fd.is_unreaped());
        assert!(
            PidFd::open_handle(handle)
                .expect("the call works")
                .is_none()
        );
        assert_eq!(fd.signal(Signal::KILL), SignalOutcome::Gone);
    }

    #[test]
    fn exit_is_read_only_after_the_reap() {
        for (text, end) in [
            ("exit 37", Exit::Code(37)),
            (
                "kill -TERM $$",
                Exit::Signal {
                    signal: Signal::TERM,
                    core_dumped: false,
                },
            ),
        ] {
            let mut child = std::process::Command::new("sh")
                .args(["-c", &format!("read line; {text}")])
                .stdin(std::process::Stdio::piped())
                .spawn()
                .expect("sh starts");
            let fd = PidFd::open(child.id().cast_signed()).expect("a pidfd");
            assert_eq!(fd.exit(), None);
            drop(child.stdin.take());
            child.wait().expect("it can be reaped");
            // Kernels before 6.15 do not report the exit.
            assert!([None, Some(end)].contains(&fd.exit()));
        }
    }
}
