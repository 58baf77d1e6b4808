//! Serving lock: held by a keeper and by each of its servers, until the last of them has exited.
//!
//! A server outlives a killed keeper, to record what it knows. The journals of runs that outlive both are written by
//! one server at a time: the next keeper adopts them only after that.

use super::KeeperError;
use crate::rundir::SERVERS;
use kennel_lifecycle::KeeperEpoch;
use kennel_linux::own_file;
use std::{
    fs::{self, File, TryLockError},
    io,
    os::fd::{AsFd, BorrowedFd},
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

/// Longest wait for an earlier keeper's server: more than its own bound.
const OTHERS_WAIT: Duration = Duration::from_secs(30);
/// Pause between two checks.
const OTHERS_LOOK: Duration = Duration::from_millis(5);

/// The lock of this keeper and its servers.
pub(super) struct Serving {
    dir: PathBuf,
    file: File,
    name: String,
}

impl Serving {
    /// Takes the lock.
    pub(super) fn take(data_dir: &Path, epoch: KeeperEpoch) -> Result<Self, KeeperError> {
        let dir = data_dir.join(SERVERS);
        let name = epoch.to_string();
        let taken = own_file::create_locked(&dir, &name);
        let file = taken.map_err(|source| KeeperError::DataDir {
            path: dir.join(&name),
            source,
        })?;
        Ok(Self { dir, file, name })
    }

    /// Returns the lock, which each server inherits.
    pub(super) fn lock(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Waits until no server of an earlier keeper is alive.
    pub(super) fn await_others(&self) -> Result<(), KeeperError> {
        let give_up = Instant::now() + OTHERS_WAIT;
        while self.has_others() {
            if Instant::now() >= give_up {
                return Err(KeeperError::Host {
                    step: "take runs over while the server of an earlier keeper is there",
                    source: io::ErrorKind::TimedOut.into(),
                });
            }
            std::thread::sleep(OTHERS_LOOK);
        }
        Ok(())
    }

    /// Whether one is alive; removes the locks of those that have exited.
    pub(super) fn has_others(&self) -> bool {
        let files = fs::read_dir(&self.dir).into_iter().flatten().flatten();
        let others = files.filter(|file| file.file_name() != self.name.as_str());
        others.fold(false, |found, file| found | !is_free(&file.path()))
    }
}

fn is_free(path: &Path) -> bool {
    let opened = own_file::options().read(true).open(path);
    let Ok(file) = opened.and_then(own_file::regular) else {
        return true;
    };
    match file.try_lock() {
        Ok(()) => {
            let _ = fs::remove_file(path);
            true
        }
        Err(TryLockError::WouldBlock) => false,
        Err(TryLockError::Error(_)) => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // promise: R-52
    #[test]
    fn other_server_is_live_while_lock_is_held() {
        let data = tempfile::tempdir().expect("a directory");
        let take = |epoch| Serving::take(data.path(), KeeperEpoch::from_u128(epoch));
        let first = take(1).expect("it is free");
        let server = first.lock().try_clone_to_owned().expect("a copy");
        let next = take(2).expect("it is free");
        assert!(next.has_others());
        drop(first);
        assert!(next.has_others(), "its server is there");
        drop(server);
        assert!(!next.has_others());
        let left = fs::read_dir(data.path().join("servers")).expect("a listing");
        assert_eq!(left.count(), 1);
        next.await_others().expect("no other server is alive");
    }
}
