//! A second copy of what a row says before its command runs, outside of the database: from it a row that the database
//! has lost is written again while the run goes on. The keeper knows the rest: identity and what holds the run.

use crate::{
    NewRun, RunRow,
    record::{Record, read_id},
    restart, words,
};
use serde_json::{Value, json};
use std::time::Duration;

impl NewRun {
    /// The copy, as JSON. Has no identity in it, for it is made before there is one.
    #[must_use]
    pub fn spare(&self) -> Vec<u8> {
        let Self {
            run,
            owner,
            attempt,
            kind,
            node,
            generation,
            keeper_epoch,
            identity: _,
            held: _,
            grace,
            traceparent,
            restarted_from,
            spec,
            spec_digest,
            spec_digest_version,
            labels,
            restart,
            created,
        } = self;
        json!({
            "run_id": run.to_string(),
            "owner": owner,
            "attempt": attempt,
            "kind": words::kind(*kind),
            "node": node.to_string(),
            "generation": generation,
            "keeper_epoch": keeper_epoch.to_string(),
            "grace_us": u64::try_from(grace.as_micros()).unwrap_or(u64::MAX),
            "traceparent": traceparent,
            "restarted_from": restarted_from.map(|run| run.to_string()),
            "spec": &**spec,
            "spec_digest": spec_digest,
            "spec_digest_version": spec_digest_version,
            "labels": words::labels(labels),
            "restart": restart::write(restart),
            "created_us": created.0,
        })
        .to_string()
        .into_bytes()
    }

    /// The row in this copy.
    ///
    /// # Errors
    ///
    /// These bytes are no such copy; the text says where not.
    pub fn from_spare(bytes: &[u8]) -> Result<Self, String> {
        let parsed: Value = serde_json::from_slice(bytes).map_err(|e| e.to_string())?;
        let text = |key: &str| {
            let text = parsed[key].as_str().map(str::to_owned);
            text.ok_or_else(|| format!("{key} is missing"))
        };
        let number = |key: &str| parsed[key].as_i64().ok_or(format!("{key} is missing"));
        let narrow = |key: &str, value: i64| format!("{key} {value}");
        let (attempt, version) = (number("attempt")?, number("spec_digest_version")?);
        let grace = parsed["grace_us"].as_u64().ok_or("grace_us is missing")?;
        Ok(Self {
            run: read_id("run_id", &text("run_id")?)?,
            owner: text("owner")?,
            attempt: u32::try_from(attempt).map_err(|_| narrow("attempt", attempt))?,
            kind: words::read_kind(&text("kind")?)?,
            node: read_id("node", &text("node")?)?,
            generation: number("generation")?,
            keeper_epoch: read_id("keeper_epoch", &text("keeper_epoch")?)?,
            identity: None,
            held: None,
            grace: Duration::from_micros(grace),
            traceparent: parsed["traceparent"].as_str().map(str::to_owned),
            restarted_from: (parsed["restarted_from"].as_str())
                .map(|run| read_id("restarted_from", run))
                .transpose()?,
            spec: text("spec")?.into(),
            spec_digest: serde_json::from_value(parsed["spec_digest"].clone())
                .map_err(|e| format!("spec_digest: {e}"))?,
            spec_digest_version: i32::try_from(version)
                .map_err(|_| narrow("spec_digest_version", version))?,
            labels: words::read_labels(&text("labels")?)?.into(),
            restart: restart::read(parsed["restart"].as_str())?,
            created: kennel_lifecycle::Timestamp(number("created_us")?),
        })
    }
}

impl RunRow {
    /// The whole row, as JSON.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        Record::of_row(self).to_json().to_string().into_bytes()
    }

    /// The row in these bytes.
    ///
    /// # Errors
    ///
    /// They are none that this version can read; the text says why.
    pub fn decode(bytes: &[u8]) -> Result<Self, String> {
        let columns = serde_json::from_slice(bytes).map_err(|e| e.to_string())?;
        Record::from_json(&columns)?.row()
    }
}
