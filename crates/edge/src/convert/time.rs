//! Points in time and durations.

use kennel_lifecycle::{Timestamp, Violation};
use std::{ops::RangeInclusive, time::Duration};

const MICROS_PER_SEC: i64 = 1_000_000;
const NANOS_PER_MICRO: i32 = 1000;
const NANOS_PER_SEC: u32 = 1_000_000_000;
/// Longest `google.protobuf.Duration`, in seconds: about 10,000 years.
const DURATION_SECS_MAX: u64 = 315_576_000_000;
/// Seconds of a `google.protobuf.Timestamp`: 0001-01-01T00:00:00Z to 9999-12-31T23:59:59Z.
const TIMESTAMP_SECS: RangeInclusive<i64> = -62_135_596_800..=253_402_300_799;

pub(crate) fn timestamp(at: Timestamp) -> prost_types::Timestamp {
    let micros = i32::try_from(at.0.rem_euclid(MICROS_PER_SEC)).expect("less than a million");
    prost_types::Timestamp {
        seconds: at.0.div_euclid(MICROS_PER_SEC),
        nanos: micros * NANOS_PER_MICRO,
    }
}

/// Returns when the next attempt begins; absent: when a client asks for it.
pub(crate) fn next_restart(at: Timestamp) -> Option<prost_types::Timestamp> {
    (at != Timestamp::NEVER).then(|| timestamp(at))
}

/// Returns the duration from `base` to `at`; negative where the clock was set back.
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

/// Parses the duration of a client. Each field has a bound of its own beside that of the type.
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
    if seconds > DURATION_SECS_MAX {
        let most = format!("must be at most {DURATION_SECS_MAX} seconds");
        found.push(Violation::new(field, most));
        return None;
    }
    Some(Duration::new(seconds, nanos))
}

/// Parses the point in time of a client.
pub(crate) fn parse_timestamp(
    field: &str,
    at: Option<&prost_types::Timestamp>,
    found: &mut Vec<Violation>,
) -> Option<Timestamp> {
    let at = at?;
    let nanos = u32::try_from(at.nanos).ok().filter(|n| *n < NANOS_PER_SEC);
    let (true, Some(nanos)) = (TIMESTAMP_SECS.contains(&at.seconds), nanos) else {
        let why = "is not a valid time: years 0001 to 9999, nanos 0 to 999999999";
        found.push(Violation::new(field, why));
        return None;
    };
    let micros = nanos / NANOS_PER_MICRO.unsigned_abs();
    Some(Timestamp(at.seconds * MICROS_PER_SEC + i64::from(micros)))
}

/// Formats a client's duration as it was given.
pub(crate) fn text(span: &prost_types::Duration) -> String {
    // The type's Display fails for the smallest number of seconds.
    match span.nanos {
        0 => format!("{}s", span.seconds),
        nanos => format!("{}s {nanos}ns", span.seconds),
    }
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
    fn clock_set_back_gives_a_negative_delta() {
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

    // promise: A-18
    #[test]
    fn negative_and_malformed_durations_are_violations() {
        for (seconds, nanos, why) in [
            (-1, 0, "must not be negative"),
            (0, -1, "must not be negative"),
            (1, -1, "is not a valid duration"),
            (0, 1_000_000_000, "is not a valid duration"),
            (0, i32::MIN, "is not a valid duration"),
            (i64::MIN, 0, "must not be negative"),
            (315_576_000_001, 0, "must be at most 315576000000 seconds"),
            (
                i64::MAX,
                999_999_999,
                "must be at most 315576000000 seconds",
            ),
        ] {
            let mut found = Vec::new();
            let span = prost_types::Duration { seconds, nanos };
            assert_eq!(parse_duration("f", Some(&span), &mut found), None);
            assert_eq!(found, [Violation::new("f", why)], "{seconds} {nanos}");
        }
    }

    // promise: A-18
    #[test]
    fn timestamps_out_of_range_are_violations() {
        let parse = |seconds, nanos| {
            let mut found = Vec::new();
            let at = prost_types::Timestamp { seconds, nanos };
            let parsed = parse_timestamp("f", Some(&at), &mut found);
            assert_eq!(parsed.is_none(), found.len() == 1, "{seconds} {nanos}");
            parsed.map(|at| at.0)
        };
        assert_eq!(parse(0, 1_999), Some(1));
        assert_eq!(parse(-62_135_596_800, 0), Some(-62_135_596_800_000_000));
        let last = Some(253_402_300_799_999_999);
        assert_eq!(parse(253_402_300_799, 999_999_999), last);
        for (seconds, nanos) in [
            (-62_135_596_801, 0),
            (253_402_300_800, 0),
            (0, -1),
            (0, 1_000_000_000),
            (i64::MIN, i32::MIN),
            (i64::MAX, i32::MAX),
        ] {
            assert_eq!(parse(seconds, nanos), None, "{seconds} {nanos}");
        }
    }

    #[test]
    fn extreme_durations_are_formatted() {
        let of = |seconds, nanos| text(&prost_types::Duration { seconds, nanos });
        assert_eq!(of(5, 0), "5s");
        assert_eq!(of(1, 500_000_000), "1s 500000000ns");
        assert_eq!(
            of(i64::MIN, i32::MIN),
            "-9223372036854775808s -2147483648ns"
        );
    }
}
