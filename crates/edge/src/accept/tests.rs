use super::*;
use crate::{access::Access, auth::PeerVerdict};
use futures_util::{FutureExt, StreamExt};
use kennel_supervisor::telemetry::Telemetry;
use std::time::Duration;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

#[tokio::test(start_paused = true)]
async fn silent_client_is_disconnected() {
    let met = meet().await;
    let mut accepted = met.accepted;
    let error = read(&mut accepted).await.expect_err("nothing was sent");
    assert_eq!(error.kind(), io::ErrorKind::TimedOut);
}

#[tokio::test]
async fn silent_client_does_not_delay_shutdown() {
    let met = meet().await;
    let mut accepted = met.accepted;
    met.ending.begun.cancel();
    let error = read(&mut accepted).await.expect_err("nothing was sent");
    assert_eq!(error.kind(), io::ErrorKind::TimedOut);
}

// promise: A-19c
#[tokio::test(start_paused = true)]
async fn bytes_without_a_call_keep_no_connection_open() {
    let met = meet().await;
    let (mut client, mut accepted) = (met.client, met.accepted);
    client.write_all(b"x").await.expect("sent");
    assert_eq!(accepted.read_u8().await.expect("received"), b'x');
    let error = read(&mut accepted).await.expect_err("no call");
    assert_eq!(error.kind(), io::ErrorKind::TimedOut);
}

// promise: A-19c
#[tokio::test(start_paused = true)]
async fn busy_client_without_a_call_is_disconnected() {
    let met = meet().await;
    let (mut client, mut accepted) = (met.client, met.accepted);
    client.write_all(b"xx").await.expect("sent");
    assert_eq!(accepted.read_u8().await.expect("received"), b'x');
    tokio::time::advance(limits::FIRST_CALL_MAX).await;
    let error = read(&mut accepted).await.expect_err("a byte is there");
    assert_eq!(error.kind(), io::ErrorKind::TimedOut);
}

// promise: A-19c
#[tokio::test(start_paused = true)]
async fn client_that_never_reads_is_disconnected() {
    let met = meet().await;
    let (_client, mut accepted) = (met.client, met.accepted);
    let write = async {
        loop {
            if let Err(error) = accepted.write_all(&[0; 4096]).await {
                return error;
            }
        }
    };
    let error = tokio::time::timeout(TOO_LONG, write).await;
    let error = error.expect("in bounded time");
    assert_eq!(error.kind(), io::ErrorKind::TimedOut);
}

#[tokio::test(start_paused = true)]
async fn client_with_calls_stays_until_the_time_limit() {
    let met = meet().await;
    let (mut client, mut accepted) = (met.client, met.accepted);
    client.write_all(b"x").await.expect("sent");
    assert_eq!(accepted.read_u8().await.expect("received"), b'x');
    accepted.connect_info().accept_call(None);
    tokio::time::sleep(limits::FIRST_CALL_MAX * 2).await;
    met.ending.begun.cancel();
    assert!(accepted.read_u8().now_or_never().is_none());
    met.ending.over.cancel();
    let error = read(&mut accepted).await.expect_err("cut");
    assert_eq!(error.kind(), io::ErrorKind::ConnectionAborted);
}

#[tokio::test]
async fn peer_is_judged_by_socket_credentials() {
    let met = meet().await;
    let own = UnixStream::pair()
        .expect("a pair")
        .0
        .peer_cred()
        .expect("credentials");
    let peer = &met.accepted.connect_info().peer;
    let pid = own.pid();
    let uid = own.uid();
    assert_eq!(peer.origin, Origin::Process { uid, pid });
    assert_eq!(peer.verdict, PeerVerdict::Allowed);
}

#[tokio::test]
async fn connections_of_all_listeners_are_accepted() {
    let dir = TempDir::new().expect("a directory");
    let paths = ["a", "b"].map(|name| dir.path().join(name));
    let listeners = paths
        .iter()
        .map(|p| StdUnixListener::bind(p).expect("bound"));
    let mut incoming = doors(listeners.collect(), &Ending::default());
    for path in paths {
        let _client = UnixStream::connect(path).await.expect("connected");
        incoming
            .next()
            .await
            .expect("never ends")
            .expect("accepted");
    }
}

/// Upper bound for every step here.
const TOO_LONG: Duration = Duration::from_mins(1);

async fn read(accepted: &mut Accepted) -> io::Result<u8> {
    let read = tokio::time::timeout(TOO_LONG, accepted.read_u8()).await;
    read.expect("in bounded time")
}

struct Met {
    client: UnixStream,
    accepted: Accepted,
    ending: Ending,
}

async fn meet() -> Met {
    let dir = TempDir::new().expect("a directory");
    let path = dir.path().join("socket");
    let listener = StdUnixListener::bind(&path).expect("bound");
    let ending = Ending::default();
    let mut incoming = doors(vec![listener], &ending);
    let client = UnixStream::connect(&path).await.expect("connected");
    let accepted = incoming.next().await.expect("never ends");
    Met {
        client,
        accepted: accepted.expect("accepted"),
        ending,
    }
}

/// Takes every peer for one that is of no run.
#[derive(Clone)]
pub(super) struct OfNoRun;

impl Judge for OfNoRun {
    fn judge(&self, socket: &StdUnixStream) -> io::Result<Peer> {
        let seen = kennel_supervisor::peer_credentials(socket)?;
        let other = || kennel_supervisor::Descent::Other;
        let rules = Rules::own(seen.uid);
        Ok(Peer::judge(seen.uid, Some(seen.pid), &rules, other))
    }

    fn warn(&self, _: &StdUnixStream, _: impl FnOnce(RunId) -> bool) {}
}

fn doors(
    listeners: Vec<StdUnixListener>,
    ending: &Ending,
) -> impl Stream<Item = io::Result<Accepted>> + use<> {
    let places = Places::default();
    let refusals = Refusals::new(&Telemetry::default(), &places, None);
    let listeners = listeners.into_iter().map(|listener| {
        listener.set_nonblocking(true).expect("own socket");
        Listener::Unix(listener, mpsc::channel(1).1)
    });
    let credentials = ServerCredentials::new(Arc::new(Access::own(None, 0)), None);
    let listeners = listeners.collect();
    let incoming = incoming(
        listeners,
        ending,
        &places,
        &refusals,
        &credentials,
        &OfNoRun,
    );
    incoming.expect("a thread")
}
