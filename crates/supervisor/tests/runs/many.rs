//! The multi-run stream, over a store that answers when the test permits it.

use crate::world::{Nature, Stage, call};
use kennel_lifecycle::RunId;
use kennel_supervisor::{
    Kinds, ListFilter, ManyCall, ManyFrom, ManyReached, Payload, Reached, Step,
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
    // The server that had accepted it died before its record: the expected row does not exist.
    while store.reads_waiting() == 0 {
        assert!(is_pending(next.as_mut()).await);
        tokio::task::yield_now().await;
    }
    // Its caller retries meanwhile.
    store.hold_inserts();
    let supervisor = stage.supervisor.clone();
    let spawning = tokio::spawn(async move { supervisor.spawn(call(Some(run))).await });
    while !stage.is_alive(run) {
        assert!(is_pending(next.as_mut()).await);
        tokio::task::yield_now().await;
    }
    store.reads_held.send_replace(false);
    // The answer of the store is read before the run is recorded.
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
#[tokio::test]
async fn position_opens_no_run_outside_the_filter() {
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
