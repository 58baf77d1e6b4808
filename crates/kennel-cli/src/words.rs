//! Texts for the contract's enums and unions, for people.

use kennel_proto::pb;
use std::{collections::HashMap, sync::LazyLock, time::Duration};

/// Words for the values of enums, by their names in the contract; none where there is nothing to say.
static WORDS: LazyLock<HashMap<&str, &str>> = LazyLock::new(|| by_name(include_str!("words.txt")));

/// Returns the texts of lines `NAME TEXT` by their names; `#` begins a comment.
pub(crate) fn by_name(lines: &'static str) -> HashMap<&'static str, &'static str> {
    let split = |line: &'static str| line.split_once(' ').unwrap_or((line, ""));
    let lines = lines.lines().filter(|line| !line.starts_with('#'));
    lines.map(split).collect()
}

/// Stands for what a later contract has.
pub(crate) const UNKNOWN: &str = "unknown to this version of kennel";

/// Returns the words for a value of an enum.
pub(crate) fn word(name: &str) -> &'static str {
    WORDS.get(name).copied().unwrap_or(UNKNOWN)
}

/// Formats `1000:100`, and the supplementary groups.
pub(crate) fn user(user: &pb::RunUser) -> String {
    let group = user.group_id.unwrap_or(user.user_id);
    let groups = user
        .supplementary_group_ids
        .iter()
        .map(|id| format!(" +{id}"));
    format!("{}:{group}{}", user.user_id, groups.collect::<String>())
}

/// Returns the state as the contract spells it, without prefix: `RUNNING`.
pub(crate) fn state(state: pb::RunState) -> String {
    let name = state.as_str_name();
    name.strip_prefix("RUN_STATE_").unwrap_or(name).to_owned()
}

/// Returns whether a reader uses a consumer's name.
pub(crate) fn consumer_state(state: pb::ConsumerState) -> String {
    bare(state.as_str_name(), "CONSUMER_STATE_")
}

/// Returns whether a node has reported lately.
pub(crate) fn reachability(reachability: pb::NodeReachability) -> String {
    bare(reachability.as_str_name(), "NODE_REACHABILITY_")
}

/// Returns a time in whole milliseconds.
pub(crate) fn millis(time: impl TryInto<Duration>) -> Option<Duration> {
    let time: Duration = time.try_into().ok()?;
    u64::try_from(time.as_millis())
        .ok()
        .map(Duration::from_millis)
}

pub(crate) fn kind(kind: pb::RunKind) -> String {
    bare(kind.as_str_name(), "RUN_KIND_")
}

/// Describes missing entries, and the reason.
pub(crate) fn gap(gap: &pb::Gap) -> String {
    let missing = gap.missing.iter().filter(|m| m.bytes != Some(0));
    let missing: Vec<String> = missing
        .map(|m| {
            let bytes = m
                .bytes
                .map_or("an unknown number of".into(), |n| n.to_string());
            format!("{bytes} bytes of {}", stream(m.stream()))
        })
        .collect();
    let why = word(gap.reason().as_str_name());
    let what = if missing.is_empty() {
        "no output".into()
    } else {
        missing.join(" and ")
    };
    let (first, last) = (gap.first_seq, gap.last_seq);
    format!("missing: {what} (events {first} to {last}: {why})")
}

pub(crate) fn stream(stream: pb::OutputStream) -> &'static str {
    match stream {
        pb::OutputStream::Stdout => "stdout",
        pb::OutputStream::Stderr => "stderr",
        pb::OutputStream::Unspecified => "output",
    }
}

fn bare(name: &str, prefix: &str) -> String {
    name.strip_prefix(prefix)
        .unwrap_or(name)
        .to_lowercase()
        .replace('_', "-")
}

/// Returns the text of an errno(3), such as `Permission denied (os error 13)`.
pub(crate) fn errno(errno: i32) -> String {
    std::io::Error::from_raw_os_error(errno).to_string()
}

/// Describes the state of standard input, on one line; the count first, so that a script can cut it off.
pub(crate) fn input(status: &pb::InputStatus) -> String {
    let accepted = status.accepted_offset;
    let accepted = accepted.map_or_else(|| "?".to_owned(), |bytes| bytes.to_string());
    let end = word(status.closed_by().as_str_name());
    format!("{accepted} {end}\n")
}

/// Describes the containment.
pub fn containment(containment: pb::Containment) -> &'static str {
    word(containment.as_str_name())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the values of an enum by their names.
    fn names<E: TryFrom<i32>>(name: fn(&E) -> &'static str) -> Vec<&'static str> {
        let values = (0..64).filter_map(|number| E::try_from(number).ok());
        values.map(|value| name(&value)).collect()
    }

    #[test]
    fn enum_values_have_words() {
        let all = [
            names(pb::InterruptMethod::as_str_name),
            names(pb::StreamsEnd::as_str_name),
            names(pb::Containment::as_str_name),
            names(pb::GapReason::as_str_name),
            names(pb::Deadline::as_str_name),
            names(pb::EmptyProof::as_str_name),
            names(pb::SignalScope::as_str_name),
            names(pb::InputEnd::as_str_name),
            names(pb::AnsweredBy::as_str_name),
            names(pb::RuleSwitchOff::as_str_name),
            names(pb::OutputOverflow::as_str_name),
            names(pb::DiskFullAction::as_str_name),
            names(pb::ApiAccess::as_str_name),
            names(pb::OnMaxPause::as_str_name),
            names(pb::Limit::as_str_name),
            names(pb::LeaderExitAction::as_str_name),
            names(pb::SpareReason::as_str_name),
            names(pb::LeakedRunStanding::as_str_name),
            names(pb::WaitCondition::as_str_name),
            names(pb::OutputRemovalReason::as_str_name),
            names(pb::ServerEndCause::as_str_name),
            names(pb::UpgradeState::as_str_name),
            names(pb::ProcessHold::as_str_name),
        ]
        .concat();
        let missing = all.iter().filter(|name| !WORDS.contains_key(*name));
        let missing: Vec<_> = missing
            .filter(|name| **name != "WAIT_CONDITION_UNSPECIFIED")
            .collect();
        assert_eq!(missing, Vec::<&&str>::new());
        let unused = WORDS.keys().filter(|name| !all.contains(name));
        assert_eq!(unused.collect::<Vec<_>>(), Vec::<&&str>::new());
    }
}
