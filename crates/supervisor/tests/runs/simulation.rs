//! Random calls, random faults, random delays, on a clock that the test owns: the invariants hold in every case.
//!
//! The server dies up to three times, at any step that it takes towards its keeper or its store: each life of it is a
//! runtime of its own, and its memory is lost with that. Keeper, store and journals stay.
//!
//! A failure prints its seed and the events, in order; `KENNEL_SEED=<n>` runs that one alone, `<n>-<m>` those. The same
//! seed has the same result except for the timing of threads that read and write files.

use crate::{
    abort, story,
    world::{DataDir, MemoryStore, Nature, Stage, Temper, Tidings, World, call},
};
use async_trait::async_trait;
use kennel_keeper::{
    audit::Installation,
    client::{
        ChildSpec, ClientError, ExtendResult, Fact, HeldRun, InputAnswer, Interrupted, KeeperEvent,
        LeakScan, Listing, Prepared, Reaped, Recorded, Resized, SecondLook, Sent, SignalResult,
        SignalTarget, Upgrade, UpgradeRefusal, Victim,
    },
};
use kennel_lifecycle::{
    CgroupIdentity, Deadline, EndReason, Exit, HeldPause, HostIdentity, InputWrite, KeeperEpoch,
    LeaderExit, NodeId, Outcome, ProcessIdentity, RestartMode, RestartPolicy, RunId, RunKind,
    Signal, SignalScope, SignalSender, StartFailure, StartStage, StopStep, TerminalSize, Timestamp,
    ladder::StopPlan,
    recovery::{Observation, ProcessPresence},
};
use kennel_store::{
    Age, Change, Changed, Claim, Closure, ConsumerChange, ConsumerFilter, ConsumerKey, ConsumerRow,
    Desired, EndedRow, EpochRow, FoundRows, LeftStop, ListFilter, ListPage, NewRun, NodeRemoval,
    NodeRow, Opening, PageStart, RemovedRow, RowRemoval, RunRow, Store, StoreError, StoredNode,
    StoredState, WithOutput,
};
use kennel_supervisor::{
    AbortCall, AbortWait, BootError, Condition, Kernel, KernelEvents, Payload, Position,
    RestartCall, RunView, SignalCall, Supervisor,
};
use std::{
    collections::{HashMap, HashSet},
    ops::RangeInclusive,
    path::PathBuf,
    pin::Pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicI64, AtomicU64, Ordering},
    },
    time::Duration,
};
use tokio::{
    sync::watch,
    time::{sleep, timeout},
};

/// Seeds of every change, in two tests; `KENNEL_SEED` chooses others.
const SEEDS: u64 = 100;
/// And of `make soak`.
const MANY_SEEDS: u64 = 10_000;
const RUNS: u64 = 6;
const CALLS: u64 = 60;
/// Writes that a store may lack when it comes back.
const HISTORY: usize = 12;
/// On the test's clock: longer than any retry, grace or delay here.
const LONG: Duration = Duration::from_mins(10);

const GRACE: Duration = Duration::from_secs(1);

fn killed() -> Exit {
    Exit::Signal {
        signal: Signal::KILL,
        core_dumped: false,
    }
}

/// Makes one of many rounds, each with its own time.
fn round(number: i64) -> StopStep {
    StopStep {
        at: Timestamp(number),
        signal: Signal::TERM,
        scope: SignalScope::Tree,
        sender: SignalSender::Keeper,
        delivered: 1,
        gone: 0,
        refused: 0,
        errno: None,
    }
}

/// A random generator: the same numbers for the same seed.
#[derive(Clone, Debug)]
pub(crate) struct Dice(Arc<AtomicU64>);

impl Dice {
    pub(crate) fn new(seed: u64) -> Self {
        Self(Arc::new(AtomicU64::new(seed)))
    }

    /// Returns a number less than `sides`; splitmix64.
    pub(crate) fn roll(&self, sides: u64) -> u64 {
        let step = 0x9e37_79b9_7f4a_7c15;
        let mut z = self.0.fetch_add(step, Ordering::Relaxed).wrapping_add(step);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % sides
    }

    pub(crate) fn percent(&self, chance: u64) -> bool {
        self.roll(100) < chance
    }

    pub(crate) async fn rest(&self, most_ms: u64) {
        sleep(Duration::from_millis(self.roll(most_ms + 1))).await;
    }

    fn run(&self) -> RunId {
        RunId::from_u128(1 + u128::from(self.roll(RUNS)))
    }

    fn nature(&self) -> Nature {
        let fails = StartFailure {
            stage: StartStage::WorkDir,
            errno: Some(2),
            path: None,
        };
        Nature {
            temper: if self.percent(30) {
                Temper::Ignores
            } else {
                Temper::Obeys
            },
            prepare_fails: self.percent(10).then_some(fails),
            exec_fails: self.percent(10).then_some(2),
            output: vec![b'x'; usize::try_from(self.roll(2000)).unwrap()],
            last_words: vec![b'y'; usize::try_from(self.roll(2000)).unwrap()],
            exits_at_once: self.percent(20).then_some(0),
            leaves_rest: self.percent(40),
            ..Nature::default()
        }
    }
}

