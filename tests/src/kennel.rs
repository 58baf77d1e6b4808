//! A real `kennel serve` on a directory of its own, and all operations of tests on it.

use crate::{
    PATIENCE, STORE_PATIENCE, census,
    client::Client,
    procfs::{self, Proc},
    programs,
    wait::{Looks, eventually, eventually_async, must},
};
use kennel_client::Address;
use nix::{
    sys::{
        prctl,
        signal::{Signal, kill},
        wait::{WaitPidFlag, waitpid},
    },
    unistd::Pid,
};
use std::{
    ffi::OsString,
    fs::{self, File},
    io::{self, IsTerminal},
    os::{
        fd::{AsFd, OwnedFd},
        unix::{
            fs::{PermissionsExt, chown},
            net::UnixListener,
        },
    },
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    sync::{Arc, Mutex},
    time::Duration,
};
use tempfile::TempDir;
use tonic_health::pb::{HealthCheckRequest, health_check_response::ServingStatus};

/// Children that a test waits for by `Child`: the reaping of orphans leaves them alone.
static WAITED_FOR: Mutex<Vec<i32>> = Mutex::new(Vec::new());

/// Whether runs get control groups.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Cgroup {
    /// As the host allows.
    #[default]
    Auto,
    /// Turned off by its own switch.
    Off,
    /// Mounted read-only for this server, as in an unprivileged container. Only root can make it so.
    ReadOnly,
}

/// User of the server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum User {
    /// The test's own user.
    #[default]
    Own,
    /// The user `nobody`, without any privilege. Only root can do that.
    Unprivileged,
}

/// Name of the process that forks the shims.
const ZYGOTE: &str = "kennel-zygote";
/// Uid and gid of `nobody`.
pub const UNPRIVILEGED_ID: u32 = 65534;

/// Puts standard input at descriptor 3, and names it as systemd does, for the process that follows.
const PASS_SOCKET: &str = "exec 3<&0 </dev/null; \
    export LISTEN_PID=$$ LISTEN_FDS=1 LISTEN_FDNAMES=kennel.socket; exec \"$@\"";

/// Options of a server.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// A `--store` value; absent: SQLite in the data directory.
    pub store: Option<String>,
    /// Whether runs get control groups.
    pub cgroup: Cgroup,
    /// User of the server.
    pub user: User,
    /// Variables on top of the test's own environment.
    pub env: Vec<(String, String)>,
    /// Further words for `kennel serve`.
    pub words: Vec<&'static str>,
    /// The binary that it is started from, by a copy of its own that may be replaced; absent: the one under test itself.
    pub own_binary: Option<PathBuf>,
    /// Size of its data directory, as tmpfs takes it; it exists as long as the keeper. Only root can do that.
    pub data_room: Option<&'static str>,
    /// Terminals of its own, instead of the host's: options of devpts(5), such as `max=2`; empty: none at all. Only
    /// root can do that.
    pub terminals: Option<&'static str>,
    /// A listening socket that is passed as systemd passes it, in place of standard input on the way.
    pub passed_socket: Option<Arc<UnixListener>>,
    /// Standard error of the first start, in place of a log file; of a terminal, which controls the keeper, standard input
    /// too.
    pub stderr: Option<Arc<OwnedFd>>,
    /// A file in place of the kernel's boot id, for this server alone. Only root can do that.
    pub boot_id: Option<PathBuf>,
}

impl Options {
    /// Returns options with points at which keeper or server die, as files in this directory define.
    #[must_use]
    pub fn crashing(points: &Path) -> Self {
        Self {
            env: vec![("KENNEL_TEST_CRASH".into(), points.display().to_string())],
            ..Self::default()
        }
    }

    /// Returns options with this store.
    #[must_use]
    pub fn on(store: &str) -> Self {
        Self {
            store: Some(store.to_owned()),
            ..Self::default()
        }
    }

    /// Turns control groups off.
    #[must_use]
    pub fn without_cgroup(mut self) -> Self {
        self.cgroup = Cgroup::Off;
        self
    }
}

