//! A kernel and a store that react only to the supervisor's calls, with faults on demand.
#![expect(
    clippy::unwrap_used,
    unreachable_pub,
    reason = "a fixture of the tests beside it"
)]

mod data_dir;
mod entries;
mod lives;
pub(crate) mod log;

pub(crate) use data_dir::DataDir;
pub(crate) use lives::{Lives, fill_disk, make_room_on_disk, run_id, take_refusals_as_errors};

use crate::story;
use async_trait::async_trait;
use kennel_keeper::{
    audit::{Described, Installation},
    client::{
        ChildSpec, ClientError, ExtendResult, Extended, Fact, Fate, HeldRun, HelperEnd, Holds,
        InputAnswer, InterruptWay, Interrupted, KeeperEvent, KeeperHello, KeeperInventory,
        KeeperReport, LeakScan, Levels, Listing, Member, Outputs, Prepared, Reaped, Recorded,
        Resized, SecondLook, Sent, SignalOutcome, SignalResult, SignalTarget, SignalledProcess,
        SignalledProcesses, Upgrade, UpgradeRefusal, Victim,
    },
};
use kennel_lifecycle::{
    CgroupIdentity, Deadline, EndReason, Exit, Held, HeldPause, HostFacts, HostIdentity,
    InputWrite, KeeperEpoch, LeaderExit, Leftover, Leftovers, LimitPowers, MemoryKills, NodeId,
    Outcome, Policy, ProcessIdentity, Proof, Resource, RetentionLimits, RowLimits, RunId,
    RunIdentity, RunSpec, Signal, StartFailure, StartStage, StopPolicy, StopReason, Stuck,
    StuckProcess, TerminalSize, Timestamp, TreeVerdict,
    ladder::StopPlan,
    recovery::{CgroupSeen, ExitRecord, Host, Observation, ProcessPresence},
};
use kennel_store::{
    Age, Change, Changed, Claim, ConsumerChange, ConsumerFilter, ConsumerKey, ConsumerRow, Desired,
    EndedRow, EpochRow, FoundRows, LeftStop, Life, ListFilter, ListOrder, ListPage, NewRun,
    NodeRemoval, NodeRow, Opening, PageStart, RemovedRow, RowRemoval, RunRow, Store, StoreError,
    StoredNode, StoredState, UnreadRow, WithOutput,
};
use kennel_supervisor::{
    BootError, Kernel, KernelEvents, SpawnCall, SpecDigest, Supervisor, SupervisorConfig,
};
use nix::fcntl::{FcntlArg, fcntl};
use std::{
    collections::{BTreeMap, HashMap, HashSet, VecDeque},
    io::{PipeWriter, Write},
    os::fd::OwnedFd,
    path::PathBuf,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicI64, AtomicUsize, Ordering},
    },
    time::Duration,
};
use tokio::{
    sync::{Notify, mpsc, watch},
    task::JoinHandle,
};

/// Reaction of a child to a polite signal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Temper {
    #[default]
    Obeys,
    Ignores,
}

/// Behaviour of the next children.
#[derive(Clone, Debug, Default)]
pub struct Nature {
    pub temper: Temper,
    pub prepare_fails: Option<StartFailure>,
    pub exec_fails: Option<i32>,
    pub output: Vec<u8>,
    /// Output written just before the end.
    pub last_words: Vec<u8>,
    /// Exit code of a leader that exits on its own as soon as it runs.
    pub exits_at_once: Option<i32>,
    /// Whether its start is reported only when the test permits it.
    pub verdict_held: bool,
    /// Reason why there is no control group.
    pub cgroup_refused: Option<String>,
    /// Whether its output is a file that cannot be waited for.
    pub unreadable: bool,
    /// Whether a process outlives the leader, and holds the output.
    pub leaves_rest: bool,
    /// Kills for want of memory that the keeper finds.
    pub memory_kills: Option<MemoryKills>,
}

#[derive(Debug)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is one thing that the keeper knows"
)]
pub struct Child {
    nature: Nature,
    pub released: bool,
    pub alive: bool,
    /// Whether the leader has exited, and a process is left.
    pub rest: bool,
    /// Whether that is detached.
    kept: bool,
    policy: Policy,
    identity: RunIdentity,
    held: Held,
    pub pause: HeldPause,
    pipes: Option<(PipeWriter, PipeWriter)>,
    /// The keeper's copies of the descriptors that the server reads, until the run is acknowledged.
    outputs: Option<(OwnedFd, OwnedFd)>,
    /// Size of its terminal, where it is to have one.
    pub terminal: Option<TerminalSize>,
    pub stop_plans: Vec<StopPlan>,
    /// Totals of the extensions of its limits of time.
    pub extended: Extended,
    /// Whether the server has acknowledged its outcome.
    pub acknowledged: bool,
}

impl Child {
    fn held(&self, run: RunId) -> HeldRun {
        HeldRun {
            run,
            identity: self.identity.clone(),
            held: self.held.clone(),
            policy: self.policy.clone(),
            released: self.released,
            pause: self.pause,
            stopping: !self.stop_plans.is_empty(),
            pinned: None,
            outputs: self
                .outputs
                .as_ref()
                .map(|(stdout, stderr)| Outputs::Pipes {
                    stdout: stdout.try_clone().unwrap(),
                    stderr: stderr.try_clone().unwrap(),
                }),
            terminal: self.terminal,
        }
    }
}

#[derive(Debug)]
pub struct KernelState {
    pub nature: Nature,
    /// Behaviour of single runs, where they differ.
    pub natures: HashMap<RunId, Nature>,
    pub children: BTreeMap<RunId, Child>,
    /// Number of children of all attempts: no two of them are the same process.
    born: i32,
    pub executed: Vec<(RunId, u32)>,
    /// Behaviour of each child.
    pub ran: HashMap<(RunId, u32), Nature>,
    pub acknowledged: Vec<RunId>,
    /// Whether the server dies before the keeper has got its acknowledgement.
    pub holds_on: bool,
    pub interrupts: usize,
    pub signals: Vec<(RunId, Signal, SignalTarget)>,
    /// Result of each signal.
    pub signal_result: SignalOutcome,
    /// Request ids under which signals were sent.
    sent: HashSet<(RunId, String)>,
    /// Whether there is no space for the list in an answer.
    pub full: bool,
    pub orphans: HashMap<RunId, Observation>,
    pub orphans_ended: Vec<RunId>,
    /// Result of a leak check's scan.
    pub look: Option<LeakScan>,
    /// Inventory of the keeper at the second scan of a leak check.
    pub inventory_again: KeeperInventory,
    pub reaped: Vec<Victim>,
    /// End of each helper command.
    pub helper: HelperEnd,
    /// Number of helper commands that were run.
    pub helped: usize,
    /// Inodes of the sockets of every child, and whether it has others.
    pub sockets: (Vec<u64>, bool),
    /// Events of runs that no server has acknowledged.
    facts: Vec<KeeperReport>,
}

impl KernelState {
    fn was_sent(&self, run: RunId, id: Option<&str>) -> bool {
        id.is_some_and(|id| self.sent.contains(&(run, id.to_owned())))
    }

    fn remember(&mut self, run: RunId, id: Option<&str>) {
        self.sent.extend(id.map(|id| (run, id.to_owned())));
    }
}

/// The kernel.
#[derive(Debug)]
pub struct World {
    pub state: Mutex<KernelState>,
    events: Mutex<mpsc::UnboundedSender<KeeperEvent>>,
    pub store: Arc<MemoryStore>,
    /// Runs whose shims have not answered at their reconnect sockets.
    pub late: Mutex<Vec<RunId>>,
    /// Whether signals by name, and what was sent before, are not answered.
    pub signals_held: watch::Sender<bool>,
    /// Whether the keeper's reports are held back.
    pub tidings_held: watch::Sender<bool>,
    /// Retention limits of the next server.
    pub retention: Mutex<RetentionLimits>,
    pub row_limits: Mutex<RowLimits>,
}

pub struct Tidings(mpsc::UnboundedReceiver<KeeperEvent>, watch::Receiver<bool>);

#[async_trait]
impl KernelEvents for Tidings {
    async fn recv(&mut self) -> KeeperEvent {
        // A dropped world drops this sender too.
        let _ = self.1.wait_for(|held| !held).await;
        self.0.recv().await.unwrap_or(KeeperEvent::Gone)
    }
}

