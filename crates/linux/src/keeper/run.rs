//! One run, as the keeper holds it: gate, ladder, pause, and the word of its shim.
//!
//! Nothing here waits. What is to be told is collected in [`Run::told`] and sent by the loop.

mod members;

use super::pause::Pause;
use crate::{
    cgroup,
    client::Fact,
    clock, exit_record,
    pidfd::{PidFd, Sent},
    spawn::child::OPEN,
    tree::{Root, Tree, Volley},
    wire::{
        Answer, FromShim, PIDS_MAX, ToShim,
        mirror::{WireIdentity, WireSignalResult},
    },
};
use kennel_lifecycle::{
    CgroupIdentity, Exit, HostIdentity, Policy, Proof, RunId, Signal, StartFailure, StartStage,
    Timestamp, TreeVerdict,
    ladder::{Ladder, StopPlan},
};
use std::{os::fd::OwnedFd, path::PathBuf};

/// Between two looks at a tree that should be empty, and between two rounds of SIGKILL.
const LOOK_AGAIN_MS: u64 = 20;
/// How long after SIGKILL what is left is called survivors.
const SURVIVORS_AFTER_MS: u64 = 5_000;
/// The same while the service shuts down: its whole time is bounded.
const SURVIVORS_AFTER_SHUTDOWN_MS: u64 = 1_500;

/// How far the command has come, by the word of the shim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Somebody waits for the answer to this request.
    Preparing { seq: u64 },
    /// The child waits at its gate.
    AtGate,
    /// The gate was opened; the shim's verdict is not there yet.
    Released,
    /// It runs or ran.
    Ran,
    /// It was not let go.
    NotReleased,
    /// exec failed.
    NotExecuted,
}

/// One thing to say to the server.
pub(super) enum Told {
    Fact(Timestamp, Fact),
    Answer(u64, Answer, Vec<OwnedFd>),
}

/// Which ends of the tree are known.
#[derive(Default)]
struct Heard {
    /// The leader has ended.
    leader_exited: bool,
    /// The shim has no child left.
    childless: bool,
}

/// One run.
pub(super) struct Run {
    pub(super) id: RunId,
    /// Token of its shim, while the shim lives.
    pub(super) shim: Option<u64>,
    policy: Policy,
    /// Its private directory, where the shim leaves its last will.
    private_dir: PathBuf,
    cgroup: Option<CgroupIdentity>,
    cgroup_refused: Option<String>,
    gate: Option<OwnedFd>,
    /// Read ends of both outputs. The server has its own copies; these keep a command that writes alive while no server
    /// reads, so that it ends by its ladder and not by SIGPIPE.
    outputs: Option<(OwnedFd, OwnedFd)>,
    stage: Stage,
    tree: Option<Tree>,
    heard: Heard,
    ladder: Option<Ladder>,
    killed_at: Option<u64>,
    pause: Pause,
    ended: bool,
    pub(super) acknowledged: bool,
    pub(super) told: Vec<Told>,
    pub(super) for_shim: Vec<ToShim>,
}

/// What a run is made of.
pub(super) struct Parts {
    pub(super) id: RunId,
    pub(super) seq: u64,
    pub(super) shim: u64,
    pub(super) policy: Policy,
    pub(super) run_dir: PathBuf,
    pub(super) cgroup: Result<CgroupIdentity, String>,
    pub(super) gate: OwnedFd,
    pub(super) outputs: (OwnedFd, OwnedFd),
}

impl Run {
    pub(super) fn new(parts: Parts) -> Self {
        let (cgroup, cgroup_refused) = match parts.cgroup {
            Ok(cgroup) => (Some(cgroup), None),
            Err(why) => (None, Some(why)),
        };
        Self {
            id: parts.id,
            shim: Some(parts.shim),
            policy: parts.policy,
            private_dir: parts.run_dir,
            cgroup,
            cgroup_refused,
            gate: Some(parts.gate),
            outputs: Some(parts.outputs),
            stage: Stage::Preparing { seq: parts.seq },
            tree: None,
            heard: Heard::default(),
            ladder: None,
            killed_at: None,
            pause: Pause::None,
            ended: false,
            acknowledged: false,
            told: Vec::new(),
            for_shim: Vec::new(),
        }
    }

