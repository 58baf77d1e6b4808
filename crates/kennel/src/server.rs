//! `kennel server`: the process that the keeper starts. Wires keeper, store, supervisor and edge together and serves.
//!
//! Exit codes are the supervisor's: 0, 1 where something was alive at the deadline, 70 where a component was lost.

use crate::{
    args::{NODE_LEASE_DEFAULT, NODE_RETENTION_DEFAULT, ServeArgs},
    config::ServeConfig,
    health, http, listen, secret,
    telemetry::{self, AuditExport, Exports, LogFormat, ProcessLog},
};
use clap::ArgMatches;
use kennel_cli::{
    Failure,
    failure::{because, failed},
};
use kennel_client::Surroundings;
use kennel_edge::{Access, DigestKey, EdgeConfig, ProbeClient, ServeError};
use kennel_keeper::{
    client::{EndCause, FormerServer, KeeperClient, KeeperHello},
    keeper::{self, ListenAddress},
};
use kennel_lifecycle::limits::SHUTDOWN_TIMEOUT_DEFAULT;
use kennel_linux::{crash_point, limits, own_file};
use kennel_store::Store;
use kennel_supervisor::{EXIT_LEFT, ListeningSocket, Supervisor, SupervisorConfig};
use std::{
    fs::{File, TryLockError},
    io,
    net::TcpListener,
    num::NonZero,
    os::fd::OwnedFd,
    path::Path,
    sync::Arc,
    time::Duration,
};
use tokio::{
    runtime::Handle,
    task::{JoinError, JoinHandle},
};

/// Exit code after the loss of a component.
pub(crate) const LOST: u8 = 70;

/// Longest time for pending answers to clients after the supervisor has ended.
const LAST_WORDS_MAX: Duration = Duration::from_millis(500);

/// Longest time of the store for queued writes when the server exits.
const STORE_FINISH_MAX: Duration = Duration::from_secs(1);

/// Longest wait for the exit of a server whose keeper was killed, and the time between two checks.
const FORMER_SERVER_MAX: Duration = Duration::from_secs(15);
/// Longest time of the store to report that it fits this program.
const STORE_TRIAL_MAX: Duration = Duration::from_secs(2);
const FORMER_SERVER_POLL: Duration = Duration::from_millis(20);

/// Serves until the keeper ends it, and returns the exit code.
pub(crate) fn main(typed: &ArgMatches, here: &Surroundings) -> Result<i32, Failure> {
    let flags = &ServeArgs::completed(typed, here)?;
    // Taken first: this also makes the process undumpable.
    let socket = kennel_keeper::server_socket().map_err(|_| {
        Failure::new("this is the part of the service that its keeper starts")
            .code(2)
            .hint("start the service with: kennel serve")
    })?;
    kennel_linux::ignore_stray_signals()
        .map_err(|cause| failed("cannot ignore stray signals", &cause))?;
    let config = ServeConfig::resolve(&flags.base, here)?;
    let log = telemetry::start_log(flags.log_format.unwrap_or_default(), flags.log.as_deref())?;
    let telling = flags.telemetry.resolve(here)?;
    let open_files = limits::open_files()
        .map_err(|cause| failed("cannot read this process's limits", &cause))?;
    let node = keeper::node_id(&config.data_dir)
        .map_err(|cause| failed("this node has no name", &cause))?;
    let mut exports = Exports::start(&telling, node, &host_name(), here, &log)?;
    exports.serve_metrics();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(worker_threads())
        .enable_all()
        .build()
        .map_err(because("cannot start the server"))?;
    let audit = exports.take_audit();
    let telemetry = exports.telemetry();
    let own = |key: DigestKey, quotas: Arc<Access>| {
        Ok(SupervisorConfig {
            node,
            node_name: config.node_name.clone().unwrap_or_else(host_name),
            address: config.advertise.clone(),
            lease: flags.base.node_lease.unwrap_or(NODE_LEASE_DEFAULT),
            node_retention: flags.base.node_retention.unwrap_or(NODE_RETENTION_DEFAULT),
            data_dir: config.data_dir.clone(),
            server_env: here.env.clone().into_iter().collect(),
            inherit: flags.inherit.clone(),
            runs_max: u32::try_from(limits::runs_by_descriptors(open_files)).unwrap_or(u32::MAX),
            privileges: flags.restrict_runs.clone().unwrap_or_default(),
            default_grace: flags.default_grace()?,
            default_limits: flags.default_limits()?,
            shutdown_timeout: (flags.shutdown_timeout).unwrap_or(SHUTDOWN_TIMEOUT_DEFAULT),
            shutdown_signals: flags.shutdown_signal.clone(),
            retention: flags.retention.resolve(),
            rows: flags.retention.resolve_rows(),
            telemetry,
            health: Arc::new(ProbeClient),
            tokens: Arc::new(key.clone()),
            sealer: Arc::new(key),
            secrets: Arc::new(flags.secrets(here, &config.data_dir)?),
            socket: listen::socket(&config.listen).cloned(),
            quotas,
            forbids_api_access: flags.forbid_api_access.unwrap_or_default(),
        })
    };
    let code = runtime.block_on(serve(socket, &config, &log, audit, own));
    let leaves = matches!(code, Ok(EXIT_LEFT));
    exports.finish(leaves);
    if leaves {
        // The next server waits for this one's exit, and every caller has been answered.
        runtime.shutdown_background();
    } else {
        runtime.shutdown_timeout(LAST_WORDS_MAX);
    }
    code
}