/// A supervisor over this world.
pub struct Stage {
    pub world: Arc<World>,
    pub supervisor: Supervisor,
    pub exit: JoinHandle<i32>,
    pub data_dir: Arc<DataDir>,
}

impl Stage {
    pub async fn set(nature: Nature) -> Self {
        Self::with_rows(nature, Vec::new(), HashMap::new()).await
    }

    pub async fn with_rows(
        nature: Nature,
        rows: Vec<RunRow>,
        orphans: HashMap<RunId, Observation>,
    ) -> Self {
        let (world, tidings) = World::new(nature, rows, orphans);
        let (kernel, store) = (Arc::clone(&world), Arc::clone(&world.store));
        Self::over(world, kernel, tidings, store).await
    }

    /// Makes a supervisor over this kernel and this store, with `world` behind them.
    pub async fn over(
        world: Arc<World>,
        kernel: Arc<dyn Kernel>,
        events: impl KernelEvents + 'static,
        store: Arc<dyn Store>,
    ) -> Self {
        let data_dir = Arc::new(DataDir::new());
        let booted = Self::after(world, kernel, events, store, Vec::new(), data_dir).await;
        booted.unwrap()
    }

    /// Makes a supervisor likewise, with the state of an earlier one.
    pub async fn after(
        world: Arc<World>,
        kernel: Arc<dyn Kernel>,
        events: impl KernelEvents + 'static,
        store: Arc<dyn Store>,
        held: Vec<HeldRun>,
        data_dir: Arc<DataDir>,
    ) -> Result<Self, BootError> {
        let config = SupervisorConfig {
            health: Arc::new(NoHealth),
            tokens: Arc::new(NoTokens),
            sealer: Arc::new(NoSeal),
            quotas: Arc::new(NoQuotas),
            forbids_api_access: false,
            secrets: Arc::default(),
            socket: None,
            telemetry: kennel_supervisor::telemetry::Telemetry::default(),
            node: node(),
            node_name: "test".into(),
            address: "unix:/run/test.sock".into(),
            lease: Duration::from_secs(45),
            node_retention: Duration::from_hours(168),
            data_dir: data_dir.path().to_owned(),
            server_env: vec![("PATH".into(), "/bin:/usr/bin".into())],
            inherit: Vec::new(),
            runs_max: 100,
            privileges: kennel_lifecycle::Privileges::default(),
            default_grace: kennel_lifecycle::DefaultGrace::default(),
            default_limits: kennel_lifecycle::DefaultLimits::default(),
            shutdown_timeout: kennel_lifecycle::limits::SHUTDOWN_TIMEOUT_DEFAULT,
            shutdown_signals: Vec::new(),
            retention: *world.retention.lock().unwrap(),
            rows: *world.row_limits.lock().unwrap(),
        };
        // A keeper with runs, or whose node has a generation, had a server before.
        let generation = world.store.generation.load(Ordering::Relaxed);
        let hello = KeeperHello {
            restarts: u32::from(!held.is_empty() || generation > 0),
            late: world.late.lock().unwrap().clone(),
            ..hello()
        };
        data_dir.belongs_to(&world.store);
        let booted = Supervisor::boot(config, kernel, events, hello, held, store).await;
        let (supervisor, exit) = booted?;
        Ok(Self {
            world,
            supervisor,
            exit,
            data_dir,
        })
    }

    pub fn kernel(&self) -> std::sync::MutexGuard<'_, KernelState> {
        self.world.state.lock().unwrap()
    }

    pub fn send_event(&self, event: KeeperEvent) {
        let events = self.world.events.lock().unwrap();
        events.send(event).unwrap();
    }

    /// Lets the leader exit on its own, and its tree with it.
    pub fn exits(&self, run: RunId, code: i32) {
        self.world.end(run, Exit::Code(code));
    }

    /// Lets the leader write this, which fits into its pipe.
    pub fn writes(&self, run: RunId, bytes: &[u8]) {
        self.world.writes(run, bytes);
    }

    /// Returns the capacity of the leader's output pipe.
    pub fn pipe_bytes(&self, run: RunId) -> i32 {
        let state = self.kernel();
        let (stdout, _) = state.children[&run].pipes.as_ref().unwrap();
        fcntl(stdout, FcntlArg::F_GETPIPE_SZ).unwrap()
    }

    /// Sends the report that `verdict_held` has held back.
    pub fn reports_verdict(&self, run: RunId) {
        self.world.report(run, Fact::Executed {});
    }

    /// Lets stuck processes end at the next SIGKILL.
    pub fn comes_loose(&self, run: RunId) {
        self.kernel().orphans.get_mut(&run).unwrap().stuck = Stuck::default();
    }

    pub fn is_alive(&self, run: RunId) -> bool {
        self.kernel()
            .children
            .get(&run)
            .is_some_and(|child| child.alive)
    }

    pub fn plans(&self, run: RunId) -> Vec<StopPlan> {
        self.kernel()
            .children
            .get(&run)
            .map(|c| c.stop_plans.clone())
            .unwrap_or_default()
    }
}

impl World {
    pub fn new(
        nature: Nature,
        rows: Vec<RunRow>,
        orphans: HashMap<RunId, Observation>,
    ) -> (Arc<Self>, Tidings) {
        let (events, tidings) = mpsc::unbounded_channel();
        let store = Arc::new(MemoryStore::default());
        let rows = rows.into_iter().map(|row| (row.new.run, row));
        store.rows.lock().unwrap().extend(rows);
        let state = KernelState {
            nature,
            orphans,
            natures: HashMap::new(),
            children: BTreeMap::new(),
            born: 0,
            executed: Vec::new(),
            ran: HashMap::new(),
            acknowledged: Vec::new(),
            holds_on: false,
            interrupts: 0,
            signals: Vec::new(),
            signal_result: SignalOutcome::Delivered,
            sent: HashSet::new(),
            full: false,
            orphans_ended: Vec::new(),
            look: None,
            inventory_again: KeeperInventory::default(),
            reaped: Vec::new(),
            helper: HelperEnd::Refused,
            helped: 0,
            sockets: (Vec::new(), false),
            facts: Vec::new(),
        };
        let world = Self {
            state: Mutex::new(state),
            events: Mutex::new(events),
            store,
            late: Mutex::default(),
            signals_held: watch::Sender::new(false),
            tidings_held: watch::Sender::new(false),
            retention: Mutex::new(RetentionLimits::NONE),
            row_limits: Mutex::new(RowLimits::NONE),
        };
        let held = world.tidings_held.subscribe();
        (Arc::new(world), Tidings(tidings, held))
    }

    /// Sends an event as the keeper does.
    pub fn report(&self, run: RunId, fact: Fact) {
        let report = KeeperReport {
            run,
            at: kennel_linux::clock::wall(),
            fact,
        };
        let repeated = match &report.fact {
            Fact::PauseExpired {} => false,
            Fact::SignalSent { signal, .. } => *signal == Signal::KILL,
            _ => true,
        };
        if repeated {
            self.state.lock().unwrap().facts.push(report.clone());
        }
        story::tell(|| format!("{run}: {:.120?}", report.fact));
        if report.fact == (Fact::PauseExpired {}) {
            self.pauses(run, HeldPause::Expired);
        }
        let events = self.events.lock().unwrap();
        let _ = events.send(KeeperEvent::Report(report));
    }

    /// Lets the leader write this, which fits into its pipe, whether a server reads it or not.
    pub fn writes(&self, run: RunId, bytes: &[u8]) {
        let mut state = self.state.lock().unwrap();
        let child = state.children.get_mut(&run).unwrap();
        let (stdout, _) = child.pipes.as_mut().unwrap();
        stdout.write_all(bytes).unwrap();
    }

    pub fn has_members(&self, run: RunId) -> bool {
        let state = self.state.lock().unwrap();
        let child = state.children.get(&run);
        child.is_some_and(|child| child.alive || child.rest)
    }

    /// Whether its gate was never opened, and a server has acknowledged that.
    pub fn was_left_at_gate(&self, run: RunId) -> bool {
        let state = self.state.lock().unwrap();
        let child = state.children.get(&run);
        child.is_some_and(|child| child.acknowledged && !child.released)
    }

    pub fn pauses(&self, run: RunId, pause: HeldPause) {
        if let Some(child) = self.state.lock().unwrap().children.get_mut(&run) {
            child.pause = pause;
        }
    }

