//! A shim's last will in the run's private directory: whole or not there, since it is renamed into place.
//!
//! It must outlive processes, not the host: after another boot nobody asks for it, so it is not synced.

use crate::wire::{self, mirror::WireRecord};
use kennel_lifecycle::recovery::ExitRecord;
use std::{fs, io, path::Path};

const NAME: &str = "exit";
const TEMPORARY: &str = "exit.new";

/// Writes the record, or replaces it.
pub(crate) fn write(run_dir: &Path, record: &ExitRecord) -> io::Result<()> {
    let bytes = wire::encode(&WireRecord::from(record.clone()))?;
    let temporary = run_dir.join(TEMPORARY);
    fs::write(&temporary, bytes)?;
    fs::rename(temporary, run_dir.join(NAME))
}

/// The record; `None` where there is none, or none that can be read.
pub(crate) fn read(run_dir: &Path) -> Option<ExitRecord> {
    let bytes = fs::read(run_dir.join(NAME)).ok()?;
    wire::decode::<WireRecord>(&bytes).ok().map(Into::into)
}

#[cfg(test)]
mod tests {
    use super::*;
    use kennel_lifecycle::{Exit, Proof, Signal, TreeVerdict};

    #[test]
    fn what_was_written_last_is_read() {
        let dir = tempfile::tempdir().expect("a directory");
        assert_eq!(read(dir.path()), None);
        let mut record = ExitRecord {
            exit: Some(Exit::Signal {
                signal: Signal::KILL,
                core_dumped: false,
            }),
            tree: None,
            never_ran: false,
        };
        write(dir.path(), &record).expect("it is written");
        record.tree = Some(TreeVerdict::Empty(Proof::Echild));
        write(dir.path(), &record).expect("it is replaced");
        assert_eq!(read(dir.path()), Some(record));
    }
}
