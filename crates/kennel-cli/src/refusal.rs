//! Text of a server's error, and the hint to it.

use crate::{
    args::in_place_of_fields,
    failure::{FAILED, Failure},
    sentence::Fields,
    words,
};
use kennel_lifecycle::Violation;
use serde_json::json;
use std::{
    collections::{BTreeMap, HashMap},
    sync::LazyLock,
};

/// Converts a server's error to a failure of this command line.
pub(crate) fn failure(refused: &kennel_client::Failure) -> Failure {
    let mut message = refused.to_string();
    if let Some(end) = message.find(": ").filter(|_| refused.violations.len() > 1) {
        // Each field follows on a separate line.
        message.truncate(end);
    }
    message.push_str(&listed(&refused.violations));
    message = in_place_of_fields(message);
    if refused.connection_lost {
        message = format!("the connection to the server was lost: {message}");
    }
    let failure = Failure::new(message)
        .code(FAILED)
        .reason(refused.reason.clone());
    let hint = match &refused.reason {
        Some(reason) => hint(reason, &refused.metadata),
        None => refused
            .connection_lost
            .then(|| "is it still there? kennel status".to_owned()),
    };
    match hint {
        Some(hint) => failure.hint(hint),
        None => failure,
    }
}

/// Formats one line for each violation, where there are several: a single one is the message itself.
fn listed(violations: &[Violation]) -> String {
    if violations.len() < 2 {
        return String::new();
    }
    let line = |v: &Violation| format!("\n  {}: {}", v.field, v.description);
    violations.iter().map(line).collect()
}

/// Returns the hint to this reason; `facts` is the server's metadata.
fn hint(reason: &str, facts: &BTreeMap<String, String>) -> Option<String> {
    static HINTS: LazyLock<HashMap<&str, &str>> =
        LazyLock::new(|| words::by_name(include_str!("hints.txt")));
    let fact = |key: &str| facts.get(key).map_or("", String::as_str);
    let hint = match reason {
        "COMMAND_NOT_FOUND" if fact("command").contains('/') => {
            // It was searched at one path, which the message contains.
            return None;
        }
        "COMMAND_NOT_FOUND" if fact("command").contains(' ') => {
            "a line for a shell is run by: kennel run -- sh -c 'LINE'"
        }
        "QUOTA_EXCEEDED" if fact("quota").ends_with("of a pattern") => {
            "use a simpler pattern, text (-F) or JSON"
        }
        _ => HINTS.get(reason)?,
    };
    let hint = Fields::of(&json!(facts)).fill(hint);
    Some(hint).filter(|hint| !hint.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts(of: &[(&str, &str)]) -> BTreeMap<String, String> {
        let owned = |&(key, value): &(&str, &str)| (key.to_owned(), value.to_owned());
        of.iter().map(owned).collect()
    }

    #[test]
    fn hint_for_missing_command_depends_on_its_form() {
        let reported = |command| hint("COMMAND_NOT_FOUND", &facts(&[("command", command)]));
        assert!(reported("ls").is_some_and(|hint| hint.contains("--env PATH")));
        assert_eq!(reported("/bin/ls"), None);
        assert!(reported("echo hi").is_some_and(|hint| hint.contains("sh -c")));
    }

    #[test]
    fn draining_hint_names_undrain_and_shutdown() {
        let reported = hint("NODE_DRAINING", &facts(&[])).expect("there is something to do");
        assert!(reported.contains("kennel undrain") && reported.contains("shuts down"));
    }

    #[test]
    fn failed_start_hint_depends_on_stage_and_errno() {
        let reported = |stage, errno| {
            let facts = facts(&[("stage", stage), ("errno", errno)]);
            hint("SPAWN_FAILED", &facts)
        };
        assert!(reported("EXEC", "2").is_some_and(|hint| hint.contains("interpreter")));
        assert!(reported("WORK_DIR", "2").is_some_and(|hint| hint.contains("--cwd")));
        assert!(reported("PREPARE", "28").is_some_and(|hint| hint.contains("full")));
        assert_eq!(reported("FORK", "11"), None);
    }

    // promise: C-52
    #[test]
    fn violations_name_the_flag_of_a_field() {
        assert_eq!(
            in_place_of_fields("spec.limits.memory.max_bytes and spec.argv.args[2]: bad".into()),
            "--memory-max and command[2]: bad"
        );
    }

    #[test]
    fn braces_of_hints_are_closed() {
        for line in include_str!("hints.txt").lines() {
            assert_eq!(
                line.matches('{').count(),
                line.matches('}').count(),
                "{line}"
            );
        }
    }

    #[test]
    fn unknown_reason_has_no_hint() {
        assert_eq!(hint("SOMETHING_NEW", &BTreeMap::new()), None);
    }

    #[test]
    fn all_violations_are_printed() {
        let reported = listed(&[
            Violation::new("spec.cwd", "must be absolute"),
            Violation::new("spec.argv.args", "must name a command"),
        ]);
        assert_eq!(
            reported,
            "\n  spec.cwd: must be absolute\n  spec.argv.args: must name a command"
        );
    }
}
