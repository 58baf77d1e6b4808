//! Empty directories for temporary files that wait for the next run.
//!
//! A run that leaves nothing in its `tmp` gives the directory back, and the next run takes it: two renames in the place of a
//! directory that is made and one that is removed. File systems pay for that more than for anything else of a silent run:
//! ext4 looks at each inode that was removed in the last minute before it makes another (`recently_deleted` in
//! `fs/ext4/ialloc.c`), which grows with the runs of that minute.
//!
//! Nothing of one run reaches another: a directory is only given back when the proof is there that no process of its run
//! lives, and when nobody could tell it from a fresh one ([`plain_dir`]).

use crate::rundir;
use kennel_lifecycle::RunId;
use kennel_linux::plain_dir::{self, Look};
use nix::{
    dir::Dir,
    fcntl::{OFlag, renameat},
    sys::stat::{Mode, mkdirat},
    unistd::{UnlinkatFlags, unlinkat},
};
use std::{
    ffi::CString,
    io,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
};

/// Most directories that wait: more runs do not end in the moment in which others begin.
const SPARES_MAX: usize = 32;
/// Where they wait: not among the directories of runs, of which each belongs to a row.
const DIR: &str = "spare";
/// One that is made and removed: what they are compared with.
const FRESH: &str = "fresh";

const DIR_FLAGS: OFlag = OFlag::O_DIRECTORY
    .union(OFlag::O_NOFOLLOW)
    .union(OFlag::O_CLOEXEC);

/// The directories of one server.
#[derive(Debug)]
pub struct SpareDirs {
    data_dir: PathBuf,
    waiting: Mutex<Waiting>,
}

#[derive(Debug, Default)]
struct Waiting {
    /// Absent: not used yet, or there can be none.
    opened: Option<Opened>,
    failed: bool,
    /// Numbers of those that wait.
    free: Vec<u64>,
    next: u64,
}

#[derive(Debug)]
struct Opened {
    dir: OwnedFd,
    /// How a fresh one looks.
    fresh: Look,
}

impl SpareDirs {
    /// None waits yet. What an earlier server has left is removed at the first use.
    #[must_use]
    pub fn new(data_dir: &Path) -> Self {
        Self {
            data_dir: data_dir.to_owned(),
            waiting: Mutex::default(),
        }
    }

    /// As [`rundir::create`], with a directory that waits where there is one.
    pub fn create_run_dir(&self, run: RunId) -> io::Result<PathBuf> {
        rundir::create_with(&self.data_dir, run, |parent, name| {
            let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
            let Some(number) = waiting.free.pop() else {
                return false;
            };
            let from = waiting.opened.as_ref().map(|opened| &opened.dir);
            let number = number.to_string();
            from.is_some_and(|from| renameat(from, number.as_str(), parent, name).is_ok())
        })
    }

    /// Takes the `tmp` of a run of which no process lives, for the next run. `false`: it is not as it was made, or enough
    /// wait, or it cannot be looked at or renamed; it is to be removed.
    pub fn take_back(&self, run: RunId) -> bool {
        self.try_take_back(run).unwrap_or(false)
    }

    fn try_take_back(&self, run: RunId) -> io::Result<bool> {
        let run_dir = rundir::path(&self.data_dir, run);
        let run_dir = nix::fcntl::open(&run_dir, DIR_FLAGS, Mode::empty())?;
        let mut tmp = Dir::openat(&run_dir, rundir::TMP, DIR_FLAGS, Mode::empty())?;
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        if waiting.failed || waiting.free.len() >= SPARES_MAX {
            return Ok(false);
        }
        if waiting.opened.is_none() {
            // On a disk that is full or read-only this is not tried with each run.
            waiting.failed = true;
            waiting.opened = Some(self.open()?);
            waiting.failed = false;
        }
        waiting.next += 1;
        let number = waiting.next;
        let Some(Opened { dir, fresh }) = &waiting.opened else {
            return Ok(false);
        };
        if !plain_dir::is_as_made(&mut tmp, fresh)? {
            return Ok(false);
        }
        renameat(&run_dir, rundir::TMP, dir, number.to_string().as_str())?;
        waiting.free.push(number);
        Ok(true)
    }

