//! A run whose shim is killed before its command has exited: the loss is the reason of the end, whatever the exit.

use crate::{play_scenes, with_and_without_cgroup};
use kennel_proto::pb::{self, RunState, audit_record::Record};
use kennel_tests::{
    Client, Footprint, Kennel, Options, PATIENCE, Postgres, RunExt, SpecExt, client::duration,
    eventually_async, kennel::kill_exactly, must, procfs::Proc, sh,
};
use nix::sys::signal::Signal;
use std::time::Duration;

with_and_without_cgroup!(lost_shim_is_failure_whatever_the_exit);

/// Exits with code 0 as soon as it gets SIGTERM.
const POLITE: &str = "trap 'echo asked; exit 0' TERM; echo up; while :; do sleep 0.05; done";

async fn lost_shim_is_failure_whatever_the_exit(options: Options) {
    let kennel = Kennel::start(options).await;
    play_scenes! {
        &kennel;
        lost_shim_fails_run_despite_exit_code_0,
        lost_shim_counts_as_failure_of_a_service,
        lost_shim_ends_a_private_pid_namespace,
        lost_shim_is_recorded_after_server_outage,
    }
}

// promise: T-7b
#[tokio::test(flavor = "multi_thread")]
async fn shim_loss_is_recorded_in_postgres() {
    let postgres = Postgres::start().await;
    let kennel = Kennel::start(Options::on(&postgres.url())).await;
    lost_shim_fails_run_despite_exit_code_0(&kennel).await;
    Box::pin(lost_shim_counts_as_failure_of_a_service(&kennel)).await;
}

// promise: T-7b
async fn lost_shim_fails_run_despite_exit_code_0(kennel: &Kennel) {
    let mut client = kennel.client().await;
    let run = up(&mut client, sh(POLITE)).await;
    let print = Footprint::of_run(&run);
    kill_shim(&run);
    let run = must("wait", client.ended(&run.run_id).await);

    assert_eq!(
        (run.state(), run.reason()),
        (RunState::Failed, "shim_lost"),
        "{run:?}"
    );
    assert_eq!(run.code(), Some(0), "the exit that was seen is reported");
    print.until_nothing_is_left().await;
    let heard = must("stream", client.hear_all(&run.run_id, 0).await);
    assert_eq!(heard.text(), "up\nasked\n");
    let stations = heard.stations();
    let place = |station: &str| stations.iter().position(|s| *s == station);
    assert!(place("stopping").is_some(), "{stations:?}");
    assert!(place("stopping") < place("leader_exited"), "{stations:?}");

    // The audit log agrees with the row.
    let trail = must("audit", client.trail(&run.run_id).await);
    let whys = trail.iter().filter_map(|record| match &record.record {
        Some(Record::Signal(signal)) => Some(signal.why.as_str()),
        _ => None,
    });
    let whys: Vec<&str> = whys.collect();
    assert!(whys.contains(&"its shim was lost"), "{whys:?}");
    let why = kennel.cli(&["why", &run.run_id]).output();
    let why = String::from_utf8(why.expect("it runs").stdout).expect("it is text");
    assert!(
        why.starts_with("Ended by Kennel, which had lost the run's shim"),
        "{why}"
    );
}

// promise: T-7c
async fn lost_shim_counts_as_failure_of_a_service(kennel: &Kennel) {
    let mut client = kennel.client().await;
    let policy = pb::RestartPolicy {
        mode: pb::RestartMode::OnFailure.into(),
        delay: Some(duration(Duration::from_millis(50))),
        ..pb::RestartPolicy::default()
    };
    let spec = sh(POLITE).kind_of(pb::RunKind::Service).restart(policy);
    let run = up(&mut client, spec).await;
    kill_shim(&run);
    if kennel.cgroup_bases().is_empty() {
        // No attempt begins while leftovers of the earlier one are possible, and nothing here disproves them.
        let run = must("wait", client.ended(&run.run_id).await);
        assert_eq!((run.state(), run.reason()), (RunState::Failed, "shim_lost"));
        assert_eq!(run.attempt().number, 1);
        assert!(!run.tree_is_empty(), "{run:?}");
        return;
    }
    let second = eventually_async("it is started again", PATIENCE, || {
        let (mut client, id) = (client.clone(), run.run_id.clone());
        async move {
            let run = must("get", client.get(&id).await);
            (run.state() == RunState::Running && run.attempt().number == 2).then_some(run)
        }
    })
    .await;
    let [first] = &second.previous_attempts[..] else {
        panic!("one attempt has ended: {second:?}");
    };
    let reason = first.end_reason.as_ref().and_then(|end| end.reason.clone());
    let lost = pb::end_reason::Reason::ShimLost(pb::end_reason::ShimLost {});
    assert_eq!(reason, Some(lost));
    assert_eq!(second.consecutive_restarts, 1);
    assert_eq!(second.desired(), pb::DesiredState::Run);

    // A stop during the handling of a shim loss is final too.
    kill_shim(&second);
    must("abort", client.abort(&run.run_id).await);
    let run = must("wait", client.ended(&run.run_id).await);
    assert_eq!(run.attempt().number, 2, "{run:?}");
    Footprint::of_run(&run).until_nothing_is_left().await;
}

// promise: T-7b
async fn lost_shim_ends_a_private_pid_namespace(kennel: &Kennel) {
    let mut client = kennel.client().await;
    let mut spec = sh(POLITE);
    spec.set_pid_namespace(pb::PidNamespace::Private);
    let run = up(&mut client, spec).await;
    kill_shim(&run);
    let run = must("wait", client.ended(&run.run_id).await);
    assert_eq!((run.state(), run.reason()), (RunState::Failed, "shim_lost"));
    assert_eq!(run.signal().as_deref(), Some("SIGKILL"), "{run:?}");
    assert!(run.tree_is_empty(), "{run:?}");
}

// promise: T-7b
async fn lost_shim_is_recorded_after_server_outage(kennel: &Kennel) {
    let mut client = kennel.client().await;
    let run = up(&mut client, sh(POLITE)).await;
    let leader = Proc::read(run.attempt().pid).expect("it runs");
    kennel.kill_server();
    kill_shim(&run);
    kennel_tests::eventually("the run is ended", PATIENCE, || {
        (!leader.is_alive()).then_some(())
    })
    .await;
    let mut client = kennel.client().await;
    let run = must("wait", client.ended(&run.run_id).await);
    assert_eq!((run.state(), run.reason()), (RunState::Failed, "shim_lost"));
    assert_eq!(run.code(), Some(0), "{run:?}");
}

async fn up(client: &mut Client, spec: pb::RunSpec) -> pb::Run {
    let run = must("spawn", client.spawn(spec).await);
    client.hear_up(&run.run_id).await;
    run
}

fn kill_shim(run: &pb::Run) {
    let shim = Proc::read(run.attempt().shim_pid).expect("it lives as long as its run");
    kill_exactly(&shim, Signal::SIGKILL);
}
