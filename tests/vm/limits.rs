//! Limits of runs in deployments of Kennel: in a delegated control group, in a container, and as PID 1.

use crate::guest::{Guest, Machine};

const MEMORY_MIB: u32 = 1024;
const DISK_BYTES: u64 = 256 << 20;

fn machine(scenario: &'static str) -> Machine {
    Machine {
        scenario,
        memory_mib: MEMORY_MIB,
        disk: None,
        files: Vec::new(),
    }
}

// promise: Q-9, Q-9a, Q-10
#[test]
fn limits_hold_in_a_delegated_group() {
    let checks = Guest::boot(&machine(include_str!("guest/service.sh"))).finish();
    checks.all_passed(&[
        "unit.serve",
        "unit.memory",
        "unit.pids",
        "unit.cpu",
        "unit.usage",
        "unit.leaf",
        "unit.released",
        "sub.serve",
        "sub.memory",
        "sub.pids",
        "sub.cpu",
        "sub.usage",
        "sub.leaf",
        "sub.adopt",
        "sub.limits",
        "scope.serve",
        "scope.refused",
        "alone.serve",
        "alone.refused",
        "own.serve",
        "own.limits",
        "own.stay",
        "own.stayed",
    ]);
}

// promise: Q-9, Q-9a, RW-120
#[test]
fn limits_hold_in_a_container() {
    let checks = Guest::boot(&machine(include_str!("guest/container.sh"))).finish();
    checks.all_passed(&[
        "container.serve",
        "container.memory",
        "container.pids",
        "container.cpu",
        "container.usage",
        "container.leaf",
        "container.again",
        "container.limits",
    ]);
}

// promise: Q-9
#[test]
fn limits_hold_as_the_first_process() {
    let checks = Guest::boot(&machine(include_str!("guest/first.sh"))).finish();
    checks.all_passed(&[
        "first.serve",
        "first.memory",
        "first.pids",
        "first.cpu",
        "first.usage",
        "first.orphans",
    ]);
}

// promise: RW-123
#[test]
fn transfers_are_limited_and_counted() {
    let dir = tempfile::Builder::new()
        .prefix("kennel-vm-disk-")
        .tempdir()
        .expect("a temporary directory can be made");
    let disk = dir.path().join("disk");
    let file = std::fs::File::create(&disk).expect("a file can be made");
    file.set_len(DISK_BYTES).expect("it can be sparse");
    let checks = Guest::boot(&Machine {
        disk: Some(disk),
        ..machine(include_str!("guest/io.sh"))
    })
    .finish();
    checks.all_passed(&["io.serve", "io.limited", "io.disk", "io.refused"]);
}
