//! Names and keys of runs: at two nodes of a database, over the death of a server, and by the command line.

use kennel_proto::pb::{self, RunState};
use kennel_tests::{
    Client, Kennel, Options, PATIENCE, Postgres, SpecExt, argv, complaint, eventually_async, fact,
    must, sh,
    shell::{run_to_end, text},
};
use tonic::{Code, Status};

async fn spawn(
    client: &mut Client,
    spec: pb::RunSpec,
    on: pb::OnNameConflict,
) -> Result<pb::SpawnResponse, Status> {
    let request = pb::SpawnRequest {
        spec: Some(spec),
        on_name_conflict: on.into(),
        ..pb::SpawnRequest::default()
    };
    Ok(client.process.spawn(request).await?.into_inner())
}

fn named() -> pb::RunSpec {
    pb::RunSpec {
        name: "db".to_owned(),
        ..argv(&["sleep", "600"])
    }
}

// promise: K-5
#[tokio::test(flavor = "multi_thread")]
async fn name_is_unique_across_nodes() {
    let postgres = Postgres::start().await;
    let mut one = Kennel::start(Options::on(&postgres.url())).await;
    let two = Kennel::start(Options::on(&postgres.url())).await;
    let (mut here, mut there) = (one.client().await, two.client().await);
    let fail = pb::OnNameConflict::Fail;
    let spawned = must("spawn", spawn(&mut here, named(), fail).await);
    let run_id = spawned.run.expect("a run").run_id;

    let refused = spawn(&mut there, named(), fail).await.expect_err("taken");
    let why = complaint(&refused);
    assert_eq!(
        (why.code, why.reason.as_str()),
        (Code::AlreadyExists, "NAME_TAKEN")
    );
    assert_eq!(fact(&refused, "run_id"), run_id);
    let other = named().label("team", "blue");
    let there_too = spawn(&mut there, other, pb::OnNameConflict::Return).await;
    let returned = must("spawn", there_too);
    assert_eq!(returned.run.as_ref().expect("a run").run_id, run_id);
    assert_eq!(returned.differing_fields, ["spec.labels"]);
    assert!(returned.existing);

    let logged = must("audit log", here.logged_requests(&run_id).await);
    let has_name =
        |request: &pb::AuditRequest| request.asked.get("name").is_some_and(|name| name == "db");
    assert!(logged.iter().any(has_name), "{logged:?}");
    let got = must("get", there.get("db").await);
    assert_eq!((&got.run_id, got.state()), (&run_id, RunState::Running));
    let table = run_to_end(one.cli(&["ps"]), PATIENCE).await;
    let table = text(&table);
    assert!(table.contains("NAME") && table.contains(" db "), "{table}");

    one.replace_server().await;
    let ended = run_to_end(one.cli(&["abort", "db"]), PATIENCE).await;
    assert!(ended.status.success(), "{ended:?}");
    let mut here = one.client().await;
    let first = must("get", here.get(&run_id).await);
    assert_eq!(first.state(), RunState::Cancelled);
    one.logs(" run_name=db", 1).await;
    // Reused, the name means the newest run.
    let second = must("spawn", spawn(&mut there, named(), fail).await);
    let second = second.run.expect("a run").run_id;
    assert_eq!(must("get", there.get("db").await).run_id, second);
    assert_eq!(must("abort", there.abort("db").await).run_id, second);
    let missing = there.abort("cache").await.expect_err("no such name");
    assert_eq!(complaint(&missing).reason, "RUN_NOT_FOUND");
    let typed = run_to_end(one.cli(&["get", "name:cache"]), PATIENCE).await;
    assert!(
        String::from_utf8_lossy(&typed.stderr).contains("cache"),
        "{typed:?}"
    );
}

// promise: K-6, K-15
#[tokio::test(flavor = "multi_thread")]
async fn key_runs_once_across_shells() {
    let mut kennel = Kennel::on_sqlite().await;
    let ran = kennel.scratch().join("ran");
    let script = format!(
        "echo ran >> {}; echo $A $OF_SHELL $PWD done; exit 7",
        ran.display()
    );
    let call = |kennel: &Kennel, flags: &[&str], of_shell: &str, directory: &str| {
        let words = [&["run", "--key", "order 4711"], flags].concat();
        let mut command = kennel.cli(&[&words[..], &["--", "sh", "-c", &script]].concat());
        command.env("OF_SHELL", of_shell).current_dir(directory);
        run_to_end(command, PATIENCE)
    };
    for (of_shell, directory) in [("1", "/"), ("2", "/tmp")] {
        let ended = call(&kennel, &["--env", "A=1"], of_shell, directory).await;
        assert_eq!(ended.status.code(), Some(7), "{ended:?}");
        assert_eq!(text(&ended), "1 1 / done");
        kennel.replace_server().await;
    }
    for (flags, field) in [
        (["--env", "A=2"].as_slice(), "another spec: --env\n"),
        (&["--env", "A=1", "--cwd", "/"], "another spec: --cwd\n"),
    ] {
        let refused = call(&kennel, flags, "1", "/").await;
        let refused = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(refused.contains(field), "{refused}");
    }
    let mut client = kennel.client().await;
    let request = pb::SpawnRequest {
        request_key: "order 4711".to_owned(),
        spec: Some(sh("exit 0")),
        ..pb::SpawnRequest::default()
    };
    let refused = client.process.spawn(request).await.expect_err("another");
    assert_eq!(complaint(&refused).reason, "SPEC_MISMATCH");
    let fields = fact(&refused, "fields");
    assert!(
        fields.split(' ').any(|path| path == "spec.argv.args"),
        "{fields}"
    );
}

/// A name keeps no live process out of the record.
// promise: K-8
#[tokio::test(flavor = "multi_thread")]
async fn lost_name_is_logged_with_its_holder() {
    let postgres = Postgres::start().await;
    let one = Kennel::start(Options::on(&postgres.url())).await;
    let two = Kennel::start(Options::on(&postgres.url())).await;
    let (mut here, mut there) = (one.client().await, two.client().await);
    let fail = pb::OnNameConflict::Fail;
    let lost = must("spawn", spawn(&mut here, named(), fail).await);
    let lost = lost.run.expect("a run").run_id;
    // Otherwise the run's next write detects the loss before the other spawn.
    let is_running = async || {
        let state = postgres.psql("SELECT state FROM runs").await;
        (state == "running").then_some(())
    };
    eventually_async("it is recorded as running", PATIENCE, is_running).await;
    postgres
        .psql(&format!("DELETE FROM runs WHERE run_id = '{lost}'"))
        .await;
    let holder = must("spawn", spawn(&mut there, named(), fail).await);
    let holder = holder.run.expect("a run").run_id;
    must(
        "annotate",
        here.annotate(&lost, &[("a", "b")], &[], None).await,
    );
    one.logs("NAME_LOST", 1).await;
    assert!(one.log().contains(&format!("by={holder}")), "{}", one.log());
    let stored = format!("SELECT count(*) FROM runs WHERE run_id = '{lost}' AND name IS NULL");
    assert_eq!(postgres.psql(&stored).await, "1");
    for run_id in [lost, holder] {
        must("abort", here.abort(&run_id).await);
    }
}
