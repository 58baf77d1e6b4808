//! Faults of terminals: none is available, a descriptor could leak, a process dies.

use crate::{
    block::numbers,
    play_scenes,
    store_weather::{Full, ROOM, has_met},
};
use kennel_proto::pb::{self, RunState, StreamsEnd};
use kennel_tests::{
    Footprint, Kennel, Options, PATIENCE, RunExt, STORE_PATIENCE, SpecExt, argv, complaint,
    eventually, fact, must,
    procfs::{self, Proc},
    sh, within,
};
use std::{collections::BTreeSet, fs};
use tonic::Code;

fn tty(script: &str) -> pb::RunSpec {
    sh(script).on_terminal(pb::Terminal::default())
}

/// Returns the terminals that this process has open.
fn terminals_of(proc: &Proc) -> Vec<String> {
    let Ok(entries) = fs::read_dir(format!("/proc/{}/fd", proc.pid)) else {
        return Vec::new();
    };
    let targets = entries
        .flatten()
        .filter_map(|entry| fs::read_link(entry.path()).ok());
    let targets = targets.map(|target| target.display().to_string());
    let is_terminal = |target: &String| target.contains("ptmx") || target.contains("/pts/");
    targets.filter(is_terminal).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn terminal_is_private_to_its_command() {
    let kennel = Kennel::on_sqlite().await;
    play_scenes! {
        &kennel;
        only_keeper_server_and_command_hold_a_terminal,
        spec_without_sense_on_a_terminal_is_refused,
        each_attempt_has_its_own_terminal,
    }
}

// promise: P-4
async fn only_keeper_server_and_command_hold_a_terminal(kennel: &Kennel) {
    let mut client = kennel.client().await;
    let mut commands = BTreeSet::new();
    for _ in 0..4 {
        let on_terminal = must("spawn", client.spawn(tty("echo up; exec sleep 1000")).await);
        client.hear_text(&on_terminal.run_id, "up\r\n").await;
        commands.insert(on_terminal.attempt().pid);
        let beside = must("spawn", client.spawn(sh("echo up; exec sleep 1000")).await);
        client.hear_up(&beside.run_id).await;
    }
    let server = kennel.server().expect("it serves").pid;
    for proc in kennel.descendants() {
        let held = terminals_of(&proc);
        if commands.contains(&proc.pid) {
            let own: BTreeSet<&String> = held.iter().collect();
            assert_eq!((held.len(), own.len()), (3, 1), "{proc:?}: {held:?}");
            assert!(!held[0].contains("ptmx"), "{held:?}");
        } else if proc.pid == server {
            assert_eq!(held.len(), 4, "the masters: {held:?}");
        } else {
            assert_eq!(held, [""; 0], "{proc:?}");
        }
    }
    let keeper = Proc::read(kennel.keeper_pid()).expect("it lives");
    assert!(!terminals_of(&keeper).is_empty());
    // Only commands have a controlling terminal.
    for proc in procfs::all() {
        let is_command = commands.contains(&proc.pid);
        if proc.pid == server || proc.pid == keeper.pid || is_command {
            let stat = fs::read_to_string(format!("/proc/{}/stat", proc.pid)).expect("it lives");
            let after = stat.rsplit(") ").next().expect("its name ends");
            let tty: i32 = after
                .split(' ')
                .nth(4)
                .expect("a number")
                .parse()
                .expect("a number");
            assert_eq!(tty != 0, is_command, "{proc:?}");
        }
    }
    for run in must("list", client.list_all(pb::RunFilter::default(), 100).await) {
        must("abort", client.abort(&run.run_id).await);
    }
    // Clients see the end before the keeper closes the terminal.
    eventually("all are closed", PATIENCE, || {
        terminals_of(&keeper).is_empty().then_some(())
    })
    .await;
}

// promise: P-8
#[tokio::test(flavor = "multi_thread")]
async fn exhausted_terminals_are_reported_with_their_number() {
    let kennel = Kennel::start(Options {
        terminals: Some("max=1"),
        ..Options::default()
    })
    .await;
    let mut client = kennel.client().await;
    let first = must("spawn", client.spawn(tty("echo up; cat")).await).run_id;
    client.hear_text(&first, "up\r\n").await;
    let run_id = kennel_tests::new_run_id();
    let refused = client.spawn_as(&run_id, tty("true")).await;
    let refused = refused.expect_err("there is only one");
    let refusal = complaint(&refused);
    assert_eq!(
        (refusal.code, refusal.reason.as_str()),
        (Code::ResourceExhausted, "PTY_EXHAUSTED")
    );
    let number = |name: &str| fact(&refused, name).parse::<u64>().expect("a number");
    assert!(number("current") >= 1 && number("max") >= 1);
    assert!(kennel_tests::client::retry_after(&refused).is_some());
    assert_eq!(
        client.get(&run_id).await.expect_err("nothing").code(),
        Code::NotFound
    );
    // Other runs are unaffected; the refused id is free.
    let piped = must("spawn", client.spawn(sh("echo fine")).await).run_id;
    assert_eq!(must("ended", client.ended(&piped).await).code(), Some(0));
    must("abort", client.abort(&first).await);
    must("spawn", client.spawn_as(&run_id, tty("true")).await);
    assert_eq!(must("ended", client.ended(&run_id).await).code(), Some(0));
}

// promise: P-8
#[tokio::test(flavor = "multi_thread")]
async fn host_without_terminals_reports_that_and_runs() {
    let kennel = Kennel::start(Options {
        terminals: Some(""),
        ..Options::default()
    })
    .await;
    let mut client = kennel.client().await;
    let info = client.server_info().await.expect("it answers");
    let host = info.host.expect("the server reports it");
    let of = host.capabilities.iter().find(|c| c.name == "terminal");
    let capability = of.expect("the server reports it");
    assert!(!capability.available, "{capability:?}");
    let refused = client.spawn(tty("true")).await;
    let refused = refused.expect_err("there is none");
    let refusal = complaint(&refused);
    assert_eq!(
        (refusal.code, refusal.reason.as_str()),
        (Code::FailedPrecondition, "PTY_UNAVAILABLE")
    );
    assert!(!fact(&refused, "why").is_empty());
    let piped = must("spawn", client.spawn(sh("echo fine")).await).run_id;
    assert_eq!(must("ended", client.ended(&piped).await).code(), Some(0));
}

// promise: P-1a
async fn spec_without_sense_on_a_terminal_is_refused(kennel: &Kennel) {
    let mut client = kennel.client().await;
    let mut adopted = tty("true");
    adopted.recovery = pb::RecoveryPolicy::Adopt.into();
    let kept = tty("true").on_leader_exit(pb::LeaderExitAction::Keep, None);
    let mut given = tty("true");
    given.initial_input = Some(b"x".to_vec().into());
    let mut piped = sh("true").open_input();
    piped.kind = pb::RunKind::Terminal.into();
    let job = tty("true").kind_of(pb::RunKind::Job);
    for (spec, field) in [
        (adopted, "spec.recovery"),
        (kept, "spec.on_leader_exit.action"),
        (given, "spec.initial_input"),
        (piped, "spec.pipes"),
        (job, "spec.terminal"),
    ] {
        let refused = client.spawn(spec).await.expect_err(field);
        let refusal = complaint(&refused);
        assert_eq!(
            (refusal.reason.as_str(), refusal.fields),
            ("INVALID_FIELD", vec![field.to_owned()])
        );
    }
}

// promise: P-9
#[tokio::test(flavor = "multi_thread")]
async fn terminal_run_ends_with_its_keeper() {
    let mut kennel = Kennel::on_sqlite().await;
    let mut client = kennel.client().await;
    let spec = argv(&["bash", "--norc", "-i"]).on_terminal(pb::Terminal::default());
    let run = must("spawn", client.spawn(spec).await);
    must(
        "write",
        client.write(&run.run_id, "", None, b"echo u''p\n").await,
    );
    client.hear_text(&run.run_id, "up\r\n").await;
    let shell = Proc::read(run.attempt().pid).expect("it lives");
    kennel.kill_keeper();
    eventually("it ends", PATIENCE, || (!shell.is_alive()).then_some(())).await;
    kennel.serve_again().await;
    let mut client = kennel.client().await;
    let ended = must("ended", client.ended(&run.run_id).await);
    assert!(
        matches!(ended.state(), RunState::Lost | RunState::Failed),
        "{ended:?}"
    );
    Footprint::of_run(&ended).assert_nothing_left();
    let attempt = ended.current_attempt.expect("it has run");
    assert_ne!(attempt.streams_end(), StreamsEnd::Unspecified);
}

// promise: P-9
async fn each_attempt_has_its_own_terminal(kennel: &Kennel) {
    let mut client = kennel.client().await;
    let policy = pb::RestartPolicy {
        mode: pb::RestartMode::OnFailure.into(),
        max_restarts: Some(1),
        ..pb::RestartPolicy::default()
    };
    let terminal = pb::Terminal {
        rows: Some(24),
        cols: Some(80),
        term: String::new(),
    };
    let spec = sh("stty size; stty rows 9; exit 3").on_terminal(terminal);
    let run = must("spawn", client.spawn(spec.restart(policy)).await).run_id;
    let ended = must("ended", client.ended(&run).await);
    assert_eq!(ended.current_attempt.as_ref().map(|a| a.number), Some(2));
    let heard = must("stream", client.hear_all(&run, 0).await);
    assert_eq!(heard.text(), "24 80\r\n24 80\r\n");
}

// promise: P-8a
#[tokio::test(flavor = "multi_thread")]
async fn terminal_output_waits_for_full_disk() {
    let options = Options {
        data_room: Some(ROOM),
        ..Options::default()
    };
    let kennel = Kennel::start(options).await;
    let mut client = kennel.client().await;
    let script = "stty -echo -onlcr; echo up; read x; seq 1 100000; echo \"$x\"; read y; exit 5";
    let run = must("spawn", client.spawn(tty(script)).await);
    client.hear_text(&run.run_id, "up\n").await;
    let full = Full::make(&kennel);
    must("input", client.type_in(&run.run_id, "typed\r").await);
    has_met(&kennel, &run).await;
    let waits = must("get", client.get(&run.run_id).await);
    assert_eq!(waits.state(), RunState::Running);
    full.make_room();
    client.hear_text(&run.run_id, "typed\n").await;
    must("input", client.type_in(&run.run_id, "\r").await);
    let ended = within("its end", STORE_PATIENCE, client.ended(&run.run_id)).await;
    let ended = must("wait", ended);
    assert_eq!(ended.code(), Some(5));
    let heard = must("stream", client.hear_all(&run.run_id, 0).await);
    let wanted = format!("up\n{}typed\n", numbers(100_000));
    assert!(
        heard.text() == wanted,
        "{} of {} bytes",
        heard.text().len(),
        wanted.len()
    );
    Footprint::of_run(&ended).assert_nothing_left();
}
