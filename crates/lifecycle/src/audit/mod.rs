//! The leak check's comparison: which processes belong to a live run, which were left behind by an ended one, and how
//! surely that is known.
//!
//! Pure: a census of all processes and the inventory of keeper and store come in, findings go out. [`reap`] decides
//! which of the findings may be terminated.

mod census;
pub mod reap;

pub use census::{GroupSeen, ScannedProcess, is_same};

use crate::{CgroupIdentity, HostIdentity, ProcessIdentity, RunId, RunIdentity, names::named};
use census::Census;
use std::collections::{BTreeMap, HashMap};

/// Status of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunStatus {
    /// A task of this server supervises it.
    Live,
    /// Its row is open and no task supervises it: recovery adopts it, or it is another node's.
    Open,
    /// The run has ended.
    Ended,
    /// The run has ended, and its policy detached some of its processes.
    Kept,
}

/// Known facts of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KnownRun {
    /// Status of the run.
    pub standing: RunStatus,
    /// Recorded identity; absent: none was recorded, or on another host.
    pub identity: Option<RunIdentity>,
}

/// Inventory of keeper and store.
#[derive(Clone, Debug, Default)]
pub struct HostInventory {
    /// Process id of the keeper.
    pub keeper: i32,
    /// Process ids of the server and of the shims without work.
    pub service: Vec<i32>,
    /// Process ids of the keeper's shims, with their runs.
    pub shims: HashMap<i32, RunId>,
    /// Every live run, and of the others those that a process points to.
    pub runs: HashMap<RunId, KnownRun>,
    /// Whether the store was queried for all runs that a process points to.
    pub rows_compared: bool,
}

named! {
    /// Evidence that a process belongs to a run.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
    pub enum Evidence {
        /// The process is a verified member of an ended run that was to leave it running: it is no leak.
        Kept = "kept",
        /// The process is in a control group that was made for the run.
        LeakedCgroup = "leaked_cgroup",
        /// The process is the shim of an ended run.
        Shim = "shim",
        /// The process descends from the shim of an ended run.
        ShimChild = "shim_child",
        /// The process is in the recorded process group or session of the run.
        RecordedGroup = "recorded_group",
        /// The process carries the run's marker in its environment, which any process can copy.
        Marker = "marker",
        /// The process is a child of the keeper, or below one, and nothing leads from it to a run.
        Stray = "stray",
        /// The process has exited, and the keeper or a shim has not reaped it.
        Zombie = "zombie",
    }
}

/// Strength of the evidence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Certainty {
    /// The process cannot be an unrelated one.
    Proven,
    /// The process may be an unrelated one.
    Hint,
}

/// A process that belongs to no live run, and that evidence connects with Kennel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// Identity of the process.
    pub process: ProcessIdentity,
    /// Process id of its parent.
    pub ppid: i32,
    /// The run that it is assumed to belong to.
    pub run: Option<RunId>,
    /// Status of that run; absent: nothing is known of it.
    pub standing: Option<RunStatus>,
    /// Evidence for that.
    pub evidence: Evidence,
    /// Strength of the evidence.
    pub certainty: Certainty,
    /// The control group that it was found in, where that is the evidence.
    pub cgroup: Option<CgroupIdentity>,
}

/// Result of a comparison.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Compared {
    /// Findings, by process id.
    pub findings: Vec<Finding>,
    /// Number of processes that belong to live runs.
    pub held: u32,
    /// Those of them outside the process group and session of their run's leader, while that lives. They are contained
    /// all the same.
    pub escaped: Vec<(ProcessIdentity, RunId)>,
    /// Number of processes whose marker is of no run of this installation.
    pub foreign: u32,
}

/// One piece of evidence that connects a process with a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct RunEvidence {
    run: RunId,
    evidence: Evidence,
    certainty: Certainty,
}

impl RunEvidence {
    fn proven(run: RunId, evidence: Evidence) -> Self {
        Self {
            run,
            evidence,
            certainty: Certainty::Proven,
        }
    }

