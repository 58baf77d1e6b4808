//! The multi-run stream, over a store that answers when the test permits it.

use crate::world::{Nature, Stage, Weather, call};
use kennel_lifecycle::{RunId, RunState};
use kennel_supervisor::{
    CallError, Condition, Kinds, ListFilter, ManyCall, ManyEvents, ManyFrom, ManyReached, Payload,
    Reached, Step,
};
use std::{future::poll_fn, pin::Pin, task::Poll, time::Duration};

/// Upper bound for every step here.
const PATIENCE: Duration = Duration::from_secs(20);

/// Makes a call after a position at which this run was known and none of its events delivered.
fn after_begun(stage: &Stage, run: RunId) -> ManyCall {
    after(stage, run, 0)
}

/// Makes a call after a position at which the events of this run were delivered up to this seq.
fn after(stage: &Stage, run: RunId, seq: u64) -> ManyCall {
    let mut reached = ManyReached::default();
    let at = Reached {
        seq,
        ..Reached::default()
    };
    reached.open.insert(run, at);
    ManyCall {
        node: stage.supervisor.node(),
        filter: ListFilter::default(),
        from: ManyFrom::After(reached),
        form: None,
        kinds: Kinds::ALL,
        until_head: false,
        fails_on_gap: false,
    }
}

/// Whether it waits.
async fn is_pending<F: Future>(mut future: Pin<&mut F>) -> bool {
    poll_fn(|cx| Poll::Ready(future.as_mut().poll(cx).is_pending())).await
}

// promise: O-24a
#[tokio::test]
async fn stream_follows_run_respawned_during_lookup() {
    let stage = Stage::set(Nature {
        exits_at_once: Some(0),
        ..Nature::default()
    })
    .await;
    let run = RunId::from_u128(7);
    let store = &stage.world.store;
    store.reads_held.send_replace(true);
    let mut stream = stage.supervisor.events_of_many(after_begun(&stage, run));
    let mut next = Box::pin(stream.next(1 << 20));
    // The server that accepted the run died before recording it: the expected row does not exist.
    while store.reads_waiting() == 0 {
        assert!(is_pending(next.as_mut()).await);
        tokio::task::yield_now().await;
    }
    // The run's caller retries meanwhile.
    store.hold_inserts();
    let supervisor = stage.supervisor.clone();
    let spawning = tokio::spawn(async move { supervisor.spawn(call(Some(run))).await });
    while !stage.is_alive(run) {
        assert!(is_pending(next.as_mut()).await);
        tokio::task::yield_now().await;
    }
    store.reads_held.send_replace(false);
    // The store's answer is read before the run is recorded.
    while store.reads_waiting() > 0 {
        tokio::task::yield_now().await;
    }
    assert!(is_pending(next.as_mut()).await);
    drop(next);
    store.let_inserts_go();
    let hears_end = async {
        let mut names = Vec::new();
        while !names.iter().any(|name| name == "ended") {
            match stream.next(1 << 20).await.unwrap().unwrap() {
                Step::Begun { view, .. } => assert_eq!(view.run, run),
                Step::Events { events, .. } => {
                    names.extend(events.iter().map(|event| match &event.payload {
                        Payload::Lifecycle(line) => crate::name(line),
                        other => panic!("{other:?}"),
                    }));
                }
                Step::Broken(error) => panic!("{error}"),
            }
        }
    };
    let heard = tokio::time::timeout(PATIENCE, hears_end).await;
    heard.expect("the stream lost the run");
    spawning.await.unwrap().unwrap();
}

/// A client may write into its position what it likes.
// promise: I-82, RW-89
#[tokio::test]
async fn forged_cursor_reads_no_run_outside_filter() {
    let stage = Stage::set(Nature::default()).await;
    let run = stage.supervisor.spawn(call(None)).await.unwrap().run.run;
    let foreign = ManyCall {
        filter: ListFilter {
            owner: Some("another".into()),
            ..ListFilter::default()
        },
        until_head: true,
        ..after(&stage, run, 1)
    };
    let mut stream = stage.supervisor.events_of_many(foreign);
    let first = tokio::time::timeout(PATIENCE, stream.next(1 << 20)).await;
    assert!(first.expect("the stream ends").unwrap().is_none());
    let own = ManyCall {
        until_head: true,
        ..after(&stage, run, 1)
    };
    let mut stream = stage.supervisor.events_of_many(own);
    let first = tokio::time::timeout(PATIENCE, stream.next(1 << 20)).await;
    let first = first.expect("the stream begins").unwrap().unwrap();
    assert!(matches!(first, Step::Begun { view, .. } if view.run == run));
}

