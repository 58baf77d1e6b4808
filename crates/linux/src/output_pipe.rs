//! The read end of a command's output, as a tokio task sees it.

use crate::splice::{Spliced, splice_to_file};
use nix::{
    fcntl::{FcntlArg, fcntl},
    poll::{PollFd, PollFlags, PollTimeout},
};
use std::{
    fs::File,
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
};
use tokio::io::{Interest, unix::AsyncFd};

/// What a look at a pipe shows, without moving anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Look {
    /// There is something to move.
    Bytes,
    /// Nothing yet.
    Empty,
    /// Nothing, and nobody can write to it any more.
    End,
}

nix::ioctl_read_bad!(fionread, nix::libc::FIONREAD, nix::libc::c_int);

/// A non-blocking pipe that is registered with the runtime.
#[derive(Debug)]
pub struct OutputPipe {
    inner: AsyncFd<OwnedFd>,
}

impl OutputPipe {
    /// Registers the read end of a pipe. Must be called inside a tokio runtime.
    pub fn new(pipe: OwnedFd) -> io::Result<Self> {
        // SAFETY: an OwnedFd gives the same open descriptor for as long as it lives, `inner` owns it, and nothing
        // here gives it away before the registration is dropped with it.
        let inner = unsafe { AsyncFd::register_with_interest(pipe, Interest::READABLE) };
        inner
            .map(|inner| Self { inner })
            .map_err(|refused| refused.into_parts().1)
    }

    /// Waits until there may be something to move, or an end to see.
    pub async fn readable(&self) -> io::Result<()> {
        self.inner.readable().await?.retain_ready();
        Ok(())
    }

    /// Looks without moving; after `Empty` the next [`Self::readable`] waits for more.
    pub fn look(&self) -> io::Result<Look> {
        let looked = self.inner.try_io(Interest::READABLE, |pipe| {
            let mut poll = [PollFd::new(pipe.as_fd(), PollFlags::POLLIN)];
            nix::poll::poll(&mut poll, PollTimeout::ZERO)?;
            let seen = poll[0].revents().unwrap_or(PollFlags::empty());
            if seen.contains(PollFlags::POLLIN) {
                Ok(Look::Bytes)
            } else if seen.is_empty() {
                Err(io::ErrorKind::WouldBlock.into())
            } else {
                // POLLHUP without POLLIN (poll(2)): every writer has closed and all has been read.
                Ok(Look::End)
            }
        });
        match looked {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(Look::Empty),
            other => other,
        }
    }

    /// Whether half of what fits waits in it, so that whoever writes may soon have to wait too.
    pub fn is_filling(&self) -> io::Result<bool> {
        let pipe = self.inner.get_ref();
        let mut waiting = 0;
        // SAFETY: `pipe` is open for as long as it is borrowed here, and FIONREAD writes one int (ioctl_tty(2)), which
        // `waiting` is.
        unsafe { fionread(pipe.as_raw_fd(), &raw mut waiting) }?;
        Ok(i64::from(waiting) * 2 >= i64::from(fcntl(pipe, FcntlArg::F_GETPIPE_SZ)?))
    }

    /// Moves what is there; after `WouldBlock` the next [`Self::readable`] waits for more.
    pub fn splice_to_file(&self, file: &File, offset: u64, max: usize) -> io::Result<Spliced> {
        let moved = self.inner.try_io(Interest::READABLE, |pipe| {
            match splice_to_file(pipe, file, offset, max)? {
                Spliced::WouldBlock => Err(io::ErrorKind::WouldBlock.into()),
                other => Ok(other),
            }
        });
        match moved {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(Spliced::WouldBlock),
            other => other,
        }
    }

    /// Moves what is there without asking the runtime, which may not have heard of the latest bytes yet.
    pub fn splice_rest_to_file(&self, file: &File, offset: u64, max: usize) -> io::Result<Spliced> {
        splice_to_file(self.inner.get_ref(), file, offset, max)
    }
}

impl AsFd for OutputPipe {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inner.get_ref().as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{io::Write, os::unix::fs::FileExt};

    #[tokio::test]
    async fn bytes_move_to_the_offset_and_the_end_is_seen_once_they_are_through() {
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

        // Nothing to read, so it waits until the last writer is gone.
        let waited = tokio::time::timeout(std::time::Duration::from_millis(20), pipe.readable());
        assert!(waited.await.is_err());
        drop(write);
        pipe.readable().await.expect("it can be waited for");
        let moved = pipe.splice_to_file(&file, 8, 4).expect("it looks");
        assert_eq!(moved, Spliced::Eof);
    }
}
