//! Time that runs have been without a server that serves, except for the keeper's own waiting.
//!
//! The clock runs from the loss of a server, while that one ends and while each next one is given its chance. It stands
//! still while the keeper waits between two starts. A start that failed counts for [`CHANCE_MIN_MS`] at least, so that
//! servers that fail at once do not keep runs without a server for ever: each second on the clock costs at most one
//! start, and the keeper waits no longer than its longest pause before each.

/// A start that failed counts for at least this long.
const CHANCE_MIN_MS: u64 = 1_000;

/// Time without a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct OrphanClock {
    /// Time counted before the clock was last started.
    counted: u64,
    state: ClockState,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ClockState {
    /// The clock runs since then, and counts at least that much.
    Runs { since: u64, least: u64 },
    /// The keeper waits.
    Stands,
}

impl OrphanClock {
    /// Starts the clock: a server was lost, and is not reaped yet.
    pub(super) fn of_loss(now: u64) -> Self {
        let state = ClockState::Runs {
            since: now,
            least: 0,
        };
        Self { counted: 0, state }
    }

    /// Continues the clock: the next server has been started.
    pub(super) fn server_started(&mut self, now: u64) {
        self.stop(now);
        self.state = ClockState::Runs {
            since: now,
            least: CHANCE_MIN_MS,
        };
    }

    /// Stops the clock: the keeper waits before it starts the next server.
    pub(super) fn keeper_waits(&mut self, now: u64) {
        self.stop(now);
    }

    /// Returns when so much has been counted, if the clock runs on; absent: it stops before that.
    pub(super) fn reaches_at(&self, ttl: u64) -> Option<u64> {
        let left = ttl.saturating_sub(self.counted);
        match self.state {
            ClockState::Runs { since, .. } => Some(since.saturating_add(left)),
            ClockState::Stands => (left == 0).then_some(0),
        }
    }

    fn stop(&mut self, now: u64) {
        if let ClockState::Runs { since, least } = self.state {
            let ran = now.saturating_sub(since).max(least);
            self.counted = self.counted.saturating_add(ran);
        }
        self.state = ClockState::Stands;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // promise: R-11a
    #[test]
    fn orphan_ttl_excludes_keeper_restart_delays() {
        let mut clock = OrphanClock::of_loss(1_000);
        assert_eq!(clock.reaches_at(5_000), Some(6_000));
        clock.keeper_waits(1_500);
        assert_eq!(clock.reaches_at(5_000), None, "500 ms are counted");
        clock.server_started(100_000);
        assert_eq!(clock.reaches_at(5_000), Some(104_500));
        clock.keeper_waits(103_000);
        clock.server_started(200_000);
        assert_eq!(clock.reaches_at(5_000), Some(201_500));
    }

    // promise: R-11a
    #[test]
    fn orphan_ttl_counts_runtime_of_failing_servers() {
        let mut clock = OrphanClock::of_loss(0);
        clock.keeper_waits(0);
        let mut starts = 0;
        let mut now = 0;
        while clock.reaches_at(30_000).is_none() {
            now += 5_000;
            clock.server_started(now);
            clock.keeper_waits(now);
            starts += 1;
        }
        assert_eq!(starts, 30);
    }

    #[test]
    fn zero_orphan_ttl_expires_when_server_is_lost() {
        let mut clock = OrphanClock::of_loss(7);
        assert_eq!(clock.reaches_at(0), Some(7));
        clock.keeper_waits(7);
        assert_eq!(clock.reaches_at(0), Some(0));
    }
}
