//! Exit slots: the exit records of all runs of one keeper, in one file, `<data-dir>/exits/<epoch>`.
//!
//! The keeper makes the file and hands each run's shim one slot of 2 KiB; the shim writes its record there with one write and
//! makes no file. A slot has two halves that are written in turn, so that a write which is cut leaves the record before it. A
//! half names its run and has a checksum: what was left by an earlier run of the slot is never taken for this one's.
//!
//! | half   | bytes |                                                       |
//! |--------|-------|-------------------------------------------------------|
//! | crc    | 0-3   | CRC-32 (IEEE) of all that follows, up to the record's end |
//! | length | 4-5   | of the record                                         |
//! | form   | 6     | 1                                                     |
//! | count  | 8-15  | of the writes of this run, from 1                     |
//! | run    | 16-31 | its id                                                |
//! | record | 32-   | of the leader that it names ([`crate::exit_record`])  |
//!
//! In place of the first slot stands the file's header: `KEX`, form 1, size of a half (4 bytes, little endian). No reader's
//! own constant decides where a half is: the file may be of another version.
//!
//! All processes that can write to a file hold a lock on it together. A file that no process holds is emptied into the directories
//! of its runs, and removed ([`ExitFiles::settle`]).

use kennel_lifecycle::RunId;
use kennel_linux::{crash_point, own_file};
use nix::{fcntl::posix_fallocate, sys::stat::fstat};
use serde::{Deserialize, Serialize};
use std::{
    collections::HashMap,
    fs::{self, File, TryLockError},
    io,
    os::{
        fd::{AsFd, AsRawFd},
        unix::fs::FileExt,
    },
    path::{Path, PathBuf},
    rc::Rc,
};

const DIR: &str = "exits";
/// Bytes of a slot. A page holds a whole number of them: a write of a half is never across two pages.
const SLOT_BYTES: u64 = 2 * HALF_BYTES as u64;
const HALF_BYTES: u32 = 1024;
const HEADER_BYTES: usize = 32;
/// Form of a half.
const FORM: u8 = 1;
/// Begin of a file, before the size of a half.
const MARK: [u8; 4] = *b"KEX\x01";
/// Slots for which disk space is allocated at once.
const SLOTS_AHEAD: u32 = 64;
/// Bytes read at once, and more than a half ever has.
const READ_BYTES: usize = 256 * 1024;

/// Returns the name of the keeper whose file this is, its epoch; `None`: the kernel does not give the file's name.
pub(crate) fn keeper_of(file: &File) -> Option<String> {
    let path = fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd())).ok()?;
    let is_in_place = path.parent().is_some_and(|dir| dir.ends_with(DIR));
    // The link of a removed file ends in ` (deleted)`.
    let name = path.file_name()?.to_str()?;
    (is_in_place && !name.contains(' ')).then(|| name.to_owned())
}

/// Place of a slot in its keeper's file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct ExitPlace {
    pub(crate) offset: u64,
    pub(crate) half_bytes: u32,
}

/// The slot of one run, for its shim.
pub(crate) struct ExitSlot {
    file: Rc<File>,
    place: ExitPlace,
    /// Number of this run's writes to the slot.
    count: u64,
}

impl ExitSlot {
    pub(crate) fn new(file: Rc<File>, place: ExitPlace) -> Self {
        Self {
            file,
            place,
            count: 0,
        }
    }

    /// Writes the record in the place of the one before the last. The error says why it is not there: it does not fit,
    /// or could not be found later.
    ///
    /// A crash within the write: the last record is still there.
    pub(crate) fn write(&mut self, run: RunId, record: &[u8]) -> io::Result<()> {
        let ExitPlace { offset, half_bytes } = self.place;
        let half = encode(run, self.count + 1, record, half_bytes);
        let half = half.ok_or(io::ErrorKind::FileTooLarge)?;
        // A command of the same user may have removed the file: no reader could find the record.
        if fstat(&self.file).is_ok_and(|file| file.st_nlink == 0) {
            return Err(io::ErrorKind::NotFound.into());
        }
        let second = u64::from(self.count % 2 == 1);
        let offset = offset + second * u64::from(half_bytes);
        if self.file.write_at(&half, offset)? < half.len() {
            return Err(io::ErrorKind::WriteZero.into());
        }
        self.count += 1;
        Ok(())
    }
}

