//! Requests of a leak check to the keeper: its inventory, and the end of findings.

use super::Keeper;
use crate::{
    client::{KeeperInventory, Reaped},
    keeper::{
        reaping::{Reaping, Untouchable},
        run::Run,
    },
    wire::{
        self, Answer, ToServer,
        audit::{AUDIT_BYTES_MAX, WireVictims},
    },
};
use kennel_lifecycle::ladder::StopPlan;
use kennel_linux::{clock, limits, memfd};
use std::{os::fd::OwnedFd, rc::Rc};

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
        self.answer_with_file(seq, Answer::Inventory, &inventory);
    }

    /// Begins to end the processes that the file names.
    pub(super) fn begin_reaping(&mut self, seq: u64, plan: &StopPlan, fds: Vec<OwnedFd>) {
        let order = fds.into_iter().next().map(|file| {
            memfd::read(file, AUDIT_BYTES_MAX)
                .and_then(|bytes| wire::decode_content::<WireVictims>(&bytes))
        });
        let Some(Ok(order)) = order else {
            // This process had no free descriptor for the file.
            return self.answer(seq, Answer::Exhausted("descriptors of the keeper".into()));
        };
        let now = clock::boot_ms();
        self.reapings.push(Reaping::new(
            seq,
            order.victims,
            order.directories,
            plan,
            now,
        ));
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
            self.answer_with_file(seq, Answer::Reaped, &reaped);
        }
        // Counted from here on, so that a long round leaves time for other work.
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

    fn answer_with_file(&mut self, seq: u64, answer: Answer, list: &impl serde::Serialize) {
        let file =
            wire::encode_content(list).and_then(|bytes| memfd::sealed("kennel-audit", &bytes));
        match file {
            Ok(file) => self.send(&ToServer::Answer { seq, answer }, vec![Rc::new(file)]),
            Err(error) => self.answer(seq, Answer::Exhausted(error.to_string())),
        }
    }
}
