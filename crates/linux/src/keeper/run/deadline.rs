//! How long one run may take.

use super::{Run, Stage};
use crate::{client::Fact, keeper::pause::Pause};
use kennel_lifecycle::{Countdown, Deadline, ladder::Ladder};

impl Run {
    /// Counts from here on, or goes on counting, unless the run is paused.
    pub(super) fn count(&mut self, now: u64) {
        if self.stage == Stage::Ran
            && let Some(left) = &mut self.max_runtime
        {
            match self.pause {
                Pause::Stopped(_) => left.stand(now),
                Pause::None | Pause::Stopping { .. } | Pause::LettingGo(_) => left.run(now),
            }
        }
    }

    /// Begins to stop the tree when the run has taken as long as it may. One that is being stopped already is left to
    /// that.
    pub(super) fn keep_deadline(&mut self, now: u64) {
        if self.ladder.is_none() && self.max_runtime.is_some_and(|left| left.is_over(now)) {
            self.tell(Fact::DeadlineExceeded(Deadline::MaxRuntime));
            self.ladder = Some(Ladder::start(&self.policy.stop, now));
        }
    }

    /// When that will be, as things stand.
    pub(super) fn deadline(&self) -> Option<u64> {
        let left = self.max_runtime.filter(|_| self.ladder.is_none());
        left.as_ref().and_then(Countdown::over_at)
    }
}
