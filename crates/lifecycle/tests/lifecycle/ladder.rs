//! The ladder climbs once, in order, and only ever faster.

use kennel_lifecycle::{
    Signal, StopAction,
    ladder::{Action, Ladder, Step, StopPlan},
    limits,
};
use proptest::prelude::*;
use std::time::Duration;

// promise: L-2
#[test]
fn abort_is_term_then_grace_then_kill() {
    let climbed = climb(&StopPlan::abort(Duration::from_millis(1500)), &[]);
    assert_eq!(climbed, [(0, Signal::TERM), (1500, Signal::KILL)]);
}

// promise: S-1a
#[test]
fn shutdown_is_int_term_kill_within_its_grace() {
    let climbed = climb(&StopPlan::shutdown(Duration::from_secs(4)), &[]);
    assert_eq!(
        climbed,
        [(0, Signal::INT), (2000, Signal::TERM), (4000, Signal::KILL)]
    );
    let seconds = Duration::from_secs;
    assert_eq!(limits::shutdown_grace(seconds(10)), seconds(8));
    assert_eq!(limits::shutdown_grace(seconds(60)), seconds(58));
    assert_eq!(
        limits::shutdown_grace(seconds(1)),
        Duration::from_millis(800)
    );
}

// promise: P-7
#[test]
fn terminal_gets_hup_then_term_then_kill() {
    for plan in [StopPlan::abort, StopPlan::shutdown] {
        let climbed = climb(&plan(Duration::from_secs(4)).on_terminal(), &[]);
        let expected = [(0, Signal::HUP), (2000, Signal::TERM), (4000, Signal::KILL)];
        assert_eq!(climbed, expected);
    }
}

// promise: L-2
#[test]
fn zero_grace_kills_at_once() {
    for plan in [
        StopPlan::abort(Duration::ZERO),
        StopPlan::shutdown(Duration::ZERO),
        StopPlan::abort(Duration::ZERO).on_terminal(),
    ] {
        assert_eq!(climb(&plan, &[]), [(0, Signal::KILL)]);
    }
}

// promise: RW-74
#[test]
fn exited_stop_command_starts_next_step() {
    let step = |action, wait| StopAction {
        action,
        wait: Duration::from_millis(wait),
    };
    let grace = Duration::from_secs(5);
    let actions = [
        step(Action::Exec(vec!["save".into()]), 3000),
        step(Action::Signal(Signal::HUP), 500),
    ];
    let mut ladder = Ladder::start(&StopPlan::abort(grace).behind(&actions, grace), 0);
    assert!(matches!(ladder.due(0), Some(Action::Exec(_))));
    assert_eq!(
        ladder.time_of_command(0),
        2900,
        "it ends before what follows"
    );
    ladder.hurry(200);
    assert_eq!(ladder.due(200), Some(Action::Signal(Signal::HUP)));
    assert_eq!(ladder.due(699), None);
    assert_eq!(ladder.due(700), Some(Action::Signal(Signal::TERM)));
    assert_eq!(
        ladder.wake_at(),
        Some(5000),
        "SIGKILL comes when it was due"
    );
    ladder.hurry(700);
    assert_eq!(ladder.wake_at(), Some(5000));
}

#[test]
fn second_stop_only_brings_kill_forward() {
    let first = StopPlan::abort(Duration::from_secs(5));
    let sooner = (1000, StopPlan::abort(Duration::from_secs(1)));
    assert_eq!(
        climb(&first, &[sooner]),
        [(0, Signal::TERM), (2000, Signal::KILL)]
    );
    let at_once = (1000, StopPlan::abort(Duration::ZERO));
    assert_eq!(
        climb(&first, &[at_once]),
        [(0, Signal::TERM), (1000, Signal::KILL)]
    );
    let later = (1000, StopPlan::abort(Duration::from_mins(1)));
    assert_eq!(
        climb(&first, &[later]),
        [(0, Signal::TERM), (5000, Signal::KILL)]
    );
}

