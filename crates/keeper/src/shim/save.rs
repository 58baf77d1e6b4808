//! Saves the output of a run that is ended while no server reads it: its keeper is dead, or ends without one. It is
//! saved for the next server, and the command gets no SIGPIPE in its grace.

use super::{keep::Rest, work::Work};
use crate::{
    exit_slots,
    rundir::{self, SERVERS},
    saved_output::{self, SAVED_BYTES_MAX},
};
use std::{
    fs::{File, TryLockError},
    io::{self, Write},
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    rc::Rc,
};

/// Bytes read at once.
const READ_BYTES: usize = 64 * 1024;
/// Most reads of one stream before the shim checks its children again.
const READS_MAX: usize = 16;
/// Longest time in which a shim without children waits for the end of a server that had its pipes, and reads nothing more.
const SERVER_END_MAX_MS: u64 = 10_000;
/// Time between two reads of the pipes.
const LOOK_EVERY_MS: u64 = 20;

/// Read ends of both outputs; nothing is read while a server may.
pub(super) struct Save {
    run_dir: PathBuf,
    /// The keeper's file of exit records, if there is one: its name is that of the keeper.
    exits: Option<Rc<File>>,
    ends: Vec<End>,
    /// The run is being ended without a server.
    has_begun: bool,
    /// The server that had these pipes as well is gone; no other one gets them.
    no_reader: bool,
    /// Time at which the run had no process left, while that server lived.
    over_since: Option<u64>,
}

struct End {
    stream: usize,
    pipe: OwnedFd,
    file: Option<File>,
    bytes: u64,
}

impl Save {
    /// `pipes`: those of standard output and standard error, or none.
    pub(super) fn new(run_dir: &Path, exits: Option<Rc<File>>, pipes: Vec<OwnedFd>) -> Self {
        let ends = pipes.into_iter().enumerate();
        Self {
            run_dir: run_dir.to_owned(),
            exits,
            ends: ends
                .map(|(stream, pipe)| End {
                    stream,
                    pipe,
                    file: None,
                    bytes: 0,
                })
                .collect(),
            has_begun: false,
            no_reader: false,
            over_since: None,
        }
    }

    /// Saves output from here on.
    fn begin(&mut self) {
        self.has_begun = true;
    }

    /// Returns when to read again.
    pub(super) fn wake_at(&self, now: u64) -> Option<u64> {
        (self.has_begun && !self.ends.is_empty()).then_some(now + LOOK_EVERY_MS)
    }

    /// Saves what is in the pipes, unless a server may still read it: `false`. A stream that has ended is closed. A stream
    /// that cannot be saved is left in its pipe: the command waits.
    pub(super) fn step(&mut self) -> bool {
        if !self.has_begun || self.ends.is_empty() {
            return true;
        }
        if !self.is_unread() {
            return false;
        }
        let mut buffer = vec![0; READ_BYTES];
        let run_dir = &self.run_dir;
        self.ends.retain_mut(|end| end.save(run_dir, &mut buffer));
        true
    }

    /// Whether a run without processes still waits for the server that had its pipes: that one ends, as its keeper has.
    fn waits_for_server(&mut self, now: u64) -> bool {
        let since = *self.over_since.get_or_insert(now);
        now.saturating_sub(since) < SERVER_END_MAX_MS
    }

    /// Whether no server reads: each server of this run's keeper had these pipes, and holds the keeper's serving lock
    /// for as long as it lives. The next keeper's server may be there by now, which has `server.lock` like all servers:
    /// that one decides only where the keeper's name is unknown.
    fn is_unread(&mut self) -> bool {
        if !self.no_reader
            && let Ok(data_dir) = rundir::data_dir(&self.run_dir)
        {
            let keeper = self.exits.as_deref().and_then(exit_slots::keeper_of);
            let lock = match keeper {
                Some(name) => data_dir.join(SERVERS).join(name),
                None => data_dir.join("server.lock"),
            };
            self.no_reader = match File::open(lock) {
                Ok(lock) => !matches!(lock.try_lock_shared(), Err(TryLockError::WouldBlock)),
                Err(error) => error.kind() == io::ErrorKind::NotFound,
            };
        }
        self.no_reader
    }
}

impl Work {
    /// Handles the end of the service, `in_order` because it was requested; the keeper ends this run without a server.
    pub(super) fn service_ends(&mut self, in_order: bool) {
        self.record.shutdown = in_order;
        self.save.no_reader = true;
        self.save.begin();
    }

    /// Saves output where the run is being ended and no server reads. Output of a run that waits for the next keeper
    /// stays in its pipes for that keeper's server; output of detached processes is discarded. `false`: the run is over,
    /// and its last output may still be in its pipes.
    pub(super) fn save_output(&mut self, now: u64, ends_alone: bool) -> bool {
        if self.waiting.is_some() || self.rest == Rest::Kept {
            return true;
        }
        if ends_alone {
            self.save.begin();
        }
        let is_saved = self.save.step();
        is_saved || !ends_alone || !self.childless || !self.save.waits_for_server(now)
    }
}

impl End {
    /// `false`: the stream has ended.
    fn save(&mut self, run_dir: &Path, buffer: &mut [u8]) -> bool {
        if self.file.is_none() {
            self.file = saved_output::create(run_dir, self.stream).ok();
        }
        let Some(file) = &mut self.file else {
            return true;
        };
        for _ in 0..READS_MAX {
            let room = SAVED_BYTES_MAX.saturating_sub(self.bytes);
            let room = usize::try_from(room)
                .unwrap_or(usize::MAX)
                .min(buffer.len());
            if room == 0 {
                return true;
            }
            match nix::unistd::read(&self.pipe, &mut buffer[..room]) {
                Ok(0) => return false,
                Ok(read) => {
                    self.bytes += read as u64;
                    if file.write_all(&buffer[..read]).is_err() {
                        // The disk has no space left: further output waits in the pipe.
                        self.bytes = SAVED_BYTES_MAX;
                    }
                }
                Err(nix::errno::Errno::EINTR) => {}
                Err(_) => return true,
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::{fcntl::OFlag, unistd::pipe2};
    use std::fs;

    // promise: R-2b
    #[test]
    fn output_is_saved_once_no_server_lives() {
        let data = tempfile::tempdir().expect("a directory");
        let run_dir = data.path().join("runs/r");
        fs::create_dir_all(&run_dir).expect("a directory");
        let server = File::create(data.path().join("server.lock")).expect("a file");
        server.lock().expect("it is free");
        let (read, write) = pipe2(OFlag::O_NONBLOCK).expect("a pipe");
        let mut save = Save::new(&run_dir, None, vec![read]);
        save.begin();
        nix::unistd::write(&write, b"late").expect("there is room");
        save.step();
        let saved = run_dir.join("saved-stdout");
        assert!(!saved.exists(), "a server may read it");
        assert!(!save.step() && save.waits_for_server(5) && save.waits_for_server(10_004));
        assert!(!save.waits_for_server(10_005), "it does not wait for ever");
        drop(server);
        assert!(save.step());
        assert_eq!(fs::read(&saved).expect("it is there"), b"late");

        let part = vec![7; READ_BYTES];
        while nix::unistd::write(&write, &part).is_ok() {
            save.step();
        }
        let len = fs::metadata(&saved).expect("it is there").len();
        assert_eq!(len, SAVED_BYTES_MAX, "more waits in the pipe");
        drop(write);
        assert!(save.wake_at(0).is_some());
    }
}
