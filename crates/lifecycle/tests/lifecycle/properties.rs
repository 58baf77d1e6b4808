//! Properties over arbitrary inputs, sensible or not.

use crate::{
    samples::{
        GRACE, MEMORY_KILLS, USAGE, abort, failure, identity, killed_by, left, recorded, step,
        stuck,
    },
    stories::policy,
    world::record_of,
};
use kennel_lifecycle::{
    AdoptedRun, AttemptRecord, Command, Deadline, Effect, EndReason, Entry, Exit, HeldPause, Input,
    LeaderExit, Leftovers, Machine, Phase, Proof, Refusal, Report, ResumeReason, RowContents,
    RowState, Signal, StartStage, StopOrder, StopReason, StreamsEnd, Timestamp, TreeVerdict,
};
use proptest::prelude::*;
use std::{mem::discriminant, time::Duration};

macro_rules! properties {
    ($($name:ident,)+) => {
        &[$((stringify!($name), $name),)+]
    };
}

/// Properties of a machine after any inputs, all checked on each run.
const PROPERTIES: &[(&str, Property)] = properties![
    fold_of_entries_is_live_record,
    gate_opens_once_after_the_row_is_written,
    the_gate_is_never_both_opened_and_shut,
    child_is_requested_once_and_gets_one_row,
    stop_before_the_gate_keeps_it_shut,
    outcome_is_written_once_and_then_reported,
    child_is_acknowledged_once_at_the_end,
    a_refused_command_changes_nothing,
    nothing_follows_the_end,
    no_signal_precedes_the_recorded_stop,
    rest_is_kept_once_before_any_stop,
    a_tree_that_has_ended_is_not_signalled,
    a_deadline_only_comes_nearer,
    pause_is_written_before_freeze_and_reported_after,
    each_end_is_reported_once_in_order,
    the_outcome_repeats_what_was_reported,
    a_kill_for_memory_is_reported_once,
];

type Property = fn(&Run) -> Checked;
type Checked = Result<(), TestCaseError>;

/// One machine that got some inputs.
struct Run {
    policy: LeaderExit,
    inputs: Vec<Input>,
    reported: Reported,
    changes: Changes,
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn machine_invariants_hold_for_any_inputs(inputs in inputs(), policy in policy()) {
        let reported = run_inputs(policy, &inputs);
        let changes = run_compared(policy, &inputs);
        let run = Run { policy, inputs, reported, changes };
        for (name, property) in PROPERTIES {
            property(&run).map_err(|error| TestCaseError::fail(format!("{name}: {error}")))?;
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000))]

    /// Wherever a server has died, after any sensible part of its reports: the next one opens no gate, reports nothing
    /// twice, ends with the same verdict, and with one outcome that repeats the reported one.
    // promise: R-13
    #[test]
    fn reports_of_a_dead_server_are_not_repeated(inputs in inputs(), policy in policy(), cut in 1usize..60, pause in pause()) {
        let reported = adopt(policy, &inputs, cut, pause);
        prop_assert!(reported.count(|e| matches!(e, Effect::Prepare | Effect::Record | Effect::Release | Effect::ShutGate)) <= 3);
        prop_assert!(reported.count(|e| matches!(e, Effect::Release | Effect::ShutGate)) <= 1);
        prop_assert!(reported.count(|e| *e == Effect::Acknowledge) <= 1);
        let announced = reported.announced();
        check_ends(&announced)?;
        check_outcome(&announced)?;
    }

    // promise: E-5
    #[test]
    fn known_exit_or_verdict_never_changes(inputs in inputs(), policy in policy()) {
        let mut machine = Machine::with(policy);
        for (at, input) in inputs.into_iter().enumerate() {
            let before = machine.ends().clone();
            let awaited = matches!(machine.phase(), Phase::Released | Phase::Stopping { .. });
            let _ = machine.step(time(at), input);
            machine.effects().for_each(drop);
            let after = machine.ends();
            prop_assert!(before.tree.is_none() || before.tree == after.tree);
            prop_assert!(before.streams.is_none() || before.streams == after.streams || awaited);
            prop_assert!(before.leader.is_none() || before.leader == after.leader || awaited);
        }
    }
}

