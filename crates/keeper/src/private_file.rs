//! Small files in a run's private directory, in which Kennel's processes record what a crash must not lose.
//!
//! Commands of the same uid can reach the directory: what they put there must neither stop a shim or a keeper nor
//! redirect it elsewhere.

use kennel_linux::own_file::{self, open_dir};
use nix::{
    errno::Errno,
    fcntl::{OFlag, openat, renameat},
    sys::stat::Mode,
    unistd::{UnlinkatFlags, unlinkat},
};
use std::{ffi::CStr, fs::File, io, os::unix::fs::FileExt, path::Path};

/// Writes a file of these bytes atomically, as `<name>.new` first. It is not synced.
pub(crate) fn replace(run_dir: &Path, name: &CStr, bytes: &[u8]) -> io::Result<File> {
    let dir = open_dir(run_dir)?;
    let temporary = &*[name.to_bytes(), b".new"].concat();
    let flags = OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_CLOEXEC;
    let fresh = || openat(&dir, temporary, flags, Mode::S_IRUSR | Mode::S_IWUSR);
    let file = match fresh() {
        // A killed shim may have left the file, or another process made it.
        Err(Errno::EEXIST) => {
            unlinkat(&dir, temporary, UnlinkatFlags::NoRemoveDir)?;
            fresh()?
        }
        other => other?,
    };
    let file = File::from(file);
    let written = file.write_all_at(bytes, 0);
    let placed = written.and_then(|()| Ok(renameat(&dir, temporary, &dir, name)?));
    placed.inspect_err(|_| {
        let _ = unlinkat(&dir, temporary, UnlinkatFlags::NoRemoveDir);
    })?;
    Ok(file)
}

/// Opens a file to append to; makes it where it is missing.
pub(crate) fn append(run_dir: &Path, name: &CStr) -> io::Result<File> {
    let flags = OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_APPEND | OFlag::O_NOFOLLOW;
    // Without O_NONBLOCK a FIFO would block the writer for ever.
    let flags = flags | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC;
    let mode = Mode::S_IRUSR | Mode::S_IWUSR;
    let file = File::from(openat(open_dir(run_dir)?, name, flags, mode)?);
    if !file.metadata()?.is_file() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    Ok(file)
}

/// Opens the file; `None` where there is none, or another kind of file is in its place.
pub(crate) fn open_to_read(run_dir: &Path, name: &CStr) -> io::Result<Option<File>> {
    let flags = OFlag::O_RDONLY | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC;
    let file = match openat(open_dir(run_dir)?, name, flags, Mode::empty()) {
        Ok(file) => File::from(file),
        Err(Errno::ENOENT | Errno::ELOOP) => return Ok(None),
        Err(errno) => return Err(errno.into()),
    };
    Ok(file.metadata()?.is_file().then_some(file))
}

/// Removes the file, if it exists.
pub(crate) fn remove(run_dir: &Path, name: &CStr) -> io::Result<()> {
    own_file::remove_in(open_dir(run_dir)?, name)
}
