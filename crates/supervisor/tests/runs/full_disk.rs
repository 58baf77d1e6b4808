//! The disk has no space for a run's output: the output waits, or is dropped and counted, or the run is stopped;
//! everything continues by itself when there is space.

use crate::{
    name,
    world::{
        Lives, Nature, Stage, call, fill_disk, log, make_room_on_disk, run_id,
        take_refusals_as_errors,
    },
};
use kennel_keeper::client::KeeperEvent;
use kennel_lifecycle::{EndReason, Entry, Limit, OnDiskFull, StreamsEnd};
use kennel_supervisor::{
    CallError, Condition, DrainAction, DrainCall, GapReason, Payload, Position,
};

/// Events as a reader sees them in these tests: output as it is, all others by name.
#[derive(Debug, PartialEq)]
enum Seen {
    Output(String),
    Missing([Option<u64>; 2]),
    Warning(String),
    Station(String),
}

// promise: O-18a
#[test]
fn run_ended_on_full_disk_is_recorded_later() {
    let lives = begun(OnDiskFull::Block);
    lives.live(async |stage| {
        fill(&lives);
        stage.exits(run_id(), 0);
        wait(stage, Condition::LeaderExited).await;
        make_room_on_disk();
        wait(stage, Condition::Ended).await;
        let row = stage.world.store.row(run_id()).unwrap();
        assert_eq!(row.outcome.unwrap().streams, Some(StreamsEnd::Eof));
        let seen = seen(stage).await;
        let texts = seen.iter().filter_map(|s| match s {
            Seen::Output(text) => Some(text.as_str()),
            _ => None,
        });
        assert_eq!(texts.collect::<String>(), "before after");
        let [warning] = &warnings(&seen)[..] else {
            panic!("{seen:?}");
        };
        assert!(
            warning.ends_with("no output is missing for that"),
            "{warning}"
        );
        assert_eq!(seen.last(), Some(&Seen::Station("ended".into())));
    });
    // No work is left for the next server.
    assert!(!log::is_unfinished(&lives.data_dir, run_id()));
}

#[tokio::test]
async fn refused_drain_on_full_disk_can_be_repeated() {
    // Set before any writing thread starts.
    take_refusals_as_errors();
    let stage = Stage::set(Nature::default()).await;
    let drain = || DrainCall {
        action: DrainAction::Finish,
        deadline: None,
        by: "uid:7".into(),
        request_id: None,
    };
    fill_disk(1);
    let refused = stage.supervisor.drain(drain()).await;
    assert!(
        matches!(refused, Err(CallError::HostFull(_))),
        "{refused:?}"
    );
    make_room_on_disk();
    stage.supervisor.drain(drain()).await.unwrap();
}

// promise: O-18a
#[test]
fn output_dropped_at_the_end_is_reported_later() {
    let lives = begun(OnDiskFull::Drop);
    lives.live(async |stage| {
        fill(&lives);
        stage.exits(run_id(), 0);
        wait(stage, Condition::Ended).await;
        // A reader gets the remaining events once the disk has room.
        make_room_on_disk();
        let seen = seen(stage).await;
        assert_last_words_are_missing(&seen);
        let [warning] = &warnings(&seen)[..] else {
            panic!("{seen:?}");
        };
        let exact = "5 bytes of stdout and 0 bytes of stderr are missing";
        assert!(warning.ends_with(exact), "{warning}");
    });
}

// promise: O-18a
#[test]
fn dropped_byte_count_survives_the_server() {
    let lives = begun(OnDiskFull::Drop);
    lives.live(async |stage| {
        fill(&lives);
        stage.exits(run_id(), 0);
        wait(stage, Condition::Ended).await;
    });
    // The next server also finds the disk full.
    lives.live(async |_| {});
    make_room_on_disk();
    lives.live(async |stage| {
        assert_last_words_are_missing(&seen(stage).await);
    });
}

