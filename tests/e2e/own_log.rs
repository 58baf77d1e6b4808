//! The service's own log stops nothing: standard error that stands still, has lost its reader or its terminal, or is a
//! file on a full disk costs lines, which are counted, and neither a run nor a call.

use kennel_proto::pb::{self, RunState};
use kennel_tests::{
    Client, Kennel, Options, PATIENCE, RunExt, SHUTDOWN_LIMIT, eventually, eventually_async,
    kennel::{bare_command, kill_exactly, reap_orphans, serve_words},
    must,
    procfs::{self, Proc},
    programs, sh,
    shell::run_to_end,
};
use nix::{
    fcntl::OFlag,
    pty::{PtyMaster, grantpt, posix_openpt, ptsname_r, unlockpt},
    sys::{prctl, signal::Signal},
};
use std::{
    fs::{File, OpenOptions},
    io::{self, ErrorKind, PipeReader, Read, Write},
    os::{
        fd::{AsRawFd, OwnedFd},
        unix::{fs::OpenOptionsExt, net::UnixStream},
    },
    path::{Path, PathBuf},
    process::{Child, Stdio},
    sync::Arc,
    thread,
    time::{Duration, Instant},
};
use tempfile::TempDir;
use tokio::task::JoinSet;

/// Runs with output at the same time.
const RUNS: usize = 40;
/// More than the time after which a server that does not answer the keeper is replaced.
const IDLE: Duration = Duration::from_secs(15);
/// What each of them writes.
const OUTPUT: &str = "seq 1 500";

/// Standard error of a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stderr {
    PipeFull,
    ReaderGone,
    TerminalStopped,
    TerminalGone,
    FullDisk,
}

/// The end of it that a test has.
enum Far {
    Pipe(PipeReader),
    Terminal(PtyMaster),
    Disk,
}

impl Stderr {
    /// Opens it, in a state in which it takes lines. The first ones fill the disk.
    fn open(self) -> (OwnedFd, Far) {
        match self {
            Self::PipeFull | Self::ReaderGone => {
                let (reader, writer) = io::pipe().expect("a pipe");
                (writer.into(), Far::Pipe(reader))
            }
            Self::TerminalStopped | Self::TerminalGone => {
                let (terminal, far) = terminal();
                (terminal.into(), Far::Terminal(far))
            }
            Self::FullDisk => (small_disk().into(), Far::Disk),
        }
    }

    /// From here on it takes no line. Returns what has to stay open for that.
    fn spoil(self, near: &OwnedFd, far: Far) -> Option<Far> {
        match (self, far) {
            (Self::ReaderGone | Self::TerminalGone, _) => None,
            (Self::PipeFull, far) => {
                fill(near);
                Some(far)
            }
            (Self::TerminalStopped, Far::Terminal(mut far)) => {
                // Ctrl-S (XOFF).
                far.write_all(b"\x13").expect("a key is taken");
                Some(Far::Terminal(far))
            }
            (_, far) => Some(far),
        }
    }
}

/// Opens a file on a small disk of its own, which ends with the file. It is mounted by another process, in a mount
/// namespace of its own.
fn small_disk() -> File {
    let dir = tempfile::tempdir().expect("a directory");
    let at = dir.path().display();
    let mount = format!(
        "mount -t tmpfs -o size=64k kennel {at} && : > {at}/log && echo up && exec sleep 300"
    );
    let mut mounts = bare_command(Path::new("unshare"));
    mounts.args(["--mount", "sh", "-c", &mount]);
    let mut mounts = mounts.stdin(Stdio::null()).stdout(Stdio::piped()).spawn();
    let mounts = mounts.as_mut().expect("unshare starts");
    let mut up = [0; 3];
    let said = mounts.stdout.as_mut().expect("a pipe").read_exact(&mut up);
    said.expect("it is mounted");
    let log = format!("/proc/{}/root{at}/log", mounts.id());
    let log = File::options().append(true).open(log);
    // Another test's Kennel start may have reaped `unshare`.
    let _ = mounts.kill().and_then(|()| mounts.wait());
    log.expect("own file")
}

