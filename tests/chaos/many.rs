//! The multi-run stream while servers die in the middle of spawns.

use kennel_proto::pb::{self, RunFilter, stream_events_request::Position};
use kennel_tests::{
    Client, Heard, Kennel, Options, PATIENCE, SpecExt, complaint, must, new_run_id, sh,
};
use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    time::Duration,
};
use tokio::{sync::watch, task::JoinSet};
use tonic::Code;

/// Between acceptance and the answer, in their order.
const POINTS: [&str; 9] = [
    "spawn.begun",
    "spawn.room_made",
    "spawn.prepared",
    "spawn.record",
    "spawn.recorded",
    "spawn.recorded_told",
    "spawn.release",
    "spawn.released",
    "spawn.executed",
];
/// Between two tries of a call that was not answered.
const AGAIN: Duration = Duration::from_millis(2);

#[tokio::test(flavor = "multi_thread")]
async fn spawns_repeated_over_server_deaths_run_once() {
    // Each on a service of its own: the pause before the next server grows with each death.
    let mut dying = JoinSet::new();
    for point in POINTS {
        dying.spawn(die_at(point));
    }
    dying.join_all().await;
}

async fn die_at(point: &'static str) {
    let points = tempfile::tempdir().expect("a directory");
    let kennel = Kennel::start(Options::crashing(points.path())).await;
    let ran = kennel.scratch().join("ran");
    fs::write(&ran, "").expect("a file");
    let (heard, mut reading) = watch::channel(BTreeMap::new());
    let reader = tokio::spawn(read(kennel.socket(), heard));
    fs::write(points.path().join("armed"), "server").expect("a file");
    fs::rename(points.path().join("armed"), points.path().join(point)).expect("own directory");
    let run_id = new_run_id();
    let script = format!("echo $KENNEL_RUN_ID >> {}", ran.display());
    spawn_until_answered(&kennel.socket(), &run_id, &script, point).await;
    assert!(
        points.path().join(format!("{point}.fired")).exists(),
        "{point} was not reached"
    );
    let has_ended =
        |heard: &BTreeMap<String, Heard>| heard.get(&run_id).is_some_and(Heard::has_ended);
    let all = tokio::time::timeout(PATIENCE, reading.wait_for(has_ended)).await;
    assert!(all.is_ok(), "{point}: the stream lost the run");
    let ran = fs::read_to_string(ran).expect("a file");
    assert_eq!(ran, format!("{run_id}\n"), "{point}");
    reader.abort();
}

/// Spawns under one key, whichever server answers.
async fn spawn_until_answered(socket: &Path, run_id: &str, script: &str, point: &str) {
    loop {
        if let Ok(mut client) = Client::connect(socket).await {
            let spec = sh(script).label("app", "x");
            match client.spawn_as(run_id, spec).await {
                Ok(_) => return,
                // The status is not from a server.
                Err(status)
                    if status.code() == Code::Unavailable
                        || complaint(&status).reason.is_empty() => {}
                Err(status) => must(point, Err(status)),
            }
        }
        tokio::time::sleep(AGAIN).await;
    }
}

/// Reads one stream after the other, each from the cursor of the last.
async fn read(socket: PathBuf, heard: watch::Sender<BTreeMap<String, Heard>>) {
    let mut position = Position::Beginning(pb::FromBeginning {});
    loop {
        let request = pb::StreamEventsRequest {
            filter: Some(RunFilter {
                labels: [("app".to_owned(), "x".to_owned())].into(),
                ..RunFilter::default()
            }),
            position: Some(position.clone()),
            ..pb::StreamEventsRequest::default()
        };
        if let Ok(mut client) = Client::connect(&socket).await
            && let Ok(stream) = client.process.stream_events(request).await
        {
            let mut stream = stream.into_inner();
            while let Ok(Some(message)) = stream.message().await {
                if !message.cursor.is_empty() {
                    position = Position::Cursor(message.cursor.clone());
                }
                heard.send_modify(|heard| take(heard, message));
            }
        }
        tokio::time::sleep(AGAIN).await;
    }
}

fn take(heard: &mut BTreeMap<String, Heard>, message: pb::StreamEventsResponse) {
    for events in message.run_events {
        if events.run_id.is_empty() {
            continue;
        }
        let heard = heard.entry(events.run_id.clone()).or_default();
        heard.take(pb::StreamEventsResponse {
            run_events: vec![events],
            ..pb::StreamEventsResponse::default()
        });
    }
}
