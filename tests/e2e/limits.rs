//! Resource limits of a run, and those that this host cannot enforce.

use crate::{play_scenes, with_and_without_cgroup};
use kennel_proto::pb::{self, RlimitResource, RunLimits, RunSpec};
use kennel_tests::{
    Kennel, Options, PATIENCE, RunExt, SpecExt, complaint,
    kennel::{User, bare_command, serve_words},
    must, programs, sh,
    shell::run_to_end,
    shell::text,
};
use nix::{
    sys::resource::{Resource, getrlimit, setrlimit},
    unistd::Uid,
};
use std::path::Path;
use tonic::Code;

with_and_without_cgroup!(limits_hold_or_are_refused);

fn rlimit(resource: RlimitResource, soft: u64, hard: Option<u64>) -> pb::Rlimit {
    pb::Rlimit {
        resource: resource.into(),
        soft: Some(soft),
        hard,
    }
}

fn own_nice() -> i32 {
    let stat = std::fs::read_to_string("/proc/self/stat").expect("own stat");
    let (_, rest) = stat.rsplit_once(')').expect("a name");
    let nice = rest.split_whitespace().nth(16).expect("field 19");
    nice.parse().expect("a number")
}

/// Soft and hard limit of files, core dumps, the nice value and the umask.
const TELL: &str =
    "echo $(ulimit -Sn) $(ulimit -Hn) $(ulimit -Sc) $(cut -d ' ' -f 19 /proc/self/stat) $(umask)";

async fn limits_hold_or_are_refused(options: Options) {
    let kennel = Kennel::start(options).await;
    play_scenes! {
        &kennel;
        run_is_held_to_its_shown_limits,
        limit_ends_a_command_beyond_it,
        unavailable_limit_is_refused_by_its_field,
        limits_can_be_typed,
        run_without_limit_controller_does_not_start,
    }
}

/// More than the soft limit of the size of files in blocks of 512 bytes, under which the service is started.
const BEYOND_BLOCKS: u64 = 3_000;
const BLOCKS: u64 = 400;
/// A hard limit of memory that hinders no process here.
const MEMORY: u64 = 1 << 40;

// promise: L-2c, L-2f
#[tokio::test(flavor = "multi_thread")]
async fn service_limits_are_raised_or_reported() {
    let (soft, hard) = getrlimit(Resource::RLIMIT_FSIZE).expect("it can be read");
    // The service inherits the limit, which is then restored here.
    setrlimit(Resource::RLIMIT_FSIZE, BLOCKS * 512, hard).expect("it is lowered");
    let kennel = Kennel::on_sqlite().await;
    setrlimit(Resource::RLIMIT_FSIZE, soft, hard).expect("it is raised");
    let mut client = kennel.client().await;
    let script = format!("ulimit -Sf; head -c {} /dev/zero", BEYOND_BLOCKS * 512);
    let run = must("spawn", client.spawn(sh(&script)).await);
    let run = must("wait", client.ended(&run.run_id).await);
    assert_eq!(run.reason(), "exited", "{run:?}");
    let output = must("stream", client.hear_all(&run.run_id, 0).await);
    let said = output.text();
    assert_eq!(said.lines().next(), Some(BLOCKS.to_string().as_str()));
    assert_eq!(said.len() as u64, 4 + BEYOND_BLOCKS * 512);

    drop(kennel);
    for limit in ["-f 400", "-t 999"] {
        let dir = tempfile::tempdir().expect("a directory");
        let mut serve = bare_command(Path::new("sh"));
        let script = format!("ulimit {limit}; exec \"$@\"");
        serve.args(["-c", &script, "sh"]).arg(programs::kennel());
        serve.args(serve_words(dir.path(), None));
        let output = run_to_end(serve, PATIENCE).await;
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains("has a hard limit, RLIMIT_"));
    }

    // The limit stays, but this process needs less.
    setrlimit(Resource::RLIMIT_AS, MEMORY, MEMORY).expect("it is lowered");
    let kennel = Kennel::on_sqlite().await;
    let limit = format!("a hard limit, RLIMIT_AS of {MEMORY}");
    for word in ["status", "doctor"] {
        let said = text(&run_to_end(kennel.cli(&[word]), PATIENCE).await);
        assert!(said.contains(&limit), "{word}: {said}");
    }
    assert!(kennel.log().contains(&limit));
}

