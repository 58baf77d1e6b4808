//! The configuration file of `kennel serve`.

use kennel_proto::pb::{self, RunKind};
use kennel_tests::{
    Client, Kennel, Options, PATIENCE, RunExt, SpecExt, cases,
    client::{complaint, duration},
    must, new_run_id, programs, sh,
    shell::run_to_end,
};
use std::{
    fs,
    time::{Duration, Instant},
};
use tempfile::TempDir;

/// File of the first start.
const FIRST: &str = r#"
log_format = "json"
default_grace = ["200ms", "terminal=50ms"]
"#;

cases! {
    fn settings_of_a_file_are_in_force(mut Node::start().await);
    settings_of_the_file_outlast_its_edit,
    node_gives_grace_where_spec_names_none,
    stop_steps_fit_grace_of_first_spawn,
    node_gives_limits_that_spec_does_not_have,
}

/// A server with a configuration file.
struct Node {
    kennel: Kennel,
    dir: TempDir,
}

impl Node {
    async fn start() -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let file = dir.path().join("kennel.toml");
        fs::write(&file, FIRST).expect("own directory");
        let options = Options {
            env: vec![("KENNEL_CONFIG".into(), file.display().to_string())],
            ..Options::default()
        };
        let kennel = Kennel::start(options).await;
        Self { kennel, dir }
    }

    /// Writes the file; a server reads it when its keeper is started again.
    fn write(&self, text: &str) {
        fs::write(self.dir.path().join("kennel.toml"), text).expect("own directory");
    }

    fn set_grace(&self, grace: &str) {
        self.write(&format!("default_grace = {grace}\n"));
    }

    /// Starts keeper and server again, and returns a client.
    async fn restart(&mut self) -> Client {
        self.kennel.terminate(PATIENCE).await;
        self.kennel.restart().await;
        self.kennel.client().await
    }
}

// promise: C-50
async fn settings_of_the_file_outlast_its_edit(node: &mut Node) {
    let ready = r#""message":"ready""#;
    node.kennel.logs(ready, 1).await;
    // A server replaced during an edit keeps the old settings.
    for edited in ["log_format = [broken", "log_format = \"text\""] {
        node.write(edited);
        node.kennel.replace_server().await;
    }
    node.kennel.logs(ready, 3).await;
}

/// The graces of the first file are in force.
// promise: L-2a
async fn node_gives_grace_where_spec_names_none(node: &mut Node) {
    let mut client = node.kennel.client().await;
    let naughty = programs::naughty();
    let stubborn = sh(&format!(
        "trap '' TERM HUP; exec {} sleep",
        naughty.display()
    ));
    let ms = Duration::from_millis;
    for (spec, grace) in [
        (stubborn.clone(), ms(200)),
        (stubborn.clone().kind_of(RunKind::Job), ms(200)),
        (
            stubborn.clone().on_terminal(pb::Terminal::default()),
            ms(50),
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

    // A repeated Spawn matches, whatever the node's default grace is by then.
    let id = new_run_id();
    let (_, existing) = must("spawn", client.spawn_as(&id, stubborn.clone()).await);
    assert!(!existing);
    node.set_grace(r#""30s""#);
    let mut client = node.restart().await;
    let (run, existing) = must("spawn", client.spawn_as(&id, stubborn.clone()).await);
    assert!(existing);
    assert_eq!(run.grace, Some(duration(ms(200))), "{run:?}");
    let run = must("spawn", client.spawn(stubborn).await);
    assert_eq!(run.grace, Some(duration(ms(30_000))), "{run:?}");
    let soon = client.abort_with(&run.run_id, Some(ms(20)), pb::AbortWait::TreeEmpty);
    must("abort", soon.await);
}

// promise: L-2b
async fn node_gives_limits_that_spec_does_not_have(node: &mut Node) {
    node.write("[defaults.limits]\ncore = 0\nnofile = \"64:128\"\njob = { nofile = 50 }\n");
    let mut client = node.restart().await;
    let spec = sh("ulimit -c; ulimit -Sn; ulimit -Hn");
    let mut own = spec.clone();
    own.limits = Some(pb::RunLimits {
        rlimits: vec![pb::Rlimit {
            resource: pb::RlimitResource::Nofile.into(),
            soft: Some(70),
            hard: None,
        }],
        ..pb::RunLimits::default()
    });
    for (spec, text, given) in [
        (
            spec.clone().kind_of(RunKind::Heartbeat),
            "0\n64\n128\n",
            vec!["core", "nofile"],
        ),
        (
            spec.kind_of(RunKind::Job),
            "0\n50\n50\n",
            vec!["nofile", "core"],
        ),
        (own, "0\n70\n70\n", vec!["core"]),
    ] {
        let run = must("spawn", client.spawn(spec).await);
        client.hear_text(&run.run_id, text).await;
        let limits = run.spec.and_then(|spec| spec.limits).unwrap_or_default();
        let mut names = limits.from_node;
        names.sort();
        let mut given = given;
        given.sort_unstable();
        assert_eq!(names, given);
        let shown = run_to_end(node.kennel.cli(&["get", &run.run_id]), PATIENCE).await;
        let shown = String::from_utf8_lossy(&shown.stdout).into_owned();
        assert!(shown.contains("core=0:0 (from the node)"), "{shown}");
    }
}

/// A default of the node decides when the run begins, and never for a run that exists.
// promise: RW-102
async fn stop_steps_fit_grace_of_first_spawn(node: &mut Node) {
    node.set_grace(r#""20s""#);
    let mut client = node.restart().await;
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
    node.set_grace(r#""5s""#);
    node.kennel.kill_service_after(|| {});
    node.kennel.wait_for_exit(PATIENCE).await;
    node.kennel.restart().await;
    let mut client = node.kennel.client().await;
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
