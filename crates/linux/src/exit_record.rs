//! A shim's last will in the run's private directory: whole or not there, since it is renamed into place.
//!
//! It must outlive processes, not the host: after another boot nobody asks for it, so it is not synced.

use crate::{
    private_file,
    wire::{
        self,
        notes::{WireLeader, WireWill},
    },
};
use kennel_lifecycle::recovery::ExitRecord;
use std::{
    ffi::CStr,
    fs::File,
    io,
    os::unix::fs::{FileExt, MetadataExt},
    path::Path,
};

const NAME: &CStr = c"exit";
const TEMPORARY: &CStr = c"exit.new";

/// Longest record that is read; a record is the bytes of a few numbers and at most
/// [`PIDS_MAX`](crate::wire::PIDS_MAX) process ids, or [`LEFTOVERS_TOLD_MAX`](kennel_lifecycle::limits::LEFTOVERS_TOLD_MAX)
/// processes, none of which takes more than 64 bytes.
const RECORD_BYTES_MAX: u64 = 20 * 1024;

/// Longest record that is replaced in place: one write(2) within one page is not cut by a signal.
const IN_PLACE_BYTES_MAX: usize = 1024;

/// A record that is written and may be added to.
#[derive(Default)]
pub(crate) struct Will {
    written: Option<File>,
    leader: WireLeader,
}

impl Will {
    /// Whose end is told: without this name the record of one attempt could be taken for that of the next, where its shim
    /// goes late.
    pub(crate) fn name(&mut self, leader: WireLeader) {
        self.leader = leader;
    }

    /// Writes the record, or replaces it. The second time is in place: a new file each time, and the end of the old
    /// one, is what a file system is slowest at.
    pub(crate) fn write(&mut self, run_dir: &Path, record: &ExitRecord) -> io::Result<()> {
        let named = WireWill {
            leader: self.leader,
            record: record.clone(),
        };
        let bytes = wire::encode(&named)?;
        if let Some(file) = &self.written
            && bytes.len() <= IN_PLACE_BYTES_MAX
        {
            let found = file.metadata()?;
            // Only what is still there by its name, and only by growing: whoever reads it sees one record or the other.
            if found.nlink() == 1 && found.len() <= bytes.len() as u64 {
                return file.write_all_at(&bytes, 0);
            }
        }
        self.written = Some(private_file::replace(run_dir, NAME, TEMPORARY, &bytes)?);
        Ok(())
    }
}

/// The record of this leader's run; `None` where there is none, or none that can be read, or it is another's.
pub(crate) fn read(run_dir: &Path, leader: WireLeader) -> Option<ExitRecord> {
    let bytes = private_file::read(run_dir, NAME, RECORD_BYTES_MAX)?;
    let will = wire::decode::<WireWill>(&bytes).ok()?;
    (will.leader == leader).then_some(will.record)
}

