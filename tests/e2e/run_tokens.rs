//! Runs that may call the server that runs them: the calls, runs and time that a token is good for.

use crate::{run_secrets::Secrets, secrets::files_with};
use kennel_proto::pb::{self, ApiAccess, OnParentEnd, RestartMode, RunState, secret::Source};
use kennel_tests::{
    Client, Kennel, Options, PATIENCE, Postgres, RunExt, SpecExt, cases, complaint, eventually,
    eventually_async, fact, must, new_run_id, programs, scratch, sh,
};
use std::{
    fs,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};
use tonic::Code;

/// Does what its standard input says: `NUMBER LINE`; answers in files of the directory `$A`. `$K` is the command line.
const SHELL: &str = r#"
while read -r n line; do
    eval "$line" >"$A/$n.out" 2>&1
    echo $? >"$A/$n.new"
    mv "$A/$n.new" "$A/$n.code"
done
"#;

/// How long a stream may go on after its token.
const CUT_MAX: Duration = Duration::from_secs(5);

/// A run that may call, and executes lines from its standard input.
pub(crate) struct Caller {
    pub(crate) client: Client,
    run_id: String,
    answers: PathBuf,
    said: u32,
}

pub(crate) fn spec(answers: &Path, access: ApiAccess) -> pb::RunSpec {
    let mut spec = sh(SHELL)
        .open_input()
        .env("A", &answers.display().to_string())
        .env("K", &programs::kennel().display().to_string());
    spec.api_access = access.into();
    spec
}

impl Caller {
    /// A run that was spawned with [`spec`] and this directory.
    pub(crate) fn of(client: Client, run_id: String, answers: PathBuf) -> Self {
        Self {
            client,
            run_id,
            answers,
            said: 0,
        }
    }

    async fn begin(kennel: &Kennel, access: ApiAccess) -> Self {
        Self::begin_as(kennel, access, |spec| spec).await
    }

    async fn begin_as(
        kennel: &Kennel,
        access: ApiAccess,
        change: impl FnOnce(pb::RunSpec) -> pb::RunSpec,
    ) -> Self {
        let mut client = kennel.client().await;
        let answers = kennel.scratch().join(new_run_id());
        fs::create_dir(&answers).expect("own directory");
        let spec = change(spec(&answers, access));
        let run_id = must("spawn", client.spawn(spec).await).run_id;
        Self::of(client, run_id, answers)
    }

    fn token_file(&self, kennel: &Kennel) -> PathBuf {
        kennel.run_dir(&self.run_id).join("token")
    }

    /// Has a line done; gives its exit code and what it printed.
    async fn does(&mut self, line: &str) -> (i32, String) {
        self.said += 1;
        let said = format!("{} {line}\n", self.said);
        let id = self.said.to_string();
        let write = self
            .client
            .write(&self.run_id, &id, None, said.as_bytes())
            .await;
        must("write", write);
        let file = |end: &str| self.answers.join(format!("{}.{end}", self.said));
        let code = eventually(line, PATIENCE, || fs::read_to_string(file("code")).ok()).await;
        let printed = fs::read_to_string(file("out")).expect("own directory");
        println!("{line}: {}: {printed}", code.trim());
        (code.trim().parse().expect("a number"), printed)
    }

    /// What it prints, where it succeeds.
    pub(crate) async fn gets(&mut self, line: &str) -> String {
        let (code, printed) = self.does(line).await;
        assert_eq!(code, 0, "{line}: {printed}");
        printed.trim().to_owned()
    }

    /// What it prints, where it fails.
    pub(crate) async fn is_refused(&mut self, line: &str) -> String {
        let (code, printed) = self.does(line).await;
        assert_ne!(code, 0, "{line}: {printed}");
        printed
    }
}

// The first test expects a server without runs.
cases! {
    fn tokens_of_runs(served(Options::default()).await);
    token_and_another_user_exclude_each_other,
    run_sees_itself_and_no_foreign_run,
    run_spawns_children_of_its_own,
    children_have_no_more_privileges,
    link_leads_no_child_out_of_its_sandbox,
    child_has_only_secrets_of_its_parent,
    token_ends_with_its_attempt,
    token_of_another_run_is_refused,
    token_works_in_a_private_pid_namespace,
    token_is_in_its_file_alone,
    open_streams_end_with_the_attempt,
}