/// A server under test. All processes that it has started are gone when this is dropped.
pub struct Kennel {
    dir: TempDir,
    options: Options,
    keeper: Child,
    starts: u32,
    cgroup_bases: Vec<PathBuf>,
    /// Processes below a keeper when it was stopped: an exiting process has no marker any more, but is still there.
    former: Vec<Proc>,
    /// Those among them that were servers, and may still hold sockets.
    former_servers: Vec<Proc>,
}

impl Kennel {
    /// Starts a server on a fresh directory and waits until it serves.
    pub async fn start(options: Options) -> Self {
        let dir = tempfile::Builder::new()
            .prefix("kennel-test-")
            .tempdir()
            .expect("a temporary directory can be made");
        Self::start_in(dir, options).await
    }

    /// As [`Self::start`], on a directory that may have contents: `data` in it is the data directory.
    pub async fn start_in(dir: TempDir, options: Options) -> Self {
        // The test adopts and reaps orphans of a killed keeper: PID 1 of a container may not.
        prctl::set_child_subreaper(true).expect("a process can be made a subreaper");
        if options.user == User::Unprivileged {
            give_to_unprivileged(dir.path());
        } else if let Some(binary) = &options.own_binary {
            install(binary, &dir.path().join("kennel"), "0755");
        }
        let keeper = launch(dir.path(), &options, 1);
        let mut kennel = Self {
            dir,
            options,
            keeper,
            starts: 1,
            cgroup_bases: Vec::new(),
            former: Vec::new(),
            former_servers: Vec::new(),
        };
        kennel.wait_until_it_serves().await;
        kennel
    }

    /// Starts a server on SQLite, with all that the host permits.
    pub async fn on_sqlite() -> Self {
        Self::start(Options::default()).await
    }

    async fn wait_until_it_serves(&mut self) {
        if let Err(status) = self.serves().await {
            panic!("kennel serve ended with {status}:\n{}", self.log());
        }
    }

    /// Waits until a server of this keeper answers; the error is the keeper's exit.
    async fn serves(&mut self) -> Result<(), ExitStatus> {
        let socket = self.socket();
        let looks = Looks::within(PATIENCE);
        loop {
            if let Some(status) = self.keeper.try_wait().expect("own child") {
                return Err(status);
            }
            if socket.exists()
                && let Ok(mut client) = Client::connect(&socket).await
                && let Some(info) = client.server_info().await
                // A server whose keeper was killed may answer at the same path for a moment.
                && info.keeper.as_ref().is_some_and(|keeper| keeper.pid == self.keeper_pid())
            {
                if !info.host.as_ref().is_none_or(|h| h.cgroup_base.is_empty()) {
                    let base = info.host.map(|h| h.cgroup_base).unwrap_or_default();
                    self.cgroup_bases.push(PathBuf::from(base));
                }
                self.former_servers.extend(self.server());
                return Ok(());
            }
            looks
                .again(|| format!("kennel serve answers:\n{}", self.log()))
                .await;
        }
    }

    /// Returns a client with a connection of its own.
    pub async fn client(&self) -> Client {
        let socket = self.socket();
        eventually_async("the server takes a connection", PATIENCE, || async {
            Client::connect(&socket).await.ok()
        })
        .await
    }

    /// Whether the health service reports this part as serving: `liveness`, `readiness` and the like.
    ///
    /// # Panics
    /// If it does not answer.
    pub async fn is_serving(&self, part: &str) -> bool {
        let address = Address::Unix(self.socket());
        let connection = must("connect", kennel_client::connect(&address).await);
        let request = HealthCheckRequest {
            service: part.into(),
        };
        let answer = must("health", connection.health().check(request).await);
        answer.into_inner().status() == ServingStatus::Serving
    }

    /// Waits until the health service reports that new runs are accepted, or are not.
    ///
    /// # Panics
    /// If that does not come.
    pub async fn becomes_ready(&self, ready: bool) {
        let what = if ready {
            "it is ready"
        } else {
            "it is not ready"
        };
        eventually_async(what, STORE_PATIENCE, async || {
            (self.is_serving("readiness").await == ready).then_some(())
        })
        .await;
    }

    /// Returns the TCP port that it listens on.
    ///
    /// # Panics
    /// If it reports none.
    pub async fn tcp_port(&self) -> u16 {
        eventually("it says its port", PATIENCE, || {
            let log = self.log();
            let (_, rest) = log.split_once("tcp:127.0.0.1:")?;
            let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
            digits.parse().ok().filter(|port| *port != 0)
        })
        .await
    }

