//! Starts the services on the listeners, and shuts them down in order.

pub(crate) mod health;

use crate::{
    accept::{self, Ending, Judge, Listener, Places, Refusals, ServerCredentials},
    access::Access,
    auth::{Peer, PeerVerdict, run_tokens::RunTokens},
    forward::{Forward, Links},
    keys::digest::DigestKey,
    layers::{With, answers::Answers, gate::Gate, observe::Observing},
    limits,
    load::{in_flight::Counting, pace::Pace, shares::Shares},
    pb::{
        self, admin_service_server::AdminServiceServer,
        process_service_server::ProcessServiceServer,
    },
    verbs::Api,
};
use kennel_lifecycle::RunId;
use kennel_supervisor::{ListeningSocket, Serving, Supervisor, telemetry::Telemetry};
use std::{
    io,
    net::TcpListener,
    os::{
        fd::OwnedFd,
        unix::net::{UnixListener as StdUnixListener, UnixStream},
    },
    sync::Arc,
};
use tokio_util::task::TaskTracker;
use tonic::{service::Routes, transport::Server};
use tonic_health::pb::health_server::HealthServer;
use tonic_health::server::{HealthReporter, HealthService};
use tower::{
    layer::util::{Identity, Stack},
    util::{Either, option_layer},
};

/// Configuration of the edge.
#[derive(Clone, Debug)]
pub struct EdgeConfig {
    /// Secret of this installation.
    pub digest_key: DigestKey,
    /// Rights of principals.
    pub access: Arc<Access>,
    /// Whether no run may call, also not one that was spawned when runs could.
    pub forbids_api_access: bool,
}

