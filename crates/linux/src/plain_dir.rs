//! Whether a directory is as mkdir(2) makes it, and so equal to a fresh one.

use nix::{errno::Errno, sys::stat::fstat};
use std::{
    ffi::CStr,
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
    ptr,
};

/// `struct fsxattr` of `FS_IOC_FSGETXATTR`: flags, extent size, extents, project, and reserved space.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct ExtendedAttributes {
    flags: u32,
    extent_bytes: u32,
    extents: u32,
    project: u32,
    rest: [u32; 3],
}

/// `FS_IOC_FSGETXATTR`: `_IOR('X', 31, struct fsxattr)`.
const GET_EXTENDED: libc::Ioctl =
    nix::request_code_read!(b'X', 31, size_of::<ExtendedAttributes>()) as libc::Ioctl;
/// `FS_IOC_GETFLAGS`: `_IOR('f', 1, long)`, which writes an int.
const GET_FLAGS: libc::Ioctl =
    nix::request_code_read!(b'f', 1, size_of::<libc::c_long>()) as libc::Ioctl;

/// Attributes of a directory beside its entries.
#[derive(Debug, PartialEq, Eq)]
pub struct DirAttributes {
    ids: (libc::dev_t, libc::uid_t, libc::gid_t),
    mode: libc::mode_t,
    links: libc::nlink_t,
    bytes: libc::off_t,
    flags: Result<libc::c_int, i32>,
    extended: Result<ExtendedAttributes, i32>,
}

impl DirAttributes {
    /// Reads the attributes of a directory.
    pub fn at(dir: &impl AsFd) -> io::Result<Self> {
        let stat = fstat(dir)?;
        let dir = dir.as_fd();
        Ok(Self {
            ids: (stat.st_dev, stat.st_uid, stat.st_gid),
            mode: stat.st_mode,
            links: stat.st_nlink,
            bytes: stat.st_size,
            flags: flags(dir),
            extended: extended(dir),
        })
    }
}

/// Whether `dir` is empty, or has only the entry of this name, has no extended attribute, and has the attributes of one
/// that this process has just made: device, owner, type and mode, links, size, flags, project.
/// Its entries are read from where `dir` is.
pub fn is_as_made(dir: &OwnedFd, fresh: &DirAttributes, entry: Option<&CStr>) -> io::Result<bool> {
    let looks_so = DirAttributes::at(dir)? == *fresh && has_no_attributes(dir.as_fd());
    Ok(looks_so && has_nothing_but(dir, entry)?)
}

/// Offsets in `struct linux_dirent64` of getdents64(2): the record's length, and its name.
const LENGTH_AT: usize = 16;
const NAME_AT: usize = 19;

/// Reads without opendir(3), which costs a buffer of 32 KiB and four calls more.
fn has_nothing_but(dir: &OwnedFd, known: Option<&CStr>) -> io::Result<bool> {
    let mut buffer = [0u8; 512];
    loop {
        let fd = dir.as_raw_fd();
        // SAFETY: the buffer is writable for its length.
        let len =
            unsafe { libc::syscall(libc::SYS_getdents64, fd, buffer.as_mut_ptr(), buffer.len()) };
        let len = usize::try_from(Errno::result(len)?).map_err(io::Error::other)?;
        let mut rest = &buffer[..len];
        if rest.is_empty() {
            return Ok(true);
        }
        while let Some(length) = rest.get(LENGTH_AT..LENGTH_AT + 2) {
            let length = usize::from(u16::from_ne_bytes([length[0], length[1]]));
            let (entry, others) = rest.split_at_checked(length).unwrap_or((rest, &[]));
            let name = entry.get(NAME_AT..).unwrap_or_default();
            let name = CStr::from_bytes_until_nul(name).map_err(io::Error::other)?;
            if name != c"." && name != c".." && Some(name) != known {
                return Ok(false);
            }
            rest = others;
        }
    }
}

/// Whether a directory has no extended attributes; access lists are attributes too.
fn has_no_attributes(dir: BorrowedFd<'_>) -> bool {
    let fd = dir.as_raw_fd();
    // SAFETY: `fd` is open for the call; with a size of zero nothing is written.
    let len = unsafe { libc::flistxattr(fd, ptr::null_mut(), 0) };
    // A file system without attribute support has no attributes.
    len == 0 || (len < 0 && io::Error::last_os_error().raw_os_error() == Some(libc::ENOTSUP))
}