fn from_beginning(stage: &Stage) -> ManyEvents {
    stage.supervisor.events_of_many(ManyCall {
        from: ManyFrom::Beginning,
        ..after(stage, RunId::from_u128(0), 0)
    })
}

fn ends_at_once() -> Nature {
    Nature {
        exits_at_once: Some(0),
        ..Nature::default()
    }
}

/// Returns what a reader has of each run, in order, up to the end of this run: its Snapshots and its events.
async fn heard_until_end_of(stream: &mut ManyEvents, last: RunId) -> Vec<(RunId, String)> {
    let reading = async {
        let mut heard = Vec::new();
        while heard.last() != Some(&(last, "ended".to_owned())) {
            match stream.next(1 << 20).await.unwrap().unwrap() {
                Step::Begun { view, .. } => {
                    heard.push((view.run, format!("snapshot {}", view.state.name())));
                }
                Step::Events { run, events } => {
                    heard.extend(events.iter().map(|event| match &event.payload {
                        Payload::Lifecycle(line) => (run, crate::name(line)),
                        other => panic!("{other:?}"),
                    }));
                }
                Step::Broken(error) => panic!("{error}"),
            }
        }
        heard
    };
    let heard = tokio::time::timeout(PATIENCE, reading).await;
    heard.expect("the stream goes on")
}

/// Lets a reader hear all that there is: the end of another run comes after it.
async fn hear_all(stage: &Stage, stream: &mut ManyEvents, other: u128) -> Vec<(RunId, String)> {
    let other = RunId::from_u128(other);
    stage.supervisor.spawn(call(Some(other))).await.unwrap();
    let mut heard = heard_until_end_of(stream, other).await;
    heard.retain(|(run, _)| *run != other);
    heard
}

// promise: O-22a
#[tokio::test]
async fn repeated_spawn_of_ended_run_repeats_no_event() {
    let stage = Stage::set(ends_at_once()).await;
    let mut stream = from_beginning(&stage);
    let run = RunId::from_u128(7);
    stage.supervisor.spawn(call(Some(run))).await.unwrap();
    let heard = heard_until_end_of(&mut stream, run).await;
    assert_eq!(heard.iter().filter(|(_, name)| name == "ended").count(), 1);
    let store = &stage.world.store;
    while store.row(run).unwrap().outcome.is_none() {
        tokio::task::yield_now().await;
    }
    store.hold_inserts();
    let supervisor = stage.supervisor.clone();
    let repeat = tokio::spawn(async move { supervisor.spawn(call(Some(run))).await });
    while !stage.is_alive(run) {
        tokio::task::yield_now().await;
    }
    // A reader waiting for the store does not mistake the repeated call for a run.
    let (got, ()) = tokio::join!(stage.supervisor.get(run), async {
        for _ in 0..20 {
            tokio::task::yield_now().await;
        }
        store.let_inserts_go();
    });
    assert_eq!(got.unwrap().state, RunState::Succeeded);
    assert!(repeat.await.unwrap().unwrap().existing);
    assert_eq!(hear_all(&stage, &mut stream, 8).await, []);
    // A reader that resumes from here does not get the repeat either.
    let resumed = ManyCall {
        from: ManyFrom::After(stream.reached().clone()),
        ..after(&stage, run, 0)
    };
    let mut resumed = stage.supervisor.events_of_many(resumed);
    assert_eq!(hear_all(&stage, &mut resumed, 9).await, []);
}

// promise: D-4, O-22a
#[tokio::test(start_paused = true)]
async fn stream_yields_run_once_after_uncertain_insert() {
    for written in [true, false] {
        let stage = Stage::set(ends_at_once()).await;
        let mut stream = from_beginning(&stage);
        let run = RunId::from_u128(7);
        stage.world.store.set(Weather::InsertUnknown { written });
        let refused = stage.supervisor.spawn(call(Some(run))).await;
        let is_away = matches!(refused, Err(CallError::StoreUnavailable));
        assert!(is_away, "{refused:?}");
        stage.world.store.set(Weather::Fair);
        let spawned = stage.supervisor.spawn(call(Some(run))).await.unwrap();
        assert!(!spawned.existing);
        assert_eq!(stage.kernel().executed, [(run, 1)]);
        let heard = heard_until_end_of(&mut stream, run).await;
        let heard: Vec<&str> = heard.iter().map(|(_, name)| name.as_str()).collect();
        let count = |wanted| heard.iter().filter(|name| **name == wanted).count();
        assert_eq!((count("recorded"), count("ended")), (1, 1), "{heard:?}");
        assert!(heard[0].starts_with("snapshot"), "{heard:?}");
        assert_eq!(hear_all(&stage, &mut stream, 8).await, []);
    }
}

