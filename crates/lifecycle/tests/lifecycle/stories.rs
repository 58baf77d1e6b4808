//! The core in a fake world: in every story a run ends, and its outcome is true.

use crate::{
    samples::{GRACE, abort, killed_by},
    world::{Child, Fault, Row, Story, Temper, World},
};
use kennel_lifecycle::{
    Command, Deadline, EndReason, Entry, Exit, LeaderExit, Outcome, Phase, RunState, Signal,
    StreamsEnd, TreeVerdict,
};
use proptest::prelude::*;
use std::time::Duration;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4_000))]

    /// For every temper of the child, every fault, every time of a stop, and every order of reports.
    #[test]
    fn every_run_ends_and_leaves_no_process(story in story()) {
        let world = story.reported();
        let phase = world.machine.phase();
        prop_assert!(matches!(phase, Phase::Closed(_) | Phase::Forgotten(_)), "{phase:?}");
        prop_assert!(!world.leader_lives() && (!world.worker || world.kept), "{phase:?}");
        prop_assert!(!world.frozen || !world.executed);
        prop_assert!(!world.ended_while_stuck, "{phase:?}");
    }

    #[test]
    fn each_child_has_one_outcome_or_no_row(story in story()) {
        let world = story.reported();
        match world.machine.phase() {
            Phase::Closed(outcome) => {
                prop_assert_eq!(&world.row, &Row::Closed(Box::new(outcome.clone())));
                prop_assert_eq!(world.outcomes, 1);
                prop_assert_eq!(world.acknowledged, 1);
            }
            _ => {
                let trace = matches!(world.row, Row::Open | Row::Closed(_));
                prop_assert!(!trace, "{:?}", world.row);
                prop_assert_eq!((world.outcomes, world.executed), (0, false));
                prop_assert_eq!(world.acknowledged, usize::from(world.child != Child::None));
            }
        }
    }

    // promise: K-4
    #[test]
    fn stop_accepted_before_the_gate_prevents_exec(story in story()) {
        let world = story.reported();
        if world.stopped_in_time {
            prop_assert!(!world.executed);
            if let Phase::Closed(outcome) = world.machine.phase() {
                prop_assert_eq!(outcome.exit, None);
            }
        }
    }

    #[test]
    fn no_command_runs_without_a_row(story in story()) {
        let world = story.reported();
        prop_assert!(!world.executed || world.row_before_exec);
    }

    #[test]
    fn outcome_matches_the_simulated_world(story in story()) {
        let fault = story.fault;
        let world = story.reported();
        let Phase::Closed(outcome) = world.machine.phase() else {
            return Ok(());
        };
        match outcome.exit {
            // "Never ran" is never reported of a command that ran.
            None => prop_assert!(!world.executed),
            Some(exit @ (Exit::Code(_) | Exit::Signal { .. })) => prop_assert_eq!(Some(exit), world.died_of),
            Some(Exit::Unknown) => prop_assert_eq!(fault, Fault::ShimDies),
        }
        if let TreeVerdict::Empty(_) | TreeVerdict::NeverRan = outcome.tree {
            prop_assert!(!world.worker);
        }
        prop_assert_eq!(matches!(outcome.tree, TreeVerdict::Kept(_)), world.kept);
        if outcome.reason == EndReason::Exited {
            prop_assert!(world.died_alone);
        }
        if let EndReason::DeadlineExceeded(_) = outcome.reason {
            prop_assert!(world.exceeded);
        }
    }

    /// At every time of a pause, and for every reaction to the signals.
    #[test]
    fn run_is_stopped_at_its_max_runtime(story in story()) {
        let limit = story.limit;
        let stopped = story.wishes.iter().any(|(_, wish)| matches!(wish, Command::Stop(_)));
        let world = story.reported();
        if world.exceeded {
            prop_assert!(Some(world.ran) >= limit);
        }
        let Phase::Closed(outcome) = world.machine.phase() else {
            return Ok(());
        };
        if world.exceeded && !stopped {
            prop_assert_eq!(&outcome.reason, &EndReason::DeadlineExceeded(Deadline::MaxRuntime));
            prop_assert_eq!(outcome.state(), RunState::Failed);
        }
    }

    #[test]
    fn exit_streams_and_tree_are_reported_before_ended(story in story()) {
        let world = story.reported();
        let reported = |wanted: fn(&Entry) -> bool| world.announced.iter().filter(|a| wanted(a)).count();
        if let Phase::Closed(outcome) = world.machine.phase() {
            let ran = usize::from(outcome.exit.is_some());
            prop_assert_eq!(reported(|a| matches!(a, Entry::LeaderExited(_))), ran);
            prop_assert_eq!(reported(|a| matches!(a, Entry::StreamsClosed(_))), ran);
            prop_assert_eq!(reported(|a| matches!(a, Entry::TreeEnded(_))), ran);
            prop_assert!(matches!(world.announced.last(), Some(Entry::Ended(_))));
        }
    }

    /// Only a run with that policy detaches processes, and a stop that was accepted while the leader lived is for all.
    // promise: W-8
    #[test]
    fn processes_are_detached_only_by_policy(story in story()) {
        let (policy, temper) = (story.policy, story.temper);
        let world = story.reported();
        if world.kept {
            prop_assert_eq!(policy, LeaderExit::Keep);
            prop_assert!(world.died_alone, "{temper:?}");
            prop_assert!(!world.stopped_while_leader_lived);
        }
    }

    /// Where no caller requests anything, the same reports come in the same number, and the outcome is the same.
    // promise: R-13
    #[test]
    fn server_death_does_not_change_events(story in story(), deaths in prop::collection::vec(1usize..24, 1..4)) {
        let undisturbed = Story { wishes: vec![], deaths: vec![], ..story };
        let disturbed = Story { deaths, ..undisturbed.clone() };
        let (one, other) = (undisturbed.reported(), disturbed.reported());
        if !other.gate_opened {
            // A server that died before it opened the gate ran no command.
            prop_assert!(!other.executed);
            return Ok(());
        }
        prop_assert_eq!(one.machine.phase(), other.machine.phase());
        prop_assert_eq!(sorted(&one.announced), sorted(&other.announced));
        prop_assert_eq!(one.announced.last(), other.announced.last());
    }

    #[test]
    fn obedient_child_is_never_killed_for_pausing(turns in 4usize..12, order in order()) {
        let story = Story {
            temper: Temper::Obeys,
            fault: Fault::None,
            worker: false,
            holder: false,
            limit: None,
            policy: LeaderExit::Stop,
            wishes: vec![(4, Command::Pause), (turns, Command::Stop(abort(GRACE)))],
            order,
            echoes: vec![],
            deaths: vec![],
        };
        prop_assert_eq!(story.reported().died_of, Some(killed_by(Signal::TERM)));
    }

    #[test]
    fn stubborn_child_is_killed_after_its_grace(grace in 0u64..5_000, sooner in 0u64..5_000, order in order()) {
        let millis = Duration::from_millis;
        let story = Story {
            temper: Temper::Ignores,
            fault: Fault::None,
            worker: true,
            holder: false,
            limit: None,
            policy: LeaderExit::Stop,
            wishes: vec![(5, Command::Stop(abort(millis(grace)))), (5, Command::Stop(abort(millis(sooner))))],
            order,
            echoes: vec![],
            deaths: vec![],
        };
        let world = story.reported();
        prop_assert_eq!(world.died_of, Some(killed_by(Signal::KILL)));
        prop_assert_eq!(world.now, grace.min(sooner));
    }
}

