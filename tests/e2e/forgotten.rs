//! A node that does not come back, and an operator who forgets it.

use kennel_proto::pb::{self, AbortWait, NodeReachability, RunState};
use kennel_tests::{
    Kennel, PATIENCE, RunExt, SpecExt, cases, complaint, eventually, eventually_async,
    fleet::ThreeNodes,
    kennel::kill_exactly,
    must,
    procfs::Proc,
    sh,
    shell::{run_to_end, text},
};
use nix::sys::signal::Signal;
use tonic::Code;

cases! {
    fn forgotten_nodes(mut ThreeNodes::start().await);
    runs_of_forgotten_node_are_lost_by_decision,
    halted_node_ends_its_forgotten_runs,
    stopped_node_leaves_and_comes_back,
}

/// Forgets a node through another one, repeated while it is refused.
async fn forget(by: &Kennel, name: &str) {
    eventually_async("it is forgotten", PATIENCE, async || {
        let forgotten = run_to_end(by.cli(&["node", "forget", name]), PATIENCE).await;
        forgotten.status.success().then_some(())
    })
    .await;
}

async fn reachability(by: &Kennel, name: &str) -> NodeReachability {
    let mut client = by.client().await;
    let nodes = client.admin.list_nodes(pb::ListNodesRequest {}).await;
    let nodes = must("nodes", nodes).into_inner().nodes;
    let found = nodes.iter().find(|node| node.node_name == name);
    found.expect("it is listed").reachability()
}

// promise: I-70
async fn runs_of_forgotten_node_are_lost_by_decision(nodes: &mut ThreeNodes) {
    let ThreeNodes {
        postgres, one, two, ..
    } = nodes;
    let (mut here, mut there) = (one.client().await, two.client().await);
    let lives = must("spawn", here.spawn(sh("echo up; exec sleep 600")).await).run_id;
    here.hear_up(&lives).await;
    let ended = must("spawn", here.spawn(sh("exit 3")).await).run_id;
    must("wait", here.ended(&ended).await);

    let request = || pb::ForgetNodeRequest {
        node: "one".to_owned(),
        remove: false,
    };
    let refused = there.admin.forget_node(request()).await;
    let refused = refused.expect_err("it has a lease");
    assert_eq!(complaint(&refused).reason, "NODE_HAS_LEASE");
    let unknown = pb::ForgetNodeRequest {
        node: "four".to_owned(),
        remove: false,
    };
    let unknown = there.admin.forget_node(unknown).await;
    assert_eq!(unknown.expect_err("there is none").code(), Code::NotFound);

    one.kill_service_after(|| {});
    eventually_async("its lease ends", PATIENCE, async || {
        let now = reachability(two, "one").await;
        (now == NodeReachability::Unreachable).then_some(())
    })
    .await;
    let left = there.abort_with(&lives, None, AbortWait::None).await;
    let left = complaint(&left.expect_err("its node is away"));
    assert_eq!(left.reason, "ABORT_QUEUED");
    let stops = async || postgres.psql("SELECT count(*) FROM left_stops").await;
    assert_eq!(stops().await.trim(), "1");
    forget(two, "one").await;
    assert_eq!(stops().await.trim(), "0", "no node carries it out");
    let run = must("get", there.get(&lives).await);
    assert_eq!(
        (run.state(), run.reason()),
        (RunState::Lost, "node_forgotten")
    );
    // An ended run keeps its outcome.
    let run = must("get", there.get(&ended).await);
    assert_eq!((run.state(), run.reason()), (RunState::Failed, "exited"));
    assert_eq!(reachability(two, "one").await, NodeReachability::Forgotten);
    let again = must("again", there.admin.forget_node(request()).await).into_inner();
    assert_eq!(again.ended_runs, 0);

    // The forgotten node returns.
    one.restart().await;
    assert_eq!(reachability(two, "one").await, NodeReachability::Reachable);
    let run = must("get", one.client().await.get(&lives).await);
    assert_eq!(
        (run.state(), run.reason()),
        (RunState::Lost, "node_forgotten")
    );
    let why = run_to_end(two.cli(&["why", &lives]), PATIENCE).await;
    let text = String::from_utf8_lossy(&why.stdout).into_owned();
    assert!(text.contains("has forgotten its node"), "{text}");
    must("spawn", one.client().await.spawn(sh("true")).await);
    kennel_tests::Footprint::of_id(&lives)
        .until_nothing_is_left()
        .await;
}

/// Returns the names that the list of nodes has.
async fn listed(by: &Kennel) -> Vec<String> {
    let nodes = run_to_end(by.cli(&["nodes", "-o", "name"]), PATIENCE).await;
    let mut names: Vec<String> = text(&nodes).lines().map(str::to_owned).collect();
    names.sort_unstable();
    names
}

