//! A reader with its own position, on a live journal or one that has ended.
//!
//! It waits for the head to pass its position and then reads the files: replay and live are one path, so there is
//! no switch at which an entry could be lost or come twice. The writer waits for no reader.

use crate::{Entry, files::Files};
use std::{io, path::Path, sync::Arc};
use tokio::{sync::watch, task};

/// A reader that keeps up reads at most this much on the spot; anything more goes to a blocking thread.
const READ_IN_PLACE_BYTES_MAX: usize = 256 * 1024;
/// A reader that is at most this many entries behind keeps up.
const KEEPS_UP_ENTRIES_MAX: u64 = 64;

/// A reader with its own position. Cheap; never slows the writer.
#[derive(Debug)]
pub struct Reader {
    files: Arc<Files>,
    head: watch::Receiver<u64>,
    /// Last seq that was handed out.
    after: u64,
    /// It has been at the head, so what it reads next was just written and needs no disk.
    was_at_head: bool,
}

impl Reader {
    /// A reader of a journal that nobody writes any more. Changes nothing on disk; a torn tail is not read.
    ///
    /// Checks the whole index (36 bytes an entry): call it where blocking is allowed.
    pub fn open_ended(dir: &Path, after_seq: u64) -> io::Result<Self> {
        let files = Files::open_to_read(dir)?;
        let (sender, head) = watch::channel(files.intact()?.head);
        drop(sender);
        Self::new(Arc::new(files), head, after_seq)
    }

    pub(crate) fn new(
        files: Arc<Files>,
        head: watch::Receiver<u64>,
        after: u64,
    ) -> io::Result<Self> {
        let last = *head.borrow();
        if after > last {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("cannot read after entry {after}: the last one is {last}"),
            ));
        }
        Ok(Self {
            files,
            head,
            after,
            was_at_head: false,
        })
    }

    /// Goes on after this seq, or after the head where that is less.
    pub fn move_to(&mut self, after_seq: u64) {
        self.after = after_seq.min(self.head());
        self.was_at_head = false;
    }

    /// Last seq that there is now.
    #[must_use]
    pub fn head(&self) -> u64 {
        *self.head.borrow()
    }

    /// The next entries in order: at least one, at most `bytes_max` bytes of data (but always one entry), without
    /// hole or repeat. Waits while there is none. `None`: the writer is gone and all has been read. Cancel-safe.
    pub async fn next(&mut self, bytes_max: usize) -> io::Result<Option<Vec<Entry>>> {
        let Some(head) = self.head_past_position().await else {
            return Ok(None);
        };
        let entries = self.read(head, bytes_max).await?;
        // INVARIANT: nothing is awaited from here on, so a cancelled call has not moved the position.
        self.after += entries.len() as u64;
        Ok(Some(entries))
    }

    async fn head_past_position(&mut self) -> Option<u64> {
        loop {
            let head = *self.head.borrow_and_update();
            if head > self.after {
                return Some(head);
            }
            self.was_at_head = true;
            // An error means that the writer is gone; it may have written between the look and its end.
            if self.head.changed().await.is_err() && *self.head.borrow() == self.after {
                return None;
            }
        }
    }

    async fn read(&mut self, head: u64, bytes_max: usize) -> io::Result<Vec<Entry>> {
        let after = self.after;
        if self.was_at_head && head - after <= KEEPS_UP_ENTRIES_MAX {
            return self
                .files
                .read(after, head, bytes_max.min(READ_IN_PLACE_BYTES_MAX));
        }
        self.was_at_head = false;
        let files = Arc::clone(&self.files);
        task::spawn_blocking(move || files.read(after, head, bytes_max))
            .await
            .map_err(io::Error::other)?
    }
}