    /// Handles the server's death: later reports go to the next one, and so do all unacknowledged ones.
    pub fn hand_over(&self) -> (Vec<HeldRun>, Tidings) {
        let gated = |child: &Child| child.alive && !child.released;
        let at_gates: Vec<RunId> = {
            let state = self.state.lock().unwrap();
            let children = state.children.iter();
            let gated = children.filter(|(_, child)| gated(child));
            gated.map(|(run, _)| *run).collect()
        };
        for run in at_gates {
            self.dies_at_gate(run);
        }
        let (events, tidings) = mpsc::unbounded_channel();
        let state = self.state.lock().unwrap();
        let late = self.late.lock().unwrap().clone();
        let facts = state.facts.iter();
        for report in facts.filter(|report| !late.contains(&report.run)) {
            events.send(KeeperEvent::Report(report.clone())).unwrap();
        }
        *self.events.lock().unwrap() = events;
        let children = state.children.iter();
        let held = children.filter(|(run, child)| !child.acknowledged && !late.contains(run));
        let held = held.map(|(run, child)| child.held(*run));
        let tidings = Tidings(tidings, self.tidings_held.subscribe());
        (held.collect(), tidings)
    }

    /// Lets the shim of a run answer at last.
    pub fn opens_door(&self, run: RunId) {
        let facts = self.state.lock().unwrap().facts.clone();
        let of_run = facts.into_iter().filter(|report| report.run == run);
        let events = self.events.lock().unwrap();
        events.send(KeeperEvent::ShimReconnected(run)).unwrap();
        for report in of_run {
            events.send(KeeperEvent::Report(report)).unwrap();
        }
    }

    /// The command has reached its time limit, and no stop was made yet: the keeper climbs by itself.
    pub fn exceeds(&self, run: RunId, plan: &StopPlan) {
        let mut state = self.state.lock().unwrap();
        let child = state.children.get_mut(&run);
        let runs = child.is_some_and(|c| c.alive && c.released && c.stop_plans.is_empty());
        drop(state);
        if runs {
            self.report(
                run,
                Fact::Stops(StopReason::DeadlineExceeded(Deadline::MaxRuntime)),
            );
            self.climb(run, plan);
        }
    }

    /// Carries a plan out, and dies where the child's nature is such.
    pub fn climb(&self, run: RunId, plan: &StopPlan) {
        let mut state = self.state.lock().unwrap();
        let child = state.children.get_mut(&run).unwrap();
        child.stop_plans.push(plan.clone());
        let dies = child.nature.temper == Temper::Obeys || plan.kill_after.is_zero();
        drop(state);
        if dies {
            self.end_rest(run);
            let exit = Exit::Signal {
                signal: Signal::TERM,
                core_dumped: false,
            };
            self.end(run, exit);
        }
    }

    /// Ends the process that the leader has left behind, if there is one.
    pub fn end_rest(&self, run: RunId) {
        let mut state = self.state.lock().unwrap();
        let child = state.children.get_mut(&run).unwrap();
        if std::mem::take(&mut child.rest) {
            child.pipes = None;
            drop(state);
            self.report(run, Fact::TreeEnded(TreeVerdict::Empty(Proof::Echild)));
        }
    }

    /// Ends the child at the gate.
    pub fn dies_at_gate(&self, run: RunId) {
        let mut state = self.state.lock().unwrap();
        let child = state.children.get_mut(&run);
        let Some(child) = child.filter(|child| child.alive && !child.released) else {
            return;
        };
        child.alive = false;
        child.pipes = None;
        drop(state);
        self.report(run, Fact::NotReleased {});
        self.report(run, Fact::TreeEnded(TreeVerdict::NeverRan));
    }

    pub fn end(&self, run: RunId, exit: Exit) {
        let mut state = self.state.lock().unwrap();
        let child = state.children.get_mut(&run);
        let Some(child) = child.filter(|child| child.alive && child.released) else {
            return;
        };
        child.alive = false;
        let by_itself = child.stop_plans.is_empty();
        if child.nature.leaves_rest && by_itself && child.policy.on_leader_exit != LeaderExit::Stop
        {
            child.rest = true;
            if let Some((stdout, _)) = &mut child.pipes {
                stdout.write_all(&child.nature.last_words).unwrap();
            }
            drop(state);
            return self.report(run, Fact::LeaderExited(exit));
        }
        if let Some((mut stdout, _)) = child.pipes.take() {
            stdout.write_all(&child.nature.last_words).unwrap();
        }
        let kills = child.nature.memory_kills;
        drop(state);
        self.report(run, Fact::LeaderExited(exit));
        if let Some(kills) = kills {
            self.report(run, Fact::MemoryKills(kills));
        }
        self.report(
            run,
            Fact::TreeEnded(TreeVerdict::Empty(Proof::CgroupAndEchild)),
        );
    }
}

/// Returns the processes that SIGKILL does not end.
pub fn held() -> Stuck {
    Stuck {
        processes: vec![StuckProcess {
            pid: 78,
            start_ticks: 9,
            state: 'D',
            why: "it waits in the kernel".into(),
        }],
        unlisted: 0,
    }
}

/// Returns the processes that are left where there are any.
pub fn daemon() -> Leftovers {
    Leftovers {
        processes: vec![Leftover {
            pid: 77,
            start_ticks: 9,
            name: "daemon".into(),
        }],
        unlisted: 0,
    }
}

#[async_trait]
impl Kernel for World {
    async fn prepare(&self, run: RunId, spec: &ChildSpec) -> Result<Prepared, ClientError> {
        tokio::task::yield_now().await;
        let mut state = self.state.lock().unwrap();
        let nature = state.natures.get(&run).unwrap_or(&state.nature).clone();
        if let Some(failure) = nature.prepare_fails {
            return Err(ClientError::Start(failure));
        }
        if let Some(before) = state.children.get(&run) {
            assert!(!before.alive && !before.rest, "two children for one run");
            assert!(
                before.acknowledged,
                "a child beside one that the keeper holds"
            );
        }
        let (stdout, stdout_writer) = std::io::pipe().unwrap();
        let (stderr, stderr_writer) = std::io::pipe().unwrap();
        let stderr: OwnedFd = if nature.unreadable {
            tempfile::tempfile().unwrap().into()
        } else {
            stderr.into()
        };
        let cgroup = nature.cgroup_refused.clone().map_or(Ok(()), Err);
        let held = Held::on(&facts(), cgroup, &spec.policy);
        if let Some(wanted) = spec.policy.min_containment.filter(|least| held.by < *least) {
            return Err(ClientError::TooWeak { wanted, held });
        }
        let terminal = spec.command.terminal.as_ref().map(|t| t.size);
        let stdout = OwnedFd::from(stdout);
        state.born += 1;
        let identity = identity(100 + state.born);
        let child = Child {
            nature,
            released: false,
            alive: true,
            rest: false,
            kept: false,
            policy: spec.policy.clone(),
            identity: identity.clone(),
            held: held.clone(),
            pause: HeldPause::None,
            pipes: Some((stdout_writer, stderr_writer)),
            outputs: Some((stdout.try_clone().unwrap(), stderr.try_clone().unwrap())),
            terminal,
            stop_plans: Vec::new(),
            extended: Extended::default(),
            acknowledged: false,
        };
        // Events of an earlier run of this id do not count any more.
        state.facts.retain(|report| report.run != run);
        state.children.insert(run, child);
        Ok(Prepared {
            identity,
            outputs: Outputs::Pipes { stdout, stderr },
            terminal,
            held,
        })
    }

    fn release(&self, run: RunId) {
        let mut state = self.state.lock().unwrap();
        let recorded = self.store.recorded(run);
        let recorded = recorded.expect("the gate was opened before the run was recorded");
        let child = state.children.get_mut(&run).unwrap();
        assert_eq!(
            recorded.identity.as_ref(),
            Some(&child.identity),
            "the gate was opened before the attempt was recorded"
        );
        assert!(!child.released, "the gate was opened twice");
        if !child.alive {
            return;
        }
        child.released = true;
        let nature = child.nature.clone();
        if let Some(errno) = nature.exec_fails {
            child.alive = false;
            child.pipes = None;
            drop(state);
            let failure = StartFailure {
                stage: StartStage::Exec,
                errno: Some(errno),
                path: None,
            };
            self.report(run, Fact::ExecFailed(failure));
            self.report(run, Fact::LeaderExited(Exit::Code(127)));
            self.report(run, Fact::TreeEnded(TreeVerdict::Empty(Proof::Echild)));
            return;
        }
        if let Some((stdout, _)) = &mut child.pipes {
            stdout.write_all(&nature.output).unwrap();
        }
        state.executed.push((run, recorded.attempt));
        state.ran.insert((run, recorded.attempt), nature.clone());
        drop(state);
        if nature.verdict_held {
            return;
        }
        self.report(run, Fact::Executed {});
        if let Some(code) = nature.exits_at_once {
            self.end(run, Exit::Code(code));
        }
    }

