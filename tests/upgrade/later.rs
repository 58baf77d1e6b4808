//! What only the next version has: a field and a value of a policy, a kind of entry, an end reason, a column, an rpc. The
//! former one neither acts on them nor loses them.
//!
//! This code does not know them either: they go as bytes.

use crate::story::Version;
use kennel_proto::pb::{self, RecoveryPolicy};
use kennel_tests::{
    Client, Kennel, PATIENCE, SpecExt, complaint, eventually, must, naughty, procfs::Proc, raw,
};
use prost::Message;
use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};
use tonic::{Code, Status};

/// Value of the label `app` of these runs.
const APP: &str = "later";
/// The note of a spec.
const NOTE: &str = "until tomorrow";
/// Number of `ON_MAX_PAUSE_STAY`.
const STAY: i32 = 9001;
/// What the former version names of a run with that value: the field, or the need of the next version.
const UNKNOWN: [&str; 2] = ["policy.pause", "pause_stay"];
/// Code with which a run that has a note ends for the reason of the next version.
const NOTED: &str = "42";

/// What a later `RunSpec` has.
#[derive(Clone, PartialEq, Message)]
struct Spec {
    #[prost(message, optional, tag = "14")]
    pause: Option<Pause>,
    #[prost(string, tag = "9001")]
    note: String,
}

/// A `PausePolicy`, whose action is one of the later values.
#[derive(Clone, PartialEq, Message)]
struct Pause {
    #[prost(message, optional, tag = "1")]
    max_pause: Option<prost_types::Duration>,
    #[prost(int32, tag = "2")]
    on_max_pause: i32,
}

/// Of `SpawnRequest`.
#[derive(Clone, PartialEq, Message)]
struct Spawn {
    #[prost(message, optional, tag = "3")]
    spec: Option<Spec>,
}

/// Of `SpawnResponse` and of `GetRunResponse`.
#[derive(Clone, PartialEq, Message)]
struct Answer {
    #[prost(message, optional, tag = "1")]
    run: Option<Run>,
}

/// Of `Run`.
#[derive(Clone, PartialEq, Message)]
struct Run {
    #[prost(message, optional, tag = "4")]
    spec: Option<Spec>,
    #[prost(message, optional, tag = "11")]
    end_reason: Option<EndReason>,
    #[prost(message, optional, tag = "40")]
    pinned: Option<Pinned>,
}

/// `PinnedRun`.
#[derive(Clone, PartialEq, Message)]
struct Pinned {
    #[prost(string, tag = "1")]
    by: String,
}

/// Of `EndReason`.
#[derive(Clone, PartialEq, Message)]
struct EndReason {
    #[prost(message, optional, tag = "9001")]
    noted: Option<Noted>,
}

/// `EndReason.Noted`.
#[derive(Clone, PartialEq, Message)]
struct Noted {
    #[prost(string, tag = "1")]
    note: String,
}

/// A run of the next version.
struct Member {
    id: String,
    leader: Proc,
    has_value: bool,
    lines: u64,
}

/// Runs of the next version.
pub(crate) struct Later {
    dir: PathBuf,
    living: Vec<Member>,
    ended: Vec<String>,
}

impl Later {
    /// Begins with no run.
    pub(crate) fn new(dir: &Path) -> Self {
        Self {
            dir: dir.to_owned(),
            living: Vec::new(),
            ended: Vec::new(),
        }
    }

    fn file(&self, id: &str, what: &str) -> PathBuf {
        self.dir.join(format!("{id}.{what}"))
    }

    /// Begins runs at a server of the next version: one with a later field, and one with a later value too. A keeper that
    /// does not know the value begins no run with less than its policy.
    pub(crate) async fn join(&mut self, kennel: &Kennel, keeper: Version) {
        for has_value in [false, true] {
            let dir = self.dir.display().to_string();
            let mut spec = naughty(&["talk", &dir, "500"]).label("app", APP);
            spec.set_recovery(RecoveryPolicy::Adopt);
            let request = pb::SpawnRequest {
                spec: Some(spec),
                ..pb::SpawnRequest::default()
            };
            let later = Spec {
                pause: has_value.then(|| Pause {
                    max_pause: Some(must("short", Duration::from_hours(1).try_into())),
                    on_max_pause: STAY,
                }),
                note: NOTE.to_owned(),
            };
            // Concatenated Protobuf encodings merge into one message.
            let later = Spawn { spec: Some(later) };
            let bytes = [request.encode_to_vec(), later.encode_to_vec()].concat();
            let path = "/kennel.v1.ProcessService/Spawn";
            let answer = raw::call(kennel, path, bytes).await;
            if has_value && keeper == Version::Former {
                let refused = answer.expect_err("the keeper does not know it");
                assert_eq!(complaint(&refused).reason, "CAPABILITY_MISSING");
                continue;
            }
            let answer = must("spawn", answer);
            let run = must("a run", pb::SpawnResponse::decode(&*answer)).run;
            let run = run.expect("a run is given");
            let pid = run.current_attempt.map_or(0, |attempt| attempt.pid);
            self.living.push(Member {
                id: run.run_id,
                leader: Proc::read(pid).expect("it runs"),
                has_value,
                lines: 0,
            });
        }
        self.look(kennel, Version::Next).await;
    }

