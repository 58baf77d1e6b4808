//! `kennel run` without a server.

use kennel_tests::{
    PATIENCE, census,
    kennel::{bare_command, install},
    programs,
    shell::run_to_end,
};
use std::{fs, os::unix::fs::PermissionsExt};

#[tokio::test(flavor = "multi_thread")]
async fn run_command_starts_and_removes_temporary_server() {
    let scratch = tempfile::tempdir().expect("a directory");
    let dir = scratch.path();
    fs::set_permissions(dir, fs::Permissions::from_mode(0o777)).expect("own directory");
    let program = dir.join("kennel");
    install(&programs::kennel(), &program, "0755");
    for name in ["runtime", "tmp", "state"] {
        fs::create_dir_all(dir.join(name)).expect("own directory");
        fs::set_permissions(dir.join(name), fs::Permissions::from_mode(0o777))
            .expect("own directory");
    }
    let run = |words: &[&str]| {
        let mut command = bare_command("setpriv".as_ref());
        command.args(["--reuid", "65534", "--regid", "65534", "--clear-groups"]);
        command
            .arg(&program)
            .arg("run")
            .args(words)
            .current_dir(dir);
        command.env("XDG_RUNTIME_DIR", dir.join("runtime"));
        command.env("XDG_STATE_HOME", dir.join("state"));
        command.env("TMPDIR", dir.join("tmp"));
        command
    };
    let script = "echo out; echo err >&2; (setsid sleep 1000 &) ; echo $KENNEL_RUN_DIR; exit 7";
    let output = run_to_end(run(&["--", "sh", "-c", script]), PATIENCE).await;
    assert_eq!(output.status.code(), Some(7), "{output:?}");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let own = dir.join("tmp").display().to_string();
    assert!(said.starts_with("out\n") && said.contains(&own), "{said}");
    assert_eq!(String::from_utf8_lossy(&output.stderr), "err\n");
    let missing = run_to_end(run(&["--", "/no/such/command"]), PATIENCE).await;
    assert_eq!(missing.status.code(), Some(127), "{missing:?}");
    for name in ["tmp", "state", "runtime"] {
        let left: Vec<_> = fs::read_dir(dir.join(name))
            .expect("a directory")
            .flatten()
            .collect();
        assert!(left.is_empty(), "{left:?}");
    }
    assert!(census::of_data_dir(&own).is_empty(), "no process is left");

    // A server named explicitly must exist.
    let mut named = run(&["--", "true"]);
    named.env(
        "KENNEL_SERVER",
        format!("unix:{}", dir.join("nobody.sock").display()),
    );
    let refused = run_to_end(named, PATIENCE).await;
    assert_eq!(refused.status.code(), Some(125));
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(said.contains("no server answers"), "{said}");
}
