//! Runs that are handed over to the next server.

use super::{WireHeld, WireIdentity, WirePolicy, WireTerminalSize};
use crate::client::{HeldPause, HeldRun, Outputs};
use kennel_lifecycle::RunId;
use serde::{Deserialize, Serialize};
use std::os::fd::OwnedFd;

mirror_enum!(
    /// [`HeldPause`].
    WireHeldPause = HeldPause { None, Stopping, Stopped, Expired, LettingGo }
);

/// [`HeldRun`], but for its outputs, which travel beside it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct WireHeldRun {
    pub(crate) run: u128,
    pub(crate) identity: WireIdentity,
    pub(crate) held: WireHeld,
    pub(crate) policy: WirePolicy,
    pub(crate) released: bool,
    pub(crate) pause: WireHeldPause,
    pub(crate) stopping: bool,
    /// How large its terminal is, where it has one.
    pub(crate) terminal: Option<WireTerminalSize>,
}

impl WireHeldRun {
    /// The run, with the descriptors that have arrived beside it.
    pub(crate) fn with_outputs(self, fds: Vec<OwnedFd>) -> HeldRun {
        let terminal = self.terminal.map(Into::into);
        HeldRun {
            run: RunId::from_u128(self.run),
            identity: self.identity.into(),
            held: self.held.into(),
            policy: self.policy.into(),
            released: self.released,
            pause: self.pause.into(),
            stopping: self.stopping,
            outputs: Outputs::of(terminal.is_some(), fds),
            terminal,
        }
    }
}
