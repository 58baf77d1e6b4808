//! A shim's record of how its run has ended: in its slot of its keeper's file, or in the run's private directory.
//!
//! The slot costs one write and no file. A record that does not fit, or for which there is no slot, is a file, which is
//! renamed into place and so complete or absent. A shim that has once made a file continues to use it, so where slot
//! and file are of one leader the file is the newer one.
//!
//! A record must outlive processes, not the host: after another boot no process reads it, so it is not synced.

use crate::{
    exit_slots::{ExitFiles, ExitSlot},
    private_file,
    unreadable::{self, Unreadable},
    wire::{
        notes::{WireLeader, WireWill},
        strict,
    },
};
use kennel_lifecycle::{RunId, recovery::ExitRecord};
use std::{
    ffi::CStr,
    fs::File,
    io,
    os::unix::fs::{FileExt, MetadataExt},
    path::Path,
};

const NAME: &CStr = c"exit";

/// Longest record that is replaced in place: one write(2) within one page is not cut by a signal.
const IN_PLACE_BYTES_MAX: usize = 1024;

/// A record that is written and may be extended.
pub(crate) struct Will {
    run: RunId,
    slot: Option<ExitSlot>,
    /// The file, once it exists.
    written: Option<File>,
    leader: WireLeader,
}

impl Will {
    pub(crate) fn new(run: RunId, slot: Option<ExitSlot>) -> Self {
        Self {
            run,
            slot,
            written: None,
            leader: WireLeader::default(),
        }
    }

    /// Sets the leader whose exit is recorded: without this name the record of one attempt could be taken for that of
    /// the next, where its shim exits late.
    pub(crate) fn name(&mut self, leader: WireLeader) {
        self.leader = leader;
    }

    /// Writes the record, or replaces it. The second write is in place: to make a new file each time, and remove the
    /// old one, is the slowest operation of a file system.
    pub(crate) fn write(&mut self, run_dir: &Path, record: &ExitRecord) -> io::Result<()> {
        let named = WireWill {
            leader: self.leader,
            record: record.clone(),
        };
        let bytes = serde_json::to_vec(&named)?;
        if let Some(slot) = &mut self.slot {
            if slot.write(self.run, &bytes).is_ok() {
                return Ok(());
            }
            self.slot = None;
        }
        if let Some(file) = &self.written
            && bytes.len() <= IN_PLACE_BYTES_MAX
        {
            let found = file.metadata()?;
            // Only a file that still has its name is overwritten, and never by a shorter record: a reader sees one
            // record or the other.
            if found.nlink() == 1 && found.len() <= bytes.len() as u64 {
                return file.write_all_at(&bytes, 0);
            }
        }
        self.written = Some(private_file::replace(run_dir, NAME, &bytes)?);
        Ok(())
    }
}

/// The record of this leader of the run; `None` where there is none.
pub(crate) fn read(
    run_dir: &Path,
    run: RunId,
    leader: WireLeader,
) -> Result<Option<ExitRecord>, Unreadable> {
    let of_leader = |will: WireWill| (will.leader == leader).then_some(will.record);
    let file = read_file(run_dir);
    if let Ok(Some(will)) = &file
        && will.leader == leader
    {
        return Ok(Some(will.record.clone()));
    }
    let records = run_dir
        .parent()
        .and_then(Path::parent)
        .map_or_else(Vec::new, |data_dir| ExitFiles::of(data_dir).records(run));
    // A slot that cannot be read is saved when its file is settled.
    let mut records = records.iter().filter_map(|bytes| strict::read(bytes).ok());
    match records.find_map(of_leader) {
        Some(record) => Ok(Some(record)),
        None => file.map(|_| None),
    }
}