#[test]
fn worker_keeps_its_grace_after_leader_exit() {
    let world = Story {
        temper: Temper::LeavesAStubbornWorker,
        fault: Fault::None,
        worker: true,
        holder: false,
        limit: None,
        policy: LeaderExit::Stop,
        wishes: vec![(5, Command::Stop(abort(GRACE)))],
        order: vec![],
        echoes: vec![],
        deaths: vec![],
    }
    .reported();
    assert_eq!(world.died_of, Some(killed_by(Signal::TERM)));
    assert_eq!(u128::from(world.now), GRACE.as_millis());
}

/// A leader that exits by itself and leaves a process behind that only SIGKILL ends.
fn left_behind(policy: LeaderExit, wishes: Vec<(usize, Command)>) -> (World, Outcome) {
    let world = Story {
        temper: Temper::EndsAlone,
        fault: Fault::None,
        worker: true,
        limit: None,
        policy,
        holder: false,
        wishes,
        order: vec![],
        echoes: vec![],
        deaths: vec![],
    }
    .reported();
    let Phase::Closed(outcome) = world.machine.phase().clone() else {
        panic!("{:?}", world.machine.phase());
    };
    (world, outcome)
}

const SECOND: Duration = Duration::from_secs(1);

// promise: W-1
#[test]
fn remaining_processes_are_stopped_after_leader_exit() {
    let (world, outcome) = left_behind(LeaderExit::Stop, vec![]);
    assert_eq!(outcome.reason, EndReason::Exited);
    assert!(matches!(outcome.tree, TreeVerdict::Empty(_)));
    assert_eq!(u128::from(world.now), GRACE.as_millis());
}

