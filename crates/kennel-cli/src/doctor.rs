//! Leaked processes: `doctor` finds them, `reap` ends them.

use crate::{
    args::{LabelArgs, of_enum},
    complete,
    failure::Failure,
    link::Link,
    sentence::{self, Fields},
    spec, values,
    view::DetailView,
    words,
};
use clap::Args;
use clap_complete::engine::ArgValueCompleter;
use kennel_proto::{
    fields::ToFields as _,
    pb::{self, LeakEvidence},
};
use serde_json::json;
use std::{fmt::Write as _, time::Duration};

#[derive(Debug, Args)]
pub struct DoctorArgs {
    /// Prove on this host that no process escapes: run programs that try to, in a temporary service with your
    /// privileges. Uses no server and leaves nothing
    #[arg(long)]
    pub prove: bool,
}

#[derive(Debug, Args)]
pub struct ReapArgs {
    /// End the processes: SIGTERM, after the grace period SIGKILL [default: a dry run]
    #[arg(long)]
    pub(crate) yes: bool,
    /// Select processes of this run; may be repeated
    #[arg(long = "run", value_name = "RUN", add = ArgValueCompleter::new(complete::runs))]
    pub(crate) runs: Vec<String>,
    #[command(flatten)]
    pub(crate) labels: LabelArgs,
    /// Select processes older than this, such as 10m
    #[arg(long, value_name = "DURATION", value_parser = values::duration)]
    pub(crate) older: Option<Duration>,
    /// Select processes found by this evidence; may be repeated [default: all that proves]
    #[arg(long, value_name = "EVIDENCE", value_parser = of_enum("kennel.v1.LeakEvidence", LeakEvidence::from_str_name))]
    pub(crate) evidence: Vec<LeakEvidence>,
    /// Select this process by its reference in a dry run; may be repeated
    #[arg(long = "process", value_name = "PID:START[:INODE]", value_parser = values::process)]
    pub(crate) processes: Vec<kennel_proto::pb::ProcessRef>,
    /// Grace period between SIGTERM and SIGKILL, at most 60s [default: 5s]
    #[arg(long, value_name = "DURATION", value_parser = values::duration)]
    pub(crate) grace: Option<Duration>,
}

/// Leaks or faults were found.
const FOUND: u8 = 3;
/// Nothing is proven; there are hints, or not everything could be checked.
const UNSURE: u8 = 4;
/// A selected process is still there.
const LEFT: u8 = 3;
/// Width of the words before the lines of a report.
const KIND_WIDTH: usize = 8;

/// Runs the leak check, and returns the exit code.
pub(crate) async fn doctor(link: &Link) -> Result<u8, Failure> {
    let answer = link.call(pb::AuditLeaksRequest {}).await?;
    let Some(audit) = answer.audit else {
        return Err(Failure::new("the server's answer has no audit in it"));
    };
    let host = super::status::server(link).await?.host.unwrap_or_default();
    let is_limited = |c: &&pb::Capability| !c.available && c.name == "unlimited_memory";
    let limit = host.capabilities.iter().find(is_limited);
    let limit = limit.map(|c| format!("LIMIT    {}: {}\n", c.why, c.instead));
    let text = || limit.unwrap_or_default() + &report(&audit);
    link.print(&audit, text)?;
    Ok(code(&audit))
}

fn code(audit: &pb::LeakAudit) -> u8 {
    let is_kept = |p: &pb::LeakedProcess| p.evidence() == pb::LeakEvidence::Kept;
    let proven = |p: &pb::LeakedProcess| p.certainty() == pb::LeakCertainty::Proven && !is_kept(p);
    let service = audit.service.clone().unwrap_or_default();
    let sockets = service.sockets.iter();
    let sound = service.lock_in_place
        && service.host_unchanged
        && service.clock_behind.is_none()
        && sockets
            .clone()
            .all(|s| s.state() == pb::SocketState::InPlace);
    if audit.processes.iter().any(proven)
        || audit.unlisted_processes > 0
        || !audit.empty_cgroups.is_empty()
        || !audit.unattended_run_ids.is_empty()
        || !sound
    {
        FOUND
    } else if !audit.processes.iter().all(is_kept) || !audit.unverified.is_empty() {
        UNSURE
    } else {
        0
    }
}

