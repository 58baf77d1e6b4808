//! The words of the columns: every enum of the vocabulary to its text and back.
//!
//! The same words stand in the CHECKs of the migrations.

use crate::{StoredState, certificate, record::Record};
use kennel_lifecycle::{
    Deadline, EndReason, Exit, Leftover, Leftovers, Limit, MemoryKills, Outcome, Proof, RunKind,
    RunState, Signal, StartFailure, StartStage, StopCertificate, StreamsEnd, TreeVerdict,
};
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// The words of column `desired`.
pub(crate) struct Desired;

impl Desired {
    pub(crate) const RUN: &str = "run";
    pub(crate) const STOP: &str = "stop";
}

pub(crate) fn kind(kind: RunKind) -> &'static str {
    match kind {
        RunKind::Heartbeat => "heartbeat",
        RunKind::Service => "service",
        RunKind::Terminal => "terminal",
        RunKind::Job => "job",
    }
}

pub(crate) fn read_kind(text: &str) -> Result<RunKind, String> {
    const ALL: [RunKind; 4] = [
        RunKind::Heartbeat,
        RunKind::Service,
        RunKind::Terminal,
        RunKind::Job,
    ];
    find("kind", &ALL, text, kind)
}

pub(crate) fn state(state: StoredState) -> &'static str {
    match state {
        StoredState::Starting => "starting",
        StoredState::Running => "running",
        StoredState::Pausing => "pausing",
        StoredState::Paused => "paused",
        StoredState::Backoff => "backoff",
        StoredState::Ended(RunState::Succeeded) => "succeeded",
        StoredState::Ended(RunState::Failed) => "failed",
        StoredState::Ended(RunState::Cancelled) => "cancelled",
        StoredState::Ended(RunState::Lost) => "lost",
        // Not a terminal state: no CHECK lets it through.
        StoredState::Ended(
            RunState::Starting
            | RunState::Running
            | RunState::Paused
            | RunState::Stopping
            | RunState::Backoff,
        ) => "not terminal",
    }
}

pub(crate) fn read_state(text: &str) -> Result<StoredState, String> {
    const ALL: [StoredState; 9] = [
        StoredState::Starting,
        StoredState::Running,
        StoredState::Pausing,
        StoredState::Paused,
        StoredState::Backoff,
        StoredState::Ended(RunState::Succeeded),
        StoredState::Ended(RunState::Failed),
        StoredState::Ended(RunState::Cancelled),
        StoredState::Ended(RunState::Lost),
    ];
    find("state", &ALL, text, state)
}

pub(crate) fn streams(end: StreamsEnd) -> &'static str {
    match end {
        StreamsEnd::Eof => "eof",
        StreamsEnd::Cut => "cut",
        StreamsEnd::Lost => "lost",
    }
}

/// `end_reason` and `end_detail`.
pub(crate) fn reason(reason: &EndReason) -> (&'static str, Option<String>) {
    match reason {
        EndReason::Exited => ("exited", None),
        EndReason::Aborted { by, request_id } => {
            let detail = json!({"by": by, "request_id": request_id});
            ("aborted", Some(detail.to_string()))
        }
        EndReason::StartFailed(StartFailure { stage, errno, path }) => {
            let detail = json!({"stage": stage_word(*stage), "errno": errno, "path": path});
            ("start_failed", Some(detail.to_string()))
        }
        EndReason::Fenced { by } => ("fenced", Some(json!({"by": by}).to_string())),
        EndReason::ServerShutdown => ("server_shutdown", None),
        EndReason::ServiceLost => ("service_lost", None),
        EndReason::Rebooted => ("rebooted", None),
        EndReason::OrphanTerminated => ("orphan_terminated", None),
        EndReason::ShimLost => ("shim_lost", None),
        EndReason::DeadlineExceeded(which) => {
            let detail = json!({"which": deadline_word(*which)});
            ("deadline_exceeded", Some(detail.to_string()))
        }
        EndReason::LimitExceeded(limit) => {
            let detail = json!({"limit": limit_word(*limit)});
            ("limit_exceeded", Some(detail.to_string()))
        }
        EndReason::OomKilled(killed) => {
            let detail = json!({"kills": killed.kills, "memory_max": killed.memory_max});
            ("oom_killed", Some(detail.to_string()))
        }
        EndReason::Restarted { by, request_id } => (
            "restarted",
            Some(json!({"by": by, "request_id": request_id}).to_string()),
        ),
        EndReason::RestartsExhausted { restarts } => (
            "restarts_exhausted",
            Some(json!({"restarts": restarts}).to_string()),
        ),
    }
}

/// `exit_kind` and `exit_value`; a command that never started has neither.
pub(crate) fn exit(exit: Option<Exit>) -> (Option<&'static str>, Option<i64>) {
    match exit {
        None => (None, None),
        Some(Exit::Code(code)) => (Some("code"), Some(i64::from(code))),
        Some(Exit::Signal {
            signal,
            core_dumped,
        }) => {
            let kind = if core_dumped { "core_dump" } else { "signal" };
            (Some(kind), Some(i64::from(signal.number())))
        }
        Some(Exit::Unknown) => (Some("unknown"), None),
    }
}

