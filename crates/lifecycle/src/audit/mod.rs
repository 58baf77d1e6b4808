//! What an audit makes of what it has seen: who is part of a live run, who was left behind by one that is over, and how
//! surely that is known.
//!
//! Pure: a census of all processes and the books of keeper and store come in, findings go out. [`reap`] decides which
//! of the findings may be ended.

mod census;
pub mod reap;

pub use census::{GroupSeen, Seen, is_same};

use crate::{CgroupIdentity, HostIdentity, ProcessIdentity, RunId, RunIdentity};
use census::Census;
use std::collections::{BTreeMap, HashMap};

/// How things stand with a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// A task of this server has it in hand.
    Live,
    /// Its row is open, and nobody has it in hand: it is for recovery, or another node's.
    Open,
    /// It is over.
    Ended,
    /// It is over, and by its own orders a part of it was let live.
    Kept,
}

/// What is known of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Known {
    /// How things stand with it.
    pub standing: Standing,
    /// What was recorded of it; absent: nothing, or on another host.
    pub identity: Option<RunIdentity>,
}

/// What keeper and store know.
#[derive(Clone, Debug, Default)]
pub struct Books {
    /// The keeper.
    pub keeper: i32,
    /// The server and the shims without work.
    pub service: Vec<i32>,
    /// The keeper's shims and their runs.
    pub shims: HashMap<i32, RunId>,
    /// Every run that is live, and of the others those that something points to.
    pub runs: HashMap<RunId, Known>,
    /// Whether the store was asked for all that something points to.
    pub rows_compared: bool,
}

/// Why a process is thought to belong to a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Evidence {
    /// It certainly belongs to a run that is over and that was to leave it running: it is no leak.
    Kept,
    /// It is in a control group that was made for the run.
    LeakedCgroup,
    /// It is the shim of a run that is over.
    Shim,
    /// It descends from the shim of a run that is over.
    ShimChild,
    /// It is in the recorded process group or session of the run.
    RecordedGroup,
    /// It carries the run's marker in its environment, which anybody can copy.
    Marker,
    /// It is a child of the keeper, or below one, and nothing leads from it to a run.
    Stray,
    /// It has ended, and the keeper or a shim has not reaped it.
    Zombie,
}

/// How surely.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Certainty {
    /// It cannot be a stranger.
    Proven,
    /// It may be one.
    Hint,
}

/// A process that is part of no live run, and that something leads to from us.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// Which process.
    pub process: ProcessIdentity,
    /// Its parent.
    pub ppid: i32,
    /// The run that it is thought to belong to.
    pub run: Option<RunId>,
    /// How things stand with that run; absent: nothing is known of it.
    pub standing: Option<Standing>,
    /// Why.
    pub evidence: Evidence,
    /// How surely.
    pub certainty: Certainty,
    /// The control group that it was found in, where that is the evidence.
    pub cgroup: Option<CgroupIdentity>,
}

/// What a comparison gives.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Compared {
    /// By process id.
    pub findings: Vec<Finding>,
    /// Processes that belong to live runs.
    pub held: u32,
    /// Those of them who are in neither the process group nor the session of their run's leader, while that lives. They are held
    /// all the same.
    pub escaped: Vec<(ProcessIdentity, RunId)>,
    /// Processes whose marker is of no run of this installation.
    pub foreign: u32,
}

/// One thing that leads from a process to a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Tie {
    run: RunId,
    evidence: Evidence,
    certainty: Certainty,
}

impl Tie {
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

impl Books {
    fn standing(&self, run: RunId) -> Option<Standing> {
        self.runs.get(&run).map(|known| known.standing)
    }

