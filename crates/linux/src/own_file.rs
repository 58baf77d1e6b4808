//! Files of this service in its data directory: for its own user alone, and never through a symbolic link.

use std::{
    fs::{File, OpenOptions},
    io::{self, Read},
    os::unix::fs::OpenOptionsExt,
    path::Path,
};

/// Returns the options for opening each of them: a new file is 0600; a link is refused (`ELOOP`); a fifo does not
/// block.
#[must_use]
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

/// Returns the whole text of such a file.
pub fn read_to_string(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    let mut file = options().read(true).open(path).and_then(regular)?;
    file.read_to_string(&mut text)?;
    Ok(text)
}
