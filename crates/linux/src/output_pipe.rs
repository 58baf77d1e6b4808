//! The read end of a command's output as a tokio task reads it: a pipe's, or a terminal's.

use crate::{
    crash_point,
    splice::{Spliced, splice_terminal, splice_to_file},
    terminal::TerminalEnds,
};
use nix::{
    fcntl::{FcntlArg, fcntl},
    poll::{PollFd, PollFlags, PollTimeout},
};
use std::{
    fs::File,
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
    sync::Arc,
};
use tokio::io::{Interest, unix::AsyncFd};

/// State of a pipe, read without moving anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PipeState {
    /// Bytes are there to move.
    Bytes,
    /// No bytes yet.
    Empty,
    /// No bytes, and no process can write to it any more.
    End,
}

nix::ioctl_read_bad!(
    /// Number of bytes in the pipe.
    fionread,
    nix::libc::FIONREAD,
    nix::libc::c_int
);

/// Capacity of a pipe that is not watched. A user without privileges may have few of these (pipe(7)).
const WIDE_BYTES: i32 = 1024 * 1024;
/// Its capacity when it is watched again.
const NARROW_BYTES: i32 = 64 * 1024;

/// A non-blocking pipe, or the master of a terminal, that is registered with the runtime.
#[derive(Debug)]
pub struct OutputPipe {
    pipe: Arc<OwnedFd>,
    /// Registration; absent: a write wakes no reader.
    watch: Option<AsyncFd<Arc<OwnedFd>>>,
    relay: Option<Relay>,
}

/// Both ends of the pipe through which a terminal's output goes into a file: splice(2) requires a pipe on one side. The
/// keeper has copies, so that no byte in it is lost when this process dies.
#[derive(Debug)]
struct Relay {
    read: OwnedFd,
    write: OwnedFd,
}

impl OutputPipe {
    /// Registers the read end of a pipe. Must be called inside a tokio runtime.
    pub fn new(pipe: OwnedFd) -> io::Result<Self> {
        let pipe = Arc::new(pipe);
        Ok(Self {
            watch: Some(registered(&pipe)?),
            pipe,
            relay: None,
        })
    }

    /// Registers the master of a terminal. Must be called inside a tokio runtime.
    pub fn of_terminal(ends: TerminalEnds) -> io::Result<Self> {
        let relay = Relay {
            read: ends.relay_read,
            write: ends.relay_write,
        };
        Ok(Self {
            relay: Some(relay),
            ..Self::new(ends.master)?
        })
    }

    /// Waits until there may be bytes to move, or an end to see.
    pub async fn readable(&self) -> io::Result<()> {
        // Bytes that an earlier server left in the relay cause no event of the terminal.
        if self.relay.as_ref().is_some_and(Relay::holds_some) {
            return Ok(());
        }
        match &self.watch {
            Some(watch) => watch.readable().await?.retain_ready(),
            None => std::future::pending().await,
        }
        Ok(())
    }

    /// Stops watching: a write wakes no reader, which saves the writer that cost, and more of its output fits. Returns
    /// whether it is so: not for a terminal, nor where the user may have no more such pipes. Until [`Self::watch`],
    /// [`Self::readable`] waits for ever.
    pub fn unwatch(&mut self) -> bool {
        let can_be =
            self.relay.is_none() && fcntl(&self.pipe, FcntlArg::F_SETPIPE_SZ(WIDE_BYTES)).is_ok();
        if can_be {
            self.watch = None;
        }
        can_be
    }

    /// Watches again: present bytes and later writes wake the reader.
    pub fn watch(&mut self) -> io::Result<()> {
        if self.watch.is_none() {
            self.watch = Some(registered(&self.pipe)?);
            // If its contents do not fit, the pipe stays wide.
            let _ = fcntl(&self.pipe, FcntlArg::F_SETPIPE_SZ(NARROW_BYTES));
        }
        Ok(())
    }

