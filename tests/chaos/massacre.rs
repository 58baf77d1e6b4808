//! SIGKILL of keeper, server and half of the shims while fifty trees live: the next start finds and ends the remaining
//! processes, records that in every row, and touches no unrelated process.

use kennel_proto::pb::{self, RunState};
use kennel_tests::{
    Footprint, Kennel, Options, PATIENCE, Postgres, RunExt, SpecExt, eventually,
    kennel::{kill_exactly, reap_orphans},
    must, naughty,
    procfs::{self, Proc},
    programs,
};
use nix::sys::signal::Signal;
use std::{
    process::{Child, Command, Stdio},
    time::Duration,
};

/// Trees of four processes: a leader, a plain child, and two orphans in sessions of their own, one without environment.
const TREES: usize = 50;
const TREE_LEN: usize = 4;
/// Number of runs with an unrelated process that has their marker.
const STRANGERS: usize = 10;

// promise: I-2, R-4
#[tokio::test(flavor = "multi_thread")]
async fn fifty_trees_leave_no_process_on_sqlite() {
    massacre(Options::default(), true).await;
}

// promise: R-4
#[tokio::test(flavor = "multi_thread")]
async fn fifty_trees_leave_no_process_on_postgres() {
    let postgres = Postgres::start().await;
    massacre(Options::on(&postgres.url()), true).await;
}

/// Without control groups, the orphans of a dead shim cannot be distinguished from unrelated processes; the shims live
/// here.
// promise: R-4
#[tokio::test(flavor = "multi_thread")]
async fn fifty_trees_without_cgroups_end_completely() {
    massacre(Options::default().without_cgroup(), false).await;
}

/// A process that looks like a run's own and is not.
struct Stranger {
    child: Child,
    proc: Proc,
}

impl Stranger {
    /// Starts one with the same name, the same marker, and another session.
    fn of(run_id: &str, run_dir: &str) -> Self {
        let child = Command::new(programs::naughty())
            .arg("in-own-session")
            .env("KENNEL_RUN_ID", run_id)
            .env("KENNEL_RUN_DIR", run_dir)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .expect("it starts");
        let pid = i32::try_from(child.id()).expect("small");
        let proc = Proc::read(pid).expect("own child");
        Self { child, proc }
    }
}

impl Drop for Stranger {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

async fn massacre(options: Options, shims_too: bool) {
    let mut kennel = Kennel::start(options).await;
    let mut client = kennel.client().await;
    let info = client.server_info().await.expect("it answers");
    let grouped = info.host.expect("a host").containment == i32::from(pb::Containment::Cgroup);
    let mut runs = Vec::new();
    for _ in 0..TREES {
        let spec = naughty(&["mixed-tree"]).grace(Duration::from_millis(500));
        runs.push(must("spawn", client.spawn(spec).await));
    }
    let mut prints: Vec<Footprint> = Vec::new();
    for run in &runs {
        prints.push(grown(run).await);
    }
    let strangers: Vec<Stranger> = runs[..STRANGERS]
        .iter()
        .map(|run| {
            Stranger::of(
                &run.run_id,
                &kennel.run_dir(&run.run_id).display().to_string(),
            )
        })
        .collect();

    kennel.kill_service_after(|| {
        if shims_too && grouped {
            for run in runs.iter().step_by(2) {
                let shim = Proc::read(run.attempt().shim_pid).expect("it runs");
                kill_exactly(&shim, Signal::SIGKILL);
            }
        }
    });
    kennel.restart().await;

    let mut client = kennel.client().await;
    for run in &runs {
        let run = must("wait", client.ended(&run.run_id).await);
        assert_eq!(run.state(), RunState::Lost, "{run:?}");
        assert!(
            ["service_lost", "orphan_terminated"].contains(&run.reason()),
            "{run:?}"
        );
        assert!(
            run.tree_verdict.is_some(),
            "every row says what is left: {run:?}"
        );
    }
    eventually("nothing of any tree is left", PATIENCE, || {
        reap_orphans();
        prints
            .iter()
            .all(|print| only_strangers(print, &strangers))
            .then_some(())
    })
    .await;
    for stranger in &strangers {
        assert!(stranger.proc.is_alive(), "a stranger was ended");
        let state = Proc::read(stranger.proc.pid).expect("it lives").state;
        assert!(!matches!(state, 'T'), "a stranger was stopped");
    }
    println!("{TREES} trees, {} processes, none left", TREES * TREE_LEN);
}

async fn grown(run: &pb::Run) -> Footprint {
    let shim = run.attempt().shim_pid;
    eventually("the tree has grown", PATIENCE, || {
        let tree = procfs::descendants(&procfs::all(), shim);
        let sessions: std::collections::BTreeSet<i32> = tree.iter().map(|proc| proc.sid).collect();
        (tree.len() == TREE_LEN && sessions.len() == 3).then_some(())
    })
    .await;
    let print = Footprint::of_run(run);
    assert_eq!(print.seen_len(), TREE_LEN);
    print
}

fn only_strangers(print: &Footprint, strangers: &[Stranger]) -> bool {
    let census = print.count();
    [
        census.marker,
        census.group,
        census.session,
        census.cgroup,
        census.ancestry,
    ]
    .iter()
    .flatten()
    .all(|found| {
        strangers
            .iter()
            .any(|stranger| stranger.proc.pid == found.pid)
    })
}
