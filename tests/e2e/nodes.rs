//! Two nodes on one database: each has its own runs, and refers callers to the other for its runs.

use kennel_proto::pb::{self, AbortWait, DesiredState, NodeReachability, RunState, event::Payload};
use kennel_tests::{
    Client, Heard, Kennel, Options, PATIENCE, Postgres, RunExt, SpecExt, argv, cases,
    client::{duration, micros},
    complaint, eventually_async, fact,
    kennel::{bare_command, kill_exactly, serve_words},
    must, new_run_id, programs, sh,
    shell::run_to_end,
};
use nix::sys::signal::Signal;
use std::{fs, path::Path, time::Duration};
use tonic::Status;

/// Nodes of one database.
struct Nodes {
    postgres: Postgres,
    /// Has a lease of three seconds.
    one: Kennel,
    /// Gives runs a grace of its own.
    two: Kennel,
    /// Has an address for which no access file has credentials.
    away: Kennel,
}

const ADVERTISED: &str = "tcp://node.invalid:7443";

impl Nodes {
    async fn start() -> Self {
        let postgres = Postgres::start().await;
        let node = async |words| {
            Kennel::start(Options {
                words,
                ..Options::on(&postgres.url())
            })
            .await
        };
        Self {
            one: node(vec!["--node-lease", "3s"]).await,
            two: node(vec!["--default-grace", "7s"]).await,
            away: node(vec!["--advertise", ADVERTISED]).await,
            postgres,
        }
    }
}

cases! {
    fn runs_of_other_nodes(mut Nodes::start().await);
    calls_for_another_nodes_run_name_the_node,
    spawn_repeated_at_other_node_is_same_run,
    copy_of_living_node_does_not_start,
    halted_node_is_unreachable_and_comes_back_whole,
    ended_run_is_read_at_any_node,
    spawn_of_unbegun_run_is_for_its_node,
    run_of_silent_node_is_unreachable_not_ended,
    node_without_lease_starts_nothing_and_keeps_runs,
}

/// Returns the address of the node in an error.
fn code_and_message(status: &Status) -> (String, String) {
    (complaint(status).reason, fact(status, "address"))
}

async fn output(client: &mut Client, run_id: &str) -> Result<(), Status> {
    let request = pb::ReadOutputRequest {
        run_id: run_id.to_owned(),
        stream: pb::OutputStream::Stdout.into(),
        range: Some(pb::read_output_request::Range::Offset(0)),
        ..pb::ReadOutputRequest::default()
    };
    client.process.read_output(request).await.map(drop)
}

// promise: I-40a
async fn calls_for_another_nodes_run_name_the_node(nodes: &mut Nodes) {
    let (mut here, mut there) = (nodes.away.client().await, nodes.two.client().await);
    let run_id = must("spawn", here.spawn(argv(&["sleep", "600"])).await).run_id;

    let id = run_id.as_str();
    let refused = [
        (
            "abort",
            there.abort_with(id, None, AbortWait::None).await.map(drop),
        ),
        ("interrupt", there.interrupt(id, "a").await.map(drop)),
        ("pause", there.pause(id).await.map(drop)),
        ("resume", there.resume(id).await.map(drop)),
        ("restart", there.restart(id, None).await.map(drop)),
        ("resize", there.resize(id, 5, 5).await.map(drop)),
        ("tree", there.tree(id).await.map(drop)),
        ("screen", there.screen(id).await.map(drop)),
        ("input", there.input(id).await.map(drop)),
        ("events", there.hear_all(id, 0).await.map(drop)),
        ("output", output(&mut there, id).await),
    ];
    for (what, result) in refused {
        let status = result.expect_err(what);
        let expected = ("RUN_ON_OTHER_NODE".to_owned(), ADVERTISED.to_owned());
        assert_eq!(code_and_message(&status), expected, "{what}");
    }
    let run = must("get", here.get(id).await);
    assert_eq!(
        (run.state(), run.desired()),
        (RunState::Running, DesiredState::Run)
    );
    assert!(run.other_node.is_none());

    // The other node returns the row's contents and the run's node.
    let seen = must("get", there.get(id).await);
    let other = seen.other_node.expect("it is another node's");
    assert_eq!(other.address, ADVERTISED);
    assert_eq!(other.reachability(), NodeReachability::Reachable);
    assert!(other.last_heard_time.is_some());
    must("abort", here.abort(id).await);
    must("wait", there.ended(id).await);
    let refused = output(&mut there, id).await.expect_err("it is not here");
    assert_eq!(complaint(&refused).reason, "RUN_ON_OTHER_NODE");
    must("abort", there.abort(id).await);
}

