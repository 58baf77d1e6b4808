//! The names in databases, journals and logs: `tests/names.lock` holds them, and goes red when one changes.

use crate::samples::assert_golden;
use kennel_lifecycle::{
    Activity, ApiAccess, Containment, Deadline, Desired, EndReason, EnvMode, InputClosed,
    InputMode, Isolation, Knob, Limit, MemoryKills, MemoryShortage, Network, OnDiskFull,
    OnMaxPause, OnOutputFull, OnParentEnd, PidNamespace, Proof, Recovery, RemovalReason, Resource,
    RestartMode, ResumeReason, RowState, RuleOff, RunKind, RunState, Seccomp, SecretDelivery,
    SignalScope, SignalSender, StartFailure, StartStage, StopReason, StreamsEnd, TreeVerdict,
    audit::Evidence,
    recovery::{CgroupSeen, Host, ProcessPresence},
};
use serde::{Serialize, de::DeserializeOwned};
use std::{
    fmt::{Debug, Write},
    str::FromStr,
};

/// One line: the type, then its names in order. Each name leads back to its value, as text and in JSON.
fn line<T>(lock: &mut String, of: &str, all: &[T], name: fn(T) -> &'static str)
where
    T: Copy + Debug + PartialEq + Serialize + DeserializeOwned + FromStr<Err: Debug>,
{
    let _ = write!(lock, "{of}:");
    for value in all {
        let name = name(*value);
        let _ = write!(lock, " {name}");
        assert_eq!(name.parse::<T>().expect("its own name"), *value);
        let json = serde_json::to_string(value).expect("a name");
        assert_eq!(json, format!("{name:?}"), "{value:?}");
        let read: T = serde_json::from_str(&json).expect("its own name");
        assert_eq!(read, *value);
    }
    lock.push('\n');
    assert!("no such name".parse::<T>().is_err(), "{of}");
    assert!(
        serde_json::from_str::<T>("\"no such name\"").is_err(),
        "{of}"
    );
}

macro_rules! lines {
    ($lock:ident, $($of:ident),+ $(,)?) => {
        $(line(&mut $lock, stringify!($of), $of::ALL, $of::name);)+
    };
}

/// One line for values with data: the name that `name()` gives is the one in JSON.
fn tagged<T>(lock: &mut String, of: &str, all: &[T], name: fn(&T) -> &'static str)
where
    T: Debug + PartialEq + Serialize + DeserializeOwned,
{
    let _ = write!(lock, "{of}:");
    for value in all {
        let json = serde_json::to_value(value).expect("JSON");
        let tag = match &json {
            serde_json::Value::String(tag) => tag.clone(),
            serde_json::Value::Object(one) => one.keys().next().expect("a name").clone(),
            other => panic!("{other}"),
        };
        let _ = write!(lock, " {tag}={}", name(value));
        assert_eq!(
            &serde_json::from_value::<T>(json).expect("its own form"),
            value
        );
    }
    lock.push('\n');
}

fn not_executed() -> StartFailure {
    StartFailure {
        stage: StartStage::Exec,
        errno: Some(2),
        path: None,
    }
}

#[test]
#[expect(clippy::too_many_lines, reason = "a list")]
fn serialized_names_match_lock_file() {
    let mut lock = String::new();
    lines!(
        lock,
        ApiAccess,
        SecretDelivery,
        CgroupSeen,
        Containment,
        Activity,
        Deadline,
        Desired,
        EnvMode,
        Evidence,
        Host,
        InputClosed,
        InputMode,
        Knob,
        Limit,
        OnDiskFull,
        OnMaxPause,
        OnOutputFull,
        Isolation,
        Network,
        OnParentEnd,
        PidNamespace,
        Seccomp,
        Proof,
        Recovery,
        RemovalReason,
        Resource,
        RestartMode,
        ResumeReason,
        RowState,
        RuleOff,
        RunKind,
        RunState,
        ProcessPresence,
        SignalScope,
        SignalSender,
        StartStage,
        StreamsEnd,
    );
    let (by, request_id) = ("uid:0".to_owned(), Some("a".to_owned()));
    let reasons = [
        EndReason::Exited,
        EndReason::SuccessExit,
        EndReason::Aborted {
            by: by.clone(),
            request_id: request_id.clone(),
        },
        EndReason::StartFailed(not_executed()),
        EndReason::Fenced { by: by.clone() },
        EndReason::ServerShutdown,
        EndReason::ServiceLost,
        EndReason::Rebooted,
        EndReason::OrphanTerminated,
        EndReason::NodeForgotten { by: by.clone() },
        EndReason::ShimLost,
        EndReason::DeadlineExceeded(Deadline::MaxPause),
        EndReason::LimitExceeded(Limit::Disk),
        EndReason::ParentEnded,
        EndReason::NotReady,
        EndReason::NotLive {
            failures: 3,
            error: by.clone(),
        },
        EndReason::Watchdog { triggered: true },
        EndReason::Result { rule: by.clone() },
        EndReason::MemoryReserve(MemoryShortage {
            limit: 3,
            used: 2,
            reserve: 1,
        }),
        EndReason::OomKilled(MemoryKills {
            kills: 1,
            memory_max: None,
        }),
        EndReason::Restarted {
            by: by.clone(),
            request_id: request_id.clone(),
        },
        EndReason::RestartsExhausted { restarts: 3 },
    ];
    tagged(&mut lock, "EndReason", &reasons, EndReason::name);
    let stops = [
        StopReason::MemoryReserve(MemoryShortage {
            limit: 3,
            used: 2,
            reserve: 1,
        }),
        StopReason::Abort {
            by: by.clone(),
            request_id: request_id.clone(),
        },
        StopReason::Restart { by, request_id },
        StopReason::ServerShutdown,
        StopReason::DeadlineExceeded(Deadline::MaxRuntime),
        StopReason::LimitExceeded(Limit::OutputBytes),
        StopReason::ParentEnded,
        StopReason::NotReady,
        StopReason::NotLive {
            failures: 3,
            error: "refused".into(),
        },
        StopReason::Watchdog { triggered: false },
        StopReason::Result {
            rule: "result".into(),
        },
        StopReason::Orphaned,
        StopReason::ShimLost,
    ];
    tagged(&mut lock, "StopReason", &stops, StopReason::name);
    tagged(&mut lock, "TreeVerdict", &verdicts(), TreeVerdict::name);
    assert_golden("names.lock", &lock);
}

fn verdicts() -> Vec<TreeVerdict> {
    vec![
        TreeVerdict::Empty(Proof::Echild),
        TreeVerdict::Survivors(vec![7]),
        TreeVerdict::Unverified("why".to_owned()),
        TreeVerdict::NeverRan,
        TreeVerdict::Kept(kennel_lifecycle::Leftovers::default()),
    ]
}

#[test]
fn api_names_are_upper_case() {
    assert_eq!(StartStage::WorkDir.api_name(), "WORK_DIR");
    assert_eq!(RunState::Backoff.api_name(), "BACKOFF");
}
