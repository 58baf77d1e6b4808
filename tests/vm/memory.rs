//! The machine, or the control group around Kennel, runs out of memory: a run ends, Kennel stays, and the record has
//! the reason.

use crate::guest::{Guest, Machine};

// promise: Q-11
#[test]
fn a_run_is_ended_before_kennel_without_memory() {
    let checks = Guest::boot(&Machine {
        scenario: include_str!("guest/memory.sh"),
        memory_mib: 512,
        disk: None,
        files: Vec::new(),
    })
    .finish();
    checks.all_passed(&["memory.serve", "memory.large", "memory.small"]);
}

// promise: RW-121
#[test]
fn largest_run_is_ended_before_the_shared_limit() {
    let checks = Guest::boot(&Machine {
        scenario: include_str!("guest/reserve.sh"),
        memory_mib: 1024,
        disk: None,
        files: Vec::new(),
    })
    .finish();
    checks.all_passed(&["reserve.without", "reserve.groups", "reserve.processes"]);
}
