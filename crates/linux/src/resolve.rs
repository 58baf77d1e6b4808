//! Resolves the executable that the first word of a command line means.

use nix::errno::Errno;
use std::{
    ffi::OsStr,
    fs,
    os::unix::{ffi::OsStrExt, fs::PermissionsExt},
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
/// searched. A name that is found only as a file without execute permission is `NotExecutable`.
pub fn executable(
    argv0: impl AsRef<OsStr>,
    cwd: &Path,
    path: Option<&str>,
) -> Result<PathBuf, ResolveError> {
    let argv0 = argv0.as_ref();
    let candidates: Vec<PathBuf> = if argv0.as_bytes().contains(&b'/') {
        vec![cwd.join(argv0)]
    } else {
        // An empty element of PATH means the working directory (environ(7)).
        let path = path.unwrap_or(PATH_DEFAULT);
        path.split(':')
            .map(|dir| cwd.join(dir).join(argv0))
            .collect()
    };
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

fn check(path: &Path) -> Result<(), Errno> {
    let found =
        fs::metadata(path).map_err(|e| e.raw_os_error().map_or(Errno::EIO, Errno::from_raw))?;
    // For root access(2) says yes to any file with one execute bit; a directory is EACCES for execve(2).
    if !found.is_file() || found.permissions().mode() & 0o111 == 0 {
        return Err(Errno::EACCES);
    }
    nix::unistd::access(path, nix::unistd::AccessFlags::X_OK)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bare_name_is_looked_up_in_order() {
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
    fn unexecutable_file_and_directory_differ_from_absent_ones() {
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
    fn name_may_be_any_bytes() {
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
}
