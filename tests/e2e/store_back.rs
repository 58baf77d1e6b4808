//! The store comes back as a copy that lacks the last rows, while runs continue: nothing is killed, lost, run twice or
//! retracted.

use kennel_proto::pb::{self, AbortWait, RestartMode, RunKind, RunState};
use kennel_tests::{
    Client, Footprint, Kennel, Options, PATIENCE, Postgres, RunExt, STORE_PATIENCE, SpecExt,
    complaint, must, new_run_id, procfs::Proc, sh, within,
};
use std::{fs, path::Path};

/// Returns a script that counts until the file is there, then exits with 3.
fn count_until(go: &Path) -> String {
    let go = go.display();
    format!("echo up; i=0; until [ -e {go} ]; do i=$((i+1)); echo $i; sleep 0.05; done; exit 3")
}

/// Fate of the server meanwhile.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Server {
    Lives,
    /// SIGKILL, when the old store is gone and the new one is not there.
    Dies,
}

// promise: R-53, R-53a
#[tokio::test(flavor = "multi_thread")]
async fn restored_copy_without_last_rows_loses_nothing() {
    Box::pin(goes_back(Server::Lives)).await;
}

// promise: R-53
#[tokio::test(flavor = "multi_thread")]
async fn outdated_copy_with_server_death_loses_nothing() {
    Box::pin(goes_back(Server::Dies)).await;
}

/// Runs that are missing from the copy, or have an older state there.
struct Scene {
    go: std::path::PathBuf,
    /// Live runs, as last seen.
    live: Vec<pb::Run>,
    /// Ended runs, with their reported ends.
    ended: Vec<pb::Run>,
    counting: String,
    paused: String,
    again: String,
    unborn: String,
    once: (String, pb::RunSpec),
}

async fn sleeper(client: &mut Client) -> pb::Run {
    let run = must("spawn", client.spawn(sh("echo up; exec sleep 300")).await);
    client.hear_up(&run.run_id).await;
    run
}

async fn play(kennel: &Kennel, client: &mut Client, postgres: &Postgres) -> Scene {
    let old = sleeper(client).await;
    let paused = sleeper(client).await;
    let victim = sleeper(client).await;
    let always = pb::RestartPolicy {
        mode: RestartMode::Always.into(),
        ..pb::RestartPolicy::default()
    };
    let again = sh("echo up; exec sleep 300")
        .restart(always)
        .kind_of(RunKind::Service);
    let again = must("spawn", client.spawn(again).await);
    client.hear_up(&again.run_id).await;

    postgres.copy().await;

    let go = kennel.scratch().join("go");
    let counting = must("spawn", client.spawn(sh(&count_until(&go))).await);
    client.hear_up(&counting.run_id).await;
    must("pause", client.pause(&paused.run_id).await);
    let again = must("restart", client.restart(&again.run_id, Some(1)).await);
    assert_eq!(again.attempt().number, 2);
    let victim = must("abort", client.abort(&victim.run_id).await);
    let once = (new_run_id(), sh("exit 4"));
    must("spawn", client.spawn_as(&once.0, once.1.clone()).await);
    let ended = must("wait", client.ended(&once.0).await);
    assert_eq!(ended.code(), Some(4));
    let unborn = new_run_id();
    must(
        "abort",
        client.abort_with(&unborn, None, AbortWait::TreeEmpty).await,
    );
    let mut live = Vec::new();
    for run in [&old, &paused, &again, &counting] {
        live.push(must("get", client.get(&run.run_id).await));
    }
    Scene {
        go,
        live,
        ended: vec![victim, ended],
        counting: counting.run_id,
        paused: paused.run_id,
        again: again.run_id,
        unborn,
        once,
    }
}