/// The files of all keepers of a data directory.
#[derive(Clone, Debug)]
pub(crate) struct ExitFiles {
    dir: PathBuf,
}

impl ExitFiles {
    pub(crate) fn of(data_dir: &Path) -> Self {
        Self {
            dir: data_dir.join(DIR),
        }
    }

    /// Returns the newest records of this run, one for each leader, as written, in no order.
    pub(crate) fn records(&self, run: RunId) -> Vec<Vec<u8>> {
        let mut found = Vec::new();
        for path in self.paths() {
            // A file that cannot be read has no records.
            let _ = each_half(&path, &mut |of, count, record| {
                if of == run {
                    found.push((count, record.to_vec()));
                }
            });
        }
        found.sort_unstable_by_key(|(count, _)| std::cmp::Reverse(*count));
        found.into_iter().map(|(_, record)| record).collect()
    }

    /// Empties and removes each file that no process can write to any more: `keep` gets all records, for each leader
    /// the newest first, and saves a record where it is found without the file. `true`: none but that of `own` is left.
    pub(crate) fn settle(
        &self,
        own: &str,
        mut keep: impl FnMut(RunId, &[u8]) -> io::Result<()>,
    ) -> bool {
        let others = self.paths().into_iter().filter(|path| !path.ends_with(own));
        others.fold(true, |all, path| settle_one(&path, &mut keep).is_ok() & all)
    }

    fn paths(&self) -> Vec<PathBuf> {
        let files = fs::read_dir(&self.dir).into_iter().flatten().flatten();
        files.map(|file| file.path()).collect()
    }
}

/// A crash within: the file still exists, and its records are saved again.
fn settle_one(path: &Path, keep: &mut dyn FnMut(RunId, &[u8]) -> io::Result<()>) -> io::Result<()> {
    let file = open(path)?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => return Err(io::ErrorKind::WouldBlock.into()),
        Err(TryLockError::Error(error)) => return Err(error),
    }
    let mut halves: Vec<(RunId, u64, Vec<u8>)> = Vec::new();
    each_half(path, &mut |run, count, record| {
        halves.push((run, count, record.to_vec()));
    })?;
    halves.sort_unstable_by_key(|(_, count, _)| std::cmp::Reverse(*count));
    for (run, _, record) in &halves {
        keep(*run, record)?;
    }
    crash_point!("keeper.exits_kept");
    fs::remove_file(path)
}

/// The slots of one keeper, and which of them are free.
pub(crate) struct ExitSlots {
    files: ExitFiles,
    name: String,
    /// Absent: the file could not be made, and each shim makes a file of its own.
    file: Option<Rc<File>>,
    free: Vec<u32>,
    /// Number of slots with allocated disk space.
    made: u32,
    taken: HashMap<u64, SlotInUse>,
    /// Whether files of earlier keepers are left.
    has_others: bool,
}

/// A slot in use by a shim.
struct SlotInUse {
    number: u32,
    acknowledged: bool,
    reaped: bool,
}

impl ExitSlots {
    /// Makes the file of this keeper. Without it, exits are still recorded.
    pub(crate) fn open(data_dir: &Path, name: String) -> Self {
        let files = ExitFiles::of(data_dir);
        // The lock lasts as long as this process or a shim has the file open.
        let file = own_file::create_locked(&files.dir, &name).ok();
        Self {
            files,
            name,
            file: file.map(Rc::new),
            free: Vec::new(),
            // Slot 0 is the header.
            made: 1,
            taken: HashMap::new(),
            has_others: true,
        }
    }

    /// Returns the file, which each shim inherits.
    pub(crate) fn file(&self) -> Option<Rc<File>> {
        self.file.clone()
    }

    /// Allocates a slot to the shim with this token; absent: there is no space for one.
    pub(crate) fn take(&mut self, shim: u64) -> Option<ExitPlace> {
        let file = self.file.as_ref()?;
        if self.free.is_empty() {
            let more = self.made + SLOTS_AHEAD;
            let [from, to] = [self.made, more].map(|slots| u64::from(slots) * SLOT_BYTES);
            let length = |bytes: u64| i64::try_from(bytes).unwrap_or(i64::MAX);
            let (from, bytes) = (length(from), length(to - from));
            // Allocated in advance: a full disk then loses no exit code.
            posix_fallocate(file.as_fd(), from, bytes).ok()?;
            file.write_all_at(&header(), 0).ok()?;
            self.free.extend((self.made..more).rev());
            self.made = more;
        }
        let number = self.free.pop()?;
        let taken = SlotInUse {
            number,
            acknowledged: false,
            reaped: false,
        };
        self.taken.insert(shim, taken);
        Some(ExitPlace {
            offset: u64::from(number) * SLOT_BYTES,
            half_bytes: HALF_BYTES,
        })
    }

