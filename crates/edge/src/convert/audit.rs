//! Leak checks and reaps, in the contract's form.

use super::{labels, spec::run_named, time};
use crate::{
    enums::{known, mapped, named},
    pb,
};
use kennel_lifecycle::{
    ProcessIdentity, RunId, Violation,
    audit::{
        Certainty, Evidence, RunStatus,
        reap::{Scope, Spared},
    },
    limits as bounds,
};
use kennel_supervisor::{
    Audit, AuditFinding, Fate, Judged, ReapCall, ReapReport, ReapResult, ServiceSeen, SocketSeen,
    Unverified,
};
use prost::Message;
use std::{collections::BTreeSet, time::Duration};

/// Most processes, and most empty control groups, that one answer lists.
const LISTED_MAX: usize = 4096;
/// Most bytes of one answer for the descriptions of processes: labels and paths may be long.
const LISTED_BYTES_MAX: usize = 2 * 1024 * 1024;
/// Most runs without a task that are listed.
const UNATTENDED_MAX: usize = 1000;
/// Runs that a request may name.
const RUN_IDS_MAX: usize = 1000;
/// Processes that a request may name.
const PROCESSES_MAX: usize = 2048;
/// Default time between SIGTERM and SIGKILL.
const GRACE_DEFAULT: Duration = bounds::GRACE_DEFAULT;
/// The longest such time: the caller waits meanwhile.
const GRACE_MAX: Duration = Duration::from_mins(1);

pub(crate) fn audit(audit: Audit) -> pb::LeakAudit {
    let count = audit.findings.len();
    let mut bytes = 0;
    let fits = |process: &pb::LeakedProcess| {
        bytes += process.encoded_len();
        bytes <= LISTED_BYTES_MAX
    };
    let processes = audit.findings.into_iter().take(LISTED_MAX).map(found);
    let processes: Vec<pb::LeakedProcess> = processes.take_while(fits).collect();
    let unlisted = count - processes.len();
    let groups = audit.directories.into_iter().take(LISTED_MAX);
    let unattended = audit.unattended.iter().take(UNATTENDED_MAX);
    pb::LeakAudit {
        processes,
        unlisted_processes: u32::try_from(unlisted).unwrap_or(u32::MAX),
        empty_cgroups: groups
            .map(|(run, group)| pb::EmptyCgroup {
                run_id: run.to_string(),
                path: group.path,
            })
            .collect(),
        live_runs: audit.live_runs,
        held_processes: audit.held,
        foreign_processes: audit.foreign,
        unattended_run_ids: unattended.map(RunId::to_string).collect(),
        unknown_run_directories: audit.unknown_run_dirs,
        service: Some(service(audit.service)),
        unverified: audit.unverified.into_iter().map(unverified).collect(),
    }
}

fn found(found: AuditFinding) -> pb::LeakedProcess {
    let (finding, described) = (found.finding, found.described);
    let labels = found.labels.map(|labels| (*labels).clone());
    pb::LeakedProcess {
        process: Some(process(&finding.process)),
        parent_pid: finding.ppid,
        process_group_id: finding.process.pgid,
        session_id: finding.process.sid,
        name: described.name,
        argv0: described.argv0,
        uid: described.uid,
        state: described.state.to_string(),
        age: Some(time::duration(described.age)),
        cgroup: described.cgroup.unwrap_or_default(),
        run_id: finding.run.map(|run| run.to_string()).unwrap_or_default(),
        labels: labels.unwrap_or_default(),
        evidence: evidence(finding.evidence).into(),
        certainty: certainty(finding.certainty).into(),
        run_standing: standing(finding.standing).into(),
    }
}

fn process(identity: &ProcessIdentity) -> pb::ProcessRef {
    pb::ProcessRef {
        pid: identity.pid,
        start_ticks: identity.start_ticks,
        pidfs_inode: identity.pidfs_handle,
    }
}

mapped! {
    fn evidence(Evidence) -> LeakEvidence, fn evidence_of
    { Kept LeakedCgroup Shim ShimChild RecordedGroup Marker Stray Zombie }
}
mapped! { fn certainty(Certainty) -> LeakCertainty { Proven Hint } }
mapped! {
    fn spared(Spared) -> SpareReason
    { RunIsLive NotProven MarkerNotNamed RunUnknown OtherUser Kept Stray Zombie Shim }
}

fn standing(standing: Option<RunStatus>) -> pb::LeakedRunStanding {
    match standing {
        None => pb::LeakedRunStanding::Unspecified,
        Some(RunStatus::Live) => pb::LeakedRunStanding::Live,
        Some(RunStatus::Open) => pb::LeakedRunStanding::Open,
        Some(RunStatus::Ended | RunStatus::Kept) => pb::LeakedRunStanding::Ended,
    }
}

mapped! { fn socket_state(SocketSeen) -> SocketState { InPlace Missing Replaced } }

fn service(seen: ServiceSeen) -> pb::ServiceCheck {
    let sockets = seen.sockets.into_iter().map(|(path, seen)| {
        let state = socket_state(seen).into();
        pb::SocketCheck { path, state }
    });
    pb::ServiceCheck {
        sockets: sockets.collect(),
        lock_in_place: seen.lock_is_ours,
        keeper_descriptors: seen.keeper_fds,
        server_descriptors: seen.server_fds,
        descriptors_max: seen.fds_max,
        host_unchanged: seen.host_is_same,
        clock_behind: seen.clock_behind.map(time::duration),
    }
}

