//! Wrong requests: a typed error and reason, all violations together, and nothing is left behind.

use kennel_proto::pb::{self, secret::Source};
use kennel_tests::{
    Kennel, SpecExt, argv, cases, census,
    client::{Client, Complaint},
    complaint, fact, must, new_run_id, sh,
};
use std::{fs, os::unix::fs::PermissionsExt, path::Path, time::Duration};
use tonic::{Code, Status};

// Cases that leave a row come last: others expect no row.
cases! {
    fn refused_requests(Kennel::on_sqlite().await);
    a_run_id_that_is_none_is_refused,
    a_run_id_of_the_future_is_refused,
    each_wrong_field_is_named,
    all_violations_come_together,
    extreme_durations_are_named,
    messages_that_are_none_have_reasons,
    missing_command_is_not_found_and_leaves_nothing,
    validate_only_runs_and_records_nothing,
    secrets_of_unopened_places_are_refused,
    failed_start_names_its_step_and_cause,
    failed_exec_is_never_an_exit_code,
}

async fn refused(client: &mut Client, run_id: &str, spec: pb::RunSpec) -> Status {
    match client.spawn_as(run_id, spec).await {
        Ok((run, _)) => panic!("it was spawned: {run:?}"),
        Err(status) => status,
    }
}

async fn refusal(client: &mut Client, run_id: &str, spec: pb::RunSpec) -> Complaint {
    complaint(&refused(client, run_id, spec).await)
}

fn invalid(fields: &[&str]) -> Complaint {
    Complaint {
        code: Code::InvalidArgument,
        reason: "INVALID_FIELD".to_owned(),
        fields: fields.iter().map(|field| (*field).to_owned()).collect(),
    }
}

/// Asserts that there is no row, no run directory, no process, no control group.
async fn assert_nothing_was_made(kennel: &Kennel, client: &mut Client) {
    let rows = must("list", client.list_all(pb::RunFilter::default(), 0).await);
    assert_eq!(rows, []);
    let dirs: Vec<_> = fs::read_dir(kennel.data_dir().join("runs"))
        .map(|entries| entries.flatten().map(|entry| entry.path()).collect())
        .unwrap_or_default();
    assert_eq!(dirs, Vec::<std::path::PathBuf>::new());
    let processes = census::of_data_dir(&kennel.data_dir().to_string_lossy());
    assert_eq!(processes, []);
    let info = client.server_info().await.expect("it answers");
    let base = info.host.map(|host| host.cgroup_base).unwrap_or_default();
    if !base.is_empty() {
        let groups: Vec<_> = fs::read_dir(Path::new(&base))
            .expect("the base is there")
            .flatten()
            .map(|entry| entry.file_name())
            .filter(|name| name.to_string_lossy().starts_with("run-"))
            .collect();
        assert!(groups.is_empty(), "{groups:?}");
    }
}

// promise: A-2
async fn a_run_id_that_is_none_is_refused(kennel: &Kennel) {
    let mut client = kennel.client().await;
    for bad in [
        "../../x",
        "x",
        "8ZZZZZZZZZZZZZZZZZZZZZZZZZ",
        "01jabcdefghjkmnpqrstvwxyz0",
        "01JABCDEFGHIJKLMNOPQRSTUVW",
        "01JABC\0EFGHJKMNPQRSTVWXYZ",
    ] {
        let found = refusal(&mut client, bad, sh("exit 0")).await;
        assert_eq!(
            (found.code, found.reason.as_str(), found.fields.as_slice()),
            (
                Code::InvalidArgument,
                "INVALID_RUN_ID",
                &["run_id".to_owned()][..]
            ),
            "{bad}"
        );
    }
    assert_nothing_was_made(kennel, &mut client).await;
}

// promise: K-3, RW-166
async fn a_run_id_of_the_future_is_refused(kennel: &Kennel) {
    let mut client = kennel.client().await;
    // A timestamp in year 10889 cannot be formatted.
    let status = refused(&mut client, "7ZZZZZZZZZZZZZZZZZZZZZZZZZ", sh("exit 0")).await;
    let found = complaint(&status);
    assert_eq!(
        (found.code, found.reason.as_str()),
        (Code::FailedPrecondition, "RUN_ID_EXPIRED")
    );
    let text = status.message();
    assert!(
        text.contains("9999-12-31T23:59:59.999Z, is not between"),
        "{text}"
    );
    assert!(text.contains(&fact(&status, "newest_time")), "{text}");
    assert_nothing_was_made(kennel, &mut client).await;
}

