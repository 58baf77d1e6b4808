//! Untrusted commands: capabilities, sandbox and profile of system calls, as applied before the command runs.

use kennel_proto::pb::{self, CoverageGapKind, Isolation, SeccompProfile};
use kennel_tests::{
    Client, Kennel, Options, RunExt, SpecExt, User, argv, cases, must, procfs::Proc, scratch, sh,
    within,
};
use nix::unistd::Uid;
use std::{
    fs,
    os::{
        linux::net::SocketAddrExt,
        unix::net::{SocketAddr, UnixListener},
    },
    path::Path,
    time::Duration,
};
use tonic_types::StatusExt;

/// Virtual machines and browsers on a busy host.
const SOFTWARE_PATIENCE: Duration = Duration::from_mins(2);

/// Attempts of a hostile command, each with its output on success. `python - DATA_DIR KEEPER OTHER ABSTRACT`.
const HOSTILE: &str = r#"
import ctypes, os, signal, socket, sys
data, keeper, other, abstract = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
libc = ctypes.CDLL(None, use_errno=True)

def attempt(what, call):
    try:
        if call() is not False:
            print("did:", what)
    except OSError:
        pass

def find():
    for place, _, files in os.walk(data):
        for name in files:
            with open(os.path.join(place, name), "rb"):
                return True
    return False

def connect(path, kind):
    peer = socket.socket(socket.AF_UNIX, kind)
    peer.connect(path)

def trace(pid):
    if libc.ptrace(16, pid, 0, 0) != 0:
        return False

def limit(pid):
    if libc.prlimit(pid, 7, ctypes.byref((ctypes.c_ulong * 2)(0, 0)), None) != 0:
        return False

attempt("listed", lambda: os.listdir(data))
attempt("read", find)
attempt("wrote", lambda: open(data + "/kennel.db", "ab"))
attempt("truncated", lambda: os.truncate(data + "/kennel.db", 0))
attempt("made", lambda: os.mkdir(data + "/mine"))
attempt("renamed", lambda: os.rename(data + "/runs", data + "/gone"))
attempt("connected", lambda: connect("\0" + abstract, socket.SOCK_STREAM))
for name, pid in (("keeper", keeper), ("other", other)):
    attempt("environ of " + name, lambda: open(f"/proc/{pid}/environ").read())
    attempt("descriptor of " + name, lambda: os.readlink(f"/proc/{pid}/fd/0"))
    attempt("memory of " + name, lambda: open(f"/proc/{pid}/maps").read())
    attempt("traced " + name, lambda: trace(pid))
    attempt("limited " + name, lambda: limit(pid))
    for sent in (0, signal.SIGSTOP, signal.SIGKILL):
        attempt(f"sent {int(sent)} to {name}", lambda: os.kill(pid, sent))
print("tried")
"#;

pub(crate) fn sandboxed(mut spec: pb::RunSpec) -> pb::RunSpec {
    spec.privileges = Some(pb::Privileges {
        sandbox: Some(pb::Sandbox::default()),
        seccomp_profile: SeccompProfile::Baseline.into(),
        ..pb::Privileges::default()
    });
    spec
}

fn without(mut spec: pb::RunSpec, capabilities: &[&str]) -> pb::RunSpec {
    let names = capabilities.iter().map(|name| (*name).to_owned());
    let privileges = spec.privileges.get_or_insert_default();
    privileges.drop_capabilities = names.collect();
    spec
}

/// Returns its output, and the run at its end.
pub(crate) async fn printed(client: &mut Client, spec: pb::RunSpec) -> (String, pb::Run) {
    let run = must("spawn", client.spawn(spec).await);
    let ended = client.ended(&run.run_id);
    let ended = must("wait", within("it ends", SOFTWARE_PATIENCE, ended).await);
    let heard = must("stream", client.hear_all(&run.run_id, 0).await);
    (heard.text().trim().to_owned(), ended)
}

fn unprivileged(words: Vec<&'static str>) -> Options {
    Options {
        user: if Uid::effective().is_root() {
            User::Unprivileged
        } else {
            User::Own
        },
        words,
        ..Options::default()
    }
}

