//! A shim's run: from the clone to the last exit of its tree.

mod children;
mod finish;
mod status;

use children::{is_parent_beside, kill_children, note, own_pid};

use super::{
    alone::OrphanShim,
    discard::Discard,
    helpers::{self, Helpers},
    keep::Rest,
    namespace::{self, Init},
    save::Save,
};
use crate::{
    detached,
    exit_record::Will,
    exit_slots::ExitSlot,
    held,
    wire::{self, CHILD_BYTES_MAX, FromShim, Job, Placement, policy::WirePolicy},
};
use kennel_lifecycle::{
    Exit, LeaderExit, Policy, ProcessIdentity, RunId, SecretValue, Signal, SignalSender,
    StartFailure, StartStage, TreeVerdict,
    ladder::{Action, Ladder},
    recovery::ExitRecord,
};
use kennel_linux::{
    attributes::Attributes,
    clock, crash_point, memfd, own_process,
    reap::{self, Waited},
    spawn::{self, ChildImage, ChildMemory, Ends, Lent, failure},
    tree::{Lineage, Root, Session, Tree},
};
use nix::poll::PollFlags;
use std::{
    fs::File,
    io, iter,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::PathBuf,
    rc::Rc,
};

/// First wait between two rounds of SIGKILL. A process that survives them waits for a device or is another user's: then
/// the rounds become rarer, since this can take days.
const KILL_AGAIN_MS: u64 = 5;
/// Longest wait between two rounds.
const KILL_AGAIN_MS_MAX: u64 = 1_000;
/// The wait is this fraction of the time since the first round.
const KILL_SLOWER: u64 = 32;
/// Most exits collected before the keeper's messages are read again.
const REAPED_AT_ONCE_MAX: usize = 1024;
/// Time after the start of a command at which unused memory is given back: a short run gives back all of it.
const TRIM_AFTER_MS: u64 = 1_000;

/// Progress of the child, by what it wrote into the status pipe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ChildStage {
    /// The command sets itself up.
    SettingUp,
    /// The command waits at its gate.
    AtGate,
    /// The command has read the byte that opens the gate.
    Going,
    /// The result was reported: the command runs or ran.
    Ran,
    /// The result was reported: nothing was or will be executed.
    NeverRan,
}

/// Whether exits may be left to collect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Collecting {
    Due,
    Done,
}

/// One run.
pub(super) struct Work {
    pub(super) run_dir: PathBuf,
    pub(super) policy: WirePolicy,
    /// Commands beside the run's own.
    pub(super) helpers: Helpers,
    pub(super) placement: Placement,
    pub(super) child: ChildImage,
    pub(super) attributes: Attributes,
    pub(super) tree: Tree,
    /// Identity of this process, where it has been read.
    pub(super) shim: Option<ProcessIdentity>,
    /// The first process of its private pid namespace.
    init: Option<Init>,
    status: Option<OwnedFd>,
    /// Memory of this process that the child uses until then.
    lent: Option<Lent>,
    heard: Vec<u8>,
    pub(super) stage: ChildStage,
    /// The keeper never got `Prepared`, and so expects no command.
    unannounced: bool,
    /// Whether its keeper was at work when the leader exited, once that has happened. The leader is not reaped before
    /// that is known.
    witnessed: Option<bool>,
    pub(super) leader_reaped: bool,
    pub(super) childless: bool,
    pub(super) record: ExitRecord,
    will: Will,
    pub(super) ladder: Option<Ladder>,
    pub(super) killing_since: Option<u64>,
    pub(super) rest: Rest,
    pub(super) discard: Discard,
    pub(super) save: Save,
    /// State held while the run would outlive its keeper.
    pub(super) waiting: Option<OrphanShim>,
    /// Number of rounds of SIGKILL to the children.
    kill_rounds: u64,
    look_at: Option<u64>,
    /// When to give back the memory that the start has used.
    trim_at: Option<u64>,
    /// Whether the next step collects exits.
    ends: Collecting,
    pub(super) words: Vec<FromShim>,
}

