//! Screen of a run's terminal: its journal, read into a model of the terminal.
//!
//! The model is made on request, from the first event that is left, and retained for a while, so that frequent callers
//! do not cause all of it to be read each time.

use crate::{
    base::calls::{CallError, Position, Reached, RunView},
    registry::{
        Supervisor,
        screens::{Drawing, Follower, KEPT_FOR},
    },
    streams::events::Events,
};
use kennel_journal::Picture;
use kennel_lifecycle::{RunId, RunKind};
use std::sync::Arc;

/// Most bytes read at once.
const READ_BYTES_MAX: usize = 256 * 1024;
/// Most steps of one call: characters, and cells that are touched for them. About as many as 1 GB of plain lines takes.
const STEPS_MAX: u64 = 1 << 31;

/// Content of a terminal, and the events that it is made of.
#[derive(Clone, Debug)]
pub struct ScreenView {
    /// The run, read before its screen.
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

/// Brings the model up to the present head, as far as so many steps allow, and takes them off.
async fn catch_up(
    drawing: &Drawing<'_>,
    mut follower: Follower,
    events: &mut Events,
    steps: &mut u64,
) -> Result<Follower, CallError> {
    let head = events.head();
    loop {
        follower = drawing.draw(follower, steps).await?;
        if !follower.is_drawn || events.position().seq >= head {
            return Ok(follower);
        }
        let Some(batch) = events.next(READ_BYTES_MAX).await? else {
            return Ok(follower);
        };
        follower.read(batch, events.position());
    }
}

impl Supervisor {
    /// Returns the screen of a run's terminal; for an ended run, its last content.
    pub async fn screen(&self, run: RunId) -> Result<ScreenView, CallError> {
        let view = self.get(run).await?;
        self.refuse_unless_here(&view).await?;
        if view.policy().kind != RunKind::Terminal {
            return Err(CallError::NotOnTerminal { run });
        }
        let (place, sweeps) = self.shared.screens.place(run);
        if sweeps {
            // A screen model keeps its journal's files open.
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
        let screens = &self.shared.screens;
        let drawing = screens.begin(&self.shared.owner_threads, &view.owner).await;
        let mut kept = place.lock().await;
        let follower = kept.take().unwrap_or_default();
        let from = follower
            .position
            .map_or(Position::Beginning, Position::After);
        let mut events = self.events(run, from).await?.1;
        let mut steps = STEPS_MAX;
        let mut follower = catch_up(&drawing, follower, &mut events, &mut steps).await?;
        let mut picture = None;
        if follower.is_drawn {
            (follower, picture) = drawing.picture(follower).await?;
        }
        let (size, is_drawn) = (follower.size, follower.is_drawn);
        let (attempt, whole_from) = (follower.attempt, follower.whole_from);
        *kept = Some(follower);
        screens.kept(run, size);
        match picture {
            Some(picture) => Ok(ScreenView {
                run: view,
                attempt,
                picture,
                position: events.position(),
                whole_from,
            }),
            None if is_drawn => Err(CallError::ScreenTooLarge { run, size }),
            // The next call resumes drawing from here.
            None => Err(CallError::QuotaExceeded {
                what: "steps of one call that draws a screen".to_owned(),
                limit: STEPS_MAX,
            }),
        }
    }
}
