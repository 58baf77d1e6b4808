//! An unrelated process that was moved into a run's control group.

use crate::play_scenes;
use kennel_proto::pb::{self, RunState, audit_record::Record, tree_verdict::Verdict};
use kennel_tests::{
    Client, Footprint, Kennel, PATIENCE, RunExt, SpecExt, eventually, kennel::kill_exactly, must,
    naughty, procfs::Proc, sh,
};
use nix::sys::signal::Signal;
use std::{
    fs,
    path::{Path, PathBuf},
    process::{Child, Command},
    time::Duration,
};

/// A process of this test in a run's control group; ended with the test.
struct Unrelated(Child);

impl Unrelated {
    fn in_group(group: &Path) -> Self {
        Self::running("exec sleep 1000", group)
    }

    fn running(script: &str, group: &Path) -> Self {
        let child = Command::new("sh").args(["-c", script]).spawn();
        let child = child.expect("it starts");
        let moved = fs::write(group.join("cgroup.procs"), child.id().to_string());
        moved.expect("root may move any process");
        Self(child)
    }

    fn pid(&self) -> i32 {
        self.0.id().cast_signed()
    }

    fn lives(&self) -> bool {
        Proc::read(self.pid()).is_some_and(|proc| proc.is_alive())
    }
}

impl Drop for Unrelated {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts a run with its group; `None` where this host provides none.
async fn up(kennel: &Kennel, client: &mut Client, spec: pb::RunSpec) -> Option<(pb::Run, PathBuf)> {
    if kennel.cgroup_bases().is_empty() {
        return None;
    }
    let run = must("spawn", client.spawn(spec).await);
    client.hear_up(&run.run_id).await;
    let identity = run.attempt().identity.as_ref().expect("it runs");
    let group = PathBuf::from(identity.cgroup_path.as_ref().expect("it has a group"));
    Some((run, group))
}

#[tokio::test(flavor = "multi_thread")]
async fn unrelated_process_in_the_group_is_spared() {
    let kennel = Kennel::on_sqlite().await;
    play_scenes! {
        &kennel;
        abort_spares_and_names_an_unrelated_process,
        pause_does_not_stop_an_unrelated_process,
        lost_shim_with_an_unrelated_process_proves_nothing,
    }
}

// promise: T-10b
async fn abort_spares_and_names_an_unrelated_process(kennel: &Kennel) {
    let mut client = kennel.client().await;
    // storm-node 1: seven generations in own sessions that ignore SIGTERM.
    let spec = naughty(&["storm-node", "1"]).grace(Duration::from_millis(100));
    let Some((run, group)) = up(kennel, &mut client, spec).await else {
        return;
    };
    let print = Footprint::of_run(&run);
    let unrelated = Unrelated::in_group(&group);
    must("abort", client.abort(&run.run_id).await);
    let run = must("wait", client.ended(&run.run_id).await);

    assert!(unrelated.lives(), "it was not of the run");
    let left = print.count();
    let others = [left.marker, left.group, left.session, left.ancestry].concat();
    assert!(others.is_empty(), "{others:?}");
    let inside: Vec<i32> = left.cgroup.iter().map(|proc| proc.pid).collect();
    assert_eq!(inside, [unrelated.pid()]);
    let verdict = run.tree_verdict.clone().and_then(|tree| tree.verdict);
    let Some(Verdict::Empty(empty)) = &verdict else {
        panic!("{verdict:?}");
    };
    assert_eq!(
        empty.proof(),
        pb::EmptyProof::Echild,
        "the group proves nothing"
    );

    let heard = must("stream", client.hear_all(&run.run_id, 0).await);
    let named = format!("process {} ", unrelated.pid());
    let warnings = heard
        .events
        .iter()
        .filter_map(|(_, payload)| match payload {
            pb::event::Payload::Warning(warning) => Some(&warning.message),
            _ => None,
        });
    let warnings: Vec<_> = warnings.filter(|text| text.contains(&named)).collect();
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    let trail = must("audit", client.trail(&run.run_id).await);
    let rounds = trail.iter().filter_map(|record| match &record.record {
        Some(Record::Signal(signal)) => Some(&signal.processes),
        _ => None,
    });
    let named = rounds.flatten().filter(|p| p.pid == unrelated.pid());
    let results: Vec<_> = named
        .map(|p| (p.result.as_str(), p.start_ticks > 0))
        .collect();
    assert!(!results.is_empty(), "{trail:#?}");
    assert!(
        results.iter().all(|r| *r == ("spared", true)),
        "{results:?}"
    );

    drop(unrelated);
    eventually("the group is removed when it is empty", PATIENCE, || {
        (!group.exists()).then_some(())
    })
    .await;
}

// promise: T-10b
async fn pause_does_not_stop_an_unrelated_process(kennel: &Kennel) {
    let mut client = kennel.client().await;
    let spec = sh("echo up; while :; do sleep 0.05; done");
    let Some((run, group)) = up(kennel, &mut client, spec).await else {
        return;
    };
    // A stopped process would not run its handler.
    let script = "trap 'exit 7' TERM; while :; do sleep 0.02; done";
    let mut unrelated = Unrelated::running(script, &group);
    let paused = must("pause", client.pause(&run.run_id).await);
    assert_eq!(paused.state(), RunState::Paused);
    let proc = Proc::read(unrelated.pid()).expect("it lives");
    kill_exactly(&proc, Signal::SIGTERM);
    eventually("it acts on a signal", PATIENCE, || {
        unrelated.0.try_wait().expect("own child")
    })
    .await;
    must("resume", client.resume(&run.run_id).await);
    must("abort", client.abort(&run.run_id).await);
}

// promise: T-10b
async fn lost_shim_with_an_unrelated_process_proves_nothing(kennel: &Kennel) {
    let mut client = kennel.client().await;
    let Some((run, group)) = up(kennel, &mut client, sh("echo up; exec sleep 1000")).await else {
        return;
    };
    let unrelated = Unrelated::in_group(&group);
    let leader = Proc::read(run.attempt().pid).expect("it runs");
    let shim = Proc::read(run.attempt().shim_pid).expect("it lives");
    kill_exactly(&shim, Signal::SIGKILL);
    let run = must("wait", client.ended(&run.run_id).await);
    assert!(unrelated.lives() && !leader.is_alive());
    let verdict = run.tree_verdict.and_then(|tree| tree.verdict);
    let Some(Verdict::Unverified(why)) = verdict else {
        panic!("{verdict:?}");
    };
    assert!(why.why.contains(&unrelated.pid().to_string()), "{why:?}");
}