/// Only entries change the record of a run.
fn fold_of_entries_is_live_record(run: &Run) -> Checked {
    prop_assert_eq!(&run.reported.folded(), run.reported.machine.record());
    Ok(())
}

/// No command runs unrecorded.
fn gate_opens_once_after_the_row_is_written(run: &Run) -> Checked {
    prop_assert!(run.reported.count(|e| *e == Effect::Release) <= 1);
    if let Some(at) = run.reported.when(|e| *e == Effect::Release) {
        prop_assert!(run.inputs[at] == Input::Report(Report::Recorded));
        prop_assert!(
            run.reported
                .when(|e| matches!(e, Effect::Record))
                .is_some_and(|recorded| recorded < at)
        );
    }
    Ok(())
}

fn the_gate_is_never_both_opened_and_shut(run: &Run) -> Checked {
    prop_assert!(
        run.reported
            .count(|e| matches!(e, Effect::Release | Effect::ShutGate))
            <= 1
    );
    Ok(())
}

fn child_is_requested_once_and_gets_one_row(run: &Run) -> Checked {
    prop_assert!(run.reported.count(|e| *e == Effect::Prepare) <= 1);
    prop_assert!(run.reported.count(|e| matches!(e, Effect::Record)) <= 1);
    Ok(())
}

fn stop_before_the_gate_keeps_it_shut(run: &Run) -> Checked {
    if let (Some(stop), Some(release)) = (
        run.reported.first_stop_obeyed,
        run.reported.when(|e| *e == Effect::Release),
    ) {
        prop_assert!(release < stop);
    }
    Ok(())
}

fn outcome_is_written_once_and_then_reported(run: &Run) -> Checked {
    prop_assert!(
        run.reported
            .count(|e| matches!(e, Effect::RecordOutcome(_)))
            <= 1
    );
    let Some(ended) = run
        .reported
        .when(|e| matches!(e, Effect::Append(Entry::Ended(_))))
    else {
        return Ok(());
    };
    prop_assert!(run.inputs[ended] == Input::Report(Report::OutcomeRecorded));
    prop_assert!(
        run.reported
            .when(|e| matches!(e, Effect::RecordOutcome(_)))
            .is_some_and(|written| written < ended)
    );
    Ok(())
}

fn child_is_acknowledged_once_at_the_end(run: &Run) -> Checked {
    let over = matches!(
        run.reported.machine.phase(),
        Phase::Closed(_) | Phase::Forgotten(_)
    );
    prop_assert!(run.reported.count(|e| *e == Effect::Acknowledge) <= usize::from(over));
    prop_assert_eq!(
        run.reported.count(|e| *e == Effect::Forget),
        usize::from(matches!(run.reported.machine.phase(), Phase::Forgotten(_)))
    );
    Ok(())
}

fn a_refused_command_changes_nothing(run: &Run) -> Checked {
    prop_assert_eq!(&run.changes.refusal_with_consequence, &None);
    Ok(())
}

fn nothing_follows_the_end(run: &Run) -> Checked {
    prop_assert_eq!(&run.changes.effect_after_end, &None);
    Ok(())
}

fn no_signal_precedes_the_recorded_stop(run: &Run) -> Checked {
    let mut orders = 0;
    for (at, effect) in &run.reported.effects {
        match effect {
            Effect::RecordStop { .. } => orders += 1,
            Effect::StopTree(_) => {
                prop_assert!(orders > 0 && run.inputs[*at] == Input::Report(Report::StopRecorded));
                // One order, one plan: a repeated report sends no signal.
                orders = 0;
            }
            _ => {}
        }
    }
    Ok(())
}

