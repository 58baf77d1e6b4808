//! Secrets of runs: their sources, their way to the command, and every refusal.

use crate::{
    exec_probe::ready_by,
    secrets::{files_with, holds},
    traces,
};
use kennel_proto::pb::{self, RestartMode, RunState, StartStage, WaitCondition, secret::Source};
use kennel_tests::{
    Kennel, Options, PATIENCE, Postgres, RunExt, SpecExt, argv, cases,
    client::duration,
    collector::{Collector, Manner},
    complaint, eventually_async, fact, must, new_run_id, sh,
    shell::{run_to_end, text},
};
use std::{
    fmt::Write as _,
    fs,
    os::unix::fs::{MetadataExt, symlink},
    path::{Path, PathBuf},
    time::Duration,
};
use tempfile::TempDir;
use tonic::Code;

/// A user that exists on no host.
const UID: u32 = 54_321;
const VALUE: &str = "canary-of-a-server-file-7d20c4";
const SENT: &str = "canary-of-a-sent-value-a95e18";

/// A directory of secrets as kubelet mounts it, and one of credentials.
pub(crate) struct Secrets {
    top: TempDir,
}

impl Secrets {
    pub(crate) fn new() -> Self {
        let top = tempfile::tempdir().expect("a directory");
        for name in ["files", "files/..1", "credentials"] {
            fs::create_dir(top.path().join(name)).expect("a directory");
        }
        symlink("..1", top.path().join("files/..data")).expect("a link");
        Self { top }
    }

    fn files(&self) -> PathBuf {
        self.top.path().join("files")
    }

    fn credentials(&self) -> PathBuf {
        self.top.path().join("credentials")
    }

    /// Writes a key of the mounted volume in one step: an attempt that begins meanwhile reads no part of it.
    pub(crate) fn write(&self, name: &str, value: &[u8]) {
        let dir = self.files().join("..data");
        fs::write(dir.join("new"), value).expect("own directory");
        fs::rename(dir.join("new"), dir.join(name)).expect("own directory");
        let link = Path::new("..data").join(name);
        // The link exists if the key is written again.
        let _ = symlink(link, self.files().join(name));
    }

    /// Replaces the volume in one step, as kubelet does.
    fn rotate(&self, to: &str, name: &str, value: &[u8]) {
        let dir = self.files().join(to);
        fs::create_dir(&dir).expect("own directory");
        fs::write(dir.join(name), value).expect("own directory");
        let link = self.files().join("..new");
        symlink(to, &link).expect("a link");
        fs::rename(link, self.files().join("..data")).expect("own directory");
    }

    pub(crate) async fn serve(&self, options: Options) -> Kennel {
        let dirs = self.files().display().to_string();
        let credentials = self.credentials().display().to_string();
        let own = [
            ("KENNEL_SECRET_DIR", dirs.as_str()),
            ("KENNEL_SECRET_CREDENTIAL", "db,missing"),
            ("CREDENTIALS_DIRECTORY", credentials.as_str()),
        ];
        let own = own.map(|(name, value)| (name.to_owned(), value.to_owned()));
        let env = [own.to_vec(), options.env].concat();
        Kennel::start(Options { env, ..options }).await
    }
}

fn file(path: &str) -> Source {
    Source::ServerFile(path.to_owned())
}

fn credential(name: &str) -> Source {
    Source::Credential(name.to_owned())
}

fn value(text: &str) -> Source {
    Source::Value(text.to_owned().into_bytes().into())
}

// The last test replaces the directory of the secrets.
cases! {
    fn runs_with_secrets(served().await);
    probes_have_the_secrets_of_their_run,
    command_has_secrets_of_each_source,
    secrets_reach_users_sandboxes_and_namespaces,
    repeats_compare_sent_values_without_keeping_them,
    each_refused_secret_has_its_reason,
    each_attempt_reads_secrets_anew,
}

async fn served() -> (Secrets, Kennel) {
    let secrets = Secrets::new();
    let kennel = secrets.serve(Options::default()).await;
    (secrets, kennel)
}