/// Opens a terminal, and its other end; no child gets either.
fn terminal() -> (File, PtyMaster) {
    let far = posix_openpt(OFlag::O_RDWR | OFlag::O_NOCTTY | OFlag::O_CLOEXEC);
    let far = far.expect("a terminal");
    grantpt(&far).expect("own terminal");
    unlockpt(&far).expect("own terminal");
    let mut how = OpenOptions::new();
    how.read(true).write(true);
    how.custom_flags(OFlag::O_NOCTTY.bits());
    let near = how.open(ptsname_r(&far).expect("it has a name"));
    (near.expect("own terminal"), far)
}

/// Fills a pipe through a description of its own: the service's stays as it is.
fn fill(pipe: &OwnedFd) {
    let path = format!("/proc/self/fd/{}", pipe.as_raw_fd());
    let mut how = OpenOptions::new();
    how.write(true).custom_flags(OFlag::O_NONBLOCK.bits());
    let mut pipe = how.open(path).expect("own pipe");
    loop {
        match pipe.write(b"\n") {
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => return,
            Err(error) => panic!("{error}"),
        }
    }
}

/// A service with such a log, of all levels.
struct Service {
    kennel: Kennel,
    near: Arc<OwnedFd>,
    metrics: PathBuf,
    _scratch: TempDir,
}

impl Service {
    async fn start(near: OwnedFd, format: &'static str) -> Self {
        let scratch = tempfile::tempdir().expect("a directory");
        let metrics = scratch.path().join("metrics");
        let near = Arc::new(near);
        let address = format!("unix:{}", metrics.display());
        let kennel = Kennel::start(Options {
            own_binary: Some(programs::kennel()),
            stderr: Some(Arc::clone(&near)),
            words: vec!["--log=trace", "--log-format", format],
            env: vec![("KENNEL_METRICS_LISTEN".to_owned(), address)],
            ..Options::default()
        })
        .await;
        Self {
            kennel,
            near,
            metrics,
            _scratch: scratch,
        }
    }

    /// Calls until lines are counted as dropped, and returns their number.
    async fn drops_lines(&self) -> u64 {
        eventually_async(
            "lines that were dropped are counted",
            PATIENCE,
            async || {
                info(&self.kennel).await;
                Some(self.dropped()).filter(|dropped| *dropped > 0)
            },
        )
        .await
    }

    fn dropped(&self) -> u64 {
        let Ok(mut socket) = UnixStream::connect(&self.metrics) else {
            return 0;
        };
        let mut text = String::new();
        let request = b"GET /metrics HTTP/1.1\r\nHost: k\r\nConnection: close\r\n\r\n";
        let read = socket
            .write_all(request)
            .and_then(|()| socket.read_to_string(&mut text));
        read.expect("metrics are served");
        let lines = text.lines().filter(|line| {
            line.starts_with("kennel_telemetry_dropped_total{") && line.contains("\"stderr\"")
        });
        let counts = lines.filter_map(|line| line.rsplit_once(' ')?.1.parse::<u64>().ok());
        counts.sum()
    }
}

async fn info(kennel: &Kennel) -> pb::ServerInfo {
    let info = kennel.client().await.server_info().await;
    info.expect("it serves")
}

/// Spawns runs with output, and awaits all that they have written.
async fn runs_write(client: &Client) {
    let mut runs = JoinSet::new();
    for _ in 0..RUNS {
        let mut client = client.clone();
        runs.spawn(async move {
            let run = must("spawn", client.spawn(sh(OUTPUT)).await);
            let heard = must("events", client.hear_all(&run.run_id, 0).await);
            assert!(heard.text().lines().eq((1..=500).map(|n| n.to_string())));
            assert_eq!(heard.stations().last(), Some(&"ended"));
        });
    }
    runs.join_all().await;
}

/// Asserts that this run goes on.
async fn lives(kennel: &Kennel, run: &pb::Run) {
    let again = must("get", kennel.client().await.get(&run.run_id).await);
    assert_eq!(
        (again.state(), again.lasting()),
        (RunState::Running, run.lasting())
    );
}

