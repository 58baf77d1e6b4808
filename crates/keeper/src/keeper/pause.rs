//! Stops every task of a tree, verifies that all have stopped, and remembers the processes to continue. A tree may have
//! thousands of processes, so they are looked at in slices, between which the keeper serves other runs.

use super::SLICE_PROCESSES;
use crate::{
    held::{self, HELD_MAX, Held, HeldProcess},
    values::{HeldPause, SignalResult, Unstopped},
    wire::{PIDS_MAX, adoption::WireMemory},
};
use kennel_lifecycle::Signal;
use kennel_linux::{
    cgroup, crash_point,
    procfs::{self, Stat},
    stuck,
    targets::SignalOutcome,
    tasks,
    tree::{ListLiving, Tree},
};
use std::{collections::HashSet, io, path::Path};

/// Longest time until every task is seen stopped.
const STOP_WAIT_MS: u64 = 2_000;
/// Pause between two checks.
const LOOK_AGAIN_MS: u64 = 2;
/// Pause between two attempts to continue processes.
const RESUME_AGAIN_MS: u64 = 200;

/// Whether Kennel has stopped a tree.
pub(super) enum Pause {
    /// Kennel has not stopped it.
    None,
    /// Kennel has not stopped it, since the last pause has reached its time limit.
    Expired,
    /// The tree is being stopped, and the request waits for the answer, unless that server is gone.
    Stopping {
        seq: Option<u64>,
        give_up_at: u64,
        held: Held,
        /// The pass in progress; absent: the next one is due at this time.
        pass: Option<Box<Pass>>,
        due: u64,
    },
    /// Every task was seen stopped, first at this time.
    Stopped { held: Held, since: u64 },
    /// A process could not be continued, and is tried again; `expired`: because the pause has reached its time limit.
    Resuming { held: Held, expired: bool },
}

impl Pause {
    /// Resumes a pause that an earlier keeper has begun, as it is found now.
    pub(super) fn taken_over(tree: &Tree, run_dir: &Path, memory: &WireMemory, now: u64) -> Self {
        let mut held = held::read(run_dir).unwrap_or(held::UNKNOWN);
        if held == Held::default() {
            return if memory.pause_expired {
                Self::Expired
            } else {
                Self::None
            };
        }
        match held.pass(tree, run_dir, now) {
            Ok(moving) if moving.is_empty() => Self::Stopped {
                held,
                since: memory.paused_since.unwrap_or(now),
            },
            Ok(_) | Err(_) => Self::Stopping {
                seq: None,
                give_up_at: now + STOP_WAIT_MS,
                held,
                pass: None,
                due: now,
            },
        }
    }

    /// Asks every task to stop.
    pub(super) fn begin(
        &mut self,
        tree: &Tree,
        run_dir: &Path,
        seq: u64,
        now: u64,
    ) -> io::Result<()> {
        let mut held = match self {
            Self::Stopped { held, .. }
            | Self::Resuming { held, .. }
            | Self::Stopping { held, .. } => held.clone(),
            Self::None | Self::Expired => Held::default(),
        };
        // INVARIANT: a group counts as frozen by Kennel until it is thawed, whichever processes have joined it since.
        let is_frozen = held.frozen && tree.cgroup.as_ref().is_some_and(cgroup::read_freeze);
        // An unrelated process in the group must not be frozen.
        let group = tree.cgroup.as_ref().filter(|_| tree.has_group_alone());
        held.frozen = is_frozen || group.is_some();
        held::write(run_dir, &held)?;
        crash_point!("keeper.pause_noted");
        if let Some(group) = group {
            held.frozen = cgroup::freeze(group, true).is_ok() || is_frozen;
        }
        *self = Self::Stopping {
            seq: Some(seq),
            give_up_at: now + STOP_WAIT_MS,
            held,
            pass: None,
            due: now,
        };
        Ok(())
    }

    /// Whether processes are looked at, in slices.
    pub(super) fn is_passing(&self) -> bool {
        matches!(self, Self::Stopping { pass: Some(_), .. })
    }

    /// Returns when to check again.
    pub(super) fn wake_at(&self, now: u64) -> Option<u64> {
        match self {
            Self::Stopping { due, .. } => (!self.is_passing()).then_some((*due).max(now + 1)),
            Self::Resuming { .. } => Some(now + RESUME_AGAIN_MS),
            Self::None | Self::Expired | Self::Stopped { .. } => None,
        }
    }

    /// Returns since when every task is known to be stopped.
    pub(super) fn stopped_since(&self) -> Option<u64> {
        match self {
            Self::Stopped { since, .. } => Some(*since),
            Self::None | Self::Expired | Self::Stopping { .. } | Self::Resuming { .. } => None,
        }
    }

