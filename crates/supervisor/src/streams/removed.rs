//! The events of a run whose output was removed: one gap over all of them but the last, which its row still tells.

use crate::{
    base::calls::{CallError, Event, Payload, Position, Reached, RunView},
    streams::events::ahead,
};
use kennel_journal::{Gap, GapReason};
use kennel_lifecycle::{Entry, OutputRemoval, Timestamp};

/// What is left to tell.
#[derive(Clone, Debug)]
pub(crate) struct Removed {
    removal: OutputRemoval,
    end: Event,
    at: Reached,
}

impl Removed {
    /// Of this run, from a position on; absent: it has its output.
    pub(crate) fn of(view: &RunView, from: Position) -> Result<Option<Self>, CallError> {
        let (Some(removal), Some(outcome)) = (view.output_removed, &view.outcome) else {
            return Ok(None);
        };
        let at = match from {
            // Of its output nothing is left to begin a tail with.
            Position::Beginning | Position::Tail(_) => Reached {
                lens: Some([0; 2]),
                ..Reached::default()
            },
            Position::LiveOnly => Reached {
                seq: removal.seq,
                lens: Some(removal.lens),
                ..Reached::default()
            },
            Position::After(at) if at.seq > removal.seq => {
                return Err(ahead(view.run, at.seq, removal.seq));
            }
            Position::After(at) if at.seq == 0 => Reached {
                lens: Some([0; 2]),
                ..at
            },
            Position::After(at) => at,
        };
        let end = Event {
            seq: removal.seq,
            attempt: view.attempt,
            at: view.times.ended.unwrap_or(Timestamp(0)),
            payload: Payload::Lifecycle(Entry::Ended(Box::new(outcome.clone()))),
        };
        Ok(Some(Self { removal, end, at }))
    }

    pub(crate) fn at(&self) -> Reached {
        self.at
    }

    /// Seq of the run's last event; all before it are missing.
    pub(crate) fn seq(&self) -> u64 {
        self.removal.seq
    }

    /// Length of the two streams.
    pub(crate) fn lens(&self) -> [u64; 2] {
        self.removal.lens
    }

    /// All that is left to tell; `None`: all is told.
    pub(crate) fn next(&mut self) -> Option<Vec<Event>> {
        let OutputRemoval {
            seq, lens, counted, ..
        } = self.removal;
        if self.at.seq >= seq {
            return None;
        }
        let mut events = Vec::new();
        if self.at.seq + 1 < seq {
            let known = self.at.lens.filter(|_| counted);
            let missing = |stream: usize| Some(lens[stream].saturating_sub(known?[stream]));
            let gap = Gap {
                first_seq: self.at.seq + 1,
                last_seq: seq - 1,
                bytes: [missing(0), missing(1)],
                ends: lens,
                reason: GapReason::Retention,
                at: self.end.at,
                attempt: self.end.attempt,
            };
            events.push(Event {
                seq: gap.last_seq,
                payload: Payload::Gap(gap),
                ..self.end.clone()
            });
        }
        events.push(self.end.clone());
        self.at = Reached {
            seq,
            lens: Some(lens),
            ..Reached::default()
        };
        Some(events)
    }
}
