//! Output that a shim has saved because no server was there to read it: a file for each stream in the run's private directory,
//! until the next server has put it into the journal.
//!
//! Commands of the same uid can reach the directory, and may put anything there: it is then output of their run.

use crate::private_file;
use kennel_linux::own_file;
use std::{
    ffi::CString,
    fs::{self, File},
    io,
    path::Path,
};

/// Most bytes that are saved of a stream; a command that writes more waits, as it does for a full disk.
pub const SAVED_BYTES_MAX: u64 = 8 * 1024 * 1024;

/// File names for standard output and for standard error.
const NAMES: [&str; 2] = ["saved-stdout", "saved-stderr"];

/// Opens the file that the shim appends to; `stream` is 0 for standard output and 1 for standard error.
pub(crate) fn create(run_dir: &Path, stream: usize) -> io::Result<File> {
    private_file::append(run_dir, &name(NAMES[stream]))
}

/// Returns the saved output of a stream, and its offset in the stream: `len`, unless an earlier call has recorded
/// another one, since a server may die while it copies this into the journal. `None`: nothing was saved.
///
/// # Errors
///
/// Those of the file system; what was saved is still there.
pub fn claim(run_dir: &Path, stream: usize, len: u64) -> io::Result<Option<(File, u64)>> {
    let fresh = NAMES[stream];
    let claimed = claimed(run_dir, stream)?;
    let (file, begins) = match claimed {
        Some((file, begins)) => (file, begins),
        None if !run_dir.join(fresh).exists() => return Ok(None),
        None => {
            let file = format!("{fresh}.{len}");
            fs::rename(run_dir.join(fresh), run_dir.join(&file))?;
            (file, len)
        }
    };
    Ok(private_file::open_to_read(run_dir, &name(&file))?.map(|file| (file, begins)))
}

/// Removes the saved output of a stream.
///
/// # Errors
///
/// Those of the file system.
pub fn remove(run_dir: &Path, stream: usize) -> io::Result<()> {
    if let Some((file, _)) = claimed(run_dir, stream)? {
        private_file::remove(run_dir, &name(&file))?;
    }
    private_file::remove(run_dir, &name(NAMES[stream]))
}

fn claimed(run_dir: &Path, stream: usize) -> io::Result<Option<(String, u64)>> {
    let Some(entries) = own_file::none_if_absent(fs::read_dir(run_dir))? else {
        return Ok(None);
    };
    let mut names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    Ok(names.find_map(|file| {
        let begins = file.strip_prefix(NAMES[stream])?.strip_prefix('.')?;
        let begins = begins.parse().ok()?;
        Some((file, begins))
    }))
}

fn name(name: &str) -> CString {
    CString::new(name).expect("no such name has a NUL")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};

    // promise: R-2b
    #[test]
    fn repeated_claim_of_saved_output_returns_same_offset() {
        let dir = tempfile::tempdir().expect("a directory");
        assert!(claim(dir.path(), 0, 3).expect("it can be read").is_none());
        for part in [b"one ", b"two "] {
            let mut file = create(dir.path(), 0).expect("it is made");
            file.write_all(part).expect("it is written");
        }
        let claimed = |len| {
            let claimed = claim(dir.path(), 0, len).expect("it can be read");
            let (mut file, begins) = claimed.expect("it is there");
            let mut text = String::new();
            file.read_to_string(&mut text).expect("it is read");
            (text, begins)
        };
        assert_eq!(claimed(3), ("one two ".to_owned(), 3));
        assert_eq!(claimed(7), ("one two ".to_owned(), 3));
        assert!(claim(dir.path(), 1, 0).expect("it can be read").is_none());
        remove(dir.path(), 0).expect("it goes");
        assert!(claim(dir.path(), 0, 9).expect("it can be read").is_none());
    }
}