/// Kernel and store of a world, both slow and unreliable.
#[derive(Debug)]
struct Shaky {
    world: Arc<World>,
    store: Arc<MemoryStore>,
    dice: Dice,
    /// Percent of the store's answers that are faults.
    faults: AtomicU64,
    /// Whether it never fails.
    calm: bool,
    /// Whether it sometimes comes back without the last writes.
    goes_back: bool,
    /// Whether the server does not die.
    is_undisturbed: bool,
    outcomes: Mutex<HashMap<(RunId, Timestamp, u32), Outcome>>,
    /// Number of rounds of signals sent.
    rounds: AtomicI64,
    /// Number of steps until the server dies.
    steps_left: AtomicU64,
    died: watch::Sender<bool>,
    /// Writes that were sent and are not carried out yet.
    on_their_way: OnTheirWay,
}

type Work = Pin<Box<dyn Future<Output = ()> + Send>>;

#[derive(Clone, Default)]
struct OnTheirWay(Arc<Mutex<Vec<Option<Work>>>>);

impl std::fmt::Debug for OnTheirWay {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OnTheirWay").finish_non_exhaustive()
    }
}

/// Steps of a server that does not die.
const IMMORTAL: u64 = u64::MAX / 2;

struct Late(Tidings, Dice, Option<KeeperEvent>);

#[async_trait]
impl KernelEvents for Late {
    async fn recv(&mut self) -> KeeperEvent {
        if self.2.is_none() {
            self.2 = Some(self.0.recv().await);
        }
        self.1.rest(3).await;
        let event = self.2.take().unwrap();
        story::tell(|| format!("heard {event:.200?}"));
        event
    }
}

impl Shaky {
    /// Takes one step towards the server's death. Returns whether it is dead.
    fn ages(&self) -> bool {
        let less = |left: u64| Some(left.saturating_sub(1));
        let order = Ordering::Relaxed;
        let left = self.steps_left.fetch_update(order, order, less);
        let dead = left.is_ok_and(|left| left <= 1);
        if dead {
            story::tell(|| "the server is dead".into());
            self.died.send_replace(true);
        }
        dead
    }

    /// Delays a step; a dead server takes none.
    async fn step(&self) {
        if self.ages() {
            std::future::pending::<()>().await;
        }
    }

    fn step_now(&self) {
        if self.ages() {
            // Ends the task without a panic message.
            std::panic::resume_unwind(Box::new("dead"));
        }
    }

    /// Finishes the work of a server that died: ladders continue, and its writes arrive or do not.
    async fn outlives_a_server(&self) {
        let left: Vec<_> = self.on_their_way.0.lock().unwrap().drain(..).collect();
        for write in left.into_iter().flatten() {
            if self.dice.percent(50) {
                write.await;
            }
        }
        let climbed: Vec<(RunId, Duration)> = {
            let state = self.world.state.lock().unwrap();
            let least = |plans: &[StopPlan]| plans.iter().map(|plan| plan.kill_after).min();
            let children = state.children.iter();
            children
                .filter_map(|(run, child)| Some((*run, least(&child.stop_plans)?)))
                .collect()
        };
        for (run, wait) in climbed {
            self.kills_after(run, wait);
        }
    }

    fn goes_back(&self) {
        let most = u64::try_from(HISTORY).unwrap();
        let writes = usize::try_from(self.dice.roll(most)).unwrap();
        story::tell(|| format!("the store goes back by {writes}"));
        self.store.go_back(writes);
    }

    fn kills_after(&self, run: RunId, wait: Duration) {
        let world = Arc::clone(&self.world);
        tokio::spawn(async move {
            sleep(wait).await;
            world.end(run, killed());
            world.end_rest(run);
        });
    }

    /// Makes the database sometimes lose the row of a live run; and a pause may be seen while it is in progress.
    fn mishaps(&self, held: &mut [HeldRun]) {
        for held in held.iter_mut().filter(|held| held.released) {
            let mut rows = self.store.rows.lock().unwrap();
            let row = rows.get(&held.run).filter(|row| row.outcome.is_none());
            let pausing = row.is_some_and(|row| row.state == StoredState::Pausing);
            if pausing && held.pause == HeldPause::None && self.dice.percent(50) {
                held.pause = HeldPause::Stopping;
            }
            if row.is_some() && self.dice.percent(10) {
                story::tell(|| format!("the row of {} is lost", held.run));
                rows.remove(&held.run);
            }
        }
    }

    async fn signal(&self) -> Result<SignalResult, ClientError> {
        self.step().await;
        self.dice.rest(30).await;
        self.step().await;
        Ok(match self.dice.roll(10) {
            0 => SignalResult::Failed(1),
            1 => SignalResult::Partial(vec![]),
            2 => SignalResult::Gone,
            _ => SignalResult::Done,
        })
    }

    /// Checks that a run has one end.
    fn meet_end(&self, new: &NewRun, closure: &Closure) {
        let created = (new.run, new.created, new.attempt);
        let outcome = closure.outcome.clone();
        // A run in backoff may end for another reason if its first end was not written.
        let row = self.store.row(new.run);
        if row
            .as_ref()
            .is_some_and(|row| row.state == StoredState::Backoff)
        {
            return;
        }
        // A run with exhausted restarts may end as exited: its outcome counts once its end is requested.
        let wanted = row.is_some_and(|row| row.outcome.is_none() && row.desired == Desired::Stop);
        let is_used_up = |reason: &EndReason| matches!(reason, EndReason::RestartsExhausted { .. });
        let as_wanted = |before: Outcome| match closure.outcome.reason {
            EndReason::Exited if wanted && is_used_up(&before.reason) => Outcome {
                reason: EndReason::Exited,
                ..before
            },
            _ => before,
        };
        // A run that never ran may fail for another reason if the server died before it wrote the first reason.
        if outcome.exit.is_some() || self.is_undisturbed {
            let before = self.outcomes.lock().unwrap().insert(created, outcome);
            let before = before.map_or_else(|| closure.outcome.clone(), as_wanted);
            assert_eq!(before, closure.outcome, "a run has two outcomes");
        }
    }

