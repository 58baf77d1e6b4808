//! Runs that write nothing: their entries are in the node log, and at their end in their row.

use crate::{
    abort, name,
    retention::add_unreadable_file,
    spawn_to_the_gate,
    world::{Lives, Nature, Stage, call, run_id},
};
use kennel_journal::GapReason;
use kennel_lifecycle::{Entry, Exit, RetentionLimits};
use kennel_store::StoredState;
use kennel_supervisor::{Condition, Event, Payload, Position};
use std::{fs, path::PathBuf, time::Duration};

/// Longer than the interval of retention checks.
const LOOKED: Duration = Duration::from_secs(25);

fn dir(lives: &Lives) -> PathBuf {
    let runs = lives.data_dir.path().join("runs");
    runs.join(run_id().to_string())
}

/// Whether the journal of the run has any file.
fn is_made(lives: &Lives) -> bool {
    kennel_journal::is_made(&dir(lives))
}

/// Returns the present events.
async fn events(stage: &Stage) -> Vec<Event> {
    let supervisor = &stage.supervisor;
    let (_, events) = supervisor
        .events(run_id(), Position::Beginning)
        .await
        .unwrap();
    let mut events = events.until_head();
    let mut all = Vec::new();
    while let Some(more) = events.next(1 << 20).await.unwrap() {
        all.extend(more);
    }
    all
}

async fn ended(stage: &Stage) -> Vec<Event> {
    stage.exits(run_id(), 3);
    let waited = stage.supervisor.wait(run_id(), Condition::Ended).await;
    assert_eq!(waited.unwrap().run.exit, Some(Exit::Code(3)));
    events(stage).await
}

/// Returns the contents of all events.
fn whole(events: &[Event]) -> Vec<String> {
    events.iter().map(|event| format!("{event:?}")).collect()
}

fn names(events: &[Event]) -> Vec<String> {
    let shown = |event: &Event| match &event.payload {
        Payload::Lifecycle(entry) => name(entry),
        other => format!("{other:?}"),
    };
    events.iter().map(shown).collect()
}

// promise: O-42
#[test]
fn silent_run_has_no_file_and_reads_row() {
    let lives = Lives::of(Nature::default());
    let seen = lives.live(async |stage| {
        stage.supervisor.spawn(call(Some(run_id()))).await.unwrap();
        assert!(!is_made(&lives));
        let seen = ended(stage).await;
        while dir(&lives).exists() {
            tokio::task::yield_now().await;
        }
        assert_eq!(whole(&events(stage).await), whole(&seen));
        seen
    });
    assert!(matches!(
        seen.last().unwrap().payload,
        Payload::Lifecycle(Entry::Ended(_))
    ));
    assert_eq!(seen.last().unwrap().seq, seen.len() as u64);
    lives.live(async |stage| {
        assert_eq!(whole(&events(stage).await), whole(&seen));
        let (_, tail) = (stage.supervisor)
            .events(run_id(), Position::LiveOnly)
            .await
            .unwrap();
        assert_eq!(tail.head(), seen.last().unwrap().seq);
    });
}

// promise: O-42c
#[test]
fn entries_in_the_node_log_outlive_their_server() {
    let lives = Lives::of(Nature::default());
    let seen = lives.live(async |stage| {
        stage.supervisor.spawn(call(Some(run_id()))).await.unwrap();
        events(stage).await
    });
    assert_eq!(names(&seen), ["recorded", "started"]);
    assert!(!is_made(&lives));
    for _ in 0..2 {
        lives.live(async |stage| {
            stage
                .supervisor
                .wait(run_id(), Condition::Started)
                .await
                .unwrap();
            assert_eq!(whole(&events(stage).await), whole(&seen));
        });
        assert!(is_made(&lives));
    }
    let all = lives.live(async |stage| ended(stage).await);
    assert_eq!(whole(&all[..2]), whole(&seen));
    assert_eq!(all.last().unwrap().seq, all.len() as u64);
}

// promise: O-42c
#[test]
fn seqs_are_not_reused_after_node_log_loss() {
    let lives = Lives::of(Nature::default());
    lives.begin();
    fs::remove_dir_all(lives.data_dir.path().join("log")).unwrap();
    let all = lives.live(async |stage| {
        stage
            .supervisor
            .wait(run_id(), Condition::Started)
            .await
            .unwrap();
        ended(stage).await
    });
    let Payload::Gap(gap) = &all[0].payload else {
        panic!("no gap: {all:?}");
    };
    assert_eq!((gap.reason, gap.first_seq), (GapReason::HostLost, 1));
    assert!(gap.last_seq >= 65_536, "{gap:?}");
    assert_eq!(names(&all[1..3]), ["recorded", "started"]);
}

