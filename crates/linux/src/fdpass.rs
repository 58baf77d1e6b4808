//! Messages with descriptors, over `SOCK_SEQPACKET`: each arrives whole, in order, or not at all.

use crate::{peer::Sender, pidfd::PidFd};
use nix::{
    errno::Errno,
    sys::socket::{
        AddressFamily, ControlMessage, MsgFlags, SockFlag, SockType, sendmsg, socketpair,
    },
};
use std::{
    cell::RefCell,
    io::{self, IoSlice},
    mem::MaybeUninit,
    os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd},
};

/// Longest message. Longer things travel as a sealed file.
pub const MESSAGE_BYTES_MAX: usize = 64 * 1024;
/// Most descriptors in one message (`SCM_MAX_FD` is 253).
pub const MESSAGE_FDS_MAX: usize = 64;

/// Result of a receive.
#[derive(Debug)]
pub enum Received {
    /// A message, with the descriptors that came with it (close-on-exec).
    Message(Vec<u8>, Vec<OwnedFd>),
    /// No message is there, and the peer lives.
    WouldBlock,
    /// The peer has closed its end.
    Eof,
}

/// Makes two connected sockets, close-on-exec, the first one non-blocking.
pub fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let (one, other) = socketpair(
        AddressFamily::Unix,
        SockType::SeqPacket,
        None,
        SockFlag::SOCK_CLOEXEC,
    )?;
    set_nonblocking(&one)?;
    Ok((one, other))
}

/// Sets `O_NONBLOCK` on a description that Kennel made and that has no other flag.
pub fn set_nonblocking(fd: &impl AsFd) -> io::Result<()> {
    use nix::fcntl::{FcntlArg, OFlag, fcntl};
    fcntl(fd, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
    Ok(())
}

/// Puts a descriptor at this number, for the program that this process executes next; what was there is closed. Between
/// fork(2) and execve(2): one system call, no allocation, no lock.
pub fn pass_down(fd: RawFd, number: RawFd) -> io::Result<()> {
    let placed = if fd == number {
        // dup3 onto the same number would fail with EINVAL. SAFETY: fcntl takes integers.
        unsafe { libc::fcntl(fd, libc::F_SETFD, 0) }
    } else {
        // SAFETY: dup3 takes integers; the child uses nothing that was at the number.
        unsafe { libc::dup3(fd, number, 0) }
    };
    Errno::result(placed)?;
    Ok(())
}

/// Sends one message. `WouldBlock` where the peer is slow; [`is_short`] where the host is short of resources: then
/// nothing was sent.
pub fn send(socket: &impl AsFd, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
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
            Err(errno) => Err(errno.into()),
        };
    }
}

/// Whether this host had no resources for a message: too many descriptors of this user are in flight, or memory is
/// short. No event signals when there are again.
pub fn is_short(error: &io::Error) -> bool {
    let errno = error.raw_os_error();
    matches!(
        errno,
        Some(libc::ETOOMANYREFS | libc::ENOBUFS | libc::ENOMEM)
    )
}

/// Repeats a call on a socket whose peer closed with something unread: the kernel reports ECONNRESET once, ahead of the
/// peer's earlier messages (unix(7)); those and the end of file come after it.
fn retried<T>(mut call: impl FnMut() -> nix::Result<T>) -> nix::Result<T> {
    loop {
        match call() {
            Err(Errno::EINTR | Errno::ECONNRESET) => {}
            other => return other,
        }
    }
}

thread_local! {
    /// Buffer for the longest message. Made once: a buffer for each message would cost an allocation or, on the stack,
    /// a touch of each of its pages. Pages that a message does not fill are never touched.
    static ROOM: RefCell<Vec<u8>> = RefCell::new(Vec::with_capacity(MESSAGE_BYTES_MAX));
}

/// Receives one message.
pub fn receive(socket: &impl AsFd) -> io::Result<Received> {
    ROOM.with_borrow_mut(|room| receive_in(socket.as_fd(), room.spare_capacity_mut()))
}

fn receive_in(socket: BorrowedFd<'_>, room: &mut [MaybeUninit<u8>]) -> io::Result<Received> {
    let (bytes, flags, ControlData { fds, .. }) = match receive_into(socket, room, 0) {
        // Kennel sends no empty message: this is EOF.
        Ok(([], _, _)) => return Ok(Received::Eof),
        Ok(received) => received,
        Err(Errno::EAGAIN) => return Ok(Received::WouldBlock),
        Err(errno) => return Err(errno.into()),
    };
    // Descriptors beyond this process's limit are missing from `fds`; the reader of the message counts them.
    if flags & libc::MSG_TRUNC != 0 {
        return Err(Errno::EMSGSIZE.into());
    }
    Ok(Received::Message(bytes.to_vec(), fds))
}

/// A datagram, with its sender.
#[derive(Debug)]
pub struct Datagram {
    /// Its first [`MESSAGE_BYTES_MAX`] bytes.
    pub bytes: Vec<u8>,
    /// Its sender; absent: the kernel does not report it.
    pub sender: Option<Sender>,
}

/// Reads the first datagram at a socket with `SO_PASSCRED`, and leaves it there; `None`: there is none.
pub(crate) fn peek_datagram(socket: &impl AsFd) -> io::Result<Option<Datagram>> {
    datagram(socket, libc::MSG_PEEK)
}

/// Takes the first datagram. Descriptors that came with it are closed: their sender notices that.
pub(crate) fn receive_datagram(socket: &impl AsFd) -> io::Result<Option<Datagram>> {
    datagram(socket, 0)
}

