//! The same programs without Kennel: a spawner that kills the process group of its child. The census must find the
//! escaped processes, or the matrix proves nothing.

use kennel_naughty::{HOLD_NAMESPACE, PROGRAMS, UP, WORD, Wants};
use kennel_tests::{
    Footprint, PATIENCE, eventually,
    kennel::{bare_command, kill_exactly, reap_orphans},
    new_run_id,
    procfs::{self, Proc},
    programs,
};
use nix::{
    sys::{
        prctl,
        signal::{Signal, killpg},
    },
    unistd::Pid,
};
use std::{
    io::{BufRead, BufReader},
    path::Path,
    process::{Child, Command, Stdio},
};

/// Programs that outlive a kill of the group. The others stay in it.
const ESCAPES: [&str; 11] = [
    "setsid",
    "daemon",
    "no-environment",
    "overwritten",
    "own-pid-namespace",
    "foreign-pid-namespace",
    "ptraced",
    "zombie-leader",
    "closes-everything",
    "keeps-pipe",
    "fork-storm",
];

// promise: T-41
#[tokio::test(flavor = "multi_thread")]
async fn census_finds_survivors_of_a_group_kill() {
    prctl::set_child_subreaper(true).expect("a process can be made a subreaper");
    let mut holder = start(Command::new(programs::kennel()).args([WORD, HOLD_NAMESPACE]));
    let first = holder.1.clone();
    let mut escaped = Vec::new();
    for program in &PROGRAMS {
        let argument = match program.wants {
            Wants::Nothing => None,
            Wants::ForeignNamespace => Some(&first),
            Wants::WritableGroup | Wants::SetuidCopy => continue,
        };
        // kills-shim would kill its parent, which is the test here.
        if program.name != "kills-shim" && escapes(program.name, argument).await {
            escaped.push(program.name);
        }
    }
    if let Some(first) = Proc::read(first.parse().expect("a number")) {
        kill_exactly(&first, Signal::SIGKILL);
    }
    holder.0.wait().expect("own child");
    assert_eq!(escaped, ESCAPES);
}

async fn escapes(program: &str, argument: Option<&String>) -> bool {
    let run_id = new_run_id();
    let own = i32::try_from(std::process::id()).expect("pids are small");
    let strangers = procfs::descendants(&procfs::all(), own);
    // `setsid` separates the program: a count by the test's session would include the test.
    let mut command = bare_command(Path::new("setsid"));
    command
        .arg(programs::kennel())
        .args([WORD, program])
        .args(argument)
        .env("KENNEL_RUN_ID", &run_id);
    let (mut leader, said) = start(&mut command);
    assert_eq!(said, UP, "{program}");
    let pid = i32::try_from(leader.id()).expect("pids are small");
    let mut print = Footprint::of_leader(&run_id, pid);
    // Orphans were reparented to this process.
    print.learn(own);
    let alive = || -> Vec<Proc> {
        let all = print.count().alive().into_iter();
        let stranger = |proc: &Proc| strangers.iter().any(|known| known.pid == proc.pid);
        all.filter(|proc| !stranger(proc)).collect()
    };

    killpg(Pid::from_raw(pid), Signal::SIGKILL).expect("it leads a group");
    leader.wait().expect("own child");
    // Killed processes disappear once reaped; survivors stay.
    let hit = |proc: &Proc| proc.pgid == pid;
    eventually("the group is gone", PATIENCE, || {
        reap_orphans();
        (!alive().iter().any(hit)).then_some(())
    })
    .await;
    let left = alive();
    for proc in &left {
        kill_exactly(proc, Signal::SIGKILL);
    }
    eventually("no process is left", PATIENCE, || {
        reap_orphans();
        alive().is_empty().then_some(())
    })
    .await;
    !left.is_empty()
}

/// Starts a child and returns its first line.
fn start(command: &mut Command) -> (Child, String) {
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .expect("it starts");
    let mut line = String::new();
    BufReader::new(child.stdout.take().expect("a pipe"))
        .read_line(&mut line)
        .expect("it speaks");
    (child, line.trim_end().to_owned())
}
