//! The directory of a server that may continue for a moment after its world has ended.

use super::{MemoryStore, entries};
use std::{
    fs, io,
    path::Path,
    sync::{Arc, OnceLock},
    thread,
    time::Duration,
};
use tempfile::TempDir;

/// Number of attempts to remove it, and the time between two.
const TRIES: u32 = 500;
const REST: Duration = Duration::from_millis(10);

/// Removed with its last holder, also where a thread that has not noticed the end still writes into it.
pub struct DataDir(TempDir, OnceLock<Arc<MemoryStore>>);

impl DataDir {
    pub fn new() -> Self {
        Self(tempfile::tempdir().unwrap(), OnceLock::new())
    }

    /// The store has the rows of its runs.
    pub fn belongs_to(&self, store: &Arc<MemoryStore>) {
        let _ = self.1.set(Arc::clone(store));
    }

    pub fn path(&self) -> &Path {
        self.0.path()
    }
}

impl Drop for DataDir {
    fn drop(&mut self) {
        if let (Some(store), false) = (self.1.get(), thread::panicking()) {
            let rows: Vec<_> = store.rows.lock().unwrap().values().cloned().collect();
            for row in &rows {
                entries::compare(self.path(), row);
            }
        }
        for _ in 0..TRIES {
            match fs::remove_dir_all(self.path()) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => thread::sleep(REST),
                Ok(()) | Err(_) => return,
            }
        }
    }
}
