//! The zygote: a child of the keeper that forks its shims, as children of the keeper. It executes this binary anew, so
//! that it has little memory, and that does not change any more: shims share it for their lives. A shim that is forked
//! from the keeper keeps a copy of each page that the keeper writes to later, and finds its own allocations scattered
//! over all the others.

use super::birth::{self, KEEPER_FD, be_born};
use crate::wire::{self, Decoded, Head, Message};
use kennel_linux::{
    fdpass::{self, Received},
    own_process::{fork_beside, harden_process},
    signal_set::SignalSet,
};
use nix::{
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::prctl,
    unistd::{chdir, setsid},
};
use std::{
    fs::File,
    io,
    mem::ManuallyDrop,
    os::{
        fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
        unix::process::CommandExt,
    },
    path::{Path, PathBuf},
    process::{Command, ExitCode, Stdio},
};

/// The first argument with which a keeper executes this binary as its zygote; the second is its data directory.
pub const WORD: &str = "zygote";

/// Longest wait for an answer of the zygote, or for its beginning. The keeper does nothing meanwhile.
const ANSWER_MS_MAX: u16 = 250;
/// The zygote's first message.
const READY: i32 = 0;

kennel_lifecycle::tagged! {
    /// Keeper to zygote.
    #[derive(Debug, PartialEq, Eq)]
    pub(crate) enum ToZygote {
        /// The first message: the directory of the keeper's control groups, and with it the file of exit records, each
        /// where there is one.
        Begin { base: Option<String> } = "begin",
        /// Forks a shim with this socket. The answer is its pid, or a negative errno.
        Fork {} = "fork",
    }
}

impl Message for ToZygote {}

/// The zygote, as its keeper sees it.
pub(crate) struct Zygote {
    pub(crate) pid: i32,
    socket: OwnedFd,
    is_ready: bool,
}

/// Reason why there is no new shim.
pub(crate) enum NotForked {
    /// This host has no resources for it.
    Short(io::Error),
    /// The zygote has not begun yet.
    Early,
    /// The zygote does not answer, or cannot fork here. A shim that it may still fork exits where its socket is closed.
    Lost,
}

impl Zygote {
    /// Starts it. It waits for no answer. Its arguments, which are those of its shims, name the data directory.
    pub(crate) fn start(
        data_dir: &Path,
        exits: Option<&File>,
        base: Option<&Path>,
    ) -> io::Result<Self> {
        let (socket, theirs) = fdpass::pair()?;
        let end = theirs.as_raw_fd();
        let mut command = Command::new("/proc/self/exe");
        command.arg(WORD).arg(data_dir);
        for stream in [Command::stdin, Command::stdout, Command::stderr] {
            stream(&mut command, Stdio::null());
        }
        let place = move || {
            // The keeper's terminal and group signals must not reach the zygote.
            setsid()?;
            fdpass::pass_down(end, KEEPER_FD)
        };
        // SAFETY: `place` makes system calls only: no allocation, no lock.
        unsafe { command.pre_exec(place) };
        let child = command.spawn()?;
        let zygote = Self {
            pid: child.id().cast_signed(),
            socket,
            is_ready: false,
        };
        let base = base.map(|base| base.display().to_string());
        let exits: Vec<_> = exits.iter().map(AsFd::as_fd).collect();
        zygote.send(&ToZygote::Begin { base }, &exits)?;
        Ok(zygote)
    }

    fn send(&self, message: &ToZygote, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        wire::send(&self.socket, Head::NONE, message, fds)
    }

    /// Waits for its beginning, which takes as long as that of any program.
    pub(crate) fn await_begin(&mut self) {
        self.has_begun(ANSWER_MS_MAX);
    }

    /// Whether it has begun, within this time.
    fn has_begun(&mut self, wait_ms: u16) -> bool {
        self.is_ready = self.is_ready || self.answer(wait_ms) == Some(READY);
        self.is_ready
    }

    /// Forks a shim, a child of the keeper, with this socket. Returns its pid.
    pub(crate) fn fork(&mut self, shims: &OwnedFd) -> Result<i32, NotForked> {
        if !self.has_begun(0) {
            return Err(NotForked::Early);
        }
        match self.send(&ToZygote::Fork {}, &[shims.as_fd()]) {
            Ok(()) => {}
            Err(error) if fdpass::is_short(&error) => return Err(NotForked::Short(error)),
            Err(_) => return Err(NotForked::Lost),
        }
        match self.answer(ANSWER_MS_MAX) {
            Some(pid @ 1..) => Ok(pid),
            Some(errno) => match -errno {
                short @ (libc::EAGAIN | libc::ENOMEM | libc::EMFILE | libc::ENFILE) => {
                    Err(NotForked::Short(io::Error::from_raw_os_error(short)))
                }
                _ => Err(NotForked::Lost),
            },
            None => Err(NotForked::Lost),
        }
    }

    /// Returns the next number that it sends within this time.
    fn answer(&self, wait_ms: u16) -> Option<i32> {
        let mut answer = [PollFd::new(self.socket.as_fd(), PollFlags::POLLIN)];
        let is_there = poll(&mut answer, PollTimeout::from(wait_ms)).is_ok_and(|ready| ready > 0);
        match fdpass::receive(&self.socket) {
            Ok(Received::Message(bytes, _)) if is_there => {
                bytes.try_into().ok().map(i32::from_ne_bytes)
            }
            _ => None,
        }
    }
}

/// Is the zygote of the process that has executed this binary with [`WORD`]: forks a shim for each socket that comes,
/// and exits with its keeper. Call it before anything else: what this process allocates, each shim has.
pub fn main() -> ExitCode {
    match serve() {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

fn serve() -> io::Result<()> {
    SignalSet::ALL.block()?;
    harden_process()?;
    let _ = prctl::set_name(c"kennel-zygote");
    #[cfg(debug_assertions)]
    kennel_linux::crash_point::i_am_child_of_keeper();
    chdir(c"/")?;
    // SAFETY: the keeper has put its socket there, and nothing else in this process owns that number.
    let inherited = ManuallyDrop::new(unsafe { OwnedFd::from_raw_fd(KEEPER_FD) });
    let (keeper, _) = birth::keep_only(&inherited, None)?;
    // Computed once here, so that no shim has to.
    SignalSet::ignored();
    let Received::Message(bytes, mut fds) = fdpass::receive(&keeper)? else {
        return Ok(());
    };
    let Decoded::Known {
        message: ToZygote::Begin { base },
        ..
    } = wire::decode(&bytes, &mut fds)?
    else {
        return Err(io::ErrorKind::InvalidData.into());
    };
    let base = base.map(PathBuf::from);
    let exits = fds.into_iter().next().map(File::from);
    answer(&keeper, READY)?;
    while let Received::Message(_, fds) = fdpass::receive(&keeper)? {
        // Without a free descriptor in this process the socket is missing.
        let Some(socket) = fds.into_iter().next() else {
            answer(&keeper, -libc::EMFILE)?;
            continue;
        };
        match fork_beside() {
            Ok(None) => be_born(&socket, exits.as_ref(), base.clone()),
            Ok(Some(pid)) => answer(&keeper, pid)?,
            Err(errno) => answer(&keeper, -(errno as i32))?,
        }
    }
    Ok(())
}

fn answer(keeper: &OwnedFd, number: i32) -> io::Result<()> {
    fdpass::send(keeper, &number.to_ne_bytes(), &[])
}