// promise: Q-1
async fn run_is_held_to_its_shown_limits(kennel: &Kennel) {
    let mut client = kennel.client().await;
    let nice = own_nice() + 4;
    let limits = RunLimits {
        rlimits: vec![
            rlimit(RlimitResource::Nofile, 100, Some(200)),
            rlimit(RlimitResource::Core, 0, None),
        ],
        nice: Some(nice),
        ..RunLimits::default()
    };
    let spec = RunSpec {
        umask: Some(0o077),
        ..sh(TELL).limits(limits.clone())
    };
    let run = must("spawn", client.spawn(spec).await);
    let run = must("wait", client.ended(&run.run_id).await);
    let heard = must("stream", client.hear_all(&run.run_id, 0).await);
    assert_eq!(heard.text().trim(), format!("100 200 0 {nice} 0077"));
    // Reads return the limits in force: an omitted hard limit is the soft one.
    let in_force = RunLimits {
        rlimits: vec![
            rlimit(RlimitResource::Nofile, 100, Some(200)),
            rlimit(RlimitResource::Core, 0, Some(0)),
        ],
        ..limits
    };
    assert_eq!(run.spec.expect("it is kept").limits, Some(in_force));
}

// promise: Q-1
async fn limit_ends_a_command_beyond_it(kennel: &Kennel) {
    let mut client = kennel.client().await;
    let file = kennel.scratch().join("file");
    let script = format!("head -c 100000 /dev/zero > {}", file.display());
    let spec = sh(&format!("exec {script}")).limits(RunLimits {
        rlimits: vec![rlimit(RlimitResource::Fsize, 5000, None)],
        ..RunLimits::default()
    });
    let run = must("spawn", client.spawn(spec).await);
    let run = must("wait", client.ended(&run.run_id).await);
    assert_eq!(std::fs::metadata(file).expect("it is there").len(), 5000);
    assert_eq!(
        (run.reason(), run.signal().as_deref()),
        ("exited", Some("SIGXFSZ"))
    );
}

// promise
async fn unavailable_limit_is_refused_by_its_field(kennel: &Kennel) {
    let mut client = kennel.client().await;
    let marker = kennel.scratch().join("ran");
    let script = format!("touch {}", marker.display());
    // No process may open that many files.
    let spec = sh(&script).limits(RunLimits {
        rlimits: vec![
            rlimit(RlimitResource::Core, 0, None),
            rlimit(RlimitResource::Nofile, 64, Some(u64::MAX)),
        ],
        ..RunLimits::default()
    });
    let run_id = kennel_tests::new_run_id();
    let refused = client.spawn_as(&run_id, spec).await.expect_err("refused");
    let refusal = complaint(&refused);
    assert_eq!(
        (refusal.code, refusal.reason.as_str()),
        (Code::FailedPrecondition, "CAPABILITY_MISSING")
    );
    assert!(
        refused.message().contains("spec.limits.rlimits[1]"),
        "{refused:?}"
    );
    assert!(refused.message().contains("RLIMIT_NOFILE"), "{refused:?}");
    assert!(client.get(&run_id).await.is_err(), "there is no such run");
    // The refusal left the key free; invalid values are reported together.
    let spec = sh(&script).limits(RunLimits {
        rlimits: vec![
            rlimit(RlimitResource::Core, 2, Some(1)),
            rlimit(RlimitResource::Unspecified, 0, None),
        ],
        nice: Some(20),
        oom_score_adj: Some(1001),
        pids_max: Some(0),
        ..RunLimits::default()
    });
    let refusal = complaint(&client.spawn_as(&run_id, spec).await.expect_err("refused"));
    assert_eq!(
        (refusal.code, refusal.reason.as_str()),
        (Code::InvalidArgument, "INVALID_FIELD")
    );
    let mut fields = refusal.fields;
    fields.sort();
    let wanted = [
        "spec.limits.nice",
        "spec.limits.oom_score_adj",
        "spec.limits.pids_max",
        "spec.limits.rlimits[0]",
        "spec.limits.rlimits[1].resource",
    ];
    assert_eq!(fields, wanted);
    assert!(!marker.exists());
}

