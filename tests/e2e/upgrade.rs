//! Replacement of the server's binary, while runs, streams and calls continue.

use crate::play_apart;
use kennel_proto::pb::{self, RunState, ServerEndCause, UpgradeState, WaitCondition};
use kennel_tests::{
    Client, Kennel, Options, PATIENCE, RunExt, SHUTDOWN_LIMIT, SpecExt, complaint, eventually,
    eventually_async, must, naughty,
    procfs::{self, Proc},
    programs, sh,
    shell::{finish, run_to_end, text},
};
use nix::sys::signal::Signal;
use std::{
    fs,
    os::unix::fs::MetadataExt,
    process::Stdio,
    time::{Duration, SystemTime},
};
use tonic::{Code, Status};
use tonic_types::StatusExt;

/// More than the time after which a server has served for long enough, and has answered the keeper since.
const PROVED: Duration = Duration::from_secs(5);

async fn start() -> Kennel {
    Kennel::start(Options {
        own_binary: Some(programs::kennel()),
        ..Options::default()
    })
    .await
}

async fn ask(client: &mut Client, request_id: &str) -> Result<pb::Upgrade, Status> {
    let request = pb::UpgradeRequest {
        request_id: request_id.to_owned(),
    };
    let answer = client.admin.upgrade(request).await?.into_inner();
    Ok(answer.upgrade.expect("an upgrade is given"))
}

/// Waits until a server of a later generation serves.
async fn replaced(kennel: &Kennel, generation: i64) -> pb::ServerInfo {
    eventually_async("another server serves", PATIENCE, async || {
        let info = kennel.client().await.server_info().await?;
        (info.generation > generation).then_some(info)
    })
    .await
}

/// Starts a run with processes of several kinds.
async fn mixed_tree(client: &mut Client) -> pb::Run {
    let run = must("spawn", client.spawn(naughty(&["mixed-tree"])).await);
    client.hear_up(&run.run_id).await;
    run
}

/// Returns the run as it is now.
async fn assert_lives_on(client: &mut Client, run: &pb::Run) -> pb::Run {
    let again = must("get", client.get(&run.run_id).await);
    assert_eq!(
        (again.state(), again.lasting()),
        (RunState::Running, run.lasting())
    );
    again
}

async fn info(kennel: &Kennel) -> pb::ServerInfo {
    kennel
        .client()
        .await
        .server_info()
        .await
        .expect("it serves")
}

// promise: R-24
#[tokio::test(flavor = "multi_thread")]
async fn run_is_unaffected_by_an_upgrade() {
    let kennel = start().await;
    let mut client = kennel.client().await;
    let spec = naughty(&["mixed-tree"]).max_runtime(PATIENCE * 10);
    let run = must("spawn", client.spawn(spec).await);
    client.hear_up(&run.run_id).await;
    let extended = client.extend(&run.run_id, &[], PATIENCE * 20).await;
    let extended = must("extend", extended).time_limits;
    let leader = Proc::read(run.attempt().pid).expect("it runs");
    let before = info(&kennel).await;
    let mut waits = kennel.cli(&["wait", &run.run_id]);
    let waits = waits.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let waits = waits.expect("it starts");

    kennel.install(&programs::kennel());
    let output = run_to_end(kennel.cli(&["upgrade"]), PATIENCE).await;
    assert!(output.status.success(), "{output:?}\n{}", kennel.log());
    let printed = text(&output);
    assert!(printed.contains("(generation 1) -> "), "{printed}");
    assert!(
        printed.contains("(generation 2); no server answered for "),
        "{printed}"
    );

    let after = info(&kennel).await;
    assert_eq!(after.generation, before.generation + 1);
    assert_eq!(after.keeper, before.keeper);
    let former = after.former_server.expect("there was one");
    assert_eq!(former.cause(), ServerEndCause::Upgrade);
    assert_eq!(after.last_upgrade.expect("one").state(), UpgradeState::Done);
    let server = kennel.server().expect("a server runs");
    let runs = fs::metadata(format!("/proc/{}/exe", server.pid)).expect("own child");
    let installed = fs::metadata(kennel.program()).expect("it is installed");
    assert_eq!((runs.dev(), runs.ino()), (installed.dev(), installed.ino()));
    assert!(!kennel.log().contains("WARN"), "{}", kennel.log());

    let mut client = kennel.client().await;
    let again = assert_lives_on(&mut client, &run).await;
    assert_eq!(again.time_limits, extended);
    assert!(leader.is_alive());
    let run = must("abort", client.abort(&run.run_id).await);
    assert!(run.tree_is_empty(), "{:?}", run.tree_verdict);
    let waited = finish(waits, "wait", PATIENCE).await;
    assert!(text(&waited).contains("aborted by"), "{waited:?}");
    let status = text(&run_to_end(kennel.cli(&["status"]), PATIENCE).await);
    assert!(status.contains("made room for an upgrade"), "{status}");
}

