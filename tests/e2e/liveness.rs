//! Liveness of a run, seen by calls and at the command line. In pauses, restarts and at the next server:
//! `supervisor/tests/runs/rules.rs`.

use kennel_proto::pb::{self, RunState, WaitCondition, line_pattern::Pattern, liveness, readiness};
use kennel_tests::{
    Client, Footprint, Kennel, PATIENCE, SpecExt, client::duration, eventually_async, lent::Lent,
    must, new_run_id, shell::run_to_end,
};
use std::{
    io::{Read as _, Write as _},
    net::TcpListener,
    os::unix::process::ExitStatusExt as _,
    sync::{
        Arc,
        atomic::{AtomicU16, AtomicUsize, Ordering},
    },
    time::Duration,
};
use tonic_health::server::HealthReporter;

/// Path of the probes, which is passed as it is.
const PATH: &str = "/live?of=all";

/// An HTTP server whose status is changed by the test, and which counts its requests.
pub(crate) struct Server {
    port: u16,
    status: Arc<AtomicU16>,
    asked: Arc<AtomicUsize>,
    lent: Lent,
}

impl Server {
    pub(crate) fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("bound").port();
        let status = Arc::new(AtomicU16::new(200));
        let asked = Arc::new(AtomicUsize::new(0));
        let lent = Lent::new(listener.try_clone().expect("a descriptor").into());
        let (answers, count) = (Arc::clone(&status), Arc::clone(&asked));
        // The thread ends with the test's process.
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let mut stream = stream;
                let mut request = [0; 1024];
                let _ = stream.read(&mut request);
                let wanted = format!("GET {PATH} HTTP/1.1\r\n");
                let is_wanted = request.starts_with(wanted.as_bytes());
                count.fetch_add(1, Ordering::SeqCst);
                let status = answers.load(Ordering::SeqCst);
                let status = if is_wanted { status } else { 404 };
                let _ = write!(stream, "HTTP/1.1 {status} Said\r\n\r\n");
            }
        });
        Self {
            port,
            status,
            asked,
            lent,
        }
    }

    /// Returns a spec that runs this script, which holds the socket too.
    pub(crate) fn sh(&self, script: &str) -> pb::RunSpec {
        self.lent.sh(script)
    }

    pub(crate) fn says(&self, status: u16) {
        self.status.store(status, Ordering::SeqCst);
    }

    fn asked(&self) -> usize {
        self.asked.load(Ordering::SeqCst)
    }

    /// Waits until it got so many requests since its start.
    pub(crate) async fn is_asked_in_all(&self, wanted: usize) {
        let seen = eventually_async("it is asked", PATIENCE, async || {
            (self.asked() >= wanted).then_some(())
        });
        seen.await;
    }

    pub(crate) fn probe(&self) -> pb::HttpProbe {
        pb::HttpProbe {
            port: u32::from(self.port),
            path: PATH.into(),
        }
    }

    pub(crate) fn liveness(&self, threshold: u32) -> pb::Liveness {
        pb::Liveness {
            probe: Some(liveness::Probe::Http(self.probe())),
            interval: Some(duration(Duration::from_millis(50))),
            timeout: None,
            failure_threshold: Some(threshold),
        }
    }
}

pub(crate) fn ready_line(text: &str) -> Box<pb::Readiness> {
    Box::new(pb::Readiness {
        probe: Some(readiness::Probe::Line(pb::LinePattern {
            pattern: Some(Pattern::Literal(text.to_owned())),
        })),
        ..pb::Readiness::default()
    })
}

async fn not_live(client: &mut Client, run: &str) -> pb::end_reason::NotLive {
    let ended = must("wait", client.ended(run).await);
    assert_eq!(ended.state(), RunState::Failed, "{ended:?}");
    match ended.end_reason.clone().and_then(|end| end.reason) {
        Some(pb::end_reason::Reason::NotLive(not_live)) => not_live,
        other => panic!("{other:?}"),
    }
}

