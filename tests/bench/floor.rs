//! The floors: `posix_spawn` itself, and a tonic server on a unix socket that only spawns.

use crate::table::Times;
use kennel_proto::pb::{
    self,
    process_service_server::{ProcessService, ProcessServiceServer},
};
use kennel_tests::{Client, PATIENCE, eventually_async};
use std::{
    collections::HashMap,
    path::{Path, PathBuf},
    pin::Pin,
    process::{Child, Command, Stdio},
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
        mpsc,
    },
    thread,
    time::Instant,
};
use tempfile::TempDir;
use tokio::{
    io::AsyncReadExt as _,
    net::{UnixListener, unix::pipe::Receiver},
    sync::oneshot,
};
use tokio_stream::{
    Stream,
    wrappers::{ReceiverStream, UnixListenerStream},
};
use tonic::{Request, Response, Status, Streaming, codegen::BoxStream, transport::Server};

/// The argument that makes this program the bare spawner.
pub(crate) const WORD: &str = "bare-spawner";
/// Repetitions of `posix_spawn`.
const RAW_SPAWNS: usize = 2000;

fn quiet(words: &[String]) -> Command {
    let mut command = Command::new(&words[0]);
    command
        .args(&words[1..])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    command
}

/// The standard library takes `posix_spawn` where nothing special is asked for.
pub(crate) fn posix_spawn() -> Times {
    let mut times = Times::default();
    for _ in 0..RAW_SPAWNS {
        let mut command = quiet(&["/bin/true".to_owned()]);
        let began = Instant::now();
        let mut child = command.spawn().expect("true starts");
        times.push(began.elapsed());
        child.wait().expect("own child");
    }
    times
}

/// A bare spawner in a process of its own.
pub(crate) struct Bare {
    _dir: TempDir,
    socket: PathBuf,
    server: Child,
}

impl Bare {
    pub(crate) async fn start() -> Self {
        let dir = tempfile::tempdir().expect("a directory can be made");
        let socket = dir.path().join("bare.sock");
        let server = Command::new(std::env::current_exe().expect("own executable"))
            .arg(WORD)
            .arg(&socket)
            .spawn()
            .expect("it starts");
        eventually_async("the bare spawner listens", PATIENCE, || async {
            Client::connect(&socket).await.ok()
        })
        .await;
        Self {
            _dir: dir,
            socket,
            server,
        }
    }

    pub(crate) fn socket(&self) -> &Path {
        &self.socket
    }
}

impl Drop for Bare {
    fn drop(&mut self) {
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}

/// Serves until it is killed.
pub(crate) async fn serve(socket: &Path) {
    let (reaper, children) = mpsc::channel::<Born>();
    thread::spawn(move || {
        for Born { mut child, ended } in children {
            let _ = child.wait();
            let _ = ended.send(());
        }
    });
    let listener = UnixListener::bind(socket).expect("the socket is free");
    Server::builder()
        .add_service(ProcessServiceServer::new(Spawner {
            reaper,
            ends: Mutex::default(),
            spawned: AtomicU64::new(0),
        }))
        .serve_with_incoming(UnixListenerStream::new(listener))
        .await
        .expect("it serves");
}

struct Spawner {
    reaper: mpsc::Sender<Born>,
    /// Exits of children, by the name in the answer, until a caller waits for them.
    ends: Mutex<HashMap<String, oneshot::Receiver<()>>>,
    spawned: AtomicU64,
}

/// A child, and the sender of its exit.
struct Born {
    child: Child,
    ended: oneshot::Sender<()>,
}

impl Spawner {
    fn reap(&self, child: Child) -> oneshot::Receiver<()> {
        let (ended, end) = oneshot::channel();
        // The reaper lives as long as the server.
        let _ = self.reaper.send(Born { child, ended });
        end
    }
}

/// Most bytes of one message.
const READ_BYTES: usize = 64 * 1024;

fn message(data: Vec<u8>) -> pb::StreamEventsResponse {
    let output = pb::Output {
        stream: pb::OutputStream::Stdout.into(),
        data: data.into(),
        ..pb::Output::default()
    };
    let event = pb::Event {
        payload: Some(pb::event::Payload::Output(output)),
        ..pb::Event::default()
    };
    pb::StreamEventsResponse {
        run_events: vec![pb::RunEvents {
            events: vec![event],
            ..pb::RunEvents::default()
        }],
        ..pb::StreamEventsResponse::default()
    }
}

fn absent<T>() -> Result<Response<T>, Status> {
    Err(Status::unimplemented("the floor only spawns and streams"))
}

#[tonic::async_trait]
impl ProcessService for Spawner {
    type StreamEventsStream =
        Pin<Box<dyn Stream<Item = Result<pb::StreamEventsResponse, Status>> + Send>>;