    /// Frees the slot of a shim that never wrote to it and never will.
    pub(crate) fn never_used(&mut self, shim: u64) {
        self.acknowledged(shim);
        self.reaped(shim);
    }

    /// Marks that the end of the shim's run is on record elsewhere.
    pub(crate) fn acknowledged(&mut self, shim: u64) {
        if let Some(taken) = self.taken.get_mut(&shim) {
            taken.acknowledged = true;
        }
        self.free_if_done(shim);
    }

    /// Marks that the shim was reaped, and writes no more.
    pub(crate) fn reaped(&mut self, shim: u64) {
        if let Some(taken) = self.taken.get_mut(&shim) {
            taken.reaped = true;
        }
        self.free_if_done(shim);
    }

    fn free_if_done(&mut self, shim: u64) {
        let done = |taken: &SlotInUse| taken.acknowledged && taken.reaped;
        if self.taken.get(&shim).is_some_and(done)
            && let Some(taken) = self.taken.remove(&shim)
        {
            self.free.push(taken.number);
        }
    }

    /// Tries to settle the files of earlier keepers, if any are left.
    pub(crate) fn settle(&mut self, keep: impl FnMut(RunId, &[u8]) -> io::Result<()>) {
        if self.has_others {
            self.has_others = !self.files.settle(&self.name, keep);
        }
    }

    /// Removes the file at the end of the service, where all its records were acknowledged.
    pub(crate) fn close(&mut self) {
        if self.file.take().is_some() && self.taken.values().all(|taken| taken.acknowledged) {
            let _ = fs::remove_file(self.files.dir.join(&self.name));
        }
    }
}

fn open(path: &Path) -> io::Result<File> {
    let mut how = own_file::options();
    how.read(true).open(path).and_then(own_file::regular)
}