// promise: RW-57
#[tokio::test(flavor = "multi_thread")]
async fn run_that_fails_its_probes_is_stopped() {
    let kennel = Kennel::on_sqlite().await;
    let mut client = kennel.client().await;
    let server = Server::start();
    let script = "sleep 1000 & echo up; read x; echo ready; sleep 1000";
    let mut spec = server.sh(script).open_input();
    spec.readiness = Some(ready_line("ready"));
    spec.liveness = Some(server.liveness(3));
    server.says(503);
    let run = must("spawn", client.spawn(spec).await).run_id;
    client.hear_up(&run).await;
    // No probes before the run is ready.
    assert_eq!(server.asked(), 0);
    server.says(204);
    must("write", client.write(&run, "1", None, b"go\n").await);
    server.is_asked_in_all(2).await;
    let running = must("get", client.get(&run).await);
    assert_eq!(running.state(), RunState::Running);
    server.says(503);
    let why = not_live(&mut client, &run).await;
    assert_eq!(why.failures, 3);
    assert!(why.error.contains("503"), "{why:?}");
    Footprint::of_id(&run).assert_nothing_left();
    let answer = run_to_end(kennel.cli(&["why", &run]), PATIENCE).await;
    let answer = String::from_utf8_lossy(&answer.stdout).into_owned();
    assert!(answer.contains("not live"), "{answer}");
    assert_command_line_has_liveness(&kennel, &server).await;
}

/// The server fails.
async fn assert_command_line_has_liveness(kennel: &Kennel, server: &Server) {
    let url = format!("http://localhost:{}{PATH}", server.port);
    let run = new_run_id();
    let words = [
        "run",
        "--run-id",
        &run,
        "--live-http",
        &url,
        "--live-interval",
        "50ms",
        "--live-timeout",
        "2s",
        "--live-failures",
        "2",
        "--",
        "sleep",
        "1000",
    ];
    let output = run_to_end(kennel.cli(&words), PATIENCE).await;
    assert_eq!(output.status.signal(), Some(15), "{output:?}");
    let mut client = kennel.client().await;
    assert_eq!(not_live(&mut client, &run).await.failures, 2);
}

/// Serves grpc.health.v1 at a port of this host, to the end of the test.
pub(crate) async fn serve_health() -> (HealthReporter, u16, Lent) {
    let (reporter, service) = tonic_health::server::health_reporter();
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("bound").port();
    let lent = Lent::new(listener.try_clone().expect("a descriptor").into());
    listener.set_nonblocking(true).expect("own socket");
    let listener = tokio::net::TcpListener::from_std(listener).expect("own socket");
    let incoming = tokio_stream::wrappers::TcpListenerStream::new(listener);
    let server = tonic::transport::Server::builder().add_service(service);
    tokio::spawn(server.serve_with_incoming(incoming));
    (reporter, port, lent)
}

/// grpc.health.v1 makes the run ready, and ends it when it no longer serves.
// promise: RW-58
#[tokio::test(flavor = "multi_thread")]
async fn grpc_health_is_probed() {
    let kennel = Kennel::on_sqlite().await;
    let mut client = kennel.client().await;
    let (reporter, port, lent) = serve_health().await;
    let probe = |service: &str| pb::GrpcProbe {
        port: u32::from(port),
        service: service.to_owned(),
    };
    let every = Some(duration(Duration::from_millis(50)));
    let mut spec = lent.sh("echo up; exec sleep 1000");
    spec.readiness = Some(Box::new(pb::Readiness {
        probe: Some(readiness::Probe::Grpc(probe("db"))),
        interval: every,
        ..pb::Readiness::default()
    }));
    spec.liveness = Some(pb::Liveness {
        probe: Some(liveness::Probe::Grpc(probe(""))),
        interval: every,
        ..pb::Liveness::default()
    });
    let run = must("spawn", client.spawn(spec).await).run_id;
    client.hear_up(&run).await;
    let unready = must("get", client.get(&run).await);
    assert!(unready.ready_time.is_none(), "the service is unknown");
    let status = tonic_health::ServingStatus::Serving;
    reporter.set_service_status("db", status).await;
    let (ready, reached) = must("wait", client.wait(&run, WaitCondition::Ready).await);
    assert!(reached, "{ready:?}");
    assert_eq!(ready.ready_by, "grpc");
    let none = tonic_health::ServingStatus::NotServing;
    reporter.set_service_status("", none).await;
    let why = not_live(&mut client, &run).await;
    assert!(why.error.contains("NOT_SERVING"), "{why:?}");
}