fn unverified(area: Unverified) -> pb::UnverifiedArea {
    use pb::UnverifiedKind as Kind;
    let (kind, count, detail) = match area {
        Unverified::StoreAway(why) => (Kind::StoreAway, 0, why),
        Unverified::RowsCut => (Kind::RecordsCut, 0, String::new()),
        Unverified::Environs(count) => (Kind::Environments, count, String::new()),
        Unverified::LongEnvirons(count) => (Kind::LongEnvironments, count, String::new()),
        Unverified::Processes(count) => (Kind::Processes, count, String::new()),
        Unverified::ProcHidden(option) => (Kind::ProcHidden, 0, option),
        Unverified::Groups(count) => (Kind::Cgroups, count, String::new()),
        Unverified::RunDirs(count) => (Kind::RunDirectories, count, String::new()),
    };
    pb::UnverifiedArea {
        kind: kind.into(),
        count,
        detail,
    }
}

pub(crate) fn reap(
    request: &pb::ReapLeaksRequest,
    by: String,
    wrong: &mut Vec<Violation>,
) -> ReapCall {
    let execute = match known("mode", request.mode, "ReapMode", wrong) {
        pb::ReapMode::Execute => true,
        pb::ReapMode::Unspecified | pb::ReapMode::DryRun => false,
    };
    let older = time::parse_duration("older_than", request.older_than.as_ref(), wrong);
    let grace = time::parse_duration("grace", request.grace.as_ref(), wrong);
    if grace.is_some_and(|grace| grace > GRACE_MAX) {
        wrong.push(Violation::new("grace", "must be at most 60 seconds"));
    }
    let scope = Scope {
        runs: run_ids(&request.run_ids, wrong),
        labels: labels::selector("", &request.labels, &request.label_selector, wrong),
        older: older.unwrap_or_default(),
        evidence: named_evidence(&request.evidence, wrong),
        processes: processes(&request.processes, wrong),
    };
    ReapCall {
        scope,
        grace: grace.unwrap_or(GRACE_DEFAULT),
        execute,
        by,
    }
}

fn run_ids(ids: &[String], wrong: &mut Vec<Violation>) -> BTreeSet<RunId> {
    if ids.len() > RUN_IDS_MAX {
        let most = format!("must have at most {RUN_IDS_MAX} entries");
        wrong.push(Violation::new("run_ids", most));
    }
    let ids = ids.iter().take(RUN_IDS_MAX).enumerate();
    ids.filter_map(|(i, id)| run_named(format!("run_ids[{i}]"), id, wrong))
        .collect()
}

fn named_evidence(numbers: &[i32], wrong: &mut Vec<Violation>) -> BTreeSet<Evidence> {
    let numbers = numbers.iter().enumerate();
    let evidence = numbers.filter_map(|(i, number)| {
        let field = format!("evidence[{i}]");
        named(&field, *number, "LeakEvidence", evidence_of, wrong)
    });
    evidence.collect()
}

fn processes(refs: &[pb::ProcessRef], wrong: &mut Vec<Violation>) -> Vec<ProcessIdentity> {
    if refs.len() > PROCESSES_MAX {
        let most = format!("must have at most {PROCESSES_MAX} entries");
        wrong.push(Violation::new("processes", most));
    }
    let mut named = Vec::new();
    for (i, process) in refs.iter().take(PROCESSES_MAX).enumerate() {
        if process.pid <= 0 || process.start_ticks == 0 {
            let both = "must have the pid and the start_ticks of an audit";
            wrong.push(Violation::new(format!("processes[{i}]"), both));
        }
        named.push(ProcessIdentity {
            pid: process.pid,
            pgid: 0,
            sid: 0,
            start_ticks: process.start_ticks,
            pidfs_handle: process.pidfs_inode,
        });
    }
    named
}

pub(crate) fn reaped(report: ReapReport) -> pb::ReapLeaksResponse {
    let areas = report.audit.unverified.into_iter();
    let mut bytes = 0;
    let processes = report.judged.into_iter().map(|one| {
        let mut reported = judged(one);
        bytes += reported.encoded_len();
        if bytes > LISTED_BYTES_MAX {
            reported.found = None;
        }
        reported
    });
    pb::ReapLeaksResponse {
        processes: processes.collect(),
        empty_cgroups: report.directories,
        left_over: report.left_over,
        unverified: areas.map(unverified).collect(),
    }
}

fn judged(judged: Judged) -> pb::ReapedProcess {
    use pb::ReapOutcome as Outcome;
    let mut spare_reason = pb::SpareReason::Unspecified;
    let mut signal = String::new();
    let mut errno = None;
    let outcome = match judged.result {
        ReapResult::Planned => Outcome::Planned,
        ReapResult::Spared(why) => {
            spare_reason = spared(why);
            Outcome::Spared
        }
        ReapResult::NotFound => Outcome::NotFound,
        ReapResult::Done(Fate::Ended(last)) => {
            signal = last.to_string();
            Outcome::Ended
        }
        ReapResult::Done(Fate::Gone) => Outcome::Gone,
        ReapResult::Done(Fate::Changed) => Outcome::Changed,
        ReapResult::Done(Fate::Failed(number)) => {
            errno = Some(number);
            Outcome::Failed
        }
        ReapResult::Done(Fate::Survived) => Outcome::Survived,
    };
    pb::ReapedProcess {
        process: Some(process(&judged.process)),
        found: judged.found.map(found),
        outcome: outcome.into(),
        spare_reason: spare_reason.into(),
        signal,
        error_number: errno,
    }
}

#[cfg(test)]
mod tests;
