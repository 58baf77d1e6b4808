//! Reads of the server itself, and of the processes that call it.

use crate::{
    audit_log::Trail,
    base::{
        blocking::blocking,
        calls::{RunView, ServerInfo},
    },
    registry::{Order, Supervisor},
};
use kennel_keeper::{detached, unreadable};
use kennel_lifecycle::{ApiAccess, RunId, Usage};
use kennel_linux::{
    cgroup,
    peer::{self, Descent, Membership, PeerSeen},
    usage,
};
use std::{
    collections::BTreeMap,
    ffi::OsStr,
    io,
    os::fd::AsFd,
    path::Path,
    sync::{Arc, atomic},
    time::Duration,
};

/// Longest time for the store to answer a ping.
const PING_MAX: Duration = Duration::from_secs(1);

impl Supervisor {
    /// Returns the audit log.
    pub fn audit_log(&self) -> &Trail {
        &self.shared.trail
    }

    /// Returns what a live run of this node has used up to now; absent: it has no control group, or that cannot be read.
    pub async fn usage(&self, view: &RunView) -> Option<Usage> {
        let handle = self.shared.find(view.run)?;
        let group = {
            let live = handle.live.borrow();
            // The control group of an ended attempt is being removed.
            let identity = live.view.identity.as_ref();
            identity.filter(|_| live.is_at_work())?.cgroup.clone()?
        };
        blocking(move || usage::live(&group)).await.ok().flatten()
    }

    /// Describes this server.
    pub async fn info(&self) -> ServerInfo {
        let shared = &self.shared;
        let ping = tokio::time::timeout(PING_MAX, shared.store.ping()).await;
        let mut live = BTreeMap::new();
        for (_, handle) in shared.running() {
            *live.entry(handle.live.borrow().view.state).or_insert(0) += 1;
        }
        ServerInfo {
            node: shared.config.node,
            node_name: shared.config.node_name.clone(),
            generation: shared.store.generation().unwrap_or_default(),
            keeper: shared.hello.clone(),
            keeper_unresponsive: *shared.kernel.unresponsive().borrow(),
            store: shared.store.describe(),
            store_reachable: matches!(ping, Ok(Ok(()))) && !shared.record.has_pending(),
            lease: shared.config.lease,
            fenced_by: shared.store.fenced_by(),
            live,
            started: shared.started,
            runs_max: shared.config.runs_max,
            retention: shared.config.retention,
            rows: shared.config.rows,
            audit_lost: self.shared.trail.lost(),
            unreadable_files: unreadable::count(&shared.config.data_dir) as u64,
            unreadable_records: shared.rows_unread.load(atomic::Ordering::Relaxed) as u64,
            drain: self.drain_status(),
        }
    }

    /// Returns the user and process that connected this socket.
    pub fn peer(&self, socket: &impl AsFd) -> io::Result<PeerSeen> {
        peer::credentials(socket)
    }

    /// Whether the process that connected this socket belongs to a run: then it has no rights here.
    pub fn descent(&self, socket: &impl AsFd) -> Descent {
        // Only live runs count: process ids of ended shims may belong to unrelated processes.
        let live = self.shared.running().into_iter();
        let live = live.filter_map(|(_, handle)| {
            let live = handle.live.borrow();
            let identity = live.view.identity.as_ref()?;
            Some(identity.shim.pid)
        });
        let (config, hello) = (&self.shared.config, &self.shared.hello);
        let members = Members {
            data_dir: &config.data_dir,
            groups: cgroup::base_prefix(config.node),
            keeper: hello.keeper.pid,
            adopts_as_init: hello.adopts_as_init(),
            shims: live.collect(),
        };
        peer::descent(socket, &members)
    }

    /// Returns the run with a token from whose shim the process descends that connected this socket, and its owner.
    /// When the shim dies, the process has no token.
    pub fn run_with_token(&self, socket: &impl AsFd) -> Option<(RunId, Arc<str>)> {
        self.nearest_run(socket, |view| view.spec.api_access != ApiAccess::None)
    }

