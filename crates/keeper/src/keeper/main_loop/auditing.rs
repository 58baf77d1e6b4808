//! Requests of a leak check to the keeper: its inventory, and the end of findings.

use super::Keeper;
use crate::{
    client::{KeeperInventory, Reaped},
    keeper::{
        reaping::{Reaping, Untouchable},
        run::Run,
    },
    values::Victim,
    wire::Answer,
};
use kennel_lifecycle::{CgroupIdentity, ladder::StopPlan};
use kennel_linux::{clock, limits};

impl Keeper {
    /// Reports the processes and sockets that only the keeper knows.
    pub(super) fn send_inventory(&mut self, seq: u64) {
        let shims = self.shims.values();
        let sockets = self
            .listening
            .iter()
            .map(|listening| (listening.name(), listening.seen()));
        let inventory = KeeperInventory {
            server: self.server.pid,
            spare_shims: self.pool.pids().collect(),
            shims: shims.map(|shim| (shim.pid, shim.run)).collect(),
            sockets: sockets.collect(),
            fds: limits::open_now(),
        };
        self.answer(seq, Answer::Inventory(inventory));
    }

    /// Begins to end these processes.
    pub(super) fn begin_reaping(
        &mut self,
        seq: u64,
        plan: &StopPlan,
        victims: Vec<Victim>,
        directories: Vec<CgroupIdentity>,
    ) {
        let now = clock::boot_ms();
        self.reapings
            .push(Reaping::new(seq, victims, directories, plan, now));
        self.reapings_due = now;
    }

    pub(super) fn step_reapings(&mut self, now: u64) {
        if self.reapings.is_empty() || now < self.reapings_due {
            return;
        }
        let untouchable = self.untouchable();
        let over = self
            .reapings
            .extract_if(.., |reaping| reaping.step(&untouchable, now));
        for reaping in over.collect::<Vec<_>>() {
            let seq = reaping.seq;
            let (fates, directories_removed) = reaping.end();
            let reaped = Reaped {
                fates,
                directories_removed,
            };
            self.answer(seq, Answer::Reaped(reaped));
        }
        // The interval begins after the round, so that a long round leaves time for other work.
        self.reapings_due = Reaping::wake_at(clock::boot_ms());
    }

    fn untouchable(&self) -> Untouchable {
        let live = || self.runs.values().filter(|run| !run.has_ended());
        let live_shims = live().filter_map(|run| Some(self.shims.get(&run.shim?)?.pid));
        let own = [std::process::id().cast_signed(), self.server.pid];
        let shims = self.shims.values().map(|shim| shim.pid);
        Untouchable {
            pids: own
                .into_iter()
                .chain(self.pool.pids())
                .chain(shims)
                .collect(),
            live_shims: live_shims.collect(),
            live_groups: live().filter_map(Run::cgroup_path).collect(),
        }
    }
}
