//! Census of a run's processes, counted five ways that share no assumption: by environment marker, process group,
//! session, control group and ancestry.

use crate::{
    PATIENCE,
    kennel::reap_orphans,
    procfs::{self, Proc},
    wait::eventually,
};
use kennel_proto::pb;
use std::{
    collections::{BTreeMap, HashMap},
    fmt,
};

/// Facts of a run that a census searches by.
#[derive(Clone, Debug, Default)]
pub struct Footprint {
    /// The marker in `KENNEL_RUN_ID`.
    pub run_id: String,
    /// Process group of the command; 0: not known.
    pub pgid: i32,
    /// Session of the command; 0: not known.
    pub sid: i32,
    /// The command itself: distinguishes its group from a later one of the same number.
    leader: Option<Proc>,
    /// Processes that were once seen below the run's shim.
    seen: HashMap<(i32, u64), Proc>,
}

/// Processes found, by each of the five ways.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Census {
    /// `KENNEL_RUN_ID` in the environment.
    pub marker: Vec<Proc>,
    /// The command's process group.
    pub group: Vec<Proc>,
    /// The command's session.
    pub session: Vec<Proc>,
    /// A control group named after the run.
    pub cgroup: Vec<Proc>,
    /// Once seen as a descendant of the run's shim.
    pub ancestry: Vec<Proc>,
}

impl Footprint {
    /// Searches for the marker and the control group alone, which have the id.
    #[must_use]
    pub fn of_id(run_id: &str) -> Self {
        Self {
            run_id: run_id.to_owned(),
            ..Self::default()
        }
    }

    /// Searches for this run, while its command lives: learns group, session and everything below its shim. For an
    /// ended one it searches for the marker and the control group alone: the numbers may be another process's.
    #[must_use]
    pub fn of_run(run: &pb::Run) -> Self {
        let attempt = run.current_attempt.clone().unwrap_or_default();
        let identity = attempt.identity.unwrap_or_default();
        let leader = Proc::read(attempt.pid);
        if leader.is_none_or(|leader| leader.start_ticks != identity.start_ticks) {
            return Self::of_id(&run.run_id);
        }
        let mut print = Self::of_leader(&run.run_id, attempt.pid);
        print.learn(attempt.shim_pid);
        print
    }

    /// Searches for the run whose command is this live process: learns group, session and everything below it.
    #[must_use]
    pub fn of_leader(run_id: &str, pid: i32) -> Self {
        let mut print = Self::of_id(run_id);
        if let Some(leader) = Proc::read(pid) {
            print.pgid = leader.pgid;
            print.sid = leader.sid;
            print.learn(pid);
            print.seen.insert(key(&leader), leader.clone());
            print.leader = Some(leader);
        }
        print
    }

    /// Remembers everything that is below this process at present, such as the run's shim.
    pub fn learn(&mut self, root: i32) {
        let all = procfs::all();
        let below = procfs::descendants(&all, root);
        self.seen
            .extend(below.into_iter().map(|proc| (key(&proc), proc)));
    }

    /// Returns how many processes were ever seen below the shim.
    #[must_use]
    pub fn seen_len(&self) -> usize {
        self.seen.len()
    }

    /// Counts the processes.
    #[must_use]
    pub fn count(&self) -> Census {
        let own_dir = format!("run-{}", self.run_id);
        let mut census = Census::default();
        let all = procfs::all();
        // A pid is not reused while its group or session lives: another process with that pid proves the run's group is
        // gone.
        let taken_over = all.iter().any(|proc| {
            self.leader.as_ref().is_some_and(|leader| {
                proc.pid == leader.pid && proc.start_ticks != leader.start_ticks
            })
        });
        let (pgid, sid) = if taken_over {
            (0, 0)
        } else {
            (self.pgid, self.sid)
        };
        for proc in all {
            if proc.env("KENNEL_RUN_ID").as_deref() == Some(&self.run_id) {
                census.marker.push(proc.clone());
            }
            if pgid > 0 && proc.pgid == pgid {
                census.group.push(proc.clone());
            }
            if sid > 0 && proc.sid == sid {
                census.session.push(proc.clone());
            }
            if proc.cgroup().is_some_and(|path| path.contains(&own_dir)) {
                census.cgroup.push(proc.clone());
            }
            if self.seen.contains_key(&key(&proc)) {
                census.ancestry.push(proc);
            }
        }
        census
    }

    /// Waits until no process is left. Reaps orphans meanwhile: in a test's container PID 1 may not.
    pub async fn until_nothing_is_left(&self) {
        let what = format!("nothing is left of run {}", self.run_id);
        eventually(&what, PATIENCE, || {
            reap_orphans();
            self.count().is_empty().then_some(())
        })
        .await;
    }

