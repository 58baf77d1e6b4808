//! Two nodes on one database: each has its own runs, and says where the other's are.

use kennel_proto::pb::{self, AbortWait, DesiredState, NodeReachability, RunState, event::Payload};
use kennel_tests::{
    Client, Heard, Kennel, Options, PATIENCE, Postgres, SpecExt, argv, complaint, eventually_async,
    fact, must, new_run_id, sh, shell::run_to_end,
};
use tonic::Status;

/// The address of the node that a refusal names.
fn told(status: &Status) -> (String, String) {
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

#[tokio::test(flavor = "multi_thread")]
async fn calls_for_runs_of_other_node_name_it_and_change_nothing() {
    let postgres = Postgres::start().await;
    // No access file has credentials for it.
    let advertised = "tcp://node.invalid:7443";
    let one = Kennel::start(Options {
        words: vec!["--advertise", advertised],
        ..Options::on(&postgres.url())
    })
    .await;
    let two = Kennel::start(Options::on(&postgres.url())).await;
    let (mut here, mut there) = (one.client().await, two.client().await);
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
        let expected = ("RUN_ON_OTHER_NODE".to_owned(), advertised.to_owned());
        assert_eq!(told(&status), expected, "{what}");
    }
    let run = must("get", here.get(id).await);
    assert_eq!(
        (run.state(), run.desired()),
        (RunState::Running, DesiredState::Run)
    );
    assert!(run.other_node.is_none());

    // What stands in the record is told, and where the run is.
    let seen = must("get", there.get(id).await);
    let other = seen.other_node.expect("it is another node's");
    assert_eq!(other.address, advertised);
    assert_eq!(other.reachability(), NodeReachability::Reachable);
    assert!(other.last_heard_time.is_some());
    must("abort", here.abort(id).await);
    must("wait", there.ended(id).await);
    let refused = output(&mut there, id).await.expect_err("it is not here");
    assert_eq!(complaint(&refused).reason, "RUN_ON_OTHER_NODE");
    must("abort", there.abort(id).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn story_of_ended_run_is_read_at_any_node() {
    let postgres = Postgres::start().await;
    let mut one = Kennel::start(Options::on(&postgres.url())).await;
    let two = Kennel::start(Options::on(&postgres.url())).await;
    let (mut here, mut there) = (one.client().await, two.client().await);
    let spec = sh("printf said; printf more >&2; exit 3");
    let id = must("spawn", here.spawn(spec).await).run_id;
    must("wait", here.ended(&id).await);
    let own = must("events", here.hear_all(&id, 0).await);
    // From its own node while that answers, else from its row.
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
}

#[tokio::test(flavor = "multi_thread")]
async fn spawn_repeated_at_other_node_is_same_run() {
    let postgres = Postgres::start().await;
    let one = Kennel::start(Options::on(&postgres.url())).await;
    let two = Kennel::start(Options::on(&postgres.url())).await;
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
    let (run, existing) = must("spawn", there.spawn_as(&run_id, spec()).await);
    assert!(existing && run.other_node.is_some(), "{run:?}");
    let other = there.spawn_as(&run_id, sh("true")).await;
    let complaint = complaint(&other.expect_err("another spec"));
    assert_eq!(complaint.reason, "SPEC_MISMATCH");
}

#[tokio::test(flavor = "multi_thread")]
async fn run_of_silent_node_is_unreachable_and_not_ended() {
    let postgres = Postgres::start().await;
    let mut one = Kennel::start(Options::on(&postgres.url())).await;
    let two = Kennel::start(Options::on(&postgres.url())).await;
    let mut there = two.client().await;
    let run = one.client().await.spawn(argv(&["sleep", "600"])).await;
    let run_id = must("spawn", run).run_id;
    // By its record.
    eventually_async("it runs", PATIENCE, async || {
        let run = must("get", two.client().await.get(&run_id).await);
        (run.state() == RunState::Running).then_some(())
    })
    .await;
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
        (vec!["ps"], "(node unreachable)"),
        (vec!["get", run_id.as_str()], "node not heard of since"),
    ] {
        let shown = run_to_end(two.cli(&words), PATIENCE).await;
        let text = String::from_utf8_lossy(&shown.stdout).into_owned();
        assert!(text.contains(said), "{text}");
    }
    one.launch_again().await;
    eventually_async("it is heard of again", PATIENCE, async || {
        let run = must("get", two.client().await.get(&run_id).await);
        let other = run.other_node.expect("it is another node's");
        (other.reachability() == NodeReachability::Reachable).then_some(())
    })
    .await;
}