    fn shut_gate(&self, run: RunId) {
        let mut state = self.state.lock().unwrap();
        let Some(child) = state.children.get_mut(&run) else {
            return;
        };
        assert!(!child.released, "the gate was both opened and shut");
        if std::mem::replace(&mut child.alive, false) {
            child.pipes = None;
            drop(state);
            self.report(run, Fact::NotReleased {});
            self.report(run, Fact::TreeEnded(TreeVerdict::NeverRan));
        }
    }

    fn stop(&self, run: RunId, plan: &StopPlan) {
        let desired = self
            .store
            .rows
            .lock()
            .unwrap()
            .get(&run)
            .map(|row| row.desired);
        // A run that comes back with the next service, or is restarted, is still desired.
        let wanted = self
            .store
            .row(run)
            .is_some_and(|row| row.new.policy().restart.restarts());
        if self.store.is_answering() && !wanted {
            assert_eq!(
                desired,
                Some(Desired::Stop),
                "signalled before the stop was recorded"
            );
        }
        self.climb(run, plan);
    }

    fn keep_rest(&self, run: RunId) {
        let mut state = self.state.lock().unwrap();
        let child = state.children.get_mut(&run).unwrap();
        assert!(
            child.stop_plans.is_empty(),
            "kept while a stop is on its way"
        );
        let kept = child.rest && !std::mem::replace(&mut child.kept, true);
        drop(state);
        if kept {
            self.report(run, Fact::TreeEnded(TreeVerdict::Kept(daemon())));
        }
    }

    async fn interrupt(
        &self,
        run: RunId,
        request_id: Option<&str>,
    ) -> Result<Interrupted, ClientError> {
        let mut state = self.state.lock().unwrap();
        let before = state.was_sent(run, request_id);
        if !before {
            state.interrupts += 1;
            state.remember(run, request_id);
        }
        Ok(Interrupted {
            result: SignalResult::Done,
            way: (!before).then_some(InterruptWay::Group),
        })
    }

    async fn resize(&self, run: RunId, _: u32, size: TerminalSize) -> Result<Resized, ClientError> {
        let mut state = self.state.lock().unwrap();
        let child = state.children.get_mut(&run);
        Ok(match child.map(|child| &mut child.terminal) {
            None => Resized::Gone,
            Some(None) => Resized::NoTerminal,
            Some(Some(terminal)) => {
                *terminal = size;
                Resized::Done
            }
        })
    }

    async fn extend(
        &self,
        run: RunId,
        limits: &[Deadline],
        time: Duration,
        by: &str,
    ) -> Result<ExtendResult, ClientError> {
        let mut state = self.state.lock().unwrap();
        let child = state.children.get_mut(&run);
        let Some(child) = child.filter(|child| child.alive && child.stop_plans.is_empty()) else {
            return Ok(ExtendResult::Gone);
        };
        // The child's clock stands still, so all of the time is an extension.
        let possible = child.policy.timeouts.extension_max();
        for limit in limits.iter().copied() {
            if time > possible {
                return Ok(ExtendResult::TooLong { limit, possible });
            }
            // Each command here has reported readiness by now.
            if limit != Deadline::MaxRuntime {
                return Ok(ExtendResult::NoLimit(limit));
            }
            child.extended.max_runtime = child.extended.max_runtime.max(time);
        }
        let totals = child.extended;
        drop(state);
        let (limit, total) = (Deadline::MaxRuntime, totals.max_runtime);
        let by = by.to_owned();
        self.report(run, Fact::Extended { limit, total, by });
        Ok(ExtendResult::Done(totals))
    }

    async fn signal(
        &self,
        run: RunId,
        signal: Signal,
        target: SignalTarget,
        request_id: Option<&str>,
    ) -> Result<Sent, ClientError> {
        let mut held = self.signals_held.subscribe();
        // The world owns the sender while any caller waits.
        let _ = held.wait_for(|held| !held).await;
        let mut state = self.state.lock().unwrap();
        if state.was_sent(run, request_id) {
            return Ok(Sent::Before);
        }
        if target == SignalTarget::TerminalForeground {
            // Simulated commands have no terminals.
            return Ok(Sent::Now(SignalledProcesses {
                no_terminal: true,
                ..SignalledProcesses::default()
            }));
        }
        state.signals.push((run, signal, target));
        if state.signal_result == SignalOutcome::Delivered {
            state.remember(run, request_id);
        }
        if state.full {
            return Err(ClientError::Exhausted("EMFILE".into()));
        }
        let process = SignalledProcess {
            pid: 100,
            start_ticks: 1,
            result: state.signal_result,
        };
        Ok(Sent::Now(SignalledProcesses {
            signalled: vec![process],
            unlisted: 0,
            no_terminal: false,
        }))
    }

    async fn help(&self, _: RunId, _: &[String], _: Duration) -> Result<HelperEnd, ClientError> {
        let mut state = self.state.lock().unwrap();
        state.helped += 1;
        Ok(state.helper.clone())
    }

    async fn was_sent(&self, run: RunId, request_id: &str) -> Result<bool, ClientError> {
        let mut held = self.signals_held.subscribe();
        let _ = held.wait_for(|held| !held).await;
        Ok(self.state.lock().unwrap().was_sent(run, Some(request_id)))
    }

    async fn write_input(
        &self,
        _run: RunId,
        _attempt: u32,
        _write: &InputWrite,
        _data: &[u8],
    ) -> Result<InputAnswer, ClientError> {
        Ok(InputAnswer::None)
    }

    async fn close_input(
        &self,
        _run: RunId,
        _attempt: u32,
        _offset: Option<u64>,
    ) -> Result<InputAnswer, ClientError> {
        Ok(InputAnswer::None)
    }

    async fn input_state(&self, _run: RunId, _attempt: u32) -> Result<InputAnswer, ClientError> {
        Ok(InputAnswer::None)
    }

    async fn tree(&self, run: RunId) -> Result<Listing, ClientError> {
        let state = self.state.lock().unwrap();
        if state.full {
            return Err(ClientError::Exhausted("EMFILE".into()));
        }
        let child = state.children.get(&run).filter(|child| child.alive);
        let (sockets, ports_cut) = state.sockets.clone();
        let member = Member {
            sockets,
            ports_cut,
            ..member()
        };
        Ok(Listing {
            members: child.map(|_| member).into_iter().collect(),
            unlisted: 0,
        })
    }

    async fn upgrade(
        &self,
        _request_id: Option<&str>,
    ) -> Result<Result<Upgrade, UpgradeRefusal>, ClientError> {
        Ok(Err(UpgradeRefusal::UnderWay))
    }

    async fn pause(&self, run: RunId) -> Result<SignalResult, ClientError> {
        self.pauses(run, HeldPause::Stopped);
        Ok(SignalResult::Done)
    }

    async fn resume(&self, run: RunId) -> Result<SignalResult, ClientError> {
        self.pauses(run, HeldPause::None);
        Ok(SignalResult::Done)
    }

    fn acknowledge(&self, run: RunId) {
        let mut state = self.state.lock().unwrap();
        if state.holds_on {
            return;
        }
        state.acknowledged.push(run);
        state.facts.retain(|report| report.run != run);
        if let Some(child) = state.children.get_mut(&run) {
            child.acknowledged = true;
            child.outputs = None;
        }
    }

    async fn observe(&self, recorded: &Recorded) -> Result<Observation, ClientError> {
        let gone = || seen(ProcessPresence::Gone, CgroupSeen::Empty, None);
        let state = self.state.lock().unwrap();
        Ok(state
            .orphans
            .get(&recorded.run)
            .cloned()
            .unwrap_or_else(gone))
    }

