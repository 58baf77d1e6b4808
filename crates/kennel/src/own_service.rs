//! A service on a directory of its own; when this is dropped, the service, all that it has started and the directory
//! are removed.

use crate::{offline, version};
use kennel_cli::{
    Binary, Exit, Failure, Format, Link, OWN_FAILURE, failure::because, refused, words,
};
use kennel_client as client;
use kennel_client::{Address, Connection};
use kennel_keeper::keeper::remove_groups;
use kennel_lifecycle::Signal;
use kennel_linux::census::{self, Process};
use kennel_proto::pb;
use std::{
    env,
    fs::{self, DirBuilder, File},
    io,
    os::unix::{fs::DirBuilderExt, process::CommandExt},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

/// Time between two checks.
const LOOK_EVERY: Duration = Duration::from_millis(10);
/// Longest wait for a service to answer, or to end.
const PATIENCE: Duration = Duration::from_mins(1);
/// Most rounds of SIGKILL to remaining processes.
const ROUNDS_MAX: u32 = 500;

pub(crate) struct Service {
    /// Dropped before the directory, so that nothing is started there any more.
    keeper: OwnKeeper,
    directory: OwnDirectory,
    connection: Connection,
    /// Containment of its runs, in the words of the contract.
    pub(crate) containment: &'static str,
    /// Whether its runs have control groups.
    pub(crate) grouped: bool,
}

/// This binary, as the command line sees it.
pub(crate) struct Kennel;

impl Binary for Kennel {
    const COMMIT: &'static str = version::COMMIT;
    const BUILD: &'static str = version::BUILD;

    /// Neither the server nor its directory outlives the command.
    async fn run_without_server(
        request: pb::SpawnRequest,
        format: Format,
    ) -> Result<Exit, Failure> {
        let service = Service::start("run").await;
        let service = service.map_err(|failure| failure.code(OWN_FAILURE))?;
        let link = Link::own(service.connection().clone(), format);
        let result = Box::pin(kennel_cli::run(&link, request)).await;
        service.end().await;
        result
    }

    fn leftovers() -> String {
        offline::leftovers()
    }
}

impl Service {
    /// Starts one in the directory for temporary files. The word in its name gives the purpose.
    pub(crate) async fn start(purpose: &str) -> Result<Self, Failure> {
        let name = format!("kennel-{purpose}-{}", ulid::Ulid::generate());
        let directory = env::temp_dir().join(name);
        DirBuilder::new()
            .mode(0o700)
            .create(&directory)
            .map_err(because(format_args!("cannot make {}", directory.display())))?;
        let directory = OwnDirectory(directory);
        let mut keeper = OwnKeeper(launch(&directory.0)?);
        let connection = connect(&directory.0, &mut keeper.0).await?;
        let mut service = Self {
            keeper,
            directory,
            connection,
            containment: "",
            grouped: false,
        };
        service.look().await?;
        Ok(service)
    }

    async fn look(&mut self) -> Result<(), Failure> {
        let request = pb::GetServerInfoRequest {};
        let answer = self.connection.admin().get_server_info(request).await;
        let answer = answer.map_err(refused)?.into_inner();
        let host = answer
            .server
            .and_then(|server| server.host)
            .unwrap_or_default();
        self.grouped = host.containment() == pb::Containment::Cgroup;
        self.containment = words::containment(host.containment());
        Ok(())
    }

    /// Returns its data directory.
    pub(crate) fn data_dir(&self) -> PathBuf {
        data_dir(&self.directory.0)
    }

    /// Returns its socket.
    pub(crate) fn socket(&self) -> PathBuf {
        socket(&self.directory.0)
    }

    /// Returns the process id of its keeper.
    pub(crate) fn keeper_pid(&self) -> u32 {
        self.keeper.0.id()
    }

    pub(crate) fn connection(&self) -> &Connection {
        &self.connection
    }

    /// Sends SIGKILL to the server; the keeper starts another one, which adopts the runs.
    pub(crate) async fn kill_server(&mut self) -> Result<(), Failure> {
        // No server exists while the keeper replaces one that did not answer.
        let server = seen("the service has no server", || self.server()).await?;
        server.signal(Signal::KILL);
        let is_gone = || (!server.is_alive()).then_some(());
        seen("a server that was hit does not end", is_gone).await?;
        self.connection = connect(&self.directory.0, &mut self.keeper.0).await?;
        self.look().await
    }

    /// Sends SIGKILL to the keeper; shims end their runs, and the next start records that.
    pub(crate) async fn kill_keeper(&mut self) -> Result<(), Failure> {
        let server = self.server();
        let keeper = &mut self.keeper.0;
        let _ = keeper.kill();
        let is_gone = || {
            let is_over = has_ended(keeper) && !server.is_some_and(|server| server.is_alive());
            is_over.then_some(())
        };
        seen("a service that was hit does not end", is_gone).await?;
        self.keeper = OwnKeeper(launch(&self.directory.0)?);
        self.connection = connect(&self.directory.0, &mut self.keeper.0).await?;
        self.look().await
    }

    fn server(&self) -> Option<Process> {
        let keeper = self.keeper.0.id().cast_signed();
        let mut children = census::children(keeper).into_iter();
        children.find(|process| is_server(process.pid))
    }

    /// Shuts it down; remaining processes are ended when it is dropped.
    pub(crate) async fn end(mut self) {
        end(&mut self.keeper.0).await;
    }
}

/// A keeper, which is ended when this is dropped.
struct OwnKeeper(Child);

impl Drop for OwnKeeper {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A directory. When this is dropped, all processes that name it are ended, and it is removed with the control groups
/// that its keepers have recorded.
struct OwnDirectory(PathBuf);

impl Drop for OwnDirectory {
    fn drop(&mut self) {
        for _ in 0..ROUNDS_MAX {
            let left = census::of_directory(&self.0);
            if left.is_empty() {
                break;
            }
            for process in left {
                process.signal(Signal::KILL);
            }
            thread::sleep(LOOK_EVERY);
        }
        remove_groups(&data_dir(&self.0));
        let _ = kennel_keeper::rundir::remove_tree(&self.0);
    }
}

/// Looks until something is seen. `failure`: what is reported where that takes too long.
async fn seen<T>(failure: &str, mut look: impl FnMut() -> Option<T>) -> Result<T, Failure> {
    let until = Instant::now() + PATIENCE;
    loop {
        if let Some(seen) = look() {
            return Ok(seen);
        }
        if Instant::now() > until {
            return Err(Failure::new(failure));
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

fn has_ended(keeper: &mut Child) -> bool {
    !keeper.try_wait().is_ok_and(|status| status.is_none())
}

fn data_dir(directory: &Path) -> PathBuf {
    directory.join("data")
}

fn is_server(pid: i32) -> bool {
    fs::read(format!("/proc/{pid}/cmdline"))
        .is_ok_and(|words| words.split(|byte| *byte == 0).nth(1) == Some(b"server".as_slice()))
}

/// Returns a command of this binary.
pub(crate) fn own_program() -> Result<Command, Failure> {
    let own = env::current_exe().map_err(because("cannot find the own executable"))?;
    Ok(Command::new(own))
}

/// Returns a command of this binary, without Kennel's variables of the surroundings.
pub(crate) fn own_binary() -> Result<Command, Failure> {
    let mut command = own_program()?;
    for (name, _) in env::vars_os() {
        if name.to_string_lossy().starts_with("KENNEL_") {
            command.env_remove(name);
        }
    }
    Ok(command)
}

fn socket(directory: &Path) -> PathBuf {
    directory.join("s/kennel.sock")
}

fn launch(directory: &Path) -> Result<Child, Failure> {
    let cannot = |cause: io::Error| Failure::new(format!("cannot start a service: {cause}"));
    let log = File::options()
        .create(true)
        .append(true)
        .open(directory.join("log"))
        .map_err(cannot)?;
    let mut command = own_binary()?;
    command
        .args(["serve", "--config="])
        .arg("--listen")
        .arg(format!("unix:{}", socket(directory).display()))
        .arg("--data-dir")
        .arg(data_dir(directory))
        .stdin(Stdio::null())
        .stdout(log.try_clone().map_err(cannot)?)
        .stderr(log)
        // Ctrl-C is for this command, which then ends the service itself.
        .process_group(0);
    census::end_with_this_thread(&mut command);
    command.spawn().map_err(cannot)
}

/// Connects to the service of this keeper, as soon as it answers; `None`: it has ended.
pub(crate) async fn answer(
    address: &Address,
    keeper: &mut Child,
) -> Result<Option<Connection>, Failure> {
    let until = Instant::now() + PATIENCE;
    loop {
        let ended = keeper.try_wait().is_ok_and(|status| status.is_some());
        let why = match client::connect(address).await {
            Ok(connection) => {
                let request = pb::GetServerInfoRequest {};
                match connection.admin().get_server_info(request).await {
                    Ok(_) => return Ok(Some(connection)),
                    Err(status) => status.message().to_owned(),
                }
            }
            Err(error) => client::shown(&error),
        };
        if ended {
            return Ok(None);
        }
        if Instant::now() > until {
            return Err(Failure::new(format!("the service does not answer: {why}")));
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

async fn connect(directory: &Path, keeper: &mut Child) -> Result<Connection, Failure> {
    let answered = answer(&Address::Unix(socket(directory)), keeper).await;
    let why = match answered {
        Ok(Some(connection)) => return Ok(connection),
        Ok(None) => "it has ended".to_owned(),
        Err(failure) => failure.message().to_owned(),
    };
    let log = fs::read_to_string(directory.join("log")).unwrap_or_default();
    let last = log.lines().last().unwrap_or(&why);
    Err(Failure::new(format!(
        "no service can be started here: {last}"
    )))
}

/// Shuts a service down, and waits for it.
pub(crate) async fn end(keeper: &mut Child) {
    if let Some(process) = Process::now(keeper.id().cast_signed()) {
        process.signal(Signal::TERM);
    }
    let until = Instant::now() + PATIENCE;
    while !has_ended(keeper) && Instant::now() < until {
        tokio::time::sleep(LOOK_EVERY).await;
    }
}
