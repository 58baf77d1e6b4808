//! The directory of a server that may go on for a moment after its world has ended.

use std::{fs, io, path::Path, thread, time::Duration};
use tempfile::TempDir;

/// How often it is tried to remove it, and what lies between.
const TRIES: u32 = 500;
const REST: Duration = Duration::from_millis(10);

/// Goes with the last who holds it, also where a thread that has not heard of the end still writes into it.
pub struct DataDir(TempDir);

impl DataDir {
    pub fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    pub fn path(&self) -> &Path {
        self.0.path()
    }
}

impl Drop for DataDir {
    fn drop(&mut self) {
        for _ in 0..TRIES {
            match fs::remove_dir_all(self.path()) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => thread::sleep(REST),
                Ok(()) | Err(_) => return,
            }
        }
    }
}
