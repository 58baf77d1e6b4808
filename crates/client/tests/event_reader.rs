//! The resuming reader of the client, against a server that serves a real sequence of events and breaks streams off.

use kennel_client as client;
use kennel_client::{Address, EventReader, RESUMES_MAX, Start};
use kennel_proto::pb::{
    self, event::Payload, lifecycle::Station, process_service_server as server,
    stream_events_request::Position,
};
use std::sync::{Arc, Mutex};
use tempfile::TempDir;
use tokio::net::UnixListener;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::{Code, Request, Response, Status, Streaming, codegen::BoxStream, transport::Server};

/// Seq of the last event, which is ENDED.
const HEAD: u64 = 20;

#[tokio::test]
async fn reader_sees_each_event_once_despite_broken_streams() {
    let house = House::open(3, usize::MAX).await;
    let read = house.read(Start::Beginning).await.expect("all of it");
    assert_eq!(read.seqs, (1..=HEAD).collect::<Vec<_>>());
    assert_eq!(read.snapshots, 1);
    // 20 events at 3 per stream: the seventh stream brings the last two.
    assert_eq!(house.asked(), [0, 3, 6, 9, 12, 15, 18]);
}

#[tokio::test]
async fn reader_starts_after_the_requested_seq() {
    let house = House::open(usize::MAX, usize::MAX).await;
    let read = house.read(Start::AfterSeq(17)).await.expect("the rest");
    assert_eq!(read.seqs, [18, 19, 20]);
    assert_eq!(house.asked(), [17]);
}

#[tokio::test]
async fn reading_after_the_last_event_yields_only_snapshot() {
    let house = House::open(usize::MAX, usize::MAX).await;
    let read = house.read(Start::AfterSeq(HEAD)).await.expect("nothing");
    assert_eq!((read.seqs.len(), read.snapshots), (0, 1));
}

#[tokio::test(start_paused = true)]
async fn reader_gives_up_on_a_silent_stream() {
    let house = House::open(3, 2).await;
    let failure = house.read(Start::Beginning).await.expect_err("no progress");
    assert_eq!(failure.code, Code::Unavailable);
    // Two streams that brought events, and the one that is retried in vain.
    let tries = 2 + usize::try_from(RESUMES_MAX).expect("a few");
    assert_eq!(house.asked().len(), tries);
}

#[tokio::test]
async fn reader_reports_a_refusal_at_once() {
    let house = House::open(3, usize::MAX).await;
    let mut reader = EventReader::new(&house.connection, "nobody", Start::Beginning);
    let failure = reader.next().await.expect_err("no such run");
    assert_eq!(failure.code, Code::NotFound);
}

#[derive(Debug)]
struct Read {
    seqs: Vec<u64>,
    snapshots: usize,
}

struct House {
    connection: client::Connection,
    asked: Arc<Mutex<Vec<u64>>>,
    _dir: TempDir,
    _server: tokio_util::task::AbortOnDropHandle<Result<(), tonic::transport::Error>>,
}

impl House {
    /// A server that breaks each stream off after so many events, and all after so many streams at once.
    async fn open(events_per_stream: usize, streams_whole: usize) -> Self {
        let dir = TempDir::new().expect("a directory");
        let path = dir.path().join("socket");
        let listener = UnixListener::bind(&path).expect("bound");
        let asked = Arc::new(Mutex::new(Vec::new()));
        let service = server::ProcessServiceServer::new(Breaking {
            events_per_stream,
            streams_whole,
            asked: asked.clone(),
        });
        let incoming = UnixListenerStream::new(listener);
        let serving = Server::builder()
            .add_service(service)
            .serve_with_incoming(incoming);
        let server = tokio_util::task::AbortOnDropHandle::new(tokio::spawn(serving));
        let connection = client::connect(&Address::Unix(path)).await;
        Self {
            connection: connection.expect("connected"),
            asked,
            _dir: dir,
            _server: server,
        }
    }

    fn asked(&self) -> Vec<u64> {
        self.asked.lock().expect("not poisoned").clone()
    }

    async fn read(&self, start: Start) -> Result<Read, client::Failure> {
        let mut reader = EventReader::new(&self.connection, "run", start);
        let mut read = Read {
            seqs: Vec::new(),
            snapshots: 0,
        };
        while let Some(message) = reader.next().await? {
            for events in message.run_events {
                for event in events.events {
                    match event.payload {
                        Some(Payload::Snapshot(_)) => read.snapshots += 1,
                        _ => read.seqs.push(events.base_seq + event.seq_delta),
                    }
                }
            }
        }
        Ok(read)
    }
}

