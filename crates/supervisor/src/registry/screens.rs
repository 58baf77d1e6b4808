//! Recently requested terminals: a model of each is retained for a while, so that frequent callers do not cause all
//! output to be read each time. Their number and their cells are bounded, and they are drawn on the threads of owners.

use super::owner_threads::OwnerThreads;
use crate::base::calls::{CallError, Event, Payload, Reached};
use kennel_journal::{Picture, SCREEN_CELLS_MAX, Screen, is_drawn};
use kennel_lifecycle::{Entry, RunId, TerminalSize};
use parking_lot::Mutex;
use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
    time::Duration,
};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::Instant,
};

/// Most models that are retained.
const KEPT_MAX: usize = 32;
/// Most cells of all retained models.
const KEPT_CELLS_MAX: u32 = 4 * SCREEN_CELLS_MAX;
/// Time for which a model is retained after the last request.
pub(crate) const KEPT_FOR: Duration = Duration::from_mins(1);
/// Most screens that are brought up to date at once: each has a model in memory.
const CALLS_MAX: usize = 16;
/// Steps after which others have their turn on a thread: about 10 ms.
const TURN_STEPS: u64 = 1 << 21;

/// Models of the recently requested terminals.
#[derive(Debug)]
pub(crate) struct Screens {
    all: Mutex<AllKept>,
    calls: Arc<Semaphore>,
}

impl Default for Screens {
    fn default() -> Self {
        Self {
            all: Mutex::default(),
            calls: Arc::new(Semaphore::new(CALLS_MAX)),
        }
    }
}

#[derive(Debug, Default)]
struct AllKept {
    runs: HashMap<RunId, CachedScreen>,
    /// One for each owner who reads screens: each has one call at a time.
    owners: HashMap<String, Arc<Semaphore>>,
    /// A task removes models whose time has passed.
    swept: bool,
}

/// Absent: not made, or lost with a caller that was cancelled midway.
pub(crate) type ScreenSlot = Arc<tokio::sync::Mutex<Option<Follower>>>;

#[derive(Debug)]
struct CachedScreen {
    place: ScreenSlot,
    used: Instant,
    cells: u32,
}

/// Permission to bring a screen up to date, until it is dropped.
pub(crate) struct Drawing<'a> {
    threads: &'a OwnerThreads,
    owner: Arc<str>,
    _calls: [Option<OwnedSemaphorePermit>; 2],
}

impl Screens {
    /// Returns the slot of this run's model, and whether the caller is the one that has to [`sweep`](Self::sweep).
    pub(crate) fn place(&self, run: RunId) -> (ScreenSlot, bool) {
        let now = Instant::now();
        let mut all = self.all.lock();
        if all.runs.len() >= KEPT_MAX && !all.runs.contains_key(&run) {
            let oldest = all.runs.iter().min_by_key(|(_, kept)| kept.used);
            if let Some(oldest) = oldest.map(|(run, _)| *run) {
                all.runs.remove(&oldest);
            }
        }
        let kept = all.runs.entry(run).or_insert_with(|| CachedScreen {
            place: ScreenSlot::default(),
            used: now,
            cells: 0,
        });
        kept.used = now;
        let place = Arc::clone(&kept.place);
        let sweeps = !std::mem::replace(&mut all.swept, true);
        (place, sweeps)
    }

    /// Records the size of a model that is retained, and removes the oldest others where all have too many cells.
    pub(crate) fn kept(&self, run: RunId, size: TerminalSize) {
        let mut all = self.all.lock();
        if let Some(kept) = all.runs.get_mut(&run) {
            // A larger screen is drawn on fewer lines.
            kept.cells = size.cells().min(SCREEN_CELLS_MAX);
        }
        while all.runs.values().map(|kept| kept.cells).sum::<u32>() > KEPT_CELLS_MAX {
            let others = all.runs.iter().filter(|(other, _)| **other != run);
            let Some(oldest) = others.min_by_key(|(_, kept)| kept.used) else {
                return;
            };
            let oldest = *oldest.0;
            all.runs.remove(&oldest);
        }
    }

    /// Waits until this owner may bring a screen up to date.
    pub(crate) async fn begin<'a>(&self, threads: &'a OwnerThreads, owner: &str) -> Drawing<'a> {
        let of_owner = {
            let mut all = self.all.lock();
            // An owner without a call needs no semaphore.
            all.owners.retain(|_, calls| Arc::strong_count(calls) > 1);
            let calls = all.owners.entry(owner.to_owned());
            Arc::clone(calls.or_insert_with(|| Arc::new(Semaphore::new(1))))
        };
        // Neither semaphore is ever closed. In this order a waiting owner takes no permit from others.
        let of_owner = of_owner.acquire_owned().await.ok();
        let of_all = Arc::clone(&self.calls).acquire_owned().await.ok();
        Drawing {
            threads,
            owner: owner.into(),
            _calls: [of_owner, of_all],
        }
    }

    /// Removes models without a recent request. Returns whether others remain.
    pub(crate) fn sweep(&self) -> bool {
        let now = Instant::now();
        let mut all = self.all.lock();
        all.runs
            .retain(|_, kept| now.duration_since(kept.used) < KEPT_FOR);
        all.swept = !all.runs.is_empty();
        all.swept
    }
}

