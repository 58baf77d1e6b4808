//! Start and shutdown of a server.

use crate::{
    audit_log::TrailRecord,
    base::{
        clock,
        faults::BootError,
        log_words,
        ports::{Kernel, KernelEvents},
    },
    node::{data_dir, floors, gauges, history, lease, recover, retention, takeover},
    record::NodeRecord,
    registry::{
        Order, Shared, Supervisor, SupervisorConfig, serving::Serving, unreachable::LateShim,
    },
    telemetry::Telemetry,
};
use kennel_keeper::client::{
    CapabilityName, Fact, HeldRun, KeeperEvent, KeeperHello, KeeperReport, StraySignal,
};
use kennel_lifecycle::{RunId, Signal, StopOrder, StopReason, limits};
use kennel_linux::crash_point;
use kennel_store::Store;
use std::{
    collections::HashSet,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};
use tokio::{sync::oneshot, task::JoinHandle};

/// Everything stopped within the deadline.
pub const EXIT_CLEAN: i32 = 0;
/// Some process was still alive at the deadline.
const EXIT_FORCED: i32 = 1;
/// The keeper is gone.
const EXIT_KEEPER_LOST: i32 = 70;

/// A task of the server has failed; the keeper starts the next server.
pub const EXIT_FAULT: i32 = 71;

/// Another server replaces this one.
pub const EXIT_LEFT: i32 = 75;

/// Interval at which all output is checked for its end after the keeper's death.
const PIPES_POLL: Duration = Duration::from_millis(20);

impl Supervisor {
    /// Acquires the node: makes sure that no other keeper of it lives, raises the generation, adopts the runs that the
    /// keeper holds, starts recovery of every other open row. A server that follows another one of its keeper adopts
    /// the runs whether the store is available or not, and acquires the node when it is. The second value ends with the
    /// exit code when the server is to exit.
    pub async fn boot(
        config: SupervisorConfig,
        kernel: Arc<dyn Kernel>,
        events: impl KernelEvents + 'static,
        hello: KeeperHello,
        held: Vec<HeldRun>,
        store: Arc<dyn Store>,
    ) -> Result<(Self, JoinHandle<i32>), BootError> {
        crash_point!("boot.begun");
        let begun_at = clock::instant();
        let (epoch, server, boot_id) = (hello.epoch, hello.restarts, &hello.host.boot_id);
        let (record, promises) = NodeRecord::open(&config.data_dir, epoch, server, boot_id).await?;
        let start_recovery = recover::start_recovery;
        let shared = Shared::new(
            config,
            kernel,
            store,
            record,
            hello,
            start_recovery,
            clock::now(),
        );
        let shared = Arc::new(shared);
        shared.background.spawn(promises);
        record_start(&shared, held.len());
        let begun = match takeover::first(&shared, &held).await? {
            Some(taken) => takeover::with_rows(&shared, held, taken).await?,
            None => takeover::without_rows(&shared, held).await?,
        };
        crash_point!("boot.adopted");
        let telemetry = &shared.config.telemetry;
        telemetry.metrics.recovery(begun_at.elapsed());
        gauges::register(telemetry, &shared);
        let supervisor = Self { shared };
        supervisor.start_background();
        supervisor.resume_drain().await;
        recover::take_all(&supervisor.shared, begun.others, false);
        // Runs that entered just now are included: no other code ends a run in backoff.
        supervisor.abort_drained();
        let task = supervisor.clone().dispatch(events, begun.left_alone);
        let ended = tokio::spawn(task);
        Ok((supervisor, ended))
    }

    /// Returns the telemetry of this server.
    pub fn telemetry(&self) -> Telemetry {
        self.shared.config.telemetry.clone()
    }

    /// Returns the serving state of this server.
    pub fn serving(&self) -> Serving {
        self.shared.serving.clone()
    }

    /// Ends the background work of this server, and waits for it: the last step before its process exits. Pending
    /// writes are delivered until then, and by the next server after that.
    pub async fn end(&self) {
        self.shared.background.end().await;
    }

