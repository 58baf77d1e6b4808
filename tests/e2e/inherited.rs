//! Environment and directory of the client itself: in each attempt of its command, and in no record.

use kennel_proto::pb::{self, RestartMode};
use kennel_tests::{Kennel, PATIENCE, SpecExt, complaint, eventually, fact, must, sh};
use std::{fs, path::Path};

fn inherited(var: &str, directory: &Path) -> pb::Inherited {
    pb::Inherited {
        vars: [("OWN", var), ("SET", "own")]
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .into(),
        cwd: Some(directory.display().to_string()),
        raw_cwd: None,
    }
}

async fn lines(ran: &Path, count: usize) -> Vec<String> {
    eventually("the lines of the command", PATIENCE, || {
        let text = fs::read_to_string(ran).unwrap_or_default();
        let lines: Vec<String> = text.lines().map(str::to_owned).collect();
        (lines.len() == count).then_some(lines)
    })
    .await
}

// promise: K-15
#[tokio::test(flavor = "multi_thread")]
async fn next_attempt_has_the_inherited_environment() {
    let kennel = Kennel::on_sqlite().await;
    let mut client = kennel.client().await;
    let dir = must("its path", kennel.scratch().canonicalize());
    let (ran, go) = (dir.join("ran"), dir.join("go"));
    let script =
        "echo \"$OWN $SET $PWD\" >>ran; until rm go 2>/dev/null; do sleep 0.02; done; exit 3";
    let mut spec = sh(script).env("SET", "set");
    spec.cwd = None;
    spec.inherited = Some(inherited("hush-hush", &dir));
    spec.restart = Some(pb::RestartPolicy {
        mode: RestartMode::Always.into(),
        ..pb::RestartPolicy::default()
    });
    let run = must("spawn", client.spawn(spec.clone()).await);
    let line = format!("hush-hush set {}", dir.display());
    assert_eq!(lines(&ran, 1).await, [line.as_str()]);
    kennel.kill_server();
    must("a file", fs::write(&go, ""));
    assert_eq!(lines(&ran, 2).await, [line.as_str(); 2]);

    let mut client = kennel.client().await;
    must("abort", client.abort(&run.run_id).await);
    let ended = must("wait", client.ended(&run.run_id).await);
    let recorded = ended.spec.expect("a spec").inherited.expect("it is set");
    let names: Vec<_> = recorded
        .vars
        .iter()
        .map(|(n, v)| (n.as_str(), v.as_str()))
        .collect();
    assert_eq!(
        (names, recorded.cwd),
        (vec![("OWN", "")], spec.inherited.expect("set").cwd)
    );
    for file in must("a directory", fs::read_dir(kennel.data_dir())).flatten() {
        if file.path().is_file() {
            let bytes = must("it is read", fs::read(file.path()));
            let has_value = bytes.windows(9).any(|part| part == b"hush-hush");
            assert!(!has_value, "{} has the value", file.path().display());
        }
    }

    let again = |vars: &[(&str, &str)]| pb::RestartRequest {
        run_id: run.run_id.clone(),
        env: vars
            .iter()
            .map(|(n, v)| ((*n).to_owned(), (*v).to_owned()))
            .collect(),
        ..pb::RestartRequest::default()
    };
    let refused = client.restart_with(again(&[("SET", "other")])).await;
    let refused = refused.expect_err("a value is missing");
    assert_eq!(complaint(&refused).reason, "SPEC_INCOMPLETE");
    assert_eq!(fact(&refused, "missing"), "env.OWN");
    let second = client
        .restart_with(again(&[("SET", "other"), ("OWN", "new")]))
        .await;
    let second = must("restart", second);
    let line = format!("new other {}", dir.display());
    assert_eq!(lines(&ran, 3).await[2], line);
    must("abort", client.abort(&second.run_id).await);
    must("wait", client.ended(&second.run_id).await);
}
