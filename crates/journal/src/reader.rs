//! A reader with its own position, on a live journal or one that has ended.
//!
//! A reader waits for the head to pass its position and then reads the files: replay and live are one path, so there is
//! no switch at which an entry could be lost or come twice. The writer waits for no reader (INV-12): a reader gets a
//! gap in place of data that the writer has removed.

use crate::{
    Item, Kind, LineBegins, Point, Position, Stretch, Tail, TailBegin, log::Log, mark::Mark,
    segment::slot,
};
use std::{io, path::Path, sync::Arc};
use tokio::{sync::watch, task};

/// A reader that keeps up reads at most this much in place; longer reads go to a blocking thread.
const READ_IN_PLACE_BYTES_MAX: usize = 256 * 1024;
/// A reader that is at most this many bytes of output behind keeps up.
const KEEPS_UP_BYTES_MAX: u64 = 8 * 1024 * 1024;

/// A reader with its own position. Cheap; never slows the writer. INV-12: it reads files, and holds no resource that a
/// writer waits for.
#[derive(Clone, Debug)]
pub struct Reader {
    log: Arc<Log>,
    head: watch::Receiver<Point>,
    /// Position after the returned items.
    at: Position,
    /// Whether it has been at the head, so that its next data was just written and needs no disk.
    was_at_head: bool,
}

impl Reader {
    /// Opens a journal without a writer. Changes nothing on disk; a torn tail is not read.
    ///
    /// Checks whole indexes (36 bytes an entry): call it where blocking is allowed.
    pub fn open_ended(dir: &Path, position: Position) -> io::Result<Self> {
        let (log, end) = Log::to_read(dir)?;
        let (sender, head) = watch::channel(end);
        drop(sender);
        Self::new(Arc::new(log), head, position)
    }

    /// Opens the journal of a run that has ended. Data that cannot be read, because files were cut, changed or removed,
    /// is a gap; only an index with an invalid header is an error.
    ///
    /// Checks whole indexes (36 bytes an entry): call it where blocking is allowed.
    pub fn open_closed(dir: &Path, position: Position) -> io::Result<Self> {
        let (log, end) = Log::to_read_closed(dir)?;
        let (sender, head) = watch::channel(end);
        drop(sender);
        Self::new(Arc::new(log), head, position)
    }

    /// Returns a seq that no entry of the journal has passed.
    pub fn seq_bound(&self) -> u64 {
        let bound = Mark::open(&self.log.dir).map_or(0, |mark| mark.seq());
        bound.max(self.end().seq)
    }

    pub(crate) fn new(
        log: Arc<Log>,
        head: watch::Receiver<Point>,
        position: Position,
    ) -> io::Result<Self> {
        let last = head.borrow().seq;
        if position.seq > last {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!(
                    "cannot read after entry {}: the last one is {last}",
                    position.seq
                ),
            ));
        }
        let mut reader = Self {
            log,
            head,
            at: Position::default(),
            was_at_head: false,
        };
        reader.move_to(position);
        Ok(reader)
    }

    /// Continues from this position, or from the head where that is less.
    pub fn move_to(&mut self, position: Position) {
        let head = self.end();
        self.at = if position.seq >= head.seq {
            let lens = self.log.closed_lens().unwrap_or(head.lens);
            Point { lens, ..head }.into()
        } else {
            position
        };
        self.was_at_head = false;
    }

    /// Returns the present end.
    pub fn end(&self) -> Point {
        *self.head.borrow()
    }

    /// Returns the first seq from which on nothing is missing by now.
    pub fn whole_from(&self) -> u64 {
        self.log.whole_from(self.end().seq)
    }

    /// Returns its position.
    pub fn position(&self) -> Position {
        self.at
    }

    /// Returns the next items in order: at least one, at most `bytes_max` bytes of data (but always one entry), without
    /// hole or repeat. Waits while there is none. `None`: the writer is gone and everything has been read. Cancel-safe.
    pub async fn next(&mut self, bytes_max: usize) -> io::Result<Option<Vec<Item>>> {
        let Some(head) = self.head_past_position().await else {
            return Ok(None);
        };
        let (items, lens) = self.read(head, bytes_max).await?;
        // INVARIANT: there is no await from here on, so a cancelled call has not moved the position.
        self.at = Position {
            seq: items.last().map_or(self.at.seq, Item::last_seq),
            lens,
        };
        Ok(Some(items))
    }

    /// Waits until [`Reader::next`] would not wait. Cancel-safe.
    pub async fn ready(&mut self) {
        self.head_past_position().await;
    }

    /// Returns the first existing bytes of a stream from this offset on, contiguous, at most up to another offset and
    /// at most so many.
    ///
    /// A stretch ends with its segment: call again for the bytes after it. Cancel-safe, and independent of the
    /// position.
    pub async fn bytes(
        &self,
        kind: Kind,
        begin: u64,
        end: u64,
        len_max: u64,
    ) -> io::Result<Stretch> {
        let Some(stream) = slot(kind) else {
            return Ok(Stretch::default());
        };
        let (log, head) = (Arc::clone(&self.log), self.end());
        blocking(move || log.bytes(stream, (begin, end), len_max, head)).await
    }

    /// Returns the unfinished lines at the present position. Absent: they are not known any more.
    pub async fn line_begins(&self, line_bytes_max: u32) -> io::Result<Option<LineBegins>> {
        let (log, head, seq) = (Arc::clone(&self.log), self.end(), self.at.seq);
        blocking(move || log.line_begins(seq, head, line_bytes_max)).await
    }

    /// Returns the beginning of this tail of the present output. Reads from the end, no more than it must. Does not
    /// move the position.
    pub async fn tail(&self, tail: Tail) -> io::Result<TailBegin> {
        let (log, head) = (Arc::clone(&self.log), self.end());
        blocking(move || log.tail(tail, head)).await
    }

    async fn head_past_position(&mut self) -> Option<Point> {
        loop {
            let head = *self.head.borrow_and_update();
            if head.seq > self.at.seq {
                return Some(head);
            }
            self.was_at_head = true;
            // An error means that the writer is gone, perhaps after another write since the read.
            if self.head.changed().await.is_err() && self.head.borrow().seq == self.at.seq {
                return None;
            }
        }
    }

    fn keeps_up(&self, head: Point) -> bool {
        let behind = |lens: [u64; 2]| {
            let behind = head
                .lens
                .iter()
                .zip(lens)
                .map(|(end, at)| end.saturating_sub(at));
            behind.sum::<u64>()
        };
        self.at
            .lens
            .is_some_and(|lens| behind(lens) <= KEEPS_UP_BYTES_MAX)
    }

    async fn read(
        &mut self,
        head: Point,
        bytes_max: usize,
    ) -> io::Result<(Vec<Item>, Option<[u64; 2]>)> {
        let Position { seq, lens } = self.at;
        if self.was_at_head && self.keeps_up(head) {
            let bytes_max = bytes_max.min(READ_IN_PLACE_BYTES_MAX);
            return self.log.read(seq, lens, head, bytes_max);
        }
        self.was_at_head = false;
        let log = Arc::clone(&self.log);
        blocking(move || log.read(seq, lens, head, bytes_max)).await
    }
}

/// Reads files on a thread of its own.
async fn blocking<T: Send + 'static>(
    read: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    task::spawn_blocking(read).await.map_err(io::Error::other)?
}
