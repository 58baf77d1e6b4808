//! Words and flags of docker, kubectl, pueue, supervisorctl and systemd-run: each works, or its error names the
//! replacement.

use kennel_tests::{
    Kennel, PATIENCE, cases, must, sh,
    shell::{finish, run_to_end, text},
};
use std::{io::Write as _, process::Output, process::Stdio};

cases! {
    fn words_of_other_command_lines(Kennel::on_sqlite().await);
    habits_without_a_place_are_answered_by_name,
    unknown_names_of_runs_are_answered_by_name,
    words_of_other_tools_do_the_same_here,
    terminal_in_a_pipeline_is_plain_bytes,
}

/// Exit code of `kennel run` for an invalid command line.
const RUN_USAGE: i32 = 125;
const USAGE: i32 = 2;

async fn typed(kennel: &Kennel, line: &str) -> Output {
    let words: Vec<&str> = line.split(' ').collect();
    run_to_end(kennel.cli(&words), PATIENCE).await
}

fn errors(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Checks the error of a line that is refused with this code and hint.
async fn refused(kennel: &Kennel, line: &str, code: i32, hint: &str) -> String {
    let output = typed(kennel, line).await;
    let errors = errors(&output);
    assert_eq!(output.status.code(), Some(code), "{line}: {errors}");
    assert!(errors.contains(hint), "{line}: {errors}");
    errors
}

// promise: C-46
async fn habits_without_a_place_are_answered_by_name(kennel: &Kennel) {
    for (line, code, hint) in [
        ("run --uid 1 -- id", RUN_USAGE, "--user UID:GID"),
        ("run --unit=web -- true", RUN_USAGE, "--name NAME"),
        ("run -v /a:/b -- true", RUN_USAGE, "host's own files"),
        ("run --net host -- true", RUN_USAGE, "host's network"),
        ("run -p 80:80 -- true", RUN_USAGE, "host's network"),
        ("run -p MemoryMax=1G -- true", RUN_USAGE, "--memory-max"),
        ("run --health-cmd x -- true", RUN_USAGE, "--live-exec"),
        ("run --wait --pipe -- true", RUN_USAGE, "leave the flag out"),
        ("run -q -- true", RUN_USAGE, "leave the flag out"),
        ("run --shell", RUN_USAGE, "kennel run -it -- bash"),
        (
            "run --detach-keys ^A -- true",
            RUN_USAGE,
            "kennel attach --detach-keys",
        ),
        (
            "run --remain-after-exit -- true",
            RUN_USAGE,
            "stays on record",
        ),
        ("add -g g -- true", USAGE, "--label group="),
        ("add -d 1h -- true", USAGE, "at once"),
        ("clean x", USAGE, "kennel rm RUN"),
        ("clear x", USAGE, "retention"),
        ("prune", USAGE, "kennel reap"),
        ("exec x ls", USAGE, "kennel attach"),
        ("reload", USAGE, "kennel upgrade"),
        ("start x", USAGE, "kennel restart"),
        ("container ls", USAGE, "kennel ps"),
        ("system df", USAGE, "kennel status"),
        ("compose up", USAGE, "--kind service"),
        ("label x a=b", USAGE, "kennel annotate"),
        ("secret create db", USAGE, "kennel run --secret NAME"),
        ("config use-context prod", USAGE, "kennel context use"),
        ("cordon node7", USAGE, "kennel drain"),
        ("login", USAGE, "kennel context use"),
        ("send x yes", USAGE, "| kennel write RUN"),
        ("pid x", USAGE, "kennel tree RUN"),
        ("avail", USAGE, "kennel ps"),
        ("quit", USAGE, "SIGTERM"),
        ("list-units --failed", USAGE, "--state failed"),
        ("journalctl -u x", USAGE, "kennel logs RUN"),
        ("ps -w", USAGE, "kennel top"),
        ("ps --show-labels", USAGE, "-o wide"),
        ("ps --no-headers", USAGE, "-q"),
        ("get x -w", USAGE, "kennel events -f"),
        ("get -l a=b", USAGE, "kennel ps -q -l"),
        ("inspect -f x y", USAGE, "-o '{{.state}}'"),
        ("status --json", USAGE, "-o json"),
        ("status -n 5 x", USAGE, "kennel logs -n"),
        ("stop --force x", USAGE, "--grace 0"),
        ("wait --all", USAGE, "$(kennel ps -q)"),
        ("restart --in-place x", USAGE, "new run"),
        ("stop -s INT x", USAGE, "kennel kill -s INT RUN"),
        ("kill -0 x", USAGE, "{.state}"),
        ("kill --kill-whom=main x", USAGE, "kennel signal --to tree"),
        ("logs -g error x", USAGE, "| grep PATTERN"),
        ("logs -a", USAGE, "kennel logs --all"),
        ("logs -b x", USAGE, "standard error"),
        ("status -j", USAGE, "-o json"),
        ("ps -ef", USAGE, "kennel tree RUN"),
        ("wait -t 5 x", USAGE, "--timeout 30s"),
        ("attach --no-stdin x", USAGE, "--read-only"),
        ("write --text hi x", USAGE, "echo TEXT | kennel write RUN"),
        ("volume ls", USAGE, "host's own files"),
        ("update --memory 1g x", USAGE, "does not change"),
        ("rollout restart x", USAGE, "kennel restart RUN"),
        ("run --init -- true", RUN_USAGE, "reaps"),
        ("run --cidfile f -- true", RUN_USAGE, ">FILE"),
        ("run --slice=a.slice -- true", RUN_USAGE, "--memory-max"),
        ("serve --port 80", USAGE, "--listen unix:PATH"),
        ("kill --kill-who=all x", USAGE, "kennel signal --to tree"),
        ("logs -u x", USAGE, "kennel logs RUN"),
        ("logs -xe", USAGE, "-n 100"),
        ("logs -S today x", USAGE, "--since 1h"),
        ("attach -it x", USAGE, "--read-only"),
        ("-H unix:/x ps", USAGE, "--server unix:PATH"),
        ("-n prod ps", USAGE, "no namespaces"),
        ("serve --socket /x", USAGE, "--listen unix:PATH"),
    ] {
        let said = refused(kennel, line, code, hint).await;
        assert!(said.starts_with("error: there is no "), "{line}: {said}");
    }
}

// promise: C-46
async fn unknown_names_of_runs_are_answered_by_name(kennel: &Kennel) {
    for (line, code, hint) in [
        ("top x", USAGE, "kennel tree RUN"),
        ("ps running", USAGE, "--state running"),
        ("logs", USAGE, "kennel logs --all"),
        ("events", USAGE, "kennel events --all"),
        ("get pods", 1, "kennel ps lists runs"),
        ("get nodes", 1, "kennel nodes"),
        ("get events", 1, "kennel events --all"),
        ("get run/abcd", 1, "leave the kind out: abcd"),
        ("logs deploy/web", 1, "leave the kind out: web"),
        ("get deployments", 1, "kennel ps lists runs"),
        ("get", USAGE, "kennel ps lists live runs"),
        ("stop", USAGE, "kennel stop RUN"),
        ("ps -l", USAGE, "kennel ps -n 1"),
        ("log -l a=b x", USAGE, "not both"),
        ("config view", USAGE, "no kennel config view"),
        ("write x hello", 1, "echo TEXT | kennel write RUN"),
        ("stop all", 1, "$(kennel ps -q)"),
        ("stop web", 1, "kennel ps --all"),
        ("status name=web", 1, "kennel ps -l name=web"),
        ("tail stderr", 1, "--stream stderr"),
        ("ps -n default", USAGE, "a namespace is a label"),
        (
            "ps -o jsonpath={.items[*].run_id}",
            USAGE,
            "once for each run",
        ),
        ("run -u web.service -- true", RUN_USAGE, "--name NAME"),
        ("run --user nobody -- id", RUN_USAGE, "write numbers"),
        ("restrat x", USAGE, "restart"),
    ] {
        refused(kennel, line, code, hint).await;
    }
    // These words resemble no known ones.
    for line in ["run --zzz -- true", "logs -z x", "quiz", "isolate x"] {
        let said = errors(&typed(kennel, line).await);
        assert!(
            !said.contains("as a value") && !said.contains("similar"),
            "{line}: {said}"
        );
    }
}

// promise: C-66
async fn words_of_other_tools_do_the_same_here(kennel: &Kennel) {
    let mut client = kennel.client().await;
    let script = "trap 'echo hup' HUP; echo ready; while :; do sleep 0.02; done";
    let run = must("spawn", client.spawn(sh(script)).await).run_id;
    client.hear_text(&run, "ready").await;
    // JSONPaths in hints return values.
    for line in ["pid RUN", "is-active RUN", "kill -0 RUN"] {
        let hint = errors(&typed(kennel, line).await);
        let path = hint.split("jsonpath='").nth(1).expect("a path");
        let path = path.split('\'').next().expect("its end");
        let line = format!("get {run} -o jsonpath={path}");
        let output = typed(kennel, &line).await;
        assert!(!text(&output).is_empty(), "{line}: {output:?}");
    }
    // A signal name instead of a run ends nothing.
    for line in [
        "kill HUP RUN",
        "kill SIGTERM RUN",
        "kill 10 RUN",
        "kill RUN 9",
    ] {
        let output = typed(kennel, &line.replace("RUN", &run)).await;
        let said = errors(&output);
        assert_eq!(output.status.code(), Some(USAGE), "{line}: {said}");
        assert!(said.contains("hint: kennel kill -s "), "{line}: {said}");
    }
    for (line, prints) in [
        ("freeze RUN", "PAUSED"),
        ("thaw RUN", "RUNNING"),
        ("tail -1 RUN", "ready"),
        ("logs -n -1 RUN", "ready"),
        ("node ls", "reachable"),
        ("completion bash", "kennel"),
        ("logs --since -1h RUN", "ready"),
        ("ps --format {{.ID}}={{.Status}}", "RUN_STATE_RUNNING"),
        ("get RUN -o {{.State.Status}}", "RUN_STATE_RUNNING"),
        ("run -E A=7 -- sh -c echo\t$A", "7"),
        ("run --restart=Never -- echo never", "never"),
        ("run --restart=OnFailure -- echo done", "done"),
        ("stop --grace-period=0 RUN", "CANCELLED"),
    ] {
        let output = typed(kennel, &line.replace("RUN", &run)).await;
        assert!(output.status.success(), "{line}: {output:?}");
        assert!(text(&output).contains(prints), "{line}: {output:?}");
    }
}

// promise: C-65
async fn terminal_in_a_pipeline_is_plain_bytes(kennel: &Kennel) {
    // Only a terminal redraws output from before the client attached.
    for line in ["run -it -- echo drawn", "run -t -- echo drawn"] {
        let output = typed(kennel, line).await;
        assert_eq!(output.stdout, b"drawn\r\n", "{line}: {output:?}");
    }
    // The terminal echoes. After a partial line the first EOF passes the line, the second ends input.
    for (input, prints) in [("", ""), ("hi\n", "hi\r\nhi\r\n"), ("hi", "hihi")] {
        let mut run = kennel.cli(&["run", "-it", "--", "cat"]);
        run.stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut run = must("run", run.spawn());
        let mut stdin = run.stdin.take().expect("a pipe");
        must("write", stdin.write_all(input.as_bytes()));
        drop(stdin);
        let output = finish(run, "run -it", PATIENCE).await;
        assert_eq!(output.status.code(), Some(0), "{input:?}: {output:?}");
        let shown = String::from_utf8_lossy(&output.stdout).into_owned();
        let shown = shown.replace("^D", "").replace('\u{8}', "");
        let mut found: Vec<char> = shown.chars().collect();
        let mut wanted: Vec<char> = prints.chars().collect();
        // Echo may interleave: compare sorted characters.
        found.sort_unstable();
        wanted.sort_unstable();
        assert_eq!(found, wanted, "{input:?}: {shown:?}");
    }
}
