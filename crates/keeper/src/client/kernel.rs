//! The keeper as the server's tasks use it, as a trait: tests implement it with a fake kernel.

use super::{
    ChildSpec, ClientError, ExtendResult, HeldRun, HelperEnd, InputAnswer, Interrupted, LeakScan,
    Listing, Prepared, Reaped, Recorded, Resized, SecondLook, Sent, SignalResult, SignalTarget,
    Upgrade, UpgradeRefusal, Victim,
};
use crate::audit::Installation;
use async_trait::async_trait;
use kennel_lifecycle::{
    CgroupIdentity, Deadline, HostIdentity, InputWrite, ProcessIdentity, RunId, Signal,
    TerminalSize, Timestamp,
    ladder::StopPlan,
    recovery::{Observation, ProcessPresence},
};
use std::{path::PathBuf, time::Duration};
use tokio::sync::watch;

/// The keeper, as far as runs need it: [`KeeperClient`](super::KeeperClient), or a fake one of tests.
#[async_trait]
pub trait Kernel: Send + Sync + std::fmt::Debug {
    /// Makes a child that waits at its gate.
    async fn prepare(&self, run: RunId, spec: &ChildSpec) -> Result<Prepared, ClientError>;
    /// Opens the gate. Reports follow.
    fn release(&self, run: RunId);
    /// Shuts the gate. Reports follow.
    fn shut_gate(&self, run: RunId);
    /// Starts the run's ladder, or shortens the one in progress. Thaws a paused tree after the first signal.
    fn stop(&self, run: RunId, plan: &StopPlan);
    /// Allows the rest of the tree to be detached: the leader has exited by itself and no stop is in progress.
    fn keep_rest(&self, run: RunId);
    /// Sends SIGINT to the leader's process group, or on a terminal the key for that, once.
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
    /// Sends a signal to the processes that `target` names, one by one, each verified at that moment. None is sent
    /// twice under one request id, whichever server of this keeper asks.
    async fn signal(
        &self,
        run: RunId,
        signal: Signal,
        target: SignalTarget,
        request_id: Option<&str>,
    ) -> Result<Sent, ClientError>;
    /// Runs a command beside the run's own, in its tree, with its directory and environment and without its streams,
    /// and ends it after this time.
    async fn help(
        &self,
        run: RunId,
        argv: &[String],
        timeout: Duration,
    ) -> Result<HelperEnd, ClientError>;
    /// Whether a signal was sent under this request id. Sends none.
    async fn was_sent(&self, run: RunId, request_id: &str) -> Result<bool, ClientError>;
    /// Writes to the input of an attempt; returns when the pipe has taken all of it, however long that takes. Where the
    /// future is dropped before, what was taken by then stays taken, and no more is.
    async fn write_input(
        &self,
        run: RunId,
        attempt: u32,
        write: &InputWrite,
        data: &[u8],
    ) -> Result<InputAnswer, ClientError>;
    /// Closes the input of an attempt, where it stands at this offset if one is given. Returns when no copy of the
    /// pipe's end is left except with a shim that was ordered to close its own.
    async fn close_input(
        &self,
        run: RunId,
        attempt: u32,
        offset: Option<u64>,
    ) -> Result<InputAnswer, ClientError>;
    /// Returns the state of an attempt's input.
    async fn input_state(&self, run: RunId, attempt: u32) -> Result<InputAnswer, ClientError>;
    /// Lists the processes of the run's tree. Changes nothing.
    async fn tree(&self, run: RunId) -> Result<Listing, ClientError>;
    /// Requests a server of the installed binary in the place of this one. Where the binary is fit,
    /// [`KeeperEvent::Leave`](super::KeeperEvent::Leave) follows. A request with the id of an earlier one does not begin again.
    async fn upgrade(
        &self,
        request_id: Option<&str>,
    ) -> Result<Result<Upgrade, UpgradeRefusal>, ClientError>;
    /// Stops every task of the tree and verifies that: `Done` only when all were seen stopped.
    async fn pause(&self, run: RunId) -> Result<SignalResult, ClientError>;
    /// Continues the tasks that `pause` has stopped.
    async fn resume(&self, run: RunId) -> Result<SignalResult, ClientError>;
    /// Acknowledges that the run's outcome is durable: the keeper forgets the run and removes its control group.
    fn acknowledge(&self, run: RunId);
    /// Searches for the processes that an earlier keeper has recorded of a run. Sends no signal.
    async fn observe(&self, recorded: &Recorded) -> Result<Observation, ClientError>;
    /// Ends the processes verified as the recorded run's, each verified at each signal; answers when no verified one is
    /// left or when the plan and two seconds have passed. `plan` with zero grace kills at once.
    async fn end_orphan(
        &self,
        recorded: &Recorded,
        plan: &StopPlan,
    ) -> Result<Observation, ClientError>;
    /// Takes a run whose shim was late; once.
    fn take_held(&self, run: RunId) -> Option<HeldRun>;
    /// Time since which the keeper has not answered, and every change of it; absent: it answers.
    fn unresponsive(&self) -> watch::Receiver<Option<Timestamp>> {
        watch::Sender::new(None).subscribe()
    }
    /// Whether the keeper recorded as this process on this host is gone.
    async fn keeper_seen(
        &self,
        keeper: ProcessIdentity,
        host: HostIdentity,
    ) -> Result<ProcessPresence, ClientError>;
    /// Scans all processes of the host, then asks the keeper what it knows of them. Signals no process.
    async fn audit(
        &self,
        installation: Installation,
        data_dir: PathBuf,
    ) -> Result<LeakScan, ClientError>;
    /// Checks findings again, describes them further, and asks the keeper again.
    async fn look_again(
        &self,
        processes: Vec<ProcessIdentity>,
        directories: Vec<(RunId, CgroupIdentity)>,
    ) -> Result<SecondLook, ClientError>;
    /// Ends these processes by the plan, each verified at each signal, and removes these directories where they are
    /// empty; at most [`REAPED_MAX`](super::REAPED_MAX) of each. Answers when all have ended, or two seconds after SIGKILL.
    async fn reap(
        &self,
        victims: &[Victim],
        directories: &[CgroupIdentity],
        plan: &StopPlan,
    ) -> Result<Reaped, ClientError>;
}
