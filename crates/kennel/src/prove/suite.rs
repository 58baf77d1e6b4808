//! The programs in one service, ended in one way, and each judged by a census that calls no server.

use crate::own_service::{self, Service};
use kennel_cli::{Failure, refused, run_of, sentence};
use kennel_client::{EventReader, Start};
use kennel_lifecycle::Signal;
use kennel_linux::census::{Footprint, Process};
use kennel_naughty::{CANNOT, HOLD_NAMESPACE, PROGRAMS, Program, UP, WORD, Wants};
use kennel_proto::pb::{self, tree_verdict::Verdict};
use std::{
    env,
    io::{BufRead as _, BufReader},
    process::{Child, Stdio},
    time::{Duration, Instant},
};

/// Time of a run between the polite signal and SIGKILL.
const GRACE: Duration = Duration::from_millis(300);
/// Time limit of a run, at first and at most: a slow host needs more until all are in position.
const MAX_RUNTIME: Duration = Duration::from_secs(2);
const MAX_RUNTIME_MOST: Duration = Duration::from_secs(16);
/// Longest wait until a run's program reports that it is in position, and until its run has ended.
const PATIENCE: Duration = Duration::from_mins(1);
/// Time between two checks.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// The way in which runs end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    NormalEnd,
    Abort,
    Timeout,
    ServerKilled,
    KeeperKilled,
}

/// Outcome of one program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// The program cannot be run on this host.
    NotRun(String),
    /// The verdict was empty, with this proof, and no process was found.
    Empty(&'static str),
    /// The verdict was not empty; it lists the processes found, or claims nothing.
    Admitted { verdict: String, left: Vec<i32> },
    /// A process was found that is not in the verdict, or there was no verdict.
    Lie { verdict: String, left: Vec<i32> },
}

/// A program in position.
struct Running {
    run_id: String,
    print: Footprint,
}

/// Runs all programs in one way, in the order of the suite.
pub(super) async fn run(service: &mut Service, way: Way) -> Result<Vec<Outcome>, Failure> {
    let holder = Holder::start();
    let mut started = Vec::new();
    for program in &PROGRAMS {
        started.push(match words(program, service, &holder) {
            Ok(words) => start(service, &words, way).await?,
            Err(why) => Err(why),
        });
    }
    end_all(service, way, &started).await?;
    let mut outcomes = Vec::new();
    for running in started {
        outcomes.push(match running {
            Ok(running) => judge(service, &running).await?,
            Err(why) => Outcome::NotRun(why),
        });
    }
    Ok(outcomes)
}

/// Returns the command line of a program, or why it cannot run here.
fn words(
    program: &Program,
    service: &Service,
    holder: &Result<Holder, String>,
) -> Result<Vec<String>, String> {
    let own = env::current_exe().map_err(|cause| cause.to_string())?;
    let mut words = vec![
        own.display().to_string(),
        WORD.to_owned(),
        program.name.to_owned(),
    ];
    match program.wants {
        Wants::Nothing => {}
        Wants::WritableGroup if service.grouped => {}
        Wants::WritableGroup => return Err("runs have no control groups here".to_owned()),
        Wants::ForeignNamespace => match holder {
            Ok(holder) => words.push(holder.first.pid.to_string()),
            Err(why) => return Err(why.clone()),
        },
        Wants::SetuidCopy => {
            return Err("needs a setuid-root copy of this program, which is not made".to_owned());
        }
    }
    Ok(words)
}

/// Starts a program until it is in position; the inner error gives the reason why it cannot be.
async fn start(
    service: &Service,
    words: &[String],
    way: Way,
) -> Result<Result<Running, String>, Failure> {
    let mut max_runtime = (way == Way::Timeout).then_some(MAX_RUNTIME);
    loop {
        let started = in_position(service, words, max_runtime).await?;
        match (&started, max_runtime) {
            (Err(None), Some(time)) if time < MAX_RUNTIME_MOST => max_runtime = Some(time * 2),
            _ => {
                return Ok(started.map_err(|why| {
                    why.unwrap_or_else(|| "it ended before it was in position".to_owned())
                }));
            }
        }
    }
}

/// Waits for the position. `Err(None)`: the run was over before.
async fn in_position(
    service: &Service,
    words: &[String],
    max_runtime: Option<Duration>,
) -> Result<Result<Running, Option<String>>, Failure> {
    let run = match spawn(service, spec(words, max_runtime)).await? {
        Ok(run) => run,
        Err(why) => return Ok(Err(Some(why))),
    };
    let said = tokio::time::timeout(PATIENCE, first_line(service, &run.run_id)).await;
    let said = match said {
        Ok(said) => said?,
        Err(_) => return Ok(Err(Some("it does not get into position".to_owned()))),
    };
    match said.as_deref() {
        Some(UP) => {}
        Some(line) => {
            let why = line.strip_prefix(CANNOT).unwrap_or(line);
            return Ok(Err(Some(why.to_owned())));
        }
        None => return Ok(Err(None)),
    }
    let attempt = run.current_attempt.unwrap_or_default();
    let id = run.run_id.parse().ok();
    let print = id.and_then(|id| Footprint::of(id, attempt.pid, attempt.shim_pid));
    let still = get(service, &run.run_id).await?.state() == pb::RunState::Running;
    Ok(print.filter(|_| still).ok_or(None).map(|print| Running {
        run_id: run.run_id,
        print,
    }))
}