impl Drawing<'_> {
    /// Draws events, as many as so many steps allow, in turns; takes the steps off.
    pub(crate) async fn draw(
        &self,
        mut follower: Follower,
        steps: &mut u64,
    ) -> Result<Follower, CallError> {
        while !follower.is_drawn && *steps > 0 {
            let mut turn = TURN_STEPS.min(*steps);
            *steps -= turn;
            let draw = move |_: &mut _| {
                follower.draw(&mut turn);
                (follower, turn)
            };
            let left;
            (follower, left) = self.threads.turn(&self.owner, draw).await?;
            *steps += left;
        }
        Ok(follower)
    }

    /// Returns the model with its picture.
    pub(crate) async fn picture(
        &self,
        follower: Follower,
    ) -> Result<(Follower, Option<Picture>), CallError> {
        let draw = move |_: &mut _| {
            let picture = is_drawn(follower.size).then(|| follower.screen.picture());
            (follower, picture)
        };
        self.threads.turn(&self.owner, draw).await
    }
}

/// Model of a terminal, made of the events up to a position.
#[derive(Debug)]
pub(crate) struct Follower {
    /// Absent: made of no events.
    pub(crate) position: Option<Reached>,
    screen: Screen,
    /// Size of the terminal.
    pub(crate) size: TerminalSize,
    pub(crate) attempt: u32,
    pub(crate) whole_from: u64,
    /// Events up to the position that are still to be drawn.
    unread: VecDeque<Event>,
    /// Whether all events up to the position are drawn.
    pub(crate) is_drawn: bool,
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
            unread: VecDeque::new(),
            is_drawn: true,
        }
    }
}

impl Follower {
    /// Takes the events that follow, up to a position.
    pub(crate) fn read(&mut self, events: Vec<Event>, position: Reached) {
        self.unread.extend(events);
        self.position = Some(position);
        self.is_drawn = false;
    }

    /// Draws events in order, as many as so many steps allow, and takes the steps off.
    fn draw(&mut self, steps: &mut u64) {
        while self.screen.draw(steps) {
            let Some(event) = self.unread.pop_front() else {
                self.is_drawn = true;
                return;
            };
            let before = self.screen.size();
            self.take(event);
            let after = self.screen.size();
            if before != after {
                let cells = u64::from(before.cells()) + u64::from(after.cells());
                *steps = steps.saturating_sub(cells);
            }
        }
    }

    fn take(&mut self, event: Event) {
        if event.attempt > self.attempt {
            // Each attempt has its own terminal.
            self.attempt = event.attempt;
            self.screen = Screen::new(self.size);
        }
        match event.payload {
            Payload::Output { data, .. } => self.screen.read(&data),
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::task::{Context, Waker};

    // promise: P-10c
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
        assert_eq!(screens.all.lock().runs.len(), KEPT_MAX);
        assert!(
            !Arc::ptr_eq(&first, &screens.place(run(0)).0),
            "the oldest has gone"
        );
        let large = TerminalSize {
            rows: 512,
            cols: 512,
        };
        // The count limit has removed run 1.
        for number in 2..=6 {
            screens.kept(run(number), large);
        }
        assert!(
            !screens.all.lock().runs.contains_key(&run(2)),
            "its cells are too many"
        );
        assert!(screens.all.lock().runs.contains_key(&run(3)));
        tokio::time::advance(KEPT_FOR / 2).await;
        screens.place(run(5));
        tokio::time::advance(KEPT_FOR / 2).await;
        assert!(screens.sweep(), "one was asked for since");
        assert_eq!(screens.all.lock().runs.len(), 1);
        tokio::time::advance(KEPT_FOR).await;
        assert!(!screens.sweep());
        assert!(screens.place(run(1)).1, "it needs another refresh");
    }

    // promise: P-10c
    #[tokio::test]
    async fn screens_of_one_owner_are_drawn_sequentially() {
        let (screens, threads) = (Screens::default(), OwnerThreads::default());
        let first = screens.begin(&threads, "a").await;
        let mut second = std::pin::pin!(screens.begin(&threads, "a"));
        let polled = second
            .as_mut()
            .poll(&mut Context::from_waker(Waker::noop()));
        assert!(polled.is_pending());
        let _other = screens.begin(&threads, "b").await;
        assert_eq!(screens.calls.available_permits(), CALLS_MAX - 2);
        drop(first);
        second.await;
        screens.begin(&threads, "c").await;
        assert_eq!(
            screens.all.lock().owners.len(),
            2,
            "one without a call is removed"
        );
    }

    // promise: P-10c
    #[tokio::test]
    async fn expensive_repetition_is_drawn_in_several_turns() {
        let (screens, threads) = (Screens::default(), OwnerThreads::default());
        let drawing = screens.begin(&threads, "a").await;
        let mut follower = Follower::default();
        let output = Event {
            seq: 1,
            attempt: 1,
            at: kennel_lifecycle::Timestamp(0),
            payload: Payload::Output {
                stream: 1,
                offset: 0,
                data: b"x\x1b[65535b".to_vec().into(),
            },
        };
        follower.read(vec![output], Reached::default());
        let mut steps = 1_000;
        let follower = drawing.draw(follower, &mut steps).await.expect("a turn");
        assert!(!follower.is_drawn && steps == 0);
        let mut steps = 1_000_000;
        let follower = drawing.draw(follower, &mut steps).await.expect("a turn");
        assert!(
            follower.is_drawn && (1..950_000).contains(&steps),
            "{steps}"
        );
    }
}
