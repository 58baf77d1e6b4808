//! Successive servers.

use super::{DataDir, Nature, Stage, World, call};
use kennel_lifecycle::RunId;
use nix::sys::{
    resource::{Resource, getrlimit, setrlimit},
    signal::SigSet,
};
use std::{collections::HashMap, sync::Arc};

/// The run of these lives.
pub(crate) fn run_id() -> RunId {
    RunId::from_u128(7)
}

/// State that outlives a server; each life of it is a runtime of its own.
pub(crate) struct Lives {
    pub(crate) world: Arc<World>,
    pub(crate) data_dir: Arc<DataDir>,
}

impl Lives {
    pub(crate) fn of(nature: Nature) -> Self {
        let (world, _) = World::new(nature, Vec::new(), HashMap::new());
        let data_dir = Arc::new(DataDir::new());
        Self { world, data_dir }
    }

    /// Runs a server from its start until `life` is over; then it is gone in the middle of its work.
    pub(crate) fn live<T>(&self, life: impl AsyncFnOnce(&Stage) -> T) -> T {
        take_refusals_as_errors();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(async {
            let (held, tidings) = self.world.hand_over();
            let (kernel, store) = (Arc::clone(&self.world), Arc::clone(&self.world.store));
            let (world, data_dir) = (Arc::clone(&self.world), Arc::clone(&self.data_dir));
            let stage = Stage::after(world, kernel, tidings, store, held, data_dir).await;
            life(&stage.unwrap()).await
        })
    }

    /// Runs it on a clock that runs ahead when there is no work.
    pub(crate) fn live_long<T>(&self, life: impl AsyncFnOnce(&Stage) -> T) -> T {
        self.live(async |stage| {
            tokio::time::pause();
            life(stage).await
        })
    }

    /// Ends the keeper, and all processes with it.
    pub(crate) fn keeper_dies(&self) {
        for child in self.world.state.lock().unwrap().children.values_mut() {
            child.alive = false;
            child.acknowledged = true;
        }
    }

    /// Runs a life in which the run is spawned.
    pub(crate) fn begin(&self) {
        self.live(async |stage| {
            stage.supervisor.spawn(call(Some(run_id()))).await.unwrap();
        });
    }
}

/// Limits the size of files until the soft limit is raised again: to a writer, a full disk.
pub(crate) fn fill_disk(at: u64) {
    let (_, most) = getrlimit(Resource::RLIMIT_FSIZE).unwrap();
    take_refusals_as_errors();
    setrlimit(Resource::RLIMIT_FSIZE, at, most).unwrap();
}

pub(crate) fn make_room_on_disk() {
    let (_, most) = getrlimit(Resource::RLIMIT_FSIZE).unwrap();
    setrlimit(Resource::RLIMIT_FSIZE, most, most).unwrap();
}

/// Selects, of the kernel's two ways to refuse a write, the error (setrlimit(2): EFBIG); for this thread and those that
/// it makes.
pub(crate) fn take_refusals_as_errors() {
    let mut signals = SigSet::empty();
    signals.add(nix::sys::signal::Signal::SIGXFSZ);
    signals.thread_block().unwrap();
}