// promise: O-22a
#[tokio::test]
async fn recovery_of_ended_run_repeats_no_event() {
    let stage = Stage::set(ends_at_once()).await;
    let mut stream = from_beginning(&stage);
    let run = RunId::from_u128(7);
    let new = stage.supervisor.spawn(call(Some(run))).await.unwrap();
    heard_until_end_of(&mut stream, run).await;
    let store = &stage.world.store;
    let closed = loop {
        match store.row(run).filter(|row| row.outcome.is_some()) {
            Some(row) => break row,
            None => tokio::task::yield_now().await,
        }
    };
    // A call reads the row before the run's end is written, and begins recovery afterwards.
    let open = kennel_store::RunRow::open(store.recorded(run).unwrap());
    store.rows.lock().unwrap().insert(run, open);
    store.let_one_read_go();
    let supervisor = stage.supervisor.clone();
    let reading = tokio::spawn(async move { supervisor.get(run).await });
    while store.reads_waiting() == 0 {
        tokio::task::yield_now().await;
    }
    store.let_one_read_go();
    reading.await.unwrap().unwrap();
    while store.reads_waiting() == 0 {
        tokio::task::yield_now().await;
    }
    store.rows.lock().unwrap().insert(run, closed);
    store.reads_held.send_replace(false);
    assert_eq!(hear_all(&stage, &mut stream, 8).await, []);
    assert_eq!(new.run.run, run);
}

/// The clock is set an hour forward and back, and a minute back, between runs that begin and end: a stream that is open
/// and one that resumes by its position give each run once.
// promise: A-9
#[tokio::test]
async fn stream_yields_each_run_once_despite_clock_changes() {
    let stage = Stage::set(Nature {
        exits_at_once: Some(0),
        ..Nature::default()
    })
    .await;
    let stream = |reached: &ManyReached, until_head| {
        let at = ManyFrom::After(reached.clone());
        stage.supervisor.events_of_many(ManyCall {
            from: at,
            until_head,
            ..after(&stage, RunId::from_u128(0), 0)
        })
    };
    let mut open = stream(&ManyReached::default(), false);
    let (mut heard, mut all) = (Vec::new(), Vec::new());
    let mut reached = ManyReached::default();
    for minutes in [0, 60, 0, -1, -60, 61, 0] {
        kennel_linux::clock::AHEAD.set(minutes * 60_000_000);
        let mut spawned = Vec::new();
        for _ in 0..2 {
            let run = stage.supervisor.spawn(call(None)).await.unwrap().run.run;
            let ended = stage.supervisor.wait(run, Condition::Ended);
            tokio::time::timeout(PATIENCE, ended)
                .await
                .expect("it ends")
                .unwrap();
            while stage.is_alive(run) {
                tokio::task::yield_now().await;
            }
            spawned.push(run);
        }
        let mut resumed = stream(&reached, true);
        let mut found = Vec::new();
        let reading = async {
            while let Some(step) = resumed.next(1 << 20).await.unwrap() {
                found.extend(begun(&step));
            }
        };
        tokio::time::timeout(PATIENCE, reading)
            .await
            .expect("it ends");
        found.sort_unstable();
        spawned.sort_unstable();
        assert_eq!(found, spawned, "{minutes} minutes ahead");
        reached = resumed.reached().clone();
        assert_eq!(reached.given.len(), 1, "{reached:?}");
        all.append(&mut spawned);
        let hearing = async {
            while heard.len() < all.len() {
                let step = open.next(1 << 20).await.unwrap().expect("it is open");
                heard.extend(begun(&step));
            }
        };
        tokio::time::timeout(PATIENCE, hearing)
            .await
            .expect("the open stream lost a run");
    }
    all.sort_unstable();
    heard.sort_unstable();
    assert_eq!(heard, all);
}

/// Returns the run that begins with this step.
fn begun(step: &Step) -> Option<RunId> {
    match step {
        Step::Begun { view, .. } => Some(view.run),
        Step::Events { .. } => None,
        Step::Broken(error) => panic!("{error}"),
    }
}
