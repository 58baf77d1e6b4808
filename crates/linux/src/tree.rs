//! All processes of one run, as its shim or its keeper can reach them.

mod each;
mod round;
mod session;
mod unrelated;
mod walk;

use crate::{
    cgroup, marker,
    pidfd::PidFd,
    procfs::{self, Stat},
    targets::{Holds, MembershipEvidence, SignalOutcome, SignalledProcess, TARGETS_LISTED_MAX},
};
pub use each::{ListLiving, ListMembers, SignalEach};
use kennel_lifecycle::{
    CgroupIdentity, Leftover, Leftovers, RunId, Signal, SignalScope, limits::LEFTOVERS_LISTED_MAX,
};
use nix::errno::Errno;
pub use round::SignalRound;
pub use session::Session;
use std::collections::{HashMap, HashSet};
use unrelated::InGroup;
pub use walk::Lineage;
use walk::TreeWalk;

/// Root of the tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Root {
    /// Below this subreaper, which is not reaped while this value exists.
    Shim(i32),
    /// The subreaper is gone: its orphans became children of this process, if this one is a subreaper.
    Lost,
    /// The subreaper is gone and had no child left. Its number may be another's: only the control group has members.
    Nowhere,
}

/// One run's tree.
#[derive(Debug)]
pub struct Tree {
    /// Run of the tree.
    pub run: RunId,
    /// The leader: its descriptor also addresses its group after it was reaped.
    pub leader: PidFd,
    /// Number of the leader, of its group and of its session: it called setsid(2).
    pub leader_pid: i32,
    /// Known processes of the leader's session.
    pub session: Session,
    /// Processes that descend from the root, as far as that is verified.
    pub lineage: Lineage,
    /// Root of the tree.
    pub root: Root,
    /// The shim, where that is no child of this process: it is reaped without this one, and so are the processes it leaves.
    pub foreign: Option<PidFd>,
    /// Its control group, if it has one.
    pub cgroup: Option<CgroupIdentity>,
    /// Its private pid namespace, if it has one.
    pub init: Option<Init>,
}

/// The first process of a run's private pid namespace: Kennel's, and no member. The kernel ends all in the namespace
/// with it, and lets it exit as the last.
#[derive(Debug)]
pub struct Init {
    /// Process id.
    pub pid: i32,
    /// The process as a descriptor.
    pub fd: PidFd,
}

/// The leader has no controlling terminal with a foreground group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoTerminal;

impl Tree {
    /// Returns all living members.
    pub fn members(&self) -> HashMap<i32, Stat> {
        procfs::living(self.pids())
    }

    /// Returns the numbers of all members, zombies included.
    pub fn pids(&self) -> HashSet<i32> {
        let mut walk = TreeWalk::new(self);
        while !walk.step(self) {}
        walk.pids(self)
    }

    /// Returns the numbers of all processes below the root, in any group.
    fn below_root(&self) -> HashSet<i32> {
        let below = match self.root {
            Root::Shim(shim) => self.below(shim),
            Root::Lost => self.orphans(),
            Root::Nowhere => Vec::new(),
        };
        below.into_iter().collect()
    }

    /// Returns the living members, without the leader.
    pub fn leftovers(&self) -> Leftovers {
        self.leftovers_among(self.members())
    }

    /// Returns these members, without the leader.
    pub fn leftovers_among(&self, members: HashMap<i32, Stat>) -> Leftovers {
        let mut living: Vec<(i32, Stat)> = members.into_iter().collect();
        living.retain(|(pid, _)| *pid != self.leader_pid);
        living.sort_unstable_by_key(|(pid, _)| *pid);
        let unlisted = living.len().saturating_sub(LEFTOVERS_LISTED_MAX);
        let shown = living.into_iter().take(LEFTOVERS_LISTED_MAX);
        let processes = shown.map(|(pid, stat)| Leftover {
            pid,
            start_ticks: stat.start_ticks,
            name: procfs::name(pid, stat.start_ticks),
        });
        Leftovers {
            processes: processes.collect(),
            unlisted: u32::try_from(unlisted).unwrap_or(u32::MAX),
        }
    }

    /// Returns the foreground process group of the leader's controlling terminal. `None`: the leader was reaped, and
    /// with it went its hold on a terminal.
    fn foreground_group(&self) -> Result<Option<i32>, NoTerminal> {
        let Ok(stat) = procfs::stat(self.leader_pid) else {
            return Ok(None);
        };
        if !self.leader.is_unreaped() {
            return Ok(None);
        }
        if stat.tpgid > 0 {
            return Ok(Some(stat.tpgid));
        }
        Err(NoTerminal)
    }

    /// Signals the leader by its descriptor, which refers to no other process. `None`: it was reaped, and nothing is
    /// known of it any more.
    fn signal_leader(&self, signal: Signal) -> Option<SignalledProcess> {
        let stat = procfs::stat(self.leader_pid).ok()?;
        // The pidfd is valid after the read, so the read was of the leader.
        if !self.leader.is_unreaped() {
            return None;
        }
        let result = if self.leader.has_ended() {
            SignalOutcome::Gone
        } else {
            self.leader.signal(signal)
        };
        Some(SignalledProcess {
            pid: self.leader_pid,
            start_ticks: stat.start_ticks,
            result,
        })
    }

