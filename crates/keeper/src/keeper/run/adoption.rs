//! A run that continues without its keeper: the state that its shim needs for that, and its adoption by the next
//! keeper.

use super::{CommandStage, Outputs, Run, RunInput, RunNotices, RunParts};
use crate::{
    keeper::{adoption::Adoptable, pause::Pause},
    notify_place::NotifyPlace,
    wire::{ToShim, adoption::WireMemory},
};
use kennel_lifecycle::{NodeId, Recovery, ladder::Ladder};
use kennel_linux::{
    clock,
    tree::{Lineage, Root, Session, Tree},
    usage::Counting,
};

impl Run {
    /// Adopts a run whose keeper is gone. Its shim repeats its reports.
    pub(in crate::keeper) fn adopted(found: Adoptable, shim: u64, node: NodeId) -> Self {
        let now = clock::boot_ms();
        let tree = Tree {
            run: found.id,
            leader: found.leader,
            leader_pid: found.identity.command.pid,
            session: Session::default(),
            lineage: Lineage::default(),
            root: Root::Shim(found.identity.shim.pid),
            foreign: Some(found.shim),
            cgroup: found.identity.cgroup.clone(),
            init: found.init,
        };
        tree.learn_session(&tree.members());
        let memory = found.said.memory;
        let input = RunInput::adopted(&found.run_dir, found.input);
        let policy = &found.said.policy;
        let place = NotifyPlace::of(node, found.id, &found.run_dir, policy);
        let adopted = |socket| RunNotices::adopted(socket, place, policy, &memory);
        let notices = found.notify.map(adopted);
        let pause = Pause::taken_over(&tree, &found.run_dir, &memory, now);
        let run = Self::new(RunParts {
            id: found.id,
            shim,
            policy: found.said.policy,
            run_dir: found.run_dir,
            cgroup: found.identity.cgroup.clone(),
            held: found.said.keepsake.held,
            outputs: Outputs::pipes(found.outputs.0, found.outputs.1),
            input,
            notices,
            counting: Counting::PERHAPS,
        });
        let counted = memory.max_runtime;
        let max_runtime = run.max_runtime.map(|whole| counted.unwrap_or(whole));
        // An expired time limit begins its own stop.
        let continues = found
            .said
            .stopping_since
            .filter(|_| !max_runtime.is_some_and(|left| left.is_over(now)));
        let mut ladder = continues.map(|since| Ladder::start(&run.policy.stop_plan(), since));
        // Stop input is not written twice.
        if let Some(ladder) = &mut ladder {
            ladder.skip_input_before(now);
        }
        Self {
            stage: CommandStage::Released,
            max_runtime,
            extended: memory.extended,
            ladder,
            tree: Some(tree),
            identity: Some(found.identity),
            pause,
            shim_remembers: Some(memory),
            leader_left_at: found.said.leader_left_at,
            ..run
        }
    }

    /// Whether the run outlives this process, should that die.
    pub(in crate::keeper) fn outlives_keeper(&self) -> bool {
        self.policy.recovery() == Recovery::Adopt
    }

    /// Whether the run can be left unchanged to the next keeper: its end has not begun.
    pub(in crate::keeper) fn can_be_given_back(&self) -> bool {
        let runs = matches!(self.stage, CommandStage::Released | CommandStage::Ran);
        self.outlives_keeper() && runs && self.ladder.is_none() && !self.ended && !self.is_to_keep()
    }

    /// Sends the shim the state for the next keeper, if it has changed.
    pub(super) fn send_memory(&mut self) {
        if !self.outlives_keeper() || self.stage != CommandStage::Ran {
            return;
        }
        let notices = self.notices.as_ref().map(RunNotices::remembered);
        let memory = WireMemory {
            max_runtime: self.max_runtime,
            paused_since: self.pause.stopped_since(),
            pause_expired: matches!(self.pause, Pause::Expired),
            notices: notices.unwrap_or_default(),
            extended: self.extended,
        };
        if self.shim_remembers.replace(memory) != Some(memory) {
            self.for_shim.push(ToShim::Remember(memory));
        }
    }
}