// promise: TM-6, A-1
async fn each_wrong_field_is_named(kennel: &Kennel) {
    let mut client = kennel.client().await;
    let long = "x".repeat(64 * 1024);
    let three_mib: Vec<&str> = std::iter::once("/bin/true")
        .chain(std::iter::repeat_n(long.as_str(), 48))
        .collect();
    let mut many_vars = sh("exit 0");
    many_vars.env = Some(pb::Env {
        vars: (0..100_000)
            .map(|n| (format!("V{n}"), String::new()))
            .collect(),
        ..pb::Env::default()
    });
    let mut relative = sh("exit 0");
    relative.cwd = Some("tmp".to_owned());
    let mut negative = sh("exit 0");
    negative.stop.get_or_insert_default().grace = Some(prost_types::Duration {
        seconds: -1,
        nanos: 0,
    });
    let no_time = sh("exit 0").max_runtime(Duration::ZERO);
    let mut no_command = sh("exit 0");
    no_command.command = None;
    let too_long = "x".repeat(200 * 1024);
    for (what, spec, fields) in vec![
        ("no time", no_time, &["spec.timeouts.max_runtime"][..]),
        (
            "NUL in argv",
            argv(&["/bin/echo", "a\0b"]),
            &["spec.argv.args[1]"][..],
        ),
        ("empty argv", argv(&[]), &["spec.argv.args"]),
        ("empty name", argv(&[""]), &["spec.argv.args[0]"]),
        ("no command", no_command, &["spec.argv.args"]),
        ("relative cwd", relative, &["spec.cwd"]),
        ("3 MiB of argv", argv(&three_mib), &["spec"]),
        (
            "one long string",
            argv(&["/bin/true", &too_long]),
            &["spec.argv.args[1]"],
        ),
        ("100,000 variables", many_vars, &["spec.env.vars"]),
        ("negative grace", negative, &["spec.stop.grace"]),
        (
            "our own variable",
            sh("exit 0").env("KENNEL_RUN_ID", "x"),
            &["spec.env.vars[\"KENNEL_RUN_ID\"]"],
        ),
        (
            "a name with =",
            sh("exit 0").env("A=B", "x"),
            &["spec.env.vars[\"A=B\"]"],
        ),
        (
            "NUL in a value",
            sh("exit 0").env("A", "x\0"),
            &["spec.env.vars[\"A\"]"],
        ),
        (
            "empty label",
            sh("exit 0").label("", "x"),
            &["spec.labels[\"\"]"],
        ),
    ] {
        assert_eq!(
            refusal(&mut client, &new_run_id(), spec).await,
            invalid(fields),
            "{what}"
        );
    }
    assert_nothing_was_made(kennel, &mut client).await;
}

// promise: A-1
async fn all_violations_come_together(kennel: &Kennel) {
    let mut client = kennel.client().await;
    let mut spec = argv(&[]).env("A=B", "");
    spec.cwd = Some("here".to_owned());
    spec.stop.get_or_insert_default().grace = Some(prost_types::Duration {
        seconds: -5,
        nanos: 0,
    });
    let found = refusal(&mut client, "../../x", spec).await;
    assert_eq!(
        (found.code, found.reason.as_str()),
        (Code::InvalidArgument, "INVALID_FIELD")
    );
    let mut fields = found.fields;
    fields.sort();
    assert_eq!(
        fields,
        [
            "run_id",
            "spec.argv.args",
            "spec.cwd",
            "spec.env.vars[\"A=B\"]",
            "spec.stop.grace"
        ]
    );
    assert_nothing_was_made(kennel, &mut client).await;
}

// promise: E-2
async fn failed_start_names_its_step_and_cause(kennel: &Kennel) {
    let mut client = kennel.client().await;
    let scratch = kennel.scratch();
    let file = scratch.join("file");
    fs::write(&file, "not a program").expect("written");
    let missing = scratch.join("missing");
    let in_dir = |dir: &Path| {
        let mut spec = sh("exit 0");
        spec.cwd = Some(dir.display().to_string());
        spec
    };
    for (what, spec, stage, errno) in [
        (
            "a missing cwd",
            in_dir(&missing),
            "WORK_DIR",
            nix::errno::Errno::ENOENT,
        ),
        (
            "a file as cwd",
            in_dir(&file),
            "WORK_DIR",
            nix::errno::Errno::ENOTDIR,
        ),
    ] {
        let status = refused(&mut client, &new_run_id(), spec).await;
        assert_start_failure(what, &status, stage, errno);
    }
    assert_no_process(kennel);
}

