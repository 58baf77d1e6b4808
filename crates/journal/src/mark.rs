//! A seq that no entry has passed: on the disk before one gets near it, so that after a loss of power none comes again.
//!
//! Two slots of 16 bytes {seq, crc, 0}, far enough from each other that one write does not tear both, are written in
//! turn. Where there is no such file, the mark is the first one.

use crate::{errors::failed, format::take, segment::writing};
use std::{
    fs::File,
    io,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
};

/// Step by which the mark is raised.
pub(crate) const STEP: u64 = 65_536;
const NAME: &str = "mark";
const SLOT_LEN: usize = 16;
const SLOTS_APART: u64 = 4096;

/// The mark of a journal that is written.
#[derive(Debug)]
pub(crate) struct Mark {
    path: PathBuf,
    seq: u64,
}

impl Mark {
    pub(crate) fn open(dir: &Path) -> io::Result<Self> {
        let path = dir.join(NAME);
        let seq = match File::open(&path) {
            Ok(file) => read(&file).map_err(|e| failed("read", &path, e))?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => STEP,
            Err(error) => return Err(failed("open", &path, error)),
        };
        Ok(Self { path, seq })
    }

    /// Makes the mark of a new journal.
    pub(crate) fn first(dir: &Path) -> Self {
        Self {
            path: dir.join(NAME),
            seq: STEP,
        }
    }

    pub(crate) fn seq(&self) -> u64 {
        self.seq
    }

    /// Ensures that the mark on the disk is not below this seq.
    pub(crate) fn cover(&mut self, seq: u64) -> io::Result<()> {
        if seq <= self.seq {
            return Ok(());
        }
        let raised = (seq / STEP + 1) * STEP;
        self.write(raised)
            .map_err(|e| failed("write", &self.path, e))?;
        self.seq = raised;
        Ok(())
    }

    fn write(&self, seq: u64) -> io::Result<()> {
        let file = writing().open(&self.path)?;
        let is_new = file.metadata()?.len() == 0;
        let mut slot = [0; SLOT_LEN];
        slot[..8].copy_from_slice(&seq.to_le_bytes());
        let crc = crc32fast::hash(&slot[..8]);
        slot[8..12].copy_from_slice(&crc.to_le_bytes());
        file.write_all_at(&slot, (seq / STEP % 2) * SLOTS_APART)?;
        file.sync_data()?;
        if is_new {
            File::open(self.path.parent().unwrap_or(Path::new(".")))?.sync_all()?;
        }
        Ok(())
    }
}

fn read(file: &File) -> io::Result<u64> {
    let mut seq = STEP;
    for number in 0..2 {
        let mut slot = [0; SLOT_LEN];
        match file.read_exact_at(&mut slot, number * SLOTS_APART) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => continue,
            Err(error) => return Err(error),
        }
        if u32::from_le_bytes(take(&slot, 8)) == crc32fast::hash(&slot[..8]) {
            seq = seq.max(u64::from_le_bytes(take(&slot, 0)));
        }
    }
    Ok(seq)
}
