//! The segments of a writer: the beginning of one, its successor, and the bounds of an entry.

use crate::{
    Boot, ENTRY_BYTES_MAX, Kind, Point,
    errors::failed,
    format::{After, Header},
    segment::{Segment, remove_files},
};
use kennel_lifecycle::{OutputBound, Timestamp};
use std::{fs, io, path::Path};

/// Disk space required for output to be written again.
const ROOM_MIN: usize = 256 * 1024;
/// File that is written to check that space.
pub(super) const PROBE: &str = "probe";

pub(super) fn header(bound: OutputBound, boot: Boot, now: Timestamp) -> Header {
    Header {
        number: 0,
        first: Point::default(),
        facts_len: 0,
        boot,
        bound,
        after: After::All,
        attempt: 1,
        at: now,
    }
}

/// Begins the only segment of a journal that has none with a header: its writer died before it was made. Its streams
/// may have bytes that no entry refers to.
pub(super) fn begin_anew(dir: &Path, header: Header) -> io::Result<Segment> {
    crate::errors::remove(&dir.join("index"))?;
    Segment::create(dir, header)
}

/// Creates the segment after another one that ended here. Bytes there that no entry refers to are moved to it: none of
/// them was delivered under a known seq.
///
/// A crash before the header is written: the streams without it are strays, and the call is repeated.
pub(super) fn follow(
    dir: &Path,
    before: &Segment,
    end: Point,
    header: Header,
) -> io::Result<Segment> {
    remove_files(dir, header.number)?;
    for (stream, name) in ["stdout", "stderr"].into_iter().enumerate() {
        let raw = &before.raw[stream];
        let found = raw.end()?;
        if found > end.lens[stream] {
            let bytes = raw.read(end.lens[stream], found)?;
            fs::write(dir.join(format!("{name}.{}", header.number)), bytes)?;
        }
    }
    let next = Segment::create(dir, header)?;
    before.raw[0].cut(end.lens[0])?;
    before.raw[1].cut(end.lens[1])?;
    next.sync()?;
    Ok(next)
}

/// Checks whether the disk has enough space for another segment.
pub(super) fn probe(dir: &Path) -> io::Result<()> {
    let path = dir.join(PROBE);
    let written = fs::write(&path, vec![0; ROOM_MIN]).map_err(|e| failed("write", &path, e));
    crate::errors::remove(&path)?;
    written
}

/// Returns the length of the entry that begins here. A lifecycle payload, whose length was checked, is one entry.
pub(super) fn piece(kind: Kind, begin: u64, end: u64) -> u32 {
    let most = match kind {
        Kind::Lifecycle => u32::MAX,
        Kind::Stdout | Kind::Stderr => ENTRY_BYTES_MAX,
    };
    u32::try_from(end - begin).map_or(most, |len| len.min(most))
}

pub(super) fn whole() -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidInput,
        "lifecycle entries are written whole",
    )
}