    fn try_io<T>(&self, io: impl FnOnce(&OwnedFd) -> io::Result<T>) -> io::Result<T> {
        match &self.watch {
            Some(watch) => watch.try_io(Interest::READABLE, |pipe| io(pipe)),
            None => io(&self.pipe),
        }
    }

    /// Reads the state without moving bytes; after `Empty` the next [`Self::readable`] waits for more.
    pub fn look(&self) -> io::Result<PipeState> {
        let looked = self.try_io(|pipe| match self.look_into(pipe)? {
            PipeState::Empty => Err(io::ErrorKind::WouldBlock.into()),
            found => Ok(found),
        });
        match looked {
            // The runtime watches only the terminal, not the relay.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                let relay = self.relay.as_ref();
                let holds_some = relay.is_some_and(Relay::holds_some);
                Ok(if holds_some {
                    PipeState::Bytes
                } else {
                    PipeState::Empty
                })
            }
            other => other,
        }
    }

    /// Reads the state without the runtime, which may not have the event of the latest bytes yet.
    pub fn look_rest(&self) -> io::Result<PipeState> {
        self.look_into(&self.pipe)
    }

    fn look_into(&self, pipe: &OwnedFd) -> io::Result<PipeState> {
        if self.relay.as_ref().is_some_and(Relay::holds_some) {
            return Ok(PipeState::Bytes);
        }
        let mut seen = look_at(pipe)?;
        if self.relay.is_some() && !seen.contains(PollFlags::POLLIN) && !seen.is_empty() {
            // A terminal's bytes are read before its hang-up: bytes that arrived in between are seen now.
            seen = look_at(pipe)?;
        }
        Ok(if seen.contains(PollFlags::POLLIN) {
            PipeState::Bytes
        } else if seen.is_empty() {
            PipeState::Empty
        } else {
            // POLLHUP without POLLIN (poll(2)): every writer has closed and all has been read.
            PipeState::End
        })
    }

    /// Whether the pipe is half full, so that the writer may soon have to wait too. For a terminal, which has a small
    /// buffer and does not report its size: whether any bytes wait.
    pub fn is_filling(&self) -> io::Result<bool> {
        let pipe: &OwnedFd = &self.pipe;
        match &self.relay {
            Some(relay) => Ok(relay.holds_some() || look_at(pipe)?.contains(PollFlags::POLLIN)),
            None => Ok(waiting(pipe)? * 2 >= i64::from(fcntl(pipe, FcntlArg::F_GETPIPE_SZ)?)),
        }
    }

    /// Moves the bytes that are there; after `WouldBlock` the next [`Self::readable`] waits for more.
    pub fn splice_to_file(&self, file: &File, offset: u64, max: usize) -> io::Result<Spliced> {
        // The runtime watches only the terminal: while that is silent, `try_io` would move nothing.
        if let Some(relay) = self.relay.as_ref().filter(|relay| relay.holds_some()) {
            return splice_to_file(&relay.read, file, offset, max);
        }
        let moved = self.try_io(|pipe| match self.splice(pipe, file, offset, max)? {
            Spliced::WouldBlock => Err(io::ErrorKind::WouldBlock.into()),
            other => Ok(other),
        });
        match moved {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(Spliced::WouldBlock),
            other => other,
        }
    }

    /// Moves the bytes that are there without the runtime, which may not have the event of the latest bytes yet.
    pub fn splice_rest_to_file(&self, file: &File, offset: u64, max: usize) -> io::Result<Spliced> {
        self.splice(&self.pipe, file, offset, max)
    }

    fn splice(&self, pipe: &OwnedFd, file: &File, offset: u64, max: usize) -> io::Result<Spliced> {
        let Some(relay) = &self.relay else {
            return splice_to_file(pipe, file, offset, max);
        };
        match splice_to_file(&relay.read, file, offset, max)? {
            Spliced::WouldBlock => {}
            moved => return Ok(moved),
        }
        match splice_terminal(pipe, &relay.write, max)? {
            Spliced::Bytes(_) => {
                crash_point!("output.relayed");
                splice_to_file(&relay.read, file, offset, max)
            }
            nothing => Ok(nothing),
        }
    }
}

