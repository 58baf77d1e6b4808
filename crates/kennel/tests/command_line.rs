//! The command line as far as it needs no server: its output, streams and exit codes.

use std::{
    path::Path,
    process::{Command, Output},
};

fn kennel(words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kennel"));
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("KENNEL_") {
            command.env_remove(name);
        }
    }
    command.args(words);
    command
}

/// Returns exit code, standard output, standard error.
fn said(output: &Output) -> (Option<i32>, String, String) {
    (
        output.status.code(),
        String::from_utf8_lossy(&output.stdout).into_owned(),
        String::from_utf8_lossy(&output.stderr).into_owned(),
    )
}

fn run(words: &[&str]) -> (Option<i32>, String, String) {
    said(&kennel(words).output().expect("the binary runs"))
}

fn nowhere(dir: &Path) -> String {
    format!("unix:{}/nobody.sock", dir.display())
}

// promise: C-4
#[test]
fn hint_without_server_says_how_to_start() {
    let dir = tempfile::tempdir().expect("a directory");
    let server = nowhere(dir.path());
    for (words, code) in [
        (&["ps"][..], 1),
        (&["status"], 1),
        (&["spawn", "--", "true"], 1),
        (&["logs", "X"], 1),
        (&["run", "--", "true"], 125),
    ] {
        let (status, out, err) = run(&[&["--server", &server], words].concat());
        assert_eq!(status, Some(code), "{words:?}: {err}");
        assert_eq!(out, "", "{words:?}");
        assert!(
            err.starts_with("error: no server answers at unix:"),
            "{err}"
        );
        assert!(
            err.ends_with("\nhint: start one with: kennel serve\n"),
            "{err}"
        );
    }
}

#[test]
fn server_variable_is_used_and_flag_overrides() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut command = kennel(&["ps"]);
    command.env("KENNEL_SERVER", nowhere(dir.path()));
    let (_, _, err) = said(&command.output().expect("the binary runs"));
    assert!(err.contains("/nobody.sock"), "{err}");

    command.args(["--server", "unix:/other.sock"]);
    let (_, _, err) = said(&command.output().expect("the binary runs"));
    assert!(err.contains("unix:/other.sock"), "{err}");
}

#[test]
fn a_port_needs_an_access_file() {
    let dir = tempfile::tempdir().expect("a directory");
    let data = dir.path().join("data");
    let data_dir = data.to_str().expect("it is UTF-8");
    let words = [
        "serve",
        "--listen",
        "tcp://0.0.0.0:50051",
        "--data-dir",
        data_dir,
    ];
    let (status, _, err) = run(&words);
    assert_eq!(status, Some(2), "{err}");
    assert!(err.contains("--access FILE"), "{err}");
    assert!(!data.exists(), "a refused start leaves nothing behind");
}

// promise: C-8
#[test]
fn passwords_never_appear_in_errors() {
    let (status, _, err) = run(&["serve", "--store", "postgres://u:hunter2@h:port/d"]);
    assert_eq!(status, Some(2), "{err}");
    assert!(!err.contains("hunter2"), "{err}");
}

// promise: C-6
#[test]
fn usage_error_has_its_own_exit_code() {
    assert_eq!(run(&["no-such-command"]).0, Some(2));
    assert_eq!(run(&["ps", "--state", "walking"]).0, Some(2));
    assert_eq!(run(&["run", "--grace", "5x", "--", "true"]).0, Some(125));
    assert_eq!(run(&["run"]).0, Some(125));
}

// promise: C-69
#[test]
fn output_format_flag_is_refused_for_plain_text() {
    for words in [
        &["certs", "ls", "/absent"][..],
        &["completions", "bash"],
        &["context", "show"],
        &["kill", "--list"],
        &["audit", "--verify", "/absent"],
    ] {
        let (status, out, err) = run(&[words, &["-o", "json"]].concat());
        assert_eq!((status, &*out), (Some(2), ""), "{words:?}");
        // With output for programs a refusal is also one JSON object on a line.
        let error: serde_json::Value = serde_json::from_str(&err).expect("JSON");
        let error = &error["error"];
        assert_eq!(
            error["message"], "this command has no form for programs",
            "{words:?}"
        );
        assert_eq!(error["hint"], "leave --output out", "{words:?}");
        assert_eq!(error["exitCode"], 2, "{words:?}");
    }
}

// promise: C-6
#[test]
fn invalid_address_is_a_usage_error() {
    for address in ["tcp://127.0.0.1", "http://127.0.0.1:1", "unix:", "nonsense"] {
        let ask = |words: &[&str]| run(&[&["--server", address], words].concat());
        assert_eq!(ask(&["ps"]).0, Some(2), "{address}");
        assert_eq!(ask(&["run", "--", "true"]).0, Some(125), "{address}");
        let by_variable = kennel(&["ps"]).env("KENNEL_SERVER", address).output();
        let (status, _, err) = said(&by_variable.expect("the binary runs"));
        assert_eq!(status, Some(2), "{err}");
    }
}