struct Breaking {
    events_per_stream: usize,
    streams_whole: usize,
    asked: Arc<Mutex<Vec<u64>>>,
}

impl Breaking {
    fn messages(&self, after: u64) -> Vec<Result<pb::StreamEventsResponse, Status>> {
        let streams = self.asked.lock().expect("not poisoned").len();
        let run = pb::Run {
            state: pb::RunState::Succeeded.into(),
            ..pb::Run::default()
        };
        let snapshot = Payload::Snapshot(Box::new(pb::Snapshot {
            run: Some(run),
            head_seq: HEAD,
            first_seq: 1,
        }));
        let mut messages = vec![Ok(message(after, snapshot))];
        let whole = streams <= self.streams_whole;
        let sent = if whole { self.events_per_stream } else { 0 };
        let seqs = (after + 1..=HEAD).take(sent);
        messages.extend(seqs.map(|seq| Ok(message(seq, payload(seq)))));
        let last = after + u64::try_from(messages.len()).expect("a few") - 1;
        if last < HEAD {
            messages.push(Err(Status::unavailable("broken off")));
        }
        messages
    }
}

fn message(seq: u64, payload: Payload) -> pb::StreamEventsResponse {
    let event = pb::Event {
        seq_delta: 0,
        time_delta: None,
        payload: Some(payload),
    };
    pb::StreamEventsResponse {
        run_events: vec![pb::RunEvents {
            run_id: "run".to_owned(),
            attempt: 1,
            base_seq: seq,
            base_time: None,
            events: vec![event],
        }],
        ..pb::StreamEventsResponse::default()
    }
}

fn payload(seq: u64) -> Payload {
    if seq < HEAD {
        return Payload::Output(pb::Output::default());
    }
    Payload::Lifecycle(pb::Lifecycle {
        station: Some(Station::Ended(pb::lifecycle::Ended::default())),
    })
}

#[tonic::async_trait]
impl server::ProcessService for Breaking {
    type StreamEventsStream = BoxStream<pb::StreamEventsResponse>;

    async fn stream_events(
        &self,
        request: Request<pb::StreamEventsRequest>,
    ) -> Result<Response<Self::StreamEventsStream>, Status> {
        let request = request.into_inner();
        if request.run_id != "run" {
            return Err(Status::not_found("no such run"));
        }
        let after = match request.position {
            Some(Position::AfterSeq(seq)) => seq,
            _ => 0,
        };
        self.asked.lock().expect("not poisoned").push(after);
        let messages = tokio_stream::iter(self.messages(after));
        Ok(Response::new(Box::pin(messages)))
    }

    async fn spawn(
        &self,
        _: Request<pb::SpawnRequest>,
    ) -> Result<Response<pb::SpawnResponse>, Status> {
        Err(Status::unimplemented(""))
    }

    async fn abort(
        &self,
        _: Request<pb::AbortRequest>,
    ) -> Result<Response<pb::AbortResponse>, Status> {
        Err(Status::unimplemented(""))
    }

    async fn interrupt(
        &self,
        _: Request<pb::InterruptRequest>,
    ) -> Result<Response<pb::InterruptResponse>, Status> {
        Err(Status::unimplemented(""))
    }

    async fn read_screen(
        &self,
        _: Request<pb::ReadScreenRequest>,
    ) -> Result<Response<pb::ReadScreenResponse>, Status> {
        Err(Status::unimplemented(""))
    }

    type ForEachRunStream = BoxStream<pb::ForEachRunResponse>;

    async fn for_each_run(
        &self,
        _: Request<pb::ForEachRunRequest>,
    ) -> Result<Response<Self::ForEachRunStream>, Status> {
        Err(Status::unimplemented(""))
    }

    type AttachStream = BoxStream<pb::AttachResponse>;

    async fn attach(
        &self,
        _: Request<Streaming<pb::AttachRequest>>,
    ) -> Result<Response<Self::AttachStream>, Status> {
        Err(Status::unimplemented(""))
    }

    async fn resize_terminal(
        &self,
        _: Request<pb::ResizeTerminalRequest>,
    ) -> Result<Response<pb::ResizeTerminalResponse>, Status> {
        Err(Status::unimplemented(""))
    }

