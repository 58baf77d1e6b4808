//! The machine's memory ends: a run goes, Kennel stays, and the record says why.

use crate::guest::{Guest, Machine};

#[test]
fn a_run_is_ended_before_kennel_without_memory() {
    let checks = Guest::boot(&Machine {
        scenario: include_str!("guest/memory.sh"),
        memory_mib: 512,
        disk: None,
    })
    .finish();
    checks.all_passed(&["memory.serve", "memory.large", "memory.small"]);
}