    /// Returns the request that waits for an answer that will not come.
    fn interrupted(&self) -> Option<u64> {
        match self {
            Self::Stopping { seq, .. } => *seq,
            _ => None,
        }
    }

    /// Drops the request: its server is gone. The pause continues.
    pub(super) fn forget_request(&mut self) {
        if let Self::Stopping { seq, .. } = self {
            *seq = None;
        }
    }

    /// Returns the state for the next server. The end of an expired pause is reported when every process runs again.
    pub(super) fn held(&self) -> HeldPause {
        match self {
            Self::None => HeldPause::None,
            Self::Expired => HeldPause::Expired,
            Self::Stopping { .. } => HeldPause::Stopping,
            Self::Resuming { expired: false, .. } => HeldPause::Resuming,
            Self::Stopped { .. } | Self::Resuming { .. } => HeldPause::Stopped,
        }
    }

    /// Checks some of the processes again; returns the answer when there is one that a request waits for. Unless it is
    /// `Done`, every process is continued.
    pub(super) fn advance(
        &mut self,
        tree: &Tree,
        run_dir: &Path,
        now: u64,
    ) -> Option<(u64, SignalResult)> {
        let Self::Stopping {
            seq,
            give_up_at,
            held,
            pass,
            due,
        } = self
        else {
            return None;
        };
        if pass.is_none() && now < *due {
            return None;
        }
        let (seq, give_up_at) = (*seq, *give_up_at);
        let current = pass.get_or_insert_with(|| Box::new(Pass::new(held, tree, now)));
        let slice =
            (0..SLICE_PROCESSES).find_map(|_| current.step(held, tree, run_dir).transpose());
        let begun = current.begun;
        let result = match slice? {
            Ok(moving) if moving.is_empty() => {
                crash_point!("keeper.pause_complete");
                let held = std::mem::take(held);
                *self = Self::Stopped { held, since: now };
                return seq.map(|seq| (seq, SignalResult::Done));
            }
            // A long pass proves nothing about processes that it has just stopped.
            Ok(_) if begun < give_up_at => {
                (*pass, *due) = (None, now + LOOK_AGAIN_MS);
                return None;
            }
            Ok(moving) => SignalResult::Partial(unstopped(&moving)),
            Err(error) => failed(&error),
        };
        self.end(tree, run_dir);
        seq.map(|seq| (seq, result))
    }

    /// Continues the processes that were stopped. A failure may be retried. Returns the request that waited for the
    /// pause, too.
    pub(super) fn end(&mut self, tree: &Tree, run_dir: &Path) -> (SignalResult, Option<u64>) {
        let waiting = self.interrupted();
        let held = match std::mem::replace(self, Self::None) {
            Self::None | Self::Expired => return (SignalResult::Done, None),
            Self::Stopping { held, .. }
            | Self::Stopped { held, .. }
            | Self::Resuming { held, .. } => held,
        };
        crash_point!("keeper.resume");
        let result = held.resume(tree);
        crash_point!("keeper.resumed");
        if result == SignalResult::Done {
            held::remove(run_dir);
        } else {
            *self = Self::Resuming {
                held,
                expired: false,
            };
        }
        (result, waiting)
    }

    /// Ends a pause that has reached its time limit. Returns whether all processes run; those that do not are tried
    /// again.
    pub(super) fn expire(&mut self, tree: &Tree, run_dir: &Path) -> bool {
        self.end(tree, run_dir);
        match self {
            Self::Resuming { expired, .. } => {
                *expired = true;
                false
            }
            Self::None | Self::Expired | Self::Stopping { .. } | Self::Stopped { .. } => {
                *self = Self::Expired;
                true
            }
        }
    }

    /// Tries again to continue the remaining processes. Returns whether an expired pause has ended now.
    pub(super) fn try_again(&mut self, tree: &Tree, run_dir: &Path) -> bool {
        match self {
            Self::Resuming { expired: true, .. } => self.expire(tree, run_dir),
            Self::Resuming { .. } => {
                self.end(tree, run_dir);
                false
            }
            Self::None | Self::Expired | Self::Stopping { .. } | Self::Stopped { .. } => false,
        }
    }
}

/// Most processes that did not stop for which a reason is reported: each takes a further check.
const REASONS_MAX: usize = 16;

/// A process that was not seen stopped.
struct Moving {
    pid: i32,
    met: Met,
}

/// Obstacle to its stop.
enum Met {
    /// A stop has been sent to it.
    Asked,
    /// The process may not be signalled.
    Refused(i32),
    /// No space is left to record it.
    OneTooMany,
}

impl Moving {
    fn asked(pid: i32) -> Self {
        let met = Met::Asked;
        Self { pid, met }
    }

