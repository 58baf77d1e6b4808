//! Reads the frames of earlier servers.

use super::{
    disk,
    format::{BLOCK_BYTES, HEADER_LEN, Header, LAYOUT, LogPosition, Origin, SegmentId},
    frame::{FRAGMENT_MIN, Frame},
    inventory::{ClosedSegment, Summary},
    scan::{Expected, LogDamage, SegmentScan},
};
use crate::errors::failed;
use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
};

/// A frame of an earlier server.
#[derive(Clone, Copy, Debug)]
pub struct ReplayedFrame<'a> {
    /// Its position.
    pub position: LogPosition,
    /// The server that wrote it; `None`: no header of the segment is readable. Frames of another boot may be lost up to
    /// the last sync, so that the remaining ones do not prove completeness.
    pub origin: Option<Origin>,
    /// The frame.
    pub frame: Frame<'a>,
}

/// One segment of an earlier server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplayedSegment {
    /// The segment.
    pub id: SegmentId,
    /// The server that wrote it; `None`: no header of the segment is readable.
    pub origin: Option<Origin>,
    /// Length of the file.
    pub len: u64,
    /// End of its frames.
    pub end: u64,
    /// Whether the unfinished beginning of a frame follows.
    pub is_torn: bool,
    /// Number of whole frames.
    pub frames: u64,
}

/// The segments of all earlier servers.
#[derive(Debug, Default)]
pub struct Replayed {
    /// The segments, in the order of the log.
    pub segments: Vec<ReplayedSegment>,
    /// The damage, in the order of the log. The torn tail of a server's last segment is not damage.
    pub damages: Vec<LogDamage>,
}

/// Reason why the log of earlier servers cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum ReplayError {
    /// An earlier server may still write: recovery waits.
    #[error("a former server still holds its lock on {path}")]
    FormerServer {
        /// Its segment.
        path: PathBuf,
    },
    /// Another version wrote it.
    #[error("{path} has layout {found} of the log, and this version reads {LAYOUT}")]
    Layout {
        /// The segment.
        path: PathBuf,
        /// Its layout.
        found: u32,
    },
    /// The directory or a file in it cannot be opened.
    #[error("cannot read the log of former servers")]
    Read(#[from] io::Error),
}

