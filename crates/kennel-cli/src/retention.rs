//! Retention of output, in words.

use crate::words;
use kennel_proto::pb;
use std::time::Duration;

/// Formats the retention of a server, on one line.
pub(crate) fn kept(kept: &pb::Retention) -> String {
    let least = time(kept.at_least).filter(|least| !least.is_zero());
    let mut words = limits(kept.runs_per_owner, least, time(kept.at_most));
    let bytes = kept.node_bytes;
    words.extend(bytes.map(|bytes| format!("at most {bytes} bytes of all runs")));
    words.join(", ")
}

/// Formats how long a server keeps records of ended runs, on one line.
pub(crate) fn records(kept: &pb::Retention) -> String {
    let least = time(kept.records_at_least);
    limits(kept.records_per_owner, least, time(kept.records_at_most)).join(", ")
}

fn time<T>(time: Option<T>) -> Option<Duration>
where
    Duration: TryFrom<T>,
{
    time.and_then(|time| Duration::try_from(time).ok())
}

fn limits(runs: Option<u32>, least: Option<Duration>, most: Option<Duration>) -> Vec<String> {
    let mut words = match runs {
        Some(runs) => vec![format!("of the last {runs} ended runs of each owner")],
        None => vec!["of all ended runs".to_owned()],
    };
    if let (Some(least), Some(_)) = (least, runs) {
        words.push(format!("at least {least:?}"));
    }
    words.extend(most.map(|most| format!("at most {most:?}")));
    words
}

/// Formats the removal of a run's output, on one line.
pub(crate) fn removed(removal: &pb::OutputRemoval) -> String {
    let why = words::word(removal.reason().as_str_name());
    let at = removal.remove_time.map(|at| format!(" at {at}"));
    let (stdout, stderr) = (removal.stdout_bytes, removal.stderr_bytes);
    format!(
        "removed{}: {why}; {stdout} bytes of stdout, {stderr} of stderr",
        at.unwrap_or_default()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kept_and_removed_counts_are_on_one_line() {
        let mut limits = pb::Retention {
            runs_per_owner: Some(100),
            at_least: Duration::from_mins(1).try_into().ok(),
            ..pb::Retention::default()
        };
        assert_eq!(
            kept(&limits),
            "of the last 100 ended runs of each owner, at least 60s"
        );
        limits.runs_per_owner = None;
        limits.at_most = Duration::from_secs(5).try_into().ok();
        limits.node_bytes = Some(9);
        assert_eq!(
            kept(&limits),
            "of all ended runs, at most 5s, at most 9 bytes of all runs"
        );
        let removal = pb::OutputRemoval {
            reason: pb::OutputRemovalReason::Age.into(),
            stdout_bytes: 5,
            ..pb::OutputRemoval::default()
        };
        let reported = "removed: it was too old; 5 bytes of stdout, 0 of stderr";
        assert_eq!(removed(&removal), reported);
    }
}