/// Returns the first line that a command prints; the inner error gives the reason why it cannot run.
pub(super) async fn printed(
    service: &Service,
    words: &[String],
    privileges: Option<pb::Privileges>,
) -> Result<Result<String, String>, Failure> {
    let spec = pb::RunSpec {
        privileges,
        ..spec(words, None)
    };
    let run = match spawn(service, spec).await? {
        Ok(run) => run,
        Err(why) => return Ok(Err(why)),
    };
    let said = tokio::time::timeout(PATIENCE, first_line(service, &run.run_id)).await;
    Ok(match said {
        Ok(said) => said?.ok_or_else(|| "it has ended without a word".to_owned()),
        Err(_) => Err("it does not say anything".to_owned()),
    })
}

/// Spawns a run; the inner error gives the reason why it is refused.
async fn spawn(service: &Service, spec: pb::RunSpec) -> Result<Result<pb::Run, String>, Failure> {
    let request = pb::SpawnRequest {
        run_id: ulid::Ulid::generate().to_string(),
        spec: Some(spec),
        ..pb::SpawnRequest::default()
    };
    match Box::pin(service.connection().call(request)).await {
        Ok(response) => run_of(response.run).map(Ok),
        Err(refusal) => Ok(Err(refusal.message)),
    }
}

fn spec(words: &[String], max_runtime: Option<Duration>) -> pb::RunSpec {
    let mut spec = pb::RunSpec {
        command: Some(pb::run_spec::Command::Argv(pb::Argv {
            args: words.to_vec(),
            ..pb::Argv::default()
        })),
        cwd: Some("/".to_owned()),
        ..pb::RunSpec::default()
    };
    spec.stop.get_or_insert_default().grace = GRACE.try_into().ok();
    let max_runtime = max_runtime.and_then(|time| time.try_into().ok());
    spec.timeouts.get_or_insert_default().max_runtime = max_runtime;
    spec
}

/// Returns the first line of standard output; `None`: the run has ended without one.
async fn first_line(service: &Service, run_id: &str) -> Result<Option<String>, Failure> {
    let mut events = EventReader::new(service.connection(), run_id, Start::Beginning);
    let mut text = Vec::new();
    while let Some(message) = Box::pin(events.next()).await.map_err(refused)? {
        for event in message.run_events.into_iter().flat_map(|run| run.events) {
            if let Some(pb::event::Payload::Output(output)) = event.payload
                && output.stream() == pb::OutputStream::Stdout
            {
                text.extend_from_slice(&output.data);
            }
        }
        if let Some(end) = text.iter().position(|byte| *byte == b'\n') {
            return Ok(Some(String::from_utf8_lossy(&text[..end]).into_owned()));
        }
    }
    Ok(None)
}

async fn get(service: &Service, run_id: &str) -> Result<pb::Run, Failure> {
    let request = pb::GetRunRequest {
        run_id: run_id.to_owned(),
    };
    let got = service.connection().call(request);
    run_of(Box::pin(got).await.map_err(refused)?.run)
}

async fn end_all(
    service: &mut Service,
    way: Way,
    started: &[Result<Running, String>],
) -> Result<(), Failure> {
    for (run, program) in started.iter().zip(&PROGRAMS) {
        // `kills-shim` kills its shim on a request to exit, and is then ended in this way, too.
        if let Ok(run) = run
            && (way == Way::NormalEnd || program.name == "kills-shim")
        {
            run.print.leader().signal(Signal::USR1);
        }
    }
    match way {
        Way::NormalEnd | Way::Timeout => Ok(()),
        Way::Abort => abort_all(service, started).await,
        Way::ServerKilled => {
            service.kill_server().await?;
            abort_all(service, started).await
        }
        Way::KeeperKilled => service.kill_keeper().await,
    }
}

async fn abort_all(service: &Service, started: &[Result<Running, String>]) -> Result<(), Failure> {
    for run in started.iter().flatten() {
        let request = pb::AbortRequest {
            run_id: run.run_id.clone(),
            wait: pb::AbortWait::None.into(),
            ..pb::AbortRequest::default()
        };
        let aborted = service.connection().call(request);
        Box::pin(aborted).await.map_err(refused)?;
    }
    Ok(())
}

/// Waits for the verdict, counts at once, and ends remaining processes by their exact identity.
async fn judge(service: &Service, running: &Running) -> Result<Outcome, Failure> {
    let until = Instant::now() + PATIENCE;
    let run = loop {
        let run = get(service, &running.run_id).await?;
        if is_judged(&run) || Instant::now() > until {
            break run;
        }
        tokio::time::sleep(LOOK_EVERY).await;
    };
    let left = running.print.alive();
    let outcome = compare(run.tree_verdict.as_ref(), &left);
    for process in &left {
        process.signal(Signal::KILL);
    }
    Ok(outcome)
}

