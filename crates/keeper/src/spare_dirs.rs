//! Pool of untouched directories of ended runs, for the next runs.
//!
//! A silent run that leaves nothing in its directory returns it whole, a run with output its `tmp`, and the next run
//! takes one: two renames instead of creating and removing directories. File systems pay for that more than for
//! anything else of a silent run: ext4 checks each inode that was removed in the last minute before it creates another
//! (`recently_deleted` in `fs/ext4/ialloc.c`), which grows with the runs of that minute.
//!
//! No data of one run reaches another: a directory is only returned when no process of its run is proved to live, and
//! when it is indistinguishable from a fresh one ([`plain_dir`]).

use crate::rundir;
use kennel_lifecycle::RunId;
use kennel_linux::{
    own_file::DIR_FLAGS,
    plain_dir::{self, DirAttributes},
};
use nix::{
    NixPath,
    fcntl::{AT_FDCWD, OFlag, renameat},
    sys::stat::{Mode, mkdirat},
};
use parking_lot::Mutex;
use std::{
    ffi::CString,
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::{Path, PathBuf},
};

/// Most directories of a kind in the pool: no more runs end while others begin.
const SPARES_MAX: usize = 32;
/// Directory of the pool: not among the directories of runs, each of which belongs to a row.
const DIR: &str = "spare";
/// A directory that is created and removed, for the comparison.
const FRESH: &str = "fresh";

/// The pool of one server.
#[derive(Debug)]
pub struct SpareDirs {
    data_dir: PathBuf,
    waiting: Mutex<PoolState>,
}

#[derive(Debug, Default)]
struct PoolState {
    /// Absent: not used yet, or impossible.
    opened: Option<PoolDirectory>,
    failed: bool,
    /// Numbers of run directories in the pool, each with its `tmp`.
    whole: Vec<u64>,
    /// Numbers of `tmp` directories in the pool.
    tmp: Vec<u64>,
    last: u64,
}

#[derive(Debug)]
struct PoolDirectory {
    dir: OwnedFd,
    /// Attributes of an empty directory that was just created.
    empty: DirAttributes,
    /// Attributes of a run's directory that was just created: with `tmp` in it.
    whole: DirAttributes,
}

impl SpareDirs {
    /// Makes an empty pool. Directories of an earlier server are removed at the first use.
    pub fn new(data_dir: &Path) -> Self {
        Self {
            data_dir: data_dir.to_owned(),
            waiting: Mutex::default(),
        }
    }

    /// Creates it like [`rundir::create`], with directories of the pool if there are any.
    pub fn create_run_dir(&self, run: RunId) -> io::Result<PathBuf> {
        let dir = rundir::path(&self.data_dir, run);
        // A directory of the run with contents is not replaced: rename(2) refuses.
        if self
            .waiting
            .lock()
            .give(|waiting| &mut waiting.whole, AT_FDCWD, &dir)
        {
            return Ok(dir);
        }
        rundir::create_with(&self.data_dir, run, |parent, name| {
            self.waiting
                .lock()
                .give(|waiting| &mut waiting.tmp, parent.as_fd(), name)
        })
    }

    /// Takes the directory of a silent run without living processes, or its `tmp` or that of another, for the next run;
    /// an empty directory of a silent run is then removed. `false`: `tmp` is not as created, or the pool is full, or it
    /// cannot be read or renamed; the caller removes both.
    pub fn take_back(&self, run: RunId, is_silent: bool) -> bool {
        self.try_take_back(run, is_silent).unwrap_or(false)
    }

    fn try_take_back(&self, run: RunId, is_silent: bool) -> io::Result<bool> {
        let path = rundir::path(&self.data_dir, run);
        let run_dir = nix::fcntl::open(&path, DIR_FLAGS, Mode::empty())?;
        let tmp = nix::fcntl::openat(&run_dir, rundir::TMP, DIR_FLAGS, Mode::empty())?;
        let mut waiting = self.waiting.lock();
        if waiting.failed {
            return Ok(false);
        }
        if waiting.opened.is_none() {
            // After a failure, as on a full disk, later runs do not retry.
            waiting.failed = true;
            waiting.opened = Some(self.open()?);
            waiting.failed = false;
        }
        let PoolState {
            opened: Some(PoolDirectory { dir, empty, whole }),
            whole: free_whole,
            tmp: free_tmp,
            last,
            ..
        } = &mut *waiting
        else {
            return Ok(false);
        };
        if !plain_dir::is_as_made(&tmp, empty, None)? {
            return Ok(false);
        }
        *last += 1;
        let number = last.to_string();
        let is_whole = is_silent
            && free_whole.len() < SPARES_MAX
            && plain_dir::is_as_made(&run_dir, whole, Some(rundir::TMP))?;
        if is_whole {
            renameat(AT_FDCWD, &path, &*dir, number.as_str())?;
            free_whole.push(*last);
        } else if free_tmp.len() < SPARES_MAX {
            renameat(&run_dir, rundir::TMP, &*dir, number.as_str())?;
            free_tmp.push(*last);
            if is_silent {
                rundir::remove_empty(&self.data_dir, run)?;
            }
        } else {
            return Ok(false);
        }
        Ok(true)
    }

