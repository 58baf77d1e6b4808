//! Frames, and their fragments on disk.

use super::format::{BLOCK, END_MARK, HEADER_LEN, SegmentId};
use crate::format::take;
use kennel_lifecycle::Timestamp;
use std::ops::Range;

/// Largest payload of one frame.
pub const PAYLOAD_BYTES_MAX: usize = 16 * 1024 * 1024;
/// Flag in a kind: a reader that does not know the kind may not act for the run.
pub const CRITICAL: u16 = 0x8000;
/// Flag in a kind: the frame replaces all frames of its run up to its seq.
pub const SNAPSHOT: u16 = 0x4000;
/// Flag in a kind: the frame may use the reserve of a full disk (ends, stops, fences).
pub const ESSENTIAL: u16 = 0x2000;

/// Length of the fields before a payload.
pub(super) const FRAME_HEAD: usize = 66;
/// Length of the fields before the bytes of a fragment.
pub(super) const FRAGMENT_HEAD: usize = 12;
/// Length of a fragment without its bytes.
const FRAGMENT_OVERHEAD: usize = FRAGMENT_HEAD + 1;
/// Length of a frame of one fragment without its payload.
pub(super) const FRAME_OVERHEAD: usize = FRAGMENT_OVERHEAD + FRAME_HEAD;
/// Smallest fragment: a shorter rest of a block stays zero.
pub(super) const FRAGMENT_MIN: usize = FRAGMENT_OVERHEAD + 1;

/// One frame. Everything but the payload can be read without knowing the kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameOf<P> {
    /// The caller's number, below [`ESSENTIAL`], and flags.
    pub kind: u16,
    /// The run.
    pub run: u128,
    /// The incarnation of the run.
    pub incarnation: u64,
    /// Seq among the frames of the incarnation, from 1.
    pub seq: u64,
    /// Attempt of the run.
    pub attempt: u32,
    /// Time of the event.
    pub at: Timestamp,
    /// Length of standard output and of standard error at that time.
    pub lens: [u64; 2],
    /// The entry, opaque here.
    pub payload: P,
}

/// A frame with a borrowed payload.
pub type Frame<'a> = FrameOf<&'a [u8]>;

/// A frame with its payload.
pub type OwnedFrame = FrameOf<Vec<u8>>;

impl<P> FrameOf<P> {
    fn with<Q>(&self, payload: Q) -> FrameOf<Q> {
        FrameOf {
            kind: self.kind,
            run: self.run,
            incarnation: self.incarnation,
            seq: self.seq,
            attempt: self.attempt,
            at: self.at,
            lens: self.lens,
            payload,
        }
    }
}

impl OwnedFrame {
    /// Returns the frame.
    pub fn frame(&self) -> Frame<'_> {
        self.with(&self.payload)
    }
}

impl From<Frame<'_>> for OwnedFrame {
    fn from(frame: Frame<'_>) -> Self {
        frame.with(frame.payload.to_vec())
    }
}

impl<'a> Frame<'a> {
    /// Whether the frame has this flag.
    pub fn has(&self, flag: u16) -> bool {
        self.kind & flag != 0
    }

    /// Returns the fields before the payload. The caller has checked the payload's length.
    fn head(&self) -> [u8; FRAME_HEAD] {
        let payload_len = u32::try_from(self.payload.len()).unwrap_or(u32::MAX);
        let mut bytes = [0; FRAME_HEAD];
        bytes[..4].copy_from_slice(&payload_len.to_le_bytes());
        bytes[4..6].copy_from_slice(&self.kind.to_le_bytes());
        bytes[6..10].copy_from_slice(&self.attempt.to_le_bytes());
        bytes[10..26].copy_from_slice(&self.run.to_le_bytes());
        bytes[26..34].copy_from_slice(&self.incarnation.to_le_bytes());
        bytes[34..42].copy_from_slice(&self.seq.to_le_bytes());
        bytes[42..50].copy_from_slice(&self.at.0.to_le_bytes());
        bytes[50..58].copy_from_slice(&self.lens[0].to_le_bytes());
        bytes[58..].copy_from_slice(&self.lens[1].to_le_bytes());
        bytes
    }