    /// Starts the background work of this server, for its lifetime.
    fn start_background(&self) {
        let (shared, background) = (&self.shared, &self.shared.background);
        let delivering = Arc::clone(shared);
        background
            .spawn(async move { delivering.record.deliver_for_ever(&delivering.store).await });
        background.spawn(Arc::clone(&shared.record).trim_for_ever());
        let watching = Arc::clone(shared);
        background.spawn(async move { takeover::watch_lives(&watching).await });
        background.spawn(retention::look_after(Arc::clone(shared)));
        background.spawn(history::look_after(Arc::clone(shared)));
        background.spawn(floors::look_after(Arc::clone(shared)));
        background.spawn(data_dir::look_after(Arc::clone(shared)));
        background.spawn(lease::renew_for_ever(self.clone()));
        background.spawn(self.clone().watch_keeper());
    }

    /// Dispatches the keeper's events to the runs; returns the exit code.
    async fn dispatch(self, mut events: impl KernelEvents, left_alone: HashSet<RunId>) -> i32 {
        let mut end: Option<JoinHandle<i32>> = None;
        let code = loop {
            // A shutdown outranks leaving: no later server would end the runs and record their ends.
            let serves = end.is_none();
            let leaves = serves && self.shared.serving.is_leaving();
            let ended = async {
                match &mut end {
                    Some(end) => end.await,
                    None => std::future::pending().await,
                }
            };
            let event = tokio::select! { biased;
                event = events.recv() => event,
                code = ended => break code.unwrap_or(EXIT_FORCED),
                () = self.shared.serving.until_answered(), if leaves => break EXIT_LEFT,
                () = self.shared.serving.until_failed(), if serves => break EXIT_FAULT,
            };
            match event {
                KeeperEvent::Report(report) if left_alone.contains(&report.run) => {}
                KeeperEvent::Report(report) => self.report(report).await,
                KeeperEvent::Shutdown {} => {
                    self.shared.trail.note("shutdown_begun", []);
                    end.get_or_insert_with(|| tokio::spawn(self.clone().shut_down()));
                }
                KeeperEvent::ShutdownNow {} => {
                    tracing::warn!("second request to shut down: skipping the grace periods");
                    self.stop_all(Some(Duration::ZERO));
                    end.get_or_insert_with(|| tokio::spawn(self.clone().shut_down()));
                }
                KeeperEvent::Leave {} => {
                    tracing::info!("stopping for another server");
                    self.shared.trail.note("server_leaving", []);
                    self.shared.serving.leave();
                    crash_point!("leave.begun");
                }
                KeeperEvent::ShimReconnected(run) => {
                    self.shared.late_shims.set(run, LateShim::Reconnected);
                }
                KeeperEvent::Pinned { run, by } => {
                    if let Some(handle) = self.shared.find(run) {
                        handle.send(Order::Pin(by), &self.shared.background);
                    }
                }
                KeeperEvent::ShimGone(run) => self.shared.late_shims.set(run, LateShim::Gone),
                KeeperEvent::NotUpgraded(refusal) => Self::log_not_upgraded(&refusal),
                KeeperEvent::Stray(stray) => log_stray(stray),
                KeeperEvent::Skipped { reader, name } => {
                    self.shared.names_skipped.fetch_add(1, Ordering::Relaxed);
                    let reader = reader.name();
                    tracing::warn!(reader, name, "skipped part of a message of a later version");
                }
                KeeperEvent::Gone => break self.keeper_lost().await,
            }
        };
        if code == EXIT_CLEAN {
            lease::give_up(&self.shared).await;
        }
        self.shared.serving.close();
        let what = match code {
            EXIT_CLEAN | EXIT_FORCED => "service_stopped",
            EXIT_LEFT => "server_left",
            _ => "server_ending",
        };
        self.shared.trail.note(what, [("code", code.to_string())]);
        self.shared.trail.flush().await;
        code
    }

    async fn report(&self, report: KeeperReport) {
        let run = report.run;
        let last = matches!(report.fact, Fact::TreeEnded(_));
        let refused = match self.shared.find(run) {
            Some(handle) => handle.reports.send(Box::new(report)).await.is_err(),
            None => true,
        };
        // A late run that this server has not adopted may be reported to the next server.
        if refused && last && !self.shared.late_shims.is_late(run) {
            // No task waits for this report any more: the keeper can drop it.
            self.shared.kernel.acknowledge(run);
        }
    }

