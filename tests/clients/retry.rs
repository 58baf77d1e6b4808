//! The retry policy that Kennel ships, in a client with it and in one without.

use super::{CLIENT_PATIENCE, script, stubs};
use kennel_tests::{
    Kennel, eventually, must, programs, sh,
    shell::{finish, text},
};
use std::{
    fs,
    path::Path,
    process::{Child, Command, Stdio},
};

/// Starts a client that waits for the run; it writes into the file when the server has its call.
fn waiter(kennel: &Kennel, stubs: &Path, run: &str, policy: Option<&Path>, out: &Path) -> Child {
    let mut client = Command::new(programs::python());
    client
        .arg(script("retry.py"))
        .args([&kennel.address(), run])
        .args(policy)
        .env("PYTHONPATH", stubs)
        .stdin(Stdio::null())
        .stdout(must("a file", fs::File::create(out)))
        .stderr(Stdio::piped());
    must("a client", client.spawn())
}

// promise: O-45
#[tokio::test(flavor = "multi_thread")]
async fn retry_policy_carries_call_over_killed_server() {
    let mut kennel = Kennel::on_sqlite().await;
    let stubs = stubs(&kennel).await;
    let mut client = kennel.client().await;
    let go = kennel.scratch().join("go");
    let waits = format!("until [ -e '{}' ]; do sleep 0.02; done", go.display());
    let run = must("spawn", client.spawn(sh(&waits)).await).run_id;
    let policy = programs::repository().join("proto/service_config.json");
    let mut clients = Vec::new();
    for (name, policy) in [("with", Some(&*policy)), ("without", None)] {
        let out = kennel.scratch().join(name);
        let child = waiter(&kennel, &stubs, &run, policy, &out);
        clients.push((out, child));
    }
    for (out, _) in &clients {
        eventually("the server has the call", CLIENT_PATIENCE, || {
            let printed = fs::read_to_string(out).unwrap_or_default();
            printed.starts_with("waiting\n").then_some(())
        })
        .await;
    }
    kennel.replace_server().await;
    must("go", fs::write(&go, ""));
    let mut ends = Vec::new();
    for (out, child) in clients {
        let ended = finish(child, "a client", CLIENT_PATIENCE).await;
        assert!(ended.status.success(), "{}", text(&ended));
        let printed = must("what it printed", fs::read_to_string(out));
        ends.push(printed.replace("waiting\n", "").trim().to_owned());
    }
    assert_eq!(ends, ["RUN_STATE_SUCCEEDED", "UNAVAILABLE"]);
}
