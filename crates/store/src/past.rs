//! Attempts that have ended as the JSON of column `attempts_detail`: the newest, in order. Only the last of them has its
//! certificate, which may be long.

use crate::{PAST_ATTEMPTS_MAX, PastAttempt, Times, certificate, words};
use kennel_lifecycle::{Outcome, ProcessIdentity, StopCertificate, StreamsEnd, Timestamp};
use serde_json::{Value, json};

/// The JSON text of the newest of them.
pub(crate) fn write(past: &[PastAttempt]) -> String {
    let newest = &past[past.len().saturating_sub(PAST_ATTEMPTS_MAX)..];
    let last = newest.len().saturating_sub(1);
    let written = (0..).zip(newest).map(|(n, one)| write_one(one, n == last));
    Value::Array(written.collect()).to_string()
}

fn write_one(past: &PastAttempt, whole: bool) -> Value {
    let PastAttempt {
        number,
        leader,
        outcome,
        times,
    } = past;
    let (reason, reason_detail) = words::reason(&outcome.reason);
    let (exit_kind, exit_value) = words::exit(outcome.exit);
    let (tree, tree_detail) = words::tree(&outcome.tree);
    let micros = |time: Option<Timestamp>| time.map(|time| time.0);
    json!({
        "number": number,
        "leader": leader.as_ref().map(write_leader),
        "reason": reason,
        "reason_detail": reason_detail,
        "exit_kind": exit_kind,
        "exit_value": exit_value,
        "tree": tree,
        "tree_detail": tree_detail,
        "streams": outcome.streams.map(words::streams),
        "certificate": whole.then(|| certificate::write(&outcome.certificate)),
        "started_us": micros(times.started),
        "leader_exited_us": micros(times.leader_exited),
        "streams_closed_us": micros(times.streams_closed),
        "tree_empty_us": micros(times.tree_empty),
        "ended_us": micros(times.ended),
    })
}

fn write_leader(leader: &ProcessIdentity) -> Value {
    json!({
        "pid": leader.pid,
        "pgid": leader.pgid,
        "sid": leader.sid,
        "start_ticks": leader.start_ticks,
        "pidfs_handle": leader.pidfs_handle,
    })
}

/// The attempts in this text.
pub(crate) fn read(text: &str) -> Result<Vec<PastAttempt>, String> {
    let wrong = |why: String| format!("attempts_detail: {why}");
    let parsed: Vec<Value> = serde_json::from_str(text).map_err(|e| wrong(e.to_string()))?;
    let read: Result<_, String> = parsed.iter().map(read_one).collect();
    read.map_err(wrong)
}

fn read_one(value: &Value) -> Result<PastAttempt, String> {
    let text = |key: &str| value[key].as_str();
    let time = |key: &str| value[key].as_i64().map(Timestamp);
    let number = value["number"].as_u64().and_then(|n| u32::try_from(n).ok());
    let streams = text("streams").map(|word| {
        const ALL: [StreamsEnd; 3] = [StreamsEnd::Eof, StreamsEnd::Cut, StreamsEnd::Lost];
        words::find("streams", &ALL, word, words::streams)
    });
    let certificate = match text("certificate") {
        Some(certificate) => certificate::read(certificate)?,
        None => StopCertificate::default(),
    };
    let reason = text("reason").ok_or("reason is missing")?;
    Ok(PastAttempt {
        number: number.ok_or("number is missing")?,
        leader: match &value["leader"] {
            Value::Null => None,
            leader => Some(read_leader(leader).ok_or_else(|| format!("leader {leader}"))?),
        },
        outcome: Outcome {
            reason: words::read_reason(reason, text("reason_detail"))?,
            exit: words::read_exit(text("exit_kind"), value["exit_value"].as_i64())?,
            tree: words::read_tree(text("tree"), text("tree_detail"))?,
            streams: streams.transpose()?,
            certificate,
        },
        times: Times {
            started: time("started_us"),
            leader_exited: time("leader_exited_us"),
            streams_closed: time("streams_closed_us"),
            tree_empty: time("tree_empty_us"),
            ended: time("ended_us"),
        },
    })
}

fn read_leader(value: &Value) -> Option<ProcessIdentity> {
    let number = |key: &str| value[key].as_i64().and_then(|n| i32::try_from(n).ok());
    Some(ProcessIdentity {
        pid: number("pid")?,
        pgid: number("pgid")?,
        sid: number("sid")?,
        start_ticks: value["start_ticks"].as_u64()?,
        pidfs_handle: value["pidfs_handle"].as_u64(),
    })
}
