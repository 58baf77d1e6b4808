//! Three nodes of one database that are halted, killed and come back, and a witness that compares the answers with the
//! living processes.

use kennel_proto::pb::{NodeReachability, RunState};
use kennel_tests::{
    Client, Kennel, Options, PATIENCE, Postgres, RunExt, argv, eventually_async,
    fleet::{Plan, prove},
    kennel::kill_exactly,
    must,
    procfs::Proc,
};
use nix::sys::signal::Signal;
use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

/// The lease of each node, and longer.
const LEASE: &str = "3s";
const LONGER: Duration = Duration::from_secs(5);
/// Runs of each node.
const RUNS: usize = 4;

/// A run, and the process that was its leader.
struct Subject {
    node: usize,
    leader: Proc,
    /// Time since which the process is dead.
    dead: Option<Instant>,
}

struct Witness {
    subjects: BTreeMap<String, Subject>,
}

impl Witness {
    /// Compares all answers of this node with the living processes.
    async fn look(&mut self, at: &mut Client, halted: Option<usize>) {
        for (id, subject) in &mut self.subjects {
            let run = must("get", at.get(id).await);
            let lives = subject.leader.is_alive();
            if !lives && subject.dead.is_none() {
                subject.dead = Some(Instant::now());
            }
            let node = run.other_node.as_ref();
            let is_marked =
                node.is_some_and(|node| node.reachability() == NodeReachability::Unreachable);
            let is_over = run.end_reason.is_some();
            assert!(
                !(is_over && lives),
                "{id} is called over and lives: {run:?}"
            );
            let long_dead = subject.dead.is_some_and(|dead| dead.elapsed() > LONGER * 2);
            assert!(
                !long_dead || is_over || is_marked,
                "{id} is dead, and shown as {:?} without a mark",
                run.state()
            );
            if halted == Some(subject.node) {
                assert!(lives, "a run of a halted node was signalled");
            }
        }
    }

    async fn look_for(&mut self, at: &Kennel, halted: Option<usize>, time: Duration) {
        let (mut client, begun) = (at.client().await, Instant::now());
        while begun.elapsed() < time {
            self.look(&mut client, halted).await;
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_of_three_nodes_agree_with_what_lives() {
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
            let subject = Subject {
                node,
                leader,
                dead: None,
            };
            witness.subjects.insert(run.run_id, subject);
        }
    }
    // One is halted for longer than its lease, another one dies.
    let server = nodes[0].server().expect("it serves");
    let keeper = Proc::read(nodes[0].keeper_pid()).expect("own child");
    // The keeper first: it would replace a server that hangs.
    for process in [&keeper, &server] {
        kill_exactly(process, Signal::SIGSTOP);
    }
    nodes[1].kill_service_after(|| {});
    witness.look_for(&nodes[2], Some(0), LONGER * 3).await;
    let marked = |run: &kennel_proto::pb::Run| {
        let node = run.other_node.as_ref();
        node.is_some_and(|node| node.reachability() == NodeReachability::Unreachable)
    };
    for (id, subject) in &witness.subjects {
        let run = must("get", nodes[2].client().await.get(id).await);
        assert_eq!(marked(&run), subject.node != 2, "{run:?}");
        assert_eq!(run.end_reason, None, "nothing is concluded");
    }
    // Both come back.
    for process in [&server, &keeper] {
        kill_exactly(process, Signal::SIGCONT);
    }
    nodes[1].restart().await;
    witness.look_for(&nodes[2], Some(0), LONGER).await;
    for (id, subject) in &witness.subjects {
        let expected = if subject.node == 1 {
            RunState::Lost
        } else {
            RunState::Running
        };
        eventually_async("it stands as it is", PATIENCE, async || {
            let run = must("get", nodes[2].client().await.get(id).await);
            (run.state() == expected && !marked(&run)).then_some(())
        })
        .await;
        assert_eq!(subject.leader.is_alive(), subject.node != 1);
    }
    witness
        .look_for(&nodes[0], Some(0), Duration::from_secs(1))
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn no_answer_of_a_fleet_is_false() {
    let tally = prove(Plan {
        nodes: 3,
        runs: 60,
        workers: 6,
        rounds: 1,
        seed: 1,
    })
    .await;
    println!("{tally:?}");
    assert!(tally.ran >= 40 && tally.stopped >= 15, "{tally:?}");
}