async fn goes_back(server: Server) {
    let mut postgres = Postgres::start().await;
    let mut kennel = Kennel::start(Options::on(&postgres.url())).await;
    let mut client = kennel.client().await;
    let mut scene = Box::pin(play(&kennel, &mut client, &postgres)).await;
    let before = client.server_info().await.expect("it answers").generation;
    let all = "SELECT count(*) FROM runs";
    comes_to_say(&postgres, all, "7").await;

    postgres.crash().await;
    if server == Server::Dies {
        kennel.replace_server().await;
    }
    postgres.fail_over().await;
    let mut client = kennel.client().await;
    // No generation is used again.
    let info = client.has_node_after(before).await;
    check(&mut client, &scene).await;
    comes_to_say(&postgres, all, "7").await;
    // The node row has this generation, and no row a later one.
    let present = format!(
        "SELECT count(*) FROM nodes WHERE generation = {}",
        info.generation
    );
    assert_eq!(postgres.psql(&present).await, "1");
    let later = format!(
        "SELECT count(*) FROM runs WHERE generation > {}",
        info.generation
    );
    assert_eq!(postgres.psql(&later).await, "0");
    let attempt = format!("SELECT attempt FROM runs WHERE run_id = '{}'", scene.again);
    assert_eq!(postgres.psql(&attempt).await, "2");
    Box::pin(go_on(&mut client, &mut scene)).await;
    let open = "SELECT count(*) FROM runs WHERE end_reason IS NULL";
    comes_to_say(&postgres, open, "0").await;
}

/// Waits for a row: a change that a slow store takes late comes after the answer to the client.
async fn comes_to_say(postgres: &Postgres, sql: &str, wanted: &str) {
    let mut said = String::new();
    let reported = async {
        while said != wanted {
            said = postgres.psql(sql).await;
        }
    };
    let reported = tokio::time::timeout(STORE_PATIENCE, reported).await;
    assert!(reported.is_ok(), "{sql}: {said}");
}

/// Checks that everything is as reported.
async fn check(client: &mut Client, scene: &Scene) {
    let all = pb::RunFilter::default();
    let listed = must("list", client.list_all(all, 50).await);
    for was in scene.live.iter().chain(&scene.ended) {
        let got = must("get", client.get(&was.run_id).await);
        let in_list = listed.iter().find(|run| run.run_id == was.run_id);
        let in_list = in_list.expect("it is listed");
        for is in [&got, in_list] {
            assert_eq!(is.state(), was.state(), "{was:?}");
            assert_eq!(is.attempt().number, was.attempt().number, "{was:?}");
            assert_eq!(is.attempt().pid, was.attempt().pid, "{was:?}");
            assert_eq!(is.reason(), was.reason(), "{was:?}");
            assert_eq!(is.code(), was.code(), "{was:?}");
        }
    }
    for run in &scene.live {
        let leader = Proc::read(run.attempt().pid);
        assert!(leader.is_some_and(|leader| leader.is_alive()), "{run:?}");
    }
    let (again, existing) = must(
        "again",
        client.spawn_as(&scene.once.0, scene.once.1.clone()).await,
    );
    assert!(existing, "it is not run twice");
    assert_eq!(again.code(), Some(4));
    let fenced = client.spawn_as(&scene.unborn, sh("exit 0")).await;
    assert_eq!(complaint(&fenced.expect_err("fenced")).reason, "RUN_FENCED");
}

/// Checks that running runs obey, and end with their own code and all their output.
async fn go_on(client: &mut Client, scene: &mut Scene) {
    fs::write(&scene.go, "").expect("written");
    let ended = within("it ends", PATIENCE, client.ended(&scene.counting)).await;
    assert_eq!(must("wait", ended).code(), Some(3));
    let heard = must("stream", client.hear_all(&scene.counting, 0).await);
    let text = heard.text();
    let numbers = text.lines().skip(1).map(str::parse::<usize>);
    for (place, number) in numbers.enumerate() {
        assert_eq!(number, Ok(place + 1), "a line is missing or doubled");
    }
    assert_eq!(text.lines().next(), Some("up"));
    assert_eq!(
        heard.stations().iter().filter(|s| **s == "ended").count(),
        1
    );
    let resumed = must("resume", client.resume(&scene.paused).await);
    assert_eq!(resumed.state(), RunState::Running);
    let again = must("restart", client.restart(&scene.again, Some(2)).await);
    assert_eq!(again.attempt().number, 3);
    scene.live.retain(|run| run.run_id != scene.counting);
    for run in &scene.live {
        let run = must("get", client.get(&run.run_id).await);
        let print = Footprint::of_run(&run);
        let aborted = must("abort", client.abort(&run.run_id).await);
        assert_eq!(aborted.reason(), "aborted");
        print.assert_nothing_left();
    }
    must("spawn", client.spawn(sh("exit 0")).await);
}
