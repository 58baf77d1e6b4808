//! The bytes of an index: a header, then entries of one size, all little-endian.
//!
//! | header     | bytes |                                              |
//! |------------|-------|----------------------------------------------|
//! | magic      | 0-7   | `KNLJRNL\n`                                 |
//! | version    | 8-11  | 4                                            |
//! | number     | 12-15 | of the segment, from 0                       |
//! | seq        | 16-23 | of the last earlier entry                    |
//! | lengths    | 24-47 | of stdout, stderr and lifecycle before       |
//! | boot       | 48-63 | of the host, when the segment was begun      |
//! | max        | 64-71 | bound of the journal in bytes                |
//! | on full    | 72    | 1 rotate, 2 head and tail, 3 abort           |
//! | after      | 73    | 0: nothing is missing. 1: the host had died. 2, 3: the disk was full, and the missing bytes are counted, or not |
//! | disk full  | 74    | 0 block, 1 drop, 2 abort                     |
//! | attempt    | 76-79 | when the segment was begun                   |
//! | time       | 80-87 | of that, microseconds since 1970             |
//! | crc        | 88-91 | CRC-32 (IEEE) of the bytes before            |
//! | dropped    | 92-107 | bytes of stdout and stderr after the last entry that were dropped, as the disk was full |
//! | counted    | 108   | 0: exactly so many; 1: perhaps more          |
//! | crc        | 112-115 | of those, or 0 as they are                 |
//!
//! The dropped bytes are overwritten in place, so they need no space; they count in the last segment alone.
//!
//! In the first segment, bytes 116-2047 are the first ones of all lifecycle lines. Entries follow the header, and
//! those.
//!
//! | entry  | bytes |                                             |
//! |--------|-------|---------------------------------------------|
//! | seq    | 0-7   | from 1, without holes                       |
//! | time   | 8-15  | microseconds since 1970                     |
//! | offset | 16-23 | of the first byte in the whole stream       |
//! | len    | 24-27 | number of bytes                             |
//! | kind   | 28    | 1 lifecycle, 2 stdout, 3 stderr             |
//! | before | 29-31 | attempts of the run before this one         |
//! | crc    | 32-35 | CRC-32 (IEEE) of the bytes before           |

use crate::{ATTEMPT_MAX, Boot, ENTRY_BYTES_MAX, Entry, Kind, LIFECYCLE_BYTES_MAX, Point};
use bytes::Bytes;
use kennel_lifecycle::{OnDiskFull, OnOutputFull, OutputBound, Timestamp};

/// Length of a header.
pub(crate) const HEADER_LEN: usize = DROPPED_AT + DROPPED_LEN;
/// Offset of the dropped bytes in a header.
pub(crate) const DROPPED_AT: usize = 92;
pub(crate) const DROPPED_LEN: usize = 24;
/// Offset and length of the first lifecycle bytes in the index of the first segment.
pub(crate) const HEAD_AT: u64 = HEADER_LEN as u64;
pub(crate) const HEAD_LEN: u64 = 2048 - HEAD_AT;
pub(crate) const ENTRY_LEN: usize = 36;
const CRC_AT: usize = ENTRY_LEN - 4;

const MAGIC: [u8; 8] = *b"KNLJRNL\n";
const VERSION: u32 = 4;

/// Contents of a segment's header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) number: u32,
    /// Position before its first entry.
    pub(crate) first: Point,
    /// Length of the lifecycle entries before it.
    pub(crate) facts_len: u64,
    pub(crate) boot: Boot,
    pub(crate) bound: OutputBound,
    /// Entries missing between the segment before and this one.
    pub(crate) after: After,
    /// The attempt at the beginning of the segment.
    pub(crate) attempt: u32,
    pub(crate) at: Timestamp,
}

/// Missing data between two segments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum After {
    /// Nothing is missing.
    All,
    /// The host had died, so that earlier data may be missing.
    HostLoss,
    /// Output that was dropped, because the disk was full.
    FullDisk {
        /// Whether the number of bytes is known.
        counted: bool,
    },
}

impl After {
    /// Whether the number of missing bytes is known.
    pub(crate) fn is_counted(self) -> bool {
        matches!(self, Self::All | Self::FullDisk { counted: true })
    }
}

