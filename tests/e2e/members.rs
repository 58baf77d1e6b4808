//! Single processes of a run: signals to them, and their listing.

use crate::{play_scenes, with_and_without_cgroup};
use kennel_proto::pb::{self, ProcessHold, RunState, SignalOutcome, SignalTarget};
use kennel_tests::{
    Client, Heard, Kennel, Options, PATIENCE, RunExt, complaint, eventually, must, naughty,
    new_run_id, procfs::Proc, programs, sh, within,
};
use std::{collections::BTreeSet, path::Path, process::Command};
use tonic::Code;

with_and_without_cgroup!(members_of_a_run_are_listed_and_signalled);

/// Starts a leader, a member of its group, and an orphan in a session of its own. Each appends its name to a file at
/// each USR1, and prints its pid.
fn three(log: &Path) -> pb::RunSpec {
    let log = log.display();
    let handler = |name: &str| format!("trap \"echo {name} >> {log}\" USR1");
    let stay = "while :; do sleep 0.01; done";
    sh(&format!(
        "(setsid sh -c '{}; echo apart $$; {stay}' &)
        ({}; echo member $(sh -c 'echo $PPID'); {stay}) &
        {}; echo leader $$; {stay}",
        handler("apart"),
        handler("member"),
        handler("leader"),
    ))
}

/// Returns standard output, once it has so many lines.
async fn lines(client: &mut Client, run_id: &str, count: usize) -> String {
    let mut stream = must("stream", client.events_after(run_id, 0).await);
    let mut heard = Heard::default();
    while heard.text().matches('\n').count() < count {
        let message = must("stream", within("output", PATIENCE, stream.message()).await);
        heard.take(message.expect("the run goes on"));
    }
    heard.text()
}

/// Returns the pids that the three have printed, in the order of these names.
async fn pids(client: &mut Client, run_id: &str) -> [i32; 3] {
    let text = lines(client, run_id, 3).await;
    ["leader", "member", "apart"].map(|name| {
        let line = text.lines().find_map(|line| line.strip_prefix(name));
        let pid = line.and_then(|pid| pid.trim().parse().ok());
        pid.unwrap_or_else(|| panic!("no {name} in {text:?}"))
    })
}

fn reached(response: &pb::SignalResponse) -> BTreeSet<i32> {
    let targets = response.targets.iter();
    let delivered = targets.filter(|t| t.outcome() == SignalOutcome::Delivered);
    delivered.map(|target| target.pid).collect()
}

/// Returns how many signals each has recorded: leader, member, apart.
fn counts(log: &Path) -> [usize; 3] {
    let text = std::fs::read_to_string(log).unwrap_or_default();
    ["leader", "member", "apart"].map(|name| text.lines().filter(|line| *line == name).count())
}

async fn members_of_a_run_are_listed_and_signalled(options: Options) {
    let kennel = Kennel::start(options).await;
    play_scenes! {
        &kennel;
        signal_reaches_leader_group_or_whole_tree,
        tree_shows_escaped_and_listening_processes,
        a_signal_that_makes_no_sense_is_refused,
        sigcont_continues_what_has_stopped_itself,
    }
}

