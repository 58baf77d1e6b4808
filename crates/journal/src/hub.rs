//! Where readers of a live run come from.

use crate::{Point, Position, Reader, log::Log};
use std::{io, sync::Arc};
use tokio::sync::watch;

/// Where readers of a live run come from. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Hub {
    log: Arc<Log>,
    head: watch::Receiver<Point>,
}

impl Hub {
    pub(crate) fn new(log: Arc<Log>, head: watch::Receiver<Point>) -> Self {
        Self { log, head }
    }

    /// The end; a seq of 0: nothing yet.
    #[must_use]
    pub fn head(&self) -> Point {
        *self.head.borrow()
    }

    /// A reader that begins at this position, which is at most the head.
    pub fn read_from(&self, position: Position) -> io::Result<Reader> {
        Reader::new(Arc::clone(&self.log), self.head.clone(), position)
    }
}
