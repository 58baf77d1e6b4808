//! A service on a directory of its own; when this is dropped, the service, all that it has started and the directory
//! are removed.

use crate::failure::{Failure, chain};
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
    directory: PathBuf,
    keeper: Child,
    connection: Connection,
    /// Containment of its runs, in the words of the contract.
    pub(crate) containment: &'static str,
    /// Whether its runs have control groups.
    pub(crate) grouped: bool,
}

impl Service {
    /// Starts one in the directory for temporary files. The word in its name gives the purpose.
    pub(crate) async fn start(purpose: &str) -> Result<Self, Failure> {
        let name = format!("kennel-{purpose}-{}", ulid::Ulid::generate());
        let directory = env::temp_dir().join(name);
        DirBuilder::new()
            .mode(0o700)
            .create(&directory)
            .map_err(|cause| {
                Failure::new(format!("cannot make {}: {cause}", directory.display()))
            })?;
        let guard = Unfinished(&directory);
        let mut keeper = launch(&directory)?;
        let connection = match connect(&directory, &mut keeper).await {
            Ok(connection) => connection,
            Err(failure) => {
                let _ = keeper.kill();
                let _ = keeper.wait();
                return Err(failure);
            }
        };
        std::mem::forget(guard);
        let mut service = Self {
            directory,
            keeper,
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
        let answer = answer.map_err(crate::cli::refused)?.into_inner();
        let host = answer
            .server
            .and_then(|server| server.host)
            .unwrap_or_default();
        self.grouped = host.containment() == pb::Containment::Cgroup;
        self.containment = crate::cli::words::containment(host.containment());
        Ok(())
    }

    /// Returns its data directory.
    pub(crate) fn data_dir(&self) -> PathBuf {
        data_dir(&self.directory)
    }

    /// Returns its socket.
    pub(crate) fn socket(&self) -> PathBuf {
        socket(&self.directory)
    }

    /// Returns the process id of its keeper.
    pub(crate) fn keeper_pid(&self) -> u32 {
        self.keeper.id()
    }

    pub(crate) fn connection(&self) -> &Connection {
        &self.connection
    }

    /// Returns a command of this binary, without Kennel's variables of the surroundings.
    pub(crate) fn own_binary() -> Result<Command, Failure> {
        own_binary()
    }

    /// Sends SIGKILL to the server; the keeper starts another one, which adopts the runs.
    pub(crate) async fn kill_server(&mut self) -> Result<(), Failure> {
        let until = Instant::now() + PATIENCE;
        let server = loop {
            match self.server() {
                Some(server) => break server,
                None if Instant::now() > until => {
                    return Err(Failure::new("the service has no server"));
                }
                // The keeper has replaced one that did not answer.
                None => tokio::time::sleep(LOOK_EVERY).await,
            }
        };
        server.signal(Signal::KILL);
        while server.is_alive() {
            if Instant::now() > until {
                return Err(Failure::new("a server that was hit does not end"));
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
        self.connection = connect(&self.directory, &mut self.keeper).await?;
        self.look().await
    }

    /// Sends SIGKILL to the keeper; shims end their runs, and the next start records that.
    pub(crate) async fn kill_keeper(&mut self) -> Result<(), Failure> {
        let server = self.server();
        let _ = self.keeper.kill();
        self.again(server).await
    }

    fn server(&self) -> Option<Process> {
        let keeper = self.keeper.id().cast_signed();
        let mut children = census::children(keeper).into_iter();
        children.find(|process| is_server(process.pid))
    }

    async fn again(&mut self, server: Option<Process>) -> Result<(), Failure> {
        let until = Instant::now() + PATIENCE;
        while self.keeper.try_wait().is_ok_and(|status| status.is_none())
            || server.is_some_and(|server| server.is_alive())
        {
            if Instant::now() > until {
                return Err(Failure::new("a service that was hit does not end"));
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
        self.keeper = launch(&self.directory)?;
        self.connection = connect(&self.directory, &mut self.keeper).await?;
        self.look().await
    }

    /// Shuts it down; remaining processes are ended when it is dropped.
    pub(crate) async fn end(mut self) {
        end(&mut self.keeper).await;
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        let _ = self.keeper.kill();
        let _ = self.keeper.wait();
        clear(&self.directory);
    }
}

/// A directory whose service did not start.
struct Unfinished<'a>(&'a Path);

impl Drop for Unfinished<'_> {
    fn drop(&mut self) {
        clear(self.0);
    }
}

/// Ends all processes that name the directory, and removes it and the control groups that its keepers have recorded.
fn clear(directory: &Path) {
    for _ in 0..ROUNDS_MAX {
        let left = census::of_directory(directory);
        if left.is_empty() {
            break;
        }
        for process in left {
            process.signal(Signal::KILL);
        }
        thread::sleep(LOOK_EVERY);
    }
    remove_groups(&data_dir(directory));
    let _ = fs::remove_dir_all(directory);
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
    let own = env::current_exe()
        .map_err(|cause| Failure::new(format!("cannot find the own executable: {cause}")))?;
    Ok(Command::new(own))
}

fn own_binary() -> Result<Command, Failure> {
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
            Err(error) => chain(&error),
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
    while keeper.try_wait().is_ok_and(|status| status.is_none()) && Instant::now() < until {
        tokio::time::sleep(LOOK_EVERY).await;
    }
}
