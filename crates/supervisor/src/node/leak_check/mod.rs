//! Leak check: the processes that exist, those that should exist, and what could not be checked. It signals no process
//! and changes nothing.
//!
//! [`kennel_lifecycle::audit`] judges the findings; this module collects them and combines the result.

mod inventory;
mod reap;

pub use reap::{Judged, ReapCall, ReapReport, ReapResult};

use crate::{
    base::{calls::CallError, clock},
    registry::Supervisor,
};
use inventory::Compiled;
pub use inventory::Labels;
use kennel_keeper::{
    audit::{Described, Installation, Unseen},
    client::{KeeperInventory, LeakScan, SocketSeen},
};
use kennel_lifecycle::{
    CgroupIdentity, RunId,
    audit::{self, Evidence, Finding},
};
use std::{collections::HashMap, time::Duration};
use tokio::time::{self, Instant};

/// How long findings that may be transient are checked again: a child that is about to be reaped, a directory that is
/// about to be removed.
const SETTLE: Duration = Duration::from_secs(1);
/// Pause between two such checks.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// Result of a leak check.
#[derive(Clone, Debug)]
pub struct Audit {
    /// Processes that belong to no live run and are linked to this installation, by process id.
    pub findings: Vec<AuditFinding>,
    /// Empty control groups of ended runs.
    pub directories: Vec<(RunId, CgroupIdentity)>,
    /// Number of runs that have a task.
    pub live_runs: u32,
    /// Processes of live runs.
    pub held: u32,
    /// Processes whose marker names no run of this installation.
    pub foreign: u32,
    /// Runs whose row is open and that have no task.
    pub unattended: Vec<RunId>,
    /// Directories of runs that have no row.
    pub unknown_run_dirs: u32,
    /// State of the service itself.
    pub service: ServiceSeen,
    /// Parts that could not be checked. Empty: everything was checked.
    pub unverified: Vec<Unverified>,
    /// Labels of the runs whose labels are known.
    pub labels: HashMap<RunId, Labels>,
}

/// A process that was found.
#[derive(Clone, Debug)]
pub struct AuditFinding {
    /// The finding and its reason.
    pub finding: Finding,
    /// The finding, described in words.
    pub described: Described,
    /// Labels of its run; absent: not known.
    pub labels: Option<Labels>,
}

/// State of the service itself.
#[derive(Clone, Debug)]
pub struct ServiceSeen {
    /// Listening sockets.
    pub sockets: Vec<(String, SocketSeen)>,
    /// Whether the lock of the data directory names the keeper.
    pub lock_is_ours: bool,
    /// Descriptors that the keeper has open; absent: not known.
    pub keeper_fds: Option<u64>,
    /// Descriptors that the server has open; absent: not known.
    pub server_fds: Option<u64>,
    /// Descriptors that each of the two may have open.
    pub fds_max: Option<u64>,
    /// Boot and pid namespace are those in which this service began.
    pub host_is_same: bool,
    /// Time by which the clock is behind the newest record; absent: it is not.
    pub clock_behind: Option<Duration>,
}

/// Something that could not be checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unverified {
    /// The store did not answer: nothing was compared with rows.
    StoreAway(String),
    /// There are more rows than are compared.
    RowsCut,
    /// Number of processes whose environments could not be read, usually because this server's user has no right to.
    Environs(u32),
    /// Number of environments longer than the searched part.
    LongEnvirons(u32),
    /// Number of processes that were not checked: there were too many, or nothing could be read of them.
    Processes(u32),
    /// /proc hides the processes of other users; the mount option.
    ProcHidden(String),
    /// Number of control group directories that could not be read.
    Groups(u32),
    /// Number of run directories beyond those that are checked.
    RunDirs(u32),
}

impl Supervisor {
    /// Looks for everything that may have been left behind. Continues without the store where that is unavailable.
    pub async fn audit(&self) -> Result<Audit, CallError> {
        let shared = &self.shared;
        let before = self.live();
        let installation = Installation {
            node: shared.config.node,
            keeper: shared.hello.keeper.pid,
            cgroup_base: shared.hello.cgroup_base.clone().ok(),
        };
        let data_dir = shared.config.data_dir.clone();
        let look = shared.kernel.audit(installation, data_dir).await?;
        // Compiled after the scan: a run with a process in the scan was live before it, or is still live.
        let compiled = self.compile(&look, before).await;
        let compared = audit::compare(&look.scan.processes, &compiled.inventory);
        let empty = audit::leaked_directories(&look.scan.empty_directories, &compiled.inventory);
        let (findings, directories) = self
            .settle(compared.findings, empty, &compiled.labels)
            .await?;
        let metrics = &shared.config.telemetry.metrics;
        let found = findings.iter().map(|found| &found.finding);
        shared.found.take(found, metrics);
        for run in shared.found.take_escaped(compared.escaped) {
            let live = shared.find(run).map(|handle| handle.live);
            let by = live.and_then(|live| live.borrow().view.held.as_ref().map(|held| held.by));
            metrics.escaped(by);
        }
        Ok(Audit {
            findings,
            directories,
            live_runs: compiled.live,
            held: compared.held,
            foreign: compared.foreign,
            service: self.service_seen(&look, &compiled),
            unverified: unverified(&look, &compiled),
            unattended: compiled.unattended,
            unknown_run_dirs: compiled.unknown_run_dirs,
            labels: compiled.labels,
        })
    }

