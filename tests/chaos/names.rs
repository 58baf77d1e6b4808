//! Many callers of one name and of a few keys, while the server is killed: never two of a name, and each key once.

use kennel_proto::pb;
use kennel_tests::{Client, Kennel, complaint, must, sh};
use std::{
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};
use tokio::task::JoinSet;
use tonic::Code;

/// Deaths of the server.
const KILLS: u32 = 20;
/// Callers of the name, each other one with RETURN, and of each key.
const CALLERS: usize = 100;
const KEYS: usize = 10;
/// Uptime of a server.
const SERVES: Duration = Duration::from_millis(1_200);

/// Answers that callers got.
#[derive(Debug, Default)]
struct Answers {
    new: AtomicU64,
    existing: AtomicU64,
    taken: AtomicU64,
}

#[tokio::test(flavor = "multi_thread")]
async fn names_and_keys_hold_over_server_deaths() {
    let mut kennel = Kennel::on_sqlite().await;
    let dir = kennel.scratch().to_owned();
    let (stop, answers) = (
        Arc::new(AtomicBool::new(false)),
        Arc::new(Answers::default()),
    );
    let mut callers = JoinSet::new();
    for number in 0..CALLERS {
        let (socket, dir) = (kennel.socket(), dir.clone());
        let (stop, answers) = (Arc::clone(&stop), Arc::clone(&answers));
        callers.spawn(async move {
            while !stop.load(Ordering::Relaxed) {
                call_by_name(&socket, &dir, number % 2 == 0, &answers).await;
            }
        });
    }
    let mut keyed = JoinSet::new();
    for number in 0..CALLERS {
        let (socket, dir) = (kennel.socket(), dir.clone());
        keyed.spawn(async move { by_key(&socket, &dir, number % KEYS).await });
    }
    for _ in 0..KILLS {
        tokio::time::sleep(SERVES).await;
        kennel.replace_server().await;
    }
    stop.store(true, Ordering::Relaxed);
    callers.join_all().await;
    let mut of_keys = keyed.join_all().await;
    of_keys.sort();
    of_keys.dedup();
    assert_eq!(of_keys.len(), KEYS, "one run of each key: {of_keys:?}");
    for key in 0..KEYS {
        let lines = std::fs::read_to_string(dir.join(format!("key-{key}")));
        assert_eq!(must("it ran", lines), "ran\n", "key {key}");
    }
    assert!(!dir.join("two").exists(), "two runs of a name at once");
    let (new, existing, taken) = (&answers.new, &answers.existing, &answers.taken);
    let counts = [new, existing, taken].map(|count| count.load(Ordering::Relaxed));
    println!("{KILLS} deaths of the server, {CALLERS} callers: new, existing, taken {counts:?}");
    assert!(counts.iter().all(|count| *count > 0), "{counts:?}");
}

/// Spawns under the name, and judges the answer; what has none is asked again by the caller.
async fn call_by_name(socket: &Path, dir: &Path, returns: bool, answers: &Answers) {
    // The lock is held as long as any process of the tree lives.
    let script = format!(
        "exec 9>>{lock}; flock -n 9 || echo two >>{two}; sleep 0.2",
        lock = dir.join("lock").display(),
        two = dir.join("two").display(),
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
    let Ok(mut client) = Client::connect(socket).await else {
        return tokio::time::sleep(Duration::from_millis(20)).await;
    };
    let counted = match client.process.spawn(request).await {
        Ok(answer) if answer.get_ref().existing => {
            assert!(returns, "FAIL answers with a run that was there");
            &answers.existing
        }
        Ok(_) => &answers.new,
        Err(status) if status.code() == Code::AlreadyExists => {
            assert_eq!(complaint(&status).reason, "NAME_TAKEN");
            assert!(!returns, "RETURN is refused");
            &answers.taken
        }
        Err(status) => {
            assert!(is_passing(&status), "{status:?}");
            return;
        }
    };
    counted.fetch_add(1, Ordering::Relaxed);
    tokio::time::sleep(Duration::from_millis(100)).await;
}

/// Spawns under a key until there is an answer; returns the run.
async fn by_key(socket: &Path, dir: &Path, key: usize) -> (usize, String) {
    let script = format!("echo ran >>{}", dir.join(format!("key-{key}")).display());
    loop {
        let request = pb::SpawnRequest {
            request_key: format!("key {key}"),
            spec: Some(sh(&script)),
            ..pb::SpawnRequest::default()
        };
        tokio::time::sleep(Duration::from_millis(50)).await;
        let Ok(mut client) = Client::connect(socket).await else {
            continue;
        };
        match client.process.spawn(request).await {
            Ok(answer) => {
                let run = answer.into_inner().run.expect("a run is given");
                return (key, run.run_id);
            }
            Err(status) => assert!(is_passing(&status), "{status:?}"),
        }
    }
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
