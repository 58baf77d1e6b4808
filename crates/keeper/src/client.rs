//! The server's end of the socket to the keeper: requests, answers, reports.

mod audit;
mod child;
mod input;
mod interrupt;
mod link;
mod listing;
mod liveness;

pub use crate::values::{
    EndCause, ExtendResult, Extended, Fact, FormerServer, HeldPause, HeldRun, HelperEnd, Holding,
    InputResult, InputState, InterruptWay, Notified, Outputs, SignalResult, StraySignal,
    TerminalEnds, Unstopped, Upgrade, UpgradeRefusal, UpgradeState, Victim,
};
use crate::wire::{Answer, ToKeeper, WireHelp, WireListing, WireRecorded};
pub use audit::{Fate, KeeperInventory, Look, REAPED_MAX, Reaped, SecondLook, SocketSeen};
pub use child::{ChildSpec, fault_of_size};
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
pub use listing::{
    Holds, Listing, Member, Sent, SignalOutcome, SignalTarget, SignalledProcess, SignalledProcesses,
};
pub use listing::{MembershipEvidence, RoundTarget, TARGETS_LISTED_MAX};
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
    /// Ends of its output that are to be read.
    pub outputs: Outputs,
    /// Size of its terminal; absent: it has none.
    pub terminal: Option<TerminalSize>,
    /// Containment of the run, and what it leaves open.
    pub held: Held,
}

/// A report that the keeper sends unasked. Reports of one run come in the order of the events.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeeperReport {
    /// Id of the run.
    pub run: RunId,
    /// Time of the event, by the wall clock of keeper or shim.
    pub at: Timestamp,
    /// Content of the report.
    pub fact: Fact,
}

/// An event of the keeper.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeeperEvent {
    /// About one run.
    Report(KeeperReport),
    /// SIGTERM or SIGINT was received: stop all runs by the shutdown ladder, commit, exit with code 0.
    Shutdown,
    /// The signal was received again: skip the graces.
    ShutdownNow,
    /// Another server is to replace this one: finish pending work, exit with code 75.
    Leave,
    /// A signal requested an upgrade, which was refused.
    NotUpgraded(UpgradeRefusal),
    /// The keeper received a signal that means nothing to it, and ignored it.
    Stray(StraySignal),
    /// The shim of a run that the hello has called late has reconnected: [`KeeperClient::take_held`] returns the run.
    /// Reports of its past follow.
    DoorOpened(RunId),
    /// The shim of such a run is gone.
    DoorLeft(RunId),
    /// The keeper is gone (end of file): drain, commit, exit with code 70.
    Gone,
}

/// Description of the keeper and its host; sent once, at the start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeeperHello {
    /// Epoch of this keeper.
    pub epoch: KeeperEpoch,
    /// Version of the keeper, which is that of the binary it was started from.
    pub version: String,
    /// Process of this keeper.
    pub keeper: ProcessIdentity,
    /// Boot and pid namespace.
    pub host: kennel_lifecycle::HostIdentity,
    /// Directory under which runs get their control groups; absent: none can be made, and why.
    pub cgroup_base: Result<PathBuf, String>,
    /// Whether pidfs inodes can be recorded.
    pub pidfs: bool,
    /// Resources for which runs can have limits.
    pub powers: kennel_lifecycle::LimitPowers,
    /// Version of the kernel, as in uname(2).
    pub kernel: String,
    /// Capabilities of the host, found by trying them.
    pub capabilities: Vec<Capability>,
    /// Runs of an earlier keeper whose shims are alive and have not reconnected yet: an event follows for each.
    pub late: Vec<RunId>,
    /// Number of servers that this keeper has had before this one.
    pub restarts: u32,
    /// End of the last of them.
    pub former: Option<FormerServer>,
    /// The last upgrade for which a server has left, and its result, if this server serves.
    pub upgrade: Option<Upgrade>,
}

