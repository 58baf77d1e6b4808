//! The live runs: one handle per run, found by its id.

pub(crate) mod allowance;
pub(crate) mod background;
pub(crate) mod consumers;
mod entries;
pub(crate) mod floors;
pub(crate) mod found;
pub(crate) mod output_rates;
pub(crate) mod owner_threads;
mod record_bytes;
pub(crate) mod retained;
mod rows;
pub(crate) mod screens;
pub(crate) mod serving;
mod starts;
pub(crate) mod subscribers;
pub(crate) mod unreachable;

use self::{
    background::Background, entries::Entries, output_rates::OutputRates,
    owner_threads::OwnerThreads, record_bytes::RecordBytes, retained::RetainedOutput,
    screens::Screens, serving::Serving, starts::Starts,
};
pub(crate) use self::{entries::RunsMax, starts::Turn};
use crate::{
    audit_log::Trail,
    base::{
        calls::{
            AnnotateCall, CallError, ExtendCall, ResizeCall, RestartCall, RunView, SignalCall,
        },
        clock::{self, ClockSettings},
        drain::Drain,
        ports::{HealthCheck, Kernel, OwnerQuotas, Sealer, TokenMaker},
        secret_sources::SecretSources,
        view::{Live, StartAnswer},
    },
    record::{NodeRecord, node_store::NodeStore},
    registry::{
        consumers::Consumers, found::LeakFindings, subscribers::Subscribers, unreachable::LateShims,
    },
    telemetry::Telemetry,
};
use kennel_journal::Boot;
use kennel_keeper::{
    client::{Interrupted, KeeperHello, KeeperReport, Sent, SignalResult},
    spare_dirs::SpareDirs,
};
use kennel_lifecycle::{
    AnsweredBy, AnsweringWrite, DefaultGrace, DefaultLimits, NodeId, Privileges, Refusal,
    RetentionLimits, RowLimits, RunId, RunKind, Signal, StopOrder, Timestamp,
};
use kennel_store::{Age, Claim, NewRun, RunRow, Store};
use parking_lot::Mutex;
use std::{
    collections::BTreeMap,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize},
    },
    time::Duration,
};
use tokio::sync::{broadcast, mpsc, oneshot, watch};
use tokio_util::task::TaskTracker;

/// Most orders queued for one run's task.
const ORDERS_QUEUED_MAX: usize = 64;
/// Most arrived runs queued for a multi-run stream; a stream that misses some searches for them.
const ARRIVALS_MAX: usize = 1024;
/// Most reports queued for one run's task; the dispatcher waits when the queue is full.
const REPORTS_QUEUED_MAX: usize = 64;

/// The tracker of all runs of this node. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Supervisor {
    pub(crate) shared: Arc<Shared>,
}

