//! The node log of a data directory, read from a copy, so that a server may live meanwhile.

use kennel_journal::node_log::{NodeLog, OwnedFrame, SNAPSHOT};
use serde_json::Value;
use std::{collections::BTreeMap, fs, path::Path};

/// Number of the kind of a frame without its flags.
const KIND: u16 = 0x0fff;
const KNOWN: u16 = 1;
const PENDING: u16 = 2;

/// Contents of the log.
#[derive(Debug, Default)]
pub struct Logged {
    /// Number of runs with pending work.
    pub unfinished: usize,
    /// Number of changes pending for the store.
    pub pending: usize,
}

/// Reads the log in this data directory.
#[must_use]
pub fn logged(data_dir: &Path) -> Logged {
    let copy = tempfile::tempdir().expect("a directory");
    for file in fs::read_dir(data_dir.join("log")).expect("a log").flatten() {
        // A file may be removed during the copy.
        let _ = fs::copy(file.path(), copy.path().join(file.file_name()));
    }
    let mut frames: Vec<OwnedFrame> = Vec::new();
    NodeLog::read_former(copy.path(), |found| frames.push(found.frame.into())).expect("a log");
    let mut unfinished: BTreeMap<u128, bool> = BTreeMap::new();
    let mut pending: BTreeMap<u128, Vec<u64>> = BTreeMap::new();
    for frame in frames {
        let payload: Value = serde_json::from_slice(&frame.payload).expect("JSON");
        let of_run = pending.entry(frame.run).or_default();
        match frame.kind & KIND {
            KNOWN if payload == "forgotten" => drop(unfinished.insert(frame.run, false)),
            KNOWN if payload.get("intended").is_some() => drop(unfinished.insert(frame.run, true)),
            PENDING => of_run.push(frame.seq),
            _ => {
                let upto = payload["upto"].as_u64().unwrap_or(0);
                of_run.retain(|seq| *seq > upto);
            }
        }
        if let (true, Some(left)) = (frame.kind & SNAPSHOT != 0, payload["unfinished"].as_bool()) {
            unfinished.insert(frame.run, left);
            let carried = payload["pending"].as_array().map_or(0, Vec::len);
            *of_run = vec![0; carried];
        }
    }
    Logged {
        unfinished: unfinished.values().filter(|left| **left).count(),
        pending: pending.values().map(Vec::len).sum(),
    }
}
