//! What the server has on record of earlier keepers and their runs: who of it is there.

use super::Keeper;
use crate::{
    client::Recorded,
    keeper::observe,
    wire::{Answer, WireRecorded},
};
use kennel_lifecycle::{HostIdentity, ProcessIdentity};

impl Keeper {
    pub(super) fn observe(&mut self, seq: u64, recorded: WireRecorded, now: u64) {
        let recorded = Recorded::from(recorded);
        let seen = observe::observe(&recorded, &self.host, &mut self.markers, now);
        self.answer(seq, Answer::Observed(seen));
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
