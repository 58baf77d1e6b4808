//! A look at a binary before a server is started from it: it is run, and says what it speaks.
//!
//! Nobody waits for it here. It has a time, its end is told by the kernel, and what it has left behind in its group goes
//! with it.

use super::binary::Binary;
use crate::{
    preflight::{self, ANSWER_BYTES_MAX, Spoken},
    wire,
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

/// How long it may take.
pub(super) const CHECK_MAX_MS: u64 = 5_000;
/// Longest part of what a binary has written that is told when it does not fit.
const TOLD_BYTES_MAX: usize = 200;

/// A binary that is being looked at.
pub(super) struct Check {
    pub(super) pid: i32,
    pub(super) binary: Binary,
    /// What it writes.
    written: OwnedFd,
    /// When it is killed.
    pub(super) by: u64,
    late: bool,
}

/// Why no server is started from it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Unfit {
    pub(super) why: String,
    /// What it speaks, where it has said so.
    pub(super) speaks: Option<u32>,
}

impl Check {
    pub(super) fn begin(binary: Binary, env: &[(String, String)], now: u64) -> io::Result<Self> {
        let (written, writes) = pipe2(OFlag::O_CLOEXEC)?;
        fdpass::set_nonblocking(&written)?;
        let mut command = binary.command();
        // It may be anything: none of the service's secrets are for it.
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

    /// It takes too long: it is killed, once.
    pub(super) fn give_up(&mut self) {
        if !std::mem::replace(&mut self.late, true) {
            self.kill();
        }
    }

    pub(super) fn wakes_at(&self) -> Option<u64> {
        Some(self.by).filter(|_| !self.late)
    }

    /// SIGKILL to all of its group.
    pub(super) fn kill(&self) {
        // SAFETY: kill takes integers; the group is that of an unreaped child of this process, which leads it.
        unsafe { libc::kill(-self.pid, libc::SIGKILL) };
    }

    /// It has ended and is not reaped yet: what it is, or why it will not do.
    pub(super) fn end(self, exit: Exit) -> Result<Binary, Unfit> {
        self.kill();
        let said = self.said();
        let spoken = preflight::read(&said);
        if self.late {
            let why = format!(
                "it did not say within {} s what it speaks",
                CHECK_MAX_MS / 1000
            );
            return Err(Unfit { why, speaks: None });
        }
        match (exit, spoken) {
            (Exit::Code(0), Some(Spoken { wire, version })) if wire == u32::from(wire::VERSION) => {
                Ok(self.binary.of_version(version))
            }
            (Exit::Code(0), Some(Spoken { wire, version })) => Err(Unfit {
                why: format!(
                    "it is kennel {version} and speaks protocol {wire}, this keeper speaks {}",
                    wire::VERSION
                ),
                speaks: Some(wire),
            }),
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
                Err(Unfit { why, speaks: None })
            }
        }
    }

    /// What is there; whoever may still hold the other end is not waited for.
    fn said(&self) -> String {
        let mut bytes = [0; ANSWER_BYTES_MAX];
        let mut len = 0;
        while let Ok(more @ 1..) = read(&self.written, &mut bytes[len..]) {
            len += more;
        }
        String::from_utf8_lossy(&bytes[..len]).into_owned()
    }
}

/// The first line that says something, without what a terminal would obey.
fn first_line(said: &str) -> Option<String> {
    let line = said.lines().find(|line| !line.trim().is_empty())?;
    let plain: String = line.chars().filter(|c| !c.is_control()).collect();
    Some(plain[..plain.floor_char_boundary(TOLD_BYTES_MAX)].to_owned())
}