// promise: E-2, RW-165
async fn failed_exec_is_never_an_exit_code(kennel: &Kennel) {
    let mut client = kennel.client().await;
    let plain = kennel.scratch().join("plain");
    fs::write(&plain, "not a program").expect("written");
    let script = kennel.scratch().join("script");
    fs::write(&script, "#!/no/such/interpreter\n").expect("written");
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).expect("changed");
    let noise = kennel.scratch().join("noise");
    fs::write(&noise, [0_u8; 64]).expect("written");
    fs::set_permissions(&noise, fs::Permissions::from_mode(0o755)).expect("changed");

    for (what, file, errno) in [
        ("not executable", &plain, nix::errno::Errno::EACCES),
        ("a missing interpreter", &script, nix::errno::Errno::ENOENT),
        ("not a program", &noise, nix::errno::Errno::ENOEXEC),
    ] {
        let run_id = new_run_id();
        let spec = argv(&[file.to_str().expect("UTF-8")]);
        let status = refused(&mut client, &run_id, spec).await;
        assert_start_failure(what, &status, "EXEC", errno);
        // If a row was written first, it has the same reason; otherwise none exists.
        if let Ok(run) = client.get(&run_id).await {
            use kennel_tests::RunExt;
            assert_eq!((run.reason(), run.code()), ("start_failed", None), "{what}");
            assert_eq!(run.state(), pb::RunState::Failed, "{what}");
        }
    }
    // A script open for writing, as by a saving editor.
    let writer = fs::File::options().append(true).open(&script);
    let status = refused(
        &mut client,
        &new_run_id(),
        argv(&[script.to_str().expect("UTF-8")]),
    )
    .await;
    assert_eq!(status.code(), Code::ResourceExhausted, "{status:?}");
    assert_eq!(fact(&status, "errno"), "26");
    drop(writer);
    assert_no_process(kennel);
}

// promise: A-3
async fn missing_command_is_not_found_and_leaves_nothing(kennel: &Kennel) {
    let mut client = kennel.client().await;
    for name in ["no-such-command-of-ours", "/no/such/command"] {
        let found = refusal(&mut client, &new_run_id(), argv(&[name])).await;
        assert_eq!(
            (found.code, found.reason.as_str()),
            (Code::NotFound, "COMMAND_NOT_FOUND")
        );
    }
    assert_nothing_was_made(kennel, &mut client).await;
}

// promise: A-5
async fn validate_only_runs_and_records_nothing(kennel: &Kennel) {
    let mut client = kennel.client().await;
    let marker = kennel.scratch().join("ran");
    let request = pb::SpawnRequest {
        run_id: new_run_id(),
        validate_only: true,
        spec: Some(sh(&format!("echo ran > {}", marker.display()))),
        ..pb::SpawnRequest::default()
    };
    let answer = must("validate", client.process.spawn(request).await).into_inner();
    assert_eq!(answer.run, None);
    let mut wrong = sh("exit 0");
    wrong.cwd = Some("here".to_owned());
    let request = pb::SpawnRequest {
        run_id: String::new(),
        validate_only: true,
        spec: Some(wrong),
        ..pb::SpawnRequest::default()
    };
    let status = client
        .process
        .spawn(request)
        .await
        .expect_err("it is wrong");
    assert_eq!(complaint(&status), invalid(&["spec.cwd"]));
    assert_nothing_was_made(kennel, &mut client).await;
    assert!(!marker.exists());
}

// promise: RW-92
async fn secrets_of_unopened_places_are_refused(kennel: &Kennel) {
    let mut client = kennel.client().await;
    for (source, setting) in [
        (Source::ServerFile("key".to_owned()), "--secret-dir"),
        (Source::Credential("db".to_owned()), "--secret-credential"),
    ] {
        let spec = argv(&["true"]).secret("A", source);
        let status = refused(&mut client, &new_run_id(), spec).await;
        let said = fact(&status, "why");
        assert!(said.contains(setting), "{said}");
    }
    assert_nothing_was_made(kennel, &mut client).await;
}