// The last test replaces the server.
cases! {
    fn untrusted_commands(Kennel::on_sqlite().await);
    dropped_capabilities_are_in_no_set,
    hostile_run_in_a_sandbox_reaches_nothing,
    command_in_a_sandbox_writes_its_own_places,
    profile_denies_calls_that_endanger_the_host,
    tree_in_a_sandbox_is_paused_and_ended,
}

cases! {
    fn untrusted_commands_without_root(Kennel::start(unprivileged(Vec::new())).await);
    missing_capability_of_the_host_is_refused,
    hostile_run_in_a_sandbox_reaches_nothing,
}

// promise: AC-16
async fn dropped_capabilities_are_in_no_set(kennel: &Kennel) {
    if !Uid::effective().is_root() {
        eprintln!("a server that is not root has none to drop");
        return;
    }
    let mut client = kennel.client().await;
    let script = "grep ^Cap /proc/self/status; grep ^NoNewPrivs /proc/self/status";
    let (all, _) = printed(&mut client, without(sh(script), &["ALL"])).await;
    assert_eq!(all.matches("0000000000000000").count(), 5, "{all}");
    let (plain, _) = printed(&mut client, sh(script)).await;
    assert_eq!(plain.matches("0000000000000000").count(), 2, "{plain}");
    let spec = without(
        sh("grep -E '^Cap(Eff|Bnd)' /proc/self/status"),
        &["CAP_CHOWN", "kill"],
    );
    let (some, run) = printed(&mut client, spec).await;
    for line in some.lines() {
        let set = line.split_whitespace().nth(1).expect("a set");
        let set = u64::from_str_radix(set, 16).expect("a set");
        assert_eq!(set & 0b10_0001, 0, "{line}");
        assert_ne!(set & 0b100, 0, "{line}");
    }
    let shown = run.spec.and_then(|spec| spec.privileges).expect("shown");
    assert_eq!(shown.drop_capabilities, ["CHOWN", "KILL"]);
    let wrong = client.spawn(without(sh("true"), &["NET_RAWER"])).await;
    let wrong = wrong.expect_err("no such capability");
    assert_eq!(
        wrong.get_details_error_info().expect("a reason").reason,
        "INVALID_FIELD"
    );
}

// promise: AC-16
async fn missing_capability_of_the_host_is_refused(kennel: &Kennel) {
    let mut client = kennel.client().await;
    let mut alone = sh("true");
    alone.min_isolation = Isolation::Files.into();
    for (spec, field) in [
        (
            without(sh("true"), &["ALL"]),
            "spec.privileges.drop_capabilities",
        ),
        (alone, "spec.min_isolation"),
    ] {
        let refused = client.spawn(spec).await.expect_err(field);
        let info = refused.get_details_error_info().expect("a reason");
        assert_eq!(info.reason, "CAPABILITY_MISSING");
        assert!(format!("{refused:?}").contains(field), "{refused:?}");
    }
}

// promise: AC-20
#[tokio::test(flavor = "multi_thread")]
async fn node_restrictions_apply_to_every_run() {
    let words = vec![
        "--restrict-runs",
        "no-new-privileges,sandbox,seccomp=baseline",
    ];
    let kennel = Kennel::start(unprivileged(words)).await;
    let mut client = kennel.client().await;
    let script = format!(
        "grep -E '^(NoNewPrivs|Seccomp):' /proc/self/status; ls {} 2>/dev/null || echo closed",
        kennel.data_dir().display()
    );
    let (text, run) = printed(&mut client, sh(&script)).await;
    assert_eq!(text, "NoNewPrivs:\t1\nSeccomp:\t2\nclosed");
    let shown = run.spec.and_then(|spec| spec.privileges).expect("shown");
    assert!(
        shown.no_new_privileges && shown.sandbox.is_some(),
        "{shown:?}"
    );
    assert_eq!(shown.seccomp_profile(), SeccompProfile::Baseline);
}

