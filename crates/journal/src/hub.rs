//! Source of readers of a live run.

use crate::{Point, Position, Reader, log::Log};
use std::{io, sync::Arc};
use tokio::sync::watch;

/// Source of readers of a live run. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Hub {
    log: Arc<Log>,
    head: watch::Receiver<Point>,
}

/// Sources of the same journal are equal.
impl PartialEq for Hub {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.log, &other.log)
    }
}

impl Hub {
    pub(crate) fn new(log: Arc<Log>, head: watch::Receiver<Point>) -> Self {
        Self { log, head }
    }

    /// Returns the end of the journal; a seq of 0: it is empty.
    pub fn head(&self) -> Point {
        *self.head.borrow()
    }

    /// Makes a reader that begins at this position, which is at most the head.
    pub fn read_from(&self, position: Position) -> io::Result<Reader> {
        Reader::new(Arc::clone(&self.log), self.head.clone(), position)
    }
}