    /// Checks again, until no finding is left that may be transient or the time for that has passed; retains the
    /// findings that remain.
    async fn settle(
        &self,
        findings: Vec<Finding>,
        mut directories: Vec<(RunId, CgroupIdentity)>,
        labels: &HashMap<RunId, Labels>,
    ) -> Result<(Vec<AuditFinding>, Vec<(RunId, CgroupIdentity)>), CallError> {
        let mut found: Vec<AuditFinding> = Vec::new();
        let mut open = findings;
        let until = Instant::now() + SETTLE;
        while !open.is_empty() || !directories.is_empty() {
            let processes = open.iter().map(|f| f.process).collect();
            let kernel = &self.shared.kernel;
            let again = kernel.look_again(processes, directories).await?;
            let both = open.drain(..).zip(again.processes);
            found = both
                .filter(|(finding, _)| !has_new_work(finding, &again.inventory))
                .filter_map(|(finding, described)| still_there(finding, described?, labels))
                .collect();
            directories = again.directories;
            let passing = found.iter().any(|found| is_passing(&found.finding));
            if (!passing && directories.is_empty()) || Instant::now() >= until {
                break;
            }
            open = found.drain(..).map(|found| found.finding).collect();
            time::sleep(LOOK_AGAIN).await;
        }
        Ok((found, directories))
    }

    fn service_seen(&self, look: &LeakScan, compiled: &Compiled) -> ServiceSeen {
        let newest = compiled.newest.map_or(0, |at| at.0);
        let behind = u64::try_from(newest.saturating_sub(clock::now().0)).unwrap_or(0);
        ServiceSeen {
            sockets: look.inventory.sockets.clone(),
            lock_is_ours: look.belongings.lock_is_ours,
            keeper_fds: look.inventory.fds,
            server_fds: look.belongings.server_fds,
            fds_max: look.belongings.fds_max,
            host_is_same: look.belongings.host.as_ref() == Some(&self.shared.hello.host),
            clock_behind: (behind > 0).then(|| Duration::from_micros(behind)),
        }
    }
}

fn unverified(look: &LeakScan, compiled: &Compiled) -> Vec<Unverified> {
    let Unseen {
        environs,
        long_environs,
        processes,
        proc_hidden,
        groups,
    } = look.scan.unseen.clone();
    let some = |count: u32, what: fn(u32) -> Unverified| (count > 0).then(|| what(count));
    [
        compiled.store_away.clone().map(Unverified::StoreAway),
        compiled.rows_cut.then_some(Unverified::RowsCut),
        some(environs, Unverified::Environs),
        some(long_environs, Unverified::LongEnvirons),
        some(processes, Unverified::Processes),
        proc_hidden.map(Unverified::ProcHidden),
        some(groups, Unverified::Groups),
        some(look.belongings.run_dirs_unlisted, Unverified::RunDirs),
    ]
    .into_iter()
    .flatten()
    .collect()
}

impl Audit {
    fn labels_of(&self, run: RunId) -> Option<&Labels> {
        self.labels.get(&run)
    }
}

fn is_passing(finding: &Finding) -> bool {
    matches!(finding.evidence, Evidence::Zombie | Evidence::Shim)
}

/// Whether the finding is a shim that its run has returned since the first check: it waits for work, or serves another
/// run.
fn has_new_work(finding: &Finding, inventory: &KeeperInventory) -> bool {
    let pid = finding.process.pid;
    let serves_another =
        |(shim, run): &(i32, RunId)| *shim == pid && finding.run.is_some_and(|own| own != *run);
    finding.evidence == Evidence::Shim
        && (inventory.spare_shims.contains(&pid) || inventory.shims.iter().any(serves_another))
}

/// Retains the findings whose processes still exist: one that has exited since only waits for its parent.
fn still_there(
    finding: Finding,
    described: Described,
    labels: &HashMap<RunId, Labels>,
) -> Option<AuditFinding> {
    let ended = matches!(described.state, 'Z' | 'X');
    (!ended || finding.evidence == Evidence::Zombie).then(|| AuditFinding {
        labels: finding.run.and_then(|run| labels.get(&run).cloned()),
        finding,
        described,
    })
}
