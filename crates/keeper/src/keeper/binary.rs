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

/// An executable that stays the same, whatever becomes of its path.
pub(super) struct Binary {
    /// Absent: the one that this process runs.
    file: Option<OwnedFd>,
    /// Where it was found.
    path: PathBuf,
    /// As it has said.
    pub(super) version: String,
}

impl Binary {
    /// The one that this process runs, which the kernel keeps.
    pub(super) fn own() -> Self {
        Self {
            file: None,
            path: PathBuf::from("/proc/self/exe"),
            version: super::VERSION.to_owned(),
        }
    }

    /// The one that is at this path now. Its version is not known before it has said it.
    pub(super) fn at(path: &Path) -> io::Result<Self> {
        let file = open(path, OFlag::O_PATH | OFlag::O_CLOEXEC, Mode::empty())?;
        Ok(Self {
            file: Some(file),
            path: path.to_owned(),
            version: String::new(),
        })
    }

    /// The same, which has said its version.
    pub(super) fn of_version(self, version: String) -> Self {
        Self { version, ..self }
    }

    /// To execute it. What was opened is executed, not what may be at its path by then.
    pub(super) fn command(&self) -> Command {
        let Some(file) = &self.file else {
            return Command::new(&self.path);
        };
        let number = file.as_raw_fd();
        let mut command = Command::new(format!("/proc/self/fd/{number}"));
        command.arg0(&self.path);
        let keep_open = move || {
            // The interpreter of a script opens it again. It opens nothing but this very file.
            // SAFETY: fcntl takes integers; the number is open in the child, which is a fork of the owner.
            Errno::result(unsafe { libc::fcntl(number, libc::F_SETFD, 0) })?;
            Ok(())
        };
        // SAFETY: `keep_open` makes one system call: no allocation, no lock.
        unsafe { command.pre_exec(keep_open) };
        command
    }
}
