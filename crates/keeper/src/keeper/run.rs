//! One run in the keeper: gate, ladder, pause, and the reports of its shim.
//!
//! Nothing here waits. Reports are collected in [`Run::outgoing`] and sent by the loop.

mod adoption;
mod deadline;
mod ending;
mod extension;
mod handover;
mod hearing;
mod helpers;
mod input;
mod interrupt;
mod kept;
mod members;
mod memory;
mod notices;
mod outputs;
mod requests;
mod rest;
mod stuck;
mod terminal;

use super::pause::{self, Pause};
use crate::{
    values::{Extended, Fact, SignalResult},
    wire::{Answer, FromShim, ToShim, adoption::WireMemory, policy::WirePolicy},
};
use ending::Rung;
pub(super) use hearing::is_exhaustion;
use helpers::HelperRequests;
pub(super) use input::RunInput;
use kennel_lifecycle::{
    CgroupIdentity, Countdown, Held, RunId, RunIdentity, StopStep, Timestamp, ladder::Ladder,
};
use kennel_linux::{
    clock, crash_point,
    spawn::child::OPEN,
    stuck::KillAgain,
    terminal::Terminal,
    tree::{ListLiving, Root, Tree},
    usage::Counting,
};
use kept::PendingReports;
use members::MemberRequests;
pub(super) use notices::RunNotices;
pub(super) use outputs::Outputs;
use requests::Requests;
use rest::Rest;
use std::{os::fd::OwnedFd, path::PathBuf, rc::Rc, time::Duration};

/// Time between two checks of a tree that should be empty, and between two rounds of SIGKILL.
const LOOK_AGAIN_MS: u64 = 20;

/// Progress of the command, by the reports of the shim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CommandStage {
    /// A server waits for the answer to this request, unless it is gone.
    Preparing { seq: Option<u64> },
    /// The child waits at its gate.
    AtGate,
    /// The gate was opened; the shim has not reported the result yet.
    Released,
    /// The command runs or ran.
    Ran,
    /// The command was not released.
    NotReleased,
    /// exec failed.
    NotExecuted,
}

/// One message to the server.
pub(super) enum RunMessage {
    Fact(Timestamp, Fact),
    Answer(u64, Answer, Vec<Rc<OwnedFd>>),
}

/// Known ends of the tree.
#[derive(Default)]
struct Heard {
    /// Whether the leader has exited.
    leader_exited: bool,
    /// Whether the shim has no child left.
    childless: bool,
    /// Living processes that the shim has reported although it has no child left.
    elsewhere: Vec<i32>,
}

/// One run.
pub(super) struct Run {
    pub(super) id: RunId,
    /// Token of its shim, while the shim lives.
    pub(super) shim: Option<u64>,
    policy: WirePolicy,
    /// Its private directory, where the shim leaves its exit record.
    private_dir: PathBuf,
    cgroup: Option<CgroupIdentity>,
    /// What is counted in it.
    counting: Counting,
    held: Held,
    /// Name in a critical message of its shim that this version does not know.
    pub(super) pinned: Option<String>,
    /// Identity of an announced child.
    identity: Option<RunIdentity>,
    gate: Option<OwnedFd>,
    /// Descriptors of its output, until a server has acknowledged the run.
    outputs: Option<Outputs>,
    /// Input that clients write to.
    pub(super) input: Option<RunInput>,
    /// Notification socket of its processes, and their notices.
    pub(super) notices: Option<RunNotices>,
    stage: CommandStage,
    tree: Option<Tree>,
    heard: Heard,
    ladder: Option<Ladder>,
    rung: Option<Rung>,
    /// Ends of leader and tree, and signals of the shim, that came before the signals sent earlier were reported.
    deferred: Vec<FromShim>,
    /// Processes that the leader has left, as they are listed.
    census: Option<ListLiving>,
    killed_at: Option<u64>,
    /// SIGKILL that is sent again.
    killing: Option<KillAgain>,
    /// Reported members that SIGKILL does not end.
    stuck: Option<stuck::StuckReport>,
    /// Time left for the command.
    max_runtime: Option<Countdown>,
    /// Totals of the extensions of time limits.
    extended: Extended,
    /// A shim that was lost, with its start time, while it may still have children.
    leaving_shim: Option<(i32, u64)>,
    rest: Rest,
    /// Time of the leader's exit, where that was before this keeper's time.
    leader_left_at: Option<u64>,
    shim_knows_of_stop: bool,
    /// State that the shim stores for the next keeper.
    shim_remembers: Option<WireMemory>,
    pause: Pause,
    ended: bool,
    pub(super) acknowledged: bool,
    /// Reports to repeat to the next server.
    kept: PendingReports,
    /// Rounds of signals after the last server was gone for good.
    unreported: Option<Vec<StopStep>>,
    requests: Requests,
    member_requests: MemberRequests,
    helpers: HelperRequests,
    pub(super) outgoing: Vec<RunMessage>,
    pub(super) for_shim: Vec<ToShim>,
}

