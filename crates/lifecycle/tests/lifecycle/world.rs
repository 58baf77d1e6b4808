//! A fake kernel, store and output that answer only to effects.
//!
//! Each source sends its reports in order; between the sources any order may happen, and any report may come again
//! later. The server may die after any effect: its memory is lost, and the next one recovers from row, journal and
//! keeper.

use crate::samples::{GRACE, abort, failure, identity, killed_by, stuck};
use kennel_lifecycle::{
    AdoptedRun, AttemptRecord, Command, Countdown, Deadline, Effect, Entry, Exit, HeldPause, Input,
    LeaderExit, Leftovers, Machine, Outcome, Phase, Proof, Report, RowContents, RowState, Signal,
    StartStage, StopOrder, StopReason, StreamsEnd, Timestamp, TreeVerdict,
    ladder::{Action, Ladder, StopPlan},
};
use std::{collections::VecDeque, time::Duration};

#[derive(Clone, Debug)]
pub(crate) struct Story {
    pub(crate) temper: Temper,
    pub(crate) fault: Fault,
    /// The leader has a descendant, which outlives it.
    pub(crate) worker: bool,
    /// Policy for that descendant when the leader exits by itself.
    pub(crate) policy: LeaderExit,
    /// A process outside of the tree holds the output.
    pub(crate) holder: bool,
    /// Milliseconds that the command may run, pauses not counted.
    pub(crate) limit: Option<u64>,
    /// Requests, each after so many reports.
    pub(crate) wishes: Vec<(usize, Command)>,
    /// Order of the sources, when several have reports.
    pub(crate) order: Vec<u8>,
    /// Reports that arrive a second time: which, and how many reports later.
    pub(crate) echoes: Vec<(usize, usize)>,
    /// Effects after which the server dies.
    pub(crate) deaths: Vec<usize>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Temper {
    /// Exits at any polite signal.
    Obeys,
    /// Exits on its own.
    EndsAlone,
    /// Exits at SIGKILL only.
    Ignores,
    /// Has stopped itself: gets no signal until it is continued.
    IsStopped,
    /// execve does not come back (a dead file server).
    HangsInExec,
    /// Obeys, but its descendant does not.
    LeavesAStubbornWorker,
    /// Waits in the kernel: SIGKILL ends it [`STUCK_MS`] later.
    IsStuck,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Fault {
    None,
    Fork,
    RecordFailed,
    /// The row is not there after all.
    RecordUnknownAbsent,
    /// The row is there.
    RecordUnknownPresent,
    /// The INSERT lands when the run is over.
    RecordUnknownLate,
    KeyTaken,
    DiesAtGate,
    Exec,
    /// After the gate was opened and before it could report exec.
    ShimDies,
    PauseNotRecorded,
    PausePartial,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Child {
    None,
    AtGate,
    InExec,
    Runs,
    Dead,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Row {
    Absent,
    Open,
    Closed(Box<Outcome>),
    AnotherRuns,
}

/// Source of reports.
#[derive(Clone, Copy)]
enum Source {
    Keeper,
    Store,
    Output,
}

#[expect(
    clippy::struct_excessive_bools,
    reason = "each is one thing that an observer can see"
)]
pub(crate) struct World {
    story: Story,
    pub(crate) machine: Machine,
    /// Milliseconds.
    pub(crate) now: u64,
    reports: [VecDeque<(u64, Report)>; 3],
    /// Reports that the keeper sends each server, until the outcome is acknowledged.
    facts: Vec<(u64, Report)>,
    /// Number of effects carried out.
    done: usize,
    /// Contents of the row.
    says: RowContents,
    /// Whether late writes of an earlier server are refused.
    fenced: bool,
    echoes: Vec<(usize, (u64, Report))>,
    heard: usize,
    pub(crate) child: Child,
    pub(crate) worker: bool,
    tree_reported: bool,
    ladder: Option<Ladder>,
    left: Option<Countdown>,
    /// Milliseconds that the command has run unpaused.
    pub(crate) ran: u64,
    /// Whether the time was up before any stop of the tree.
    pub(crate) exceeded: bool,
    /// Time at which a stuck process exits.
    pub(crate) goes_at: Option<u64>,
    /// Whether an outcome was recorded before that.
    pub(crate) ended_while_stuck: bool,
    /// Time at which the drain is over.
    drained_by: Option<u64>,
    /// Whether the descendant was detached.
    pub(crate) kept: bool,
    pub(crate) frozen: bool,
    streams_reported: bool,
    pub(crate) row: Row,
    pub(crate) gate_opened: bool,
    pub(crate) row_before_exec: bool,
    pub(crate) executed: bool,
    pub(crate) stopped_in_time: bool,
    pub(crate) stopped_while_leader_lived: bool,
    pub(crate) died_of: Option<Exit>,
    pub(crate) died_alone: bool,
    pub(crate) outcomes: usize,
    pub(crate) acknowledged: usize,
    pub(crate) announced: Vec<Entry>,
}

/// More reports than any story has; a machine that never comes to rest fails its test.
const TURNS_MAX: usize = 1_000;

/// Time during which SIGKILL has no effect on a stuck process.
const STUCK_MS: u64 = 86_400_000;

/// Time without events between two requests, where time counts.
const IDLE_MS: u64 = 100;

impl Story {
    /// Runs from the first request to the last report. A run that continues is ended by a last stop.
    pub(crate) fn reported(self) -> World {
        let mut world = World::new(self);
        world.step(0, Input::Command(Command::Admit));
        world.turns();
        // A server that dies with the last request has not answered it.
        for _ in 0..=world.story.deaths.len() {
            if !world.is_over() {
                world.command(Command::Stop(abort(GRACE)));
                world.turns();
            }
        }
        let late = world.story.fault == Fault::RecordUnknownLate && !world.fenced;
        if late && world.row == Row::Absent {
            world.row = Row::Open;
        }
        world
    }
}

impl World {
    fn new(story: Story) -> Self {
        World {
            machine: Machine::with(story.policy),
            story,
            now: 0,
            reports: Default::default(),
            facts: Vec::new(),
            done: 0,
            says: RowContents::default(),
            fenced: false,
            echoes: Vec::new(),
            heard: 0,
            child: Child::None,
            worker: false,
            tree_reported: false,
            ladder: None,
            left: None,
            ran: 0,
            exceeded: false,
            goes_at: None,
            ended_while_stuck: false,
            drained_by: None,
            kept: false,
            frozen: false,
            streams_reported: false,
            row: Row::Absent,
            gate_opened: false,
            row_before_exec: false,
            executed: false,
            stopped_in_time: false,
            stopped_while_leader_lived: false,
            died_of: None,
            died_alone: false,
            outcomes: 0,
            acknowledged: 0,
            announced: Vec::new(),
        }
    }

    fn is_over(&self) -> bool {
        let phase = self.machine.phase();
        matches!(phase, Phase::Closed(_) | Phase::Forgotten(_))
    }

    pub(crate) fn reported_stopping(&self) -> bool {
        let stopping = |a: &Entry| matches!(a, Entry::Stopping { .. });
        self.announced.iter().any(stopping)
    }

    pub(crate) fn leader_lives(&self) -> bool {
        matches!(self.child, Child::AtGate | Child::InExec | Child::Runs)
    }

    /// Lets everything happen that happens by itself, and the requests in their turn.
    fn turns(&mut self) {
        for _ in 0..TURNS_MAX {
            while let Some(at) = self
                .story
                .wishes
                .iter()
                .position(|(at, _)| *at <= self.heard)
            {
                let (_, command) = self.story.wishes.remove(at);
                self.command(command);
            }
            if let Some((at, report)) = self.next_report() {
                self.heard += 1;
                self.step(at, Input::Report(report));
            } else if let Some(at) = self.ladder.as_ref().and_then(Ladder::wake_at) {
                self.pass_to(at);
                self.climb();
            } else if let Some(at) = self.drain_is_over_at() {
                self.pass_to(at);
                self.stop_tree(&StopPlan::abort(GRACE));
            } else if self.child == Child::Runs
                && self.story.temper == Temper::EndsAlone
                && !self.frozen
            {
                self.died_alone = true;
                self.leader_dies(Exit::Code(0));
            } else if let Some(at) = self.time_is_up_at() {
                self.pass_to(at);
                self.exceed();
            } else if self.story.wishes.is_empty() {
                let Some(at) = self.goes_at.take() else {
                    return;
                };
                self.pass_to(at);
                self.leader_dies(killed_by(Signal::KILL));
            } else {
                // Nothing happens until the next request.
                self.heard += 1;
                let idle = self.story.limit.map_or(0, |_| IDLE_MS);
                self.pass_to(self.now + idle);
            }
        }
        panic!("the run does not come to rest: {:?}", self.machine.phase());
    }

    fn pass_to(&mut self, now: u64) {
        let passed = now.saturating_sub(self.now);
        self.now += passed;
        if (self.child == Child::Runs || self.worker) && !self.frozen {
            self.ran += passed;
        }
    }

    /// Returns when a drain is stopped, if that happens next.
    fn drain_is_over_at(&self) -> Option<u64> {
        let at = self.drained_by?;
        let other = self.left.and_then(|left| left.over_at());
        let next =
            self.ladder.is_none() && !self.tree_reported && other.is_none_or(|other| at < other);
        next.then_some(at)
    }

    /// Returns when the keeper has to stop the tree, if that happens next.
    fn time_is_up_at(&self) -> Option<u64> {
        let left = self.left.filter(|_| self.ladder.is_none());
        let at = left?.over_at()?;
        (self.story.wishes.is_empty() || at <= self.now + IDLE_MS).then_some(at)
    }

    fn exceed(&mut self) {
        self.exceeded = true;
        self.left = None;
        let exceeded = Report::KeeperStops {
            reason: StopReason::DeadlineExceeded(Deadline::MaxRuntime),
            grace: GRACE,
        };
        self.report(Source::Keeper, exceeded);
        self.stop_tree(&StopPlan::abort(GRACE));
    }

    fn next_report(&mut self) -> Option<(u64, Report)> {
        if let Some(at) = self.echoes.iter().position(|(at, _)| *at <= self.heard) {
            return Some(self.echoes.remove(at).1);
        }
        let talking: Vec<usize> = (0..3).filter(|n| !self.reports[*n].is_empty()).collect();
        if talking.is_empty() {
            return (!self.echoes.is_empty()).then(|| self.echoes.remove(0).1);
        }
        let choice = self.story.order.get(self.heard).copied().unwrap_or(0);
        let report = self.reports[talking[usize::from(choice) % talking.len()]].pop_front()?;
        for (which, later) in &self.story.echoes {
            if *which == self.heard {
                self.echoes.push((self.heard + later, report.clone()));
            }
        }
        Some(report)
    }

    fn command(&mut self, command: Command) {
        let is_stop = matches!(command, Command::Stop(_));
        let obeyed = self.step(self.now, Input::Command(command));
        if is_stop && obeyed && !self.gate_opened {
            self.stopped_in_time = true;
        }
        // The machine cannot know of events that were not reported.
        let unheard = self.machine.ends().leader.is_none();
        if is_stop && obeyed && unheard {
            self.stopped_while_leader_lived = true;
        }
    }

    fn step(&mut self, at: u64, input: Input) -> bool {
        // A refusal is a legal answer here; only the final state matters.
        let obeyed = self.machine.step(time(at), input).is_ok();
        self.perform_all();
        obeyed
    }

    fn perform_all(&mut self) {
        let effects: Vec<_> = self.machine.effects().collect();
        for effect in effects {
            self.perform(effect);
            self.done += 1;
            if self.story.deaths.contains(&self.done) {
                return self.server_dies();
            }
        }
    }

    fn report(&mut self, source: Source, report: Report) {
        let answer = matches!(
            report,
            Report::Prepared(_)
                | Report::PrepareFailed(_)
                | Report::Frozen
                | Report::NotFrozen
                | Report::Thawed
        );
        if let (Source::Keeper, false) = (source, answer) {
            self.facts.push((self.now, report.clone()));
        }
        self.reports[source as usize].push_back((self.now, report));
    }

    /// Loses the server's memory, its requests and pending reports; then the next one begins.
    fn server_dies(&mut self) {
        self.reports = Default::default();
        self.echoes.clear();
        if self.acknowledged > 0 {
            return;
        }
        if let Row::Closed(outcome) = self.row.clone() {
            self.machine = Machine::ended(time(self.now), *outcome, self.record_now(), None);
            return self.perform_all();
        }
        if self.child == Child::None {
            if !self.is_over() {
                // The run was never reported: its caller repeats the spawn.
                self.stopped_in_time = false;
                self.machine = Machine::with(self.story.policy);
                self.step(self.now, Input::Command(Command::Admit));
            }
            return;
        }
        self.fenced = true;
        if self.child == Child::AtGate && !self.gate_opened {
            self.shut_gate();
        }
        let record = self.record_now();
        if record.streams.is_none() && std::mem::take(&mut self.streams_reported) {
            // The pipes still exist, and are read to EOF again.
            self.reports[Source::Output as usize].clear();
            let closed = self.tree_reported && !self.story.holder && !self.kept;
            // This world reports no EOF for a shim that dies.
            if self.executed && closed && self.story.fault != Fault::ShimDies {
                self.streams_close(StreamsEnd::Eof);
            }
        }
        let adopted_run = AdoptedRun {
            identity: identity(),
            on_leader_exit: self.story.policy,
            released: self.gate_opened,
            pause: if self.frozen {
                HeldPause::Stopped
            } else {
                HeldPause::None
            },
            row: (self.row == Row::Open).then(|| self.says.clone()),
            record,
            stop_now: time(self.now),
        };
        self.machine = Machine::adopted(time(self.now), adopted_run);
        self.reports[Source::Keeper as usize] = self.facts.clone().into();
        self.perform_all();
    }

    /// Folds the entries.
    fn record_now(&self) -> AttemptRecord {
        record_of(&self.announced)
    }

    fn perform(&mut self, effect: Effect) {
        match effect {
            Effect::Prepare => self.prepare(),
            Effect::Record => self.record(),
            Effect::Release => self.release(),
            Effect::ShutGate => {
                if self.child == Child::AtGate {
                    self.shut_gate();
                }
            }
            Effect::RecordStop { order, deadline } => self.record_stop(order, deadline),
            Effect::StopTree(plan) => self.stop_tree(&plan),
            Effect::Interrupt => self.signal(Signal::INT),
            Effect::KeepRest => self.keep_rest(),
            Effect::RecordState(state) => {
                let failed =
                    self.story.fault == Fault::PauseNotRecorded && state == RowState::Pausing;
                if !failed {
                    self.says.state = Some(state);
                }
                self.report(
                    Source::Store,
                    if failed {
                        Report::StateNotRecorded(state)
                    } else {
                        Report::StateRecorded(state)
                    },
                );
            }
            Effect::Freeze => {
                self.frozen = self.story.fault != Fault::PausePartial && self.leader_lives();
                let seen = if self.frozen {
                    Report::Frozen
                } else {
                    Report::NotFrozen
                };
                self.report(Source::Keeper, seen);
                if let Some(left) = self.left.as_mut().filter(|_| self.frozen) {
                    left.stand(self.now);
                }
            }
            Effect::Thaw => {
                self.frozen = false;
                if let Some(left) = &mut self.left {
                    left.run(self.now);
                }
                self.report(Source::Keeper, Report::Thawed);
            }
            Effect::FinishOutput => self.streams_close(StreamsEnd::Cut),
            Effect::RecordOutcome(outcome) => {
                self.outcomes += 1;
                self.ended_while_stuck |= self.goes_at.is_some();
                // An upsert: over an open row, or without a row.
                self.row = Row::Closed(Box::new(outcome));
                self.report(Source::Store, Report::OutcomeRecorded);
            }
            Effect::Withdraw => {
                self.row = Row::Absent;
                // A late record is withdrawn when it is found.
                self.fenced = true;
                self.report(Source::Store, Report::Withdrawn);
            }
            Effect::RecordRunning | Effect::Forget => {}
            Effect::Acknowledge => self.acknowledged += 1,
            Effect::Append(entry) => self.announced.push(entry),
        }
    }

    fn shut_gate(&mut self) {
        self.child = Child::Dead;
        self.report(Source::Keeper, Report::NotReleased);
        self.report(Source::Keeper, Report::LeaderExited(Exit::Code(125)));
        self.tree_ends();
    }

    /// The first order stays, and the nearest deadline.
    fn record_stop(&mut self, order: StopOrder, deadline: Timestamp) {
        let before = self.says.stop.take();
        self.says.stop = Some(match before {
            Some((first, at)) => (first, at.min(deadline)),
            None => (order, deadline),
        });
        self.report(Source::Store, Report::StopRecorded);
    }

    fn prepare(&mut self) {
        if self.story.fault == Fault::Fork {
            let failed = Report::PrepareFailed(failure(StartStage::Fork));
            return self.report(Source::Keeper, failed);
        }
        self.child = Child::AtGate;
        self.report(Source::Keeper, Report::Prepared(identity()));
        if self.story.fault == Fault::DiesAtGate {
            self.child = Child::Dead;
            self.report(Source::Keeper, Report::NotReleased);
            self.report(
                Source::Keeper,
                Report::LeaderExited(killed_by(Signal::KILL)),
            );
            self.tree_ends();
        }
    }

    fn record(&mut self) {
        let (row, report) = match self.story.fault {
            Fault::RecordFailed => (Row::Absent, Report::RecordFailed),
            Fault::RecordUnknownAbsent | Fault::RecordUnknownLate => {
                (Row::Absent, Report::RecordUnknown)
            }
            Fault::RecordUnknownPresent => (Row::Open, Report::RecordUnknown),
            Fault::KeyTaken => (Row::AnotherRuns, Report::KeyTaken),
            Fault::None
            | Fault::Fork
            | Fault::DiesAtGate
            | Fault::Exec
            | Fault::ShimDies
            | Fault::PauseNotRecorded
            | Fault::PausePartial => (Row::Open, Report::Recorded),
        };
        self.row = row;
        self.report(Source::Store, report);
    }

    fn release(&mut self) {
        self.gate_opened = true;
        if self.child != Child::AtGate {
            return;
        }
        self.child = Child::InExec;
        if self.story.fault == Fault::Exec {
            self.child = Child::Dead;
            self.report(
                Source::Keeper,
                Report::ExecFailed(failure(StartStage::Exec)),
            );
            self.report(Source::Keeper, Report::LeaderExited(Exit::Code(127)));
            return self.tree_ends();
        }
        if self.story.temper == Temper::HangsInExec {
            return;
        }
        self.child = Child::Runs;
        self.executed = true;
        self.row_before_exec = self.row == Row::Open;
        self.worker = self.story.worker;
        if self.story.fault == Fault::ShimDies {
            // The keeper terminates what it can see and cannot report the exit.
            self.child = Child::Dead;
            self.worker = false;
            self.died_alone = true;
            self.tree_reported = true;
            let verdict = TreeVerdict::Unverified("the shim died".into());
            return self.report(Source::Keeper, Report::TreeEnded(verdict));
        }
        self.report(Source::Keeper, Report::Executed);
        self.left = self.story.limit.map(|limit| {
            let mut left = Countdown::new(Duration::from_millis(limit));
            left.run(self.now);
            left
        });
    }

    /// A second plan shortens the first; frozen and stopped tasks are continued after the signal.
    fn stop_tree(&mut self, plan: &StopPlan) {
        match &mut self.ladder {
            Some(ladder) => ladder.shorten(plan, self.now),
            None => self.ladder = Some(Ladder::start(plan, self.now)),
        }
        self.climb();
    }

    fn climb(&mut self) {
        while let Some(action) = self.ladder.as_mut().and_then(|l| l.due(self.now)) {
            let Action::Signal(signal) = action else {
                continue;
            };
            self.frozen = false;
            if self.story.temper == Temper::IsStopped {
                // SIGCONT follows the signal.
                self.story.temper = Temper::Obeys;
            }
            self.signal(signal);
        }
    }

    fn signal(&mut self, signal: Signal) {
        let kills = signal == Signal::KILL;
        let temper = self.story.temper;
        let obeys = matches!(
            temper,
            Temper::Obeys | Temper::EndsAlone | Temper::LeavesAStubbornWorker
        );
        let hears = self.child == Child::Runs && !self.frozen;
        if kills || (obeys && temper != Temper::LeavesAStubbornWorker && hears) {
            self.worker = false;
        }
        if kills && temper == Temper::IsStuck && self.child == Child::Runs {
            self.goes_at = Some(self.now + STUCK_MS);
            return self.report(Source::Keeper, Report::TreeStuck(stuck()));
        }
        if self.leader_lives() && (kills || (obeys && hears)) {
            self.leader_dies(killed_by(signal));
        } else if kills {
            self.tree_ends();
        }
    }

    /// As the keeper: not while a stop is in progress, and not where no process is left to detach.
    fn keep_rest(&mut self) {
        if self.worker && self.ladder.is_none() && !self.leader_lives() && !self.tree_reported {
            self.kept = true;
            self.tree_reported = true;
            self.left = None;
            let verdict = TreeVerdict::Kept(Leftovers::default());
            self.report(Source::Keeper, Report::TreeEnded(verdict));
        }
    }

    /// The policy decides on the rest, unless a stop is in progress already.
    fn leader_dies(&mut self, exit: Exit) {
        self.child = Child::Dead;
        self.died_of = Some(exit);
        self.died_alone |= self.ladder.is_none();
        self.report(Source::Keeper, Report::LeaderExited(exit));
        if self.worker && self.ladder.is_none() {
            match self.story.policy {
                LeaderExit::Stop => self.stop_tree(&StopPlan::abort(GRACE)),
                LeaderExit::Drain { timeout } => {
                    let millis = |t: Duration| u64::try_from(t.as_millis()).unwrap();
                    self.drained_by = timeout.map(|t| self.now + millis(t));
                }
                // Nothing is done before the machine orders it.
                LeaderExit::Keep => {}
            }
        }
        self.tree_ends();
    }

    fn tree_ends(&mut self) {
        if self.leader_lives() || self.worker || self.tree_reported {
            return;
        }
        self.tree_reported = true;
        self.ladder = None;
        self.left = None;
        let verdict = TreeVerdict::Empty(Proof::CgroupAndEchild);
        self.report(Source::Keeper, Report::TreeEnded(verdict));
        if self.executed && !self.story.holder {
            self.streams_close(StreamsEnd::Eof);
        }
    }

    fn streams_close(&mut self, how: StreamsEnd) {
        if !self.streams_reported {
            self.streams_reported = true;
            self.report(Source::Output, Report::StreamsClosed(how));
        }
    }
}

fn time(millis: u64) -> Timestamp {
    Timestamp(i64::try_from(millis).unwrap() * 1_000)
}

/// Folds these entries.
pub(crate) fn record_of(entries: &[Entry]) -> AttemptRecord {
    let mut record = AttemptRecord::default();
    for entry in entries {
        record.fold(Timestamp::default(), entry);
    }
    record
}