/// Configuration of the supervisor.
#[derive(Clone, Debug)]
pub struct SupervisorConfig {
    /// This node.
    pub node: NodeId,
    /// Display name of the node.
    pub node_name: String,
    /// Address of its server, as clients name it.
    pub address: String,
    /// Duration of the node's lease from each renewal; it is renewed after a third of that.
    pub lease: Duration,
    /// Time without a lease after which a node of the database that has no open run is removed.
    pub node_retention: Duration,
    /// Parent of the runs' directories: `<data_dir>/runs/<id>`.
    pub data_dir: PathBuf,
    /// The server's own environment, from which commands may inherit variables.
    pub server_env: Vec<(String, String)>,
    /// Names of these that commands of callers over the network may inherit beyond the usual ones.
    pub inherit: Vec<String>,
    /// Most live runs.
    pub runs_max: u32,
    /// Requirements on every run: a spec may only be stricter.
    pub privileges: Privileges,
    /// Grace periods of runs whose spec names none.
    pub default_grace: DefaultGrace,
    /// Whole time of a shutdown, the graces of all runs included.
    pub shutdown_timeout: Duration,
    /// Other first signals of a shutdown: of a kind, or of all other runs but those on a terminal. Later ones win.
    pub shutdown_signals: Vec<(Option<RunKind>, Signal)>,
    /// Limits of runs whose spec has none.
    pub default_limits: DefaultLimits,
    /// Limits of the retained output of ended runs.
    pub retention: RetentionLimits,
    /// Limits of the rows of ended runs, and of the ids that clients bring.
    pub rows: RowLimits,
    /// Receiver of spans and measurements.
    pub telemetry: Telemetry,
    /// Checks the health of servers that runs provide.
    pub health: Arc<dyn HealthCheck>,
    /// Makes the tokens of runs.
    pub tokens: Arc<dyn TokenMaker>,
    /// Seals what is kept of runs.
    pub sealer: Arc<dyn Sealer>,
    /// Sources of the secrets of runs.
    pub secrets: Arc<SecretSources>,
    /// Unix socket of the API, for runs with a token; absent: there is none.
    pub socket: Option<PathBuf>,
    /// Whether no run gets access to the API.
    pub forbids_api_access: bool,
    /// Quotas of owners.
    pub quotas: Arc<dyn OwnerQuotas>,
}

impl SupervisorConfig {
    /// Returns the first signal of a shutdown for runs of this kind, where it is not the usual one.
    pub(crate) fn shutdown_signal(&self, kind: RunKind) -> Option<Signal> {
        let signals = self.shutdown_signals.iter().rev();
        let named = |wanted| signals.clone().find(|(kind, _)| *kind == wanted);
        let of_all = named(None).filter(|_| kind != RunKind::Terminal);
        named(Some(kind)).or(of_all).map(|(_, signal)| *signal)
    }
}

/// Input that was accepted.
#[derive(Debug)]
pub(crate) struct InputNews {
    /// Numbers of the questions that waited when it was written, or of the one that it names.
    pub(crate) questions: Vec<u64>,
    /// What it is to them.
    pub(crate) how: AnsweredBy,
    /// Who has written it; empty: not known.
    pub(crate) by: String,
    /// What was written; absent: it is not known.
    pub(crate) write: Option<AnsweringWrite>,
    /// Whether it was accepted just now, and not before.
    pub(crate) is_new: bool,
    /// When it was written.
    pub(crate) at: tokio::time::Instant,
}

/// A request to one run, with the channel of its answer.
#[derive(Debug)]
pub(crate) enum Order {
    Stop(StopOrder, oneshot::Sender<Result<(), Refusal>>),
    Interrupt(
        Option<String>,
        oneshot::Sender<Result<Interrupted, CallError>>,
    ),
    Resize(ResizeCall, oneshot::Sender<Result<(), CallError>>),
    Signal(SignalCall, oneshot::Sender<Result<Sent, CallError>>),
    /// Answered with the number of the attempt before the requested one.
    Restart(RestartCall, oneshot::Sender<Result<u32, CallError>>),
    /// A notice, not an order: input was accepted, which counts as activity, and answers questions.
    InputAccepted(Box<InputNews>, oneshot::Sender<()>),
    /// A notice too: a Warning for the run's events.
    Warn(String),
    /// A notice too: the run is pinned, by this name.
    Pin(String),
    /// Answered when the change is durable.
    Annotate(Box<AnnotateCall>, oneshot::Sender<Result<(), CallError>>),
    /// Answered when the extension is durable.
    Extend(Box<ExtendCall>, oneshot::Sender<Result<(), CallError>>),
    Pause(oneshot::Sender<Result<SignalResult, CallError>>),
    Resume(oneshot::Sender<Result<SignalResult, CallError>>),
}