impl Work {
    /// Takes the job: child, stdin, stdout, stderr, gate, and the control group if there is one.
    pub(super) fn begin(
        run: RunId,
        mut job: Job,
        fds: Vec<OwnedFd>,
        exits: Option<Rc<File>>,
        shim: Option<ProcessIdentity>,
    ) -> Result<Self, StartFailure> {
        let prepare = |error: &io::Error| failure(StartStage::Prepare, error, None);
        let mut fds = fds.into_iter();
        let mut next = || {
            fds.next()
                .ok_or_else(|| prepare(&io::Error::from_raw_os_error(libc::EMFILE)))
        };
        let mut child = image(next()?).map_err(|e| prepare(&e))?;
        let (stdin, stdout, stderr, gate) = (next()?, next()?, next()?, next()?);
        let policy = job.policy;
        job.attributes.privileges = policy.privileges.clone();
        job.attributes.umask = policy.umask;
        let pipes = if job.terminal {
            Vec::new()
        } else {
            vec![next()?, next()?]
        };
        let copies = |needed: bool| {
            let copies = pipes.iter().filter(|_| needed).map(OwnedFd::try_clone);
            let copies = copies.collect::<io::Result<Vec<_>>>();
            copies.map_err(|e| prepare(&e))
        };
        let unread = copies(policy.on_leader_exit == LeaderExit::Keep)?;
        let outputs = copies(job.keepsake.is_some())?;
        let waiting = match job.keepsake {
            Some(keepsake) => {
                let listener = next()?;
                let input = if job.input { Some(next()?) } else { None };
                let notify = if job.notify { Some(next()?) } else { None };
                Some(OrphanShim::new(listener, keepsake, outputs, input, notify))
            }
            None => None,
        };
        let waiting = waiting.transpose().map_err(|e| prepare(&e))?;
        let born_in = match (&job.cgroup, job.placement) {
            (Some(_), Placement::ByClone) => Some(next()?),
            _ => None,
        };
        let ends = Ends {
            stdin,
            stdout,
            stderr,
            gate,
            terminal: job.terminal,
            born_in,
        };
        let run_dir = PathBuf::from(job.run_dir);
        detached::record(&run_dir, &policy, shim.as_ref()).map_err(|e| prepare(&e))?;
        let namespace = policy.pid_namespace;
        let memory = memory(&policy);
        let (gated, init) = namespace::within(namespace, || {
            spawn::fork_gated(&child, ends, &job.attributes, namespace, memory)
        })
        .inspect_err(|_| detached::forget(&run_dir, shim.as_ref()))?;
        helpers::forget_unneeded(&mut child, &policy);
        let (init, of_tree) = init.unzip();
        let slot = exits.clone().zip(job.exit_slot);
        let slot = slot.map(|(file, place)| ExitSlot::new(file, place));
        Ok(Self {
            save: Save::new(&run_dir, exits, pipes),
            run_dir,
            policy,
            helpers: Helpers::default(),
            placement: job.placement,
            child,
            attributes: job.attributes,
            tree: Tree {
                run,
                leader: gated.leader,
                leader_pid: gated.pid,
                session: Session::default(),
                lineage: Lineage::default(),
                root: Root::Shim(shim.map_or_else(own_pid, |shim| shim.pid)),
                foreign: None,
                cgroup: job.cgroup,
                init: of_tree,
            },
            init,
            shim,
            status: Some(gated.status),
            lent: gated.lent,
            heard: Vec::new(),
            stage: ChildStage::SettingUp,
            unannounced: true,
            witnessed: None,
            leader_reaped: false,
            childless: false,
            record: ExitRecord::default(),
            will: Will::new(run, slot),
            ladder: None,
            killing_since: None,
            kill_rounds: 0,
            rest: Rest::Undecided,
            discard: Discard::new(unread),
            waiting,
            look_at: None,
            trim_at: None,
            ends: Collecting::Done,
            words: Vec::new(),
        })
    }