    /// Whether the last word on the tree was told (or no child was ever made).
    pub(super) fn has_ended(&self) -> bool {
        self.ended
    }

    /// What is carried out when the leader ends or the server is gone.
    pub(super) fn plan(&self) -> &StopPlan {
        &self.policy.stop
    }

    /// The group to remove after the end.
    pub(super) fn take_cgroup(&mut self) -> Option<CgroupIdentity> {
        self.cgroup.take()
    }

    /// The leader's number, while this process would be the one to reap it.
    pub(super) fn orphaned_leader(&self) -> Option<i32> {
        let tree = self.tree.as_ref()?;
        (tree.root == Root::Lost && !self.heard.leader_exited).then_some(tree.leader_pid)
    }

    /// The leader's number, whoever reaps it.
    pub(super) fn leader_pid(&self) -> Option<i32> {
        self.tree.as_ref().map(|tree| tree.leader_pid)
    }

    fn tell(&mut self, fact: Fact) {
        self.told.push(Told::Fact(clock::wall(), fact));
    }

    fn answer(&mut self, seq: u64, answer: Answer) {
        self.told.push(Told::Answer(seq, answer, Vec::new()));
    }

    fn answer_signal(&mut self, seq: u64, result: WireSignalResult) {
        self.answer(seq, Answer::Signal(result));
    }

    // ---- the shim's word -------------------------------------------------------------------------------------------

    /// A message of the shim.
    pub(super) fn hear_shim(
        &mut self,
        word: FromShim,
        fds: Vec<OwnedFd>,
        host: &HostIdentity,
        shim_pid: i32,
        now: u64,
    ) {
        if self.ended {
            // The last word on the tree has been told, and nothing follows it.
            return;
        }
        match word {
            FromShim::Prepared { command, shim } => {
                let leader = fds.into_iter().next();
                self.prepared(command.into(), shim.into(), leader, host, shim_pid);
            }
            FromShim::PrepareFailed(failure) => self.not_prepared(failure.into()),
            FromShim::NotReleased => {
                self.stage = Stage::NotReleased;
                self.gate = None;
                self.tell(Fact::NotReleased);
            }
            FromShim::Executed => {
                self.stage = Stage::Ran;
                self.tell(Fact::Executed);
            }
            FromShim::ExecFailed(failure) => {
                self.stage = Stage::NotExecuted;
                self.tell(Fact::ExecFailed(failure.into()));
            }
            FromShim::Exited { at_us, exit, rest } => {
                self.leader_ended(Timestamp(at_us), exit.into(), rest, now);
            }
            FromShim::Empty { .. } => self.heard.childless = true,
        }
    }

    fn prepared(
        &mut self,
        command: kennel_lifecycle::ProcessIdentity,
        shim: kennel_lifecycle::ProcessIdentity,
        leader: Option<OwnedFd>,
        host: &HostIdentity,
        shim_pid: i32,
    ) {
        let Stage::Preparing { seq } = self.stage else {
            return;
        };
        self.stage = Stage::AtGate;
        let copies = self
            .outputs
            .as_ref()
            .map(|(out, err)| Ok::<_, std::io::Error>(vec![out.try_clone()?, err.try_clone()?]));
        let (Some(leader), Some(Ok(fds))) = (leader, copies) else {
            // No room for a descriptor here: the gate shuts, and the shim tells the rest.
            self.gate = None;
            self.answer(seq, Answer::Exhausted("descriptors of the keeper".into()));
            return;
        };
        self.tree = Some(Tree {
            run: self.id,
            leader: PidFd::from_fd(leader),
            leader_pid: command.pid,
            root: Root::Shim(shim_pid),
            cgroup: self.cgroup.clone(),
        });
        let answer = Answer::Prepared {
            identity: WireIdentity {
                command: command.into(),
                shim: shim.into(),
                cgroup: self.cgroup.clone().map(Into::into),
                host: host.clone().into(),
            },
            cgroup_refused: self.cgroup_refused.clone(),
        };
        self.told.push(Told::Answer(seq, answer, fds));
    }