// promise: R-24
#[tokio::test(flavor = "multi_thread")]
async fn sighup_upgrades_and_later_restarts_use_new_binary() {
    let kennel = start().await;
    let before = info(&kennel).await;
    kennel.install(&programs::kennel());
    let new = fs::metadata(kennel.program())
        .expect("it is installed")
        .ino();
    kennel.signal(Signal::SIGHUP);
    let after = replaced(&kennel, before.generation).await;
    assert_eq!(after.last_upgrade.expect("one").state(), UpgradeState::Done);

    // Until a server has proved itself, its death counts as a failed upgrade.
    let started = after.start_time.expect("it has begun");
    eventually("it has proved itself", PATIENCE, || {
        let age = SystemTime::now()
            .duration_since(started.try_into().ok()?)
            .ok()?;
        (age > PROVED).then_some(())
    })
    .await;
    // An installed binary is not started before a request.
    kennel.install_script("#!/bin/sh\nexit 3\n");
    kennel.kill_server();
    replaced(&kennel, after.generation).await;
    let server = kennel.server().expect("a server runs");
    let runs = fs::metadata(format!("/proc/{}/exe", server.pid)).expect("own child");
    assert_eq!(runs.ino(), new);
    kennel.signal(Signal::SIGHUP);
    eventually("the refusal is logged", PATIENCE, || {
        let log = kennel.log();
        log.contains("not upgraded: no server can be started from")
            .then_some(())
    })
    .await;
    assert_eq!(kennel.server().expect("a server runs").pid, server.pid);
}

// promise: A-22i, R-25
#[tokio::test(flavor = "multi_thread")]
async fn unusable_binary_is_refused_without_effect() {
    let kennel = start().await;
    let before = info(&kennel).await;
    let server = kennel.server().expect("a server runs");
    let real = programs::kennel().display().to_string();
    let cases = [
        (
            "#!/bin/sh\necho no such thing >&2; exit 1\n".to_owned(),
            "exited with code 1: no such thing",
            None,
        ),
        (
            "#!/bin/sh\nexit 0\n".to_owned(),
            "did not say what it speaks",
            None,
        ),
        (
            "#!/bin/sh\nkill -SEGV $$\n".to_owned(),
            "was killed by SIGSEGV",
            None,
        ),
        (
            format!(
                "#!/bin/sh\n[ \"$1\" = preflight ] || exec {real} \"$@\"\necho kennel wire 77 version 9.9.9\n"
            ),
            "is kennel 9.9.9 and speaks levels 77-77 of messages",
            Some("77"),
        ),
        ("not a program".to_owned(), "exited with code 127", None),
    ];
    for (script, why, protocol) in cases {
        kennel.install_script(&script);
        let refused = ask(&mut kennel.client().await, "").await.expect_err(why);
        let refusal = complaint(&refused);
        assert_eq!(refusal.code, Code::FailedPrecondition, "{refused:?}");
        assert_eq!(refusal.reason, "UPGRADE_REFUSED");
        assert!(refused.message().contains(why), "{}", refused.message());
        let details = refused.get_error_details();
        let facts = &details.error_info().expect("a reason").metadata;
        assert_eq!(facts.get("protocol").map(String::as_str), protocol);
    }
    fs::remove_file(kennel.program()).expect("own directory");
    let output = run_to_end(kennel.cli(&["upgrade"]), PATIENCE).await;
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(errors.contains("No such file"), "{errors}");
    let after = info(&kennel).await;
    assert_eq!(
        (after.generation, after.last_upgrade),
        (before.generation, None)
    );
    assert_eq!(kennel.server().expect("it runs on").pid, server.pid);
}

#[tokio::test(flavor = "multi_thread")]
async fn binary_that_does_not_serve_is_given_up() {
    play_apart! {
        silent_binary_is_given_up_with_its_processes,
        new_server_not_serving_yields_to_former,
        new_server_dying_when_ready_yields_to_former,
    };
}

