//! Surroundings of a keeper in which each test runs: only those in which the product runs other code.

use std::fs;

/// With a control group for each run, and without one: containment, pauses, listings and proofs differ.
const EACH: [&str; 2] = ["auto", "off"];

/// Tests that reach no code that depends on the control group: they run with one.
const AUTO_ONLY: &[&str] = &[
    // Tests of the gate, a command's inputs, and start failures.
    "a_shut_gate_runs_nothing",
    "input_and_long_arguments_arrive_whole",
    "the_child_gets_nothing_that_was_not_given",
    "start_failures_are_typed",
    "commands_start_with_default_signals",
    "a_command_is_held_to_its_limits",
    // Tests of run messages, which all go the same way, and of stop steps.
    "a_stopped_child_dies_of_the_polite_signal",
    "leader_exit_in_a_stop_keeps_the_grace",
    "an_interrupt_reaches_the_group_once",
    "many_runs_at_once_all_end",
    "run_left_in_order_is_ended",
    "run_left_in_order_has_no_hours_grace",
    // Signals to the service itself.
    "termination_is_asked_of_the_server",
    "stray_signals_end_neither_keeper_nor_shim",
    "quit_ends_service_in_order",
    "usr2_ends_service_in_order",
    // Without a control group no shim serves a second run, changed or not.
    "changed_shim_serves_no_other_run",
    // Tests of the keeper's clock; the pause and the stop that follow have separate tests.
    "pause_ends_after_its_max_pause",
    "run_paused_for_too_long_is_ended",
    "run_over_max_runtime_ends_with_its_tree",
    "paused_time_does_not_count",
    "deadline_does_not_touch_a_stopping_run",
    // The keeper's messages to its next server, and its clock without a server.
    "unannounced_child_is_not_handed_over",
    "child_at_gate_is_handed_over_and_unrun",
    "awaited_verdict_is_reported_to_next_server",
    "expired_pause_is_handed_over_as_expired",
    "stop_in_its_grace_continues_without_server",
    "drained_rest_is_drained_for_next_server",
    "signal_is_sent_once_whichever_server_asks",
    "many_runs_are_handed_over_at_once",
    "crash_loop_of_servers_ends_no_run",
    "servers_that_never_serve_end_runs",
    "run_over_orphan_ttl_ends_by_its_plan",
    "drain_expires_without_server_and_detaches_later",
    // Starts and ends of the service, descriptors of shims, and the exit record.
    "no_child_hangs_at_a_siblings_gate",
    "shim_records_whether_its_leader_ended_alone",
    "many_orphans_are_ended_side_by_side",
    "a_second_keeper_is_refused",
    "failing_server_gives_the_service_its_exit_code",
    "termination_before_a_ready_server_is_immediate",
    "termination_without_a_server_bounds_each_grace",
    // Tests of the control group itself.
    "budget_of_control_groups_is_kept_and_reported",
    "killed_idle_keeper_leaves_no_directory",
];

/// The test that only a private pid namespace has.
const PRIVATE_ONLY: &str = "no_namespaced_process_outlives_the_whole_service";

/// Further surroundings, and the tests that run their code.
const FURTHER: &[(&str, &[&str])] = &[
    // clone3(2) is refused: a child is made by clone(2) and moved into its group while it waits at its gate
    // (`Placement::ByWrite`), and so is a stop command. The shim gets no descriptor of the group.
    (
        "no_clone3",
        &[
            "output_exit_and_tree_are_told_in_order",
            "a_tree_is_listed_with_what_holds_it",
            "capabilities_are_told_as_they_were_tried_out",
            "shim_without_leftovers_serves_the_next_run",
            "command_before_a_stop_needs_no_server",
        ],
    ),
    // Linux before 6.9, without control groups, so that nothing else identifies a process: processes are found by pid
    // and start time instead of a handle, and a process group is signalled member by member.
    (
        "old_kernel",
        &[
            "capabilities_are_told_as_they_were_tried_out",
            "an_interrupt_reaches_the_group_once",
            "a_tree_of_sessions_and_orphans_is_ended",
            "tree_that_ignores_term_is_killed",
            "lost_verdict_of_a_shim_is_not_invented",
            "paused_tree_stands_still_until_resumed",
            "tree_without_keeper_and_shim_is_ended",
            "stopped_process_is_found_without_leader_and_shim",
        ],
    ),
    // A pid namespace for each run, in addition to its control group: init is made before the child, adopts orphans,
    // answers whether any process is left, proves the end, is in no listing, and gets the SIGKILL; the shim serves no
    // other run, and takes all processes with it. Init has no descriptor of a sibling.
    (
        "private",
        &[
            "output_exit_and_tree_are_told_in_order",
            "the_child_gets_nothing_that_was_not_given",
            "start_failures_are_typed",
            "a_tree_of_sessions_and_orphans_is_ended",
            "tree_that_ignores_term_is_killed",
            "rest_gets_its_grace_after_the_leader",
            "a_signal_reaches_whom_its_target_names",
            "a_tree_is_listed_with_what_holds_it",
            "paused_tree_stands_still_until_resumed",
            "command_that_kills_its_shim_is_ended",
            "lost_verdict_of_a_shim_is_not_invented",
            "child_of_dead_shim_never_runs",
            "too_weakly_contained_run_is_refused",
            "shim_without_leftovers_serves_the_next_run",
            "no_child_hangs_at_a_siblings_gate",
            "shims_carry_out_the_plan_without_keeper",
            PRIVATE_ONLY,
        ],
    ),
    // The namespace without a control group: only its end is the proof, its processes are stopped one by one, and a
    // shim without a keeper has no group to check.
    (
        "private_off",
        &[
            "a_tree_of_sessions_and_orphans_is_ended",
            "tree_that_ignores_term_is_killed",
            "paused_tree_stands_still_until_resumed",
            "command_that_kills_its_shim_is_ended",
            "shims_carry_out_the_plan_without_keeper",
            PRIVATE_ONLY,
        ],
    ),
];

/// Returns the surroundings of the test with this name.
pub(crate) fn of(test: &str) -> Vec<&'static str> {
    let each = EACH.into_iter().filter(|choice| match test {
        PRIVATE_ONLY => false,
        _ => *choice == "auto" || !AUTO_ONLY.contains(&test),
    });
    let further = FURTHER.iter().filter(|(_, tests)| tests.contains(&test));
    let further = further.map(|(choice, _)| *choice);
    let possible = further.filter(|choice| !choice.starts_with("private") || may_make_namespaces());
    each.chain(possible).collect()
}

/// Returns all tests that the tables above name.
pub(crate) fn named() -> impl Iterator<Item = &'static str> {
    let further = FURTHER.iter().flat_map(|(_, tests)| *tests);
    AUTO_ONLY.iter().chain(further).copied()
}

/// Whether this process may make a pid namespace.
fn may_make_namespaces() -> bool {
    const CAP_SYS_ADMIN: u32 = 21;
    let status = fs::read_to_string("/proc/self/status").expect("own status");
    let effective = status.lines().find_map(|l| l.strip_prefix("CapEff:"));
    let set = effective.and_then(|text| u64::from_str_radix(text.trim(), 16).ok());
    set.is_some_and(|set| set >> CAP_SYS_ADMIN & 1 == 1)
}