// promise: I-46
async fn ended_run_is_read_at_any_node(nodes: &mut Nodes) {
    let Nodes { one, two, .. } = nodes;
    let (mut here, mut there) = (one.client().await, two.client().await);
    let spec = sh("printf said; printf more >&2; exit 3");
    let id = must("spawn", here.spawn(spec).await).run_id;
    must("wait", here.ended(&id).await);
    let own = must("events", here.hear_all(&id, 0).await);
    // Events come from the run's node while reachable, otherwise from the row.
    let whole = must("events", there.hear_all(&id, 0).await);
    assert_eq!((&whole.events, whole.text()), (&own.events, own.text()));
    one.terminate(PATIENCE).await;
    let other = must("events", there.hear_all(&id, 0).await);
    let entries = |heard: &Heard| {
        let is_entry = |payload: &Payload| matches!(payload, Payload::Lifecycle(_));
        let entries = heard.events.iter().filter(|(_, p)| is_entry(p));
        entries.cloned().collect::<Vec<_>>()
    };
    assert_eq!(entries(&other), entries(&own));
    let mut missing = [0, 0];
    for (_, payload) in &other.events {
        if let Payload::Gap(gap) = payload {
            assert_eq!(gap.reason(), pb::GapReason::OtherNode);
            for (sum, part) in missing.iter_mut().zip(&gap.missing) {
                *sum += part.bytes.expect("counted");
            }
        }
    }
    assert_eq!((missing, other.stdout.len()), ([4, 4], 0));
    let why = run_to_end(two.cli(&["why", &id]), PATIENCE).await;
    let said = String::from_utf8_lossy(&why.stdout).into_owned();
    assert!(
        why.status.success() && said.contains("exited with code 3"),
        "{why:?}"
    );
    one.restart().await;
}

// promise: I-40c, L-2a
async fn spawn_repeated_at_other_node_is_same_run(nodes: &mut Nodes) {
    // The run keeps the grace of its first node.
    let Nodes {
        postgres, one, two, ..
    } = nodes;
    let (mut here, mut there) = (one.client().await, two.client().await);
    let run_id = new_run_id();
    let spec = || {
        let mut spec = argv(&["sleep", "600"]).label("b", "2").label("a", "1");
        for name in ["A", "B", "C", "D"] {
            spec = spec.env(name, "secret");
        }
        spec
    };
    must("spawn", here.spawn_as(&run_id, spec()).await);
    recorded_as_running(postgres, &run_id).await;
    let (run, existing) = must("spawn", there.spawn_as(&run_id, spec()).await);
    assert!(existing && run.other_node.is_some(), "{run:?}");
    assert_eq!(run.grace, Some(duration(Duration::from_secs(5))));
    let other_run = must("spawn", there.spawn(spec()).await);
    let run_id_there = other_run.run_id;
    recorded_as_running(postgres, &run_id_there).await;
    let (run, existing) = must("spawn", here.spawn_as(&run_id_there, spec()).await);
    assert!(existing && run.other_node.is_some(), "{run:?}");
    assert_eq!(run.grace, Some(duration(Duration::from_secs(7))));
    let other = there.spawn_as(&run_id, sh("true")).await;
    let complaint = complaint(&other.expect_err("another spec"));
    assert_eq!(complaint.reason, "SPEC_MISMATCH");
}

/// Waits until the record of a run says that it runs.
async fn recorded_as_running(postgres: &Postgres, run_id: &str) {
    let state = format!("SELECT state FROM runs WHERE run_id = '{run_id}'");
    eventually_async("it runs", PATIENCE, async || {
        (postgres.psql(&state).await.trim() == "running").then_some(())
    })
    .await;
}

