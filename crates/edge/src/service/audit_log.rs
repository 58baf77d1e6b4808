//! Audit-log decorator: records every mutating rpc with its result.
//!
//! It wraps the services, so that none of them has to do it; a new rpc does not compile before it is classified here.

mod admin;

use super::Processes;
use crate::{
    access::Caller,
    auth,
    convert::{command, time},
    deadline::Deadline,
    pb::{self, process_service_server::ProcessService},
    reason::Reason,
    status::code_name,
};
use kennel_lifecycle::limits::REQUEST_ID_BYTES_MAX;
use kennel_supervisor::{
    LoggedProcess, LoggedRequest, LoggedSignal, Supervisor, TrailEntry, TrailRecord,
};
use std::future::Future;
use tonic::{Code, Request, Response, Status, Streaming, codegen::BoxStream};
use tonic_types::StatusExt;

/// Most processes that one record lists.
const PROCESSES_LOGGED_MAX: usize = 64;

/// A service with the log of its requests.
pub(crate) struct Audited<S> {
    inner: S,
    supervisor: Supervisor,
}

impl<S> Audited<S> {
    pub(crate) fn new(inner: S, supervisor: Supervisor) -> Self {
        Self { inner, supervisor }
    }

    fn asked<T>(&self, rpc: &str, request: &Request<T>, run: &str) -> Asked {
        let caller = request.extensions().get::<Caller>();
        let reported = auth::logged(caller, rpc, Code::Cancelled);
        let now = TrailRecord::now(None, TrailEntry::Request(LoggedRequest::default()));
        Asked {
            supervisor: self.supervisor.clone(),
            at_us: now.at_us,
            run: (!run.is_empty()).then(|| run.to_owned()),
            deadline: request.extensions().get().cloned(),
            reported: Some(reported),
        }
    }
}

/// A requested change. Dropped before its answer, it is recorded all the same: its caller has gone, its deadline has
/// passed, or its handler has panicked, and the change may be made.
struct Asked {
    supervisor: Supervisor,
    /// Time of the request.
    at_us: i64,
    run: Option<String>,
    deadline: Option<Deadline>,
    reported: Option<LoggedRequest>,
}

impl Asked {
    fn with(mut self, name: &str, value: impl Into<String>) -> Self {
        self.reported = self
            .reported
            .take()
            .map(|reported| reported.with(name, value));
        self
    }

    fn id(mut self, request_id: &str) -> Self {
        if let Some(reported) = &mut self.reported {
            let end = request_id.floor_char_boundary(REQUEST_ID_BYTES_MAX);
            request_id[..end].clone_into(&mut reported.request_id);
        }
        self
    }

    fn of_bytes(mut self, bytes: usize) -> Self {
        if let Some(reported) = &mut self.reported {
            reported.bytes = u64::try_from(bytes).unwrap_or(u64::MAX);
        }
        self
    }

    fn answered<T>(&mut self, answer: &Result<Response<T>, Status>) -> Option<TrailRecord> {
        let mut reported = self.reported.take()?;
        match answer {
            Ok(_) => code_name(Code::Ok).clone_into(&mut reported.code),
            Err(status) => {
                code_name(status.code()).clone_into(&mut reported.code);
                let info = status.get_details_error_info();
                reported.reason = info.map(|info| info.reason).unwrap_or_default();
            }
        }
        Some(self.record(reported))
    }

    fn record(&mut self, reported: LoggedRequest) -> TrailRecord {
        TrailRecord {
            at_us: self.at_us,
            ..TrailRecord::now(self.run.take(), TrailEntry::Request(reported))
        }
    }

    /// Makes the change, and records it before it is answered.
    fn recorded<T>(
        self,
        change: impl Future<Output = Result<Response<T>, Status>>,
    ) -> impl Future<Output = Result<Response<T>, Status>> {
        // Boxed before the future is made, as in `unless_draining`.
        let change = Box::pin(change);
        async {
            let answer = change.await;
            self.record_answer(&answer).await;
            answer
        }
    }

    /// Makes the change, and counts it as one of many.
    fn counted<T>(
        mut self,
        change: impl Future<Output = Result<Response<T>, Status>>,
    ) -> impl Future<Output = Result<Response<T>, Status>> {
        let change = Box::pin(change);
        async move {
            let answer = change.await;
            if let Some(record) = self.answered(&answer) {
                self.supervisor.audit_counted(record);
            }
            answer
        }
    }

