//! Access to the server's socket, and addresses at which it does not listen.

use kennel_proto::pb::RunState;
use kennel_tests::{
    Kennel, Options, PATIENCE, RunExt, argv, cases,
    kennel::{bare_command, install, serve_words},
    must, programs, sh,
    shell::{run_to_end, text},
    within,
};
use nix::unistd::Uid;
use std::{fs, os::unix::fs::PermissionsExt, os::unix::process::CommandExt};

// The last test opens the server's directories to others.
cases! {
    fn doors_of_one_server(Kennel::start(with_secrets()).await);
    a_runs_own_processes_are_refused,
    server_secrets_do_not_reach_a_child,
    child_has_only_its_three_descriptors,
    second_server_on_same_directory_names_the_first,
    second_server_does_not_take_live_socket,
    the_socket_is_for_its_owner_alone,
}

/// Options of a server whose environment has secrets, and variables that are meant for it alone.
fn with_secrets() -> Options {
    Options {
        env: [
            ("PGPASSWORD", "secret-1"),
            ("DATABASE_URL", "secret-2"),
            ("OTEL_EXPORTER_OTLP_HEADERS", "secret-3"),
            ("NOTIFY_SOCKET", "/secret-4"),
            ("LISTEN_FDS", "0"),
            ("CREDENTIALS_DIRECTORY", "/secret-5"),
            ("KENNEL_SECRET", "secret-6"),
            ("HARMLESS", "harmless"),
        ]
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .to_vec(),
        ..Options::default()
    }
}

// promise: A-11
async fn a_runs_own_processes_are_refused(kennel: &Kennel) {
    let mut client = kennel.client().await;
    let program = programs::kennel();
    let ask = format!("{} --server {} ps", program.display(), kennel.address());
    for (who, script) in [
        ("the leader", format!("{ask} 2>&1; echo code $?")),
        (
            "a daemon of its own session",
            format!("setsid -w sh -c '{ask} 2>&1; echo code $?'"),
        ),
        (
            "an orphan",
            format!("sh -c '(sh -c \"{ask} 2>&1; echo code \\$?\" &) ' ; sleep 300"),
        ),
    ] {
        let run = must("spawn", client.spawn(sh(&script)).await);
        client.hear_text(&run.run_id, "code ").await;
        must("abort", client.abort(&run.run_id).await);
        let heard = must("stream", client.hear_all(&run.run_id, 0).await);
        assert!(heard.text().contains("error: "), "{who}: {}", heard.text());
        assert!(heard.text().contains("code 1"), "{who}: {}", heard.text());
    }
    assert!(
        client.server_info().await.is_some(),
        "the test itself is let in"
    );
}

// promise: A-10
async fn the_socket_is_for_its_owner_alone(kennel: &Kennel) {
    let dir = kennel.socket().parent().expect("a directory").to_owned();
    let mode = fs::metadata(&dir)
        .expect("it is there")
        .permissions()
        .mode()
        & 0o777;
    assert_eq!(mode, 0o700, "{}", dir.display());
    if Uid::effective().is_root() {
        // Even with the directories opened by mistake, the server checks the peer.
        for open in [kennel.scratch(), dir.as_path()] {
            fs::set_permissions(open, fs::Permissions::from_mode(0o755)).expect("own directory");
        }
        fs::set_permissions(kennel.socket(), fs::Permissions::from_mode(0o777))
            .expect("own socket");
        let copy = kennel.scratch().join("kennel");
        install(&programs::kennel(), &copy, "0755");
        let mut stranger = bare_command(&copy);
        stranger
            .args(["--server", &kennel.address(), "ps"])
            .uid(65534)
            .gid(65534);
        stranger.current_dir("/").env("HOME", "/");
        let output = run_to_end(stranger, PATIENCE).await;
        assert_eq!(output.status.code(), Some(1), "{output:?}");
    }
}

