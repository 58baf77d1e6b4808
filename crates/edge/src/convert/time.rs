//! Points in time and spans of it.

use kennel_lifecycle::{Timestamp, Violation};
use std::time::Duration;

const MICROS_PER_SEC: i64 = 1_000_000;
const NANOS_PER_MICRO: i32 = 1000;
const NANOS_PER_SEC: u32 = 1_000_000_000;

pub(crate) fn timestamp(at: Timestamp) -> prost_types::Timestamp {
    let micros = i32::try_from(at.0.rem_euclid(MICROS_PER_SEC)).expect("less than a million");
    prost_types::Timestamp {
        seconds: at.0.div_euclid(MICROS_PER_SEC),
        nanos: micros * NANOS_PER_MICRO,
    }
}

/// From `base` to `at`; negative where the clock was set back.
pub(crate) fn between(base: Timestamp, at: Timestamp) -> prost_types::Duration {
    let micros = at.0.saturating_sub(base.0);
    let rest = i32::try_from(micros % MICROS_PER_SEC).expect("less than a million");
    prost_types::Duration {
        seconds: micros / MICROS_PER_SEC,
        nanos: rest * NANOS_PER_MICRO,
    }
}

pub(crate) fn duration(span: Duration) -> prost_types::Duration {
    prost_types::Duration {
        seconds: i64::try_from(span.as_secs()).unwrap_or(i64::MAX),
        nanos: i32::try_from(span.subsec_nanos()).expect("less than a billion"),
    }
}

/// The span of time that a client gave, or what is wrong with it.
pub(crate) fn parse_duration(
    field: &str,
    span: Option<&prost_types::Duration>,
    found: &mut Vec<Violation>,
) -> Option<Duration> {
    let span = span?;
    let signs_differ = (span.seconds > 0 && span.nanos < 0) || (span.seconds < 0 && span.nanos > 0);
    if signs_differ || span.nanos.unsigned_abs() >= NANOS_PER_SEC {
        found.push(Violation::new(field, "is not a valid duration"));
        return None;
    }
    let (Ok(seconds), Ok(nanos)) = (u64::try_from(span.seconds), u32::try_from(span.nanos)) else {
        found.push(Violation::new(field, "must not be negative"));
        return None;
    };
    Some(Duration::new(seconds, nanos))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_before_1970_have_positive_nanos() {
        let early = timestamp(Timestamp(-1));
        assert_eq!((early.seconds, early.nanos), (-1, 999_999_000));
        let late = timestamp(Timestamp(1_700_000_000_123_456));
        assert_eq!((late.seconds, late.nanos), (1_700_000_000, 123_456_000));
    }

    #[test]
    fn a_clock_that_was_set_back_gives_a_negative_delta() {
        let delta = between(Timestamp(5_000_000), Timestamp(3_500_000));
        assert_eq!((delta.seconds, delta.nanos), (-1, -500_000_000));
    }

    #[test]
    fn durations_round_trip() {
        for span in [
            Duration::ZERO,
            Duration::from_nanos(1),
            Duration::new(86_400, 999_999_999),
        ] {
            let mut found = Vec::new();
            assert_eq!(
                parse_duration("f", Some(&duration(span)), &mut found),
                Some(span)
            );
            assert!(found.is_empty());
        }
        assert_eq!(parse_duration("f", None, &mut Vec::new()), None);
    }

    #[test]
    fn negative_and_malformed_durations_are_violations() {
        for (seconds, nanos, why) in [
            (-1, 0, "must not be negative"),
            (0, -1, "must not be negative"),
            (1, -1, "is not a valid duration"),
            (0, 1_000_000_000, "is not a valid duration"),
            (0, i32::MIN, "is not a valid duration"),
        ] {
            let mut found = Vec::new();
            let span = prost_types::Duration { seconds, nanos };
            assert_eq!(parse_duration("f", Some(&span), &mut found), None);
            assert_eq!(found, [Violation::new("f", why)], "{seconds} {nanos}");
        }
    }
}