// promise: R-25
async fn silent_binary_is_given_up_with_its_processes() {
    let kennel = start().await;
    let pids = kennel.scratch().join("pids");
    kennel.install_script(&format!(
        "#!/bin/sh\nsleep 300 & echo $! > {}; wait\n",
        pids.display()
    ));
    let (mut first, mut second) = (kennel.client().await, kennel.client().await);
    let asked = tokio::spawn(async move { ask(&mut first, "a").await });
    eventually("it is looked at", PATIENCE, || pids.exists().then_some(())).await;
    // The keeper stays responsive and allows one upgrade at a time.
    must("spawn", second.spawn(sh("true")).await);
    let refused = ask(&mut second, "b").await.expect_err("one at a time");
    assert_eq!(complaint(&refused).reason, "UPGRADE_UNDER_WAY");

    let refused = must("no panic", asked.await).expect_err("it never answers");
    assert_eq!(complaint(&refused).reason, "UPGRADE_REFUSED");
    assert!(
        refused.message().contains("did not say within 5 s"),
        "{refused:?}"
    );
    let text = fs::read_to_string(&pids).expect("it was written");
    let sleeper: i32 = text.trim().parse().expect("a number");
    eventually("nothing of it is left", PATIENCE, || {
        Proc::read(sleeper)
            .is_none_or(|proc| !proc.is_alive())
            .then_some(())
    })
    .await;
    must("it serves on", second.spawn(sh("true")).await);
}

// promise: R-25a
async fn new_server_not_serving_yields_to_former() {
    let kennel = start().await;
    let mut client = kennel.client().await;
    let run = mixed_tree(&mut client).await;
    let real = programs::kennel().display().to_string();
    // The new server fails, exits with success, or hangs before it serves.
    for (dies, how) in [
        ("exit 9", "exited with code 9 before it served"),
        ("exit 0", "exited with code 0 before it served"),
        (
            "exec sleep 300",
            "hung and was killed by the keeper before it served",
        ),
    ] {
        let before = info(&kennel).await;
        kennel.install_script(&format!(
            "#!/bin/sh\n[ \"$1\" = preflight ] && exec {real} \"$@\"\n{dies}\n"
        ));
        let output = run_to_end(kennel.cli(&["upgrade"]), PATIENCE).await;
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(errors.contains("fell back to kennel"), "{errors}");
        assert!(errors.contains(how), "{errors}");
        let after = info(&kennel).await;
        assert_eq!(after.generation, before.generation + 1);
        let last = after.last_upgrade.expect("one");
        assert_eq!(last.state(), UpgradeState::FellBack);
        assert!(last.why.contains(how), "{last:?}");
        let former = after.former_server.expect("there was one");
        assert!(!former.served, "{former:?}");
        assert_eq!(kennel.log().matches(how).count(), 1, "{}", kennel.log());
    }
    let mut client = kennel.client().await;
    assert_lives_on(&mut client, &run).await;
    kennel.install(&programs::kennel());
    let output = run_to_end(kennel.cli(&["upgrade"]), PATIENCE).await;
    assert!(output.status.success(), "{output:?}");
    must("abort", kennel.client().await.abort(&run.run_id).await);
}

// promise: R-25a
async fn new_server_dying_when_ready_yields_to_former() {
    let kennel = start().await;
    let mut client = kennel.client().await;
    let run = mixed_tree(&mut client).await;
    let real = programs::kennel().display().to_string();
    // Right after reporting readiness, the new server is killed (as by the OOM killer), panics or hangs.
    for (dies, how) in [
        ("server", "was killed by SIGKILL"),
        ("panic", "exited with code 101"),
        ("hang", "hung and was killed by the keeper"),
    ] {
        let before = info(&kennel).await;
        let points = kennel.scratch().join(dies);
        fs::create_dir(&points).expect("own directory");
        fs::write(points.join("boot.ready"), dies).expect("own directory");
        kennel.install_script(&format!(
            "#!/bin/sh\n[ \"$1\" = preflight ] || export KENNEL_TEST_CRASH={}\nexec {real} \"$@\"\n",
            points.display()
        ));
        must("upgrade", ask(&mut client, "").await);
        // The dying new server used one generation.
        let after = replaced(&kennel, before.generation + 1).await;
        let last = after.last_upgrade.expect("one");
        assert_eq!(last.state(), UpgradeState::FellBack, "{last:?}");
        assert_eq!(last.why, format!("the new server {how}"));
        assert!(after.former_server.expect("there was one").served);
        client = kennel.client().await;
    }
    assert_lives_on(&mut client, &run).await;
    must("abort", client.abort(&run.run_id).await);
}

