//! Requests about recorded keepers and runs: which of their processes are alive.

use super::Keeper;
use crate::{client::Recorded, keeper::observe, wire::Answer};
use kennel_lifecycle::{HostIdentity, ProcessIdentity};
use kennel_linux::clock;

/// A pid that no process has.
const NO_PROCESS: i32 = i32::MAX;

impl Keeper {
    pub(super) fn observe(&mut self, seq: u64, recorded: Recorded) {
        let recorded = self.without_other_shim(recorded);
        let seen = observe::observe(&recorded, &self.host, &mut self.markers, clock::boot_ms());
        self.answer(seq, Answer::Observed(seen));
    }

    /// Removes a shim that serves another run by now, or none: for this run it is gone. Its children are not this
    /// run's.
    pub(super) fn without_other_shim(&self, mut recorded: Recorded) -> Recorded {
        let shim = &mut recorded.identity.shim;
        let waits = self.pool.pids().any(|pid| pid == shim.pid);
        let token = self.shim_of_pid.get(&shim.pid);
        let now = token.and_then(|token| self.shims.get(token));
        if waits || now.is_some_and(|now| now.run != recorded.run) {
            *shim = ProcessIdentity {
                pid: NO_PROCESS,
                pidfs_handle: None,
                ..*shim
            };
        }
        recorded
    }

    pub(super) fn look_for_keeper(
        &mut self,
        seq: u64,
        keeper: &ProcessIdentity,
        host: &HostIdentity,
    ) {
        let seen = observe::see(keeper, host, &self.host);
        self.answer(seq, Answer::Seen(seen));
    }
}
