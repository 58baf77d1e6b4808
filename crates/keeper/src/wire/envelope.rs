//! The envelope of every message and file in memory, which never changes: 8 bytes, then a JSON object, then raw bytes.
//!
//! | bytes |                                                                                           |
//! |-------|-------------------------------------------------------------------------------------------|
//! | 0     | `K`                                                                                       |
//! | 1     | form, 1                                                                                   |
//! | 2     | flags: 1, critical; 2, the body is in the first descriptor, a sealed file of that length  |
//! | 3     | 0                                                                                         |
//! | 4-7   | length of the body, little endian                                                         |

use kennel_linux::memfd;
use serde::Serialize;
use std::{io, os::fd::OwnedFd};

const MARK: u8 = b'K';
const FORM: u8 = 1;
/// Flag: a reader that does not know the kind must not go on without it.
const CRITICAL: u8 = 1;
/// Flag: the body is in the first descriptor.
const IN_FILE: u8 = 2;
/// Length of the envelope.
pub(super) const HEAD_BYTES: usize = 8;
/// Space that most messages need.
const USUAL_BYTES: usize = 512;

/// A message, in its parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct OpenedMessage<'a> {
    /// Absent: the body is in a file.
    pub(super) body: Option<&'a [u8]>,
    pub(super) len: usize,
    /// Bytes behind the body.
    pub(super) raw: &'a [u8],
    pub(super) is_critical: bool,
}

/// Encodes a body with raw bytes behind it.
pub(super) fn seal(body: &impl Serialize, raw: &[&[u8]]) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::with_capacity(USUAL_BYTES);
    bytes.extend_from_slice(&[MARK, FORM, 0, 0, 0, 0, 0, 0]);
    serde_json::to_writer(&mut bytes, body)?;
    let len = u32::try_from(bytes.len() - HEAD_BYTES);
    let len = len.map_err(|_| io::Error::from(io::ErrorKind::FileTooLarge))?;
    bytes[4..HEAD_BYTES].copy_from_slice(&len.to_le_bytes());
    // Grown once: a reallocation would free a buffer with bytes of secrets.
    bytes.reserve_exact(raw.iter().map(|part| part.len()).sum());
    for part in raw {
        bytes.extend_from_slice(part);
    }
    Ok(bytes)
}

/// Moves the body of a message with so many raw bytes to a sealed file.
pub(super) fn move_body(bytes: &mut Vec<u8>, raw: usize) -> io::Result<OwnedFd> {
    let body = HEAD_BYTES..bytes.len() - raw;
    let file = memfd::sealed("kennel-body", &bytes[body.clone()])?;
    bytes[2] |= IN_FILE;
    bytes.drain(body);
    Ok(file)
}

/// Splits a message into its parts.
pub(super) fn open(bytes: &[u8]) -> io::Result<OpenedMessage<'_>> {
    let wrong = |why| io::Error::new(io::ErrorKind::InvalidData, why);
    let Some((head, rest)) = bytes.split_first_chunk::<HEAD_BYTES>() else {
        return Err(wrong("a message without an envelope"));
    };
    let [MARK, FORM, flags, _, len @ ..] = *head else {
        return Err(wrong("a message of another form"));
    };
    let len = usize::try_from(u32::from_le_bytes(len)).map_err(io::Error::other)?;
    let (body, raw) = if flags & IN_FILE != 0 {
        (None, rest)
    } else {
        let parts = rest.split_at_checked(len);
        let (body, raw) = parts.ok_or_else(|| wrong("a message that is cut"))?;
        (Some(body), raw)
    };
    Ok(OpenedMessage {
        body,
        len,
        raw,
        is_critical: flags & CRITICAL != 0,
    })
}
