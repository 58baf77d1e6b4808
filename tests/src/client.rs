//! A client of the generated contract, directly on tonic: like a foreign program.

use crate::{PATIENCE, eventually_async, must, within};
use kennel_proto::pb::{
    self, admin_service_client::AdminServiceClient, process_service_client::ProcessServiceClient,
};
use prost_types::Timestamp;
use std::{path::Path, time::Duration};
use tonic::{
    Code, Status, Streaming,
    transport::{Channel, Endpoint, Error},
};
use tonic_types::StatusExt;

/// Larger than any answer of the server.
const ANSWER_BYTES_MAX: usize = 16 * 1024 * 1024;

/// One connection.
#[derive(Clone, Debug)]
pub struct Client {
    /// Stub for runs.
    pub process: ProcessServiceClient<Channel>,
    /// Stub for the server itself.
    pub admin: AdminServiceClient<Channel>,
}

impl Client {
    /// Connects to a unix socket.
    pub async fn connect(socket: &Path) -> Result<Self, Error> {
        let channel = Endpoint::from_shared(format!("unix://{}", socket.display()))?
            .connect()
            .await?;
        Ok(Self {
            process: ProcessServiceClient::new(channel.clone())
                .max_decoding_message_size(ANSWER_BYTES_MAX)
                .max_encoding_message_size(ANSWER_BYTES_MAX),
            admin: AdminServiceClient::new(channel),
        })
    }

    /// Returns the description of the server, if it answers.
    pub async fn server_info(&mut self) -> Option<pb::ServerInfo> {
        self.admin
            .get_server_info(pb::GetServerInfoRequest {})
            .await
            .ok()?
            .into_inner()
            .server
    }

    /// Waits until a server has acquired the node, under a later generation than this one.
    pub async fn has_node_after(&self, generation: i64) -> pb::ServerInfo {
        let acquired = eventually_async("the node is acquired", PATIENCE * 2, async || {
            let info = self.clone().server_info().await?;
            (info.generation > generation).then_some(info)
        });
        acquired.await
    }

    /// Spawns under a key of the server's choice.
    pub async fn spawn(&mut self, spec: pb::RunSpec) -> Result<pb::Run, Status> {
        self.spawn_as("", spec).await.map(|(run, _)| run)
    }

    /// Spawns under this key; also returns whether it existed before.
    pub async fn spawn_as(
        &mut self,
        run_id: &str,
        spec: pb::RunSpec,
    ) -> Result<(pb::Run, bool), Status> {
        let request = pb::SpawnRequest {
            run_id: run_id.to_owned(),
            validate_only: false,
            spec: Some(spec),
            ..pb::SpawnRequest::default()
        };
        let answer = Box::pin(self.process.spawn(request)).await?.into_inner();
        Ok((answer.run.expect("a spawned run is given"), answer.existing))
    }

    /// Aborts within the run's own grace and waits until it has ended.
    pub async fn abort(&mut self, run_id: &str) -> Result<pb::Run, Status> {
        self.abort_with(run_id, None, pb::AbortWait::TreeEmpty)
            .await
    }

    /// Aborts within this grace and waits for the end.
    pub async fn abort_with(
        &mut self,
        run_id: &str,
        grace: Option<Duration>,
        wait: pb::AbortWait,
    ) -> Result<pb::Run, Status> {
        let request = pb::AbortRequest {
            run_id: run_id.to_owned(),
            request_id: String::new(),
            grace: grace.map(duration),
            wait: wait.into(),
            ..pb::AbortRequest::default()
        };
        let answer = self.process.abort(request).await?.into_inner();
        Ok(answer.run.expect("an aborted run is given"))
    }

    /// Sends one SIGINT.
    pub async fn interrupt(&mut self, run_id: &str, request_id: &str) -> Result<pb::Run, Status> {
        let request = pb::InterruptRequest {
            run_id: run_id.to_owned(),
            request_id: request_id.to_owned(),
        };
        let answer = self.process.interrupt(request).await?.into_inner();
        Ok(answer.run.expect("a run is given"))
    }

