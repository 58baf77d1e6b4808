//! A run in a stream of many runs, read over the deaths of servers.

use kennel_proto::pb::{self, RunFilter, stream_events_request::Position};
use kennel_tests::{Client, Heard, PATIENCE};
use std::{path::PathBuf, time::Duration};
use tokio::{sync::watch, task::JoinHandle};

/// Between two tries of a call that was not answered.
const AGAIN: Duration = Duration::from_millis(10);

/// A reader that opens one stream after the other, each at the cursor of the last.
pub(crate) struct Followed {
    heard: watch::Receiver<Heard>,
    task: JoinHandle<()>,
}

impl Followed {
    /// The label by which the stream selects the run.
    pub(crate) const LABEL: &str = "subject";

    pub(crate) fn start(socket: PathBuf, run_id: &str) -> Self {
        let (into, heard) = watch::channel(Heard::default());
        let task = tokio::spawn(read(socket, run_id.to_owned(), into));
        Self { heard, task }
    }

    /// Returns everything read of the run, once it has ended.
    pub(crate) async fn finish(mut self) -> Heard {
        // The reader ends early at a non-increasing seq or an output hole.
        let ended = tokio::time::timeout(PATIENCE, self.heard.wait_for(Heard::has_ended)).await;
        let ended = ended.expect("the stream has the end of the run");
        let heard = ended.expect("the reader lives").clone();
        self.task.abort();
        heard
    }
}

async fn read(socket: PathBuf, run_id: String, heard: watch::Sender<Heard>) {
    let mut position = Position::Beginning(pb::FromBeginning {});
    loop {
        let request = pb::StreamEventsRequest {
            filter: Some(RunFilter {
                labels: [(Followed::LABEL.to_owned(), run_id.clone())].into(),
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
                let mut runs = message.run_events;
                runs.retain(|events| events.run_id == run_id);
                let message = pb::StreamEventsResponse {
                    run_events: runs,
                    ..pb::StreamEventsResponse::default()
                };
                heard.send_modify(|heard| heard.take(message));
            }
        }
        tokio::time::sleep(AGAIN).await;
    }
}
