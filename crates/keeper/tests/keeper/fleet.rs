//! The tests: each starts a keeper in a directory of its own, waits for its end, and checks for leftovers.

use crate::{
    containment, deaths, handover,
    stage::{DEADLINE, leftovers},
    surroundings,
};
use std::{
    collections::HashSet,
    fs,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus},
    time::{Duration, Instant},
};

/// One test.
pub(crate) struct Test {
    pub(crate) name: String,
    pub(crate) run: Box<dyn Fn()>,
}

/// Scenarios of a run that end in order, in their surroundings.
const SCENARIOS: &[&str] = &[
    "output_exit_and_tree_are_told_in_order",
    "a_shut_gate_runs_nothing",
    "input_and_long_arguments_arrive_whole",
    "the_child_gets_nothing_that_was_not_given",
    "start_failures_are_typed",
    // promise: T-3
    "a_tree_of_sessions_and_orphans_is_ended",
    // promise: T-1
    "tree_that_ignores_term_is_killed",
    // promise: T-2
    "a_stopped_child_dies_of_the_polite_signal",
    // promise: T-6
    "rest_gets_its_grace_after_the_leader",
    "grandchild_holding_the_pipe_hides_no_exit",
    "leader_exit_in_a_stop_keeps_the_grace",
    "an_interrupt_reaches_the_group_once",
    // promise: T-14
    "a_signal_reaches_whom_its_target_names",
    // promise: T-18
    "a_tree_is_listed_with_what_holds_it",
    // promise: T-20
    "tree_without_shim_is_listed_and_signalled",
    // promise: Q-1
    "a_command_is_held_to_its_limits",
    // promise: Q-3, Q-6a
    "failed_limit_prevents_exec",
    "paused_tree_stands_still_until_resumed",
    "a_paused_tree_can_be_ended",
    // promise: T-7
    "command_that_kills_its_shim_is_ended",
    "lost_verdict_of_a_shim_is_not_invented",
    "child_of_dead_shim_never_runs",
    "run_left_in_order_is_ended",
    "run_left_in_order_has_no_hours_grace",
    "termination_is_asked_of_the_server",
    // promise: R-60
    "stray_signals_end_neither_keeper_nor_shim",
    // promise: R-60
    "quit_ends_service_in_order",
    // promise: R-60
    "usr2_ends_service_in_order",
    // promise: R-60a
    "commands_start_with_default_signals",
    // promise: N-1
    "capabilities_are_told_as_they_were_tried_out",
    // promise: N-3
    "too_weakly_contained_run_is_refused",
    "run_with_unknown_need_is_refused",
    "many_runs_at_once_all_end",
    // promise: T-54
    "shim_without_leftovers_serves_the_next_run",
    // promise: T-54
    "changed_shim_serves_no_other_run",
    // promise: B-3
    "run_restarts_while_its_last_shim_ends",
    // promise: T-51
    "self_stopped_process_stays_stopped_after_a_pause",
    // promise: T-50
    "threads_without_their_leader_are_paused_and_signalled",
    // promise: T-52
    "a_pause_is_written_down_while_it_lasts",
    // promise: TM-7
    "pause_ends_after_its_max_pause",
    // promise: TM-8
    "run_paused_for_too_long_is_ended",
    // promise: TM-1
    "run_over_max_runtime_ends_with_its_tree",
    // promise: TM-3
    "paused_time_does_not_count",
    // promise: TM-4
    "deadline_does_not_touch_a_stopping_run",
];

/// Surroundings with one test each: its name, the way, the scenario, and its exit code.
const SURROUNDINGS: &[(&str, &str, &str, i32)] = &[
    (
        // promise: L-4
        "a_keeper_without_descriptors_says_so_and_recovers",
        "few_files",
        "exhaustion",
        0,
    ),
    // promise: T-54a
    ("unwatched_shim_gets_no_job", "few_watches", "unwatched", 0),
    (
        "keeper_sees_exits_despite_ignoring_parent",
        "ignored_exits",
        "output_exit_and_tree_are_told_in_order",
        0,
    ),
    (
        // promise: Q-4
        "keeper_passes_foreign_children_on",
        "burdened",
        "burdens_are_passed_on",
        0,
    ),
    (
        // promise: R-9
        "a_hung_server_is_replaced",
        "auto",
        "a_hung_server_is_replaced",
        0,
    ),
    (
        "keeper_with_foreign_proc_refuses_to_start",
        "foreign_proc",
        "nothing",
        1,
    ),
];