/// Returns the flags of chattr(1); the errno where the file system has none.
fn flags(dir: BorrowedFd<'_>) -> Result<libc::c_int, i32> {
    let mut flags: libc::c_long = 0;
    // SAFETY: `dir` is open for the call, which writes an int or a long into a long.
    let asked = unsafe { libc::ioctl(dir.as_raw_fd(), GET_FLAGS, &raw mut flags) };
    let found = Errno::result(asked);
    #[expect(clippy::cast_possible_truncation, reason = "the kernel writes an int")]
    found
        .map(|_| flags as libc::c_int)
        .map_err(|errno| errno as i32)
}

/// Returns the attributes of file systems beyond those flags, likewise.
fn extended(dir: BorrowedFd<'_>) -> Result<ExtendedAttributes, i32> {
    let mut found = ExtendedAttributes::default();
    // SAFETY: `dir` is open for the call, which writes a structure of the size in the request's number.
    let asked = unsafe { libc::ioctl(dir.as_raw_fd(), GET_EXTENDED, &raw mut found) };
    Errno::result(asked)
        .map(|_| found)
        .map_err(|errno| errno as i32)
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::{fcntl::OFlag, sys::stat::Mode};
    use std::{
        fs,
        os::unix::fs::{DirBuilderExt, PermissionsExt},
        path::Path,
    };

    fn made(path: &Path) -> OwnedFd {
        fs::DirBuilder::new()
            .mode(0o700)
            .create(path)
            .expect("it is made");
        opened(path)
    }

    fn opened(path: &Path) -> OwnedFd {
        let flags = OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        nix::fcntl::open(path, flags, Mode::empty()).expect("it is there")
    }

    // promise: O-42a
    #[test]
    fn directory_changes_are_detected() {
        let root = tempfile::tempdir().expect("a directory");
        let path = root.path().join("dir");
        let fresh = DirAttributes::at(&made(&root.path().join("fresh"))).expect("it is there");
        let is_plain = || is_as_made(&opened(&path), &fresh, None).expect("it is looked at");
        made(&path);
        assert!(is_plain());
        fs::write(path.join("file"), b"x").expect("a file");
        assert!(!is_plain(), "something is in it");
        fs::remove_file(path.join("file")).expect("it goes");
        assert!(is_plain());
        fs::create_dir(path.join("below")).expect("a directory");
        assert!(!is_plain(), "a directory is in it");
        fs::remove_dir(path.join("below")).expect("it goes");
        let mode =
            |mode| fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("own");
        mode(0o750);
        assert!(!is_plain(), "others may enter");
        mode(0o1700);
        assert!(!is_plain(), "it is sticky");
        mode(0o700);
        assert!(is_plain());
    }

    #[test]
    fn xattrs_and_grown_directory_are_detected() {
        let root = tempfile::tempdir().expect("a directory");
        let path = root.path().join("dir");
        let fresh = DirAttributes::at(&made(&root.path().join("fresh"))).expect("it is there");
        let dir = made(&path);
        let name = c"user.kennel-test";
        let (fd, value) = (dir.as_fd().as_raw_fd(), b"x");
        // SAFETY: name and value outlive the call, with the given length.
        let set = unsafe { libc::fsetxattr(fd, name.as_ptr(), value.as_ptr().cast(), 1, 0) };
        if set == 0 {
            assert!(!is_as_made(&opened(&path), &fresh, None).expect("it is looked at"));
        }
        // A directory keeps its size after many names are removed.
        let large = root.path().join("large");
        made(&large);
        let files: Vec<_> = (0..500).map(|n| large.join(format!("{n:0>100}"))).collect();
        for file in &files {
            fs::write(file, b"").expect("a file");
        }
        let grown =
            fs::metadata(&large).expect("own").len() > fs::metadata(&path).expect("own").len();
        for file in &files {
            fs::remove_file(file).expect("it goes");
        }
        if grown
            && fs::metadata(&large).expect("own").len() > fs::metadata(&path).expect("own").len()
        {
            assert!(!is_as_made(&opened(&large), &fresh, None).expect("it is looked at"));
        }
    }
}
