//! Preflight check of a binary before a server is started from it: it is run, and reports the protocol that it speaks.
//!
//! The keeper does not wait for it. It has a time limit, SIGCHLD announces its exit, and processes that it has left in
//! its group are killed with it.

use super::binary::PinnedBinary;
use crate::{
    preflight::{self, ANSWER_BYTES_MAX, Spoken},
    values::UpgradeRefusal,
    wire::versions::WIRE,
};
use kennel_lifecycle::Exit;
use kennel_linux::fdpass;
use nix::{
    fcntl::OFlag,
    unistd::{pipe2, read, setsid},
};
use std::{
    io,
    os::{fd::OwnedFd, unix::process::CommandExt},
    process::Stdio,
};

/// Longest time that the check may take.
pub(super) const CHECK_MAX_MS: u64 = 5_000;
/// Longest part of a binary's output that is reported when the binary is unfit.
const REPORTED_BYTES_MAX: usize = 200;

/// A binary that is being checked.
pub(super) struct BinaryCheck {
    pub(super) pid: i32,
    pub(super) binary: PinnedBinary,
    /// Read end of its output.
    written: OwnedFd,
    /// Time at which it is killed.
    pub(super) by: u64,
    late: bool,
}

impl BinaryCheck {
    pub(super) fn begin(
        binary: PinnedBinary,
        env: &[(String, String)],
        now: u64,
    ) -> io::Result<Self> {
        let (written, writes) = pipe2(OFlag::O_CLOEXEC)?;
        fdpass::set_nonblocking(&written)?;
        let mut command = binary.command();
        // The binary may be any program: it gets no secret of the service.
        command.arg(preflight::WORD).env_clear();
        command.envs(env.iter().map(|(name, value)| (name, value)));
        command.stdin(Stdio::null());
        command.stdout(writes.try_clone()?).stderr(writes);
        // SAFETY: `setsid` makes one system call: no allocation, no lock.
        unsafe { command.pre_exec(|| Ok(setsid().map(|_| ())?)) };
        let child = command.spawn()?;
        Ok(Self {
            pid: child.id().cast_signed(),
            binary,
            written,
            by: now + CHECK_MAX_MS,
            late: false,
        })
    }

    /// Kills a check that takes too long, once.
    pub(super) fn give_up(&mut self) {
        if !std::mem::replace(&mut self.late, true) {
            self.kill();
        }
    }

    pub(super) fn wakes_at(&self) -> Option<u64> {
        Some(self.by).filter(|_| !self.late)
    }

    /// Sends SIGKILL to all of its group.
    pub(super) fn kill(&self) {
        // SAFETY: kill takes integers; the group is that of an unreaped child of this process, which leads it.
        unsafe { libc::kill(-self.pid, libc::SIGKILL) };
    }

    /// Evaluates a binary that has exited and is not reaped yet: the binary, or why it is unfit.
    pub(super) fn end(self, exit: Exit) -> Result<PinnedBinary, UpgradeRefusal> {
        self.kill();
        let said = self.output();
        let spoken = preflight::read(&said);
        let binary = self.binary.path.display().to_string();
        let unfit = |why, speaks| UpgradeRefusal::Unfit {
            binary,
            why,
            speaks,
        };
        if self.late {
            let why = format!(
                "it did not say within {} s what it speaks",
                CHECK_MAX_MS / 1000
            );
            return Err(unfit(why, None));
        }
        match (exit, spoken) {
            (Exit::Code(0), Some(Spoken { wire, version })) if wire.common(WIRE).is_some() => {
                Ok(self.binary.of_version(version))
            }
            (Exit::Code(0), Some(Spoken { wire, version })) => {
                let why = format!(
                    "it is kennel {version} and speaks levels {wire} of messages, this keeper speaks {WIRE}"
                );
                Err(unfit(why, Some(wire.max)))
            }
            (exit, _) => {
                let how = match exit {
                    Exit::Code(0) => "it did not say what it speaks".to_owned(),
                    Exit::Code(code) => format!("it exited with code {code}"),
                    Exit::Signal { signal, .. } => format!("it was killed by {signal}"),
                    Exit::Unknown => "how it ended is not known".to_owned(),
                };
                let why = match first_line(&said) {
                    Some(line) => format!("{how}: {line}"),
                    None => how,
                };
                Err(unfit(why, None))
            }
        }
    }

    /// Reads the available output; a process that still has the other end open is not waited for.
    fn output(&self) -> String {
        let mut bytes = [0; ANSWER_BYTES_MAX];
        let mut len = 0;
        while let Ok(more @ 1..) = read(&self.written, &mut bytes[len..]) {
            len += more;
        }
        String::from_utf8_lossy(&bytes[..len]).into_owned()
    }
}

/// Returns the first line with text, without control characters for terminals.
fn first_line(said: &str) -> Option<String> {
    let line = said.lines().find(|line| !line.trim().is_empty())?;
    let plain: String = line.chars().filter(|c| !c.is_control()).collect();
    Some(plain[..plain.floor_char_boundary(REPORTED_BYTES_MAX)].to_owned())
}