pub(crate) fn all() -> Vec<Test> {
    let mut tests = Vec::new();
    let played = SCENARIOS.iter().chain(handover::SCENARIOS);
    for &scenario in played.clone() {
        for choice in surroundings::of(scenario) {
            tests.push(Test {
                name: format!("{scenario}::cgroup_{choice}"),
                run: Box::new(move || play(choice, scenario)),
            });
        }
    }
    for &(name, choice, scenario, code) in SURROUNDINGS {
        tests.push(Test {
            name: name.into(),
            run: Box::new(move || {
                let dir = tempfile::tempdir().expect("a directory");
                let status = end(start(dir.path(), choice, scenario));
                assert_eq!(status.code(), Some(code));
                nothing_is_left(dir.path());
            }),
        });
    }
    let outside = deaths::ALL.iter().chain(containment::ALL);
    for (name, run) in outside.clone() {
        for choice in surroundings::of(name) {
            tests.push(Test {
                name: format!("{name}::cgroup_{choice}"),
                run: Box::new(move || {
                    let dir = tempfile::tempdir().expect("a directory");
                    run(dir.path(), choice);
                    nothing_is_left(dir.path());
                }),
            });
        }
    }
    let known: HashSet<&str> = played
        .copied()
        .chain(outside.map(|(name, _)| *name))
        .collect();
    for name in surroundings::named() {
        assert!(known.contains(name), "no test {name}");
    }
    tests
}

fn play(choice: &str, scenario: &str) {
    let dir = tempfile::tempdir().expect("a directory");
    let status = end(start(dir.path(), choice, scenario));
    let failed = std::fs::read_to_string(dir.path().join("failed")).unwrap_or_default();
    assert_eq!(
        (status.code(), failed.as_str()),
        (Some(0), ""),
        "{scenario}"
    );
    assert!(!dir.path().join("run/kennel.sock").exists());
    nothing_is_left(dir.path());
}

/// Starts a keeper on its own directory.
pub(crate) fn start(dir: &Path, choice: &str, scenario: &str) -> Child {
    let keeper = keeper_command(dir, choice, scenario).spawn();
    keeper.expect("a keeper")
}

pub(crate) fn keeper_command(dir: &Path, choice: &str, scenario: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("own path"));
    command
        .args(["keeper", &dir.display().to_string(), choice, scenario])
        .env("KENNEL_TEST_DIR", dir);
    command
}

/// Longest time of a whole scenario: many steps one after the other, on a busy machine.
const SCENARIO_MAX: Duration = Duration::from_mins(3);

/// Waits for the keeper's exit.
pub(crate) fn end(mut keeper: Child) -> ExitStatus {
    let give_up = Instant::now() + SCENARIO_MAX;
    loop {
        if let Some(status) = keeper.try_wait().expect("it can be waited for") {
            return status;
        }
        if Instant::now() >= give_up {
            keeper.kill().expect("it can be killed");
            panic!("the keeper did not end");
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Asserts that no process and no control group is left.
fn nothing_is_left(dir: &Path) {
    no_process_is_left(dir);
    let groups = groups_left(dir);
    assert!(groups.is_empty(), "left: {groups:?}");
}

pub(crate) fn no_process_is_left(dir: &Path) {
    let give_up = Instant::now() + DEADLINE;
    loop {
        let left = leftovers(dir);
        if left.is_empty() {
            return;
        }
        assert!(Instant::now() < give_up, "left: {left:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Returns the control groups of the node of this directory.
fn groups_left(dir: &Path) -> Vec<String> {
    let Ok(node) = fs::read_to_string(dir.join("data/node")) else {
        return Vec::new();
    };
    let Some(here) = groups_of_this_process() else {
        return Vec::new();
    };
    let entries = fs::read_dir(here).into_iter().flatten().flatten();
    entries
        .map(|e| e.file_name().to_string_lossy().into_owned())
        .filter(|name| name.contains(node.trim()))
        .collect()
}

/// Returns the cgroup v2 directory of this process, where it is mounted.
pub(crate) fn groups_of_this_process() -> Option<PathBuf> {
    let mounts = fs::read_to_string("/proc/self/mountinfo").expect("mounts");
    let mount = mounts.lines().find(|l| l.contains(" - cgroup2 "));
    let point = mount.and_then(|l| l.split(' ').nth(4))?;
    let own = fs::read_to_string("/proc/self/cgroup").expect("own groups");
    let own = own
        .lines()
        .find_map(|l| l.strip_prefix("0::"))
        .unwrap_or("/");
    Some(Path::new(point).join(own.trim_start_matches('/')))
}