    /// Sends one signal, under this request id.
    pub async fn signal(
        &mut self,
        run_id: &str,
        signal: &str,
        target: pb::SignalTarget,
        request_id: &str,
    ) -> Result<pb::SignalResponse, Status> {
        let request = pb::SignalRequest {
            run_id: run_id.to_owned(),
            request_id: request_id.to_owned(),
            signal: signal.to_owned(),
            target: target.into(),
        };
        Ok(self.process.signal(request).await?.into_inner())
    }

    /// Returns the processes in a run's tree.
    pub async fn tree(&mut self, run_id: &str) -> Result<pb::GetTreeResponse, Status> {
        let request = pb::GetTreeRequest {
            run_id: run_id.to_owned(),
        };
        Ok(self.process.get_tree(request).await?.into_inner())
    }

    /// Runs a leak check.
    pub async fn audit(&mut self) -> Result<pb::LeakAudit, Status> {
        let answer = self.admin.audit_leaks(pb::AuditLeaksRequest {}).await?;
        Ok(answer.into_inner().audit.expect("an audit"))
    }

    /// Ends leaked processes, or lists them as a dry run.
    pub async fn reap(
        &mut self,
        request: pb::ReapLeaksRequest,
    ) -> Result<pb::ReapLeaksResponse, Status> {
        Ok(self.admin.reap_leaks(request).await?.into_inner())
    }

    /// Returns the audit log: of a run, or with an empty id all of it.
    pub async fn trail(&mut self, run_id: &str) -> Result<Vec<pb::AuditRecord>, Status> {
        let request = pb::StreamAuditRequest {
            run_id: run_id.to_owned(),
            ..pb::StreamAuditRequest::default()
        };
        let mut stream = self.admin.stream_audit(request).await?.into_inner();
        let mut records = Vec::new();
        while let Some(message) = stream.message().await? {
            records.extend(message.records);
        }
        Ok(records)
    }

    /// Returns the requests in the audit log: of a run, or of all where its id is empty.
    pub async fn logged_requests(&mut self, run_id: &str) -> Result<Vec<pb::AuditRequest>, Status> {
        let records = self.trail(run_id).await?.into_iter();
        let requests = records.filter_map(|record| match record.record {
            Some(pb::audit_record::Record::Request(request)) => Some(request),
            _ => None,
        });
        Ok(requests.collect())
    }

    /// Pauses a run.
    pub async fn pause(&mut self, run_id: &str) -> Result<pb::Run, Status> {
        let request = pb::PauseRequest {
            run_id: run_id.to_owned(),
        };
        let answer = self.process.pause(request).await?.into_inner();
        Ok(answer.run.expect("a run is given"))
    }

    /// Begins another attempt.
    pub async fn restart(
        &mut self,
        run_id: &str,
        expected_attempt: Option<u32>,
    ) -> Result<pb::Run, Status> {
        self.restart_with(pb::RestartRequest {
            run_id: run_id.to_owned(),
            expected_attempt,
            ..pb::RestartRequest::default()
        })
        .await
    }

    /// Begins another attempt, or a new run of one that has ended.
    pub async fn restart_with(&mut self, request: pb::RestartRequest) -> Result<pb::Run, Status> {
        let answer = self.process.restart(request).await?.into_inner();
        Ok(answer.run.expect("an answer has the run"))
    }

    /// Resumes it.
    pub async fn resume(&mut self, run_id: &str) -> Result<pb::Run, Status> {
        let request = pb::ResumeRequest {
            run_id: run_id.to_owned(),
        };
        let answer = self.process.resume(request).await?.into_inner();
        Ok(answer.run.expect("a run is given"))
    }

    /// Interrupts, and returns the method of delivery.
    pub async fn interrupted_by(
        &mut self,
        run_id: &str,
        request_id: &str,
    ) -> Result<pb::InterruptMethod, Status> {
        let request = pb::InterruptRequest {
            run_id: run_id.to_owned(),
            request_id: request_id.to_owned(),
        };
        let answer = self.process.interrupt(request).await?.into_inner();
        Ok(answer.method())
    }

