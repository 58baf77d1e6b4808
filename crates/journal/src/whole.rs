//! A journal without a writer, as a whole: its contents and its size.

use crate::{
    Entry, Item, Point,
    log::Log,
    segment::{Segment, number_of},
};
use kennel_lifecycle::OnOutputFull;
use std::{fs, io, path::Path};

/// Bytes of a block: the minimum size of a file.
const BLOCK_BYTES: u64 = 4096;

/// Summary of a journal before it is removed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Whole {
    /// Its end.
    pub end: Point,
    /// Its last entry; absent: there is none, or it is missing.
    pub last: Option<Entry>,
    /// Whether the number of all missing bytes is known, as far as its segments show.
    pub counted: bool,
    /// Policy for output beyond its bound.
    pub on_full: OnOutputFull,
}

/// Reads the journal in `dir`, and changes nothing.
///
/// Checks whole indexes (36 bytes an entry): call it where blocking is allowed.
///
/// # Errors
///
/// `NotFound`: there is none. Others: it cannot be read.
pub fn whole(dir: &Path) -> io::Result<Whole> {
    let (log, end) = Log::to_read(dir)?;
    let counted = log.chain.lock().spans.iter().all(|s| s.after.is_counted());
    let last = match end.seq.checked_sub(1) {
        Some(before) => log.read(before, None, end, usize::MAX)?.0.pop(),
        None => None,
    };
    let newest = log.chain.lock().spans.last().map(|span| span.number);
    let newest = newest.map(|number| Segment::open(dir, number, false));
    let newest = newest.transpose()?.flatten();
    Ok(Whole {
        on_full: newest.map_or_else(OnOutputFull::default, |last| last.header.bound.on_full),
        end,
        last: last.and_then(Item::into_entry),
        counted,
    })
}

/// Returns the disk space of the files of the journal in `dir`, in whole blocks; 0 where there are none. Other files
/// there are not counted.
///
/// # Errors
///
/// The directory cannot be listed.
pub fn size_bytes(dir: &Path) -> io::Result<u64> {
    let files = match fs::read_dir(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(0),
        files => files?,
    };
    let mut sum = 0u64;
    for file in files {
        let file = file?;
        let name = file.file_name();
        let of_journal =
            |name: &str| matches!(name, "lifecycle" | "kept" | "mark") || number_of(name).is_some();
        if name.to_str().is_some_and(of_journal) {
            // A file that is removed at this moment takes no space.
            let len = file.metadata().map_or(0, |found| found.len());
            sum = sum.saturating_add(len.div_ceil(BLOCK_BYTES).saturating_mul(BLOCK_BYTES));
        }
    }
    Ok(sum)
}
