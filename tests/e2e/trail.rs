//! The audit log: every requested change, every signal, and no secret.

use crate::audit_export::printed;
use kennel_proto::pb::{self, audit_record::Record};
use kennel_tests::{
    Client, Kennel, Options, PATIENCE, RunExt, SpecExt, cases, eventually_async, must, naughty,
    procfs::Proc, sh,
};
use serde_json::Value;
use std::{fs, os::unix::fs::DirBuilderExt, time::Duration};

const SECRETS: [&str; 3] = ["in-an-argument", "in-a-variable", "in-the-input"];

// The first test reads the log from its beginning; others replace server and keeper; the last changes the log.
cases! {
    fn audit_log_of_one_node(mut Kennel::start(Options::default()).await);
    each_request_is_audited_without_secrets,
    exported_lines_are_verified_elsewhere,
    signals_sent_without_server_are_audited_once,
    signals_of_dead_service_and_recovery_are_audited,
    verified_log_shows_what_was_changed,
}

// promise: AU-1, AU-7
async fn each_request_is_audited_without_secrets(kennel: &mut Kennel) {
    let mut client = kennel.client().await;
    let spec = sh("read x; echo up; exec sleep 1000; : in-an-argument")
        .env("SECRET", "in-a-variable")
        .open_input();
    let run = must("spawn", client.spawn(spec).await);
    let id = run.run_id.clone();
    must(
        "write",
        client.write(&id, "", None, b"in-the-input\n").await,
    );
    client.hear_up(&id).await;
    must("pause", client.pause(&id).await);
    must("resume", client.resume(&id).await);
    let refused = client.pause("01JD0000000000000000000000").await;
    refused.expect_err("there is no such run");
    let killed = kennel.cli(&["abort", &id, "--grace", "0"]).output();
    assert!(killed.expect("it runs").status.success());

    let of_run = must("audit", client.trail(&id).await);
    let asked: Vec<&str> = requests(&of_run).map(|r| r.rpc.as_str()).collect();
    assert_eq!(
        asked,
        ["Spawn", "WriteInput", "Pause", "Resume", "Abort"],
        "{of_run:#?}"
    );
    let uid = nix::unistd::geteuid();
    let own = i32::try_from(std::process::id()).expect("a pid");
    for request in requests(&of_run) {
        assert_eq!(request.by, format!("uid:{uid}"));
        assert_eq!((request.code.as_str(), request.reason.as_str()), ("OK", ""));
        let is_here = request.pid == Some(own);
        assert_eq!(is_here, request.rpc != "Abort", "{request:?}");
    }
    let [spawn, write, .., abort] = &requests(&of_run).collect::<Vec<_>>()[..] else {
        panic!("{of_run:#?}")
    };
    assert_eq!(spawn.asked["command"], "/bin/sh");
    assert_eq!(write.bytes, 13);
    assert!(!abort.request_id.is_empty());

    // The shim may send another SIGKILL.
    let kill = signals(&of_run).find(|s| (&*s.signal, &*s.sender) == ("SIGKILL", "keeper"));
    let kill = kill.expect("it was killed");
    assert!(kill.why.contains(&abort.request_id), "{kill:?}");
    assert!(kill.delivered >= 1, "{kill:?}");
    // The record names the leader's identity and evidence.
    let leader = run.attempt();
    let shot = kill.processes.iter().find(|p| p.pid == leader.pid);
    let shot = shot.unwrap_or_else(|| panic!("{kill:?}"));
    let identity = leader.identity.as_ref().expect("it has one");
    assert!(
        [0, identity.start_ticks].contains(&shot.start_ticks),
        "{shot:?}"
    );
    assert_eq!(kill.boot_id, identity.boot_id);
    assert_eq!(shot.result, "delivered");
    assert!(!shot.evidence.is_empty(), "{shot:?}");

    let all = must("audit", client.trail("").await);
    let refusal = requests(&all)
        .find(|r| r.code != "OK")
        .expect("one was refused");
    assert_eq!(
        (refusal.code.as_str(), refusal.reason.as_str()),
        ("NOT_FOUND", "RUN_NOT_FOUND")
    );
    assert_eq!(facts(&all), ["service_started", "server_started"]);
    let seqs: Vec<u64> = all.iter().map(|record| record.seq).collect();
    assert!(seqs.is_sorted_by(|one, next| one < next), "{seqs:?}");

    for file in fs::read_dir(kennel.data_dir().join("audit")).expect("it is there") {
        let text = fs::read_to_string(file.expect("a file").path()).expect("text");
        for secret in SECRETS {
            assert!(!text.contains(secret), "{text}");
        }
    }
    let printed = kennel.cli(&["audit", &id]).output().expect("it runs");
    let printed = String::from_utf8(printed.stdout).expect("text");
    assert!(printed.contains(" Spawn by uid:"), "{printed}");
    assert!(printed.contains("SIGKILL by keeper"), "{printed}");
}

