//! Work on each process of a tree, in steps of one process: lists, and signals one by one.

use super::{NoTerminal, SignalRound, Tree, may_signal, walk::TreeWalk};
use crate::{
    cgroup,
    procfs::{self, Stat},
    targets::{Holds, MembershipEvidence, SignalOutcome, SignalTarget, SignalledProcess},
    tasks,
};
use kennel_lifecycle::{Signal, SignalScope};
use std::{
    cmp::Reverse,
    collections::{HashMap, HashSet},
};

/// A list of all processes of a tree, zombies included, with the evidence for each.
#[derive(Debug)]
pub struct ListMembers {
    walk: TreeWalk,
    most: usize,
    /// Processes that are still to be read, by falling number.
    unread: Option<Vec<i32>>,
    /// The first of them by number.
    pub listed: Vec<(i32, Stat, Holds)>,
    /// Number of the others.
    pub unlisted: usize,
}

impl ListMembers {
    /// Begins a list of at most this many.
    pub fn new(tree: &Tree, most: usize) -> Self {
        Self {
            walk: TreeWalk::new(tree),
            most,
            unread: None,
            listed: Vec::new(),
            unlisted: 0,
        }
    }

    /// Reads one process; returns whether the list is complete.
    pub fn step(&mut self, tree: &Tree) -> bool {
        let Some(unread) = &mut self.unread else {
            if self.walk.step(tree) {
                let mut pids: Vec<i32> = self.walk.pids(tree).into_iter().collect();
                pids.sort_unstable();
                self.unlisted = pids.len().saturating_sub(self.most);
                pids.truncate(self.most);
                pids.reverse();
                self.unread = Some(pids);
            }
            return false;
        };
        let Some(pid) = unread.pop() else {
            return true;
        };
        let Ok(stat) = procfs::stat(pid) else {
            return false;
        };
        let holds = tree.holds(pid);
        // The start time is the same before and after, so the evidence is that of this process, and not of an
        // unrelated one.
        let same = procfs::stat(pid).is_ok_and(|after| after.start_ticks == stat.start_ticks);
        if same && holds.any() {
            self.listed.push((pid, stat, holds));
        }
        false
    }
}

/// A list of the living members of a tree.
#[derive(Debug)]
pub struct ListLiving {
    walk: TreeWalk,
    /// Processes that are still to be read; absent: not all were found.
    unread: Option<Vec<i32>>,
    /// The members.
    pub living: HashMap<i32, Stat>,
}

impl ListLiving {
    /// Begins a list.
    pub fn new(tree: &Tree) -> Self {
        Self {
            walk: TreeWalk::new(tree),
            unread: None,
            living: HashMap::new(),
        }
    }

    /// Reads one process; returns whether the list is complete.
    pub fn step(&mut self, tree: &Tree) -> bool {
        let Some(unread) = &mut self.unread else {
            if self.walk.step(tree) {
                self.unread = Some(self.walk.pids(tree).into_iter().collect());
            }
            return false;
        };
        let Some(pid) = unread.pop() else { return true };
        self.living.extend(procfs::living([pid]));
        false
    }
}

/// A signal to processes of a tree, one by one, with a result for each.
#[derive(Debug)]
pub struct SignalEach {
    scope: Scope,
    signal: Signal,
    /// Number of the leader, of its group and of its session.
    leader: i32,
    /// Foreground process group of the terminal, where that is the target.
    foreground: Option<i32>,
    /// Absent: all were found.
    list: Option<ListLiving>,
    /// Living processes that are still to be signalled.
    members: Vec<(i32, Stat)>,
    /// Living processes of the first round, in the second: that one is for processes that started during the first,
    /// and whose parent has left them behind: a fork that was in progress. A child that a member makes in answer to the
    /// signal has that member as parent, and is left to it.
    known: Option<HashSet<i32>>,
    /// Living processes of the first round, until the second begins.
    first: Option<HashSet<i32>>,
    /// The results.
    pub signalled: Vec<SignalledProcess>,
    /// The results with their evidence.
    pub round: SignalRound,
}

/// Processes to signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scope {
    Target(SignalTarget),
    /// All: the leader's group at once, the others after it.
    All,
    /// All that are stopped.
    Stopped,
}

impl SignalEach {
    /// Begins with the target as it is now.
    pub fn new(tree: &Tree, signal: Signal, target: SignalTarget) -> Result<Self, NoTerminal> {
        let mut each = Self::of(tree, signal, Scope::Target(target));
        match target {
            SignalTarget::Leader => each.signalled.extend(tree.signal_leader(signal)),
            SignalTarget::TerminalForeground => {
                each.foreground = tree.foreground_group()?;
                if each.foreground.is_some() {
                    each.look_for_all(tree);
                }
            }
            SignalTarget::Tree | SignalTarget::Group => each.look_for_all(tree),
        }
        Ok(each)
    }

