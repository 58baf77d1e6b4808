//! Disk operations of the log, and its directory.

use super::format::SegmentId;
use crate::errors::failed;
use std::{
    fmt::Debug,
    fs::{self, DirBuilder, File, OpenOptions, TryLockError},
    io,
    os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

/// The writes and syncs of the log, so that a test can count them and let them fail.
pub trait Disk: Debug + Send + Sync {
    /// Writes all bytes at this offset.
    fn write(&self, file: &File, bytes: &[u8], offset: u64) -> io::Result<()> {
        file.write_all_at(bytes, offset)
    }

    /// Makes the bytes of a segment survive a power loss.
    fn sync(&self, file: &File) -> io::Result<()> {
        file.sync_data()
    }

    /// Makes the names in a directory survive a power loss.
    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        // Not fdatasync: some file systems would not write an entry that does not change the length of the directory.
        File::open(dir)?.sync_all()
    }
}

/// The disk of this host.
#[derive(Clone, Copy, Debug)]
pub struct HostDisk;

impl Disk for HostDisk {}

/// Renames the file at this path to the first free name: it cannot be read now, and may be later.
///
/// # Errors
///
/// The file stays where it is.
pub fn move_aside(path: &Path) -> io::Result<PathBuf> {
    let names = (1..).map(|number: u32| path.with_extension(format!("unread-{number}")));
    let is_free = |name: &PathBuf| name.symlink_metadata().is_err();
    let aside = names.into_iter().find(is_free);
    let aside = aside.ok_or(io::ErrorKind::AlreadyExists)?;
    fs::rename(path, &aside)?;
    Ok(aside)
}

/// Creates the directory, for its owner alone, where it is missing.
pub(super) fn make_dir(dir: &Path) -> io::Result<()> {
    match DirBuilder::new().mode(0o700).create(dir) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
            return Err(failed("make", dir, error));
        }
        Ok(()) | Err(_) => {}
    }
    let found = fs::symlink_metadata(dir).map_err(|e| failed("look at", dir, e))?;
    if !found.is_dir() {
        return Err(failed("open", dir, io::ErrorKind::NotADirectory.into()));
    }
    Ok(())
}

/// Locks the directory until the file is dropped: for a short time, while segments are created or other servers are
/// searched for.
pub(super) fn lock_dir(dir: &Path) -> io::Result<File> {
    let lock = File::open(dir).map_err(|e| failed("open", dir, e))?;
    lock.lock().map_err(|e| failed("lock", dir, e))?;
    Ok(lock)
}

/// Returns the segments in the directory, in the order of the log. All other files are ignored.
pub(super) fn segments(dir: &Path) -> io::Result<Vec<SegmentId>> {
    let listing = fs::read_dir(dir).map_err(|e| failed("list", dir, e))?;
    let mut ids = Vec::new();
    for entry in listing {
        let name = entry.map_err(|e| failed("list", dir, e))?.file_name();
        ids.extend(name.to_str().and_then(SegmentId::parse));
    }
    ids.sort_unstable();
    Ok(ids)
}

/// Creates the file of a segment and locks it.
pub(super) fn create(path: &Path) -> io::Result<File> {
    let mut how = OpenOptions::new();
    how.read(true).write(true).create_new(true).mode(0o600);
    let file = how.open(path).map_err(|e| failed("make", path, e))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::Error(error)) => Err(failed("lock", path, error)),
        Err(TryLockError::WouldBlock) => {
            Err(failed("lock", path, io::ErrorKind::WouldBlock.into()))
        }
    }
}

/// Opens a segment for reading, if its name leads to a regular file and not to a link.
pub(super) fn open(path: &Path) -> io::Result<File> {
    let opened = || {
        let named = fs::symlink_metadata(path)?;
        if !named.is_file() {
            let why = "not a regular file";
            return Err(io::Error::new(io::ErrorKind::InvalidData, why));
        }
        let file = File::open(path)?;
        let found = file.metadata()?;
        // Between the two calls the name may have been given to another file.
        if (named.dev(), named.ino()) != (found.dev(), found.ino()) {
            let why = "the file was replaced while it was opened";
            return Err(io::Error::new(io::ErrorKind::InvalidData, why));
        }
        Ok(file)
    };
    opened().map_err(|e| failed("open", path, e))
}

/// Whether another process holds the segment's lock, which its server has until it ends.
pub(super) fn is_locked(path: &Path) -> io::Result<bool> {
    match open(path)?.try_lock_shared() {
        Ok(()) => Ok(false),
        Err(TryLockError::WouldBlock) => Ok(true),
        Err(TryLockError::Error(error)) => Err(failed("lock", path, error)),
    }
}

/// Reads from this offset until `bytes` are full or the file ends; missing bytes are zeros.
pub(super) fn read(file: &File, bytes: &mut [u8], offset: u64) -> io::Result<()> {
    let mut done = 0;
    while done < bytes.len() {
        match file.read_at(&mut bytes[done..], offset + done as u64) {
            Ok(0) => break,
            Ok(n) => done += n,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    bytes[done..].fill(0);
    Ok(())
}
