//! Connections of a listening unix socket, taken in batches.

use nix::{
    errno::Errno,
    poll::{PollFd, PollFlags, PollTimeout, poll},
};
use std::{
    io,
    os::{
        fd::AsFd,
        unix::net::{UnixListener, UnixStream},
    },
};

/// Most connections of a batch.
const BATCH_MAX: usize = 256;

/// Connections that were accepted at once.
#[derive(Debug, Default)]
pub struct AcceptBatch {
    /// Connections whose peers are there.
    pub open: Vec<UnixStream>,
    /// Connections that their peers have closed already.
    pub closed: Vec<UnixStream>,
}

/// Waits for connections of a listener that does not block, and takes those that are there; `None`: `stop` is closed,
/// and further ones are left in the queue.
pub fn take_batch(listener: &UnixListener, stop: &impl AsFd) -> io::Result<Option<AcceptBatch>> {
    loop {
        let watched = |fd| PollFd::new(fd, PollFlags::POLLIN);
        let mut fds = [watched(listener.as_fd()), watched(stop.as_fd())];
        wait(&mut fds, PollTimeout::NONE)?;
        if fds[1].any() == Some(true) {
            return Ok(None);
        }
        if let Some(batch) = take_queued(listener)? {
            return Ok(Some(batch));
        }
    }
}

/// Takes connections that are in the queue of a listener that does not block; `None`: there is none.
pub fn take_queued(listener: &UnixListener) -> io::Result<Option<AcceptBatch>> {
    let mut accepted = Vec::new();
    while accepted.len() < BATCH_MAX {
        match listener.accept() {
            Ok((socket, _)) => accepted.push(socket),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
            Err(error) if accepted.is_empty() => return Err(error),
            // The next batch reports a persistent error.
            Err(_) => break,
        }
    }
    if accepted.is_empty() {
        return Ok(None);
    }
    split(accepted).map(Some)
}

/// Separates the closed ones, by one system call for all.
fn split(accepted: Vec<UnixStream>) -> io::Result<AcceptBatch> {
    let mut fds: Vec<PollFd<'_>> = accepted
        .iter()
        .map(|socket| PollFd::new(socket.as_fd(), PollFlags::empty()))
        .collect();
    wait(&mut fds, PollTimeout::ZERO)?;
    let closed: Vec<bool> = fds.iter().map(|fd| fd.any() == Some(true)).collect();
    let mut batch = AcceptBatch::default();
    for (socket, is_closed) in accepted.into_iter().zip(closed) {
        if is_closed {
            batch.closed.push(socket);
        } else {
            socket.set_nonblocking(true)?;
            batch.open.push(socket);
        }
    }
    Ok(batch)
}

fn wait(fds: &mut [PollFd<'_>], timeout: PollTimeout) -> io::Result<()> {
    loop {
        match poll(fds, timeout) {
            Err(Errno::EINTR) => {}
            done => return Ok(done.map(drop)?),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    // promise: A-19b
    #[test]
    fn accept_batch_separates_closed_connections() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("socket");
        let listener = UnixListener::bind(&path).expect("bound");
        listener.set_nonblocking(true).expect("own socket");
        let (stop, end) = UnixStream::pair().expect("a pair");
        let connect = || UnixStream::connect(&path).expect("connected");
        let _open = connect();
        drop(connect());
        // Bytes sent before closing do not keep a connection.
        connect().write_all(b"PRI").expect("sent");
        let taken = take_batch(&listener, &stop).expect("accepted");
        let batch = taken.expect("not stopped");
        assert_eq!((batch.open.len(), batch.closed.len()), (1, 2));
        drop(end);
        let _queued = connect();
        assert!(take_batch(&listener, &stop).expect("stopped").is_none());
    }
}