    async fn delay(&self) {
        let slow = self.faults.load(Ordering::Relaxed) > 0 && self.dice.percent(5);
        self.dice.rest(if slow { 6000 } else { 10 }).await;
    }

    fn fault(&self) -> bool {
        self.dice.percent(self.faults.load(Ordering::Relaxed))
    }

    async fn read(&self) -> Result<(), StoreError> {
        self.step().await;
        self.delay().await;
        self.step().await;
        if self.fault() {
            return Err(StoreError::Unavailable("away".into()));
        }
        Ok(())
    }

    /// Makes a write: done, or not, or done with an unknown result, or unknown and done later.
    async fn write<T, F, Fut>(&self, what: String, write: F) -> Result<T, StoreError>
    where
        T: std::fmt::Debug + Send + 'static,
        F: FnOnce(Arc<MemoryStore>) -> Fut,
        Fut: Future<Output = Result<T, StoreError>> + Send + 'static,
    {
        self.step().await;
        self.delay().await;
        self.step().await;
        let (store, life) = (Arc::clone(&self.store), self.store.life());
        let name = what.clone();
        let work = write(Arc::clone(&self.store));
        // The connection is lost with the life of the store.
        let work = async move {
            let written = if store.life() == life {
                work.await
            } else {
                Err(StoreError::Unknown("the connection was lost".into()))
            };
            story::tell(|| format!("{what}: {written:.120?}"));
            written
        };
        if !self.fault() {
            let written = work.await;
            self.step().await;
            return written;
        }
        let unknown = || StoreError::Unknown("the connection was lost".into());
        match self.dice.roll(4) {
            0 => {
                story::tell(|| format!("{name}: not taken"));
                Err(StoreError::Unavailable("away".into()))
            }
            1 => {
                story::tell(|| format!("{name}: lost, and not known"));
                Err(unknown())
            }
            2 => {
                story::tell(|| format!("{name}: not known"));
                let _ = work.await;
                Err(unknown())
            }
            _ => {
                story::tell(|| format!("{name}: not known, and later"));
                let wait = self.dice.roll(3000);
                let slot = {
                    let mut slots = self.on_their_way.0.lock().unwrap();
                    slots.push(Some(Box::pin(async move { drop(work.await) })));
                    slots.len() - 1
                };
                let on_their_way = self.on_their_way.clone();
                tokio::spawn(async move {
                    sleep(Duration::from_millis(wait)).await;
                    let work = on_their_way.0.lock().unwrap()[slot].take();
                    if let Some(work) = work {
                        work.await;
                    }
                });
                Err(unknown())
            }
        }
    }
}

/// Describes the attempt, the run, and its writer.
#[async_trait]
impl Kernel for Shaky {
    async fn write_input(
        &self,
        run: RunId,
        attempt: u32,
        write: &InputWrite,
        data: &[u8],
    ) -> Result<InputAnswer, ClientError> {
        self.world.write_input(run, attempt, write, data).await
    }

    async fn close_input(
        &self,
        run: RunId,
        attempt: u32,
        offset: Option<u64>,
    ) -> Result<InputAnswer, ClientError> {
        self.world.close_input(run, attempt, offset).await
    }

    async fn input_state(&self, run: RunId, attempt: u32) -> Result<InputAnswer, ClientError> {
        self.world.input_state(run, attempt).await
    }

    async fn upgrade(
        &self,
        request_id: Option<&str>,
    ) -> Result<Result<Upgrade, UpgradeRefusal>, ClientError> {
        self.world.upgrade(request_id).await
    }

    async fn prepare(&self, run: RunId, spec: &ChildSpec) -> Result<Prepared, ClientError> {
        self.step().await;
        self.dice.rest(20).await;
        self.step().await;
        if self.dice.percent(5) {
            return Err(ClientError::Exhausted("descriptors".into()));
        }
        let nature = self.dice.nature();
        self.world.state.lock().unwrap().natures.insert(run, nature);
        let prepared = self.world.prepare(run, spec).await;
        story::tell(|| format!("prepare {run}: {}", prepared.is_ok()));
        if prepared.is_ok() && self.dice.percent(10) {
            let (world, dice) = (Arc::clone(&self.world), self.dice.clone());
            tokio::spawn(async move {
                dice.rest(15).await;
                world.dies_at_gate(run);
            });
        }
        self.step().await;
        prepared
    }

    fn release(&self, run: RunId) {
        self.step_now();
        story::tell(|| format!("release {run}"));
        self.world.release(run);
        self.step_now();
        if self.dice.percent(20) {
            let (world, dice) = (Arc::clone(&self.world), self.dice.clone());
            tokio::spawn(async move {
                dice.rest(200).await;
                world.exceeds(run, &StopPlan::abort(GRACE));
                sleep(GRACE).await;
                world.end(run, killed());
            });
        }
    }

