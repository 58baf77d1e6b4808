//! Detached processes: a leak check lists them as such, and a reap ends them by the run's name alone.

use crate::{play_scenes, with_and_without_cgroup};
use kennel_proto::pb::{
    self, LeaderExitAction, LeakCertainty, LeakEvidence, ReapMode, ReapOutcome,
};
use kennel_tests::{
    Client, Footprint, Kennel, Options, PATIENCE, RunExt, SpecExt, eventually, must, new_run_id,
    procfs::{self, Proc},
    programs, sh,
    shell::run_to_end,
};
use std::{collections::BTreeSet, fs, path::Path};

with_and_without_cgroup!(detached_processes_are_reaped_after_service_crash);

/// A run that has detached two processes, one of them in a session of its own and without the marker.
struct Scene {
    run: pb::Run,
    kept: Vec<Proc>,
    print: Footprint,
}

impl Scene {
    async fn set(kennel: &Kennel) -> Self {
        let mut client = kennel.client().await;
        let go = kennel.scratch().join(format!("go-{}", new_run_id()));
        let naughty = programs::naughty();
        let naughty = naughty.display();
        let spec = sh(&format!(
            "{naughty} double-fork; {naughty} sleep & echo family; while [ ! -e '{}' ]; do :; done",
            go.display()
        ));
        let spec = spec.on_leader_exit(LeaderExitAction::Keep, None);
        let run = must("spawn", client.spawn(spec).await);
        client.hear_text(&run.run_id, "family").await;
        let (leader, shim) = (run.attempt().pid, run.attempt().shim_pid);
        let kept = eventually("both have begun", PATIENCE, || {
            let all = procfs::all();
            let mut below = procfs::descendants(&all, shim);
            below.retain(|proc| proc.pid != leader && is_one_of_both(proc));
            (below.len() == 2).then_some(below)
        })
        .await;
        let print = Footprint::of_run(&run);
        fs::write(go, b"").expect("a file");
        let run = must("wait", client.ended(&run.run_id).await);
        Self { run, kept, print }
    }

    fn pids(&self) -> BTreeSet<i32> {
        self.kept.iter().map(|proc| proc.pid).collect()
    }

    fn all_live(&self) -> bool {
        self.kept.iter().all(Proc::is_alive)
    }

    fn group_exists(&self) -> bool {
        let identity = self.run.attempt().identity.as_ref();
        let path = identity.and_then(|i| i.cgroup_path.as_ref());
        path.is_some_and(|path| Path::new(path).exists())
    }

    /// Asserts that both, and no others, are listed as detached.
    async fn assert_listed(&self, client: &mut Client) {
        let seen = must("audit", client.audit().await);
        let listed: BTreeSet<i32> = seen.processes.iter().map(pid).collect();
        assert_eq!(listed, self.pids(), "{:?}", seen.processes);
        for process in &seen.processes {
            assert_eq!(process.evidence(), LeakEvidence::Kept, "{process:?}");
            assert_eq!(process.certainty(), LeakCertainty::Proven, "{process:?}");
            assert_eq!(process.run_id, self.run.run_id);
        }
    }

    /// Asserts that nothing of the run or its containment is left, and that a leak check finds nothing.
    async fn assert_over(&self, client: &mut Client) {
        eventually("shim and group have gone", PATIENCE, || {
            (!self.group_exists() && self.print.count().is_empty()).then_some(())
        })
        .await;
        let seen = must("audit", client.audit().await);
        assert_eq!(seen.processes, []);
        assert_eq!(seen.empty_cgroups, []);
    }
}

fn is_one_of_both(proc: &Proc) -> bool {
    let words = proc.cmdline();
    words.iter().any(|w| w == "sleep" || w == "in-own-session")
}

fn pid(process: &pb::LeakedProcess) -> i32 {
    process.process.as_ref().map_or(0, |process| process.pid)
}

async fn cli(kennel: &Kennel, words: &[&str]) -> (Option<i32>, String) {
    let output = run_to_end(kennel.cli(words), PATIENCE).await;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    (output.status.code(), text)
}

// promise: F-9
async fn detached_processes_are_listed_and_reaped_by_run(kennel: &Kennel) {
    let scene = Scene::set(kennel).await;
    let mut client = kennel.client().await;
    scene.assert_listed(&mut client).await;
    let unseen = !must("audit", client.audit().await).unverified.is_empty();
    let (code, text) = cli(kennel, &["doctor"]).await;
    for pid in scene.pids() {
        assert!(text.contains(&format!("kept     {pid}:")), "{text}");
    }
    assert!(!text.contains("LEFT"), "{text}");
    assert_eq!(code, Some(if unseen { 4 } else { 0 }), "{text}");

    // A reap of all runs spares detached processes.
    let (code, text) = cli(kennel, &["reap", "--yes"]).await;
    assert_eq!(text.matches("LEFT ALONE").count(), 2, "{text}");
    assert_eq!(code, Some(3), "{text}");
    assert!(scene.all_live());

    let (code, text) = cli(kennel, &["reap", "--yes", "--run", &scene.run.run_id]).await;
    assert_eq!(text.matches("ended SIGTERM").count(), 2, "{text}");
    assert_eq!(code, Some(0), "{text}");
    assert!(!scene.kept.iter().any(Proc::is_alive));
    scene.assert_over(&mut client).await;
}

// promise: F-9
async fn detached_processes_are_reaped_after_service_crash(options: Options) {
    let mut kennel = Kennel::start(options).await;
    play_scenes! {
        &kennel;
        detached_processes_are_listed_and_reaped_by_run,
    }
    let scene = Scene::set(&kennel).await;
    kennel.kill_keeper();
    kennel.wait_for_exit(PATIENCE).await;
    assert!(scene.all_live());
    kennel.restart().await;

    let mut client = kennel.client().await;
    scene.assert_listed(&mut client).await;
    let order = pb::ReapLeaksRequest {
        mode: ReapMode::Execute.into(),
        run_ids: vec![scene.run.run_id.clone()],
        ..pb::ReapLeaksRequest::default()
    };
    let reaped = must("reap", client.reap(order).await);
    let outcomes: Vec<ReapOutcome> = reaped
        .processes
        .iter()
        .map(pb::ReapedProcess::outcome)
        .collect();
    assert_eq!(outcomes, [ReapOutcome::Ended; 2], "{:?}", reaped.processes);
    scene.assert_over(&mut client).await;
}
