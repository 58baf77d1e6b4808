//! The keeper as the supervisor uses it, as a trait: tests implement it with a fake kernel.

use async_trait::async_trait;
use kennel_keeper::{
    audit::Installation,
    client::{
        ChildSpec, ClientError, ExtendResult, HeldRun, HelperEnd, InputAnswer, Interrupted,
        KeeperClient, KeeperEvent, KeeperEvents, Listing, Look, Prepared, Reaped, Recorded,
        Resized, SecondLook, Sent, SignalResult, SignalTarget, Upgrade, UpgradeRefusal, Victim,
    },
};
use kennel_lifecycle::{
    CgroupIdentity, Deadline, HostIdentity, InputWrite, ProcessIdentity, RunId, Signal,
    TerminalSize, Timestamp, ladder::StopPlan, recovery,
};
use std::{io, net::SocketAddr, num::NonZeroU64, path::PathBuf, time::Duration};
use tokio::sync::watch;

/// Client of grpc.health.v1 for servers of this host; implemented outside this crate.
#[async_trait]
pub trait HealthCheck: Send + Sync + std::fmt::Debug {
    /// Asks the server at this address for the health of a service; empty: of the whole server.
    ///
    /// # Errors
    ///
    /// The text says why the server does not report SERVING.
    async fn check(&self, address: SocketAddr, service: &str) -> Result<(), String>;
}

/// Makes tokens; implemented outside this crate, where they are checked too.
pub trait TokenMaker: Send + Sync + std::fmt::Debug {
    /// The token with which processes of this attempt of a run may call.
    fn token(&self, run: RunId, attempt: u32) -> String;
}

/// Quotas of the output of owners, as they are at present; implemented outside this crate.
pub trait OutputQuotas: Send + Sync + std::fmt::Debug {
    /// Bytes a second at which the output of all runs of this owner together is read; absent: as fast as it comes.
    fn output_bytes_per_second(&self, owner: &str) -> Option<NonZeroU64>;
}

/// Seals what is kept of a run for its next attempt; implemented outside this crate, where the key is.
pub trait Sealer: Send + Sync + std::fmt::Debug {
    /// Returns the sealed form of these bytes, which opens for this run alone.
    ///
    /// # Errors
    ///
    /// There is no randomness to seal with.
    fn seal(&self, run: RunId, plain: &[u8]) -> io::Result<Vec<u8>>;

    /// Opens it in its own memory, and returns the bytes there.
    ///
    /// # Errors
    ///
    /// It was not sealed with this key for this run, or has been changed.
    fn open<'a>(&self, run: RunId, sealed: &'a mut [u8]) -> io::Result<&'a [u8]>;
}

