//! Standard streams of a client. Another process that shares one may have set it to `O_NONBLOCK`, a flag of all its
//! users (fcntl(2)): a stream that is not ready is waited for.

use nix::{
    errno::Errno,
    poll::{PollFd, PollFlags, PollTimeout, poll},
    unistd,
};
use std::{
    io::{self, Read},
    os::fd::AsFd,
};

/// Standard input, without a buffer.
#[derive(Clone, Copy, Debug, Default)]
pub struct StandardInput;

impl Read for StandardInput {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        read(io::stdin(), buffer)
    }
}

fn read(from: impl AsFd, buffer: &mut [u8]) -> io::Result<usize> {
    loop {
        match unistd::read(&from, buffer) {
            Ok(bytes) => return Ok(bytes),
            Err(errno) => wait(&from, PollFlags::POLLIN, errno)?,
        }
    }
}

/// Writes all bytes.
pub fn write_all(to: impl AsFd, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match unistd::write(&to, bytes) {
            Ok(written) => bytes = &bytes[written..],
            Err(errno) => wait(&to, PollFlags::POLLOUT, errno)?,
        }
    }
    Ok(())
}

/// Returns when the call that failed with this errno may be repeated.
fn wait(stream: impl AsFd, until: PollFlags, errno: Errno) -> io::Result<()> {
    match errno {
        Errno::EINTR => Ok(()),
        Errno::EAGAIN => match poll(&mut [PollFd::new(stream.as_fd(), until)], PollTimeout::NONE) {
            Ok(_) | Err(Errno::EINTR) => Ok(()),
            Err(errno) => Err(errno.into()),
        },
        errno => Err(errno.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::fcntl::OFlag;
    use std::{
        fs::File,
        io::{ErrorKind, Write},
        thread,
    };

    // promise: C-39
    #[test]
    fn nonblocking_streams_are_polled_until_ready() {
        const BYTES: usize = 1 << 20;
        let (from, to) = unistd::pipe2(OFlag::O_NONBLOCK).expect("a pipe");
        let mut to = File::from(to);
        while to.write(&[0; 4096]).is_ok() {}
        let full = to.write(&[0]).expect_err("it is full");
        assert_eq!(full.kind(), ErrorKind::WouldBlock);
        let reader = thread::spawn(move || {
            let mut ones = 0;
            let mut buffer = vec![0; 64 * 1024];
            loop {
                match read(&from, &mut buffer).expect("it can be read") {
                    0 => return ones,
                    bytes => {
                        let read = buffer[..bytes].iter();
                        ones += read.map(|byte| usize::from(*byte)).sum::<usize>();
                    }
                }
            }
        });
        write_all(&to, &vec![1; BYTES]).expect("it is read");
        drop(to);
        assert_eq!(reader.join().expect("no panic"), BYTES);
    }

    // promise: C-39
    #[test]
    fn stream_for_the_other_direction_is_an_error() {
        let (from, to) = unistd::pipe2(OFlag::O_NONBLOCK).expect("a pipe");
        let unreadable = read(&to, &mut [0]).expect_err("an end to write to");
        assert_eq!(unreadable.raw_os_error(), Some(libc::EBADF));
        let unwritable = write_all(&from, b"x").expect_err("an end to read from");
        assert_eq!(unwritable.raw_os_error(), Some(libc::EBADF));
    }
}
