//! Processor time that patterns of a caller may take.

use super::owner_threads::TurnEnd;
use crate::base::{
    clock,
    matcher::{GaveUp, LineMatch, LineMatcher, LineTests, Scratch},
};
use kennel_lifecycle::RuleOff;
use kennel_linux::clock::thread_time;
use std::{collections::BTreeMap, time::Duration};
use tokio::time::Instant;

/// Processor time of one test.
const TEST_TIME_MAX: Duration = Duration::from_millis(100);
/// Time for which the share of the patterns is counted.
const SHARE_PERIOD: Duration = Duration::from_secs(10);
/// Processor time of all patterns in that time: a tenth of a processor.
const SHARE_TIME_MAX: Duration = Duration::from_secs(1);
/// Time of a byte that does not count: any pattern takes it, and a command may write much.
const FREE_NANOS_PER_BYTE: u64 = 50;

/// Processor time that patterns have taken in the current period: those of one run, or the one of a call. They have one
/// share in sum, since they lag in sum; beyond it the dearest of them is switched off.
#[derive(Debug, Default)]
pub(crate) struct Allowance {
    /// Begin of the period that is being counted.
    since: Option<Instant>,
    /// Time of each pattern that is not switched off, by its number.
    used: BTreeMap<usize, Duration>,
}

/// Tests of lines by a pattern, on the thread that began them.
#[derive(Debug)]
pub(crate) struct MeasuredTests<'a> {
    /// Number of the pattern.
    pattern: usize,
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
    /// Number of the pattern by which no more lines may be tested, and the reason.
    pub(crate) off: Option<(usize, RuleOff)>,
}

impl MeasuredTests<'_> {
    /// Tests a line.
    pub(crate) fn test(&mut self, line: &[u8]) -> Tested {
        let tested = self.tests.test(line);
        let before = std::mem::replace(&mut self.used, thread_time());
        let taken = self.used.saturating_sub(before);
        let off = match tested {
            Ok(_) => (self.allowance).charge(self.pattern, clock::instant(), line.len(), taken),
            Err(GaveUp) => Some((self.pattern, RuleOff::GaveUp)),
        };
        if let Some((pattern, _)) = off {
            self.allowance.used.remove(&pattern);
        }
        Tested {
            found: tested.unwrap_or_default(),
            off,
        }
    }

    /// Whether the end of this turn was reached with the last test.
    pub(crate) fn has_reached(&self, end: TurnEnd) -> bool {
        end.is_before(self.used)
    }
}

impl Allowance {
    /// Begins to test lines by the pattern of this number, with the memory of this thread.
    pub(crate) fn begin<'a>(
        &'a mut self,
        pattern: usize,
        matcher: &'a LineMatcher,
        scratch: &'a mut Scratch,
    ) -> MeasuredTests<'a> {
        let used = thread_time();
        MeasuredTests {
            pattern,
            tests: matcher.begin(scratch),
            allowance: self,
            used,
        }
    }

    /// Counts a test by this pattern. Returns the pattern that is to be switched off, and the limit that is exceeded.
    fn charge(
        &mut self,
        pattern: usize,
        now: Instant,
        bytes: usize,
        taken: Duration,
    ) -> Option<(usize, RuleOff)> {
        let bytes = u64::try_from(bytes).unwrap_or(u64::MAX);
        let free = Duration::from_nanos(bytes.saturating_mul(FREE_NANOS_PER_BYTE));
        let taken = taken.saturating_sub(free);
        let since = *self.since.get_or_insert(now);
        if now.saturating_duration_since(since) >= SHARE_PERIOD {
            self.since = Some(now);
            self.used.clear();
        }
        *self.used.entry(pattern).or_default() += taken;
        if taken > TEST_TIME_MAX {
            return Some((pattern, RuleOff::TestTime));
        }
        if self.used.values().sum::<Duration>() <= SHARE_TIME_MAX {
            return None;
        }
        let (dearest, _) = self.used.iter().max_by_key(|(_, used)| **used)?;
        Some((*dearest, RuleOff::ProcessorShare))
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
        assert_eq!(allowance.charge(3, now, 1000, limit), None);
        let over = limit + Duration::from_nanos(1);
        let off = Some((3, RuleOff::TestTime));
        assert_eq!(allowance.charge(3, now, 1000, over), off);
    }

    // promise: RW-5c
    #[test]
    fn tenth_of_a_cpu_exceeds_the_allowance() {
        let mut allowance = Allowance::default();
        let start = clock::instant();
        let mut second = |at: u64, millis: u64| {
            let now = start + Duration::from_secs(at);
            allowance.charge(0, now, 0, Duration::from_millis(millis))
        };
        for at in 0..100 {
            assert_eq!(second(at, 100), None, "a tenth of each second");
        }
        let charges = (100..110).map(|at| (second(at, 99), second(at, 2)));
        let mut off = charges.flat_map(|(first, last)| [first, last]).flatten();
        assert_eq!(off.next(), Some((0, RuleOff::ProcessorShare)));
    }

    // promise: RW-5c
    #[test]
    fn rules_of_run_share_a_tenth_of_cpu() {
        let mut allowance = Allowance::default();
        let start = clock::instant();
        let mut off = Vec::new();
        for (second, pattern) in (0..20).flat_map(|at| (0..16).map(move |pattern| (at, pattern))) {
            if off.contains(&pattern) {
                continue;
            }
            // Each pattern takes a fiftieth of a processor, and pattern 7 three times that.
            let taken = Duration::from_millis(if pattern == 7 { 60 } else { 20 });
            let now = start + Duration::from_secs(second);
            if let Some((dearest, reason)) = allowance.charge(pattern, now, 0, taken) {
                assert_eq!(reason, RuleOff::ProcessorShare);
                allowance.used.remove(&dearest);
                off.push(dearest);
            }
        }
        assert_eq!((off[0], off.len()), (7, 11), "five have a tenth: {off:?}");
    }

    // promise: RW-5d
    #[test]
    fn output_volume_does_not_use_up_allowance() {
        let mut allowance = Allowance::default();
        let now = clock::instant();
        let bytes = 1 << 20;
        let taken = Duration::from_nanos(FREE_NANOS_PER_BYTE << 20);
        for _ in 0..1000 {
            assert_eq!(allowance.charge(0, now, bytes, taken), None);
        }
    }
}
