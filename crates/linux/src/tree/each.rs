//! Work on each process of a tree, in steps of one process: lists, and signals one by one.

use super::{NoTerminal, Tree, walk::Walk};
use crate::{
    procfs::{self, Stat},
    targets::{Holds, SignalTarget, SignalledProcess},
};
use kennel_lifecycle::Signal;
use std::collections::HashSet;

/// A list of all processes of a tree, zombies included, with the evidence for each.
#[derive(Debug)]
pub struct ListMembers {
    walk: Walk,
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
    #[must_use]
    pub fn new(tree: &Tree, most: usize) -> Self {
        Self {
            walk: Walk::new(tree),
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

/// A signal to the processes of `target`, one by one, with a result for each.
#[derive(Debug)]
pub struct SignalEach {
    signal: Signal,
    target: SignalTarget,
    /// Number of the leader, of its group and of its session.
    leader: i32,
    /// Foreground process group of the terminal, where that is the target.
    foreground: Option<i32>,
    /// Absent: all were found.
    walk: Option<Walk>,
    /// Processes that are still to be read.
    unread: Vec<i32>,
    /// Living processes that are still to be signalled.
    members: Vec<(i32, Stat)>,
    /// Living processes of this round.
    living: HashSet<i32>,
    /// Living processes of the first round, in the second: that one is for processes that started during the first,
    /// and whose parent has left them behind: a fork that was in progress. A child that a member makes in answer to the
    /// signal has that member as parent, and is left to it.
    known: Option<HashSet<i32>>,
    /// The results.
    pub signalled: Vec<SignalledProcess>,
}

impl SignalEach {
    /// Begins with the target as it is now.
    pub fn new(tree: &Tree, signal: Signal, target: SignalTarget) -> Result<Self, NoTerminal> {
        let mut each = Self {
            signal,
            target,
            leader: tree.leader_pid,
            foreground: None,
            walk: None,
            unread: Vec::new(),
            members: Vec::new(),
            living: HashSet::new(),
            // Where there is no process to look for, there is no second round either.
            known: Some(HashSet::new()),
            signalled: Vec::new(),
        };
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

    fn look_for_all(&mut self, tree: &Tree) {
        self.known = None;
        self.walk = Some(Walk::new(tree));
    }

    /// Reads or signals one process; returns whether all have the signal.
    pub fn step(&mut self, tree: &Tree) -> bool {
        if let Some(walk) = &mut self.walk {
            if walk.step(tree) {
                self.unread = walk.pids(tree).into_iter().collect();
                self.walk = None;
            }
        } else if let Some(pid) = self.unread.pop() {
            self.read(pid);
        } else if let Some((pid, stat)) = self.members.pop() {
            self.signalled.push(SignalledProcess {
                pid,
                start_ticks: stat.start_ticks,
                result: tree.signal_member(pid, &stat, self.signal),
            });
        } else if self.known.is_none() {
            self.walk = Some(Walk::new(tree));
            self.known = Some(std::mem::take(&mut self.living));
        } else {
            self.signalled.sort_unstable_by_key(|process| process.pid);
            return true;
        }
        false
    }

    fn read(&mut self, pid: i32) {
        for (pid, stat) in procfs::living([pid]) {
            self.living.insert(pid);
            let is_known = |pid| self.known.as_ref().is_some_and(|known| known.contains(pid));
            if !is_known(&pid) && !is_known(&stat.ppid) && self.names(&stat) {
                self.members.push((pid, stat));
            }
        }
    }

    fn names(&self, stat: &Stat) -> bool {
        match self.target {
            SignalTarget::Leader => false,
            SignalTarget::Tree => true,
            SignalTarget::Group => stat.pgid == self.leader,
            // Its members are of the terminal's session, which is the leader's.
            SignalTarget::TerminalForeground => {
                self.foreground == Some(stat.pgid) && stat.sid == self.leader
            }
        }
    }
}
