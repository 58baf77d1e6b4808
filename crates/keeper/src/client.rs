//! The server's end of the socket to the keeper: requests, answers, reports.

mod audit;
mod child;
mod input;
mod interrupt;
mod link;
mod listing;
mod liveness;

pub use crate::values::{
    EndCause, Fact, FormerServer, HeldPause, HeldRun, HelperEnd, Holding, InputSaid, InputState,
    InterruptWay, Notified, Outputs, SignalResult, StraySignal, TerminalEnds, Unstopped, Upgrade,
    UpgradeRefusal, UpgradeState, Victim,
};
use crate::wire::{Answer, ToKeeper, WireHelp, WireListing, WireRecorded};
pub use audit::{Books, Fate, Look, REAPED_MAX, Reaped, SecondLook, SocketSeen};
pub use child::ChildSpec;
pub use input::InputAnswer;
pub use interrupt::{Interrupted, Resized};
use kennel_lifecycle::recovery::Seen;
use kennel_lifecycle::{
    Containment, Held, KeeperEpoch, ProcessIdentity, RunId, RunIdentity, Signal, StartFailure,
    TerminalSize, Timestamp, ladder::StopPlan, recovery::Observation,
};
pub use kennel_linux::capability::{Capability, CapabilityName};
pub use kennel_linux::terminal::NoPty;
use link::Link;
pub use listing::{AIMS_LISTED_MAX, Aim, Tie};
pub use listing::{Holds, Listing, Member, Sent, Shot, ShotResult, Shots, SignalTarget};
use std::{os::fd::OwnedFd, path::PathBuf, sync::Arc, time::Duration};
use tokio::{
    sync::{mpsc, watch},
    task::JoinHandle,
};

/// A child that waits at its gate.
#[derive(Debug)]
pub struct Prepared {
    /// Command, shim, control group, host.
    pub identity: RunIdentity,
    /// Where its output comes from.
    pub outputs: Outputs,
    /// How large its terminal is; absent: it has none.
    pub terminal: Option<TerminalSize>,
    /// What holds the run, and what that leaves open.
    pub held: Held,
}

/// One thing the keeper tells on its own. Reports of one run come in the order in which things happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeeperReport {
    /// Of which run.
    pub run: RunId,
    /// When, by the wall clock of keeper or shim.
    pub at: Timestamp,
    /// What.
    pub fact: Fact,
}

/// What the keeper wants of the server as a whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeeperEvent {
    /// About one run.
    Report(KeeperReport),
    /// SIGTERM or SIGINT came: stop all runs by the shutdown ladder, commit, end with exit code 0.
    Shutdown,
    /// It came again: skip the graces.
    ShutdownNow,
    /// Another server is to take the place of this one: finish what there is, end with exit code 75.
    Leave,
    /// A signal asked for an upgrade, and there is none.
    NotUpgraded(UpgradeRefusal),
    /// A signal that means nothing to the keeper has come, and was ignored.
    Stray(StraySignal),
    /// A run that the hello has called late has been found: [`KeeperClient::take_held`] gives it. What has happened to it
    /// follows.
    DoorOpened(RunId),
    /// Nobody waits at the door of such a run any more.
    DoorLeft(RunId),
    /// The keeper is gone (end of file): drain, commit, end with exit code 70.
    Gone,
}

/// What the keeper and its host are; sent once, at the start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeeperHello {
    /// This keeper's name.
    pub epoch: KeeperEpoch,
    /// Version of the keeper, which is that of the binary it was started from.
    pub version: String,
    /// This keeper as a process.
    pub keeper: ProcessIdentity,
    /// Boot and pid namespace.
    pub host: kennel_lifecycle::HostIdentity,
    /// Directory under which runs get their control groups; absent: none can be made, and why.
    pub cgroup_base: Result<PathBuf, String>,
    /// Whether pidfs inodes can be recorded.
    pub pidfs: bool,
    /// To which limits runs can be held.
    pub powers: kennel_lifecycle::LimitPowers,
    /// Version of the kernel, as uname(2) says it.
    pub kernel: String,
    /// What the host can do, found out by trying it.
    pub capabilities: Vec<Capability>,
    /// Runs of an earlier keeper whose shims are there and have not answered yet: an event tells of each.
    pub late: Vec<RunId>,
    /// How many servers this keeper has had before this one.
    pub restarts: u32,
    /// How the last of them ended.
    pub former: Option<FormerServer>,
    /// The last upgrade for which a server has left: what has come of it, if this server serves.
    pub upgrade: Option<Upgrade>,
}

