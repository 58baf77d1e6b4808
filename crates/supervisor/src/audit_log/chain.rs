//! The hash chain of the audit log: each line has the SHA-256 of the line before it, so that a line that is changed,
//! left out or inserted is detected. A user who can write the files can rebuild the whole chain: a head that is kept
//! elsewhere detects that too.

use super::{TrailRecord, files};
use sha2::{Digest, Sha256};
use std::{
    fs::File,
    io::{self, BufRead, BufReader},
    path::{Path, PathBuf},
};

/// The newest line of a chain.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ChainHead {
    /// Seq of the line; 0: the chain is empty.
    pub seq: u64,
    /// SHA-256 of the line in hexadecimal digits.
    pub hash: String,
}

/// Result of a check of the files.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ChainChecked {
    /// Seq of the oldest retained line; 0: there is none.
    pub first: u64,
    /// The newest line.
    pub head: ChainHead,
    /// Lines that are no records: writes that a crash of the host left unfinished, with zeros where a block is missing.
    pub fragments: u64,
}

/// Cause of a failed check of the files.
#[derive(Debug, thiserror::Error)]
pub enum ChainError {
    /// A file cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// Path of the file.
        path: PathBuf,
        /// Error of the read.
        source: io::Error,
    },
    /// A line does not follow the one before it.
    #[error("{}, line {line} (seq {seq}): {what}", path.display())]
    Broken {
        /// Path of the file.
        path: PathBuf,
        /// Number of the line in the file, from 1.
        line: u64,
        /// Seq of the line.
        seq: u64,
        /// The mismatch.
        what: &'static str,
    },
    /// The line of a head known from an earlier check is missing or changed.
    #[error("the line with seq {seq} is not the one that the known head names")]
    OtherHead {
        /// Seq of the line.
        seq: u64,
    },
}

const OTHER: &str = "the line before it is not the one that it was written after";
const CUT: &str = "it is not the line that its file begins with";

/// Hashes a line without its line end.
pub(super) fn hash(line: &[u8]) -> String {
    let digits = Sha256::digest(line)
        .into_iter()
        .map(|byte| format!("{byte:02x}"));
    digits.collect()
}

impl TrailRecord {
    /// Returns the head of the chain that ends with this line.
    pub fn head(&self) -> ChainHead {
        let line = serde_json::to_string(self).unwrap_or_default();
        ChainHead {
            seq: self.seq,
            hash: hash(line.as_bytes()),
        }
    }
}

/// Checks the lines in a data directory, or in a file of exported lines. `known`: a head of an earlier check, whose line
/// must be present and unchanged unless it is older than all lines there. Blocks.
pub fn check(path: &Path, known: Option<&ChainHead>) -> Result<ChainChecked, ChainError> {
    let mut check = ChainCheck {
        checked: ChainChecked::default(),
        known,
        is_met: false,
    };
    if path.is_file() {
        check.file(path, None)?;
        return check.end();
    }
    let dir = path.join(files::DIR);
    for first in files::list(&dir).map_err(unread(&dir))? {
        check.file(&files::path(&dir, first), Some(first))?;
    }
    check.end()
}

