//! Times of a stop: a cause before its effect, and each in its order.

use crate::with_and_without_cgroup;
use kennel_proto::pb::{self, RunState, audit_record::Record};
use kennel_tests::{Client, Kennel, Options, Postgres, RunExt, SpecExt, client::micros, must, sh};
use std::time::Duration;

with_and_without_cgroup!(kill_is_stamped_before_the_death_it_causes);

/// Number of runs: a wrong order shows only where a late recorder is overtaken.
const RUNS: usize = 12;

// promise: E-3a
async fn kill_is_stamped_before_the_death_it_causes(options: Options) {
    let kennel = Kennel::start(options).await;
    let mut client = kennel.client().await;
    for _ in 0..RUNS {
        let run = killed(&mut client).await;
        let attempt = run.attempt();
        let exited = micros(attempt.leader_exited_time.as_ref().expect("it has exited"));
        let certificate = attempt.certificate.as_ref().expect("it has ended");
        let by_keeper = certificate.steps.iter();
        let mut by_keeper = by_keeper.filter(|step| step.sender() == pb::SignalSender::Keeper);
        let kill = by_keeper.find(|step| step.signal == "SIGKILL");
        let kill = kill.expect("it was killed");
        let sent = micros(kill.time.as_ref().expect("a time"));
        assert!(
            sent <= exited,
            "{} us after: {certificate:#?}",
            sent - exited
        );

        let trail = must("audit", client.trail(&run.run_id).await);
        let processes = trail.iter().filter_map(|record| match &record.record {
            Some(Record::Signal(signal)) => Some(&signal.processes),
            _ => None,
        });
        let unknown: Vec<_> = processes.flatten().filter(|p| p.start_ticks == 0).collect();
        assert!(unknown.is_empty(), "{unknown:?}");
    }
}

// promise: E-3b
#[tokio::test(flavor = "multi_thread")]
async fn ended_run_has_no_stop_deadline() {
    let postgres = Postgres::start().await;
    for kennel in [
        Kennel::on_sqlite().await,
        Kennel::start(Options::on(&postgres.url())).await,
    ] {
        let mut client = kennel.client().await;
        let run = killed(&mut client).await;
        assert_eq!(run.state(), RunState::Cancelled);
        assert_eq!(run.stop_deadline_time, None, "{run:?}");
        // The stored row has no stop deadline either.
        let run = must("get", client.get(&run.run_id).await);
        assert_eq!(run.stop_deadline_time, None, "{run:?}");
    }
}

/// Returns a run that only SIGKILL has ended.
async fn killed(client: &mut Client) -> pb::Run {
    let script = "trap '' TERM; echo up; while :; do sleep 0.05; done";
    let spec = sh(script).grace(Duration::from_millis(20));
    let run = must("spawn", client.spawn(spec).await);
    client.hear_up(&run.run_id).await;
    let grace = Some(Duration::from_millis(20));
    let stopping = client.abort_with(&run.run_id, grace, pb::AbortWait::None);
    let stopping = must("abort", stopping.await);
    if stopping.state() == RunState::Stopping {
        assert!(stopping.stop_deadline_time.is_some(), "{stopping:?}");
    }
    must("wait", client.ended(&run.run_id).await)
}
