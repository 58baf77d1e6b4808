//! Reads one segment from its beginning: its frames, their end, and the damage.

use super::{
    disk,
    format::{BLOCK, BLOCK_BYTES, HEADER_LEN, Header, LogPosition, SegmentId},
    frame::{
        FRAGMENT_HEAD, FRAGMENT_MIN, FRAME_HEAD, FragmentHead, FragmentPart, Frame,
        PAYLOAD_BYTES_MAX,
    },
};
use std::{fmt, fs::File, io, ops::Range};

/// Contents that a reader expected where it found others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expected {
    /// A segment of this number, or a regular file under its name.
    Segment,
    /// The header of the segment.
    Header,
    /// A fragment; everything after it in the block is lost.
    Fragment,
    /// The bytes of a fragment that match its CRC; its length is reliable.
    Bytes,
    /// The next part of a frame that begins here, or the first part of one.
    Part,
    /// A frame.
    Frame,
    /// Frames, as others follow; zeros or the end of the file were found.
    More,
    /// Bytes that the disk can read.
    Readable,
}

impl fmt::Display for Expected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Segment => "a segment",
            Self::Header => "the segment's header",
            Self::Fragment => "a fragment",
            Self::Bytes => "bytes with their CRC",
            Self::Part => "all parts of a frame in order",
            Self::Frame => "a frame",
            Self::More => "more frames",
            Self::Readable => "readable bytes",
        })
    }
}

/// A stretch of a segment whose frames are lost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogDamage {
    /// The segment.
    pub segment: SegmentId,
    /// The block in which the stretch begins.
    pub block: u32,
    /// The bytes of the file.
    pub bytes: Range<u64>,
    /// The expected contents.
    pub expected: Expected,
}

impl LogDamage {
    pub(super) fn new(segment: SegmentId, bytes: Range<u64>, expected: Expected) -> Self {
        let block = u32::try_from(bytes.start / u64::from(BLOCK_BYTES)).unwrap_or(u32::MAX);
        Self {
            segment,
            block,
            bytes,
            expected,
        }
    }

    /// Returns the beginning of the stretch.
    pub fn position(&self) -> LogPosition {
        LogPosition {
            segment: self.segment,
            offset: u32::try_from(self.bytes.start).unwrap_or(u32::MAX),
        }
    }
}

impl fmt::Display for LogDamage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Range { start, end }, segment) = (&self.bytes, self.segment);
        write!(
            f,
            "expected {} in bytes {start} to {end} of {segment}",
            self.expected
        )
    }
}

/// A whole frame in the reader's buffers.
pub(super) struct FoundFrame {
    /// Offset of its first fragment, and that after its last one.
    pub(super) bytes: Range<u64>,
    at: FrameBody,
}

enum FrameBody {
    InBlock(Range<usize>),
    InParts,
}

/// Apparent end of the frames.
#[derive(Clone, Copy, Debug)]
pub(super) struct End {
    /// Offset after the last whole frame.
    pub(super) at: u64,
    /// Whether the beginning of a frame follows.
    pub(super) is_torn: bool,
}

/// Reads one segment.
#[derive(Debug)]
pub(super) struct SegmentScan {
    file: File,
    id: SegmentId,
    len: u64,
    /// The first whole header of any block.
    pub(super) header: Option<Header>,
    /// The current block, its offset, and the end of its nonzero part.
    block: Vec<u8>,
    block_begin: u64,
    filled: usize,
    next_block: u64,
    /// Offset in the block.
    at: usize,
    /// Beginning of a frame of several parts, and the parts so far.
    partial: Option<u64>,
    parts: Vec<u8>,
    /// Set after damage: parts without their first one were reported with it.
    is_resuming: bool,
    end: Option<End>,
    pub(super) damages: Vec<LogDamage>,
}

impl SegmentScan {
    pub(super) fn new(file: File, id: SegmentId) -> io::Result<Self> {
        let len = file.metadata()?.len();
        let mut scan = Self {
            file,
            id,
            len,
            header: None,
            block: vec![0; BLOCK],
            block_begin: 0,
            filled: 0,
            next_block: 0,
            at: BLOCK,
            partial: None,
            parts: Vec::new(),
            is_resuming: false,
            end: None,
            damages: Vec::new(),
        };
        scan.header = scan.find_header();
        Ok(scan)
    }

    fn find_header(&self) -> Option<Header> {
        let mut bytes = [0; HEADER_LEN];
        (0..self.len).step_by(BLOCK).find_map(|begin| {
            disk::read(&self.file, &mut bytes, begin).ok()?;
            Header::decode(&bytes).filter(|header| header.id == self.id)
        })
    }

    /// Returns the next whole frame.
    pub(super) fn next(&mut self) -> Option<FoundFrame> {
        loop {
            if self.at + FRAGMENT_MIN > BLOCK && !self.load() {
                return None;
            }
            if let Some(found) = self.fragment() {
                if Frame::decode(self.body(&found)).is_some() {
                    return Some(found);
                }
                self.damage(found.bytes, Expected::Frame);
            }
        }
    }