#[test]
fn hidden_server_command_refuses_manual_start() {
    let (status, _, err) = run(&["server"]);
    assert_eq!(status, Some(2));
    assert!(
        err.ends_with("hint: start the service with: kennel serve\n"),
        "{err}"
    );
}

#[test]
fn help_of_serve_lists_only_accepted_flags() {
    let (_, help, _) = run(&["serve", "--help"]);
    assert!(help.contains("--listen"), "{help}");
    for (flag, value) in [
        ("--server", "unix:/s"),
        ("--output", "json"),
        ("-o", "json"),
    ] {
        let mut words = help.split([' ', ',', '\n']);
        assert!(words.all(|word| word != flag), "{help}");
        for words in [["serve", flag, value], [flag, value, "serve"]] {
            let (status, _, err) = run(&words);
            assert_eq!(status, Some(2), "{words:?}: {err}");
            assert!(err.contains("for commands that ask a server"), "{err}");
        }
    }
}

#[test]
fn help_lists_exit_codes_but_no_hidden_commands() {
    let (status, out, _) = run(&["--help"]);
    assert_eq!(status, Some(0));
    assert!(out.contains("Exit codes:"));
    assert!(!out.contains("The part of the service that the keeper starts"));
    let (_, out, _) = run(&["run", "--help"]);
    assert!(out.contains("127      the command was not found"));
}

#[test]
fn unreadable_input_is_reported_before_spawn() {
    let dir = tempfile::tempdir().expect("a directory");
    let missing = dir.path().join("missing");
    let missing = missing.to_str().expect("it is UTF-8");
    let server = nowhere(dir.path());
    let words = ["--server", &server, "run", "--input", missing, "--", "cat"];
    let (status, _, err) = run(&words);
    assert_eq!(status, Some(125));
    assert!(err.starts_with("error: cannot read input from"), "{err}");
}

// promise: C-51
#[test]
fn config_shows_where_each_setting_comes_from() {
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("kennel.toml");
    std::fs::write(&file, "data_dir = \"/f\"\nretain-runs = 7\n").expect("written");
    let file = file.to_str().expect("UTF-8");
    let words = [
        "config",
        "show",
        "--origin",
        "--config",
        file,
        "--log-format",
        "json",
        "--default-grace",
        "20s",
        "--default-grace",
        "terminal=2s",
    ];
    let mut command = kennel(&words);
    command.env("KENNEL_ORPHAN_TTL", "1m");
    let (status, out, err) = said(&command.output().expect("the binary runs"));
    assert_eq!((status, &*err), (Some(0), ""));
    for line in [
        &format!("data_dir = \"/f\"  # file {file}"),
        &format!("retain_runs = \"7\"  # file {file}"),
        "orphan_ttl = \"1m\"  # variable KENNEL_ORPHAN_TTL",
        "log_format = \"json\"  # flag --log-format",
        "default_grace = \"20s,terminal=2s\"  # flag --default-grace",
        "store = \"sqlite:/f/kennel.db\"  # default",
        "# metrics_listen is not set  # default",
    ] {
        assert!(out.lines().any(|shown| shown == line), "{line} in {out}");
    }
    // The shown configuration can be read again.
    let shown = run(&["config", "show", "--config", file]).1;
    let again = dir.path().join("again.toml");
    std::fs::write(&again, shown).expect("written");
    let checked = run(&[
        "config",
        "check",
        "--config",
        again.to_str().expect("UTF-8"),
    ]);
    assert_eq!(checked.0, Some(0), "{checked:?}");
}

