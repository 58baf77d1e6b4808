//! Note of what a start has done to end a run that an earlier keeper has left, in the run's private directory. It is
//! written before the first signal: so the next start knows why no process is left, should that start die before its
//! report.
//!
//! Like a shim's exit record it must outlive processes, not the host, and is not synced.

use crate::{
    private_file,
    unreadable::{self, Unreadable},
    wire::notes::{OrphanNote, WireLeader},
};
use kennel_lifecycle::StopStep;
use std::{ffi::CStr, io, path::Path};

const NAME: &CStr = c"orphan";

/// Records that the run of this leader is being ended, and the steps so far.
pub(crate) fn write(run_dir: &Path, leader: WireLeader, steps: &[StopStep]) -> io::Result<()> {
    let steps = steps.to_vec();
    let bytes = serde_json::to_vec(&OrphanNote { leader, steps })?;
    private_file::replace(run_dir, NAME, &bytes).map(|_| ())
}

/// Reads the rounds of signals of a start that had begun to end the run of this leader; `None`: none had.
pub(crate) fn read(
    run_dir: &Path,
    leader: WireLeader,
) -> Result<Option<Vec<StopStep>>, Unreadable> {
    let note = unreadable::read::<OrphanNote>(run_dir, NAME)?;
    let note = note.filter(|note| note.leader == leader);
    Ok(note.map(|note| note.steps))
}

#[cfg(test)]
mod tests {
    use super::*;
    use kennel_lifecycle::{
        Signal, SignalScope, SignalSender, Timestamp, limits::STEPS_LISTED_MAX,
    };

    // promise: R-3a
    #[test]
    fn termination_note_is_read_for_its_leader_only() {
        let dir = tempfile::tempdir().expect("a directory");
        let leader = |start_ticks| WireLeader {
            pid: i32::MIN,
            start_ticks,
        };
        assert_eq!(read(dir.path(), leader(1)), Ok(None));
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
        assert_eq!(read(dir.path(), leader(u64::MAX)), Ok(Some(Vec::new())));
        write(dir.path(), leader(u64::MAX), &steps).expect("it is replaced");
        assert_eq!(read(dir.path(), leader(u64::MAX)), Ok(Some(steps)));
        assert_eq!(read(dir.path(), leader(1)), Ok(None));
    }
}