    /// Returns the socket that it listens on.
    #[must_use]
    pub fn socket(&self) -> PathBuf {
        Self::socket_in(self.dir.path())
    }

    /// Returns the socket of a server on this directory.
    #[must_use]
    pub fn socket_in(dir: &Path) -> PathBuf {
        dir.join("s/kennel.sock")
    }

    /// Returns the `--server` value for the command line.
    #[must_use]
    pub fn address(&self) -> String {
        format!("unix:{}", self.socket().display())
    }

    /// Returns its data directory.
    #[must_use]
    pub fn data_dir(&self) -> PathBuf {
        self.dir.path().join("data")
    }

    /// Returns its data directory as the server sees it: one of limited size is mounted for the server alone.
    #[must_use]
    pub fn data_dir_inside(&self) -> PathBuf {
        let root = PathBuf::from(format!("/proc/{}/root", self.keeper_pid()));
        let path = self.data_dir();
        root.join(path.strip_prefix("/").expect("it is absolute"))
    }

    /// Returns a directory for the test's own files, removed with the server.
    #[must_use]
    pub fn scratch(&self) -> &Path {
        self.dir.path()
    }

    /// Returns the binary of the server: for another user, a copy that it can execute.
    #[must_use]
    pub fn program(&self) -> PathBuf {
        program(self.dir.path(), &self.options)
    }

    /// Replaces the binary that it was started from by another file, as a package manager does: by a rename.
    pub fn install(&self, from: &Path) {
        let fresh = self.dir.path().join("kennel.new");
        install(from, &fresh, "0755");
        fs::rename(&fresh, self.program()).expect("own directory");
    }

    /// Installs a script likewise.
    pub fn install_script(&self, script: &str) {
        let written = self.dir.path().join("kennel.script");
        fs::write(&written, script).expect("own directory");
        self.install(&written);
    }

    /// Returns a program, run by the server's user in the test's own mount namespace.
    #[must_use]
    pub fn command_of_user(&self, program: &Path) -> Command {
        let mut words = as_user(self.options.user);
        words.push(program.as_os_str().to_owned());
        let mut command = bare_command(Path::new(&words[0]));
        command.args(&words[1..]);
        command
    }

    /// Returns the private directory of a run.
    #[must_use]
    pub fn run_dir(&self, run_id: &str) -> PathBuf {
        self.data_dir().join("runs").join(run_id)
    }

    /// Returns the log of all its starts.
    #[must_use]
    pub fn log(&self) -> String {
        (1..=self.starts)
            .filter_map(|start| fs::read_to_string(log_path(self.dir.path(), start)).ok())
            .collect()
    }

    /// Waits until the log, which a thread of its own writes, has this text so often at least.
    pub async fn logs(&self, text: &str, times: usize) {
        let what = format!("{text:?} is logged {times} times");
        eventually(&what, PATIENCE, || {
            (self.log().matches(text).count() >= times).then_some(())
        })
        .await;
    }

    /// Returns the keeper, which is `kennel serve` itself.
    #[must_use]
    pub fn keeper_pid(&self) -> i32 {
        pid_of(&self.keeper)
    }

    /// Returns the server, while there is one.
    #[must_use]
    pub fn server(&self) -> Option<Proc> {
        family(self.keeper_pid()).into_iter().find(is_server)
    }

    /// Returns all shims, warm ones included.
    #[must_use]
    pub fn shims(&self) -> Vec<Proc> {
        family(self.keeper_pid())
            .into_iter()
            .filter(|proc| !is_server(proc) && looks_like_own(proc, self.keeper_pid()))
            .filter(|proc| proc.comm != ZYGOTE)
            .collect()
    }

    /// Returns the process that forks the shims, while there is one.
    #[must_use]
    pub fn zygote(&self) -> Option<Proc> {
        let mut family = family(self.keeper_pid()).into_iter();
        family.find(|proc| proc.comm == ZYGOTE)
    }

    /// Remembers the processes below the keeper, as long as it is there.
    fn remember_family(&mut self) {
        self.former_servers.extend(self.server());
        self.former.extend(self.descendants());
        self.former.retain(Proc::is_still_there);
    }

