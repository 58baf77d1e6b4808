//! The writer of a terminal: one of its attached clients at a time.

use kennel_lifecycle::RunId;
use parking_lot::Mutex;
use std::{collections::HashMap, sync::Arc};
use tokio::sync::watch;

/// The terminals with an attached client.
#[derive(Debug, Default)]
pub(crate) struct Seats {
    runs: Mutex<Runs>,
}

#[derive(Debug, Default)]
struct Runs {
    last: u64,
    writers: HashMap<RunId, watch::Sender<Option<Writer>>>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Writer {
    seat: u64,
    principal: String,
}

/// A slot at a terminal, released when it is dropped.
#[derive(Debug)]
pub(crate) struct Seat {
    seats: Arc<Seats>,
    run: RunId,
    own: Writer,
    read_only: bool,
    writer: watch::Receiver<Option<Writer>>,
}

/// The present writer.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Writes {
    /// Whether it is the asking client.
    pub(crate) you: bool,
    /// The writer; absent: no client writes.
    pub(crate) principal: Option<String>,
}

impl Seats {
    /// Takes a slot at the terminal of this run; the writer's, if there is none and this client does not only watch.
    pub(crate) fn join(self: &Arc<Self>, run: RunId, principal: String, read_only: bool) -> Seat {
        let mut runs = self.runs.lock();
        runs.last += 1;
        let own = Writer {
            seat: runs.last,
            principal,
        };
        let writers = runs.writers.entry(run);
        let writer = writers
            .or_insert_with(|| watch::Sender::new(None))
            .subscribe();
        drop(runs);
        let seat = Seat {
            seats: Arc::clone(self),
            run,
            own,
            read_only,
            writer,
        };
        seat.writes_if_free();
        seat
    }
}

impl Seat {
    /// Becomes the writer if there is none. Returns whether it is the writer.
    pub(crate) fn writes_if_free(&self) -> bool {
        self.change(|own, writer| {
            let free = writer.is_none();
            if free {
                *writer = Some(own.clone());
            }
            free
        });
        self.now().you
    }

    /// Becomes the writer in place of any other. Refused if it only watches.
    pub(crate) fn take(&self) -> bool {
        self.change(|own, writer| {
            let other = writer.as_ref() != Some(own);
            *writer = Some(own.clone());
            other
        });
        self.now().you
    }

    /// Returns the present writer.
    pub(crate) fn now(&self) -> Writes {
        self.reported(self.writer.borrow().as_ref())
    }

    /// Waits until the writer has changed since the last call. Cancel-safe.
    pub(crate) async fn changed(&mut self) -> Writes {
        // INVARIANT: the sender exists for as long as a client is attached.
        let _ = self.writer.changed().await;
        let writer = self.writer.borrow_and_update().clone();
        self.reported(writer.as_ref())
    }

    /// As [`Self::now`]; [`Self::changed`] reports only later changes.
    pub(crate) fn seen(&mut self) -> Writes {
        let writer = self.writer.borrow_and_update().clone();
        self.reported(writer.as_ref())
    }

    fn reported(&self, writer: Option<&Writer>) -> Writes {
        Writes {
            you: writer == Some(&self.own),
            principal: writer.map(|writer| writer.principal.clone()),
        }
    }

    fn change(&self, change: impl FnOnce(&Writer, &mut Option<Writer>) -> bool) {
        if self.read_only {
            return;
        }
        if let Some(writer) = self.seats.runs.lock().writers.get(&self.run) {
            writer.send_if_modified(|writer| change(&self.own, writer));
        }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut runs = self.seats.runs.lock();
        let Some(writer) = runs.writers.get(&self.run) else {
            return;
        };
        writer.send_if_modified(|writer| {
            let own = writer.as_ref() == Some(&self.own);
            if own {
                *writer = None;
            }
            own
        });
        // This client's receiver is the last.
        if writer.receiver_count() <= 1 {
            runs.writers.remove(&self.run);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run() -> RunId {
        RunId::from_u128(7)
    }

    fn writes(you: bool, principal: &str) -> Writes {
        let principal = (!principal.is_empty()).then(|| principal.to_owned());
        Writes { you, principal }
    }

    // promise: P-12
    #[tokio::test]
    async fn terminal_has_one_writer_at_a_time() {
        let seats = Arc::new(Seats::default());
        let first = seats.join(run(), "uid:1".to_owned(), false);
        let mut second = seats.join(run(), "uid:2".to_owned(), false);
        let mut watcher = seats.join(run(), "uid:3".to_owned(), true);
        assert_eq!(first.now(), writes(true, "uid:1"));
        assert_eq!(second.seen(), writes(false, "uid:1"));
        assert_eq!(watcher.seen(), writes(false, "uid:1"));
        assert!(!second.writes_if_free());

        assert!(second.take());
        assert_eq!(watcher.changed().await, writes(false, "uid:2"));
        assert_eq!(first.now(), writes(false, "uid:2"));
        drop(first);
        assert_eq!(
            second.now(),
            writes(true, "uid:2"),
            "who leaves takes nothing from others"
        );
        drop(second);
        assert_eq!(watcher.changed().await, writes(false, ""));
        assert!(
            !watcher.take() && !watcher.writes_if_free(),
            "it only watches"
        );
        let third = seats.join(run(), "uid:4".to_owned(), false);
        assert!(third.now().you);
        drop((third, watcher));
        assert!(
            seats.runs.lock().writers.is_empty(),
            "no state is kept of runs without attachments"
        );
    }
}
