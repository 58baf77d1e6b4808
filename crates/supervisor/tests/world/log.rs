//! The node log, read from outside: from a copy, so that a server may live meanwhile.

use super::DataDir;
use kennel_journal::{
    Boot,
    node_log::{NodeLog, Origin, OwnedFrame, PayloadFormat, SNAPSHOT},
};
use kennel_lifecycle::RunId;
use kennel_store::CHANGE_FORM;
use serde_json::Value;
use std::{collections::BTreeMap, fs, path::Path};

/// Number of the kind of a frame without its flags.
const KIND: u16 = 0x0fff;
const KNOWN: u16 = 1;
const PENDING: u16 = 2;

/// Contents of the log.
#[derive(Debug, Default)]
pub struct Logged {
    pub unfinished: Vec<RunId>,
    pub pending: usize,
}

/// Returns the contents of the log of this server and of earlier ones.
pub fn logged(data_dir: &DataDir) -> Logged {
    let copy = tempfile::tempdir().unwrap();
    for file in fs::read_dir(data_dir.path().join("log")).unwrap().flatten() {
        // A file removed meanwhile is not needed.
        let _ = fs::copy(file.path(), copy.path().join(file.file_name()));
    }
    let mut unfinished = BTreeMap::new();
    let mut pending: BTreeMap<u128, Vec<u64>> = BTreeMap::new();
    for frame in frames(copy.path()).1 {
        let payload: Value = serde_json::from_slice(&frame.payload).unwrap();
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
            *of_run = payload["pending"]
                .as_array()
                .unwrap()
                .iter()
                .map(|_| 0)
                .collect();
        }
    }
    let unfinished = unfinished.into_iter().filter(|(_, left)| *left);
    Logged {
        unfinished: unfinished.map(|(run, _)| RunId::from_u128(run)).collect(),
        pending: pending.values().map(Vec::len).sum(),
    }
}

/// Whether work is left for the run.
pub fn is_unfinished(data_dir: &DataDir, run: RunId) -> bool {
    logged(data_dir).unfinished.contains(&run)
}

/// Returns the intended attempt of the run that was logged last.
pub fn intended(data_dir: &DataDir, run: RunId) -> Value {
    let (_, frames) = frames(&data_dir.path().join("log"));
    let of_run = frames.iter().filter(|frame| frame.run == run.as_u128());
    let payloads = of_run.filter_map(|frame| serde_json::from_slice::<Value>(&frame.payload).ok());
    let mut intended = payloads.filter_map(|payload| payload.get("intended").cloned());
    intended.next_back().unwrap()
}

/// Appends a change of the run to the log, as the last server might have. No server lives meanwhile.
pub fn append(data_dir: &DataDir, run: RunId, change: &Value) {
    let (log, frames) = frames(&data_dir.path().join("log"));
    let mut of_run = frames
        .into_iter()
        .filter(|frame| frame.run == run.as_u128());
    let last = of_run.next_back().unwrap();
    let frame = OwnedFrame {
        kind: KNOWN,
        seq: last.seq + 1,
        payload: serde_json::to_vec(change).unwrap(),
        ..last
    };
    log.append(&[frame.frame()]).unwrap();
}

/// Opens a log of this boot of the world, and returns all frames of earlier ones.
fn frames(dir: &Path) -> (NodeLog, Vec<OwnedFrame>) {
    let mut origin = Origin {
        format: PayloadFormat {
            number: 1,
            hash: CHANGE_FORM,
        },
        epoch: 1,
        server: 0,
        boot: Boot::UNKNOWN,
    };
    NodeLog::read_former(dir, |found| origin = found.origin.unwrap_or(origin)).unwrap();
    let log = NodeLog::open(dir, origin).unwrap();
    let mut frames = Vec::new();
    log.replay(|found| frames.push(found.frame.into())).unwrap();
    (log, frames)
}