// promise: I-40a, I-70a, I-70d
async fn stopped_node_leaves_and_comes_back(nodes: &mut ThreeNodes) {
    nodes.see_each_other().await;
    let ThreeNodes {
        postgres,
        two,
        three,
        ..
    } = nodes;
    let id = must("spawn", three.client().await.spawn(sh("exit 3")).await).run_id;
    must("wait", three.client().await.ended(&id).await);
    three.terminate(PATIENCE).await;
    assert_eq!(listed(two).await, ["one", "two"]);
    let unknown = run_to_end(
        two.cli(&["spawn", "--node", "three", "--", "true"]),
        PATIENCE,
    )
    .await;
    assert!(
        String::from_utf8_lossy(&unknown.stderr).contains("no node of this database"),
        "{unknown:?}"
    );
    // The run still names its node: a node row stays while runs refer to it.
    let run = must("get", two.client().await.get(&id).await);
    let node = run.other_node.expect("it is another node's");
    assert_eq!(
        (run.state, node.node_name.as_str()),
        (RunState::Failed.into(), "three")
    );
    // Of two nodes of that name, only the last started is reachable and listed.
    let mut replaced = ThreeNodes::node(postgres, "three").await;
    let words = ["run", "--node", "three", "--", "echo", "new"];
    let new = run_to_end(two.cli(&words), PATIENCE).await;
    assert_eq!(text(&new), "new", "{new:?}");
    replaced.terminate(PATIENCE).await;
    three.restart().await;
    assert_eq!(listed(two).await, ["one", "three", "two"]);
    must("spawn", three.client().await.spawn(sh("true")).await);
    // `--remove` deletes a node despite references to it.
    let rows = async || postgres.psql("SELECT count(*) FROM nodes").await;
    assert_eq!(rows().await.trim(), "4");
    let ended = postgres
        .psql("SELECT node FROM nodes WHERE lease_us = 0")
        .await;
    let words = ["node", "forget", "--remove", ended.trim()];
    let removed = run_to_end(two.cli(&words), PATIENCE).await;
    assert!(removed.status.success(), "{removed:?}");
    assert_eq!(rows().await.trim(), "3");

    // A run of a removed node still shows the node's id.
    let id = must("spawn", three.client().await.spawn(sh("true")).await).run_id;
    must("wait", three.client().await.ended(&id).await);
    // Node three drops a queued stop of an ended run, as left by a database outage.
    let leave = format!(
        "INSERT INTO left_stops SELECT run_id, node, '{}', 0, 0 FROM runs WHERE run_id = '{id}'",
        r#"{"abort":{"by":"uid:0","request_id":null}}"#
    );
    postgres.psql(&leave).await;
    three.terminate(PATIENCE).await;
    let stops = postgres.psql("SELECT count(*) FROM left_stops").await;
    assert_eq!(stops.trim(), "0");
    let words = ["node", "forget", "--remove", &run_node(two, &id).await];
    let removed = run_to_end(two.cli(&words), PATIENCE).await;
    assert!(removed.status.success(), "{removed:?}");
    let node = run_node(two, &id).await;
    let read = pb::ReadOutputRequest {
        run_id: id.clone(),
        stream: pb::OutputStream::Stdout.into(),
        ..pb::ReadOutputRequest::default()
    };
    let refused = two.client().await.process.read_output(read).await;
    let refused = refused.expect_err("no node has it");
    let expected = format!("run {id} is on node {node}, which was removed: ");
    assert!(refused.message().starts_with(&expected), "{refused}");
    let shown = run_to_end(two.cli(&["get", &id]), PATIENCE).await;
    assert!(
        text(&shown).contains(&format!("{node}, which was removed")),
        "{shown:?}"
    );
    three.restart().await;
}

/// Returns the id of the node of another node's run.
async fn run_node(by: &Kennel, run: &str) -> String {
    let run = must("get", by.client().await.get(run).await);
    run.other_node.expect("it is another node's").node_id
}

// promise: I-70b
async fn halted_node_ends_its_forgotten_runs(nodes: &mut ThreeNodes) {
    nodes.see_each_other().await;
    let ThreeNodes { one, two, .. } = nodes;
    let mut here = one.client().await;
    let spec = sh("echo up; exec sleep 600").open_input();
    let run = must("spawn", here.spawn(spec).await);
    here.hear_up(&run.run_id).await;
    let leader = Proc::read(run.attempt().pid).expect("it runs");
    let server = one.server().expect("it serves");
    kill_exactly(&server, Signal::SIGSTOP);
    forget(two, "one").await;
    assert!(leader.is_alive(), "no server signals runs of another node");
    let closed = must("get", two.client().await.get(&run.run_id).await);
    assert_eq!(closed.reason(), "node_forgotten");
    kill_exactly(&server, Signal::SIGCONT);
    eventually("its own node ends it", PATIENCE, || {
        (!leader.is_alive()).then_some(())
    })
    .await;
    eventually_async("it takes runs again", PATIENCE, async || {
        one.client().await.spawn(sh("true")).await.ok()
    })
    .await;
    let still = must("get", one.client().await.get(&run.run_id).await);
    assert_eq!(
        (still.state(), still.reason()),
        (RunState::Lost, "node_forgotten")
    );
}
