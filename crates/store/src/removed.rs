//! That a run's output was removed, as the JSON of column `output_removed_detail`.

use crate::words::find;
use kennel_lifecycle::{OutputRemoval, RemovalReason, Timestamp};
use serde_json::{Value, json};

const ALL: [RemovalReason; 3] = [
    RemovalReason::OwnerRuns,
    RemovalReason::Age,
    RemovalReason::NodeBytes,
];

/// The JSON text of it, without the time.
pub(crate) fn write(removal: &OutputRemoval) -> String {
    let [stdout, stderr] = removal.lens;
    json!({
        "reason": word(removal.reason),
        "last_seq": removal.seq,
        "stdout_bytes": stdout,
        "stderr_bytes": stderr,
        "counted": removal.counted,
    })
    .to_string()
}

/// What the two columns say.
pub(crate) fn read(at: Option<i64>, detail: Option<&str>) -> Result<Option<OutputRemoval>, String> {
    let (Some(at), Some(detail)) = (at, detail) else {
        return Ok(None);
    };
    let wrong = || format!("output_removed_detail {detail:?}");
    let value: Value = serde_json::from_str(detail).map_err(|_| wrong())?;
    let number = |key: &str| value[key].as_u64().ok_or_else(wrong);
    let reason = value["reason"].as_str().ok_or_else(wrong)?;
    Ok(Some(OutputRemoval {
        at: Timestamp(at),
        reason: find("output_removed_detail", &ALL, reason, word)?,
        seq: number("last_seq")?,
        lens: [number("stdout_bytes")?, number("stderr_bytes")?],
        counted: value["counted"].as_bool().ok_or_else(wrong)?,
    }))
}

fn word(reason: RemovalReason) -> &'static str {
    match reason {
        RemovalReason::OwnerRuns => "owner_runs",
        RemovalReason::Age => "age",
        RemovalReason::NodeBytes => "node_bytes",
    }
}
