//! What the terminal of a run shows: its journal, read into a model of the terminal.
//!
//! Made where somebody asks, from the first event that is left, and kept for a while, so that who asks often does not have
//! it all read each time.

use crate::{
    CallError, Event, Events, LifecycleEvent, Payload, Position, Reached, RunView, Supervisor,
    blocking::blocking,
};
use kennel_journal::{Picture, Screen, is_drawn};
use kennel_lifecycle::{RunId, RunKind, TerminalSize};
use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tokio::time::Instant;

/// Most terminals that are kept.
const KEPT_MAX: usize = 32;
/// How long one is kept after somebody has asked.
const KEPT_FOR: Duration = Duration::from_mins(1);
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

/// The terminals that somebody has asked for lately.
#[derive(Debug, Default)]
pub(crate) struct Screens(Mutex<AllKept>);

#[derive(Debug, Default)]
struct AllKept {
    runs: HashMap<RunId, Kept>,
    /// Somebody sees to it that none is kept for longer.
    swept: bool,
}

/// Absent: not made, or lost with a caller that went away in the middle.
type Place = Arc<tokio::sync::Mutex<Option<Follower>>>;

#[derive(Debug)]
struct Kept {
    place: Place,
    used: Instant,
}

impl Screens {
    fn all(&self) -> MutexGuard<'_, AllKept> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Where the model of this run is kept, and whether the caller is the one who has to [`sweep`](Self::sweep).
    fn place(&self, run: RunId) -> (Place, bool) {
        let now = Instant::now();
        let mut all = self.all();
        if all.runs.len() >= KEPT_MAX && !all.runs.contains_key(&run) {
            let oldest = all.runs.iter().min_by_key(|(_, kept)| kept.used);
            if let Some(oldest) = oldest.map(|(run, _)| *run) {
                all.runs.remove(&oldest);
            }
        }
        let kept = all.runs.entry(run).or_insert_with(|| Kept {
            place: Place::default(),
            used: now,
        });
        kept.used = now;
        let place = Arc::clone(&kept.place);
        let sweeps = !std::mem::replace(&mut all.swept, true);
        (place, sweeps)
    }

    /// Forgets those that nobody has asked for lately. Gives whether there are others.
    fn sweep(&self) -> bool {
        let now = Instant::now();
        let mut all = self.all();
        all.runs
            .retain(|_, kept| now.duration_since(kept.used) < KEPT_FOR);
        all.swept = !all.runs.is_empty();
        all.swept
    }
}

/// A model that follows a journal.
#[derive(Debug)]
struct Follower {
    events: Events,
    screen: Screen,
    /// How large the terminal is said to be.
    told: TerminalSize,
    attempt: u32,
    whole_from: u64,
}

impl Follower {
    fn new(events: Events) -> Self {
        let told = TerminalSize::default();
        Self {
            events,
            screen: Screen::new(told),
            told,
            attempt: 1,
            whole_from: 1,
        }
    }

    /// Reads up to the head that there is now.
    async fn catch_up(mut self) -> Result<Self, CallError> {
        let head = self.events.head();
        while self.events.position().seq < head {
            let Some(events) = self.events.next(READ_BYTES_MAX).await? else {
                break;
            };
            let bytes: usize = events.iter().map(output_len).sum();
            if bytes <= FED_IN_PLACE_BYTES_MAX {
                self.take(events);
                continue;
            }
            let fed = blocking(move || {
                self.take(events);
                self
            });
            let broken = |error: std::io::Error| CallError::Internal(error.to_string());
            self = fed.await.map_err(broken)?;
        }
        Ok(self)
    }

    fn take(&mut self, events: Vec<Event>) {
        for event in events {
            if event.attempt > self.attempt {
                // It runs on a terminal of its own.
                self.attempt = event.attempt;
                self.screen = Screen::new(self.told);
            }
            match event.payload {
                Payload::Output { data, .. } => self.screen.feed(&data),
                Payload::Lifecycle(LifecycleEvent::TerminalResized(size)) => {
                    self.told = size;
                    self.screen.resize(self.told);
                }
                Payload::Gap(_) => {
                    self.screen.skip();
                    self.whole_from = event.seq + 1;
                }
                Payload::Lifecycle(_) | Payload::Line { .. } => {}
            }
        }
    }
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
            tokio::spawn(async move {
                loop {
                    tokio::time::sleep(KEPT_FOR).await;
                    if !shared.screens.sweep() {
                        return;
                    }
                }
            });
        }
        let mut kept = place.lock().await;
        let follower = match kept.take() {
            Some(follower) => follower,
            None => Follower::new(self.events(run, Position::Beginning).await?.1),
        };
        let follower = follower.catch_up().await?;
        let told = follower.told;
        let shown = ScreenView {
            run: view,
            attempt: follower.attempt,
            picture: follower.screen.picture(),
            position: follower.events.position(),
            whole_from: follower.whole_from,
        };
        *kept = Some(follower);
        if is_drawn(told) {
            Ok(shown)
        } else {
            Err(CallError::ScreenTooLarge { run, size: told })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn what_nobody_asks_for_is_forgotten_and_no_more_are_kept_than_may_be() {
        let screens = Screens::default();
        let run = |number: usize| RunId::from_u128(number as u128);
        let (first, sweeps) = screens.place(run(0));
        assert!(sweeps, "the first has to see to it");
        for number in 1..=KEPT_MAX {
            tokio::time::advance(Duration::from_millis(1)).await;
            assert!(!screens.place(run(number)).1, "one is enough");
        }
        assert_eq!(screens.all().runs.len(), KEPT_MAX);
        assert!(
            !Arc::ptr_eq(&first, &screens.place(run(0)).0),
            "the oldest has gone"
        );
        tokio::time::advance(KEPT_FOR / 2).await;
        screens.place(run(5));
        tokio::time::advance(KEPT_FOR / 2).await;
        assert!(screens.sweep(), "one was asked for since");
        assert_eq!(screens.all().runs.len(), 1);
        tokio::time::advance(KEPT_FOR).await;
        assert!(!screens.sweep());
        assert!(screens.place(run(1)).1, "somebody has to see to it again");
    }
}
