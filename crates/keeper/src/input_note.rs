//! Progress of a run's standard input, noted by the keeper in the run's private directory: for reads after the run has
//! ended, and for the next keeper.
//!
//! The file has two halves, in the form of those of exit slots and written in turn: a note that is cut leaves the one
//! before it. It must outlive processes, not the host: after another boot no keeper resumes the run, so it is not
//! synced.

use crate::{
    exit_slots, private_file,
    unreadable::{self, Unreadable},
    values::InputState,
    wire::notes::InputNote,
};
use kennel_lifecycle::{InputLedger, RunId};
use std::{ffi::CStr, fs::File, io, os::unix::fs::FileExt, path::Path};

const NAME: &CStr = c"input";

/// Size of a half. The longest note fits: write ids have no character that JSON escapes.
const HALF_BYTES: u32 = 4096;

/// The note of one attempt, while it can be written.
#[derive(Default)]
pub(crate) struct Note {
    file: Option<File>,
    /// Number of notes that were written.
    count: u64,
}

impl Note {
    /// Begins a note, which replaces that of an earlier attempt. Its size stays: no later note needs disk space.
    pub(crate) fn begin(run_dir: &Path, attempt: u32, ledger: &InputLedger) -> io::Result<Self> {
        let mut bytes = encode(attempt, ledger, 1)?;
        bytes.resize(2 * bytes.len(), 0);
        let file = private_file::replace(run_dir, NAME, &bytes)?;
        Ok(Self {
            file: Some(file),
            count: 1,
        })
    }

    /// Notes the present state. A note that cannot be written is removed: no note means that nothing is known.
    pub(crate) fn keep(&mut self, run_dir: &Path, attempt: u32, ledger: &InputLedger) {
        let Some(file) = &self.file else { return };
        let offset = self.count % 2 * u64::from(HALF_BYTES);
        self.count += 1;
        let kept =
            encode(attempt, ledger, self.count).and_then(|half| file.write_all_at(&half, offset));
        if kept.is_err() {
            self.file = None;
            let _ = private_file::remove(run_dir, NAME);
        }
    }
}

fn encode(attempt: u32, ledger: &InputLedger, count: u64) -> io::Result<Vec<u8>> {
    let ledger = ledger.clone();
    let note = serde_json::to_vec(&InputNote { attempt, ledger })?;
    // The directory names the run, so the id is zero.
    let half = exit_slots::encode(RunId::from_u128(0), count, &note, HALF_BYTES);
    half.ok_or_else(|| io::ErrorKind::FileTooLarge.into())
}

/// Decodes the newer half of a file. No constant says where the second one is: a later version may have longer ones.
pub(crate) fn decode(bytes: &[u8]) -> Result<InputNote, String> {
    let halves = bytes.chunks_exact((bytes.len() / 2).max(1));
    let newest = halves
        .filter_map(exit_slots::decode)
        .max_by_key(|half| half.1);
    let (_, _, note) = newest.ok_or("no half of it is whole")?;
    unreadable::decode(note)
}

/// Reads the note; `None`: none exists.
pub(crate) fn read_ledger(run_dir: &Path) -> Result<Option<InputNote>, Unreadable> {
    unreadable::read_by(run_dir, NAME, decode)
}

/// Returns the input state of the last attempt that had an input, as far as it was noted.
pub fn read(run_dir: &Path) -> Result<Option<InputState>, Unreadable> {
    let noted = read_ledger(run_dir)?;
    Ok(noted.map(|note| InputState::of(note.attempt, &note.ledger, None)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use kennel_lifecycle::{
        InputClosed, InputWrite, WRITES_REMEMBERED_MAX, limits::WRITE_ID_BYTES_MAX,
    };

    fn noted(attempt: u32, ledger: &InputLedger) -> InputNote {
        InputNote {
            attempt,
            ledger: ledger.clone(),
        }
    }

    // promise: V-1a
    #[test]
    fn last_complete_input_note_is_read() {
        let dir = tempfile::tempdir().expect("a directory");
        assert_eq!(read_ledger(dir.path()), Ok(None));
        let mut ledger = InputLedger::default();
        let mut note = Note::begin(dir.path(), 3, &ledger).expect("it is made");
        let path = dir.path().join("input");
        let size = || std::fs::metadata(&path).expect("it is there").len();
        let first = size();
        for number in 0..2 * WRITES_REMEMBERED_MAX {
            let id = format!("{number:02}{}", "~".repeat(WRITE_ID_BYTES_MAX - 2));
            let write = InputWrite {
                id,
                offset: None,
                len: u64::from(u32::MAX),
            };
            ledger.place(&write).expect("it is open");
            ledger.took(u64::from(u32::MAX));
        }
        ledger.accepted = u64::MAX;
        ledger.in_doubt = u64::MAX;
        note.keep(dir.path(), u32::MAX, &ledger);
        let longest = noted(u32::MAX, &ledger);
        assert_eq!(read_ledger(dir.path()), Ok(Some(longest.clone())));
        let short = InputLedger {
            accepted: 1,
            closed: Some(InputClosed::Command),
            ..InputLedger::default()
        };
        note.keep(dir.path(), 4, &short);
        assert_eq!(read_ledger(dir.path()), Ok(Some(noted(4, &short))));
        assert_eq!(size(), first, "no note needs space");
        // A keeper killed within a write tears one half.
        let mut torn = std::fs::read(&path).expect("it is read");
        torn[40] ^= 1;
        assert_eq!(decode(&torn), Ok(longest));
        let half = torn.len() / 2;
        torn[half + 40] ^= 1;
        decode(&torn).expect_err("none is whole");
        for len in [0, 1, 2, half] {
            decode(&vec![0; len]).expect_err("no note");
        }
    }
}
