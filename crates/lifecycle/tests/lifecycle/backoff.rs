//! Delays of retries: drawn from their whole range, whose bound doubles.

use kennel_lifecycle::Backoff;
use std::time::Duration;

const BACKOFF: Backoff = Backoff::up_to(Duration::from_millis(100), Duration::from_millis(500));
/// Bounds of successive delays, in milliseconds.
const BOUNDS_MS: [u64; 6] = [100, 200, 400, 500, 500, 500];
const SERIES: u32 = 2_000;

// promise: R-65
#[test]
fn backoff_delays_spread_below_doubling_bound() {
    for (nth, bound) in BOUNDS_MS.into_iter().enumerate() {
        let bound = Duration::from_millis(bound);
        let delays = (0..SERIES).map(|seed| {
            let mut retries = BACKOFF.retries(seed);
            for _ in 0..nth {
                retries.next_delay();
            }
            retries.next_delay()
        });
        let delays: Vec<Duration> = delays.collect();
        let mean = delays.iter().sum::<Duration>() / SERIES;
        assert!(delays.iter().all(|delay| *delay <= bound));
        assert!(delays.iter().any(|delay| *delay < bound / 100));
        assert!(delays.iter().any(|delay| *delay > bound / 100 * 99));
        assert!(mean > bound * 9 / 20 && mean < bound * 11 / 20, "{mean:?}");
    }
}

#[test]
fn success_resets_the_backoff() {
    let mut first = Duration::ZERO;
    for seed in 0..SERIES {
        let mut retries = BACKOFF.retries(seed);
        for _ in 0..10 {
            retries.next_delay();
        }
        retries.reset();
        first = first.max(retries.next_delay());
    }
    assert!(first <= Duration::from_millis(100), "{first:?}");
}

#[test]
fn backoff_delays_depend_on_the_seed() {
    let delays = |seed: &str| {
        let mut retries = BACKOFF.retries(seed);
        [(); 3].map(|()| retries.next_delay())
    };
    assert_eq!(delays("one"), delays("one"));
    assert_ne!(delays("one"), delays("other"));
}

// promise: R-65
#[test]
fn requested_delay_is_a_lower_bound() {
    let least = Duration::from_secs(2);
    let mut retries = BACKOFF.retries("any");
    let delays: Vec<Duration> = (0..SERIES)
        .map(|_| retries.next_delay_after(least))
        .collect();
    assert!(
        delays
            .iter()
            .all(|delay| *delay >= least && *delay <= least * 2)
    );
    assert!(delays.iter().any(|delay| *delay > least * 19 / 10));
    assert!(retries.next_delay() <= Duration::from_millis(100));
}

#[test]
fn longest_backoff_does_not_overflow() {
    let mut retries = Backoff::up_to(Duration::ZERO, Duration::MAX).retries(0);
    assert_eq!(retries.next_delay(), Duration::ZERO);
    assert!(retries.next_delay_after(Duration::MAX) == Duration::MAX);
}
