//! The escape suite in a unified hierarchy, on another kernel than that of the development machines.

use crate::guest::{Guest, Machine};

#[test]
#[ignore = "minutes under emulation: make vm"]
fn no_program_of_the_suite_escapes() {
    let checks = Guest::boot(&Machine {
        scenario: include_str!("guest/escapes.sh"),
        memory_mib: 1024,
        disk: None,
    })
    .finish();
    checks.all_passed(&["escapes.none"]);
}