async fn probes_have_the_secrets_of_their_run((_, kennel): &(Secrets, Kennel)) {
    let mut client = kennel.client().await;
    let script = format!("[ \"$V\" = {SENT} ] && [ \"$(cat $F)\" = {SENT} ]");
    let mut spec = argv(&["sleep", "300"])
        .secret("V", value(SENT))
        .secret_file("F", value(SENT));
    spec.readiness = Some(ready_by(&script));
    let run = must("spawn", client.spawn(spec).await).run_id;
    let (_, reached) = must("wait", client.wait(&run, WaitCondition::Ready).await);
    assert!(reached, "the probe succeeds");
    must("abort", client.abort(&run).await);
}

/// Runs it to its end, which must be a success. Returns its output and its record.
async fn output(kennel: &Kennel, spec: pb::RunSpec) -> (String, pb::Run) {
    let mut client = kennel.client().await;
    let run = must("spawn", client.spawn(spec).await);
    let ended = must("wait", client.ended(&run.run_id).await);
    let heard = must("stream", client.hear_all(&run.run_id, 0).await);
    assert_eq!(ended.code(), Some(0), "{}", heard.text());
    (heard.text(), ended)
}

// promise: RW-90, RW-90a, RW-164
async fn command_has_secrets_of_each_source((secrets, kennel): &(Secrets, Kennel)) {
    secrets.write("key", VALUE.as_bytes());
    fs::write(secrets.credentials().join("db"), b"of-the-unit").expect("own directory");
    let script = r#"
        echo "$FILE $CREDENTIAL $SENT"
        cat "$A" "$B" "$C" "$A"; echo
        stat -Lc %a "$A"; (echo x > "$A") 2>/dev/null && echo changed
        grep -Eo 'core file size +[0-9]+ +[0-9]+' /proc/self/limits | tr -s ' '; ls /proc/self/fd | grep -c '^2[0-9]$'"#;
    let all = |spec: pb::RunSpec| {
        spec.secret("FILE", file("key"))
            .secret_file("A", file("key"))
            .secret("CREDENTIAL", credential("db"))
            .secret_file("B", credential("db"))
            .secret("SENT", value(SENT))
            .secret_file("C", value(SENT))
    };
    let wanted = format!(
        "{VALUE} of-the-unit {SENT}\n{VALUE}of-the-unit{SENT}{VALUE}\n400\ncore file size 1 1\n3\n"
    );
    let (printed, run) = output(kennel, all(sh(script))).await;
    assert_eq!(printed, wanted);
    let shown = &run.spec.as_ref().expect("a spec").secrets;
    let names: Vec<_> = shown.iter().map(|secret| &*secret.name).collect();
    assert_eq!(names, ["A", "B", "C", "CREDENTIAL", "FILE", "SENT"]);
    assert_eq!(shown[4].source, Some(file("key")));
    assert_eq!(shown[5].source, Some(value("")));
    let inspected = run_to_end(kennel.cli(&["inspect", &run.run_id]), PATIENCE).await;
    let inspected = text(&inspected);
    for line in [
        "FILE from file:key",
        "B from credential:db, as a file",
        "SENT from sent",
    ] {
        assert!(inspected.contains(line), "{inspected}");
    }

    assert_line_ends_are_trimmed_or_noted(secrets, kennel).await;

    // A secret may shadow a server variable, and the spec's core limit counts.
    let mut own = sh("echo $HOME; ulimit -c").secret("HOME", value("x"));
    own.limits = Some(pb::RunLimits {
        rlimits: vec![pb::Rlimit {
            resource: pb::RlimitResource::Core.into(),
            soft: Some(1024),
            hard: Some(1024),
        }],
        ..pb::RunLimits::default()
    });
    let (text, _) = output(kennel, own).await;
    let limit = text.lines().nth(1).expect("two lines");
    assert!(text.starts_with("x\n") && limit != "0", "{text}");
}