// promise: T-14, T-18
async fn signal_reaches_leader_group_or_whole_tree(kennel: &Kennel) {
    let mut client = kennel.client().await;
    let log = kennel.scratch().join("signals");
    let run_id = must("spawn", client.spawn(three(&log)).await).run_id;
    let [leader, member, apart] = pids(&mut client, &run_id).await;
    // An unrelated process with the run's marker, which USR1 would end.
    let mut stranger = Command::new("sleep")
        .arg("1000")
        .env("KENNEL_RUN_ID", &run_id)
        .spawn()
        .expect("a stranger");
    let stranger_pid = stranger.id().cast_signed();

    let usr1 = "SIGUSR1";
    let answer = must(
        "leader",
        client
            .signal(&run_id, usr1, SignalTarget::Leader, "1")
            .await,
    );
    assert_eq!(reached(&answer), BTreeSet::from([leader]));
    assert_eq!(answer.targets.len(), 1);
    assert_eq!(
        Some(answer.targets[0].start_ticks),
        answer.run.as_ref().map(|run| run
            .attempt()
            .identity
            .as_ref()
            .expect("it has one")
            .start_ticks)
    );
    eventually("the leader tells", PATIENCE, || {
        (counts(&log) == [1, 0, 0]).then_some(())
    })
    .await;
    // A repeated request id sends no second signal, whatever the request.
    let again = must(
        "repeat",
        client.signal(&run_id, usr1, SignalTarget::Tree, "1").await,
    );
    assert!(again.repeated_request && again.targets.is_empty());
    must("interrupt", client.interrupt(&run_id, "1").await);

    let answer = must(
        "group",
        client.signal(&run_id, usr1, SignalTarget::Group, "2").await,
    );
    let group = reached(&answer);
    assert!(
        group.contains(&leader) && group.contains(&member),
        "{group:?}"
    );
    assert!(!group.contains(&apart), "{group:?}");
    eventually("the group tells", PATIENCE, || {
        (counts(&log) == [2, 1, 0]).then_some(())
    })
    .await;

    let answer = must(
        "tree",
        client.signal(&run_id, usr1, SignalTarget::Tree, "3").await,
    );
    let tree = reached(&answer);
    for pid in [leader, member, apart] {
        assert!(tree.contains(&pid), "{pid} is not among {tree:?}");
    }
    assert!(!tree.contains(&stranger_pid), "{tree:?}");
    eventually("the tree tells", PATIENCE, || {
        (counts(&log) == [3, 2, 1]).then_some(())
    })
    .await;
    assert!(stranger.try_wait().expect("own child").is_none());
    let listed = must("tree", client.tree(&run_id).await).processes;
    assert!(listed.iter().all(|process| process.pid != stranger_pid));
    stranger.kill().expect("it can be killed");
    stranger.wait().expect("it can be reaped");

    let run = must("get", client.get(&run_id).await);
    assert_eq!(run.state(), RunState::Running);
    must(
        "kill",
        client
            .signal(&run_id, "SIGKILL", SignalTarget::Leader, "")
            .await,
    );
    let run = must("wait", client.ended(&run_id).await);
    assert_eq!(
        (run.reason(), run.signal().as_deref()),
        ("exited", Some("SIGKILL"))
    );
    let heard = must("stream", client.hear_all(&run_id, 0).await);
    let usr1s = heard.signals().into_iter().filter(|name| name == usr1);
    assert_eq!(usr1s.count(), 3);
}

// promise: T-18
async fn tree_shows_escaped_and_listening_processes(kennel: &Kennel) {
    let mut client = kennel.client().await;
    let script = format!(
        "(setsid {} listen &) ; echo left; while :; do sleep 0.05; done",
        programs::naughty().display()
    );
    let run = must("spawn", client.spawn(sh(&script)).await);
    // Three lines in any order: the port, readiness, and the parent's exit.
    let said = lines(&mut client, &run.run_id, 3).await;
    let port = said.lines().find_map(|line| line.parse().ok());
    let port: u32 = port.unwrap_or_else(|| panic!("no port in {said:?}"));

    let answer = must("tree", client.tree(&run.run_id).await);
    assert_eq!(answer.unlisted_processes, 0);
    let has_cgroup = run.containment() == pb::Containment::Cgroup;
    let leader = answer.processes.iter().find(|p| p.pid == run.attempt().pid);
    let leader = leader.expect("the leader is in its tree");
    let identity = run.attempt().identity.as_ref().expect("it has one");
    assert_eq!(leader.start_ticks, identity.start_ticks);
    assert_eq!(leader.parent_pid, run.attempt().shim_pid);
    assert_eq!(leader.session_id, leader.pid);
    assert_eq!(leader.args[..2], ["/bin/sh", "-c"]);
    assert!(
        leader.rss_bytes > 0 && leader.listening_tcp_ports.is_empty(),
        "{leader:?}"
    );

    let listens = answer
        .processes
        .iter()
        .find(|p| p.listening_tcp_ports == [port]);
    let listens = listens.unwrap_or_else(|| panic!("no process listens on {port}: {answer:?}"));
    assert_eq!(
        (listens.session_id, listens.process_group_id),
        (listens.pid, listens.pid)
    );
    assert_eq!(
        listens.parent_pid,
        run.attempt().shim_pid,
        "its parent has left it"
    );
    assert_eq!(listens.args.last().map(String::as_str), Some("listen"));
    assert_eq!(listens.name, "naughty");
    // The process may still run (R) or wait for a page of its program (D).
    let states = ["R", "S", "D"];
    assert!(states.contains(&listens.state.as_str()), "{listens:?}");
    assert!(!listens.args_truncated && !listens.listening_tcp_ports_truncated);
    for process in [leader, listens] {
        let holds: Vec<ProcessHold> = process.held_by().collect();
        let expected: &[ProcessHold] = if has_cgroup {
            &[ProcessHold::Cgroup, ProcessHold::Shim]
        } else {
            &[ProcessHold::Shim]
        };
        assert_eq!(holds, expected);
    }
    assert!(answer.processes.is_sorted_by_key(|process| process.pid));

    must("abort", client.abort(&run.run_id).await);
    let answer = must("tree", client.tree(&run.run_id).await);
    assert!(answer.processes.is_empty());
    assert_eq!(answer.run.expect("the run").state(), RunState::Cancelled);
}

