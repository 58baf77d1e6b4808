//! The read end of a command's output, as a tokio task sees it.

use crate::splice::{Spliced, splice_to_file};
use std::{
    fs::File,
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};
use tokio::io::{Interest, unix::AsyncFd};

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