    /// Whether this is the keeper, the shim or the first process of the private pid namespace.
    fn is_ours(&self, pid: i32) -> bool {
        let init = self.init.as_ref().filter(|init| init.pid == pid);
        pid == std::process::id().cast_signed()
            || self.root == Root::Shim(pid)
            || init.is_some_and(|init| init.fd.is_unreaped())
    }

    /// Records which of these living members are of the leader's session, while that is verifiable: an empty session
    /// releases its number for reuse.
    pub fn learn_session(&self, members: &HashMap<i32, Stat>) {
        if matches!(self.root, Root::Shim(_)) {
            self.session.learn(self.leader_pid, members);
        }
    }

    /// Returns all processes below the shim.
    fn below(&self, shim: i32) -> Vec<i32> {
        self.if_shim_is_there(procfs::descendants(shim))
    }

    /// Returns processes found by the shim's number, if that was the shim's all the time.
    fn if_shim_is_there(&self, found: Vec<i32>) -> Vec<i32> {
        if self.shim_is_there() {
            found
        } else {
            Vec::new()
        }
    }

    /// Whether the shim's number is still its own. The number of a child of this process is until this process has
    /// reaped it.
    fn shim_is_there(&self) -> bool {
        self.foreign.as_ref().is_none_or(PidFd::is_unreaped)
    }

    /// Returns processes that came from the lost shim, found by session or marker, and all below them.
    fn orphans(&self) -> Vec<i32> {
        let roots = self.roots();
        let below = roots.iter().flat_map(|pid| procfs::descendants(*pid));
        roots.iter().copied().chain(below).collect()
    }

    /// Returns children of this process that came from the lost shim, found by session or marker. The orphans of a shim
    /// that was no child of this process are others' children: those of the leader's session.
    fn roots(&self) -> Vec<i32> {
        if self.foreign.is_some() {
            return self.strays().into_keys().collect();
        }
        let children = procfs::children(std::process::id().cast_signed());
        let of_session =
            self.session
                .among(self.leader_pid, &self.leader, children.iter().copied());
        let is_of_run =
            |child: &i32| of_session.contains_key(child) || marker::of(*child) == Some(self.run);
        children.into_iter().filter(is_of_run).collect()
    }

    /// Returns the processes of the leader's session, with their start times, as far as that is verified.
    fn strays(&self) -> HashMap<i32, u64> {
        let all = procfs::all_pids().unwrap_or_default();
        let found = self.session.among(self.leader_pid, &self.leader, all);
        self.lineage.0.borrow_mut().extend(&found);
        found
    }

    /// Sends a signal to every member, as [`SignalEach::all`] does. SIGKILL takes all at once where that is possible
    /// ([`Self::kill_at_once`]).
    pub fn signal(&self, signal: Signal) -> Vec<SignalRound> {
        if signal == Signal::KILL
            && let Some(rounds) = self.kill_at_once()
        {
            return rounds;
        }
        vec![SignalEach::all(self, signal).finish(self)]
    }

    /// Sends SIGKILL to the private pid namespace where there is one, else to the control group, where the run is alone
    /// in it. `None`: the members are to be signalled one by one.
    pub fn kill_at_once(&self) -> Option<Vec<SignalRound>> {
        self.kill_namespace().or_else(|| self.kill_group())
    }

    /// Sends SIGKILL to the first process of the private pid namespace, and so to all in it; then to those that were
    /// put into the control group from elsewhere. `None`: there is no such namespace.
    fn kill_namespace(&self) -> Option<Vec<SignalRound>> {
        let init = self.init.as_ref()?;
        let mut below = match self.root {
            Root::Shim(shim) => self.below(shim),
            Root::Lost => [self.orphans(), procfs::descendants(init.pid)].concat(),
            Root::Nowhere => Vec::new(),
        };
        below.retain(|pid| !self.is_ours(*pid));
        let inside = procfs::living(below);
        let mut killed = SignalRound::new(SignalScope::PidNamespace);
        let sent = init.fd.signal(Signal::KILL);
        killed.count_all(sent, inside.len());
        for (pid, stat) in &inside {
            killed.list(
                (*pid, stat.start_ticks),
                MembershipEvidence::Namespace,
                sent,
            );
        }
        let mut beside = self.members();
        beside.retain(|pid, _| !inside.contains_key(pid));
        let mut others = SignalRound::new(SignalScope::Tree);
        for (pid, stat) in beside {
            self.signal_target(&mut others, pid, &stat, Signal::KILL);
        }
        let mut rounds = vec![killed, others];
        rounds.retain(|round| !round.is_empty());
        Some(rounds)
    }

