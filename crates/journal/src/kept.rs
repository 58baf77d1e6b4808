//! The lifecycle entries whose segments were removed: records of one size, in the order of their seqs.
//!
//! | record  | bytes |                                                        |
//! |---------|-------|--------------------------------------------------------|
//! | entry   | 0-35  | as it was in its index                                 |
//! | lengths | 36-51 | of stdout and of stderr before it                      |
//! | crc     | 52-55 | CRC-32 (IEEE) of the bytes before                      |

use crate::{
    Point,
    errors::failed,
    format::{ENTRY_LEN, IndexEntry, take},
    segment::writing,
};
use std::{
    fs::{File, OpenOptions},
    io,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
};

const RECORD_LEN: usize = 56;
const CRC_AT: usize = RECORD_LEN - 4;
const NAME: &str = "kept";
/// Records read with one pread.
const CHUNK: usize = 256;

/// A lifecycle entry, and the position before it.
pub(crate) type RetainedEntry = (IndexEntry, Point);

/// The file, as it was when it was opened; a missing one is empty.
#[derive(Debug)]
pub(crate) struct KeptFile {
    path: PathBuf,
    file: Option<File>,
    /// Number of whole records.
    count: u64,
}

impl KeptFile {
    pub(crate) fn open(dir: &Path) -> io::Result<Self> {
        let path = dir.join(NAME);
        let file = match File::open(&path) {
            Ok(file) => Some(file),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(failed("open", &path, error)),
        };
        let len = match &file {
            Some(file) => file.metadata().map(|m| m.len()),
            None => Ok(0),
        };
        let len = len.map_err(|e| failed("find the length of", &path, e))?;
        let mut kept = Self {
            path,
            file,
            count: len / RECORD_LEN as u64,
        };
        // An append that a crash cut off leaves no valid record; the entries are still in their segment.
        while kept.count > 0 && kept.record(kept.count - 1)?.is_none() {
            kept.count -= 1;
        }
        Ok(kept)
    }

    /// Returns the records after this seq up to another one, at most so many.
    pub(crate) fn between(
        &self,
        after: u64,
        last: u64,
        count_max: usize,
    ) -> io::Result<Vec<RetainedEntry>> {
        let mut at = self.first_after(after)?;
        let mut found = Vec::new();
        while at < self.count {
            for kept in self.chunk(at)? {
                at += 1;
                let Some(kept) = kept else {
                    let why = format!("record {at} is broken");
                    return Err(crate::errors::damaged(&self.path, why));
                };
                if kept.0.seq > last || found.len() == count_max {
                    return Ok(found);
                }
                found.push(kept);
            }
        }
        Ok(found)
    }

    /// Returns the number of the first record after this seq.
    fn first_after(&self, seq: u64) -> io::Result<u64> {
        let (mut low, mut high) = (0, self.count);
        while low < high {
            let middle = low + (high - low) / 2;
            match self.record(middle)? {
                Some((entry, _)) if entry.seq <= seq => low = middle + 1,
                _ => high = middle,
            }
        }
        Ok(low)
    }

    fn record(&self, number: u64) -> io::Result<Option<RetainedEntry>> {
        Ok(self.read(number, 1)?.pop().flatten())
    }

    fn chunk(&self, from: u64) -> io::Result<Vec<Option<RetainedEntry>>> {
        let left = usize::try_from(self.count - from).unwrap_or(CHUNK);
        self.read(from, left.min(CHUNK))
    }

    fn read(&self, from: u64, count: usize) -> io::Result<Vec<Option<RetainedEntry>>> {
        let Some(file) = &self.file else {
            return Ok(Vec::new());
        };
        let mut bytes = vec![0; count * RECORD_LEN];
        file.read_exact_at(&mut bytes, from * RECORD_LEN as u64)
            .map_err(|e| failed("read", &self.path, e))?;
        Ok(bytes.chunks_exact(RECORD_LEN).map(decode).collect())
    }

    /// Cuts a torn tail, and all records from the first one on that is in one of these segments, {after, up to}: their
    /// writer died before it had removed the segment.
    pub(crate) fn mend(&mut self, segments: &[(u64, u64)]) -> io::Result<()> {
        if self.file.is_none() {
            return Ok(());
        }
        for (after, last) in segments {
            if let Some((entry, _)) = self.between(*after, *last, 1)?.first() {
                self.count = self.first_after(entry.seq - 1)?;
            }
        }
        let file = OpenOptions::new().write(true).open(&self.path);
        file.and_then(|file| file.set_len(self.count * RECORD_LEN as u64))
            .map_err(|e| failed("truncate", &self.path, e))
    }
}

/// Appends records and makes them survive a power loss: their segment is about to be removed.
pub(crate) fn append(dir: &Path, records: &[RetainedEntry]) -> io::Result<()> {
    let path = dir.join(NAME);
    let file = writing()
        .open(&path)
        .map_err(|e| failed("open", &path, e))?;
    let write = || {
        let len = file.metadata()?.len();
        let whole = len - len % RECORD_LEN as u64;
        file.write_all_at(&encode_all(records), whole)?;
        file.sync_data()?;
        if len == 0 {
            File::open(dir)?.sync_all()?;
        }
        Ok(())
    };
    write().map_err(|e| failed("write", &path, e))
}

fn encode_all(records: &[RetainedEntry]) -> Vec<u8> {
    records.iter().flat_map(encode).collect()
}

fn encode((entry, before): &RetainedEntry) -> [u8; RECORD_LEN] {
    let mut bytes = [0; RECORD_LEN];
    bytes[..ENTRY_LEN].copy_from_slice(&entry.encode());
    bytes[36..44].copy_from_slice(&before.lens[0].to_le_bytes());
    bytes[44..52].copy_from_slice(&before.lens[1].to_le_bytes());
    let crc = crc32fast::hash(&bytes[..CRC_AT]);
    bytes[CRC_AT..].copy_from_slice(&crc.to_le_bytes());
    bytes
}

fn decode(bytes: &[u8]) -> Option<RetainedEntry> {
    if u32::from_le_bytes(take(bytes, CRC_AT)) != crc32fast::hash(&bytes[..CRC_AT]) {
        return None;
    }
    let entry = IndexEntry::decode(&bytes[..ENTRY_LEN])?;
    let number = |at| u64::from_le_bytes(take(bytes, at));
    let before = Point {
        seq: entry.seq.checked_sub(1)?,
        lens: [number(36), number(44)],
    };
    Some((entry, before))
}