// promise: RW-142
async fn exported_lines_are_verified_elsewhere(kennel: &mut Kennel) {
    let mut client = kennel.client().await;
    for _ in 0..3 {
        must("spawn", client.spawn(sh("true")).await);
    }
    let data_dir = kennel.data_dir().display().to_string();
    let cli = |words: &[&str]| kennel.cli(words).output().expect("it runs");
    let whole = printed(&cli(&["audit", "--export", &data_dir]));
    let seqs = |text: &str| -> Vec<u64> {
        let lines = text
            .lines()
            .map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
        lines
            .map(|line| line["seq"].as_u64().expect("a number"))
            .collect()
    };
    let all = seqs(&whole);
    assert!(
        all.len() > 3 && all.windows(2).all(|two| two[1] == two[0] + 1),
        "{all:?}"
    );
    let after = all[1].to_string();
    let rest = printed(&cli(&["audit", "--export", &data_dir, "--after", &after]));
    assert_eq!(seqs(&rest), all[2..]);

    let file = kennel.scratch().join("exported");
    let verify = |text: &str, more: &[&str]| {
        fs::write(&file, text).expect("own directory");
        let path = file.display().to_string();
        cli(&[&["audit", "--verify", &path], more].concat())
    };
    let head = printed(&verify(&whole, &[]));
    assert_eq!(printed(&verify(&rest, &[])), head);
    let old = head_of(&whole, 1);
    assert_eq!(printed(&verify(&rest, &["--head", &old])), head);
    assert_eq!(
        verify(&rest, &["--head", &old.replace(&old[2..6], "0000")])
            .status
            .code(),
        Some(1)
    );
    assert_eq!(
        verify(&whole.replace("Spawn", "Abort"), &[]).status.code(),
        Some(1)
    );
    let cut: Vec<&str> = whole
        .lines()
        .enumerate()
        .filter(|(at, _)| *at != 2)
        .map(|(_, line)| line)
        .collect();
    assert_eq!(verify(&(cut.join("\n") + "\n"), &[]).status.code(), Some(1));
}

/// Returns the seq and the hash of a line: the next one names it.
fn head_of(text: &str, at: usize) -> String {
    let lines: Vec<Value> = text
        .lines()
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .collect();
    format!(
        "{}:{}",
        lines[at]["seq"],
        lines[at + 1]["prev"].as_str().expect("text")
    )
}

// promise: AU-2, AU-7
async fn signals_sent_without_server_are_audited_once(kennel: &mut Kennel) {
    let mut client = kennel.client().await;
    let spec = naughty(&["storm-node", "1"]).grace(Duration::from_millis(300));
    let run = must("spawn", client.spawn(spec).await);
    client.hear_up(&run.run_id).await;
    let leader = Proc::read(run.attempt().pid).expect("it runs");
    let ending = client.abort_with(&run.run_id, None, pb::AbortWait::None);
    must("abort", ending.await);
    kennel.kill_server();
    // The keeper continues the ladder, with or without a new server.
    eventually_async("it is killed", PATIENCE, async || {
        (!leader.is_alive()).then_some(())
    })
    .await;
    let mut client = kennel.client().await;
    let ended = must("wait", client.ended(&run.run_id).await);
    let of_run = must("audit", client.trail(&run.run_id).await);
    let certificate = ended.attempt().certificate.clone().expect("it has ended");
    let recorded: Vec<_> = signals(&of_run)
        .map(|s| (s.signal.clone(), s.delivered, s.gone))
        .collect();
    let sent: Vec<_> = certificate
        .steps
        .iter()
        .map(|s| (s.signal.clone(), s.delivered, s.gone))
        .collect();
    assert_eq!(recorded, sent, "{of_run:#?}");
    // Each signalled process is listed with its start time: no read failed.
    let first = signals(&of_run).next().expect("it was asked to end");
    let reached = first.processes.iter().filter(|p| p.result == "delivered");
    let reached: Vec<_> = reached.collect();
    assert_eq!(
        reached.len(),
        usize::try_from(first.delivered).expect("few")
    );
    let start = |pid| reached.iter().find(|p| p.pid == pid).map(|p| p.start_ticks);
    assert_eq!(start(leader.pid), Some(leader.start_ticks), "{first:?}");
    assert!(
        signals(&of_run).all(|s| s.why.contains("requested its end")),
        "{of_run:#?}"
    );
    let all = must("audit", client.trail("").await);
    let facts = facts(&all);
    assert!(facts.contains(&"server_ended"), "{facts:?}");
}

