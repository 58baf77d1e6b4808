//! Resolves the executable that the first word of a command line means.

use nix::{
    errno::Errno,
    fcntl::{AT_FDCWD, OFlag, OpenHow, ResolveFlag, openat2},
};
use std::{
    ffi::OsStr,
    fs,
    mem::MaybeUninit,
    os::{
        fd::AsRawFd,
        unix::{ffi::OsStrExt, fs::PermissionsExt},
    },
    path::{Path, PathBuf},
};

/// Search path when the environment has no PATH (`_CS_PATH` of confstr(3)).
pub const PATH_DEFAULT: &str = "/bin:/usr/bin";

/// No executable was found.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ResolveError {
    /// There is no file of that name.
    #[error("there is no command {command:?}")]
    NotFound {
        /// The requested command, as text.
        command: String,
        /// The paths tried, in order.
        looked_in: Vec<PathBuf>,
    },
    /// A file is there, and it may not be executed.
    #[error("{path:?} cannot be executed")]
    NotExecutable {
        /// The first such file.
        path: PathBuf,
        /// errno(3) as execve(2) would give it.
        errno: i32,
    },
}

/// Resolves `argv0` as execvp(3) would: with a slash it is a path, relative to `cwd`; else each directory of `path` is
/// searched. A name that is found only as a file without execute permission is `NotExecutable`. Blocks, for ever where a
/// file system does not answer.
pub fn executable(
    argv0: impl AsRef<OsStr>,
    cwd: &Path,
    path: Option<&str>,
) -> Result<PathBuf, ResolveError> {
    search(argv0.as_ref(), cwd, path, check)
}

/// As [`executable`], from what the kernel has in memory: asks no file system. `None`: that is not enough, or the
/// kernel cannot be asked that way (before Linux 5.12).
pub fn executable_in_memory(
    argv0: impl AsRef<OsStr>,
    cwd: &Path,
    path: Option<&str>,
) -> Option<Result<PathBuf, ResolveError>> {
    let mut is_known = true;
    let found = search(argv0.as_ref(), cwd, path, |candidate| {
        let checked = check_in_memory(candidate);
        is_known &= checked != Err(Errno::EAGAIN);
        // The search ends at the first unknown candidate.
        if is_known { checked } else { Ok(()) }
    });
    is_known.then_some(found)
}

fn search(
    argv0: &OsStr,
    cwd: &Path,
    path: Option<&str>,
    mut check: impl FnMut(&Path) -> Result<(), Errno>,
) -> Result<PathBuf, ResolveError> {
    let candidates = candidates(argv0, cwd, path);
    let mut refused = None;
    for candidate in &candidates {
        match check(candidate) {
            Ok(()) => return Ok(candidate.clone()),
            Err(Errno::ENOENT | Errno::ENOTDIR) => {}
            Err(errno) if refused.is_none() => refused = Some((candidate.clone(), errno as i32)),
            Err(_) => {}
        }
    }
    Err(match refused {
        Some((path, errno)) => ResolveError::NotExecutable { path, errno },
        None => ResolveError::NotFound {
            command: argv0.to_string_lossy().into_owned(),
            looked_in: candidates,
        },
    })
}

/// Returns the paths at which a command is searched, in order.
pub fn candidates(argv0: &OsStr, cwd: &Path, path: Option<&str>) -> Vec<PathBuf> {
    if argv0.as_bytes().contains(&b'/') {
        return vec![cwd.join(argv0)];
    }
    // An empty element of PATH means the working directory (environ(7)).
    let dirs = path.unwrap_or(PATH_DEFAULT).split(':');
    dirs.map(|dir| cwd.join(dir).join(argv0)).collect()
}

/// Whether a file can be executed; `None`: there is none. Blocks as [`executable`] does.
pub fn is_executable(path: &Path) -> Option<bool> {
    match check(path) {
        Ok(()) => Some(true),
        Err(Errno::ENOENT | Errno::ENOTDIR) => None,
        Err(_) => Some(false),
    }
}

fn check(path: &Path) -> Result<(), Errno> {
    let found =
        fs::metadata(path).map_err(|e| e.raw_os_error().map_or(Errno::EIO, Errno::from_raw))?;
    // For root, access(2) accepts any file with one execute bit; execve(2) fails with EACCES for a directory.
    if !found.is_file() || found.permissions().mode() & 0o111 == 0 {
        return Err(Errno::EACCES);
    }
    nix::unistd::access(path, nix::unistd::AccessFlags::X_OK)
}

