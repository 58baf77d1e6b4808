//! Time limits of one run.

use super::{CommandStage, Run};
use crate::values::Fact;
use kennel_lifecycle::{Countdown, Deadline, OnMaxPause, PausePolicy, StopReason, ladder::Ladder};

impl Run {
    /// Starts or continues the count, unless the run is paused.
    pub(super) fn count(&mut self, now: u64) {
        if self.stage == CommandStage::Ran
            && let Some(left) = &mut self.max_runtime
        {
            if self.pause.stopped_since().is_some() {
                left.stand(now);
            } else {
                left.run(now);
            }
        }
    }

    /// Begins to stop the tree when the run has reached its time limit. A stop in progress is unaffected.
    pub(super) fn keep_deadline(&mut self, now: u64) {
        if self.ladder.is_none() && self.max_runtime.is_some_and(|left| left.is_over(now)) {
            self.report(Fact::Stops(StopReason::DeadlineExceeded(
                Deadline::MaxRuntime,
            )));
            self.ladder = Some(Ladder::start(&self.policy.stop_plan(), now));
        }
    }

    /// Returns when that will be, in the present state.
    pub(super) fn deadline(&self) -> Option<u64> {
        if self.ladder.is_some() {
            return None;
        }
        let runtime = self.max_runtime.as_ref().and_then(Countdown::over_at);
        [runtime, self.pause_over_at()].into_iter().flatten().min()
    }

    /// Returns when the present pause reaches its maximum.
    fn pause_over_at(&self) -> Option<u64> {
        let PausePolicy { max_pause, .. } = self.policy.pause;
        let (since, max) = (self.pause.stopped_since()?, max_pause?);
        // Rounds up: a pause may last its whole maximum.
        let millis = u64::try_from(max.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX);
        Some(since.saturating_add(millis))
    }

    /// Applies the run's policy to a pause that is over. That all processes continue is reported when they do.
    pub(super) fn keep_max_pause(&mut self, now: u64) {
        let Some(tree) = &self.tree else { return };
        let mut expired = self.pause.try_again(tree, &self.private_dir);
        let over = self.pause_over_at().is_some_and(|at| now >= at);
        if over && self.ladder.is_none() {
            match self.policy.pause.on_max_pause {
                OnMaxPause::Resume => expired = self.pause.expire(tree, &self.private_dir),
                OnMaxPause::Abort => {
                    self.report(Fact::Stops(StopReason::DeadlineExceeded(
                        Deadline::MaxPause,
                    )));
                    self.ladder = Some(Ladder::start(&self.policy.stop_plan(), now));
                }
            }
        }
        if expired {
            self.report(Fact::PauseExpired {});
        }
    }
}