/// Its node alone knows whether it has started, and removes the row where it has not.
// promise: I-75a
async fn spawn_of_unbegun_run_is_for_its_node(nodes: &mut Nodes) {
    let Nodes {
        postgres, one, two, ..
    } = nodes;
    let mut there = two.client().await;
    let (run_id, spec) = (new_run_id(), || argv(&["sleep", "600"]));
    must("spawn", one.client().await.spawn_as(&run_id, spec()).await);
    let write = async |state: &str| {
        postgres
            .psql(&format!(
                "UPDATE runs SET state = '{state}' WHERE run_id = '{run_id}'"
            ))
            .await
    };
    write("starting").await;
    let (_, existing) = must("repeat", there.spawn_as(&run_id, spec()).await);
    assert!(existing, "its node has started it");

    one.kill_service_after(|| {});
    write("starting").await;
    let refused = there.spawn_as(&run_id, spec()).await;
    let refused = refused.expect_err("its start is not known");
    assert_eq!(complaint(&refused).reason, "NODE_UNREACHABLE");
    one.restart().await;
    must("wait", there.ended(&run_id).await);
    let (run, existing) = must("repeat", there.spawn_as(&run_id, spec()).await);
    assert!(existing && run.end_time.is_some(), "{run:?}");
}

// promise: I-41
async fn run_of_silent_node_is_unreachable_not_ended(nodes: &mut Nodes) {
    let Nodes {
        postgres, one, two, ..
    } = nodes;
    let mut there = two.client().await;
    let run = one.client().await.spawn(argv(&["sleep", "600"])).await;
    let run_id = must("spawn", run).run_id;
    recorded_as_running(postgres, &run_id).await;
    one.kill_service_after(|| {});
    let silent = format!(
        "UPDATE nodes SET heard_us = heard_us - 60000000 WHERE address = '{}'",
        one.address()
    );
    postgres.psql(&silent).await;
    let run = must("get", there.get(&run_id).await);
    let reachability = run.other_node.as_ref().map(pb::Node::reachability);
    assert_eq!(reachability, Some(NodeReachability::Unreachable));
    assert_eq!((run.state(), run.end_reason), (RunState::Running, None));
    for (words, said) in [
        (vec!["ps"], "UNREACHABLE (RUNNING)"),
        (vec!["get", run_id.as_str()], "node unreachable since"),
        (vec!["nodes"], "unreachable"),
    ] {
        let shown = run_to_end(two.cli(&words), PATIENCE).await;
        let text = String::from_utf8_lossy(&shown.stdout).into_owned();
        assert!(text.contains(said), "{text}");
    }
    one.restart().await;
    eventually_async("it is heard of again", PATIENCE, async || {
        let run = must("get", two.client().await.get(&run_id).await);
        let other = run.other_node.expect("it is another node's");
        (other.reachability() == NodeReachability::Reachable).then_some(())
    })
    .await;
}

/// Gives the lease of a node to an unknown keeper, for so many microseconds.
fn stolen(node: &str, lease_us: u64) -> String {
    format!(
        "UPDATE nodes SET generation = generation + 1, keeper_epoch = '01K0000000000000000000000A', \
         heard_us = CAST(extract(epoch FROM clock_timestamp()) * 1000000 AS BIGINT), lease_us = {lease_us} \
         WHERE node = '{node}'"
    )
}

async fn fenced_by(client: &mut Client) -> String {
    let info = client.server_info().await;
    info.map_or_else(String::new, |info| info.fenced_by)
}

// promise: D-25, I-68
async fn node_without_lease_starts_nothing_and_keeps_runs(nodes: &mut Nodes) {
    let Nodes {
        postgres,
        one: node,
        ..
    } = nodes;
    let mut client = node.client().await;
    let lives = must("spawn", client.spawn(sh("echo up; sleep 600")).await);
    let exits = must(
        "spawn",
        client.spawn(sh("read line; exit 7").open_input()).await,
    )
    .run_id;
    client.hear_up(&lives.run_id).await;
    let leader = lives.current_attempt.map(|attempt| attempt.pid);
    let leader = leader.expect("it runs");
    let own = must("info", client.server_info().await.ok_or("no answer"));

    postgres.psql(&stolen(&own.node_id, 600_000_000)).await;
    eventually_async("it notices", PATIENCE, async || {
        (!fenced_by(&mut node.client().await).await.is_empty()).then_some(())
    })
    .await;
    let refused = client.spawn(sh("true")).await.expect_err("fenced");
    assert_eq!(complaint(&refused).reason, "NODE_FENCED");
    assert_eq!(refused.code(), tonic::Code::Unavailable);
    node.becomes_ready(false).await;
    assert!(node.is_serving("liveness").await);
    let status = run_to_end(node.cli(&["status"]), PATIENCE).await;
    let text = String::from_utf8_lossy(&status.stdout).into_owned();
    assert!(
        text.contains("01K0000000000000000000000A has the lease"),
        "{text}"
    );
    assert!(Path::new(&format!("/proc/{leader}")).exists());
    // Fenced nodes lose no events.
    must("write", client.write(&exits, "a", Some(0), b"go\n").await);
    let seen = must("get", client.get(&lives.run_id).await);
    assert_eq!(seen.state(), RunState::Running);

    // The lease expires, and no keeper renews it.
    postgres.psql(&stolen(&own.node_id, 0)).await;
    eventually_async("it has its lease again", PATIENCE, async || {
        fenced_by(&mut node.client().await)
            .await
            .is_empty()
            .then_some(())
    })
    .await;
    let ended = must("wait", client.ended(&exits).await);
    let exit = ended.current_attempt.and_then(|attempt| attempt.exit);
    assert_eq!(
        exit.and_then(|exit| exit.result),
        Some(pb::exit::Result::Code(7))
    );
    assert!(Path::new(&format!("/proc/{leader}")).exists());
    eventually_async("it starts runs again", PATIENCE, async || {
        node.client().await.spawn(sh("true")).await.ok()
    })
    .await;
    must("abort", client.abort(&lives.run_id).await);
}