    fn is_proven(&self) -> bool {
        self.certainty == Certainty::Proven
    }
}

impl HostInventory {
    fn standing(&self, run: RunId) -> Option<RunStatus> {
        self.runs.get(&run).map(|known| known.standing)
    }

    fn is_over(&self, run: RunId) -> bool {
        !matches!(self.standing(run), Some(RunStatus::Live | RunStatus::Open))
    }
}

/// Compares the processes that exist with those that should.
pub fn compare(seen: &[ScannedProcess], inventory: &HostInventory) -> Compared {
    let census = Census::new(seen);
    let mut ties = direct_evidence(&census, inventory);
    add_groups(&census, inventory, &mut ties);
    let mut compared = Compared::default();
    for process in census.by_pid.values() {
        judge(process, &census, inventory, &ties, &mut compared);
    }
    compared
}

type EvidenceByPid = HashMap<i32, Vec<RunEvidence>>;

/// Collects the evidence of each process by itself: its control group, or that it is a shim or a leader.
fn direct_evidence(census: &Census, inventory: &HostInventory) -> EvidenceByPid {
    let mut ties = EvidenceByPid::new();
    for process in census.living() {
        let pid = process.identity.pid;
        let mut found = Vec::new();
        if let Some(run) = inventory.shims.get(&pid) {
            found.push(RunEvidence::proven(*run, Evidence::Shim));
        }
        if let Some(group) = &process.cgroup {
            found.push(RunEvidence {
                run: group.run,
                evidence: Evidence::LeakedCgroup,
                certainty: certainty_of(group, inventory),
            });
        }
        if !found.is_empty() {
            ties.insert(pid, found);
        }
    }
    for (run, identity) in recorded(inventory) {
        let mut add = |recorded: &ProcessIdentity, evidence| {
            if census.living_same(recorded) {
                let tie = RunEvidence::proven(run, evidence);
                ties.entry(recorded.pid).or_default().push(tie);
            }
        };
        add(&identity.shim, Evidence::Shim);
        add(&identity.command, Evidence::RecordedGroup);
    }
    ties
}

fn recorded(inventory: &HostInventory) -> impl Iterator<Item = (RunId, &RunIdentity)> {
    let runs = inventory.runs.iter();
    runs.filter_map(|(run, known)| Some((*run, known.identity.as_ref()?)))
}

/// A directory is the run's if it is the recorded one, or if only this keeper can have made it. A directory made anew
/// at the recorded path is not.
fn certainty_of(group: &GroupSeen, inventory: &HostInventory) -> Certainty {
    let known = inventory.runs.get(&group.run);
    let recorded = known.and_then(|known| known.identity.as_ref()?.cgroup.as_ref());
    let same = match recorded {
        Some(recorded) if recorded.path == group.identity.path => {
            recorded.inode == group.identity.inode
        }
        _ => group.of_this_keeper,
    };
    if same {
        Certainty::Proven
    } else {
        Certainty::Hint
    }
}

/// Process group and session of a leader have its number. While the leader or another verified member of the run is
/// there, the number is taken, and all processes that have it are of the run.
fn add_groups(census: &Census, inventory: &HostInventory, ties: &mut EvidenceByPid) {
    let mut found = Vec::new();
    for (run, identity) in recorded(inventory) {
        let leader = &identity.command;
        let members = census.of_number(leader.pid);
        if members.is_empty() || census.is_taken_by_another(leader) {
            continue;
        }
        let of_the_run = |process: &&&ScannedProcess| {
            let ties = ties.get(&process.identity.pid);
            ties.is_some_and(|ties| ties.iter().any(|tie| tie.run == run && tie.is_proven()))
        };
        let held = census.same(leader) || members.iter().any(|process| of_the_run(&process));
        for process in members {
            if process.identity.start_ticks < leader.start_ticks {
                continue;
            }
            // As in recovery, session and marker must agree.
            let marked = process.identity.sid == leader.pid && process.marker == Some(run);
            let certainty = if held || marked {
                Certainty::Proven
            } else {
                Certainty::Hint
            };
            let tie = RunEvidence {
                run,
                evidence: Evidence::RecordedGroup,
                certainty,
            };
            found.push((process.identity.pid, tie));
        }
    }
    for (pid, tie) in found {
        ties.entry(pid).or_default().push(tie);
    }
}

