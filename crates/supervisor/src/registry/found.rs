//! Findings of the last leak check, for the gauges that measure how many of them remain.

use crate::telemetry::Metrics;
use kennel_keeper::audit::{Still, still};
use kennel_lifecycle::{
    ProcessIdentity, RunId,
    audit::{Evidence, Finding, RunStatus, is_same},
};
use parking_lot::Mutex;

/// Most processes examined for one measurement; further ones count as present.
const LOOKED_AT_MAX: usize = 1024;

#[derive(Debug, Default)]
pub(crate) struct LeakFindings {
    /// Absent until the first leak check.
    left: Mutex<Option<Vec<(ProcessIdentity, Evidence)>>>,
    escaped: Mutex<Vec<ProcessIdentity>>,
}

impl LeakFindings {
    /// Takes the findings of a leak check; counts those that the one before it did not have.
    pub(crate) fn take<'a>(&self, findings: impl Iterator<Item = &'a Finding>, metrics: &Metrics) {
        // A process that copied a marker points to a live run too.
        let of_the_past = |standing| !matches!(standing, Some(RunStatus::Live | RunStatus::Open));
        let found: Vec<(ProcessIdentity, Evidence)> = findings
            .filter(|finding| of_the_past(finding.standing))
            .map(|finding| (finding.process, finding.evidence))
            .collect();
        let before = self.left.lock().replace(found.clone()).unwrap_or_default();
        for (process, evidence) in found {
            if !before.iter().any(|(known, _)| is_same(known, &process)) {
                metrics.orphans.found(evidence);
            }
        }
    }

    /// Takes the processes of live runs outside group and session of their leader; returns those that the leak check
    /// before did not have.
    pub(crate) fn take_escaped(&self, escaped: Vec<(ProcessIdentity, RunId)>) -> Vec<RunId> {
        let mut before = self.escaped.lock();
        let is_known =
            |process: &ProcessIdentity| before.iter().any(|known| is_same(known, process));
        let fresh = escaped.iter().filter(|(process, _)| !is_known(process));
        let fresh = fresh.map(|(_, run)| *run).collect();
        *before = escaped.into_iter().map(|(process, _)| process).collect();
        fresh
    }

    /// Number of leaked processes that are alive.
    pub(crate) fn orphans(&self) -> Option<u64> {
        self.count(|evidence, still| {
            !matches!(evidence, Evidence::Kept | Evidence::Zombie) && still == Still::Living
        })
    }

    /// Number of leaked processes that have ended and are not reaped.
    pub(crate) fn zombies(&self) -> Option<u64> {
        self.count(|evidence, still| evidence == Evidence::Zombie && still == Still::Ended)
    }

    fn count(&self, counts: impl Fn(Evidence, Still) -> bool) -> Option<u64> {
        let found = self.left.lock().clone()?;
        let (near, far) = found.split_at(found.len().min(LOOKED_AT_MAX));
        let near = near
            .iter()
            .map(|(process, evidence)| (*evidence, still(process)));
        let far = far.iter().map(|(_, evidence)| match evidence {
            Evidence::Zombie => (*evidence, Still::Ended),
            _ => (*evidence, Still::Living),
        });
        let counted = near
            .chain(far)
            .filter(|(evidence, still)| counts(*evidence, *still));
        Some(counted.count() as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kennel_lifecycle::audit::Certainty;
    use std::{
        fs,
        process::{Child, Command},
    };

    /// Makes the finding that a leak check would report for this child.
    fn found(child: &Child, evidence: Evidence) -> Finding {
        let pid = child.id().cast_signed();
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).expect("it is there");
        let (_, fields) = stat.rsplit_once(") ").expect("proc(5)");
        let start_ticks = fields.split(' ').nth(19).and_then(|text| text.parse().ok());
        Finding {
            process: ProcessIdentity {
                pid,
                pgid: 0,
                sid: 0,
                start_ticks: start_ticks.expect("proc(5)"),
                pidfs_handle: None,
            },
            ppid: 0,
            run: None,
            standing: Some(RunStatus::Ended),
            evidence,
            certainty: Certainty::Proven,
            cgroup: None,
        }
    }

    fn has_ended(child: &Child) -> bool {
        let stat = fs::read_to_string(format!("/proc/{}/stat", child.id())).unwrap_or_default();
        stat.contains(") Z ")
    }

    // promise: M-14
    #[test]
    fn leak_findings_are_counted_by_kind() {
        let all = LeakFindings::default();
        assert_eq!(
            (all.orphans(), all.zombies()),
            (None, None),
            "no check was made yet"
        );
        let mut lives = Command::new("sleep")
            .arg("1000")
            .spawn()
            .expect("it starts");
        let mut ended = Command::new("true").spawn().expect("it starts");
        while !has_ended(&ended) {
            std::thread::yield_now();
        }
        let mut of_live = found(&lives, Evidence::Marker);
        of_live.standing = Some(RunStatus::Live);
        let findings = [
            found(&lives, Evidence::ShimChild),
            found(&ended, Evidence::Zombie),
            found(&lives, Evidence::Kept),
            of_live,
        ];
        let telemetry = crate::telemetry::Telemetry::default();
        all.take(findings.iter(), &telemetry.metrics);
        assert_eq!((all.orphans(), all.zombies()), (Some(1), Some(1)));
        ended.wait().expect("own child");
        assert_eq!((all.orphans(), all.zombies()), (Some(1), Some(0)));
        lives.kill().expect("own child");
        lives.wait().expect("own child");
        assert_eq!((all.orphans(), all.zombies()), (Some(0), Some(0)));
    }
}