    /// Decodes a frame. `None`: the bytes are not exactly one frame.
    pub(super) fn decode(bytes: &'a [u8]) -> Option<Self> {
        let (head, payload) = bytes.split_first_chunk::<FRAME_HEAD>()?;
        let long = |at| u64::from_le_bytes(take(head, at));
        let payload_len = usize::try_from(u32::from_le_bytes(take(head, 0))).ok()?;
        (payload_len == payload.len()).then(|| Self {
            kind: u16::from_le_bytes(take(head, 4)),
            attempt: u32::from_le_bytes(take(head, 6)),
            run: u128::from_le_bytes(take(head, 10)),
            incarnation: long(26),
            seq: long(34),
            at: Timestamp(i64::from_le_bytes(take(head, 42))),
            lens: [long(50), long(58)],
            payload,
        })
    }
}

/// Part of its frame that a fragment contains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FragmentPart {
    Whole = 1,
    First = 2,
    Middle = 3,
    Last = 4,
}

/// The head of a fragment, its own CRC checked: its length is reliable.
#[derive(Clone, Copy, Debug)]
pub(super) struct FragmentHead {
    pub(super) part: FragmentPart,
    pub(super) len: usize,
    crc: u32,
}

impl FragmentHead {
    /// Decodes the head at the beginning of `bytes`, which are the rest of a block.
    pub(super) fn decode(bytes: &[u8], id: SegmentId, offset: u32) -> Option<Self> {
        let head = bytes.first_chunk::<FRAGMENT_HEAD>()?;
        let crc = u32::from_le_bytes(take(head, 4));
        let part = match head[2] {
            1 => FragmentPart::Whole,
            2 => FragmentPart::First,
            3 => FragmentPart::Middle,
            4 => FragmentPart::Last,
            _ => return None,
        };
        let len = usize::from(u16::from_le_bytes([head[0], head[1]]));
        let is_whole = crc == salted_crc(id, offset, &head[..4], &[])
            && (1..=bytes.len().saturating_sub(FRAGMENT_OVERHEAD)).contains(&len);
        is_whole.then(|| Self {
            part,
            len,
            crc: u32::from_le_bytes(take(head, 8)),
        })
    }

    /// Returns the length of the whole fragment.
    pub(super) fn total_len(&self) -> usize {
        FRAGMENT_OVERHEAD + self.len
    }

    /// Whether the bytes after the head are intact; `bytes` begin with the head.
    pub(super) fn is_followed_by_its_bytes(
        &self,
        bytes: &[u8],
        id: SegmentId,
        offset: u32,
    ) -> bool {
        let body = &bytes[FRAGMENT_HEAD..FRAGMENT_HEAD + self.len];
        bytes[FRAGMENT_HEAD + self.len] == END_MARK
            && self.crc == salted_crc(id, offset, &bytes[..4], body)
    }
}

fn salted_crc(id: SegmentId, offset: u32, head: &[u8], body: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&id.salt(offset));
    hasher.update(head);
    hasher.update(body);
    hasher.finalize()
}

/// Appends frames to bytes that will be written at one position of a segment.
pub(super) struct Encoder<'a> {
    /// The segment.
    pub(super) id: SegmentId,
    /// Its header, with which each further block begins.
    pub(super) header: &'a [u8; HEADER_LEN],
    /// Offset in the segment of the next appended byte.
    pub(super) offset: u32,
    /// The bytes.
    pub(super) out: &'a mut Vec<u8>,
}

