//! Files that are read below a directory, whatever links lead out of it.

use crate::own_file;
use nix::{
    errno::Errno,
    fcntl::{OFlag, OpenHow, ResolveFlag, openat2},
    sys::stat::Mode,
};
use std::{
    fs::File,
    io::{self, Read},
    path::Path,
    thread,
};

/// Most tries to open a file while the host renames others.
const TRIES_MAX: u32 = 64;

/// Returns the bytes of the regular file at this path below the directory, at most `bytes_max`; of a longer one `EFBIG`.
/// Links are followed where they stay below the directory, as those of Kubernetes' mounts do; of others `EXDEV`.
pub fn read(dir: &Path, path: &str, bytes_max: usize) -> io::Result<Vec<u8>> {
    let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    let dir = nix::fcntl::open(dir, flags, Mode::empty())?;
    // Without O_NONBLOCK a FIFO would block the reader for ever.
    let flags = OFlag::O_RDONLY | OFlag::O_NONBLOCK | OFlag::O_NOCTTY | OFlag::O_CLOEXEC;
    let within = ResolveFlag::RESOLVE_BENEATH | ResolveFlag::RESOLVE_NO_MAGICLINKS;
    let how = OpenHow::new().flags(flags).resolve(within);
    let opened = persistently(|| openat2(&dir, path, how))?;
    let file = own_file::regular(File::from(opened))?;
    // One allocation: growing would leave copies of the bytes in freed memory.
    let mut bytes = Vec::with_capacity(bytes_max + 1);
    file.take(bytes_max as u64 + 1).read_to_end(&mut bytes)?;
    if bytes.len() > bytes_max {
        return Err(Errno::EFBIG.into());
    }
    Ok(bytes)
}

/// Opens again after `EAGAIN`: a path with `..` is not resolved during a rename anywhere on the host, see openat2(2).
fn persistently<T>(mut open: impl FnMut() -> Result<T, Errno>) -> Result<T, Errno> {
    for _ in 1..TRIES_MAX {
        match open() {
            Err(Errno::EAGAIN) => thread::yield_now(),
            opened => return opened,
        }
    }
    open()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{fs, os::unix::fs::symlink};

    // promise: RW-93
    #[test]
    fn symlinks_are_followed_only_below_the_directory() {
        let outside = tempfile::tempdir().expect("a directory");
        fs::write(outside.path().join("x"), b"outside").expect("a file");
        let top = tempfile::tempdir().expect("another");
        let dir = top.path();
        // The layout of a kubelet volume.
        fs::create_dir(dir.join("..2026")).expect("a directory");
        fs::write(dir.join("..2026/key"), b"inside").expect("a file");
        symlink("..2026", dir.join("..data")).expect("a link");
        symlink("..data/key", dir.join("key")).expect("a link");
        assert_eq!(read(dir, "key", 6).expect("it is read"), b"inside");
        let errno = |path: &str| read(dir, path, 5).expect_err(path).raw_os_error();
        assert_eq!(errno("key"), Some(libc::EFBIG));
        assert_eq!(errno("missing"), Some(libc::ENOENT));
        symlink(outside.path().join("x"), dir.join("absolute")).expect("a link");
        symlink("../x", dir.join("above")).expect("a link");
        symlink(outside.path(), dir.join("elsewhere")).expect("a link");
        for path in ["absolute", "above", "elsewhere/x", "../x", "/etc/passwd"] {
            assert_eq!(errno(path), Some(libc::EXDEV), "{path}");
        }
        assert_eq!(errno(".."), Some(libc::EXDEV));
        read(dir, "..2026", 5).expect_err("a directory");
        nix::unistd::mkfifo(&dir.join("fifo"), Mode::S_IRUSR).expect("a fifo");
        read(dir, "fifo", 5).expect_err("a fifo");
    }

    #[test]
    fn open_below_directory_retries_on_eagain() {
        let mut tries = 0;
        let opened = persistently(|| {
            tries += 1;
            if tries < TRIES_MAX {
                return Err(Errno::EAGAIN);
            }
            Ok(tries)
        });
        assert_eq!(opened, Ok(TRIES_MAX));
        let mut tries = 0;
        let refused = persistently(|| -> Result<(), _> {
            tries += 1;
            Err(Errno::EAGAIN)
        });
        assert_eq!((refused, tries), (Err(Errno::EAGAIN), TRIES_MAX));
    }
}