    fn not_prepared(&mut self, failure: StartFailure) {
        let Stage::Preparing { seq } = self.stage else {
            return;
        };
        self.stage = Stage::NotReleased;
        let ours = [StartStage::Prepare, StartStage::Cgroup, StartStage::Fork];
        let full = ours.contains(&failure.stage) && failure.errno.is_some_and(is_exhaustion);
        let answer = if full {
            Answer::Exhausted(format!("{:?}: errno {:?}", failure.stage, failure.errno))
        } else {
            Answer::PrepareFailed(failure.into())
        };
        self.answer(seq, answer);
        self.over();
        self.acknowledged = true;
    }

    /// The leader has ended. The rest of its tree, if there is one, is ended by the run's own plan.
    fn leader_ended(&mut self, at: Timestamp, exit: Exit, rest: bool, now: u64) {
        if std::mem::replace(&mut self.heard.leader_exited, true) {
            return;
        }
        if self.stage == Stage::NotReleased {
            return;
        }
        self.told.push(Told::Fact(at, Fact::LeaderExited(exit)));
        if rest && self.ladder.is_none() {
            self.ladder = Some(Ladder::start(&self.policy.stop, now));
        }
    }

    /// The shim's end of the socket is closed: after its last word, or because it was killed.
    pub(super) fn shim_gone(&mut self, now: u64) {
        self.shim = None;
        if self.ended || self.heard.childless {
            return;
        }
        self.gate = None;
        if let Stage::Preparing { .. } = self.stage {
            self.not_prepared(StartFailure {
                stage: StartStage::Prepare,
                errno: None,
                path: None,
            });
            return;
        }
        if let Some(tree) = &mut self.tree {
            tree.root = Root::Lost;
        }
        // Whether a released child was executed is not known any more, so nothing is said of it: it may have run.
        if matches!(self.stage, Stage::Released | Stage::Ran) && self.ladder.is_none() {
            self.ladder = Some(Ladder::start(&self.policy.stop, now));
        }
    }

    /// A shim that reaped the leader and died before it said so has left the exit in its last will.
    fn ask_last_will(&mut self, now: u64) {
        let lost = self.tree.as_ref().filter(|t| t.root == Root::Lost);
        let reaped = lost.is_some_and(|tree| !tree.leader.is_unreaped());
        if self.heard.leader_exited || !reaped {
            return;
        }
        let exit = exit_record::read(&self.private_dir).and_then(|record| record.exit);
        self.leader_reaped(exit.unwrap_or(Exit::Unknown), now);
    }

    /// The leader was reaped, by this process or by a shim that is lost.
    pub(super) fn leader_reaped(&mut self, exit: Exit, now: u64) {
        if self.stage == Stage::AtGate {
            // Its gate was never opened.
            self.stage = Stage::NotReleased;
            self.tell(Fact::NotReleased);
        }
        self.leader_ended(clock::wall(), exit, false, now);
    }

    // ---- what the server wants -------------------------------------------------------------------------------------

    /// Opens the gate.
    pub(super) fn release(&mut self) {
        let Some(gate) = self.gate.take() else { return };
        if self.stage != Stage::AtGate {
            return;
        }
        // One byte always fits; EPIPE means that the child is gone, which the shim tells.
        if nix::unistd::write(&gate, &[OPEN]).is_ok() {
            self.stage = Stage::Released;
        }
    }

    /// Shuts the gate, if it was not opened.
    pub(super) fn shut_gate(&mut self) {
        self.gate = None;
    }

