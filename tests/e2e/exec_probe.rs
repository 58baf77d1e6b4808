//! Probes that are commands: in the run's tree, ended with their session, harmless in any case.

use crate::{play_scenes, with_and_without_cgroup};
use kennel_proto::pb::{self, RunState, WaitCondition, liveness, readiness};
use kennel_tests::{
    Client, Footprint, Kennel, Options, PATIENCE, RunExt, SpecExt,
    client::{complaint, duration},
    eventually_async, must,
    procfs::Proc,
    sh,
    shell::run_to_end,
};
use std::{fs, time::Duration};

with_and_without_cgroup!(probe_ends_with_its_run);

const EVERY: Duration = Duration::from_millis(50);

fn exec(script: &str) -> pb::ExecProbe {
    pb::ExecProbe {
        args: ["sh", "-c", script].map(str::to_owned).to_vec(),
    }
}

pub(crate) fn live_by(script: &str, timeout: Duration, failures: u32) -> pb::Liveness {
    pb::Liveness {
        probe: Some(liveness::Probe::Exec(exec(script))),
        interval: Some(duration(EVERY)),
        timeout: Some(duration(timeout)),
        failure_threshold: Some(failures),
    }
}

pub(crate) fn ready_by(script: &str) -> Box<pb::Readiness> {
    Box::new(pb::Readiness {
        probe: Some(readiness::Probe::Exec(exec(script))),
        interval: Some(duration(EVERY)),
        ..pb::Readiness::default()
    })
}