    fn why(&self) -> String {
        let waits = || procfs::stat(self.pid).is_ok_and(|stat| stat.state == b'D');
        match self.met {
            Met::Refused(errno) => stuck::refused(self.pid, Signal::STOP, errno),
            Met::OneTooMany => format!("more than {HELD_MAX} would have to be remembered"),
            Met::Asked if waits() => stuck::out_of_reach(self.pid),
            Met::Asked => "it was asked to stop, and has not been seen to".to_owned(),
        }
    }
}

fn unstopped(moving: &[Moving]) -> Vec<Unstopped> {
    let unstopped = moving.iter().enumerate().map(|(place, one)| {
        let why = (place < REASONS_MAX).then(|| one.why());
        Unstopped {
            pid: one.pid,
            why: why.unwrap_or_default(),
        }
    });
    unstopped.collect()
}

pub(super) fn failed(error: &io::Error) -> SignalResult {
    SignalResult::Failed(error.raw_os_error().unwrap_or(libc::EIO))
}

/// One pass over a tree that is being stopped. Processes that the freeze does not reach get SIGSTOP, after they were
/// recorded.
pub(super) struct Pass {
    begun: u64,
    /// Processes in the frozen group.
    inside: HashSet<i32>,
    list: Option<ListLiving>,
    /// Members in the first list; the second is for children of processes that were stopped in the meantime.
    members: Option<HashSet<i32>>,
    unseen: Vec<(i32, Stat)>,
    /// Processes that do not stand still: all of them are recorded before the first is stopped.
    at_large: Vec<(i32, Stat, Option<HeldProcess>)>,
    is_noted: bool,
    moving: Vec<Moving>,
}

impl Pass {
    fn new(held: &Held, tree: &Tree, now: u64) -> Self {
        let group = tree.cgroup.as_ref().filter(|_| held.frozen);
        // Freeze state first: no process leaves a frozen group.
        let frozen = group.is_some_and(|g| cgroup::is_frozen(g).unwrap_or(false));
        let inside: HashSet<i32> = group.map(cgroup::members).into_iter().flatten().collect();
        let moving = inside
            .iter()
            .copied()
            .filter(|_| !frozen)
            .map(Moving::asked);
        Self {
            begun: now,
            moving: moving.collect(),
            inside,
            list: Some(ListLiving::new(tree)),
            members: None,
            unseen: Vec::new(),
            at_large: Vec::new(),
            is_noted: false,
        }
    }

    /// Looks at one process; returns at the end those that were not seen stopped.
    fn step(
        &mut self,
        held: &mut Held,
        tree: &Tree,
        run_dir: &Path,
    ) -> io::Result<Option<Vec<Moving>>> {
        if let Some(list) = &mut self.list {
            if list.step(tree) {
                let mut living = std::mem::take(&mut list.living);
                self.list = None;
                living.retain(|pid, _| !self.inside.contains(pid));
                if let Some(members) = &self.members {
                    let new = living.into_keys().filter(|pid| !members.contains(pid));
                    self.moving.extend(new.map(Moving::asked));
                    return Ok(Some(self.result()));
                }
                self.members = Some(living.keys().copied().collect());
                self.unseen = living.into_iter().collect();
            }
        } else if let Some((pid, stat)) = self.unseen.pop() {
            if !tasks::stand_still(pid) {
                let known = HeldProcess::of(pid, stat.start_ticks);
                self.at_large.push((pid, stat, known));
            }
        } else if !std::mem::replace(&mut self.is_noted, true) {
            let found = self.at_large.iter().filter_map(|(_, _, known)| *known);
            held.note(found, run_dir)?;
        } else if let Some((pid, stat, _)) = self.at_large.pop() {
            // Processes beyond the record's capacity are not stopped, and the pause is incomplete.
            let met = if held.has(pid, stat.start_ticks) {
                match tree.signal_member(pid, &stat, Signal::STOP) {
                    SignalOutcome::Gone => return Ok(None),
                    SignalOutcome::Delivered => Met::Asked,
                    SignalOutcome::Failed(errno) => Met::Refused(errno),
                }
            } else {
                Met::OneTooMany
            };
            self.moving.push(Moving { pid, met });
        } else if self.moving.is_empty() {
            self.list = Some(ListLiving::new(tree));
        } else {
            return Ok(Some(self.result()));
        }
        Ok(None)
    }

    fn result(&mut self) -> Vec<Moving> {
        let mut moving = std::mem::take(&mut self.moving);
        moving.sort_unstable_by_key(|one| one.pid);
        moving.truncate(PIDS_MAX);
        moving
    }
}

impl Held {
    /// Does one pass at once.
    fn pass(&mut self, tree: &Tree, run_dir: &Path, now: u64) -> io::Result<Vec<Moving>> {
        let mut pass = Pass::new(self, tree, now);
        loop {
            if let Some(moving) = pass.step(self, tree, run_dir)? {
                return Ok(moving);
            }
        }
    }