/// Output that was dropped for want of disk space, and that no reader has noticed yet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Dropped {
    /// Bytes of stdout and of stderr.
    pub bytes: [u64; 2],
    /// Whether it may be more: a writer died while dropping it.
    pub uncounted: bool,
}

impl Dropped {
    pub(crate) fn encode(&self) -> [u8; DROPPED_LEN] {
        let mut bytes = [0; DROPPED_LEN];
        if *self == Self::default() {
            return bytes;
        }
        bytes[..8].copy_from_slice(&self.bytes[0].to_le_bytes());
        bytes[8..16].copy_from_slice(&self.bytes[1].to_le_bytes());
        bytes[16] = u8::from(self.uncounted);
        let crc = crc32fast::hash(&bytes[..20]);
        bytes[20..].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    pub(crate) fn decode(bytes: &[u8; DROPPED_LEN]) -> Self {
        if *bytes == [0; DROPPED_LEN] {
            return Self::default();
        }
        let number = |at| u64::from_le_bytes(take(bytes, at));
        if u32::from_le_bytes(take(bytes, 20)) == crc32fast::hash(&bytes[..20]) {
            Self {
                bytes: [number(0), number(8)],
                uncounted: bytes[16] != 0,
            }
        } else {
            // A torn record: some output was dropped.
            Self {
                bytes: [0; 2],
                uncounted: true,
            }
        }
    }
}

/// Contents of the first bytes of an index.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum IndexStart {
    /// An index that this code reads.
    Good(Box<Header>),
    /// The writer died before the header was on disk, so there is no entry either.
    Torn,
    /// A foreign file, or a damaged one.
    Foreign,
    /// An index of a version that this code does not know.
    OtherVersion(u32),
}

/// Returns the offset of this segment's entries in its index.
pub(crate) fn entries_at(number: u32) -> u64 {
    match number {
        0 => HEAD_AT + HEAD_LEN,
        _ => HEADER_LEN as u64,
    }
}

impl Header {
    pub(crate) fn encode(&self) -> [u8; HEADER_LEN] {
        let mut bytes = [0; HEADER_LEN];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..12].copy_from_slice(&VERSION.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.number.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.first.seq.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.first.lens[0].to_le_bytes());
        bytes[32..40].copy_from_slice(&self.first.lens[1].to_le_bytes());
        bytes[40..48].copy_from_slice(&self.facts_len.to_le_bytes());
        bytes[48..64].copy_from_slice(&self.boot.0.to_le_bytes());
        bytes[64..72].copy_from_slice(&self.bound.max_bytes.to_le_bytes());
        bytes[72] = match self.bound.on_full {
            OnOutputFull::Rotate => 1,
            OnOutputFull::HeadTail => 2,
            OnOutputFull::Abort => 3,
            OnOutputFull::Block => 4,
        };
        bytes[73] = match self.after {
            After::All => 0,
            After::HostLoss => 1,
            After::FullDisk { counted: true } => 2,
            After::FullDisk { counted: false } => 3,
        };
        bytes[74] = match self.bound.on_disk_full {
            OnDiskFull::Block => 0,
            OnDiskFull::Drop => 1,
            OnDiskFull::Abort => 2,
        };
        bytes[76..80].copy_from_slice(&self.attempt.to_le_bytes());
        bytes[80..88].copy_from_slice(&self.at.0.to_le_bytes());
        let crc = crc32fast::hash(&bytes[..88]);
        bytes[88..DROPPED_AT].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// Decodes the header. `bytes` are the first ones of the file: fewer than [`HEADER_LEN`] only where the file ends.
    pub(crate) fn decode(bytes: &[u8]) -> IndexStart {
        if bytes.iter().all(|b| *b == 0) || MAGIC.starts_with(bytes) {
            return IndexStart::Torn;
        }
        if !bytes.starts_with(&MAGIC) {
            return IndexStart::Foreign;
        }
        if bytes.len() < 12 {
            return IndexStart::Torn;
        }
        match u32::from_le_bytes(take(bytes, 8)) {
            VERSION if bytes.len() < HEADER_LEN => IndexStart::Torn,
            VERSION => Self::decode_whole(bytes).map_or(IndexStart::Foreign, |header| {
                IndexStart::Good(Box::new(header))
            }),
            other => IndexStart::OtherVersion(other),
        }
    }

