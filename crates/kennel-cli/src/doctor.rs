//! Leaked processes: `doctor` finds them, `reap` ends them.

use super::{link::Link, spec, words};
use crate::{args::ReapArgs, failure::Failure, values};
use kennel_proto::pb;
use std::{fmt::Write as _, time::Duration};

/// Leaks or faults were found.
const FOUND: u8 = 3;
/// Nothing is proven; there are hints, or not everything could be checked.
const UNSURE: u8 = 4;
/// A selected process is still there.
const LEFT: u8 = 3;

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
    let mut text = String::new();
    // Writing to a String cannot fail.
    let _ = writeln!(
        text,
        "live     {}, {} of theirs",
        values::counted(audit.live_runs, "run", "runs"),
        processes(audit.held_processes)
    );
    for process in &audit.processes {
        let word = match (process.evidence(), process.certainty()) {
            (pb::LeakEvidence::Kept, _) => "kept",
            (_, pb::LeakCertainty::Proven) => "LEFT",
            _ => "hint",
        };
        let _ = writeln!(text, "{word:8} {}", line(process));
    }
    more(&mut text, audit.unlisted_processes);
    for group in &audit.empty_cgroups {
        let _ = writeln!(text, "LEFT     empty control group {}", group.path);
    }
    for run in &audit.unattended_run_ids {
        let _ = writeln!(
            text,
            "OPEN     run {run} is recorded as open and is not supervised"
        );
    }
    service(&mut text, &audit.service.clone().unwrap_or_default());
    if audit.foreign_processes > 0 {
        let _ = writeln!(
            text,
            "others   {} with the marker of another installation",
            processes(audit.foreign_processes)
        );
    }
    if audit.unknown_run_directories > 0 {
        let _ = writeln!(
            text,
            "note     {} directories of runs have no record",
            audit.unknown_run_directories
        );
    }
    for area in &audit.unverified {
        let _ = writeln!(text, "UNSEEN   {}", unseen(area));
    }
    let verdict = match code(audit) {
        0 => "clean: everything was looked at, and nothing was left behind",
        UNSURE => {
            "unsure: nothing is proven to be left behind, and not everything is proven to be clean"
        }
        _ => "not clean",
    };
    let _ = writeln!(text, "{verdict}");
    text
}

fn processes(count: impl TryInto<u64>) -> String {
    values::counted(count, "process", "processes")
}

fn more(text: &mut String, count: u32) {
    if count > 0 {
        let _ = writeln!(text, "... and {count} more");
    }
}

fn service(text: &mut String, service: &pb::ServiceCheck) {
    for socket in &service.sockets {
        let what = match socket.state() {
            pb::SocketState::InPlace => continue,
            pb::SocketState::Missing => "is gone: no new client can connect",
            _ => "was replaced: no new client can connect",
        };
        let _ = writeln!(text, "SOCKET   {} {what}", socket.path);
    }
    if !service.lock_in_place {
        text.push_str("LOCK     the lock of the data directory was replaced: a second service could start on it\n");
    }
    if !service.host_unchanged {
        text.push_str("HOST     boot or pid namespace is another one than at the start\n");
    }
    if let Some(behind) = service
        .clock_behind
        .and_then(|d| Duration::try_from(d).ok())
    {
        let behind = values::age(behind);
        let _ = writeln!(
            text,
            "CLOCK    the clock is {behind} behind the newest record"
        );
    }
    let fds = |name, open: Option<u64>| {
        let (open, most) = (open?, service.descriptors_max?);
        Some(format!("{name} {open} of {most}"))
    };
    let fds = [
        fds("keeper", service.keeper_descriptors),
        fds("server", service.server_descriptors),
    ];
    let fds: Vec<String> = fds.into_iter().flatten().collect();
    if !fds.is_empty() {
        let _ = writeln!(text, "fds      {}", fds.join(", "));
    }
}

/// Formats one process: identity, description, run and evidence.
fn line(process: &pb::LeakedProcess) -> String {
    let mut line = identity(process.process.as_ref());
    let age = process.age.and_then(|age| Duration::try_from(age).ok());
    let _ = write!(
        line,
        " {} {} uid {} {} age {} parent {}",
        word(&process.name),
        word(&process.argv0),
        process.uid,
        process.state,
        values::age(age.unwrap_or_default()),
        process.parent_pid
    );
    if process.run_id.is_empty() {
        line.push_str(" of no run");
    } else {
        let _ = write!(
            line,
            " of run {}{}",
            process.run_id,
            words::word(process.run_standing().as_str_name())
        );
    }
    for (key, value) in &process.labels {
        let _ = write!(line, " {key}={value}");
    }
    let _ = write!(line, " [{}]", words::evidence(process.evidence()));
    line
}

/// Formats a process's own name, which may contain anything.
fn word(text: &str) -> String {
    values::command_line([text])
}

/// Formats the identity as `--process` takes it.
fn identity(process: Option<&pb::ProcessRef>) -> String {
    let process = process.copied().unwrap_or_default();
    let inode = process.pidfs_inode.map(|inode| format!(":{inode}"));
    format!(
        "{}:{}{}",
        process.pid,
        process.start_ticks,
        inode.unwrap_or_default()
    )
}

fn unseen(area: &pb::UnverifiedArea) -> String {
    use pb::UnverifiedKind as Kind;
    let count = area.count;
    match area.kind() {
        Kind::StoreAway => format!("nothing was compared with the store: {}", area.detail),
        Kind::RecordsCut => "not all records of ended runs were compared".to_owned(),
        Kind::Environments => {
            format!("{}: the environment cannot be read", processes(count))
        }
        Kind::LongEnvironments => format!("{}: the environment is too long", processes(count)),
        Kind::Processes => format!("{}: there are too many", processes(count)),
        Kind::ProcHidden => format!("processes of other users: /proc is mounted {}", area.detail),
        Kind::Cgroups => format!("{count} directories of control groups cannot be read"),
        Kind::RunDirectories => format!("{count} directories of runs: there are too many"),
        Kind::Unspecified => format!("what this version of kennel does not know: {}", area.detail),
    }
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
            Some(found) => line(found),
            None => identity(process.process.as_ref()),
        };
        let _ = writeln!(text, "{:12} {what}", outcome(process));
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
    more(&mut text, answer.left_over);
    for area in &answer.unverified {
        let _ = writeln!(text, "UNSEEN       {}", unseen(area));
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

fn outcome(process: &pb::ReapedProcess) -> String {
    match process.outcome() {
        pb::ReapOutcome::Planned => "would end".to_owned(),
        pb::ReapOutcome::Spared => "LEFT ALONE".to_owned(),
        pb::ReapOutcome::NotFound => "NOT FOUND".to_owned(),
        pb::ReapOutcome::Ended => format!("ended {}", process.signal),
        pb::ReapOutcome::Gone => "gone".to_owned(),
        pb::ReapOutcome::Changed => "CHANGED".to_owned(),
        pb::ReapOutcome::Failed => {
            format!(
                "FAILED: {}",
                words::errno(process.error_number.unwrap_or_default())
            )
        }
        pb::ReapOutcome::Survived => "SURVIVED".to_owned(),
        pb::ReapOutcome::Unspecified => "unknown".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

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
            line(&process(pb::LeakCertainty::Proven)),
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