/// The keeper, as far as runs need it. [`KeeperClient`] documents each call.
#[async_trait]
pub trait Kernel: Send + Sync + std::fmt::Debug {
    /// Makes a child that waits at its gate.
    async fn prepare(&self, run: RunId, spec: &ChildSpec) -> Result<Prepared, ClientError>;
    /// Opens the gate.
    fn release(&self, run: RunId);
    /// Shuts the gate.
    fn shut_gate(&self, run: RunId);
    /// Starts or shortens the ladder.
    fn stop(&self, run: RunId, plan: &StopPlan);
    /// Allows the survivors of the tree to be detached.
    fn keep_rest(&self, run: RunId);
    /// Sends SIGINT to the leader's group, or what interrupts on a terminal, unless a signal was sent under this
    /// request id.
    async fn interrupt(
        &self,
        run: RunId,
        request_id: Option<&str>,
    ) -> Result<Interrupted, ClientError>;
    /// Sets the size of an attempt's terminal.
    async fn resize(
        &self,
        run: RunId,
        attempt: u32,
        size: TerminalSize,
    ) -> Result<Resized, ClientError>;
    /// Extends limits of time that the keeper counts: all of them or none, to at least this long from now on.
    async fn extend(
        &self,
        run: RunId,
        limits: &[Deadline],
        time: Duration,
        by: &str,
    ) -> Result<ExtendResult, ClientError>;
    /// Sends a signal to the processes that `target` names, one by one, unless one was sent under this request id.
    async fn signal(
        &self,
        run: RunId,
        signal: Signal,
        target: SignalTarget,
        request_id: Option<&str>,
    ) -> Result<Sent, ClientError>;
    /// Runs a command beside the run's own, in its tree.
    async fn help(
        &self,
        run: RunId,
        argv: &[String],
        timeout: Duration,
    ) -> Result<HelperEnd, ClientError>;
    /// Whether a signal was sent under this request id.
    async fn was_sent(&self, run: RunId, request_id: &str) -> Result<bool, ClientError>;
    /// Writes to standard input.
    async fn write_input(
        &self,
        run: RunId,
        attempt: u32,
        write: &InputWrite,
        data: &[u8],
    ) -> Result<InputAnswer, ClientError>;
    /// Closes standard input.
    async fn close_input(
        &self,
        run: RunId,
        attempt: u32,
        offset: Option<u64>,
    ) -> Result<InputAnswer, ClientError>;
    /// Returns the state of standard input.
    async fn input_state(&self, run: RunId, attempt: u32) -> Result<InputAnswer, ClientError>;
    /// Lists the processes of the tree.
    async fn tree(&self, run: RunId) -> Result<Listing, ClientError>;
    /// Requests a server of the installed binary.
    async fn upgrade(
        &self,
        request_id: Option<&str>,
    ) -> Result<Result<Upgrade, UpgradeRefusal>, ClientError>;
    /// Stops every task and verifies that.
    async fn pause(&self, run: RunId) -> Result<SignalResult, ClientError>;
    /// Continues stopped tasks.
    async fn resume(&self, run: RunId) -> Result<SignalResult, ClientError>;
    /// Acknowledges the run: the outcome is durable.
    fn acknowledge(&self, run: RunId);
    /// Looks for the processes of a recorded run.
    async fn observe(&self, recorded: &Recorded) -> Result<recovery::Observation, ClientError>;
    /// Ends the processes verified as a recorded run's.
    async fn end_orphan(
        &self,
        recorded: &Recorded,
        plan: &StopPlan,
    ) -> Result<recovery::Observation, ClientError>;
    /// Takes a run whose shim was unreachable, and which the keeper has by now; each run once.
    fn take_held(&self, run: RunId) -> Option<HeldRun>;
    /// Time since which the keeper has not answered, and every change of it; absent: it answers.
    fn unresponsive(&self) -> watch::Receiver<Option<Timestamp>> {
        watch::Sender::new(None).subscribe()
    }
    /// Looks for a recorded keeper.
    async fn keeper_seen(
        &self,
        keeper: ProcessIdentity,
        host: HostIdentity,
    ) -> Result<recovery::Seen, ClientError>;
    /// Scans all processes of the host.
    async fn audit(
        &self,
        installation: Installation,
        data_dir: PathBuf,
    ) -> Result<Look, ClientError>;
    /// Verifies the findings of a scan again.
    async fn look_again(
        &self,
        processes: Vec<ProcessIdentity>,
        directories: Vec<(RunId, CgroupIdentity)>,
    ) -> Result<SecondLook, ClientError>;
    /// Ends the findings of a scan.
    async fn reap(
        &self,
        victims: &[Victim],
        directories: &[CgroupIdentity],
        plan: &StopPlan,
    ) -> Result<Reaped, ClientError>;
}

#[async_trait]
impl Kernel for KeeperClient {
    async fn prepare(&self, run: RunId, spec: &ChildSpec) -> Result<Prepared, ClientError> {
        Self::prepare(self, run, spec).await
    }

    fn release(&self, run: RunId) {
        Self::release(self, run);
    }

    fn shut_gate(&self, run: RunId) {
        Self::shut_gate(self, run);
    }

    fn stop(&self, run: RunId, plan: &StopPlan) {
        Self::stop(self, run, plan);
    }

    fn keep_rest(&self, run: RunId) {
        Self::keep_rest(self, run);
    }

    async fn interrupt(
        &self,
        run: RunId,
        request_id: Option<&str>,
    ) -> Result<Interrupted, ClientError> {
        Self::interrupt(self, run, request_id).await
    }

    async fn resize(
        &self,
        run: RunId,
        attempt: u32,
        size: TerminalSize,
    ) -> Result<Resized, ClientError> {
        Self::resize(self, run, attempt, size).await
    }