    fn shut_gate(&self, run: RunId) {
        self.step_now();
        story::tell(|| format!("shut_gate {run}"));
        self.world.shut_gate(run);
        self.step_now();
    }

    fn stop(&self, run: RunId, plan: &StopPlan) {
        self.step_now();
        // A store that does not answer is not awaited; nor is one that has lost the row of a live run.
        let recorded =
            |row: RunRow| row.desired == Desired::Stop || row.new.policy().restart.restarts();
        let row = self.store.row(run);
        assert!(
            row.is_none_or(recorded) || !self.calm,
            "signalled before the stop was recorded"
        );
        story::tell(|| format!("stop {run} by {plan:?}"));
        let rounds = self.rounds.fetch_add(1, Ordering::Relaxed);
        // No round is reported after the verdict.
        if self.world.has_members(run) {
            self.world.report(run, Fact::StopStep(round(rounds)));
        }
        self.world.climb(run, plan);
        self.kills_after(run, plan.kill_after);
        self.step_now();
    }

    fn keep_rest(&self, run: RunId) {
        self.step_now();
        story::tell(|| format!("keep_rest {run}"));
        self.world.keep_rest(run);
        self.step_now();
    }

    async fn signal(
        &self,
        run: RunId,
        signal: Signal,
        target: SignalTarget,
        request_id: Option<&str>,
    ) -> Result<Sent, ClientError> {
        self.signal().await?;
        self.world.signal(run, signal, target, request_id).await
    }

    async fn help(
        &self,
        run: RunId,
        argv: &[String],
        timeout: std::time::Duration,
    ) -> Result<kennel_keeper::client::HelperEnd, ClientError> {
        self.world.help(run, argv, timeout).await
    }

    async fn was_sent(&self, run: RunId, request_id: &str) -> Result<bool, ClientError> {
        self.dice.rest(30).await;
        self.world.was_sent(run, request_id).await
    }

    async fn tree(&self, run: RunId) -> Result<Listing, ClientError> {
        self.dice.rest(30).await;
        self.world.tree(run).await
    }

    async fn interrupt(&self, _: RunId, _: Option<&str>) -> Result<Interrupted, ClientError> {
        let (result, way) = (self.signal().await?, None);
        Ok(Interrupted { result, way })
    }

    async fn resize(
        &self,
        run: RunId,
        attempt: u32,
        size: TerminalSize,
    ) -> Result<Resized, ClientError> {
        self.world.resize(run, attempt, size).await
    }

    async fn extend(
        &self,
        run: RunId,
        limits: &[Deadline],
        time: Duration,
        by: &str,
    ) -> Result<ExtendResult, ClientError> {
        self.world.extend(run, limits, time, by).await
    }

    async fn pause(&self, run: RunId) -> Result<SignalResult, ClientError> {
        let result = self.signal().await?;
        if result == SignalResult::Done {
            self.world.pauses(run, HeldPause::Stopped);
        }
        if result == SignalResult::Done && self.dice.percent(30) {
            let (world, dice) = (Arc::clone(&self.world), self.dice.clone());
            let expires = async move { world.report(run, Fact::PauseExpired {}) };
            // The expiry may be reported before the answer.
            if dice.percent(50) {
                expires.await;
            } else {
                tokio::spawn(async move {
                    dice.rest(50).await;
                    expires.await;
                });
            }
        }
        self.step().await;
        Ok(result)
    }

    async fn resume(&self, run: RunId) -> Result<SignalResult, ClientError> {
        let result = self.signal().await?;
        if !matches!(result, SignalResult::Failed(_)) {
            self.world.pauses(run, HeldPause::None);
        }
        self.step().await;
        Ok(result)
    }

    fn acknowledge(&self, run: RunId) {
        self.step_now();
        story::tell(|| format!("acknowledge {run}"));
        self.world.acknowledge(run);
        self.step_now();
    }

    async fn observe(&self, recorded: &Recorded) -> Result<Observation, ClientError> {
        // Only a withdrawn row that the store has brought back belongs to no live run.
        let run = recorded.run;
        assert!(
            self.world.was_left_at_gate(run),
            "{run:?} was live, and was recovered"
        );
        self.world.observe(recorded).await
    }

    async fn end_orphan(&self, _: &Recorded, _: &StopPlan) -> Result<Observation, ClientError> {
        Err(ClientError::KeeperGone)
    }

    fn take_held(&self, run: RunId) -> Option<HeldRun> {
        self.world.take_held(run)
    }

    async fn keeper_seen(
        &self,
        _: ProcessIdentity,
        _: HostIdentity,
    ) -> Result<ProcessPresence, ClientError> {
        Ok(ProcessPresence::Gone)
    }

    async fn audit(
        &self,
        installation: Installation,
        data_dir: PathBuf,
    ) -> Result<LeakScan, ClientError> {
        self.world.audit(installation, data_dir).await
    }

    async fn look_again(
        &self,
        processes: Vec<ProcessIdentity>,
        directories: Vec<(RunId, CgroupIdentity)>,
    ) -> Result<SecondLook, ClientError> {
        self.world.look_again(processes, directories).await
    }