    /// Starts the ladder, or shortens the one on its way.
    pub(super) fn stop(&mut self, plan: &StopPlan, now: u64) {
        self.shut_gate();
        if matches!(self.stage, Stage::Preparing { .. } | Stage::AtGate) {
            return;
        }
        match &mut self.ladder {
            Some(ladder) => ladder.shorten(plan, now),
            None => self.ladder = Some(Ladder::start(plan, now)),
        }
    }

    /// SIGINT to the leader's group.
    pub(super) fn interrupt(&mut self, seq: u64) {
        let live = matches!(self.stage, Stage::Released | Stage::Ran) && !self.ended;
        let Some(tree) = self.tree.as_ref().filter(|_| live) else {
            self.answer_signal(seq, WireSignalResult::Gone);
            return;
        };
        let (result, errno) = match tree.signal_group(Signal::INT) {
            Sent::Done => (WireSignalResult::Done, None),
            Sent::Gone => (WireSignalResult::Gone, Some(libc::ESRCH)),
            Sent::Failed(errno) => (WireSignalResult::Failed(errno), Some(errno)),
        };
        self.tell(Fact::SignalSent {
            signal: Signal::INT,
            targets: None,
            errno,
        });
        self.answer_signal(seq, result);
    }

    /// Begins to stop every task.
    pub(super) fn pause(&mut self, seq: u64, now: u64) {
        let live = self.stage == Stage::Ran && !self.ended && self.ladder.is_none();
        let Some(tree) = self.tree.as_ref().filter(|_| live) else {
            self.answer_signal(seq, WireSignalResult::Gone);
            return;
        };
        self.pause.begin(tree, seq, now);
        self.go_on_pausing(now);
    }

    /// Continues what was stopped.
    pub(super) fn resume(&mut self, seq: u64) {
        let Some(tree) = self.tree.as_ref().filter(|_| !self.ended) else {
            self.answer_signal(seq, WireSignalResult::Gone);
            return;
        };
        let result = self.pause.end(tree);
        if let Some(waiting) = self.pause.interrupted() {
            self.answer_signal(waiting, WireSignalResult::Partial(Vec::new()));
        }
        self.pause = Pause::None;
        self.answer_signal(seq, result);
    }

    fn go_on_pausing(&mut self, now: u64) {
        let Some(tree) = &self.tree else { return };
        if let Some((seq, result)) = self.pause.go_on(tree, now) {
            if result != WireSignalResult::Done {
                self.pause = Pause::None;
            }
            self.answer_signal(seq, result);
        }
    }

    /// The server is gone: nothing more is let go, and what runs is ended by its own plan.
    pub(super) fn server_gone(&mut self, now: u64) {
        let plan = self.policy.stop.clone();
        if self.ladder.is_none() {
            self.stop(&plan, now);
        }
        self.shut_gate();
        self.acknowledged = true;
    }

    // ---- time ------------------------------------------------------------------------------------------------------

    /// When to call [`Self::step`] without any event.
    pub(super) fn wake_at(&self, now: u64) -> Option<u64> {
        if self.ended {
            return None;
        }
        let ladder = self.ladder.as_ref().and_then(Ladder::wake_at);
        let lost = self.tree.as_ref().is_some_and(|t| t.root == Root::Lost);
        let look = (self.heard.childless || lost || self.killed_at.is_some())
            .then_some(now + LOOK_AGAIN_MS);
        [ladder, look, self.pause.wake_at(now)]
            .into_iter()
            .flatten()
            .min()
    }

    /// One step after any event: climb, pause, look whether all is over.
    pub(super) fn step(&mut self, now: u64, shutting_down: bool) {
        if self.ended {
            return;
        }
        self.ask_last_will(now);
        self.climb(now);
        if self.ladder.is_none() {
            self.go_on_pausing(now);
        }
        self.look(now, shutting_down);
    }