#[test]
fn drain_timeout_stops_remaining_processes_with_grace() {
    let timeout = Some(3 * SECOND);
    let (world, outcome) = left_behind(LeaderExit::Drain { timeout }, vec![]);
    assert_eq!(outcome.reason, EndReason::Exited);
    assert!(matches!(outcome.tree, TreeVerdict::Empty(_)));
    assert_eq!(u128::from(world.now), (3 * SECOND + GRACE).as_millis());
    assert!(!world.reported_stopping(), "no stop was ordered");
}

#[test]
fn abort_ends_a_drain_with_its_reason() {
    // The stop follows the leader's exit report.
    let stop = Command::Stop(abort(SECOND));
    let (world, outcome) = left_behind(LeaderExit::Drain { timeout: None }, vec![(9, stop)]);
    assert!(matches!(outcome.reason, EndReason::Aborted { .. }));
    assert_eq!(outcome.exit, Some(Exit::Code(0)));
    assert!(!world.worker && world.reported_stopping());
    assert_eq!(u128::from(world.now), SECOND.as_millis());
}

#[test]
fn detached_process_outlives_its_run() {
    let (world, outcome) = left_behind(LeaderExit::Keep, vec![]);
    assert_eq!(outcome.reason, EndReason::Exited);
    assert!(matches!(outcome.tree, TreeVerdict::Kept(_)));
    assert_eq!(outcome.exit, Some(Exit::Code(0)));
    assert_eq!(outcome.streams, Some(StreamsEnd::Cut));
    assert!(world.worker && world.now == 0);
}

#[test]
fn stop_of_run_spares_detached_processes() {
    let stop = Command::Stop(abort(Duration::ZERO));
    let (world, outcome) = left_behind(LeaderExit::Keep, vec![(40, stop)]);
    assert!(matches!(outcome.tree, TreeVerdict::Kept(_)));
    assert!(world.worker);
}

