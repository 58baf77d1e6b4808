//! Programs that try to escape, on another kernel and with every controller: nothing of them is left.

use crate::guest::{Guest, Machine};

const PROGRAMS: [&str; 18] = [
    "child",
    "setsid",
    "double-fork",
    "daemon",
    "no-environment",
    "overwritten",
    "own-pid-namespace",
    "leaves-cgroup",
    "own-cgroup",
    "ignores-signals",
    "stopped",
    "ptraced",
    "zombie-leader",
    "closes-everything",
    "keeps-pipe",
    "kills-shim",
    "respawns",
    "fork-storm",
];

// promise: Q-13
#[test]
#[ignore = "minutes under emulation: make vm"]
fn escaping_programs_leave_nothing_behind() {
    let checks = Guest::boot(&Machine {
        scenario: include_str!("guest/programs.sh"),
        // Three hundred concurrent processes must not run out of memory.
        memory_mib: 4096,
        disk: None,
        files: Vec::new(),
    })
    .finish();
    let names = PROGRAMS.map(|program| format!("programs.{program}"));
    checks.all_passed(&names.each_ref().map(String::as_str));
}
