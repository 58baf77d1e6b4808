//! The end of a run whose journal has lost it: one gap over what may be missing, and the last event by the run's row.
//!
//! A journal is closed with its run's last event. One of an ended run that has none was cut, or parts of it were removed.

use crate::base::{
    calls::{Event, Payload, Reached, RunView},
    event::decode,
};
use kennel_journal::{Gap, GapReason, Position, Reader};
use kennel_lifecycle::{Entry, Timestamp};
use std::io;

/// What the journal does not tell any more.
#[derive(Clone, Debug)]
pub(crate) struct LostEnd {
    end: Event,
    /// Length of the two streams, as far as there is anything.
    lens: [u64; 2],
}

impl LostEnd {
    /// Of the journal of this ended run; absent: it has its end.
    pub(crate) async fn of(view: &RunView, reader: &Reader) -> io::Result<Option<Self>> {
        let Some(outcome) = &view.outcome else {
            return Ok(None);
        };
        let head = reader.end();
        if head.seq > 0 {
            let mut last = reader.clone();
            last.move_to(Position {
                seq: head.seq - 1,
                lens: None,
            });
            let items = last.next(usize::MAX).await?.into_iter().flatten();
            let is_end = |item| {
                let event = decode(view.run, item).map(|event| event.payload);
                matches!(event, Ok(Payload::Lifecycle(Entry::Ended(_))))
            };
            if items.last().is_some_and(is_end) {
                return Ok(None);
            }
        }
        let end = Event {
            // Above all that was told, so that no seq names two events.
            seq: reader.seq_bound() + 1,
            attempt: view.attempt,
            at: view.times.ended.unwrap_or(Timestamp(0)),
            payload: Payload::Lifecycle(Entry::Ended(Box::new(outcome.clone()))),
        };
        Ok(Some(Self {
            end,
            lens: head.lens,
        }))
    }

    /// Seq of the run's last event.
    pub(crate) fn seq(&self) -> u64 {
        self.end.seq
    }

    /// Where a reader is that was told.
    pub(crate) fn reached(&self) -> Reached {
        Reached {
            seq: self.end.seq,
            lens: Some(self.lens),
            ..Reached::default()
        }
    }

    /// What is told after this seq.
    pub(crate) fn tell(&self, after: u64) -> Vec<Event> {
        let last_seq = self.end.seq - 1;
        let gap = Gap {
            first_seq: after + 1,
            last_seq,
            bytes: [None; 2],
            ends: self.lens,
            reason: GapReason::Damaged,
            at: self.end.at,
            attempt: self.end.attempt,
        };
        let gap = (after < last_seq).then(|| Event {
            seq: last_seq,
            payload: Payload::Gap(gap),
            ..self.end.clone()
        });
        gap.into_iter().chain([self.end.clone()]).collect()
    }
}