/// The server does not serve.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// A descriptor is no usable listening socket.
    #[error("cannot listen on a socket that was handed over")]
    Listen(#[source] io::Error),
    /// Reflection could not be set up.
    #[error("cannot serve reflection")]
    Reflection(#[source] tonic_reflection::server::Error),
    /// The transport failed.
    #[error("cannot serve")]
    Transport(#[source] tonic::transport::Error),
}

/// Serves on these listening sockets, of the unix family or TCP, until the supervisor drains, then ends every stream
/// and connection and returns, at most [`limits::DRAIN_MAX`] and [`limits::LAST_WORDS_MAX`] later. A connection that is
/// left then is cut. Where another server is to replace it, it returns when every call is answered, at most
/// [`limits::LEAVE_CALLS_MAX`] later and a little more.
pub async fn serve(
    supervisor: Supervisor,
    listeners: Vec<ListeningSocket>,
    config: EdgeConfig,
) -> Result<(), ServeError> {
    let listeners: io::Result<Vec<_>> = listeners.into_iter().map(listen).collect();
    let listeners = listeners.map_err(ServeError::Listen)?;
    let ending = Ending::default();
    // However this future ends, no connection outlives it.
    let _cut = ending.over.clone().drop_guard();
    let tasks = TaskTracker::new();
    let reporter = HealthReporter::new();
    health::begin(&reporter, &supervisor).await;
    let links = Arc::new(Links::new(Arc::clone(&config.access)));
    let shares = Shares::default();
    let routes = routes(&supervisor, &config, (&links, &shares), &tasks, &reporter)?;

    let forward = Forward::new(supervisor.clone(), links);
    let may_runs_call = !config.forbids_api_access;
    let judge = PeerJudge {
        supervisor: supervisor.clone(),
        access: Arc::clone(&config.access),
        may_runs_call,
    };
    let runs = RunTokens::new(config.digest_key, supervisor.clone());
    let runs = may_runs_call.then(|| Arc::new(runs));
    let serving = supervisor.serving();
    let ended = async {
        tokio::select! {
            () = drain(&supervisor, reporter.clone(), &ending) => {}
            () = leave(&serving, reporter.clone(), &ending) => {}
        }
    };
    run(
        routes,
        &supervisor.telemetry(),
        (Some(supervisor.clone()), Some(forward)),
        Inbound {
            listeners,
            access: config.access,
            runs,
            shares,
            judge,
        },
        &ending,
        ended,
    )
    .await?;
    if serving.is_leaving() {
        return Ok(());
    }
    tasks.close();
    // Unfinished work continues in the supervisor; no caller is left to answer.
    let _ = tokio::time::timeout(limits::LAST_WORDS_MAX, tasks.wait()).await;
    Ok(())
}

/// Judges the peers of unix sockets by the runs of this server.
#[derive(Clone)]
struct PeerJudge {
    supervisor: Supervisor,
    access: Arc<Access>,
    may_runs_call: bool,
}

impl Judge for PeerJudge {
    fn judge(&self, socket: &UnixStream) -> io::Result<Peer> {
        let supervisor = &self.supervisor;
        let seen = supervisor.peer(socket)?;
        let pid = (seen.pid > 0).then_some(seen.pid);
        let descent = || supervisor.descent(socket);
        let mut peer = Peer::judge(seen.uid, pid, &self.access.rules(), descent);
        if let PeerVerdict::OfARun(run) = &mut peer.verdict
            && let Some((of, owner)) = self
                .may_runs_call
                .then(|| supervisor.run_with_token(socket))
                .flatten()
        {
            *run = Some(of);
            peer.owner = Some(owner);
        }
        Ok(peer)
    }

    fn warn(&self, socket: &UnixStream, is_due: impl FnOnce(RunId) -> bool) {
        let text = "the run makes many connections to the server's socket that are refused or closed at once";
        self.supervisor.warn_run_of(socket, is_due, text);
    }
}

/// Listeners, and the check of peers.
struct Inbound<J> {
    listeners: Vec<Listener>,
    access: Arc<Access>,
    /// Absent: no run may call.
    runs: Option<Arc<RunTokens>>,
    /// Quota usage of owners.
    shares: Shares,
    /// Judges a peer of a unix socket.
    judge: J,
}

/// Serves until every connection has ended after `ending` has begun, or until `drained`.
async fn run<J>(
    routes: Routes,
    telemetry: &Telemetry,
    (trail, forward): (Option<Supervisor>, Option<Forward>),
    inbound: Inbound<J>,
    ending: &Ending,
    drained: impl Future<Output = ()>,
) -> Result<(), ServeError>
where
    J: Judge,
{
    let Inbound {
        listeners,
        access,
        runs,
        shares,
        judge,
    } = inbound;
    access.measure(telemetry);
    let gate = Gate::new(trail.clone(), Arc::clone(&access), runs.clone());
    let credentials = ServerCredentials::new(access, runs);
    let places = Places::default();
    let refusals = Refusals::new(telemetry, &places, trail);
    let pace = Pace {
        shares: shares.clone(),
        calls: ending.calls.clone(),
        ending: ending.begun.clone(),
    };
    let counting = Counting {
        shares,
        pace: pace.clone(),
    };
    let inside = (gate, counting, pace);
    let incoming = accept::incoming(listeners, ending, &places, &refusals, &credentials, &judge);
    let serving = server(telemetry, inside, forward)
        .add_routes(routes)
        .serve_with_incoming_shutdown(
            incoming.map_err(ServeError::Listen)?,
            ending.begun.clone().cancelled_owned(),
        );
    tokio::select! {
        served = serving => served.map_err(ServeError::Transport),
        () = drained => Ok(()),
        () = credentials.follow() => unreachable!("it never returns"),
    }
}

/// Follows the supervisor until it drains; returns when the time of the connections is over.
async fn drain(supervisor: &Supervisor, reporter: HealthReporter, ending: &Ending) {
    let serving = supervisor.serving();
    tokio::join!(
        health::follow(&reporter, supervisor),
        serving.until_closing()
    );
    end(reporter, ending).await;
}

/// Ends the connections in order; returns when their time is over.
async fn end(reporter: HealthReporter, ending: &Ending) {
    ending.begun.cancel();
    tokio::time::sleep(limits::LAST_WORDS_MAX).await;
    health::end(reporter).await;
    tokio::time::sleep(limits::DRAIN_MAX.saturating_sub(limits::LAST_WORDS_MAX)).await;
    tracing::warn!("connections are open at the end of the shutdown period, closing them");
    ending.over.cancel();
}

/// Leaves for another server, from the moment of the request: no connection is accepted, and when all calls in progress
/// are answered, the connections end. Waiting and streaming calls end by themselves. Returns when the time of the
/// connections is over.
async fn leave(serving: &Serving, reporter: HealthReporter, ending: &Ending) {
    serving.until_leaving().await;
    ending.shut.cancel();
    // Connections accepted meanwhile count like earlier ones.
    ending.open.close();
    let _ = tokio::time::timeout(limits::LEAVE_CALLS_MAX, ending.open.wait()).await;
    // A connected client can still make its call and get the answer.
    ending.silent.close();
    let _ = tokio::time::timeout(limits::LEAVE_FIRST_BYTE_MAX, ending.silent.wait()).await;
    ending.begun.cancel();
    health::end(reporter).await;
    ending.calls.close();
    let answered = async {
        loop {
            ending.calls.wait().await;
            tokio::time::sleep(limits::LEAVE_FLUSH).await;
            // Clients make calls on their connections until the transport has closed them.
            if ending.calls.is_empty() {
                return;
            }
        }
    };
    let answered = tokio::time::timeout(limits::LEAVE_CALLS_MAX, answered).await;
    if answered.is_err() {
        tracing::warn!("calls were not answered in time, clients repeat them at the next server");
    }
    ending.over.cancel();
}

fn listen(listening: ListeningSocket) -> io::Result<Listener> {
    let listener = StdUnixListener::from(listening.socket);
    if listener.local_addr().is_ok() {
        listener.set_nonblocking(true)?;
        return Ok(Listener::Unix(listener, listening.rebound));
    }
    let listener = TcpListener::from(OwnedFd::from(listener));
    listener.set_nonblocking(true)?;
    Ok(Listener::Tcp(listener))
}

type Inner = Stack<With<Pace>, Stack<Either<With<Forward>, Identity>, Guarded>>;
type Guarded = Stack<With<Counting>, Stack<With<Gate>, Outer>>;
type Outer = Stack<With<Answers>, Stack<With<Observing>, Identity>>;

fn server(
    telemetry: &Telemetry,
    (gate, counting, pace): (Gate, Counting, Pace),
    forward: Option<Forward>,
) -> Server<Inner> {
    Server::builder()
        .max_concurrent_streams(limits::CALLS_PER_CONNECTION_MAX)
        .http2_max_header_list_size(limits::METADATA_BYTES_MAX)
        .layer(With(Observing::new(telemetry.clone())))
        .layer(With(Answers::new(telemetry)))
        .layer(With(gate))
        .layer(With(counting))
        .layer(option_layer(forward.map(With)))
        // Another node has paced its own answer.
        .layer(With(pace))
}

fn routes(
    supervisor: &Supervisor,
    config: &EdgeConfig,
    (links, shares): (&Arc<Links>, &Shares),
    tasks: &TaskTracker,
    reporter: &HealthReporter,
) -> Result<Routes, ServeError> {
    let api = Api::new(
        supervisor.clone(),
        config.digest_key.clone(),
        tasks.clone(),
        Arc::clone(links),
        shares.clone(),
    );
    let reflection = tonic_reflection::server::Builder::configure()
        .register_encoded_file_descriptor_set(pb::FILE_DESCRIPTOR_SET)
        .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
        .build_v1()
        .map_err(ServeError::Reflection)?;
    let health = HealthService::from_health_reporter(reporter.clone());
    let mut routes = Routes::builder();
    routes
        .add_service(
            ProcessServiceServer::new(api.clone())
                .max_decoding_message_size(limits::REQUEST_BYTES_MAX)
                .max_encoding_message_size(limits::STREAM_MESSAGE_BYTES_MAX),
        )
        .add_service(
            AdminServiceServer::new(api)
                .max_decoding_message_size(limits::REQUEST_BYTES_MAX)
                .max_encoding_message_size(limits::RESPONSE_BYTES_MAX),
        )
        .add_service(HealthServer::new(health))
        .add_service(reflection);
    Ok(routes.routes())
}

#[cfg(test)]
mod tests;
