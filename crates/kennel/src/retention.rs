//! Retention of ended runs' output and rows: flags, variables, defaults.

use clap::Args;
use kennel_cli::values;
use kennel_lifecycle::{RetentionLimits, RowLimits};
use std::time::Duration;

/// Word for no limit.
const ALL: &str = "all";

#[derive(Debug, Args)]
pub(crate) struct RetentionArgs {
    /// Number of ended runs of one owner that keep their output, or all [default: 100]
    #[arg(id = "retain_runs", long = "retain-runs", value_name = "N", value_parser = runs)]
    runs: Option<Limit<u32>>,
    /// Time after its end that a run keeps its output in any case [default: 60s]
    #[arg(id = "retain_at_least", long = "retain-at-least", value_name = "DURATION", value_parser = values::duration)]
    at_least: Option<Duration>,
    /// Longest time after its end that a run keeps its output, or all [default: all]
    #[arg(id = "retain_at_most", long = "retain-at-most", value_name = "DURATION", value_parser = at_most)]
    at_most: Option<Limit<Duration>>,
    /// Size of the output of all runs, or all: beyond it, output of the runs that ended first is removed [default:
    /// all]
    #[arg(id = "retain_bytes", long = "retain-bytes", value_name = "SIZE", value_parser = bytes)]
    bytes: Option<Limit<u64>>,
    /// Number of ended runs of one owner that keep their record, or all [default: 10000]
    #[arg(id = "retain_rows", long = "retain-rows", value_name = "N", value_parser = runs)]
    rows: Option<Limit<u32>>,
    /// Longest time after its end that a run keeps its record, or all [default: 720h]
    #[arg(id = "retain_rows_age", long = "retain-rows-age", value_name = "DURATION", value_parser = at_most)]
    rows_age: Option<Limit<Duration>>,
    /// Time after its end that a run keeps its record however many have ended since [default: 24h]
    #[arg(id = "retain_rows_min", long = "retain-rows-min", value_name = "DURATION", value_parser = values::duration)]
    rows_min: Option<Duration>,
    /// Greatest age of an id with which a Spawn makes a run; the same for all nodes of a database [default: 168h]
    #[arg(id = "id_horizon", long = "id-horizon", value_name = "DURATION", value_parser = values::duration)]
    id_horizon: Option<Duration>,
}

/// A limit, or none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Limit<T>(Option<T>);

impl<T> Limit<T> {
    fn read(text: &str, read: impl FnOnce(&str) -> Result<T, String>) -> Result<Self, String> {
        match text {
            ALL => Ok(Self(None)),
            text => read(text).map(|most| Self(Some(most))),
        }
    }
}

fn runs(text: &str) -> Result<Limit<u32>, String> {
    Limit::read(text, |text| {
        let number = text.parse();
        number.map_err(|_| format!("{text:?} is neither a number of runs nor {ALL}"))
    })
}

fn at_most(text: &str) -> Result<Limit<Duration>, String> {
    Limit::read(text, values::duration)
}

fn bytes(text: &str) -> Result<Limit<u64>, String> {
    Limit::read(text, values::bytes)
}

impl RetentionArgs {
    /// Returns the limits in force.
    pub(crate) fn resolve(&self) -> RetentionLimits {
        let default = RetentionLimits::default();
        RetentionLimits {
            runs_per_owner: self.runs.map_or(default.runs_per_owner, |limit| limit.0),
            at_least: self.at_least.unwrap_or(default.at_least),
            at_most: self.at_most.map_or(default.at_most, |limit| limit.0),
            node_bytes: self.bytes.map_or(default.node_bytes, |limit| limit.0),
        }
    }

    /// Returns the limits of rows in force.
    pub(crate) fn resolve_rows(&self) -> RowLimits {
        let default = RowLimits::default();
        RowLimits {
            per_owner: self.rows.map_or(default.per_owner, |limit| limit.0),
            at_least: self.rows_min.unwrap_or(default.at_least),
            at_most: self.rows_age.map_or(default.at_most, |limit| limit.0),
            ids: self.id_horizon.unwrap_or(default.ids),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{ServeArgs, command};
    use kennel_client::Surroundings;

    fn given(words: &[&str], env: &[(&str, &str)]) -> Result<RetentionArgs, String> {
        let words = [&["kennel", "serve"], words].concat();
        let typed = command().try_get_matches_from(words);
        let typed = typed.map_err(|error| error.to_string())?;
        let (_, typed) = typed.subcommand().expect("serve");
        let flags = ServeArgs::completed(typed, &Surroundings::of(env));
        let flags = flags.map_err(|failure| failure.to_string())?;
        Ok(flags.retention)
    }

    fn resolved(words: &[&str], env: &[(&str, &str)]) -> Result<RetentionLimits, String> {
        given(words, env).map(|limits| limits.resolve())
    }

    #[test]
    fn row_limits_come_from_flag_variable_or_default() {
        let rows = |words, env| given(words, env).map(|limits| limits.resolve_rows());
        assert_eq!(rows(&[], &[]), Ok(RowLimits::default()));
        let env = [
            ("KENNEL_RETAIN_ROWS", "7"),
            ("KENNEL_RETAIN_ROWS_AGE", "2h"),
            ("KENNEL_RETAIN_ROWS_MIN", "0s"),
            ("KENNEL_ID_HORIZON", "1h"),
        ];
        let wanted = RowLimits {
            per_owner: None,
            at_least: Duration::ZERO,
            at_most: Some(Duration::from_hours(2)),
            ids: Duration::from_hours(1),
        };
        assert_eq!(rows(&["--retain-rows", "all"], &env), Ok(wanted));
    }

    #[test]
    fn retention_limits_come_from_flag_variable_or_default() {
        assert_eq!(resolved(&[], &[]), Ok(RetentionLimits::default()));
        let env = [
            ("KENNEL_RETAIN_RUNS", "7"),
            ("KENNEL_RETAIN_AT_LEAST", "0s"),
            ("KENNEL_RETAIN_AT_MOST", "2h"),
            ("KENNEL_RETAIN_BYTES", "3G"),
        ];
        let mut wanted = RetentionLimits {
            runs_per_owner: Some(7),
            at_least: Duration::ZERO,
            at_most: Some(Duration::from_hours(2)),
            node_bytes: Some(3 << 30),
        };
        assert_eq!(resolved(&[], &env), Ok(wanted));
        let flags = ["--retain-runs", "all", "--retain-bytes", "1M"];
        wanted.runs_per_owner = None;
        wanted.node_bytes = Some(1 << 20);
        assert_eq!(resolved(&flags, &env), Ok(wanted));
        for (name, value) in [
            ("KENNEL_RETAIN_RUNS", "-1"),
            ("KENNEL_RETAIN_AT_LEAST", "all"),
            ("KENNEL_RETAIN_AT_MOST", "soon"),
            ("KENNEL_RETAIN_BYTES", "much"),
        ] {
            let refused = resolved(&[], &[(name, value)]).expect_err(value);
            assert!(refused.contains(name), "{refused}");
        }
    }
}
