//! Input for a child behind a gate: the spec of its run, and what was resolved for it.

use kennel_lifecycle::{CommandSpec, Policy, Secret, SecretSource, os_text};
use kennel_linux::spawn::{ChildImage, ChildSecret};
use serde::{Deserialize, Serialize};
use std::{ffi::OsStr, fmt, os::unix::ffi::OsStrExt, path::PathBuf};

/// Resources for a child behind a gate. Its stored form is the input of the next attempt.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ChildSpec {
    /// Absolute path of the executable, already resolved.
    #[serde(with = "os_text::path")]
    pub executable: PathBuf,
    /// The whole environment, in order; `command.env` is empty then.
    pub env: Vec<(String, String)>,
    /// The run's private directory, which exists; the shim writes the exit record there.
    #[serde(with = "os_text::path")]
    pub run_dir: PathBuf,
    /// Number of the attempt, 1 for the first: input meant for one is not written to another.
    pub attempt: u32,
    /// The command as requested.
    pub command: CommandSpec,
    /// Rules that keeper and shim follow on their own.
    pub policy: Policy,
    /// Its secrets. The stored form has no values.
    pub secrets: Vec<Secret>,
}

/// For logs: without arguments, environment and input.
impl fmt::Debug for ChildSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChildSpec")
            .field("executable", &self.executable)
            .field("run_dir", &self.run_dir)
            .field("attempt", &self.attempt)
            .field("policy", &self.policy)
            .finish_non_exhaustive()
    }
}

/// Secrets whose values were not read are left out.
impl From<&ChildSpec> for ChildImage {
    fn from(real: &ChildSpec) -> Self {
        let bytes = |text: &OsStr| text.as_bytes().to_vec();
        let command = &real.command;
        Self {
            executable: bytes(real.executable.as_os_str()),
            argv: command.argv.iter().map(|word| bytes(word)).collect(),
            env: real.env.clone(),
            cwd: bytes(command.working_dir().as_os_str()),
            secrets: real.secrets.iter().filter_map(with_value).collect(),
        }
    }
}

fn with_value(secret: &Secret) -> Option<ChildSecret> {
    let SecretSource::Sent(value) = &secret.source else {
        return None;
    };
    Some(ChildSecret {
        name: secret.name.clone(),
        delivery: secret.delivery,
        value: value.clone(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_shows_no_argument_variable_or_input() {
        let secret = || "s3cret".to_owned();
        let spec = ChildSpec {
            executable: "/bin/sh".into(),
            env: vec![("TOKEN".to_owned(), secret())],
            command: CommandSpec {
                argv: vec![secret().into()],
                initial_input: Some(secret().into_bytes()),
                ..CommandSpec::default()
            },
            ..ChildSpec::default()
        };
        let printed = format!("{spec:?}");
        assert!(printed.contains("/bin/sh"), "{printed}");
        assert!(
            !printed.contains("TOKEN") && !printed.contains("s3cret"),
            "{printed}"
        );
        assert!(!printed.contains("115, 51"), "{printed}");
    }
}