impl KeeperHello {
    /// Returns why this host lacks a capability; absent: it has it.
    #[must_use]
    pub fn lacks(&self, name: CapabilityName) -> Option<&str> {
        let found = self.capabilities.iter().find(|c| c.name == name);
        found.map_or(Some("it was not tried out"), |c| c.missing.as_deref())
    }
}

/// Cause of a failed request to the keeper.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The keeper is gone.
    #[error("the keeper is gone")]
    KeeperGone,
    /// A step of the start failed.
    #[error("cannot prepare the command: {0}")]
    Start(StartFailure),
    /// The available containment is weaker than the spec allows. Nothing was made.
    #[error("this run would have the containment {} and demands {}", held.by.api_name(), wanted.api_name())]
    TooWeak {
        /// Weakest containment that the spec allows.
        wanted: Containment,
        /// Available containment.
        held: Held,
    },
    /// No terminal is available for the run. Nothing was made.
    #[error("there is no terminal for this run: {0}")]
    NoPty(NoPty),
    /// The descriptors or processes of this host are used up.
    #[error("this host has no room for another run: {0}")]
    Exhausted(String),
}

/// Longest time of the keeper for a request; after it the server takes the keeper for dead.
pub const KEEPER_ANSWER_MAX: Duration = Duration::from_secs(30);

/// A recorded run, for the keeper to look for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recorded {
    /// Id of the run.
    pub run: RunId,
    /// Its recorded identity.
    pub identity: RunIdentity,
    /// Its private directory.
    pub run_dir: PathBuf,
}

/// Client of the keeper. Cheap to clone.
#[derive(Clone, Debug)]
pub struct KeeperClient {
    link: Arc<Link>,
}

/// Receiver of the keeper's events. It has one reader.
#[derive(Debug)]
pub struct KeeperEvents {
    queue: mpsc::Receiver<KeeperEvent>,
    /// Task that reads the socket.
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
    /// Acquires the server's end of the socket and waits for the keeper's hello, and for the runs that the keeper holds
    /// from an earlier server: their unacknowledged reports come again, as the first events. Must be called inside a
    /// tokio runtime.
    pub async fn connect(
        socket: OwnedFd,
    ) -> Result<(Self, KeeperEvents, KeeperHello, Vec<HeldRun>), ClientError> {
        let (link, events, hello, held) = Link::open(socket).await?;
        Ok((Self { link }, events, hello, held))
    }

    /// Takes the keeper's listening sockets, which came with the hello; once.
    #[must_use]
    pub fn take_listeners(&self) -> Vec<OwnedFd> {
        self.link.take_listeners()
    }

    /// Takes a run whose shim was late; once.
    #[must_use]
    pub fn take_held(&self, run: RunId) -> Option<HeldRun> {
        self.link.take_held(run)
    }

    /// Time since which the keeper has not answered, and every change of it; absent: it answers.
    #[must_use]
    pub fn unresponsive(&self) -> watch::Receiver<Option<Timestamp>> {
        self.link.unresponsive()
    }

