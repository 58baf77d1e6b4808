//! In containers as Kubernetes makes them: runc, the usual seccomp profile, another user, no capabilities, no new privileges, a
//! read-only root, read-only control groups.

use kennel_tests::{
    PATIENCE, eventually, must, programs,
    runc::{Container, bound, seccomp, usual_mounts},
    shell::run_to_end,
};
use serde_json::{Value, json};
use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::Output,
};
use tempfile::TempDir;

/// A directory that containers share as `/run/kennel`.
struct Pod {
    dir: TempDir,
}

impl Pod {
    fn new() -> Self {
        let dir = tempfile::Builder::new().prefix("kennel-pod-").tempdir();
        let dir = must("a directory", dir);
        let shared = dir.path().join("shared");
        must("mkdir", fs::create_dir(&shared));
        // Like a kubelet emptyDir: world-writable, with an inherited group.
        let open = fs::Permissions::from_mode(0o2777);
        must("chmod", fs::set_permissions(&shared, open));
        must(
            "chmod",
            fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)),
        );
        Self { dir }
    }

    fn shared(&self) -> PathBuf {
        self.dir.path().join("shared")
    }

    /// Starts this command as this user in a container of its own.
    fn start(&self, name: &str, uid: u32, words: &[&str]) -> Container {
        let bundle = self.dir.path().join(name);
        let state = self.dir.path().join("state");
        must("mkdir", fs::create_dir(&bundle));
        let config = config(uid, words, &bundle.join("root"), &self.shared());
        let unique = self.dir.path().file_name().expect("it has one");
        let name = format!("{name}-{}", unique.to_string_lossy());
        Container::start(name, state, &bundle, &config)
    }
}

/// Returns the configuration that a container runtime writes for a restricted pod.
fn config(uid: u32, words: &[&str], root: &Path, shared: &Path) -> Value {
    for dir in [
        "usr",
        "lib",
        "lib64",
        "bin",
        "kennel",
        "proc",
        "dev",
        "sys",
        "tmp",
        "data",
        "run/kennel",
    ] {
        must("mkdir", fs::create_dir_all(root.join(dir)));
    }
    let binaries = programs::kennel();
    let binaries = binaries.parent().expect("a directory");
    let own = format!("uid={uid}");
    let mut mounts = usual_mounts(binaries);
    mounts.extend([
        json!({"destination": "/tmp", "type": "tmpfs", "source": "tmpfs", "options": ["mode=1777"]}),
        json!({"destination": "/data", "type": "tmpfs", "source": "tmpfs", "options": ["mode=0700", own]}),
        bound(shared, "/run/kennel", &["rbind", "rw"]),
    ]);
    let namespaces = ["pid", "ipc", "uts", "mount", "network"];
    json!({
        "ociVersion": "1.0.2",
        "process": {
            "user": {"uid": uid, "gid": uid, "additionalGids": [10_000]},
            "args": words,
            "env": ["PATH=/usr/bin:/bin:/kennel", "KENNEL_SERVER=unix:/run/kennel/s/kennel.sock", "KENNEL_SERVER_USER=10001"],
            "cwd": "/",
            "noNewPrivileges": true,
            "capabilities": {},
        },
        "root": {"path": root, "readonly": true},
        "mounts": mounts,
        "linux": {
            "namespaces": namespaces.map(|kind| json!({"type": kind})),
            "seccomp": seccomp(&[]),
        }
    })
}

fn said(output: &Output) -> (String, String) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (text(&output.stdout), text(&output.stderr))
}

// promise: S-22
#[tokio::test(flavor = "multi_thread")]
async fn command_is_first_process_of_restricted_container() {
    let pod = Pod::new();
    let script =
        "id -u; grep Seccomp: /proc/self/status; touch /x 2>&1; (setsid sleep 600 &); exit 7";
    let words = [
        "kennel",
        "serve",
        "--config=",
        "--data-dir",
        "/data/d",
        "--",
        "sh",
        "-c",
        script,
    ];
    let words = [
        &words[..5],
        &["--listen", "unix:/run/kennel/s/kennel.sock"],
        &words[5..],
    ]
    .concat();
    let output = pod.start("init", 10_001, &words).end();
    let (stdout, stderr) = said(&output);
    assert_eq!(output.status.code(), Some(7), "{stdout} {stderr}");
    assert!(stdout.starts_with("10001\nSeccomp:\t2\n"), "{stdout}");
    assert!(stdout.contains("Read-only file system"), "{stdout}");
    // Stderr names missing capabilities.
    assert!(stderr.contains("containment subreaper"), "{stderr}");
    assert!(stderr.contains("tree=\"empty\""), "{stderr}");
}

// promise: AC-10
#[tokio::test(flavor = "multi_thread")]
async fn neighbour_of_another_user_uses_the_sidecar() {
    let pod = Pod::new();
    let access = "[[principal]]\nname = \"uid:10002\"\nrole = \"spawner\"\nowner = \"agent\"\n";
    must("write", fs::write(pod.shared().join("access.toml"), access));
    let serve = [
        "kennel",
        "serve",
        "--config=",
        "--data-dir",
        "/data/d",
        "--listen",
        "unix:/run/kennel/s/kennel.sock?mode=0660&group=10000",
        "--access",
        "/run/kennel/access.toml",
        "--health-listen",
        "127.0.0.1:8080",
    ];
    let sidecar = pod.start("sidecar", 10_001, &serve);
    let socket = pod.shared().join("s/kennel.sock");
    eventually("it listens", PATIENCE, || socket.exists().then_some(())).await;
    let script = "kennel run -- id -u && kennel run -- sh -c 'exit 3'; echo $?; kennel status; kennel drain; echo $?";
    let agent = pod.start("agent", 10_002, &["sh", "-c", script]).end();
    let (stdout, stderr) = said(&agent);
    assert!(stdout.starts_with("10001\n3\n"), "{stdout} {stderr}");
    assert!(
        stdout.contains("cgroup"),
        "it says what is missing: {stdout}"
    );
    assert!(stderr.contains("needs the role admin"), "{stderr}");
    // A container unknown to the access file is refused.
    let stranger = pod.start("stranger", 10_003, &["kennel", "ps"]).end();
    let (stdout, stderr) = said(&stranger);
    assert!(!stranger.status.success(), "{stdout} {stderr}");
    let asked = run_to_end(
        {
            let script = "exec 3<>/dev/tcp/127.0.0.1/8080; printf 'GET /readyz HTTP/1.0\\r\\n\\r\\n' >&3; cat <&3";
            sidecar.runc(&["exec"], &["bash", "-c", script])
        },
        PATIENCE,
    )
    .await;
    assert!(said(&asked).0.starts_with("HTTP/1.0 200"), "{asked:?}");
    sidecar.stop();
    let output = sidecar.end();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
}