impl Order {
    /// Answers a caller that its order is refused. A stop is never refused so, and a notice has no answer.
    pub(crate) fn refuse(self, why: CallError) {
        // A caller that is gone needs no answer.
        match self {
            Self::Stop(..) | Self::InputAccepted(..) | Self::Warn(_) | Self::Pin(_) => {}
            Self::Interrupt(_, reply) => drop(reply.send(Err(why))),
            Self::Signal(_, reply) => drop(reply.send(Err(why))),
            Self::Restart(_, reply) => drop(reply.send(Err(why))),
            Self::Resize(_, reply) | Self::Annotate(_, reply) | Self::Extend(_, reply) => {
                drop(reply.send(Err(why)));
            }
            Self::Pause(reply) | Self::Resume(reply) => drop(reply.send(Err(why))),
        }
    }
}

/// A live run, as seen from outside its task.
#[derive(Clone, Debug)]
pub(crate) struct Handle {
    pub(crate) spec_digest: Arc<[u8]>,
    pub(crate) spec_digest_version: i32,
    pub(crate) owner: Arc<str>,
    /// What no other run of the owner may have.
    claims: Arc<[Claim]>,
    // Boxed: a queue allocates room for 32 messages at once.
    pub(crate) orders: mpsc::Sender<Box<Order>>,
    pub(crate) reports: mpsc::Sender<Box<KeeperReport>>,
    pub(crate) live: watch::Receiver<Live>,
    /// Serialises writes to standard input.
    pub(crate) input_turn: Arc<tokio::sync::Mutex<()>>,
    /// Serialises changes of a terminal's size.
    pub(crate) resize_turn: Arc<tokio::sync::Mutex<()>>,
}

/// The task's ends of a handle's channels.
#[derive(Debug)]
pub(crate) struct Seat {
    pub(crate) orders: mpsc::Receiver<Box<Order>>,
    pub(crate) reports: mpsc::Receiver<Box<KeeperReport>>,
    pub(crate) live: watch::Sender<Live>,
}

impl Handle {
    /// Makes a handle to a run with this view, until its task publishes another.
    pub(crate) fn new(new: &NewRun, view: RunView, start: Option<StartAnswer>) -> (Self, Seat) {
        let (orders, orders_queue) = mpsc::channel(ORDERS_QUEUED_MAX);
        let (reports, reports_queue) = mpsc::channel(REPORTS_QUEUED_MAX);
        let (live_sender, live) = watch::channel(Live {
            view,
            start,
            hub: None,
            no_journal: false,
            stop_pending: false,
            over: false,
        });
        let handle = Self {
            spec_digest: new.spec_digest.clone().into(),
            spec_digest_version: new.spec_digest_version,
            owner: new.owner.clone().into(),
            claims: new.claims().collect(),
            orders,
            reports,
            live,
            input_turn: Arc::default(),
            resize_turn: Arc::default(),
        };
        let seat = Seat {
            orders: orders_queue,
            reports: reports_queue,
            live: live_sender,
        };
        (handle, seat)
    }

    /// Sends an order to the run's task, and waits neither for an answer nor for room in its queue.
    pub(crate) fn send(&self, order: Order, background: &Background) {
        if let Err(mpsc::error::TrySendError::Full(order)) = self.orders.try_send(Box::new(order)) {
            let orders = self.orders.clone();
            // A send fails only if the task has ended.
            background.spawn(async move { drop(orders.send(order).await) });
        }
    }

    /// Sends an order to the run's task and waits for the answer; `None` where the task ends without one.
    ///
    /// The end of the task is awaited beside the answer. Dropping the receiver is not enough: an order that enters the
    /// queue at that very moment stays there for as long as there is a sender, and this handle is one.
    pub(crate) async fn ask<T>(
        &self,
        order: impl FnOnce(oneshot::Sender<T>) -> Order,
    ) -> Option<T> {
        let (reply, mut answer) = oneshot::channel();
        self.orders.send(Box::new(order(reply))).await.ok()?;
        let mut live = self.live.clone();
        tokio::select! { biased;
            answered = &mut answer => answered.ok(),
            // `live` closes only when no part of the task can answer any more.
            _ = live.wait_for(|_| false) => answer.try_recv().ok(),
        }
    }
}

