//! Ends the findings of a leak check, as far as the rules allow; without `execute` it only reports which processes it
//! would end.

use super::{Audit, AuditFinding, Unverified};
use crate::{base::calls::CallError, registry::Supervisor};
use kennel_keeper::client::{Fate, Holding, REAPED_MAX, Victim};
use kennel_lifecycle::{
    CgroupIdentity, ProcessIdentity,
    audit::{
        Evidence, is_same,
        reap::{Candidate, Judgement, Scope, Spared, judge},
    },
    ladder::StopPlan,
};
use kennel_linux::effective_uid;
use std::time::Duration;

/// A request to end leaked processes.
#[derive(Clone, Debug)]
pub struct ReapCall {
    /// Findings to end.
    pub scope: Scope,
    /// Time between SIGTERM and SIGKILL.
    pub grace: Duration,
    /// Whether to end them; false: no process is signalled.
    pub execute: bool,
    /// The caller, as a principal.
    pub by: String,
}

/// Planned or completed treatment of one process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReapResult {
    /// The process would be ended.
    Planned,
    /// The process is not signalled.
    Spared(Spared),
    /// The process was named by its identity, and nothing links it to this installation.
    NotFound,
    /// Its result.
    Done(Fate),
}

/// One process with its result.
#[derive(Clone, Debug)]
pub struct Judged {
    /// Identity of the process.
    pub process: ProcessIdentity,
    /// Its finding; absent where there was none.
    pub found: Option<AuditFinding>,
    /// Its result.
    pub result: ReapResult,
}

/// Result of a reap.
#[derive(Clone, Debug)]
pub struct ReapReport {
    /// All processes in scope.
    pub judged: Vec<Judged>,
    /// Empty control groups that were removed, or would be.
    pub directories: u32,
    /// Findings beyond those ended at once: repeat the request.
    pub left_over: u32,
    /// The leak check that this is based on.
    pub audit: Audit,
}

impl Supervisor {
    /// Runs a new leak check, judges each finding, and has the keeper end those that may be ended.
    pub async fn reap(&self, call: ReapCall) -> Result<ReapReport, CallError> {
        let audit = self.audit().await?;
        let mut judged = judge_all(&audit, &call.scope);
        let mut directories = directories(&audit, &call.scope);
        let planned = judged
            .iter()
            .filter(|j| j.result == ReapResult::Planned)
            .count();
        let left_over =
            planned.saturating_sub(REAPED_MAX) + directories.len().saturating_sub(REAPED_MAX);
        directories.truncate(REAPED_MAX);
        let mut removed = u32::try_from(directories.len()).unwrap_or(u32::MAX);
        if call.execute {
            removed = self.carry_out(&call, &mut judged, &directories).await?;
        }
        Ok(ReapReport {
            judged,
            directories: removed,
            left_over: u32::try_from(left_over).unwrap_or(u32::MAX),
            audit,
        })
    }

    async fn carry_out(
        &self,
        call: &ReapCall,
        judged: &mut [Judged],
        directories: &[CgroupIdentity],
    ) -> Result<u32, CallError> {
        let planned = judged
            .iter_mut()
            .filter(|j| j.result == ReapResult::Planned);
        let mut planned: Vec<&mut Judged> = planned.take(REAPED_MAX).collect();
        let victims: Vec<Victim> = planned
            .iter()
            .filter_map(|j| victim(j.found.as_ref()?))
            .collect();
        if victims.is_empty() && directories.is_empty() {
            return Ok(0);
        }
        for victim in &victims {
            let ProcessIdentity {
                pid, start_ticks, ..
            } = victim.process;
            tracing::warn!(
                by = call.by,
                pid,
                start_ticks,
                "ending processes that a run left behind"
            );
        }
        let plan = StopPlan::abort(call.grace);
        let kernel = &self.shared.kernel;
        let reaped = kernel.reap(&victims, directories, &plan).await?;
        let metrics = &self.shared.config.telemetry.metrics;
        for (judged, fate) in planned.iter_mut().zip(reaped.fates) {
            judged.result = ReapResult::Done(fate);
            if let (Fate::Ended(_), Some(found)) = (fate, &judged.found) {
                metrics.orphans.reaped(found.finding.evidence);
            }
        }
        Ok(reaped.directories_removed)
    }
}

fn judge_all(audit: &Audit, scope: &Scope) -> Vec<Judged> {
    let own_uid = effective_uid();
    let away = |area: &Unverified| matches!(area, Unverified::StoreAway(_));
    let rows_compared = !audit.unverified.iter().any(away);
    let mut judged = Vec::new();
    for found in &audit.findings {
        let candidate = Candidate {
            finding: &found.finding,
            labels: found.labels.as_deref(),
            age: found.described.age,
            own_user: found.described.uid == own_uid,
            rows_compared,
        };
        let result = match judge(&candidate, scope) {
            Judgement::OutOfScope => continue,
            Judgement::Spared(why) => ReapResult::Spared(why),
            Judgement::Reap => ReapResult::Planned,
        };
        judged.push(Judged {
            process: found.finding.process,
            found: Some(found.clone()),
            result,
        });
    }
    // Each process that the caller named gets a result.
    for process in &scope.processes {
        let is_found = |found: &AuditFinding| is_same(process, &found.finding.process);
        if !audit.findings.iter().any(is_found) {
            judged.push(Judged {
                process: *process,
                found: None,
                result: ReapResult::NotFound,
            });
        }
    }
    judged
}

/// Conditions that must hold at each signal beside the identity.
fn victim(found: &AuditFinding) -> Option<Victim> {
    let finding = &found.finding;
    let holding = match (finding.evidence, &finding.cgroup) {
        (Evidence::Marker, _) => Holding::Marker(finding.run?),
        (_, Some(group)) => Holding::Cgroup(group.clone()),
        _ => Holding::Descent,
    };
    Some(Victim {
        process: finding.process,
        holding,
    })
}

/// Empty directories that are in scope. Unlike processes they have no user, age or identity.
fn directories(audit: &Audit, scope: &Scope) -> Vec<CgroupIdentity> {
    let by_process = !scope.processes.is_empty();
    let by_evidence =
        !scope.evidence.is_empty() && !scope.evidence.contains(&Evidence::LeakedCgroup);
    if by_process || by_evidence {
        return Vec::new();
    }
    let in_scope = audit.directories.iter().filter(|(run, _)| {
        let named = scope.runs.is_empty() || scope.runs.contains(run);
        let labelled = scope.labels.is_empty()
            || audit
                .labels_of(*run)
                .is_some_and(|labels| scope.labels.matches(labels));
        named && labelled
    });
    in_scope.map(|(_, group)| group.clone()).collect()
}
