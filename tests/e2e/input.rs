//! Standard input that clients write to while the command runs: each byte once, in order, for any caller and after any
//! crash.

use crate::play_scenes;
use kennel_proto::pb::{self, InputEnd, RunState};
use kennel_tests::{
    Client, Footprint, Kennel, PATIENCE, RunExt, SpecExt, complaint, eventually_async, fact, must,
    sh,
    shell::{finish, run_to_end, text},
};
use std::{
    fs,
    io::{Read as _, Write as _},
    process::Stdio,
};
use tonic::{Code, Status};

/// Default size of a pipe.
const PIPE: u64 = 65_536;

async fn spawned(client: &mut Client, spec: pb::RunSpec) -> String {
    let run_id = must("spawn", client.spawn(spec).await).run_id;
    client.hear_text(&run_id, "up\n").await;
    run_id
}

fn cat() -> pb::RunSpec {
    sh("echo up; cat").open_input()
}

/// Returns code and reason, and the number of accepted bytes.
fn said(status: &Status) -> (Code, String, String) {
    let accepted = fact(status, "accepted_offset");
    (status.code(), complaint(status).reason, accepted)
}

fn mismatch(accepted: &str) -> (Code, String, String) {
    let reason = "INPUT_OFFSET_MISMATCH".to_owned();
    (Code::OutOfRange, reason, accepted.to_owned())
}

fn closed(accepted: &str) -> (Code, String, String) {
    let reason = "INPUT_CLOSED".to_owned();
    (Code::FailedPrecondition, reason, accepted.to_owned())
}

// promise: V-1, V-5
async fn repeated_input_is_written_once(kennel: &Kennel) {
    let mut client = kennel.client().await;
    let run = spawned(&mut client, cat()).await;

    let first = must("write", client.write(&run, "a", None, b"one ").await);
    assert_eq!((first.start_offset, first.repeated_request), (0, false));
    let again = must("write", client.write(&run, "a", None, b"one ").await);
    assert_eq!((again.start_offset, again.repeated_request), (0, true));
    let again = must("write", client.write(&run, "", Some(0), b"one ").await);
    assert!(again.repeated_request, "by its offset alone");
    must("write", client.write(&run, "", Some(4), b"two ").await);
    // The next server keeps the input state.
    kennel.kill_server();
    let mut client = kennel.client().await;
    let again = must("write", client.write(&run, "a", None, b"one ").await);
    assert_eq!((again.start_offset, again.repeated_request), (0, true));
    let again = must("write", client.write(&run, "", Some(4), b"two ").await);
    assert!(again.repeated_request);
    must("write", client.write(&run, "", None, b"three").await);

    for (what, id, offset, data) in [
        ("a gap", "", Some(14), &b"x"[..]),
        ("an overlap", "", Some(12), b"xyz"),
        ("another write's id", "a", None, b"x"),
    ] {
        let refused = client.write(&run, id, offset, data).await;
        assert_eq!(said(&refused.expect_err(what)), mismatch("13"), "{what}");
    }
    let request = pb::WriteInputRequest {
        run_id: run.clone(),
        data: b"x".to_vec().into(),
        expected_attempt: Some(2),
        ..pb::WriteInputRequest::default()
    };
    let refused = client.process.write_input(request).await;
    let refused = refused.expect_err("another attempt was meant");
    assert_eq!(complaint(&refused).reason, "ATTEMPT_MISMATCH");
    assert_eq!(fact(&refused, "attempt"), "1");
    let empty = client.write(&run, "", None, b"").await;
    assert_eq!(complaint(&empty.expect_err("nothing")).fields, ["data"]);

    let early = client.close_input(&run, Some(12)).await;
    assert_eq!(said(&early.expect_err("more came")), mismatch("13"));
    for _ in 0..2 {
        let status = must("close", client.close_input(&run, Some(13)).await);
        assert_eq!(status.accepted_offset, Some(13));
        assert_eq!(status.closed_by(), InputEnd::Client);
    }
    let ended = must("ended", client.ended(&run).await);
    assert_eq!(ended.state(), RunState::Succeeded);
    let heard = must("stream", client.hear_all(&run, 0).await);
    assert_eq!(heard.text(), "up\none two three");

    let late = client.write(&run, "", Some(13), b"x").await;
    let late = said(&late.expect_err("it has ended"));
    assert_eq!((late.1.as_str(), late.2.as_str()), ("RUN_ENDED", "13"));
    let repeated = must("close", client.close_input(&run, Some(13)).await);
    assert_eq!(
        (repeated.accepted_offset, repeated.closed_by()),
        (Some(13), InputEnd::Client)
    );
    let elsewhere = client.close_input(&run, Some(12)).await;
    let elsewhere = said(&elsewhere.expect_err("it was closed at 13"));
    assert_eq!(
        (elsewhere.1.as_str(), elsewhere.2.as_str()),
        ("RUN_ENDED", "13")
    );
    let status = must("status", client.input(&run).await);
    assert_eq!(
        (status.accepted_offset, status.closed_by()),
        (Some(13), InputEnd::Client)
    );
    Footprint::of_run(&ended).assert_nothing_left();
}