// promise: D-25, I-67a
async fn copy_of_living_node_does_not_start(nodes: &mut Nodes) {
    let (url, node) = (nodes.postgres.url(), &nodes.one);
    let mut client = node.client().await;
    let run_id = must("spawn", client.spawn(argv(&["sleep", "600"])).await).run_id;
    let dir = tempfile::tempdir().expect("a directory");
    let mut copied = std::process::Command::new("cp");
    copied
        .arg("-a")
        .arg(node.data_dir())
        .arg(dir.path().join("data"));
    assert!(copied.status().expect("cp").success());
    // On this host the keeper is visibly alive; from another host only its lease shows that.
    let boot_id = dir.path().join("boot_id");
    fs::write(&boot_id, "00000000-0000-4000-8000-000000000001\n").expect("own directory");
    let elsewhere = r#"mount --bind "$0" /proc/sys/kernel/random/boot_id; exec "$@""#;
    for (here, said) in [(true, "is still alive"), (false, "has the lease")] {
        let mut command = bare_command(Path::new("unshare"));
        command.arg("--mount");
        if !here {
            command.args(["sh", "-ec", elsewhere]).arg(&boot_id);
        }
        command.arg(programs::kennel());
        command.args(serve_words(dir.path(), Some(&url)));
        let refused = run_to_end(command, PATIENCE).await;
        let text = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(!refused.status.success() && text.contains(said), "{text}");
    }
    let run = must("get", client.get(&run_id).await);
    assert_eq!((run.state(), run.end_reason), (RunState::Running, None));
    must("spawn", client.spawn(sh("true")).await);
    must("abort", client.abort(&run_id).await);
}

// promise: I-41
async fn halted_node_is_unreachable_and_comes_back_whole(nodes: &mut Nodes) {
    let Nodes { one, two, .. } = nodes;
    let run = one.client().await.spawn(argv(&["sleep", "600"])).await;
    let run = must("spawn", run);
    let server = one.server().expect("it serves");
    // The row must say RUNNING.
    eventually_async("it runs", PATIENCE, async || {
        let run = must("get", two.client().await.get(&run.run_id).await);
        (run.state() == RunState::Running).then_some(())
    })
    .await;
    kill_exactly(&server, Signal::SIGSTOP);
    let (seen, node) = eventually_async("its lease ends", PATIENCE, async || {
        let run = must("get", two.client().await.get(&run.run_id).await);
        let node = run.other_node.clone().expect("it is another node's");
        (node.reachability() == NodeReachability::Unreachable).then_some((run, node))
    })
    .await;
    assert_eq!((seen.state(), seen.end_reason), (RunState::Running, None));
    let [heard, until] =
        [node.last_heard_time, node.unreachable_since].map(|time| micros(&time.expect("known")));
    assert_eq!(until - heard, 3_000_000);
    kill_exactly(&server, Signal::SIGCONT);
    eventually_async("it is reachable", PATIENCE, async || {
        let run = must("get", two.client().await.get(&run.run_id).await);
        let node = run.other_node.expect("it is another node's");
        (node.reachability() == NodeReachability::Reachable).then_some(())
    })
    .await;
    let now = must("get", one.client().await.get(&run.run_id).await);
    assert_eq!(now.state(), RunState::Running);
    assert_eq!(now.lasting(), run.lasting());
    must("abort", one.client().await.abort(&run.run_id).await);
}