cases! {
    fn tokens_of_runs_without_cgroup(served(Options::default().without_cgroup()).await);
    token_works_in_a_private_pid_namespace,
}

// The last test starts a service that forbids API access.
cases! {
    fn tokens_across_services(mut Kennel::on_sqlite().await);
    token_survives_the_server_and_its_keeper,
    token_of_a_lost_service_is_swept,
    node_can_forbid_access_of_runs,
}

/// A server that logs everything, with files for secrets.
async fn served(options: Options) -> (Secrets, Kennel) {
    let secrets = Secrets::new();
    let options = Options {
        env: vec![("KENNEL_LOG".into(), "trace".into())],
        ..options
    };
    let kennel = secrets.serve(options).await;
    (secrets, kennel)
}

// promise: RW-84
async fn run_sees_itself_and_no_foreign_run((_, kennel): &(Secrets, Kennel)) {
    let mut client = kennel.client().await;
    let other = must("spawn", client.spawn(sh("exec sleep 1000")).await).run_id;
    let mut run = Caller::begin(kennel, ApiAccess::OwnRun).await;
    let own = run.run_id.clone();
    let seen = run.gets("$K get $KENNEL_RUN_ID").await;
    assert!(seen.contains("RUNNING"), "{seen}");
    run.gets("$K annotate $KENNEL_RUN_ID step=1").await;
    run.gets("$K tree $KENNEL_RUN_ID").await;
    run.gets("$K logs $KENNEL_RUN_ID").await;
    // A foreign run is answered like a missing one.
    let absent = new_run_id();
    for line in [
        "get",
        "tree",
        "logs",
        "abort",
        "kill -s USR1",
        "wait",
        "why",
    ] {
        let foreign = run.is_refused(&format!("$K {line} {other}")).await;
        let missing = run.is_refused(&format!("$K {line} {absent}")).await;
        assert_eq!(foreign.replace(&other, &absent), missing, "{line}");
        assert!(missing.contains("no run"), "{line}: {missing}");
    }
    assert_eq!(run.gets("$K ps --all -q").await, "");
    let listed = run
        .is_refused(&format!("$K ps --all --parent {other}"))
        .await;
    assert!(listed.contains("no run"), "{listed}");
    // Calls that no run may make, or not this one.
    for line in [
        "$K status",
        "$K drain",
        "$K audit",
        "$K consumers ls",
        "$K events --consumer c $KENNEL_RUN_ID",
    ] {
        let refused = run.is_refused(line).await;
        assert!(refused.contains("no run may"), "{line}: {refused}");
    }
    let refused = run.is_refused("$K spawn -- true").await;
    assert!(refused.contains("does not grant"), "{refused}");
    let refused = run
        .is_refused("KENNEL_NODE=other $K get $KENNEL_RUN_ID")
        .await;
    assert!(refused.contains("no run may name a node"), "{refused}");
    let left = must("get", client.get(&other).await);
    assert_eq!(left.state(), RunState::Running);
    // A run may abort itself.
    run.client
        .write(&own, "end", None, b"9 $K abort $KENNEL_RUN_ID\n")
        .await
        .expect("written");
    let ended = must("ended", client.ended(&own).await);
    assert_eq!(
        (ended.state(), ended.reason()),
        (RunState::Cancelled, "aborted")
    );
    assert!(format!("{:?}", ended.end_reason).contains(&format!("run:{own}")));
    let trail = must("trail", client.trail(&own).await);
    assert!(format!("{trail:?}").contains(&format!("run:{own}")));
}

