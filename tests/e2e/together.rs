//! Several scenes on one service that share what happens to it: the death of its server, a shutdown. Each scene begins
//! its run, waits for the event, and then checks its run.

use kennel_tests::{Client, Kennel};
use tokio::sync::{Barrier, RwLock, RwLockReadGuard};

/// A service and the number of its scenes.
pub(crate) struct Together {
    kennel: RwLock<Kennel>,
    all: Barrier,
}

impl Together {
    pub(crate) fn new(kennel: Kennel, scenes: usize) -> Self {
        Self {
            kennel: RwLock::new(kennel),
            // The test itself joins the barrier.
            all: Barrier::new(scenes + 1),
        }
    }

    /// Returns the service. No scene has it while it waits for an event.
    pub(crate) async fn kennel(&self) -> RwLockReadGuard<'_, Kennel> {
        self.kennel.read().await
    }

    pub(crate) async fn client(&self) -> Client {
        self.kennel().await.client().await
    }

    /// Returns the service, after all scenes.
    pub(crate) fn into_kennel(self) -> Kennel {
        self.kennel.into_inner()
    }

    /// Called by each scene: waits until all scenes are here, and then until the event is over.
    pub(crate) async fn event(&self) {
        self.all.wait().await;
        self.all.wait().await;
    }

    /// Called by the test: lets the event happen when all scenes wait for it.
    pub(crate) async fn happens(&self, event: impl AsyncFnOnce(&mut Kennel)) {
        self.all.wait().await;
        event(&mut *self.kennel.write().await).await;
        self.all.wait().await;
    }
}
