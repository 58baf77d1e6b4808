//! The channels of a run's task, and the work that it has started beside itself.

use crate::{
    base::ports::Kernel,
    registry::{Order, Shared},
    run::task::done::Done,
};
use kennel_keeper::client::{Fact, KeeperReport};
use kennel_lifecycle::RunId;
use std::sync::Arc;
use tokio::{sync::mpsc, task::JoinSet};
use tracing::Instrument;

/// Most results queued for the task.
const DONE_QUEUED_MAX: usize = 16;

/// What reaches the task from outside, and from its own work.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) orders: mpsc::Receiver<Box<Order>>,
    pub(super) reports: mpsc::Receiver<Box<KeeperReport>>,
    pub(super) done: mpsc::Receiver<Done>,
    pub(super) done_sender: mpsc::Sender<Done>,
    pub(super) ops: JoinSet<()>,
}

impl Link {
    pub(super) fn of(
        orders: mpsc::Receiver<Box<Order>>,
        reports: mpsc::Receiver<Box<KeeperReport>>,
    ) -> Self {
        let (done_sender, done) = mpsc::channel(DONE_QUEUED_MAX);
        Self {
            orders,
            reports,
            done,
            done_sender,
            ops: JoinSet::new(),
        }
    }

    /// Starts work beside the task, which awaits its end before its own.
    pub(super) fn start<Fut>(
        &mut self,
        shared: &Arc<Shared>,
        run: RunId,
        work: impl FnOnce(Arc<Shared>, RunId, mpsc::Sender<Done>) -> Fut,
    ) where
        Fut: Future<Output = ()> + Send + 'static,
    {
        // Finished work is dropped here, so that a long run does not collect it.
        while self.ops.try_join_next().is_some() {}
        let work = work(Arc::clone(shared), run, self.done_sender.clone());
        // Boxed: a task moves its future several times.
        self.ops.spawn(Box::pin(work).in_current_span());
    }

    /// Acknowledges final reports that come after the end of the task: no task handles them, and the keeper need not
    /// retain them.
    pub(super) async fn acknowledge_last_reports(&mut self, kernel: &dyn Kernel, run: RunId) {
        self.reports.close();
        // Reads the closed queue to its end, with reports that were being sent.
        while let Some(report) = self.reports.recv().await {
            if let Fact::TreeEnded(_) = report.fact {
                kernel.acknowledge(run);
            }
        }
    }

    /// Awaits the remaining work. Its results are not handled any more; senders must not wait for space in the queue.
    pub(super) async fn close(&mut self) {
        self.done.close();
        while self.ops.join_next().await.is_some() {}
    }
}