fn report(audit: &pb::LeakAudit) -> String {
    let verdict = match code(audit) {
        0 => "clean: everything was looked at, and nothing was left behind",
        UNSURE => {
            "unsure: nothing is proven to be left behind, and not everything is proven to be clean"
        }
        _ => "not clean",
    };
    let mut view = DetailView::new(KIND_WIDTH);
    let more = json!({"verdict": verdict});
    let lines = include_str!("doctor.txt");
    view.lines(lines, &Fields::of(&more).inner(&audit.to_fields()));
    view.text
}

fn processes(count: impl TryInto<u64>) -> String {
    values::counted(count, "process", "processes")
}

/// Ends leaked processes, or lists them as a dry run; returns the exit code.
pub(crate) async fn reap(link: &Link, args: ReapArgs) -> Result<u8, Failure> {
    let mode = if args.yes {
        pb::ReapMode::Execute
    } else {
        pb::ReapMode::DryRun
    };
    let request = pb::ReapLeaksRequest {
        mode: mode.into(),
        run_ids: link.run_ids(&args.runs).await?,
        label_selector: args.labels.selector(),
        labels: std::collections::BTreeMap::new(),
        older_than: spec::span(args.older, "age")?,
        evidence: args.evidence.into_iter().map(Into::into).collect(),
        processes: args.processes,
        grace: spec::span(args.grace, "grace")?,
    };
    let answer = link.call(request).await?;
    link.print(&answer, || reaped(&answer, args.yes))?;
    let over = |process: &pb::ReapedProcess| {
        use pb::ReapOutcome::{Ended, Gone, Planned};
        matches!(process.outcome(), Ended | Gone | Planned)
    };
    let all = answer.processes.iter().all(over) && answer.left_over == 0;
    Ok(if all { 0 } else { LEFT })
}