    fn is_over(&self, run: RunId) -> bool {
        !matches!(self.standing(run), Some(Standing::Live | Standing::Open))
    }
}

/// Compares who is there with who should be.
#[must_use]
pub fn compare(seen: &[Seen], books: &Books) -> Compared {
    let census = Census::new(seen);
    let mut ties = direct_ties(&census, books);
    add_groups(&census, books, &mut ties);
    let mut compared = Compared::default();
    for process in census.by_pid.values() {
        judge(process, &census, books, &ties, &mut compared);
    }
    compared
}

type Ties = HashMap<i32, Vec<Tie>>;

/// What can be said of each process by itself: the group that it is in, the shim or the leader that it is.
fn direct_ties(census: &Census, books: &Books) -> Ties {
    let mut ties = Ties::new();
    for process in census.living() {
        let pid = process.identity.pid;
        let mut found = Vec::new();
        if let Some(run) = books.shims.get(&pid) {
            found.push(Tie::proven(*run, Evidence::Shim));
        }
        if let Some(group) = &process.cgroup {
            found.push(Tie {
                run: group.run,
                evidence: Evidence::LeakedCgroup,
                certainty: certainty_of(group, books),
            });
        }
        if !found.is_empty() {
            ties.insert(pid, found);
        }
    }
    for (run, identity) in recorded(books) {
        let mut add = |recorded: &ProcessIdentity, evidence| {
            if census.living_same(recorded) {
                let tie = Tie::proven(run, evidence);
                ties.entry(recorded.pid).or_default().push(tie);
            }
        };
        add(&identity.shim, Evidence::Shim);
        add(&identity.command, Evidence::RecordedGroup);
    }
    ties
}

fn recorded(books: &Books) -> impl Iterator<Item = (RunId, &RunIdentity)> {
    let runs = books.runs.iter();
    runs.filter_map(|(run, known)| Some((*run, known.identity.as_ref()?)))
}

/// A directory is the run's if it is the recorded one, or if nobody but this keeper can have made it. One that stands
/// where the recorded one stood is not.
fn certainty_of(group: &GroupSeen, books: &Books) -> Certainty {
    let known = books.runs.get(&group.run);
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

/// Process group and session of a leader have its number. While the leader is there, or anybody else who is certainly
/// of the run, the number is taken, and all who have it are of the run.
fn add_groups(census: &Census, books: &Books, ties: &mut Ties) {
    let mut found = Vec::new();
    for (run, identity) in recorded(books) {
        let leader = &identity.command;
        let members = census.of_number(leader.pid);
        if members.is_empty() || census.is_taken_by_another(leader) {
            continue;
        }
        let of_the_run = |process: &&&Seen| {
            let ties = ties.get(&process.identity.pid);
            ties.is_some_and(|ties| ties.iter().any(|tie| tie.run == run && tie.is_proven()))
        };
        let held = census.same(leader) || members.iter().any(|process| of_the_run(&process));
        for process in members {
            if process.identity.start_ticks < leader.start_ticks {
                continue;
            }
            // The rule of recovery: its session and its marker agree.
            let marked = process.identity.sid == leader.pid && process.marker == Some(run);
            let certainty = if held || marked {
                Certainty::Proven
            } else {
                Certainty::Hint
            };
            let tie = Tie {
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

/// What all ties of one process come to.
fn judge(process: &Seen, census: &Census, books: &Books, ties: &Ties, compared: &mut Compared) {
    let pid = process.identity.pid;
    if pid == books.keeper || books.service.contains(&pid) {
        return;
    }
    if process.has_ended {
        compared.findings.extend(unreaped(process, books, ties));
        return;
    }
    let (inherited, below_keeper) = descent(process, census, books, ties);
    let own = ties.get(&pid).into_iter().flatten().copied();
    let all: Vec<Tie> = own.chain(inherited).collect();
    let proven = || all.iter().filter(|tie| tie.is_proven());
    // Whatever else leads to it: who is part of a live run is not left behind.
    if let Some(tie) = proven().find(|tie| !books.is_over(tie.run)) {
        compared.held += 1;
        if has_escaped(process, tie.run, census, books) {
            compared.escaped.push((process.identity, tie.run));
        }
        return;
    }
    // The keeper takes such a child for the run's own once the shim is lost.
    let marked_live = process.marker.filter(|run| !books.is_over(*run));
    if below_keeper && marked_live.is_some() {
        compared.held += 1;
        return;
    }
    let strongest = proven()
        .chain(all.iter())
        .min_by_key(|tie| (tie.certainty, tie.evidence));
    if strongest.is_some_and(|tie| reaps_the_kept(process, tie, census, books)) {
        return;
    }
    let finding = match strongest {
        Some(tie) => Some(*tie),
        None => process.marker.and_then(|run| marked(process, run, books)),
    };
    match finding {
        Some(tie) => compared.findings.push(about(process, Some(tie), books)),
        None if below_keeper => compared.findings.push(about(process, None, books)),
        None if process.marker.is_some() => compared.foreign += 1,
        None => {}
    }
}

/// Whether a signal to the group of its run's leader would miss it, and no terminal of that session would end it. Without a
/// leader there is nothing to compare with.
fn has_escaped(process: &Seen, run: RunId, census: &Census, books: &Books) -> bool {
    let known = books.runs.get(&run);
    let identity = known.and_then(|known| known.identity.as_ref());
    let Some(identity) = identity.filter(|identity| census.living_same(&identity.command)) else {
        return false;
    };
    let ProcessIdentity { pid, pgid, sid, .. } = process.identity;
    let leader = identity.command.pid;
    // The shim is ours, and so is the first process of a private pid namespace: the leader's parent.
    let leads = census.by_pid.get(&leader);
    let is_ours = pid == identity.shim.pid || leads.is_some_and(|leader| leader.ppid == pid);
    // Zero stands for a number of another pid namespace.
    !is_ours
        && [pgid, sid]
            .iter()
            .all(|number| ![0, leader].contains(number))
}

/// The shim of a run that keeps somebody is there to reap them, and ends after the last.
fn reaps_the_kept(process: &Seen, tie: &Tie, census: &Census, books: &Books) -> bool {
    tie.evidence == Evidence::Shim
        && books.standing(tie.run) == Some(Standing::Kept)
        && census
            .living()
            .any(|child| child.ppid == process.identity.pid)
}

/// A marker alone. Nobody who is older than the run's leader can have it from there.
fn marked(process: &Seen, run: RunId, books: &Books) -> Option<Tie> {
    let tie = Tie {
        run,
        evidence: Evidence::Marker,
        certainty: Certainty::Hint,
    };
    let Some(known) = books.runs.get(&run) else {
        return (!books.rows_compared).then_some(tie);
    };
    let leader = known.identity.as_ref().map(|identity| &identity.command);
    let older = leader.is_some_and(|l| process.identity.start_ticks < l.start_ticks);
    (!older).then_some(tie)
}

/// The tie of the nearest ancestor that certainly is of a run, and whether the keeper is an ancestor.
fn descent(process: &Seen, census: &Census, books: &Books, ties: &Ties) -> (Option<Tie>, bool) {
    let mut nearest = None;
    for ancestor in census.ancestors(process) {
        if ancestor == books.keeper {
            return (nearest, true);
        }
        let proven = ties.get(&ancestor).into_iter().flatten();
        let tie = proven
            .filter(|tie| tie.is_proven())
            .min_by_key(|tie| tie.evidence);
        nearest = nearest.or_else(|| {
            tie.map(|tie| match tie.evidence {
                Evidence::Shim => Tie::proven(tie.run, Evidence::ShimChild),
                _ => *tie,
            })
        });
    }
    (nearest, false)
}

/// Ended children of the keeper, and of the shims of runs that are over. Other parents reap when they like.
fn unreaped(process: &Seen, books: &Books, ties: &Ties) -> Option<Finding> {
    let of_shim = ties.get(&process.ppid).into_iter().flatten();
    let shim = of_shim
        .filter(|tie| tie.evidence == Evidence::Shim && books.is_over(tie.run))
        .map(|tie| tie.run)
        .next();
    if process.ppid != books.keeper && shim.is_none() {
        return None;
    }
    let tie = shim.map(|run| Tie::proven(run, Evidence::Zombie));
    let mut finding = about(process, tie, books);
    finding.evidence = Evidence::Zombie;
    Some(finding)
}

fn about(process: &Seen, tie: Option<Tie>, books: &Books) -> Finding {
    let in_group = tie.is_some_and(|tie| tie.evidence == Evidence::LeakedCgroup);
    let group = process.cgroup.as_ref().filter(|_| in_group);
    let standing = tie.and_then(|tie| books.standing(tie.run));
    let evidence = tie.map_or(Evidence::Stray, |tie| tie.evidence);
    let kept = standing == Some(Standing::Kept)
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

/// Directories of control groups that nobody is in and whose runs are over.
#[must_use]
pub fn leaked_directories(
    empty: &[(RunId, CgroupIdentity)],
    books: &Books,
) -> Vec<(RunId, CgroupIdentity)> {
    let over = empty.iter().filter(|(run, _)| books.is_over(*run));
    over.cloned().collect()
}

/// Recorded numbers mean something only on the host that they were recorded on.
#[must_use]
pub fn on_this_host(identity: Option<RunIdentity>, host: &HostIdentity) -> Option<RunIdentity> {
    identity.filter(|identity| identity.host.is_same_as(host))
}

/// How many findings there are of each kind of evidence.
#[must_use]
pub fn counts(findings: &[Finding]) -> BTreeMap<Evidence, u32> {
    let mut counts = BTreeMap::new();
    for finding in findings {
        *counts.entry(finding.evidence).or_insert(0) += 1;
    }
    counts
}
