//! The bytes of all lifecycle lines of a journal: the first ones are in the index of its first segment, after the
//! header, the others in a separate file, each at its offset. Most runs have so few that they never get that file.
//!
//! When the first segment is removed, the bytes in its index are copied into the file ([`Payloads::leave_index`]).

use crate::{
    errors::failed,
    format::{HEAD_AT, HEAD_LEN},
    raw::{Raw, length},
};
use bytes::{Bytes, BytesMut};
use std::{
    fs::OpenOptions,
    io,
    path::{Path, PathBuf},
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
};

/// Whether the bytes of a line are those of a file to which they were never written.
pub(crate) fn is_lost(line: &[u8]) -> bool {
    !line.is_empty() && line.iter().all(|byte| *byte == 0)
}

/// Location of the bytes in one journal.
#[derive(Debug)]
pub(crate) struct Payloads {
    index: PathBuf,
    how: OpenOptions,
    /// The index of the first segment; absent: it was removed before.
    head: OnceLock<Option<Arc<Raw>>>,
    /// Whether the index was removed since.
    has_left_index: AtomicBool,
    rest: Raw,
}

impl Payloads {
    /// Locates the bytes. `how` are the options for opening the files; the index is never created by that.
    pub(crate) fn new(dir: &Path, how: &OpenOptions) -> Self {
        let mut opening = how.clone();
        opening.create(false);
        Self {
            index: dir.join("index"),
            how: opening,
            head: OnceLock::new(),
            has_left_index: AtomicBool::new(false),
            rest: Raw::new(dir.join("lifecycle"), how, 0),
        }
    }

    /// Locates those of a journal whose files are created later; the first ones are in this index.
    pub(crate) fn late(dir: &Path, how: &OpenOptions, index: Arc<Raw>) -> Self {
        Self {
            head: Some(index).into(),
            rest: Raw::late(dir.join("lifecycle"), how, Vec::new()),
            ..Self::new(dir, how)
        }
    }

    /// Creates the file, where it will have contents; the index is created after it.
    pub(crate) fn make(&self) -> io::Result<()> {
        self.rest.make()
    }

    /// Returns the index of the first segment, where it has the first bytes.
    fn head(&self) -> io::Result<Option<&Raw>> {
        if self.has_left_index.load(Ordering::Acquire) {
            return Ok(None);
        }
        if let Some(head) = self.head.get() {
            return Ok(head.as_deref());
        }
        let head = match self.how.open(&self.index) {
            Ok(file) => Some(Arc::new(Raw::opened(self.index.clone(), &self.how, file))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(failed("open", &self.index, error)),
        };
        Ok(self.head.get_or_init(|| head).as_deref())
    }

    /// Returns the index, where the first part of a range is in it, and the end of that part.
    fn split(&self, begin: u64, end: u64) -> io::Result<(Option<&Raw>, u64)> {
        let head = self.head()?.filter(|_| begin < HEAD_LEN);
        let middle = head.map_or(begin, |_| end.min(HEAD_LEN));
        Ok((head, middle))
    }

    /// Returns an upper bound of the length.
    pub(crate) fn end(&self) -> io::Result<u64> {
        let has_head = !self.has_left_index.load(Ordering::Acquire) && self.index.exists();
        let head = if has_head { HEAD_LEN } else { 0 };
        Ok(self.rest.end()?.max(head))
    }

    pub(crate) fn read(&self, begin: u64, end: u64) -> io::Result<Bytes> {
        let (head, middle) = self.split(begin, end)?;
        let Some(head) = head else {
            return self.rest.read(begin, end);
        };
        let first = head.read(HEAD_AT + begin, HEAD_AT + middle)?;
        if middle == end {
            return Ok(first);
        }
        let mut bytes = BytesMut::from(first);
        bytes.extend_from_slice(&self.rest.read(middle, end)?);
        Ok(bytes.freeze())
    }

    pub(crate) fn write(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        let (head, middle) = self.split(offset, offset + bytes.len() as u64)?;
        let (first, rest) = bytes.split_at(length(offset, middle));
        if let Some(head) = head {
            head.write(first, HEAD_AT + offset)?;
        }
        if rest.is_empty() {
            return Ok(());
        }
        self.rest.write(rest, middle)
    }

    /// Cuts the bytes after this offset.
    pub(crate) fn cut(&self, offset: u64) -> io::Result<()> {
        if offset < HEAD_LEN
            && let Some(head) = self.head()?
        {
            // Bytes in the index are zeroed, not cut: entries follow them.
            let zeros = vec![0; length(offset, HEAD_LEN)];
            head.write(&zeros, HEAD_AT + offset)?;
        }
        self.rest.cut(offset)
    }

    /// Makes written bytes survive a power loss.
    pub(crate) fn sync(&self) -> io::Result<()> {
        if let Some(head) = self.head()? {
            head.sync()?;
        }
        self.rest.sync()
    }

    /// Whether a line was lost, with the host or by damage: its entry is there, and its bytes, which were in the index,
    /// are not.
    pub(crate) fn is_lost(&self, begin: u64, end: u64) -> io::Result<bool> {
        if begin >= end.min(HEAD_LEN) {
            return Ok(false);
        }
        match self.read(begin, end) {
            Ok(bytes) => Ok(is_lost(&bytes)),
            Err(error) => match error.kind() {
                io::ErrorKind::UnexpectedEof | io::ErrorKind::NotFound => Ok(true),
                _ => Err(error),
            },
        }
    }

    /// Copies the bytes up to `end` in the index of the first segment, which is about to be removed.
    ///
    /// A crash after it: the index is read as before, and this is done again.
    pub(crate) fn leave_index(&self, end: u64) -> io::Result<()> {
        let end = end.min(HEAD_LEN);
        if self.head()?.is_some() && end > 0 {
            self.rest.write(&self.read(0, end)?, 0)?;
        }
        self.rest.sync()
    }

    /// Checks whether the index of the first segment was removed: then it is not written any more.
    pub(crate) fn look_for_index(&self) {
        if !self.index.exists() {
            self.has_left_index.store(true, Ordering::Release);
        }
    }
}
