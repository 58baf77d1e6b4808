//! The first signal of a stop, where the spec gives it.

use crate::play_scenes;
use kennel_proto::pb;
use kennel_tests::{Kennel, RunExt, SpecExt, client::complaint, must, sh};
use std::time::Duration;

/// Obeys SIGINT alone, and reports it.
const OBEYS_INT: &str =
    "trap 'echo interrupted; exit 7' INT; trap '' TERM; echo up; while :; do sleep 0.05; done";

#[tokio::test(flavor = "multi_thread")]
async fn stop_signal_is_used_or_refused() {
    let kennel = Kennel::on_sqlite().await;
    play_scenes! {
        &kennel;
        stop_signal_is_the_first_of_a_stop,
        stop_signal_that_ends_nothing_is_refused,
    }
}

// promise: T-29
async fn stop_signal_is_the_first_of_a_stop(kennel: &Kennel) {
    let mut client = kennel.client().await;
    let mut spec = sh(OBEYS_INT).grace(Duration::from_secs(20));
    spec.stop.get_or_insert_default().signal = "SIGINT".into();
    let run = must("spawn", client.spawn(spec).await);
    client.hear_up(&run.run_id).await;
    must("abort", client.abort(&run.run_id).await);
    let run = must("wait", client.ended(&run.run_id).await);
    assert_eq!(run.code(), Some(7), "{run:?}");
    let certificate = run.attempt().certificate.as_ref().expect("it has ended");
    let sent: Vec<&str> = certificate
        .steps
        .iter()
        .map(|step| step.signal.as_str())
        .collect();
    assert_eq!(sent.first(), Some(&"SIGINT"), "{sent:?}");
    assert!(
        !sent.contains(&"SIGTERM") && !sent.contains(&"SIGKILL"),
        "{sent:?}"
    );
}

// promise: T-29
async fn stop_signal_that_ends_nothing_is_refused(kennel: &Kennel) {
    let mut client = kennel.client().await;
    for refused in ["SIGKILL", "SIGSTOP", "SIGNONE"] {
        let mut spec = sh("true");
        spec.stop = Some(pb::StopPolicy {
            signal: refused.into(),
            ..pb::StopPolicy::default()
        });
        let status = client.spawn(spec).await.expect_err(refused);
        let fields = complaint(&status).fields;
        assert!(
            fields.iter().any(|field| field == "spec.stop.signal"),
            "{fields:?}"
        );
    }
}