impl KeeperHello {
    /// Why this host cannot do that; absent: it can.
    #[must_use]
    pub fn lacks(&self, name: CapabilityName) -> Option<&str> {
        let found = self.capabilities.iter().find(|c| c.name == name);
        found.map_or(Some("it was not tried out"), |c| c.missing.as_deref())
    }
}

/// The keeper could not be asked, or said no.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The keeper is gone.
    #[error("the keeper is gone")]
    KeeperGone,
    /// The step that failed.
    #[error("cannot prepare the command: {0}")]
    Start(StartFailure),
    /// What would hold the run here and now is weaker than the spec allows. Nothing was made.
    #[error("this run would be held by {} and wants {}", held.by.api_name(), wanted.api_name())]
    TooWeak {
        /// The weakest that will do.
        wanted: Containment,
        /// What there is.
        held: Held,
    },
    /// There is no terminal for the run. Nothing was made.
    #[error("there is no terminal for this run: {0}")]
    NoPty(NoPty),
    /// The descriptors or processes of this host are used up.
    #[error("this host has no room for another run: {0}")]
    Exhausted(String),
}

/// How long the keeper may take over a request before the server takes it for dead.
pub const KEEPER_ANSWER_MAX: Duration = Duration::from_secs(30);

/// What a recorded run looked like, for the keeper to look for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recorded {
    /// Which run.
    pub run: RunId,
    /// What was recorded of it.
    pub identity: RunIdentity,
    /// Its private directory.
    pub run_dir: PathBuf,
}

/// Asks the keeper. Cheap to clone.
#[derive(Clone, Debug)]
pub struct KeeperClient {
    link: Arc<Link>,
}

/// Where the keeper's events come out. One reader.
#[derive(Debug)]
pub struct KeeperEvents {
    queue: mpsc::Receiver<KeeperEvent>,
    /// Reads the socket.
    reading: JoinHandle<()>,
    link: Arc<Link>,
}

impl Drop for KeeperEvents {
    fn drop(&mut self) {
        self.reading.abort();
        self.link.close();
    }
}

impl KeeperClient {
    /// Takes the server's end of the socket over and waits for the keeper's hello, and for the runs that it holds from
    /// an earlier server: what has happened to them and was not acknowledged is told again, as the first events.
    /// Must be called inside a tokio runtime.
    pub async fn connect(
        socket: OwnedFd,
    ) -> Result<(Self, KeeperEvents, KeeperHello, Vec<HeldRun>), ClientError> {
        let (link, events, hello, held) = Link::open(socket).await?;
        Ok((Self { link }, events, hello, held))
    }

    /// The listening sockets that the keeper owns were handed over with the hello: takes them, once.
    #[must_use]
    pub fn take_listeners(&self) -> Vec<OwnedFd> {
        self.link.take_listeners()
    }

    /// A run that was late: takes it, once.
    #[must_use]
    pub fn take_held(&self, run: RunId) -> Option<HeldRun> {
        self.link.take_held(run)
    }

    /// Since when the keeper has not answered, and every change of that; absent: it answers.
    #[must_use]
    pub fn unresponsive(&self) -> watch::Receiver<Option<Timestamp>> {
        self.link.unresponsive()
    }

    /// Tells the keeper that this server serves: recovery is done.
    pub fn ready(&self) {
        self.link.tell(&ToKeeper::Ready);
    }

    /// Makes a child that waits at its gate.
    pub async fn prepare(&self, run: RunId, spec: &ChildSpec) -> Result<Prepared, ClientError> {
        let files = link::spec_files(spec)?;
        let run_dir = link::text(&spec.run_dir)?;
        let terminal = spec.command.terminal.as_ref().map(|t| t.size);
        let asked = |seq| ToKeeper::Prepare {
            seq,
            run: run.as_u128(),
            run_dir,
            policy: Box::new(spec.policy.clone()),
            input: spec.command.has_open_input().then_some(spec.attempt),
            terminal,
        };
        let answered = self.link.ask(asked, files).await;
        // A child whose announcement nobody waits for must not wait at its gate for ever.
        let (answer, fds) = answered.inspect_err(|_| self.shut_gate(run))?;
        match answer {
            Answer::Prepared { identity, held } => {
                let Some(outputs) = Outputs::of(terminal.is_some(), fds) else {
                    // They found no room in this process's table: nothing can be read, so nothing may run.
                    self.shut_gate(run);
                    return Err(ClientError::Exhausted("descriptors of the server".into()));
                };
                Ok(Prepared {
                    identity,
                    outputs,
                    terminal,
                    held,
                })
            }
            Answer::TooWeak(held) => {
                let wanted = spec.policy.min_containment.unwrap_or(held.by);
                Err(ClientError::TooWeak { wanted, held })
            }
            Answer::NoPty(none) => Err(ClientError::NoPty(none)),
            Answer::PrepareFailed(failure) => Err(ClientError::Start(failure)),
            Answer::Exhausted(what) => Err(ClientError::Exhausted(what)),
            _ => Err(ClientError::KeeperGone),
        }
    }