/// As [`check`]; `EAGAIN`: not known. What an old kernel or a filter of system calls refuses is not known either.
fn check_in_memory(path: &Path) -> Result<(), Errno> {
    let unknown = |errno| match errno {
        Errno::ENOSYS | Errno::EPERM | Errno::EINVAL | Errno::E2BIG => Errno::EAGAIN,
        other => other,
    };
    let how = OpenHow::new()
        .flags(OFlag::O_PATH | OFlag::O_CLOEXEC)
        .resolve(ResolveFlag::from_bits_retain(libc::RESOLVE_CACHED));
    let file = openat2(AT_FDCWD, path, how).map_err(unknown)?;
    let (fd, empty) = (file.as_raw_fd(), c"".as_ptr());
    let mut about = MaybeUninit::<libc::statx>::zeroed();
    let flags = libc::AT_EMPTY_PATH | libc::AT_STATX_DONT_SYNC;
    let fields = libc::STATX_TYPE | libc::STATX_MODE;
    // SAFETY: the path is a NUL-terminated string, and there is space for a statx at `about`.
    let got = unsafe { libc::statx(fd, empty, flags, fields, about.as_mut_ptr()) };
    Errno::result(got).map_err(unknown)?;
    // SAFETY: all zeroes is a valid statx, and the call has filled it.
    let mode = u32::from(unsafe { about.assume_init() }.stx_mode);
    if mode & libc::S_IFMT != libc::S_IFREG || mode & 0o111 == 0 {
        return Err(Errno::EACCES);
    }
    // SAFETY: the path is a NUL-terminated string; the other arguments are integers.
    let may = unsafe {
        libc::syscall(
            libc::SYS_faccessat2,
            fd,
            empty,
            libc::X_OK,
            libc::AT_EMPTY_PATH,
        )
    };
    Errno::result(may).map(drop).map_err(unknown)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bare_name_is_searched_in_path_order() {
        let found = executable("sh", Path::new("/"), Some("/nonexistent:/bin"));
        assert_eq!(found, Ok(PathBuf::from("/bin/sh")));
    }

    #[test]
    fn missing_name_is_reported_with_searched_places() {
        let missing = executable("no-such-command", Path::new("/"), Some("/bin:/usr/bin"));
        let Err(ResolveError::NotFound { looked_in, .. }) = missing else {
            panic!("{missing:?}")
        };
        assert_eq!(looked_in.len(), 2);
    }

    #[test]
    fn non_executable_file_differs_from_missing_one() {
        let refused = executable("/etc/passwd", Path::new("/"), None);
        let expected = ResolveError::NotExecutable {
            path: "/etc/passwd".into(),
            errno: Errno::EACCES as i32,
        };
        assert_eq!(refused, Err(expected));
        assert!(matches!(
            executable("/etc", Path::new("/"), None),
            Err(ResolveError::NotExecutable { .. })
        ));
    }

    #[test]
    fn command_name_may_be_any_bytes() {
        let name = OsStr::from_bytes(b"\xff");
        let missing = executable(name, Path::new("/"), Some("/bin"));
        let expected = ResolveError::NotFound {
            command: "\u{fffd}".to_owned(),
            looked_in: vec![Path::new("/bin").join(name)],
        };
        assert_eq!(missing, Err(expected));
    }

    #[test]
    fn name_with_slash_is_relative_to_working_directory() {
        let found = executable("./sh", Path::new("/bin"), Some("/usr/sbin"));
        assert_eq!(found, Ok(PathBuf::from("/bin/./sh")));
    }

    #[test]
    fn cached_path_lookup_matches_uncached_lookup() {
        let names = [
            "sh",
            "no-such-command",
            "/etc/passwd",
            "/etc",
            "./sh",
            "/bin/sh/x",
        ];
        let mut known = 0;
        for name in names {
            for path in [None, Some("/etc:/nonexistent:/bin"), Some("")] {
                for cwd in ["/", "/bin"].map(Path::new) {
                    let looked = executable(name, cwd, path);
                    if let Some(found) = executable_in_memory(name, cwd, path) {
                        assert_eq!(found, looked, "{name} {path:?}");
                        known += 1;
                    }
                }
            }
        }
        assert!(known > 0, "nothing was known right after a look");
    }
}