    /// Whether another run may follow this ended one: it ran, ended by itself, and no process of it is left.
    pub(super) fn leaves_nothing(&self) -> bool {
        let is_empty = matches!(self.record.tree, Some(TreeVerdict::Empty(_)));
        self.stage == ChildStage::Ran
            && self.childless
            && is_empty
            && !self.is_stopped()
            && self.init.is_none()
            && self.waiting.is_none()
    }

    pub(super) fn status(&self) -> Option<BorrowedFd<'_>> {
        self.status.as_ref().map(AsFd::as_fd)
    }

    /// Returns the events to wait for on the status pipe. A child that has passed its gate reports that just before it
    /// executes. The pipe's end comes right after that, and then both are read.
    pub(super) fn status_events(&self) -> PollFlags {
        if self.stage == ChildStage::AtGate {
            PollFlags::empty()
        } else {
            PollFlags::POLLIN
        }
    }

    /// Requests a collection of exits.
    pub(super) fn look_for_ends(&mut self) {
        self.ends = Collecting::Due;
    }

    /// Returns the descriptor of the pid namespace's first process to wait for.
    pub(super) fn init(&self) -> Option<BorrowedFd<'_>> {
        self.init.as_ref().and_then(Init::socket)
    }

    pub(super) fn take_words(&mut self) -> Vec<FromShim> {
        std::mem::take(&mut self.words)
    }

    /// Returns the descriptors that go with a message to the keeper: those of the leader and of the private pid
    /// namespace with the one that names them; all that the next keeper needs with the one that describes the run.
    pub(super) fn descriptors_of(&self, word: &FromShim) -> Vec<BorrowedFd<'_>> {
        let waiting = match word {
            FromShim::Prepared { .. } => None,
            FromShim::Adoptable(_) => self.waiting.as_ref(),
            _ => return Vec::new(),
        };
        let init = self.tree.init.iter().map(|init| init.fd.as_fd());
        let processes = iter::once(self.tree.leader.as_fd()).chain(init);
        let streams = waiting.into_iter().flat_map(OrphanShim::descriptors);
        processes.chain(streams).collect()
    }

    /// Returns when to take the next step without any event.
    pub(super) fn wake_at(&self) -> Option<u64> {
        let ladder = self.ladder.as_ref().and_then(Ladder::wake_at);
        let discard = self.discard.begins_at(clock::boot_ms());
        let waiting = self.waiting_wakes_at();
        let save = self.save.wake_at(clock::boot_ms());
        let helpers = self.helpers.wake_at();
        let times = [
            ladder,
            self.look_at,
            self.trim_at,
            discard,
            waiting,
            save,
            helpers,
        ];
        times.into_iter().flatten().min()
    }

    /// Returns the outputs to discard, once they have data.
    pub(super) fn unread(&self, now: u64) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.discard.waits_for(now)
    }

    /// Sends SIGKILL to all children from here on, until none is left.
    pub(super) fn kill_all(&mut self) {
        self.killing_since.get_or_insert_with(clock::boot_ms);
    }

    /// Handles the close of the status pipe: by exec, or by the child's exit.
    fn conclude(&mut self) {
        if self.stage != ChildStage::Going {
            self.look_for_ends();
        }
        match self.stage {
            ChildStage::SettingUp => self.never_ran(StartFailure {
                stage: StartStage::Gate,
                errno: None,
                path: None,
            }),
            ChildStage::AtGate => {
                self.stage = ChildStage::NeverRan;
                self.record.never_ran = true;
                self.words.push(FromShim::NotReleased {});
            }
            ChildStage::Going => {
                crash_point!("shim.executed");
                self.stage = ChildStage::Ran;
                self.trim_at = Some(clock::boot_ms() + TRIM_AFTER_MS);
                self.remember_start();
                self.words.push(FromShim::Executed {});
            }
            ChildStage::Ran | ChildStage::NeverRan => {}
        }
    }

    /// Does one round after any event: collect exits, climb, kill, conclude. `true`: everything is done and reported.
    pub(super) fn step(&mut self, now: u64, keeper_lives: bool) -> bool {
        let helped = self.helpers.keep_time(now);
        self.words.extend(helped);
        if self.trim_at.take_if(|at| *at <= now).is_some() {
            own_process::trim_memory();
        }
        let (leader_ended, more) = self.collect();
        if let Some(exit) = leader_ended
            && !self.unannounced
        {
            let at_us = clock::wall().0;
            let rest = match &mut self.init {
                Some(init) => is_parent_beside(init.pid()) || init.has_others(),
                None => !self.childless,
            };
            self.remember_exit(at_us, rest);
            self.words.push(FromShim::Exited { at_us, exit, rest });
        }
        if self.leader_reaped
            && let Some(init) = &mut self.init
            && !is_parent_beside(init.pid())
            && init.is_alone()
        {
            init.end();
        }
        let ends_alone = !keeper_lives && !self.waits(now) && !self.keeps_alone(now);
        if ends_alone {
            // A child past its gate may not have executed yet.
            self.read_status();
            self.climb(now);
        }
        self.discard.read_away(now);
        if !self.save_output(now, ends_alone) {
            return false;
        }
        if self.childless {
            return self.finish(now, keeper_lives);
        }
        self.look_at = None;
        if let Some(since) = self.killing_since {
            self.kill_children(keeper_lives);
            let wait = now.saturating_sub(since) / KILL_SLOWER;
            self.look_at = Some(now + wait.clamp(KILL_AGAIN_MS, KILL_AGAIN_MS_MAX));
        }
        if more {
            self.ends = Collecting::Due;
            self.look_at = Some(now);
        }
        false
    }

    /// Collects all exits. The leader's is read and recorded before it is taken. Returns it, and whether there may be
    /// more to collect. INV-6, INV-7: the exit is that of wait(2), and on disk before the leader is reaped.
    fn collect(&mut self) -> (Option<Exit>, bool) {
        if std::mem::replace(&mut self.ends, Collecting::Done) == Collecting::Done {
            return (None, false);
        }
        let mut leader = None;
        for _ in 0..REAPED_AT_ONCE_MAX {
            match reap::peek_any() {
                Ok(Waited::Ended { pid, exit }) => {
                    if pid == self.tree.leader_pid && !self.leader_reaped {
                        if self.witnessed.is_none() {
                            return (None, true);
                        }
                        self.read_status();
                        self.leader_reaped = true;
                        self.record.exit = Some(exit);
                        self.record.by_itself = self.is_by_itself().then(clock::wall);
                        crash_point!("shim.exit");
                        self.write_record();
                        crash_point!("shim.exit_written");
                        leader = Some(exit);
                        let helped = self.helpers.end_all();
                        self.words.extend(helped);
                    } else if let Some(word) = self.helpers.ended(pid, exit) {
                        self.words.push(word);
                    }
                    let _ = reap::reap(pid);
                }
                Ok(Waited::NoChild) => {
                    self.childless = true;
                    return (leader, false);
                }
                Ok(Waited::Nothing) | Err(_) => return (leader, false),
            }
        }
        (leader, true)
    }

    /// Whether the leader has exited, and it is not known what its keeper did.
    pub(super) fn wants_witness(&self) -> bool {
        self.ends == Collecting::Due
            && self.witnessed.is_none()
            && reap::has_ended(self.tree.leader_pid)
    }

    /// Records whether the keeper was at work when the leader exited. Its earlier messages are handled.
    pub(super) fn witness(&mut self, at_work: bool) {
        self.witnessed = Some(at_work);
    }

    /// Whether the run's command runs and is not being stopped.
    pub(super) fn has_live_command(&self) -> bool {
        self.stage == ChildStage::Ran
            && !self.leader_reaped
            && !self.childless
            && !self.is_stopped()
    }

    /// Whether a command of a stop may run: the run's command does, and SIGKILL was not sent.
    pub(super) fn may_run_of_stop(&self) -> bool {
        let runs = self.stage == ChildStage::Ran && !self.leader_reaped && !self.childless;
        runs && self.killing_since.is_none()
    }

    /// Whether what has just ended has ended by itself.
    fn is_by_itself(&self) -> bool {
        let nothing_gone = self.witnessed == Some(true) || self.waiting.is_some();
        self.stage == ChildStage::Ran && nothing_gone && !self.is_stopped()
    }

    /// The result of the first round is reported: to the keeper, or in the exit record.
    fn kill_children(&mut self, keeper_lives: bool) {
        let first = self.kill_rounds == 0;
        self.kill_rounds += 1;
        let at = clock::wall();
        let round = kill_children(first, self.init.as_ref().map(Init::pid));
        if round.is_empty() {
            return;
        }
        if keeper_lives {
            let step = round.step(at, Signal::KILL, SignalSender::Shim);
            self.words.push(FromShim::Killed(step));
        } else {
            note(&mut self.record.steps, at, Signal::KILL, &[round]);
            self.write_record();
        }
    }

    pub(super) fn write_record(&mut self) {
        // A missing or full directory prevents the exit record, but the keeper still gets the report.
        if !self.unannounced {
            let _ = self.will.write(&self.run_dir, &self.record);
        }
    }

    /// Performs the run's own plan without a keeper. The gate needs nothing: the keeper had its other end.
    fn climb(&mut self, now: u64) {
        if !matches!(self.stage, ChildStage::Going | ChildStage::Ran) {
            return;
        }
        let policy = &self.policy;
        let start = || Ladder::start(&policy.stop_plan(), now);
        if self.helpers.has_stop_ended() {
            self.ladder.iter_mut().for_each(|ladder| ladder.hurry(now));
        }
        self.ladder.get_or_insert_with(start);
        let steps = self.record.steps.len();
        while let Some(action) = self.ladder.as_mut().and_then(|ladder| ladder.due(now)) {
            // Input is not written: the keeper that counts it is gone.
            if let (Action::CloseInput, Some(waiting)) = (&action, &mut self.waiting) {
                waiting.close_input();
            }
            let signal = match action {
                Action::Signal(signal) => signal,
                Action::Exec(argv) => {
                    self.stop_command_alone(argv, now);
                    continue;
                }
                Action::CloseInput | Action::Input(_) => continue,
            };
            let at = clock::wall();
            let rounds = self.tree.signal(signal);
            note(&mut self.record.steps, at, signal, &rounds);
            if signal == Signal::KILL {
                self.killing_since.get_or_insert(now);
            } else {
                let at = clock::wall();
                let woken = self.tree.wake();
                note(&mut self.record.steps, at, Signal::CONT, &[woken]);
                // Processes that the keeper stopped are resumed, wherever they are.
                held::resume_all(&self.run_dir, self.tree.cgroup.as_ref());
            }
        }
        if self.record.steps.len() > steps {
            self.write_record();
        }
    }
}

/// Where a run has little memory the kernel may end its child before it executes, and all that share its memory.
fn memory(policy: &Policy) -> ChildMemory {
    match policy.limits.memory_max {
        Some(_) => ChildMemory::Copied,
        None => ChildMemory::Shared,
    }
}

/// Reads what the child is made of. The bytes have its secrets, and are overwritten when they are dropped.
fn image(file: OwnedFd) -> io::Result<ChildImage> {
    let bytes = SecretValue::new(memfd::read(file, CHILD_BYTES_MAX)?);
    wire::child::decode(bytes.expose())
}