#[tokio::test(flavor = "multi_thread")]
async fn input_is_written_once_and_in_order() {
    let kennel = Kennel::on_sqlite().await;
    play_scenes! {
        &kennel;
        full_pipe_blocks_only_its_writer,
        client_lost_during_write_can_resume_it,
        input_without_reader_is_reported_closed,
        each_attempt_begins_with_an_empty_input,
        repeated_input_is_written_once,
        command_line_writes_resumes_and_forwards,
    }
}

// promise: V-3
async fn full_pipe_blocks_only_its_writer(kennel: &Kennel) {
    let mut client = kennel.client().await;
    let go = kennel.scratch().join("go");
    // The command writes without reading its input.
    let script = format!(
        "echo up; while [ ! -e {0} ]; do sleep 0.02; done; echo tick; exec sleep 1000",
        go.display()
    );
    let full = spawned(&mut client, sh(&script).open_input()).await;
    let (mut writer, id) = (kennel.client().await, full.clone());
    let writing = tokio::spawn(async move {
        let data = vec![7; 300_000];
        writer.write(&id, "w", None, &data).await
    });
    eventually_async("the pipe is full", PATIENCE, async || {
        let status = must("status", kennel.client().await.input(&full).await);
        (status.accepted_offset == Some(PIPE)).then_some(status)
    })
    .await;

    // Another run's input, this run's output, and a stop are unaffected.
    let other = spawned(&mut client, cat()).await;
    must("write", client.write(&other, "", None, b"beside\n").await);
    client.hear_text(&other, "beside\n").await;
    must("close", client.close_input(&other, None).await);
    must("ended", client.ended(&other).await);
    fs::write(&go, "").expect("a file");
    client.hear_text(&full, "tick\n").await;
    assert!(!writing.is_finished(), "there is no room");
    let status = must("status", client.input(&full).await);
    assert_eq!(
        (status.accepted_offset, status.unread_bytes),
        (Some(PIPE), Some(PIPE))
    );
    let ended = must("abort", client.abort(&full).await);
    let refused = must("the writer", writing.await).expect_err("it has no reader");
    assert_eq!(said(&refused), closed("65536"));
    Footprint::of_run(&ended).assert_nothing_left();
}

// promise: V-4
async fn client_lost_during_write_can_resume_it(kennel: &Kennel) {
    let mut client = kennel.client().await;
    let go = kennel.scratch().join("resume");
    let script = format!(
        "echo up; while [ ! -e {} ]; do sleep 0.02; done; wc -c",
        go.display()
    );
    let run = spawned(&mut client, sh(&script).open_input()).await;
    let data = vec![7; 200_000];
    let (mut writer, id, part) = (kennel.client().await, run.clone(), data.clone());
    let writing = tokio::spawn(async move { writer.write(&id, "w", None, &part).await });
    eventually_async("the pipe is full", PATIENCE, async || {
        let status = must("status", kennel.client().await.input(&run).await);
        (status.accepted_offset == Some(PIPE)).then_some(())
    })
    .await;
    writing.abort();
    assert!(writing.await.is_err(), "it was not answered");
    // Another writer would write into the middle of the partial write.
    let blind = client.write(&run, "other", None, b"x").await;
    assert_eq!(said(&blind.expect_err("midway")), mismatch("65536"));

    fs::write(&go, "").expect("a file");
    let whole = must("write", client.write(&run, "w", None, &data).await);
    assert_eq!((whole.start_offset, whole.repeated_request), (0, false));
    must("close", client.close_input(&run, Some(200_000)).await);
    must("ended", client.ended(&run).await);
    let heard = must("stream", client.hear_all(&run, 0).await);
    assert_eq!(heard.text().trim(), "up\n200000");
}

// promise: V-5
async fn input_without_reader_is_reported_closed(kennel: &Kennel) {
    let mut client = kennel.client().await;
    let script = "exec 0<&-; echo up; exec sleep 1000";
    let run = spawned(&mut client, sh(script).open_input()).await;
    let refused = client.write(&run, "", None, b"x").await;
    let refused = refused.expect_err("it has closed it");
    assert_eq!(said(&refused), closed("0"));
    assert_eq!(fact(&refused, "closed_by"), "INPUT_END_COMMAND");
    let status = must("status", client.input(&run).await);
    assert_eq!(status.closed_by(), InputEnd::Command);
    must("close", client.close_input(&run, None).await);
    must("abort", client.abort(&run).await);

    let without = spawned(&mut client, sh("echo up; exec sleep 1000")).await;
    let refused = client.write(&without, "", None, b"x").await;
    let refused = refused.expect_err("it has /dev/null");
    assert_eq!(fact(&refused, "closed_by"), "INPUT_END_SPEC");
    let status = must("status", client.input(&without).await);
    assert_eq!(status.closed_by(), InputEnd::Spec);
    must("abort", client.abort(&without).await);
}