    async fn extend(
        &self,
        run: RunId,
        limits: &[Deadline],
        time: Duration,
        by: &str,
    ) -> Result<ExtendResult, ClientError> {
        Self::extend(self, run, limits, time, by).await
    }

    async fn signal(
        &self,
        run: RunId,
        signal: Signal,
        target: SignalTarget,
        request_id: Option<&str>,
    ) -> Result<Sent, ClientError> {
        Self::signal(self, run, signal, target, request_id).await
    }

    async fn help(
        &self,
        run: RunId,
        argv: &[String],
        timeout: Duration,
    ) -> Result<HelperEnd, ClientError> {
        self.help(run, argv, timeout).await
    }

    async fn was_sent(&self, run: RunId, request_id: &str) -> Result<bool, ClientError> {
        Self::was_sent(self, run, request_id).await
    }

    async fn write_input(
        &self,
        run: RunId,
        attempt: u32,
        write: &InputWrite,
        data: &[u8],
    ) -> Result<InputAnswer, ClientError> {
        Self::write_input(self, run, attempt, write, data).await
    }

    async fn close_input(
        &self,
        run: RunId,
        attempt: u32,
        offset: Option<u64>,
    ) -> Result<InputAnswer, ClientError> {
        Self::close_input(self, run, attempt, offset).await
    }

    async fn input_state(&self, run: RunId, attempt: u32) -> Result<InputAnswer, ClientError> {
        Self::input_state(self, run, attempt).await
    }

    async fn tree(&self, run: RunId) -> Result<Listing, ClientError> {
        Self::tree(self, run).await
    }

    async fn upgrade(
        &self,
        request_id: Option<&str>,
    ) -> Result<Result<Upgrade, UpgradeRefusal>, ClientError> {
        Self::upgrade(self, request_id).await
    }

    async fn pause(&self, run: RunId) -> Result<SignalResult, ClientError> {
        Self::pause(self, run).await
    }

    async fn resume(&self, run: RunId) -> Result<SignalResult, ClientError> {
        Self::resume(self, run).await
    }

    fn acknowledge(&self, run: RunId) {
        Self::acknowledge(self, run);
    }

    async fn observe(&self, recorded: &Recorded) -> Result<recovery::Observation, ClientError> {
        Self::observe(self, recorded).await
    }

    async fn end_orphan(
        &self,
        recorded: &Recorded,
        plan: &StopPlan,
    ) -> Result<recovery::Observation, ClientError> {
        Self::end_orphan(self, recorded, plan).await
    }

    fn take_held(&self, run: RunId) -> Option<HeldRun> {
        Self::take_held(self, run)
    }

    fn unresponsive(&self) -> watch::Receiver<Option<Timestamp>> {
        Self::unresponsive(self)
    }

    async fn keeper_seen(
        &self,
        keeper: ProcessIdentity,
        host: HostIdentity,
    ) -> Result<recovery::Seen, ClientError> {
        Self::keeper_seen(self, keeper, host).await
    }

    async fn audit(
        &self,
        installation: Installation,
        data_dir: PathBuf,
    ) -> Result<Look, ClientError> {
        Self::audit(self, installation, data_dir).await
    }

    async fn look_again(
        &self,
        processes: Vec<ProcessIdentity>,
        directories: Vec<(RunId, CgroupIdentity)>,
    ) -> Result<SecondLook, ClientError> {
        Self::look_again(self, processes, directories).await
    }

    async fn reap(
        &self,
        victims: &[Victim],
        directories: &[CgroupIdentity],
        plan: &StopPlan,
    ) -> Result<Reaped, ClientError> {
        Self::reap(self, victims, directories, plan).await
    }
}

/// Receiver of the keeper's events.
#[async_trait]
pub trait KernelEvents: Send {
    /// Returns the next event; after [`KeeperEvent::Gone`] only that. Cancel-safe.
    async fn recv(&mut self) -> KeeperEvent;
}

#[async_trait]
impl KernelEvents for KeeperEvents {
    async fn recv(&mut self) -> KeeperEvent {
        Self::recv(self).await
    }
}