// promise: O-18
#[test]
fn run_with_abort_policy_stops_on_full_disk() {
    let lives = begun(OnDiskFull::Abort);
    lives.live(async |stage| {
        fill(&lives);
        stage.writes(run_id(), b"and more");
        wait(stage, Condition::Ended).await;
        let row = stage.world.store.row(run_id()).unwrap();
        let reason = row.outcome.unwrap().reason;
        assert_eq!(reason, EndReason::LimitExceeded(Limit::Disk));
        make_room_on_disk();
        let seen = seen(stage).await;
        let stations = seen.iter().filter_map(|s| match s {
            Seen::Station(name) => Some(name.as_str()),
            _ => None,
        });
        assert!(
            stations.into_iter().any(|name| name == "stopping"),
            "{seen:?}"
        );
        assert_eq!(warnings(&seen).len(), 1, "{seen:?}");
    });
}

// promise: O-18a
#[test]
fn shutdown_on_full_disk_reports_missing_output() {
    let lives = begun(OnDiskFull::Block);
    lives.live(async |stage| {
        fill(&lives);
        stage.exits(run_id(), 0);
        wait(stage, Condition::LeaderExited).await;
        stage.send_event(KeeperEvent::Shutdown {});
        wait(stage, Condition::Ended).await;
    });
    make_room_on_disk();
    lives.live(async |stage| {
        assert_last_words_are_missing(&seen(stage).await);
    });
}

/// Returns a run that has written `before `, and writes `after` at its end.
fn begun(on_disk_full: OnDiskFull) -> Lives {
    let lives = Lives::of(Nature {
        output: b"before ".to_vec(),
        last_words: b"after".to_vec(),
        ..Nature::default()
    });
    lives.live(async |stage| {
        let mut call = call(Some(run_id()));
        call.spec.policy.output.on_disk_full = on_disk_full;
        stage.supervisor.spawn(call).await.unwrap();
        let events = stage.supervisor.events(run_id(), Position::Beginning).await;
        let mut events = events.unwrap().1;
        let mut came = 0;
        while came < 7 {
            for event in events.next(1 << 20).await.unwrap().unwrap() {
                if let Payload::Output { data, .. } = event.payload {
                    came += data.len();
                }
            }
        }
    });
    lives
}

fn fill(lives: &Lives) {
    let journal = lives
        .data_dir
        .path()
        .join("runs")
        .join(run_id().to_string());
    fill_disk(std::fs::metadata(journal.join("index")).unwrap().len());
}

async fn wait(stage: &Stage, condition: Condition) {
    stage.supervisor.wait(run_id(), condition).await.unwrap();
}

async fn seen(stage: &Stage) -> Vec<Seen> {
    let events = stage.supervisor.events(run_id(), Position::Beginning).await;
    let mut events = events.unwrap().1;
    let mut seen = Vec::new();
    while let Some(batch) = events.next(1 << 20).await.unwrap() {
        seen.extend(batch.into_iter().map(|event| match event.payload {
            Payload::Output { data, .. } => Seen::Output(String::from_utf8(data.to_vec()).unwrap()),
            Payload::Gap(gap) => {
                assert_eq!(gap.reason, GapReason::FullDisk);
                Seen::Missing(gap.bytes)
            }
            Payload::Line { .. } => panic!("no lines were requested"),
            Payload::Lifecycle(Entry::Warning { message }) => Seen::Warning(message),
            Payload::Lifecycle(line) => Seen::Station(name(&line)),
        }));
    }
    seen
}

/// Asserts that exactly the output at the end is missing, and the end is reported.
fn assert_last_words_are_missing(seen: &[Seen]) {
    let missing = Seen::Missing([Some(5), Some(0)]);
    assert!(seen.contains(&missing), "{seen:?}");
    assert_eq!(seen.last(), Some(&Seen::Station("ended".into())));
}

fn warnings(seen: &[Seen]) -> Vec<&str> {
    let warnings = seen.iter().filter_map(|s| match s {
        Seen::Warning(message) => Some(message.as_str()),
        _ => None,
    });
    warnings.collect()
}