    /// Returns the screen of a terminal.
    pub async fn screen(&mut self, run_id: &str) -> Result<pb::Screen, Status> {
        let request = pb::ReadScreenRequest {
            run_id: run_id.to_owned(),
        };
        let answer = self.process.read_screen(request).await?.into_inner();
        Ok(answer.screen.expect("a screen is given"))
    }

    /// Types keys.
    pub async fn type_in(&mut self, run_id: &str, keys: &str) -> Result<(), Status> {
        let request = pb::WriteInputRequest {
            run_id: run_id.to_owned(),
            data: keys.as_bytes().to_vec().into(),
            ..pb::WriteInputRequest::default()
        };
        self.process.write_input(request).await?;
        Ok(())
    }

    /// Resizes a terminal.
    pub async fn resize(&mut self, run_id: &str, rows: u32, cols: u32) -> Result<pb::Run, Status> {
        let request = pb::ResizeTerminalRequest {
            run_id: run_id.to_owned(),
            rows,
            cols,
            expected_attempt: None,
        };
        let answer = self.process.resize_terminal(request).await?.into_inner();
        Ok(answer.run.expect("a run is given"))
    }

    /// Writes to standard input, at its end or at this offset.
    pub async fn write(
        &mut self,
        run_id: &str,
        write_id: &str,
        offset: Option<u64>,
        data: &[u8],
    ) -> Result<pb::WriteInputResponse, Status> {
        let request = pb::WriteInputRequest {
            run_id: run_id.to_owned(),
            data: data.to_vec().into(),
            offset,
            write_id: write_id.to_owned(),
            expected_attempt: None,
            if_awaiting: None,
        };
        Ok(self.process.write_input(request).await?.into_inner())
    }

    /// Closes standard input, if its end is at this offset.
    pub async fn close_input(
        &mut self,
        run_id: &str,
        offset: Option<u64>,
    ) -> Result<pb::InputStatus, Status> {
        let request = pb::CloseInputRequest {
            run_id: run_id.to_owned(),
            offset,
            expected_attempt: None,
        };
        let answer = self.process.close_input(request).await?.into_inner();
        Ok(answer.input.expect("it says how far it has come"))
    }

    /// Returns the state of standard input.
    pub async fn input(&mut self, run_id: &str) -> Result<pb::InputStatus, Status> {
        let request = pb::GetInputStatusRequest {
            run_id: run_id.to_owned(),
        };
        let answer = self.process.get_input_status(request).await?.into_inner();
        Ok(answer.input.expect("it says how far it has come"))
    }

    /// Returns one run.
    pub async fn get(&mut self, run_id: &str) -> Result<pb::Run, Status> {
        let request = pb::GetRunRequest {
            run_id: run_id.to_owned(),
        };
        let answer = self.process.get_run(request).await?.into_inner();
        Ok(answer.run.expect("a run is given"))
    }

    /// Returns every run that matches, over all pages, newest first.
    pub async fn list_all(
        &mut self,
        filter: pb::RunFilter,
        page_size: i32,
    ) -> Result<Vec<pb::Run>, Status> {
        let mut runs = Vec::new();
        let mut page_token = String::new();
        loop {
            let request = pb::ListRunsRequest {
                filter: Some(filter.clone()),
                page_size,
                page_token,
            };
            let page = self.process.list_runs(request).await?.into_inner();
            runs.extend(page.runs);
            page_token = page.next_page_token;
            if page_token.is_empty() {
                return Ok(runs);
            }
        }
    }

    /// Waits for a condition; returns whether it was reached.
    pub async fn wait(
        &mut self,
        run_id: &str,
        condition: pb::WaitCondition,
    ) -> Result<(pb::Run, bool), Status> {
        let request = pb::WaitRunRequest {
            run_id: run_id.to_owned(),
            condition: condition.into(),
        };
        let answer = self.process.wait_run(request).await?.into_inner();
        Ok((answer.run.expect("a run is given"), answer.reached))
    }

    /// Waits for a line of output.
    pub async fn wait_output(
        &mut self,
        run_id: &str,
        pattern: pb::line_pattern::Pattern,
        after_seq: u64,
    ) -> Result<pb::WaitForOutputResponse, Status> {
        let request = pb::WaitForOutputRequest {
            run_id: run_id.to_owned(),
            pattern: Some(pb::LinePattern {
                pattern: Some(pattern),
            }),
            after_seq,
            ..pb::WaitForOutputRequest::default()
        };
        Ok(self.process.wait_for_output(request).await?.into_inner())
    }

