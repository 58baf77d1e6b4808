//! What a keeper says of its host and of what holds a run together.

use crate::stage::Stage;
use kennel_linux::client::CapabilityName;

pub(crate) fn play(name: &str, stage: &mut Stage) {
    match name {
        "capabilities_are_told_as_they_were_tried_out" => capabilities(stage),
        other => panic!("no scenario {other}"),
    }
}

/// Each surrounding takes certain things away; what it takes is missing with a reason, and the rest is not.
fn capabilities(stage: &mut Stage) {
    let names: Vec<CapabilityName> = stage.hello.capabilities.iter().map(|c| c.name).collect();
    assert_eq!(names.len(), CapabilityName::ALL.len(), "{names:?}");
    for name in CapabilityName::ALL {
        assert!(names.contains(name), "{name:?} in {names:?}");
    }
    let lacks = |name| stage.hello.lacks(name).map(str::to_owned);
    assert_eq!(lacks(CapabilityName::Cgroup).is_none(), stage.has_cgroup());
    let choice = stage.choice();
    if choice == "off" {
        for name in [CapabilityName::Cgroup, CapabilityName::CgroupKill] {
            let why = lacks(name).expect("it was switched off");
            assert!(why.contains("switched off"), "{why}");
        }
    }
    if choice == "no_clone3" {
        let why = lacks(CapabilityName::Clone3).expect("a filter refuses it");
        assert!(why.contains("not implemented"), "{why}");
        assert!(lacks(CapabilityName::CgroupClone).is_some());
    } else {
        assert_eq!(lacks(CapabilityName::Clone3), None);
    }
    if choice == "old_kernel" {
        assert!(lacks(CapabilityName::Pidfs).is_some());
        assert!(lacks(CapabilityName::PidfdGroupSignal).is_some());
    }
    if stage.has_cgroup() {
        // What the kernel has put into a fresh directory, looked up without the keeper.
        let base = stage.hello.cgroup_base.as_ref().expect("there is one");
        let file = |name: &str| base.join(name).exists();
        assert_eq!(
            lacks(CapabilityName::CgroupKill).is_none(),
            file("cgroup.kill")
        );
        assert_eq!(
            lacks(CapabilityName::CgroupFreeze).is_none(),
            file("cgroup.freeze")
        );
        let controllers = std::fs::read_to_string(base.join("cgroup.controllers"));
        let controllers = controllers.expect("every group has the list");
        for (name, controller) in [
            (CapabilityName::CgroupMemory, "memory"),
            (CapabilityName::CgroupPids, "pids"),
            (CapabilityName::CgroupCpu, "cpu"),
        ] {
            let delegated = controllers.split_whitespace().any(|c| c == controller);
            assert_eq!(lacks(name).is_none(), delegated, "{controller}");
        }
        // These tests run as the owner of the directory.
        assert!(lacks(CapabilityName::CgroupSealed).is_some());
    }
}