/// State shared by all calls and all runs.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) config: SupervisorConfig,
    pub(crate) kernel: Arc<dyn Kernel>,
    pub(crate) store: NodeStore,
    pub(crate) record: Arc<NodeRecord>,
    pub(crate) hello: KeeperHello,
    /// Takes up an open row of this node that has no task.
    pub(crate) start_recovery: fn(&Arc<Self>, RunRow),
    /// Runs that the keeper may still find.
    pub(crate) late_shims: LateShims,
    /// Number of names in messages that keeper, shims and this server did not know.
    pub(crate) names_skipped: AtomicU64,
    /// Rows of ended runs that the last walk over them has found.
    pub(crate) rows_ended: AtomicU64,
    /// Open rows of this node that this version cannot read, when it was acquired last.
    pub(crate) rows_unread: AtomicUsize,
    pub(crate) started: Timestamp,
    /// Settings of the wall clock under this server and earlier ones.
    pub(crate) clock: ClockSettings,
    /// Serving state of this server.
    pub(crate) serving: Serving,
    /// Tasks that belong to no run.
    pub(crate) background: Background,
    /// An operator's drain, while one is in force.
    pub(crate) drain: watch::Sender<Option<Drain>>,
    /// Serialises changes of the drain.
    pub(crate) drain_on_disk: tokio::sync::Mutex<()>,
    pub(crate) tasks: TaskTracker,
    /// Number of command streams that are still being read.
    pub(crate) pipes_open: Arc<AtomicUsize>,
    pub(crate) ids: Mutex<ulid::Generator>,
    /// Announces each run that enters the live ones.
    pub(crate) arrivals: broadcast::Sender<RunId>,
    /// Live runs that are not announced: a Spawn that is not recorded may repeat that of an ended run, and a run under
    /// recovery may have ended. Of a Spawn with the age of the newest run before it: its own is higher.
    unannounced: Mutex<BTreeMap<RunId, Option<Age>>>,
    /// Models of the terminals that callers requested lately.
    pub(crate) screens: Screens,
    /// The audit log.
    pub(crate) trail: Trail,
    /// Findings of the last leak check.
    pub(crate) found: LeakFindings,
    /// Lag of the streams of live runs.
    pub(crate) subscribers: Arc<Subscribers>,
    /// Size of all journals, if a reader has measured it.
    pub(crate) journals_bytes: Mutex<Option<u64>>,
    /// Output rates of owners.
    pub(crate) output_rates: Arc<OutputRates>,
    /// Bytes of the rows of owners.
    pub(crate) record_bytes: RecordBytes,
    /// Output of ended runs, for quotas.
    retained: RetainedOutput,
    /// Named readers.
    pub(crate) consumers: Arc<Consumers>,
    /// Directories for temporary files of future runs.
    pub(crate) spare_dirs: SpareDirs,
    /// Turns of starts.
    pub(crate) starts: Arc<Starts>,
    /// Threads for work whose time is a caller's choice.
    pub(crate) owner_threads: OwnerThreads,
    runs: Mutex<Entries>,
}

impl Shared {
    /// The boot of the host.
    pub(crate) fn boot(&self) -> Boot {
        Boot::of_id(&self.hello.host.boot_id)
    }

