//! Many callers of one name, and of one key after the other, while the server is killed: never two processes of the
//! name at once, each key once, and each answer true.

use kennel_proto::pb;
use kennel_tests::{Client, Kennel, complaint, fact, must, sh};
use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
    sync::{Mutex, OnceLock},
    time::Duration,
};
use tokio::{sync::watch, task::JoinSet};
use tonic::Code;

/// Deaths of the server, each in the round of a key.
const KILLS: usize = 20;
/// Callers of the name, each other one with RETURN, and of the key of the round.
const CALLERS: usize = 200;
/// Uptime of a server after which its keeper starts the next one at once.
const SERVES: Duration = Duration::from_millis(2_100);

/// Time after which a caller repeats its call: a connection that is lost in its beginning ends some calls in no way.
const ANSWER_MAX: Duration = Duration::from_secs(10);

/// Runs in the answers, by the kind of the answer.
#[derive(Debug, Default)]
struct Answers {
    new: Mutex<BTreeSet<String>>,
    existing: Mutex<BTreeSet<String>>,
    taken: Mutex<BTreeSet<String>>,
    by_key: Mutex<BTreeMap<usize, BTreeSet<String>>>,
}

static ANSWERS: OnceLock<Answers> = OnceLock::new();

fn answers() -> &'static Answers {
    ANSWERS.get_or_init(Answers::default)
}

/// Adds a run; returns whether no answer of this kind had it.
fn add(runs: &Mutex<BTreeSet<String>>, run_id: String) -> bool {
    must("lock", runs.lock()).insert(run_id)
}

// promise: K-7
#[tokio::test(flavor = "multi_thread")]
async fn names_and_keys_hold_over_server_deaths() {
    let mut kennel = Kennel::on_sqlite().await;
    let dir = kennel.scratch().to_owned();
    let (begin, rounds) = watch::channel(0);
    let mut callers = JoinSet::new();
    for number in 0..CALLERS {
        let (socket, dir, rounds) = (kennel.socket(), dir.clone(), rounds.clone());
        callers.spawn(async move {
            let mut key = 0;
            while key < KILLS {
                let round = *rounds.borrow();
                if round < KILLS {
                    call_by_name(&socket, &dir, number % 2 == 0).await;
                }
                if key <= round && call_by_key(&socket, &dir, key).await {
                    key += 1;
                }
            }
        });
    }
    for round in 1..=KILLS {
        tokio::time::sleep(SERVES).await;
        kennel.replace_server().await;
        begin.send_replace(round);
    }
    callers.join_all().await;
    let by_key = must("lock", answers().by_key.lock()).clone();
    assert_eq!(by_key.len(), KILLS);
    for (key, runs) in by_key {
        assert_eq!(runs.len(), 1, "one run of key {key}: {runs:?}");
        let lines = std::fs::read_to_string(dir.join(format!("key-{key}")));
        assert_eq!(must("it ran", lines), "ran\n", "key {key}");
    }
    assert!(
        !dir.join("VIOLATION").exists(),
        "two runs of a name at once"
    );
    let kinds = [&answers().new, &answers().existing, &answers().taken];
    let kinds = kinds.map(|runs| must("lock", runs.lock()).clone());
    let counts = kinds.each_ref().map(BTreeSet::len);
    println!("{KILLS} deaths of the server, runs in answers: new, existing, taken {counts:?}");
    assert!(counts.iter().all(|count| *count > 0), "{counts:?}");
    let mut client = kennel.client().await;
    for run_id in kinds.iter().flatten().collect::<BTreeSet<_>>() {
        let run = must("a run of an answer is recorded", client.get(run_id).await);
        assert_eq!(run.spec.expect("a spec").name, "one");
    }
}

/// Spawns under the name once, and judges the answer if there is one.
async fn call_by_name(socket: &Path, dir: &Path, returns: bool) {
    // The lock is held as long as any process of the tree lives.
    let script = format!(
        "exec 9>>{lock}; flock -n 9 || echo two >>{violation}; sleep 0.2",
        lock = dir.join("lock").display(),
        violation = dir.join("VIOLATION").display(),
    );
    let on = if returns {
        pb::OnNameConflict::Return
    } else {
        pb::OnNameConflict::Fail
    };
    let request = pb::SpawnRequest {
        spec: Some(pb::RunSpec {
            name: "one".to_owned(),
            ..sh(&script)
        }),
        on_name_conflict: on.into(),
        ..pb::SpawnRequest::default()
    };
    let Some(answer) = answer_of(socket, request).await else {
        return tokio::time::sleep(Duration::from_millis(20)).await;
    };
    match answer {
        Ok(answer) => {
            let run_id = answer.run.expect("a run is given").run_id;
            if answer.existing {
                assert!(returns, "FAIL answers with a run that was there");
                add(&answers().existing, run_id);
            } else {
                assert!(add(&answers().new, run_id), "a run is new for two callers");
            }
        }
        Err(status) if status.code() == Code::AlreadyExists => {
            assert_eq!(complaint(&status).reason, "NAME_TAKEN");
            assert!(!returns, "RETURN is refused");
            add(&answers().taken, fact(&status, "run_id"));
        }
        Err(status) => {
            assert!(is_passing(&status), "{status:?}");
            return;
        }
    }
    tokio::time::sleep(Duration::from_millis(100)).await;
}

/// Spawns under a key once; returns whether there was an answer.
async fn call_by_key(socket: &Path, dir: &Path, key: usize) -> bool {
    let script = format!("echo ran >>{}", dir.join(format!("key-{key}")).display());
    let request = pb::SpawnRequest {
        request_key: format!("key {key}"),
        spec: Some(sh(&script)),
        ..pb::SpawnRequest::default()
    };
    match answer_of(socket, request).await {
        Some(Ok(answer)) => {
            let run_id = answer.run.expect("a run is given").run_id;
            let mut by_key = must("lock", answers().by_key.lock());
            by_key.entry(key).or_default().insert(run_id);
            return true;
        }
        Some(Err(status)) => assert!(is_passing(&status), "{status:?}"),
        None => {}
    }
    tokio::time::sleep(Duration::from_millis(50)).await;
    false
}

/// Returns the answer to a spawn; `None`: no server was there, or its connection was lost without notice.
async fn answer_of(
    socket: &Path,
    request: pb::SpawnRequest,
) -> Option<Result<pb::SpawnResponse, tonic::Status>> {
    let call = async {
        let mut client = Client::connect(socket).await.ok()?;
        Some(client.process.spawn(request).await)
    };
    let answer = tokio::time::timeout(ANSWER_MAX, call).await.ok()??;
    Some(answer.map(tonic::Response::into_inner))
}

/// Whether a refusal comes of a server that dies, begins or is busy.
fn is_passing(status: &tonic::Status) -> bool {
    matches!(
        status.code(),
        Code::Unavailable
            | Code::Unknown
            | Code::Cancelled
            | Code::Internal
            | Code::ResourceExhausted
    )
}
