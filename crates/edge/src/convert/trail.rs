//! The audit log, in the contract's form.

use super::time;
use crate::{
    enums::named,
    pb::{self, audit_record::Record},
};
use kennel_lifecycle::{RunId, Timestamp, Violation};
use kennel_supervisor::{LoggedProcess, TrailAsk, TrailEntry, TrailKind, TrailRecord};

pub(crate) fn ask(request: &pb::StreamAuditRequest, found: &mut Vec<Violation>) -> TrailAsk {
    let of_run = !request.run_id.is_empty();
    if of_run && request.run_id.parse::<RunId>().is_err() {
        found.push(Violation::new("run_id", "must be a ULID"));
    }
    let mut ask = TrailAsk {
        after_seq: request.after_seq,
        run: of_run.then(|| request.run_id.clone()),
        since: time::parse_timestamp("since_time", request.since_time.as_ref(), found),
        until: time::parse_timestamp("until_time", request.until_time.as_ref(), found),
        follow: request.follow,
        ..TrailAsk::default()
    };
    let kind_of = |kind| match kind {
        pb::AuditKind::Unspecified => None,
        pb::AuditKind::Request => Some(TrailKind::Request),
        pb::AuditKind::Signal => Some(TrailKind::Signal),
        pb::AuditKind::Node => Some(TrailKind::Node),
    };
    let kinds = request.kinds.iter();
    let kinds = kinds.filter_map(|kind| named("kinds", *kind, "AuditKind", kind_of, found));
    ask.kinds = kinds.collect();
    if request.kinds.is_empty() {
        ask.kinds = vec![TrailKind::Request, TrailKind::Signal];
        ask.kinds.extend((!of_run).then_some(TrailKind::Node));
    }
    ask
}

pub(crate) fn record(record: TrailRecord) -> pb::AuditRecord {
    let TrailRecord {
        seq,
        // `prev` and `repeats` are useful only with the line.
        prev: _,
        repeats: _,
        at_us,
        run,
        entry,
    } = record;
    pb::AuditRecord {
        seq,
        time: Some(time::timestamp(Timestamp(at_us))),
        run_id: run.unwrap_or_default(),
        record: Some(match entry {
            TrailEntry::Request(reported) => Record::Request(pb::AuditRequest {
                rpc: reported.rpc,
                by: reported.by,
                pid: reported.pid,
                credential: reported.credential,
                request_id: reported.request_id,
                asked: reported.asked,
                code: reported.code,
                reason: reported.reason,
                calls: reported.calls,
                bytes: reported.bytes,
            }),
            TrailEntry::Signal(reported) => Record::Signal(pb::AuditSignal {
                attempt: reported.attempt,
                signal: reported.signal,
                scope: reported.scope,
                sender: reported.sender,
                why: reported.why,
                delivered: reported.delivered,
                gone: reported.gone,
                refused: reported.refused,
                error_number: reported.errno,
                processes: reported.processes.into_iter().map(process).collect(),
                unlisted: reported.unlisted,
                boot_id: reported.boot_id,
            }),
            TrailEntry::Node(reported) => Record::Node(pb::AuditNode {
                what: reported.what,
                detail: reported.detail,
            }),
        }),
    }
}

fn process(reported: LoggedProcess) -> pb::AuditProcess {
    pb::AuditProcess {
        pid: reported.pid,
        start_ticks: reported.start_ticks,
        evidence: reported.evidence,
        result: reported.result,
    }
}
