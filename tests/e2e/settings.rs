//! The configuration file of `kennel serve`.

use kennel_proto::pb::{self, RunKind};
use kennel_tests::{
    Kennel, Options, PATIENCE, RunExt, SpecExt,
    client::{complaint, duration},
    must, new_run_id, programs, sh,
};
use std::{
    fs,
    time::{Duration, Instant},
};

#[tokio::test(flavor = "multi_thread")]
async fn settings_of_the_file_outlast_its_edit() {
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("kennel.toml");
    fs::write(&file, "log_format = \"json\"\n").expect("written");
    let options = Options {
        env: vec![("KENNEL_CONFIG".into(), file.display().to_string())],
        ..Options::default()
    };
    let mut kennel = Kennel::start(options).await;
    let ready = |kennel: &Kennel| kennel.log().matches(r#""message":"ready""#).count();
    assert_eq!(ready(&kennel), 1, "{}", kennel.log());
    // A server that starts while the file is being edited is unaffected.
    for edited in ["log_format = [broken", "log_format = \"text\""] {
        fs::write(&file, edited).expect("written");
        kennel.replace_server().await;
    }
    assert_eq!(ready(&kennel), 3, "{}", kennel.log());
}

#[tokio::test(flavor = "multi_thread")]
async fn node_gives_grace_where_spec_names_none() {
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("kennel.toml");
    let set = |graces: &str| fs::write(&file, format!("default_grace = {graces}\n"));
    set(r#"["600ms", "terminal=100ms"]"#).expect("written");
    let options = Options {
        env: vec![("KENNEL_CONFIG".into(), file.display().to_string())],
        ..Options::default()
    };
    let mut kennel = Kennel::start(options).await;
    let mut client = kennel.client().await;
    let naughty = programs::naughty();
    let stubborn = sh(&format!(
        "trap '' TERM HUP; exec {} sleep",
        naughty.display()
    ));
    let ms = Duration::from_millis;
    for (spec, grace) in [
        (stubborn.clone(), ms(600)),
        (stubborn.clone().kind_of(RunKind::Job), ms(600)),
        (
            stubborn.clone().on_terminal(pb::Terminal::default()),
            ms(100),
        ),
        (stubborn.clone().grace(ms(20)), ms(20)),
    ] {
        let run = must("spawn", client.spawn(spec).await);
        let stop = run.spec.as_ref().and_then(|spec| spec.stop.clone());
        let shown = stop.and_then(|stop| stop.grace);
        let wanted = Some(duration(grace));
        assert_eq!((shown, run.grace), (wanted, wanted));
        client.hear_text(&run.run_id, "up").await;
        let began = Instant::now();
        let ended = must("abort", client.abort(&run.run_id).await);
        assert!(began.elapsed() >= grace, "{:?}", began.elapsed());
        assert_eq!(ended.signal().as_deref(), Some("SIGKILL"));
    }

    // A Spawn that is repeated is the same one, whatever the node gives by then.
    let id = new_run_id();
    let (_, existing) = must("spawn", client.spawn_as(&id, stubborn.clone()).await);
    assert!(!existing);
    set("\"30s\"").expect("written");
    kennel.terminate(PATIENCE).await;
    kennel.restart().await;
    let mut client = kennel.client().await;
    let (run, existing) = must("spawn", client.spawn_as(&id, stubborn.clone()).await);
    assert!(existing);
    assert_eq!(run.grace, Some(duration(ms(600))), "{run:?}");
    let run = must("spawn", client.spawn(stubborn).await);
    assert_eq!(run.grace, Some(duration(ms(30_000))), "{run:?}");
}

/// A default of the node decides when the run begins, and never for a run that exists.
#[tokio::test(flavor = "multi_thread")]
async fn stop_steps_fit_grace_of_first_spawn() {
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("kennel.toml");
    let set = |grace: &str| fs::write(&file, format!("default_grace = \"{grace}\"\n"));
    set("20s").expect("written");
    let options = Options {
        env: vec![("KENNEL_CONFIG".into(), file.display().to_string())],
        ..Options::default()
    };
    let mut kennel = Kennel::start(options).await;
    let mut client = kennel.client().await;
    let mut spec = sh("exec sleep 1000").kind_of(RunKind::Service);
    spec.set_recovery(pb::RecoveryPolicy::Adopt);
    spec.stop.get_or_insert_default().steps = vec![pb::StopAction {
        action: Some(pb::stop_action::Action::Signal("SIGUSR1".into())),
        wait: Some(duration(Duration::from_secs(8))),
    }];
    let [live, ended, new] = [(); 3].map(|()| new_run_id());
    for id in [&live, &ended] {
        must("spawn", client.spawn_as(id, spec.clone()).await);
    }
    must("abort", client.abort(&ended).await);
    set("5s").expect("written");
    kennel.kill_service_after(|| {});
    kennel.wait_for_exit(PATIENCE).await;
    kennel.restart().await;
    let mut client = kennel.client().await;
    for id in [&live, &ended] {
        let (run, existing) = must("repeat", client.spawn_as(id, spec.clone()).await);
        assert!(existing, "{run:?}");
        assert_eq!(run.grace, Some(duration(Duration::from_secs(20))));
    }
    let refused = client.spawn_as(&new, spec.clone()).await;
    let refused = complaint(&refused.expect_err("5 s are not enough"));
    assert_eq!(refused.fields, ["spec.stop.steps"]);
    let again = must("restart", client.restart(&ended, None).await);
    assert_eq!(again.grace, Some(duration(Duration::from_secs(20))));
    for id in [&live, &again.run_id] {
        must("abort", client.abort(id).await);
    }
}