async fn why_not_live(client: &mut Client, run: &str) -> String {
    let ended = must("wait", client.ended(run).await);
    match ended.end_reason.clone().and_then(|end| end.reason) {
        Some(pb::end_reason::Reason::NotLive(why)) => why.error,
        other => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn exec_probes_decide_readiness_and_liveness() {
    let kennel = Kennel::on_sqlite().await;
    play_scenes! {
        &kennel;
        command_makes_a_run_ready,
        failing_command_ends_the_run,
        probe_is_ended_with_its_session,
        command_line_has_commands_as_probes,
        faults_of_commands_as_probes_are_named,
    }
}

/// The probe has directory and environment of the run.
// promise: RW-59
async fn command_makes_a_run_ready(kennel: &Kennel) {
    let mut client = kennel.client().await;
    let mut spec = sh("echo up; exec sleep 1000");
    spec.cwd = Some(kennel.scratch().display().to_string());
    let script = "echo >> tries; test -n \"$KENNEL_RUN_ID\" && test -e go";
    spec.readiness = Some(ready_by(script));
    let run = must("spawn", client.spawn(spec).await).run_id;
    client.hear_up(&run).await;
    let tries = kennel.scratch().join("tries");
    let probed = eventually_async("it is probed", PATIENCE, async || {
        fs::read(&tries).is_ok_and(|n| n.len() > 2).then_some(())
    });
    probed.await;
    assert!(must("get", client.get(&run).await).ready_time.is_none());
    fs::write(kennel.scratch().join("go"), "").expect("own directory");
    let (ready, reached) = must("wait", client.wait(&run, WaitCondition::Ready).await);
    assert!(reached);
    assert_eq!(ready.ready_by, "exec");
    must("abort", client.abort(&run).await);
}

// promise: RW-59
async fn failing_command_ends_the_run(kennel: &Kennel) {
    let mut client = kennel.client().await;
    let second = Duration::from_secs(1);
    for (script, why) in [
        ("exit 7", "exited with code 7"),
        ("kill -9 $$", "was ended by SIGKILL"),
    ] {
        let mut spec = sh("exec sleep 1000");
        spec.liveness = Some(live_by(script, second * 10, 2));
        let run = must("spawn", client.spawn(spec).await).run_id;
        let said = why_not_live(&mut client, &run).await;
        assert!(said.contains(why), "{said}");
    }
    let mut spec = sh("exec sleep 1000");
    let mut liveness = live_by("", second, 1);
    liveness.probe = Some(liveness::Probe::Exec(pb::ExecProbe {
        args: vec!["no-such-command".into()],
    }));
    spec.liveness = Some(liveness);
    let run = must("spawn", client.spawn(spec).await).run_id;
    let said = why_not_live(&mut client, &run).await;
    assert!(said.contains("did not start"), "{said}");
}

/// A probe that leaves children and daemons, one that hangs with children, one that floods: nothing of a former probe is
/// left beside the run.
// promise: RW-59a
async fn probe_is_ended_with_its_session(kennel: &Kennel) {
    let mut client = kennel.client().await;
    let short = Duration::from_millis(200);
    for (script, timeout) in [
        ("sleep 1000 & sleep 1000 & exit 0", Duration::from_secs(10)),
        (
            "setsid sleep 1000 & (setsid sh -c 'sleep 1000 & sleep 1000' &); exit 0",
            Duration::from_secs(10),
        ),
        ("setsid -f sleep 1000; sleep 1000", short),
        ("sleep 1000 & (sleep 1000 & sleep 1000); exit 0", short),
        ("trap '' TERM INT HUP; yes; exit 0", short),
    ] {
        let count = kennel.scratch().join("count");
        let _ = fs::remove_file(&count);
        let mut spec = sh("echo up; exec sleep 999");
        let script = format!("echo >> {}; {script}", count.display());
        spec.liveness = Some(live_by(&script, timeout, 1000));
        let run = must("spawn", client.spawn(spec).await);
        client.hear_up(&run.run_id).await;
        let begun = || fs::read(&count).map_or(0, |count| count.len());
        let probed = async |wanted: usize| {
            eventually_async("it is probed", PATIENCE, async || {
                (begun() > wanted).then_some(())
            })
            .await;
        };
        probed(4).await;
        let seen = must("get", client.get(&run.run_id).await);
        assert_eq!(seen.state(), RunState::Running, "{seen:?}");
        let tree = must("tree", client.tree(&run.run_id).await);
        let leader = run.attempt().pid;
        let others = tree
            .processes
            .iter()
            .filter(|process| process.pid != leader);
        let former: Vec<Proc> = others.filter_map(|seen| Proc::read(seen.pid)).collect();
        // The probe seen above has ended, and a later one too.
        probed(begun() + 1).await;
        eventually_async("a former probe is gone", PATIENCE, async || {
            (!former.iter().any(Proc::is_alive)).then_some(())
        })
        .await;
        let print = Footprint::of_run(&run);
        must("abort", client.abort(&run.run_id).await);
        print.assert_nothing_left();
    }
}

// promise: RW-59a
async fn probe_ends_with_its_run(options: Options) {
    let kennel = Kennel::start(options).await;
    let mut client = kennel.client().await;
    let begun = kennel.scratch().join("begun");
    let script = format!("echo > {}; sleep 1000", begun.display());
    let mut spec = sh("echo up; read line; exit 3").open_input();
    spec.liveness = Some(live_by(&script, Duration::from_mins(1), 1));
    let run = must("spawn", client.spawn(spec).await);
    client.hear_up(&run.run_id).await;
    let seen = eventually_async("the probe hangs", PATIENCE, async || {
        begun.exists().then_some(())
    });
    seen.await;
    let print = Footprint::of_run(&run);
    must("write", client.write(&run.run_id, "1", None, b"go\n").await);
    let ended = must("wait", client.ended(&run.run_id).await);
    assert_eq!((ended.reason(), ended.code()), ("exited", Some(3)));
    assert!(ended.tree_is_empty(), "{ended:?}");
    print.assert_nothing_left();
}

/// The answer to a dead server is for no other; the next one continues probing.
// promise: RW-60
#[tokio::test(flavor = "multi_thread")]
async fn running_probe_outlives_server_until_its_timeout() {
    let kennel = Kennel::on_sqlite().await;
    let mut client = kennel.client().await;
    let dir = kennel.scratch().display().to_string();
    let script = "echo > begun; test -e bad && exit 9; test -e quick || sleep 1";
    let mut spec = sh("echo up; exec sleep 1000");
    spec.cwd = Some(dir);
    spec.liveness = Some(live_by(script, Duration::from_secs(20), 1));
    let run = must("spawn", client.spawn(spec).await).run_id;
    client.hear_up(&run).await;
    let begun = kennel.scratch().join("begun");
    let seen = eventually_async("a probe", PATIENCE, async || begun.exists().then_some(()));
    seen.await;
    kennel.kill_server();
    let mut client = kennel.client().await;
    fs::write(kennel.scratch().join("quick"), "").expect("own directory");
    let _ = fs::remove_file(&begun);
    let again = eventually_async("a probe of the next server", PATIENCE, async || {
        begun.exists().then_some(())
    });
    again.await;
    let running = must("get", client.get(&run).await);
    assert_eq!(running.state(), RunState::Running, "{running:?}");
    fs::write(kennel.scratch().join("bad"), "").expect("own directory");
    let said = why_not_live(&mut client, &run).await;
    assert!(said.contains("exited with code 9"), "{said}");
}

// promise: RW-59
async fn command_line_has_commands_as_probes(kennel: &Kennel) {
    let mut client = kennel.client().await;
    let words = [
        "spawn",
        "--ready-exec",
        "exit 0",
        "--live-exec",
        "exit 0",
        "--",
        "sleep",
        "1000",
    ];
    let output = run_to_end(kennel.cli(&words), PATIENCE).await;
    assert!(output.status.success(), "{output:?}");
    let run = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    let (ready, reached) = must("wait", client.wait(&run, WaitCondition::Ready).await);
    assert!(reached, "{ready:?}");
    let spec = ready.spec.expect("it is shown");
    let wanted = pb::ExecProbe {
        args: ["/bin/sh", "-c", "exit 0"].map(str::to_owned).to_vec(),
    };
    let probe = spec.liveness.and_then(|liveness| liveness.probe);
    assert_eq!(probe, Some(liveness::Probe::Exec(wanted)));
    must("abort", client.abort(&run).await);
}

// promise: RW-59
async fn faults_of_commands_as_probes_are_named(kennel: &Kennel) {
    let mut client = kennel.client().await;
    let mut spec = sh("true");
    spec.readiness = Some(ready_by("exit 0"));
    spec.liveness = Some(live_by("exit 0", EVERY, 1));
    spec.set_pid_namespace(pb::PidNamespace::Private);
    let refused = client.spawn(spec).await.expect_err("a private namespace");
    let fields = complaint(&refused).fields;
    assert_eq!(fields, ["spec.readiness.exec", "spec.liveness.exec"]);
    let mut spec = sh("true");
    let mut readiness = ready_by("");
    readiness.probe = Some(readiness::Probe::Exec(pb::ExecProbe::default()));
    spec.readiness = Some(readiness);
    let refused = client.spawn(spec).await.expect_err("no command");
    let fields = complaint(&refused).fields;
    assert_eq!(fields, ["spec.readiness.exec.args"]);
}