impl Relay {
    fn holds_some(&self) -> bool {
        waiting(&self.read).is_ok_and(|bytes| bytes > 0)
    }
}

fn registered(pipe: &Arc<OwnedFd>) -> io::Result<AsyncFd<Arc<OwnedFd>>> {
    // SAFETY: an OwnedFd gives the same open descriptor for as long as it lives, and the registration's Arc keeps it
    // alive.
    let watch = unsafe { AsyncFd::register_with_interest(Arc::clone(pipe), Interest::READABLE) };
    watch.map_err(|refused| refused.into_parts().1)
}

/// Returns the number of bytes in a pipe.
fn waiting(pipe: &OwnedFd) -> io::Result<i64> {
    let mut bytes = 0;
    // SAFETY: `pipe` is open for as long as it is borrowed here, and FIONREAD writes one int (ioctl_tty(2)), which
    // `bytes` is.
    unsafe { fionread(pipe.as_raw_fd(), &raw mut bytes) }?;
    Ok(bytes.into())
}

fn look_at(pipe: &OwnedFd) -> io::Result<PollFlags> {
    let mut poll = [PollFd::new(pipe.as_fd(), PollFlags::POLLIN)];
    nix::poll::poll(&mut poll, PollTimeout::ZERO)?;
    Ok(poll[0].revents().unwrap_or(PollFlags::empty()))
}

impl AsFd for OutputPipe {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.pipe.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::terminal::Terminal;
    use std::{io::Write, os::unix::fs::FileExt};

    #[tokio::test]
    async fn output_is_spliced_at_offset_until_eof() {
        let (read, write) = nix::unistd::pipe().expect("a pipe");
        crate::fdpass::set_nonblocking(&read).expect("flags");
        let file = tempfile::tempfile().expect("a file");
        let pipe = OutputPipe::new(read).expect("it is registered");
        let mut write = File::from(write);
        write.write_all(b"hello").expect("room in the pipe");

        pipe.readable().await.expect("it can be waited for");
        assert!(!pipe.is_filling().expect("it can be asked"));
        let moved = pipe.splice_to_file(&file, 3, 4).expect("it moves");
        assert_eq!(moved, Spliced::Bytes(4));
        let moved = pipe.splice_to_file(&file, 7, 4).expect("it moves");
        assert_eq!(moved, Spliced::Bytes(1));
        let moved = pipe.splice_to_file(&file, 8, 4).expect("it looks");
        assert_eq!(moved, Spliced::WouldBlock);
        let mut bytes = [0; 8];
        file.read_exact_at(&mut bytes, 0).expect("it is there");
        assert_eq!(&bytes, b"\0\0\0hello");

        write.write_all(&vec![7; 40_000]).expect("room in the pipe");
        assert!(pipe.is_filling().expect("it can be asked"));
        pipe.readable().await.expect("it can be waited for");
        let sink = File::options().write(true).open("/dev/null");
        let sink = sink.expect("it is there");
        while pipe.splice_to_file(&sink, 0, 1 << 20).expect("it moves") != Spliced::WouldBlock {}
        assert!(!pipe.is_filling().expect("it can be asked"));

        // The pipe is empty, so `readable` waits until the last writer is gone.
        let waited = tokio::time::timeout(std::time::Duration::from_millis(20), pipe.readable());
        assert!(waited.await.is_err());
        drop(write);
        pipe.readable().await.expect("it can be waited for");
        let moved = pipe.splice_to_file(&file, 8, 4).expect("it looks");
        assert_eq!(moved, Spliced::Eof);
    }