// promise: T-16
async fn a_signal_that_makes_no_sense_is_refused(kennel: &Kennel) {
    let mut client = kennel.client().await;
    let run_id = must("spawn", client.spawn(naughty(&["sleep"])).await).run_id;
    let refusal = |status: tonic::Status| {
        let complaint = complaint(&status);
        (complaint.code, complaint.reason, complaint.fields)
    };
    for name in ["", "USR1", "SIGSTOP", "SIGRTMIN+40"] {
        let refused = client.signal(&run_id, name, SignalTarget::Tree, "a").await;
        let expected = (
            Code::InvalidArgument,
            "INVALID_FIELD".into(),
            vec!["signal".into()],
        );
        assert_eq!(refusal(refused.expect_err(name)), expected);
    }
    let unknown = client
        .signal(&new_run_id(), "SIGHUP", SignalTarget::Tree, "")
        .await;
    assert_eq!(refusal(unknown.expect_err("unknown")).1, "RUN_NOT_FOUND");
    let unknown = client.tree(&new_run_id()).await;
    assert_eq!(refusal(unknown.expect_err("unknown")).1, "RUN_NOT_FOUND");

    must("pause", client.pause(&run_id).await);
    let paused = client
        .signal(&run_id, "SIGHUP", SignalTarget::Tree, "a")
        .await;
    assert_eq!(refusal(paused.expect_err("paused")).1, "INVALID_STATE");
    // The tree of a paused run can be read.
    let tree = must("tree", client.tree(&run_id).await);
    assert_eq!(tree.processes.len(), 1);
    must("resume", client.resume(&run_id).await);
    // A refused request leaves its id free.
    let sent = must(
        "signal",
        client
            .signal(&run_id, "SIGHUP", SignalTarget::Tree, "a")
            .await,
    );
    assert_eq!(sent.targets.len(), 1);
    let run = must("wait", client.ended(&run_id).await);
    assert_eq!(run.signal().as_deref(), Some("SIGHUP"));
    let over = client
        .signal(&run_id, "SIGHUP", SignalTarget::Tree, "b")
        .await;
    assert_eq!(refusal(over.expect_err("over")).1, "RUN_ENDED");
}

// promise: T-17
async fn sigcont_continues_what_has_stopped_itself(kennel: &Kennel) {
    let mut client = kennel.client().await;
    let run = must("spawn", client.spawn(sh("kill -STOP $$; exit 4")).await);
    let pid = run.attempt().pid;
    eventually("it has stopped itself", PATIENCE, || {
        Proc::read(pid).filter(|proc| proc.state == 'T')
    })
    .await;
    let tree = must("tree", client.tree(&run.run_id).await);
    assert_eq!(tree.processes[0].state, "T");
    must(
        "signal",
        client
            .signal(&run.run_id, "SIGCONT", SignalTarget::Leader, "")
            .await,
    );
    let run = must("wait", client.ended(&run.run_id).await);
    assert_eq!(run.code(), Some(4));
}
