//! Child runs: the effect of their parent's end, and their listing. Restarted parents and the next server:
//! `supervisor/tests/runs/children.rs`.

use kennel_proto::pb::{self, OnParentEnd, RunState};
use kennel_tests::{
    Client, Footprint, Kennel, Options, PATIENCE, RunExt, SpecExt, complaint, must, new_run_id, sh,
    shell::run_to_end,
};
use std::time::Duration;
use tonic::Code;

fn sleeper() -> pb::RunSpec {
    sh("exec sleep 1000")
}

fn below(parent: &str, spec: pb::RunSpec, on_end: OnParentEnd) -> pb::RunSpec {
    pb::RunSpec {
        parent: Some(pb::Parent {
            run_id: parent.to_owned(),
            on_end: on_end.into(),
        }),
        ..spec
    }
}

async fn spawn(client: &mut Client, spec: pb::RunSpec) -> String {
    must("spawn", client.spawn(spec).await).run_id
}

// promise: RW-80, RW-82, RW-83
#[tokio::test(flavor = "multi_thread")]
async fn children_end_with_their_parent() {
    let kennel = Kennel::start(Options::default()).await;
    let mut client = kennel.client().await;
    let parent = spawn(&mut client, sleeper()).await;
    // A stubborn child gets its own stop steps and no restart.
    let restarted = pb::RestartPolicy {
        mode: pb::RestartMode::Always.into(),
        ..pb::RestartPolicy::default()
    };
    let stubborn = pb::RunSpec {
        restart: Some(restarted),
        ..sh("trap '' TERM; while :; do sleep 0.05; done").grace(Duration::from_millis(200))
    };
    let child = spawn(&mut client, below(&parent, stubborn, OnParentEnd::End)).await;
    let grandchild = below(&child, sleeper(), OnParentEnd::Unspecified);
    let grandchild = spawn(&mut client, grandchild).await;
    let keeper = below(&parent, sleeper(), OnParentEnd::Keep);
    let kept = spawn(&mut client, keeper).await;
    must("abort", client.abort(&parent).await);
    for (run_id, signal) in [(&child, "SIGKILL"), (&grandchild, "SIGTERM")] {
        let run = must("ended", client.ended(run_id).await);
        assert_eq!(
            (run.state(), run.reason()),
            (RunState::Cancelled, "parent_ended")
        );
        assert_eq!(run.signal().as_deref(), Some(signal));
        Footprint::of_run(&run).assert_nothing_left();
    }
    let kept = must("get", client.get(&kept).await);
    assert_eq!(kept.state(), RunState::Running);
    let parent_of_kept = kept
        .spec
        .clone()
        .and_then(|spec| spec.parent)
        .expect("its parent");
    assert_eq!(parent_of_kept.run_id, parent);
    assert_eq!(parent_of_kept.on_end(), OnParentEnd::Keep);
    must("abort", client.abort(&kept.run_id).await);
    assert_parent_is_a_live_run(&kennel).await;
    assert_command_line_shows_children(&kennel).await;
}

async fn assert_parent_is_a_live_run(kennel: &Kennel) {
    let mut client = kennel.client().await;
    let over = spawn(&mut client, sh("exit 0")).await;
    must("ended", client.ended(&over).await);
    let refused = client
        .spawn(below(&over, sleeper(), OnParentEnd::Keep))
        .await;
    let refused = refused.expect_err("it has ended");
    assert_eq!(refused.code(), Code::FailedPrecondition);
    assert_eq!(complaint(&refused).reason, "RUN_ENDED");
    let absent = new_run_id();
    let refused = client
        .spawn(below(&absent, sleeper(), OnParentEnd::End))
        .await;
    let refused = refused.expect_err("it is not there");
    assert_eq!(refused.code(), Code::NotFound);
    assert_eq!(complaint(&refused).reason, "RUN_NOT_FOUND");
    // A run cannot be its own parent.
    let own = client
        .spawn_as(&absent, below(&absent, sleeper(), OnParentEnd::End))
        .await;
    assert_eq!(own.expect_err("not there yet").code(), Code::NotFound);
    let refused = client
        .spawn(below("nonsense", sleeper(), OnParentEnd::End))
        .await;
    let refused = refused.expect_err("no id");
    assert_eq!(complaint(&refused).reason, "INVALID_FIELD");
    // A repeated Spawn is answered after its parent ended.
    let parent = spawn(&mut client, sleeper()).await;
    let spec = below(&parent, sh("exit 0"), OnParentEnd::End);
    let child = must("spawn", client.spawn_as(&absent, spec.clone()).await);
    must("ended", client.ended(&absent).await);
    must("abort", client.abort(&parent).await);
    let again = must("spawn again", client.spawn_as(&absent, spec).await);
    assert_eq!(again.0.run_id, child.0.run_id);
    assert!(again.1, "it is the same run");
    let restart = pb::RestartRequest {
        run_id: absent,
        ..pb::RestartRequest::default()
    };
    let refused = client.restart_with(restart).await;
    let refused = refused.expect_err("its parent has ended");
    assert_eq!(complaint(&refused).reason, "RUN_ENDED");
}

async fn assert_command_line_shows_children(kennel: &Kennel) {
    let mut client = kennel.client().await;
    let parent = spawn(&mut client, sleeper()).await;
    let words = ["spawn", "--parent", &parent[16..], "--", "sleep", "1000"];
    let spawned = run_to_end(kennel.cli(&words), PATIENCE).await;
    assert!(spawned.status.success(), "{spawned:?}");
    let child = String::from_utf8_lossy(&spawned.stdout).trim().to_owned();
    let other = spawn(&mut client, sleeper()).await;
    let out = async |words: &[&str]| {
        let ran = run_to_end(kennel.cli(words), PATIENCE).await;
        assert!(ran.status.success(), "{ran:?}");
        String::from_utf8_lossy(&ran.stdout).into_owned()
    };
    let listed = out(&["ps", "--tree"]).await;
    let ids = |text: &str| -> Vec<String> {
        let lines = text.lines().skip(1);
        lines
            .map(|line| {
                line.split_inclusive(' ')
                    .take_while(|word| *word == " ")
                    .collect::<String>()
                    + line.split_whitespace().next().unwrap_or_default()
            })
            .collect()
    };
    assert_eq!(
        ids(&listed),
        [other.clone(), parent.clone(), format!("  {child}")]
    );
    assert_eq!(
        out(&["ps", "-q", "--parent", &parent]).await,
        format!("{child}\n")
    );
    let tree = out(&["tree", &parent]).await;
    let last = tree.lines().last().unwrap_or_default();
    assert_eq!(last, format!("run {child} RUNNING sleep 1000"), "{tree}");
    assert!(out(&["get", &child]).await.contains(&parent));
    // A child whose parent is not in the list is not indented.
    let alone = out(&["ps", "--tree", "--parent", &parent]).await;
    assert_eq!(ids(&alone).concat(), child);
    let filter = pb::RunFilter {
        parent_run_id: parent.clone(),
        ..pb::RunFilter::default()
    };
    let children = must("list", client.list_all(filter, 10).await);
    assert_eq!(children.len(), 1);
    assert_eq!(children[0].run_id, child);
}
