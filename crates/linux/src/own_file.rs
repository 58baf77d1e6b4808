//! Files and directories of this service in its data directory: for its own user alone, and never through a symbolic
//! link.

use nix::{
    NixPath,
    errno::Errno,
    fcntl::{OFlag, open},
    sys::stat::Mode,
    unistd::{UnlinkatFlags, unlinkat},
};
use std::{
    fs::{self, DirBuilder, File, OpenOptions},
    io::{self, Read, Write},
    os::{
        fd::{AsFd, OwnedFd},
        unix::fs::{DirBuilderExt, OpenOptionsExt},
    },
    path::{Path, PathBuf},
};

/// Flags for opening a directory. A symbolic link is refused.
pub const DIR_FLAGS: OFlag = OFlag::O_DIRECTORY
    .union(OFlag::O_NOFOLLOW)
    .union(OFlag::O_CLOEXEC);

/// Returns the options for opening each of them: a new file is 0600; a link is refused (`ELOOP`); a fifo does not
/// block.
pub fn options() -> OpenOptions {
    let mut how = OpenOptions::new();
    how.mode(0o600);
    how.custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK);
    how
}

/// Returns the file, if it is a regular one.
pub fn regular(file: File) -> io::Result<File> {
    if file.metadata()?.is_file() {
        return Ok(file);
    }
    let why = "it is not a regular file";
    Err(io::Error::new(io::ErrorKind::InvalidData, why))
}

/// Returns what was found; `None` where there is no such file.
pub fn none_if_absent<T>(found: io::Result<T>) -> io::Result<Option<T>> {
    match found {
        Ok(found) => Ok(Some(found)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Returns the whole text of such a file.
pub fn read_to_string(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    let mut file = options().read(true).open(path).and_then(regular)?;
    file.read_to_string(&mut text)?;
    Ok(text)
}

/// Makes a file that did not exist, in a directory that may not exist, and locks it for as long as a process has it
/// open.
pub fn create_locked(dir: &Path, name: &str) -> io::Result<File> {
    make_dir(dir)?;
    let mut fresh = options();
    fresh.read(true).write(true).create_new(true);
    let file = fresh.open(dir.join(name))?;
    file.try_lock()?;
    Ok(file)
}

/// Replaces a file by one of 0600, or creates it: whole, or not at all.
pub fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut fresh = path.as_os_str().to_owned();
    fresh.push(format!(".{}", std::process::id()));
    let fresh = PathBuf::from(fresh);
    // An interrupted process with the same pid may have left a file or link, of any mode.
    let _ = fs::remove_file(&fresh);
    let written = options()
        .write(true)
        .create_new(true)
        .open(&fresh)
        .and_then(|mut file| {
            file.write_all(bytes)?;
            file.sync_all()
        });
    let renamed = written.and_then(|()| fs::rename(&fresh, path));
    if renamed.is_err() {
        // The earlier error is the one to report.
        let _ = fs::remove_file(&fresh);
    }
    renamed
}

/// Makes a directory, 0700, and those above it, where they are missing.
pub fn make_dir(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)
}

/// Opens a directory.
pub fn open_dir(path: &Path) -> io::Result<OwnedFd> {
    Ok(open(path, DIR_FLAGS, Mode::empty())?)
}

/// Removes a file from a directory; a missing one is no error.
pub fn remove_in(dir: impl AsFd, name: &(impl NixPath + ?Sized)) -> io::Result<()> {
    match unlinkat(dir, name, UnlinkatFlags::NoRemoveDir) {
        Ok(()) | Err(Errno::ENOENT) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn leftover_temporary_file_is_not_followed() {
        let dir = tempfile::tempdir().expect("a directory");
        let (path, other) = (dir.path().join("f"), dir.path().join("other"));
        let fresh = dir.path().join(format!("f.{}", std::process::id()));
        fs::write(&other, "untouched").expect("written");
        symlink(&other, &fresh).expect("linked");
        replace(&path, b"whole").expect("replaced");
        fs::hard_link(&other, &fresh).expect("linked");
        replace(&path, b"new").expect("replaced");
        assert_eq!(fs::read_to_string(&path).expect("it is there"), "new");
        let left = fs::read_to_string(&other).expect("it is there");
        assert_eq!(left, "untouched");
        assert!(!fresh.exists());
    }
}