    /// Sends SIGKILL to the keeper; its other processes continue.
    pub fn kill_keeper(&mut self) {
        self.remember_family();
        self.keeper.kill().expect("own child can be killed");
    }

    /// Sends SIGKILL to keeper and server, which cannot react to each other's death, nor to earlier changes: they are
    /// halted first.
    pub fn kill_service_after(&mut self, while_halted: impl FnOnce()) {
        let server = self.server().expect("a server runs");
        let keeper = Proc::read(self.keeper_pid()).expect("own child");
        kill_exactly(&keeper, Signal::SIGSTOP);
        kill_exactly(&server, Signal::SIGSTOP);
        self.remember_family();
        while_halted();
        kill_exactly(&server, Signal::SIGKILL);
        self.keeper.kill().expect("own child can be killed");
    }

    /// Sends SIGKILL to the server, which is dead afterwards: it answers no more calls.
    ///
    /// # Panics
    /// If there is none, or it does not die.
    pub fn kill_server(&self) {
        let server = self.server().expect("a server runs");
        kill_exactly(&server, Signal::SIGKILL);
        let deadline = std::time::Instant::now() + PATIENCE;
        while server.is_alive() {
            assert!(
                std::time::Instant::now() < deadline,
                "it does not die: {server:?}"
            );
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Sends SIGKILL to the server, and waits until the next one of the keeper serves.
    pub async fn replace_server(&mut self) {
        self.kill_server();
        self.wait_until_it_serves().await;
    }

    /// Sends a signal to the keeper.
    pub fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.keeper_pid()), signal).expect("own child can be signalled");
    }

    /// Waits until the keeper has exited by itself.
    pub async fn wait_for_exit(&mut self, limit: Duration) -> ExitStatus {
        let keeper = &mut self.keeper;
        let status = eventually("kennel serve ends", limit, || {
            keeper.try_wait().expect("own child")
        })
        .await;
        was_waited_for(pid_of(&self.keeper));
        status
    }

    /// Sends SIGTERM, and returns the exit status.
    pub async fn terminate(&mut self, limit: Duration) -> ExitStatus {
        self.remember_family();
        self.signal(Signal::SIGTERM);
        self.wait_for_exit(limit).await
    }

    /// Waits until keeper, server, shims, gated children and commands are gone, however they were stopped.
    pub async fn wait_until_all_is_gone(&mut self, limit: Duration) {
        self.wait_for_exit(limit).await;
        let looks = Looks::within(limit);
        loop {
            reap_orphans();
            let mut left = self.traces();
            left.extend(self.former.iter().filter(|p| p.is_still_there()).cloned());
            if left.is_empty() {
                return;
            }
            looks.again(|| format!("all is gone: {left:#?}")).await;
        }
    }

    /// Returns all processes with this server's directory in arguments (keeper, server, shims, children at a gate) or
    /// environment (commands).
    #[must_use]
    pub fn traces(&self) -> Vec<Proc> {
        let mut found = census::of_data_dir(&self.data_dir().to_string_lossy());
        let own = procfs::all()
            .into_iter()
            .filter(|proc| mentions(proc, self.dir.path()));
        found.extend(own);
        found
    }

    /// Returns server, shims, and everything below them, at present.
    #[must_use]
    pub fn descendants(&self) -> Vec<Proc> {
        procfs::descendants(&procfs::all(), self.keeper_pid())
    }

    /// Starts again on the same directory, as a host's service manager does: when keeper and server have exited. Shims
    /// may still be ending their runs.
    pub async fn restart(&mut self) {
        self.launch_again().await;
        self.wait_until_it_serves().await;
    }

    /// Sets the words for `kennel serve`, for later starts.
    pub fn set_words(&mut self, words: &[&'static str]) {
        self.options.words = words.to_vec();
    }

    /// Adds words for `kennel serve`, for later starts.
    pub fn add_words(&mut self, words: &[&'static str]) {
        self.options.words.extend(words);
    }

    /// Starts again, without waiting until it serves: it may not get so far.
    pub async fn launch_again(&mut self) {
        self.wait_for_exit(PATIENCE).await;
        let former = std::mem::take(&mut self.former_servers);
        eventually("the former server ends after its keeper", PATIENCE, || {
            reap_orphans();
            // An exiting process loses its arguments before it closes sockets: only its state shows the exit.
            (!former.iter().any(Proc::is_alive)).then_some(())
        })
        .await;
        self.starts += 1;
        self.keeper = launch(self.dir.path(), &self.options, self.starts);
    }

    /// Lets later starts see another boot id, as after a reboot.
    pub fn seem_rebooted(&mut self) {
        let path = self.dir.path().join("boot_id");
        let boot = format!("00000000-0000-4000-8000-{:012}\n", self.starts);
        fs::write(&path, boot).expect("own directory");
        self.options.boot_id = Some(path);
    }

    /// Waits until a server serves: under this keeper, or if that has exited, after another start.
    pub async fn serve_again(&mut self) {
        if self.serves().await.is_err() {
            self.restart().await;
        }
    }

    /// Returns the directories of control groups of all keepers that were seen serving.
    #[must_use]
    pub fn cgroup_bases(&self) -> &[PathBuf] {
        &self.cgroup_bases
    }

    /// Returns the command line of this server's clients: `kennel --server ADDRESS ...`.
    #[must_use]
    pub fn cli(&self, words: &[&str]) -> Command {
        let mut command = bare_command(&programs::kennel());
        command.args(words).env("KENNEL_SERVER", self.address());
        command
    }
}

impl Drop for Kennel {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("--- log of kennel serve ---\n{}", self.log());
        }
        let mut doomed = self.descendants();
        let _ = self.keeper.kill();
        let _ = self.keeper.wait();
        was_waited_for(pid_of(&self.keeper));
        // A tree may grow while being killed: repeat until a scan finds no process.
        for _ in 0..1000 {
            doomed.extend(self.traces());
            let all = procfs::all();
            let below: Vec<Proc> = doomed
                .iter()
                .flat_map(|proc| procfs::descendants(&all, proc.pid))
                .collect();
            doomed.extend(below);
            doomed.retain(Proc::is_alive);
            reap_orphans();
            if doomed.is_empty() {
                break;
            }
            for proc in &doomed {
                kill_exactly(proc, Signal::SIGKILL);
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        reap_orphans();
        for base in &self.cgroup_bases {
            remove_cgroups(base);
        }
    }
}

/// Whether a process has the directory in its arguments: keeper, server, shims and children at a gate do.
fn mentions(proc: &Proc, dir: &Path) -> bool {
    let dir = dir.to_string_lossy();
    let words = proc.cmdline();
    words
        .get(1)
        .is_some_and(|word| ["serve", "server", "zygote"].contains(&word.as_str()))
        && words.iter().any(|word| word.contains(&*dir))
}

/// Sends a signal to this very process, not to a later one of its number.
pub fn kill_exactly(proc: &Proc, signal: Signal) {
    if proc.is_still_there() {
        // The process may have exited since the check.
        let _ = kill(Pid::from_raw(proc.pid), signal);
    }
}

/// Records that a child was waited for: its number may be reused, and then by an orphan.
pub(crate) fn was_waited_for(child: i32) {
    WAITED_FOR
        .lock()
        .expect("no holder panics")
        .retain(|pid| *pid != child);
}

/// Returns a script whose shell ends, and leaves a process that has nothing of the run in its environment. Once `go`
/// is there, that process lists the runs of this server, and writes to `said` what it gets.
#[must_use]
pub fn detached_call(server: &str, go: &Path, said: &Path) -> String {
    let kennel = programs::kennel();
    let (kennel, go, said) = (kennel.display(), go.display(), said.display());
    format!(
        "setsid env -i PATH=$PATH sh -c 'until [ -e {go} ]; do sleep 0.05; done; \
         {kennel} --server {server} ps >{said}.new 2>&1; echo code=$? >>{said}.new; mv {said}.new {said}' &"
    )
}

/// Waits for what such a process writes, and asserts that its call was refused.
pub async fn assert_refused(said: &Path) {
    let text = eventually("an answer", PATIENCE, || fs::read_to_string(said).ok()).await;
    assert!(text.contains("process of a run may not use"), "{text}");
    assert!(!text.contains("code=0"), "{text}");
}

/// Reaps every zombie that came to the test as an orphan.
pub fn reap_orphans() {
    let own = i32::try_from(std::process::id()).expect("pids are small");
    // Locked during the scan: a lock holder may have a child not yet listed.
    let waited_for = WAITED_FOR.lock().expect("no holder panics");
    for proc in procfs::all() {
        if proc.ppid == own && proc.is_zombie() && !waited_for.contains(&proc.pid) {
            // Another thread may reap the zombie first.
            let _ = waitpid(Pid::from_raw(proc.pid), Some(WaitPidFlag::WNOHANG));
        }
    }
}

/// Returns a program without Kennel's variables of the test's own environment.
#[must_use]
pub fn bare_command(program: &Path) -> Command {
    let mut command = Command::new(program);
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("KENNEL_") {
            command.env_remove(name);
        }
    }
    command
}