// promise: K-11, RW-85
async fn run_spawns_children_of_its_own((_, kennel): &(Secrets, Kennel)) {
    let mut client = kennel.client().await;
    let other = must("spawn", client.spawn(sh("exec sleep 1000")).await).run_id;
    let mut run = Caller::begin(kennel, ApiAccess::Children).await;
    let child = run.gets("$K spawn -- sleep 1000").await;
    let seen = must("get", client.get(&child).await);
    let parent = seen.spec.as_ref().and_then(|spec| spec.parent.clone());
    assert_eq!(parent.expect("its parent").run_id, run.run_id);
    assert_eq!(seen.owner, must("get", client.get(&run.run_id).await).owner);
    // Any other parent is refused.
    for parent in [&other, &child, &new_run_id()] {
        let refused = run
            .is_refused(&format!("$K spawn --parent {parent} -- true"))
            .await;
        assert!(!refused.is_empty(), "{parent}");
    }
    // Runs below a child also belong to the caller, even if the child spawned them.
    let below = pb::RunSpec {
        parent: Some(pb::Parent {
            run_id: child.clone(),
            on_end: OnParentEnd::Unspecified.into(),
        }),
        ..sh("echo below; exec sleep 1000")
    };
    let grandchild = must("spawn", client.spawn(below).await).run_id;
    client.hear_text(&grandchild, "below").await;
    assert_eq!(run.gets(&format!("$K logs {grandchild}")).await, "below");
    assert_eq!(run.gets("$K ps -q").await, child);
    assert_eq!(
        run.gets(&format!("$K ps -q --parent {child}")).await,
        grandchild
    );
    for verb in ["pause", "resume"] {
        run.gets(&format!("$K {verb} {grandchild}")).await;
        let refused = run.is_refused(&format!("$K {verb} $KENNEL_RUN_ID")).await;
        assert!(refused.contains("to itself"), "{refused}");
        // `--all` selects only the caller's descendants.
        let done = run
            .gets(&format!("$K {verb} --all --yes 2>&1 | sort"))
            .await;
        let mut expected = [&child, &grandchild].map(|id| format!("{id} done"));
        expected.sort_unstable();
        assert_eq!(done, format!("{}\nkennel: done 2", expected.join("\n")));
    }
    let refused = run.is_refused("$K rm $KENNEL_RUN_ID").await;
    assert!(refused.contains("to itself"), "{refused}");
    let refused = run.is_refused("$K restart $KENNEL_RUN_ID").await;
    assert!(refused.contains("to itself"), "{refused}");
    run.gets(&format!("$K abort {grandchild}")).await;
    let ended = must("ended", client.ended(&grandchild).await);
    assert_eq!(ended.reason(), "aborted");
    run.gets(&format!("$K rm {grandchild}")).await;
    assert!(client.get(&grandchild).await.is_err());
    // A child with access spawns its own child.
    let printed = run.gets(
        "$K run --api-access children -- sh -c '$0 run -- sh -c \"echo \\$KENNEL_RUN_ID\"' $K",
    );
    let deepest = printed.await;
    let deepest = must("get", client.get(&deepest).await);
    assert_eq!(deepest.state(), RunState::Succeeded);
    must("abort", client.abort(&run.run_id).await);
    let ended = must("ended", client.ended(&child).await);
    assert_eq!(ended.reason(), "parent_ended");
}

// promise: RW-85
async fn children_have_no_more_privileges((_, kennel): &(Secrets, Kennel)) {
    let mut client = kennel.client().await;
    let scratch = kennel.scratch().display().to_string();
    let mut run = Caller::begin_as(kennel, ApiAccess::Children, |mut spec| {
        let program = programs::kennel().display().to_string();
        spec.privileges = Some(pb::Privileges {
            no_new_privileges: true,
            drop_capabilities: vec!["NET_RAW".to_owned()],
            sandbox: Some(pb::Sandbox {
                readable_paths: vec![program],
                writable_paths: vec![scratch.clone()],
            }),
            ..pb::Privileges::default()
        });
        spec
    })
    .await;
    // A sandboxed command can read the token, but not list its directory.
    run.is_refused("ls ${KENNEL_RUN_TOKEN_FILE%/*}").await;
    let child = run.gets("$K spawn -- sleep 1000").await;
    let (own, child) = (
        must("get", client.get(&run.run_id).await),
        must("get", client.get(&child).await),
    );
    let privileges = |run: &pb::Run| run.spec.as_ref().and_then(|spec| spec.privileges.clone());
    assert_eq!(privileges(&child), privileges(&own));
    for words in ["--sandbox --sandbox-read /root", "--cwd /root"] {
        let refused = run.is_refused(&format!("$K spawn {words} -- true")).await;
        assert!(refused.contains("sandbox"), "{refused}");
    }
}

