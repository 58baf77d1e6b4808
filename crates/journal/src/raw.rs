//! A raw file: the bytes of one stream, in one segment or in all.

use crate::errors::failed;
use bytes::Bytes;
use std::{
    fs::{File, OpenOptions},
    io,
    os::unix::fs::FileExt,
    path::PathBuf,
    sync::OnceLock,
};

/// A raw file. It is made with its first byte: many commands never write to one of their streams, and a file costs an inode
/// and a descriptor. One that is not there is empty.
#[derive(Debug)]
pub(crate) struct Raw {
    path: PathBuf,
    how: OpenOptions,
    /// Offset in the stream of the file's first byte.
    base: u64,
    file: OnceLock<File>,
}

impl Raw {
    pub(crate) fn new(path: PathBuf, how: &OpenOptions, base: u64) -> Self {
        Self {
            path,
            how: how.clone(),
            base,
            file: OnceLock::new(),
        }
    }

    /// The file; a writer makes it where it is missing.
    pub(crate) fn file(&self) -> io::Result<&File> {
        if let Some(file) = self.file.get() {
            return Ok(file);
        }
        let file = self.how.open(&self.path);
        let file = file.map_err(|e| self.failed("open", e))?;
        // Two readers may open it at once: the first one stays.
        Ok(self.file.get_or_init(|| file))
    }

    /// The file, if it is there.
    pub(crate) fn made(&self) -> io::Result<Option<&File>> {
        if self.file.get().is_none() && !self.path.exists() {
            return Ok(None);
        }
        self.file().map(Some)
    }

    /// Whether the file was made or opened here.
    pub(crate) fn is_open(&self) -> bool {
        self.file.get().is_some()
    }

    /// Where in the file this offset of the stream is.
    pub(crate) fn place(&self, offset: u64) -> u64 {
        offset.saturating_sub(self.base)
    }

    /// Offset in the stream of the file's end.
    pub(crate) fn end(&self) -> io::Result<u64> {
        let len = match self.made()? {
            Some(file) => file.metadata().map(|m| m.len()),
            None => Ok(0),
        };
        len.map(|len| self.base + len)
            .map_err(|e| self.failed("find the length of", e))
    }

    pub(crate) fn read(&self, begin: u64, end: u64) -> io::Result<Bytes> {
        // Bounded by what a reader asks for at once, which fits into 32 bits.
        let mut bytes = vec![0; usize::try_from(end - begin).unwrap_or(usize::MAX)];
        self.file()?
            .read_exact_at(&mut bytes, self.place(begin))
            .map_err(|e| self.failed("read", e))?;
        Ok(bytes.into())
    }

    pub(crate) fn write(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.file()?
            .write_all_at(bytes, self.place(offset))
            .map_err(|e| self.failed("write", e))
    }

    /// Cuts what is beyond this offset of the stream.
    pub(crate) fn cut(&self, offset: u64) -> io::Result<()> {
        match self.made()? {
            Some(file) => file
                .set_len(self.place(offset))
                .map_err(|e| self.failed("truncate", e)),
            None => Ok(()),
        }
    }

    /// Makes what was written survive a power loss.
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
