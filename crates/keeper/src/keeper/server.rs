//! The server process, and the keeper's end of the socket to it.

use super::binary::PinnedBinary;
use crate::{
    server_socket::{KEEPER_PID_VAR, SERVER_SOCKET_FD},
    values::{EndCause, FormerServer},
    wire::{self, Answer, Head, ToServer},
};
use kennel_lifecycle::Exit;
use kennel_linux::{clock, fdpass};
use nix::errno::Errno;
use std::{
    collections::VecDeque,
    ffi::OsString,
    io,
    os::{
        fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
        unix::process::CommandExt,
    },
    rc::Rc,
};

/// Most messages queued for a server that does not read. Beyond it the server counts as hung and is killed.
const QUEUED_MAX: usize = 65_536;

/// Time between two pings.
const PING_EVERY_MS: u64 = 1_000;
/// Unanswered pings in a row after which the server counts as hung and is killed.
const PINGS_UNANSWERED_MAX: u32 = 10;

/// A message with its descriptors.
pub(super) type ServerMessage = (Head, ToServer, Vec<Rc<OwnedFd>>);

/// An encoded message.
struct EncodedMessage {
    bytes: Vec<u8>,
    fds: Vec<Rc<OwnedFd>>,
}

impl EncodedMessage {
    fn of(head: Head, message: &ToServer, fds: Vec<Rc<OwnedFd>>) -> io::Result<Self> {
        let (bytes, file) = wire::encode(head, message)?;
        let fds = file.map(Rc::new).into_iter().chain(fds).collect();
        Ok(Self { bytes, fds })
    }
}

/// The server.
pub(super) struct Server {
    pub(super) pid: i32,
    version: String,
    /// Its exit status, once it has been reaped.
    pub(super) exit: Option<Exit>,
    /// `None` when it has closed its end.
    pub(super) socket: Option<OwnedFd>,
    queue: VecDeque<EncodedMessage>,
    /// Number of messages at the front of the queue that are the hand-over, which no server requested.
    handing_over: usize,
    /// The first message of the queue waits for the host, not for the server.
    host_is_short: bool,
    /// Time at which it reported that it serves.
    pub(super) ready_at: Option<u64>,
    /// Time at which it is killed if it has not exited by then.
    pub(super) kill_at: Option<u64>,
    /// The keeper has killed it.
    pub(super) killed: bool,
    /// The reason was that it read no messages.
    hung: bool,
    pings: Pings,
}

/// Whether the server still reads messages.
#[derive(Default)]
struct Pings {
    /// Time of the next ping.
    at: Option<u64>,
    unanswered: u32,
}

/// Action that is due at a time.
#[derive(Debug, PartialEq, Eq)]
enum Tick {
    Wait,
    Ask,
    Hung,
}

impl Pings {
    /// Pings are counted, not seconds: on a host that was suspended none were sent.
    fn tick(&mut self, now: u64) -> Tick {
        if self.at.is_none_or(|at| now < at) {
            return Tick::Wait;
        }
        if self.unanswered >= PINGS_UNANSWERED_MAX {
            self.at = None;
            return Tick::Hung;
        }
        self.at = Some(now + PING_EVERY_MS);
        self.unanswered += 1;
        Tick::Ask
    }
}

impl Server {
    /// Executes the binary, in a session of its own, with its end of the socket and a lock that it holds for as long as
    /// it lives.
    pub(super) fn start(
        binary: &PinnedBinary,
        argv: &[OsString],
        lock: BorrowedFd<'_>,
    ) -> io::Result<Self> {
        let (ours, theirs) = fdpass::pair()?;
        let (end, lock) = (theirs.as_raw_fd(), lock.as_raw_fd());
        let mut command = binary.command();
        command.args(argv);
        command.env(KEEPER_PID_VAR, std::process::id().to_string());
        let place = move || {
            nix::unistd::setsid()?;
            // SAFETY: fcntl takes integers; the keeper has `lock` open, and so has this child.
            Errno::result(unsafe { libc::fcntl(lock, libc::F_SETFD, 0) })?;
            // The number was taken before the lock was opened, so it is not std's exec-error pipe, and the child does
            // not use what the keeper has there.
            fdpass::pass_down(end, SERVER_SOCKET_FD)
        };
        // SAFETY: `place` makes system calls only: no allocation, no lock.
        unsafe { command.pre_exec(place) };
        let child = command.spawn()?;
        #[cfg(debug_assertions)]
        kennel_linux::crash_point::server_is(Some(child.id().cast_signed()));
        Ok(Self {
            pid: child.id().cast_signed(),
            version: binary.version.clone(),
            exit: None,
            socket: Some(ours),
            queue: VecDeque::new(),
            handing_over: 0,
            host_is_short: false,
            ready_at: None,
            kill_at: None,
            killed: false,
            hung: false,
            pings: Pings::default(),
        })
    }

    /// Sends the very first messages. They do not count as queued for a server that does not read.
    pub(super) fn hand_over(&mut self, messages: Vec<ServerMessage>) {
        let frames = messages
            .into_iter()
            .filter_map(|(head, message, fds)| EncodedMessage::of(head, &message, fds).ok());
        self.queue.extend(frames);
        self.handing_over = self.queue.len();
        self.flush();
    }

