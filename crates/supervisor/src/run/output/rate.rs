//! Output that is read at the rate of its owner's quota: the rest waits in its pipe, and the command with it.

use super::{Output, PUMP_BYTES_MAX, WARNINGS_MAX};
use crate::{
    base::clock,
    registry::output_rates::{OutputRate, RateRoom},
};
use kennel_lifecycle::Entry;
use tokio::time::Instant;

/// A run's part in the rate of its owner, and whether a warning has reported it.
#[derive(Debug, Default)]
pub(super) struct Rate {
    /// Absent: the output is read as it comes.
    of_owner: Option<OutputRate>,
    waits: bool,
    is_reported: bool,
}

impl Rate {
    /// Returns how many bytes of a stream may be moved now; 0: its turn comes later.
    pub(super) fn room(&mut self) -> usize {
        let Some(of_owner) = &mut self.of_owner else {
            return PUMP_BYTES_MAX;
        };
        let room = of_owner.room(clock::instant());
        self.waits = room == RateRoom::Wait;
        match room {
            RateRoom::Unlimited => PUMP_BYTES_MAX,
            RateRoom::Bytes(most) => {
                usize::try_from(most.get()).map_or(PUMP_BYTES_MAX, |most| most.min(PUMP_BYTES_MAX))
            }
            RateRoom::Wait => 0,
        }
    }

    /// Records whether all was moved that may be: then more waits, if the next turn has not come.
    pub(super) fn note(&mut self, is_full: bool) {
        self.waits |= is_full && self.next_turn().is_some();
    }

    /// Records that so many bytes were moved.
    pub(super) fn pay(&mut self, bytes: u64) {
        if let Some(of_owner) = &mut self.of_owner {
            of_owner.pay(bytes, clock::instant());
        }
    }

    /// Returns the time before which no pipe is read.
    pub(super) fn next_turn(&self) -> Option<Instant> {
        self.of_owner.as_ref()?.wait_until(clock::instant())
    }

    /// Whether the output has a rate.
    pub(super) fn is_limited(&self) -> bool {
        let of_owner = self.of_owner.as_ref();
        of_owner.is_some_and(|of_owner| of_owner.bytes_per_second().is_some())
    }
}

impl Output {
    /// Reads the output at this rate.
    pub(crate) fn at_rate(mut self, of_owner: OutputRate) -> Self {
        self.sources.rate.of_owner = Some(of_owner);
        self
    }

    /// Reports among the events that output is slowed, once.
    pub(super) fn report_rate(&mut self) {
        let rate = self
            .sources
            .rate
            .of_owner
            .as_ref()
            .filter(|_| self.sources.rate.waits);
        let Some(rate) = rate.and_then(OutputRate::bytes_per_second) else {
            return;
        };
        if self.sources.rate.is_reported || self.disk.warnings >= WARNINGS_MAX {
            return;
        }
        self.sources.rate.is_reported = true;
        self.disk.warnings += 1;
        let message = format!(
            "output is read slower than it is written, and the command waits: the quota of the owner is {rate} bytes a second"
        );
        tracing::warn!(run_id = %self.run, bytes_per_second = rate, "output slowed by the quota of the owner");
        self.line(&Entry::Warning { message }, clock::now());
    }
}