    pub(crate) fn new(
        config: SupervisorConfig,
        kernel: Arc<dyn Kernel>,
        store: Arc<dyn Store>,
        record: Arc<NodeRecord>,
        hello: KeeperHello,
        start_recovery: fn(&Arc<Self>, RunRow),
        started: Timestamp,
    ) -> Self {
        let serving = Serving::default();
        let clock = ClockSettings::open(&config.data_dir, &hello.host.boot_id);
        Self {
            start_recovery,
            trail: Trail::open(&config.data_dir, clock.clone()),
            clock,
            spare_dirs: SpareDirs::new(&config.data_dir),
            store: NodeStore::new(
                store,
                config.node,
                hello.epoch,
                Arc::clone(&record),
                config.telemetry.clone(),
            ),
            output_rates: OutputRates::new(Arc::clone(&config.quotas)),
            config,
            kernel,
            record,
            late_shims: LateShims::new(&hello.late),
            names_skipped: AtomicU64::new(0),
            rows_ended: AtomicU64::new(0),
            rows_unread: AtomicUsize::new(0),
            hello,
            started,
            background: Background::new(serving.clone()),
            serving,
            drain: watch::Sender::new(None),
            drain_on_disk: tokio::sync::Mutex::new(()),
            tasks: TaskTracker::new(),
            pipes_open: Arc::new(AtomicUsize::new(0)),
            ids: Mutex::new(ulid::Generator::new()),
            arrivals: broadcast::Sender::new(ARRIVALS_MAX),
            unannounced: Mutex::default(),
            screens: Screens::default(),
            found: LeakFindings::default(),
            subscribers: Arc::default(),
            journals_bytes: Mutex::new(None),
            record_bytes: RecordBytes::default(),
            retained: RetainedOutput::default(),
            consumers: Arc::default(),
            starts: Arc::default(),
            owner_threads: OwnerThreads::default(),
            runs: Mutex::default(),
        }
    }

    /// Returns the live run of this id.
    pub(crate) fn find(&self, run: RunId) -> Option<Handle> {
        self.runs.lock().runs.get(&run).cloned()
    }

    /// Returns the live run of an owner that has a key or a name.
    pub(crate) fn holder(&self, owner: &str, claim: &Claim) -> Option<(RunId, Handle)> {
        self.runs.lock().holder(owner, claim)
    }

    /// Inserts a run, unless one of this id, key or name is live or a limit is reached. `limits` absent: a run under recovery
    /// exists already and has to enter.
    pub(crate) fn enter(
        &self,
        run: RunId,
        limits: Option<RunsMax<'_>>,
        make: impl FnOnce() -> Handle,
    ) -> Result<Entered, CallError> {
        let mut entries = self.runs.lock();
        let taken = (limits.iter()).any(|limits| entries.is_taken(limits.owner, limits.claims));
        if taken || entries.runs.contains_key(&run) {
            return Ok(Entered::Existing);
        }
        // Checked while no other run enters: a task with a pending fence for this key looks for its run afterwards.
        if limits.is_some() && (self.store.generation().is_none() || self.record.has_pending()) {
            return Err(match self.store.fenced_by() {
                Some(_) => CallError::NodeFenced,
                None => CallError::StoreUnavailable,
            });
        }
        let before = limits.as_ref().map(|_| self.store.newest());
        if let Some(limits) = limits {
            limits.hold(&entries.runs)?;
        }
        // Inserted first: the new task may announce the run at once.
        self.unannounced.lock().insert(run, before);
        let handle = make();
        entries.insert(run, handle.clone());
        Ok(Entered::New(handle))
    }

    /// Announces a run that has entered, once.
    pub(crate) fn announce(&self, run: RunId) {
        // Removed before the send: a stream that begins in between finds the run among live runs.
        if self.unannounced.lock().remove(&run).is_some() {
            // An error means that no stream listens.
            let _ = self.arrivals.send(run);
        }
    }

    /// Whether a run is not live, or was announced.
    pub(crate) fn is_announced(&self, run: RunId) -> bool {
        !self.unannounced.lock().contains_key(&run)
    }

    /// Returns this age, or a lower one: all runs up to it are announced, but for those under recovery.
    pub(crate) fn announced_until(&self, newest: Age) -> Age {
        let before = self.unannounced.lock().values().flatten().min().copied();
        before.map_or(newest, |before| newest.min(before))
    }

    /// Returns the place of a run that has entered, for its task to hold.
    pub(crate) fn place(self: &Arc<Self>, run: RunId) -> RunRegistration {
        RunRegistration {
            shared: Arc::clone(self),
            run,
        }
    }