/// The rest is detached at most once, by that policy only, and never by a machine that has ordered its end.
fn rest_is_kept_once_before_any_stop(run: &Run) -> Checked {
    let kept = run.reported.count(|e| *e == Effect::KeepRest);
    prop_assert!(kept <= usize::from(run.policy == LeaderExit::Keep));
    if let (Some(kept), Some(stop)) = (
        run.reported.when(|e| *e == Effect::KeepRest),
        run.reported
            .when(|e| matches!(e, Effect::RecordStop { .. })),
    ) {
        prop_assert!(kept < stop);
    }
    Ok(())
}

fn a_tree_that_has_ended_is_not_signalled(run: &Run) -> Checked {
    if let Some(gone) = run
        .reported
        .when(|e| matches!(e, Effect::Append(Entry::TreeEnded(_))))
    {
        prop_assert!(run.reported.effects.iter().all(|(at, e)| *at <= gone || !matches!(e, Effect::StopTree(_) | Effect::Interrupt)));
    }
    Ok(())
}

fn a_deadline_only_comes_nearer(run: &Run) -> Checked {
    let deadlines: Vec<_> = run
        .reported
        .effects
        .iter()
        .filter_map(|(_, e)| match e {
            Effect::RecordStop { deadline, .. } => Some(*deadline),
            _ => None,
        })
        .collect();
    prop_assert!(deadlines.is_sorted_by(|a, b| a > b), "{deadlines:?}");
    Ok(())
}

fn pause_is_written_before_freeze_and_reported_after(run: &Run) -> Checked {
    for (at, effect) in &run.reported.effects {
        let cause = match effect {
            Effect::Freeze => Report::StateRecorded(RowState::Pausing),
            Effect::Append(Entry::Paused) => Report::Frozen,
            Effect::Append(Entry::Resumed {
                reason: ResumeReason::Asked,
            }) => Report::Thawed,
            // An expiry before the keeper's report of the pause waits for that report.
            Effect::Append(Entry::Resumed {
                reason: ResumeReason::MaxPause,
            }) => {
                let expired = Input::Report(Report::PauseExpired);
                let frozen = run.inputs[*at] == Input::Report(Report::Frozen);
                prop_assert!(
                    run.inputs[*at] == expired || frozen && run.inputs[..*at].contains(&expired)
                );
                continue;
            }
            _ => continue,
        };
        prop_assert_eq!(&run.inputs[*at], &Input::Report(cause));
    }
    Ok(())
}

fn each_end_is_reported_once_in_order(run: &Run) -> Checked {
    check_ends(&run.reported.announced())
}

fn the_outcome_repeats_what_was_reported(run: &Run) -> Checked {
    check_outcome(&run.reported.announced())
}

/// Kills for want of memory are the reason or reported besides, never both, and the reason only of a leader that
/// was killed, and not by Kennel.
fn a_kill_for_memory_is_reported_once(run: &Run) -> Checked {
    let beside = run
        .reported
        .count(|e| matches!(e, Effect::Append(Entry::MemoryKills(_))));
    let reason = run.reported.count(
        |e| matches!(e, Effect::RecordOutcome(o) if matches!(o.reason, EndReason::OomKilled(_))),
    );
    prop_assert!(beside + reason <= 1);
    if reason == 0 {
        return Ok(());
    }
    let killed = Input::Report(Report::LeaderExited(killed_by(Signal::KILL)));
    let leader = run.inputs.iter().position(|i| *i == killed);
    prop_assert!(
        run.inputs
            .contains(&Input::Report(Report::MemoryKills(MEMORY_KILLS)))
    );
    let by_us = |i: &Input| {
        *i == Input::Report(Report::KillSent)
            || *i == Input::Report(Report::Signalled(step(2, Signal::KILL)))
    };
    prop_assert!(
        !run.inputs[..leader.expect("the leader was killed")]
            .iter()
            .any(by_us)
    );
    Ok(())
}