    async fn reap(
        &self,
        victims: &[Victim],
        directories: &[CgroupIdentity],
        plan: &StopPlan,
    ) -> Result<Reaped, ClientError> {
        self.world.reap(victims, directories, plan).await
    }
}

#[async_trait]
impl Store for Shaky {
    async fn stored_node(&self, node: NodeId) -> Result<StoredNode, StoreError> {
        self.read().await?;
        self.store.stored_node(node).await
    }

    async fn change(
        &self,
        node: NodeId,
        generation: i64,
        run: RunId,
        change: &Change,
    ) -> Result<Changed, StoreError> {
        match change {
            Change::Snapshot(row) => {
                if let Some(outcome) = &row.outcome {
                    let before = self.store.row(run).and_then(|row| row.outcome);
                    assert_eq!(before.as_ref().unwrap_or(outcome), outcome, "another end");
                }
            }
            Change::Closed(new, closure) => self.meet_end(new, closure),
            _ => {}
        }
        let what = format!("{} {run} by {generation}", change.name());
        let change = change.clone();
        let work = |store: Arc<MemoryStore>| async move {
            store.change(node, generation, run, &change).await
        };
        self.write(what, work).await
    }

    async fn open_node(&self, opening: &Opening) -> Result<i64, StoreError> {
        let generation = self.store.open_node(opening).await;
        story::tell(|| format!("the node is opened: {generation:?}"));
        generation
    }

    async fn renew(
        &self,
        node: NodeId,
        generation: i64,
        draining: Option<Timestamp>,
    ) -> Result<bool, StoreError> {
        self.store.renew(node, generation, draining).await
    }

    async fn leave_stop(&self, node: NodeId, stop: &LeftStop) -> Result<(), StoreError> {
        self.store.leave_stop(node, stop).await
    }

    async fn left_stops(&self, node: NodeId) -> Result<Vec<LeftStop>, StoreError> {
        self.store.left_stops(node).await
    }

    async fn left_stops_of(&self, runs: &[RunId]) -> Result<Vec<LeftStop>, StoreError> {
        self.store.left_stops_of(runs).await
    }

    async fn remove_left_stop(&self, node: NodeId, stop: &LeftStop) -> Result<(), StoreError> {
        self.store.remove_left_stop(node, stop).await
    }

    async fn give_up(&self, node: NodeId, generation: i64) -> Result<(), StoreError> {
        self.store.give_up(node, generation).await
    }

    async fn forget_node(
        &self,
        node: NodeId,
        keeper_epoch: KeeperEpoch,
    ) -> Result<i64, StoreError> {
        self.store.forget_node(node, keeper_epoch).await
    }

    async fn remove_nodes(&self, which: NodeRemoval) -> Result<bool, StoreError> {
        self.store.remove_nodes(which).await
    }

    async fn nodes(&self, these: Option<&[NodeId]>) -> Result<Vec<NodeRow>, StoreError> {
        self.store.nodes(these).await
    }

    async fn newest_age(&self) -> Result<Age, StoreError> {
        self.store.newest_age().await
    }

    async fn open_epochs(&self, node: NodeId) -> Result<Vec<EpochRow>, StoreError> {
        self.store.open_epochs(node).await
    }

    async fn ended_rows(
        &self,
        node: NodeId,
        boot: &str,
        start: Age,
        limit: u32,
    ) -> Result<Vec<EndedRow>, StoreError> {
        self.read().await?;
        self.store.ended_rows(node, boot, start, limit).await
    }

    async fn remove_rows(&self, removal: &RowRemoval) -> Result<Vec<RemovedRow>, StoreError> {
        self.store.remove_rows(removal).await
    }

    async fn removed_ids(&self, runs: &[RunId]) -> Result<Vec<RunId>, StoreError> {
        self.read().await?;
        self.store.removed_ids(runs).await
    }

    async fn newest_forgotten(&self) -> Result<Option<RunId>, StoreError> {
        self.store.newest_forgotten().await
    }

    async fn stray_node(&self, after: Option<NodeId>) -> Result<Option<NodeId>, StoreError> {
        self.store.stray_node(after).await
    }

    async fn with_output(
        &self,
        node: NodeId,
        start: Option<Age>,
        limit: u32,
    ) -> Result<Vec<WithOutput>, StoreError> {
        self.read().await?;
        self.store.with_output(node, start, limit).await
    }

    async fn get(&self, run: RunId) -> Result<Option<RunRow>, StoreError> {
        self.read().await?;
        self.store.get(run).await
    }

    async fn claimed(&self, owner: &str, claim: &Claim) -> Result<Option<RunRow>, StoreError> {
        self.read().await?;
        self.store.claimed(owner, claim).await
    }

    async fn list(
        &self,
        filter: &ListFilter,
        start: Option<PageStart>,
        limit: u32,
    ) -> Result<ListPage, StoreError> {
        self.read().await?;
        self.store.list(filter, start, limit).await
    }

    async fn open_runs(&self, node: NodeId) -> Result<FoundRows, StoreError> {
        self.store.open_runs(node).await
    }

    async fn get_all(&self, runs: &[RunId]) -> Result<FoundRows, StoreError> {
        self.read().await?;
        self.store.get_all(runs).await
    }

    async fn ended_with_pids(
        &self,
        node: NodeId,
        host: &HostIdentity,
        pids: &[i32],
        limit: u32,
    ) -> Result<Vec<RunRow>, StoreError> {
        self.read().await?;
        self.store.ended_with_pids(node, host, pids, limit).await
    }

