//! Limits of runs in deployments of Kennel: in a delegated control group, in a container, and as PID 1.

use crate::guest::{Guest, Machine};

const MEMORY_MIB: u32 = 1024;

fn machine(scenario: &'static str) -> Machine {
    Machine {
        scenario,
        memory_mib: MEMORY_MIB,
        disk: None,
        files: Vec::new(),
    }
}

#[test]
fn limits_hold_in_a_delegated_group() {
    let checks = Guest::boot(&machine(include_str!("guest/service.sh"))).finish();
    checks.all_passed(&[
        "unit.serve",
        "unit.memory",
        "unit.pids",
        "unit.cpu",
        "unit.leaf",
        "unit.released",
        "sub.serve",
        "sub.memory",
        "sub.pids",
        "sub.cpu",
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

#[test]
fn limits_hold_in_a_container() {
    let checks = Guest::boot(&machine(include_str!("guest/container.sh"))).finish();
    checks.all_passed(&[
        "container.serve",
        "container.memory",
        "container.pids",
        "container.cpu",
        "container.leaf",
        "container.again",
        "container.limits",
    ]);
}

#[test]
fn limits_hold_as_the_first_process() {
    let checks = Guest::boot(&machine(include_str!("guest/first.sh"))).finish();
    checks.all_passed(&[
        "first.serve",
        "first.memory",
        "first.pids",
        "first.cpu",
        "first.orphans",
    ]);
}
