//! Runs that are handed over to the next server.

use super::policy::WirePolicy;
use crate::values::{HeldPause, HeldRun, Outputs};
use kennel_lifecycle::{Held, RunId, RunIdentity, TerminalSize};
use serde::{Deserialize, Serialize};
use std::os::fd::OwnedFd;

/// [`HeldRun`] without its outputs, which travel beside it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct WireHeldRun {
    pub(crate) identity: RunIdentity,
    pub(crate) held: Held,
    pub(crate) policy: WirePolicy,
    pub(crate) released: bool,
    /// One that only a later version knows reads as none.
    #[serde(deserialize_with = "kennel_lifecycle::known_or_default")]
    pub(crate) pause: HeldPause,
    pub(crate) stopping: bool,
    /// Name in a critical message about it that the keeper does not know.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) pinned: Option<String>,
    /// Size of its terminal, where it has one.
    pub(crate) terminal: Option<TerminalSize>,
}

impl WireHeldRun {
    /// Returns the run, with the descriptors that have arrived beside it.
    pub(crate) fn with_outputs(self, run: RunId, fds: Vec<OwnedFd>) -> HeldRun {
        let terminal = self.terminal;
        HeldRun {
            run,
            identity: self.identity,
            held: self.held,
            policy: self.policy.into_policy(),
            released: self.released,
            pause: self.pause,
            stopping: self.stopping,
            pinned: self.pinned,
            outputs: Outputs::of(terminal.is_some(), fds),
            terminal,
        }
    }
}
