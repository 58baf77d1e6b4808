//! The record of a requested change in the audit log.

use super::{Context, Logs};
use crate::{
    auth, convert::time, forward::AskItsNode, layers::deadline::CallDeadline, reason::Reason,
    status::code_name,
};
use kennel_lifecycle::limits::REQUEST_ID_BYTES_MAX;
use kennel_supervisor::{LoggedRequest, LoggedSignal, Supervisor, TrailEntry, TrailRecord};
use tonic::{Code, Status};
use tonic_types::StatusExt;

/// A requested change. Dropped before its answer, it is recorded all the same: its caller has gone, its deadline has
/// passed, or its handler has panicked, and the change may be made.
pub(crate) struct Asked {
    supervisor: Supervisor,
    /// Time of the request.
    at_us: i64,
    run: Option<String>,
    deadline: Option<CallDeadline>,
    asks_node: Option<AskItsNode>,
    reported: Option<LoggedRequest>,
}

impl Asked {
    pub(super) fn new(supervisor: &Supervisor, context: &Context<'_>, rpc: &str) -> Self {
        let now = TrailRecord::now(None, TrailEntry::Request(LoggedRequest::default()));
        Self {
            supervisor: supervisor.clone(),
            at_us: now.at_us,
            run: None,
            deadline: context.extensions.get().cloned(),
            asks_node: context.extensions.get().cloned(),
            reported: Some(auth::logged(&context.caller, rpc, Code::Cancelled)),
        }
    }

    pub(super) fn of_run(mut self, run: &str) -> Self {
        self.run = (!run.is_empty()).then(|| run.to_owned());
        self
    }

    pub(super) fn with(self, name: &str, value: impl Into<String>) -> Self {
        self.change(|reported| *reported = std::mem::take(reported).with(name, value))
    }

    pub(super) fn id(self, request_id: &str) -> Self {
        let end = request_id.floor_char_boundary(REQUEST_ID_BYTES_MAX);
        self.change(|reported| request_id[..end].clone_into(&mut reported.request_id))
    }

    /// Adds a length of time, where one is given.
    pub(super) fn with_time(self, name: &str, time: Option<&prost_types::Duration>) -> Self {
        match time {
            Some(time) => self.with(name, time::text(time)),
            None => self,
        }
    }

    pub(super) fn of_bytes(self, bytes: usize) -> Self {
        self.change(|reported| reported.bytes = u64::try_from(bytes).unwrap_or(u64::MAX))
    }

    fn change(mut self, change: impl FnOnce(&mut LoggedRequest)) -> Self {
        if let Some(reported) = &mut self.reported {
            change(reported);
        }
        self
    }

    /// Adds a signal to processes of a run, with the caller as its owner, as a record of its own.
    pub(super) fn signalled(self, run: Option<String>, mut signal: LoggedSignal) -> Self {
        if let Some(reported) = &self.reported {
            signal.owner.clone_from(&reported.by);
        }
        let record = TrailRecord::now(run, TrailEntry::Signal(signal));
        self.supervisor.audit_log().record(record);
        self
    }

    /// The caller, as a principal.
    pub(super) fn by(&self) -> &str {
        self.reported.as_ref().map_or("", |reported| &reported.by)
    }

    /// A requested value that [`Self::with`] has added.
    pub(super) fn asked(&self, name: &str) -> String {
        let reported = self.reported.as_ref();
        let asked = reported.and_then(|reported| reported.asked.get(name));
        asked.cloned().unwrap_or_default()
    }

    /// The run of the request, as its text.
    pub(super) fn run(&self) -> Option<&str> {
        self.run.as_deref()
    }

    /// Records the end of the call, by its error or without one: each on disk before the answer.
    pub(super) async fn end(mut self, logs: Logs, error: Option<&Status>) {
        let Some(mut reported) = self.reported.take() else {
            return;
        };
        let code = error.map_or(Code::Ok, Status::code);
        code_name(code).clone_into(&mut reported.code);
        let info = error.and_then(StatusExt::get_details_error_info);
        reported.reason = info.map(|info| info.reason).unwrap_or_default();
        let is_elsewhere = reported.reason == Reason::RunOnOtherNode.as_str();
        let asks_node = self.asks_node.take().filter(|_| is_elsewhere);
        let record = self.record(reported);
        if let Some(mark) = asks_node {
            // Recorded once the other node has answered, or with this node's own answer.
            mark.record(Some((record, logs == Logs::Summed)));
        } else if logs == Logs::Summed {
            self.supervisor.audit_log().count(record);
        } else {
            self.supervisor.audit_log().record_written(record).await;
        }
    }

    fn record(&mut self, reported: LoggedRequest) -> TrailRecord {
        TrailRecord {
            at_us: self.at_us,
            ..TrailRecord::now(self.run.take(), TrailEntry::Request(reported))
        }
    }
}

impl Drop for Asked {
    fn drop(&mut self) {
        if let Some(mut reported) = self.reported.take() {
            let answered = if std::thread::panicking() {
                Some((Code::Internal, Reason::Internal))
            } else {
                let has_passed = self.deadline.as_ref().is_some_and(CallDeadline::has_passed);
                has_passed.then_some((Code::DeadlineExceeded, Reason::DeadlineExceeded))
            };
            if let Some((code, reason)) = answered {
                code_name(code).clone_into(&mut reported.code);
                reason.as_str().clone_into(&mut reported.reason);
            }
            let record = self.record(reported);
            self.supervisor.audit_log().record(record);
        }
    }
}

/// Returns the name of an enum's value without its prefix.
pub(super) fn word(name: &str, prefix: &str) -> String {
    name.strip_prefix(prefix).unwrap_or(name).to_lowercase()
}
