//! The machine runs out of memory: a run is killed, Kennel stays, and the record has the reason.

use crate::guest::{Guest, Machine};

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