/// Parts of a run.
pub(super) struct RunParts {
    pub(super) id: RunId,
    pub(super) shim: u64,
    pub(super) policy: WirePolicy,
    pub(super) run_dir: PathBuf,
    pub(super) cgroup: Option<CgroupIdentity>,
    pub(super) held: Held,
    pub(super) outputs: Outputs,
    pub(super) input: Option<RunInput>,
    pub(super) notices: Option<RunNotices>,
    pub(super) counting: Counting,
}

impl Run {
    /// Makes a run with a pending request, and the gate at which its child is to wait.
    pub(super) fn wanted(parts: RunParts, seq: u64, gate: OwnedFd) -> Self {
        Self {
            stage: CommandStage::Preparing { seq: Some(seq) },
            gate: Some(gate),
            ..Self::new(parts)
        }
    }

    fn new(parts: RunParts) -> Self {
        Self {
            max_runtime: parts.policy.timeouts.max_runtime.map(Countdown::new),
            id: parts.id,
            shim: Some(parts.shim),
            policy: parts.policy,
            private_dir: parts.run_dir,
            cgroup: parts.cgroup,
            counting: parts.counting,
            held: parts.held,
            pinned: None,
            identity: None,
            gate: None,
            outputs: Some(parts.outputs),
            input: parts.input,
            notices: parts.notices,
            stage: CommandStage::Preparing { seq: None },
            extended: Extended::default(),
            tree: None,
            heard: Heard::default(),
            ladder: None,
            rung: None,
            deferred: Vec::new(),
            census: None,
            killed_at: None,
            killing: None,
            leaving_shim: None,
            rest: Rest::default(),
            leader_left_at: None,
            shim_knows_of_stop: false,
            shim_remembers: None,
            stuck: None,
            pause: Pause::None,
            ended: false,
            acknowledged: false,
            kept: PendingReports::default(),
            unreported: None,
            requests: Requests::default(),
            member_requests: MemberRequests::default(),
            helpers: HelperRequests::default(),
            outgoing: Vec::new(),
            for_shim: Vec::new(),
        }
    }

    /// Whether the verdict on the tree was reported (or no child was ever made).
    pub(super) fn has_ended(&self) -> bool {
        self.ended
    }

    /// Returns the time of its own plan until SIGKILL.
    pub(super) fn grace(&self) -> Duration {
        self.policy.grace()
    }

    /// Takes the group to remove after the end.
    pub(super) fn take_cgroup(&mut self) -> Option<CgroupIdentity> {
        self.cgroup.take()
    }

    /// Returns the path of its control group, if it has one.
    pub(super) fn cgroup_path(&self) -> Option<PathBuf> {
        self.cgroup.as_ref().map(|group| PathBuf::from(&group.path))
    }

    /// Returns the leader's number, while this process would be the one to reap it.
    pub(super) fn orphaned_leader(&self) -> Option<i32> {
        let tree = self.tree.as_ref()?;
        (tree.root == Root::Lost && !self.heard.leader_exited).then_some(tree.leader_pid)
    }

    /// Returns the leader's number, whichever process reaps it.
    pub(super) fn leader_pid(&self) -> Option<i32> {
        self.tree.as_ref().map(|tree| tree.leader_pid)
    }

    fn report(&mut self, fact: Fact) {
        self.report_at(clock::wall(), fact);
    }

    /// Adds a report; none once the run was acknowledged.
    fn report_at(&mut self, at: Timestamp, fact: Fact) {
        if !self.acknowledged {
            self.kept.keep(at, &fact);
            self.outgoing.push(RunMessage::Fact(at, fact));
        } else if let Fact::StopStep(step) = fact {
            self.note_unreported(step);
        }
    }

    fn answer(&mut self, seq: u64, answer: Answer) {
        self.outgoing
            .push(RunMessage::Answer(seq, answer, Vec::new()));
    }