async fn assert_line_ends_are_trimmed_or_noted(secrets: &Secrets, kennel: &Kennel) {
    secrets.write("line", b"of-a-line\r\n");
    let mut client = kennel.client().await;
    for trim_newline in [true, false] {
        let script = r#"printf %s "$A" | wc -c; wc -c <"$F"; printf %s "$S" | wc -c"#;
        let mut spec = sh(script).secret("A", file("line"));
        spec = spec
            .secret_file("F", file("line"))
            .secret("S", value("sent\n"));
        for secret in &mut spec.secrets {
            secret.trim_newline = trim_newline;
        }
        let (printed, run) = output(kennel, spec).await;
        let wanted = if trim_newline {
            "9\n9\n4\n"
        } else {
            "11\n11\n5\n"
        };
        assert_eq!(printed, wanted);
        let heard = must("stream", client.hear_all(&run.run_id, 0).await);
        let warned = heard.warnings().len();
        assert_eq!(warned, usize::from(!trim_newline), "of the variable");
    }
}

// promise: RW-90
async fn secrets_reach_users_sandboxes_and_namespaces((secrets, kennel): &(Secrets, Kennel)) {
    secrets.write("key", VALUE.as_bytes());
    let with = |privileges: pb::Privileges| {
        let script = r#"echo "$V"; cat "$F"; stat -Lc '%u %a' "$F""#;
        let mut spec = sh(script)
            .secret("V", file("key"))
            .secret_file("F", file("key"));
        spec.privileges = Some(privileges);
        spec.cwd = Some("/".to_owned());
        spec
    };
    let user = pb::Privileges {
        user: Some(pb::RunUser {
            user_id: UID,
            ..pb::RunUser::default()
        }),
        ..pb::Privileges::default()
    };
    let sandboxed = pb::Privileges {
        sandbox: Some(pb::Sandbox::default()),
        seccomp_profile: pb::SeccompProfile::Baseline.into(),
        ..pb::Privileges::default()
    };
    let both = pb::Privileges {
        sandbox: Some(pb::Sandbox::default()),
        ..user.clone()
    };
    let own = fs::metadata(kennel.data_dir()).expect("it is there").uid();
    for (privileges, uid) in [(user, UID), (sandboxed, own), (both, UID)] {
        let (text, _) = output(kennel, with(privileges)).await;
        assert_eq!(text, format!("{VALUE}\n{VALUE}{uid} 400\n"));
    }
    let mut private = with(pb::Privileges::default());
    private.pid_namespace = pb::PidNamespace::Private.into();
    let (text, _) = output(kennel, private).await;
    assert_eq!(text, format!("{VALUE}\n{VALUE}{own} 400\n"));
}

// promise: RW-92
async fn each_attempt_reads_secrets_anew((secrets, kennel): &(Secrets, Kennel)) {
    secrets.write("key", b"first");
    let mut client = kennel.client().await;
    let spec = sh("echo \"$V $(cat $F)\"; exec sleep 300")
        .secret("V", file("key"))
        .secret_file("F", file("key"))
        .restart(pb::RestartPolicy {
            mode: RestartMode::Always.into(),
            delay: Some(duration(Duration::from_millis(10))),
            max_delay: Some(duration(Duration::from_millis(10))),
            ..pb::RestartPolicy::default()
        });
    let id = must("spawn", client.spawn(spec).await).run_id;
    client.hear_text(&id, "first first\n").await;
    secrets.rotate("..2", "key", b"second");
    must("restart", client.restart(&id, None).await);
    client.hear_text(&id, "first first\nsecond second\n").await;

    // Attempts fail while the secret file is missing.
    fs::remove_file(secrets.files().join("..2/key")).expect("own directory");
    must("restart", client.restart(&id, None).await);
    let failed = eventually_async("an attempt has failed", PATIENCE, async || {
        let run = must("get", kennel.client().await.get(&id).await);
        let ends = run.previous_attempts.iter();
        let mut ends = ends.filter_map(|attempt| attempt.end_reason.as_ref()?.reason.as_ref());
        ends.find_map(|reason| match reason {
            pb::end_reason::Reason::StartFailed(failed) => Some(failed.clone()),
            _ => None,
        })
    })
    .await;
    assert_eq!(failed.stage(), StartStage::Secret);
    assert_eq!(failed.path.as_deref(), Some("file:key"));
    assert_eq!(failed.error_number, Some(2));
    secrets.write("key", b"third");
    client
        .hear_text(&id, "first first\nsecond second\nthird third\n")
        .await;
    must("abort", client.abort(&id).await);
}

