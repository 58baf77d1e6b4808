use super::*;
use crate::access::Rules;
use kennel_client::{self as client, Address, Connection};
use kennel_supervisor::Descent;
use std::{
    os::unix::{fs::MetadataExt, net::UnixStream as StdUnixStream},
    path::PathBuf,
    time::Duration,
};
use tempfile::TempDir;
use tokio::{net::UnixStream, sync::mpsc, task::JoinHandle};
use tonic::Code;
use tonic_health::{
    ServingStatus,
    pb::{HealthCheckRequest, health_check_response::ServingStatus as Shown},
};

/// Upper bound for every shutdown.
const TOO_LONG: Duration = Duration::from_secs(10);

#[tokio::test]
async fn permitted_peer_is_answered() {
    let house = House::open(false);
    let connection = house.connect().await;
    let answer = connection.health().check(whole()).await.expect("admitted");
    assert_eq!(answer.into_inner().status(), Shown::Serving);
}

#[tokio::test]
async fn process_of_a_run_may_not_call() {
    let house = House::open(true);
    let connection = house.connect().await;
    let status = connection.health().check(whole()).await;
    let failure = client::Failure::from(status.expect_err("refused"));
    assert_eq!(failure.code, Code::PermissionDenied);
    assert!(failure.is("PERMISSION_DENIED"));
}

#[tokio::test]
async fn a_shutdown_without_clients_ends_at_once() {
    let house = House::open(false);
    drop(house.connect().await);
    house.shut_down().await;
}

#[tokio::test]
async fn no_idle_or_watching_client_delays_shutdown() {
    let house = House::open(false);
    let _silent = UnixStream::connect(&house.path).await.expect("connected");
    let idle = house.connect().await;
    idle.health().check(whole()).await.expect("admitted");
    let watching = house.connect().await;
    let watch = watching.health().watch(whole()).await.expect("admitted");
    let mut watch = watch.into_inner();
    let first = watch.message().await.expect("alive").expect("a status");
    assert_eq!(first.status(), Shown::Serving);
    house
        .reporter
        .set_service_status("", ServingStatus::NotServing)
        .await;
    let last = watch.message().await.expect("alive").expect("a status");
    assert_eq!(last.status(), Shown::NotServing);

    let over = house.ending.over.clone();
    house.shut_down().await;
    assert!(
        !over.is_cancelled(),
        "every connection ended before it was cut"
    );
}

// promise: R-24
#[tokio::test]
async fn client_of_replaced_server_stays_in_the_backlog() {
    let house = House::open(false);
    // The server waits a little for the client's first byte: meanwhile no other client may be accepted.
    let _silent = UnixStream::connect(&house.path).await.expect("connected");
    let idle = house.connect().await;
    idle.health().check(whole()).await.expect("admitted");

    house.leaving.leave();
    house.ending.shut.cancelled().await;
    let mut later = UnixStream::connect(&house.path)
        .await
        .expect("in the backlog");
    let over = house.ending.over.clone();
    let served = tokio::time::timeout(TOO_LONG, house.serving).await;
    served
        .expect("in bounded time")
        .expect("no panic")
        .expect("served");
    assert!(
        !over.is_cancelled(),
        "every connection ended before it was cut"
    );
    // The later client was neither accepted nor refused.
    let met = later.try_read(&mut [0]);
    assert_eq!(met.expect_err("nothing").kind(), io::ErrorKind::WouldBlock);
    tokio::io::AsyncWriteExt::write_all(&mut later, b"P")
        .await
        .expect("it waits");
}

// promise: F-7
#[tokio::test]
async fn rebound_socket_is_served() {
    let house = House::open(false);
    let before = house.connect().await;
    std::fs::remove_file(&house.path).expect("own file");
    let again = StdUnixListener::bind(&house.path).expect("bound");
    house.rebind.send(again.into()).await.expect("it is served");
    for connection in [before, house.connect().await] {
        connection.health().check(whole()).await.expect("admitted");
    }
    house.shut_down().await;
}

fn whole() -> HealthCheckRequest {
    HealthCheckRequest::default()
}

/// Judges every peer so.
#[derive(Clone)]
struct Judged(Descent);

impl Judge for Judged {
    fn judge(&self, socket: &StdUnixStream) -> io::Result<Peer> {
        let seen = kennel_supervisor::peer_credentials(socket)?;
        let rules = Rules::own(seen.uid);
        Ok(Peer::judge(seen.uid, Some(seen.pid), &rules, || self.0))
    }

    fn warn(&self, _: &StdUnixStream, _: impl FnOnce(RunId) -> bool) {}
}

/// A server with health alone, behind the real listeners.
struct House {
    path: PathBuf,
    ending: Ending,
    leaving: Serving,
    /// The listener, as the keeper holds it.
    _held: StdUnixListener,
    /// Where the keeper sends one in its place.
    rebind: mpsc::Sender<OwnedFd>,
    reporter: HealthReporter,
    serving: JoinHandle<Result<(), ServeError>>,
    _dir: TempDir,
}

impl House {
    /// Starts it. `of_a_run`: every peer counts as a process of a run.
    fn open(of_a_run: bool) -> Self {
        let dir = TempDir::new().expect("a directory");
        let path = dir.path().join("socket");
        let socket = StdUnixListener::bind(&path).expect("bound");
        let held = socket.try_clone().expect("a descriptor");
        let (rebind, rebound) = mpsc::channel(1);
        let socket = socket.into();
        let listener = listen(ListeningSocket { socket, rebound }).expect("listening");
        let reporter = HealthReporter::new();
        let health = HealthService::from_health_reporter(reporter.clone());
        let mut routes = Routes::builder();
        routes.add_service(HealthServer::new(health));
        let ending = Ending::default();
        let (doors, health) = (ending.clone(), reporter.clone());
        let leaving = Serving::default();
        let leaves = leaving.clone();
        let own_uid = std::fs::metadata(dir.path()).expect("it is there").uid();
        let access = Arc::new(Access::own(None, own_uid));
        let serving = tokio::spawn(async move {
            let judge = Judged(if of_a_run {
                Descent::Member
            } else {
                Descent::Other
            });
            let shut_down = async {
                doors.begun.cancelled().await;
                if leaves.is_leaving() {
                    return std::future::pending().await;
                }
                end(health.clone(), &doors).await;
            };
            let drained = async {
                tokio::select! { biased;
                    () = leave(&leaves, health.clone(), &doors) => {}
                    () = shut_down => {}
                }
            };
            run(
                routes.routes(),
                &Telemetry::default(),
                (None, None),
                Inbound {
                    runs: None,
                    shares: Shares::default(),
                    listeners: vec![listener],
                    access,
                    judge,
                },
                &doors,
                drained,
            )
            .await
        });
        Self {
            path,
            ending,
            leaving,
            _held: held,
            rebind,
            reporter,
            serving,
            _dir: dir,
        }
    }

    async fn connect(&self) -> Connection {
        let address = Address::Unix(self.path.clone());
        client::connect(&address).await.expect("connected")
    }

    async fn shut_down(self) {
        self.ending.begun.cancel();
        let ended = tokio::time::timeout(TOO_LONG, self.serving).await;
        let ended = ended.expect("in bounded time").expect("no panic");
        ended.expect("served");
    }
}