    fn open(&self) -> io::Result<Opened> {
        let data_dir = nix::fcntl::open(
            &self.data_dir,
            DIR_FLAGS.difference(OFlag::O_NOFOLLOW),
            Mode::empty(),
        )?;
        rundir::remove_below(&data_dir, &CString::new(DIR)?)?;
        mkdirat(&data_dir, DIR, Mode::S_IRWXU)?;
        let dir = nix::fcntl::openat(&data_dir, DIR, DIR_FLAGS, Mode::empty())?;
        mkdirat(&dir, FRESH, Mode::S_IRWXU)?;
        let fresh = Look::at(&nix::fcntl::openat(&dir, FRESH, DIR_FLAGS, Mode::empty())?)?;
        unlinkat(&dir, FRESH, UnlinkatFlags::RemoveDir)?;
        Ok(Opened { dir, fresh })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{fs, os::unix::fs::MetadataExt};

    fn inode(run_dir: &Path) -> u64 {
        fs::metadata(run_dir.join("tmp"))
            .expect("it is there")
            .ino()
    }

    #[test]
    fn untouched_directory_serves_the_next_run() {
        let data = tempfile::tempdir().expect("a directory");
        let spares = SpareDirs::new(data.path());
        let [one, other] = [RunId::from_u128(1), RunId::from_u128(2)];
        let first = spares.create_run_dir(one).expect("it is made");
        let made = inode(&first);
        assert!(spares.take_back(one));
        assert!(!first.join("tmp").exists());
        let second = spares.create_run_dir(other).expect("it is made");
        assert_eq!(inode(&second), made);
        assert!(rundir::all(data.path()).len() == 2, "spares are no runs");
    }

    #[test]
    fn touched_directory_never_reaches_another_run() {
        let data = tempfile::tempdir().expect("a directory");
        let spares = SpareDirs::new(data.path());
        let [one, other] = [RunId::from_u128(1), RunId::from_u128(2)];
        let first = spares.create_run_dir(one).expect("it is made");
        fs::write(first.join("tmp/secret"), b"x").expect("a file");
        let used = fs::File::open(first.join("tmp")).expect("it is there");
        assert!(!spares.take_back(one));
        let second = spares.create_run_dir(other).expect("it is made");
        assert_ne!(inode(&second), used.metadata().expect("own").ino());
        assert!(!second.join("tmp/secret").exists());
    }

    #[test]
    fn leftovers_of_an_earlier_server_are_removed() {
        let data = tempfile::tempdir().expect("a directory");
        let run = RunId::from_u128(1);
        let left = data.path().join("spare/7");
        fs::create_dir_all(&left).expect("directories");
        fs::write(left.join("secret"), b"x").expect("a file");
        let spares = SpareDirs::new(data.path());
        spares.create_run_dir(run).expect("it is made");
        assert!(spares.take_back(run));
        assert!(!left.join("secret").exists());
    }

    #[test]
    fn no_more_wait_than_the_bound() {
        let data = tempfile::tempdir().expect("a directory");
        let spares = SpareDirs::new(data.path());
        let runs = (0..SPARES_MAX as u128 + 5).map(RunId::from_u128);
        let runs: Vec<RunId> = runs.collect();
        for run in &runs {
            spares.create_run_dir(*run).expect("it is made");
        }
        let taken = runs.iter().filter(|run| spares.take_back(**run)).count();
        assert_eq!(taken, SPARES_MAX);
        let waiting = fs::read_dir(data.path().join("spare")).expect("it is there");
        assert_eq!(waiting.count(), SPARES_MAX);
    }
}
