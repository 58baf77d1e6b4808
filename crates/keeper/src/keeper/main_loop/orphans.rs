//! Processes of earlier keepers: ended on request, reported, and remembered while they are stuck.

use super::Keeper;
use crate::{
    client::Recorded,
    keeper::{
        observe::{self, Markers},
        orphan::{Orphan, Sessions},
    },
    wire::Answer,
};
use kennel_lifecycle::ladder::StopPlan;
use kennel_linux::clock;

impl Keeper {
    pub(super) fn end_orphan(&mut self, seq: u64, recorded: Recorded, plan: &StopPlan, now: u64) {
        self.stop_awaiting_shim(recorded.run);
        let recorded = self.without_other_shim(recorded);
        let mut known = self.orphans.iter_mut();
        let stuck = known.find(|o| o.seq.is_none() && o.recorded == recorded);
        match stuck {
            Some(orphan) => orphan.resume(seq, now),
            None => self.orphans.push(Orphan::new(seq, recorded, plan, now)),
        }
    }

    pub(super) fn step_orphans(&mut self, now: u64) {
        let asked_for = |orphan: &Orphan| orphan.seq.is_some();
        if now < self.orphans_due || !self.orphans.iter().any(asked_for) {
            return;
        }
        let sessions = Sessions::look_up();
        let host = &self.host;
        let over = self
            .orphans
            .extract_if(.., |o| asked_for(o) && o.step(host, &sessions, now));
        let over: Vec<Orphan> = over.collect();
        if !over.is_empty() {
            // A process that was just ended must not be remembered as alive.
            self.markers = Markers::default();
        }
        for orphan in over {
            self.answer_orphan(orphan, now);
        }
        // The interval begins after the round, so that a long round leaves time for other work.
        self.orphans_due = Orphan::wake_at(clock::boot_ms());
    }

    fn answer_orphan(&mut self, mut orphan: Orphan, now: u64) {
        let mut seen = observe::observe(&orphan.recorded, &self.host, &mut self.markers, now);
        seen.steps.clone_from(&orphan.steps);
        seen.stuck = std::mem::take(&mut orphan.stuck);
        let is_left = seen.has_survivors();
        if let Some(seq) = orphan.seq.take() {
            self.answer(seq, Answer::Observed(seen));
        }
        if is_left {
            self.orphans.push(orphan);
        }
    }
}
