//! Progress of a run's standard input, noted by the keeper in the run's private directory: for reads after the run has
//! ended, and for the next keeper.
//!
//! It must outlive processes, not the host: after another boot no keeper resumes the run, so it is not synced.

use crate::{
    private_file,
    unreadable::{self, Unreadable},
    values::InputState,
    wire::notes::InputNote,
};
use kennel_lifecycle::InputLedger;
use std::{ffi::CStr, fs::File, io, os::unix::fs::FileExt, path::Path};

const NAME: &CStr = c"input";
const TEMPORARY: &CStr = c"input.new";

/// Size of the file, so that no later note needs disk space. One write(2) within one page is not cut by a signal. Only
/// [`WRITES_REMEMBERED_MAX`](kennel_lifecycle::WRITES_REMEMBERED_MAX) long ids that JSON has to escape make it longer.
const BYTES: usize = 4096;

/// The note of one attempt, while it can be written.
#[derive(Default)]
pub(crate) struct Note {
    file: Option<File>,
    /// Length of the file: each note is as long, so that nothing of the one before is left behind it.
    len: usize,
}

impl Note {
    /// Begins a note, which replaces that of an earlier attempt.
    pub(crate) fn begin(run_dir: &Path, attempt: u32, ledger: &InputLedger) -> io::Result<Self> {
        let bytes = encode(attempt, ledger, BYTES)?;
        let file = private_file::replace(run_dir, NAME, TEMPORARY, &bytes)?;
        Ok(Self {
            file: Some(file),
            len: bytes.len(),
        })
    }

    /// Notes the present state. A note that cannot be written is removed: no note means that nothing is known.
    pub(crate) fn keep(&mut self, run_dir: &Path, attempt: u32, ledger: &InputLedger) {
        let Some(file) = &self.file else { return };
        let kept = encode(attempt, ledger, self.len).and_then(|bytes| {
            self.len = bytes.len();
            file.write_all_at(&bytes, 0)
        });
        if kept.is_err() {
            self.file = None;
            let _ = private_file::remove(run_dir, NAME);
        }
    }
}

fn encode(attempt: u32, ledger: &InputLedger, len: usize) -> io::Result<Vec<u8>> {
    let ledger = ledger.clone();
    let mut bytes = serde_json::to_vec(&InputNote { attempt, ledger })?;
    bytes.resize(len.max(bytes.len()), b' ');
    Ok(bytes)
}

/// Reads the note; `None`: none exists.
pub(crate) fn read_ledger(run_dir: &Path) -> Result<Option<InputNote>, Unreadable> {
    unreadable::read(run_dir, NAME)
}

/// Returns the input state of the last attempt that had an input, as far as it was noted.
pub fn read(run_dir: &Path) -> Result<Option<InputState>, Unreadable> {
    let noted = read_ledger(run_dir)?;
    Ok(noted.map(|note| InputState::of(note.attempt, &note.ledger, None)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use kennel_lifecycle::{InputClosed, InputWrite, WRITES_REMEMBERED_MAX};

    fn noted(attempt: u32, ledger: &InputLedger) -> InputNote {
        InputNote {
            attempt,
            ledger: ledger.clone(),
        }
    }

    #[test]
    fn last_note_is_read_even_if_shorter() {
        last_note_of("0", 4096);
        // Six bytes each in JSON.
        last_note_of("\u{1}", 13_500);
    }

    fn last_note_of(id: &str, longest: u64) {
        let dir = tempfile::tempdir().expect("a directory");
        assert_eq!(read_ledger(dir.path()), Ok(None));
        let mut ledger = InputLedger::default();
        let mut note = Note::begin(dir.path(), 3, &ledger).expect("it is made");
        for number in 0..2 * WRITES_REMEMBERED_MAX {
            let id = format!("{number:02}{}", id.repeat(126));
            let write = InputWrite {
                id,
                offset: None,
                len: u64::from(u32::MAX),
            };
            ledger.place(&write).expect("it is open");
            ledger.took(u64::from(u32::MAX));
        }
        ledger.in_doubt = 9;
        note.keep(dir.path(), 3, &ledger);
        assert_eq!(read_ledger(dir.path()), Ok(Some(noted(3, &ledger))));
        let size = std::fs::metadata(dir.path().join("input")).expect("it is there");
        assert!(size.len() <= longest, "{}", size.len());
        let short = InputLedger {
            accepted: 1,
            closed: Some(InputClosed::Command),
            ..InputLedger::default()
        };
        note.keep(dir.path(), 4, &short);
        assert_eq!(read_ledger(dir.path()), Ok(Some(noted(4, &short))));
    }
}