fn check_ends(announced: &[&Entry]) -> Result<(), TestCaseError> {
    for once in [
        recorded(),
        Entry::Started,
        Entry::LeaderExited(Exit::Unknown),
        Entry::StreamsClosed(StreamsEnd::Eof),
        Entry::TreeEnded(TreeVerdict::NeverRan),
    ] {
        let kind = discriminant(&once);
        prop_assert!(
            announced
                .iter()
                .filter(|a| discriminant(**a) == kind)
                .count()
                <= 1,
            "{once:?}"
        );
    }
    let place = |wanted: fn(&Entry) -> bool| announced.iter().position(|a| wanted(a));
    let leader = place(|a| matches!(a, Entry::LeaderExited(_)));
    for end in [
        place(|a| matches!(a, Entry::StreamsClosed(_))),
        place(|a| matches!(a, Entry::TreeEnded(_))),
    ] {
        prop_assert!(end.is_none() || leader.is_some_and(|leader| Some(leader) < end));
    }
    let ended = place(|a| matches!(a, Entry::Ended(_)));
    prop_assert!(ended.is_none_or(|at| at + 1 == announced.len()));
    Ok(())
}

fn check_outcome(announced: &[&Entry]) -> Result<(), TestCaseError> {
    for outcome in announced.iter().filter_map(|a| match a {
        Entry::Ended(outcome) => Some(outcome),
        _ => None,
    }) {
        let ran = announced
            .iter()
            .any(|a| matches!(a, Entry::LeaderExited(_)));
        prop_assert_eq!(outcome.exit.is_some(), ran);
        prop_assert_eq!(outcome.streams.is_some(), ran);
        for entry in announced {
            match entry {
                Entry::LeaderExited(exit) => prop_assert_eq!(outcome.exit, Some(*exit)),
                Entry::StreamsClosed(how) => prop_assert_eq!(outcome.streams, Some(*how)),
                Entry::TreeEnded(tree) => prop_assert_eq!(&outcome.tree, tree),
                Entry::Started => prop_assert!(ran, "a command that started has an exit"),
                _ => {}
            }
        }
    }
    Ok(())
}

struct Reported {
    machine: Machine,
    /// Effects, each with the number of the input that caused it.
    effects: Vec<(usize, Effect)>,
    first_stop_obeyed: Option<usize>,
}

/// Changes of the whole machine, private parts included, where there must be none.
#[derive(Default)]
struct Changes {
    refusal_with_consequence: Option<(Input, Refusal)>,
    effect_after_end: Option<(Input, Vec<Effect>)>,
}

impl Reported {
    fn count(&self, wanted: impl Fn(&Effect) -> bool) -> usize {
        self.effects.iter().filter(|(_, e)| wanted(e)).count()
    }

    fn when(&self, wanted: impl Fn(&Effect) -> bool) -> Option<usize> {
        self.effects
            .iter()
            .find(|(_, e)| wanted(e))
            .map(|(at, _)| *at)
    }

    /// Folds the entries, each appended at the time of its input.
    fn folded(&self) -> AttemptRecord {
        let mut record = AttemptRecord::default();
        for (at, effect) in &self.effects {
            if let Effect::Append(entry) = effect {
                record.fold(time(*at), entry);
            }
        }
        record
    }

    fn announced(&self) -> Vec<&Entry> {
        let announcement = |effect| match effect {
            &(_, Effect::Append(ref announcement)) => Some(announcement),
            _ => None,
        };
        self.effects.iter().filter_map(announcement).collect()
    }
}

/// The whole state of a machine except the time of its last step.
fn state(machine: &Machine) -> String {
    let state = format!("{machine:?}");
    let (before, now) = state.split_once("now: Timestamp(").expect("the time");
    let (_, after) = now.split_once(')').expect("its end");
    format!("{before}{after}")
}

fn run_inputs(policy: LeaderExit, inputs: &[Input]) -> Reported {
    let mut reported = Reported {
        machine: Machine::with(policy),
        effects: Vec::new(),
        first_stop_obeyed: None,
    };
    for (at, input) in inputs.iter().enumerate() {
        let answer = reported.machine.step(time(at), input.clone());
        let effects: Vec<_> = reported.machine.effects().collect();
        if matches!(input, Input::Command(Command::Stop(_))) && answer.is_ok() {
            reported.first_stop_obeyed.get_or_insert(at);
        }
        reported
            .effects
            .extend(effects.into_iter().map(|e| (at, e)));
    }
    reported
}