/// Goes through the situations of a service with this standard error and this form of lines, after such a time without
/// work.
async fn cells(stderr: Stderr, format: &'static str, idle: Duration) {
    eprintln!("scene {stderr:?} {format}");
    let (near, far) = stderr.open();
    let mut service = Service::start(near, format).await;
    let mut client = service.kennel.client().await;
    let run = must("spawn", client.spawn(sh("echo up; exec sleep 300")).await);
    client.hear_up(&run.run_id).await;
    let _far = stderr.spoil(&service.near, far);

    // The service answers, keeps its server and counts lost lines.
    let first = info(&service.kennel).await.generation;
    let begin = Instant::now();
    eventually("it was idle", PATIENCE, || {
        (begin.elapsed() >= idle).then_some(())
    })
    .await;
    assert_eq!(info(&service.kennel).await.generation, first, "{stderr:?}");
    runs_write(&client).await;
    service.drops_lines().await;
    runs_write(&client).await;
    // A received SIGHUP would have caused an upgrade by now.
    assert_eq!(info(&service.kennel).await.generation, first, "{stderr:?}");
    lives(&service.kennel, &run).await;

    // A keeper's last log line: another keeper has the data directory.
    let mut second = refused(&service);
    let second = eventually("the second service ends", PATIENCE, || {
        second.try_wait().expect("own child")
    })
    .await;
    assert_eq!(second.code(), Some(2), "{stderr:?} {format}");

    let upgraded = run_to_end(service.kennel.cli(&["upgrade"]), PATIENCE).await;
    assert!(upgraded.status.success(), "{stderr:?} {upgraded:?}");
    assert_eq!(info(&service.kennel).await.generation, first + 1);
    lives(&service.kennel, &run).await;

    service.kennel.replace_server().await;
    service.drops_lines().await;
    assert_eq!(info(&service.kennel).await.generation, first + 2);
    lives(&service.kennel, &run).await;

    let status = service.kennel.terminate(SHUTDOWN_LIMIT).await;
    assert_eq!(status.code(), Some(0), "{stderr:?} {format}");
    service.kennel.restart().await;
    let run = must("get", service.kennel.client().await.get(&run.run_id).await);
    assert_eq!(run.reason(), "server_shutdown", "{stderr:?} {format}");
}

fn refused(service: &Service) -> Child {
    let mut second = bare_command(&programs::kennel());
    second.args(serve_words(service.kennel.scratch(), None));
    let near = service
        .near
        .try_clone()
        .expect("a descriptor can be copied");
    second.stdin(Stdio::null()).stderr(near);
    second.spawn().expect("it starts")
}

/// Places of standard error, each with the form of lines there in `make test` and in `make soak`.
const SCENES: [(Stderr, &str, &str); 5] = [
    (Stderr::PipeFull, "text", "json"),
    (Stderr::ReaderGone, "json", "text"),
    (Stderr::TerminalStopped, "json", "text"),
    (Stderr::TerminalGone, "text", "json"),
    (Stderr::FullDisk, "text", "json"),
];

/// One after the other: a start reaps zombies, and would take the exits of another one's commands.
// promise: M-31, R-24a
#[tokio::test(flavor = "multi_thread")]
async fn blocked_stderr_does_not_block_the_service() {
    for (stderr, format, _) in SCENES {
        Box::pin(cells(stderr, format, Duration::ZERO)).await;
    }
}

// promise: M-31
#[tokio::test(flavor = "multi_thread")]
#[ignore = "the other half of the table: `make soak` runs it"]
async fn blocked_stderr_is_harmless_in_other_format() {
    for (stderr, _, format) in SCENES {
        Box::pin(cells(stderr, format, IDLE)).await;
    }
}

