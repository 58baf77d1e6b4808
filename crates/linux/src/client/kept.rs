//! A child's spec as it is kept for the next attempt, in JSON. Read by the build that wrote it: nothing has been released yet.

use super::{ChildInput, ChildSpec};
use kennel_lifecycle::{Containment, Policy, TerminalSize};
use serde::{Deserialize, Serialize};
use std::{ffi::OsString, os::unix::ffi::OsStringExt, path::PathBuf};

/// What [`ChildSpec`] says, but for the run's directory.
#[derive(Debug, Serialize, Deserialize)]
pub struct KeptChild {
    executable: KeptText,
    argv: Vec<KeptText>,
    env: Vec<(String, String)>,
    cwd: KeptText,
    input: Option<Vec<u8>>,
    #[serde(default)]
    open_input: bool,
    /// Rows and columns.
    #[serde(default)]
    terminal: Option<(u16, u16)>,
    policy: Policy,
    min_containment: Option<Containment>,
}

/// A word of the command: text, or its bytes where it is none.
#[derive(Debug, Serialize, Deserialize)]
#[serde(untagged)]
enum KeptText {
    Utf8(String),
    Bytes(Vec<u8>),
}

impl From<OsString> for KeptText {
    fn from(word: OsString) -> Self {
        match word.into_string() {
            Ok(text) => Self::Utf8(text),
            Err(word) => Self::Bytes(word.into_vec()),
        }
    }
}

impl From<KeptText> for OsString {
    fn from(kept: KeptText) -> Self {
        match kept {
            KeptText::Utf8(text) => text.into(),
            KeptText::Bytes(bytes) => Self::from_vec(bytes),
        }
    }
}

impl From<&ChildSpec> for KeptChild {
    fn from(spec: &ChildSpec) -> Self {
        Self {
            executable: spec.executable.clone().into_os_string().into(),
            argv: spec.argv.iter().cloned().map(Into::into).collect(),
            env: spec.env.clone(),
            cwd: spec.cwd.clone().into_os_string().into(),
            input: match &spec.input {
                ChildInput::Bytes(bytes) => Some(bytes.clone()),
                ChildInput::Null | ChildInput::Pipe { .. } => None,
            },
            open_input: matches!(spec.input, ChildInput::Pipe { .. }),
            terminal: spec.terminal.map(|size| (size.rows, size.cols)),
            policy: spec.policy.clone(),
            min_containment: spec.min_containment,
        }
    }
}

impl KeptChild {
    /// The spec for this attempt of a run whose directory is this.
    #[must_use]
    pub fn in_dir(self, run_dir: PathBuf, attempt: u32) -> ChildSpec {
        let input = match self.input {
            _ if self.open_input => ChildInput::Pipe { attempt },
            Some(bytes) => ChildInput::Bytes(bytes),
            None => ChildInput::Null,
        };
        ChildSpec {
            executable: OsString::from(self.executable).into(),
            argv: self.argv.into_iter().map(Into::into).collect(),
            env: self.env,
            cwd: OsString::from(self.cwd).into(),
            input,
            terminal: self
                .terminal
                .map(|(rows, cols)| TerminalSize { rows, cols }),
            run_dir,
            policy: self.policy,
            min_containment: self.min_containment,
        }
    }
}
