//! Limits and attributes of a command.

use crate::{
    stage::{BURDEN_NICE, BURDEN_OOM_SCORE_ADJ, Stage, own_nice, own_oom_score_adj},
    time,
};
use kennel_keeper::client::{ClientError, Fact, Kernel};
use kennel_lifecycle::{Exit, Resource, Rlimit, StartFailure, StartStage, UNLIMITED};

pub(crate) async fn play(name: &str, stage: &mut Stage) {
    match name {
        "a_command_is_held_to_its_limits" => held(stage).await,
        "failed_limit_prevents_exec" => refused(stage).await,
        "burdens_are_passed_on" => burdened(stage).await,
        other => time::play(other, stage).await,
    }
}

/// Prints umask, nice value and `oom_score_adj` of the command.
const TELL: &str = "
    cut -d ' ' -f 19 /proc/self/stat > $0/nice
    cat /proc/self/oom_score_adj > $0/oom
    umask > $0/umask";

async fn printed_limits(stage: &Stage) -> [String; 3] {
    let mut printed_limits = Vec::new();
    for name in ["umask", "nice", "oom"] {
        printed_limits.push(stage.written(name).await.trim().to_owned());
    }
    printed_limits.try_into().expect("three of them")
}

fn expected(umask: &str, nice: i32, oom_score_adj: i32) -> [String; 3] {
    [umask.into(), nice.to_string(), oom_score_adj.to_string()]
}

/// Returns that of a command whose spec names none. This process was started by the keeper and has its value, 0 or -500
/// where none was chosen for it.
fn unnamed_oom_score_adj(may_adjust: bool) -> i32 {
    let chosen = own_oom_score_adj().max(0);
    if may_adjust {
        (chosen + 200).min(1000)
    } else {
        chosen
    }
}

fn limit(resource: Resource, soft: u64, hard: u64) -> Rlimit {
    Rlimit {
        resource,
        soft,
        hard,
    }
}

async fn held(stage: &mut Stage) {
    let (run, mut spec) = stage.shell(&format!("cat /proc/self/limits > $0/limits\n{TELL}"));
    let most = |resource| {
        let most = stage.hello.powers.hard_max.iter();
        let most = most.filter(|(known, _)| *known == resource);
        most.map(|(_, most)| *most).next().expect("it was tried")
    };
    // Every limit has a different value, so that none is mistaken for another.
    let wanted = [
        (Resource::Cpu, "Max cpu time", 1000),
        (Resource::FileSize, "Max file size", 2_000_000),
        (Resource::Data, "Max data size", 3_000_000_000),
        (Resource::Stack, "Max stack size", 4_000_000),
        (Resource::Core, "Max core file size", 5000),
        (Resource::Processes, "Max processes", 6000),
        (Resource::OpenFiles, "Max open files", 70),
        (Resource::LockedMemory, "Max locked memory", 8192),
        (Resource::AddressSpace, "Max address space", 9_000_000_000),
        (Resource::PendingSignals, "Max pending signals", 1001),
        (Resource::MessageQueues, "Max msgqueue size", 1002),
        (Resource::Nice, "Max nice priority", 0),
        (Resource::RealTimePriority, "Max realtime priority", 0),
        (Resource::RealTime, "Max realtime timeout", 1005),
    ];
    assert_eq!(wanted.len(), Resource::ALL.len());
    spec.policy.umask = Some(0o027);
    let limits = &mut spec.policy.limits;
    for (resource, _, value) in wanted {
        limits.rlimits.push(limit(resource, value / 2, value));
        assert!(value <= most(resource), "{resource:?}");
    }
    let (nice, adj) = (own_nice() + 7, own_oom_score_adj() + 300);
    limits.nice = Some(nice);
    // Only root can adjust: files of an undumpable process belong to root.
    let may_adjust = stage.hello.powers.oom_score_adj_min.is_some();
    assert_eq!(may_adjust, nix::unistd::geteuid().is_root());
    limits.oom_score_adj = may_adjust.then_some(adj);
    let adj = if may_adjust {
        adj
    } else {
        unnamed_oom_score_adj(false)
    };
    assert_eq!(limits.missing(&stage.hello.powers), []);
    stage.start(run, &spec).await;
    assert_eq!(printed_limits(stage).await, expected("0027", nice, adj));
    let text = stage.written("limits").await;
    for (_, name, value) in wanted {
        let line = text.lines().find_map(|line| line.strip_prefix(name));
        let line = line.unwrap_or_else(|| panic!("no {name} in {text}"));
        let found: Vec<&str> = line.split_whitespace().take(2).collect();
        assert_eq!(
            found,
            [(value / 2).to_string(), value.to_string()],
            "{name}"
        );
    }
    let facts = stage.end(run).await;
    assert!(
        facts.contains(&Fact::LeaderExited(Exit::Code(0))),
        "{facts:?}"
    );

    // Omitted values are the keeper's, whatever the previous run had.
    let (run, spec) = stage.shell(TELL);
    stage.start(run, &spec).await;
    stage.end(run).await;
    let own = expected("0022", own_nice().max(0), unnamed_oom_score_adj(may_adjust));
    assert_eq!(printed_limits(stage).await, own);
}

