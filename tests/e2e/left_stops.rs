//! A stop whose node cannot be reached is left for it, and carried out once.

use kennel_proto::pb::{self, AbortWait, DesiredState, RunState};
use kennel_tests::{
    Client, Kennel, Options, PATIENCE, Postgres, RunExt, STORE_PATIENCE, argv, cases, complaint,
    eventually, eventually_async, fact, fleet::ThreeNodes, kennel::kill_exactly, must,
    procfs::Proc, relay::Relay, sh, shell::run_to_end, within,
};
use nix::sys::signal::Signal;
use std::{fs, time::Duration};
use tempfile::TempDir;

/// Nodes of one database, of which the first has points at which it dies.
struct Nodes {
    postgres: Postgres,
    one: Kennel,
    two: Kennel,
    points: TempDir,
}

impl Nodes {
    async fn start() -> Self {
        let postgres = Postgres::start().await;
        let points = tempfile::tempdir().expect("a directory");
        let one = Kennel::start(Options {
            words: vec!["--node-name", "one", "--node-lease", "3s"],
            ..Options {
                store: Some(postgres.url()),
                ..Options::crashing(points.path())
            }
        })
        .await;
        let two = ThreeNodes::node(&postgres, "two").await;
        Self {
            postgres,
            one,
            two,
            points,
        }
    }

    /// Lets the first node be reached again where its record has another address.
    async fn reach_the_first(&mut self) {
        self.one.replace_server().await;
        let address = format!(
            "SELECT count(*) FROM nodes WHERE name = 'one' AND address = '{}'",
            self.one.address()
        );
        eventually_async("its address is recorded", PATIENCE, async || {
            (self.postgres.psql(&address).await.trim() == "1").then_some(())
        })
        .await;
    }
}

cases! {
    fn stops_left_for_a_node(mut Nodes::start().await);
    stop_left_for_dead_node_is_done_later,
    stop_is_left_for_an_unreadable_run,
    sharper_stop_shortens_the_one_that_is_left,
    left_stop_takes_effect_once_over_a_crash,
    stop_accepted_without_store_reaches_other_node,
}

/// Starts a run of this node that is RUNNING in its record.
async fn running(node: &Kennel, at: &Kennel) -> pb::Run {
    let run = node.client().await.spawn(argv(&["sleep", "600"])).await;
    let run = must("spawn", run);
    eventually_async("it runs", PATIENCE, async || {
        let run = must("get", at.client().await.get(&run.run_id).await);
        (run.state() == RunState::Running).then_some(())
    })
    .await;
    run
}

/// Returns how often the audit log of its node has an Abort that was left.
async fn carried_out(client: &mut Client, run_id: &str) -> usize {
    let logged = must("trail", client.logged_requests(run_id).await).into_iter();
    logged
        .filter(|asked| asked.rpc == "Abort" && asked.asked.contains_key("left_at_us"))
        .count()
}

// promise: I-71a, I-71b
async fn stop_left_for_dead_node_is_done_later(nodes: &mut Nodes) {
    let Nodes { one, two, .. } = nodes;
    let run = running(one, two).await;
    let id = run.run_id.as_str();
    let keeper = Proc::read(one.keeper_pid()).expect("own child");
    kill_exactly(&keeper, Signal::SIGSTOP);
    one.kill_server();
    let mut there = two.client().await;
    fs::remove_file(one.socket()).expect("no server is reached there");
    for _ in 0..2 {
        let left = there.abort_with(id, None, AbortWait::None).await;
        let left = left.expect_err("it is not done");
        assert_eq!(complaint(&left).reason, "ABORT_QUEUED");
        assert_eq!(fact(&left, "node_name"), "one");
    }
    let said = run_to_end(two.cli(&["abort", id]), PATIENCE).await;
    assert_eq!(said.status.code(), Some(3), "{said:?}");
    let text = String::from_utf8_lossy(&said.stderr).into_owned();
    assert!(text.contains("is left for its node one"), "{text}");
    // Each call is logged once, though it asked the node first.
    let logged = must("trail", there.logged_requests(id).await);
    let aborts = logged.iter().filter(|asked| asked.rpc == "Abort");
    let reasons: Vec<_> = aborts.map(|asked| asked.reason.as_str()).collect();
    assert_eq!(reasons, ["ABORT_QUEUED"; 3]);
    let seen = must("get", there.get(id).await);
    assert_eq!((seen.desired(), seen.end_reason), (DesiredState::Run, None));
    assert!(seen.left_stop.expect("left").by.starts_with("uid:"));
    let shown = run_to_end(two.cli(&["get", id]), PATIENCE).await;
    let text = String::from_utf8_lossy(&shown.stdout).into_owned();
    assert!(text.contains("not done before the node is back"), "{text}");
    let leader = Proc::read(run.attempt().pid).expect("it runs");
    assert!(leader.is_alive());

    kill_exactly(&keeper, Signal::SIGCONT);
    let ended = must("wait", there.ended(id).await);
    assert_eq!(
        (ended.state(), ended.reason()),
        (RunState::Cancelled, "aborted")
    );
    eventually("it ends", PATIENCE, || (!leader.is_alive()).then_some(())).await;
    let gone = there.abort_with(id, None, AbortWait::None).await;
    must("abort of an ended run", gone);
}

