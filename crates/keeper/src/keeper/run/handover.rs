//! A run without a server: effects of the loss of one, what the next one is sent, and what is done when none comes.

use super::{CommandStage, Outputs, Run};
use crate::{
    orphan_note,
    values::Fact,
    wire::{ToShim, handover::WireHeldRun},
};
use kennel_lifecycle::{StopReason, StopStep, Timestamp, limits::STEPS_LISTED_MAX};
use std::{os::fd::OwnedFd, rc::Rc};

impl Run {
    /// Handles the loss of a server that another one will replace. No gate is opened any more; everything else
    /// continues, and no request is waiting any more.
    pub(in crate::keeper) fn server_lost(&mut self) {
        self.shut_gate();
        self.pause.forget_request();
        self.forget_input_waiting();
        self.forget_helpers_waiting();
        self.forget_member_requests();
        if let CommandStage::Preparing { seq } = &mut self.stage {
            *seq = None;
        }
        if self.identity.is_none() {
            // No server can have recorded a run without identity.
            self.acknowledge();
        }
    }

    /// Ends a run after no server has come for too long: by its own plan. A drain is ended too, since no server reads
    /// its output. The result is retained for a server that comes after all. Survivors that are to be detached wait for
    /// that server's confirmation: a stop may be on record that never arrived here.
    pub(in crate::keeper) fn abandon(&mut self, now: u64) {
        if self.ladder.is_none() && !self.is_to_keep() {
            let plan = self.policy.stop_plan();
            self.stop(&plan, now);
            if self.ladder.is_some() {
                self.report(Fact::Stops(StopReason::Orphaned));
            }
        }
        self.shut_gate();
    }

    /// Handles the loss of the last server: this process exits with its runs.
    pub(in crate::keeper) fn server_gone(&mut self, in_order: bool, now: u64) {
        if !self.acknowledged {
            self.for_shim.push(ToShim::ServiceEnds { in_order });
            self.unreported = Some(Vec::new());
        }
        // The server that knew of stops is gone, and no stop has reached this process.
        self.keep_rest();
        self.abandon(now);
        self.acknowledge();
    }

    /// Whether no later keeper has to look for the end of an ended run. A run that was never recorded has none.
    pub(in crate::keeper) fn is_on_record(&self) -> bool {
        self.unreported.is_none()
    }

    /// Records a round of signals that is reported to no server, for the next start.
    pub(super) fn note_unreported(&mut self, step: StopStep) {
        let (Some(steps), Some(identity)) = (&mut self.unreported, &self.identity) else {
            return;
        };
        if steps.len() < STEPS_LISTED_MAX {
            steps.push(step);
            // A missing or full directory prevents the record, but the run is still ended.
            let _ = orphan_note::write(&self.private_dir, (&identity.command).into(), steps);
        }
    }

    /// Returns what the next server adopts; absent where it has nothing to do with the run.
    pub(in crate::keeper) fn held(&self) -> Option<(WireHeldRun, Vec<Rc<OwnedFd>>)> {
        let identity = self.identity.as_ref().filter(|_| !self.acknowledged)?;
        let outputs = self.outputs.iter().flat_map(Outputs::for_server);
        let terminal = match &self.outputs {
            Some(Outputs::Terminal(terminal)) => Some(terminal.size()),
            Some(Outputs::Pipes(..)) | None => None,
        };
        let released = !matches!(
            self.stage,
            CommandStage::Preparing { .. } | CommandStage::AtGate | CommandStage::NotReleased
        );
        let held = WireHeldRun {
            identity: identity.clone(),
            held: self.held.clone(),
            policy: self.policy.clone(),
            released,
            pause: self.pause.held(),
            stopping: self.ladder.is_some(),
            pinned: self.pinned.clone(),
            terminal,
        };
        Some((held, outputs.collect()))
    }

    /// Returns the reports of the run, in order. INV-18.
    pub(in crate::keeper) fn kept(&self) -> impl Iterator<Item = &(Timestamp, Fact)> {
        self.kept.iter()
    }
}
