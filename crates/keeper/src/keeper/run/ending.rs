//! The end of one run: the stop ladder, the checks of what is left, and the verdict.

use super::{CommandStage, Run};
use crate::{
    keeper::SLICE_PROCESSES,
    values::{Fact, SignalResult},
    wire::ToShim,
};
use kennel_lifecycle::{
    Signal, SignalScope, SignalSender, Timestamp, TreeVerdict,
    ladder::{Action, Ladder, StopPlan},
    verdict::{GroupEvidence, ShimEvidence, TreeEvidence},
};
use kennel_linux::{
    cgroup, clock, crash_point, marker, memory_events, procfs,
    tree::{Root, SignalEach, SignalRound, Tree},
    usage,
};
use std::os::fd::OwnedFd;

/// A rung of the ladder in progress: a tree may have thousands of processes, so they are signalled in slices, between
/// which the keeper serves other runs.
pub(super) struct Rung {
    at: Timestamp,
    signal: Signal,
    each: SignalEach,
    /// What was sent, with the time after it; then stopped processes are continued.
    sent: Option<(Timestamp, SignalRound)>,
}

impl Run {
    /// Starts the ladder, or shortens the one in progress.
    pub(in crate::keeper) fn stop(&mut self, plan: &StopPlan, now: u64) {
        crash_point!("keeper.stop");
        self.shut_gate();
        if self.ended {
            // Survivors no longer belong to an ended run.
            return;
        }
        if matches!(
            self.stage,
            CommandStage::Preparing { .. } | CommandStage::AtGate
        ) {
            return;
        }
        match &mut self.ladder {
            Some(ladder) => ladder.shorten(plan, now),
            None => self.ladder = Some(Ladder::start(plan, now)),
        }
    }

    /// Performs every due step.
    pub(super) fn climb(&mut self, now: u64) {
        if self.heard.childless && self.cgroup.is_none() {
            return;
        }
        while self.rung.is_none()
            && let Some(action) = self.ladder.as_mut().and_then(|l| l.due(now))
        {
            match action {
                Action::Signal(signal) => self.send_round(signal, now),
                Action::CloseInput => self.stop_input(None),
                Action::Input(bytes) => self.stop_input(Some(&bytes)),
                Action::Exec(argv) => self.stop_command(argv, now),
            }
        }
    }

    fn send_round(&mut self, signal: Signal, now: u64) {
        let Some(tree) = &self.tree else { return };
        // The time is taken first: no exit that a signal causes may precede it.
        let at = clock::wall();
        if signal == Signal::KILL {
            // KillAll is sent at once: the shim ends even a tree that forks faster than slices find its processes.
            self.for_shim.push(ToShim::KillAll {});
        }
        if signal == Signal::KILL
            && let Some(rounds) = tree.kill_at_once()
        {
            return self.round_sent((at, signal, &rounds), None, now);
        }
        self.rung = Some(Rung {
            at,
            signal,
            each: SignalEach::all(tree, signal),
            sent: None,
        });
        // A small tree is signalled within this call.
        self.continue_rung(now);
    }

    /// Signals some of the processes of a rung in progress.
    pub(super) fn continue_rung(&mut self, now: u64) {
        for _ in 0..SLICE_PROCESSES {
            let (Some(tree), Some(rung)) = (&self.tree, &mut self.rung) else {
                return;
            };
            if !rung.each.step(tree) {
                continue;
            }
            let round =
                std::mem::replace(&mut rung.each.round, SignalRound::new(SignalScope::Tree));
            if rung.sent.is_none() && rung.signal != Signal::KILL {
                crash_point!("keeper.termed");
                // SIGCONT follows the signal: a stopped process dies of the signal only when it runs.
                rung.sent = Some((clock::wall(), round));
                rung.each = SignalEach::waking(tree);
                continue;
            }
            let (at, signal) = (rung.at, rung.signal);
            let (sent, woken) = match rung.sent.take() {
                Some((woken_at, sent)) => (sent, Some((woken_at, round))),
                None => (round, None),
            };
            self.rung = None;
            self.round_sent((at, signal, &[sent]), woken, now);
        }
    }

    /// Reports a round whose signals are sent, and the round that has continued stopped processes.
    fn round_sent(
        &mut self,
        (at, signal, rounds): (Timestamp, Signal, &[SignalRound]),
        woken: Option<(Timestamp, SignalRound)>,
        now: u64,
    ) {
        if signal == Signal::KILL {
            crash_point!("keeper.killed");
            self.killed_at = Some(now);
        }
        let Some(tree) = &self.tree else { return };
        // A process that has not handled the SIGSTOP yet does not look stopped, but must also be continued.
        let (_, waiting) = self.pause.end(tree, &self.private_dir);
        self.report_rounds(at, signal, rounds);
        if let Some((woken_at, woken)) = woken.filter(|(_, round)| !round.is_empty()) {
            self.report_rounds(woken_at, Signal::CONT, &[woken]);
        }
        if let Some(waiting) = waiting {
            self.answer_signal(waiting, SignalResult::Partial(Vec::new()));
        }
    }

