//! One column of the matrix: all programs in one service, ended in one way.

use kennel_naughty::{CANNOT, HOLD_NAMESPACE, PROGRAMS, Program, UP, WORD, Wants};
use kennel_proto::pb::{self, AbortWait, tree_verdict::Verdict};
use kennel_tests::{
    Cgroup, Client, Footprint, Heard, Kennel, Options, PATIENCE, RunExt, SpecExt, User, argv,
    client::duration,
    eventually, eventually_async,
    kennel::{install, kill_exactly, reap_orphans},
    must,
    procfs::Proc,
    within,
};
use nix::sys::signal::Signal;
use std::{
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Child, Stdio},
    time::Duration,
};

/// Time of a run between the polite signal and SIGKILL.
const GRACE: Duration = Duration::from_millis(300);

/// First time limit of a run.
const MAX_RUNTIME: Duration = Duration::from_secs(3);

/// The program that kills its own shim.
const KILLS_SHIM: &str = "kills-shim";

/// The way in which runs end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum How {
    /// The leader exits by itself.
    NormalEnd,
    /// An Abort.
    Abort,
    /// Its time limit.
    Timeout,
    /// SIGKILL to the server, and an Abort of the runs that the next one has adopted.
    ServerKilled,
    /// SIGKILL to the keeper, and the next start.
    KeeperKilled,
}

impl How {
    pub(crate) const ALL: [Self; 5] = [
        Self::NormalEnd,
        Self::Abort,
        Self::Timeout,
        Self::ServerKilled,
        Self::KeeperKilled,
    ];
}

/// Privileges of the service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Privilege {
    /// All, with a control group for each run.
    Root,
    /// Nothing, and the control groups are read-only.
    Unprivileged,
    /// All, with a control group and a private pid namespace for each run.
    Private,
}

impl Privilege {
    fn options(self) -> Options {
        match self {
            Self::Root | Self::Private => Options::default(),
            Self::Unprivileged => Options {
                cgroup: Cgroup::ReadOnly,
                user: User::Unprivileged,
                ..Options::default()
            },
        }
    }
}

/// Outcome of one program.
#[derive(Clone, Debug)]
pub(crate) struct Cell {
    /// The verdict in the words of the page.
    pub(crate) says: String,
    /// The fault of the verdict.
    pub(crate) lie: Option<String>,
}

/// A program that runs.
struct Running {
    run_id: String,
    leader: Proc,
    shim: Proc,
    print: Footprint,
}

/// Runs all programs in one service of this privilege, ends them in this way, and judges each.
pub(crate) async fn fill(how: How, privilege: Privilege) -> Vec<Cell> {
    let mut kennel = Kennel::start(privilege.options()).await;
    let client = kennel.client().await;
    let namespace = Holder::start(&kennel);
    let copy = kennel.scratch().join("setuid-kennel");
    let root = privilege != Privilege::Unprivileged;
    if !root {
        install(&kennel.program(), &copy, "4755");
    }
    let mut running = Vec::new();
    for program in &PROGRAMS {
        let needs = match program.wants {
            Wants::Nothing => Ok(None),
            Wants::ForeignNamespace if privilege == Privilege::Private => {
                Err("not run: it sees no process of another one")
            }
            Wants::ForeignNamespace => Ok(Some(namespace.first.to_string())),
            Wants::WritableGroup if root => Ok(None),
            Wants::WritableGroup => Err("not run: the control groups are read-only"),
            Wants::SetuidCopy if root => Err("not run: the service is root"),
            Wants::SetuidCopy => Ok(Some(copy.display().to_string())),
        };
        running.push(match needs {
            Ok(argument) => {
                let mut spec = spec(&kennel.program(), program, argument.as_deref());
                if privilege == Privilege::Private {
                    spec.set_pid_namespace(pb::PidNamespace::Private);
                }
                Ok(Box::pin(start(client.clone(), program, spec, how)).await)
            }
            Err(why) => Err(why),
        });
    }
    end_all(how, &mut kennel, &client, &running).await;
    let client = kennel.client().await;
    let mut cells = Vec::new();
    for running in running {
        cells.push(match running {
            Ok(running) => judge(client.clone(), running).await,
            Err(why) => Cell {
                says: why.to_owned(),
                lie: None,
            },
        });
    }
    cells
}

fn spec(binary: &Path, program: &Program, argument: Option<&str>) -> pb::RunSpec {
    let binary = binary.to_str().expect("a test's path is UTF-8");
    let mut words = vec![binary, WORD, program.name];
    words.extend(argument);
    argv(&words).grace(GRACE)
}

/// Starts a program until it is in position. If its time limit is to end it, a busy machine may need a longer one.
async fn start(client: Client, program: &Program, spec: pb::RunSpec, how: How) -> Running {
    if how != How::Timeout {
        let running = in_position(client, program, spec).await;
        return running.unwrap_or_else(|| panic!("{} ended by itself", program.name));
    }
    let mut max_runtime = if program.name == KILLS_SHIM {
        // The limit must not expire before the shim loss ends the run.
        PATIENCE
    } else {
        MAX_RUNTIME
    };
    loop {
        let mut spec = spec.clone();
        spec.timeouts.get_or_insert_default().max_runtime = Some(duration(max_runtime));
        if let Some(running) = in_position(client.clone(), program, spec).await {
            return running;
        }
        max_runtime *= 2;
        assert!(max_runtime < PATIENCE, "{} gets nowhere", program.name);
    }
}