// promise: A-12
#[tokio::test(flavor = "multi_thread")]
async fn port_without_access_file_is_refused() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut serve = bare_command(&programs::kennel());
    serve
        .args(["serve", "--listen", "tcp://127.0.0.1:0", "--data-dir"])
        .arg(dir.path().join("data"));
    let output = run_to_end(serve, PATIENCE).await;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success());
    assert_eq!(output.status.code(), Some(2));
    assert!(
        said.contains("error: ") && said.contains("certificates"),
        "{said}"
    );
    assert!(said.contains("--access"), "{said}");
}

// promise: D-25, R-5
async fn second_server_on_same_directory_names_the_first(kennel: &Kennel) {
    let mut client = kennel.client().await;
    let run = must("spawn", client.spawn(argv(&["/bin/sleep", "300"])).await);

    let mut second = bare_command(&programs::kennel());
    let mut words = serve_words(kennel.scratch(), None);
    words[2] = format!(
        "unix:{}",
        kennel.scratch().join("other/kennel.sock").display()
    );
    second.args(words);
    let output = run_to_end(second, PATIENCE).await;

    assert_eq!(output.status.code(), Some(2), "{output:?}");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let holder = format!("is in use by process {}", kennel.keeper_pid());
    assert!(said.contains(&holder), "{said}");
    assert!(said.contains("hint: a server runs there already"), "{said}");
    assert_eq!(text(&output), "", "errors go to stderr");
    assert_eq!(
        must("get", client.get(&run.run_id).await).state(),
        RunState::Running
    );
    let ended = must("abort", client.abort(&run.run_id).await);
    assert_eq!(ended.reason(), "aborted");
}

// promise: R-5
async fn second_server_does_not_take_live_socket(kennel: &Kennel) {
    let dir = tempfile::tempdir().expect("a directory");
    let mut second = bare_command(&programs::kennel());
    second
        .args(["serve", "--listen", &kennel.address(), "--data-dir"])
        .arg(dir.path().join("data"));
    let output = run_to_end(second, PATIENCE).await;
    assert!(!output.status.success(), "{output:?}");
    let mut client = kennel.client().await;
    assert!(
        client.server_info().await.is_some(),
        "the first still has it"
    );
}

// promise: A-13
async fn server_secrets_do_not_reach_a_child(kennel: &Kennel) {
    let mut client = kennel.client().await;
    for (mode, harmless) in [
        (kennel_proto::pb::EnvMode::Minimal, false),
        (kennel_proto::pb::EnvMode::InheritAll, true),
        (kennel_proto::pb::EnvMode::None, false),
    ] {
        let mut spec = argv(&["/usr/bin/env"]);
        spec.env.get_or_insert_default().mode = mode.into();
        let run = must("spawn", client.spawn(spec).await);
        let heard = within("it ends", PATIENCE, client.hear_all(&run.run_id, 0)).await;
        let env = must("stream", heard).text();
        assert!(!env.contains("secret-"), "{mode:?}: {env}");
        assert!(!env.contains("LISTEN_FDS"), "{mode:?}: {env}");
        assert_eq!(env.contains("HARMLESS"), harmless, "{mode:?}: {env}");
        assert!(
            env.contains(&format!("KENNEL_RUN_ID={}", run.run_id)),
            "{mode:?}: {env}"
        );
    }
}

// promise: A-14
async fn child_has_only_its_three_descriptors(kennel: &Kennel) {
    let mut client = kennel.client().await;
    // Spawned together: no child may inherit another's descriptors.
    let mut runs = Vec::new();
    for _ in 0..8 {
        runs.push(must(
            "spawn",
            client.spawn(sh("ls /proc/$$/fd; true")).await,
        ));
    }
    for run in runs {
        let heard = within("it ends", PATIENCE, client.hear_all(&run.run_id, 0)).await;
        // dash has no own descriptor open while it waits for a command.
        assert_eq!(
            must("stream", heard).text(),
            "0\n1\n2\n",
            "{}",
            run.attempt().pid
        );
    }
}
