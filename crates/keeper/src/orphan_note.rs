//! Note of what a start has done to end a run that an earlier keeper has left, in the run's private directory. It is
//! written before the first signal: so the next start knows why no process is left, should that start die before its
//! report.
//!
//! Like a shim's exit record it must outlive processes, not the host, and is not synced.

use crate::{
    private_file,
    wire::{self, notes::WireLeader},
};
use kennel_lifecycle::{StopStep, limits::STEPS_LISTED_MAX};
use std::{ffi::CStr, io, path::Path};

const NAME: &CStr = c"orphan";
const TEMPORARY: &CStr = c"orphan.new";

/// No step takes more than 64 bytes.
const NOTE_BYTES_MAX: u64 = 64 * STEPS_LISTED_MAX as u64 + 64;

/// Records that the run of this leader is being ended, and the steps so far.
pub(crate) fn write(run_dir: &Path, leader: WireLeader, steps: &[StopStep]) -> io::Result<()> {
    let bytes = wire::encode(&(leader, steps))?;
    private_file::replace(run_dir, NAME, TEMPORARY, &bytes).map(|_| ())
}

/// Reads the rounds of signals of a start that had begun to end the run of this leader; `None`: none had.
pub(crate) fn read(run_dir: &Path, leader: WireLeader) -> Option<Vec<StopStep>> {
    let bytes = private_file::read(run_dir, NAME, NOTE_BYTES_MAX)?;
    let (noted, steps) = wire::decode::<(WireLeader, Vec<StopStep>)>(&bytes).ok()?;
    (noted == leader).then_some(steps)
}

#[cfg(test)]
mod tests {
    use super::*;
    use kennel_lifecycle::{Signal, SignalScope, SignalSender, Timestamp};

    #[test]
    fn longest_note_is_read_for_its_leader_only() {
        let dir = tempfile::tempdir().expect("a directory");
        let leader = |start_ticks| WireLeader {
            pid: i32::MIN,
            start_ticks,
        };
        assert_eq!(read(dir.path(), leader(1)), None);
        let step = StopStep {
            at: Timestamp(i64::MIN),
            signal: Signal::KILL,
            sender: SignalSender::Keeper,
            scope: SignalScope::Tree,
            delivered: u32::MAX,
            gone: u32::MAX,
            refused: u32::MAX,
            errno: Some(i32::MIN),
        };
        let steps = vec![step; STEPS_LISTED_MAX];
        write(dir.path(), leader(u64::MAX), &[]).expect("it is written");
        assert_eq!(read(dir.path(), leader(u64::MAX)), Some(Vec::new()));
        write(dir.path(), leader(u64::MAX), &steps).expect("it is replaced");
        assert_eq!(read(dir.path(), leader(u64::MAX)), Some(steps));
        assert_eq!(read(dir.path(), leader(1)), None);
    }
}