    /// Sets and removes annotations.
    pub async fn annotate(
        &mut self,
        run_id: &str,
        set: &[(&str, &str)],
        remove: &[&str],
        expected_version: Option<u64>,
    ) -> Result<pb::Run, Status> {
        let set = set.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned()));
        let request = pb::AnnotateRunRequest {
            run_id: run_id.to_owned(),
            set: set.collect(),
            remove: remove.iter().map(|key| (*key).to_owned()).collect(),
            expected_version,
            ..pb::AnnotateRunRequest::default()
        };
        let answer = self.process.annotate_run(request).await?.into_inner();
        Ok(answer.run.expect("a run is given"))
    }

    /// Extends limits of time; without any, all that count.
    pub async fn extend(
        &mut self,
        run_id: &str,
        limits: &[pb::Deadline],
        time: Duration,
    ) -> Result<pb::Run, Status> {
        let request = pb::ExtendTimeoutsRequest {
            run_id: run_id.to_owned(),
            limits: limits.iter().map(|limit| (*limit).into()).collect(),
            duration: Some(duration(time)),
        };
        let answer = self.process.extend_timeouts(request).await?.into_inner();
        Ok(answer.run.expect("a run is given"))
    }

    /// Waits for the end.
    pub async fn ended(&mut self, run_id: &str) -> Result<pb::Run, Status> {
        let (run, reached) = self.wait(run_id, pb::WaitCondition::Ended).await?;
        assert!(reached, "every run ends");
        Ok(run)
    }

    /// Returns the events after this seq.
    pub async fn events_after(
        &mut self,
        run_id: &str,
        after_seq: u64,
    ) -> Result<Streaming<pb::StreamEventsResponse>, Status> {
        self.events(
            run_id,
            pb::stream_events_request::Position::AfterSeq(after_seq),
        )
        .await
    }

    /// Returns the events from a position on.
    pub async fn events(
        &mut self,
        run_id: &str,
        position: pb::stream_events_request::Position,
    ) -> Result<Streaming<pb::StreamEventsResponse>, Status> {
        let request = pb::StreamEventsRequest {
            run_id: run_id.to_owned(),
            position: Some(position),
            ..pb::StreamEventsRequest::default()
        };
        Ok(self.process.stream_events(request).await?.into_inner())
    }

    /// Reads everything of a run from this seq on, until its stream ends.
    pub async fn hear_all(&mut self, run_id: &str, after_seq: u64) -> Result<Heard, Status> {
        let mut stream = self.events_after(run_id, after_seq).await?;
        let mut heard = Heard::default();
        while let Some(message) = stream.message().await? {
            heard.take(message);
        }
        Ok(heard)
    }

    /// Reads what there is of a run by now.
    ///
    /// # Panics
    /// Where the stream fails.
    pub async fn hear_now(&mut self, run_id: &str) -> Heard {
        let request = pb::StreamEventsRequest {
            run_id: run_id.to_owned(),
            until: pb::StreamUntil::Head.into(),
            ..pb::StreamEventsRequest::default()
        };
        let mut stream = must("stream", self.process.stream_events(request).await).into_inner();
        let mut heard = Heard::default();
        while let Some(message) = must("stream", stream.message().await) {
            heard.take(message);
        }
        heard
    }

    /// Reads until the command has printed `up`.
    pub async fn hear_up(&mut self, run_id: &str) {
        self.hear_text(run_id, "up\n").await;
    }

    /// Reads until the command's standard output contains this text.
    pub async fn hear_text(&mut self, run_id: &str, wanted: &str) {
        let mut stream = must("stream", self.events_after(run_id, 0).await);
        let mut heard = Heard::default();
        while !heard.text().contains(wanted) {
            let message = must("stream", within(wanted, PATIENCE, stream.message()).await);
            heard.take(message.unwrap_or_else(|| panic!("it ended before {wanted:?}: {heard:?}")));
        }
    }
}