/// `tree_verdict` and `tree_detail`.
pub(crate) fn tree(verdict: &TreeVerdict) -> (&'static str, Option<String>) {
    match verdict {
        TreeVerdict::Empty(proof) => (
            "empty",
            Some(json!({"proof": proof_word(*proof)}).to_string()),
        ),
        TreeVerdict::Survivors(pids) => ("survivors", Some(json!({"pids": pids}).to_string())),
        TreeVerdict::Unverified(why) => ("unverified", Some(json!({"why": why}).to_string())),
        TreeVerdict::NeverRan => ("never_ran", None),
        TreeVerdict::Kept(left) => ("kept", Some(leftovers(left).to_string())),
    }
}

/// Processes with what names them.
pub(crate) fn leftovers(left: &Leftovers) -> Value {
    let processes = left
        .processes
        .iter()
        .map(|p| json!({"pid": p.pid, "start_ticks": p.start_ticks, "name": p.name}));
    json!({"processes": processes.collect::<Vec<_>>(), "unlisted": left.unlisted})
}

pub(crate) fn read_leftovers(detail: &Value) -> Option<Leftovers> {
    let process = |value: &Value| {
        Some(Leftover {
            pid: i32::try_from(value["pid"].as_i64()?).ok()?,
            start_ticks: value["start_ticks"].as_u64()?,
            name: value["name"].as_str()?.to_owned(),
        })
    };
    Some(Leftovers {
        processes: detail["processes"]
            .as_array()?
            .iter()
            .map(process)
            .collect::<Option<_>>()?,
        unlisted: u32::try_from(detail["unlisted"].as_u64()?).ok()?,
    })
}

/// The labels as a JSON object.
pub(crate) fn labels(labels: &BTreeMap<String, String>) -> String {
    let object = labels
        .iter()
        .map(|(k, v)| (k.clone(), Value::String(v.clone())));
    Value::Object(object.collect()).to_string()
}

pub(crate) fn read_labels(text: &str) -> Result<BTreeMap<String, String>, String> {
    serde_json::from_str(text).map_err(|e| format!("labels: {e}"))
}

/// The end of a run out of its columns; none where the row is open.
pub(crate) fn read_outcome(record: &Record) -> Result<Option<Outcome>, String> {
    let Some(reason) = &record.end_reason else {
        return Ok(None);
    };
    let streams_end = record
        .streams_end
        .as_deref()
        .map(|text| {
            const ALL: [StreamsEnd; 3] = [StreamsEnd::Eof, StreamsEnd::Cut, StreamsEnd::Lost];
            find("streams_end", &ALL, text, streams)
        })
        .transpose()?;
    Ok(Some(Outcome {
        reason: read_reason(reason, record.end_detail.as_deref())?,
        exit: read_exit(record.exit_kind.as_deref(), record.exit_value)?,
        tree: read_tree(
            record.tree_verdict.as_deref(),
            record.tree_detail.as_deref(),
        )?,
        streams: streams_end,
        certificate: read_certificate(record.certificate_detail.as_deref())?,
    }))
}

fn read_certificate(detail: Option<&str>) -> Result<StopCertificate, String> {
    let text = detail.ok_or("certificate_detail is missing")?;
    certificate::read(text).map_err(|e| format!("certificate_detail: {e}"))
}

pub(crate) fn read_reason(word: &str, detail: Option<&str>) -> Result<EndReason, String> {
    let detail = Detail::parse("end_detail", detail)?;
    Ok(match word {
        "exited" => EndReason::Exited,
        "aborted" => EndReason::Aborted {
            by: detail.text("by")?,
            request_id: detail.optional_text("request_id"),
        },
        "start_failed" => EndReason::StartFailed(StartFailure {
            stage: find("stage", &STAGES, &detail.text("stage")?, stage_word)?,
            errno: detail.0["errno"]
                .as_i64()
                .and_then(|n| i32::try_from(n).ok()),
            path: detail.optional_text("path"),
        }),
        "fenced" => EndReason::Fenced {
            by: detail.text("by")?,
        },
        "server_shutdown" => EndReason::ServerShutdown,
        "service_lost" => EndReason::ServiceLost,
        "rebooted" => EndReason::Rebooted,
        "orphan_terminated" => EndReason::OrphanTerminated,
        "shim_lost" => EndReason::ShimLost,
        "deadline_exceeded" => EndReason::DeadlineExceeded(find(
            "which",
            &DEADLINES,
            &detail.text("which")?,
            deadline_word,
        )?),
        "limit_exceeded" => {
            EndReason::LimitExceeded(find("limit", &LIMITS, &detail.text("limit")?, limit_word)?)
        }
        "oom_killed" => EndReason::OomKilled(MemoryKills {
            kills: detail.0["kills"].as_u64().ok_or("kills is missing")?,
            memory_max: detail.0["memory_max"].as_u64(),
        }),
        "restarted" => EndReason::Restarted {
            by: detail.text("by")?,
            request_id: detail.optional_text("request_id"),
        },
        "restarts_exhausted" => EndReason::RestartsExhausted {
            restarts: detail.0["restarts"]
                .as_u64()
                .and_then(|n| u32::try_from(n).ok())
                .ok_or("restarts is missing")?,
        },
        other => return Err(format!("end_reason {other:?}")),
    })
}