    fn decode_whole(bytes: &[u8]) -> Option<Self> {
        if u32::from_le_bytes(take(bytes, 88)) != crc32fast::hash(&bytes[..88]) {
            return None;
        }
        let number = |at| u64::from_le_bytes(take(bytes, at));
        Some(Self {
            number: u32::from_le_bytes(take(bytes, 12)),
            first: Point {
                seq: number(16),
                lens: [number(24), number(32)],
            },
            facts_len: number(40),
            boot: Boot(u128::from_le_bytes(take(bytes, 48))),
            bound: OutputBound {
                max_bytes: number(64),
                on_full: match bytes[72] {
                    1 => OnOutputFull::Rotate,
                    2 => OnOutputFull::HeadTail,
                    3 => OnOutputFull::Abort,
                    4 => OnOutputFull::Block,
                    _ => return None,
                },
                on_disk_full: match bytes[74] {
                    0 => OnDiskFull::Block,
                    1 => OnDiskFull::Drop,
                    2 => OnDiskFull::Abort,
                    _ => return None,
                },
            },
            after: match bytes[73] {
                0 => After::All,
                1 => After::HostLoss,
                2 => After::FullDisk { counted: true },
                3 => After::FullDisk { counted: false },
                _ => return None,
            },
            attempt: u32::from_le_bytes(take(bytes, 76)),
            at: Timestamp(i64::from_le_bytes(take(bytes, 80))),
        })
    }
}

/// One entry of the index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct IndexEntry {
    pub(crate) seq: u64,
    pub(crate) at: Timestamp,
    pub(crate) kind: Kind,
    pub(crate) offset: u64,
    pub(crate) len: u32,
    /// Number of the attempt, from 1 to [`ATTEMPT_MAX`](crate::ATTEMPT_MAX).
    pub(crate) attempt: u32,
}

impl IndexEntry {
    pub(crate) fn encode(&self) -> [u8; ENTRY_LEN] {
        let mut bytes = [0; ENTRY_LEN];
        bytes[..8].copy_from_slice(&self.seq.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.at.0.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.offset.to_le_bytes());
        bytes[24..28].copy_from_slice(&self.len.to_le_bytes());
        bytes[28] = code(self.kind);
        let before = self.attempt.clamp(1, ATTEMPT_MAX) - 1;
        bytes[29..CRC_AT].copy_from_slice(&before.to_le_bytes()[..3]);
        let crc = crc32fast::hash(&bytes[..CRC_AT]);
        bytes[CRC_AT..].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// Decodes an entry. `None`: these bytes are not an entry that a writer finished.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        if bytes.len() != ENTRY_LEN
            || u32::from_le_bytes(take(bytes, CRC_AT)) != crc32fast::hash(&bytes[..CRC_AT])
        {
            return None;
        }
        let entry = Self {
            seq: u64::from_le_bytes(take(bytes, 0)),
            at: Timestamp(i64::from_le_bytes(take(bytes, 8))),
            offset: u64::from_le_bytes(take(bytes, 16)),
            len: u32::from_le_bytes(take(bytes, 24)),
            kind: kind(bytes[28])?,
            attempt: 1 + u32::from_le_bytes([bytes[29], bytes[30], bytes[31], 0]),
        };
        let lawful = match entry.kind {
            Kind::Lifecycle => entry.len as usize <= LIFECYCLE_BYTES_MAX,
            Kind::Stdout | Kind::Stderr => (1..=ENTRY_BYTES_MAX).contains(&entry.len),
        };
        lawful.then_some(entry)
    }

    /// Returns the entry with its bytes.
    pub(crate) fn with(&self, data: Bytes) -> Entry {
        Entry {
            seq: self.seq,
            at: self.at,
            attempt: self.attempt,
            kind: self.kind,
            offset: self.offset,
            data,
        }
    }

    /// Returns the offset of the first byte of the stream after this entry.
    pub(crate) fn end(&self) -> u64 {
        self.offset.saturating_add(u64::from(self.len))
    }
}