/// Returns the words after `kennel serve` for a server on this directory.
#[must_use]
pub fn serve_words(dir: &Path, store: Option<&str>) -> Vec<String> {
    let mut words = vec![
        "serve".to_owned(),
        "--listen".to_owned(),
        format!("unix:{}", Kennel::socket_in(dir).display()),
        "--data-dir".to_owned(),
        dir.join("data").display().to_string(),
    ];
    if let Some(store) = store {
        words.extend(["--store".to_owned(), store.to_owned()]);
    }
    words
}

fn launch(dir: &Path, options: &Options, start: u32) -> Child {
    let kennel = program(dir, options);
    let mut words: Vec<OsString> = Vec::new();
    let stderr = options.stderr.as_ref().filter(|_| start == 1);
    let terminal = stderr.filter(|stderr| stderr.is_terminal());
    if terminal.is_some() {
        words.extend(["setsid", "--ctty"].map(OsString::from));
    }
    if let Some(boot_id) = &options.boot_id {
        words.extend(["unshare", "--mount", "sh", "-ec", ANOTHER_BOOT_ID].map(OsString::from));
        words.push(boot_id.into());
    }
    if options.cgroup == Cgroup::ReadOnly {
        words.extend(["unshare", "--mount", "sh", "-ec", READ_ONLY_CGROUPS].map(OsString::from));
    }
    if let Some(size) = options.data_room {
        fs::create_dir_all(dir.join("data")).expect("own directory");
        words.extend(["unshare", "--mount", "sh", "-ec", ROOM].map(OsString::from));
        words.extend([size.into(), dir.join("data").into()]);
    }
    if let Some(devpts) = options.terminals {
        let script = if devpts.is_empty() {
            NO_TERMINALS
        } else {
            TERMINALS
        };
        words.extend(["unshare", "--mount", "sh", "-ec", script, devpts].map(OsString::from));
    }
    if options.passed_socket.is_some() {
        words.extend(["sh", "-ec", PASS_SOCKET, "sh"].map(OsString::from));
    }
    words.extend(as_user(options.user));
    words.push(kennel.clone().into());
    let mut command = bare_command(Path::new(&words[0]));
    command.args(&words[1..]);
    let log = File::create(log_path(dir, start)).expect("a log can be made");
    let copy = |fd: &dyn AsFd| {
        let copy = fd.as_fd().try_clone_to_owned();
        Stdio::from(copy.expect("a descriptor can be copied"))
    };
    let socket = options.passed_socket.as_deref().map(|socket| copy(socket));
    let stdin = socket.or(terminal.map(|terminal| copy(terminal)));
    command
        .args(serve_words(dir, options.store.as_deref()))
        .args((options.cgroup == Cgroup::Off).then_some("--cgroup=off"))
        .args(&options.words)
        // Retention must not remove runs that tests read.
        .env("KENNEL_RETAIN_RUNS", "all")
        .envs(options.env.iter().map(|(name, value)| (name, value)))
        .stdin(stdin.unwrap_or(Stdio::null()))
        .stdout(copy(&log))
        .stderr(stderr.map_or(copy(&log), |stderr| copy(stderr)));
    spawn_waited_for(&mut command)
        .unwrap_or_else(|error| panic!("cannot start {}: {error}", kennel.display()))
}

