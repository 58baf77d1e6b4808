//! What holds a run together: what the host can do, and what a run is told to have.

use kennel_tests::{
    Kennel, Options, PATIENCE,
    shell::{run_to_end, text},
};

#[tokio::test(flavor = "multi_thread")]
async fn a_status_names_what_the_host_cannot_do() {
    let kennel = Kennel::start(Options::default().without_cgroup()).await;
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
    let told = text(&run_to_end(kennel.cli(&["status"]), PATIENCE).await);
    let line = format!(
        "{:15} cgroup: {}; instead: {}",
        "cannot", cgroup.why, cgroup.instead
    );
    assert!(told.contains(&line), "{told}");
}
