//! The server process, and the keeper's end of the socket to it.

use crate::{
    fdpass,
    server_socket::{KEEPER_PID_VAR, SERVER_SOCKET_FD},
    wire::{self, ToServer},
};
use kennel_lifecycle::Exit;
use nix::errno::Errno;
use std::{
    collections::VecDeque,
    ffi::OsString,
    io,
    os::{
        fd::{AsFd, AsRawFd, OwnedFd},
        unix::process::CommandExt,
    },
    process::Command,
};

/// Most messages that wait for a server that does not read. Beyond it the server is taken for hung and killed.
const QUEUED_MAX: usize = 65_536;

/// A message on its way.
struct Frame {
    bytes: Vec<u8>,
    fds: Vec<OwnedFd>,
}

/// The server.
pub(super) struct Server {
    pub(super) pid: i32,
    /// Its end, once it has been reaped.
    pub(super) exit: Option<Exit>,
    /// `None` when it has closed its end.
    pub(super) socket: Option<OwnedFd>,
    queue: VecDeque<Frame>,
    /// The first of the queue waits for the host, not for the server.
    host_is_short: bool,
}

impl Server {
    /// Executes this very binary again, in a session of its own, with its end of the socket.
    pub(super) fn start(argv: &[OsString]) -> io::Result<Self> {
        let (ours, theirs) = fdpass::pair()?;
        let end = theirs.as_raw_fd();
        let mut command = Command::new("/proc/self/exe");
        command.args(argv);
        command.env(KEEPER_PID_VAR, std::process::id().to_string());
        let place = move || {
            nix::unistd::setsid()?;
            if end == SERVER_SOCKET_FD {
                // SAFETY: fcntl takes integers; `end` is open in the child. dup3 onto itself would be EINVAL.
                Errno::result(unsafe { libc::fcntl(end, libc::F_SETFD, 0) })?;
            } else {
                // SAFETY: dup3 takes integers; the number has been taken since before the lock was opened, so it is not the
                // pipe by which std learns of a failed exec, and what the keeper has there is not used here.
                Errno::result(unsafe { libc::dup3(end, SERVER_SOCKET_FD, 0) })?;
            }
            Ok(())
        };
        // SAFETY: `place` makes system calls only: no allocation, no lock.
        unsafe { command.pre_exec(place) };
        let child = command.spawn()?;
        Ok(Self {
            pid: child.id().cast_signed(),
            exit: None,
            socket: Some(ours),
            queue: VecDeque::new(),
            host_is_short: false,
        })
    }

    /// Sends, or queues behind what waits. `false`: the queue is full.
    pub(super) fn send(&mut self, message: &ToServer, fds: Vec<OwnedFd>) -> bool {
        if self.socket.is_none() {
            return true;
        }
        match wire::encode(message) {
            Ok(bytes) => self.queue.push_back(Frame { bytes, fds }),
            // Every message is made of bounded parts; one that cannot be encoded cannot be made either.
            Err(_) => return false,
        }
        self.flush();
        self.queue.len() <= QUEUED_MAX
    }

    /// Sends what waits, as far as the server reads.
    pub(super) fn flush(&mut self) {
        let Some(socket) = &self.socket else {
            self.queue.clear();
            return;
        };
        self.host_is_short = false;
        while let Some(frame) = self.queue.front() {
            let fds: Vec<_> = frame.fds.iter().map(AsFd::as_fd).collect();
            match fdpass::send(socket, &frame.bytes, &fds) {
                // A message that is refused as it is (EMSGSIZE) would be refused for ever.
                Ok(()) => {
                    self.queue.pop_front();
                }
                Err(error) if error.raw_os_error() == Some(libc::EMSGSIZE) => {
                    self.queue.pop_front();
                }
                Err(error) if fdpass::is_short(&error) => {
                    self.host_is_short = true;
                    return;
                }
                // Slow, or closed: then the end of file is read next.
                Err(_) => return,
            }
        }
    }

    /// Whether something waits for the server to read.
    pub(super) fn is_behind(&self) -> bool {
        !self.queue.is_empty() && !self.host_is_short
    }

    /// Whether something waits for the host, which tells nobody when it has room.
    pub(super) fn waits_for_host(&self) -> bool {
        !self.queue.is_empty() && self.host_is_short
    }

    /// SIGKILL, unless it has been reaped.
    pub(super) fn kill(&self) {
        if self.exit.is_none() {
            // SAFETY: kill takes integers; the pid is that of an unreaped child of this process.
            unsafe { libc::kill(self.pid, libc::SIGKILL) };
        }
    }
}