    /// Panics with their list, if any is left.
    pub fn assert_nothing_left(&self) {
        let census = self.count();
        assert!(census.is_empty(), "run {} has left:\n{census}", self.run_id);
    }
}

impl Census {
    /// Whether all five counts are zero.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.counts().iter().all(|(_, found)| found.is_empty())
    }

    /// Returns each process that was found by any way and is not only a zombie.
    #[must_use]
    pub fn alive(&self) -> Vec<Proc> {
        let found = self.counts().into_iter().flat_map(|(_, found)| found);
        let by_key: BTreeMap<_, _> = found
            .filter(|proc| !proc.is_zombie() || proc.has_living_thread())
            .map(|proc| (key(proc), proc.clone()))
            .collect();
        by_key.into_values().collect()
    }

    fn counts(&self) -> [(&'static str, &Vec<Proc>); 5] {
        [
            ("marker", &self.marker),
            ("group", &self.group),
            ("session", &self.session),
            ("cgroup", &self.cgroup),
            ("ancestry", &self.ancestry),
        ]
    }
}

impl fmt::Display for Census {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (way, found) in self.counts() {
            writeln!(f, "  by {way}: {}", found.len())?;
            for proc in found {
                writeln!(
                    f,
                    "    {} {} (parent {}, group {}, session {}, {})",
                    proc.pid, proc.comm, proc.ppid, proc.pgid, proc.sid, proc.state
                )?;
            }
        }
        Ok(())
    }
}

/// Returns a key that identifies a process while the host is up.
fn key(proc: &Proc) -> (i32, u64) {
    (proc.pid, proc.start_ticks)
}

/// Returns every process whose environment names a run whose directory is below `data_dir`.
#[must_use]
pub fn of_data_dir(data_dir: &str) -> Vec<Proc> {
    procfs::all()
        .into_iter()
        .filter(|proc| {
            proc.env("KENNEL_RUN_DIR")
                .is_some_and(|dir| dir.starts_with(data_dir))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{
        fs,
        process::{Child, Command},
        time::{Duration, Instant},
    };

    /// A process as a run would leave it behind, ended with the guard.
    struct Planted(Child);

    impl Planted {
        fn new(marker: Option<&str>) -> Self {
            // Use a separate session: the test's may belong to another pid namespace, with number 0 here.
            let mut command = Command::new("setsid");
            command.args(["sleep", "600"]);
            match marker {
                Some(id) => command.env("KENNEL_RUN_ID", id),
                None => command.env_clear(),
            };
            let planted = Self(command.spawn().expect("sleep starts"));
            // `spawn` returns once the new image is mapped; its arguments and environment appear a moment later.
            let until = Instant::now() + Duration::from_secs(10);
            let cmdline = format!("/proc/{}/cmdline", planted.pid());
            while !fs::read(&cmdline).is_ok_and(|words| words.starts_with(b"sleep\0")) {
                assert!(Instant::now() < until, "sleep does not appear");
                std::thread::yield_now();
            }
            planted
        }

        fn pid(&self) -> i32 {
            i32::try_from(self.0.id()).expect("pids are small")
        }
    }

    impl Drop for Planted {
        fn drop(&mut self) {
            self.0.kill().expect("own child");
            self.0.wait().expect("own child");
        }
    }

    #[test]
    fn census_counts_a_planted_marked_process() {
        let planted = Planted::new(Some("01JCENSUSMARKER00000000000"));
        let found = Footprint::of_id("01JCENSUSMARKER00000000000").count();
        assert_eq!(found.marker.len(), 1, "{found}");
        assert_eq!(found.marker[0].pid, planted.pid());
    }

    #[test]
    fn census_counts_unmarked_process_by_group() {
        let planted = Planted::new(None);
        let print = Footprint::of_leader("01JCENSUSOTHERS00000000000", planted.pid());
        let found = print.count();
        assert!(found.marker.is_empty(), "{found}");
        assert!(
            found.group.iter().any(|p| p.pid == planted.pid()),
            "{found}"
        );
        assert!(
            found.session.iter().any(|p| p.pid == planted.pid()),
            "{found}"
        );
        assert!(
            found.ancestry.iter().any(|p| p.pid == planted.pid()),
            "{found}"
        );
    }

    #[test]
    #[should_panic(expected = "has left")]
    fn assert_nothing_left_fails_on_live_process() {
        let _planted = Planted::new(Some("01JCENSUSASSERT00000000000"));
        Footprint::of_id("01JCENSUSASSERT00000000000").assert_nothing_left();
    }

    #[test]
    fn census_of_unknown_run_is_empty() {
        Footprint::of_id("01JCENSUSNOBODY00000000000").assert_nothing_left();
    }
}