    /// Returns all live runs.
    pub(crate) fn all(&self) -> Vec<(RunId, Handle)> {
        self.runs
            .lock()
            .runs
            .iter()
            .map(|(run, handle)| (*run, handle.clone()))
            .collect()
    }

    /// Returns the live runs that have not ended: for the others only writes to the store are pending.
    pub(crate) fn running(&self) -> Vec<(RunId, Handle)> {
        let mut all = self.all();
        all.retain(|(_, handle)| handle.live.borrow().view.outcome.is_none());
        all
    }

    /// Makes a new run id, greater than those before it.
    pub(crate) fn next_id(&self) -> RunId {
        let mut ids = self.ids.lock();
        // Overflow of 80 random bits within one millisecond: any other id will do.
        let id = ids.generate().unwrap_or_else(|_| ulid::Ulid::generate());
        RunId::from_u128(id.into())
    }
}

impl Shared {
    /// Returns the least id that may make a run.
    pub(crate) fn oldest_id(&self) -> RunId {
        first_id(clock::now().minus(self.config.rows.ids))
    }
}

/// Returns the least id of this time.
pub(crate) fn first_id(at: Timestamp) -> RunId {
    let millis = u64::try_from(at.0 / 1000).unwrap_or(0);
    RunId::from_u128(u128::from(millis) << 80)
}

/// A run's place among the live ones. Its drop removes the run, however its task ends; from then on the row is
/// authoritative.
pub(crate) struct RunRegistration {
    shared: Arc<Shared>,
    run: RunId,
}

impl Drop for RunRegistration {
    fn drop(&mut self) {
        let mut entries = self.shared.runs.lock();
        entries.remove(self.run);
        self.shared.unannounced.lock().remove(&self.run);
    }
}

/// The result of [`Shared::enter`].
pub(crate) enum Entered {
    /// This call inserted it.
    New(Handle),
    /// A run of this id, key or name was live.
    Existing,
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::run::intake;
    use std::time::Duration;

    pub(crate) fn new_run() -> NewRun {
        NewRun {
            run: RunId::from_u128(7),
            owner: "uid:0".into(),
            node: NodeId::from_u128(1),
            generation: 1,
            keeper_epoch: kennel_lifecycle::KeeperEpoch::from_u128(1),
            ..NewRun::default()
        }
    }

    fn entered() -> (Handle, Seat) {
        let new = new_run();
        Handle::new(&new, intake::unborn(&new), None)
    }

    /// The longest that a call waits for an ended task; on a clock that advances when no task has work.
    const LONG: Duration = Duration::from_hours(1);

    // promise: A-15
    #[tokio::test(start_paused = true)]
    async fn queued_command_is_answered_when_task_ends() {
        let (handle, task) = entered();
        let asked = tokio::spawn(async move { handle.ask(Order::Pause).await.is_none() });
        // The command stays queued, like an order sent while the queue is being closed.
        while task.orders.is_empty() {
            tokio::task::yield_now().await;
        }
        drop(task.live);
        let unanswered = tokio::time::timeout(LONG, asked).await;
        assert!(unanswered.expect("it waits for ever").expect("no panic"));
    }

    #[tokio::test(start_paused = true)]
    async fn answer_sent_before_task_end_is_delivered() {
        let (handle, mut task) = entered();
        let asked = tokio::spawn(async move { handle.ask(Order::Resume).await });
        let Some(Order::Resume(reply)) = task.orders.recv().await.map(|order| *order) else {
            panic!("another order");
        };
        reply.send(Ok(SignalResult::Done)).expect("it waits");
        drop(task);
        let answer = tokio::time::timeout(LONG, asked).await;
        let answer = answer.expect("it waits for ever").expect("no panic");
        assert!(matches!(answer, Some(Ok(SignalResult::Done))), "{answer:?}");
    }
}