/// Starts a child that a test waits for by `Child`.
pub(crate) fn spawn_waited_for(command: &mut Command) -> io::Result<Child> {
    let mut waited_for = WAITED_FOR.lock().expect("no holder panics");
    let child = command.spawn()?;
    waited_for.push(pid_of(&child));
    Ok(child)
}

/// Returns the words before a program that make it run as this user.
fn as_user(user: User) -> Vec<OsString> {
    let id = UNPRIVILEGED_ID.to_string();
    match user {
        User::Own => Vec::new(),
        User::Unprivileged => ["setpriv", "--reuid", &id, "--regid", &id, "--clear-groups"]
            .map(OsString::from)
            .into(),
    }
}

fn program(dir: &Path, options: &Options) -> PathBuf {
    match options.user {
        User::Own if options.own_binary.is_none() => programs::kennel(),
        User::Own | User::Unprivileged => dir.join("kennel"),
    }
}

/// Gives the directory, with a copy of the binary, to the user: the build directory may be closed to others.
fn give_to_unprivileged(dir: &Path) {
    install(&programs::kennel(), &dir.join("kennel"), "0755");
    fs::set_permissions(dir, fs::Permissions::from_mode(0o755)).expect("own directory");
    chown(dir, Some(UNPRIVILEGED_ID), Some(UNPRIVILEGED_ID)).expect("root may give it away");
}