// promise: RW-55a
#[test]
fn stop_actions_precede_signals_and_kill_deadline() {
    let ms = Duration::from_millis;
    let actions = [
        StopAction {
            action: Action::Input(b"quit".to_vec()),
            wait: ms(1000),
        },
        StopAction {
            action: Action::CloseInput,
            wait: ms(2000),
        },
    ];
    let at = |plan: StopPlan| -> Vec<u64> {
        let plan = plan.behind(&actions, ms(6000));
        let steps = plan.steps.iter().map(|step| millis(step.after));
        steps.chain([millis(plan.kill_after)]).collect()
    };
    assert_eq!(at(StopPlan::abort(ms(6000))), [0, 1000, 3000, 6000]);
    // A longer grace keeps the waits, a shorter one shortens them; the remaining time is divided as before.
    assert_eq!(at(StopPlan::abort(ms(9000))), [0, 1000, 3000, 9000]);
    assert_eq!(at(StopPlan::shutdown(ms(3000))), [0, 500, 1500, 2250, 3000]);
    assert_eq!(at(StopPlan::abort(Duration::ZERO)), [0]);
    // A second order brings the remaining steps forward in the same proportion.
    let plan = StopPlan::abort(ms(6000)).behind(&actions, ms(6000));
    let mut ladder = Ladder::start(&plan, 0);
    assert_eq!(ladder.due(0), Some(Action::Input(b"quit".to_vec())));
    ladder.shorten(&StopPlan::abort(ms(600)), 0);
    let mut seen = Vec::new();
    while let Some(now) = ladder.wake_at() {
        seen.push((now, ladder.due(now)));
    }
    let signal = |signal| Some(Action::Signal(signal));
    let wanted = [
        (100, Some(Action::CloseInput)),
        (300, signal(Signal::TERM)),
        (600, signal(Signal::KILL)),
    ];
    assert_eq!(seen, wanted);
    let mut later = Ladder::start(&plan, 0);
    later.skip_input_before(500);
    assert_eq!(later.due(500), None);
    assert_eq!(later.due(1000), Some(Action::CloseInput));
}

#[test]
fn ladder_ends_after_sigkill() {
    let plan = StopPlan::abort(Duration::ZERO);
    let mut ladder = Ladder::start(&plan, 7);
    assert_eq!(ladder.wake_at(), Some(7));
    assert_eq!(ladder.due(6), None);
    assert_eq!(ladder.due(7), Some(Action::Signal(Signal::KILL)));
    ladder.shorten(&plan, 8);
    assert_eq!((ladder.wake_at(), ladder.due(u64::MAX)), (None, None));
}

proptest! {
    #[test]
    fn sigkill_is_sent_once_last_and_in_time(
        first in plan(),
        orders in prop::collection::vec((0u64..20_000, plan()), 0..5),
    ) {
        let climbed = climb(&first, &orders);
        let (kill_at, last) = *climbed.last().unwrap();
        prop_assert_eq!(last, Signal::KILL);
        prop_assert_eq!(climbed.iter().filter(|(_, s)| *s == Signal::KILL).count(), 1);
        prop_assert!(climbed.is_sorted_by_key(|(at, _)| at));
        prop_assert!(kill_at <= millis(first.kill_after));
        for (at, plan) in &orders {
            prop_assert!(kill_at <= (at + millis(plan.kill_after)));
        }
    }

    #[test]
    fn late_wakeup_sends_each_signal_once(plan in plan(), looks in prop::collection::vec(0u64..40_000, 1..10)) {
        let mut ladder = Ladder::start(&plan, 0);
        let mut sent = Vec::new();
        for now in looks {
            while let Some(action) = ladder.due(now) {
                sent.push(signal(action));
            }
        }
        let mut once = sent.clone();
        once.dedup();
        prop_assert_eq!(&sent, &once);
        prop_assert!(sent.iter().rev().skip(1).all(|s| *s != Signal::KILL));
    }
}

/// Sleeps exactly as long as the ladder requires, from 0 to its end; each order comes at its time.
fn climb(first: &StopPlan, orders: &[(u64, StopPlan)]) -> Vec<(u64, Signal)> {
    let mut ladder = Ladder::start(first, 0);
    let mut orders: Vec<_> = orders.to_vec();
    orders.sort_by_key(|(at, _)| *at);
    let mut orders = orders.into_iter().peekable();
    let mut sent = Vec::new();
    let mut now = 0;
    loop {
        while let Some(action) = ladder.due(now) {
            sent.push((now, signal(action)));
        }
        let Some(wake_at) = ladder.wake_at() else {
            return sent;
        };
        now = match orders.next_if(|(at, _)| *at <= wake_at) {
            Some((at, plan)) => {
                ladder.shorten(&plan, at);
                at
            }
            None => wake_at,
        };
    }
}

fn plan() -> impl Strategy<Value = StopPlan> {
    let grace = (0u64..10_000).prop_map(Duration::from_millis);
    let steps = prop::collection::vec((0u64..10_000).prop_map(Duration::from_millis), 0..3);
    prop_oneof![
        grace.clone().prop_map(StopPlan::abort),
        grace.clone().prop_map(StopPlan::shutdown),
        (steps, grace).prop_map(|(mut at, kill_after)| {
            at.sort();
            let steps = [Signal::HUP, Signal::INT, Signal::TERM];
            StopPlan {
                steps: at
                    .into_iter()
                    .zip(steps)
                    .map(|(after, signal)| Step {
                        action: Action::Signal(signal),
                        after,
                    })
                    .collect(),
                kill_after,
            }
        }),
    ]
}

fn signal(action: Action) -> Signal {
    match action {
        Action::Signal(signal) => signal,
        other => panic!("{other:?} is no signal"),
    }
}

fn millis(wait: Duration) -> u64 {
    u64::try_from(wait.as_millis()).unwrap()
}
