//! An audit: who is there, who should be, and what could not be looked at. Signals nobody and changes nothing.
//!
//! What is made of it is decided in [`kennel_lifecycle::audit`]; here it is asked and put together.

mod inventory;
mod reap;

pub use reap::{Judged, ReapCall, ReapReport, ReapResult};

use crate::{
    base::{calls::CallError, clock, faults::keeper_fault},
    registry::Supervisor,
};
use inventory::Compiled;
pub use inventory::Labels;
use kennel_keeper::{
    audit::{Described, Unseen, Whose},
    client::{Books, Look, SocketSeen},
};
use kennel_lifecycle::{
    CgroupIdentity, RunId,
    audit::{self, Evidence, Finding},
};
use std::{collections::HashMap, time::Duration};
use tokio::time::{self, Instant};

/// How long what may only be on its way out is looked at again: a child that is about to be reaped, a directory that is
/// about to be removed.
const SETTLE: Duration = Duration::from_secs(1);
/// Between two such looks.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// What an audit gives.
#[derive(Clone, Debug)]
pub struct Audit {
    /// Processes that are part of no live run and that something leads to from us, by process id.
    pub findings: Vec<AuditFinding>,
    /// Control groups of runs that are over, with nobody in them.
    pub directories: Vec<(RunId, CgroupIdentity)>,
    /// Runs that are in hand.
    pub live_runs: u32,
    /// Processes of live runs.
    pub held: u32,
    /// Processes whose marker is of no run of this installation.
    pub foreign: u32,
    /// Runs whose row is open and that nobody has in hand.
    pub unattended: Vec<RunId>,
    /// Directories of runs that have no row.
    pub unknown_run_dirs: u32,
    /// The service itself.
    pub service: ServiceSeen,
    /// What could not be looked at. Empty: everything was.
    pub unverified: Vec<Unverified>,
    /// Who is known to have which labels.
    pub labels: HashMap<RunId, Labels>,
}

/// A process that was found.
#[derive(Clone, Debug)]
pub struct AuditFinding {
    /// Which, and why.
    pub finding: Finding,
    /// The same in words.
    pub described: Described,
    /// Labels of its run; absent: not known.
    pub labels: Option<Labels>,
}

/// How the service itself was found.
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
    /// How far the clock is behind the newest record; absent: it is not.
    pub clock_behind: Option<Duration>,
}

/// Something that could not be looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unverified {
    /// The store did not answer: nothing was compared with rows.
    StoreAway(String),
    /// There are more rows than are compared.
    RowsCut,
    /// Environments of so many processes could not be read, as a rule since this server's user may not.
    Environs(u32),
    /// So many environments are longer than what is searched.
    LongEnvirons(u32),
    /// So many processes were not looked at: more than there is room for, or nothing could be read of them.
    Processes(u32),
    /// /proc hides the processes of other users: its mount option.
    ProcHidden(String),
    /// So many directories of control groups could not be read.
    Groups(u32),
    /// So many directories of runs more than are looked at.
    RunDirs(u32),
}

impl Supervisor {
    /// Looks for everything that may have been left behind. Goes on without the store where that is away.
    pub async fn audit(&self) -> Result<Audit, CallError> {
        let shared = &self.shared;
        let before = self.live();
        let whose = Whose {
            node: shared.config.node,
            keeper: shared.hello.keeper.pid,
            cgroup_base: shared.hello.cgroup_base.clone().ok(),
        };
        let looking = shared.kernel.audit(whose, shared.config.data_dir.clone());
        let look = looking.await.map_err(|e| keeper_fault(&e))?;
        // After the scan: whoever was seen in it was live then, or is still there now.
        let compiled = self.compile(&look, before).await;
        let compared = audit::compare(&look.scan.processes, &compiled.books);
        let empty = audit::leaked_directories(&look.scan.empty_directories, &compiled.books);
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

    /// Looks again, until nothing is there that may only be on its way out or the time for that is over; keeps what is
    /// still there.
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
            let looking = self.shared.kernel.look_again(processes, directories);
            let again = looking.await.map_err(|e| keeper_fault(&e))?;
            let both = open.drain(..).zip(again.processes);
            found = both
                .filter(|(finding, _)| !has_new_work(finding, &again.books))
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

    fn service_seen(&self, look: &Look, compiled: &Compiled) -> ServiceSeen {
        let newest = compiled.newest.map_or(0, |at| at.0);
        let behind = u64::try_from(newest.saturating_sub(clock::now().0)).unwrap_or(0);
        ServiceSeen {
            sockets: look.books.sockets.clone(),
            lock_is_ours: look.belongings.lock_is_ours,
            keeper_fds: look.books.fds,
            server_fds: look.belongings.server_fds,
            fds_max: look.belongings.fds_max,
            host_is_same: look.belongings.host.as_ref() == Some(&self.shared.hello.host),
            clock_behind: (behind > 0).then(|| Duration::from_micros(behind)),
        }
    }
}

fn unverified(look: &Look, compiled: &Compiled) -> Vec<Unverified> {
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

/// Whether it is a shim that its run has given back since the first look: it waits for work, or serves another run.
fn has_new_work(finding: &Finding, books: &Books) -> bool {
    let pid = finding.process.pid;
    let serves_another =
        |(shim, run): &(i32, RunId)| *shim == pid && finding.run.is_some_and(|own| own != *run);
    finding.evidence == Evidence::Shim
        && (books.spare_shims.contains(&pid) || books.shims.iter().any(serves_another))
}

/// Who has ended since takes no more than its parent's wait.
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
