//! A countdown counts only unpaused time.

use kennel_lifecycle::Countdown;
use proptest::prelude::*;
use std::time::Duration;

#[test]
fn stopped_countdown_does_not_advance() {
    let mut left = Countdown::new(Duration::from_millis(100));
    assert_eq!(left.over_at(), None);
    assert!(!left.is_over(u64::MAX));
    left.run(1_000);
    assert_eq!(left.over_at(), Some(1_100));
    left.stand(1_060);
    assert!(!left.is_over(9_000_000));
    left.run(9_000_000);
    assert!(!left.is_over(9_000_039) && left.is_over(9_000_040));
}

#[test]
fn starting_a_running_countdown_has_no_effect() {
    let mut left = Countdown::new(Duration::from_millis(100));
    left.run(0);
    left.run(50);
    assert_eq!(left.over_at(), Some(100));
}

#[test]
fn extension_after_expiry_counts_from_now() {
    let mut left = Countdown::new(Duration::from_millis(100));
    left.run(0);
    left.extend(50, 60);
    assert_eq!(left.over_at(), Some(150));
    left.extend(50, 1_000);
    assert_eq!(left.over_at(), Some(1_050));
}

#[test]
fn the_longest_countdown_never_ends_early() {
    let mut left = Countdown::new(Duration::MAX);
    left.run(u64::MAX - 1);
    assert_eq!(left.over_at(), Some(u64::MAX));
}

proptest! {
    /// A run gets its whole time, however it is paused.
    // promise: TM-3
    #[test]
    fn paused_time_does_not_count(
        limit in 0u64..5_000,
        spans in prop::collection::vec((0u64..1_000, 0u64..1_000), 0..12),
    ) {
        let mut left = Countdown::new(Duration::from_millis(limit));
        let (mut now, mut counted) = (7u64, 0u64);
        for (runs, stands) in spans {
            left.run(now);
            prop_assert_eq!(left.over_at(), Some(now + limit.saturating_sub(counted)));
            now += runs;
            counted += runs;
            prop_assert_eq!(left.is_over(now), counted >= limit);
            left.stand(now);
            now += stands;
            prop_assert_eq!(left.over_at(), None);
        }
    }
}