// promise: AC-17
async fn hostile_run_in_a_sandbox_reaches_nothing(kennel: &Kennel) {
    let mut client = kennel.client().await;
    let other = must(
        "spawn",
        client
            .spawn(sandboxed(sh("echo up; exec sleep 1000")))
            .await,
    );
    client.hear_up(&other.run_id).await;
    let abstract_name = format!("kennel-test-{}", kennel.keeper_pid());
    let listening = SocketAddr::from_abstract_name(&abstract_name).expect("short");
    let listener = UnixListener::bind_addr(&listening).expect("a name of its own");
    let keeper = kennel.keeper_pid();
    let victim = other
        .current_attempt
        .as_ref()
        .map_or(0, |attempt| attempt.pid);
    let words = [
        "/usr/bin/python3",
        "-c",
        HOSTILE,
        &kennel.data_dir().display().to_string(),
        &keeper.to_string(),
        &victim.to_string(),
        &abstract_name,
    ];
    // Unrestricted, both attempts succeed.
    let harmless = sh(&format!(
        "ls {} && kill -0 {keeper}",
        kennel.data_dir().display()
    ));
    let (_, run) = printed(&mut client, harmless).await;
    assert_eq!(run.code(), Some(0), "the guard would see nothing");
    let mut spec = sandboxed(argv(&words));
    spec.min_isolation = Isolation::Processes.into();
    let (text, run) = printed(&mut client, spec).await;
    assert_eq!(text, "tried");
    let gaps = run.coverage.expect("said").gaps;
    let has = |kind| gaps.iter().any(|gap| gap.kind() == kind);
    assert!(has(CoverageGapKind::PathSocketsLeaveSandbox), "{gaps:?}");
    assert!(!has(CoverageGapKind::SignalsLeaveSandbox), "{gaps:?}");
    let proc = Proc::read(victim).expect("it lives");
    assert!(proc.is_alive());
    let other = must("get", client.get(&other.run_id).await);
    assert_eq!(other.state(), pb::RunState::Running);
    drop(listener);
    must("abort", client.abort(&other.run_id).await);
}

// promise: AC-18
async fn command_in_a_sandbox_writes_its_own_places(kennel: &Kennel) {
    let mut client = kennel.client().await;
    // Use a directory outside world-writable /tmp.
    let outside = scratch::closed_dir();
    let (cwd, more) = (outside.path().join("cwd"), outside.path().join("more"));
    for dir in [&cwd, &more] {
        fs::create_dir(dir).expect("own directory");
    }
    fs::write(more.join("file"), "text").expect("own directory");
    let script = format!(
        "echo a > here && mkdir d && mv here d/ && cat d/here; echo b > $KENNEL_RUN_DIR/x && cat $KENNEL_RUN_DIR/x; \
         cat {0}/file 2>/dev/null; echo c > {0}/new 2>/dev/null; \
         echo d > /etc/kennel-test 2>/dev/null; echo e > /dev/null && echo done",
        more.display()
    );
    let in_cwd = |mut spec: pb::RunSpec| {
        spec.cwd = Some(cwd.display().to_string());
        spec
    };
    let (text, _) = printed(&mut client, in_cwd(sandboxed(sh(&script)))).await;
    assert_eq!(text, "a\nb\ndone");
    assert!(!Path::new("/etc/kennel-test").exists());
    fs::remove_dir_all(cwd.join("d")).expect("it was made");
    let mut reads = in_cwd(sandboxed(sh(&script)));
    let sandbox = reads.privileges.as_mut().and_then(|p| p.sandbox.as_mut());
    sandbox.expect("set").readable_paths = vec![more.display().to_string()];
    let (text, _) = printed(&mut client, reads).await;
    assert_eq!(text, "a\nb\ntextdone");
    assert!(!more.join("new").exists());
    fs::remove_dir_all(cwd.join("d")).expect("it was made");
    let mut writes = in_cwd(sandboxed(sh(&script)));
    let sandbox = writes.privileges.as_mut().and_then(|p| p.sandbox.as_mut());
    sandbox.expect("set").writable_paths = vec![more.display().to_string()];
    let (text, _) = printed(&mut client, writes).await;
    assert_eq!(text, "a\nb\ntextdone");
    assert!(more.join("new").exists());
}