fn datagram(socket: &impl AsFd, flags: libc::c_int) -> io::Result<Option<Datagram>> {
    ROOM.with_borrow_mut(|room| {
        let room = room.spare_capacity_mut();
        let (bytes, _, passed) = match receive_into(socket.as_fd(), room, flags) {
            Ok(received) => received,
            Err(Errno::EAGAIN) => return Ok(None),
            Err(errno) => return Err(errno.into()),
        };
        let process = passed.process.map(PidFd::from_fd);
        let credentials = passed.credentials;
        Ok(Some(Datagram {
            bytes: bytes.to_vec(),
            sender: credentials.map(|from| Sender::new(from.pid, from.uid, process)),
        }))
    })
}

/// Calls recvmsg(2). The wrapper of nix does not return the descriptors that did arrive where others exceeded the
/// limit, and so leaks them.
fn receive_into<'a>(
    socket: BorrowedFd<'_>,
    room: &'a mut [MaybeUninit<u8>],
    flags: libc::c_int,
) -> nix::Result<(&'a [u8], i32, ControlData)> {
    // An array of words, to which control messages are aligned; no message of Kennel's carries more.
    let mut space = [0u64; CONTROL_WORDS];
    let mut part = libc::iovec {
        iov_base: room.as_mut_ptr().cast(),
        iov_len: room.len(),
    };
    // SAFETY: a msghdr is integers and pointers, for which zeroes are valid.
    let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
    header.msg_iov = &raw mut part;
    header.msg_iovlen = 1;
    header.msg_control = space.as_mut_ptr().cast();
    header.msg_controllen = size_of_val(&space);
    let len = retried(|| {
        let fd = socket.as_raw_fd();
        // SAFETY: `header` points to `part` and `space`, which outlive the call, with their true lengths.
        let len = unsafe { libc::recvmsg(fd, &raw mut header, flags | libc::MSG_CMSG_CLOEXEC) };
        Errno::result(len)
    })?;
    let len = len.cast_unsigned().min(room.len());
    // SAFETY: the kernel has written `len` bytes to the beginning of `room`.
    let bytes = unsafe { room[..len].assume_init_ref() };
    Ok((bytes, header.msg_flags, passed(&header)))
}

/// Words for control messages with up to [`MESSAGE_FDS_MAX`] descriptors and their headers.
const CONTROL_WORDS: usize = 8 + MESSAGE_FDS_MAX / 2;

/// `SCM_PIDFD` of the kernel's `linux/socket.h`.
const SCM_PIDFD: libc::c_int = 4;

/// Control data of a message.
#[derive(Default)]
struct ControlData {
    fds: Vec<OwnedFd>,
    /// The sender, as a descriptor.
    process: Option<OwnedFd>,
    /// Process id and user of the sender.
    credentials: Option<libc::ucred>,
}

/// Reads the control data of a message that was just received.
fn passed(header: &libc::msghdr) -> ControlData {
    let mut passed = ControlData::default();
    // SAFETY: the kernel has filled `header`, and its control buffer is alive.
    let mut at = unsafe { libc::CMSG_FIRSTHDR(header) };
    while !at.is_null() {
        // SAFETY: a non-null `at` is a control message header inside the control buffer.
        let control = unsafe { at.read_unaligned() };
        // SAFETY: CMSG_LEN is arithmetic.
        let head = unsafe { libc::CMSG_LEN(0) } as usize;
        // SAFETY: the data follows the header that `at` points to.
        let data = unsafe { libc::CMSG_DATA(at) };
        let kind = (control.cmsg_level, control.cmsg_type);
        if kind == (libc::SOL_SOCKET, libc::SCM_CREDENTIALS)
            && control.cmsg_len >= head + size_of::<libc::ucred>()
        {
            // SAFETY: by the kernel's `cmsg_len` a ucred follows the header; a ucred is integers.
            passed.credentials = Some(unsafe { data.cast::<libc::ucred>().read_unaligned() });
        }
        if matches!(kind, (libc::SOL_SOCKET, libc::SCM_RIGHTS | SCM_PIDFD)) {
            let data = data.cast::<[u8; size_of::<RawFd>()]>();
            let count = control.cmsg_len.saturating_sub(head) / size_of::<RawFd>();
            for i in 0..count {
                // SAFETY: by the kernel's `cmsg_len`, `count` numbers follow the header.
                let fd = unsafe { data.add(i) };
                // SAFETY: `fd` points to one of these numbers.
                let fd = RawFd::from_ne_bytes(unsafe { *fd });
                // Instead of the pidfd of an unidentifiable process the kernel may put an errno.
                if fd < 0 {
                    continue;
                }
                // SAFETY: the kernel has just installed this descriptor for us; no other code owns it.
                let fd = unsafe { OwnedFd::from_raw_fd(fd) };
                match kind.1 {
                    SCM_PIDFD => passed.process = Some(fd),
                    _ => passed.fds.push(fd),
                }
            }
        }
        // SAFETY: `at` is a header of this buffer; the result is the next one or null.
        at = unsafe { libc::CMSG_NXTHDR(header, at) };
    }
    passed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn message_arrives_with_descriptors_before_the_end() {
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
    fn last_message_arrives_before_connection_reset() {
        let (one, other) = pair().expect("a pair");
        send(&one, b"unread", &[]).expect("it is sent");
        send(&other, b"last words", &[]).expect("it is sent");
        drop(other);
        assert!(matches!(receive(&one), Ok(Received::Message(words, _)) if words == b"last words"));
        assert!(matches!(receive(&one), Ok(Received::Eof)));
    }
}
