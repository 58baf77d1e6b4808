//! Shims that wait for work: forked ahead, or returned from a run that has left nothing in them. A fork copies page
//! tables and pages; a reused shim costs neither. New ones are forked by the zygote, or by the keeper itself where that
//! is lost.

use crate::shim::{
    self,
    zygote::{NotForked, Zygote},
};
use kennel_linux::{attributes::Protection, clock, fdpass, reap};
use nix::unistd::{ForkResult, fork};
use std::{
    collections::VecDeque, fs::File, io, os::fd::OwnedFd, path::PathBuf, rc::Rc, thread,
    time::Duration,
};

/// Warm shims on a quiet host.
const WARM_MIN: usize = 2;
/// Warm shims on a busy one.
const WARM_MAX: usize = 8;

/// Most idle shims after a busy time; further ones that are returned exit.
const IDLE_MAX: usize = 16;

/// Longest time without a zygote after it was lost; the first is none, and each is twice the one before.
const ZYGOTE_REST_MS_MAX: u64 = 60_000;

/// Longest wait for the end of a zygote that was killed.
const ZYGOTE_END_MS_MAX: u64 = 1_000;
/// Time between two looks whether it has ended.
const LOOK_EVERY: Duration = Duration::from_millis(1);

/// A shim without work.
pub(super) struct Warm {
    pub(super) pid: i32,
    pub(super) socket: OwnedFd,
}

/// The warm shims.
pub(super) struct Pool {
    warm: VecDeque<Warm>,
    /// Absent: it is lost.
    zygote: Option<Zygote>,
    /// When the next zygote may be started.
    zygote_from: u64,
    /// Time without a zygote after the next loss.
    zygote_rest_ms: u64,
    wanted: usize,
    data_dir: PathBuf,
    protection: Protection,
    /// The directory of the keeper's control groups, where it exists.
    base: Option<PathBuf>,
    /// The file of exit records.
    exits: Option<Rc<File>>,
}

impl Pool {
    /// The pool of a keeper that begins, with its zygote.
    pub(super) fn begin(
        data_dir: PathBuf,
        protection: Protection,
        base: Option<PathBuf>,
        exits: Option<Rc<File>>,
    ) -> Self {
        let mut pool = Self::new(data_dir, protection, base, exits);
        pool.renew_zygote();
        pool
    }

    fn new(
        data_dir: PathBuf,
        protection: Protection,
        base: Option<PathBuf>,
        exits: Option<Rc<File>>,
    ) -> Self {
        Self {
            data_dir,
            protection,
            base,
            exits,
            warm: VecDeque::new(),
            zygote: None,
            zygote_from: 0,
            zygote_rest_ms: 0,
            wanted: WARM_MIN,
        }
    }

    /// Whether one more should be forked when the keeper is idle.
    pub(super) fn is_short(&self) -> bool {
        self.warm.len() < self.wanted
    }

    /// Forks one more.
    pub(super) fn refill(&mut self) -> io::Result<()> {
        if self.zygote.is_none() && clock::boot_ms() >= self.zygote_from {
            self.renew_zygote();
        }
        if let Some(zygote) = &mut self.zygote {
            zygote.await_begin();
        }
        let warm = self.fork()?;
        self.warm.push_back(warm);
        Ok(())
    }

    /// Lowers the target: the host has no resources for a fork.
    pub(super) fn stop_refilling(&mut self) {
        self.wanted = self.warm.len();
    }

    /// Returns a warm shim, or a cold one.
    pub(super) fn take(&mut self) -> io::Result<Warm> {
        if let Some(warm) = self.warm.pop_front() {
            return Ok(warm);
        }
        self.wanted = (self.wanted.max(1) * 2).min(WARM_MAX);
        self.fork()
    }

    fn fork(&mut self) -> io::Result<Warm> {
        if let Some(zygote) = &mut self.zygote {
            let (ours, theirs) = fdpass::pair()?;
            match zygote.fork(&theirs) {
                Ok(pid) => return Ok(Warm { pid, socket: ours }),
                Err(NotForked::Short(error)) => return Err(error),
                Err(NotForked::Early) => {}
                Err(NotForked::Lost) => self.lose_zygote(),
            }
        }
        // A new pair, since a shim forked with the sockets above exits: both are closed here.
        let (ours, theirs) = fdpass::pair()?;
        let pid = self.protection.without(|| self.fork_shim(&theirs))??;
        Ok(Warm { pid, socket: ours })
    }

