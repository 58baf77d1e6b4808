//! What the terminal of a run shows: its journal, read into a model of the terminal.
//!
//! Made where somebody asks, from the first event that is left, and kept for a while, so that who asks often does not have
//! it all read each time.

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

/// Most bytes that are read at once.
const READ_BYTES_MAX: usize = 256 * 1024;
/// More than this is put into the model on a thread of its own.
const FED_IN_PLACE_BYTES_MAX: usize = 16 * 1024;

/// What a terminal shows, and what that was made of.
#[derive(Clone, Debug)]
pub struct ScreenView {
    /// The run as it was before.
    pub run: RunView,
    /// Of which attempt.
    pub attempt: u32,
    /// What it shows.
    pub picture: Picture,
    /// After these events, and no later one.
    pub position: Reached,
    /// From this event on all that was written is in it; 1: from the first. What was written before may have left something on
    /// a screen that nothing has cleared since.
    pub whole_from: u64,
}

/// Feeds the model up to the head that there is now.
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
    /// What the terminal of a run shows; of one that has ended, what it showed at last.
    pub async fn screen(&self, run: RunId) -> Result<ScreenView, CallError> {
        let view = self.get(run).await?;
        self.refuse_elsewhere(&view).await?;
        if view.policy().kind != RunKind::Terminal {
            return Err(CallError::NotOnTerminal { run });
        }
        let (place, sweeps) = self.shared.screens.place(run);
        if sweeps {
            // A model holds the files of its journal open.
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