// promise: T-26a
#[test]
fn stuck_tree_stays_open_for_a_day() {
    // Stops before and after the keeper reports a stuck tree.
    let wishes = [3, 8, 9, 20].map(|at| (at, Command::Stop(abort(SECOND))));
    let world = Story {
        temper: Temper::IsStuck,
        fault: Fault::None,
        worker: true,
        holder: false,
        limit: None,
        policy: LeaderExit::Stop,
        wishes: wishes.into(),
        order: vec![],
        echoes: vec![(7, 3), (8, 9)],
        deaths: vec![],
    }
    .reported();
    let Phase::Closed(outcome) = world.machine.phase() else {
        panic!("{:?}", world.machine.phase());
    };
    let reported = |a: &&Entry| matches!(a, Entry::Stuck(_));
    assert_eq!(world.announced.iter().filter(reported).count(), 1);
    assert!(!world.ended_while_stuck && world.outcomes == 1);
    assert!(world.now > 86_400_000, "{}", world.now);
    assert!(matches!(outcome.tree, TreeVerdict::Empty(_)));
    assert_eq!(outcome.exit, Some(killed_by(Signal::KILL)));
}

// promise: E-6
#[test]
fn pipe_held_by_unrelated_process_is_cut() {
    let world = Story {
        temper: Temper::EndsAlone,
        fault: Fault::None,
        worker: false,
        holder: true,
        limit: None,
        policy: LeaderExit::Stop,
        wishes: vec![],
        order: vec![],
        echoes: vec![],
        deaths: vec![],
    }
    .reported();
    let Phase::Closed(outcome) = world.machine.phase() else {
        panic!("{:?}", world.machine.phase());
    };
    assert_eq!(outcome.streams, Some(StreamsEnd::Cut));
    assert_eq!(outcome.exit, Some(Exit::Code(0)));
}

fn sorted(announced: &[Entry]) -> Vec<String> {
    let mut lines: Vec<String> = announced.iter().map(|a| format!("{a:?}")).collect();
    lines.sort();
    lines
}

fn story() -> impl Strategy<Value = Story> {
    let wish = (0usize..14, command());
    (
        prop::sample::select(vec![
            Temper::Obeys,
            Temper::EndsAlone,
            Temper::Ignores,
            Temper::IsStopped,
            Temper::HangsInExec,
            Temper::LeavesAStubbornWorker,
            Temper::IsStuck,
        ]),
        prop_oneof![
            1 => Just(Fault::None),
            2 => prop::sample::select(vec![
                Fault::Fork,
                Fault::RecordFailed,
                Fault::RecordUnknownAbsent,
                Fault::RecordUnknownPresent,
                Fault::RecordUnknownLate,
                Fault::KeyTaken,
                Fault::DiesAtGate,
                Fault::Exec,
                Fault::ShimDies,
                Fault::PauseNotRecorded,
                Fault::PausePartial,
            ]),
        ],
        any::<bool>(),
        any::<bool>(),
        prop::option::of(0u64..2_000),
        prop::collection::vec(wish, 0..5),
        order(),
        prop::collection::vec((0usize..16, 0usize..16), 0..4),
        policy(),
        deaths(),
    )
        .prop_map(
            |(temper, fault, worker, holder, limit, wishes, order, echoes, policy, deaths)| Story {
                temper,
                fault,
                worker,
                policy,
                holder,
                limit,
                wishes,
                order,
                echoes,
                deaths,
            },
        )
}

pub(crate) fn policy() -> impl Strategy<Value = LeaderExit> {
    prop_oneof![
        Just(LeaderExit::Stop),
        Just(LeaderExit::Keep),
        prop::option::of((0u64..8_000).prop_map(Duration::from_millis))
            .prop_map(|timeout| LeaderExit::Drain { timeout }),
    ]
}

/// Mostly none; a few deaths of the server otherwise.
fn deaths() -> impl Strategy<Value = Vec<usize>> {
    prop_oneof![
        1 => Just(vec![]),
        2 => prop::collection::vec(1usize..24, 1..4),
    ]
}

fn order() -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec(0u8..6, 0..30)
}

fn command() -> impl Strategy<Value = Command> {
    prop_oneof![
        2 => (0u64..8_000).prop_map(|ms| Command::Stop(abort(Duration::from_millis(ms)))),
        1 => Just(Command::Admit),
        1 => Just(Command::Interrupt),
        2 => Just(Command::Pause),
        1 => Just(Command::Resume),
    ]
}
