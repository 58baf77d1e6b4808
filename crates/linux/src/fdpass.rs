//! Messages with descriptors, over `SOCK_SEQPACKET`: each arrives whole, in order, or not at all.

use nix::{
    cmsg_space,
    errno::Errno,
    sys::socket::{
        AddressFamily, ControlMessage, ControlMessageOwned, MsgFlags, SockFlag, SockType, recvmsg,
        sendmsg, socketpair,
    },
};
use std::{
    io::{self, IoSlice, IoSliceMut},
    os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd},
};

/// Longest message. Longer things travel as a sealed file.
pub(crate) const MESSAGE_BYTES_MAX: usize = 64 * 1024;
/// Most descriptors in one message (`SCM_MAX_FD` is 253).
pub(crate) const MESSAGE_FDS_MAX: usize = 64;

/// What was received.
#[derive(Debug)]
pub(crate) enum Received {
    /// A message, with the descriptors that came with it (close-on-exec).
    Message(Vec<u8>, Vec<OwnedFd>),
    /// Nothing is there, and the other end lives.
    WouldBlock,
    /// The other end is closed.
    Eof,
}

/// Two connected ends, close-on-exec, the first one non-blocking.
pub(crate) fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let (one, other) = socketpair(
        AddressFamily::Unix,
        SockType::SeqPacket,
        None,
        SockFlag::SOCK_CLOEXEC,
    )?;
    set_nonblocking(&one)?;
    Ok((one, other))
}

/// Sets `O_NONBLOCK` on the description.
pub(crate) fn set_nonblocking(fd: &impl AsFd) -> io::Result<()> {
    use nix::fcntl::{FcntlArg, OFlag, fcntl};
    let flags = OFlag::from_bits_retain(fcntl(fd, FcntlArg::F_GETFL)?);
    fcntl(fd, FcntlArg::F_SETFL(flags | OFlag::O_NONBLOCK))?;
    Ok(())
}

/// Sends one message. `WouldBlock` where the other end is slow, or where too many descriptors are on their way
/// (`ETOOMANYREFS`): then nothing was sent.
pub(crate) fn send(socket: &impl AsFd, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    if bytes.len() > MESSAGE_BYTES_MAX {
        return Err(Errno::EMSGSIZE.into());
    }
    let raw: Vec<RawFd> = fds.iter().map(AsRawFd::as_raw_fd).collect();
    let rights = [ControlMessage::ScmRights(&raw)];
    let control = if raw.is_empty() { &[][..] } else { &rights[..] };
    let parts = [IoSlice::new(bytes)];
    loop {
        let socket = socket.as_fd().as_raw_fd();
        return match sendmsg::<()>(socket, &parts, control, MsgFlags::MSG_NOSIGNAL, None) {
            Ok(_) => Ok(()),
            Err(Errno::EINTR) => continue,
            Err(Errno::ETOOMANYREFS | Errno::ENOBUFS) => Err(io::ErrorKind::WouldBlock.into()),
            Err(errno) => Err(errno.into()),
        };
    }
}

/// Receives one message.
pub(crate) fn receive(socket: &impl AsFd) -> io::Result<Received> {
    let mut bytes = vec![0; MESSAGE_BYTES_MAX];
    let mut space = cmsg_space!([RawFd; MESSAGE_FDS_MAX]);
    let mut parts = [IoSliceMut::new(&mut bytes)];
    let message = loop {
        let flags = MsgFlags::MSG_CMSG_CLOEXEC;
        let socket = socket.as_fd().as_raw_fd();
        match recvmsg::<()>(socket, &mut parts, Some(&mut space), flags) {
            Ok(message) => break message,
            // A peer that closed with something unread: the kernel says so once, ahead of what the peer had sent before
            // (unix(7)); that and the end of file come after it.
            Err(Errno::EINTR | Errno::ECONNRESET) => {}
            Err(Errno::EAGAIN) => return Ok(Received::WouldBlock),
            Err(errno) => return Err(errno.into()),
        }
    };
    let mut fds = Vec::new();
    for control in message.cmsgs()? {
        if let ControlMessageOwned::ScmRights(raw) = control {
            for fd in raw {
                // SAFETY: the kernel has just installed this descriptor for us; nobody else owns it.
                fds.push(unsafe { OwnedFd::from_raw_fd(fd) });
            }
        }
    }
    let (len, cut) = (message.bytes, message.flags);
    // Descriptors that found no room here are missing from `fds`; the reader of the message counts them.
    if cut.contains(MsgFlags::MSG_TRUNC) {
        return Err(Errno::EMSGSIZE.into());
    }
    // No message of ours is empty.
    if len == 0 {
        return Ok(Received::Eof);
    }
    bytes.truncate(len);
    Ok(Received::Message(bytes, fds))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_arrives_with_its_descriptors_and_then_the_end() {
        let (one, other) = pair().expect("a pair");
        let (read, write) = nix::unistd::pipe().expect("a pipe");
        assert!(matches!(receive(&one), Ok(Received::WouldBlock)));
        send(&other, b"hello", &[read.as_fd(), write.as_fd()]).expect("it is sent");
        drop(other);
        let Ok(Received::Message(bytes, fds)) = receive(&one) else {
            panic!("no message")
        };
        assert_eq!((bytes.as_slice(), fds.len()), (&b"hello"[..], 2));
        assert!(matches!(receive(&one), Ok(Received::Eof)));
    }

    #[test]
    fn last_words_arrive_from_a_peer_that_did_not_listen() {
        let (one, other) = pair().expect("a pair");
        send(&one, b"unread", &[]).expect("it is sent");
        send(&other, b"last words", &[]).expect("it is sent");
        drop(other);
        assert!(matches!(receive(&one), Ok(Received::Message(words, _)) if words == b"last words"));
        assert!(matches!(receive(&one), Ok(Received::Eof)));
    }
}