    async fn end_orphan(
        &self,
        recorded: &Recorded,
        _: &StopPlan,
    ) -> Result<Observation, ClientError> {
        let mut state = self.state.lock().unwrap();
        state.orphans_ended.push(recorded.run);
        let seen = state.orphans.get_mut(&recorded.run).unwrap();
        if !seen.stuck.is_empty() {
            return Ok(seen.clone());
        }
        seen.shim = ProcessPresence::Gone;
        seen.command = ProcessPresence::Gone;
        seen.cgroup = CgroupSeen::Empty;
        seen.hints.clear();
        Ok(seen.clone())
    }

    fn take_held(&self, run: RunId) -> Option<HeldRun> {
        let state = self.state.lock().unwrap();
        state.children.get(&run).map(|child| child.held(run))
    }

    async fn keeper_seen(
        &self,
        _: ProcessIdentity,
        _: HostIdentity,
    ) -> Result<ProcessPresence, ClientError> {
        Ok(ProcessPresence::Gone)
    }

    async fn audit(&self, _: Installation, _: PathBuf) -> Result<LeakScan, ClientError> {
        let look = self.state.lock().unwrap().look.clone();
        look.ok_or(ClientError::KeeperGone)
    }

    async fn look_again(
        &self,
        processes: Vec<ProcessIdentity>,
        directories: Vec<(RunId, CgroupIdentity)>,
    ) -> Result<SecondLook, ClientError> {
        let described = |_| {
            Some(Described {
                name: "left".into(),
                argv0: "left".into(),
                uid: kennel_linux::effective_uid(),
                state: 'S',
                age: Duration::from_mins(1),
                cgroup: None,
            })
        };
        Ok(SecondLook {
            processes: processes.iter().map(described).collect(),
            directories,
            inventory: self.state.lock().unwrap().inventory_again.clone(),
        })
    }

    async fn reap(
        &self,
        victims: &[Victim],
        directories: &[CgroupIdentity],
        _: &StopPlan,
    ) -> Result<Reaped, ClientError> {
        self.state.lock().unwrap().reaped.extend_from_slice(victims);
        Ok(Reaped {
            fates: victims.iter().map(|_| Fate::Ended(Signal::TERM)).collect(),
            directories_removed: u32::try_from(directories.len()).unwrap(),
        })
    }
}

/// Behaviour of the store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Weather {
    #[default]
    Fair,
    /// Nothing is written, and it reports that.
    Away,
    /// The store answers, and accepts no write: a standby.
    ReadOnly,
    /// The next INSERT is written or not, and the result is unknown.
    InsertUnknown { written: bool },
    /// The next INSERT is written, its result is unknown, and no write is accepted after it.
    InsertLast,
    /// States are not answered at all.
    StatesHang,
    /// Another generation has the rows.
    Superseded,
    /// A check of its availability panics.
    Broken,
}

/// A store in memory that keeps the rules of the real ones.
#[derive(Debug, Default)]
pub struct MemoryStore {
    pub rows: Mutex<BTreeMap<RunId, RunRow>>,
    pub nodes: Mutex<Vec<NodeRow>>,
    consumers: Mutex<BTreeMap<ConsumerKey, ConsumerRow>>,
    weather: Mutex<Weather>,
    pub closed: Mutex<Vec<(RunId, Outcome)>>,
    changed: Notify,
    generation: AtomicI64,
    gate: watch::Sender<bool>,
    /// Whether rows are not read.
    pub reads_held: watch::Sender<bool>,
    /// Whether they are held again after the next one.
    one_read: AtomicBool,
    open_rows_asked: AtomicUsize,
    /// Runs whose rows a later version has written.
    pub unread: Mutex<HashSet<RunId>>,
    lists_read: AtomicUsize,
    history: Mutex<History>,
    /// The attempt recorded last for each run, in any life.
    recorded: Mutex<HashMap<RunId, NewRun>>,
    removed_ids: Mutex<HashSet<RunId>>,
    newest_forgotten: Mutex<Option<RunId>>,
}

/// Earlier states of a store, which may come back.
#[derive(Debug, Default)]
struct History {
    /// State before each of the last writes; empty where none comes back.
    before: VecDeque<(BTreeMap<RunId, RunRow>, i64)>,
    /// Number of stored states.
    kept: usize,
    life: u64,
    /// Life in which the node was acquired.
    taken: Option<u64>,
}

impl MemoryStore {
    pub fn set(&self, weather: Weather) {
        *self.weather.lock().unwrap() = weather;
    }

    pub fn is_answering(&self) -> bool {
        *self.weather.lock().unwrap() == Weather::Fair
    }

    /// Lets one row be read, while they are held.
    pub fn let_one_read_go(&self) {
        self.one_read.store(true, Ordering::Relaxed);
        self.reads_held.send_replace(false);
    }

    /// Returns how many reads of rows are waiting, while they are held.
    pub fn reads_waiting(&self) -> usize {
        self.reads_held.receiver_count()
    }

    /// Returns the generation of the node.
    pub fn generation(&self) -> i64 {
        self.generation.load(Ordering::Relaxed)
    }

    /// Holds the next INSERTs, repeated writes, the records of next attempts, and reads of open rows and of lists,
    /// until [`Self::let_inserts_go`].
    pub fn hold_inserts(&self) {
        self.gate.send_replace(true);
    }

    pub fn let_inserts_go(&self) {
        self.gate.send_replace(false);
    }

    /// Returns how often the open rows were read.
    pub fn open_rows_asked(&self) -> usize {
        self.open_rows_asked.load(Ordering::Relaxed)
    }

    /// Returns how often rows were listed, answered or not.
    pub fn lists_read(&self) -> usize {
        self.lists_read.load(Ordering::Relaxed)
    }

    /// Stores its state before each of so many writes.
    pub fn keep_history(&self, kept: usize) {
        self.history.lock().unwrap().kept = kept;
    }

    /// Begins another life, which lacks the last writes. Writes in flight do not reach it.
    pub fn go_back(&self, writes: usize) {
        let mut rows = self.rows.lock().unwrap();
        let mut history = self.history.lock().unwrap();
        history.life += 1;
        let left = history.before.len().saturating_sub(writes);
        if let Some((before, generation)) = history.before.drain(left..).next() {
            *rows = before;
            self.generation.store(generation, Ordering::Relaxed);
        }
    }

    /// Replaces this store by an empty one.
    pub fn lose_all(&self) {
        self.go_back(0);
        self.rows.lock().unwrap().clear();
        self.removed_ids.lock().unwrap().clear();
        self.generation.store(0, Ordering::Relaxed);
    }

    pub fn life(&self) -> u64 {
        self.history.lock().unwrap().life
    }

    /// Returns the attempt recorded last.
    pub fn recorded(&self, run: RunId) -> Option<NewRun> {
        self.recorded.lock().unwrap().get(&run).cloned()
    }

    fn note(&self) {
        let rows = self.rows.lock().unwrap();
        let mut history = self.history.lock().unwrap();
        if history.kept > 0 {
            let now = (rows.clone(), self.generation.load(Ordering::Relaxed));
            history.before.push_back(now);
            if history.before.len() > history.kept {
                history.before.pop_front();
            }
        }
    }

    /// Adds another node, whose lease has ended or not.
    pub fn add_node(&self, node: NodeId, keeper_epoch: KeeperEpoch, has_lease: bool) {
        self.nodes.lock().unwrap().push(NodeRow {
            node,
            name: "two".into(),
            address: String::new(),
            heard: Timestamp(9),
            lease: Duration::from_secs(1),
            keeper_epoch,
            forgotten: None,
            draining: None,
            now: Timestamp(if has_lease { 10 } else { 10_000_000 }),
        });
    }

    pub fn row(&self, run: RunId) -> Option<RunRow> {
        self.rows.lock().unwrap().get(&run).cloned()
    }

    /// Returns what is known of a row that a later version has written.
    fn unread(&self, row: &RunRow) -> Option<UnreadRow> {
        let unread = self.unread.lock().unwrap();
        unread.contains(&row.new.run).then(|| UnreadRow {
            run: row.new.run,
            node: row.new.node,
            owner: row.new.owner.clone(),
            attempt: row.new.attempt,
            created: row.new.created,
            age: row.new.age,
            grace: row.new.policy().grace(),
            has_ended: row.outcome.is_some(),
            why: "state: of_tomorrow".into(),
        })
    }