    /// Records a change before it is answered.
    async fn record_answer<T>(mut self, answer: &Result<Response<T>, Status>) {
        let supervisor = self.supervisor.clone();
        if let Some(record) = self.answered(answer) {
            supervisor.audit_recorded(record).await;
        }
    }
}

impl Drop for Asked {
    fn drop(&mut self) {
        if let Some(mut reported) = self.reported.take() {
            let answered = if std::thread::panicking() {
                Some((Code::Internal, Reason::Internal))
            } else {
                let has_passed = self.deadline.as_ref().is_some_and(Deadline::has_passed);
                has_passed.then_some((Code::DeadlineExceeded, Reason::DeadlineExceeded))
            };
            if let Some((code, reason)) = answered {
                code_name(code).clone_into(&mut reported.code);
                reason.as_str().clone_into(&mut reported.reason);
            }
            let record = self.record(reported);
            self.supervisor.audit_noted(record);
        }
    }
}

#[tonic::async_trait]
impl ProcessService for Audited<Processes> {
    async fn spawn(
        &self,
        request: Request<pb::SpawnRequest>,
    ) -> Result<Response<pb::SpawnResponse>, Status> {
        let body = request.get_ref();
        if body.validate_only {
            return self.inner.spawn(request).await;
        }
        let mut asked = self.asked("Spawn", &request, &body.run_id);
        if let Some(spec) = &body.spec {
            asked = asked.with("kind", word(spec.kind().as_str_name(), "RUN_KIND_"));
            // The other words of a command may contain anything.
            if let Some(pb::run_spec::Command::Argv(argv)) = &spec.command {
                asked = asked.with("command", command::name(argv));
                asked = asked.with(
                    "arguments",
                    (command::words(argv).saturating_sub(1)).to_string(),
                );
            }
        }
        let answer = self.inner.spawn(request).await;
        if let Ok(done) = &answer {
            let run = done.get_ref().run.as_ref();
            asked.run = run.map(|run| run.run_id.clone());
            if done.get_ref().existing {
                asked = asked.with("existing", "true");
            }
        }
        asked.record_answer(&answer).await;
        answer
    }

    async fn abort(
        &self,
        request: Request<pb::AbortRequest>,
    ) -> Result<Response<pb::AbortResponse>, Status> {
        let body = request.get_ref();
        let mut asked = self.asked("Abort", &request, &body.run_id);
        asked = asked.id(&body.request_id);
        if let Some(grace) = &body.grace {
            asked = asked.with("grace", time::text(grace));
        }
        asked.recorded(self.inner.abort(request)).await
    }

    async fn interrupt(
        &self,
        request: Request<pb::InterruptRequest>,
    ) -> Result<Response<pb::InterruptResponse>, Status> {
        let body = request.get_ref();
        let mut asked = self.asked("Interrupt", &request, &body.run_id);
        asked = asked.id(&body.request_id);
        let answer = self.inner.interrupt(request).await;
        if let Ok(done) = &answer {
            let method = done.get_ref().method().as_str_name();
            asked = asked.with("method", word(method, "INTERRUPT_METHOD_"));
        }
        asked.record_answer(&answer).await;
        answer
    }

    async fn signal(
        &self,
        request: Request<pb::SignalRequest>,
    ) -> Result<Response<pb::SignalResponse>, Status> {
        let body = request.get_ref();
        let target = word(body.target().as_str_name(), "SIGNAL_TARGET_");
        let mut asked = self.asked("Signal", &request, &body.run_id);
        asked = asked.id(&body.request_id);
        asked = asked.with("signal", &body.signal).with("target", target);
        let signal = body.signal.clone();
        let by = asked
            .reported
            .as_ref()
            .map_or_else(String::new, |t| t.by.clone());
        let answer = self.inner.signal(request).await;
        if let Ok(done) = &answer
            && !done.get_ref().repeated_request
        {
            let (run, reported) = signalled(done.get_ref(), signal, &by);
            let record = TrailRecord::now(run, TrailEntry::Signal(reported));
            self.supervisor.audit_noted(record);
        }
        asked.record_answer(&answer).await;
        answer
    }

    async fn resize_terminal(
        &self,
        request: Request<pb::ResizeTerminalRequest>,
    ) -> Result<Response<pb::ResizeTerminalResponse>, Status> {
        let asked = self.asked("ResizeTerminal", &request, &request.get_ref().run_id);
        asked.counted(self.inner.resize_terminal(request)).await
    }