/// A later version has written the record: only its columns can be read.
// promise: I-92
async fn stop_is_left_for_an_unreadable_run(nodes: &mut Nodes) {
    let Nodes {
        postgres, one, two, ..
    } = nodes;
    let run = running(one, two).await;
    let id = run.run_id.as_str();
    let keeper = Proc::read(one.keeper_pid()).expect("own child");
    kill_exactly(&keeper, Signal::SIGSTOP);
    one.kill_server();
    fs::remove_file(one.socket()).expect("no server is reached there");
    let known = format!("SELECT spec FROM runs WHERE run_id = '{id}'");
    let known = postgres.psql(&known).await;
    let write = async |spec: &str| {
        let sql = format!("UPDATE runs SET spec = $spec${spec}$spec$ WHERE run_id = '{id}'");
        postgres.psql(&sql).await;
    };
    let later = r#"{"policy":{"kind":"later"}}"#;
    write(later).await;
    let mut there = two.client().await;
    let unread = there.get(id).await.expect_err("it cannot be read");
    assert_eq!(complaint(&unread).reason, "NODE_UNREACHABLE");

    let left = there.abort_with(id, None, AbortWait::None).await;
    let left = left.expect_err("it is not done");

    assert_eq!(complaint(&left).reason, "ABORT_QUEUED");
    assert_eq!(fact(&left, "node_name"), "one");
    let grace = "SELECT grace_us, (SELECT grace_period_ms FROM runs r WHERE r.run_id = l.run_id) FROM left_stops l";
    assert_eq!(postgres.psql(grace).await.trim(), "5000000|5000");
    write(&known).await;
    kill_exactly(&keeper, Signal::SIGCONT);
    let ended = must("wait", there.ended(id).await);
    assert_eq!(ended.reason(), "aborted");
    // An ended run's queued stop is removed, even of a later version.
    write(later).await;
    let stops = async || postgres.psql("SELECT count(*) FROM left_stops").await;
    eventually_async("it is left no more", PATIENCE, async || {
        (stops().await.trim() == "0").then_some(())
    })
    .await;
    one.kill_service_after(|| {});
    let refused = there.abort_with(id, None, AbortWait::None).await;
    let refused = complaint(&refused.expect_err("its end cannot be read"));
    assert_eq!(refused.reason, "NODE_UNREACHABLE");
    assert_eq!(stops().await.trim(), "0");
    write(&known).await;
    one.restart().await;
}

