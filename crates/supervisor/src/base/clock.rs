//! The only module that reads the clock, and points in time as text.

use kennel_lifecycle::Timestamp;
/// Wall-clock time now. A clock set before 1970 reads as 1970.
pub(crate) use kennel_linux::clock::wall as now;
use kennel_linux::{clock::since_boot, own_file};
use serde::{Deserialize, Serialize};
use std::{
    path::Path,
    time::{Duration, UNIX_EPOCH},
};
use tokio::time::Instant;

/// Last microsecond of the year 9999, the last that has a form.
const LAST_MICROS: u64 = 253_402_300_799_999_999;
/// The file with the settings of the clock, in the data directory.
const FILE: &str = "clock";
/// Most settings that are retained.
const SETTINGS_MAX: usize = 16;
/// A smaller difference is no other setting: two clocks are read, one after the other.
const READS_US: u64 = 100_000;

/// Now on the clock of the runtime's timers, which only goes forward.
pub(crate) fn instant() -> Instant {
    Instant::now()
}

/// Formats a time as RFC 3339 has it, in UTC.
pub(crate) fn rfc3339(at: Timestamp) -> String {
    let micros = u64::try_from(at.0).unwrap_or(0).min(LAST_MICROS);
    let since = Duration::from_micros(micros);
    humantime::format_rfc3339_millis(UNIX_EPOCH + since).to_string()
}

/// The wall clock as it is set from some time on.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct ClockSetting {
    /// Time at which it was read, since the host's boot.
    seen_us: i64,
    /// Difference to the time since the host's boot.
    ahead_us: i64,
}

impl ClockSetting {
    fn now() -> Self {
        let seen_us = i64::try_from(since_boot().as_micros()).unwrap_or(i64::MAX);
        let ahead_us = now().0.saturating_sub(seen_us);
        Self { seen_us, ahead_us }
    }
}

/// Settings of the wall clock in this boot of the host, one for each server that found another one. Rows and files of
/// earlier servers have times of the wall clock, which may have been set since.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct ClockSettings {
    boot_id: String,
    settings: Vec<ClockSetting>,
}

impl ClockSettings {
    /// Reads the settings, and adds the current one if it is another. A file that cannot be read is replaced.
    pub(crate) fn open(data_dir: &Path, boot_id: &str) -> Self {
        let path = data_dir.join(FILE);
        let read = own_file::read_to_string(&path).ok();
        let read = read.and_then(|text| serde_json::from_str::<Self>(&text).ok());
        let mut read = read.unwrap_or_default();
        if read.boot_id != boot_id {
            (read.boot_id, read.settings) = (boot_id.to_owned(), Vec::new());
        }
        let now = ClockSetting::now();
        let last = read.settings.last();
        if last.is_none_or(|last| last.ahead_us.abs_diff(now.ahead_us) > READS_US) {
            read.settings.push(now);
            let excess = read.settings.len().saturating_sub(SETTINGS_MAX);
            read.settings.drain(..excess);
            let written = serde_json::to_vec(&read).map_err(std::io::Error::other);
            if let Err(error) = written.and_then(|bytes| own_file::replace(&path, &bytes)) {
                tracing::warn!(%error, "cannot record the setting of the clock: later servers cannot see whether it was set");
            }
        }
        read
    }

    /// Returns the present on the wall clock as it was set at `at`, so that differences to times of then do not depend
    /// on later settings; `at` itself where no setting fits it.
    pub(crate) fn now_as_of(&self, at: Timestamp) -> Timestamp {
        at.plus(self.passed(at))
    }

    /// Returns the time between two readings of the wall clock, whatever was done to it; zero where `to` is not the
    /// later one.
    pub(crate) fn between(&self, from: Timestamp, to: Timestamp) -> Duration {
        self.passed(from).saturating_sub(self.passed(to))
    }

    /// Returns a time that was reckoned from `from` as the wall clock as it is set now will show it; to a second, so
    /// that it does not change with each reading, between two of which the host may run others.
    pub(crate) fn reckoned(&self, from: Timestamp, to: Timestamp) -> Timestamp {
        const SECOND_US: i64 = 1_000_000;
        let set_by = now().0.saturating_sub(self.now_as_of(from).0);
        Timestamp(to.0.saturating_add(set_by / SECOND_US * SECOND_US))
    }

    /// Returns a time before which the wall clock showed only times that are at least so old, by each of its settings
    /// since then.
    pub(crate) fn before(&self, age: Duration) -> Timestamp {
        let now = ClockSetting::now();
        let micros = i64::try_from(age.as_micros()).unwrap_or(i64::MAX);
        let then_us = now.seen_us.saturating_sub(micros);
        let nexts = self.settings.iter().skip(1).chain([&now]);
        let recent = (self.settings.iter().zip(nexts)).filter(|(_, next)| next.seen_us > then_us);
        let aheads = recent.map(|(setting, _)| setting.ahead_us);
        Timestamp(then_us.saturating_add(aheads.fold(now.ahead_us, i64::min)))
    }

