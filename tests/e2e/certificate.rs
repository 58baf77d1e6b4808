//! Every ended run has a stop certificate, and it contains only what really happened.

use crate::{play_scenes, with_and_without_cgroup};
use kennel_proto::pb::{self, SignalScope, SignalSender, tree_verdict::Verdict};
use kennel_tests::{
    Footprint, Kennel, Options, PATIENCE, RunExt, SpecExt, must, naughty, new_run_id, programs, sh,
};
use std::time::Duration;

with_and_without_cgroup!(certificate_has_only_what_happened);

async fn certificate_has_only_what_happened(options: Options) {
    let kennel = Kennel::start(options).await;
    play_scenes! {
        &kennel;
        certificate_of_unstopped_run_has_no_signal,
        certificate_has_each_round_and_its_processes,
        early_leader_exit_names_the_rest,
        never_run_has_certificate_without_steps,
    }
}

// promise: T-22a
async fn certificate_of_unstopped_run_has_no_signal(kennel: &Kennel) {
    let mut client = kennel.client().await;
    let run = must("spawn", client.spawn(sh("exit 3")).await);
    assert!(run.attempt().certificate.is_none() || run.end_time.is_some());
    let run = must("wait", client.ended(&run.run_id).await);
    let certificate = certificate(&run);
    assert_eq!(certificate.steps, []);
    assert_eq!(certificate.steps_unlisted, 0);
    assert_eq!(certificate.leftovers, []);
    assert_eq!(certificate.verdict, run.tree_verdict);
    assert_eq!(certificate.containment(), run.containment());
    // The census ran after the leader's exit; its time is that of tree empty.
    assert_eq!(certificate.census_time, run.attempt().tree_empty_time);
}

// promise: T-22
async fn certificate_has_each_round_and_its_processes(kennel: &Kennel) {
    let mut client = kennel.client().await;
    let script = format!(
        "trap '' TERM; {} sleep & exec {0} sleep",
        programs::naughty().display()
    );
    let spec = sh(&script).grace(Duration::from_millis(300));
    let run = must("spawn", client.spawn(spec).await);
    client.hear_up(&run.run_id).await;
    let run = must("abort", client.abort(&run.run_id).await);

    let certificate = certificate(&run);
    let [term, kill, ..] = &certificate.steps[..] else {
        panic!("{certificate:?}")
    };
    assert_eq!(
        (term.signal.as_str(), kill.signal.as_str()),
        ("SIGTERM", "SIGKILL")
    );
    assert_eq!(term.scope(), SignalScope::Tree);
    let address = match run.containment() {
        pb::Containment::Cgroup => SignalScope::CgroupKill,
        _ => SignalScope::Tree,
    };
    assert_eq!(kill.scope(), address, "{certificate:?}");
    for step in [term, kill] {
        assert_eq!(step.sender(), SignalSender::Keeper);
        assert!(step.delivered >= 1, "{certificate:?}");
        assert_eq!(
            (step.refused, step.error_number),
            (0, None),
            "{certificate:?}"
        );
    }
    for step in &certificate.steps[2..] {
        assert_eq!(step.signal, "SIGKILL", "{certificate:?}");
    }
    assert!(run.tree_is_empty(), "{run:?}");
    assert_eq!(certificate.verdict, run.tree_verdict);

    // The journal has the certificate's rounds.
    let heard = must("stream", client.hear_all(&run.run_id, 0).await);
    let certified: Vec<&str> = certificate.steps.iter().map(|s| &*s.signal).collect();
    assert_eq!(heard.signals(), certified);
    // The row keeps the certificate.
    let again = must("get", client.get(&run.run_id).await);
    assert_eq!(again.attempt().certificate, run.attempt().certificate);
}

// promise: T-23
async fn early_leader_exit_names_the_rest(kennel: &Kennel) {
    let mut client = kennel.client().await;
    let spec = sh("setsid sleep 1000 & sleep 1001 & echo up; exit 0");
    let run = must("spawn", client.spawn(spec).await);
    let run = must("wait", client.ended(&run.run_id).await);
    assert_eq!(run.code(), Some(0));
    let certificate = certificate(&run);
    let names: Vec<&str> = certificate.leftovers.iter().map(|l| &*l.name).collect();
    assert_eq!(certificate.leftovers.len(), 2, "{certificate:?}");
    // A process before exec still has the name of the shell.
    assert!(
        names.iter().all(|n| ["sleep", "setsid", "sh"].contains(n)),
        "{names:?}"
    );
    assert!(certificate.leftovers.iter().all(|l| l.start_ticks > 0));
    let first = certificate.steps.first().expect("the rest was ended");
    assert_eq!((first.signal.as_str(), first.delivered), ("SIGTERM", 2));
}

// promise: T-24
#[tokio::test(flavor = "multi_thread")]
async fn shim_of_dead_keeper_reports_its_signals() {
    let mut kennel = Kennel::on_sqlite().await;
    let mut client = kennel.client().await;
    let stubborn = naughty(&["storm-node", "1"]).grace(Duration::from_millis(300));
    let run = must("spawn", client.spawn(stubborn).await);
    client.hear_up(&run.run_id).await;
    let print = Footprint::of_run(&run);
    kennel.kill_keeper();
    kennel.wait_until_all_is_gone(PATIENCE).await;
    print.assert_nothing_left();
    kennel.restart().await;

    let run = must("wait", kennel.client().await.ended(&run.run_id).await);
    let certificate = certificate(&run);
    let sent = |signal: &str| {
        let of = |s: &&pb::StopStep| s.signal == signal && s.sender() == SignalSender::Shim;
        certificate.steps.iter().find(of)
    };
    let term = sent("SIGTERM").unwrap_or_else(|| panic!("{certificate:?}"));
    assert!(term.delivered >= 1, "{certificate:?}");
    assert!(sent("SIGKILL").is_some(), "{certificate:?}");
    assert!(certificate.census_time.is_some(), "{certificate:?}");
}

// promise: T-22a
async fn never_run_has_certificate_without_steps(kennel: &Kennel) {
    let mut client = kennel.client().await;
    let id = new_run_id();
    let fenced = must("abort", client.abort(&id).await);
    let certificate = certificate(&fenced);
    assert_eq!(certificate.steps, []);
    let verdict = certificate.verdict.and_then(|v| v.verdict);
    assert!(matches!(verdict, Some(Verdict::NeverRan(_))), "{fenced:?}");
    assert_eq!(certificate.census_time, None);
}

fn certificate(run: &pb::Run) -> pb::StopCertificate {
    let certificate = run.attempt().certificate.clone();
    certificate.unwrap_or_else(|| panic!("it has ended: {run:?}"))
}