    /// Adds a Warning to the run, if any, from whose shim the process descends that connected this socket, and that
    /// `is_due` selects. When the shim dies, no run is found.
    pub fn warn_run_of(&self, socket: &impl AsFd, is_due: impl FnOnce(RunId) -> bool, text: &str) {
        let Some((run, _)) = self.nearest_run(socket, |_| true) else {
            return;
        };
        if is_due(run)
            && let Some(handle) = self.shared.find(run)
        {
            handle.send(Order::Warn(text.to_owned()), &self.shared.background);
        }
    }

    fn nearest_run(
        &self,
        socket: &impl AsFd,
        is_meant: impl Fn(&RunView) -> bool,
    ) -> Option<(RunId, Arc<str>)> {
        let mut runs = Vec::new();
        for (run, handle) in self.shared.running() {
            let live = handle.live.borrow();
            let view = &live.view;
            // The pid of an ended attempt may belong to another process by now.
            let is_meant = is_meant(view) && live.is_at_work();
            let identity = view.identity.as_ref().filter(|_| is_meant);
            let shim = identity.map(|identity| identity.shim.pid);
            runs.extend(shim.map(|shim| (shim, (run, Arc::clone(&handle.owner)))));
        }
        if runs.is_empty() {
            return None;
        }
        let shims: Vec<i32> = runs.iter().map(|(shim, _)| *shim).collect();
        let shim = peer::nearest_ancestor(socket, &shims)?;
        runs.into_iter()
            .find(|(of, _)| *of == shim)
            .map(|(_, run)| run)
    }

    /// Returns the run while this attempt of it is at work.
    pub fn at_work(&self, run: RunId, attempt: u32) -> Option<RunView> {
        let handle = self.shared.find(run)?;
        let live = handle.live.borrow();
        let is_meant = live.view.attempt == attempt && live.is_at_work();
        is_meant.then(|| live.view.clone())
    }
}

/// Processes of runs of this data directory, by whichever keeper they were started.
struct Members<'a> {
    data_dir: &'a Path,
    /// Beginning of the names of the control groups of all keepers of this node.
    groups: String,
    /// Process id of the keeper.
    keeper: i32,
    /// Whether a child of process 1 is the keeper's.
    adopts_as_init: bool,
    /// Shims of live runs.
    shims: Vec<i32>,
}

impl Membership for Members<'_> {
    fn has_group(&self, group: &Path) -> bool {
        let mut names = group.iter().filter_map(OsStr::to_str);
        names.any(|name| name.starts_with(&self.groups))
    }

    /// A process whose shim dies is the keeper's child, until that dies. Then its control group shows where it belongs;
    /// without one it is not known any more, and `detached_identity` is missing.
    fn has_ancestor(&self, pid: i32, start_ticks: u64) -> bool {
        // Process 1 is the ancestor of every process: there, only its own children count.
        (pid == self.keeper && pid > 1)
            || self.shims.contains(&pid)
            || detached::has_shim(self.data_dir, pid, start_ticks)
    }

    /// When the keeper dies as process 1, so do all others.
    fn has_orphans_of_init(&self) -> bool {
        self.adopts_as_init
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kennel_lifecycle::NodeId;
    use std::fs;

    // promise: W-11a
    #[test]
    fn cgroup_members_are_recognized_across_restarts() {
        let data = tempfile::tempdir().expect("a directory");
        let members = |keeper| Members {
            data_dir: data.path(),
            groups: cgroup::base_prefix(NodeId::from_u128(1)),
            keeper,
            adopts_as_init: false,
            shims: vec![30],
        };
        let (now, other) = (NodeId::from_u128(1), NodeId::from_u128(2));
        let group = |node| format!("/c/{}EPOCH/run-R-1/below", cgroup::base_prefix(node));
        assert!(members(20).has_group(Path::new(&group(now))));
        assert!(!members(20).has_group(Path::new(&group(other))));
        assert!(!members(20).has_group(Path::new("/c/kennel-keeper")));

        assert!(members(20).has_ancestor(20, 7) && members(20).has_ancestor(30, 7));
        assert!(!members(1).has_ancestor(1, 7), "it is everyone's");
        assert!(!members(20).has_ancestor(40, 7));
        fs::create_dir(data.path().join("detached")).expect("a directory");
        fs::write(data.path().join("detached/40.7"), "").expect("a file");
        assert!(members(20).has_ancestor(40, 7));
        assert!(!members(20).has_ancestor(40, 8), "a later process");
    }
}
