//! Moves bytes from a pipe into a file, or from a terminal into a pipe, without a copy in this process.

use nix::{
    errno::Errno,
    fcntl::{SpliceFFlags, splice},
};
use std::{fs::File, io, os::fd::OwnedFd};

/// Result of one move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spliced {
    /// So many bytes are in the file now, and no longer in the pipe.
    Bytes(usize),
    /// The pipe is empty, and a process can still write to it.
    WouldBlock,
    /// The pipe is empty, and no process can write to it any more.
    Eof,
}

/// Moves at most `max` bytes from `pipe` to `offset` of `file`, without waiting. The file must not be in append
/// mode (`EINVAL`, splice(2)). A process that dies in the middle has moved each byte or not: none is lost.
pub fn splice_to_file(pipe: &OwnedFd, file: &File, offset: u64, max: usize) -> io::Result<Spliced> {
    loop {
        let mut at = i64::try_from(offset).map_err(|_| io::Error::from(Errno::EFBIG))?;
        let flags = SpliceFFlags::SPLICE_F_NONBLOCK | SpliceFFlags::SPLICE_F_MOVE;
        return match splice(pipe, None, file, Some(&mut at), max, flags) {
            Ok(0) => Ok(Spliced::Eof),
            Ok(moved) => Ok(Spliced::Bytes(moved)),
            Err(Errno::EAGAIN) => Ok(Spliced::WouldBlock),
            Err(Errno::EINTR) => continue,
            Err(errno) => Err(errno.into()),
        };
    }
}

/// Moves at most `max` bytes from the master of a terminal into a pipe that is empty, without waiting. The end is EIO:
/// no process has the terminal open, and all written bytes have been moved.
pub fn splice_terminal(master: &OwnedFd, pipe: &OwnedFd, max: usize) -> io::Result<Spliced> {
    let flags = SpliceFFlags::SPLICE_F_NONBLOCK | SpliceFFlags::SPLICE_F_MOVE;
    let mut hung_up = false;
    loop {
        return match splice(master, None, pipe, None, max, flags) {
            Ok(0) => Ok(Spliced::Eof),
            Ok(moved) => Ok(Spliced::Bytes(moved)),
            Err(Errno::EAGAIN) => Ok(Spliced::WouldBlock),
            Err(Errno::EINTR) => continue,
            // The kernel checks for bytes before it checks for a hang-up: bytes that arrived in between are found now.
            Err(Errno::EIO) if !std::mem::replace(&mut hung_up, true) => continue,
            Err(Errno::EIO) => Ok(Spliced::Eof),
            Err(errno) => Err(errno.into()),
        };
    }
}