/// A node without its store cannot know whose run it is: its promise is kept by the run's own node.
// promise: I-93
async fn stop_accepted_without_store_reaches_other_node(nodes: &mut Nodes) {
    let Nodes { postgres, two, .. } = nodes;
    let between = tempfile::tempdir().expect("a directory");
    let socket = ".s.PGSQL.5432";
    let behind = postgres.socket_dir().join(socket);
    let relay = Relay::start(between.path().join(socket), behind);
    let cut_off = postgres.url_in(between.path());
    let three = Kennel::start(Options {
        words: vec!["--node-name", "three", "--node-lease", "3s"],
        ..Options::on(&cut_off)
    })
    .await;
    let run = running(two, two).await;
    let id = run.run_id.as_str();
    let leader = Proc::read(run.attempt().pid).expect("it runs");
    relay.cut();
    eventually_async("it is queued, and not done", STORE_PATIENCE, async || {
        let mut here = three.client().await;
        let queued = here.abort_with(id, None, AbortWait::None).await.err()?;
        let is_queued = complaint(&queued).reason == "ABORT_QUEUED";
        (is_queued && fact(&queued, "node_name") == "three").then_some(())
    })
    .await;
    assert!(leader.is_alive());

    relay.mend();

    let mut there = two.client().await;
    let ended = within("it ends", STORE_PATIENCE, there.ended(id)).await;
    let ended = must("wait", ended);
    assert_eq!(ended.reason(), "aborted");
    assert_eq!(carried_out(&mut there, id).await, 1);
}

// promise: I-71
async fn sharper_stop_shortens_the_one_that_is_left(nodes: &mut Nodes) {
    let Nodes {
        postgres, one, two, ..
    } = nodes;
    let mut here = one.client().await;
    let deaf = sh("trap '' TERM; echo up; while :; do sleep 1; done");
    let id = &must("spawn", here.spawn(deaf).await).run_id;
    here.hear_up(id).await;
    let lost = "UPDATE nodes SET address = 'unix:/nonexistent/kennel.sock' WHERE name = 'one'";
    postgres.psql(lost).await;
    let keeper = Proc::read(one.keeper_pid()).expect("own child");
    let server = Proc::read(one.server().expect("it serves").pid).expect("it serves");
    kill_exactly(&server, Signal::SIGSTOP);
    let mut there = two.client().await;
    let mut graces = Vec::new();
    for seconds in [50, 0, 60] {
        let grace = Some(Duration::from_secs(seconds));
        let left = there.abort_with(id, grace, AbortWait::None).await;
        assert_eq!(complaint(&left.expect_err("left")).reason, "ABORT_QUEUED");
        let run = must("get", there.get(id).await);
        graces.push(
            run.left_stop
                .expect("left")
                .grace
                .expect("it has one")
                .seconds,
        );
    }
    assert_eq!(graces, [50, 0, 0]);
    kill_exactly(&server, Signal::SIGCONT);
    let ended = must("wait", there.ended(id).await);
    assert_eq!(ended.reason(), "aborted");
    let steps = ended.attempt().certificate.clone().expect("it ended").steps;
    assert_eq!(steps[0].signal, "SIGKILL", "{steps:?}");
    assert!(keeper.is_alive());
    let run = must("get", there.get(id).await);
    assert_eq!(run.left_stop, None);
    nodes.reach_the_first().await;
}

// promise: I-71a
async fn left_stop_takes_effect_once_over_a_crash(nodes: &mut Nodes) {
    let Nodes {
        postgres,
        one,
        two,
        points,
    } = nodes;
    let run = running(one, two).await;
    let id = run.run_id.as_str();
    // The node lives but is unreachable: its address leads nowhere.
    let lost = "UPDATE nodes SET address = 'unix:/nonexistent/kennel.sock' WHERE name = 'one'";
    postgres.psql(lost).await;
    fs::write(points.path().join("left_stop.carried_out"), "server").expect("own directory");
    let mut there = two.client().await;
    let left = there.abort_with(id, None, AbortWait::None).await;
    assert_eq!(complaint(&left.expect_err("left")).reason, "ABORT_QUEUED");
    let ended = must("wait", there.ended(id).await);
    assert_eq!(
        (ended.state(), ended.reason()),
        (RunState::Cancelled, "aborted")
    );
    eventually("its server died in between", PATIENCE, || {
        (!points.path().join("left_stop.carried_out").exists()).then_some(())
    })
    .await;
    eventually_async("the stop is written down", PATIENCE, async || {
        let mut here = Client::connect(&one.socket()).await.ok()?;
        here.server_info().await?;
        (carried_out(&mut here, id).await == 1).then_some(())
    })
    .await;
    eventually_async("and left no more", PATIENCE, async || {
        let left = postgres.psql("SELECT count(*) FROM left_stops").await;
        (left.trim() == "0").then_some(())
    })
    .await;
}