    fn open(&self) -> io::Result<PoolDirectory> {
        let data_dir = nix::fcntl::open(
            &self.data_dir,
            DIR_FLAGS.difference(OFlag::O_NOFOLLOW),
            Mode::empty(),
        )?;
        rundir::remove_below(&data_dir, &CString::new(DIR)?)?;
        mkdirat(&data_dir, DIR, Mode::S_IRWXU)?;
        let dir = nix::fcntl::openat(&data_dir, DIR, DIR_FLAGS, Mode::empty())?;
        mkdirat(&dir, FRESH, Mode::S_IRWXU)?;
        let fresh = nix::fcntl::openat(&dir, FRESH, DIR_FLAGS, Mode::empty())?;
        let empty = DirAttributes::at(&fresh)?;
        mkdirat(&fresh, rundir::TMP, Mode::S_IRWXU)?;
        let whole = DirAttributes::at(&fresh)?;
        rundir::remove_below(&dir, &CString::new(FRESH)?)?;
        Ok(PoolDirectory { dir, empty, whole })
    }
}

impl PoolState {
    /// Moves one of these to `name` in `parent`. `false`: the pool has none, or it cannot be moved there.
    fn give<P: NixPath + ?Sized>(
        &mut self,
        of: impl Fn(&mut Self) -> &mut Vec<u64>,
        parent: BorrowedFd<'_>,
        name: &P,
    ) -> bool {
        let number = of(self).last().map(u64::to_string);
        let (Some(number), Some(opened)) = (number, &self.opened) else {
            return false;
        };
        let given = renameat(&opened.dir, number.as_str(), parent, name).is_ok();
        if given {
            of(self).pop();
        }
        given
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{fs, os::unix::fs::MetadataExt};

    /// Makes a data directory with its pool, and two runs.
    fn scene() -> (tempfile::TempDir, SpareDirs, [RunId; 2]) {
        let data = tempfile::tempdir().expect("a directory");
        let spares = SpareDirs::new(data.path());
        (data, spares, [1, 2].map(RunId::from_u128))
    }

    fn inode(run_dir: &Path) -> u64 {
        fs::metadata(run_dir.join("tmp"))
            .expect("it is there")
            .ino()
    }

    #[test]
    fn untouched_run_directory_is_reused() {
        let (data, spares, [one, other]) = scene();
        let first = spares.create_run_dir(one).expect("it is made");
        let made = inode(&first);
        assert!(spares.take_back(one, false));
        assert!(first.exists() && !first.join("tmp").exists());
        let second = spares.create_run_dir(other).expect("it is made");
        assert_eq!(inode(&second), made);
        assert!(rundir::all(data.path()).len() == 2, "spares are no runs");
    }

    // promise: O-42a
    #[test]
    fn directory_of_silent_run_is_reused() {
        let (data, spares, [one, other]) = scene();
        let first = spares.create_run_dir(one).expect("it is made");
        let made = fs::metadata(&first).expect("it is there").ino();
        assert!(spares.take_back(one, true));
        assert!(rundir::all(data.path()).is_empty(), "spares are no runs");
        let second = spares.create_run_dir(other).expect("it is made");
        assert_eq!(fs::metadata(&second).expect("it is there").ino(), made);
        assert!(second.join("tmp").is_dir());
    }

    #[test]
    fn directory_with_a_file_is_not_reused() {
        let (_data, spares, [one, other]) = scene();
        let first = spares.create_run_dir(one).expect("it is made");
        fs::write(first.join("child"), b"x").expect("a file");
        assert!(spares.take_back(one, true), "its tmp is taken");
        assert!(first.join("child").exists());
        let second = spares.create_run_dir(other).expect("it is made");
        assert!(!second.join("child").exists());
    }

    // promise: O-42a
    #[test]
    fn directory_in_use_is_not_replaced() {
        let (_data, spares, [one, other]) = scene();
        let kept = spares.create_run_dir(one).expect("it is made");
        fs::write(kept.join("exit"), b"x").expect("a file");
        let made = inode(&spares.create_run_dir(other).expect("it is made"));
        assert!(spares.take_back(other, true));
        spares.create_run_dir(one).expect("it is there");
        assert!(kept.join("exit").exists());
        let next = spares.create_run_dir(other).expect("it is made");
        assert_eq!(inode(&next), made, "it waits on for another run");
    }

    // promise: O-42a
    #[test]
    fn touched_directory_never_reaches_another_run() {
        let (_data, spares, [one, other]) = scene();
        let first = spares.create_run_dir(one).expect("it is made");
        fs::write(first.join("tmp/secret"), b"x").expect("a file");
        let used = fs::File::open(first.join("tmp")).expect("it is there");
        assert!(!spares.take_back(one, true));
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
        assert!(spares.take_back(run, true));
        assert!(!left.join("secret").exists());
    }

    #[test]
    fn spare_directories_are_bounded() {
        let data = tempfile::tempdir().expect("a directory");
        let spares = SpareDirs::new(data.path());
        let runs = (0..SPARES_MAX as u128 + 5).map(RunId::from_u128);
        let runs: Vec<RunId> = runs.collect();
        for run in &runs {
            spares.create_run_dir(*run).expect("it is made");
        }
        let taken = runs.iter().filter(|run| spares.take_back(**run, false));
        assert_eq!(taken.count(), SPARES_MAX);
        let waiting = fs::read_dir(data.path().join("spare")).expect("it is there");
        assert_eq!(waiting.count(), SPARES_MAX);
    }
}