/// Saves a record from a slot that is about to be removed, as the file that its shim would have made; an unreadable one
/// is set aside. A record of a run without a directory is never read.
pub(crate) fn keep(run_dir: &Path, bytes: &[u8]) -> io::Result<()> {
    if !run_dir.exists() {
        return Ok(());
    }
    let Ok(slot) = strict::read::<WireWill>(bytes) else {
        return unreadable::save(run_dir, NAME, bytes);
    };
    // With the same leader the file is newer. For two attempts the later leader counts: start ticks are comparable
    // within one boot, and an attempt's file is removed before the next attempt begins.
    let newer = |file: WireWill| {
        file.leader == slot.leader || file.leader.start_ticks > slot.leader.start_ticks
    };
    // `read_file` has moved an unreadable file away.
    if read_file(run_dir).ok().flatten().is_some_and(newer) {
        return Ok(());
    }
    private_file::replace(run_dir, NAME, bytes).map(drop)
}

fn read_file(run_dir: &Path) -> Result<Option<WireWill>, Unreadable> {
    unreadable::read(run_dir, NAME)
}

/// Removes the record of an ended attempt, so that it is not taken for that of the next.
pub(crate) fn remove(run_dir: &Path) -> io::Result<()> {
    private_file::remove(run_dir, c"exit.new")?;
    private_file::remove(run_dir, NAME)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{exit_slots::ExitSlots, wire::PIDS_MAX};
    use kennel_lifecycle::{
        Exit, Leftover, Leftovers, Proof, Signal, TreeVerdict, limits::LEFTOVERS_LISTED_MAX,
    };
    use nix::sys::stat::Mode;
    use std::{collections::BTreeSet, fs};

    fn run() -> RunId {
        RunId::from_u128(7)
    }

    fn record() -> ExitRecord {
        ExitRecord {
            exit: Some(Exit::Signal {
                signal: Signal::KILL,
                core_dumped: false,
            }),
            ..ExitRecord::default()
        }
    }

    fn leader(start_ticks: u64) -> WireLeader {
        WireLeader {
            pid: 7,
            start_ticks,
        }
    }

    fn write(run_dir: &Path, record: &ExitRecord) {
        let written = Will::new(run(), None).write(run_dir, record);
        written.expect("it is written");
    }

    /// The record of a leader without a name.
    fn recorded(run_dir: &Path) -> Option<ExitRecord> {
        let read = read(run_dir, run(), WireLeader::default());
        read.expect("what is there can be read")
    }

    #[test]
    fn last_exit_record_is_read() {
        let dir = tempfile::tempdir().expect("a directory");
        assert_eq!(recorded(dir.path()), None);
        let (mut record, mut will) = (record(), Will::new(run(), None));
        will.write(dir.path(), &record).expect("it is written");
        assert_eq!(recorded(dir.path()), Some(record.clone()));
        record.tree = Some(TreeVerdict::Empty(Proof::Echild));
        will.write(dir.path(), &record).expect("it is replaced");
        assert_eq!(recorded(dir.path()), Some(record.clone()));
        record.tree = Some(TreeVerdict::Survivors(vec![7; PIDS_MAX]));
        will.write(dir.path(), &record).expect("it is replaced");
        assert_eq!(recorded(dir.path()), Some(record.clone()));
        record.tree = None;
        will.write(dir.path(), &record)
            .expect("a shorter one replaces it");
        assert_eq!(recorded(dir.path()), Some(record));
    }

    // promise: B-2a
    #[test]
    fn exit_record_of_another_attempt_is_ignored() {
        let dir = tempfile::tempdir().expect("a directory");
        let mut will = Will::new(run(), None);
        will.name(leader(1));
        will.write(dir.path(), &record()).expect("it is written");
        assert_eq!(read(dir.path(), run(), leader(1)), Ok(Some(record())));
        assert_eq!(read(dir.path(), run(), leader(2)), Ok(None));
    }

    #[test]
    fn removed_exit_record_is_rewritten() {
        let dir = tempfile::tempdir().expect("a directory");
        let (mut record, mut will) = (record(), Will::new(run(), None));
        will.write(dir.path(), &record).expect("it is written");
        fs::remove_file(dir.path().join("exit")).expect("it goes");
        record.tree = Some(TreeVerdict::Empty(Proof::Echild));
        will.write(dir.path(), &record).expect("it is written");
        assert_eq!(recorded(dir.path()), Some(record));
    }

    /// A data directory with a keeper's file, and the private directory of the run in it.
    fn with_slots() -> (tempfile::TempDir, std::path::PathBuf, ExitSlots) {
        let data = tempfile::tempdir().expect("a directory");
        let run_dir = crate::rundir::create(data.path(), run()).expect("it is made");
        let slots = ExitSlots::open(data.path(), "epoch".to_owned());
        (data, run_dir, slots)
    }

    fn in_slot(slots: &mut ExitSlots) -> Will {
        let number = slots.take(1).expect("a slot");
        let slot = ExitSlot::new(slots.file().expect("a file"), number);
        Will::new(run(), Some(slot))
    }

    #[test]
    fn exit_record_in_a_slot_makes_no_file() {
        let (_data, run_dir, mut slots) = with_slots();
        let (mut record, mut will) = (record(), in_slot(&mut slots));
        will.name(leader(1));
        will.write(&run_dir, &record).expect("it is written");
        record.tree = Some(TreeVerdict::Empty(Proof::Echild));
        will.write(&run_dir, &record).expect("it is replaced");
        assert!(!run_dir.join("exit").exists());
        assert_eq!(read(&run_dir, run(), leader(1)), Ok(Some(record)));
        assert_eq!(read(&run_dir, RunId::from_u128(8), leader(1)), Ok(None));
        assert_eq!(recorded(&run_dir), None);
    }

    #[test]
    fn exit_record_too_large_for_slot_becomes_file() {
        let (_data, run_dir, mut slots) = with_slots();
        let (mut record, mut will) = (record(), in_slot(&mut slots));
        will.write(&run_dir, &record).expect("it is written");
        record.tree = Some(TreeVerdict::Survivors(vec![i32::MAX; PIDS_MAX]));
        will.write(&run_dir, &record).expect("it is written");
        assert_eq!(recorded(&run_dir).as_ref(), Some(&record));
        record.tree = None;
        will.write(&run_dir, &record).expect("a shorter one");
        assert_eq!(recorded(&run_dir), Some(record));
    }

    // promise: E-4a
    #[test]
    fn settled_exit_record_is_read_from_run_directory() {
        let (data, run_dir, mut slots) = with_slots();
        let (mut record, mut will) = (record(), in_slot(&mut slots));
        will.write(&run_dir, &record).expect("it is written");
        record.tree = Some(TreeVerdict::Empty(Proof::Echild));
        will.write(&run_dir, &record).expect("it is replaced");
        drop((will, slots));
        let mut next = ExitSlots::open(data.path(), "next".to_owned());
        next.settle(|run, bytes| keep(&crate::rundir::path(data.path(), run), bytes));
        assert!(!data.path().join("exits/epoch").exists());
        assert_eq!(recorded(&run_dir), Some(record));
    }

    // promise: B-2a
    #[test]
    fn settled_record_replaces_only_that_of_earlier_attempt() {
        let (_data, run_dir, _) = with_slots();
        let write = |start_ticks| {
            let mut will = Will::new(run(), None);
            will.name(leader(start_ticks));
            will.write(&run_dir, &record()).expect("it is written");
        };
        let slot = |start_ticks| {
            let (leader, mut record) = (leader(start_ticks), record());
            record.shutdown = true;
            serde_json::to_vec(&WireWill { leader, record }).expect("bytes")
        };
        let is_kept = || {
            let file = read_file(&run_dir).expect("it can be read");
            file.is_some_and(|will| will.record.shutdown)
        };
        write(2);
        for older in [1, 2] {
            keep(&run_dir, &slot(older)).expect("nothing to do");
            assert!(!is_kept(), "{older}");
        }
        keep(&run_dir, &slot(3)).expect("it is kept");
        assert!(is_kept());
        let gone = run_dir.with_file_name("none");
        keep(&gone, &slot(3)).expect("no process asks for it");
    }

    // promise: A-23
    #[test]
    fn unreadable_slot_is_set_aside_when_settled() {
        let (leader, record) = (leader(1), record());
        let text = serde_json::to_string(&WireWill { leader, record }).expect("JSON");
        // JSON readers differ on duplicate keys.
        let twice = text.replacen('{', r#"{"a":1,"a":2,"#, 1);
        for written in [b"of another form".as_slice(), twice.as_bytes()] {
            let (data, run_dir, mut slots) = with_slots();
            let number = slots.take(1).expect("a slot");
            let mut slot = ExitSlot::new(slots.file().expect("a file"), number);
            slot.write(run(), written).expect("it fits");
            assert_eq!(read(&run_dir, run(), leader), Ok(None));
            drop((slot, slots));
            let mut next = ExitSlots::open(data.path(), "next".to_owned());
            next.settle(|run, bytes| keep(&crate::rundir::path(data.path(), run), bytes));
            assert!(!data.path().join("exits/epoch").exists());
            let kept = unreadable::sweep(data.path(), &mut BTreeSet::new(), |_| false);
            let kept = kept.first().expect("one is there");
            assert_eq!(fs::read(&kept.path).expect("it is there"), written);
        }
    }

    // promise: A-23
    #[test]
    fn slot_replaces_an_unreadable_record_file() {
        let (data, run_dir, mut slots) = with_slots();
        let mut will = in_slot(&mut slots);
        will.write(&run_dir, &record()).expect("it is written");
        fs::write(run_dir.join("exit"), b"of another form").expect("a file");
        assert_eq!(recorded(&run_dir), Some(record()));
        assert_eq!(unreadable::count(data.path()), 1);
        fs::write(run_dir.join("exit"), b"of another form").expect("a file");
        read(&run_dir, run(), leader(1)).expect_err("it may be this leader's");
    }

    #[test]
    fn longest_exit_record_round_trips() {
        let dir = tempfile::tempdir().expect("a directory");
        let mut record = record();
        record.tree = Some(TreeVerdict::Survivors(vec![i32::MAX; PIDS_MAX]));
        write(dir.path(), &record);
        assert_eq!(recorded(dir.path()), Some(record.clone()));

        let process = Leftover {
            pid: i32::MAX,
            start_ticks: u64::MAX,
            // Fifteen bytes of a name that is not UTF-8, as replacement characters.
            name: "\u{fffd}".repeat(15),
        };
        record.tree = Some(TreeVerdict::Kept(Leftovers {
            processes: vec![process; LEFTOVERS_LISTED_MAX],
            unlisted: u32::MAX,
        }));
        write(dir.path(), &record);
        assert_eq!(recorded(dir.path()), Some(record));
    }

    #[test]
    fn link_or_fifo_is_not_followed_or_opened() {
        let dir = tempfile::tempdir().expect("a directory");
        let victim = dir.path().join("victim");
        fs::write(&victim, b"kept").expect("a file");
        std::os::unix::fs::symlink(&victim, dir.path().join("exit.new")).expect("a link");
        write(dir.path(), &record());
        assert_eq!(fs::read(&victim).expect("it is there"), b"kept");
        assert_eq!(recorded(dir.path()), Some(record()));

        let fifo = dir.path().join("exit.new");
        nix::unistd::mkfifo(&fifo, Mode::S_IRWXU).expect("a fifo");
        write(dir.path(), &record());
        assert!(!fifo.exists());

        fs::remove_file(dir.path().join("exit")).expect("it goes");
        nix::unistd::mkfifo(&dir.path().join("exit"), Mode::S_IRWXU).expect("a fifo");
        assert_eq!(recorded(dir.path()), None);
        write(dir.path(), &record());
        assert_eq!(recorded(dir.path()), Some(record()));
    }
}