/// Judges one process by all its evidence.
fn judge(
    process: &ScannedProcess,
    census: &Census,
    inventory: &HostInventory,
    ties: &EvidenceByPid,
    compared: &mut Compared,
) {
    let pid = process.identity.pid;
    if pid == inventory.keeper || inventory.service.contains(&pid) {
        return;
    }
    if process.has_ended {
        compared.findings.extend(unreaped(process, inventory, ties));
        return;
    }
    let (inherited, below_keeper) = descent(process, census, inventory, ties);
    let own = ties.get(&pid).into_iter().flatten().copied();
    let all: Vec<RunEvidence> = own.chain(inherited).collect();
    let proven = || all.iter().filter(|tie| tie.is_proven());
    // A process of a live run is not a leak, whatever else its evidence says.
    if let Some(tie) = proven().find(|tie| !inventory.is_over(tie.run)) {
        compared.held += 1;
        if has_escaped(process, tie.run, census, inventory) {
            compared.escaped.push((process.identity, tie.run));
        }
        return;
    }
    // Once the shim is lost, the keeper counts such a child as the run's.
    let marked_live = process.marker.filter(|run| !inventory.is_over(*run));
    if below_keeper && marked_live.is_some() {
        compared.held += 1;
        return;
    }
    let strongest = proven()
        .chain(all.iter())
        .min_by_key(|tie| (tie.certainty, tie.evidence));
    if strongest.is_some_and(|tie| reaps_the_kept(process, tie, census, inventory)) {
        return;
    }
    let finding = match strongest {
        Some(tie) => Some(*tie),
        None => process
            .marker
            .and_then(|run| marked(process, run, inventory)),
    };
    match finding {
        Some(tie) => compared.findings.push(about(process, Some(tie), inventory)),
        None if below_keeper => compared.findings.push(about(process, None, inventory)),
        None if process.marker.is_some() => compared.foreign += 1,
        None => {}
    }
}

/// Whether a signal to the group of its run's leader would miss it, and no terminal of that session would end it. Without a
/// leader there is nothing to compare with.
fn has_escaped(
    process: &ScannedProcess,
    run: RunId,
    census: &Census,
    inventory: &HostInventory,
) -> bool {
    let known = inventory.runs.get(&run);
    let identity = known.and_then(|known| known.identity.as_ref());
    let Some(identity) = identity.filter(|identity| census.living_same(&identity.command)) else {
        return false;
    };
    let ProcessIdentity { pid, pgid, sid, .. } = process.identity;
    let leader = identity.command.pid;
    // The shim is Kennel's, and so is the first process of a private pid namespace: the leader's parent.
    let leads = census.by_pid.get(&leader);
    let is_ours = pid == identity.shim.pid || leads.is_some_and(|leader| leader.ppid == pid);
    // Zero stands for a number of another pid namespace.
    !is_ours
        && [pgid, sid]
            .iter()
            .all(|number| ![0, leader].contains(number))
}

/// Whether this is the shim of a run with detached processes: it stays to reap them, and exits after the last.
fn reaps_the_kept(
    process: &ScannedProcess,
    tie: &RunEvidence,
    census: &Census,
    inventory: &HostInventory,
) -> bool {
    tie.evidence == Evidence::Shim
        && inventory.standing(tie.run) == Some(RunStatus::Kept)
        && census
            .living()
            .any(|child| child.ppid == process.identity.pid)
}