/// Its server died before the keeper heard that it is closed, and the node log does not have it.
// promise: O-42c
#[test]
fn closed_row_and_journal_have_the_same_end() {
    let lives = Lives::of(Nature::default());
    let store = &lives.world.store;
    store.reads_held.send_replace(true);
    lives.live(async |stage| {
        let spawning = spawn_to_the_gate(stage, run_id()).await;
        let supervisor = stage.supervisor.clone();
        let stopping = tokio::spawn(async move { supervisor.abort(abort(run_id())).await });
        for _ in 0..2 {
            tokio::task::yield_now().await;
        }
        store.let_inserts_go();
        while store.row(run_id()).is_none_or(|row| row.outcome.is_none()) {
            tokio::task::yield_now().await;
        }
        spawning.abort();
        stopping.abort();
    });
    store.reads_held.send_replace(false);
    fs::remove_dir_all(lives.data_dir.path().join("log")).unwrap();
    lives.live(async |_| {
        while lives.world.state.lock().unwrap().acknowledged.is_empty() {
            tokio::task::yield_now().await;
        }
    });
    // Dropping the data directory compares row and journal.
    assert!(store.row(run_id()).unwrap().entries.is_some());
}

// promise: O-42
#[test]
fn many_entries_create_the_journal_file() {
    let lives = Lives::of(Nature::default());
    lives.live(async |stage| {
        stage.supervisor.spawn(call(Some(run_id()))).await.unwrap();
        let mut count = 0;
        while !is_made(&lives) {
            stage.supervisor.pause(run_id()).await.unwrap();
            stage.supervisor.resume(run_id()).await.unwrap();
            count += 1;
            assert!(count < 1_000, "16 KiB are not so many");
        }
        assert!(count > 10);
        let seen = ended(stage).await;
        assert_eq!(seen.last().unwrap().seq, seen.len() as u64);
        let pauses = names(&seen).iter().filter(|name| *name == "paused").count();
        assert_eq!(pauses, count);
    });
}

// promise: O-42, A-23a
#[test]
fn silent_run_has_no_output_to_remove() {
    let lives = Lives::of(Nature::default());
    *lives.world.retention.lock().unwrap() = RetentionLimits {
        runs_per_owner: Some(0),
        at_least: Duration::ZERO,
        ..RetentionLimits::NONE
    };
    lives.live_long(async |stage| {
        stage.supervisor.spawn(call(Some(run_id()))).await.unwrap();
        let seen = ended(stage).await;
        add_unreadable_file(stage, run_id());
        assert_eq!(stage.supervisor.info().await.unreadable_files, 1);
        tokio::time::sleep(LOOKED).await;
        assert_eq!(stage.supervisor.info().await.unreadable_files, 0);
        let view = stage.supervisor.get(run_id()).await.unwrap();
        assert_eq!(view.output_removed, None);
        assert_eq!(stage.world.store.row(run_id()).unwrap().output_age, None);
        assert_eq!(names(&events(stage).await), names(&seen));
    });
}

/// Its server died after it had written the end, and before it noted that in the node log.
// promise: O-42c
#[test]
fn events_survive_outdated_store_and_unlogged_end() {
    let lives = Lives::of(Nature::default());
    let store = &lives.world.store;
    let log = lives.data_dir.path().join("log");
    let (noted, expected) = lives.live(async |stage| {
        stage.supervisor.spawn(call(Some(run_id()))).await.unwrap();
        while store.row(run_id()).unwrap().state != StoredState::Running {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let noted: Vec<_> = fs::read_dir(&log)
            .unwrap()
            .map(|file| file.unwrap().path())
            .map(|path| (fs::read(&path).unwrap(), path))
            .collect();
        let expected = names(&ended(stage).await);
        while lives.world.state.lock().unwrap().acknowledged.is_empty() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        (noted, expected)
    });
    fs::remove_dir_all(&log).unwrap();
    fs::create_dir(&log).unwrap();
    for (bytes, path) in noted {
        fs::write(path, bytes).unwrap();
    }
    lives.live(async |stage| {
        store.go_back(0);
        store.rows.lock().unwrap().remove(&run_id());
        while store.row(run_id()).is_none() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        assert_eq!(names(&events(stage).await), expected);
    });
}