/// Copies a program. A separate process does it: if this one had it open for writing, so would a concurrent fork of
/// another thread, and a file open for writing cannot be executed.
pub fn install(from: &Path, to: &Path, mode: &str) {
    let reaping_paused = WAITED_FOR.lock().expect("no holder panics");
    let done = Command::new("install")
        .args(["-m", mode])
        .args([from, to])
        .status();
    drop(reaping_paused);
    let done = done.expect("install starts");
    assert!(done.success(), "install: {done}");
}

/// Replaces the boot id by the file in its first word in a mount namespace of its own, then becomes the server.
const ANOTHER_BOOT_ID: &str = r#"mount --bind "$0" /proc/sys/kernel/random/boot_id; exec "$@""#;

/// Makes every mount of the control groups read-only in a mount namespace of its own, then becomes the server.
const READ_ONLY_CGROUPS: &str = r#"
grep -E ' cgroup2? ' /proc/self/mounts | while read -r _ at _; do mount -o remount,bind,ro "$at"; done
exec "$0" "$@"
"#;

/// Mounts a file system of this size there, in a mount namespace of its own, then becomes the server.
const ROOM: &str = r#"
mount -t tmpfs -o "size=$0,mode=0700" kennel "$1"; shift
exec "$@"
"#;

/// Terminals of its own, in a mount namespace of its own, then becomes the server.
const TERMINALS: &str = r#"
mount -t devpts -o "newinstance,ptmxmode=0666,$0" devpts /dev/pts
mount --bind /dev/pts/ptmx /dev/ptmx
exec "$@"
"#;

/// Puts a file that is no device in the place of the one that makes terminals, then becomes the server.
const NO_TERMINALS: &str = r#"mount --bind /dev/null /dev/ptmx; exec "$@""#;

fn log_path(dir: &Path, start: u32) -> PathBuf {
    dir.join(format!("kennel.{start}.log"))
}

pub(crate) fn pid_of(child: &Child) -> i32 {
    i32::try_from(child.id()).expect("pids are small")
}

/// Returns direct children of the keeper.
fn family(keeper: i32) -> Vec<Proc> {
    procfs::all()
        .into_iter()
        .filter(|proc| proc.ppid == keeper)
        .collect()
}

/// Whether a child of the keeper is its server, perhaps under valgrind, whose own arguments come first.
fn is_server(proc: &Proc) -> bool {
    proc.cmdline().iter().skip(1).any(|word| word == "server")
}

/// Whether a child of the keeper is its fork, which has its arguments; an orphan has others.
fn looks_like_own(proc: &Proc, keeper: i32) -> bool {
    Proc::read(keeper).is_some_and(|keeper| keeper.cmdline() == proc.cmdline())
        || proc.comm.contains("shim")
}

fn remove_cgroups(base: &Path) {
    if let Ok(entries) = fs::read_dir(base) {
        for entry in entries.flatten() {
            if entry.path().is_dir() {
                remove_cgroups(&entry.path());
            }
        }
    }
    // Only an empty directory is removed: another server may use it.
    let _ = fs::remove_dir(base);
}