pub(crate) fn read_exit(kind: Option<&str>, value: Option<i64>) -> Result<Option<Exit>, String> {
    let number = value.and_then(|v| i32::try_from(v).ok());
    let exit = match (kind, number) {
        (None, _) => return Ok(None),
        (Some("code"), Some(code)) => Some(Exit::Code(code)),
        (Some(word @ ("signal" | "core_dump")), Some(number)) => {
            Signal::from_number(number).map(|signal| Exit::Signal {
                signal,
                core_dumped: word == "core_dump",
            })
        }
        (Some("unknown"), None) => Some(Exit::Unknown),
        (Some(_), _) => None,
    };
    match exit {
        Some(exit) => Ok(Some(exit)),
        None => Err(format!("exit_kind {kind:?} with exit_value {value:?}")),
    }
}

pub(crate) fn read_tree(
    verdict: Option<&str>,
    detail: Option<&str>,
) -> Result<TreeVerdict, String> {
    let detail = Detail::parse("tree_detail", detail)?;
    Ok(match verdict {
        Some("empty") => {
            const ALL: [Proof; 4] = [
                Proof::CgroupAndEchild,
                Proof::Echild,
                Proof::Cgroup,
                Proof::PrivatePidns,
            ];
            TreeVerdict::Empty(find("proof", &ALL, &detail.text("proof")?, proof_word)?)
        }
        Some("survivors") => TreeVerdict::Survivors(
            serde_json::from_value(detail.0["pids"].clone())
                .map_err(|e| format!("tree_detail: {e}"))?,
        ),
        Some("unverified") => TreeVerdict::Unverified(detail.text("why")?),
        Some("never_ran") => TreeVerdict::NeverRan,
        Some("kept") => TreeVerdict::Kept(
            read_leftovers(&detail.0).ok_or_else(|| format!("tree_detail {}", detail.0))?,
        ),
        other => return Err(format!("tree_verdict {other:?}")),
    })
}

pub(crate) const DEADLINES: [Deadline; 2] = [Deadline::MaxRuntime, Deadline::MaxPause];

pub(crate) const LIMITS: [Limit; 2] = [Limit::OutputBytes, Limit::Disk];

const STAGES: [StartStage; 11] = [
    StartStage::Prepare,
    StartStage::Cgroup,
    StartStage::Fork,
    StartStage::Session,
    StartStage::Stdio,
    StartStage::WorkDir,
    StartStage::Limits,
    StartStage::Record,
    StartStage::Gate,
    StartStage::Exec,
    StartStage::Namespace,
];

fn stage_word(stage: StartStage) -> &'static str {
    match stage {
        StartStage::Prepare => "prepare",
        StartStage::Cgroup => "cgroup",
        StartStage::Fork => "fork",
        StartStage::Session => "session",
        StartStage::Stdio => "stdio",
        StartStage::WorkDir => "work_dir",
        StartStage::Limits => "limits",
        StartStage::Record => "record",
        StartStage::Gate => "gate",
        StartStage::Exec => "exec",
        StartStage::Namespace => "namespace",
    }
}

pub(crate) fn deadline_word(which: Deadline) -> &'static str {
    match which {
        Deadline::MaxRuntime => "max_runtime",
        Deadline::MaxPause => "max_pause",
    }
}

pub(crate) fn limit_word(limit: Limit) -> &'static str {
    match limit {
        Limit::OutputBytes => "output_bytes",
        Limit::Disk => "disk",
    }
}

fn proof_word(proof: Proof) -> &'static str {
    match proof {
        Proof::CgroupAndEchild => "cgroup_and_echild",
        Proof::Echild => "echild",
        Proof::Cgroup => "cgroup",
        Proof::PrivatePidns => "private_pidns",
    }
}

/// A `_detail` column: a JSON object, or nothing.
struct Detail(Value);

impl Detail {
    fn parse(column: &str, text: Option<&str>) -> Result<Self, String> {
        match text {
            None => Ok(Self(Value::Null)),
            Some(text) => serde_json::from_str(text)
                .map(Self)
                .map_err(|e| format!("{column}: {e}")),
        }
    }

    fn text(&self, key: &str) -> Result<String, String> {
        self.optional_text(key)
            .ok_or_else(|| format!("{key} is missing in {}", self.0))
    }

    fn optional_text(&self, key: &str) -> Option<String> {
        self.0[key].as_str().map(str::to_owned)
    }
}

pub(crate) fn find<T: Copy>(
    column: &str,
    all: &[T],
    text: &str,
    word: fn(T) -> &'static str,
) -> Result<T, String> {
    all.iter()
        .copied()
        .find(|value| word(*value) == text)
        .ok_or_else(|| format!("{column} {text:?}"))
}
