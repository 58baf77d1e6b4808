//! The executables that servers are started from.

use nix::{
    errno::Errno,
    fcntl::{OFlag, open},
    sys::stat::Mode,
};
use std::{
    io,
    os::{
        fd::{AsRawFd, OwnedFd},
        unix::process::CommandExt,
    },
    path::{Path, PathBuf},
    process::Command,
};

/// An executable that stays the same, whatever happens to its path.
pub(super) struct PinnedBinary {
    /// Absent: the one that this process runs.
    file: Option<OwnedFd>,
    /// Path at which it was found.
    pub(super) path: PathBuf,
    /// Version that it has reported.
    pub(super) version: String,
}

impl PinnedBinary {
    /// Returns the executable of this process, which the kernel retains.
    pub(super) fn own() -> Self {
        Self {
            file: None,
            path: PathBuf::from("/proc/self/exe"),
            version: super::VERSION.to_owned(),
        }
    }

    /// Opens the executable at this path. Its version is unknown until it has reported it.
    pub(super) fn at(path: &Path) -> io::Result<Self> {
        let file = open(path, OFlag::O_PATH | OFlag::O_CLOEXEC, Mode::empty())?;
        Ok(Self {
            file: Some(file),
            path: path.to_owned(),
            version: String::new(),
        })
    }

    /// Sets the version that it has reported.
    pub(super) fn of_version(self, version: String) -> Self {
        Self { version, ..self }
    }

    /// Makes a command of it. The opened file is executed, not whatever is at its path by then.
    pub(super) fn command(&self) -> Command {
        let Some(file) = &self.file else {
            return Command::new(&self.path);
        };
        let number = file.as_raw_fd();
        let mut command = Command::new(format!("/proc/self/fd/{number}"));
        command.arg0(&self.path);
        let keep_open = move || {
            // A script's interpreter opens this very file again through the descriptor, which must survive `execve`.
            // SAFETY: fcntl takes integers; the number is open in the child, which is a fork of the owner.
            Errno::result(unsafe { libc::fcntl(number, libc::F_SETFD, 0) })?;
            Ok(())
        };
        // SAFETY: `keep_open` makes one system call: no allocation, no lock.
        unsafe { command.pre_exec(keep_open) };
        command
    }
}