/// Returns half of the processors. A run passes many small tasks that wake each other; an additional idle thread is
/// woken for each of them. The other half is for SQLite's thread, keeper, shims and commands.
fn worker_threads() -> usize {
    let processors = std::thread::available_parallelism().map_or(1, NonZero::get);
    (processors / 2).max(1)
}

/// Serves until the keeper ends this process. `own`: what the supervisor is given, with the key of this installation and
/// the rights of principals.
async fn serve(
    socket: OwnedFd,
    config: &ServeConfig,
    log: &ProcessLog,
    audit: Option<AuditExport>,
    own: impl FnOnce(DigestKey, Arc<Access>) -> Result<SupervisorConfig, Failure>,
) -> Result<i32, Failure> {
    let (keeper, events, hello, held) = KeeperClient::connect(socket)
        .await
        .map_err(|cause| failed("cannot reach the keeper", &cause))?;
    if let Some(former) = &hello.former {
        print_former(former);
    }
    let containment = match &hello.cgroup_base {
        Ok(_) => "cgroup".to_owned(),
        Err(why) => format!("subreaper: {why}"),
    };
    let former = tokio::time::timeout(FORMER_SERVER_MAX, take_over(&config.data_dir)).await;
    let lock = former
        .map_err(|_| Failure::new("the server of an earlier keeper does not go").code(LOST))?
        .map_err(|cause| failed("cannot lock the journals", &cause))?;
    // The lock lasts until this process is gone: its last task may write until then.
    std::mem::forget(lock);
    let key = secret::digest_key(&config.data_dir)
        .map(DigestKey::new)
        .map_err(|cause| failed("cannot read this installation's key", &cause))?;
    let access = Arc::new(access_of_server(config, &hello)?);
    let own = own(key.clone(), Arc::clone(&access))?;
    let edge = EdgeConfig {
        digest_key: key,
        access,
        forbids_api_access: own.forbids_api_access,
    };
    let store = open_store(config, &hello, held.is_empty()).await?;
    let kernel = Arc::new(keeper.clone());
    let booted = Supervisor::boot(own, kernel, events, hello, held, Arc::clone(&store)).await;
    let (supervisor, ended) =
        booted.map_err(|cause| failed("cannot take this node over", &cause))?;
    if let Some(audit) = audit {
        audit.start(
            supervisor.clone(),
            &supervisor.telemetry(),
            &config.data_dir,
        );
    }
    let listeners = keeper.take_listeners();
    let addresses = addresses(config, &listeners);
    if let Some(address) = config.health.clone() {
        let routes = health::routes(supervisor.clone(), Handle::current());
        http::serve_apart(address, "health", routes)
            .map_err(|cause| failed("cannot serve health", &cause))?;
    }
    let edge = tokio::spawn(kennel_edge::serve(supervisor.clone(), listeners, edge));
    crash_point!("boot.serving");
    keeper.ready();
    crash_point!("boot.ready");
    print_ready(config, &addresses, &containment, log);
    let code = to_the_end(&supervisor, ended, edge).await;
    if let Some(address) = config
        .health
        .as_ref()
        .filter(|_| !matches!(code, Ok(EXIT_LEFT)))
    {
        address.clear();
    }
    // Queued writes are carried out, and the database is closed in order.
    let finish = async {
        supervisor.end().await;
        store.finish().await;
    };
    if tokio::time::timeout(STORE_FINISH_MAX, finish)
        .await
        .is_err()
    {
        tracing::warn!("the database did not finish in time, its pending writes are recovered");
    }
    crash_point!("leave.done", matches!(code, Ok(EXIT_LEFT)));
    code
}

/// Opens the store. A setting, a right or a schema that cannot be used ends the first server of a keeper, for the operator to
/// correct; a database that is away is waited for. Where runs wait to be adopted, the server starts, and the store is opened
/// when that is possible; but a server started by an upgrade makes way for the former binary if it cannot use the store's
/// schema.
async fn open_store(
    config: &ServeConfig,
    hello: &KeeperHello,
    nothing_held: bool,
) -> Result<Arc<dyn Store>, Failure> {
    let former = hello.former.as_ref().map(|former| former.cause);
    let opened = if hello.restarts == 0 && nothing_held {
        match kennel_store::open(&config.store).await {
            Err(cause) if cause.is_transient() => {
                Ok(kennel_store::open_later(&config.store, Some(cause)))
            }
            opened => opened,
        }
    } else if former == Some(EndCause::Upgrade) {
        let opened = kennel_store::open(&config.store);
        match tokio::time::timeout(STORE_TRIAL_MAX, opened).await {
            Ok(Err(cause)) if cause.is_of_schema() => Err(cause),
            Ok(Ok(store)) => Ok(store),
            Ok(Err(_)) | Err(_) => Ok(kennel_store::open_later(&config.store, None)),
        }
    } else {
        Ok(kennel_store::open_later(&config.store, None))
    };
    opened.map_err(|cause| {
        let what = format!("cannot open the store {}", config.store);
        failed(&what, &cause)
    })
}

