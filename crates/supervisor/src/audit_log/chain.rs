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
    /// Lines that are no records: writes that a crash of the host left unfinished.
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

/// Checks the lines in a data directory. `known`: a head of an earlier check, whose line must be present and unchanged
/// unless it has been removed for its age. Blocks.
pub fn check(data_dir: &Path, known: Option<&ChainHead>) -> Result<ChainChecked, ChainError> {
    let dir = data_dir.join(files::DIR);
    let unread = |path: &Path| {
        let path = path.to_owned();
        move |source| ChainError::Read { path, source }
    };
    let mut checked = ChainChecked::default();
    let mut is_met = false;
    for first in files::list(&dir).map_err(unread(&dir))? {
        let path = files::path(&dir, first);
        let file = File::open(&path).map_err(unread(&path))?;
        let mut begun = false;
        for (line, text) in (1..).zip(BufReader::new(file).split(b'\n')) {
            let text = text.map_err(unread(&path))?;
            let Ok(record) = serde_json::from_slice::<TrailRecord>(&text) else {
                checked.fragments += u64::from(!text.is_empty());
                continue;
            };
            let seq = record.seq;
            let follows = follows(&checked, &record, known);
            // A fragment may precede it.
            let begins = begun || (first..=first + 1).contains(&seq);
            begun = true;
            if let Err(what) = follows.and(begins.then_some(()).ok_or(CUT)) {
                return Err(ChainError::Broken {
                    path,
                    line,
                    seq,
                    what,
                });
            }
            let hash = hash(&text);
            if known.is_some_and(|known| known.seq == seq && known.hash != hash) {
                return Err(ChainError::OtherHead { seq });
            }
            is_met |= known.is_some_and(|known| known.seq == seq);
            if checked.first == 0 {
                checked.first = seq;
            }
            checked.head = ChainHead { seq, hash };
        }
    }
    match known {
        // A line that is older than all retained lines was removed for its age.
        Some(known) if !is_met && known.seq >= checked.first => {
            Err(ChainError::OtherHead { seq: known.seq })
        }
        _ => Ok(checked),
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
