//! A raw file: the bytes of one stream, in one segment or in all; or an index.

use crate::errors::failed;
use bytes::Bytes;
use parking_lot::Mutex;
use std::{
    fs::{File, OpenOptions},
    io::{self, ErrorKind},
    os::unix::fs::FileExt,
    path::PathBuf,
    sync::OnceLock,
};

/// A raw file. It is created with its first byte: many commands never write to one of their streams, and a file costs
/// an inode and a descriptor. A missing one is empty.
#[derive(Debug)]
pub(crate) struct Raw {
    path: PathBuf,
    how: OpenOptions,
    /// Offset in the stream of the file's first byte.
    base: u64,
    file: OnceLock<File>,
    /// The bytes of a file that is created later ([`Raw::make`]); absent: it is not.
    memory: Mutex<Option<Vec<u8>>>,
}

impl Raw {
    pub(crate) fn new(path: PathBuf, how: &OpenOptions, base: u64) -> Self {
        Self {
            path,
            how: how.clone(),
            base,
            file: OnceLock::new(),
            memory: Mutex::default(),
        }
    }

    /// Takes a file that is open already, from its stream's beginning.
    pub(crate) fn opened(path: PathBuf, how: &OpenOptions, file: File) -> Self {
        Self {
            file: file.into(),
            ..Self::new(path, how, 0)
        }
    }

    /// Makes a file whose first bytes stay in memory until [`Self::make`].
    pub(crate) fn late(path: PathBuf, how: &OpenOptions, bytes: Vec<u8>) -> Self {
        Self {
            memory: Mutex::new(Some(bytes)),
            ..Self::new(path, how, 0)
        }
    }

    /// Whether its bytes are in memory.
    pub(crate) fn is_late(&self) -> bool {
        self.file.get().is_none() && self.memory.lock().is_some()
    }

    /// Creates the file, and writes the bytes in memory with one write. An empty file is created with its first byte.
    ///
    /// # Errors
    ///
    /// Nothing was created, and the call may be repeated.
    pub(crate) fn make(&self) -> io::Result<()> {
        let mut memory = self.memory.lock();
        let Some(bytes) = memory.as_ref() else {
            return Ok(());
        };
        if !bytes.is_empty() {
            let file = self.how.open(&self.path);
            let file = file.map_err(|e| self.failed("open", e))?;
            if let Err(error) = file.write_all_at(bytes, 0) {
                crate::errors::remove(&self.path)?;
                return Err(self.failed("write", error));
            }
            // The cell is empty: while bytes are in memory, requests for the file get none.
            let _ = self.file.set(file);
        }
        *memory = None;
        Ok(())
    }

    /// Returns the file; a writer creates it where it is missing.
    pub(crate) fn file(&self) -> io::Result<&File> {
        if let Some(file) = self.file.get() {
            return Ok(file);
        }
        let file = self.how.open(&self.path);
        let file = file.map_err(|e| self.failed("open", e))?;
        // Two readers may open the file at once: the first handle stays.
        Ok(self.file.get_or_init(|| file))
    }

    /// Returns the file, if it exists.
    pub(crate) fn made(&self) -> io::Result<Option<&File>> {
        if self.file.get().is_none() && (self.memory.lock().is_some() || !self.path.exists()) {
            return Ok(None);
        }
        self.file().map(Some)
    }

    /// Whether the file was created or opened here.
    pub(crate) fn is_open(&self) -> bool {
        self.file.get().is_some()
    }

    /// Returns the offset in the file of this offset in the stream.
    pub(crate) fn place(&self, offset: u64) -> u64 {
        offset.saturating_sub(self.base)
    }

    /// Returns the offset in the stream of the file's end.
    pub(crate) fn end(&self) -> io::Result<u64> {
        if self.file.get().is_none()
            && let Some(bytes) = self.memory.lock().as_ref()
        {
            return Ok(bytes.len() as u64);
        }
        let len = match self.made()? {
            Some(file) => file.metadata().map(|m| m.len()),
            None => Ok(0),
        };
        len.map(|len| self.base + len)
            .map_err(|e| self.failed("find the length of", e))
    }

    pub(crate) fn read(&self, begin: u64, end: u64) -> io::Result<Bytes> {
        // The length is bounded by one read, which fits into 32 bits.
        let mut bytes = vec![0; length(begin, end)];
        if self.file.get().is_none()
            && let Some(memory) = self.memory.lock().as_ref()
        {
            let at = length(0, begin);
            let found = memory.get(at..at + bytes.len());
            let found =
                found.ok_or_else(|| self.failed("read", ErrorKind::UnexpectedEof.into()))?;
            return Ok(Bytes::copy_from_slice(found));
        }
        self.file()?
            .read_exact_at(&mut bytes, self.place(begin))
            .map_err(|e| self.failed("read", e))?;
        Ok(bytes.into())
    }

    pub(crate) fn write(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        if self.file.get().is_none()
            && let Some(memory) = self.memory.lock().as_mut()
        {
            let at = length(0, offset);
            memory.resize(memory.len().max(at + bytes.len()), 0);
            memory[at..at + bytes.len()].copy_from_slice(bytes);
            return Ok(());
        }
        self.file()?
            .write_all_at(bytes, self.place(offset))
            .map_err(|e| self.failed("write", e))
    }

    /// Cuts the bytes after this offset of the stream.
    pub(crate) fn cut(&self, offset: u64) -> io::Result<()> {
        match self.made()? {
            Some(file) => file
                .set_len(self.place(offset))
                .map_err(|e| self.failed("truncate", e)),
            None => Ok(()),
        }
    }

    /// Makes written bytes survive a power loss.
    pub(crate) fn sync(&self) -> io::Result<()> {
        match self.made()? {
            Some(file) => file.sync_data().map_err(|e| self.failed("sync", e)),
            None => Ok(()),
        }
    }

    fn failed(&self, what: &'static str, source: io::Error) -> io::Error {
        failed(what, &self.path, source)
    }
}

/// Returns the number of bytes between two offsets.
pub(crate) fn length(begin: u64, end: u64) -> usize {
    usize::try_from(end - begin).unwrap_or(usize::MAX)
}
