//! Runs that are handed over to the next server.

use super::policy::WirePolicy;
use crate::values::{HeldPause, HeldRun, Outputs};
use kennel_lifecycle::{Held, RunId, RunIdentity, TerminalSize};
use serde::{Deserialize, Serialize};
use std::os::fd::OwnedFd;

/// [`HeldRun`] without its outputs, which travel beside it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct WireHeldRun {
    pub(crate) run: RunId,
    pub(crate) identity: RunIdentity,
    pub(crate) held: Held,
    pub(crate) policy: WirePolicy,
    pub(crate) released: bool,
    pub(crate) pause: HeldPause,
    pub(crate) stopping: bool,
    /// Size of its terminal, where it has one.
    pub(crate) terminal: Option<TerminalSize>,
}

impl WireHeldRun {
    /// Returns the run, with the descriptors that have arrived beside it.
    pub(crate) fn with_outputs(self, fds: Vec<OwnedFd>) -> HeldRun {
        let terminal = self.terminal;
        HeldRun {
            run: self.run,
            identity: self.identity,
            held: self.held,
            policy: self.policy.into_policy(),
            released: self.released,
            pause: self.pause,
            stopping: self.stopping,
            outputs: Outputs::of(terminal.is_some(), fds),
            terminal,
        }
    }
}