    fn found(&self, rows: impl Iterator<Item = RunRow>) -> FoundRows {
        let mut found = FoundRows::default();
        for row in rows {
            match self.unread(&row) {
                Some(unread) => found.unread.push(unread),
                None => found.rows.push(row),
            }
        }
        found
    }

    fn check(&self) -> Result<(), StoreError> {
        let history = self.history.lock().unwrap();
        if history.taken.is_some_and(|taken| taken != history.life) {
            return Err(StoreError::Unavailable("another life".into()));
        }
        drop(history);
        match *self.weather.lock().unwrap() {
            Weather::Away => Err(StoreError::Unavailable("away".into())),
            Weather::Fair
            | Weather::ReadOnly
            | Weather::InsertUnknown { .. }
            | Weather::InsertLast
            | Weather::StatesHang
            | Weather::Superseded
            | Weather::Broken => Ok(()),
        }
    }

    fn check_write(&self) -> Result<(), StoreError> {
        if *self.weather.lock().unwrap() == Weather::ReadOnly {
            return Err(StoreError::Unavailable("it is read-only".into()));
        }
        self.check()
    }

    /// Checks the generation: only writes with the present one are accepted.
    fn present(&self, run: RunId, generation: i64) -> Result<(), StoreError> {
        if generation != self.generation.load(Ordering::Relaxed) {
            return Err(StoreError::Fenced(run));
        }
        self.note();
        Ok(())
    }

    fn carry_out(&self, node: NodeId, run: RunId, change: &Change) -> Result<Changed, StoreError> {
        let mut rows = self.rows.lock().unwrap();
        let there = rows.get(&run).cloned();
        let open = there.as_ref().filter(|row| row.outcome.is_none());
        let is_permitted = match change {
            Change::Inserted(_) | Change::Fenced(..) | Change::Closed(..)
                if there.is_none() && self.removed_ids.lock().unwrap().contains(&run) =>
            {
                false
            }
            Change::Inserted(_) | Change::Fenced(..) if there.is_some() => {
                return Ok(Changed::Taken(Box::new(there.unwrap())));
            }
            Change::Inserted(new) => {
                let claimed = |row: &&RunRow| row.new.owner == new.owner && row.new.run != run;
                let taken = rows.values().filter(claimed).find(|row| {
                    let mut claims = row.new.claims();
                    claims.any(|claim| match claim {
                        Claim::Name(_) if row.outcome.is_some() => false,
                        claim => new.claims().any(|own| own == claim),
                    })
                });
                if let Some(row) = taken {
                    return Ok(Changed::Taken(Box::new(row.clone())));
                }
                true
            }
            Change::Stop { .. } | Change::Facets(_) => open.is_some(),
            Change::State { .. } => open.is_some_and(|row| row.state != StoredState::Backoff),
            Change::Rested(new, rest) => {
                let ended = rest.past.last().unwrap();
                assert_eq!(ended.number, new.attempt, "another attempt has ended");
                open.is_some_and(|row| {
                    let waits = row.state == StoredState::Backoff;
                    let attempt = row.new.attempt;
                    attempt == new.attempt || waits && attempt + 1 == new.attempt
                })
            }
            Change::Begun(new, _) => open.is_some_and(|row| {
                let waits = row.state == StoredState::Backoff && row.desired == Desired::Run;
                waits && row.new.attempt + 1 == new.attempt
            }),
            Change::Withdrawn => there.as_ref().is_none_or(|row| {
                row.state == StoredState::Starting
                    && row.desired == Desired::Run
                    && row.new.attempt == 1
                    && row.new.node == node
            }),
            Change::OutputRemoved(_) => there.is_some() && open.is_none(),
            _ => true,
        };
        if !is_permitted {
            return Err(StoreError::Fenced(run));
        }
        let stays = match (change, &there) {
            (Change::Snapshot(row), Some(there)) => is_final(there, row),
            (Change::OutputRemoved(_), Some(there)) => there.output_removed.is_some(),
            _ => false,
        };
        let mut age = Age::NONE;
        if !stays {
            let is_new = there.is_none() && !matches!(change, Change::Snapshot(_));
            let was_ended = there.is_some() && open.is_none();
            let mut row = change.upon(there.clone());
            if let Some(row) = row.as_mut().filter(|_| is_new) {
                let newest = rows.values().map(|row| row.new.age.0).max().unwrap_or(0);
                age = Age(row.new.age.0.max(row.new.created.0).max(newest + 1));
                row.new.age = age;
            }
            if let Some(row) = row
                .as_ref()
                .filter(|_| is_new || matches!(change, Change::Begun(..)))
            {
                self.recorded.lock().unwrap().insert(run, row.new.clone());
            }
            if let (Change::Closed(_, end) | Change::Fenced(_, end), false) = (change, was_ended) {
                let mut closed = self.closed.lock().unwrap();
                closed.push((run, end.outcome.clone()));
            }
            match row {
                Some(row) => drop(rows.insert(run, row)),
                None => drop(rows.remove(&run)),
            }
        }
        self.changed.notify_waiters();
        Ok(Changed::Done(age))
    }
}

#[async_trait]
impl Store for MemoryStore {
    async fn stored_node(&self, _: NodeId) -> Result<StoredNode, StoreError> {
        let weather = *self.weather.lock().unwrap();
        assert!(weather != Weather::Broken, "the store is broken");
        if weather == Weather::Away {
            return Err(StoreError::Unavailable("away".into()));
        }
        let ahead = i64::from(weather == Weather::Superseded);
        let generation = self.generation.load(Ordering::Relaxed);
        Ok(StoredNode {
            life: Life::named(self.life().to_string()),
            generation: (generation > 0).then_some(generation + ahead),
            keeper_epoch: None,
            lease_left: Duration::ZERO,
        })
    }

    async fn open_node(&self, opening: &Opening) -> Result<i64, StoreError> {
        let weather = *self.weather.lock().unwrap();
        if matches!(weather, Weather::Away | Weather::ReadOnly) {
            return Err(StoreError::Unavailable("away".into()));
        }
        self.note();
        let before = self.generation.load(Ordering::Relaxed);
        let generation = before.max(opening.above) + 1;
        self.generation.store(generation, Ordering::Relaxed);
        let mut history = self.history.lock().unwrap();
        history.taken = Some(history.life);
        Ok(generation)
    }

    async fn renew(&self, _: NodeId, _: i64, _: Option<Timestamp>) -> Result<bool, StoreError> {
        self.check_write().map(|()| false)
    }

    async fn leave_stop(&self, _: NodeId, _: &LeftStop) -> Result<(), StoreError> {
        self.check_write()
    }

    async fn left_stops(&self, _: NodeId) -> Result<Vec<LeftStop>, StoreError> {
        Ok(Vec::new())
    }

    async fn left_stops_of(&self, _: &[RunId]) -> Result<Vec<LeftStop>, StoreError> {
        Ok(Vec::new())
    }

    async fn remove_left_stop(&self, _: NodeId, _: &LeftStop) -> Result<(), StoreError> {
        self.check_write()
    }

    async fn give_up(&self, _: NodeId, _: i64) -> Result<(), StoreError> {
        self.check_write()
    }

    async fn forget_node(&self, _: NodeId, _: KeeperEpoch) -> Result<i64, StoreError> {
        Ok(self.generation())
    }

    async fn remove_nodes(&self, which: NodeRemoval) -> Result<bool, StoreError> {
        self.check_write()?;
        let rows = self.rows.lock().unwrap();
        let is_open = |row: &RunRow, node| row.new.node == node && row.outcome.is_none();
        let mut rows = rows.values();
        Ok(matches!(which, NodeRemoval::Node(node) if !rows.any(|row| is_open(row, node))))
    }

    async fn nodes(&self, _: Option<&[NodeId]>) -> Result<Vec<NodeRow>, StoreError> {
        self.check()?;
        Ok(self.nodes.lock().unwrap().clone())
    }

    async fn newest_age(&self) -> Result<Age, StoreError> {
        self.check()?;
        let rows = self.rows.lock().unwrap();
        Ok(rows
            .values()
            .map(|row| row.new.age)
            .max()
            .unwrap_or_default())
    }

    async fn open_epochs(&self, _: NodeId) -> Result<Vec<EpochRow>, StoreError> {
        Ok(Vec::new())
    }