    /// Returns the frame found last.
    pub(super) fn frame(&self, found: &FoundFrame) -> Option<Frame<'_>> {
        Frame::decode(self.body(found))
    }

    fn body(&self, found: &FoundFrame) -> &[u8] {
        match &found.at {
            FrameBody::InBlock(range) => &self.block[range.clone()],
            FrameBody::InParts => &self.parts,
        }
    }

    /// Returns the end of the frames, once all were read.
    pub(super) fn end(&self) -> End {
        let at = self.partial.unwrap_or(self.len);
        let is_torn = self.partial.is_some();
        self.end.unwrap_or(End { at, is_torn })
    }

    /// Reads the next block that is not empty.
    fn load(&mut self) -> bool {
        loop {
            let begin = self.next_block * u64::from(BLOCK_BYTES);
            if begin >= self.len {
                return false;
            }
            self.next_block += 1;
            self.block_begin = begin;
            if disk::read(&self.file, &mut self.block, begin).is_err() {
                self.damage(begin..begin + u64::from(BLOCK_BYTES), Expected::Readable);
                continue;
            }
            self.filled = filled(&self.block);
            if self.filled == 0 {
                self.end_at(begin, false);
                continue;
            }
            if let Some(end) = self.end.take() {
                self.damage(end.at..begin, Expected::More);
            }
            let is_ours = Header::decode(&self.block).is_some_and(|h| Some(h) == self.header);
            if !is_ours && self.filled < HEADER_LEN {
                self.end_at(begin, true);
                continue;
            }
            if !is_ours {
                // Each fragment's CRC includes the segment id: fragments are readable without the header.
                let bytes = begin..begin + HEADER_LEN as u64;
                self.damages
                    .push(LogDamage::new(self.id, bytes, Expected::Header));
            }
            self.at = HEADER_LEN;
            return true;
        }
    }

    /// Reads the fragment at this offset. Returns a frame where it completes one.
    fn fragment(&mut self) -> Option<FoundFrame> {
        let begin = self.block_begin + self.at as u64;
        let written = self.filled.saturating_sub(self.at);
        // A segment has less than 4 GiB.
        let offset = u32::try_from(begin).unwrap_or(u32::MAX);
        let head = FragmentHead::decode(&self.block[self.at..], self.id, offset);
        let cut = head.map_or(FRAGMENT_HEAD + 1, |head| head.total_len());
        if written < cut {
            // A cut write leaves the beginning of a fragment with nothing after it, or no bytes at all.
            self.end_at(begin, written > 0);
            self.at = BLOCK;
            return None;
        }
        let Some(head) = head else {
            self.damage(
                begin..self.block_begin + u64::from(BLOCK_BYTES),
                Expected::Fragment,
            );
            self.at = BLOCK;
            return None;
        };
        let bytes = begin..begin + head.total_len() as u64;
        let body = self.at + FRAGMENT_HEAD..self.at + FRAGMENT_HEAD + head.len;
        let is_good = head.is_followed_by_its_bytes(&self.block[self.at..], self.id, offset);
        self.at += head.total_len();
        if !is_good {
            self.damage(bytes, Expected::Bytes);
            return None;
        }
        self.part(head.part, bytes, body)
    }

    fn part(
        &mut self,
        part: FragmentPart,
        bytes: Range<u64>,
        body: Range<usize>,
    ) -> Option<FoundFrame> {
        let is_continued = matches!(part, FragmentPart::Middle | FragmentPart::Last);
        match (self.partial, is_continued) {
            (Some(begin), false) => self.damage(begin..bytes.start, Expected::Part),
            (None, true) if !self.is_resuming => self.damage(bytes.clone(), Expected::Part),
            (Some(begin), true)
                if self.parts.len() + body.len() > FRAME_HEAD + PAYLOAD_BYTES_MAX =>
            {
                self.damage(begin..bytes.end, Expected::Frame);
            }
            _ => {}
        }
        match part {
            FragmentPart::Whole => {
                self.is_resuming = false;
                let at = FrameBody::InBlock(body);
                Some(FoundFrame { bytes, at })
            }
            FragmentPart::First => {
                self.is_resuming = false;
                self.partial = Some(bytes.start);
                self.parts.clear();
                self.parts.extend_from_slice(&self.block[body]);
                None
            }
            FragmentPart::Middle | FragmentPart::Last => {
                let begin = self.partial?;
                self.parts.extend_from_slice(&self.block[body]);
                (part == FragmentPart::Last).then(|| {
                    self.partial = None;
                    let bytes = begin..bytes.end;
                    let at = FrameBody::InParts;
                    FoundFrame { bytes, at }
                })
            }
        }
    }

    /// Ends the frames here, unless more data is found after it.
    fn end_at(&mut self, at: u64, is_torn: bool) {
        let end = match self.partial {
            Some(begin) => End {
                at: begin,
                is_torn: true,
            },
            None => End { at, is_torn },
        };
        self.end.get_or_insert(end);
    }

    /// Records the lost bytes, with the unfinished frame before them.
    fn damage(&mut self, bytes: Range<u64>, expected: Expected) {
        let begin = self.partial.take().unwrap_or(bytes.start);
        let bytes = begin.min(bytes.start)..bytes.end;
        self.damages.push(LogDamage::new(self.id, bytes, expected));
        self.is_resuming = true;
    }
}

/// Returns the end of the nonzero part.
fn filled(block: &[u8]) -> usize {
    const CHUNK: usize = 64;
    let chunks = block.rchunks_exact(CHUNK);
    let zeros = chunks.take_while(|chunk| **chunk == [0; CHUNK]).count();
    let upto = block.len() - zeros * CHUNK;
    let last = block[..upto].iter().rposition(|byte| *byte != 0);
    last.map_or(0, |last| last + 1)
}
