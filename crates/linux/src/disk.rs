//! Free and used space of a file system.

use nix::sys::statvfs::statvfs;
use std::{io, path::Path};

/// Space of a file system in bytes, see statvfs(3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// Used bytes.
    pub used: u64,
    /// Used bytes and those that this process may still use: space reserved for root counts as used, as in df(1).
    pub total: u64,
}

/// Returns the space of the file system that the path is on.
pub fn room_of(path: &Path) -> io::Result<Room> {
    let room = statvfs(path)?;
    let used = room.blocks().saturating_sub(room.blocks_free());
    let total = used.saturating_add(room.blocks_available());
    Ok(Room {
        used: used.saturating_mul(room.fragment_size()),
        total: total.saturating_mul(room.fragment_size()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn disk_usage_is_at_most_its_size() {
        let room = room_of(Path::new("/")).expect("there is one");
        assert!(room.total > 0 && room.used <= room.total, "{room:?}");
        assert!(room_of(Path::new("/nonexistent")).is_err());
    }
}