pub(crate) fn take<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let mut taken = [0; N];
    taken.copy_from_slice(&bytes[at..at + N]);
    taken
}

fn code(kind: Kind) -> u8 {
    match kind {
        Kind::Lifecycle => 1,
        Kind::Stdout => 2,
        Kind::Stderr => 3,
    }
}

fn kind(code: u8) -> Option<Kind> {
    match code {
        1 => Some(Kind::Lifecycle),
        2 => Some(Kind::Stdout),
        3 => Some(Kind::Stderr),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ENTRY: IndexEntry = IndexEntry {
        seq: 0x0102_0304_0506_0708,
        at: Timestamp(-2),
        kind: Kind::Stderr,
        offset: 0x1112_1314_1516_1718,
        len: 0x1000,
        attempt: 0x0003_0201,
    };

    fn header() -> Header {
        Header {
            number: 7,
            first: Point {
                seq: 1,
                lens: [2, 3],
            },
            facts_len: 4,
            boot: Boot(5),
            bound: OutputBound {
                max_bytes: 6,
                on_full: OnOutputFull::HeadTail,
                on_disk_full: OnDiskFull::Abort,
            },
            after: After::FullDisk { counted: false },
            attempt: 8,
            at: Timestamp(-1),
        }
    }

    #[test]
    fn journal_header_and_entry_bytes_are_stable() {
        let long = |n: u8| [n, 0, 0, 0, 0, 0, 0, 0];
        let bytes = [
            b"KNLJRNL\n\x04\0\0\0\x07\0\0\0".to_vec(),
            [
                long(1),
                long(2),
                long(3),
                long(4),
                long(5),
                long(0),
                long(6),
            ]
            .concat(),
            vec![2, 3, 2, 0, 8, 0, 0, 0],
            vec![0xff; 8],
        ];
        assert_eq!(header().encode()[..88], bytes.concat());
        let fields = [
            8, 7, 6, 5, 4, 3, 2, 1, // seq
            0xfe, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, // time
            0x18, 0x17, 0x16, 0x15, 0x14, 0x13, 0x12, 0x11, // offset
            0, 0x10, 0, 0, // len
            3, 0, 2, 3, // kind and attempts before
        ];
        assert_eq!(ENTRY.encode()[..CRC_AT], fields);
    }

    #[test]
    fn torn_dropped_count_is_marked_unknown() {
        let dropped = Dropped {
            bytes: [1, 0x0203],
            uncounted: false,
        };
        let good = dropped.encode();
        assert_eq!(Dropped::decode(&good), dropped);
        assert_eq!(Dropped::decode(&[0; DROPPED_LEN]), Dropped::default());
        assert_eq!(Dropped::default().encode(), [0; DROPPED_LEN]);
        for byte in 0..17 {
            let mut torn = good;
            torn[byte] ^= 1;
            assert!(Dropped::decode(&torn).uncounted, "byte {byte}");
        }
    }

    #[test]
    fn index_entry_with_a_flipped_bit_is_refused() {
        let good = ENTRY.encode();
        assert_eq!(IndexEntry::decode(&good), Some(ENTRY));
        for bit in 0..ENTRY_LEN * 8 {
            let mut bad = good;
            bad[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(IndexEntry::decode(&bad), None, "bit {bit}");
        }
        assert_eq!(IndexEntry::decode(&[0; ENTRY_LEN]), None);
    }

    #[test]
    fn torn_header_differs_from_foreign_file() {
        let good = header().encode();
        let found = IndexStart::Good(Box::new(header()));
        assert_eq!(Header::decode(&good), found);
        for len in 0..HEADER_LEN {
            assert_eq!(
                Header::decode(&good[..len]),
                IndexStart::Torn,
                "{len} bytes"
            );
        }
        let mut newer = good;
        newer[8] = 9;
        assert_eq!(Header::decode(&newer), IndexStart::OtherVersion(9));
        let mut bent = good;
        bent[20] ^= 1;
        assert_eq!(Header::decode(&bent), IndexStart::Foreign);
        assert_eq!(Header::decode(b"#!/bin/sh"), IndexStart::Foreign);
        assert_eq!(Header::decode(b"#!/bin/sh\nexit 0"), IndexStart::Foreign);
    }
}