// promise: R-24
#[tokio::test(flavor = "multi_thread")]
async fn upgrade_ends_no_run_under_any_policy() {
    let kennel = Kennel::start(Options {
        own_binary: Some(programs::kennel()),
        words: vec!["--orphan-ttl", "0s"],
        ..Options::default()
    })
    .await;
    let mut client = kennel.client().await;
    let run = mixed_tree(&mut client).await;
    let output = run_to_end(kennel.cli(&["upgrade"]), PATIENCE).await;
    assert!(output.status.success(), "{output:?}");
    assert_lives_on(&mut kennel.client().await, &run).await;
}

// promise: R-26
#[tokio::test(flavor = "multi_thread")]
async fn repeated_request_upgrades_once_with_one_result() {
    let kennel = start().await;
    let before = info(&kennel).await;
    let begun = must("upgrade", ask(&mut kennel.client().await, "a").await);
    assert_eq!(begun.state(), UpgradeState::Leaving);
    let after = replaced(&kennel, before.generation).await;
    must("upgrade", ask(&mut kennel.client().await, "b").await);
    let after = replaced(&kennel, after.generation).await;
    // Both request ids are known, also the older upgrade's.
    for id in ["a", "b"] {
        let again = must("again", ask(&mut kennel.client().await, id).await);
        assert_eq!(again.state(), UpgradeState::Done);
        assert_eq!(again.start_time == begun.start_time, id == "a");
    }
    assert_eq!(info(&kennel).await.generation, after.generation);
}

// promise: R-26
#[tokio::test(flavor = "multi_thread")]
async fn termination_during_upgrade_ends_the_service() {
    for at in ["checked", "leaving", "starting"] {
        let mut kennel = start().await;
        let mut client = kennel.client().await;
        let run = must("spawn", client.spawn(sh("echo up; exec sleep 300")).await);
        client.hear_up(&run.run_id).await;
        let up = kennel.scratch().join("up");
        let real = programs::kennel().display().to_string();
        let script = match at {
            "checked" => format!("#!/bin/sh\n: > {}; sleep 300\n", up.display()),
            "leaving" => format!("#!/bin/sh\nexec {real} \"$@\"\n"),
            _ => format!(
                "#!/bin/sh\n[ \"$1\" = preflight ] || : > {}\nexec {real} \"$@\"\n",
                up.display()
            ),
        };
        kennel.install_script(&script);
        let asked = tokio::spawn(async move { ask(&mut client, "a").await });
        if at == "leaving" {
            must("no panic", asked.await).expect("it is fit");
        } else {
            eventually("it is so far", PATIENCE, || up.exists().then_some(())).await;
        }
        let status = kennel.terminate(SHUTDOWN_LIMIT).await;
        assert_eq!(status.code(), Some(0), "{at}: {}", kennel.log());
        let left = procfs::all();
        let leader = left.iter().find(|proc| proc.pid == run.attempt().pid);
        assert!(leader.is_none_or(|proc| !proc.is_alive()), "{at}");
    }
}

// promise: R-24
#[tokio::test(flavor = "multi_thread")]
async fn waiting_callers_learn_of_the_replaced_server() {
    let kennel = start().await;
    let mut client = kennel.client().await;
    let run = must("spawn", client.spawn(sh("echo up; exec sleep 300")).await);
    let mut stream = must("stream", client.events_after(&run.run_id, 0).await);
    client.hear_up(&run.run_id).await;
    let (mut other, id) = (client.clone(), run.run_id.clone());
    let mut waits = Box::pin(async move { other.wait(&id, WaitCondition::Ended).await });
    // The wait is sent first: a connection's calls reach the server in order.
    let got = tokio::select! {
        biased;
        waited = &mut waits => panic!("it has not ended: {waited:?}"),
        got = client.get(&run.run_id) => got,
    };
    must("get", got);
    let waits = tokio::spawn(waits);
    must("upgrade", ask(&mut kennel.client().await, "").await);
    let streamed = loop {
        match stream.message().await {
            Ok(Some(_)) => {}
            Ok(None) => panic!("it ended without a word"),
            Err(status) => break status,
        }
    };
    let waited = must("no panic", waits.await).expect_err("it has not ended");
    for status in [streamed, waited] {
        let refusal = complaint(&status);
        assert_eq!(
            (refusal.code, refusal.reason.as_str()),
            (Code::Unavailable, "SERVER_REPLACED")
        );
        assert!(
            status.get_error_details().retry_info().is_some(),
            "{status:?}"
        );
    }
    // The replaced server may refuse this Abort too: clients call again.
    eventually_async("the next server ends the run", PATIENCE, async || {
        kennel.client().await.abort(&run.run_id).await.ok()
    })
    .await;
}