// promise: V-6
async fn each_attempt_begins_with_an_empty_input(kennel: &Kennel) {
    let mut client = kennel.client().await;
    let policy = pb::RestartPolicy {
        mode: pb::RestartMode::Always.into(),
        delay: Some(prost_types::Duration {
            seconds: 3_600,
            nanos: 0,
        }),
        ..pb::RestartPolicy::default()
    };
    let spec = sh("echo up; read line; echo got $line").open_input();
    let run = spawned(&mut client, spec.restart(policy)).await;
    must("write", client.write(&run, "a", Some(0), b"one\n").await);
    eventually_async("it waits for its next attempt", PATIENCE, async || {
        let seen = must("get", kennel.client().await.get(&run).await);
        (seen.state() == RunState::Backoff).then_some(())
    })
    .await;
    let refused = client.write(&run, "b", None, b"x").await;
    let refused = refused.expect_err("nothing runs");
    assert_eq!(complaint(&refused).reason, "INVALID_STATE");
    let status = must("status", client.input(&run).await);
    assert_eq!((status.attempt, status.accepted_offset), (1, Some(4)));

    must("restart", client.restart(&run, Some(1)).await);
    let status = must("status", client.input(&run).await);
    assert_eq!((status.attempt, status.accepted_offset), (2, Some(0)));
    // Attempt 2 does not know request id `a`.
    let written = must("write", client.write(&run, "a", Some(0), b"two\n").await);
    assert!(!written.repeated_request);
    client.hear_text(&run, "got two\n").await;
    must("abort", client.abort(&run).await);
}

// promise: V-7
#[tokio::test(flavor = "multi_thread")]
async fn input_survives_service_death_with_adopted_run() {
    let mut kennel = Kennel::on_sqlite().await;
    let mut client = kennel.client().await;
    let mut spec = cat();
    spec.set_recovery(pb::RecoveryPolicy::Adopt);
    let run = spawned(&mut client, spec).await;
    must("write", client.write(&run, "a", None, b"one ").await);
    client.hear_text(&run, "one ").await;
    kennel.kill_service_after(|| {});
    kennel.wait_for_exit(PATIENCE).await;
    kennel.launch_again().await;

    let mut client = kennel.client().await;
    let status = must("status", client.input(&run).await);
    assert_eq!(
        (status.accepted_offset, status.closed_by()),
        (Some(4), InputEnd::Unspecified)
    );
    let again = must("write", client.write(&run, "a", None, b"one ").await);
    assert!(again.repeated_request);
    must("write", client.write(&run, "b", Some(4), b"two").await);
    must("close", client.close_input(&run, Some(7)).await);
    let ended = must("ended", client.ended(&run).await);
    assert_eq!(
        (ended.state(), ended.code()),
        (RunState::Succeeded, Some(0))
    );
    let heard = must("stream", client.hear_all(&run, 0).await);
    assert_eq!(heard.text(), "up\none two");
    Footprint::of_run(&ended).assert_nothing_left();
}

// promise: V-8
async fn command_line_writes_resumes_and_forwards(kennel: &Kennel) {
    let file = kennel.scratch().join("input");
    fs::write(&file, "one two three").expect("a file");
    let path = file.display().to_string();
    let spawned = kennel.cli(&["spawn", "--stdin", "cat"]);
    let run = text(&run_to_end(spawned, PATIENCE).await).trim().to_owned();
    let mut client = kennel.client().await;
    must("write", client.write(&run, "", None, b"one ").await);
    let write = kennel.cli(&["write", &run, &path, "--offset", "0", "--close"]);
    assert_eq!(text(&run_to_end(write, PATIENCE).await), "13 closed");
    must("ended", client.ended(&run).await);
    let heard = must("stream", client.hear_all(&run, 0).await);
    assert_eq!(heard.text(), "one two three");

    let mut forwards = kennel.cli(&["run", "--stdin", "cat"]);
    forwards.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = forwards.spawn().expect("it can be started");
    let mut input = child.stdin.take().expect("a pipe");
    let mut output = child.stdout.take().expect("a pipe");
    input.write_all(b"first\n").expect("it reads");
    let mut first = [0; 6];
    output.read_exact(&mut first).expect("it writes");
    assert_eq!(&first, b"first\n");
    kennel.kill_server();
    input.write_all(b"second\n").expect("it reads");
    drop(input);
    let ended = finish(child, "kennel run --stdin", PATIENCE).await;
    assert!(ended.status.success(), "{ended:?}");
    let mut rest = String::new();
    output.read_to_string(&mut rest).expect("it has written");
    assert_eq!(rest, "second\n");
}