    async fn change(
        &self,
        node: NodeId,
        generation: i64,
        run: RunId,
        change: &Change,
    ) -> Result<Changed, StoreError> {
        let decides = matches!(change, Change::Inserted(_) | Change::Begun(..));
        if decides || matches!(change, Change::Snapshot(_)) {
            let mut gate = self.gate.subscribe();
            let _ = gate.wait_for(|held| !held).await;
        }
        self.check_write()?;
        let weather = *self.weather.lock().unwrap();
        let ends = matches!(change, Change::Closed(..) | Change::OutputRemoved(_));
        if weather == Weather::Superseded && ends {
            return Err(StoreError::Fenced(run));
        }
        self.present(run, generation)?;
        if weather == Weather::StatesHang && matches!(change, Change::State { .. }) {
            return std::future::pending().await;
        }
        match (weather, change) {
            (Weather::InsertUnknown { written: false }, _) if decides => {}
            (Weather::InsertUnknown { written: true }, _) if decides => {
                self.carry_out(node, run, change)?;
            }
            (Weather::InsertLast, Change::Inserted(_)) => {
                self.set(Weather::ReadOnly);
                self.carry_out(node, run, change)?;
            }
            _ => return self.carry_out(node, run, change),
        }
        Err(StoreError::Unknown("the connection was lost".into()))
    }

    async fn ended_rows(
        &self,
        node: NodeId,
        boot: &str,
        start: Age,
        limit: u32,
    ) -> Result<Vec<EndedRow>, StoreError> {
        self.check()?;
        let rows = self.rows.lock().unwrap();
        let mut found: Vec<EndedRow> = rows
            .values()
            .filter(|row| row.new.node == node && row.new.age > start)
            .filter_map(|row| {
                let tree = &row.outcome.as_ref()?.tree;
                let identity = row.new.identity.as_ref();
                Some(EndedRow {
                    run: row.new.run,
                    owner: row.new.owner.clone(),
                    ended: row.times.ended?,
                    age: row.new.age,
                    has_files: row.output_age.is_some() && row.output_removed.is_none(),
                    may_live: !tree.is_proven()
                        && identity.is_some_and(|id| id.host.boot_id == boot),
                })
            })
            .collect();
        found.sort_by_key(|row| row.age);
        found.truncate(limit as usize);
        Ok(found)
    }

    async fn remove_rows(&self, removal: &RowRemoval) -> Result<Vec<RemovedRow>, StoreError> {
        self.check_write()?;
        if removal.generation != Some(self.generation()) {
            return Ok(Vec::new());
        }
        let mut rows = self.rows.lock().unwrap();
        let mut removed_ids = self.removed_ids.lock().unwrap();
        let (mut removed, mut new_ids) = (Vec::new(), Vec::new());
        for run in &removal.runs {
            if rows.get(run).is_some_and(|row| row.outcome.is_some()) {
                let row = rows.remove(run).unwrap();
                let (owner, bytes) = (row.new.owner.clone(), kennel_store::row_bytes(&row.new));
                removed.push(RemovedRow {
                    run: *run,
                    owner,
                    bytes,
                });
                new_ids.push(*run);
            }
        }
        let old = removed_ids.extract_if(|run| *run < removal.forgotten_before);
        let mut forgotten = self.newest_forgotten.lock().unwrap();
        *forgotten = old.max().max(*forgotten);
        removed_ids.extend(new_ids);
        Ok(removed)
    }

    async fn removed_ids(&self, runs: &[RunId]) -> Result<Vec<RunId>, StoreError> {
        self.check()?;
        let removed = self.removed_ids.lock().unwrap();
        let these = runs.iter().filter(|run| removed.contains(run));
        Ok(these.copied().collect())
    }

    async fn newest_forgotten(&self) -> Result<Option<RunId>, StoreError> {
        // Answered in any weather: test ids are old by number, and new ids are not looked up.
        Ok(*self.newest_forgotten.lock().unwrap())
    }

    async fn stray_node(&self, _: Option<NodeId>) -> Result<Option<NodeId>, StoreError> {
        self.check().map(|()| None)
    }

    async fn with_output(
        &self,
        _: NodeId,
        start: Option<Age>,
        limit: u32,
    ) -> Result<Vec<WithOutput>, StoreError> {
        self.check()?;
        let rows = self.rows.lock().unwrap();
        let of = |row: &RunRow| {
            let age = row.output_age.filter(|_| row.output_removed.is_none());
            age.zip(row.times.ended).map(|(age, ended)| WithOutput {
                run: row.new.run,
                owner: row.new.owner.clone(),
                ended,
                age,
            })
        };
        let mut found: Vec<WithOutput> = rows.values().filter_map(of).collect();
        found.sort_by_key(|one| std::cmp::Reverse(one.age));
        found.retain(|one| start.is_none_or(|start| one.age < start));
        found.truncate(limit as usize);
        Ok(found)
    }

    async fn get(&self, run: RunId) -> Result<Option<RunRow>, StoreError> {
        let mut held = self.reads_held.subscribe();
        let _ = held.wait_for(|held| !held).await;
        if self.one_read.swap(false, Ordering::Relaxed) {
            self.reads_held.send_replace(true);
        }
        self.check()?;
        let row = self.row(run);
        match row.as_ref().and_then(|row| self.unread(row)) {
            Some(unread) => Err(unread.into()),
            None => Ok(row),
        }
    }

    async fn claimed(&self, owner: &str, claim: &Claim) -> Result<Option<RunRow>, StoreError> {
        self.check()?;
        let rows = self.rows.lock().unwrap();
        let own = rows.values().filter(|row| row.new.owner == owner);
        let own = own.filter(|row| row.new.claims().any(|other| other == *claim));
        Ok(own.max_by_key(|row| row.new.age).cloned())
    }

    async fn list(
        &self,
        filter: &ListFilter,
        start: Option<PageStart>,
        limit: u32,
    ) -> Result<ListPage, StoreError> {
        self.check()?;
        let mut rows: Vec<RunRow> = self.rows.lock().unwrap().values().cloned().collect();
        rows.sort_unstable_by_key(|row| row.new.age);
        match filter.order {
            ListOrder::OldestFirst => {
                rows.retain(|row| start.is_none_or(|start| row.new.age > start.age));
            }
            ListOrder::NewestFirst => {
                rows.reverse();
                rows.retain(|row| start.is_none_or(|start| row.new.age < start.age));
            }
        }
        rows.truncate(limit as usize);
        let last = rows.get(limit as usize - 1);
        let next = last.map(RunRow::page_start);
        self.lists_read.fetch_add(1, Ordering::Relaxed);
        let mut gate = self.gate.subscribe();
        let _ = gate.wait_for(|held| !held).await;
        Ok(ListPage {
            rows,
            next,
            ..ListPage::default()
        })
    }

    async fn open_runs(&self, node: NodeId) -> Result<FoundRows, StoreError> {
        self.check()?;
        let rows = self.rows.lock().unwrap().clone();
        self.open_rows_asked.fetch_add(1, Ordering::Relaxed);
        let mut gate = self.gate.subscribe();
        let _ = gate.wait_for(|held| !held).await;
        let is_open = |row: &RunRow| row.new.node == node && row.outcome.is_none();
        Ok(self.found(rows.into_values().filter(is_open)))
    }

    async fn get_all(&self, runs: &[RunId]) -> Result<FoundRows, StoreError> {
        self.check()?;
        let rows = self.rows.lock().unwrap();
        let found = runs.iter().filter_map(|run| rows.get(run).cloned());
        // Only a query for one row reads its entries.
        let found = found.map(|row| RunRow {
            entries: None,
            ..row
        });
        Ok(self.found(found))
    }

    async fn ended_with_pids(
        &self,
        _: NodeId,
        _: &HostIdentity,
        pids: &[i32],
        _: u32,
    ) -> Result<Vec<RunRow>, StoreError> {
        self.check()?;
        let rows = self.rows.lock().unwrap();
        let numbered = rows.values().filter(|row| {
            let identity = row.new.identity.as_ref();
            let with =
                |i: &RunIdentity| pids.contains(&i.command.pid) || pids.contains(&i.shim.pid);
            row.outcome.is_some() && identity.is_some_and(with)
        });
        Ok(numbered.cloned().collect())
    }

