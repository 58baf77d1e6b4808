//! A shim's last will in the run's private directory: whole or not there, since it is renamed into place.
//!
//! It must outlive processes, not the host: after another boot nobody asks for it, so it is not synced. Commands of the
//! same uid can reach the directory: what they put there must neither stop a shim or a keeper nor lead it elsewhere.

use crate::wire::{self, mirror::WireRecord};
use kennel_lifecycle::recovery::ExitRecord;
use nix::{
    errno::Errno,
    fcntl::{OFlag, openat, renameat},
    sys::stat::Mode,
    unistd::{UnlinkatFlags, unlinkat},
};
use std::{
    ffi::CStr,
    fs::File,
    io::{self, Read, Write},
    os::fd::OwnedFd,
    path::Path,
};

const NAME: &CStr = c"exit";
const TEMPORARY: &CStr = c"exit.new";

/// Longest record that is read; a record is the bytes of a few numbers and at most
/// [`PIDS_MAX`](crate::wire::PIDS_MAX) process ids.
const RECORD_BYTES_MAX: u64 = 16 * 1024;

/// Writes the record, or replaces it.
pub(crate) fn write(run_dir: &Path, record: &ExitRecord) -> io::Result<()> {
    let bytes = wire::encode(&WireRecord::from(record.clone()))?;
    let dir = open(run_dir)?;
    let flags = OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_CLOEXEC;
    let fresh = || openat(&dir, TEMPORARY, flags, Mode::S_IRUSR | Mode::S_IWUSR);
    let file = match fresh() {
        // Of a shim that was killed, or somebody's.
        Err(Errno::EEXIST) => {
            unlinkat(&dir, TEMPORARY, UnlinkatFlags::NoRemoveDir)?;
            fresh()?
        }
        other => other?,
    };
    let written = File::from(file).write_all(&bytes);
    let placed = written.and_then(|()| Ok(renameat(&dir, TEMPORARY, &dir, NAME)?));
    placed.inspect_err(|_| {
        let _ = unlinkat(&dir, TEMPORARY, UnlinkatFlags::NoRemoveDir);
    })
}

/// The record; `None` where there is none, or none that can be read.
pub(crate) fn read(run_dir: &Path) -> Option<ExitRecord> {
    let dir = open(run_dir).ok()?;
    // Without O_NONBLOCK a fifo would hold the reader for ever.
    let flags = OFlag::O_RDONLY | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC;
    let file = File::from(openat(&dir, NAME, flags, Mode::empty()).ok()?);
    if !file.metadata().ok()?.is_file() {
        return None;
    }
    let mut bytes = Vec::new();
    file.take(RECORD_BYTES_MAX).read_to_end(&mut bytes).ok()?;
    wire::decode::<WireRecord>(&bytes).ok().map(Into::into)
}

fn open(run_dir: &Path) -> io::Result<OwnedFd> {
    let flags = OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    Ok(nix::fcntl::open(run_dir, flags, Mode::empty())?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::PIDS_MAX;
    use kennel_lifecycle::{Exit, Proof, Signal, TreeVerdict};
    use std::fs;

    fn record() -> ExitRecord {
        ExitRecord {
            exit: Some(Exit::Signal {
                signal: Signal::KILL,
                core_dumped: false,
            }),
            tree: None,
            never_ran: false,
        }
    }

    #[test]
    fn what_was_written_last_is_read() {
        let dir = tempfile::tempdir().expect("a directory");
        assert_eq!(read(dir.path()), None);
        let mut record = record();
        write(dir.path(), &record).expect("it is written");
        record.tree = Some(TreeVerdict::Empty(Proof::Echild));
        write(dir.path(), &record).expect("it is replaced");
        assert_eq!(read(dir.path()), Some(record));
    }

    #[test]
    fn the_longest_record_is_read_whole() {
        let dir = tempfile::tempdir().expect("a directory");
        let mut record = record();
        record.tree = Some(TreeVerdict::Survivors(vec![i32::MAX; PIDS_MAX]));
        write(dir.path(), &record).expect("it is written");
        assert_eq!(read(dir.path()), Some(record));
    }

    #[test]
    fn what_a_command_has_put_there_is_neither_followed_nor_waited_for() {
        let dir = tempfile::tempdir().expect("a directory");
        let victim = dir.path().join("victim");
        fs::write(&victim, b"kept").expect("a file");
        std::os::unix::fs::symlink(&victim, dir.path().join("exit.new")).expect("a link");
        write(dir.path(), &record()).expect("it is written");
        assert_eq!(fs::read(&victim).expect("it is there"), b"kept");
        assert_eq!(read(dir.path()), Some(record()));

        let fifo = dir.path().join("exit.new");
        nix::unistd::mkfifo(&fifo, Mode::S_IRWXU).expect("a fifo");
        write(dir.path(), &record()).expect("it is written");
        assert!(!fifo.exists());

        fs::remove_file(dir.path().join("exit")).expect("it goes");
        nix::unistd::mkfifo(&dir.path().join("exit"), Mode::S_IRWXU).expect("a fifo");
        assert_eq!(read(dir.path()), None);
        write(dir.path(), &record()).expect("it is replaced");
        assert_eq!(read(dir.path()), Some(record()));
    }
}
