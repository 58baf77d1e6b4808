//! A child's spec as it is kept for the next attempt. Its form is on disk: fields may be added, none renamed.

use super::ChildSpec;
use crate::wire::mirror::{WireContainment, WirePolicy};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// What [`ChildSpec`] says, but for the run's directory.
#[derive(Debug, Serialize, Deserialize)]
pub struct KeptChild {
    executable: PathBuf,
    argv: Vec<String>,
    env: Vec<(String, String)>,
    cwd: PathBuf,
    input: Option<Vec<u8>>,
    policy: WirePolicy,
    min_containment: Option<WireContainment>,
}

impl From<&ChildSpec> for KeptChild {
    fn from(spec: &ChildSpec) -> Self {
        Self {
            executable: spec.executable.clone(),
            argv: spec.argv.clone(),
            env: spec.env.clone(),
            cwd: spec.cwd.clone(),
            input: spec.input.clone(),
            policy: (&spec.policy).into(),
            min_containment: spec.min_containment.map(Into::into),
        }
    }
}

impl KeptChild {
    /// The spec of a run whose directory is this.
    #[must_use]
    pub fn in_dir(self, run_dir: PathBuf) -> ChildSpec {
        ChildSpec {
            executable: self.executable,
            argv: self.argv,
            env: self.env,
            cwd: self.cwd,
            input: self.input,
            run_dir,
            policy: self.policy.into(),
            min_containment: self.min_containment.map(Into::into),
        }
    }
}