    // promise: O-33
    #[tokio::test]
    async fn unwatched_pipe_has_larger_buffer_and_is_read() {
        let (read, write) = nix::unistd::pipe().expect("a pipe");
        crate::fdpass::set_nonblocking(&read).expect("flags");
        crate::fdpass::set_nonblocking(&write).expect("flags");
        let file = tempfile::tempfile().expect("a file");
        let mut pipe = OutputPipe::new(read).expect("it is registered");
        let mut write = File::from(write);
        let moved = pipe.splice_to_file(&file, 0, 4).expect("it looks");
        assert_eq!(moved, Spliced::WouldBlock);

        assert!(pipe.unwatch());
        let much = vec![7; 1024 * 1024];
        write.write_all(&much).expect("room in the pipe");
        assert_eq!(pipe.look().expect("it looks"), PipeState::Bytes);
        let moved = pipe.splice_to_file(&file, 0, 2 << 20).expect("it moves");
        assert_eq!(moved, Spliced::Bytes(much.len()));
        let moved = pipe.splice_to_file(&file, 0, 4).expect("it looks");
        assert_eq!(moved, Spliced::WouldBlock);
        assert_eq!(pipe.look().expect("it looks"), PipeState::Empty);

        // Bytes that arrived before `watch` are also seen.
        write.write_all(b"more").expect("room in the pipe");
        pipe.watch().expect("it is registered");
        let readable = tokio::time::timeout(std::time::Duration::from_secs(30), pipe.readable());
        let readable = readable.await.expect("it is woken");
        readable.expect("it can be waited for");
        let moved = pipe.splice_to_file(&file, 0, 9).expect("it moves");
        assert_eq!(moved, Spliced::Bytes(4));
        let full = write.write_all(&much).expect_err("it holds less again");
        assert_eq!(full.kind(), io::ErrorKind::WouldBlock);

        assert!(pipe.unwatch());
        drop(write);
        while pipe.splice_to_file(&file, 0, 1 << 20).expect("it moves") != Spliced::Eof {}
        assert_eq!(pipe.look().expect("it looks"), PipeState::End);
    }

    #[tokio::test]
    async fn terminal_relay_is_drained_before_eof() {
        let size = kennel_lifecycle::TerminalSize::default();
        let (mut terminal, slave) = Terminal::open(size).expect("room").expect("a terminal");
        let file = tempfile::tempfile().expect("a file");
        let fds = terminal.for_server();
        let mut fds = fds.iter().map(|fd| fd.try_clone().expect("a copy"));
        let mut next = || fds.next().expect("three");
        let ends = TerminalEnds {
            master: next(),
            relay_read: next(),
            relay_write: next(),
        };
        // Bytes left by a server that died before moving them.
        nix::unistd::write(&ends.relay_write, b"one").expect("room in the relay");
        let pipe = OutputPipe::of_terminal(ends).expect("it is registered");

        pipe.readable().await.expect("no event is waited for");
        assert_eq!(pipe.look().expect("it looks"), PipeState::Bytes);
        assert!(pipe.is_filling().expect("it can be asked"));
        nix::unistd::write(&slave, b"two").expect("room in the terminal");
        let mut at = 0;
        while at < 6 {
            pipe.readable().await.expect("it can be waited for");
            match pipe.splice_to_file(&file, at, 2).expect("it moves") {
                Spliced::Bytes(moved) => at += moved as u64,
                nothing => assert_eq!(nothing, Spliced::WouldBlock),
            }
        }
        let mut bytes = [0; 6];
        file.read_exact_at(&mut bytes, 0).expect("it is there");
        assert_eq!(&bytes, b"onetwo");
        assert_eq!(pipe.look().expect("it looks"), PipeState::Empty);
        assert!(!pipe.is_filling().expect("it can be asked"));

        // The command has closed the terminal, and may open it again until the leader exits.
        nix::unistd::write(&slave, b"!").expect("room in the terminal");
        drop(slave);
        while pipe.splice_to_file(&file, 6, 9).expect("it moves") != Spliced::Bytes(1) {
            pipe.readable().await.expect("it can be waited for");
        }
        let again = pipe.splice_to_file(&file, 7, 9).expect("it looks");
        assert_eq!(again, Spliced::WouldBlock);
        terminal.leader_is_gone();
        while pipe.look().expect("it looks") != PipeState::End {
            pipe.readable().await.expect("it can be waited for");
        }
        let end = pipe.splice_to_file(&file, 7, 9).expect("it looks");
        assert_eq!(end, Spliced::Eof);
    }
}
