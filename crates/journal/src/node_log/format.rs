//! The names and headers of segments.

use crate::{Boot, format::take};
use std::{
    fmt,
    path::{Path, PathBuf},
};

/// The layout of segments, blocks and fragments that this code reads and writes.
pub const LAYOUT: u32 = 1;
/// Frames are cut into fragments where a block ends, and reading resumes there after damage.
pub const BLOCK_BYTES: u32 = 64 * 1024;
/// [`BLOCK_BYTES`] as a length.
pub(super) const BLOCK: usize = 64 * 1024;
/// Length of the header in each block.
pub(super) const HEADER_LEN: usize = 85;
/// Last byte of each header and fragment. Writes are cut at the end, so that one without it was cut, and one with it is
/// damaged where its CRC does not match.
pub(super) const END_MARK: u8 = 0xa5;
const MAGIC: [u8; 8] = *b"KNLNODE\n";
const CRC_AT: usize = 80;

/// The format of the payloads: the log stores it for the caller and does not interpret it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PayloadFormat {
    /// Number of the format.
    pub number: u32,
    /// Hash of all types and names in it.
    pub hash: [u8; 8],
}

/// The server that writes a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin {
    /// Format of its payloads.
    pub format: PayloadFormat,
    /// Epoch of the keeper that started it.
    pub epoch: u128,
    /// Its number among the servers of that keeper.
    pub server: u64,
    /// Boot of the host.
    pub boot: Boot,
}

/// A segment of the log. Their order is that of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SegmentId {
    /// Number of the server in this directory: one above all found ones. Unlike a clock it never goes back.
    pub generation: u64,
    /// Number of the segment, from 0 without holes, among those of its server.
    pub number: u32,
}

impl SegmentId {
    /// Returns the path of the segment in this directory.
    pub fn path(self, dir: &Path) -> PathBuf {
        dir.join(self.to_string())
    }

    /// Parses the segment of this file name; `None`: the file is not one of the log.
    pub(super) fn parse(name: &str) -> Option<Self> {
        let (generation, number) = name.strip_suffix(".log")?.split_once('-')?;
        let id = Self {
            generation: u64::from_str_radix(generation, 16).ok()?,
            number: u32::from_str_radix(number, 16).ok()?,
        };
        // Each segment has exactly one name: no sign, capitals or other width.
        (id.to_string() == name).then_some(id)
    }

    /// Prefix of each CRC of the segment, so that bytes of another position are never taken for those of this one.
    pub(super) fn salt(self, offset: u32) -> [u8; 16] {
        let mut salt = [0; 16];
        salt[..8].copy_from_slice(&self.generation.to_le_bytes());
        salt[8..12].copy_from_slice(&self.number.to_le_bytes());
        salt[12..].copy_from_slice(&offset.to_le_bytes());
        salt
    }
}

impl fmt::Display for SegmentId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}-{:08x}.log", self.generation, self.number)
    }
}

/// A position in the log. Positions of one directory are ordered as their frames are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LogPosition {
    /// The segment.
    pub segment: SegmentId,
    /// Offset in its file.
    pub offset: u32,
}

impl fmt::Display for LogPosition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.segment, self.offset)
    }
}

/// The header at the beginning of each block of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) layout: u32,
    pub(super) origin: Origin,
    pub(super) id: SegmentId,
    /// End of the frames of the segment before it; 0: it is the first one of its server.
    pub(super) previous_end: u32,
}

impl Header {
    pub(super) fn encode(&self) -> [u8; HEADER_LEN] {
        let Origin { format, .. } = self.origin;
        let mut bytes = [0; HEADER_LEN];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..12].copy_from_slice(&self.layout.to_le_bytes());
        bytes[12..16].copy_from_slice(&format.number.to_le_bytes());
        bytes[16..24].copy_from_slice(&format.hash);
        bytes[24..40].copy_from_slice(&self.origin.epoch.to_le_bytes());
        bytes[40..48].copy_from_slice(&self.origin.server.to_le_bytes());
        bytes[48..64].copy_from_slice(&self.origin.boot.0.to_le_bytes());
        bytes[64..72].copy_from_slice(&self.id.generation.to_le_bytes());
        bytes[72..76].copy_from_slice(&self.id.number.to_le_bytes());
        bytes[76..CRC_AT].copy_from_slice(&self.previous_end.to_le_bytes());
        let crc = crc32fast::hash(&bytes[..CRC_AT]);
        bytes[CRC_AT..CRC_AT + 4].copy_from_slice(&crc.to_le_bytes());
        bytes[CRC_AT + 4] = END_MARK;
        bytes
    }

    /// Decodes the header at the beginning of these bytes, if it is whole. Its shape is the same in all layouts.
    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let bytes = bytes.first_chunk::<HEADER_LEN>()?;
        let crc = u32::from_le_bytes(take(bytes, CRC_AT));
        let is_whole = bytes.starts_with(&MAGIC)
            && bytes[CRC_AT + 4] == END_MARK
            && crc == crc32fast::hash(&bytes[..CRC_AT]);
        is_whole.then(|| Self {
            layout: u32::from_le_bytes(take(bytes, 8)),
            origin: Origin {
                format: PayloadFormat {
                    number: u32::from_le_bytes(take(bytes, 12)),
                    hash: take(bytes, 16),
                },
                epoch: u128::from_le_bytes(take(bytes, 24)),
                server: u64::from_le_bytes(take(bytes, 40)),
                boot: Boot(u128::from_le_bytes(take(bytes, 48))),
            },
            id: SegmentId {
                generation: u64::from_le_bytes(take(bytes, 64)),
                number: u32::from_le_bytes(take(bytes, 72)),
            },
            previous_end: u32::from_le_bytes(take(bytes, 76)),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn node_log_header_bytes_are_stable() {
        let header = Header {
            layout: LAYOUT,
            origin: Origin {
                format: PayloadFormat {
                    number: 2,
                    hash: *b"formhash",
                },
                epoch: 3,
                server: 4,
                boot: Boot(5),
            },
            id: SegmentId {
                generation: 6,
                number: 7,
            },
            previous_end: 8,
        };
        let mut bytes = b"KNLNODE\n\x01\0\0\0\x02\0\0\0formhash".to_vec();
        bytes.extend(3_u128.to_le_bytes());
        bytes.extend(4_u64.to_le_bytes());
        bytes.extend(5_u128.to_le_bytes());
        bytes.extend(6_u64.to_le_bytes());
        bytes.extend([7, 0, 0, 0, 8, 0, 0, 0]);
        let encoded = header.encode();
        assert_eq!(encoded[..CRC_AT], bytes);
        assert_eq!(Header::decode(&encoded), Some(header));
        for bit in 0..HEADER_LEN * 8 {
            let mut bent = encoded;
            bent[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(Header::decode(&bent), None, "bit {bit}");
        }
    }

    #[test]
    fn inexact_file_names_are_not_segments() {
        let id = SegmentId {
            generation: 10,
            number: 255,
        };
        let name = "000000000000000a-000000ff.log";
        assert_eq!(id.to_string(), name);
        assert_eq!(SegmentId::parse(name), Some(id));
        for other in [
            "000000000000000A-000000ff.log",
            "00000000000000a-000000ff.log",
            "+00000000000000a-000000ff.log",
            "000000000000000a-000000ff.log.unread-1",
            "000000000000000a-000000ff",
            "a-ff.log",
            "notes",
        ] {
            assert_eq!(SegmentId::parse(other), None, "{other}");
        }
    }
}
