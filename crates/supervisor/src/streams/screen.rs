//! Screen of a run's terminal: its journal, read into a model of the terminal.
//!
//! The model is made on request, from the first event that is left, and retained for a while, so that frequent callers
//! do not cause all of it to be read each time.

use crate::{
    base::{
        blocking::blocking,
        calls::{CallError, Event, Payload, Position, Reached, RunView},
    },
    registry::{
        Supervisor,
        screens::{Follower, KEPT_FOR},
    },
    streams::events::Events,
};
use kennel_journal::{Picture, is_drawn};
use kennel_lifecycle::{RunId, RunKind};
use std::sync::Arc;

/// Most bytes read at once.
const READ_BYTES_MAX: usize = 256 * 1024;
/// More bytes than this are fed to the model on a thread of its own.
const FED_IN_PLACE_BYTES_MAX: usize = 16 * 1024;

/// Content of a terminal, and the events that it is made of.
#[derive(Clone, Debug)]
pub struct ScreenView {
    /// The run as it was before.
    pub run: RunView,
    /// Attempt of the terminal.
    pub attempt: u32,
    /// Content of the screen.
    pub picture: Picture,
    /// Position of the last included event.
    pub position: Reached,
    /// All output from this event on is included; 1: from the first. Earlier output may have left content on the screen
    /// that nothing has cleared since.
    pub whole_from: u64,
}

/// Feeds the model up to the present head.
async fn catch_up(mut follower: Follower, events: &mut Events) -> Result<Follower, CallError> {
    let head = events.head();
    while events.position().seq < head {
        let Some(batch) = events.next(READ_BYTES_MAX).await? else {
            break;
        };
        let bytes: usize = batch.iter().map(output_len).sum();
        if bytes <= FED_IN_PLACE_BYTES_MAX {
            follower.feed(batch);
            continue;
        }
        let fed = blocking(move || {
            follower.feed(batch);
            follower
        });
        let broken = |error: std::io::Error| CallError::Internal(error.to_string());
        follower = fed.await.map_err(broken)?;
    }
    follower.position = Some(events.position());
    Ok(follower)
}

fn output_len(event: &Event) -> usize {
    match &event.payload {
        Payload::Output { data, .. } => data.len(),
        _ => 0,
    }
}

impl Supervisor {
    /// Returns the screen of a run's terminal; for an ended run, its last content.
    pub async fn screen(&self, run: RunId) -> Result<ScreenView, CallError> {
        let view = self.get(run).await?;
        self.refuse_elsewhere(&view).await?;
        if view.policy().kind != RunKind::Terminal {
            return Err(CallError::NotOnTerminal { run });
        }
        let (place, sweeps) = self.shared.screens.place(run);
        if sweeps {
            // A model keeps the files of its journal open.
            let shared = Arc::clone(&self.shared);
            self.shared.background.spawn(async move {
                loop {
                    tokio::time::sleep(KEPT_FOR).await;
                    if !shared.screens.sweep() {
                        return;
                    }
                }
            });
        }
        let mut kept = place.lock().await;
        let follower = kept.take().unwrap_or_default();
        let from = follower
            .position
            .map_or(Position::Beginning, Position::After);
        let mut events = self.events(run, from).await?.1;
        let follower = catch_up(follower, &mut events).await?;
        let size = follower.size;
        let shown = ScreenView {
            run: view,
            attempt: follower.attempt,
            picture: follower.screen.picture(),
            position: events.position(),
            whole_from: follower.whole_from,
        };
        *kept = Some(follower);
        if is_drawn(size) {
            Ok(shown)
        } else {
            Err(CallError::ScreenTooLarge { run, size })
        }
    }
}