    async fn signal(
        &self,
        _: Request<pb::SignalRequest>,
    ) -> Result<Response<pb::SignalResponse>, Status> {
        Err(Status::unimplemented(""))
    }

    async fn write_input(
        &self,
        _: Request<pb::WriteInputRequest>,
    ) -> Result<Response<pb::WriteInputResponse>, Status> {
        Err(Status::unimplemented(""))
    }

    async fn close_input(
        &self,
        _: Request<pb::CloseInputRequest>,
    ) -> Result<Response<pb::CloseInputResponse>, Status> {
        Err(Status::unimplemented(""))
    }

    async fn get_input_status(
        &self,
        _: Request<pb::GetInputStatusRequest>,
    ) -> Result<Response<pb::GetInputStatusResponse>, Status> {
        Err(Status::unimplemented(""))
    }

    async fn ack_events(
        &self,
        _: Request<pb::AckEventsRequest>,
    ) -> Result<Response<pb::AckEventsResponse>, Status> {
        Err(Status::unimplemented(""))
    }

    async fn get_consumer(
        &self,
        _: Request<pb::GetConsumerRequest>,
    ) -> Result<Response<pb::GetConsumerResponse>, Status> {
        Err(Status::unimplemented(""))
    }

    async fn list_consumers(
        &self,
        _: Request<pb::ListConsumersRequest>,
    ) -> Result<Response<pb::ListConsumersResponse>, Status> {
        Err(Status::unimplemented(""))
    }

    async fn delete_consumer(
        &self,
        _: Request<pb::DeleteConsumerRequest>,
    ) -> Result<Response<pb::DeleteConsumerResponse>, Status> {
        Err(Status::unimplemented(""))
    }

    async fn read_output(
        &self,
        _: Request<pb::ReadOutputRequest>,
    ) -> Result<Response<pb::ReadOutputResponse>, Status> {
        Err(Status::unimplemented(""))
    }

    async fn resolve_command(
        &self,
        _: Request<pb::ResolveCommandRequest>,
    ) -> Result<Response<pb::ResolveCommandResponse>, Status> {
        Err(Status::unimplemented(""))
    }

    async fn get_tree(
        &self,
        _: Request<pb::GetTreeRequest>,
    ) -> Result<Response<pb::GetTreeResponse>, Status> {
        Err(Status::unimplemented(""))
    }

    async fn pause(
        &self,
        _: Request<pb::PauseRequest>,
    ) -> Result<Response<pb::PauseResponse>, Status> {
        Err(Status::unimplemented(""))
    }

    async fn resume(
        &self,
        _: Request<pb::ResumeRequest>,
    ) -> Result<Response<pb::ResumeResponse>, Status> {
        Err(Status::unimplemented(""))
    }

    async fn remove_run(
        &self,
        _: Request<pb::RemoveRunRequest>,
    ) -> Result<Response<pb::RemoveRunResponse>, Status> {
        Err(Status::unimplemented(""))
    }

    async fn restart(
        &self,
        _: Request<pb::RestartRequest>,
    ) -> Result<Response<pb::RestartResponse>, Status> {
        Err(Status::unimplemented(""))
    }

    async fn get_run(
        &self,
        _: Request<pb::GetRunRequest>,
    ) -> Result<Response<pb::GetRunResponse>, Status> {
        Err(Status::unimplemented(""))
    }

    async fn list_runs(
        &self,
        _: Request<pb::ListRunsRequest>,
    ) -> Result<Response<pb::ListRunsResponse>, Status> {
        Err(Status::unimplemented(""))
    }

    async fn wait_for_output(
        &self,
        _: Request<pb::WaitForOutputRequest>,
    ) -> Result<Response<pb::WaitForOutputResponse>, Status> {
        Err(Status::unimplemented(""))
    }

    async fn annotate_run(
        &self,
        _: Request<pb::AnnotateRunRequest>,
    ) -> Result<Response<pb::AnnotateRunResponse>, Status> {
        Err(Status::unimplemented(""))
    }

    async fn extend_timeouts(
        &self,
        _: Request<pb::ExtendTimeoutsRequest>,
    ) -> Result<Response<pb::ExtendTimeoutsResponse>, Status> {
        Err(Status::unimplemented(""))
    }

    async fn wait_run(
        &self,
        _: Request<pb::WaitRunRequest>,
    ) -> Result<Response<pb::WaitRunResponse>, Status> {
        Err(Status::unimplemented(""))
    }
}