    async fn pause(
        &self,
        request: Request<pb::PauseRequest>,
    ) -> Result<Response<pb::PauseResponse>, Status> {
        let asked = self.asked("Pause", &request, &request.get_ref().run_id);
        asked.recorded(self.inner.pause(request)).await
    }

    async fn resume(
        &self,
        request: Request<pb::ResumeRequest>,
    ) -> Result<Response<pb::ResumeResponse>, Status> {
        let asked = self.asked("Resume", &request, &request.get_ref().run_id);
        asked.recorded(self.inner.resume(request)).await
    }

    async fn restart(
        &self,
        request: Request<pb::RestartRequest>,
    ) -> Result<Response<pb::RestartResponse>, Status> {
        let body = request.get_ref();
        let mut asked = self.asked("Restart", &request, &body.run_id);
        asked = asked.id(&body.request_id);
        let answer = self.inner.restart(request).await;
        let run = answer.as_ref().ok().and_then(|a| a.get_ref().run.as_ref());
        if let Some(run) = run.filter(|run| asked.run.as_deref() != Some(&run.run_id)) {
            asked = asked.with("new_run", &run.run_id);
        }
        asked.record_answer(&answer).await;
        answer
    }

    async fn write_input(
        &self,
        request: Request<pb::WriteInputRequest>,
    ) -> Result<Response<pb::WriteInputResponse>, Status> {
        let body = request.get_ref();
        let asked = self.asked("WriteInput", &request, &body.run_id);
        let asked = asked.of_bytes(body.data.len());
        asked.counted(self.inner.write_input(request)).await
    }

    async fn close_input(
        &self,
        request: Request<pb::CloseInputRequest>,
    ) -> Result<Response<pb::CloseInputResponse>, Status> {
        let asked = self.asked("CloseInput", &request, &request.get_ref().run_id);
        asked.recorded(self.inner.close_input(request)).await
    }

    async fn get_tree(
        &self,
        request: Request<pb::GetTreeRequest>,
    ) -> Result<Response<pb::GetTreeResponse>, Status> {
        self.inner.get_tree(request).await
    }

    async fn get_input_status(
        &self,
        request: Request<pb::GetInputStatusRequest>,
    ) -> Result<Response<pb::GetInputStatusResponse>, Status> {
        self.inner.get_input_status(request).await
    }

    async fn get_run(
        &self,
        request: Request<pb::GetRunRequest>,
    ) -> Result<Response<pb::GetRunResponse>, Status> {
        self.inner.get_run(request).await
    }

    async fn list_runs(
        &self,
        request: Request<pb::ListRunsRequest>,
    ) -> Result<Response<pb::ListRunsResponse>, Status> {
        self.inner.list_runs(request).await
    }

    async fn wait_run(
        &self,
        request: Request<pb::WaitRunRequest>,
    ) -> Result<Response<pb::WaitRunResponse>, Status> {
        self.inner.wait_run(request).await
    }

    async fn wait_for_output(
        &self,
        request: Request<pb::WaitForOutputRequest>,
    ) -> Result<Response<pb::WaitForOutputResponse>, Status> {
        self.inner.wait_for_output(request).await
    }

    /// Records keys alone: values may be for the run's clients only.
    async fn annotate_run(
        &self,
        request: Request<pb::AnnotateRunRequest>,
    ) -> Result<Response<pb::AnnotateRunResponse>, Status> {
        let body = request.get_ref();
        let asked = self.asked("AnnotateRun", &request, &body.run_id);
        let set: Vec<&str> = body.set.keys().map(String::as_str).collect();
        let asked = asked.with("set", set.join(","));
        let asked = asked.with("remove", body.remove.join(","));
        let asked = match body.activity() {
            pb::Activity::Unspecified => asked,
            activity => asked.with("activity", activity.as_str_name()),
        };
        asked.recorded(self.inner.annotate_run(request)).await
    }

    async fn extend_timeouts(
        &self,
        request: Request<pb::ExtendTimeoutsRequest>,
    ) -> Result<Response<pb::ExtendTimeoutsResponse>, Status> {
        let body = request.get_ref();
        let asked = self.asked("ExtendTimeouts", &request, &body.run_id);
        let limits: Vec<&str> = body.limits().map(|limit| limit.as_str_name()).collect();
        let asked = asked.with("limits", limits.join(","));
        let asked = match &body.duration {
            Some(time) => asked.with("duration", time::text(time)),
            None => asked,
        };
        asked.recorded(self.inner.extend_timeouts(request)).await
    }

