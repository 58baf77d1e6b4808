//! The chain of the trail's lines: each line has the SHA-256 of the line before it, so that none can be changed, left out or put
//! in without that showing. Who can write the files can make the whole chain anew: a head that is kept elsewhere shows that too.

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
    /// Its seq; 0: there is no line.
    pub seq: u64,
    /// Its SHA-256 in hexadecimal digits.
    pub hash: String,
}

/// What a check of the files has found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ChainChecked {
    /// Seq of the oldest line that is kept; 0: there is none.
    pub first: u64,
    /// The newest line.
    pub head: ChainHead,
    /// Lines that are no records: what the death of a host left half written.
    pub fragments: u64,
}

/// Why the files are not what was written.
#[derive(Debug, thiserror::Error)]
pub enum ChainError {
    /// A file cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// Which.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// A line does not follow the one before it.
    #[error("{}, line {line} (seq {seq}): {what}", path.display())]
    Broken {
        /// Which file.
        path: PathBuf,
        /// Which line of it, from 1.
        line: u64,
        /// Its seq.
        seq: u64,
        /// What does not fit.
        what: &'static str,
    },
    /// The line of a head that is known from before is not there as it was.
    #[error("the line with seq {seq} is not the one that the known head names")]
    OtherHead {
        /// Its seq.
        seq: u64,
    },
}

const OTHER: &str = "the line before it is not the one that it was written after";
const CUT: &str = "it is not the line that its file begins with";

/// The hash of a line, without its end.
pub(super) fn hash(line: &[u8]) -> String {
    let digits = Sha256::digest(line)
        .into_iter()
        .map(|byte| format!("{byte:02x}"));
    digits.collect()
}

/// Checks the lines that a data directory has. `known`: a head of an earlier check, whose line must be there unchanged unless it
/// has been removed for its age. Blocks.
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
            // A fragment may have been before it.
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
        // One that is older than all that is kept was removed for its age.
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
        // What came before the oldest line that is kept is not known.
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
