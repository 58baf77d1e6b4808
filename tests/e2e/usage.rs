//! Resources that a run uses: shown live, and kept in its record over the death of the server.

use kennel_proto::pb::{self, RestartMode};
use kennel_tests::{
    Client, Kennel, Options, PATIENCE, RunExt, SpecExt, cases,
    client::duration,
    eventually, eventually_async, must, sh,
    shell::{run_to_end, text},
};
use std::{fs, time::Duration};
use tempfile::TempDir;

cases! {
    fn usage_of_runs_is_recorded(Counted::start().await);
    usage_is_shown_live_and_kept,
    each_attempt_keeps_its_own_usage,
    usage_survives_server_death_before_its_record,
}

/// A server that counts resources, and points at which it dies.
struct Counted {
    kennel: Kennel,
    points: TempDir,
}

impl Counted {
    async fn start() -> Self {
        let points = tempfile::tempdir().expect("a directory");
        let kennel = Kennel::start(Options::crashing(points.path())).await;
        Self { kennel, points }
    }
}

/// Uses a processor, and leaves it to a process that has exited before the end.
const BUSY: &str = "sh -c 'i=0; while [ $i -lt 50000 ]; do i=$((i+1)); done'";

/// Whether runs have control groups here, which count processor time without any controller.
async fn has_groups(client: &mut Client) -> bool {
    let host = client.server_info().await.and_then(|info| info.host);
    !host.expect("it describes its host").cgroup_base.is_empty()
}

fn cpu(usage: &pb::Usage) -> Duration {
    let user = usage.cpu_user_time.expect("the kernel counts it");
    let system = usage.cpu_system_time.expect("the kernel counts it");
    [user, system]
        .map(|time| Duration::try_from(time).expect("positive"))
        .iter()
        .sum()
}

fn used(run: &pb::Run) -> Option<pb::Usage> {
    run.current_attempt
        .as_ref()
        .and_then(|attempt| attempt.usage.as_deref().copied())
}

// promise: RW-120
async fn usage_is_shown_live_and_kept(counted: &Counted) {
    let Counted { kennel, .. } = counted;
    let mut client = kennel.client().await;
    if !has_groups(&mut client).await {
        return;
    }
    let run = must(
        "spawn",
        client.spawn(sh(&format!("{BUSY}; read line"))).await,
    );
    let seen = || {
        let mut client = client.clone();
        let run_id = run.run_id.clone();
        async move {
            let run = must("get", client.get(&run_id).await);
            used(&run).filter(|usage| !cpu(usage).is_zero())
        }
    };
    let live = eventually_async("its use is seen", PATIENCE, seen).await;
    let tree = must("tree", client.tree(&run.run_id).await);
    let in_tree = tree.run.as_ref().and_then(used);
    assert!(in_tree.is_some_and(|usage| cpu(&usage) >= cpu(&live)));
    let counts_pressure = std::fs::exists("/proc/pressure").expect("it can be looked for");
    assert_eq!(live.cpu_pressure.is_some(), counts_pressure, "{live:?}");
    must("abort", client.abort(&run.run_id).await);
    let run = must("wait", client.ended(&run.run_id).await);
    let kept = used(&run).expect("it is kept");
    assert!(cpu(&kept) >= cpu(&live), "{live:?} {kept:?}");
    assert_eq!((kept.memory_bytes, kept.pids), (None, None), "it has ended");
    let shown = run_to_end(kennel.cli(&["get", &run.run_id]), PATIENCE).await;
    assert!(text(&shown).contains("\ncpu used "), "{shown:?}");
}

// promise: RW-120a
async fn usage_survives_server_death_before_its_record(counted: &Counted) {
    let Counted { kennel, points } = counted;
    let mut client = kennel.client().await;
    if !has_groups(&mut client).await {
        return;
    }
    // The server dies between the keeper's report and its write to the database.
    let point = points.path().join("exit.tree");
    fs::write(&point, "server").expect("a file");
    let run = must("spawn", client.spawn(sh(BUSY)).await);
    eventually("the server dies", PATIENCE, || {
        (!point.exists()).then_some(())
    })
    .await;
    let mut client = kennel.client().await;
    let run = must("wait", client.ended(&run.run_id).await);
    assert_eq!(run.code(), Some(0), "{run:?}");
    assert!(!cpu(&used(&run).expect("it is kept")).is_zero());
}

// promise: RW-120
async fn each_attempt_keeps_its_own_usage(counted: &Counted) {
    let Counted { kennel, .. } = counted;
    let mut client = kennel.client().await;
    if !has_groups(&mut client).await {
        return;
    }
    let spec = sh(&format!("{BUSY}; exit 3")).restart(pb::RestartPolicy {
        mode: RestartMode::OnFailure.into(),
        max_restarts: Some(2),
        delay: Some(duration(Duration::from_millis(10))),
        ..pb::RestartPolicy::default()
    });
    let run = must("spawn", client.spawn(spec).await);
    let run = must("wait", client.ended(&run.run_id).await);
    let earlier = run
        .previous_attempts
        .iter()
        .map(|attempt| attempt.usage.as_deref().copied());
    let all: Vec<pb::Usage> = earlier.chain([used(&run)]).flatten().collect();
    assert_eq!(all.len(), 3, "{run:?}");
    assert!(all.iter().all(|usage| !cpu(usage).is_zero()), "{all:?}");
}

// promise: RW-120a
#[tokio::test(flavor = "multi_thread")]
async fn run_without_control_group_has_no_usage() {
    let kennel = Kennel::start(Options::default().without_cgroup()).await;
    let mut client = kennel.client().await;
    let run = must("spawn", client.spawn(sh(BUSY)).await);
    let run = must("wait", client.ended(&run.run_id).await);
    assert_eq!(used(&run), None);
}
