//! Discards the outputs of an ended run with detached processes, so that a process that continues to write neither
//! blocks for ever nor dies of SIGPIPE.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Bytes read at once.
const READ_BYTES: usize = 64 * 1024;
/// Most reads of one stream before the shim checks its children again.
const READS_MAX: usize = 16;

/// Read ends of both outputs; nothing is read before the start time.
pub(super) struct Discard {
    ends: Vec<OwnedFd>,
    from: Option<u64>,
}

impl Discard {
    pub(super) fn new(ends: Vec<OwnedFd>) -> Self {
        Self { ends, from: None }
    }

    /// Sets the start time, or an earlier one if that was set before.
    pub(super) fn begin(&mut self, at: u64) {
        self.from = Some(self.from.map_or(at, |from| from.min(at)));
    }

    /// Returns the start time, if it has not passed.
    pub(super) fn begins_at(&self, now: u64) -> Option<u64> {
        self.from.filter(|at| *at > now && !self.ends.is_empty())
    }

    /// Returns the descriptors to wait for.
    pub(super) fn waits_for(&self, now: u64) -> impl Iterator<Item = BorrowedFd<'_>> {
        let begun = self.from.is_some_and(|at| now >= at);
        self.ends.iter().filter(move |_| begun).map(AsFd::as_fd)
    }

    /// Reads and discards available bytes; closes a stream that has ended.
    pub(super) fn read_away(&mut self, now: u64) {
        if self.from.is_none_or(|at| now < at) {
            return;
        }
        let mut buffer = vec![0; READ_BYTES];
        self.ends.retain(|end| {
            for _ in 0..READS_MAX {
                match nix::unistd::read(end, &mut buffer) {
                    Ok(0) => return false,
                    Ok(_) | Err(nix::errno::Errno::EINTR) => {}
                    Err(_) => return true,
                }
            }
            true
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::{fcntl::OFlag, unistd::pipe2};

    #[test]
    fn output_is_discarded_from_due_time_to_eof() {
        let (read, write) = pipe2(OFlag::O_NONBLOCK).expect("a pipe");
        let mut discard = Discard::new(vec![read]);
        discard.begin(20);
        discard.begin(10);
        while nix::unistd::write(&write, &[0; 4096]).is_ok() {}
        discard.read_away(9);
        assert!(nix::unistd::write(&write, b"x").is_err(), "it is full");
        assert_eq!(discard.begins_at(9), Some(10));
        assert_eq!(discard.waits_for(9).count(), 0);

        assert_eq!(discard.waits_for(10).count(), 1);
        discard.read_away(10);
        assert!(nix::unistd::write(&write, b"x").is_ok(), "there is room");
        drop(write);
        discard.read_away(11);
        assert_eq!(discard.waits_for(11).count(), 0);
    }
}