impl Encoder<'_> {
    /// Appends one frame. Returns the offset of its first fragment.
    pub(super) fn put(&mut self, frame: &Frame<'_>) -> u32 {
        let head = frame.head();
        let total = head.len() + frame.payload.len();
        let mut written = 0;
        let mut begin = None;
        while written < total {
            let room = self.room();
            let upto = total.min(written + room - FRAGMENT_OVERHEAD);
            let part = match (written == 0, upto == total) {
                (true, true) => FragmentPart::Whole,
                (true, false) => FragmentPart::First,
                (false, false) => FragmentPart::Middle,
                (false, true) => FragmentPart::Last,
            };
            begin.get_or_insert(self.offset);
            self.fragment(part, &head, frame.payload, written..upto);
            written = upto;
        }
        begin.unwrap_or(self.offset)
    }

    /// Returns the space in the block for a fragment; begins the next block where there is too little.
    fn room(&mut self) -> usize {
        let used = self.offset as usize % BLOCK;
        let room = BLOCK - used;
        if used > 0 && room >= FRAGMENT_MIN {
            return room;
        }
        if used > 0 {
            self.pad(room);
        }
        self.out.extend_from_slice(self.header);
        self.advance(HEADER_LEN);
        BLOCK - HEADER_LEN
    }

    fn fragment(&mut self, part: FragmentPart, head: &[u8], payload: &[u8], range: Range<usize>) {
        let begin = self.out.len();
        let len = u16::try_from(range.len()).unwrap_or(u16::MAX).to_le_bytes();
        let fields = [len[0], len[1], part as u8, 0];
        self.out.extend_from_slice(&fields);
        let check = salted_crc(self.id, self.offset, &fields, &[]);
        self.out.extend_from_slice(&check.to_le_bytes());
        self.out.extend_from_slice(&[0; 4]);
        let split = head.len();
        self.out
            .extend_from_slice(&head[range.start.min(split)..range.end.min(split)]);
        let payload_range = range.start.saturating_sub(split)..range.end.saturating_sub(split);
        self.out.extend_from_slice(&payload[payload_range]);
        let body = &self.out[begin + FRAGMENT_HEAD..];
        let crc = salted_crc(self.id, self.offset, &fields, body);
        self.out[begin + 8..begin + FRAGMENT_HEAD].copy_from_slice(&crc.to_le_bytes());
        self.out.push(END_MARK);
        self.advance(FRAGMENT_OVERHEAD + range.len());
    }

    /// Appends so many zeros.
    fn pad(&mut self, len: usize) {
        self.out.resize(self.out.len() + len, 0);
        self.advance(len);
    }

    fn advance(&mut self, len: usize) {
        // A segment is far below 4 GiB; the writer detects an oversized call by this offset.
        self.offset = self
            .offset
            .saturating_add(u32::try_from(len).unwrap_or(u32::MAX));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: SegmentId = SegmentId {
        generation: 1,
        number: 2,
    };

    #[test]
    fn node_log_fragment_bytes_are_stable() {
        let frame = Frame {
            kind: CRITICAL | 7,
            run: 0x0102_0304_0506_0708_090a_0b0c_0d0e_0f10,
            incarnation: 2,
            seq: 3,
            attempt: 4,
            at: Timestamp(-2),
            lens: [5, 6],
            payload: b"{}",
        };
        let mut out = Vec::new();
        let mut encoder = Encoder {
            id: ID,
            header: &[1; HEADER_LEN],
            offset: 85,
            out: &mut out,
        };
        assert_eq!(encoder.put(&frame), 85);
        let mut body = b"\x02\0\0\0\x07\x80\x04\0\0\0".to_vec();
        body.extend(frame.run.to_le_bytes());
        for long in [2, 3, u64::MAX - 1, 5, 6] {
            body.extend(long.to_le_bytes());
        }
        body.extend(b"{}");
        assert_eq!(out[..4], [68, 0, 1, 0]);
        assert_eq!(out[12..12 + body.len()], body);
        assert_eq!(out.len(), 12 + body.len() + 1);
        // Length and CRC are checked as bytes to detect a change of coverage.
        assert_eq!(u32::from_le_bytes(take(&out, 4)), 2_518_826_461);
        assert_eq!(u32::from_le_bytes(take(&out, 8)), 2_442_769_327);
        assert_eq!(Frame::decode(&body), Some(frame));
        assert_eq!(Frame::decode(&body[..body.len() - 1]), None);
    }

    #[test]
    fn fragments_at_a_wrong_offset_are_refused() {
        let frame = Frame {
            kind: 1,
            run: 1,
            incarnation: 1,
            seq: 1,
            attempt: 1,
            at: Timestamp(0),
            lens: [0, 0],
            payload: b"x",
        };
        let mut out = Vec::new();
        let mut encoder = Encoder {
            id: ID,
            header: &[1; HEADER_LEN],
            offset: 85,
            out: &mut out,
        };
        encoder.put(&frame);
        assert!(FragmentHead::decode(&out, ID, 85).is_some());
        assert!(FragmentHead::decode(&out, ID, 86).is_none());
        let other = SegmentId { number: 3, ..ID };
        assert!(FragmentHead::decode(&out, other, 85).is_none());
    }
}