    async fn shut_down(self) -> i32 {
        let deadline = clock::instant() + self.shared.config.shutdown_timeout;
        let live = self.stop_all(None);
        tracing::info!(live, "shutting down");
        self.shared.tasks.close();
        match tokio::time::timeout_at(deadline, self.shared.tasks.wait()).await {
            Ok(()) => EXIT_CLEAN,
            Err(_) => {
                let left: Vec<_> = self.shared.all().iter().map(|(run, _)| *run).collect();
                let left = log_words::list(&left);
                tracing::error!(left, "still not ended at the deadline");
                EXIT_FORCED
            }
        }
    }

    /// Refuses new work and stops what is live, each within its own grace, cut to what a shutdown may take, or
    /// within `grace`.
    fn stop_all(&self, grace: Option<Duration>) -> usize {
        self.shared.serving.shut_down();
        let live = self.shared.all();
        let most = limits::shutdown_grace(self.shared.config.shutdown_timeout);
        let mut cut = 0;
        for (_, handle) in &live {
            let own = handle.live.borrow().view.policy().grace();
            if grace.is_none() && own > most {
                cut += 1;
                let (own, most) = (own.as_secs_f64(), most.as_secs_f64());
                let words =
                    format!("--shutdown-timeout cuts the grace period from {own} s to {most} s");
                handle.send(Order::Warn(words), &self.shared.background);
            }
            let order = StopOrder {
                reason: StopReason::ServerShutdown,
                grace: own.min(grace.unwrap_or(most)),
            };
            let (reply, _) = oneshot::channel();
            handle.send(Order::Stop(order, reply), &self.shared.background);
        }
        if cut > 0 {
            tracing::warn!(runs = cut, "grace periods are cut by --shutdown-timeout");
        }
        live.len()
    }

    /// The shims end the runs now; the server reads the output that remains, then exits.
    async fn keeper_lost(&self) -> i32 {
        self.shared.trail.note("keeper_lost", []);
        tracing::error!("the keeper is gone: reading the remaining output");
        // The sockets are free for the next instance, where readers resume at their positions.
        self.shared.serving.lose_keeper();
        let deadline = clock::instant() + self.shared.config.shutdown_timeout;
        while self.shared.pipes_open.load(Ordering::Relaxed) > 0 && clock::instant() < deadline {
            tokio::time::sleep(PIPES_POLL).await;
        }
        EXIT_KEEPER_LOST
    }
}

fn log_stray(stray: StraySignal) {
    if stray.number == Signal::HUP.number() {
        return tracing::warn!("the keeper's terminal hung up, the service continues");
    }
    tracing::warn!(
        signal = %stray,
        sender.pid = stray.pid,
        sender.uid = stray.uid,
        count = stray.count,
        "the keeper ignored a signal: SIGTERM ends the service, SIGHUP upgrades it"
    );
}

/// Logs what is known at a start: of this server, of the one before it, and of its keeper.
fn record_start(shared: &Shared, held: usize) {
    let hello = &shared.hello;
    if hello.restarts == 0 {
        let started = [
            ("keeper_pid", hello.keeper.pid.to_string()),
            ("keeper_start_ticks", hello.keeper.start_ticks.to_string()),
            ("keeper_epoch", hello.epoch.to_string()),
            ("keeper_version", hello.version.clone()),
            ("boot_id", hello.host.boot_id.clone()),
        ];
        shared.trail.note("service_started", started);
    }
    if let Some(former) = &hello.former {
        let mut record = TrailRecord::node(
            "server_ended",
            [
                ("how", former.to_string()),
                ("served", former.served.to_string()),
                ("version", former.version.clone()),
            ],
        );
        record.at_us = former.at.0;
        shared.trail.record(record);
    }
    let started = [
        ("pid", std::process::id().to_string()),
        ("version", env!("CARGO_PKG_VERSION").to_owned()),
        ("keeper_pid", hello.keeper.pid.to_string()),
        ("held_runs", held.to_string()),
    ];
    shared.trail.note("server_started", started);
    if let Some(why) = hello.lacks(CapabilityName::UnlimitedMemory) {
        tracing::warn!(why, "the memory of this service has a limit");
    }
}