    fn climb(&mut self, now: u64) {
        if self.heard.childless && self.cgroup.is_none() {
            return;
        }
        while let Some(signal) = self.ladder.as_mut().and_then(|l| l.due(now)) {
            let Some(tree) = &self.tree else { return };
            let volley = tree.signal(signal);
            // Signal first, then wake: a stopped tree can only die of it when it runs.
            let woken = if signal == Signal::KILL {
                self.killed_at = Some(now);
                self.for_shim.push(ToShim::KillAll);
                Volley::default()
            } else {
                tree.wake()
            };
            // Who has not taken our stop yet is not seen as stopped, and has to be let go as well.
            self.pause.end(tree);
            self.tell_volley(signal, volley);
            if woken.targets > 0 {
                self.tell_volley(Signal::CONT, woken);
            }
            if let Some(waiting) = self.pause.interrupted() {
                self.answer_signal(waiting, WireSignalResult::Partial(Vec::new()));
            }
            self.pause = Pause::None;
        }
    }

    fn tell_volley(&mut self, signal: Signal, volley: Volley) {
        self.tell(Fact::SignalSent {
            signal,
            targets: Some(volley.targets),
            errno: volley.errno,
        });
    }

    /// Whether the tree is empty, and by what proof.
    fn look(&mut self, now: u64, shutting_down: bool) {
        let Some(tree) = &self.tree else {
            // Answered with `Exhausted`: there is no tree to look at, only a child that leaves.
            if self.heard.childless || self.shim.is_none() {
                self.over();
                self.acknowledged = true;
            }
            return;
        };
        let populated = |group: &CgroupIdentity| cgroup::is_populated(group).unwrap_or(true);
        let never_ran = self.stage == Stage::NotReleased;
        let lost = tree.root == Root::Lost;
        let over = if lost {
            self.heard.leader_exited
                && !self.cgroup.as_ref().is_some_and(populated)
                && tree.members().is_empty()
        } else {
            self.heard.childless && !self.cgroup.as_ref().is_some_and(populated)
        };
        if over {
            let verdict = match (&self.cgroup, lost) {
                _ if never_ran => TreeVerdict::NeverRan,
                (Some(_), false) => TreeVerdict::Empty(Proof::CgroupAndEchild),
                (None, false) => TreeVerdict::Empty(Proof::Echild),
                (Some(_), true) => TreeVerdict::Empty(Proof::Cgroup),
                (None, true) => TreeVerdict::Unverified(
                    "the shim was lost and there is no control group to look into".into(),
                ),
            };
            self.tell(Fact::TreeEnded(verdict));
            self.over();
            return;
        }
        if self.heard.childless && self.ladder.is_none() {
            // Somebody in the group is not below the shim: it belongs to the run all the same.
            self.ladder = Some(Ladder::start(&self.policy.stop, now));
        }
        self.kill_again(now, shutting_down);
    }

    fn kill_again(&mut self, now: u64, shutting_down: bool) {
        let (Some(killed_at), Some(tree)) = (self.killed_at, &self.tree) else {
            return;
        };
        let patience = if shutting_down {
            SURVIVORS_AFTER_SHUTDOWN_MS
        } else {
            SURVIVORS_AFTER_MS
        };
        if now < killed_at + patience {
            if tree.root == Root::Lost || self.heard.childless {
                tree.signal(Signal::KILL);
            }
            return;
        }
        let mut left: Vec<i32> = tree.members().into_keys().collect();
        left.sort_unstable();
        left.truncate(PIDS_MAX);
        self.tell(Fact::TreeEnded(TreeVerdict::Survivors(left)));
        self.over();
    }

    fn over(&mut self) {
        self.ended = true;
        self.gate = None;
        self.outputs = None;
        self.ladder = None;
        self.tree = None;
    }
}

fn is_exhaustion(errno: i32) -> bool {
    matches!(
        errno,
        libc::EMFILE
            | libc::ENFILE
            | libc::EAGAIN
            | libc::ENOMEM
            | libc::ENOBUFS
            | libc::ETOOMANYREFS
    )
}

#[cfg(test)]
mod tests;