// promise: L-2a, L-2d, L-2b, L-2e, S-1b, C-51
#[test]
fn config_check_refuses_what_serve_would_refuse() {
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("kennel.toml");
    let path = file.to_str().expect("UTF-8");
    for (text, named) in [
        ("orphan_tll = 1\n", "did you mean orphan_ttl?"),
        ("orphan_ttl = \"soon\"\n", "kennel.toml: orphan_ttl: write"),
        ("cgroup = \"maybe\"\n", "kennel.toml: cgroup: "),
        ("listen = \"tcp:1\"\n", "not an address and a port"),
        (
            "default_grace = \"2d\"\n",
            "default_grace: a grace is at most 24h",
        ),
        (
            "default_grace = [\"job=1s\", \"job=2s\"]\n",
            "default_grace: two graces for runs of kind job",
        ),
        (
            "default_grace = \"shell=1s\"\n",
            "write heartbeat, service, terminal, job",
        ),
        (
            "[defaults.limits]\njob = { pids = 0 }\n",
            "default_limit: pids-max must be 1 to",
        ),
        (
            "[defaults.limits]\ncore = 0\n[defaults.limits.shell]\ncore = 1\n",
            "write heartbeat, service, terminal, job",
        ),
        (
            "shutdown_timeout = \"500ms\"\n",
            "shutdown_timeout: a shutdown takes 1s to 24h",
        ),
        (
            "node_retention = \"0s\"\n",
            "node_retention: a node's row stays for 1m or longer",
        ),
        (
            "shutdown_signal = [\"SIGTERM\", \"job=KILL\"]\n",
            "shutdown_signal: a shutdown cannot begin with SIGKILL",
        ),
        (
            "exit_code_on_signal = 256\n",
            "exit_code_on_signal: write 0 to 255",
        ),
        ("inherit = \"A,*_B\"\n", "inherit: \"*_B\" is no variable"),
        ("log = [\n", ":1: "),
    ] {
        std::fs::write(&file, text).expect("written");
        for words in [&["config", "check"][..], &["serve"]] {
            let (status, _, err) = run(&[words, &["--config", path]].concat());
            assert_eq!(status, Some(2), "{words:?} {text}: {err}");
            assert!(err.contains(named), "{text}: {err}");
        }
    }
    let (status, _, err) = run(&["config", "check", "--config", "/no/such/file"]);
    assert_eq!(status, Some(2), "{err}");
    assert!(err.contains("/no/such/file"), "{err}");
}

// promise: RW-93
#[test]
fn secret_directories_and_data_directory_must_not_overlap() {
    let dir = tempfile::tempdir().expect("a directory");
    let top = dir.path();
    for part in ["data/sub", "secrets"] {
        std::fs::create_dir_all(top.join(part)).expect("a directory");
    }
    std::os::unix::fs::symlink("data", top.join("link")).expect("a link");
    let data = top.join("data");
    let data = data.to_str().expect("UTF-8");
    let checked = |words: &[&str], secret_dir: &str| {
        let words = [words, &["--data-dir", data, "--config", ""]].concat();
        let mut command = kennel(&words);
        command.env("KENNEL_SECRET_DIR", secret_dir);
        command.env("KENNEL_CONFIG", "").env("HOME", top);
        command.current_dir(top);
        said(&command.output().expect("the binary runs"))
    };
    for named in [
        ".",
        "data",
        "data/sub",
        "link/sub",
        "link/later",
        "secrets, link",
    ] {
        for words in [&["config", "check"][..], &["serve"]] {
            let (status, _, err) = checked(words, named);
            assert_eq!(status, Some(2), "{words:?} {named}: {err}");
            let start = "error: KENNEL_SECRET_DIR: ";
            assert!(err.starts_with(start) && err.contains(" overlap"), "{err}");
        }
    }
    // An empty entry is no directory, not even the working directory, which contains the data directory.
    for named in ["", " ", ",", "secrets, ", "/no/such/directory", "database"] {
        let (status, _, err) = checked(&["config", "check"], named);
        assert_eq!((status, &*err), (Some(0), ""), "{named}");
    }
}

// promise: L-2e
#[test]
fn default_limit_beyond_the_host_is_refused() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = |name: &str| dir.path().join(name).display().to_string();
    let socket = format!("unix:{}", path("s"));
    // No process may raise its limit of open files beyond the kernel's, and without a control group no memory limit
    // exists.
    let limits = "core=0,nofile=18446744073709551614,job:memory=1G";
    let words = ["serve", "--cgroup", "off", "--default-limit", limits];
    let data = path("data");
    let (status, _, err) = run(&[&words[..], &["--data-dir", &data, "--listen", &socket]].concat());
    assert_eq!(status, Some(2), "{err}");
    for part in [
        "a hard limit of RLIMIT_NOFILE above",
        "a control group for each run",
        "--default-limit",
    ] {
        assert!(err.contains(part), "{err}");
    }
}

// promise: RW-122
#[test]
fn memory_reserve_without_controller_is_refused() {
    let own = std::fs::read_to_string("/proc/self/cgroup").expect("it can be read");
    let v1 = own.lines().any(|line| line.contains(":memory:"));
    let dir = tempfile::tempdir().expect("a directory");
    let path = |name: &str| dir.path().join(name).display().to_string();
    let serve = |reserve: &str| {
        let socket = format!("unix:{}", path("s"));
        let (data, words) = (path("data"), ["serve", "--memory-reserve", reserve]);
        run(&[&words[..], &["--data-dir", &data, "--listen", &socket]].concat())
    };
    let (status, _, err) = serve("512k");
    assert_eq!(status, Some(2), "{err}");
    assert!(err.contains("1M at least"), "{err}");
    // On cgroup v2 with the memory controller the server would start.
    if v1 {
        let (status, _, err) = serve("64M");
        assert_eq!(status, Some(1), "{err}");
        assert!(err.contains("memory controller of cgroup v2"), "{err}");
    }
}