    /// Returns the time that has passed since the wall clock showed `at`.
    fn passed(&self, at: Timestamp) -> Duration {
        let now = ClockSetting::now();
        let ends = self.settings.iter().skip(1).map(|next| next.seen_us);
        let ends = ends.chain([now.seen_us, now.seen_us]);
        let settings = self.settings.iter().chain([&now]).zip(ends);
        // A clock setting that ended before `at` was not in force at `at`.
        let passed = settings.filter_map(|(setting, end)| {
            let seen_us = at.0.saturating_sub(setting.ahead_us);
            (seen_us <= end.saturating_add_unsigned(READS_US))
                .then(|| now.seen_us.saturating_sub(seen_us))
        });
        let passed = passed.min().unwrap_or(0).max(0);
        Duration::from_micros(passed.unsigned_abs())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR_US: i64 = 3_600_000_000;

    /// Reads the settings as a server does that finds the clock set by so much.
    fn server_at(dir: &Path, ahead_us: i64) -> ClockSettings {
        kennel_linux::clock::AHEAD.set(ahead_us);
        ClockSettings::open(dir, "boot")
    }

    // promise: R-14d
    #[test]
    fn timestamps_keep_their_age_after_clock_changes() {
        let dir = tempfile::tempdir().expect("a directory");
        server_at(dir.path(), 0);
        let at = now().minus(Duration::from_mins(1));
        for ahead in [HOUR_US, -HOUR_US, 5 * HOUR_US, 0] {
            let clock = server_at(dir.path(), ahead);
            let age = clock.now_as_of(at).since(at).as_secs();
            assert!((59..70).contains(&age), "{ahead}: {age}");
            // The running server's clock changes.
            kennel_linux::clock::AHEAD.set(ahead + HOUR_US);
            let age = clock.now_as_of(at).since(at).as_secs();
            assert!((59..70).contains(&age), "{ahead}: {age}");
        }
    }

    // promise: R-14b
    #[test]
    fn elapsed_time_excludes_clock_changes() {
        for ahead in [HOUR_US, -HOUR_US] {
            let dir = tempfile::tempdir().expect("a directory");
            let clock = server_at(dir.path(), 0);
            let from = now().minus(Duration::from_mins(1));
            // The clock changes while this server runs; the next server reads it.
            kennel_linux::clock::AHEAD.set(ahead);
            let to = now().minus(Duration::from_secs(20));
            for clock in [clock, server_at(dir.path(), ahead)] {
                let between = clock.between(from, to).as_secs();
                assert!((39..50).contains(&between), "{ahead}: {between}");
                assert_eq!(clock.between(to, from), Duration::ZERO);
            }
        }
    }

    // promise: R-14b
    #[test]
    fn deadline_conversion_follows_clock_changes() {
        let dir = tempfile::tempdir().expect("a directory");
        let clock = server_at(dir.path(), 0);
        let (age, from) = (
            Duration::from_secs(20),
            now().minus(Duration::from_secs(30)),
        );
        let end = from.plus(Duration::from_mins(1));
        assert_eq!(clock.reckoned(from, end), end);
        for ahead in [HOUR_US, -HOUR_US] {
            // The clock changes while this server runs; the next server reads it.
            kennel_linux::clock::AHEAD.set(ahead);
            for clock in [clock.clone(), server_at(dir.path(), ahead)] {
                let left = clock.reckoned(from, end).0 - now().0;
                assert!((20_000_000..31_000_000).contains(&left), "{ahead}: {left}");
                // Under either setting no younger time is before the result; under the setting ahead the oldest are.
                let before = clock.before(age).0;
                let least = from.0.min(now().0);
                assert!(
                    before < least + 11_000_000 && before > least - 30_000_000,
                    "{ahead}"
                );
            }
        }
    }

    // promise: R-14d
    #[test]
    fn recorded_clock_changes_are_bounded_per_boot() {
        let dir = tempfile::tempdir().expect("a directory");
        for hour in 0..40 {
            server_at(dir.path(), hour * HOUR_US);
        }
        let same = server_at(dir.path(), 39 * HOUR_US).settings.len();
        assert_eq!(same, SETTINGS_MAX);
        std::fs::write(dir.path().join(FILE), "torn").expect("written");
        assert_eq!(server_at(dir.path(), 0).settings.len(), 1);
        let other = ClockSettings::open(dir.path(), "another");
        assert_eq!(other.settings.len(), 1);
    }
}