    async fn change_consumers(
        &self,
        change: &ConsumerChange,
        generation: i64,
    ) -> Result<(), StoreError> {
        let change = change.clone();
        let what = format!("{change:?} by {generation}");
        let work = |store: Arc<MemoryStore>| async move {
            store.change_consumers(&change, generation).await
        };
        self.write(what, work).await
    }

    async fn consumers(
        &self,
        node: NodeId,
        filter: &ConsumerFilter,
        limit: u32,
    ) -> Result<Vec<ConsumerRow>, StoreError> {
        self.read().await?;
        self.store.consumers(node, filter, limit).await
    }

    async fn count_consumers(
        &self,
        node: NodeId,
        key: &ConsumerKey,
    ) -> Result<(u64, u64), StoreError> {
        self.read().await?;
        self.store.count_consumers(node, key).await
    }

    async fn record_bytes(&self, node: NodeId) -> Result<Vec<(String, u64)>, StoreError> {
        self.read().await?;
        self.store.record_bytes(node).await
    }

    async fn ping(&self) -> Result<(), StoreError> {
        self.read().await
    }

    fn describe(&self) -> String {
        "shaky".into()
    }
}

// promise: R-13, R-53a, B-3
#[test]
fn every_simulated_run_is_recorded_and_ends_once() {
    play_all(1..=SEEDS / 2);
}

/// The other half, in a thread of its own.
// promise: R-13
#[test]
fn every_simulated_run_ends_once_for_further_seeds() {
    play_all(SEEDS / 2 + 1..=SEEDS);
}

// promise: R-13
#[test]
#[ignore = "minutes: `make soak` runs it"]
fn each_run_ends_once_in_ten_thousand_simulations() {
    play_all(1..=MANY_SEEDS);
}

fn play_all(all: RangeInclusive<u64>) {
    let asked = std::env::var("KENNEL_SEED").ok();
    for seed in asked.map_or(all, |asked| seeds(&asked)) {
        let seed_note = PrintOnPanic(seed);
        story::begin();
        story::with_warnings(|| play(&Dice::new(seed)));
        std::mem::forget(seed_note);
    }
}

/// Parses one seed, or a range: `7`, `501-1000`.
fn seeds(asked: &str) -> RangeInclusive<u64> {
    let (from, to) = asked.split_once('-').unwrap_or((asked, asked));
    from.parse().unwrap()..=to.parse().unwrap()
}

/// Prints the seed when the test fails, and the events.
struct PrintOnPanic(u64);

impl Drop for PrintOnPanic {
    fn drop(&mut self) {
        eprintln!("{}\nKENNEL_SEED={}", story::whole(), self.0);
    }
}

fn play(dice: &Dice) {
    let (world, _) = World::new(Nature::default(), Vec::new(), HashMap::new());
    let faults = [0, 5, 30][usize::try_from(dice.roll(3)).unwrap()];
    let deaths = [0, 1, 1, 3][usize::try_from(dice.roll(4)).unwrap()];
    let goes_back = dice.percent(40);
    world
        .store
        .keep_history(if goes_back { HISTORY } else { 0 });
    let shaky = Arc::new(Shaky {
        store: Arc::clone(&world.store),
        world: Arc::clone(&world),
        dice: dice.clone(),
        faults: AtomicU64::new(faults),
        calm: faults == 0 && !goes_back,
        goes_back,
        is_undisturbed: deaths == 0,
        outcomes: Mutex::default(),
        rounds: AtomicI64::new(0),
        steps_left: AtomicU64::new(IMMORTAL),
        died: watch::Sender::new(false),
        on_their_way: OnTheirWay::default(),
    });
    let data_dir = Arc::new(DataDir::new());
    let ends = Ends::default();
    let mut lives = 0;
    while lives <= deaths {
        let last = lives == deaths;
        let steps = if last { IMMORTAL } else { 1 + dice.roll(200) };
        shaky.steps_left.store(steps, Ordering::Relaxed);
        shaky.died.send_replace(false);
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .start_paused(true)
            .build()
            .unwrap();
        runtime.block_on(async {
            let (mut held, tidings) = world.hand_over();
            story::tell(|| {
                let held: Vec<_> = held.iter().map(|held| (held.run, held.released)).collect();
                format!("a server begins, given {held:?}")
            });
            shaky.outlives_a_server().await;
            if goes_back && dice.percent(30) {
                shaky.goes_back();
            }
            shaky.mishaps(&mut held);
            let late = Late(tidings, dice.clone(), None);
            let (kernel, store) = (Arc::clone(&shaky), Arc::clone(&shaky));
            let data_dir = Arc::clone(&data_dir);
            let stage = Stage::after(Arc::clone(&world), kernel, late, store, held, data_dir);
            let live = live(stage, &shaky, &ends, last);
            let mut died = shaky.died.subscribe();
            tokio::select! { biased;
                _ = died.wait_for(|died| *died) => lives += 1,
                // A server that cannot begin is started again.
                booted = live => lives += u64::from(booted),
            }
        });
    }
}

