//! Shares of principals in the files of the audit log. The newest lines push out the oldest, but not those of
//! principals that write little: a file that is removed leaves theirs to the newest file.

use super::{TrailEntry, TrailRecord, files};
use kennel_lifecycle::Timestamp;
use std::collections::HashMap;

/// Most bytes that a removed file leaves to the newest one, which has to take new lines as well.
const LEFT_BYTES_MAX: u64 = files::FILE_BYTES_MAX / 2;

/// Returns the principal to whose share a line counts; empty: the service. `true`: it is of a refused caller without a
/// name, and these have one share together.
fn share_of(record: &TrailRecord) -> (bool, &str) {
    match &record.entry {
        TrailEntry::Node(_) => (false, ""),
        TrailEntry::Request(request) if request.unnamed => (true, ""),
        TrailEntry::Request(request) => (false, &request.by),
        TrailEntry::Signal(signal) => (false, &signal.owner),
    }
}

/// Returns the lines of a file by the principals that have written the least in it, as far as they fit, in their order.
/// Lines from before `oldest` are not among them.
pub(super) fn least(text: &[u8], oldest: Timestamp) -> Vec<TrailRecord> {
    let lines = text.split(|byte| *byte == b'\n');
    let records = lines.filter_map(|line| {
        let record: TrailRecord = serde_json::from_slice(line).ok()?;
        let is_old = Timestamp(record.at_us) < oldest;
        (!is_old).then_some((line.len() as u64 + 1, record))
    });
    let records: Vec<(u64, TrailRecord)> = records.collect();
    let mut bytes: HashMap<(bool, &str), u64> = HashMap::new();
    for (len, record) in &records {
        *bytes.entry(share_of(record)).or_default() += len;
    }
    let mut by_bytes: Vec<_> = bytes.iter().map(|(of, len)| (*len, *of)).collect();
    by_bytes.sort_unstable();
    let mut room = LEFT_BYTES_MAX;
    for (len, share) in by_bytes {
        match room.checked_sub(len) {
            Some(left) => room = left,
            None => {
                bytes.remove(&share);
            }
        }
    }
    let left = records
        .iter()
        .filter(|(_, record)| bytes.contains_key(&share_of(record)));
    left.map(|(_, record)| TrailRecord {
        repeats: record.seq,
        ..record.clone()
    })
    .collect()
}
