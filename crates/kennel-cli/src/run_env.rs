//! The environment that `run` and `spawn` request: typed variables, and the caller's own.

use crate::{
    args::{EnvArg, EnvModeArg},
    failure::{Failure, because},
};
use kennel_client::Surroundings;
use kennel_proto::pb;
use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

/// Prefix of names that the server alone sets.
const SERVERS_OWN: &str = "KENNEL_";
/// Variable that names the journal as the caller's own output, which is not the command's: systemd.exec(5).
const JOURNAL: &str = "JOURNAL_STREAM";

/// Returns the variables that a command has of these arguments. A value taken from the caller is sent like a typed one:
/// the server returns none and logs none.
pub(super) fn typed(
    mode: EnvModeArg,
    files: &[PathBuf],
    typed: Vec<EnvArg>,
    here: &Surroundings,
) -> Result<pb::Env, Failure> {
    let mut vars = BTreeMap::new();
    for file in files {
        vars.extend(values(of_file(file)?, here)?);
    }
    vars.extend(values(typed, here)?);
    let mode = match mode {
        EnvModeArg::Minimal => pb::EnvMode::Minimal,
        EnvModeArg::Inherit | EnvModeArg::None => pb::EnvMode::None,
    };
    Ok(pb::Env {
        mode: mode.into(),
        vars,
    })
}

/// Parses a file of variables: NAME=VALUE literally, without quotes, or NAME; `#` begins a comment.
fn of_file(file: &Path) -> Result<Vec<EnvArg>, Failure> {
    let name = file.display();
    let text = fs::read_to_string(file);
    let text = text.map_err(because(format_args!("cannot read variables from {name}")))?;
    let mut vars = Vec::new();
    for (number, line) in text.lines().enumerate() {
        if line.trim().is_empty() || line.trim_start().starts_with('#') {
            continue;
        }
        let var = line.trim_start().parse().map_err(|wrong| {
            Failure::new(format!(
                "line {} of {name} is no variable: {wrong}",
                number + 1
            ))
        });
        vars.push(var?);
    }
    Ok(vars)
}

/// Returns the caller's own environment, as a child in the shell has it, without the variables that are left out.
pub(super) fn inherited(
    mode: EnvModeArg,
    left_out: &[&str],
    here: &Surroundings,
) -> BTreeMap<String, String> {
    let mut vars = match mode {
        EnvModeArg::Inherit => here.env.clone(),
        EnvModeArg::Minimal | EnvModeArg::None => BTreeMap::new(),
    };
    vars.retain(|name, _| {
        let is_own = name.starts_with(SERVERS_OWN) || name == JOURNAL;
        !is_own && !left_out.contains(&name.as_str())
    });
    vars
}

/// Returns the variables of `--env`: `NAME=VALUE`, or `NAME` for the caller's own value.
pub(super) fn values(
    typed: Vec<EnvArg>,
    here: &Surroundings,
) -> Result<BTreeMap<String, String>, Failure> {
    let value = |arg: EnvArg| match arg {
        EnvArg::Value(name, value) => Ok((name, value)),
        EnvArg::Own(name) => match here.env.get(&name) {
            Some(value) => Ok((name, value.clone())),
            None => Err(
                Failure::new(format!("there is no variable {name} here to pass on"))
                    .hint(format!("set it, or write --env {name}=VALUE")),
            ),
        },
    };
    typed.into_iter().map(value).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn here() -> Surroundings {
        Surroundings::of(&[
            ("A", "1"),
            ("B", "2"),
            ("KENNEL_SERVER", "unix:/s"),
            (JOURNAL, "8:1"),
        ])
    }

    fn text(vars: &BTreeMap<String, String>) -> String {
        let vars: Vec<_> = vars.iter().map(|(n, v)| format!("{n}={v}")).collect();
        vars.join(" ")
    }

    // promise: C-34
    #[test]
    fn environment_mode_decides_what_is_inherited() {
        let own = |mode, secret| text(&inherited(mode, secret, &here()));
        assert_eq!(own(EnvModeArg::Inherit, &[]), "A=1 B=2");
        assert_eq!(own(EnvModeArg::Inherit, &["A"]), "B=2");
        assert_eq!(own(EnvModeArg::Minimal, &[]), "");
        assert_eq!(own(EnvModeArg::None, &[]), "");
        let set = |mode, args: &[&str]| {
            let args = args.iter().map(|text| text.parse().expect("well formed"));
            let env = typed(mode, &[], args.collect(), &here()).expect("all are set");
            (env.mode(), text(&env.vars))
        };
        let inherit = set(EnvModeArg::Inherit, &["B=3"]);
        assert_eq!(inherit, (pb::EnvMode::None, "B=3".to_owned()));
        let minimal = set(EnvModeArg::Minimal, &["B"]);
        assert_eq!(minimal, (pb::EnvMode::Minimal, "B=2".to_owned()));
        let none = set(EnvModeArg::None, &[]);
        assert_eq!(none, (pb::EnvMode::None, String::new()));
        let missing = values(vec![EnvArg::Own("C".to_owned())], &here());
        assert!(missing.is_err_and(|failure| failure.to_string().contains("variable C")));
    }
}