    /// Opens the gate. Reports follow.
    pub fn release(&self, run: RunId) {
        let run = run.as_u128();
        self.link.tell(&ToKeeper::Release { run });
    }

    /// Shuts the gate. Reports follow.
    pub fn shut_gate(&self, run: RunId) {
        let run = run.as_u128();
        self.link.tell(&ToKeeper::ShutGate { run });
    }

    /// Starts the run's ladder, or shortens the one that is on its way. Thaws a paused tree after the first signal.
    pub fn stop(&self, run: RunId, plan: &StopPlan) {
        let run = run.as_u128();
        let plan = plan.clone();
        self.link.tell(&ToKeeper::Stop { run, plan });
    }

    /// The leader has ended by itself and no stop is on its way: the rest of the tree may be left alone.
    pub fn keep_rest(&self, run: RunId) {
        let run = run.as_u128();
        self.link.tell(&ToKeeper::KeepRest { run });
    }

    /// Stops every task of the tree and looks: `Done` only when all were seen stopped.
    pub async fn pause(&self, run: RunId) -> Result<SignalResult, ClientError> {
        let run = run.as_u128();
        self.ask_signal(|seq| ToKeeper::Pause { seq, run }).await
    }

    /// Continues what `pause` has stopped.
    pub async fn resume(&self, run: RunId) -> Result<SignalResult, ClientError> {
        let run = run.as_u128();
        self.ask_signal(|seq| ToKeeper::Resume { seq, run }).await
    }