    fn answer_signal(&mut self, seq: u64, result: SignalResult) {
        self.answer(seq, Answer::Signal(result));
    }

    // ---- requests of the server ------------------------------------------------------------------------------------

    /// Opens the gate.
    pub(super) fn release(&mut self) {
        let Some(gate) = self.gate.take() else { return };
        if self.stage != CommandStage::AtGate {
            return;
        }
        crash_point!("keeper.release");
        // One byte always fits; EPIPE means that the child is gone, which the shim reports.
        if nix::unistd::write(&gate, &[OPEN]).is_ok() {
            self.stage = CommandStage::Released;
            crash_point!("keeper.released");
        }
    }

    /// Shuts the gate, if it was not opened.
    pub(super) fn shut_gate(&mut self) {
        self.gate = None;
    }

    /// Begins to stop every task.
    pub(super) fn pause(&mut self, seq: u64, now: u64) {
        let live = self.stage == CommandStage::Ran && !self.ended && self.ladder.is_none();
        let Some(tree) = self.tree.as_ref().filter(|_| live) else {
            self.answer_signal(seq, SignalResult::Gone);
            return;
        };
        match self.pause.begin(tree, &self.private_dir, seq, now) {
            Ok(()) => self.continue_pausing(now),
            // Without a record a crash would leave processes stopped.
            Err(error) => self.answer_signal(seq, pause::failed(&error)),
        }
    }

    /// Continues the stopped tasks.
    pub(super) fn resume(&mut self, seq: u64) {
        let Some(tree) = self.tree.as_ref().filter(|_| !self.ended) else {
            self.answer_signal(seq, SignalResult::Gone);
            return;
        };
        let (result, waiting) = self.pause.end(tree, &self.private_dir);
        if let Some(waiting) = waiting {
            self.answer_signal(waiting, SignalResult::Partial(Vec::new()));
        }
        self.answer_signal(seq, result);
    }

    fn continue_pausing(&mut self, now: u64) {
        let Some(tree) = &self.tree else { return };
        if let Some((seq, result)) = self.pause.advance(tree, &self.private_dir, now) {
            self.answer_signal(seq, result);
        }
    }

    // ---- time ------------------------------------------------------------------------------------------------------

    /// Returns when to call [`Self::step`] without any event.
    pub(super) fn wake_at(&self, now: u64) -> Option<u64> {
        if self.ended {
            return None;
        }
        let ladder = self.ladder.as_ref().filter(|_| self.rung.is_none());
        let ladder = ladder.and_then(Ladder::wake_at);
        let lost = self.tree.as_ref().is_some_and(|t| t.root == Root::Lost);
        let look = (self.heard.childless || lost || self.killed_at.is_some())
            .then_some(now + self.look_every(now));
        let rest = self.rest_wakes_at(now + LOOK_AGAIN_MS);
        let deadline = self.deadline();
        let notices = self.notices_wake_at();
        [
            ladder,
            look,
            rest,
            deadline,
            notices,
            self.pause.wake_at(now),
        ]
        .into_iter()
        .flatten()
        .min()
    }

    /// Takes one step after any event: climb, pause, count, check for the end.
    pub(super) fn step(&mut self, now: u64) {
        if self.ended {
            return;
        }
        self.hear_deferred(now);
        self.take_recorded_exit(now);
        self.keep_deadline(now);
        self.keep_notices(now);
        self.keep_max_pause(now);
        self.look_after_rest(now);
        if self.notifies_shim_first() {
            return;
        }
        self.climb(now);
        if self.ladder.is_none() {
            self.continue_pausing(now);
        }
        self.count(now);
        self.send_memory();
        self.look(now);
    }

    /// Returns its terminal, if it has one.
    fn terminal(&mut self) -> Option<&mut Terminal> {
        match &mut self.outputs {
            Some(Outputs::Terminal(terminal)) => Some(terminal),
            Some(Outputs::Pipes(..)) | None => None,
        }
    }

    fn over(&mut self) {
        self.ended = true;
        if let Some(terminal) = self.terminal() {
            terminal.leader_is_gone();
        }
        self.gate = None;
        self.ladder = None;
        self.rung = None;
        self.killing = None;
        self.census = None;
        self.deferred.clear();
        self.tree = None;
        self.end_member_requests();
        self.refuse_helpers();
        self.end_input();
        self.end_notices();
    }
}

#[cfg(test)]
mod tests;