/// Compares the machine before and after each input: far slower.
fn run_compared(policy: LeaderExit, inputs: &[Input]) -> Changes {
    let mut machine = Machine::with(policy);
    let mut changes = Changes::default();
    let mut before = state(&machine);
    for (at, input) in inputs.iter().enumerate() {
        let over = matches!(machine.phase(), Phase::Closed(_) | Phase::Forgotten(_));
        let answer = machine.step(time(at), input.clone());
        let after = state(&machine);
        let effects: Vec<_> = machine.effects().collect();
        if before != after {
            if let Err(refusal) = answer {
                changes.refusal_with_consequence = Some((input.clone(), refusal));
            }
            if over {
                changes.effect_after_end = Some((input.clone(), effects));
            }
        }
        before = state(&machine);
    }
    changes
}

/// The same inputs where the server dies after the effect `cut`, and the next one gets all that are left.
fn adopt(policy: LeaderExit, inputs: &[Input], cut: usize, pause: HeldPause) -> Reported {
    let mut reported = run_inputs(policy, inputs);
    let Some((died, _)) = reported.effects.get(cut - 1).cloned() else {
        return reported;
    };
    reported.effects.truncate(cut);
    let acknowledged = reported.count(|e| *e == Effect::Acknowledge) > 0;
    let recorded = reported.count(|e| matches!(e, Effect::Record)) > 0;
    let outcome = reported.effects.iter().find_map(|(_, e)| match e {
        Effect::RecordOutcome(outcome) => Some(outcome.clone()),
        _ => None,
    });
    // No run was recorded yet, or it is acknowledged.
    if acknowledged || (!recorded && outcome.is_none()) {
        return reported;
    }
    let journal: Vec<Entry> = reported.announced().into_iter().cloned().collect();
    let record = record_of(&journal);
    reported.machine = match outcome {
        Some(outcome) => Machine::ended(time(died), outcome, record, None),
        None => Machine::adopted(
            time(died),
            AdoptedRun {
                identity: identity(),
                on_leader_exit: policy,
                released: reported.count(|e| *e == Effect::Release) > 0,
                pause,
                row: Some(row_after(&reported.effects)),
                record,
                stop_now: time(died),
            },
        ),
    };
    let effects: Vec<_> = reported.machine.effects().collect();
    reported
        .effects
        .extend(effects.into_iter().map(|e| (died, e)));
    // The keeper repeats all its reports; no caller repeats its requests.
    let facts = inputs[..=died].iter().filter(|input| match input {
        Input::Command(_) => false,
        Input::Report(report) => is_fact(report),
    });
    for input in facts.chain(&inputs[died + 1..]) {
        let _ = reported.machine.step(time(died), input.clone());
        let effects: Vec<_> = reported.machine.effects().collect();
        reported
            .effects
            .extend(effects.into_iter().map(|e| (died, e)));
    }
    reported
}

/// Returns the contents of the row after these effects.
fn row_after(effects: &[(usize, Effect)]) -> RowContents {
    let mut says = RowContents::default();
    for (_, effect) in effects {
        match effect {
            Effect::RecordState(state) => says.state = Some(*state),
            Effect::RecordStop { order, deadline } => {
                let before = says.stop.take();
                let (order, at) = before.unwrap_or((order.clone(), *deadline));
                says.stop = Some((order, at.min(*deadline)));
            }
            _ => {}
        }
    }
    says
}

/// Whether the keeper stores and repeats the report, which then is no answer to a request.
fn is_fact(report: &Report) -> bool {
    matches!(
        report,
        Report::NotReleased
            | Report::Executed
            | Report::ExecFailed(_)
            | Report::LeaderExited(_)
            | Report::LeftBehind(_)
            | Report::Signalled(_)
            | Report::InputStopped(_)
            | Report::CommandStopped(_)
            | Report::TreeStuck(_)
            | Report::KillSent
            | Report::MemoryKills(_)
            | Report::Usage(_)
            | Report::Census(_)
            | Report::TreeEnded(_)
            | Report::KeeperStops { .. }
    )
}