fn assert_start_failure(what: &str, status: &Status, stage: &str, errno: nix::errno::Errno) {
    use tonic_types::StatusExt;
    let found = complaint(status);
    assert_eq!(
        (found.code, found.reason.as_str()),
        (Code::FailedPrecondition, "SPAWN_FAILED"),
        "{what}: {status:?}"
    );
    let details = status.get_error_details();
    let metadata = &details.error_info().expect("an ErrorInfo").metadata;
    let said = metadata.get("stage").map(|stage| stage.to_uppercase());
    assert!(
        said.is_some_and(|said| said.ends_with(stage)),
        "{what}: {metadata:?}"
    );
    let number = (errno as i32).to_string();
    let name = format!("{errno:?}");
    assert!(
        metadata
            .get("errno")
            .is_some_and(|said| *said == number || said.contains(&name)),
        "{what}: {metadata:?}"
    );
}

fn assert_no_process(kennel: &Kennel) {
    assert_eq!(
        census::of_data_dir(&kennel.data_dir().to_string_lossy()),
        []
    );
}

// promise: A-18
async fn extreme_durations_are_named(kennel: &Kennel) {
    let mut client = kennel.client().await;
    for seconds in [315_576_000_001, i64::MAX, i64::MIN, -1] {
        let span = Some(prost_types::Duration { seconds, nanos: 0 });
        let mut spec = sh("exit 0");
        spec.stop.get_or_insert_default().grace = span;
        spec.timeouts.get_or_insert_default().max_runtime = span;
        spec.pause = Some(pb::PausePolicy {
            max_pause: span,
            on_max_pause: 0,
        });
        spec.on_leader_exit = Some(pb::LeaderExitPolicy {
            action: pb::LeaderExitAction::Drain.into(),
            drain_timeout: span,
        });
        spec.restart = Some(pb::RestartPolicy {
            mode: pb::RestartMode::Always.into(),
            delay: span,
            max_delay: span,
            min_uptime: span,
            ..pb::RestartPolicy::default()
        });
        let found = refusal(&mut client, "", spec).await;
        assert_eq!(
            (found.code, &*found.reason),
            (Code::InvalidArgument, "INVALID_FIELD")
        );
        let mut fields = found.fields.clone();
        fields.sort_unstable();
        let wanted = [
            "spec.on_leader_exit.drain_timeout",
            "spec.pause.max_pause",
            "spec.restart.delay",
            "spec.restart.max_delay",
            "spec.restart.min_uptime",
            "spec.stop.grace",
            "spec.timeouts.max_runtime",
        ];
        assert_eq!(fields, wanted, "{seconds}");
        let request = pb::AbortRequest {
            run_id: new_run_id(),
            grace: span,
            ..pb::AbortRequest::default()
        };
        let refused = client.process.abort(request).await.expect_err("no grace");
        assert_eq!(complaint(&refused), invalid(&["grace"]), "{seconds}");
    }
    assert_nothing_was_made(kennel, &mut client).await;
}

// promise: A-17
async fn messages_that_are_none_have_reasons(kennel: &Kennel) {
    let mut client = kennel.client().await;
    let too_large = pb::GetRunRequest {
        run_id: "x".repeat(9 * 1024 * 1024),
    };
    let refused = client.process.get_run(too_large).await;
    let found = complaint(&refused.expect_err("too large"));
    let wanted = (Code::ResourceExhausted, "REQUEST_TOO_LARGE");
    assert_eq!((found.code, &*found.reason), wanted);

    let address = format!("unix://{}", kennel.socket().display());
    let endpoint = tonic::transport::Endpoint::from_shared(address).expect("an address");
    let channel = must("connect", endpoint.connect().await);
    let mut grpc = tonic::client::Grpc::new(channel);
    for (path, wanted) in [
        (
            // The run id is a number here instead of a string.
            "/kennel.v1.ProcessService/GetRun",
            (Code::InvalidArgument, "MALFORMED_REQUEST"),
        ),
        (
            "/kennel.v1.ProcessService/NoSuch",
            (Code::Unimplemented, "UNIMPLEMENTED"),
        ),
    ] {
        let codec = tonic_prost::ProstCodec::<u64, ()>::default();
        grpc.ready().await.expect("it listens");
        let path = path.parse().expect("a path");
        let answer = grpc.unary(tonic::Request::new(7), path, codec).await;
        let found = complaint(&answer.expect_err("no message"));
        assert_eq!((found.code, &*found.reason), wanted);
    }
}