fn reaped(answer: &pb::ReapLeaksResponse, executed: bool) -> String {
    let mut text = String::new();
    for process in &answer.processes {
        let what = match process.found.as_ref() {
            Some(found) => sentence::of("leakedProcess", found),
            None => sentence::of("processRef", &process.process.unwrap_or_default()),
        };
        let outcome = sentence::of("reapedProcess", process);
        let _ = writeln!(text, "{outcome:12} {what}");
        if process.outcome() == pb::ReapOutcome::Spared {
            let _ = writeln!(
                text,
                "{:12} because {}",
                "",
                words::word(process.spare_reason().as_str_name())
            );
        }
    }
    if answer.empty_cgroups > 0 {
        let done = if executed {
            "removed"
        } else {
            "would be removed"
        };
        let _ = writeln!(text, "{} empty control groups {done}", answer.empty_cgroups);
    }
    if answer.left_over > 0 {
        let _ = writeln!(text, "... and {} more", answer.left_over);
    }
    for area in &answer.unverified {
        let area = sentence::of("unverifiedArea", area);
        let _ = writeln!(text, "UNSEEN       {area}");
    }
    let planned = |p: &&pb::ReapedProcess| p.outcome() == pb::ReapOutcome::Planned;
    let planned = answer.processes.iter().filter(planned).count();
    if executed {
        let _ = writeln!(text, "requested: {}", processes(answer.processes.len()));
    } else {
        let how = values::only_if(planned > 0, "; --yes does it");
        let planned = processes(planned);
        let _ = writeln!(
            text,
            "no process was signalled; would be ended: {planned}{how}"
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{collections::BTreeMap, time::Duration};

    fn process(certainty: pb::LeakCertainty) -> pb::LeakedProcess {
        pb::LeakedProcess {
            process: Some(pb::ProcessRef {
                pid: 7,
                start_ticks: 8,
                pidfs_inode: Some(9),
            }),
            parent_pid: 1,
            name: "sleep".into(),
            argv0: "/bin/sleep".into(),
            state: "S".into(),
            age: Duration::from_mins(3).try_into().ok(),
            run_id: "01ARZ3NDEKTSV4RRFFQ69G5FAV".into(),
            labels: BTreeMap::from([("team".into(), "blue".into())]),
            evidence: pb::LeakEvidence::ShimChild.into(),
            certainty: certainty.into(),
            run_standing: pb::LeakedRunStanding::Ended.into(),
            ..pb::LeakedProcess::default()
        }
    }

    fn sound() -> pb::LeakAudit {
        pb::LeakAudit {
            service: Some(pb::ServiceCheck {
                lock_in_place: true,
                host_unchanged: true,
                ..pb::ServiceCheck::default()
            }),
            ..pb::LeakAudit::default()
        }
    }

    // promise: F-6
    #[test]
    fn doctor_reports_clean_only_after_full_check() {
        assert_eq!(code(&sound()), 0);
        assert!(report(&sound()).ends_with("nothing was left behind\n"));
        let mut unseen = sound();
        unseen.unverified.push(pb::UnverifiedArea {
            kind: pb::UnverifiedKind::StoreAway.into(),
            count: 0,
            detail: "it is down".into(),
        });
        assert_eq!(code(&unseen), UNSURE);
        assert!(
            report(&unseen).contains("UNSEEN   nothing was compared with the store: it is down\n")
        );
        let mut hinted = sound();
        hinted.processes.push(process(pb::LeakCertainty::Hint));
        assert_eq!(code(&hinted), UNSURE);
        let mut kept = sound();
        kept.processes.push(pb::LeakedProcess {
            evidence: pb::LeakEvidence::Kept.into(),
            ..process(pb::LeakCertainty::Proven)
        });
        assert_eq!(code(&kept), 0);
        assert!(report(&kept).contains("kept     7:8:9 "));
        let mut left = sound();
        left.processes.push(process(pb::LeakCertainty::Proven));
        assert_eq!(code(&left), FOUND);
        let mut unlocked = sound();
        unlocked.service.as_mut().expect("it has one").lock_in_place = false;
        assert_eq!(code(&unlocked), FOUND);
    }

    #[test]
    fn leaked_process_line_has_owner_and_reason() {
        assert_eq!(
            sentence::of("leakedProcess", &process(pb::LeakCertainty::Proven)),
            "7:8:9 sleep /bin/sleep uid 0 S age 3m00s parent 1 of run 01ARZ3NDEKTSV4RRFFQ69G5FAV (over) team=blue [shim-child]"
        );
    }

    #[test]
    fn reap_dry_run_reports_planned_and_spared_processes() {
        let answer = pb::ReapLeaksResponse {
            processes: vec![
                pb::ReapedProcess {
                    process: process(pb::LeakCertainty::Proven).process,
                    found: Some(process(pb::LeakCertainty::Proven)),
                    outcome: pb::ReapOutcome::Planned.into(),
                    ..pb::ReapedProcess::default()
                },
                pb::ReapedProcess {
                    process: process(pb::LeakCertainty::Hint).process,
                    outcome: pb::ReapOutcome::Spared.into(),
                    spare_reason: pb::SpareReason::MarkerNotNamed.into(),
                    ..pb::ReapedProcess::default()
                },
            ],
            ..pb::ReapLeaksResponse::default()
        };
        let text = reaped(&answer, false);
        assert!(text.starts_with("would end    7:8:9 sleep "), "{text}");
        assert!(text.contains("because a marker is no proof"), "{text}");
        assert!(
            text.contains("no process was signalled; would be ended: 1 process; --yes does it"),
            "{text}"
        );
    }
}