fn pause() -> impl Strategy<Value = HeldPause> {
    prop_oneof![
        Just(HeldPause::None),
        Just(HeldPause::Stopping),
        Just(HeldPause::Stopped),
        Just(HeldPause::Expired),
    ]
}

fn time(at: usize) -> Timestamp {
    Timestamp(i64::try_from(at).unwrap() * 10_000)
}

/// Generates a start that succeeds for a while, so that late phases are reached often; then any inputs.
fn inputs() -> impl Strategy<Value = Vec<Input>> {
    let start = [
        Input::Command(Command::Admit),
        Input::Report(Report::Prepared(identity())),
        Input::Report(Report::Recorded),
        Input::Report(Report::Executed),
    ];
    let rest = prop::collection::vec(
        prop_oneof![
            2 => command().prop_map(Input::Command),
            3 => report().prop_map(Input::Report),
        ],
        0..30,
    );
    (0..=start.len(), rest)
        .prop_map(move |(n, rest)| start[..n].iter().cloned().chain(rest).collect())
}

fn command() -> impl Strategy<Value = Command> {
    let shutdown = StopOrder {
        reason: StopReason::ServerShutdown,
        grace: GRACE,
    };
    prop_oneof![
        Just(Command::Admit),
        (0u64..100).prop_map(|ms| Command::Stop(abort(Duration::from_millis(ms)))),
        Just(Command::Stop(shutdown)),
        Just(Command::Interrupt),
        Just(Command::Pause),
        Just(Command::Resume),
    ]
}

fn report() -> impl Strategy<Value = Report> {
    use Report as R;
    let start = prop_oneof![
        Just(R::Prepared(identity())),
        Just(R::PrepareFailed(failure(StartStage::Fork))),
        Just(R::Recorded),
        Just(R::RecordFailed),
        Just(R::RecordUnknown),
        Just(R::KeyTaken),
        Just(R::NotReleased),
        Just(R::Executed),
        Just(R::ExecFailed(failure(StartStage::Exec))),
    ];
    let life = prop_oneof![
        Just(R::StopRecorded),
        row_state().prop_map(R::StateRecorded),
        row_state().prop_map(R::StateNotRecorded),
        Just(R::Frozen),
        Just(R::NotFrozen),
        Just(R::Thawed),
        Just(R::PauseExpired),
        (0u64..100).prop_map(|ms| R::KeeperStops {
            reason: StopReason::DeadlineExceeded(Deadline::MaxRuntime),
            grace: Duration::from_millis(ms),
        }),
    ];
    let end = prop_oneof![
        Just(R::Signalled(step(1, Signal::TERM))),
        Just(R::Signalled(step(2, Signal::KILL))),
        Just(R::LeftBehind(left())),
        Just(R::KillSent),
        Just(R::MemoryKills(MEMORY_KILLS)),
        Just(R::Usage(Box::new(USAGE))),
        Just(R::Census(Timestamp(3))),
        Just(R::TreeStuck(stuck())),
        Just(R::LeaderExited(Exit::Code(0))),
        Just(R::LeaderExited(Exit::Code(3))),
        Just(R::LeaderExited(killed_by(Signal::KILL))),
        Just(R::TreeEnded(TreeVerdict::Empty(Proof::Echild))),
        Just(R::TreeEnded(TreeVerdict::Survivors(vec![7]))),
        Just(R::TreeEnded(TreeVerdict::Kept(Leftovers::default()))),
        Just(R::StreamsClosed(StreamsEnd::Eof)),
        Just(R::StreamsClosed(StreamsEnd::Cut)),
        Just(R::OutcomeRecorded),
        Just(R::Withdrawn),
        Just(R::NotWithdrawn),
    ];
    prop_oneof![start, life, end]
}

fn row_state() -> impl Strategy<Value = RowState> {
    prop_oneof![
        Just(RowState::Running),
        Just(RowState::Pausing),
        Just(RowState::Paused)
    ]
}