async fn refused(stage: &mut Stage) {
    // No privilege allows an unlimited number of open files.
    let (run, mut spec) = stage.shell("touch $0/ran");
    let files = limit(Resource::OpenFiles, 64, UNLIMITED);
    spec.policy.limits.rlimits = vec![limit(Resource::Core, 0, 0), files];
    let missing = spec.policy.limits.missing(&stage.hello.powers);
    assert_eq!(missing.len(), 1, "{missing:?}");
    let refused = stage.prepare(run, &spec).await;
    let Err(ClientError::Start(failure)) = refused else {
        panic!("{refused:?}")
    };
    let expected = StartFailure {
        stage: StartStage::Limits,
        errno: Some(libc::EPERM),
        path: Some("RLIMIT_NOFILE".to_owned()),
    };
    assert_eq!(failure, expected);

    // Without the pids controller this request bypasses the earlier check.
    let (run, mut spec) = stage.shell("touch $0/ran");
    spec.policy.limits.pids_max = Some(10);
    if spec.policy.limits.missing(&stage.hello.powers).is_empty() {
        let prepared = stage.prepare(run, &spec).await.expect("a child");
        let group = prepared.identity.cgroup.expect("a group");
        let set = std::fs::read_to_string(format!("{}/pids.max", group.path));
        assert_eq!(set.expect("it can be read").trim(), "10");
        stage.client.shut_gate(run);
        stage.end(run).await;
        return;
    }
    let refused = stage.prepare(run, &spec).await;
    let Err(ClientError::Start(failure)) = refused else {
        panic!("{refused:?}")
    };
    let errno = stage.has_cgroup().then_some(libc::ENOENT);
    assert_eq!((failure.stage, failure.errno), (StartStage::Limits, errno));
    if stage.has_cgroup() {
        let path = failure.path.expect("it was tried on a file");
        assert!(path.ends_with("/pids.max"), "{path}");
    }
    assert!(!stage.file("ran").exists());
}

async fn burdened(stage: &mut Stage) {
    // The keeper started this process with its own values.
    let (nice, adj) = (own_nice(), own_oom_score_adj());
    assert!(nice >= BURDEN_NICE && adj >= BURDEN_OOM_SCORE_ADJ);
    let (run, spec) = stage.shell(TELL);
    stage.start(run, &spec).await;
    let may_adjust = stage.hello.powers.oom_score_adj_min.is_some();
    let adj = unnamed_oom_score_adj(may_adjust);
    assert_eq!(printed_limits(stage).await, expected("0022", nice, adj));
    stage.end(run).await;
}