// promise: RW-85
async fn link_leads_no_child_out_of_its_sandbox((_, kennel): &(Secrets, Kennel)) {
    let outside = scratch::closed_dir();
    // The directory is below world-writable /tmp.
    let scratch = tempfile::tempdir().expect("a directory");
    let work = scratch.path().join("work").display().to_string();
    must("mkdir", fs::create_dir(&work));
    let mut run = Caller::begin_as(kennel, ApiAccess::Children, |mut spec| {
        spec.cwd = Some(work.clone());
        spec.privileges = Some(pb::Privileges {
            sandbox: Some(pb::Sandbox {
                readable_paths: vec![programs::kennel().display().to_string()],
                writable_paths: Vec::new(),
            }),
            ..pb::Privileges::default()
        });
        spec
    })
    .await;
    let child = format!("$K run --cwd {work} -- true");
    run.gets(&child).await;
    let outside = outside.path().display();
    run.gets(&format!("mv {work} {work}.old && ln -s {outside} {work}"))
        .await;
    let refused = run.is_refused(&child).await;
    assert!(refused.contains("symbolic links"), "{refused}");
    run.gets(&format!("rm {work} && mv {work}.old {work}"))
        .await;
    run.gets(&child).await;
}

// promise: RW-86
async fn token_ends_with_its_attempt((_, kennel): &(Secrets, Kennel)) {
    let mut client = kennel.client().await;
    let mut run = Caller::begin_as(kennel, ApiAccess::OwnRun, |spec| {
        spec.restart(pb::RestartPolicy {
            mode: RestartMode::Always.into(),
            ..pb::RestartPolicy::default()
        })
    })
    .await;
    let old = run.answers.join("old");
    run.gets(&format!("cp $KENNEL_RUN_TOKEN_FILE {}", old.display()))
        .await;
    let by_old = format!(
        "KENNEL_RUN_TOKEN_FILE={} $K get $KENNEL_RUN_ID",
        old.display()
    );
    run.gets(&by_old).await;
    must("restart", client.restart(&run.run_id, None).await);
    let refused = run.is_refused(&by_old).await;
    assert!(refused.contains("has ended"), "{refused}");
    run.gets("$K get $KENNEL_RUN_ID").await;
    let file = run.token_file(kennel);
    let token = |path: &Path| fs::read_to_string(path).expect("it is there");
    assert_ne!(token(&file), token(&old));
    must("abort", client.abort(&run.run_id).await);
    eventually("the token is removed", PATIENCE, || {
        (!file.exists()).then_some(())
    })
    .await;
}

// promise: RW-86
async fn token_of_another_run_is_refused((_, kennel): &(Secrets, Kennel)) {
    let mut one = Caller::begin(kennel, ApiAccess::Children).await;
    let mut two = Caller::begin(kennel, ApiAccess::OwnRun).await;
    let mut none = Caller::begin(kennel, ApiAccess::Unspecified).await;
    let stolen = one.token_file(kennel).display().to_string();
    one.gets("$K get $KENNEL_RUN_ID").await;
    for thief in [&mut two, &mut none] {
        let set = format!("KENNEL_SERVER={}", kennel.address());
        let line = format!("{set} KENNEL_RUN_TOKEN_FILE={stolen} $K get $KENNEL_RUN_ID");
        let refused = thief.is_refused(&line).await;
        assert!(refused.contains("of that run alone"), "{refused}");
    }
    // The run's audit log has the denial.
    let logged = must("trail", two.client.logged_requests(&two.run_id).await);
    let denied = logged
        .iter()
        .find(|request| request.code == "PERMISSION_DENIED");
    let denied = denied.unwrap_or_else(|| panic!("no denial: {logged:#?}"));
    assert_eq!(denied.asked["peer"], "a process of a run");
    // A run without access gets no server or token variables.
    assert_eq!(
        none.gets("env | grep -c -e TOKEN -e SERVER; true").await,
        "0"
    );
    // A forged token is refused like a missing one.
    let forged = two.answers.join("forged");
    let text = fs::read_to_string(&stolen).expect("it is there");
    let last = if text.ends_with('0') { "1" } else { "0" };
    fs::write(&forged, format!("{}{last}", &text[..text.len() - 1])).expect("own directory");
    let line = format!(
        "KENNEL_RUN_TOKEN_FILE={} $K get $KENNEL_RUN_ID",
        forged.display()
    );
    let refused = two.is_refused(&line).await;
    assert!(refused.contains("a process of a run may not"), "{refused}");
}

