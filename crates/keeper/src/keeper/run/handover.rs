//! A run without a server: what the loss of one changes, what the next one is told, and what is done when none comes.

use super::{Outputs, Run, Stage};
use crate::{
    orphan_note,
    values::Fact,
    wire::{ToShim, handover::WireHeldRun},
};
use kennel_lifecycle::{StopReason, StopStep, Timestamp, limits::STEPS_LISTED_MAX};
use std::{os::fd::OwnedFd, rc::Rc};

impl Run {
    /// The server is gone, and another one will come. Nothing more is let go; all the rest goes on, and nobody waits for
    /// an answer any more.
    pub(in crate::keeper) fn server_lost(&mut self) {
        self.shut_gate();
        self.pause.nobody_waits();
        self.forget_input_waiting();
        self.forget_helpers_waiting();
        if let Stage::Preparing { seq } = &mut self.stage {
            *seq = None;
        }
        if self.identity.is_none() {
            // Nobody can have recorded it.
            self.acknowledge();
        }
    }

    /// No server has come for too long: what runs is ended by its own plan. So is a drain, since nobody reads its output.
    /// What becomes of it is kept for whichever server comes after all. A rest that is to be left alone waits for that
    /// one's word: a stop may be on record that never came here.
    pub(in crate::keeper) fn abandon(&mut self, now: u64) {
        if self.ladder.is_none() && !self.is_to_keep() {
            let plan = self.policy.stop_plan();
            self.stop(&plan, now);
            if self.ladder.is_some() {
                self.tell(Fact::Stops(StopReason::Orphaned));
            }
        }
        self.shut_gate();
    }

    /// The server is gone, and this process ends with what runs.
    pub(in crate::keeper) fn server_gone(&mut self, in_order: bool, now: u64) {
        if !self.acknowledged {
            self.for_shim.push(ToShim::ServiceEnds { in_order });
            self.unheard = Some(Vec::new());
        }
        // Nobody else can say any more whether a stop was on its way, and none has reached this process.
        self.keep_rest();
        self.abandon(now);
        self.acknowledge();
    }

    /// Of a run that is over: whether no later keeper has to look for its end. A run that was never recorded has none.
    pub(in crate::keeper) fn is_on_record(&self) -> bool {
        self.unheard.is_none()
    }

    /// Writes a round of signals down that no server hears of, for the next start.
    pub(super) fn note_unheard(&mut self, step: StopStep) {
        let (Some(steps), Some(identity)) = (&mut self.unheard, &self.identity) else {
            return;
        };
        if steps.len() < STEPS_LISTED_MAX {
            steps.push(step);
            // A directory that is gone or full takes it along: the run is ended all the same.
            let _ = orphan_note::write(&self.private_dir, (&identity.command).into(), steps);
        }
    }

    /// What the next server takes over; absent where it has nothing to do with it.
    pub(in crate::keeper) fn held(&self) -> Option<(WireHeldRun, Vec<Rc<OwnedFd>>)> {
        let identity = self.identity.as_ref().filter(|_| !self.acknowledged)?;
        let outputs = self.outputs.iter().flat_map(Outputs::for_server);
        let terminal = match &self.outputs {
            Some(Outputs::Terminal(terminal)) => Some(terminal.size()),
            Some(Outputs::Pipes(..)) | None => None,
        };
        let never_let_go = matches!(
            self.stage,
            Stage::Preparing { .. } | Stage::AtGate | Stage::NotReleased
        );
        let held = WireHeldRun {
            run: self.id.as_u128(),
            identity: identity.clone(),
            held: self.held.clone(),
            policy: self.policy.clone(),
            released: !never_let_go,
            pause: self.pause.held(),
            stopping: self.ladder.is_some(),
            terminal,
        };
        Some((held, outputs.collect()))
    }

    /// What has happened to it, in order.
    /// INV-18.
    pub(in crate::keeper) fn kept(&self) -> impl Iterator<Item = &(Timestamp, Fact)> {
        self.kept.iter()
    }
}
