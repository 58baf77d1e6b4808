//! Containment of a run: the capabilities of the host, and those reported for a run.

use crate::play_scenes;
use kennel_proto::pb;
use kennel_tests::{
    Footprint, Kennel, Options, PATIENCE, complaint, must, new_run_id, sh,
    shell::{run_to_end, text},
};

// promise: N-1
async fn a_status_names_what_the_host_cannot_do(kennel: &Kennel) {
    let mut client = kennel.client().await;
    let info = client.server_info().await.expect("it answers");
    let host = info.host.expect("a host");
    let found = |name: &str| {
        let found = host.capabilities.iter().find(|c| c.name == name);
        found.unwrap_or_else(|| panic!("{name} in {:?}", host.capabilities))
    };
    let cgroup = found("cgroup");
    assert!(!cgroup.available);
    assert!(cgroup.why.contains("switched off"), "{cgroup:?}");
    assert!(cgroup.instead.contains("shim"), "{cgroup:?}");
    for one in &host.capabilities {
        let has_reason = !one.why.is_empty() && !one.instead.is_empty();
        assert_eq!(one.available, !has_reason, "{one:?}");
    }
    let status_text = text(&run_to_end(kennel.cli(&["status"]), PATIENCE).await);
    let line = format!(
        "{:15} cgroup: {}; instead: {}",
        "cannot", cgroup.why, cgroup.instead
    );
    assert!(status_text.contains(&line), "{status_text}");
}

/// Returns the kinds of gaps that a run's coverage names.
fn gaps(run: &pb::Run) -> Vec<pb::CoverageGapKind> {
    let coverage = run.coverage.as_ref().expect("it has processes");
    coverage.gaps.iter().map(pb::CoverageGap::kind).collect()
}

// promise: N-2
#[tokio::test(flavor = "multi_thread")]
async fn run_reports_containment_and_coverage_gaps() {
    for options in [Options::default(), Options::default().without_cgroup()] {
        let kennel = Kennel::start(options).await;
        let mut client = kennel.client().await;
        let spawned = must("spawn", client.spawn(sh("sleep 1000")).await);
        let print = Footprint::of_run(&spawned);
        let run = must("get", client.get(&spawned.run_id).await);
        let gaps = gaps(&run);
        assert!(gaps.contains(&pb::CoverageGapKind::WorkHandedToDaemons));
        let root = nix::unistd::geteuid().is_root();
        let in_group = run.containment() == pb::Containment::Cgroup;
        assert_eq!(!in_group, gaps.contains(&pb::CoverageGapKind::NoCgroup));
        let may_leave = gaps.contains(&pb::CoverageGapKind::RootMayLeaveCgroup);
        assert_eq!(may_leave, in_group && root);
        // Root may signal all processes; another user cannot follow a setuid program without cgroup.kill.
        assert!(!root || !gaps.contains(&pb::CoverageGapKind::SetuidChildUnkillable));
        let ended = must("abort", client.abort(&run.run_id).await);
        assert_eq!(ended.coverage, run.coverage, "it is kept with the row");
        assert_eq!(ended.containment(), run.containment());
        print.assert_nothing_left();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn host_without_cgroups_refuses_strong_containment() {
    let kennel = Kennel::start(Options::default().without_cgroup()).await;
    play_scenes! {
        &kennel;
        too_weakly_contained_run_is_refused,
        a_status_names_what_the_host_cannot_do,
    }
}

// promise: N-3
async fn too_weakly_contained_run_is_refused(kennel: &Kennel) {
    let mut client = kennel.client().await;
    let id = new_run_id();
    let mark = kennel.scratch().join("ran");
    let mut spec = sh(&format!("echo ran > {}", mark.display()));
    spec.set_min_containment(pb::Containment::Cgroup);
    let refused = client.spawn_as(&id, spec.clone()).await;
    let status = refused.expect_err("there are no control groups");
    let refusal = complaint(&status);
    assert_eq!(refusal.reason, "CONTAINMENT_UNAVAILABLE");
    assert_eq!(refusal.code, tonic::Code::FailedPrecondition);
    assert_eq!(
        must("list", client.list_all(pb::RunFilter::default(), 0).await),
        []
    );
    assert!(!mark.exists());
    // The refused id is free: the same command runs with lower requirements.
    spec.set_min_containment(pb::Containment::Subreaper);
    let (run, existing) = must("spawn", client.spawn_as(&id, spec).await);
    assert!(!existing);
    let run = must("end", client.ended(&run.run_id).await);
    assert_eq!(run.containment(), pb::Containment::Subreaper);
    assert!(mark.exists());
    let words = ["run", "--min-containment", "cgroup", "--", "true"];
    let output = run_to_end(kennel.cli(&words), PATIENCE).await;
    assert_eq!(output.status.code(), Some(125));
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("control group"), "{said}");
}
