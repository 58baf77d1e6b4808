//! Requests of a leak check to the keeper, and the answers. All of it travels in sealed files: lists may be long.

use crate::values::Victim;
use kennel_lifecycle::CgroupIdentity;
use serde::{Deserialize, Serialize};

/// Most processes that one request ends.
pub(crate) const VICTIMS_MAX: usize = 4096;
/// Longest encoded inventory of the keeper, or list of processes to end: paths are the long part.
pub(crate) const AUDIT_BYTES_MAX: u64 = 32 * 1024 * 1024;

/// Processes to be ended, and empty directories to be removed.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct WireVictims {
    pub(crate) victims: Vec<Victim>,
    pub(crate) directories: Vec<CgroupIdentity>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::values::Holding;
    use crate::wire::{decode_content, encode_content};
    use kennel_lifecycle::ProcessIdentity;

    #[test]
    fn the_longest_order_fits_into_its_file() {
        let group = CgroupIdentity {
            path: "x".repeat(libc::PATH_MAX.unsigned_abs() as usize),
            inode: u64::MAX,
        };
        let victim = Victim {
            process: ProcessIdentity {
                pid: i32::MIN,
                pgid: i32::MIN,
                sid: i32::MIN,
                start_ticks: u64::MAX,
                pidfs_handle: Some(u64::MAX),
            },
            holding: Holding::Cgroup(group.clone()),
        };
        let order = WireVictims {
            victims: vec![victim; VICTIMS_MAX],
            directories: vec![group; VICTIMS_MAX / 2],
        };
        let bytes = encode_content(&order).expect("it can be encoded");
        assert!(bytes.len() as u64 <= AUDIT_BYTES_MAX, "{}", bytes.len());
        assert_eq!(
            decode_content::<WireVictims>(&bytes).expect("our own"),
            order
        );
    }
}