/// Returns a segment of a server before `generation` whose lock another process holds.
pub(super) fn locked_by_former(dir: &Path, generation: u64) -> io::Result<Option<PathBuf>> {
    // No server creates a segment meanwhile: a live server has a locked segment in this list.
    let _lock = disk::lock_dir(dir)?;
    for id in former_segments(dir, generation)? {
        let path = id.path(dir);
        match disk::is_locked(&path) {
            Ok(true) => return Ok(Some(path)),
            Ok(false) => {}
            // The segment is gone, or a link: no server writes to it.
            Err(error) if is_no_segment(&error) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(None)
}

fn former_segments(dir: &Path, generation: u64) -> io::Result<Vec<SegmentId>> {
    let mut ids = disk::segments(dir)?;
    ids.retain(|id| id.generation < generation);
    Ok(ids)
}

fn is_no_segment(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::NotFound | io::ErrorKind::InvalidData
    )
}

/// Passes each frame of the segments before `generation` to `visit`, in the order of the log.
pub(super) fn replay(
    dir: &Path,
    generation: u64,
    visit: &mut dyn FnMut(ReplayedFrame<'_>),
) -> Result<(Replayed, Vec<ClosedSegment>), ReplayError> {
    let mut replayed = Replayed::default();
    let mut closed = Vec::new();
    let ids = former_segments(dir, generation)?;
    check_layouts(dir, &ids)?;
    for (index, id) in ids.iter().enumerate() {
        let next = ids
            .get(index + 1)
            .filter(|next| next.generation == id.generation);
        let after = After::of(dir, *id, next.copied());
        closed.extend(segment(dir, *id, after, &mut replayed, visit)?);
        replayed.damages.extend(missing(*id, next.copied()));
    }
    Ok((replayed, closed))
}

/// Successor of a segment, of the same server.
#[derive(Clone, Copy)]
enum After {
    /// None: a torn tail is normal.
    Nothing,
    /// Another segment, which has the end of this one, if its header is readable.
    Segment(Option<u32>),
}

impl After {
    fn of(dir: &Path, id: SegmentId, next: Option<SegmentId>) -> Self {
        let Some(next) = next else {
            return Self::Nothing;
        };
        if Some(next.number) != id.number.checked_add(1) {
            return Self::Segment(None);
        }
        let scan = disk::open(&next.path(dir)).and_then(|file| SegmentScan::new(file, next));
        let header = scan.ok().and_then(|scan| scan.header);
        Self::Segment(header.map(|header| header.previous_end))
    }
}

/// Returns the missing segments between the two.
fn missing(id: SegmentId, next: Option<SegmentId>) -> Option<LogDamage> {
    let first = id.number.checked_add(1)?;
    let segment = SegmentId {
        number: first,
        ..id
    };
    let is_missing = next.is_some_and(|next| next.number != first);
    is_missing.then(|| LogDamage::new(segment, 0..0, Expected::Segment))
}

fn check_layouts(dir: &Path, ids: &[SegmentId]) -> Result<(), ReplayError> {
    for id in ids {
        let path = id.path(dir);
        let mut bytes = [0; HEADER_LEN];
        let read = disk::open(&path).and_then(|file| disk::read(&file, &mut bytes, 0));
        let header = read.ok().and_then(|()| Header::decode(&bytes));
        if let Some(Header { layout: found, .. }) = header.filter(|h| h.layout != LAYOUT) {
            return Err(ReplayError::Layout { path, found });
        }
    }
    Ok(())
}

fn segment(
    dir: &Path,
    id: SegmentId,
    after: After,
    replayed: &mut Replayed,
    visit: &mut dyn FnMut(ReplayedFrame<'_>),
) -> io::Result<Option<ClosedSegment>> {
    let path = id.path(dir);
    let mut summary = Summary::default();
    let file = match disk::open(&path) {
        Err(error) if is_no_segment(&error) => {
            let damage = LogDamage::new(id, 0..0, Expected::Segment);
            replayed.damages.push(damage);
            return Ok(None);
        }
        opened => opened?,
    };
    let mut scan = SegmentScan::new(file, id).map_err(|e| failed("read", &path, e))?;
    let origin = scan.header.map(|header| header.origin);
    let mut frames = 0;
    while let Some(found) = scan.next() {
        let Some(frame) = scan.frame(&found) else {
            continue;
        };
        frames += 1;
        summary.add(&frame, found.bytes.end - found.bytes.start);
        let offset = u32::try_from(found.bytes.start).unwrap_or(u32::MAX);
        let position = LogPosition {
            segment: id,
            offset,
        };
        visit(ReplayedFrame {
            position,
            origin,
            frame,
        });
    }
    let end = scan.end();
    let short = is_short(end.at, end.is_torn, after);
    replayed.damages.append(&mut scan.damages);
    replayed
        .damages
        .extend(short.map(|upto| LogDamage::new(id, end.at..upto, Expected::More)));
    let len = fs::symlink_metadata(&path).map_or(0, |found| found.len());
    replayed.segments.push(ReplayedSegment {
        id,
        origin,
        len,
        end: end.at,
        is_torn: end.is_torn,
        frames,
    });
    Ok(Some(ClosedSegment::new(id, len, Arc::new(summary))))
}

/// Returns the offset of the next fragment: the rest of a block may be too short for one.
fn next_fragment(end: u64) -> u64 {
    let block = u64::from(BLOCK_BYTES);
    let room = block - end % block;
    if room < FRAGMENT_MIN as u64 {
        end + room
    } else {
        end
    }
}

/// Returns up to where frames are missing at the end of a segment.
fn is_short(end: u64, is_torn: bool, after: After) -> Option<u64> {
    match after {
        After::Nothing => None,
        After::Segment(Some(upto)) => {
            let (end, upto) = (next_fragment(end), next_fragment(u64::from(upto)));
            (end != upto).then(|| end.max(upto))
        }
        After::Segment(None) => is_torn.then_some(end),
    }
}