/// Waits for the supervisor's exit code, and then for the edge.
async fn to_the_end(
    supervisor: &Supervisor,
    mut ended: JoinHandle<i32>,
    mut edge: JoinHandle<Result<(), ServeError>>,
) -> Result<i32, Failure> {
    let code = tokio::select! {
        code = &mut ended => code.map_err(|cause| failed("the supervisor failed", &cause).code(LOST))?,
        served = &mut edge => return match served {
            // The edge ends before the supervisor if another server replaces this one, or if no client is connected.
            Ok(Ok(())) => answered(supervisor, ended).await.map_err(|cause| failed("the supervisor failed", &cause).code(LOST)),
            Ok(Err(cause)) => Err(failed("cannot serve", &cause).code(LOST)),
            Err(cause) => Err(failed("the edge failed", &cause).code(LOST)),
        },
    };
    // The edge drains by itself, in bounded time; its result no longer changes anything.
    match edge.await {
        Ok(Ok(())) => {}
        Ok(Err(cause)) => tracing::warn!(%cause, "clients may lack their last answers"),
        Err(cause) => tracing::warn!(%cause, "clients may lack their last answers"),
    }
    Ok(code)
}

/// Waits until no caller waits for an answer.
async fn answered(supervisor: &Supervisor, ended: JoinHandle<i32>) -> Result<i32, JoinError> {
    crash_point!("leave.answered", supervisor.serving().is_leaving());
    supervisor.serving().has_answered();
    ended.await
}

/// Prints how the server before this one ended. One line.
fn print_former(former: &FormerServer) {
    let version = &former.version;
    if former.cause == EndCause::Upgrade {
        tracing::info!(version, "the previous server {former}");
    } else {
        tracing::warn!(version, "the previous server {former}, this one continues");
    }
}

/// Waits for the former server: only one at a time writes the journals, and one whose keeper was killed may still be
/// reading the last output.
async fn take_over(data_dir: &Path) -> io::Result<File> {
    let mut how = own_file::options();
    how.write(true).create(true).truncate(false);
    let opened = how.open(data_dir.join("server.lock"));
    let file = opened.and_then(own_file::regular)?;
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(file),
            Err(TryLockError::WouldBlock) => tokio::time::sleep(FORMER_SERVER_POLL).await,
            Err(TryLockError::Error(cause)) => return Err(cause),
        }
    }
}

/// Returns the rights of principals, by the access file.
pub(crate) fn access(config: &ServeConfig) -> Result<Access, Failure> {
    let access = Access::open(config.access.as_deref(), kennel_linux::effective_uid());
    let access = access.map_err(|cause| failed("cannot use the access file", &cause))?;
    if listen::has_port(&config.listen) && !access.has_certificate() {
        return Err(
            Failure::new("the access file has no certificate for TCP ports")
                .hint("give it a section [tls] with certificate and key"),
        );
    }
    Ok(access)
}

/// Reads the access file for a server. A later server of a keeper supervises runs: a file that is unusable by then is
/// no reason to exit. It serves its own user alone until the file is usable.
fn access_of_server(config: &ServeConfig, hello: &KeeperHello) -> Result<Access, Failure> {
    match access(config) {
        Err(failure) if hello.restarts > 0 => {
            tracing::error!(%failure, "serving this user and root only until the access file is valid");
            Ok(Access::own(
                config.access.as_deref(),
                kennel_linux::effective_uid(),
            ))
        }
        access => access,
    }
}

/// Returns its addresses, with the numbers of ports chosen by the kernel.
fn addresses(config: &ServeConfig, listeners: &[ListeningSocket]) -> String {
    let sockets = listeners.iter().map(|listening| &listening.socket);
    let texts = config
        .listen
        .iter()
        .zip(sockets)
        .map(|(address, socket)| match address {
            ListenAddress::Unix { .. } => address.to_string(),
            ListenAddress::Tcp(_) => {
                let socket = socket.try_clone().map(TcpListener::from);
                let bound = socket.and_then(|socket| socket.local_addr());
                bound.map_or_else(|_| address.to_string(), |bound| format!("tcp:{bound}"))
            }
        });
    texts.collect::<Vec<_>>().join(", ")
}

/// Prints one line that a person or a script waits for.
fn print_ready(config: &ServeConfig, listen: &str, containment: &str, log: &ProcessLog) {
    let store = &config.store;
    match log.format {
        LogFormat::Text => log.print(&format!(
            "kennel: ready on {listen} (store {store}, containment {containment})"
        )),
        LogFormat::Json => tracing::info!(listen, %store, containment, "ready"),
    }
}

/// Returns the display name of the node.
fn host_name() -> String {
    let name = std::fs::read_to_string(Path::new("/proc/sys/kernel/hostname"));
    name.map_or_else(|_| "unknown".to_owned(), |name| name.trim().to_owned())
}