// promise: RW-92
async fn each_refused_secret_has_its_reason((secrets, kennel): &(Secrets, Kennel)) {
    secrets.write("key", VALUE.as_bytes());
    secrets.write("binary", b"\xff");
    secrets.write("long", &vec![b'x'; 64 * 1024 + 1]);
    fs::write(secrets.credentials().join("tls"), b"x").expect("own directory");
    symlink("/etc/passwd", secrets.files().join("out")).expect("a link");
    symlink("../credentials/tls", secrets.files().join("above")).expect("a link");
    let mut client = kennel.client().await;
    let unavailable = [
        (file("absent"), "No such file"),
        (file("out"), "cross-device"),
        (file("above"), "cross-device"),
        (file("..1"), "not a regular file"),
        (file("long"), "too large"),
        (file("binary"), "UTF-8"),
        (credential("tls"), "--secret-credential"),
        (credential("missing"), "No such file"),
    ];
    for (source, why) in unavailable {
        let id = new_run_id();
        let spec = argv(&["true"]).secret("A", source.clone());
        let refused = client.spawn_as(&id, spec.clone()).await;
        let refused = refused.expect_err("it cannot be read");
        assert_eq!(complaint(&refused).reason, "SECRET_UNAVAILABLE");
        assert_eq!(refused.code(), Code::FailedPrecondition);
        assert_eq!(fact(&refused, "secret"), "A");
        let said = fact(&refused, "why");
        assert!(said.contains(why), "{source:?}: {said}");
        let absent = client.get(&id).await.expect_err("nothing was started");
        assert_eq!(absent.code(), Code::NotFound);
        let checked = client.process.spawn(pb::SpawnRequest {
            validate_only: true,
            spec: Some(spec),
            ..pb::SpawnRequest::default()
        });
        let checked = checked.await.expect_err("a check says it too");
        assert_eq!(complaint(&checked).reason, "SECRET_UNAVAILABLE");
    }
    let (text, _) = output(kennel, sh("wc -c < $A").secret_file("A", file("binary"))).await;
    assert_eq!(text.trim(), "1", "a file may have any bytes");

    let field = |part: &str| format!("spec.secrets[0].{part}");
    for (secret, wrong) in [
        (("A", file("../credentials/tls")), field("server_file")),
        (("A", file("/etc/passwd")), field("server_file")),
        (("A", credential("a/b")), field("credential")),
        (("A", value("a\0")), field("value")),
        (("A", value(&"x".repeat(64 * 1024 + 1))), field("value")),
        (("KENNEL_A", value("a")), field("name")),
        (("", value("a")), field("name")),
    ] {
        let spec = argv(&["true"]).secret(secret.0, secret.1);
        let refused = client.spawn(spec).await.expect_err("not valid");
        let complaint = complaint(&refused);
        assert_eq!(complaint.reason, "INVALID_FIELD");
        assert_eq!(complaint.fields, [wrong]);
    }
}

// promise: RW-94
async fn repeats_compare_sent_values_without_keeping_them((_, kennel): &(Secrets, Kennel)) {
    let mut client = kennel.client().await;
    let id = new_run_id();
    let with = |text: &str| sh("echo $A").secret("A", value(text));
    must("spawn", client.spawn_as(&id, with(SENT)).await);
    must("wait", client.ended(&id).await);
    let (_, existing) = must("repeat", client.spawn_as(&id, with(SENT)).await);
    assert!(existing);
    let other = client.spawn_as(&id, with("another")).await;
    let other = other.expect_err("another value");
    assert_eq!(complaint(&other).reason, "SPEC_MISMATCH");

    let again = |secrets: &[(&str, &str)]| pb::RestartRequest {
        run_id: id.clone(),
        secrets: secrets
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned().into()))
            .collect(),
        ..pb::RestartRequest::default()
    };
    let refused = client.restart_with(again(&[])).await;
    let refused = refused.expect_err("the value is gone");
    assert_eq!(complaint(&refused).reason, "SPEC_INCOMPLETE");
    assert_eq!(fact(&refused, "missing"), "secrets.A");
    let refused = client.restart_with(again(&[("A", "x"), ("B", "x")])).await;
    let refused = refused.expect_err("it has no other");
    assert_eq!(complaint(&refused).fields, ["secrets.B"]);
    let run = must("restart", client.restart_with(again(&[("A", "new")])).await);
    client.hear_text(&run.run_id, "new\n").await;
    let by_words = ["restart", &id, "--secret", "A=env:NEW"];
    let mut restart = kennel.cli(&by_words);
    restart.env("NEW", "by-words");
    let output = run_to_end(restart, PATIENCE).await;
    assert!(output.status.success(), "{output:?}");
}

