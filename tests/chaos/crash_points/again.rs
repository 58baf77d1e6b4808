//! Rows in which a service is restarted: after its own exit, or after that of Kennel.

use super::{
    row::{Row, arm, await_death},
    service::Service,
    table::Act,
};
use kennel_proto::pb::{self, RestartMode, RunKind, RunState};
use kennel_tests::{
    Footprint, Kennel, PATIENCE, RunExt, SpecExt, client::duration, must, sh, within,
};
use std::{fs, time::Duration};

const DELAY: Duration = Duration::from_millis(50);
const LOOK_EVERY: Duration = Duration::from_millis(10);

pub(crate) async fn play(row: Row, service: &mut Service) {
    let dir = service.fresh_dir();
    let (ran, go) = (dir.join("ran"), dir.join("go"));
    let script = format!(
        "echo $KENNEL_RUN_ID >> {}; echo up; while [ ! -e {1} ]; do sleep 0.02; done; rm -f {1}; exit 5",
        ran.display(),
        go.display()
    );
    let mut spec = sh(&script)
        .kind_of(RunKind::Service)
        .restart(pb::RestartPolicy {
            mode: RestartMode::Always.into(),
            delay: Some(duration(DELAY)),
            factor: Some(1),
            ..pb::RestartPolicy::default()
        });
    // Only a run that ends with its keeper is restarted.
    spec.set_recovery(pb::RecoveryPolicy::Terminate);
    let mut client = service.kennel.client().await;
    let run = must("spawn", client.spawn(spec).await);
    client.hear_up(&run.run_id).await;

    arm(service.points(), &row);
    if row.act == Act::ComeBack {
        service.kennel.kill_service_after(|| {});
        service.kennel.launch_again().await;
    } else {
        fs::write(&go, "").expect("a file");
    }
    await_death(service.points(), &row).await;
    service.kennel.serve_again().await;

    let run = within(
        "it runs again",
        PATIENCE,
        runs_again(&service.kennel, &run.run_id),
    )
    .await;
    let print = Footprint::of_run(&run);
    let mut client = service.kennel.client().await;
    let run = must("abort", client.abort(&run.run_id).await);
    assert_eq!(
        (run.state(), run.reason()),
        (RunState::Cancelled, "aborted")
    );
    print.assert_nothing_left();
    let attempts = run.attempt().number as usize;
    let heard = must("stream", client.hear_all(&run.run_id, 0).await);
    let count_of = |station: &str| heard.stations().iter().filter(|s| **s == station).count();
    assert_eq!(
        count_of("attempt_ended"),
        attempts - 1,
        "{:?}",
        heard.stations()
    );
    assert_eq!(count_of("ended"), 1);
    assert!(count_of("recorded") <= attempts, "{:?}", heard.stations());
    // Each attempt ran its command at most once.
    let lines = fs::read_to_string(&ran).expect("it ran").lines().count();
    let could = count_of("started")..=count_of("recorded");
    assert!(
        could.contains(&lines),
        "{lines} of {could:?}: {:?}",
        heard.stations()
    );
    assert_eq!(
        heard.text().lines().count(),
        lines,
        "the written output is reported"
    );
}

async fn runs_again(kennel: &Kennel, run_id: &str) -> pb::Run {
    loop {
        let run = kennel.client().await.get(run_id).await;
        if let Ok(run) = run
            && run.state() == RunState::Running
            && run.attempt().number > 1
        {
            return run;
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}