/// Waits for the position. `None`: the run ended before its program was in position and seen.
async fn in_position(mut client: Client, program: &Program, spec: pb::RunSpec) -> Option<Running> {
    let run = must("spawn", client.spawn(spec).await);
    let mut stream = must("stream", client.events_after(&run.run_id, 0).await);
    let mut heard = Heard::default();
    while !heard.text().ends_with('\n') {
        let message = within(program.name, PATIENCE, stream.message()).await;
        heard.take(must("stream", message)?);
    }
    let said = heard.text();
    assert!(!said.starts_with(CANNOT), "{}: {said}", program.name);
    assert_eq!(said.trim_end(), UP, "{}", program.name);
    let attempt = run.attempt();
    let (leader, shim) = (Proc::read(attempt.pid)?, Proc::read(attempt.shim_pid)?);
    let print = Footprint::of_run(&run);
    let still = must("get", client.get(&run.run_id).await);
    (still.state() == pb::RunState::Running).then_some(Running {
        leader,
        shim,
        print,
        run_id: run.run_id,
    })
}

async fn end_all(
    how: How,
    kennel: &mut Kennel,
    client: &Client,
    running: &[Result<Running, &'static str>],
) {
    for (run, program) in running.iter().zip(&PROGRAMS) {
        if let Ok(run) = run
            && program.name == KILLS_SHIM
        {
            kill_exactly(&run.leader, Signal::SIGUSR1);
            eventually("its shim is gone", PATIENCE, || {
                (!run.shim.is_alive()).then_some(())
            })
            .await;
        }
    }
    match how {
        How::NormalEnd => {
            for run in running.iter().flatten() {
                kill_exactly(&run.leader, Signal::SIGUSR1);
            }
        }
        How::Abort => abort_all(client, running).await,
        // The limit ends the run.
        How::Timeout => {}
        How::ServerKilled => {
            kennel.replace_server().await;
            abort_all(&kennel.client().await, running).await;
        }
        How::KeeperKilled => {
            kennel.kill_keeper();
            kennel.restart().await;
        }
    }
}

async fn abort_all(client: &Client, running: &[Result<Running, &'static str>]) {
    for run in running.iter().flatten() {
        let mut client = client.clone();
        let aborted = client.abort_with(&run.run_id, None, AbortWait::None);
        must("abort", aborted.await);
    }
}

/// Waits for the verdict, then counts. Remaining processes are ended here, after checking that the verdict listed them.
async fn judge(client: Client, running: Running) -> Cell {
    let run = eventually_async("the run ends", PATIENCE, || {
        let mut client = client.clone();
        let run_id = running.run_id.clone();
        async move {
            let run = client.get(&run_id).await.ok()?;
            // An unkillable run does not end but has a verdict. On a busy machine SIGKILL may take longer than the
            // keeper waits before reporting; only a refused SIGKILL is final.
            let refused = |process: &pb::StuckProcess| process.why.contains("is refused");
            let stuck = match verdict(&run) {
                Some(Verdict::Stuck(stuck)) => stuck.processes.iter().any(refused),
                _ => false,
            };
            (stuck || run.end_time.is_some()).then_some(run)
        }
    })
    .await;
    let alive = running.print.count().alive();
    let (says, covers) = read(&run, &alive);
    let lie = (!covers).then(|| {
        let census = running.print.count();
        format!("{says} was said, and there are\n{census}")
    });
    for proc in &alive {
        kill_exactly(proc, Signal::SIGKILL);
    }
    eventually("what was left is gone", PATIENCE, || {
        reap_orphans();
        running.print.count().is_empty().then_some(())
    })
    .await;
    Cell { says, lie }
}

/// Returns the verdict in words, and whether it lists the living processes.
fn read(run: &pb::Run, alive: &[Proc]) -> (String, bool) {
    let named = |pids: &[i32]| alive.iter().all(|proc| pids.contains(&proc.pid));
    match verdict(run) {
        Some(Verdict::Empty(empty)) => {
            let proof = match empty.proof() {
                pb::EmptyProof::CgroupAndEchild => "group, shim",
                pb::EmptyProof::Echild => "shim",
                pb::EmptyProof::Cgroup => "group",
                pb::EmptyProof::PrivatePidns => "pid namespace",
                pb::EmptyProof::Unspecified => "no proof",
            };
            (format!("empty ({proof})"), alive.is_empty())
        }
        Some(Verdict::Survivors(left)) => ("admitted".to_owned(), named(&left.pids)),
        Some(Verdict::Stuck(stuck)) => {
            let pids: Vec<i32> = stuck.processes.iter().map(|process| process.pid).collect();
            ("admitted".to_owned(), named(&pids))
        }
        Some(Verdict::Unverified(_)) => ("admitted".to_owned(), true),
        other => (format!("{other:?}"), false),
    }
}

fn verdict(run: &pb::Run) -> Option<&Verdict> {
    run.tree_verdict.as_ref()?.verdict.as_ref()
}

/// A pid namespace of no run, with its first process.
struct Holder {
    child: Child,
    first: i32,
}

impl Holder {
    fn start(kennel: &Kennel) -> Self {
        let program: PathBuf = kennel.program();
        let mut child = kennel
            .command_of_user(&program)
            .args([WORD, HOLD_NAMESPACE])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .expect("it starts");
        let mut line = String::new();
        let said = child.stdout.take().expect("a pipe");
        BufReader::new(said)
            .read_line(&mut line)
            .expect("it speaks");
        let first = line.trim().parse().expect("the number of a process");
        Self { child, first }
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        // Killing the namespace's first process ends all others, then its starter.
        if let Some(first) = Proc::read(self.first) {
            kill_exactly(&first, Signal::SIGKILL);
        }
        let _ = self.child.wait();
    }
}