    /// Runs a command beside the run's own, in its tree, with its directory and environment and without its streams, and
    /// ends it after this time.
    pub async fn help(
        &self,
        run: RunId,
        argv: &[String],
        timeout: Duration,
    ) -> Result<HelperEnd, ClientError> {
        let (run, argv) = (run.as_u128(), argv.to_vec());
        let timeout_ms = u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX);
        let asked = |seq| {
            ToKeeper::Help(WireHelp {
                seq,
                run,
                argv,
                timeout_ms,
            })
        };
        let wait = KEEPER_ANSWER_MAX.saturating_add(timeout);
        match self.link.ask_for(asked, Vec::new(), wait).await? {
            (Answer::Helped(end), _) => Ok(end),
            (Answer::Signal(_), _) => Ok(HelperEnd::Refused),
            _ => Err(ClientError::KeeperGone),
        }
    }

    /// Sends a signal to whom `target` names, one by one, each checked at that moment. None goes out twice under one
    /// request id, whichever server of this keeper asks.
    pub async fn signal(
        &self,
        run: RunId,
        signal: Signal,
        target: SignalTarget,
        request_id: Option<&str>,
    ) -> Result<Sent, ClientError> {
        let run = run.as_u128();
        let request = request_id.map(str::to_owned);
        let asked = |seq| ToKeeper::Signal {
            seq,
            run,
            signal,
            target,
            request,
        };
        match self.link.ask(asked, Vec::new()).await? {
            (Answer::Signalled, fds) => Ok(Sent::Now(listing::read(fds)?)),
            (Answer::SentBefore, _) => Ok(Sent::Before),
            // The keeper holds no such run: there is nobody to reach.
            (Answer::Signal(_), _) => Ok(Sent::Now(Shots::default())),
            (Answer::Exhausted(what), _) => Err(ClientError::Exhausted(what)),
            _ => Err(ClientError::KeeperGone),
        }
    }

    /// Whether a signal went out under this request id. Sends none.
    pub async fn was_sent(&self, run: RunId, request_id: &str) -> Result<bool, ClientError> {
        let (run, request) = (run.as_u128(), request_id.to_owned());
        let asked = |seq| ToKeeper::WasSent { seq, run, request };
        match self.link.ask(asked, Vec::new()).await? {
            (Answer::SentBefore, _) => Ok(true),
            (Answer::NotSent | Answer::Signal(_), _) => Ok(false),
            _ => Err(ClientError::KeeperGone),
        }
    }

    /// Asks for a server of the binary that is installed by now, in the place of this one. Where it will do,
    /// [`KeeperEvent::Leave`] follows. One that was asked for before under the same request id is not begun again.
    pub async fn upgrade(
        &self,
        request_id: Option<&str>,
    ) -> Result<Result<Upgrade, UpgradeRefusal>, ClientError> {
        let request = request_id.map(str::to_owned);
        let asked = |seq| ToKeeper::Upgrade { seq, request };
        match self.link.ask(asked, Vec::new()).await? {
            (Answer::Upgrade(Ok(upgrade)), _) => Ok(Ok(upgrade)),
            (Answer::Upgrade(Err(refusal)), _) => Ok(Err(refusal)),
            _ => Err(ClientError::KeeperGone),
        }
    }

    /// Who is in the run's tree now. Changes nothing.
    pub async fn tree(&self, run: RunId) -> Result<Listing, ClientError> {
        let run = run.as_u128();
        let asked = |seq| ToKeeper::Tree { seq, run };
        let listed: WireListing = match self.link.ask(asked, Vec::new()).await? {
            (Answer::Listed, fds) => listing::read(fds)?,
            (Answer::Signal(_), _) => return Ok(Listing::default()),
            (Answer::Exhausted(what), _) => return Err(ClientError::Exhausted(what)),
            _ => return Err(ClientError::KeeperGone),
        };
        // The keeper has other runs to serve, so what takes long to read is read here.
        let described = tokio::task::spawn_blocking(move || listing::describe(&listed)).await;
        described.map_err(|_| ClientError::KeeperGone)
    }

    async fn ask_signal(
        &self,
        asked: impl FnOnce(u64) -> ToKeeper,
    ) -> Result<SignalResult, ClientError> {
        match self.link.ask(asked, Vec::new()).await? {
            (Answer::Signal(result), _) => Ok(result),
            (Answer::SentBefore, _) => Ok(SignalResult::Done),
            _ => Err(ClientError::KeeperGone),
        }
    }

    /// The run's outcome is durable: the keeper forgets it and removes its control group.
    pub fn acknowledge(&self, run: RunId) {
        let run = run.as_u128();
        self.link.tell(&ToKeeper::Acknowledge { run });
    }

    /// Looks for what was recorded of a run by an earlier keeper. Signals nobody.
    pub async fn observe(&self, recorded: &Recorded) -> Result<Observation, ClientError> {
        let recorded = WireRecorded::try_from(recorded)?;
        self.observation(|seq| ToKeeper::Observe { seq, recorded }, KEEPER_ANSWER_MAX)
            .await
    }

    /// Ends what is certainly of the recorded run, identity checked at each signal; answers when nothing certain is
    /// left or when the plan and two seconds have passed. `plan` with zero grace kills at once.
    pub async fn end_orphan(
        &self,
        recorded: &Recorded,
        plan: &StopPlan,
    ) -> Result<Observation, ClientError> {
        let recorded = WireRecorded::try_from(recorded)?;
        let plan_time = plan.kill_after;
        let plan = plan.clone();
        let asked = |seq| ToKeeper::EndOrphan {
            seq,
            recorded,
            plan,
        };
        self.observation(asked, KEEPER_ANSWER_MAX.saturating_add(plan_time))
            .await
    }

    async fn observation(
        &self,
        asked: impl FnOnce(u64) -> ToKeeper,
        wait: Duration,
    ) -> Result<Observation, ClientError> {
        match self.link.ask_for(asked, Vec::new(), wait).await? {
            (Answer::Observed(seen), _) => Ok(seen),
            _ => Err(ClientError::KeeperGone),
        }
    }

    /// Whether the keeper that was recorded as this process on this host is gone.
    pub async fn keeper_seen(
        &self,
        keeper: ProcessIdentity,
        host: kennel_lifecycle::HostIdentity,
    ) -> Result<Seen, ClientError> {
        let asked = |seq| ToKeeper::KeeperSeen { seq, keeper, host };
        match self.link.ask(asked, Vec::new()).await? {
            (Answer::Seen(seen), _) => Ok(seen),
            _ => Err(ClientError::KeeperGone),
        }
    }
}

impl KeeperEvents {
    /// The next event; after [`KeeperEvent::Gone`] only that. Cancel-safe.
    pub async fn recv(&mut self) -> KeeperEvent {
        self.queue.recv().await.unwrap_or(KeeperEvent::Gone)
    }
}

impl TryFrom<&Recorded> for WireRecorded {
    type Error = ClientError;

    fn try_from(real: &Recorded) -> Result<Self, ClientError> {
        Ok(Self {
            run: real.run.as_u128(),
            identity: real.identity.clone(),
            run_dir: link::text(&real.run_dir)?,
        })
    }
}