/// Passes on every complete half.
fn each_half(path: &Path, found: &mut dyn FnMut(RunId, u64, &[u8])) -> io::Result<()> {
    let file = open(path)?;
    let mut head = header();
    if read_full(&file, &mut head, 0)? < head.len() {
        // This file's keeper died before the file had a slot.
        return Ok(());
    }
    let [mark @ .., _, _, _, _] = head;
    let half = u32::from_le_bytes([head[4], head[5], head[6], head[7]]) as usize;
    if mark != MARK || !(HEADER_BYTES..=READ_BYTES).contains(&half) {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut bytes = vec![0; READ_BYTES / half * half];
    let mut offset = 2 * half as u64;
    loop {
        let read = read_full(&file, &mut bytes, offset)?;
        for half in bytes[..read].chunks_exact(half) {
            if let Some((run, count, record)) = decode(half) {
                found(run, count, record);
            }
        }
        if read < bytes.len() {
            return Ok(());
        }
        offset += read as u64;
    }
}

/// Reads as many bytes as there are, or as fit.
fn read_full(file: &File, bytes: &mut [u8], offset: u64) -> io::Result<usize> {
    let mut read = 0;
    while read < bytes.len() {
        match file.read_at(&mut bytes[read..], offset + read as u64) {
            Ok(0) => break,
            Ok(more) => read += more,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(read)
}

/// Returns the header of a file of this version.
fn header() -> [u8; 8] {
    let mut header = [0; 8];
    header[..4].copy_from_slice(&MARK);
    header[4..].copy_from_slice(&HALF_BYTES.to_le_bytes());
    header
}

/// Encodes a half of this size, also of another file that has halves; absent: the record is too long.
pub(crate) fn encode(run: RunId, count: u64, record: &[u8], bytes: u32) -> Option<Vec<u8>> {
    let length = u16::try_from(record.len()).ok()?;
    let mut half = vec![0; bytes as usize];
    half.get_mut(HEADER_BYTES..HEADER_BYTES + record.len())?
        .copy_from_slice(record);
    half[4..6].copy_from_slice(&length.to_le_bytes());
    half[6] = FORM;
    half[8..16].copy_from_slice(&count.to_le_bytes());
    half[16..32].copy_from_slice(&run.as_u128().to_le_bytes());
    let crc = crc32fast::hash(&half[4..HEADER_BYTES + record.len()]);
    half[..4].copy_from_slice(&crc.to_le_bytes());
    Some(half)
}

/// Decodes run, count and record of a half; absent: it was never written, or not completely.
pub(crate) fn decode(half: &[u8]) -> Option<(RunId, u64, &[u8])> {
    let count = u64::from_le_bytes(half.get(8..16)?.try_into().ok()?);
    let length = u16::from_le_bytes(half.get(4..6)?.try_into().ok()?);
    let end = HEADER_BYTES + usize::from(length);
    let record = half.get(HEADER_BYTES..end).filter(|_| count > 0)?;
    let crc = u32::from_le_bytes(half.get(..4)?.try_into().ok()?);
    if crc != crc32fast::hash(half.get(4..end)?) {
        return None;
    }
    let run = u128::from_le_bytes(half.get(16..32)?.try_into().ok()?);
    Some((RunId::from_u128(run), count, record))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run() -> RunId {
        RunId::from_u128(7)
    }

    fn slots(data: &Path) -> ExitSlots {
        ExitSlots::open(data, "epoch".to_owned())
    }

    /// A data directory, its slots, and the place of one that is taken.
    fn with_slot() -> (tempfile::TempDir, ExitSlots, ExitPlace) {
        let data = tempfile::tempdir().expect("a directory");
        let mut slots = slots(data.path());
        let number = slots.take(1).expect("a slot");
        (data, slots, number)
    }

    fn slot(slots: &ExitSlots, place: ExitPlace) -> ExitSlot {
        ExitSlot::new(slots.file().expect("a file"), place)
    }

    #[test]
    fn newest_exit_record_of_a_run_comes_first() {
        let (data, slots, number) = with_slot();
        let files = ExitFiles::of(data.path());
        let mut slot = slot(&slots, number);
        for record in [b"one", b"two", b"six"] {
            slot.write(run(), record).expect("it is written");
            assert_eq!(files.records(run())[0], record);
        }
        assert!(files.records(RunId::from_u128(8)).is_empty());
    }

    // promise: E-4a
    #[test]
    fn torn_slot_half_leaves_the_previous_record() {
        let (data, slots, number) = with_slot();
        let files = ExitFiles::of(data.path());
        let file = slots.file().expect("a file");
        let earlier = RunId::from_u128(6);
        let mut before = slot(&slots, number);
        before.write(earlier, b"another run's").expect("written");
        before.write(earlier, b"and its last").expect("written");
        let mut present = slot(&slots, number);
        present.write(run(), b"first").expect("it is written");
        let whole = data.path().join("exits/epoch");
        let untorn = fs::read(&whole).expect("it is read");
        for (count, old, new) in [(1, None, "first"), (2, Some("first"), "a longer second")] {
            let half = encode(run(), count, new.as_bytes(), HALF_BYTES).expect("it fits");
            let begin = usize::try_from(number.offset).expect("it is small");
            let offset = begin + usize::from(count == 2) * half.len();
            for cut in 0..=half.len() {
                // Before the first write the slot holds an earlier run's record.
                let mut bytes = untorn.clone();
                if count == 1 {
                    let left = encode(earlier, 1, b"another run's", HALF_BYTES);
                    let left = left.expect("it fits");
                    bytes[begin..begin + left.len()].copy_from_slice(&left);
                }
                bytes[offset..offset + cut].copy_from_slice(&half[..cut]);
                file.write_all_at(&bytes, 0).expect("it is written");
                let found = files.records(run());
                let newest = found
                    .first()
                    .map(|r| String::from_utf8_lossy(r).into_owned());
                let newest = newest.as_deref();
                assert!(
                    newest == old || newest == Some(new),
                    "{count} {cut}: {newest:?}"
                );
                assert!(cut < half.len() || newest == Some(new));
            }
        }
    }

    // promise: A-22
    #[test]
    fn exit_record_decoding_survives_corrupt_bytes() {
        let half = encode(run(), 7, b"exited with 3", HALF_BYTES).expect("it fits");
        let written = HEADER_BYTES + b"exited with 3".len();
        let whole = decode(&half);
        assert!(whole.is_some());
        kennel_mutations::each(&half[..written], |wrong| {
            let read = decode(wrong);
            assert!(read.is_none() || read == whole, "{wrong:02x?}");
        });
    }

    #[test]
    fn exit_record_too_large_for_slot_is_refused() {
        let (data, slots, number) = with_slot();
        let mut slot = slot(&slots, number);
        let longest = HALF_BYTES as usize - HEADER_BYTES;
        let most = vec![1; longest];
        slot.write(run(), &most).expect("it fits");
        assert!(slot.write(run(), &vec![1; longest + 1]).is_err());
        assert_eq!(ExitFiles::of(data.path()).records(run()), [most]);
    }

    #[test]
    fn exit_record_in_removed_file_is_refused() {
        let (data, slots, number) = with_slot();
        fs::remove_file(data.path().join("exits/epoch")).expect("it goes");
        assert!(slot(&slots, number).write(run(), b"one").is_err());
    }

    // promise: E-4a
    #[test]
    fn exit_slot_is_reused_after_acknowledgement_and_reaping() {
        let (_data, mut slots, first) = with_slot();
        slots.acknowledged(1);
        assert_ne!(slots.take(2), Some(first), "its shim may still write");
        slots.reaped(2);
        assert_ne!(slots.take(3), Some(first));
        slots.reaped(1);
        assert_eq!(slots.take(4), Some(first));
        let many: Vec<ExitPlace> = (10..300).filter_map(|shim| slots.take(shim)).collect();
        let mut distinct = many.clone();
        distinct.sort_unstable();
        distinct.dedup();
        assert_eq!((distinct.len(), many.len()), (290, 290));
    }

    #[test]
    fn exit_file_with_a_writer_is_not_settled() {
        let data = tempfile::tempdir().expect("a directory");
        let mut old = ExitSlots::open(data.path(), "old".to_owned());
        let number = old.take(1).expect("a slot");
        let mut shim = slot(&old, number);
        shim.write(run(), b"one").expect("it is written");
        shim.write(run(), b"two").expect("it is written");
        drop(old);
        let mut next = slots(data.path());
        let mut kept = Vec::new();
        next.settle(|_, _| panic!("its shim lives"));
        drop(shim);
        next.settle(|_, _| Err(io::ErrorKind::StorageFull.into()));
        assert!(data.path().join("exits/old").exists(), "nothing is lost");
        next.settle(|of, record| {
            kept.push((of, record.to_vec()));
            Ok(())
        });
        assert_eq!(kept, [(run(), b"two".to_vec()), (run(), b"one".to_vec())]);
        assert!(!data.path().join("exits/old").exists());
        next.close();
        assert!(!data.path().join("exits/epoch").exists());
    }

    #[test]
    fn exit_file_with_unacknowledged_record_outlives_its_keeper() {
        let (data, mut slots, _) = with_slot();
        slots.close();
        assert!(data.path().join("exits/epoch").exists());
    }

    #[test]
    fn slot_size_is_read_from_the_header() {
        let (data, slots, _) = with_slot();
        // Slot offsets are multiples neither of our slot size nor of the read size.
        let half_bytes = 1536_u32;
        let file = slots.file().expect("a file");
        file.write_all_at(&half_bytes.to_le_bytes(), 4)
            .expect("written");
        let files = ExitFiles::of(data.path());
        for number in [1, 200] {
            let offset = number * 2 * u64::from(half_bytes);
            let mut slot = slot(&slots, ExitPlace { offset, half_bytes });
            // Records longer than a half of this version, one in each half.
            let run = RunId::from_u128(u128::from(number));
            let [one, two] = [b'1', b'2'].map(|byte| vec![byte; 1500]);
            slot.write(run, &one).expect("it is written");
            slot.write(run, &two).expect("it is written");
            assert_eq!(files.records(run), [two, one]);
        }
        for header in [
            *b"KEX\x02\x00\x06\0\0",
            *b"KEX\x01\0\0\0\0",
            *b"KEX\x01\0\0\xff\0",
        ] {
            file.write_all_at(&header, 0).expect("it is written");
            assert!(files.records(RunId::from_u128(1)).is_empty());
        }
        drop((slots, file));
        let mut next = ExitSlots::open(data.path(), "next".to_owned());
        next.settle(|_, _| panic!("its form is not known"));
        assert!(data.path().join("exits/epoch").exists());
    }
}