/// Events that a reader has received of one run, assembled and checked on the way.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Heard {
    /// Seq and payload of each event of the run; snapshots and heartbeats are no events of it.
    pub events: Vec<(u64, pb::event::Payload)>,
    /// All of standard output.
    pub stdout: Vec<u8>,
    /// All of standard error.
    pub stderr: Vec<u8>,
    /// Position at which a later reader resumes.
    pub cursor: Vec<u8>,
    /// Number of snapshots received.
    pub snapshots: u32,
    stdout_begins: Option<u64>,
    stderr_begins: Option<u64>,
}

impl Heard {
    /// Adds a message.
    ///
    /// # Panics
    /// On a seq that does not rise, an output offset that leaves a hole or repeats, or an event after the last.
    pub fn take(&mut self, message: pb::StreamEventsResponse) {
        for run in message.run_events {
            for event in run.events {
                let seq = run.base_seq + event.seq_delta;
                match event.payload.expect("every kind of event is known") {
                    pb::event::Payload::Snapshot(_) => self.snapshots += 1,
                    pb::event::Payload::Heartbeat(_) => {}
                    payload => self.take_event(seq, payload),
                }
            }
        }
        self.cursor = message.cursor.to_vec();
    }

    fn take_event(&mut self, seq: u64, payload: pb::event::Payload) {
        assert!(seq > self.last_seq(), "seq {seq} after {}", self.last_seq());
        assert!(!self.has_ended(), "an event after the last: {payload:?}");
        if let pb::event::Payload::Output(output) = &payload {
            let stdout = output.stream() == pb::OutputStream::Stdout;
            let (bytes, begins) = if stdout {
                (&mut self.stdout, &mut self.stdout_begins)
            } else {
                (&mut self.stderr, &mut self.stderr_begins)
            };
            let begins = *begins.get_or_insert(output.offset);
            assert_eq!(
                output.offset,
                begins + bytes.len() as u64,
                "output goes on where it was"
            );
            bytes.extend_from_slice(&output.data);
        }
        self.events.push((seq, payload));
    }

    /// Returns the last seq, 0 before the first.
    #[must_use]
    pub fn last_seq(&self) -> u64 {
        self.events.last().map_or(0, |(seq, _)| *seq)
    }

    /// Whether the run's last event is here.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.stations().last() == Some(&"ended")
    }

    /// Returns the lifecycle events of the run in order, by their names in the contract.
    #[must_use]
    pub fn stations(&self) -> Vec<&'static str> {
        self.events
            .iter()
            .filter_map(|(_, payload)| match payload {
                pb::event::Payload::Lifecycle(lifecycle) => lifecycle.station.as_ref(),
                _ => None,
            })
            .map(station_name)
            .collect()
    }

    /// Returns the signals sent, in order, by name.
    #[must_use]
    pub fn signals(&self) -> Vec<String> {
        self.events
            .iter()
            .filter_map(|(_, payload)| match payload {
                pb::event::Payload::SignalSent(sent) => Some(sent.signal.clone()),
                _ => None,
            })
            .collect()
    }

    /// Returns the texts of the warnings, in order.
    #[must_use]
    pub fn warnings(&self) -> Vec<&str> {
        let mut texts = Vec::new();
        for (_, payload) in &self.events {
            if let pb::event::Payload::Warning(warning) = payload {
                texts.push(warning.message.as_str());
            }
        }
        texts
    }

    /// Returns the reported sizes of the terminal, in order: lines, characters of a line.
    #[must_use]
    pub fn terminal_sizes(&self) -> Vec<(u32, u32)> {
        let sized = |payload: &pb::event::Payload| match payload {
            pb::event::Payload::Lifecycle(pb::Lifecycle {
                station: Some(pb::lifecycle::Station::TerminalResized(size)),
            }) => Some((size.rows, size.cols)),
            _ => None,
        };
        let events = self.events.iter();
        events.filter_map(|(_, payload)| sized(payload)).collect()
    }

    /// Returns standard output as text.
    #[must_use]
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }
}