// promise: RW-86
async fn token_survives_the_server_and_its_keeper(kennel: &mut Kennel) {
    let mut run = Caller::begin_as(kennel, ApiAccess::Children, |mut spec| {
        spec.set_recovery(pb::RecoveryPolicy::Adopt);
        spec
    })
    .await;
    run.gets("$K get $KENNEL_RUN_ID").await;
    kennel.replace_server().await;
    run.client = kennel.client().await;
    run.gets("$K get $KENNEL_RUN_ID").await;
    kennel.kill_service_after(|| {});
    kennel.restart().await;
    run.client = kennel.client().await;
    run.gets("$K get $KENNEL_RUN_ID").await;
    run.gets("$K spawn -- true").await;
}

// promise: RW-138
async fn node_can_forbid_access_of_runs(kennel: &mut Kennel) {
    let mut run = Caller::begin_as(kennel, ApiAccess::Children, |mut spec| {
        spec.set_recovery(pb::RecoveryPolicy::Adopt);
        spec
    })
    .await;
    run.gets("$K get $KENNEL_RUN_ID").await;
    kennel.kill_service_after(|| {});
    kennel.add_words(&["--forbid-api-access"]);
    kennel.restart().await;
    // A run spawned earlier loses its access too.
    run.client = kennel.client().await;
    let refused = run.is_refused("$K get $KENNEL_RUN_ID").await;
    assert!(refused.contains("a process of a run may not"), "{refused}");
    let spec = spec(kennel.scratch(), ApiAccess::OwnRun);
    let refused = run.client.spawn(spec).await.expect_err("forbidden");
    assert_eq!(complaint(&refused).reason, "CAPABILITY_MISSING");
    assert_eq!(fact(&refused, "field"), "spec.api_access");
    must("spawn", run.client.spawn(sh("true")).await);
}

// promise: RW-86
#[tokio::test(flavor = "multi_thread")]
async fn token_works_while_the_database_is_away() {
    let mut postgres = Postgres::start().await;
    let mut kennel = Kennel::start(Options::on(&postgres.url())).await;
    let mut run = Caller::begin(&kennel, ApiAccess::OwnRun).await;
    postgres.crash().await;
    run.gets("$K get $KENNEL_RUN_ID").await;
    // The next server needs no database either.
    kennel.replace_server().await;
    run.client = kennel.client().await;
    run.gets("$K get $KENNEL_RUN_ID").await;
    postgres.run().await;
}

// promise: RW-87
async fn token_of_a_lost_service_is_swept(kennel: &mut Kennel) {
    let mut run = Caller::begin(kennel, ApiAccess::OwnRun).await;
    run.gets("$K get $KENNEL_RUN_ID").await;
    let file = run.token_file(kennel);
    kennel.kill_service_after(|| {});
    assert!(file.exists());
    kennel.restart().await;
    let mut client = kennel.client().await;
    must("ended", client.ended(&run.run_id).await);
    eventually("the token is removed", PATIENCE, || {
        (!file.exists()).then_some(())
    })
    .await;
}

// promise: RW-86
async fn token_works_in_a_private_pid_namespace((_, kennel): &(Secrets, Kennel)) {
    let mut client = kennel.client().await;
    let mut run = Caller::begin_as(kennel, ApiAccess::Children, |mut spec| {
        spec.pid_namespace = pb::PidNamespace::Private.into();
        spec
    })
    .await;
    run.gets("$K get $KENNEL_RUN_ID").await;
    // The child also gets a private pid namespace.
    let child = run.gets("$K spawn -- sleep 1000").await;
    let child = must("get", client.get(&child).await);
    let namespace = child.spec.map(|spec| spec.pid_namespace());
    assert_eq!(namespace, Some(pb::PidNamespace::Private));
    // A probe command would run outside that namespace.
    let beside = run.is_refused("$K spawn --live-exec true -- sleep 1000");
    let refused = beside.await;
    assert!(
        refused.contains("pid_namespace") || refused.contains("pid namespace"),
        "{refused}"
    );
}