    /// Sends SIGKILL to all in the control group, where all are of the run. Processes that have left the group are then
    /// among those below the root that were not in it; a process with a parent in it that is not gone yet is found in
    /// the next round, or by the shim. `None`: there is no group, another process is in it too, or it cannot be killed.
    fn kill_group(&self) -> Option<Vec<SignalRound>> {
        let group = self.cgroup.as_ref()?;
        let inside = self.in_group();
        if !inside.is_of_run_alone() {
            return None;
        }
        let InGroup { of_run, stats, .. } = inside;
        let inside: HashSet<i32> = of_run.into_iter().collect();
        // A process that has exited by now is counted, but not listed.
        let named = inside.iter().take(TARGETS_LISTED_MAX).filter_map(|pid| {
            let known = stats.get(pid).copied();
            let stat = known.or_else(|| procfs::stat(*pid).ok())?;
            Some((*pid, stat.start_ticks))
        });
        let named: Vec<(i32, u64)> = named.collect();
        cgroup::kill(group).ok()?;
        let mut killed = SignalRound::new(SignalScope::ControlGroup);
        killed.count_all(SignalOutcome::Delivered, inside.len());
        for process in named {
            killed.list(
                process,
                MembershipEvidence::Cgroup,
                SignalOutcome::Delivered,
            );
        }
        let mut others = SignalRound::new(SignalScope::Tree);
        let outside = match self.root {
            Root::Shim(shim) => {
                let found = procfs::descendants_beside(shim, &inside);
                self.if_shim_is_there(found)
            }
            Root::Lost => self.orphans(),
            Root::Nowhere => Vec::new(),
        };
        let outside = outside
            .into_iter()
            .filter(|pid| !inside.contains(pid) && !self.is_ours(*pid));
        for (pid, stat) in procfs::living(outside) {
            self.signal_target(&mut others, pid, &stat, Signal::KILL);
        }
        let mut rounds = vec![killed, others];
        rounds.retain(|round| !round.is_empty());
        Some(rounds)
    }

    /// Thaws the control group and continues each stopped member, so that a pending signal can act.
    pub fn wake(&self) -> SignalRound {
        SignalEach::waking(self).finish(self)
    }

    /// Sends a signal to one member, if the number still refers to that member.
    pub fn signal_member(&self, pid: i32, before: &Stat, signal: Signal) -> SignalOutcome {
        self.signal_held(pid, before, signal).0
    }

    fn signal_target(
        &self,
        round: &mut SignalRound,
        pid: i32,
        before: &Stat,
        signal: Signal,
    ) -> SignalOutcome {
        let (sent, holds) = self.signal_held(pid, before, signal);
        let process = (pid, before.start_ticks);
        round.add(process, MembershipEvidence::Held(holds), sent);
        sent
    }

    /// Sends a signal likewise, and returns the evidence found after its descriptor was opened. INV-4: the descriptor
    /// is opened first, the identity checked after it.
    fn signal_held(&self, pid: i32, before: &Stat, signal: Signal) -> (SignalOutcome, Holds) {
        let fd = match PidFd::open(pid) {
            Ok(fd) => fd,
            Err(error) => return (open_failure(&error), Holds::default()),
        };
        // The pidfd was opened before this read: if the read shows the member, the pidfd refers to it.
        match procfs::stat(pid) {
            Ok(stat) if stat.start_ticks == before.start_ticks => {
                let holds = self.holds(pid);
                let sent = if holds.any() {
                    fd.signal(signal)
                } else {
                    SignalOutcome::Gone
                };
                (sent, holds)
            }
            _ => (SignalOutcome::Gone, Holds::default()),
        }
    }

    /// Returns the present evidence for a process.
    fn holds(&self, pid: i32) -> Holds {
        let group = self.cgroup.as_ref();
        let cgroup = group.is_some_and(|group| {
            cgroup::path_of(pid).is_some_and(|path| path.starts_with(&group.path))
        });
        let below = self.is_below(pid);
        let shim = below && matches!(self.root, Root::Shim(_));
        let keeper = below && self.root == Root::Lost;
        Holds {
            cgroup,
            shim,
            keeper,
        }
    }
}

/// Whether this process may signal the one with this number. It sends nothing.
fn may_signal(pid: i32) -> SignalOutcome {
    if nix::unistd::geteuid().is_root() {
        return SignalOutcome::Delivered;
    }
    match nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), None) {
        Err(Errno::EPERM) => SignalOutcome::Failed(libc::EPERM),
        // The process existed when the signal was sent.
        Ok(()) | Err(_) => SignalOutcome::Delivered,
    }
}

fn open_failure(error: &std::io::Error) -> SignalOutcome {
    match error.raw_os_error().map(Errno::from_raw) {
        Some(Errno::ESRCH | Errno::EINVAL) => SignalOutcome::Gone,
        Some(errno) => SignalOutcome::Failed(errno as i32),
        None => SignalOutcome::Failed(libc::EIO),
    }
}

#[cfg(test)]
mod tests;