/// Returns a station's name in the contract.
#[must_use]
pub fn station_name(station: &pb::lifecycle::Station) -> &'static str {
    use pb::lifecycle::Station;
    match station {
        Station::Recorded(_) => "recorded",
        Station::Started(_) => "started",
        Station::Paused(_) => "paused",
        Station::Resumed(_) => "resumed",
        Station::Stopping(_) => "stopping",
        Station::LeaderExited(_) => "leader_exited",
        Station::StreamsClosed(_) => "streams_closed",
        Station::Stuck(_) => "stuck",
        Station::TreeEmpty(_) => "tree_empty",
        Station::AttemptEnded(_) => "attempt_ended",
        Station::Ended(_) => "ended",
        Station::TerminalResized(_) => "terminal_resized",
        Station::Annotated(_) => "annotated",
        Station::Ready(_) => "ready",
        Station::ActivityChanged(_) => "activity_changed",
        Station::StatusChanged(_) => "status_changed",
        Station::OutputMatched(_) => "output_matched",
        Station::RuleSwitchedOff(_) => "rule_switched_off",
        Station::Answered(_) => "answered",
        Station::EventsSummed(_) => "events_summed",
        Station::Extended(_) => "extended",
    }
}

/// Returns a spec that runs these words in the root directory.
#[must_use]
pub fn argv(words: &[&str]) -> pb::RunSpec {
    pb::RunSpec {
        kind: pb::RunKind::Heartbeat.into(),
        command: Some(pb::run_spec::Command::Argv(pb::Argv {
            args: words.iter().map(|word| (*word).to_owned()).collect(),
            raw_args: Vec::new(),
        })),
        cwd: Some("/".to_owned()),
        ..pb::RunSpec::default()
    }
}

/// Returns a spec that runs this script.
#[must_use]
pub fn sh(script: &str) -> pb::RunSpec {
    argv(&["/bin/sh", "-c", script])
}

/// Returns a spec that runs a trick of `naughty`.
#[must_use]
pub fn naughty(words: &[&str]) -> pb::RunSpec {
    let program = crate::programs::naughty();
    let mut all = vec![program.to_str().expect("a test's path is UTF-8")];
    all.extend_from_slice(words);
    argv(&all)
}

/// Changes that tests make to a spec.
pub trait SpecExt {
    /// Sets the grace.
    #[must_use]
    fn grace(self, grace: Duration) -> Self;
    /// Sets the time limit.
    #[must_use]
    fn max_runtime(self, time: Duration) -> Self;
    /// Sets the limit of pauses, and its action.
    #[must_use]
    fn max_pause(self, time: Duration, then: pb::OnMaxPause) -> Self;
    /// Sets the policy for the rest of the tree when the leader exits.
    #[must_use]
    fn on_leader_exit(self, action: pb::LeaderExitAction, drain: Option<Duration>) -> Self;
    /// Sets the restart policy.
    #[must_use]
    fn restart(self, policy: pb::RestartPolicy) -> Self;
    /// Sets the bound on retained output.
    #[must_use]
    fn kept_output(self, max_bytes: u64, on_full: pb::OutputOverflow) -> Self;
    /// Sets the action while the disk is full.
    #[must_use]
    fn on_disk_full(self, action: pb::DiskFullAction) -> Self;
    /// Opens a standard input that clients write to.
    #[must_use]
    fn open_input(self) -> Self;
    /// Puts it on a terminal.
    #[must_use]
    fn on_terminal(self, terminal: pb::Terminal) -> Self;
    /// Sets the kind.
    #[must_use]
    fn kind_of(self, kind: pb::RunKind) -> Self;
    /// Adds a label.
    #[must_use]
    fn label(self, key: &str, value: &str) -> Self;
    /// Adds a variable.
    #[must_use]
    fn env(self, name: &str, value: &str) -> Self;
    /// Adds a secret as a variable.
    #[must_use]
    fn secret(self, name: &str, source: pb::secret::Source) -> Self;
    /// Adds a secret as a file.
    #[must_use]
    fn secret_file(self, name: &str, source: pb::secret::Source) -> Self;
    /// Sets the limits.
    #[must_use]
    fn limits(self, limits: pb::RunLimits) -> Self;
}

