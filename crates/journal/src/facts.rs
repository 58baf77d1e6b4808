//! A file of facts that somebody else is still to be told: appended to the disk, read back after a crash, emptied.
//!
//! A header, then frames: length and CRC-32 (both little-endian, 4 bytes), then the fact, which is opaque here. What a
//! crash has left of a last append is cut off; it was not acknowledged.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Read},
    os::unix::fs::{FileExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

const HEADER: [u8; 12] = *b"KNLFACT\n\x01\0\0\0";
/// Largest file: what does not fit waits with whoever has it.
pub const FACTS_BYTES_MAX: u64 = 64 * 1024 * 1024;

/// The open file. One writer at a time.
#[derive(Debug)]
pub struct FactFile {
    file: File,
    /// Up to here it is whole and on the disk.
    end: u64,
}

/// What was found in the file.
#[derive(Debug, Default)]
pub struct FactsFound {
    /// In the order of their appends.
    pub facts: Vec<Vec<u8>>,
    /// Bytes after the last whole one, which are cut off.
    pub torn: u64,
    /// Where the file was copied to before that, as there may be more among them than the rest of a last append.
    pub aside: Option<PathBuf>,
}

/// Copies the file beside itself, under the first free name, for somebody to look at what cannot be read.
///
/// # Errors
///
/// The copy is not wholly on the disk.
pub fn set_aside(path: &Path) -> io::Result<PathBuf> {
    let mut number = 1;
    loop {
        let aside = path.with_extension(format!("unread-{number}"));
        let mut how = OpenOptions::new();
        match how.write(true).create_new(true).mode(0o600).open(&aside) {
            Ok(mut copy) => {
                io::copy(&mut File::open(path)?, &mut copy)?;
                copy.sync_all()?;
                File::open(path.parent().unwrap_or(Path::new(".")))?.sync_all()?;
                return Ok(aside);
            }
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => number += 1,
            Err(error) => return Err(error),
        }
    }
}

/// Gives whatever stands there another name, the first that is free: it cannot be read now, and may be by somebody else.
///
/// # Errors
///
/// It stays where it is.
pub fn move_aside(path: &Path) -> io::Result<PathBuf> {
    let names = (1..).map(|number: u32| path.with_extension(format!("unread-{number}")));
    let is_free = |name: &PathBuf| name.symlink_metadata().is_err();
    let aside = names.into_iter().find(is_free);
    let aside = aside.ok_or(io::ErrorKind::AlreadyExists)?;
    fs::rename(path, &aside)?;
    Ok(aside)
}

impl FactFile {
    /// Opens the file, makes it where it is not there, readable by its owner alone.
    ///
    /// # Errors
    ///
    /// The file cannot be opened or read, or it is not such a file.
    pub fn open(path: &Path) -> io::Result<(Self, FactsFound)> {
        let mut how = OpenOptions::new();
        how.read(true).write(true).create(true).truncate(false);
        let mut file = how.mode(0o600).open(path)?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        let mut opened = Self { file, end: 0 };
        if bytes.len() < HEADER.len() && HEADER.starts_with(&bytes) {
            opened.file.write_all_at(&HEADER, 0)?;
            opened.file.sync_all()?;
            // The name as well, or a power loss takes the file with what comes into it.
            File::open(path.parent().unwrap_or(Path::new(".")))?.sync_all()?;
            opened.end = HEADER.len() as u64;
            return Ok((opened, FactsFound::default()));
        }
        if !bytes.starts_with(&HEADER) {
            let why = "this is not a file of facts, or one of another version";
            return Err(io::Error::new(io::ErrorKind::InvalidData, why));
        }
        let mut found = FactsFound::default();
        let mut rest = &bytes[HEADER.len()..];
        while let Some((fact, after)) = first(rest) {
            found.facts.push(fact.to_vec());
            rest = after;
        }
        found.torn = rest.len() as u64;
        if is_damaged(rest) {
            found.aside = Some(set_aside(path)?);
        }
        opened.end = bytes.len() as u64 - found.torn;
        opened.cut()?;
        Ok((opened, found))
    }

    /// Puts these behind all others; they are on the disk when this returns.
    ///
    /// # Errors
    ///
    /// None of them counts: the disk or the file is full, or does not work.
    pub fn append(&mut self, facts: &[Vec<u8>]) -> io::Result<()> {
        let mut bytes = Vec::new();
        for fact in facts {
            frame(&mut bytes, fact)?;
        }
        let end = self.end + bytes.len() as u64;
        if end > FACTS_BYTES_MAX {
            return Err(io::ErrorKind::StorageFull.into());
        }
        // What an append before this one has left may not stand behind it.
        self.cut()?;
        let written = self.file.write_all_at(&bytes, self.end);
        if let Err(error) = written.and_then(|()| self.file.sync_data()) {
            // Should this fail too, the next append does it first.
            let _ = self.cut();
            return Err(error);
        }
        self.end = end;
        Ok(())
    }

    /// Removes all of them.
    ///
    /// # Errors
    ///
    /// They may be found again.
    pub fn clear(&mut self) -> io::Result<()> {
        self.end = HEADER.len() as u64;
        self.cut()?;
        self.file.sync_data()
    }

    fn cut(&self) -> io::Result<()> {
        if self.file.metadata()?.len() > self.end {
            self.file.set_len(self.end)?;
        }
        Ok(())
    }
}

/// Puts the frame of a fact behind these bytes.
pub(crate) fn frame(bytes: &mut Vec<u8>, fact: &[u8]) -> io::Result<()> {
    let len = u32::try_from(fact.len()).map_err(|_| io::ErrorKind::FileTooLarge)?;
    bytes.extend_from_slice(&len.to_le_bytes());
    bytes.extend_from_slice(&crc32fast::hash(fact).to_le_bytes());
    bytes.extend_from_slice(fact);
    Ok(())
}

/// Whether these bytes are not just the beginning of one fact.
fn is_damaged(bytes: &[u8]) -> bool {
    let len = bytes.first_chunk::<4>().copied().map(u32::from_le_bytes);
    let len = len.and_then(|len| usize::try_from(len).ok());
    len.is_some_and(|len| len > 0 && bytes.len() - 4 >= len.saturating_add(4))
}

/// The first fact of these bytes, and what follows it.
pub(crate) fn first(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (len, rest) = bytes.split_first_chunk::<4>()?;
    let (crc, rest) = rest.split_first_chunk::<4>()?;
    let len = usize::try_from(u32::from_le_bytes(*len)).ok()?;
    let (fact, rest) = rest.split_at_checked(len)?;
    // No fact is empty, and a disk that was not written is zeros.
    let whole = len > 0 && crc32fast::hash(fact) == u32::from_le_bytes(*crc);
    whole.then_some((fact, rest))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    const FRAME_LEN: usize = 8;

    fn facts(count: u8) -> Vec<Vec<u8>> {
        (1..=count).map(|n| vec![n; usize::from(n) * 7]).collect()
    }

    #[test]
    fn what_was_appended_is_found_in_order_until_it_is_cleared() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("facts");
        let (mut file, found) = FactFile::open(&path).expect("it is made");
        assert!(found.facts.is_empty());
        let all = facts(5);
        file.append(&all[..2]).expect("appended");
        file.append(&all[2..]).expect("appended");
        let mode = fs::metadata(&path).expect("it is there").permissions();
        assert_eq!(mode.mode() & 0o777, 0o600);
        let (mut again, found) = FactFile::open(&path).expect("opened");
        assert_eq!((found.facts, found.torn), (all, 0));
        again.clear().expect("cleared");
        let (_, found) = FactFile::open(&path).expect("opened");
        assert!(found.facts.is_empty());
    }

    #[test]
    fn a_crash_anywhere_in_an_append_keeps_what_was_whole() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("facts");
        let (mut file, _) = FactFile::open(&path).expect("it is made");
        let all = facts(4);
        file.append(&all).expect("appended");
        let whole = fs::read(&path).expect("read");
        let mut ends = vec![HEADER.len()];
        for fact in &all {
            ends.push(ends[ends.len() - 1] + FRAME_LEN + fact.len());
        }
        for len in 0..whole.len() {
            fs::write(&path, &whole[..len]).expect("written");
            let (mut file, found) = FactFile::open(&path).expect("opened");
            let kept = ends.iter().filter(|end| **end <= len).count();
            assert_eq!(found.facts, all[..kept.saturating_sub(1)], "cut at {len}");
            assert_eq!(found.aside, None, "cut at {len}");
            // What comes next stands where the torn one was.
            file.append(&all[3..]).expect("appended");
            let (_, found) = FactFile::open(&path).expect("opened");
            assert_eq!(found.facts.last(), all.last(), "cut at {len}");
        }
    }

    #[test]
    fn what_stands_behind_a_damaged_fact_is_copied_before_it_is_cut_off() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("facts");
        let (mut file, _) = FactFile::open(&path).expect("it is made");
        file.append(&facts(3)).expect("appended");
        let mut bytes = fs::read(&path).expect("read");
        let second = HEADER.len() + FRAME_LEN + 7 + FRAME_LEN;
        bytes[second] ^= 1;
        fs::write(&path, &bytes).expect("written");
        let (_, found) = FactFile::open(&path).expect("opened");
        assert_eq!(found.facts, facts(1));
        let aside = found.aside.expect("it is not a torn append");
        assert_eq!(fs::read(&aside).expect("read"), bytes);
        let mode = fs::metadata(&aside).expect("it is there").permissions();
        assert_eq!(mode.mode() & 0o777, 0o600);
        let (_, found) = FactFile::open(&path).expect("opened");
        assert_eq!((found.facts, found.aside), (facts(1), None));
        assert_ne!(set_aside(&path).expect("another copy"), aside);
    }

    #[test]
    fn a_foreign_file_is_left_as_it_is() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("facts");
        fs::write(&path, "somebody else's own file").expect("written");
        FactFile::open(&path).expect_err("it is not ours");
        assert_eq!(fs::read(&path).expect("read"), b"somebody else's own file");
    }

    #[test]
    fn a_full_file_takes_nothing_and_loses_nothing() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("facts");
        let (mut file, _) = FactFile::open(&path).expect("it is made");
        file.append(&facts(1)).expect("appended");
        let large = vec![1; usize::try_from(FACTS_BYTES_MAX).expect("it fits")];
        let full = file.append(&[large]).expect_err("full");
        assert_eq!(full.kind(), io::ErrorKind::StorageFull);
        let (_, found) = FactFile::open(&path).expect("opened");
        assert_eq!(found.facts, facts(1));
    }
}