    async fn spawn(
        &self,
        request: Request<pb::SpawnRequest>,
    ) -> Result<Response<pb::SpawnResponse>, Status> {
        let spec = request.into_inner().spec.unwrap_or_default();
        let Some(pb::run_spec::Command::Argv(argv)) = spec.command else {
            return absent();
        };
        let child = quiet(&argv.args)
            .spawn()
            .map_err(|error| Status::internal(error.to_string()))?;
        let pid = i32::try_from(child.id()).unwrap_or_default();
        let end = self.reap(child);
        let run_id = self.spawned.fetch_add(1, Ordering::Relaxed).to_string();
        let mut ends = self.ends.lock().unwrap_or_else(PoisonError::into_inner);
        ends.insert(run_id.clone(), end);
        let attempt = pb::Attempt {
            pid,
            ..pb::Attempt::default()
        };
        let run = pb::Run {
            run_id,
            current_attempt: Some(attempt),
            ..pb::Run::default()
        };
        Ok(Response::new(pb::SpawnResponse {
            run: Some(run),
            existing: false,
            ..pb::SpawnResponse::default()
        }))
    }

    async fn abort(
        &self,
        _: Request<pb::AbortRequest>,
    ) -> Result<Response<pb::AbortResponse>, Status> {
        absent()
    }

    async fn read_screen(
        &self,
        _: Request<pb::ReadScreenRequest>,
    ) -> Result<Response<pb::ReadScreenResponse>, Status> {
        absent()
    }

    type ForEachRunStream = BoxStream<pb::ForEachRunResponse>;

    async fn for_each_run(
        &self,
        _: Request<pb::ForEachRunRequest>,
    ) -> Result<Response<Self::ForEachRunStream>, Status> {
        absent()
    }

    type AttachStream = BoxStream<pb::AttachResponse>;

    async fn attach(
        &self,
        _: Request<Streaming<pb::AttachRequest>>,
    ) -> Result<Response<Self::AttachStream>, Status> {
        absent()
    }

    async fn resize_terminal(
        &self,
        _: Request<pb::ResizeTerminalRequest>,
    ) -> Result<Response<pb::ResizeTerminalResponse>, Status> {
        absent()
    }

    async fn interrupt(
        &self,
        _: Request<pb::InterruptRequest>,
    ) -> Result<Response<pb::InterruptResponse>, Status> {
        absent()
    }

    async fn signal(
        &self,
        _: Request<pb::SignalRequest>,
    ) -> Result<Response<pb::SignalResponse>, Status> {
        absent()
    }

    async fn ack_events(
        &self,
        _: Request<pb::AckEventsRequest>,
    ) -> Result<Response<pb::AckEventsResponse>, Status> {
        absent()
    }

    async fn get_consumer(
        &self,
        _: Request<pb::GetConsumerRequest>,
    ) -> Result<Response<pb::GetConsumerResponse>, Status> {
        absent()
    }

    async fn list_consumers(
        &self,
        _: Request<pb::ListConsumersRequest>,
    ) -> Result<Response<pb::ListConsumersResponse>, Status> {
        absent()
    }

    async fn delete_consumer(
        &self,
        _: Request<pb::DeleteConsumerRequest>,
    ) -> Result<Response<pb::DeleteConsumerResponse>, Status> {
        absent()
    }

    async fn read_output(
        &self,
        _: Request<pb::ReadOutputRequest>,
    ) -> Result<Response<pb::ReadOutputResponse>, Status> {
        absent()
    }

    async fn write_input(
        &self,
        _: Request<pb::WriteInputRequest>,
    ) -> Result<Response<pb::WriteInputResponse>, Status> {
        absent()
    }

    async fn close_input(
        &self,
        _: Request<pb::CloseInputRequest>,
    ) -> Result<Response<pb::CloseInputResponse>, Status> {
        absent()
    }

