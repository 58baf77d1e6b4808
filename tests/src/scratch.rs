//! Directories of tests outside of those that each command in a sandbox may write to, wherever the checkout lies.

use crate::programs;
use std::{
    env, fs,
    path::{Path, PathBuf},
};
use tempfile::TempDir;

/// Directories that are open to each command in a sandbox.
const SCRATCH: [&str; 3] = ["/tmp", "/var/tmp", "/dev/shm"];

/// Makes a temporary directory below the build, else below the home or the runtime directory.
///
/// # Panics
/// If all of them lie in directories that are open.
#[must_use]
pub fn closed_dir() -> TempDir {
    let named = ["HOME", "XDG_RUNTIME_DIR"].map(|name| env::var_os(name).map(PathBuf::from));
    let places = [Some(programs::profile_dir())].into_iter().chain(named);
    let places = places.flatten().chain([PathBuf::from("/run")]);
    let mut closed = places.filter(|place| is_closed(place));
    let made = closed.find_map(|place| tempfile::tempdir_in(place).ok());
    made.expect("a directory that is not open")
}

fn is_closed(place: &Path) -> bool {
    fs::canonicalize(place).is_ok_and(|real| !SCRATCH.iter().any(|open| real.starts_with(open)))
}
