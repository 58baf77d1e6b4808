//! The bytes of all lifecycle lines of a journal: the first ones lie in the index of its first segment, behind the header, the
//! rest in a file of its own, each at its offset. Most runs say so little that they never get that file.
//!
//! When the first segment is removed, what lies in its index is copied into the file ([`Payloads::leave_index`]).

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

/// Whether the bytes of a line are those of a file that never got them.
pub(crate) fn is_lost(line: &[u8]) -> bool {
    !line.is_empty() && line.iter().all(|byte| *byte == 0)
}

/// Where they are, in one journal.
#[derive(Debug)]
pub(crate) struct Payloads {
    index: PathBuf,
    how: OpenOptions,
    /// The index of the first segment; absent: it was removed before.
    head: OnceLock<Option<Arc<Raw>>>,
    /// It was removed since.
    has_left_index: AtomicBool,
    rest: Raw,
}

impl Payloads {
    /// `how` says how the files are opened; the index is never made by that.
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

    /// Those of a journal whose files are made later; the first ones lie in this index.
    pub(crate) fn late(dir: &Path, how: &OpenOptions, index: Arc<Raw>) -> Self {
        Self {
            head: Some(index).into(),
            rest: Raw::late(dir.join("lifecycle"), how, Vec::new()),
            ..Self::new(dir, how)
        }
    }

    /// Makes the file, where there is something for it; the index is made behind it.
    pub(crate) fn make(&self) -> io::Result<()> {
        self.rest.make()
    }

    /// The index of the first segment, where it has the first bytes.
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

    /// The index, where the first part of a range lies in it, and where that part ends.
    fn split(&self, begin: u64, end: u64) -> io::Result<(Option<&Raw>, u64)> {
        let head = self.head()?.filter(|_| begin < HEAD_LEN);
        let middle = head.map_or(begin, |_| end.min(HEAD_LEN));
        Ok((head, middle))
    }

    /// How many bytes there are at most.
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

    /// Cuts what is beyond this offset.
    pub(crate) fn cut(&self, offset: u64) -> io::Result<()> {
        if offset < HEAD_LEN
            && let Some(head) = self.head()?
        {
            // In the index it cannot be cut: what comes behind is there already.
            let zeros = vec![0; length(offset, HEAD_LEN)];
            head.write(&zeros, HEAD_AT + offset)?;
        }
        self.rest.cut(offset)
    }

    /// Makes what was written survive a power loss.
    pub(crate) fn sync(&self) -> io::Result<()> {
        if let Some(head) = self.head()? {
            head.sync()?;
        }
        self.rest.sync()
    }

    /// Whether a line was lost, with the host or by damage: its entry is there, and its bytes, which lay in the index, are not.
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

    /// The first segment is about to be removed: copies the bytes up to `end` that lie in its index.
    ///
    /// A crash after it: the index is read as before, and this is done again.
    pub(crate) fn leave_index(&self, end: u64) -> io::Result<()> {
        let end = end.min(HEAD_LEN);
        if self.head()?.is_some() && end > 0 {
            self.rest.write(&self.read(0, end)?, 0)?;
        }
        self.rest.sync()
    }

    /// The index of the first segment may have been removed: then it is not written any more.
    pub(crate) fn look_for_index(&self) {
        if !self.index.exists() {
            self.has_left_index.store(true, Ordering::Release);
        }
    }
}
