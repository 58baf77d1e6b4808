//! Errors of one file, with its name; the kind of the cause is preserved.

use std::{
    io,
    path::{Path, PathBuf},
};

#[derive(Debug, thiserror::Error)]
#[error("cannot {what} {path}")]
struct FileError {
    what: &'static str,
    path: PathBuf,
    #[source]
    source: io::Error,
}

/// Makes an error of the attempted action and its file.
pub(crate) fn failed(what: &'static str, path: &Path, source: io::Error) -> io::Error {
    let path = path.to_owned();
    io::Error::new(source.kind(), FileError { what, path, source })
}

/// Makes an error for invalid contents of a file.
pub(crate) fn damaged(path: &Path, why: String) -> io::Error {
    failed(
        "read",
        path,
        io::Error::new(io::ErrorKind::InvalidData, why),
    )
}

/// Removes a file that may be gone already.
pub(crate) fn remove(path: &Path) -> io::Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(failed("remove", path, error)),
        Ok(()) | Err(_) => Ok(()),
    }
}