/// Without rights a server can make things worse for its commands, and never better.
// promise: Q-7
#[tokio::test(flavor = "multi_thread")]
async fn unprivileged_server_reports_unavailable_limits() {
    let user = if Uid::effective().is_root() {
        User::Unprivileged
    } else {
        User::Own
    };
    let options = Options {
        user,
        ..Options::default()
    };
    let kennel = Kennel::start(options).await;
    let mut client = kennel.client().await;
    let nice = own_nice() + 4;
    let limits = RunLimits {
        rlimits: vec![
            rlimit(RlimitResource::Nofile, 100, Some(200)),
            rlimit(RlimitResource::Core, 0, None),
        ],
        nice: Some(nice),
        ..RunLimits::default()
    };
    let run = must("spawn", client.spawn(sh(TELL).limits(limits)).await);
    let run = must("wait", client.ended(&run.run_id).await);
    let heard = must("stream", client.hear_all(&run.run_id, 0).await);
    assert_eq!(heard.text().trim(), format!("100 200 0 {nice} 0022"));

    let limits = RunLimits {
        nice: Some(-20),
        oom_score_adj: Some(900),
        ..RunLimits::default()
    };
    let refused = client.spawn(sh("exit 0").limits(limits)).await;
    let refused = refused.expect_err("it may not");
    assert_eq!(complaint(&refused).reason, "CAPABILITY_MISSING");
    for field in ["spec.limits.nice", "spec.limits.oom_score_adj"] {
        assert!(refused.message().contains(field), "{refused:?}");
    }
}

// promise: Q-5
async fn limits_can_be_typed(kennel: &Kennel) {
    let nice = (own_nice() + 2).to_string();
    let words = [
        "run",
        "--limit",
        "nofile=50:60",
        "--limit",
        "core=0",
        "--nice",
        &nice,
    ];
    let mut command = kennel.cli(&words);
    command.args(["--", "/bin/sh", "-c", TELL]);
    let output = run_to_end(command, PATIENCE).await;
    assert_eq!(text(&output), format!("50 60 0 {nice} 0022"), "{output:?}");
    let mut command = kennel.cli(&["run", "--limit", "nofile=50:unlimited"]);
    command.args(["--", "true"]);
    let output = run_to_end(command, PATIENCE).await;
    assert_eq!(output.status.code(), Some(125), "{output:?}");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("RLIMIT_NOFILE"), "{said}");
}

/// Where the host has the controller, the limit is in force; where it has not, the run is refused.
// promise: Q-6, Q-6a, RW-123a
async fn run_without_limit_controller_does_not_start(kennel: &Kennel) {
    let mut client = kennel.client().await;
    let info = client.server_info().await.expect("it serves");
    let host = info.host.expect("it says");
    let has = |name: &str| {
        let found = host.capabilities.iter().find(|c| c.name == name);
        found.expect("it was tried").available
    };
    let marker = kennel.scratch().join("ran");
    let script = format!("touch {}; exec sleep 300", marker.display());
    let limits = RunLimits {
        pids_max: Some(10),
        ..RunLimits::default()
    };
    let asked = client.spawn(sh(&script).limits(limits)).await;
    if has("cgroup_pids") {
        let run = must("spawn", asked);
        let identity = run.attempt().identity.clone().expect("it has one");
        let group = identity.cgroup_path.expect("it has a group");
        let set = std::fs::read_to_string(format!("{group}/pids.max"));
        assert_eq!(set.expect("it can be read").trim(), "10");
        must("abort", client.abort(&run.run_id).await);
        return;
    }
    let refused = asked.expect_err("there is no controller");
    let refusal = complaint(&refused);
    assert_eq!(
        (refusal.code, refusal.reason.as_str()),
        (Code::FailedPrecondition, "CAPABILITY_MISSING")
    );
    assert!(
        refused.message().contains("spec.limits.pids_max"),
        "{refused:?}"
    );
    // All missing capabilities are reported together.
    let all = RunLimits {
        memory: Some(pb::MemoryLimits {
            max_bytes: Some(1 << 30),
            ..pb::MemoryLimits::default()
        }),
        cpu: Some(pb::CpuLimits {
            weight: Some(50),
            ..pb::CpuLimits::default()
        }),
        pids_max: Some(10),
        io: vec![pb::IoLimit {
            path: "/".into(),
            read_bytes_per_second: Some(1 << 20),
            ..pb::IoLimit::default()
        }],
        ..RunLimits::default()
    };
    let refused = client.spawn(sh(&script).limits(all)).await;
    let refused = refused.expect_err("there are no controllers");
    for (capability, field) in [
        ("cgroup_memory", "spec.limits.memory.max_bytes"),
        ("cgroup_cpu", "spec.limits.cpu.weight"),
        ("cgroup_io", "spec.limits.io"),
    ] {
        let named = refused.message().contains(field);
        assert_eq!(named, !has(capability), "{field}: {refused:?}");
    }
    assert!(!marker.exists());
}