// promise: M-31a
#[tokio::test(flavor = "multi_thread")]
async fn lines_dropped_at_full_pipe_are_reported_later() {
    let (near, far) = Stderr::PipeFull.open();
    let service = Service::start(near, "json").await;
    service.drops_lines().await;
    let Far::Pipe(mut reader) = far else {
        panic!("a pipe");
    };
    // Read the pipe to EOF, so that the service can end.
    let lines = thread::spawn(move || {
        let mut text = String::new();
        reader.read_to_string(&mut text).map(|_| text)
    });
    // Once lines flow again, no more are dropped, and the last report equals the metric.
    let dropped = eventually_async("the log flows", PATIENCE, async || {
        let before = service.dropped();
        info(&service.kennel).await;
        Some(service.dropped()).filter(|dropped| *dropped == before)
    })
    .await;
    let Service {
        mut kennel, near, ..
    } = service;
    assert_eq!(kennel.terminate(SHUTDOWN_LIMIT).await.code(), Some(0));
    drop((kennel, near));
    let text = lines.join().expect("no panic").expect("UTF-8");
    let mut reports = text.lines().filter_map(|line| {
        let line: serde_json::Value = serde_json::from_str(line).ok()?;
        let is_report = line["message"].as_str()?.contains("were dropped in all");
        is_report.then(|| line["lines"].as_u64())?
    });
    assert_eq!(reports.next_back(), Some(dropped));
}

/// A service that a person has started in a shell on a terminal.
struct InShell {
    dir: TempDir,
    shell: Child,
}

impl Drop for InShell {
    fn drop(&mut self) {
        let _ = self.shell.kill();
        let _ = self.shell.wait();
        let dir = self.dir.path().display().to_string();
        let is_own = |proc: &Proc| proc.cmdline().iter().any(|word| word.contains(&dir));
        for proc in procfs::all().iter().filter(|proc| is_own(proc)) {
            kill_exactly(proc, Signal::SIGKILL);
        }
        reap_orphans();
    }
}

// promise: R-24a
#[tokio::test(flavor = "multi_thread")]
async fn sighup_of_closed_terminal_does_not_upgrade() {
    // The test adopts the keeper when the shell ends.
    prctl::set_child_subreaper(true).expect("a process can be made a subreaper");
    let (near, mut far) = terminal();
    let mut bash = bare_command(Path::new("setsid"));
    bash.args(["--ctty", "bash", "--norc", "--noprofile", "-i"]);
    let copy = || near.try_clone().expect("a descriptor can be copied");
    bash.stdin(copy()).stdout(copy()).stderr(copy());
    let mut service = InShell {
        dir: tempfile::tempdir().expect("a directory"),
        shell: bash.spawn().expect("bash starts"),
    };
    drop((bash, near));
    let words = serve_words(service.dir.path(), None).join(" ");
    let line = format!("{} {words}\n", programs::kennel().display());
    far.write_all(line.as_bytes()).expect("it is typed");
    let socket = Kennel::socket_in(service.dir.path());
    let mut client = eventually_async("it serves", PATIENCE, async || {
        let mut client = Client::connect(&socket).await.ok()?;
        client.server_info().await.map(|_| client)
    })
    .await;
    let before = client.server_info().await.expect("it serves");
    let keeper = before.keeper.expect("it has one").pid;
    let run = must("spawn", client.spawn(sh("echo up; exec sleep 300")).await);
    client.hear_up(&run.run_id).await;

    drop(far);
    // bash passes SIGHUP on before it exits.
    eventually("the shell ends", PATIENCE, || {
        service.shell.try_wait().expect("own child")
    })
    .await;
    // An upgrade begun by SIGHUP would refuse this one or add a generation.
    let request = pb::UpgradeRequest {
        request_id: "own".to_owned(),
    };
    must("upgrade", client.admin.upgrade(request).await);
    let after = eventually_async("another server serves", PATIENCE, async || {
        let info = Client::connect(&socket).await.ok()?.server_info().await?;
        (info.generation > before.generation).then_some(info)
    })
    .await;
    assert_eq!(after.generation, before.generation + 1);
    assert_eq!(after.last_upgrade.expect("one").request_id, "own");
    let mut client = must("connect", Client::connect(&socket).await);
    let again = must("get", client.get(&run.run_id).await);
    assert_eq!(again.lasting(), run.lasting());

    let keeper = Proc::read(keeper).expect("it runs");
    kill_exactly(&keeper, Signal::SIGTERM);
    eventually("it ends", SHUTDOWN_LIMIT, || {
        reap_orphans();
        (!keeper.is_alive()).then_some(())
    })
    .await;
}