    /// Checks that each run lives, and that the next version still knows all that it knew.
    pub(crate) async fn look(&mut self, kennel: &Kennel, serves: Version) {
        assert_eq!(answers_as(kennel).await, serves);
        let mut client = kennel.client().await;
        let mut living = std::mem::take(&mut self.living);
        for member in &mut living {
            let id = &member.id;
            assert!(member.leader.is_alive(), "{id} has ended\n{}", kennel.log());
            member.lines = eventually(&format!("{id} goes on"), PATIENCE, || {
                let said = fs::read_to_string(self.file(id, "lines")).ok()?;
                said.parse().ok().filter(|now| *now > member.lines)
            })
            .await;
            let run = get(kennel, id).await;
            let is_pinned = member.has_value && serves == Version::Former;
            assert_eq!(run.pinned.is_some(), is_pinned, "{id}");
            let by = run
                .pinned
                .map_or_else(|| UNKNOWN[0].to_owned(), |pinned| pinned.by);
            assert!(UNKNOWN.contains(&&*by), "{id}: {by}");
            if serves == Version::Former {
                continue;
            }
            let spec = run.spec.expect("a spec");
            assert_eq!(spec.note, NOTE);
            let value = spec.pause.map_or(0, |pause| pause.on_max_pause);
            assert_eq!(value == STAY, member.has_value);
            let heard = client.hear_now(id).await;
            let warnings = heard.warnings();
            let notes = warnings.iter().filter(|text| text.contains(NOTE));
            assert_eq!(notes.count(), 1, "{warnings:?}");
        }
        self.living = living;
        for id in &self.ended {
            if serves == Version::Next {
                assert_has_later_end(kennel, id).await;
            } else {
                assert_is_not_lost(&mut client, id).await;
            }
        }
    }

    /// Ends one of them, for the reason of the next version.
    pub(crate) async fn end_one(&mut self, kennel: &Kennel) {
        let Member { id, .. } = self.living.remove(0);
        fs::write(self.file(&id, "exit"), NOTED).expect("own directory");
        let ended = kennel.client().await.ended(&id).await;
        let ended = must("wait", ended);
        assert!(ended.end_time.is_some(), "{ended:?}");
        assert_has_later_end(kennel, &id).await;
        self.ended.push(id);
    }

    /// Ends all at the next version.
    pub(crate) async fn finish(mut self, kennel: &Kennel) {
        while !self.living.is_empty() {
            self.end_one(kennel).await;
        }
        self.look(kennel, Version::Next).await;
    }
}

async fn get(kennel: &Kennel, id: &str) -> Run {
    let request = pb::GetRunRequest {
        run_id: id.to_owned(),
    };
    let path = "/kennel.v1.ProcessService/GetRun";
    let answer = raw::call(kennel, path, request.encode_to_vec()).await;
    let answer = must("a run", Answer::decode(&*must("get", answer)));
    answer.run.expect("a run is given")
}

async fn assert_has_later_end(kennel: &Kennel, id: &str) {
    let reason = get(kennel, id).await.end_reason.expect("it has ended");
    let noted = reason.noted.expect("by a later reason");
    assert_eq!(noted.note, NOTE);
}

/// Checks what the former version says of a run that it cannot read: that it is there, or why it cannot say.
async fn assert_is_not_lost(client: &mut Client, id: &str) {
    match client.get(id).await {
        Ok(run) => assert!(run.end_time.is_some(), "{run:?}"),
        Err(status) => assert_ne!(status.code(), Code::NotFound, "{status:?}"),
    }
}

/// Returns the version that serves, by the rpc that only the next one has.
async fn answers_as(kennel: &Kennel) -> Version {
    let path = "/kennel.v1.AdminService/GetTomorrow";
    match raw::call(kennel, path, Vec::new()).await {
        Ok(_) => Version::Next,
        Err(status) if is_unknown(&status) => Version::Former,
        Err(status) => panic!("{status:?}"),
    }
}

fn is_unknown(status: &Status) -> bool {
    status.code() == Code::Unimplemented
}