    async fn change_consumers(
        &self,
        change: &ConsumerChange,
        generation: i64,
    ) -> Result<(), StoreError> {
        self.check_write()?;
        let mut consumers = self.consumers.lock().unwrap();
        match change {
            ConsumerChange::Put(row) => {
                let knows_less = |before: &ConsumerRow| {
                    before.created != row.created
                        || before.session > row.session
                        || before.acked > row.acked
                };
                let is_present = generation == self.generation.load(Ordering::Relaxed);
                if !is_present || consumers.get(&row.key).is_some_and(knows_less) {
                    let run = row.key.run.unwrap_or(RunId::from_u128(0));
                    return Err(StoreError::Fenced(run));
                }
                consumers.insert(row.key.clone(), row.clone());
            }
            ConsumerChange::Delete(_, key) => drop(consumers.remove(key)),
            ConsumerChange::Expire(_, before) => {
                let rows = self.rows.lock().unwrap();
                consumers.retain(|key, _| {
                    let row = key.run.and_then(|run| rows.get(&run));
                    row.and_then(|row| row.output_removed)
                        .is_none_or(|removed| removed.at >= *before)
                });
            }
        }
        Ok(())
    }

    async fn consumers(
        &self,
        _: NodeId,
        filter: &ConsumerFilter,
        limit: u32,
    ) -> Result<Vec<ConsumerRow>, StoreError> {
        self.check()?;
        let fits = |row: &&ConsumerRow| {
            filter.run.is_none_or(|run| run == row.key.run)
                && filter
                    .name
                    .as_ref()
                    .is_none_or(|name| *name == row.key.name)
                && filter
                    .owner
                    .as_ref()
                    .is_none_or(|owner| *owner == row.key.owner)
                && filter.after.as_ref().is_none_or(|after| row.key > *after)
        };
        let consumers = self.consumers.lock().unwrap();
        let found = consumers.values().filter(fits).take(limit as usize);
        Ok(found.cloned().collect())
    }

    async fn count_consumers(
        &self,
        _: NodeId,
        key: &ConsumerKey,
    ) -> Result<(u64, u64), StoreError> {
        self.check()?;
        let consumers = self.consumers.lock().unwrap();
        let of_owner = consumers.keys().filter(|own| own.owner == key.owner);
        let of_run = of_owner.clone().filter(|own| own.run == key.run).count();
        Ok((of_run as u64, of_owner.count() as u64))
    }

    async fn record_bytes(&self, _: NodeId) -> Result<Vec<(String, u64)>, StoreError> {
        self.check()?;
        let rows = self.rows.lock().unwrap();
        let sizes = rows
            .values()
            .map(|row| (row.new.owner.clone(), kennel_store::row_bytes(&row.new)));
        Ok(sizes.collect())
    }

    async fn ping(&self) -> Result<(), StoreError> {
        self.check()
    }

    fn describe(&self) -> String {
        "memory".into()
    }
}

/// Whether a row stays as it is where another one is to be written over it.
fn is_final(there: &RunRow, row: &RunRow) -> bool {
    let reason = there.outcome.as_ref().map(|outcome| &outcome.reason);
    let is_lost = matches!(reason, Some(EndReason::ServiceLost | EndReason::Rebooted));
    there.outcome.is_some() && !(is_lost && row.outcome.is_none())
}

pub fn new_run(run: RunId) -> NewRun {
    let mut spec = RunSpec::default();
    spec.policy.stop = StopPolicy::within(Duration::from_secs(1));
    NewRun {
        run,
        owner: "uid:0".into(),
        node: node(),
        generation: 1,
        keeper_epoch: hello().epoch,
        identity: Some(identity(77)),
        spec: Arc::new(spec.into()),
        spec_digest: SpecDigest::default().parts.concat(),
        spec_digest_version: 4,
        created: Timestamp(1),
        ..NewRun::default()
    }
}

pub fn call(run: Option<RunId>) -> SpawnCall {
    let mut spec = RunSpec::default();
    spec.command.argv = vec!["true".into()];
    spec.policy.stop = StopPolicy::within(Duration::from_secs(1));
    SpawnCall {
        run,
        spec,
        owner: "uid:0".into(),
        ..SpawnCall::default()
    }
}

pub fn seen(
    command: ProcessPresence,
    cgroup: CgroupSeen,
    record: Option<ExitRecord>,
) -> Observation {
    Observation {
        host: Host::Same,
        exit_record: record,
        shim: ProcessPresence::Gone,
        command,
        cgroup,
        held: Vec::new(),
        hints: Vec::new(),
        namespace: None,
        end_begun: false,
        steps: Vec::new(),
        stuck: Stuck::default(),
        at: Timestamp(0),
    }
}

fn node() -> NodeId {
    NodeId::from_u128(1)
}

fn hello() -> KeeperHello {
    KeeperHello {
        speaks: Levels { min: 1, max: 1 },
        knows: Vec::new(),
        epoch: KeeperEpoch::from_u128(2),
        version: "0.1.0".into(),
        keeper: process(10),
        host: host(),
        cgroup_base: Ok("/nowhere/kennel".into()),
        pidfs: true,
        powers: LimitPowers {
            hard_max: vec![(Resource::OpenFiles, 4096)],
            nice_min: 0,
            oom_score_adj_min: None,
            knobs: Err("none here".into()),
        },
        kernel: "6.18".into(),
        capabilities: Vec::new(),
        late: Vec::new(),
        restarts: 0,
        former: None,
        upgrade: None,
    }
}

fn facts() -> HostFacts {
    HostFacts {
        uid: 0,
        groups_are_open: true,
        has_cgroup_kill: true,
        namespaces_are_open: true,
        may_signal_everybody: true,
        no_new_privileges: false,
        sandbox_holds_signals: true,
        sandbox_has_mounts: true,
    }
}

pub fn identity(pid: i32) -> RunIdentity {
    RunIdentity {
        command: process(pid),
        shim: process(pid + 1000),
        cgroup: None,
        host: host(),
    }
}

fn process(pid: i32) -> ProcessIdentity {
    ProcessIdentity {
        pid,
        pgid: pid,
        sid: pid,
        start_ticks: 5,
        pidfs_handle: Some(9),
    }
}

fn host() -> HostIdentity {
    HostIdentity {
        boot_id: "boot".into(),
        pidns_inode: 4,
        init_start_ticks: Some(7),
    }
}

/// Returns the one process of a tree of this world.
pub fn member() -> Member {
    Member {
        pid: 100,
        ppid: 1,
        pgid: 100,
        sid: 100,
        start_ticks: 1,
        name: "sleep".into(),
        args: vec!["sleep".into(), "1000".into()],
        args_cut: false,
        state: 'S',
        cpu_time: None,
        rss_bytes: 4096,
        listening_ports: vec![80],
        ports_cut: false,
        sockets: Vec::new(),
        holds: Holds {
            cgroup: true,
            shim: true,
            keeper: false,
        },
    }
}

/// No run of these tests has a server.
#[derive(Debug)]
struct NoHealth;

#[derive(Debug)]
struct NoTokens;

impl kennel_supervisor::TokenMaker for NoTokens {
    fn token(&self, _: RunId, _: u32) -> String {
        unreachable!("no run of these tests has a token")
    }
}

#[derive(Debug)]
struct NoSeal;

/// No owner has a quota.
#[derive(Debug)]
struct NoQuotas;

impl kennel_supervisor::OwnerQuotas for NoQuotas {
    fn output_bytes_per_second(&self, _: &str) -> Option<std::num::NonZeroU64> {
        None
    }

    fn record_bytes(&self, _: &str) -> Option<std::num::NonZeroU64> {
        None
    }
}

impl kennel_supervisor::Sealer for NoSeal {
    fn seal(&self, _: RunId, plain: &[u8]) -> std::io::Result<Vec<u8>> {
        Ok(plain.to_vec())
    }

    fn open<'a>(&self, _: RunId, sealed: &'a mut [u8]) -> std::io::Result<&'a [u8]> {
        Ok(sealed)
    }
}

#[async_trait]
impl kennel_supervisor::HealthCheck for NoHealth {
    async fn check(&self, _: std::net::SocketAddr, _: &str) -> Result<(), String> {
        Err("there is no server".into())
    }

    async fn get(&self, _: tokio::net::TcpStream, _: &str) -> Result<(), String> {
        Err("there is no server".into())
    }
}