/// Runs one life of the server, if it begins; the last one sees everything to its end.
async fn live(
    stage: impl Future<Output = Result<Stage, BootError>>,
    shaky: &Shaky,
    ends: &Ends,
    last: bool,
) -> bool {
    let Ok(stage) = stage.await else {
        return false;
    };
    let dice = &shaky.dice;
    let mut calls = Vec::new();
    for _ in 0..CALLS {
        dice.rest(40).await;
        let (supervisor, dice, ends) = (stage.supervisor.clone(), dice.clone(), ends.clone());
        calls.push(tokio::spawn(async move {
            call_something(&supervisor, &dice, &ends).await;
        }));
        if shaky.goes_back && shaky.dice.percent(4) {
            shaky.goes_back();
        }
        if shaky.dice.percent(30) {
            stage.exits(shaky.dice.run(), 7);
        }
    }
    if !last {
        return true;
    }
    shaky.faults.store(0, Ordering::Relaxed);
    let shutdown = dice.percent(50);
    let ended = timeout(LONG, end_all(&stage, shutdown)).await;
    assert!(ended.is_ok(), "runs are left");
    let open = |row: &RunRow| row.outcome.is_none();
    let left = stage.world.store.rows.lock().unwrap().values().any(open);
    for answered in calls {
        // A caller that waits for a run left to the next service gets no answer here.
        if left && !answered.is_finished() {
            answered.abort();
            continue;
        }
        let answered = timeout(LONG, answered).await;
        answered.expect("every call is answered").unwrap();
    }
    check(&stage, ends, shutdown).await;
    true
}

/// The ends that clients got.
#[derive(Clone, Debug, Default)]
struct Ends(Arc<Mutex<HashMap<RunId, Outcome>>>);

impl Ends {
    fn see(&self, view: Option<RunView>) {
        if let Some((run, outcome)) = view.and_then(|view| Some((view.run, view.row.outcome?))) {
            let mut ends = self.0.lock().unwrap();
            let before = ends.entry(run).or_insert_with(|| outcome.clone());
            assert_eq!(*before, outcome, "two ends were reported");
        }
    }
}

/// Makes one call of a client, which may not wait for its answer.
async fn call_something(supervisor: &Supervisor, dice: &Dice, ends: &Ends) {
    let run = dice.run();
    let patience = Duration::from_millis(dice.roll(5000));
    let condition = [
        Condition::Started,
        Condition::Paused,
        Condition::LeaderExited,
        Condition::Ended,
    ][usize::try_from(dice.roll(4)).unwrap()];
    let call = async {
        match dice.roll(14) {
            0..=4 => {
                let mut call = call(Some(run));
                call.spec.policy.on_leader_exit = match dice.roll(4) {
                    0 => LeaderExit::Keep,
                    1 => LeaderExit::Drain { timeout: None },
                    _ => LeaderExit::Stop,
                };
                if dice.percent(60) && call.spec.policy.on_leader_exit != LeaderExit::Keep {
                    call.spec.policy.restart = policy(dice);
                }
                if dice.percent(30) {
                    call.spec.policy.kind = RunKind::Service;
                }
                ends.see(supervisor.spawn(call).await.ok().map(|s| s.run));
            }
            5 => {
                let wait = [
                    AbortWait::None,
                    AbortWait::LeaderExited,
                    AbortWait::TreeEmpty,
                ];
                let stop = AbortCall {
                    grace: dice
                        .percent(50)
                        .then(|| Duration::from_millis(dice.roll(3000))),
                    wait: wait[usize::try_from(dice.roll(3)).unwrap()],
                    ..abort(run)
                };
                ends.see(supervisor.abort(stop).await.ok());
            }
            6 => drop(supervisor.interrupt(run, Some("a".into())).await),
            11 => {
                let call = SignalCall {
                    run,
                    signal: Signal::HUP,
                    target: SignalTarget::Tree,
                    request_id: Some("a".into()),
                };
                drop(supervisor.signal(call).await);
            }
            12 => ends.see(supervisor.tree(run).await.ok().map(|(run, _)| run)),
            7 if dice.percent(50) => drop(supervisor.restart(again(run, dice)).await),
            7 => drop(supervisor.pause(run).await),
            8 => drop(supervisor.resume(run).await),
            9 => ends.see(supervisor.get(run).await.ok()),
            10 => drop(supervisor.events(run, Position::Beginning).await),
            _ => ends.see(supervisor.wait(run, condition).await.ok().map(|w| w.run)),
        }
    };
    if dice.percent(30) {
        let _ = timeout(patience, call).await;
    } else {
        call.await;
    }
}

fn again(run: RunId, dice: &Dice) -> RestartCall {
    RestartCall {
        run,
        grace: dice
            .percent(50)
            .then(|| Duration::from_millis(dice.roll(3000))),
        expected_attempt: dice.percent(50).then_some(2),
        by: "uid:0".into(),
        request_id: None,
    }
}

fn policy(dice: &Dice) -> RestartPolicy {
    RestartPolicy {
        mode: if dice.percent(50) {
            RestartMode::OnFailure
        } else {
            RestartMode::Always
        },
        delay: Duration::from_millis(10 + dice.roll(2000)),
        // The delay is random already, and the same for the same seed.
        jitter_percent: 0,
        max_restarts: dice
            .percent(70)
            .then(|| 1 + u32::try_from(dice.roll(3)).unwrap()),
        min_uptime: Duration::from_secs(1),
        ..RestartPolicy::default()
    }
}

