//! Three nodes of one database that are halted, killed and come back, and a witness that compares the answers with the
//! living processes.

use kennel_proto::pb::{NodeReachability, Run, RunState};
use kennel_tests::{
    Client, Kennel, Options, PATIENCE, Postgres, RunExt, argv, eventually_async,
    kennel::kill_exactly, must, procfs::Proc,
};
use nix::sys::signal::Signal;
use std::{collections::BTreeMap, time::Duration};

/// The lease of each node, and the longest time until a node without it is marked.
const LEASE: &str = "3s";
const MARKED_MAX: Duration = Duration::from_secs(10);
/// Runs of each node.
const RUNS: usize = 2;

/// A run, and the process that was its leader.
struct Subject {
    node: usize,
    leader: Proc,
}

struct Witness {
    subjects: BTreeMap<String, Subject>,
}

impl Witness {
    /// Compares all answers of this node with the living processes, and returns the runs.
    async fn look(&self, at: &mut Client, halted: usize) -> Vec<(&Subject, Run)> {
        let mut seen = Vec::new();
        for (id, subject) in &self.subjects {
            let run = must("get", at.get(id).await);
            let lives = subject.leader.is_alive();
            let is_over = run.end_reason.is_some();
            assert!(
                !(is_over && lives),
                "{id} is called over and lives: {run:?}"
            );
            assert!(
                lives || subject.node != halted,
                "a run of a halted node was signalled"
            );
            seen.push((subject, run));
        }
        seen
    }

    /// Looks until all runs are as expected.
    async fn look_until(
        &self,
        what: &str,
        limit: Duration,
        (at, halted): (&Kennel, usize),
        is_so: impl Fn(&Subject, &Run) -> bool,
    ) {
        let client = at.client().await;
        eventually_async(what, limit, async || {
            let seen = self.look(&mut client.clone(), halted).await;
            let is_so = seen.iter().all(|(subject, run)| is_so(subject, run));
            is_so.then_some(())
        })
        .await;
    }
}

fn is_marked(run: &Run) -> bool {
    let node = run.other_node.as_ref();
    node.is_some_and(|node| node.reachability() == NodeReachability::Unreachable)
}

// promise: I-72
#[tokio::test(flavor = "multi_thread")]
async fn answers_of_three_nodes_match_live_processes() {
    let postgres = Postgres::start().await;
    let mut nodes = Vec::new();
    for name in ["one", "two", "three"] {
        let options = Options {
            words: vec!["--node-name", name, "--node-lease", LEASE],
            ..Options::on(&postgres.url())
        };
        nodes.push(Kennel::start(options).await);
    }
    let mut witness = Witness {
        subjects: BTreeMap::new(),
    };
    for (node, kennel) in nodes.iter().enumerate() {
        let mut client = kennel.client().await;
        for _ in 0..RUNS {
            let run = must("spawn", client.spawn(argv(&["sleep", "600"])).await);
            let leader = Proc::read(run.attempt().pid).expect("it runs");
            witness
                .subjects
                .insert(run.run_id, Subject { node, leader });
        }
    }
    // One node is stopped for longer than its lease, another dies.
    let server = nodes[0].server().expect("it serves");
    let keeper = Proc::read(nodes[0].keeper_pid()).expect("own child");
    // Stop the keeper first: it would replace a hung server.
    for process in [&keeper, &server] {
        kill_exactly(process, Signal::SIGSTOP);
    }
    nodes[1].kill_service_after(|| {});
    let third = |subject: &Subject, run: &Run| {
        assert_eq!(run.end_reason, None, "nothing is concluded");
        is_marked(run) == (subject.node != 2)
    };
    witness
        .look_until("all are marked", MARKED_MAX, (&nodes[2], 0), third)
        .await;
    // Both nodes return.
    for process in [&server, &keeper] {
        kill_exactly(process, Signal::SIGCONT);
    }
    nodes[1].restart().await;
    let stands = |subject: &Subject, run: &Run| {
        let expected = match subject.node {
            1 => RunState::Lost,
            _ => RunState::Running,
        };
        run.state() == expected && !is_marked(run)
    };
    for at in [&nodes[2], &nodes[0]] {
        witness
            .look_until("all stand as they are", PATIENCE, (at, 0), stands)
            .await;
    }
    for subject in witness.subjects.values() {
        assert_eq!(subject.leader.is_alive(), subject.node != 1);
    }
}
