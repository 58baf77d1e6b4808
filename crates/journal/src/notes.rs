//! A file of notes: appended to the page cache alone, so that they outlive whoever has written them, not the host.
//!
//! A header, then the frames of [`crate::FactFile`]. What is not whole is given up with all that follows it.

use crate::facts::{first, frame};
use std::{
    fs::{self, File, OpenOptions},
    io::{self, Read},
    os::unix::fs::{FileExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

const HEADER: [u8; 12] = *b"KNLNOTE\n\x01\0\0\0";

/// The open file. One writer at a time.
#[derive(Debug)]
pub struct NoteFile {
    path: PathBuf,
    file: File,
    end: u64,
}

impl NoteFile {
    /// Opens the file, makes it where it is not there, readable by its owner alone; gives the notes in it, in order.
    ///
    /// # Errors
    ///
    /// The file cannot be opened, read or written.
    pub fn open(path: &Path) -> io::Result<(Self, Vec<Vec<u8>>)> {
        let mut file = writable(path)?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        let mut notes = Vec::new();
        let mut rest = bytes.strip_prefix(&HEADER).unwrap_or_default();
        while let Some((note, after)) = first(rest) {
            notes.push(note.to_vec());
            rest = after;
        }
        let mut opened = Self {
            path: path.to_owned(),
            file,
            end: (bytes.len() - rest.len()) as u64,
        };
        if bytes.starts_with(&HEADER) {
            opened.file.set_len(opened.end)?;
        } else {
            opened.clear()?;
        }
        Ok((opened, notes))
    }

    /// Bytes in the file.
    #[must_use]
    pub fn size_bytes(&self) -> u64 {
        self.end
    }

    /// Puts this behind all others.
    ///
    /// # Errors
    ///
    /// It may be there in part, and then gives up what follows it: write them all anew.
    pub fn append(&mut self, note: &[u8]) -> io::Result<()> {
        let mut bytes = Vec::with_capacity(note.len() + 8);
        frame(&mut bytes, note)?;
        self.file.write_all_at(&bytes, self.end)?;
        self.end += bytes.len() as u64;
        Ok(())
    }

    /// Puts these in the place of all, or leaves all as it is.
    ///
    /// # Errors
    ///
    /// They are not written.
    pub fn rewrite(&mut self, notes: impl Iterator<Item = Vec<u8>>) -> io::Result<()> {
        let mut bytes = HEADER.to_vec();
        for note in notes {
            frame(&mut bytes, &note)?;
        }
        let half = self.path.with_extension("half");
        let file = writable(&half)?;
        let written = file
            .set_len(0)
            .and_then(|()| file.write_all_at(&bytes, 0))
            .and_then(|()| fs::rename(&half, &self.path));
        if let Err(error) = written {
            // It may be what has filled the disk.
            let _ = fs::remove_file(&half);
            return Err(error);
        }
        self.file = file;
        self.end = bytes.len() as u64;
        Ok(())
    }

    /// Removes all of them.
    ///
    /// # Errors
    ///
    /// They may be found again.
    pub fn clear(&mut self) -> io::Result<()> {
        self.file.set_len(0)?;
        self.file.write_all_at(&HEADER, 0)?;
        self.end = HEADER.len() as u64;
        Ok(())
    }
}

fn writable(path: &Path) -> io::Result<File> {
    let mut how = OpenOptions::new();
    how.read(true).write(true).create(true).truncate(false);
    how.mode(0o600).open(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reopen(path: &Path) -> Vec<Vec<u8>> {
        NoteFile::open(path).unwrap().1
    }

    #[test]
    fn notes_are_found_again_up_to_the_first_that_is_not_whole() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("notes");
        let (mut file, found) = NoteFile::open(&path).unwrap();
        assert!(found.is_empty());
        file.append(b"one").unwrap();
        file.append(b"two").unwrap();
        assert_eq!(reopen(&path), [b"one".to_vec(), b"two".to_vec()]);
        let whole = fs::read(&path).unwrap();
        assert_eq!(file.size_bytes(), whole.len() as u64);
        fs::write(&path, &whole[..whole.len() - 1]).unwrap();
        let (mut file, found) = NoteFile::open(&path).unwrap();
        assert_eq!(found, [b"one".to_vec()]);
        file.append(b"three").unwrap();
        assert_eq!(reopen(&path), [b"one".to_vec(), b"three".to_vec()]);
        let new = [b"four".to_vec(), b"five".to_vec()];
        file.rewrite(new.clone().into_iter()).unwrap();
        file.append(b"six").unwrap();
        assert_eq!(reopen(&path), [&new[..], &[b"six".to_vec()]].concat());
        file.clear().unwrap();
        assert!(reopen(&path).is_empty());
        fs::write(&path, b"something else").unwrap();
        assert!(reopen(&path).is_empty());
        assert!(!path.with_extension("half").exists());
    }
}