    /// Sends a message, or queues it behind others. `false`: the queue is full.
    pub(super) fn send(&mut self, head: Head, message: &ToServer, fds: Vec<Rc<OwnedFd>>) -> bool {
        if self.socket.is_none() {
            return true;
        }
        let frame = EncodedMessage::of(head, message, fds).or_else(|error| match message {
            // Without a descriptor for a long body, the answer is an error.
            ToServer::Answer(_) => {
                let answer = Answer::Exhausted(error.to_string());
                EncodedMessage::of(head, &ToServer::Answer(answer), Vec::new())
            }
            _ => Err(error),
        });
        match frame {
            Ok(frame) => self.queue.push_back(frame),
            Err(_) => return false,
        }
        self.flush();
        self.queue.len() - self.handing_over <= QUEUED_MAX
    }

    /// Sends queued messages, as far as the server reads.
    pub(super) fn flush(&mut self) {
        self.host_is_short = false;
        while let Some(frame) = self.queue.front() {
            let Some(socket) = &self.socket else {
                self.queue.clear();
                self.handing_over = 0;
                return;
            };
            let fds: Vec<_> = frame.fds.iter().map(|fd| fd.as_fd()).collect();
            match fdpass::send(socket, &frame.bytes, &fds) {
                // A message refused for its size (EMSGSIZE) would be refused for ever.
                Ok(()) => self.drop_first(),
                Err(error) if error.raw_os_error() == Some(libc::EMSGSIZE) => self.drop_first(),
                Err(error) if fdpass::is_short(&error) => {
                    self.host_is_short = true;
                    return;
                }
                // The server is slow, or has closed: EOF is read next.
                Err(_) => return,
            }
        }
    }

    fn drop_first(&mut self) {
        self.queue.pop_front();
        self.handing_over = self.handing_over.saturating_sub(1);
    }

    /// Records that it serves: from here on it gets pings.
    pub(super) fn is_ready(&mut self, now: u64) {
        self.ready_at.get_or_insert(now);
        self.must_answer(now);
    }

    /// Requires answers: from here on a server that does not read messages counts as hung.
    pub(super) fn must_answer(&mut self, now: u64) {
        self.pings.at.get_or_insert(now + PING_EVERY_MS);
    }

    /// Records that it reads messages.
    pub(super) fn answered(&mut self) {
        self.pings.unanswered = 0;
    }

    /// Returns when the next ping is due.
    pub(super) fn ping_at(&self) -> Option<u64> {
        self.pings.at.filter(|_| self.socket.is_some())
    }

    /// Sends a ping, where one is due. `false`: it has read no messages for too long.
    pub(super) fn ping(&mut self, now: u64) -> bool {
        if self.socket.is_none() {
            return true;
        }
        match self.pings.tick(now) {
            Tick::Wait => true,
            Tick::Ask => self.send(Head::NONE, &ToServer::Ping {}, Vec::new()),
            Tick::Hung => false,
        }
    }

    /// Whether a message waits for the server to read.
    pub(super) fn is_behind(&self) -> bool {
        !self.queue.is_empty() && !self.host_is_short
    }

    /// Whether a message waits for the host, which does not announce free resources.
    pub(super) fn waits_for_host(&self) -> bool {
        !self.queue.is_empty() && self.host_is_short
    }

    /// Sends SIGKILL to a server that reads no messages.
    pub(super) fn kill_hung(&mut self) {
        self.hung |= self.exit.is_none() && !self.killed;
        self.kill();
    }

    /// Returns how it ended, once it has been reaped; `has_left`: as requested, for another one.
    pub(super) fn former(&self, has_left: bool) -> Option<FormerServer> {
        let cause = match (self.hung, self.killed) {
            (true, _) => EndCause::Hung,
            (false, true) => EndCause::Late,
            (false, false) if has_left => EndCause::Upgrade,
            (false, false) => EndCause::ByItself,
        };
        Some(FormerServer {
            version: self.version.clone(),
            at: clock::wall(),
            served: self.ready_at.is_some(),
            exit: self.exit?,
            cause,
        })
    }

    /// Sends SIGKILL, once, unless it has been reaped.
    pub(super) fn kill(&mut self) {
        if self.exit.is_none() && !std::mem::replace(&mut self.killed, true) {
            // SAFETY: kill takes integers; the pid is that of an unreaped child of this process.
            unsafe { libc::kill(self.pid, libc::SIGKILL) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // promise: R-9
    #[test]
    fn server_is_hung_after_ten_unanswered_pings() {
        let mut pings = Pings::default();
        assert_eq!(
            pings.tick(u64::MAX / 2),
            Tick::Wait,
            "it does not serve yet"
        );
        pings.at = Some(1_000);
        assert_eq!(pings.tick(999), Tick::Wait);
        let mut now = 1_000;
        for _ in 0..3 {
            for _ in 0..10 {
                assert_eq!(pings.tick(now), Tick::Ask);
                assert_eq!(pings.tick(now), Tick::Wait);
                // A suspend of the host counts as one tick, however long.
                now += 1_000_000;
            }
            pings.unanswered = 0;
        }
        for _ in 0..10 {
            assert_eq!(pings.tick(now), Tick::Ask);
            now += 1_000;
        }
        assert_eq!(pings.tick(now), Tick::Hung);
        assert_eq!(pings.tick(now + 1_000_000), Tick::Wait, "once");
    }
}