    async fn get_input_status(
        &self,
        _: Request<pb::GetInputStatusRequest>,
    ) -> Result<Response<pb::GetInputStatusResponse>, Status> {
        absent()
    }

    async fn resolve_command(
        &self,
        _: Request<pb::ResolveCommandRequest>,
    ) -> Result<Response<pb::ResolveCommandResponse>, Status> {
        absent()
    }

    async fn get_tree(
        &self,
        _: Request<pb::GetTreeRequest>,
    ) -> Result<Response<pb::GetTreeResponse>, Status> {
        absent()
    }

    async fn pause(
        &self,
        _: Request<pb::PauseRequest>,
    ) -> Result<Response<pb::PauseResponse>, Status> {
        absent()
    }

    async fn resume(
        &self,
        _: Request<pb::ResumeRequest>,
    ) -> Result<Response<pb::ResumeResponse>, Status> {
        absent()
    }

    async fn remove_run(
        &self,
        _: Request<pb::RemoveRunRequest>,
    ) -> Result<Response<pb::RemoveRunResponse>, Status> {
        absent()
    }

    async fn restart(
        &self,
        _: Request<pb::RestartRequest>,
    ) -> Result<Response<pb::RestartResponse>, Status> {
        absent()
    }

    async fn get_run(
        &self,
        _: Request<pb::GetRunRequest>,
    ) -> Result<Response<pb::GetRunResponse>, Status> {
        absent()
    }

    async fn list_runs(
        &self,
        _: Request<pb::ListRunsRequest>,
    ) -> Result<Response<pb::ListRunsResponse>, Status> {
        absent()
    }

    async fn wait_for_output(
        &self,
        _: Request<pb::WaitForOutputRequest>,
    ) -> Result<Response<pb::WaitForOutputResponse>, Status> {
        absent()
    }

    async fn annotate_run(
        &self,
        _: Request<pb::AnnotateRunRequest>,
    ) -> Result<Response<pb::AnnotateRunResponse>, Status> {
        absent()
    }

    async fn extend_timeouts(
        &self,
        _: Request<pb::ExtendTimeoutsRequest>,
    ) -> Result<Response<pb::ExtendTimeoutsResponse>, Status> {
        absent()
    }

    async fn wait_run(
        &self,
        request: Request<pb::WaitRunRequest>,
    ) -> Result<Response<pb::WaitRunResponse>, Status> {
        let run_id = request.into_inner().run_id;
        let end = {
            let mut ends = self.ends.lock().unwrap_or_else(PoisonError::into_inner);
            ends.remove(&run_id)
        };
        let Some(end) = end else { return absent() };
        let _ = end.await;
        let run = pb::Run {
            run_id,
            ..pb::Run::default()
        };
        Ok(Response::new(pb::WaitRunResponse {
            run: Some(run),
            reached: true,
        }))
    }

    /// Streams the output of a command, each read a message. The words are in place of the run's id, with NUL between.
    async fn stream_events(
        &self,
        request: Request<pb::StreamEventsRequest>,
    ) -> Result<Response<Self::StreamEventsStream>, Status> {
        let words = request.into_inner().run_id;
        let mut words = words.split('\0');
        let mut command = Command::new(words.next().unwrap_or_default());
        command
            .args(words)
            .stdin(Stdio::null())
            .stdout(Stdio::piped());
        let fault = |error: std::io::Error| Status::internal(error.to_string());
        let mut child = command.spawn().map_err(fault)?;
        let stdout = child
            .stdout
            .take()
            .ok_or_else(|| Status::internal("no pipe"))?;
        let mut stdout = Receiver::from_owned_fd(stdout.into()).map_err(fault)?;
        drop(self.reap(child));
        let (sender, messages) = tokio::sync::mpsc::channel(4);
        tokio::spawn(async move {
            loop {
                let mut data = vec![0; READ_BYTES];
                let bytes = stdout.read(&mut data).await.unwrap_or_default();
                data.truncate(bytes);
                if bytes == 0 || sender.send(Ok(message(data))).await.is_err() {
                    return;
                }
            }
        });
        let read = ReceiverStream::new(messages);
        Ok(Response::new(Box::pin(read)))
    }
}