// promise: AU-2
async fn signals_of_dead_service_and_recovery_are_audited(kennel: &mut Kennel) {
    let mut client = kennel.client().await;
    let spec = naughty(&["storm-node", "1"]).grace(Duration::from_millis(300));
    let run = must("spawn", client.spawn(spec).await);
    client.hear_up(&run.run_id).await;
    kennel.kill_keeper();
    kennel.wait_until_all_is_gone(PATIENCE).await;
    kennel.restart().await;
    let mut client = kennel.client().await;
    must("wait", client.ended(&run.run_id).await);
    let of_run = must("audit", client.trail(&run.run_id).await);
    let by_shim = signals(&of_run).filter(|s| s.sender == "shim" && s.why.contains("died"));
    assert!(by_shim.count() >= 2, "{of_run:#?}");
    let all = must("audit", client.trail("").await);
    let starts = facts(&all).into_iter().filter(|f| *f == "service_started");
    assert_eq!(starts.count(), 2);
    assert!(facts(&all).contains(&"keeper_lost"), "{all:#?}");
}

// promise: AU-3
#[tokio::test(flavor = "multi_thread")]
async fn unwritable_audit_log_is_reported_and_runs_continue() {
    let dir = tempfile::tempdir().expect("a directory");
    let data = dir.path().join("data");
    let mut private = fs::DirBuilder::new();
    private.mode(0o700).create(&data).expect("own directory");
    fs::write(data.join("audit"), b"in the way").expect("own directory");
    let kennel = Kennel::start_in(dir, Options::default()).await;
    let mut client = kennel.client().await;
    let run = must("spawn", client.spawn(sh("exit 3")).await);
    let ended = must("wait", client.ended(&run.run_id).await);
    assert_eq!(ended.code(), Some(3));
    kennel.logs("cannot write the audit log", 1).await;
    // Pending records are written once the file is gone.
    fs::remove_file(kennel.data_dir().join("audit")).expect("own directory");
    let asked = async |mut client: Client| {
        let of_run = client.trail(&run.run_id).await.ok()?;
        requests(&of_run).any(|r| r.rpc == "Spawn").then_some(())
    };
    eventually_async("it is written", PATIENCE, async || {
        asked(kennel.client().await).await
    })
    .await;
}

fn requests(records: &[pb::AuditRecord]) -> impl Iterator<Item = &pb::AuditRequest> {
    records.iter().filter_map(|record| match &record.record {
        Some(Record::Request(request)) => Some(request),
        _ => None,
    })
}

fn signals(records: &[pb::AuditRecord]) -> impl Iterator<Item = &pb::AuditSignal> {
    records.iter().filter_map(|record| match &record.record {
        Some(Record::Signal(signal)) => Some(signal),
        _ => None,
    })
}

fn facts(records: &[pb::AuditRecord]) -> Vec<&str> {
    let facts = records.iter().filter_map(|record| match &record.record {
        Some(Record::Node(node)) => Some(node.what.as_str()),
        _ => None,
    });
    facts.collect()
}

// promise: AU-20
async fn verified_log_shows_what_was_changed(kennel: &mut Kennel) {
    let mut client = kennel.client().await;
    must("first", client.spawn(sh("true")).await);
    kennel.kill_server();
    eventually_async("second", PATIENCE, async || {
        client.clone().spawn(sh("true")).await.ok()
    })
    .await;
    kennel.terminate(PATIENCE).await;
    let dir = kennel.data_dir();
    let verify = |more: &[&str]| {
        let data_dir = dir.to_str().expect("UTF-8");
        let words = [&["audit", "--verify", data_dir], more].concat();
        kennel.cli(&words).output().expect("it runs")
    };
    let whole = verify(&[]);
    assert!(whole.status.success(), "{whole:?}");
    let head = String::from_utf8(whole.stdout).expect("text");
    let head = head.trim();
    assert!(verify(&["--head", head]).status.success());

    let log = dir.join("audit/00000000000000000001.jsonl");
    let text = fs::read_to_string(&log).expect("own directory");
    // A missing newest line is detected only with `--head`.
    let cut = text.trim_end().rsplit_once('\n').expect("lines").0;
    fs::write(&log, format!("{cut}\n")).expect("own directory");
    assert!(verify(&[]).status.success());
    assert_eq!(verify(&["--head", head]).status.code(), Some(1));
    fs::write(&log, text.replace("\"Spawn\"", "\"Abort\"")).expect("own directory");
    let changed = verify(&[]);
    assert_eq!(changed.status.code(), Some(1));
    let said = String::from_utf8_lossy(&changed.stderr).into_owned();
    assert!(
        said.contains("the audit log was changed") && said.contains("line "),
        "{said}"
    );
}