impl SpecExt for pb::RunSpec {
    fn open_input(mut self) -> Self {
        self.stdio = Some(pb::run_spec::Stdio::Pipes(pb::Pipes {
            input: pb::InputMode::Open.into(),
        }));
        self
    }

    fn on_terminal(mut self, terminal: pb::Terminal) -> Self {
        self.kind = pb::RunKind::Terminal.into();
        self.stdio = Some(pb::run_spec::Stdio::Terminal(terminal));
        self
    }

    fn kept_output(mut self, max_bytes: u64, on_full: pb::OutputOverflow) -> Self {
        self.output = Some(pb::OutputPolicy {
            max_bytes: Some(max_bytes),
            on_full: on_full.into(),
            ..pb::OutputPolicy::default()
        });
        self
    }

    fn on_disk_full(mut self, action: pb::DiskFullAction) -> Self {
        self.output.get_or_insert_default().on_disk_full = action.into();
        self
    }

    fn grace(mut self, grace: Duration) -> Self {
        self.stop.get_or_insert_default().grace = Some(duration(grace));
        self
    }

    fn max_runtime(mut self, time: Duration) -> Self {
        self.timeouts.get_or_insert_default().max_runtime = Some(duration(time));
        self
    }

    fn max_pause(mut self, time: Duration, then: pb::OnMaxPause) -> Self {
        self.pause = Some(pb::PausePolicy {
            max_pause: Some(duration(time)),
            on_max_pause: then.into(),
        });
        self
    }

    fn on_leader_exit(mut self, action: pb::LeaderExitAction, drain: Option<Duration>) -> Self {
        self.on_leader_exit = Some(pb::LeaderExitPolicy {
            action: action.into(),
            drain_timeout: drain.map(duration),
        });
        self
    }

    fn restart(mut self, policy: pb::RestartPolicy) -> Self {
        self.restart = Some(policy);
        self
    }

    fn kind_of(mut self, kind: pb::RunKind) -> Self {
        self.kind = kind.into();
        self
    }

    fn label(mut self, key: &str, value: &str) -> Self {
        self.labels.insert(key.to_owned(), value.to_owned());
        self
    }

    fn env(mut self, name: &str, value: &str) -> Self {
        self.env
            .get_or_insert_default()
            .vars
            .insert(name.to_owned(), value.to_owned());
        self
    }

    fn secret(mut self, name: &str, source: pb::secret::Source) -> Self {
        self.secrets.push(pb::Secret {
            name: name.to_owned(),
            source: Some(source),
            ..pb::Secret::default()
        });
        self
    }

    fn secret_file(mut self, name: &str, source: pb::secret::Source) -> Self {
        self.secrets.push(pb::Secret {
            name: name.to_owned(),
            source: Some(source),
            delivery: pb::SecretDelivery::File.into(),
            ..pb::Secret::default()
        });
        self
    }

    fn limits(mut self, limits: pb::RunLimits) -> Self {
        self.limits = Some(limits);
        self
    }
}

/// Facts of a run that tests read.
pub trait RunExt {
    /// Returns the present attempt.
    fn attempt(&self) -> &pb::Attempt;
    /// Returns the present attempt without what it has used so far, which differs from moment to moment.
    fn lasting(&self) -> pb::Attempt;
    /// Returns the exit code, where the leader exited by itself.
    fn code(&self) -> Option<i32>;
    /// Returns the signal that ended the leader.
    fn signal(&self) -> Option<String>;
    /// Returns the end reason's name in the contract.
    fn reason(&self) -> &'static str;
    /// Whether the tree was proved empty.
    fn tree_is_empty(&self) -> bool;
    /// Returns the ends of leader, streams and tree, in that order, in microseconds.
    fn three_ends(&self) -> [i64; 3];
}

impl RunExt for pb::Run {
    fn attempt(&self) -> &pb::Attempt {
        self.current_attempt.as_ref().expect("a run has an attempt")
    }

    fn lasting(&self) -> pb::Attempt {
        pb::Attempt {
            usage: None,
            ..self.attempt().clone()
        }
    }

