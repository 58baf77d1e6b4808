//! The bytes of the index: a header, then entries of one size, all little-endian.
//!
//! | entry  | bytes |                                             |
//! |--------|-------|---------------------------------------------|
//! | seq    | 0-7   | from 1, without holes                       |
//! | time   | 8-15  | microseconds since 1970                     |
//! | offset | 16-23 | of the first byte in the stream's raw file  |
//! | len    | 24-27 | number of bytes there                       |
//! | kind   | 28    | 1 lifecycle, 2 stdout, 3 stderr             |
//! | before | 29-31 | attempts of the run before this one         |
//! | crc    | 32-35 | CRC-32 (IEEE) of the bytes before           |

use crate::{ATTEMPT_MAX, ENTRY_BYTES_MAX, Kind, LIFECYCLE_BYTES_MAX};
use kennel_lifecycle::Timestamp;

pub(crate) const HEADER_LEN: usize = 16;
pub(crate) const ENTRY_LEN: usize = 36;
const CRC_AT: usize = ENTRY_LEN - 4;

const MAGIC: [u8; 8] = *b"KNLJRNL\n";
const VERSION: u32 = 1;

/// What the first bytes of an index say.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Header {
    /// An index that this code reads.
    Good,
    /// The writer died before the header was on disk, so there is no entry either.
    Torn,
    /// A file of somebody else.
    Foreign,
    /// An index of a version that this code does not know.
    OtherVersion(u32),
}

impl Header {
    pub(crate) fn encode() -> [u8; HEADER_LEN] {
        let mut bytes = [0; HEADER_LEN];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..12].copy_from_slice(&VERSION.to_le_bytes());
        bytes
    }

    /// `bytes` are the first ones of the file: fewer than [`HEADER_LEN`] only where the file ends.
    pub(crate) fn decode(bytes: &[u8]) -> Self {
        let written = Self::encode();
        if bytes == written {
            Self::Good
        } else if bytes.iter().all(|b| *b == 0)
            || (bytes.len() < HEADER_LEN && written.starts_with(bytes))
        {
            Self::Torn
        } else if bytes.len() == HEADER_LEN && bytes.starts_with(&MAGIC) {
            Self::OtherVersion(u32::from_le_bytes(take(bytes, 8)))
        } else {
            Self::Foreign
        }
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
    /// Of which attempt, from 1 to [`ATTEMPT_MAX`](crate::ATTEMPT_MAX).
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

    /// `None`: these bytes are not an entry that a writer finished.
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

    /// Offset of the first byte of the stream after this entry.
    pub(crate) fn end(&self) -> u64 {
        self.offset.saturating_add(u64::from(self.len))
    }
}

/// Where in the index the entry with this seq, which is at least 1, begins.
pub(crate) fn position(seq: u64) -> u64 {
    HEADER_LEN as u64 + (seq - 1) * ENTRY_LEN as u64
}

fn take<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
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

    #[test]
    fn bytes_of_version_1_do_not_change() {
        assert_eq!(
            Header::encode(),
            *b"KNLJRNL\n\x01\x00\x00\x00\x00\x00\x00\x00"
        );
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
    fn an_entry_with_any_bit_changed_is_refused() {
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
    fn a_header_cut_anywhere_is_torn_and_a_strange_one_is_not() {
        let good = Header::encode();
        assert_eq!(Header::decode(&good), Header::Good);
        for len in 0..HEADER_LEN {
            assert_eq!(Header::decode(&good[..len]), Header::Torn, "{len} bytes");
        }
        let mut newer = good;
        newer[8] = 9;
        assert_eq!(Header::decode(&newer), Header::OtherVersion(9));
        assert_eq!(Header::decode(b"#!/bin/sh"), Header::Foreign);
        assert_eq!(Header::decode(b"#!/bin/sh\nexit 0"), Header::Foreign);
    }
}
