//! Where readers of a live run come from.

use crate::{Reader, files::Files};
use std::{io, sync::Arc};
use tokio::sync::watch;

/// Where readers of a live run come from. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Hub {
    files: Arc<Files>,
    head: watch::Receiver<u64>,
}

impl Hub {
    pub(crate) fn new(files: Arc<Files>, head: watch::Receiver<u64>) -> Self {
        Self { files, head }
    }

    /// Last seq; 0: nothing yet.
    #[must_use]
    pub fn head(&self) -> u64 {
        *self.head.borrow()
    }

    /// A reader that begins after this seq, which is at most the head.
    pub fn read_after(&self, seq: u64) -> io::Result<Reader> {
        Reader::new(Arc::clone(&self.files), self.head.clone(), seq)
    }
}