// promise: RW-91
#[tokio::test(flavor = "multi_thread")]
async fn no_answer_event_or_span_has_a_secret() {
    let secrets = Secrets::new();
    secrets.write("key", VALUE.as_bytes());
    let collector = Collector::start(Manner::Willing).await;
    let mut kennel = secrets
        .serve(traces::with(
            &collector,
            Options {
                env: vec![("KENNEL_LOG".into(), "trace".into())],
                ..Options::default()
            },
        ))
        .await;
    let mut client = kennel.client().await;
    let spec = sh("exec sleep 300")
        .secret("V", file("key"))
        .secret_file("F", value(SENT))
        .restart(pb::RestartPolicy {
            mode: RestartMode::Always.into(),
            ..pb::RestartPolicy::default()
        });
    let id = traces::spawn_in_trace(&mut client, spec, true).await.run_id;
    must("restart", client.restart(&id, None).await);
    let mut said = format!("{:?}", must("get", client.get(&id).await));
    kennel.kill_server();
    client = kennel.client().await;
    for words in [
        vec!["inspect", &id, "--output", "json"],
        vec!["ps", "--all", "--output", "json"],
        vec!["why", &id],
        vec!["audit", &id],
        vec!["tree", &id],
    ] {
        let output = run_to_end(kennel.cli(&words), PATIENCE).await;
        assert!(output.status.success(), "{words:?}: {output:?}");
        said += &text(&output);
    }
    must("abort", client.abort(&id).await);
    let ended = must("wait", client.ended(&id).await);
    assert_eq!(ended.state(), RunState::Cancelled);
    let mut stream = must("events", client.events_after(&id, 0).await);
    while let Some(message) = must("events", stream.message().await) {
        let _ = write!(said, "{message:?}");
    }
    let _ = write!(said, "{:?}", must("trail", client.trail(&id).await));
    let spans = collector
        .trace(traces::TRACE, |spans| spans.len() > 3)
        .await;
    let _ = write!(
        said,
        "{spans:?} {:?} {:?}",
        collector.spans(),
        collector.records()
    );
    said += &kennel.log();
    kennel.terminate(PATIENCE).await;
    said += &kennel.log();
    assert!(said.contains(&id), "the search finds nothing at all");
    for secret in [VALUE, SENT] {
        assert!(!holds(said.as_bytes(), secret), "{said}");
        assert_eq!(files_with(secret, &kennel.data_dir()), Vec::<String>::new());
    }
}

// promise: RW-91
#[tokio::test(flavor = "multi_thread")]
async fn sent_value_reaches_the_node_that_runs_it() {
    let postgres = Postgres::start().await;
    let options = || Options::on(&postgres.url());
    let (one, two) = (
        Kennel::start(options()).await,
        Kennel::start(options()).await,
    );
    let (mut here, mut there) = (one.client().await, two.client().await);
    let parent = must("spawn", here.spawn(argv(&["sleep", "600"])).await);
    let mut spec = sh("echo ${#A}; exec sleep 300").secret("A", value(SENT));
    spec.parent = Some(pb::Parent {
        run_id: parent.run_id.clone(),
        ..pb::Parent::default()
    });
    let child = must("spawn", there.spawn(spec).await);
    assert_eq!(child.node_id, parent.node_id);
    there
        .hear_text(&child.run_id, &format!("{}\n", SENT.len()))
        .await;
    for node in [&one, &two] {
        assert_eq!(files_with(SENT, &node.data_dir()), Vec::<String>::new());
        assert!(!holds(node.log().as_bytes(), SENT));
    }
    must("abort", here.abort(&parent.run_id).await);
}