    type StreamEventsStream = BoxStream<pb::StreamEventsResponse>;

    async fn stream_events(
        &self,
        request: Request<pb::StreamEventsRequest>,
    ) -> Result<Response<Self::StreamEventsStream>, Status> {
        self.inner.stream_events(request).await
    }

    async fn ack_events(
        &self,
        request: Request<pb::AckEventsRequest>,
    ) -> Result<Response<pb::AckEventsResponse>, Status> {
        let body = request.get_ref();
        let asked = self.asked("AckEvents", &request, &body.run_id);
        let asked = asked.with("consumer", &body.consumer);
        asked.counted(self.inner.ack_events(request)).await
    }

    async fn get_consumer(
        &self,
        request: Request<pb::GetConsumerRequest>,
    ) -> Result<Response<pb::GetConsumerResponse>, Status> {
        self.inner.get_consumer(request).await
    }

    async fn list_consumers(
        &self,
        request: Request<pb::ListConsumersRequest>,
    ) -> Result<Response<pb::ListConsumersResponse>, Status> {
        self.inner.list_consumers(request).await
    }

    async fn delete_consumer(
        &self,
        request: Request<pb::DeleteConsumerRequest>,
    ) -> Result<Response<pb::DeleteConsumerResponse>, Status> {
        let body = request.get_ref();
        let asked = self.asked("DeleteConsumer", &request, &body.run_id);
        let asked = asked.with("consumer", &body.consumer);
        asked.recorded(self.inner.delete_consumer(request)).await
    }

    async fn read_screen(
        &self,
        request: Request<pb::ReadScreenRequest>,
    ) -> Result<Response<pb::ReadScreenResponse>, Status> {
        self.inner.read_screen(request).await
    }

    type AttachStream = BoxStream<pb::AttachResponse>;

    /// Typed input is recorded where it is accepted.
    async fn attach(
        &self,
        request: Request<Streaming<pb::AttachRequest>>,
    ) -> Result<Response<Self::AttachStream>, Status> {
        self.inner.attach(request).await
    }

    async fn read_output(
        &self,
        request: Request<pb::ReadOutputRequest>,
    ) -> Result<Response<pb::ReadOutputResponse>, Status> {
        self.inner.read_output(request).await
    }
}

/// Returns the targets of a client's signal.
fn signalled(
    done: &pb::SignalResponse,
    signal: String,
    by: &str,
) -> (Option<String>, LoggedSignal) {
    let run = done.run.as_ref();
    let mut reported = LoggedSignal {
        owner: by.to_owned(),
        attempt: run
            .and_then(|r| r.current_attempt.as_ref())
            .map_or(0, |a| a.number),
        signal,
        scope: "client".into(),
        sender: "keeper".into(),
        why: format!("{by} asked for it"),
        unlisted: done.unlisted_targets,
        boot_id: boot_of(run),
        ..LoggedSignal::default()
    };
    for target in &done.targets {
        let result = match target.outcome() {
            pb::SignalOutcome::Delivered | pb::SignalOutcome::Unspecified => {
                reported.delivered += 1;
                "delivered"
            }
            pb::SignalOutcome::Gone => {
                reported.gone += 1;
                "gone"
            }
            pb::SignalOutcome::Failed => {
                reported.refused += 1;
                reported.errno = reported.errno.or(target.error_number);
                "refused"
            }
        };
        if reported.processes.len() < PROCESSES_LOGGED_MAX {
            reported.processes.push(LoggedProcess {
                pid: target.pid,
                start_ticks: target.start_ticks,
                evidence: vec!["member".into()],
                result: result.into(),
            });
        } else {
            reported.unlisted += 1;
        }
    }
    (run.map(|run| run.run_id.clone()), reported)
}

fn boot_of(run: Option<&pb::Run>) -> String {
    let attempt = run.and_then(|run| run.current_attempt.as_ref());
    let identity = attempt.and_then(|attempt| attempt.identity.as_ref());
    identity.map_or_else(String::new, |identity| identity.boot_id.clone())
}

fn word(name: &str, prefix: &str) -> String {
    name.strip_prefix(prefix).unwrap_or(name).to_lowercase()
}
