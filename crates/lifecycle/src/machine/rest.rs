//! The rest of a tree whose leader has ended by itself, where it is not stopped for that.

use super::Machine;
use crate::{Effect, Entry, LeaderExit, Phase, StopOrder, Timestamp};

impl Machine {
    /// The leader's end was told for the first time. A stop that has been accepted means the whole tree, and so does a
    /// SIGKILL that has gone out (INV-17).
    pub(super) fn decide_on_rest(&mut self, phase: &Phase) {
        let stopping = matches!(
            phase,
            Phase::Stopping { .. }
                | Phase::Draining {
                    deadline: Some(_),
                    ..
                }
        );
        let ending = stopping || self.stuck.is_some() || self.ends.tree.is_some();
        if self.on_leader_exit == LeaderExit::Keep && !ending {
            // INV-17: no stop was accepted before this.
            self.effects.push(Effect::KeepRest);
        }
    }

    /// Whether somebody may still be there who is not being stopped.
    pub(super) fn rest_goes_on(&self, stop: Option<&StopOrder>) -> bool {
        matches!(self.on_leader_exit, LeaderExit::Drain { .. })
            && stop.is_none()
            && self.unrecorded.is_none()
            && self.ends.tree.is_none()
    }

    /// A stop goes out after the leader's end. Where the rest would have gone on, it is what ends the run.
    pub(super) fn stop_rest(
        &mut self,
        stop: Option<StopOrder>,
        deadline: Option<Timestamp>,
    ) -> Option<StopOrder> {
        let Some((order, plan)) = self.recorded_stop() else {
            return stop;
        };
        let ends_it = self.on_leader_exit != LeaderExit::Stop && stop.is_none();
        // Told first: who finds the tree being stopped finds in the journal by whom.
        if let (true, Some(deadline)) = (ends_it, deadline) {
            let order = order.clone();
            self.append(Entry::Stopping { order, deadline });
        }
        self.effects.push(Effect::StopTree(plan));
        if ends_it { Some(order) } else { stop }
    }
}
