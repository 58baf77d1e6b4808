//! A row in which a run reports: by a notice of its own, and by a line that its rules match.

use super::{
    row::{Row, arm, await_death},
    service::Service,
    table::Victim,
};
use kennel_proto::pb::{self, output_rule::Action};
use kennel_tests::{Footprint, argv, eventually_async, must};
use std::{fs, time::Duration};

/// Longest wait until the line is found, after any crash.
const FOUND_MAX: Duration = Duration::from_mins(1);

const SCRIPT: &str = r#"
import os, socket, sys, time
manager = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
print("up", flush=True)
while not os.path.exists(sys.argv[1]): time.sleep(0.01)
manager.sendto(b"READY=1\nSTATUS=serves", os.environ["NOTIFY_SOCKET"])
while not os.path.exists(sys.argv[2]): time.sleep(0.01)
print("session 7", flush=True)
time.sleep(1000)
"#;

/// Events of it, each once.
const ONCE: [&str; 4] = ["ready", "status_changed", "annotated", "activity_changed"];

pub(crate) async fn play(row: Row, service: &mut Service) {
    let dir = service.fresh_dir();
    let mut client = service.kennel.client().await;
    let [notify, print] = ["notify", "print"].map(|name| dir.join(name));
    let [first, second] = [&notify, &print].map(|path| path.display().to_string());
    let mut spec = argv(&["/usr/bin/env", "python3", "-c", SCRIPT, &first, &second]);
    spec.set_recovery(row.recovery);
    spec.readiness = Some(Box::new(pb::Readiness {
        probe: Some(pb::readiness::Probe::Notify(pb::NotifyProbe {})),
        ..pb::Readiness::default()
    }));
    spec.output_rules = vec![
        rule("idle", Action::Activity(pb::Activity::Idle.into())),
        rule("keep", Action::Annotate(pb::output_rule::Annotate {})),
        rule("tell", Action::Event(pb::output_rule::Emit {})),
    ];
    let run_id = must("spawn", client.spawn(spec).await).run_id;
    client.hear_text(&run_id, "up\n").await;

    arm(service.points(), &row);
    fs::write(&notify, "").expect("own directory");
    if row.point != "keeper.notice" {
        // An unrecorded status is lost if keeper and server die together.
        let status = async || {
            let run = client.clone().get(&run_id).await.ok()?;
            (run.status == "serves").then_some(())
        };
        eventually_async("the status", FOUND_MAX, status).await;
        fs::write(&print, "").expect("own directory");
    }
    await_death(service.points(), &row).await;
    service.kennel.serve_again().await;
    fs::write(&print, "").expect("own directory");

    let mut client = service.kennel.client().await;
    let continues = row.victim == Victim::Server || row.adopts();
    if continues {
        let all = async || {
            let run = client.clone().get(&run_id).await.ok()?;
            let is_said = run.ready_by == "notify" && run.status == "serves";
            let is_kept = run.annotations.get("id").is_some_and(|id| id == "7");
            (is_said && is_kept && run.activity() == pb::Activity::Idle).then_some(())
        };
        eventually_async("all that was said", FOUND_MAX, all).await;
        must("abort", client.abort(&run_id).await);
    }
    let run = must("ended", client.ended(&run_id).await);
    Footprint::of_run(&run).assert_nothing_left();
    let heard = must("stream", client.hear_all(&run_id, 0).await);
    for station in ONCE.into_iter().chain(["output_matched"]) {
        let stations = heard.stations();
        let times = stations.iter().filter(|name| **name == station).count();
        assert!(
            times <= 1 && (times == 1 || !continues),
            "{station}: {stations:?}"
        );
    }
}

fn rule(name: &str, action: Action) -> pb::OutputRule {
    pb::OutputRule {
        name: name.to_owned(),
        pattern: Some(pb::LinePattern {
            pattern: Some(pb::line_pattern::Pattern::Regex(
                r"^session (?P<id>\d+)$".to_owned(),
            )),
        }),
        action: Some(action),
        ..pb::OutputRule::default()
    }
}