async fn end_all(stage: &Stage, shutdown: bool) {
    // The effects of a fault are settled first.
    sleep(Duration::from_mins(1)).await;
    if shutdown {
        stage.send_event(KeeperEvent::Shutdown {});
    }
    loop {
        for run in (1..=RUNS).map(|n| RunId::from_u128(u128::from(n))) {
            let open = |row: RunRow| row.outcome.is_none();
            if !shutdown && stage.world.store.row(run).is_some_and(open) {
                stage.supervisor.abort(abort(run)).await.unwrap();
            }
        }
        if stage.supervisor.info().await.live.is_empty() {
            return;
        }
        sleep(Duration::from_millis(100)).await;
    }
}

async fn check(stage: &Stage, ends: &Ends, shutdown: bool) {
    let rows = stage.world.store.rows.lock().unwrap().clone();
    let (executed, ran) = {
        let kernel = stage.kernel();
        for (run, child) in &kernel.children {
            assert!(!child.alive, "{run} is alive");
            assert!(child.acknowledged, "{run} is held for ever");
        }
        (kernel.executed.clone(), kernel.ran.clone())
    };
    let once: HashSet<(RunId, u32)> = executed.iter().copied().collect();
    assert_eq!(once.len(), executed.len(), "an attempt was executed twice");
    for (run, attempt) in &executed {
        let row = rows.get(run).expect("what ran has a row");
        assert!(row.new.attempt >= *attempt, "{row:?}");
    }
    for (run, row) in rows {
        let Some(outcome) = row.outcome else {
            assert!(shutdown, "{row:?}");
            // The database wrote the row after its withdrawal, and no caller read it: the next service withdraws it.
            if row.state == StoredState::Starting {
                assert!(stage.world.was_left_at_gate(run), "{row:?}");
                assert!(!once.contains(&(run, row.new.attempt)), "{row:?}");
                continue;
            }
            assert_eq!(row.new.policy().kind, RunKind::Service, "{row:?}");
            assert_eq!(row.state, StoredState::Backoff);
            assert_eq!(row.desired, Desired::Run);
            continue;
        };
        let heard = ends.0.lock().unwrap().get(&run).cloned();
        assert_eq!(heard.unwrap_or_else(|| outcome.clone()), outcome);
        let last = (run, row.new.attempt);
        // If a store brings a withdrawn row back, no evidence remains that its command never ran.
        let is_brought_back =
            stage.world.was_left_at_gate(run) && outcome.exit == Some(Exit::Unknown);
        assert_eq!(
            outcome.exit.is_some() && !is_brought_back,
            once.contains(&last),
            "{outcome:?}"
        );
        let recorded_events = events_by_attempt(stage, run).await;
        for once in [
            "recorded",
            "started",
            "leader_exited",
            "streams_closed",
            "tree_ended",
            "attempt_ended",
        ] {
            for attempt in 1..=row.new.attempt {
                let line = (attempt, once.to_owned());
                let times = recorded_events
                    .iter()
                    .filter(|recorded_events| **recorded_events == line)
                    .count();
                assert!(times <= 1, "{line:?}: {recorded_events:?}");
            }
        }
        let rising = recorded_events
            .windows(2)
            .all(|two| two[0].0 <= two[1].0 || two[1].1 == "ended");
        assert!(rising, "{recorded_events:?}");
        let listed = outcome.certificate.steps.len();
        let round = (row.new.attempt, "stop_step".to_owned());
        let rounds = recorded_events
            .iter()
            .filter(|recorded_events| **recorded_events == round)
            .count();
        assert!(
            recorded_events.is_empty() || rounds == listed,
            "{recorded_events:?}"
        );
        let names: Vec<String> = recorded_events.into_iter().map(|(_, name)| name).collect();
        let ended = names.iter().filter(|name| *name == "ended").count();
        assert!(ended == 1 || names.is_empty(), "{run}: {names:?}");
        assert!(
            names.last().is_none_or(|last| last == "ended"),
            "{run}: {names:?}"
        );
        let of_it = ran.iter().filter(|((of, _), _)| *of == run);
        let written = of_it.map(|(_, nature)| nature.output.len() + nature.last_words.len());
        let written: usize = written.sum();
        if written > 0 {
            assert_eq!(output(stage, run).await, written, "{names:?}");
        }
    }
}

/// Returns the lifecycle events of a run, each with its attempt.
async fn events_by_attempt(stage: &Stage, run: RunId) -> Vec<(u32, String)> {
    let Ok((_, mut events)) = stage.supervisor.events(run, Position::Beginning).await else {
        return Vec::new();
    };
    let mut recorded_events = Vec::new();
    while let Some(batch) = events.next(1 << 20).await.unwrap() {
        for event in batch {
            if let Payload::Lifecycle(line) = &event.payload {
                recorded_events.push((event.attempt, crate::name(line)));
            }
        }
    }
    recorded_events
}

/// Returns the number of bytes of output in the journal.
async fn output(stage: &Stage, run: RunId) -> usize {
    let events = stage.supervisor.events(run, Position::Beginning).await;
    let mut events = events.unwrap().1;
    let mut bytes = 0;
    while let Some(batch) = events.next(1 << 20).await.unwrap() {
        for event in batch {
            if let Payload::Output { data, .. } = event.payload {
                bytes += data.len();
            }
        }
    }
    bytes
}