/// Removes the record of an attempt that is over, so that it is not taken for that of the next.
pub(crate) fn remove(run_dir: &Path) -> io::Result<()> {
    private_file::remove(run_dir, TEMPORARY)?;
    private_file::remove(run_dir, NAME)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::PIDS_MAX;
    use kennel_lifecycle::{
        Exit, Leftover, Leftovers, Proof, Signal, TreeVerdict, limits::LEFTOVERS_TOLD_MAX,
    };
    use nix::sys::stat::Mode;
    use std::fs;

    fn record() -> ExitRecord {
        ExitRecord {
            exit: Some(Exit::Signal {
                signal: Signal::KILL,
                core_dumped: false,
            }),
            by_itself: None,
            tree: None,
            never_ran: false,
            steps: vec![],
            census: None,
            shutdown: false,
        }
    }

    #[test]
    fn what_was_written_last_is_read() {
        let dir = tempfile::tempdir().expect("a directory");
        assert_eq!(read(dir.path(), WireLeader::default()), None);
        let (mut record, mut will) = (record(), Will::default());
        will.write(dir.path(), &record).expect("it is written");
        assert_eq!(
            read(dir.path(), WireLeader::default()),
            Some(record.clone())
        );
        record.tree = Some(TreeVerdict::Empty(Proof::Echild));
        will.write(dir.path(), &record).expect("it is replaced");
        assert_eq!(
            read(dir.path(), WireLeader::default()),
            Some(record.clone())
        );
        record.tree = Some(TreeVerdict::Survivors(vec![7; PIDS_MAX]));
        will.write(dir.path(), &record).expect("it is replaced");
        assert_eq!(
            read(dir.path(), WireLeader::default()),
            Some(record.clone())
        );
        record.tree = None;
        will.write(dir.path(), &record)
            .expect("a shorter one replaces it");
        assert_eq!(read(dir.path(), WireLeader::default()), Some(record));
    }

    #[test]
    fn the_record_of_an_earlier_attempt_is_not_that_of_this_one() {
        let dir = tempfile::tempdir().expect("a directory");
        let leader = |start_ticks| WireLeader {
            pid: 7,
            start_ticks,
        };
        let mut will = Will::default();
        will.name(leader(1));
        will.write(dir.path(), &record()).expect("it is written");
        assert_eq!(read(dir.path(), leader(1)), Some(record()));
        assert_eq!(read(dir.path(), leader(2)), None);
    }

    #[test]
    fn a_record_that_a_command_took_away_is_written_anew() {
        let dir = tempfile::tempdir().expect("a directory");
        let (mut record, mut will) = (record(), Will::default());
        will.write(dir.path(), &record).expect("it is written");
        fs::remove_file(dir.path().join("exit")).expect("it goes");
        record.tree = Some(TreeVerdict::Empty(Proof::Echild));
        will.write(dir.path(), &record).expect("it is written");
        assert_eq!(read(dir.path(), WireLeader::default()), Some(record));
    }

    #[test]
    fn the_longest_record_is_read_whole() {
        let dir = tempfile::tempdir().expect("a directory");
        let mut record = record();
        record.tree = Some(TreeVerdict::Survivors(vec![i32::MAX; PIDS_MAX]));
        Will::default()
            .write(dir.path(), &record)
            .expect("it is written");
        assert_eq!(
            read(dir.path(), WireLeader::default()),
            Some(record.clone())
        );

        let process = Leftover {
            pid: i32::MAX,
            start_ticks: u64::MAX,
            // Fifteen bytes that are no UTF-8, as they are shown.
            name: "\u{fffd}".repeat(15),
        };
        record.tree = Some(TreeVerdict::Kept(Leftovers {
            processes: vec![process; LEFTOVERS_TOLD_MAX],
            unlisted: u32::MAX,
        }));
        Will::default()
            .write(dir.path(), &record)
            .expect("it is written");
        assert_eq!(read(dir.path(), WireLeader::default()), Some(record));
    }

    #[test]
    fn what_a_command_has_put_there_is_neither_followed_nor_waited_for() {
        let dir = tempfile::tempdir().expect("a directory");
        let victim = dir.path().join("victim");
        fs::write(&victim, b"kept").expect("a file");
        std::os::unix::fs::symlink(&victim, dir.path().join("exit.new")).expect("a link");
        Will::default()
            .write(dir.path(), &record())
            .expect("it is written");
        assert_eq!(fs::read(&victim).expect("it is there"), b"kept");
        assert_eq!(read(dir.path(), WireLeader::default()), Some(record()));

        let fifo = dir.path().join("exit.new");
        nix::unistd::mkfifo(&fifo, Mode::S_IRWXU).expect("a fifo");
        Will::default()
            .write(dir.path(), &record())
            .expect("it is written");
        assert!(!fifo.exists());

        fs::remove_file(dir.path().join("exit")).expect("it goes");
        nix::unistd::mkfifo(&dir.path().join("exit"), Mode::S_IRWXU).expect("a fifo");
        assert_eq!(read(dir.path(), WireLeader::default()), None);
        Will::default()
            .write(dir.path(), &record())
            .expect("it is replaced");
        assert_eq!(read(dir.path(), WireLeader::default()), Some(record()));
    }
}