    /// Starts the zygote. Without one shims are forked here, which costs more memory.
    fn renew_zygote(&mut self) {
        let (exits, base) = (self.exits.as_deref(), self.base.as_deref());
        let zygote = self
            .protection
            .without(|| Zygote::start(&self.data_dir, exits, base));
        self.zygote = zygote.and_then(|started| started).ok();
    }

    /// Ends a zygote that does not answer.
    fn lose_zygote(&mut self) {
        if let Some(zygote) = self.zygote.take() {
            // SAFETY: kill takes integers; the pid is that of an unreaped child of this process.
            unsafe { libc::kill(zygote.pid, libc::SIGKILL) };
            self.rest_from_zygotes();
        }
    }

    fn rest_from_zygotes(&mut self) {
        self.zygote_from = clock::boot_ms() + self.zygote_rest_ms;
        self.zygote_rest_ms = (self.zygote_rest_ms * 2).clamp(1_000, ZYGOTE_REST_MS_MAX);
    }

    /// Removes a reaped child, if it was the zygote or a warm shim. Where a shim could not live the next could not
    /// either, so it is not replaced until there is work.
    pub(super) fn forget(&mut self, pid: i32) {
        if self.zygote.take_if(|zygote| zygote.pid == pid).is_some() {
            self.rest_from_zygotes();
        }
        let before = self.warm.len();
        self.warm.retain(|warm| warm.pid != pid);
        if self.warm.len() < before {
            self.stop_refilling();
        }
    }

    /// Takes back a shim whose run has ended; where there are enough, it exits with its socket.
    pub(super) fn put(&mut self, warm: Warm) {
        if self.warm.len() < IDLE_MAX {
            // The next run gets the most recent shim, whose memory is warm.
            self.warm.push_front(warm);
        }
    }

    /// Returns the pids of all of them, and of the zygote.
    pub(super) fn pids(&self) -> impl Iterator<Item = i32> + '_ {
        let zygote = self.zygote.iter().map(|zygote| zygote.pid);
        zygote.chain(self.warm.iter().map(|warm| warm.pid))
    }

    /// Ends all of them, for the shutdown.
    pub(super) fn end(&mut self) {
        self.wanted = 0;
        for pid in self.pids() {
            // SAFETY: kill takes integers; the pid is that of an unreaped child of this process.
            unsafe { libc::kill(pid, libc::SIGKILL) };
        }
        for warm in self.warm.drain(..) {
            let _ = reap::await_end(warm.pid);
        }
        // The zygote has nothing of a run and is awaited only for a while: it may be reading its program from a slow
        // disk. Until it exits it is in the keeper's control group, which cannot be removed.
        if let Some(zygote) = self.zygote.take() {
            let by = clock::boot_ms() + ZYGOTE_END_MS_MAX;
            while !reap::has_ended(zygote.pid) && clock::boot_ms() < by {
                thread::sleep(LOOK_EVERY);
            }
            let _ = reap::reap(zygote.pid);
        }
    }

    fn fork_shim(&self, socket: &OwnedFd) -> io::Result<i32> {
        // SAFETY: the keeper has one thread, so no other thread holds a lock; the child never returns.
        match unsafe { fork() }? {
            ForkResult::Child => shim::be_born(socket, self.exits.as_deref(), self.base.clone()),
            ForkResult::Parent { child } => Ok(child.as_raw()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dying_shims_are_not_forked_endlessly() {
        let (ours, theirs) = fdpass::pair().expect("a pair");
        let mut child = std::process::Command::new("true")
            .spawn()
            .expect("true starts");
        drop(theirs);
        let mut pool = Pool::new(PathBuf::new(), Protection::default(), None, None);
        pool.warm.push_back(Warm {
            pid: child.id().cast_signed(),
            socket: ours,
        });
        assert!(pool.is_short());
        pool.forget(child.id().cast_signed());
        assert!(!pool.is_short());
        child.wait().expect("it can be reaped");
    }
}
