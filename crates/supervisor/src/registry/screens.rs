//! Recently requested terminals: a model of each is retained for a while, so that frequent callers do not cause all
//! output to be read each time.

use crate::base::calls::{Event, Payload, Reached};
use kennel_journal::Screen;
use kennel_lifecycle::{Entry, RunId, TerminalSize};
use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tokio::time::Instant;

/// Most models that are retained.
const KEPT_MAX: usize = 32;
/// Time for which a model is retained after the last request.
pub(crate) const KEPT_FOR: Duration = Duration::from_mins(1);
/// Models of the recently requested terminals.
#[derive(Debug, Default)]
pub(crate) struct Screens(Mutex<AllKept>);

#[derive(Debug, Default)]
struct AllKept {
    runs: HashMap<RunId, Kept>,
    /// A task removes models whose time has passed.
    swept: bool,
}

/// Absent: not made, or lost with a caller that was cancelled midway.
pub(crate) type Place = Arc<tokio::sync::Mutex<Option<Follower>>>;

#[derive(Debug)]
struct Kept {
    place: Place,
    used: Instant,
}

impl Screens {
    fn all(&self) -> MutexGuard<'_, AllKept> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the slot of this run's model, and whether the caller is the one that has to [`sweep`](Self::sweep).
    pub(crate) fn place(&self, run: RunId) -> (Place, bool) {
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

    /// Removes models without a recent request. Returns whether others remain.
    pub(crate) fn sweep(&self) -> bool {
        let now = Instant::now();
        let mut all = self.all();
        all.runs
            .retain(|_, kept| now.duration_since(kept.used) < KEPT_FOR);
        all.swept = !all.runs.is_empty();
        all.swept
    }
}

/// Model of a terminal, made of the events up to a position.
#[derive(Debug)]
pub(crate) struct Follower {
    /// Absent: made of no events.
    pub(crate) position: Option<Reached>,
    pub(crate) screen: Screen,
    /// Size of the terminal.
    pub(crate) size: TerminalSize,
    pub(crate) attempt: u32,
    pub(crate) whole_from: u64,
}

impl Default for Follower {
    fn default() -> Self {
        let size = TerminalSize::default();
        Self {
            position: None,
            screen: Screen::new(size),
            size,
            attempt: 1,
            whole_from: 1,
        }
    }
}

impl Follower {
    /// Feeds events to the model, in order.
    pub(crate) fn feed(&mut self, events: Vec<Event>) {
        for event in events {
            if event.attempt > self.attempt {
                // Each attempt runs on a terminal of its own.
                self.attempt = event.attempt;
                self.screen = Screen::new(self.size);
            }
            match event.payload {
                Payload::Output { data, .. } => self.screen.feed(&data),
                Payload::Lifecycle(Entry::TerminalResized(size)) => {
                    self.size = size;
                    self.screen.resize(self.size);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn unused_screens_are_forgotten_and_bounded() {
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
        assert!(screens.place(run(1)).1, "it needs another refresh");
    }
}