    pub(super) fn report_rounds(&mut self, at: Timestamp, signal: Signal, rounds: &[SignalRound]) {
        for round in rounds {
            let step = round.step(at, signal, SignalSender::Keeper);
            if !round.targets.is_empty() {
                self.report_at(at, Fact::RoundTargets(round.targets.clone()));
            }
            self.report_at(at, Fact::StopStep(step));
        }
    }

    /// Whether the tree is empty, and by what proof.
    pub(super) fn look(&mut self, now: u64) {
        if self.rung.is_some() {
            // A rung's signals are reported before what they cause.
            return;
        }
        let Some(tree) = &self.tree else {
            // Prepare was answered with `Exhausted`: there is no tree to check, only a child that exits.
            if (self.heard.childless || self.shim.is_none()) && !self.fails_unprepared() {
                self.over();
                self.acknowledge();
            }
            return;
        };
        let lost = tree.root == Root::Lost;
        if let Some((unrelated, group)) = self.vacated(tree, lost) {
            let evidence = TreeEvidence {
                never_ran: self.stage == CommandStage::NotReleased,
                namespace_ended: tree.init.as_ref().is_some_and(|init| init.fd.has_ended()),
                ..self.evidence(unrelated, lost)
            };
            self.last_word(evidence.verdict(), group);
            return;
        }
        if self.heard.childless && self.ladder.is_none() && !self.drains() {
            // A process in the group but not below the shim also belongs to the run.
            self.ladder = Some(Ladder::start(&self.policy.stop_plan(), now));
        }
        self.kill_again(now);
    }

    /// Returns the unrelated processes in the control group, with that opened, once no member of the tree is left;
    /// `None`: one is, or may be. The group is read last: most calls come long before the end.
    fn vacated(&self, tree: &Tree, lost: bool) -> Option<(Vec<i32>, Option<OwnedFd>)> {
        let may_be_over = if lost {
            self.heard.leader_exited && !self.shim_is_leaving()
        } else {
            self.heard.childless
        };
        if !may_be_over {
            return None;
        }
        let group = self.cgroup.as_ref().map_or(Ok(None), cgroup::open);
        let is_populated = match &group {
            Ok(Some(dir)) => cgroup::is_populated_in(dir).unwrap_or(true),
            Ok(None) => false,
            Err(_) => true,
        };
        let unrelated = if is_populated {
            tree.unrelated_alone()?
        } else {
            Vec::new()
        };
        let none_is_left = !lost
            || match &tree.init {
                Some(init) => init.fd.has_ended(),
                None => tree.members().is_empty(),
            };
        none_is_left.then(|| (unrelated, group.ok().flatten()))
    }

    /// Returns what shim and control group show of a tree that has no member left.
    fn evidence(&self, unrelated: Vec<i32>, lost: bool) -> TreeEvidence {
        let group = match &self.cgroup {
            None => GroupEvidence::Absent,
            Some(_) if unrelated.is_empty() => GroupEvidence::Empty,
            Some(_) => GroupEvidence::Unrelated(unrelated),
        };
        let shim = match &group {
            _ if lost => ShimEvidence::Lost,
            // The shim's report does not cover a group with unrelated processes.
            GroupEvidence::Unrelated(_) => ShimEvidence::Childless {
                elsewhere: marker::elsewhere(self.id),
            },
            _ => ShimEvidence::Childless {
                elsewhere: self.heard.elsewhere.clone(),
            },
        };
        TreeEvidence::of(shim, group)
    }

    /// Whether the shim is exiting: a process closes its files before its children get another parent, and until then
    /// they are not found here.
    fn shim_is_leaving(&self) -> bool {
        self.leaving_shim.is_some_and(|(pid, start_ticks)| {
            procfs::stat(pid).is_ok_and(|s| s.start_ticks == start_ticks && !s.is_dead())
        })
    }

    /// Returns its control group, opened; `None`: it has none, or none that can be read.
    pub(super) fn opened_group(&self) -> Option<OwnedFd> {
        cgroup::open(self.cgroup.as_ref()?).ok()?
    }

    /// Reports the end of the run. Its control group is removed only after this, and counts until then.
    pub(super) fn last_word(&mut self, verdict: TreeVerdict, group: Option<OwnedFd>) {
        crash_point!("keeper.tree_ended");
        let used = group.and_then(|group| {
            let used = usage::counted(&group, self.counting)?;
            Some((memory_events::kills(&group, &used), used))
        });
        if let Some((kills, used)) = used {
            if let Some(kills) = kills {
                self.report(Fact::MemoryKills(kills));
            }
            // A child that never executed the command has used nothing of the run's own.
            if self.stage == CommandStage::Ran {
                self.report(Fact::Usage(Box::new(used)));
            }
        }
        self.report(Fact::TreeEnded(verdict));
        self.over();
    }
}