/// Whether its verdict is final. `STUCK` is not: on a busy host SIGKILL may take longer than the keeper waits before it
/// reports that, and the listed processes end all the same.
fn is_judged(run: &pb::Run) -> bool {
    let verdict = run.tree_verdict.as_ref();
    let verdict = verdict.and_then(|verdict| verdict.verdict.as_ref());
    run.end_time.is_some() || verdict.is_some_and(|said| !matches!(said, Verdict::Stuck(_)))
}

fn compare(verdict: Option<&pb::TreeVerdict>, left: &[Process]) -> Outcome {
    let left: Vec<i32> = left.iter().map(|process| process.pid).collect();
    let said = verdict.map_or_else(|| "no verdict".to_owned(), sentence::verdict);
    let admits = match verdict.and_then(|verdict| verdict.verdict.as_ref()) {
        Some(Verdict::Empty(empty)) if left.is_empty() => {
            return Outcome::Empty(match empty.proof() {
                pb::EmptyProof::CgroupAndEchild => "group, shim",
                pb::EmptyProof::Echild => "shim",
                pb::EmptyProof::Cgroup => "group",
                pb::EmptyProof::PrivatePidns => "pid namespace",
                pb::EmptyProof::Unspecified => "unknown",
            });
        }
        Some(Verdict::Survivors(named)) => left.iter().all(|pid| named.pids.contains(pid)),
        Some(Verdict::Stuck(stuck)) => left
            .iter()
            .all(|pid| stuck.processes.iter().any(|process| process.pid == *pid)),
        Some(Verdict::Unverified(_)) => true,
        _ => false,
    };
    if admits {
        Outcome::Admitted {
            verdict: said,
            left,
        }
    } else {
        Outcome::Lie {
            verdict: said,
            left,
        }
    }
}

/// A pid namespace that belongs to no run.
struct Holder {
    child: Child,
    first: Process,
}

impl Holder {
    fn start() -> Result<Self, String> {
        let mut command = own_service::own_binary().map_err(|failure| failure.to_string())?;
        let mut child = command
            .args([WORD, HOLD_NAMESPACE])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|cause| cause.to_string())?;
        let mut line = String::new();
        if let Some(said) = child.stdout.take() {
            // An empty line is reported below.
            let _ = BufReader::new(said).read_line(&mut line);
        }
        let first = line.trim().parse().ok().and_then(Process::now);
        match first {
            Some(first) => Ok(Self { child, first }),
            None => {
                let output = child
                    .wait_with_output()
                    .map_err(|cause| cause.to_string())?;
                let why = String::from_utf8_lossy(&output.stderr);
                Err(why.trim().trim_start_matches("naughty: ").to_owned())
            }
        }
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        // The namespace's processes end with its first process, and then the process that started it.
        self.first.signal(Signal::KILL);
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn me() -> Vec<Process> {
        vec![Process::now(std::process::id().cast_signed()).expect("it runs")]
    }

    fn verdict(verdict: Verdict) -> pb::TreeVerdict {
        pb::TreeVerdict {
            verdict: Some(verdict),
        }
    }

    // promise: C-20
    #[test]
    fn empty_verdict_with_live_process_is_false() {
        let empty = verdict(Verdict::Empty(pb::tree_verdict::Empty {
            proof: pb::EmptyProof::Echild.into(),
        }));
        assert_eq!(compare(Some(&empty), &[]), Outcome::Empty("shim"));
        let found = compare(Some(&empty), &me());
        assert!(matches!(found, Outcome::Lie { .. }), "{found:?}");
        let silent = compare(None, &[]);
        assert!(matches!(silent, Outcome::Lie { .. }), "{silent:?}");
    }

    // promise: C-20
    #[test]
    fn stuck_verdict_is_not_judged_yet() {
        let mut run = pb::Run::default();
        assert!(!is_judged(&run));
        run.tree_verdict = Some(verdict(Verdict::Stuck(pb::tree_verdict::Stuck::default())));
        assert!(!is_judged(&run), "it may end yet");
        let unverified = pb::tree_verdict::Unverified::default();
        run.tree_verdict = Some(verdict(Verdict::Unverified(unverified)));
        assert!(is_judged(&run));
        run.tree_verdict = None;
        run.end_time.get_or_insert_default();
        assert!(is_judged(&run));
    }

    // promise: C-20
    #[test]
    fn survivors_verdict_must_list_the_survivors() {
        let pid = std::process::id().cast_signed();
        let named = verdict(Verdict::Survivors(pb::tree_verdict::Survivors {
            pids: vec![pid],
        }));
        let found = compare(Some(&named), &me());
        assert!(matches!(found, Outcome::Admitted { .. }), "{found:?}");
        let others = verdict(Verdict::Survivors(pb::tree_verdict::Survivors {
            pids: vec![1],
        }));
        let found = compare(Some(&others), &me());
        assert!(matches!(found, Outcome::Lie { .. }), "{found:?}");
    }
}
