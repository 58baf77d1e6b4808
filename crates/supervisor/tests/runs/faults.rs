//! What goes wrong at the worst moment.

use crate::{
    event_names,
    world::{Nature, Stage, call},
};
use kennel_lifecycle::RunId;
use kennel_supervisor::{Events, Payload, Position};
use std::time::Duration;

/// Longer than anything here takes, also on a busy machine.
const SOON: Duration = Duration::from_secs(20);

#[tokio::test]
async fn what_is_written_just_before_the_end_is_read_even_if_nobody_has_looked_at_the_pipe_since() {
    let stage = Stage::set(Nature {
        output: b"first".to_vec(),
        last_words: b" and last".to_vec(),
        ..Nature::default()
    })
    .await;
    let run = stage.supervisor.spawn(call(None)).await.unwrap().run.run;
    let mut events = follow(&stage, run).await;
    assert_eq!(output(&mut events, 5).await, b"first");
    // The pipe has been found empty; what comes now is not announced by the runtime before the end is.
    stage.exits(run, 0);
    assert_eq!(output(&mut events, 9).await, b" and last");
    let names = event_names(&stage, run).await;
    assert_eq!(names.last().map(String::as_str), Some("ended"));
}

async fn follow(stage: &Stage, run: RunId) -> Events {
    let events = stage.supervisor.events(run, Position::Beginning);
    events.await.unwrap().1
}

/// The next `len` bytes of output.
async fn output(events: &mut Events, len: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    while bytes.len() < len {
        let batch = tokio::time::timeout(SOON, events.next(1 << 20)).await;
        let Some(batch) = batch.expect("an event in time").unwrap() else {
            break;
        };
        for event in batch {
            if let Payload::Output { data, .. } = event.payload {
                bytes.extend(data);
            }
        }
    }
    bytes
}