    /// Records the processes that are about to be stopped, as far as there is space.
    fn note(&mut self, found: impl Iterator<Item = HeldProcess>, run_dir: &Path) -> io::Result<()> {
        let known = self.processes.len();
        for one in found {
            if self.processes.len() < HELD_MAX && !self.has(one.pid, one.start_ticks) {
                self.processes.push(one);
            }
        }
        if self.processes.len() > known {
            held::write(run_dir, self)?;
        }
        Ok(())
    }

    fn has(&self, pid: i32, start_ticks: u64) -> bool {
        let same = |one: &HeldProcess| one.pid == pid && one.start_ticks == start_ticks;
        self.processes.iter().any(same)
    }

    fn resume(&self, tree: &Tree) -> SignalResult {
        let mut failed = None;
        if self.frozen
            && let Some(group) = &tree.cgroup
            && let Err(error) = cgroup::freeze(group, false)
            && error.kind() != io::ErrorKind::NotFound
        {
            failed = error.raw_os_error();
        }
        for one in &self.processes {
            if let SignalOutcome::Failed(errno) = one.resume() {
                failed.get_or_insert(errno);
            }
        }
        failed.map_or(SignalResult::Done, SignalResult::Failed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kennel_lifecycle::{CgroupIdentity, RunId};
    use kennel_linux::{
        pidfd::PidFd,
        tree::{Lineage, Root, Session},
    };
    use std::fs;

    /// Returns a tree without members, in this control group.
    fn tree_in(group: CgroupIdentity) -> Tree {
        let me = std::process::id().cast_signed();
        Tree {
            run: RunId::from_u128(7),
            leader: PidFd::open(me).expect("a pidfd"),
            leader_pid: me,
            session: Session::default(),
            lineage: Lineage::default(),
            root: Root::Nowhere,
            foreign: None,
            cgroup: Some(group),
            init: None,
        }
    }

    // promise: T-53
    #[test]
    fn cgroup_with_unrelated_process_is_thawed() {
        let run_dir = tempfile::tempdir().expect("a directory");
        let dir = tempfile::tempdir().expect("a directory");
        let unrelated = crate::sleeper::Sleeper::new();
        let freeze = dir.path().join("cgroup.freeze");
        let files = [
            ("cgroup.procs", format!("{}\n", unrelated.pid())),
            ("cgroup.events", "populated 1\nfrozen 1\n".to_owned()),
            ("cgroup.freeze", "1".to_owned()),
        ];
        for (name, text) in files {
            fs::write(dir.path().join(name), text).expect("a file");
        }
        let tree = tree_in(cgroup::identify(dir.path()).expect("it is there"));
        assert!(!tree.has_group_alone());
        // A lost server's pause has frozen the group.
        let mut pause = Pause::Stopping {
            seq: None,
            give_up_at: 0,
            held: Held {
                frozen: true,
                processes: Vec::new(),
            },
            pass: None,
            due: 0,
        };
        pause.begin(&tree, run_dir.path(), 1, 0).expect("a pause");
        let answer = pause.advance(&tree, run_dir.path(), 0);
        assert_eq!(answer, Some((1, SignalResult::Done)));
        assert!(held::read(run_dir.path()).is_ok_and(|held| held.frozen));
        let (resumed, _) = pause.end(&tree, run_dir.path());
        assert_eq!(resumed, SignalResult::Done);
        assert_eq!(fs::read_to_string(&freeze).expect("it is read"), "0");

        // Resuming does not wait for a thawed group.
        fs::write(&freeze, "0").expect("a file");
        let mut thawed = Pause::Resuming {
            held: Held {
                frozen: true,
                processes: Vec::new(),
            },
            expired: false,
        };
        thawed.begin(&tree, run_dir.path(), 2, 0).expect("a pause");
        assert!(held::read(run_dir.path()).is_ok_and(|held| !held.frozen));
    }

    // promise: T-11a
    #[test]
    fn unstopped_processes_are_reported_with_reasons() {
        let me = std::process::id().cast_signed();
        let one = |met| unstopped(&[Moving { pid: me, met }]).remove(0);
        let Unstopped { pid, why } = one(Met::Refused(libc::EPERM));
        assert_eq!(pid, me);
        assert!(why.starts_with("SIGSTOP is refused"), "{why}");
        assert!(one(Met::OneTooMany).why.contains("remembered"));
        assert!(one(Met::Asked).why.contains("has not been seen to"));
        let asked = |pid| Moving {
            pid,
            met: Met::Asked,
        };
        let many: Vec<Moving> = (1..=100).map(asked).collect();
        let many = unstopped(&many);
        assert_eq!(many.len(), 100);
        let known = many.iter().filter(|one| !one.why.is_empty());
        assert_eq!(known.count(), REASONS_MAX);
    }
}