/// Returns the evidence of a marker alone. A process older than the run's leader cannot have it from there.
fn marked(process: &ScannedProcess, run: RunId, inventory: &HostInventory) -> Option<RunEvidence> {
    let tie = RunEvidence {
        run,
        evidence: Evidence::Marker,
        certainty: Certainty::Hint,
    };
    let Some(known) = inventory.runs.get(&run) else {
        return (!inventory.rows_compared).then_some(tie);
    };
    let leader = known.identity.as_ref().map(|identity| &identity.command);
    let older = leader.is_some_and(|l| process.identity.start_ticks < l.start_ticks);
    (!older).then_some(tie)
}

/// Returns the evidence of the nearest ancestor that is verified to be of a run, and whether the keeper is an ancestor.
/// A process whose ancestors of a run have died has only the latter, while the keeper lives.
fn descent(
    process: &ScannedProcess,
    census: &Census,
    inventory: &HostInventory,
    ties: &EvidenceByPid,
) -> (Option<RunEvidence>, bool) {
    let mut nearest = None;
    for ancestor in census.ancestors(process) {
        if ancestor == inventory.keeper {
            return (nearest, true);
        }
        let proven = ties.get(&ancestor).into_iter().flatten();
        let tie = proven
            .filter(|tie| tie.is_proven())
            .min_by_key(|tie| tie.evidence);
        nearest = nearest.or_else(|| {
            tie.map(|tie| match tie.evidence {
                Evidence::Shim => RunEvidence::proven(tie.run, Evidence::ShimChild),
                _ => *tie,
            })
        });
    }
    (nearest, false)
}

/// Finds exited children of the keeper, and of the shims of ended runs. Other parents reap when they like.
fn unreaped(
    process: &ScannedProcess,
    inventory: &HostInventory,
    ties: &EvidenceByPid,
) -> Option<Finding> {
    let of_shim = ties.get(&process.ppid).into_iter().flatten();
    let shim = of_shim
        .filter(|tie| tie.evidence == Evidence::Shim && inventory.is_over(tie.run))
        .map(|tie| tie.run)
        .next();
    if process.ppid != inventory.keeper && shim.is_none() {
        return None;
    }
    let tie = shim.map(|run| RunEvidence::proven(run, Evidence::Zombie));
    let mut finding = about(process, tie, inventory);
    finding.evidence = Evidence::Zombie;
    Some(finding)
}

fn about(process: &ScannedProcess, tie: Option<RunEvidence>, inventory: &HostInventory) -> Finding {
    let in_group = tie.is_some_and(|tie| tie.evidence == Evidence::LeakedCgroup);
    let group = process.cgroup.as_ref().filter(|_| in_group);
    let standing = tie.and_then(|tie| inventory.standing(tie.run));
    let evidence = tie.map_or(Evidence::Stray, |tie| tie.evidence);
    let kept = standing == Some(RunStatus::Kept)
        && evidence != Evidence::Shim
        && tie.is_some_and(|tie| tie.is_proven());
    Finding {
        cgroup: group.map(|group| group.identity.clone()),
        process: process.identity,
        ppid: process.ppid,
        run: tie.map(|tie| tie.run),
        standing,
        evidence: if kept { Evidence::Kept } else { evidence },
        certainty: tie.map_or(Certainty::Hint, |tie| tie.certainty),
    }
}

/// Returns empty control group directories whose runs have ended.
pub fn leaked_directories(
    empty: &[(RunId, CgroupIdentity)],
    inventory: &HostInventory,
) -> Vec<(RunId, CgroupIdentity)> {
    let over = empty.iter().filter(|(run, _)| inventory.is_over(*run));
    over.cloned().collect()
}

/// Drops an identity of another host: recorded numbers are valid only on the host that recorded them.
pub fn on_this_host(identity: Option<RunIdentity>, host: &HostIdentity) -> Option<RunIdentity> {
    identity.filter(|identity| identity.host.is_same_as(host))
}

/// Returns the number of findings of each kind of evidence.
pub fn counts(findings: &[Finding]) -> BTreeMap<Evidence, u32> {
    let mut counts = BTreeMap::new();
    for finding in findings {
        *counts.entry(finding.evidence).or_insert(0) += 1;
    }
    counts
}
