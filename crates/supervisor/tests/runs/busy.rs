//! A command that writes little all the time: its pipe is not watched then, and is again when it falls silent.

use crate::world::{Nature, Stage, call};
use kennel_lifecycle::{RunId, StreamsEnd};
use kennel_supervisor::{Condition, Events, Payload, Position};
use std::time::Duration;
use tokio::time::timeout;

/// Upper bound for every step here.
const PATIENCE: Duration = Duration::from_secs(30);

// promise: O-33
#[tokio::test]
async fn busy_pipe_is_polled_and_silent_one_watched() {
    let stage = Stage::set(Nature {
        last_words: b"after".to_vec(),
        ..Nature::default()
    })
    .await;
    let run = stage.supervisor.spawn(call(None)).await.unwrap().run.run;
    let events = stage.supervisor.events(run, Position::Beginning).await;
    let mut events = events.unwrap().1;
    let narrow = stage.pipe_bytes(run);
    let (mut written, mut came) = (Vec::new(), Vec::new());
    for word in [b"silent ", b"again. "] {
        while stage.pipe_bytes(run) == narrow {
            say(&stage, run, b".", &mut written);
            hear(&mut events, &written, &mut came).await;
        }
        for _ in 0..100 {
            say(&stage, run, b"busy ", &mut written);
        }
        hear(&mut events, &written, &mut came).await;
        while stage.pipe_bytes(run) != narrow {
            tokio::task::yield_now().await;
        }
        say(&stage, run, word, &mut written);
        hear(&mut events, &written, &mut came).await;
    }
    while stage.pipe_bytes(run) == narrow {
        say(&stage, run, b".", &mut written);
        hear(&mut events, &written, &mut came).await;
    }
    stage.exits(run, 0);
    written.extend(b"after");
    hear(&mut events, &written, &mut came).await;
    stage.supervisor.wait(run, Condition::Ended).await.unwrap();
    let row = stage.world.store.row(run).unwrap();
    assert_eq!(row.outcome.unwrap().streams, Some(StreamsEnd::Eof));
}

fn say(stage: &Stage, run: RunId, bytes: &[u8], written: &mut Vec<u8>) {
    stage.writes(run, bytes);
    written.extend(bytes);
}

/// Reads until all written bytes have come.
async fn hear(events: &mut Events, written: &[u8], came: &mut Vec<u8>) {
    while came.len() < written.len() {
        let heard = timeout(PATIENCE, events.next(1 << 20)).await;
        for event in heard.expect("it is heard").unwrap().unwrap() {
            if let Payload::Output { data, .. } = event.payload {
                came.extend(data);
            }
        }
    }
    assert_eq!(came, written);
}