    /// Notifies the keeper that this server serves: recovery is done.
    pub fn ready(&self) {
        self.link.post(&ToKeeper::Ready);
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
        // A child whose announcement no task awaits must not wait at its gate for ever.
        let (answer, fds) = answered.inspect_err(|_| self.shut_gate(run))?;
        match answer {
            Answer::Prepared { identity, held } => {
                let Some(outputs) = Outputs::of(terminal.is_some(), fds) else {
                    // This process had no free descriptors for them: nothing can be read, so nothing may run.
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
        self.link.post(&ToKeeper::Release { run });
    }

    /// Shuts the gate. Reports follow.
    pub fn shut_gate(&self, run: RunId) {
        let run = run.as_u128();
        self.link.post(&ToKeeper::ShutGate { run });
    }

    /// Starts the run's ladder, or shortens the one in progress. Thaws a paused tree after the first signal.
    pub fn stop(&self, run: RunId, plan: &StopPlan) {
        let run = run.as_u128();
        let plan = plan.clone();
        self.link.post(&ToKeeper::Stop { run, plan });
    }

    /// Allows the rest of the tree to be detached: the leader has exited by itself and no stop is in progress.
    pub fn keep_rest(&self, run: RunId) {
        let run = run.as_u128();
        self.link.post(&ToKeeper::KeepRest { run });
    }

    /// Stops every task of the tree and verifies that: `Done` only when all were seen stopped.
    pub async fn pause(&self, run: RunId) -> Result<SignalResult, ClientError> {
        let run = run.as_u128();
        self.ask_signal(|seq| ToKeeper::Pause { seq, run }).await
    }

    /// Continues the tasks that `pause` has stopped.
    pub async fn resume(&self, run: RunId) -> Result<SignalResult, ClientError> {
        let run = run.as_u128();
        self.ask_signal(|seq| ToKeeper::Resume { seq, run }).await
    }

    /// Runs a command beside the run's own, in its tree, with its directory and environment and without its streams,
    /// and ends it after this time.
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

    /// Sends a signal to the processes that `target` names, one by one, each verified at that moment. None is sent
    /// twice under one request id, whichever server of this keeper asks.
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
            // The keeper has no such run: there is no process to signal.
            (Answer::Signal(_), _) => Ok(Sent::Now(SignalledProcesses::default())),
            (Answer::Exhausted(what), _) => Err(ClientError::Exhausted(what)),
            _ => Err(ClientError::KeeperGone),
        }
    }

    /// Whether a signal was sent under this request id. Sends none.
    pub async fn was_sent(&self, run: RunId, request_id: &str) -> Result<bool, ClientError> {
        let (run, request) = (run.as_u128(), request_id.to_owned());
        let asked = |seq| ToKeeper::WasSent { seq, run, request };
        match self.link.ask(asked, Vec::new()).await? {
            (Answer::SentBefore, _) => Ok(true),
            (Answer::NotSent | Answer::Signal(_), _) => Ok(false),
            _ => Err(ClientError::KeeperGone),
        }
    }

    /// Requests a server of the installed binary in the place of this one. Where the binary is fit,
    /// [`KeeperEvent::Leave`] follows. A request with the id of an earlier one does not begin again.
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

    /// Lists the processes of the run's tree. Changes nothing.
    pub async fn tree(&self, run: RunId) -> Result<Listing, ClientError> {
        let run = run.as_u128();
        let asked = |seq| ToKeeper::Tree { seq, run };
        let listed: WireListing = match self.link.ask(asked, Vec::new()).await? {
            (Answer::Listed, fds) => listing::read(fds)?,
            (Answer::Signal(_), _) => return Ok(Listing::default()),
            (Answer::Exhausted(what), _) => return Err(ClientError::Exhausted(what)),
            _ => return Err(ClientError::KeeperGone),
        };
        // The keeper has other runs to serve, so slow reads happen here.
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

    /// Acknowledges that the run's outcome is durable: the keeper forgets the run and removes its control group.
    pub fn acknowledge(&self, run: RunId) {
        let run = run.as_u128();
        self.link.post(&ToKeeper::Acknowledge { run });
    }

    /// Searches for the processes that an earlier keeper has recorded of a run. Sends no signal.
    pub async fn observe(&self, recorded: &Recorded) -> Result<Observation, ClientError> {
        let recorded = WireRecorded::try_from(recorded)?;
        self.observation(|seq| ToKeeper::Observe { seq, recorded }, KEEPER_ANSWER_MAX)
            .await
    }

    /// Ends the processes verified as the recorded run's, each verified at each signal; answers when no verified one is
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

    /// Whether the keeper recorded as this process on this host is gone.
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
    /// Returns the next event; after [`KeeperEvent::Gone`] only that. Cancel-safe.
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