// promise: RW-87
async fn token_is_in_its_file_alone((_, kennel): &(Secrets, Kennel)) {
    let mut client = kennel.client().await;
    let mut run = Caller::begin_as(kennel, ApiAccess::Children, |spec| {
        spec.restart(pb::RestartPolicy {
            mode: RestartMode::Always.into(),
            ..pb::RestartPolicy::default()
        })
    })
    .await;
    let own = run.run_id.clone();
    run.gets("$K get $KENNEL_RUN_ID").await;
    run.gets("$K spawn -- true").await;
    run.is_refused("$K status").await;
    let token = fs::read_to_string(run.token_file(kennel)).expect("it is there");
    let digest = token.rsplit('.').next().expect("a digest");
    assert_eq!(digest.len(), 64);
    let token_at = format!("runs/{own}/token");
    assert_eq!(files_with(digest, &kennel.data_dir()), [token_at]);
    let read = format!("{:?}", must("get", client.get(&own).await));
    let trail = format!("{:?}", must("trail", client.trail("").await));
    let environment = run.gets("env").await;
    assert!(environment.contains("KENNEL_RUN_TOKEN_FILE="));
    for text in [&kennel.log(), &read, &trail, &environment] {
        assert!(!text.contains(digest), "{text}");
    }
    must("abort", client.abort(&own).await);
    eventually("no file has it", PATIENCE, || {
        files_with(digest, &kennel.data_dir())
            .is_empty()
            .then_some(())
    })
    .await;
}

// promise: RW-86
async fn open_streams_end_with_the_attempt((_, kennel): &(Secrets, Kennel)) {
    let mut client = kennel.client().await;
    let mut run = Caller::begin_as(kennel, ApiAccess::Children, |spec| {
        spec.on_leader_exit(pb::LeaderExitAction::Keep, None)
    })
    .await;
    let child = run
        .gets("$K spawn --on-parent-end keep --parent $KENNEL_RUN_ID -- sh -c 'echo up; exec sleep 1000'")
        .await;
    // A detached `logs -f` and its connection outlive the run.
    let over = run.answers.join("over");
    let follow = format!(
        "$K logs -f {child}; echo $? > {0}.new; mv {0}.new {0}",
        over.display()
    );
    run.gets(&format!(
        "setsid sh -c '{follow}' > $A/followed 2>&1 & true"
    ))
    .await;
    let followed = run.answers.join("followed");
    eventually("the stream is open", PATIENCE, || {
        let text = fs::read_to_string(&followed).ok()?;
        text.contains("up").then_some(())
    })
    .await;
    assert!(!over.exists());
    must(
        "write",
        client.write(&run.run_id, "end", None, b"9 exit 0\n").await,
    );
    must("ended", client.ended(&run.run_id).await);
    let ended = Instant::now();
    let code = eventually("the stream ends", PATIENCE, || {
        fs::read_to_string(&over).ok()
    })
    .await;
    assert_ne!(code.trim(), "0");
    assert!(ended.elapsed() < CUT_MAX, "{:?}", ended.elapsed());
    let alive = must("get", client.get(&child).await);
    assert_eq!(alive.state(), RunState::Running);
}

// promise: RW-93a
async fn child_has_only_secrets_of_its_parent((secrets, kennel): &(Secrets, Kennel)) {
    secrets.write("parent", b"shared");
    secrets.write("other", b"closed");
    let with = |spec: pb::RunSpec| spec.secret("SHARED", Source::ServerFile("parent".into()));
    let mut run = Caller::begin_as(kennel, ApiAccess::Children, with).await;
    let own = run.gets("$K run --secret B=file:parent -- sh -c 'echo $B'");
    assert_eq!(own.await, "shared");
    let sent = run.gets("S=x $K run --secret S -- sh -c 'echo $S'").await;
    assert_eq!(sent, "x");
    for source in ["file:other", "credential:parent"] {
        let line = format!("$K run --secret B={source} -- true");
        let refused = run.is_refused(&line).await;
        assert!(refused.contains("where its parent has it"), "{refused}");
    }
}

// promise: RW-87
async fn token_and_another_user_exclude_each_other((_, kennel): &(Secrets, Kennel)) {
    let mut client = kennel.client().await;
    let mut spec = sh("exit 0");
    spec.api_access = ApiAccess::OwnRun.into();
    spec.privileges = Some(pb::Privileges {
        user: Some(pb::RunUser {
            user_id: 65534,
            ..pb::RunUser::default()
        }),
        ..pb::Privileges::default()
    });
    let refused = client.spawn(spec).await.expect_err("no file for it");
    assert_eq!(refused.code(), Code::InvalidArgument);
    assert_eq!(complaint(&refused).reason, "INVALID_FIELD");
    eventually_async("nothing is left", PATIENCE, async || {
        let all = kennel
            .client()
            .await
            .list_all(pb::RunFilter::default(), 0)
            .await;
        all.ok()?.is_empty().then_some(())
    })
    .await;
}