    /// Begins a signal to every member: the leader's group at once, then the others one by one, each checked after its
    /// descriptor was opened. The leader comes first, then the others by age: a parent that notices the exit of a child
    /// has had the signal itself. Unrelated processes in the control group are spared, and listed.
    pub fn all(tree: &Tree, signal: Signal) -> Self {
        let mut each = Self::of(tree, signal, Scope::All);
        each.look_for_all(tree);
        each
    }

    /// Thaws the control group, and begins to continue each stopped member.
    pub fn waking(tree: &Tree) -> Self {
        if let Some(group) = &tree.cgroup
            && cgroup::read_freeze(group)
        {
            let _ = cgroup::freeze(group, false);
        }
        Self {
            list: Some(ListLiving::new(tree)),
            ..Self::of(tree, Signal::CONT, Scope::Stopped)
        }
    }

    fn of(tree: &Tree, signal: Signal, scope: Scope) -> Self {
        Self {
            scope,
            signal,
            leader: tree.leader_pid,
            foreground: None,
            list: None,
            members: Vec::new(),
            // Without processes to search for, there is no second round.
            known: Some(HashSet::new()),
            first: None,
            signalled: Vec::new(),
            round: SignalRound::new(SignalScope::Tree),
        }
    }

    /// Signals all at once.
    pub(super) fn finish(mut self, tree: &Tree) -> SignalRound {
        while !self.step(tree) {}
        self.round
    }

    fn look_for_all(&mut self, tree: &Tree) {
        self.known = None;
        self.list = Some(ListLiving::new(tree));
    }

    /// Reads or signals one process; returns whether all have the signal.
    pub fn step(&mut self, tree: &Tree) -> bool {
        if let Some(list) = &mut self.list {
            if list.step(tree) {
                let living = std::mem::take(&mut list.living);
                self.list = None;
                self.take(tree, living);
            }
        } else if let Some((pid, stat)) = self.members.pop() {
            if self.scope != Scope::Stopped || tasks::are_held(pid) {
                let result = tree.signal_target(&mut self.round, pid, &stat, self.signal);
                let start_ticks = stat.start_ticks;
                self.signalled.push(SignalledProcess {
                    pid,
                    start_ticks,
                    result,
                });
            }
        } else if let Some(first) = self.first.take() {
            self.list = Some(ListLiving::new(tree));
            self.known = Some(first);
        } else {
            self.signalled.sort_unstable_by_key(|process| process.pid);
            if let (Scope::All, Some(known)) = (self.scope, &self.known) {
                for process in tree.in_group_beside(known).unrelated {
                    let sent = SignalOutcome::Gone;
                    self.round
                        .list(process, MembershipEvidence::Unrelated, sent);
                }
            }
            return true;
        }
        false
    }

    /// Chooses the processes of a round among the living ones.
    fn take(&mut self, tree: &Tree, living: HashMap<i32, Stat>) {
        let is_known = |pid: &i32| self.known.as_ref().is_some_and(|known| known.contains(pid));
        let is_new = |(pid, stat): &(&i32, &Stat)| !is_known(pid) && !is_known(&stat.ppid);
        let new = living.iter().filter(is_new);
        let named = new.filter(|(_, stat)| self.names(stat));
        let mut members: Vec<(i32, Stat)> = named.map(|(pid, stat)| (*pid, *stat)).collect();
        if self.known.is_none() {
            self.first = Some(living.into_keys().collect());
            if self.scope == Scope::All {
                self.signal_group(tree, &mut members);
            }
        }
        self.members = last_first(members, self.leader);
    }

    fn signal_group(&mut self, tree: &Tree, members: &mut Vec<(i32, Stat)>) {
        // If the group is empty, or the kernel cannot address it or refuses it, its processes are signalled one by one.
        if tree.leader.signal_group(self.signal) != SignalOutcome::Delivered {
            return;
        }
        let leader = self.leader;
        for (pid, stat) in members.extract_if(.., |(_, stat)| stat.pgid == leader) {
            // The call succeeds if it reached one process of the group; the others are checked one by one.
            let process = (pid, stat.start_ticks);
            let sent = may_signal(pid);
            self.round.add(process, MembershipEvidence::Group, sent);
        }
    }

    fn names(&self, stat: &Stat) -> bool {
        match self.scope {
            Scope::Target(SignalTarget::Leader) => false,
            Scope::Target(SignalTarget::Tree) | Scope::All | Scope::Stopped => true,
            Scope::Target(SignalTarget::Group) => stat.pgid == self.leader,
            // The foreground group is in the terminal's session, which is the leader's.
            Scope::Target(SignalTarget::TerminalForeground) => {
                self.foreground == Some(stat.pgid) && stat.sid == self.leader
            }
        }
    }
}

/// Sorts processes by falling age, and the leader last.
pub(super) fn last_first(mut members: Vec<(i32, Stat)>, leader: i32) -> Vec<(i32, Stat)> {
    members.sort_unstable_by_key(|(pid, stat)| Reverse((*pid != leader, stat.start_ticks, *pid)));
    members
}