// promise: AC-18
async fn tree_in_a_sandbox_is_paused_and_ended(kennel: &Kennel) {
    let mut client = kennel.client().await;
    let spec = sandboxed(sh(
        "setsid sleep 1000 & sh -c 'trap \"\" TERM; sleep 1001' & echo up; wait",
    ));
    let run = must("spawn", client.spawn(spec.grace(Duration::ZERO)).await);
    client.hear_up(&run.run_id).await;
    kennel.kill_server();
    let mut client = kennel.client().await;
    must("pause", client.pause(&run.run_id).await);
    must("resume", client.resume(&run.run_id).await);
    let ended = must("abort", client.abort(&run.run_id).await);
    assert!(ended.tree_is_empty(), "{:?}", ended.tree_verdict);
}

// promise: AC-19
#[tokio::test(flavor = "multi_thread")]
async fn ordinary_software_runs_in_a_sandbox() {
    let kennel = Kennel::on_sqlite().await;
    let mut client = kennel.client().await;
    let dir = kennel.scratch().join("software");
    fs::create_dir(&dir).expect("own directory");
    fs::write(
        dir.join("Hello.java"),
        "class Hello { public static void main(String[] a) throws Exception {\n\
         Thread t = new Thread(() -> System.out.println(\"java\")); t.start(); t.join(); } }",
    )
    .expect("own directory");
    fs::write(
        dir.join("hello.go"),
        "package main\nimport \"fmt\"\nfunc main() { c := make(chan string)\ngo func() { c <- \"go\" }()\nfmt.Println(<-c) }\n",
    )
    .expect("own directory");
    let node = "const fs = require('fs'); fs.writeFileSync('n', 'x');\
        require('child_process').execFile('/bin/echo', ['node'], (e, out) => { process.stdout.write(out) })";
    let python = "import multiprocessing as m, threading, tempfile, subprocess\n\
        tempfile.TemporaryFile(dir='.').write(b'x')\n\
        with m.Pool(2) as p: p.map(abs, [1, 2])\n\
        print(subprocess.check_output(['echo', 'python']).decode())";
    let go = "/usr/local/go/bin/go";
    let browser = [
        "/usr/bin/chromium",
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--user-data-dir=profile",
        "--dump-dom",
        "data:text/html,<p>browser</p>",
    ];
    let cases: [(&[&str], &str); 5] = [
        (&["/usr/bin/node", "-e", node], "node"),
        (&["/usr/bin/python3", "-c", python], "python"),
        (&["/usr/bin/java", "Hello.java"], "java"),
        (&[go, "run", "hello.go"], "go"),
        (&browser, "browser"),
    ];
    for (words, expected) in cases {
        if !Path::new(words[0]).exists() {
            eprintln!("{} is not installed", words[0]);
            continue;
        }
        let mut spec = sandboxed(argv(words));
        spec.cwd = Some(dir.display().to_string());
        let home = dir.display().to_string();
        let vars = [
            ("HOME".to_owned(), home.clone()),
            ("TMPDIR".to_owned(), home),
        ];
        spec.env = Some(pb::Env {
            vars: vars.into_iter().collect(),
            ..pb::Env::default()
        });
        let (text, run) = printed(&mut client, spec).await;
        assert_eq!(run.code(), Some(0), "{text}");
        assert!(text.contains(expected), "{text}");
    }
}

// promise: AC-19
async fn profile_denies_calls_that_endanger_the_host(kennel: &Kennel) {
    let mut client = kennel.client().await;
    let script = "import ctypes, errno, os\n\
        libc = ctypes.CDLL(None, use_errno=True)\n\
        for name, number in (('mount', 165), ('bpf', 321), ('keyctl', 250), ('reboot', 169), ('perf', 298)):\n\
        \x20   assert libc.syscall(number, 0, 0, 0, 0, 0) == -1, name\n\
        \x20   assert ctypes.get_errno() == errno.EPERM, name\n\
        print('denied')";
    let mut spec = argv(&["/usr/bin/python3", "-c", script]);
    spec.privileges = Some(pb::Privileges {
        seccomp_profile: SeccompProfile::Baseline.into(),
        ..pb::Privileges::default()
    });
    if cfg!(target_arch = "x86_64") {
        let (text, _) = printed(&mut client, spec).await;
        assert_eq!(text, "denied");
    }
}