/// Gives all lines in a data directory with a seq above this one, in their order and without their line ends, as they
/// are there: their chain can be checked elsewhere. Unfinished lines are left out, and so are the oldest files where a
/// server removes them meanwhile. Blocks.
///
/// # Errors
///
/// A file cannot be read, or what `take` returns.
pub fn export<E: From<ChainError>>(
    data_dir: &Path,
    after_seq: u64,
    mut take: impl FnMut(&[u8]) -> Result<(), E>,
) -> Result<(), E> {
    let dir = data_dir.join(files::DIR);
    let firsts = files::list(&dir).map_err(unread(&dir))?;
    let mut has_given = false;
    for (nth, first) in firsts.iter().enumerate() {
        // A file's seqs end where the next file's begin.
        if firsts.get(nth + 1).is_some_and(|next| *next <= after_seq) {
            continue;
        }
        let path = files::path(&dir, *first);
        let file = match File::open(&path) {
            Ok(file) => file,
            // Retention by age or file count removed this file.
            Err(error) if error.kind() == io::ErrorKind::NotFound && !has_given => continue,
            Err(error) => return Err(unread(&path)(error).into()),
        };
        let (mut lines, mut line) = (BufReader::new(file), Vec::new());
        loop {
            line.clear();
            lines.read_until(b'\n', &mut line).map_err(unread(&path))?;
            // The server is still writing an unterminated last line.
            let Some(text) = line.strip_suffix(b"\n") else {
                break;
            };
            let record = serde_json::from_slice::<TrailRecord>(text);
            if record.is_ok_and(|record| record.seq > after_seq) {
                take(text)?;
                has_given = true;
            }
        }
    }
    Ok(())
}

fn unread(path: &Path) -> impl FnOnce(io::Error) -> ChainError {
    move |source| ChainError::Read {
        path: path.to_owned(),
        source,
    }
}

/// A check of files, one after the other.
struct ChainCheck<'a> {
    checked: ChainChecked,
    known: Option<&'a ChainHead>,
    is_met: bool,
}

impl ChainCheck<'_> {
    /// Checks one file. `first`: the seq that it is named by.
    fn file(&mut self, path: &Path, first: Option<u64>) -> Result<(), ChainError> {
        let file = File::open(path).map_err(unread(path))?;
        let mut begun = first.is_none();
        for (line, text) in (1..).zip(BufReader::new(file).split(b'\n')) {
            let text = text.map_err(unread(path))?;
            let record = match serde_json::from_slice::<TrailRecord>(&text) {
                Ok(record) => record,
                Err(error) if error.is_eof() || text.contains(&0) => {
                    self.checked.fragments += u64::from(!text.is_empty());
                    continue;
                }
                Err(_) => {
                    return Err(ChainError::Broken {
                        path: path.to_owned(),
                        line,
                        seq: self.checked.head.seq,
                        what: "the line after it is no record, and no unfinished one",
                    });
                }
            };
            let seq = record.seq;
            let follows = follows(&self.checked, &record, self.known);
            // A fragment may precede the record.
            let begins = begun || first.is_some_and(|first| (first..=first + 1).contains(&seq));
            begun = true;
            if let Err(what) = follows.and(begins.then_some(()).ok_or(CUT)) {
                return Err(ChainError::Broken {
                    path: path.to_owned(),
                    line,
                    seq,
                    what,
                });
            }
            let hash = hash(&text);
            let same = self.known.filter(|known| known.seq == seq);
            if same.is_some_and(|known| known.hash != hash) {
                return Err(ChainError::OtherHead { seq });
            }
            self.is_met |= same.is_some();
            if self.checked.first == 0 {
                self.checked.first = seq;
            }
            self.checked.head = ChainHead { seq, hash };
        }
        Ok(())
    }

    fn end(self) -> Result<ChainChecked, ChainError> {
        match self.known {
            // A known line older than all retained lines was removed by retention.
            Some(known) if !self.is_met && known.seq >= self.checked.first => {
                Err(ChainError::OtherHead { seq: known.seq })
            }
            _ => Ok(self.checked),
        }
    }
}

fn follows(
    checked: &ChainChecked,
    record: &TrailRecord,
    known: Option<&ChainHead>,
) -> Result<(), &'static str> {
    let head = &checked.head;
    if head.seq == 0 {
        if known.is_some_and(|known| known.seq + 1 == record.seq && known.hash != record.prev) {
            return Err(OTHER);
        }
        // The line before the oldest retained line is not known.
        return Ok(());
    }
    if record.seq <= head.seq {
        return Err("its seq is not greater than that of the line before it");
    }
    if record.prev != head.hash {
        return Err(OTHER);
    }
    Ok(())
}
