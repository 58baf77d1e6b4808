//! Durations and points in time, as typed.

use kennel_proto::json;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Reads `500ms`, `90`, which is seconds, `5m`, `1h30m` or `1d`.
pub fn duration(text: &str) -> Result<Duration, String> {
    const HINT: &str =
        "write numbers with units, such as 500ms, 90s, 1h30m or 1d; a number alone is seconds";
    let text = text.trim();
    if let Ok(seconds) = text.parse::<f64>() {
        let span = Duration::try_from_secs_f64(seconds);
        return span.map_err(|_| HINT.to_owned());
    }
    humantime::parse_duration(text).map_err(|_| HINT.to_owned())
}

/// Reads a duration of at least half a second.
pub(crate) fn pace(text: &str) -> Result<Duration, String> {
    let pace = duration(text)?;
    if pace < Duration::from_millis(500) {
        return Err("it must be at least 500ms".to_owned());
    }
    Ok(pace)
}

/// Reads a point in time: how long ago, as `5m`, `-5m` or `5m ago`, `now`, `2026-01-31T08:00:00+01:00`, `2026-01-31`, `@1769846400`.
pub(crate) fn moment(text: &str) -> Result<SystemTime, String> {
    moment_at(text, SystemTime::now())
}

fn moment_at(text: &str, now: SystemTime) -> Result<SystemTime, String> {
    const HINT: &str = "write how long ago, such as 5m, or a time, such as 2026-01-31T08:00:00Z, 2026-01-31 or @1769846400";
    let text = text.trim();
    if text == "now" {
        return Ok(now);
    }
    if let Some(seconds) = text.strip_prefix('@') {
        let seconds = seconds.parse().map(Duration::from_secs);
        let at = seconds.ok().and_then(|span| UNIX_EPOCH.checked_add(span));
        return at.ok_or_else(|| HINT.to_owned());
    }
    let ago = text.strip_suffix("ago").unwrap_or(text);
    // Relative times as in journalctl(1).
    let ago = ago.strip_prefix('-').unwrap_or(ago);
    if let Ok(span) = duration(ago) {
        let at = now.checked_sub(span).unwrap_or(UNIX_EPOCH);
        // The Unix epoch precedes all records.
        return Ok(at.max(UNIX_EPOCH));
    }
    json::time(text).ok_or_else(|| HINT.to_owned())
}

/// Formats a duration, in at most two units: `340ms`, `12s`, `3m04s`, `5h12m`, `3d04h`.
pub fn age(age: Duration) -> String {
    let s = age.as_secs();
    match s {
        0 => format!("{}ms", age.as_millis()),
        1..60 => format!("{s}s"),
        60..3_600 => format!("{}m{:02}s", s / 60, s % 60),
        3_600..86_400 => format!("{}h{:02}m", s / 3_600, s % 3_600 / 60),
        _ => format!("{}d{:02}h", s / 86_400, s % 86_400 / 3_600),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn human_readable_durations_are_parsed() {
        for (text, ms) in [
            ("500ms", 500),
            ("5s", 5_000),
            ("5sec", 5_000),
            ("2m", 120_000),
            ("1h30m", 5_400_000),
            ("1h 30m", 5_400_000),
            ("1d", 86_400_000),
            ("90", 90_000),
            ("1.5", 1_500),
            ("0", 0),
            ("0s", 0),
        ] {
            assert_eq!(duration(text), Ok(Duration::from_millis(ms)), "{text:?}");
        }
    }

    #[test]
    fn malformed_durations_are_refused() {
        for text in [
            "",
            "s",
            "-5s",
            "-5",
            "5x",
            "inf",
            "NaN",
            "1e400",
            "99999999999999999999h",
            "18446744073709551615h",
        ] {
            assert!(duration(text).is_err(), "{text:?} was read as a duration");
        }
    }

    #[test]
    fn time_argument_is_relative_or_absolute() {
        let now = UNIX_EPOCH + Duration::from_hours(24);
        let at = |text: &str| {
            let at = moment_at(text, now).expect(text);
            at.duration_since(UNIX_EPOCH).expect("after 1970").as_secs()
        };
        assert_eq!(at("now"), 86_400);
        assert_eq!(at("5m"), 86_100);
        assert_eq!(at("5m ago"), 86_100);
        assert_eq!(at("-5m"), 86_100);
        assert_eq!(at("1h30m ago"), 81_000);
        assert_eq!(at("@7"), 7);
        assert_eq!(at("1970-01-01T02:00:00+01:00"), 3_600);
        assert_eq!(at("1970-01-01T01:00:00Z"), 3_600);
        assert_eq!(at("1970-01-02"), 86_400);
        assert_eq!(at("200y"), 0);
        for text in ["", "ago", "yesterday", "@x", "2026-13-01", "10:00"] {
            assert!(moment_at(text, now).is_err(), "{text:?}");
        }
    }

    #[test]
    fn ages_are_reported_in_at_most_two_units() {
        for (ms, text) in [
            (340, "340ms"),
            (12_900, "12s"),
            (184_000, "3m04s"),
            (18_720_000, "5h12m"),
            (273_600_000, "3d04h"),
        ] {
            assert_eq!(age(Duration::from_millis(ms)), text);
        }
    }
}
