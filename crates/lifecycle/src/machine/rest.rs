//! The rest of a tree whose leader has exited by itself, where that does not stop it.

use super::Machine;
use crate::{Effect, Entry, LeaderExit, Phase, StopOrder, Timestamp};

impl Machine {
    /// Decides on the rest at the first report of the leader's exit. An accepted stop means the whole tree, and so does
    /// a SIGKILL that was sent (INV-17).
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
            // INV-17: no stop was accepted before this effect.
            self.effects.push(Effect::KeepRest);
        }
    }

    /// Whether processes may be left that are not being stopped.
    pub(super) fn rest_continues(&self, stop: Option<&StopOrder>) -> bool {
        matches!(self.on_leader_exit, LeaderExit::Drain { .. })
            && stop.is_none()
            && self.unrecorded.is_none()
            && self.ends.tree.is_none()
    }

    /// Sends a stop after the leader's exit. Where the rest would have continued, the stop ends the run.
    pub(super) fn stop_rest(
        &mut self,
        stop: Option<StopOrder>,
        deadline: Option<Timestamp>,
    ) -> Option<StopOrder> {
        let Some((order, plan)) = self.recorded_stop() else {
            return stop;
        };
        let ends_it = self.on_leader_exit != LeaderExit::Stop && stop.is_none();
        // Written first: a reader that finds the tree being stopped finds the requester in the journal.
        if let (true, Some(deadline)) = (ends_it, deadline) {
            let order = order.clone();
            self.append(Entry::Stopping { order, deadline });
        }
        self.effects.push(Effect::StopTree(plan));
        if ends_it { Some(order) } else { stop }
    }
}
