//! Processor time that the pattern of a caller may take.

use super::TurnEnd;
use crate::base::{
    clock,
    matcher::{GaveUp, LineMatch, LineMatcher, LineTests, Scratch},
};
use kennel_lifecycle::RuleOff;
use kennel_linux::clock::thread_time;
use std::time::Duration;
use tokio::time::Instant;

/// Processor time of one test.
const TEST_TIME_MAX: Duration = Duration::from_millis(100);
/// Time for which the share of a pattern is counted.
const SHARE_PERIOD: Duration = Duration::from_secs(10);
/// Processor time of a pattern in that time: a tenth of a processor.
const SHARE_TIME_MAX: Duration = Duration::from_secs(1);
/// Time of a byte that does not count: any pattern takes it, and a command may write much.
const FREE_NANOS_PER_BYTE: u64 = 50;

/// A pattern, and the processor time that its tests have taken.
#[derive(Debug)]
pub(crate) struct MeasuredPattern {
    matcher: LineMatcher,
    allowance: Allowance,
}

/// Tests of lines by a pattern, on the thread that began them.
#[derive(Debug)]
pub(crate) struct MeasuredTests<'a> {
    tests: LineTests<'a>,
    allowance: &'a mut Allowance,
    /// Processor time of the thread after the last test.
    used: Duration,
}

/// Result of the test of a line.
#[derive(Debug)]
pub(crate) struct Tested {
    /// The match in the line, if there is one.
    pub(crate) found: Option<LineMatch>,
    /// Reason why no more lines may be tested by this pattern.
    pub(crate) off: Option<RuleOff>,
}

/// Processor time of a pattern so far.
#[derive(Debug, Default)]
struct Allowance {
    /// Begin of the period that is being counted.
    since: Option<Instant>,
    used: Duration,
}

impl MeasuredPattern {
    pub(crate) fn new(matcher: LineMatcher) -> Self {
        Self {
            matcher,
            allowance: Allowance::default(),
        }
    }

    /// Begins to test lines with the memory of this thread.
    pub(crate) fn begin<'a>(&'a mut self, scratch: &'a mut Scratch) -> MeasuredTests<'a> {
        let used = thread_time();
        MeasuredTests {
            tests: self.matcher.begin(scratch),
            allowance: &mut self.allowance,
            used,
        }
    }
}

impl MeasuredTests<'_> {
    /// Tests a line.
    pub(crate) fn test(&mut self, line: &[u8]) -> Tested {
        let tested = self.tests.test(line);
        let before = std::mem::replace(&mut self.used, thread_time());
        let taken = self.used.saturating_sub(before);
        let exceeded = self.allowance.charge(clock::instant(), line.len(), taken);
        match tested {
            Ok(found) => Tested {
                found,
                off: exceeded,
            },
            Err(GaveUp) => Tested {
                found: None,
                off: Some(RuleOff::GaveUp),
            },
        }
    }

    /// Whether the end of this turn was reached with the last test.
    pub(crate) fn has_reached(&self, end: TurnEnd) -> bool {
        end.is_before(self.used)
    }
}

impl Allowance {
    /// Counts a test. Returns the limit that is exceeded.
    fn charge(&mut self, now: Instant, bytes: usize, taken: Duration) -> Option<RuleOff> {
        let bytes = u64::try_from(bytes).unwrap_or(u64::MAX);
        let free = Duration::from_nanos(bytes.saturating_mul(FREE_NANOS_PER_BYTE));
        let taken = taken.saturating_sub(free);
        let since = *self.since.get_or_insert(now);
        if now.saturating_duration_since(since) >= SHARE_PERIOD {
            (self.since, self.used) = (Some(now), Duration::ZERO);
        }
        self.used += taken;
        if taken > TEST_TIME_MAX {
            Some(RuleOff::TestTime)
        } else if self.used > SHARE_TIME_MAX {
            Some(RuleOff::ProcessorShare)
        } else {
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slow_test_exceeds_the_allowance() {
        let mut allowance = Allowance::default();
        let now = clock::instant();
        let limit = TEST_TIME_MAX + Duration::from_nanos(1000 * FREE_NANOS_PER_BYTE);
        assert_eq!(allowance.charge(now, 1000, limit), None);
        let over = limit + Duration::from_nanos(1);
        assert_eq!(allowance.charge(now, 1000, over), Some(RuleOff::TestTime));
    }

    #[test]
    fn tenth_of_a_processor_exceeds_the_allowance() {
        let mut allowance = Allowance::default();
        let start = clock::instant();
        let mut second = |at: u64, millis: u64| {
            let now = start + Duration::from_secs(at);
            allowance.charge(now, 0, Duration::from_millis(millis))
        };
        for at in 0..100 {
            assert_eq!(second(at, 100), None, "a tenth of each second");
        }
        let charges = (100..110).map(|at| (second(at, 99), second(at, 2)));
        let off = charges.flat_map(|(first, last)| [first, last]);
        assert!(off.flatten().any(|off| off == RuleOff::ProcessorShare));
    }

    #[test]
    fn volume_is_free_of_charge() {
        let mut allowance = Allowance::default();
        let now = clock::instant();
        let bytes = 1 << 20;
        let taken = Duration::from_nanos(FREE_NANOS_PER_BYTE << 20);
        for _ in 0..1000 {
            assert_eq!(allowance.charge(now, bytes, taken), None);
        }
    }
}