    fn code(&self) -> Option<i32> {
        match self.attempt().exit.as_ref()?.result.as_ref()? {
            pb::exit::Result::Code(code) => Some(*code),
            _ => None,
        }
    }

    fn signal(&self) -> Option<String> {
        match self.attempt().exit.as_ref()?.result.as_ref()? {
            pb::exit::Result::Signal(signal) => Some(signal.name.clone()),
            _ => None,
        }
    }

    fn reason(&self) -> &'static str {
        use pb::end_reason::Reason;
        let Some(reason) = self.end_reason.as_ref().and_then(|end| end.reason.as_ref()) else {
            return "none";
        };
        match reason {
            Reason::Exited(_) => "exited",
            Reason::SuccessExit(_) => "success_exit",
            Reason::Aborted(_) => "aborted",
            Reason::StartFailed(_) => "start_failed",
            Reason::Fenced(_) => "fenced",
            Reason::ServerShutdown(_) => "server_shutdown",
            Reason::ParentEnded(_) => "parent_ended",
            Reason::ServiceLost(_) => "service_lost",
            Reason::Rebooted(_) => "rebooted",
            Reason::OrphanTerminated(_) => "orphan_terminated",
            Reason::NodeForgotten(_) => "node_forgotten",
            Reason::DeadlineExceeded(_) => "deadline_exceeded",
            Reason::OomKilled(_) => "oom_killed",
            Reason::MemoryReserve(_) => "memory_reserve",
            Reason::LimitExceeded(_) => "limit_exceeded",
            Reason::NotReady(_) => "not_ready",
            Reason::NotLive(_) => "not_live",
            Reason::Watchdog(_) => "watchdog",
            Reason::Result(_) => "result",
            Reason::RestartsExhausted(_) => "restarts_exhausted",
            Reason::Restarted(_) => "restarted",
            Reason::ShimLost(_) => "shim_lost",
        }
    }

    fn tree_is_empty(&self) -> bool {
        matches!(
            self.tree_verdict
                .as_ref()
                .and_then(|tree| tree.verdict.as_ref()),
            Some(pb::tree_verdict::Verdict::Empty(_))
        )
    }

    fn three_ends(&self) -> [i64; 3] {
        let attempt = self.attempt();
        [
            &attempt.leader_exited_time,
            &attempt.streams_closed_time,
            &attempt.tree_empty_time,
        ]
        .map(|time| micros(time.as_ref().expect("an ended run has three end times")))
    }
}

/// Returns microseconds since 1970.
#[must_use]
pub fn micros(time: &Timestamp) -> i64 {
    time.seconds * 1_000_000 + i64::from(time.nanos / 1000)
}

/// Converts a duration to the contract's type.
///
/// # Panics
/// If it is longer than the contract can express.
#[must_use]
pub fn duration(duration: Duration) -> prost_types::Duration {
    duration.try_into().expect("a test's durations are short")
}

/// An error as in the contract.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Complaint {
    /// Status code.
    pub code: Code,
    /// `ErrorInfo.reason`.
    pub reason: String,
    /// The fields of its `BadRequest`, in order.
    pub fields: Vec<String>,
}

/// Returns when the server advises to retry.
#[must_use]
pub fn retry_after(status: &Status) -> Option<Duration> {
    let details = status.get_error_details();
    details.retry_info().and_then(|info| info.retry_delay)
}

/// Returns a metadata value of the error; empty where it is missing.
#[must_use]
pub fn fact(status: &Status, name: &str) -> String {
    let details = status.get_error_details();
    let facts = details.error_info().map(|info| &info.metadata);
    facts
        .and_then(|facts| facts.get(name))
        .cloned()
        .unwrap_or_default()
}

/// Returns the server's error.
#[must_use]
pub fn complaint(status: &Status) -> Complaint {
    let details = status.get_error_details();
    Complaint {
        code: status.code(),
        reason: details
            .error_info()
            .map(|info| info.reason.clone())
            .unwrap_or_default(),
        fields: details
            .bad_request()
            .map(|bad| {
                bad.field_violations
                    .iter()
                    .map(|violation| violation.field.clone())
                    .collect()
            })
            .unwrap_or_default(),
    }
}
