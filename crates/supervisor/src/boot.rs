//! How a server begins and how it ends.

use crate::{
    Supervisor, SupervisorConfig, adopt, clock,
    ports::{Kernel, KernelEvents},
    recover,
    tracker::{Order, Shared},
    unfinished,
};
use kennel_lifecycle::{KeeperEpoch, RunId, StopOrder, StopReason, limits, recovery::Seen};
use kennel_linux::{
    client::{ClientError, Fact, HeldRun, KeeperEvent, KeeperHello, KeeperReport},
    crash_point,
};
use kennel_store::{Opening, Store, StoreError};
use std::{
    collections::HashSet,
    io,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};
use tokio::{sync::oneshot, task::JoinHandle};

/// Everything stopped inside the deadline.
pub const EXIT_CLEAN: i32 = 0;
/// Something was still alive at the deadline.
pub const EXIT_FORCED: i32 = 1;
/// The keeper is gone.
pub const EXIT_KEEPER_LOST: i32 = 70;

/// How often the end of all output is looked for after the keeper's death.
const PIPES_POLL: Duration = Duration::from_millis(20);

/// Why a server does not begin.
#[derive(Debug, thiserror::Error)]
pub enum BootError {
    /// The store does not do what a start needs.
    #[error("the store cannot be used")]
    Store(#[source] StoreError),
    /// The keeper cannot be asked.
    #[error("the keeper cannot be asked")]
    Keeper(#[source] ClientError),
    /// The runs of an earlier server cannot be taken in hand.
    #[error("the runs of an earlier server cannot be taken in hand")]
    Adoption(#[source] io::Error),
    /// Another keeper holds runs of this node.
    #[error("keeper {epoch} of this node is still alive as process {pid}")]
    KeeperAlive {
        /// Its name.
        epoch: KeeperEpoch,
        /// Its process.
        pid: i32,
    },
    /// Whether another keeper of this node lives cannot be told.
    #[error("it cannot be told whether keeper {epoch} of this node (process {pid}) is still alive")]
    KeeperUnknown {
        /// Its name.
        epoch: KeeperEpoch,
        /// Its process.
        pid: i32,
    },
}

impl Supervisor {
    /// Takes the node over: makes sure that no other keeper of it lives, raises the generation, goes on with the runs
    /// that the keeper holds, takes every other open row in hand. The second value ends with the exit code when the
    /// server is to go.
    pub async fn boot(
        config: SupervisorConfig,
        kernel: Arc<dyn Kernel>,
        events: impl KernelEvents + 'static,
        hello: KeeperHello,
        held: Vec<HeldRun>,
        store: Arc<dyn Store>,
    ) -> Result<(Self, JoinHandle<i32>), BootError> {
        crash_point!("boot.begun");
        refuse_beside_another(&*store, &*kernel, &config, &hello).await?;
        let opening = Opening {
            node: config.node,
            node_name: config.node_name.clone(),
            keeper_epoch: hello.epoch,
            keeper: hello.keeper,
            host: hello.host.clone(),
            now: clock::now(),
        };
        let generation = store.open_node(&opening).await.map_err(BootError::Store)?;
        crash_point!("boot.node_opened");
        let mut rows = store
            .open_runs(config.node)
            .await
            .map_err(BootError::Store)?;
        let shared = Arc::new(Shared::new(
            config,
            kernel,
            store,
            hello,
            generation,
            clock::now(),
        ));
        let others = held.iter().map(|held| held.run);
        let others = others.chain(rows.iter().map(|row| row.new.run)).collect();
        unfinished::finish_all(&shared, others).await?;
        let adopted = adopt::all(&shared, held, &mut rows).await?;
        crash_point!("boot.adopted");
        let found = recover::take_all(&shared, rows);
        let held = adopted.count;
        tracing::info!(generation, held, found, "node taken over");
        let supervisor = Self { shared };
        let task = supervisor.clone().dispatch(events, adopted.left_alone);
        let ended = tokio::spawn(task);
        Ok((supervisor, ended))
    }

    /// Fires once this server takes no new work: its runs are being ended, and their ends are still told.
    #[must_use]
    pub fn refusing(&self) -> tokio_util::sync::CancellationToken {
        self.shared.refusing.clone()
    }

    /// Fires once this server is about to go: listeners close, streams end.
    #[must_use]
    pub fn draining(&self) -> tokio_util::sync::CancellationToken {
        self.shared.draining.clone()
    }

    /// Brings the keeper's events to the runs; gives the exit code.
    async fn dispatch(self, mut events: impl KernelEvents, left_alone: HashSet<RunId>) -> i32 {
        let mut end: Option<JoinHandle<i32>> = None;
        let code = loop {
            let ended = async {
                match &mut end {
                    Some(end) => end.await,
                    None => std::future::pending().await,
                }
            };
            let event = tokio::select! { biased;
                event = events.recv() => event,
                code = ended => break code.unwrap_or(EXIT_FORCED),
            };
            match event {
                KeeperEvent::Report(report) if left_alone.contains(&report.run) => {}
                KeeperEvent::Report(report) => self.report(report).await,
                KeeperEvent::Shutdown => {
                    if end.is_none() {
                        end = Some(tokio::spawn(self.clone().shut_down()));
                    }
                }
                KeeperEvent::ShutdownNow => {
                    tracing::warn!("asked again to shut down: skipping the graces");
                    self.stop_all(Some(Duration::ZERO)).await;
                    if end.is_none() {
                        end = Some(tokio::spawn(self.clone().shut_down()));
                    }
                }
                KeeperEvent::Gone => break self.keeper_lost().await,
            }
        };
        self.shared.draining.cancel();
        code
    }

    async fn report(&self, report: KeeperReport) {
        let run = report.run;
        let last = matches!(report.fact, Fact::TreeEnded(_));
        let refused = match self.shared.find(run) {
            Some(handle) => handle.reports.send(report).await.is_err(),
            None => true,
        };
        if refused && last {
            // Nobody waits for it any more; the keeper need not keep it.
            self.shared.kernel.acknowledge(run);
        }
    }

    async fn shut_down(self) -> i32 {
        let deadline = clock::instant() + limits::SHUTDOWN_DEADLINE;
        let live = self.stop_all(None).await;
        tracing::info!(live, "shutting down");
        self.shared.tasks.close();
        match tokio::time::timeout_at(deadline, self.shared.tasks.wait()).await {
            Ok(()) => EXIT_CLEAN,
            Err(_) => {
                let left: Vec<String> = self
                    .shared
                    .all()
                    .iter()
                    .map(|(run, _)| run.to_string())
                    .collect();
                tracing::error!(?left, "still not ended at the deadline");
                EXIT_FORCED
            }
        }
    }

    /// Refuses new work and stops what is live, each within its own grace or within `grace`.
    async fn stop_all(&self, grace: Option<Duration>) -> usize {
        self.shared.refusing.cancel();
        let live = self.shared.all();
        for (_, handle) in &live {
            let grace = grace.unwrap_or_else(|| handle.live.borrow().view.grace);
            let order = StopOrder {
                reason: StopReason::ServerShutdown,
                grace,
            };
            let (reply, _) = oneshot::channel();
            // A task that is over has nothing to stop.
            let _ = handle.orders.send(Order::Stop(order, reply)).await;
        }
        live.len()
    }

    /// The shims end the runs now; what they still say is read, then the server goes.
    async fn keeper_lost(&self) -> i32 {
        tracing::error!("the keeper is gone: reading what is left of the output");
        self.shared.refusing.cancel();
        // The sockets are free for the next service; readers go on there, after what they have.
        self.shared.draining.cancel();
        self.shared.keeper_lost.cancel();
        let deadline = clock::instant() + limits::SHUTDOWN_DEADLINE;
        while self.shared.pipes_open.load(Ordering::Relaxed) > 0 && clock::instant() < deadline {
            tokio::time::sleep(PIPES_POLL).await;
        }
        EXIT_KEEPER_LOST
    }
}

/// Rows of a living keeper are not ours: starting beside it would end its runs.
async fn refuse_beside_another(
    store: &dyn Store,
    kernel: &dyn Kernel,
    config: &SupervisorConfig,
    hello: &KeeperHello,
) -> Result<(), BootError> {
    let epochs = store
        .open_epochs(config.node)
        .await
        .map_err(BootError::Store)?;
    for row in epochs
        .into_iter()
        .filter(|row| row.keeper_epoch != hello.epoch)
    {
        let (epoch, pid) = (row.keeper_epoch, row.keeper.pid);
        let seen = kernel
            .keeper_seen(row.keeper, row.host)
            .await
            .map_err(BootError::Keeper)?;
        match seen {
            Seen::Gone => {}
            Seen::Same => return Err(BootError::KeeperAlive { epoch, pid }),
            Seen::Unknown => return Err(BootError::KeeperUnknown { epoch, pid }),
        }
    }
    Ok(())
}
