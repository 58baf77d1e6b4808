//! Whether a run in a sandbox reaches the service that started it.

use super::suite::printed;
use crate::own_service::Service;
use kennel_cli::Failure;
use kennel_naughty::{NOTHING, REACH, WORD};
use kennel_proto::pb;
use serde_json::{Value, json};
use std::env;

/// Result of the test.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Reach {
    /// The test cannot be run on this host.
    NotRun(String),
    /// Access of a run in a sandbox, and without one.
    Tried { inside: String, outside: String },
}

/// Runs the same program in a sandbox and without one.
pub(super) async fn run(service: &Service) -> Result<Reach, Failure> {
    let own = match env::current_exe() {
        Ok(own) => own.display().to_string(),
        Err(cause) => return Ok(Reach::NotRun(cause.to_string())),
    };
    let words = [
        own.clone(),
        WORD.to_owned(),
        REACH.to_owned(),
        service.data_dir().display().to_string(),
        service.keeper_pid().to_string(),
        service.socket().display().to_string(),
    ];
    let sandboxed = pb::Privileges {
        sandbox: Some(pb::Sandbox {
            readable_paths: vec![own],
            ..pb::Sandbox::default()
        }),
        seccomp_profile: pb::SeccompProfile::Baseline.into(),
        ..pb::Privileges::default()
    };
    let inside = match printed(service, &words, Some(sandboxed)).await? {
        Ok(inside) => inside,
        Err(why) => return Ok(Reach::NotRun(why)),
    };
    Ok(match printed(service, &words, None).await? {
        Ok(outside) => Reach::Tried { inside, outside },
        Err(why) => Reach::NotRun(why),
    })
}

impl Reach {
    /// Whether no protected resource was reached.
    pub(super) fn holds(&self) -> bool {
        match self {
            Self::NotRun(_) => true,
            Self::Tried { inside, .. } => inside == NOTHING,
        }
    }

    pub(super) fn text(&self) -> String {
        match self {
            Self::NotRun(why) => {
                format!("not run A run in a sandbox reaches nothing of Kennel: {why}")
            }
            Self::Tried { inside, outside } => {
                let holds = if self.holds() { "holds" } else { "BROKEN" };
                format!(
                    "{holds:8}A run in a sandbox reaches nothing of Kennel: it reached {inside}; without one {outside}"
                )
            }
        }
    }

    pub(super) fn json(&self) -> Value {
        match self {
            Self::NotRun(why) => json!({"outcome": "notRun", "why": why}),
            Self::Tried { inside, outside } => json!({
                "outcome": if self.holds() { "holds" } else { "broken" },
                "reached": inside,
                "reachedWithoutSandbox": outside,
            }),
        }
    }
}
