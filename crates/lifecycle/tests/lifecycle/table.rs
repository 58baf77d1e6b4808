//! The whole machine as one table. A change of behaviour is a change of `tests/table.txt`.

use crate::samples::{
    GRACE, MEMORY_KILLS, USAGE, abort, assert_golden, failure, identity, killed_by, left, step,
    stuck,
};
use kennel_lifecycle::{
    Command, Deadline, Effect, Entry, Exit, Input, LeaderExit, Machine, Phase, Proof, Report,
    RowState, Signal, StartStage, StopReason, StreamsEnd, Timestamp, TreeVerdict,
};
use std::{fmt::Write as _, time::Duration};

#[test]
fn state_machine_matches_golden_table() {
    let mut table = String::new();
    let stopped = paths()
        .into_iter()
        .map(|(from, path)| (from, LeaderExit::Stop, path));
    for (from, policy, path) in stopped.chain(paths_of_policies()) {
        for input in inputs() {
            let mut machine = reached(policy, &path);
            let before = name_of_phase(machine.phase());
            let answer = machine.step(Timestamp(0), input.clone());
            let effects: Vec<_> = machine.effects().map(|e| name_of_effect(&e)).collect();
            let to = name_of_phase(machine.phase());
            let result = match answer {
                Err(refusal) => format!("refused {refusal:?}"),
                Ok(()) if effects.is_empty() && to == before => "-".to_owned(),
                Ok(()) => format!("{to} {}", effects.join(" ")),
            };
            let input = name_of_input(&input);
            writeln!(table, "{from:26} {input:26} {}", result.trim_end()).unwrap();
        }
    }
    assert_golden("table.txt", &table);
}

#[test]
fn golden_table_covers_every_phase() {
    let mut phases: Vec<_> = paths()
        .iter()
        .map(|(_, path)| first_word(reached(LeaderExit::Stop, path).phase()))
        .collect();
    phases.sort();
    phases.dedup();
    let all = [
        "Accepted",
        "Closed",
        "Closing",
        "Draining",
        "Forgotten",
        "Gated",
        "Leaving",
        "Paused",
        "Pausing",
        "Preparing",
        "Released",
        "Resuming",
        "Running",
        "Stopping",
    ];
    assert_eq!(phases, all);
}

/// One way to each phase, and to each further state of a phase.
fn paths() -> Vec<(&'static str, Vec<Input>)> {
    let c = Input::Command;
    let r = Input::Report;
    let stop = c(Command::Stop(abort(GRACE)));
    let exit = r(Report::LeaderExited(Exit::Code(0)));
    let tree = r(Report::TreeEnded(TreeVerdict::Empty(Proof::Echild)));
    let streams = r(Report::StreamsClosed(StreamsEnd::Eof));
    let pausing = r(Report::StateRecorded(RowState::Pausing));
    let accepted: Vec<Input> = vec![];
    let preparing = vec![c(Command::Admit)];
    let gated = with(&preparing, &[r(Report::Prepared(identity()))]);
    let released = with(&gated, &[r(Report::Recorded)]);
    let running = with(&released, &[r(Report::Executed)]);
    let recording_pause = with(&running, &[c(Command::Pause)]);
    let freezing = with(&recording_pause, &[pausing]);
    let paused = with(&freezing, &[r(Report::Frozen)]);
    let expired = with(&freezing, &[r(Report::PauseExpired)]);
    let recording_stop = with(&running, std::slice::from_ref(&stop));
    let stopping = with(&recording_stop, &[r(Report::StopRecorded)]);
    let draining = with(&running, std::slice::from_ref(&exit));
    let closing = with(&draining, &[tree.clone(), streams]);
    let killed = r(Report::LeaderExited(killed_by(Signal::KILL)));
    let for_memory = r(Report::MemoryKills(MEMORY_KILLS));
    vec![
        ("Accepted", accepted),
        ("Preparing", preparing.clone()),
        (
            "Preparing, stop",
            with(&preparing, std::slice::from_ref(&stop)),
        ),
        ("Gated", gated.clone()),
        ("Gated, stop", with(&gated, std::slice::from_ref(&stop))),
        (
            "Leaving, row absent",
            with(&gated, &[r(Report::RecordFailed)]),
        ),
        (
            "Leaving, row in flight",
            with(&gated, &[r(Report::NotReleased)]),
        ),
        (
            "Leaving, in flight, gone",
            with(&gated, std::slice::from_ref(&tree)),
        ),
        (
            "Leaving, row owed",
            with(&gated, &[r(Report::NotReleased), r(Report::Recorded)]),
        ),
        (
            "Leaving, row void",
            with(&gated, &[r(Report::RecordUnknown)]),
        ),
        ("Leaving, superseded", with(&gated, &[r(Report::KeyTaken)])),
        ("Released", released.clone()),
        (
            "Released, leader gone",
            with(&released, std::slice::from_ref(&exit)),
        ),
        (
            "Released, stop",
            with(&released, &[stop.clone(), r(Report::StopRecorded)]),
        ),
        ("Running", running.clone()),
        ("Pausing, recording", recording_pause),
        ("Pausing, freezing", freezing),
        ("Pausing, expired", expired),
        ("Paused", paused.clone()),
        ("Resuming", with(&paused, &[c(Command::Resume)])),
        ("Stopping, recording", recording_stop.clone()),
        ("Stopping, ordered", stopping.clone()),
        ("Draining", draining.clone()),
        (
            "Draining, tree gone",
            with(&draining, std::slice::from_ref(&tree)),
        ),
        (
            "Draining, memory, gone",
            with(&draining, &[for_memory.clone(), tree.clone()]),
        ),
        (
            "Draining, oom, gone",
            with(
                &running,
                &[killed.clone(), for_memory.clone(), tree.clone()],
            ),
        ),
        (
            "Draining, oom, stop",
            with(&stopping, &[killed, for_memory, tree.clone()]),
        ),
        (
            "Draining, unsent stop",
            with(&recording_stop, std::slice::from_ref(&exit)),
        ),
        ("Draining, stop", with(&stopping, &[exit])),
        ("Closing", closing.clone()),
        ("Closed", with(&closing, &[r(Report::OutcomeRecorded)])),
        ("Forgotten", with(&gated, &[r(Report::RecordFailed), tree])),
    ]
}

/// Differences where the rest of a tree is not stopped with its leader's exit.
fn paths_of_policies() -> Vec<(&'static str, LeaderExit, Vec<Input>)> {
    let of = |name: &str| {
        let path = paths().into_iter().find(|(from, _)| *from == name);
        path.expect("a path of that name").1
    };
    let drain = LeaderExit::Drain { timeout: None };
    let keep = LeaderExit::Keep;
    let stop = Input::Command(Command::Stop(abort(GRACE)));
    let stopping = with(
        &of("Draining"),
        &[stop, Input::Report(Report::StopRecorded)],
    );
    vec![
        ("Running, drain", drain, of("Running")),
        ("Draining, drain", drain, of("Draining")),
        (
            "Draining, drain, unsent",
            drain,
            of("Draining, unsent stop"),
        ),
        ("Draining, drain, stop", drain, stopping),
        ("Running, keep", keep, of("Running")),
        ("Stopping, keep, recording", keep, of("Stopping, recording")),
        ("Draining, keep", keep, of("Draining")),
        ("Draining, keep, unsent", keep, of("Draining, unsent stop")),
    ]
}

fn with(path: &[Input], more: &[Input]) -> Vec<Input> {
    [path, more].concat()
}

fn inputs() -> Vec<Input> {
    let commands = [
        Command::Admit,
        Command::Stop(abort(Duration::ZERO)),
        Command::Stop(abort(GRACE * 2)),
        Command::Interrupt,
        Command::Pause,
        Command::Resume,
    ];
    let reports = [
        Report::Prepared(identity()),
        Report::PrepareFailed(failure(StartStage::Fork)),
        Report::Recorded,
        Report::RecordFailed,
        Report::RecordUnknown,
        Report::KeyTaken,
        Report::StopRecorded,
        Report::StateRecorded(RowState::Running),
        Report::StateRecorded(RowState::Pausing),
        Report::StateRecorded(RowState::Paused),
        Report::StateNotRecorded(RowState::Running),
        Report::StateNotRecorded(RowState::Pausing),
        Report::StateNotRecorded(RowState::Paused),
        Report::NotReleased,
        Report::Executed,
        Report::ExecFailed(failure(StartStage::Exec)),
        Report::LeaderExited(killed_by(Signal::TERM)),
        Report::TreeEnded(TreeVerdict::Empty(Proof::Echild)),
        Report::StreamsClosed(StreamsEnd::Eof),
        Report::Signalled(step(1, Signal::TERM)),
        Report::LeftBehind(left()),
        Report::KillSent,
        Report::MemoryKills(MEMORY_KILLS),
        Report::Usage(Box::new(USAGE)),
        Report::Census(Timestamp(1)),
        Report::TreeStuck(stuck()),
        Report::Frozen,
        Report::NotFrozen,
        Report::Thawed,
        Report::PauseExpired,
        Report::KeeperStops {
            reason: StopReason::DeadlineExceeded(Deadline::MaxRuntime),
            grace: GRACE,
        },
        Report::KeeperStops {
            reason: StopReason::Orphaned,
            grace: GRACE,
        },
        Report::KeeperStops {
            reason: StopReason::NotReady,
            grace: GRACE,
        },
        Report::KeeperStops {
            reason: StopReason::ShimLost,
            grace: GRACE,
        },
        Report::OutcomeRecorded,
        Report::Withdrawn,
        Report::NotWithdrawn,
    ];
    let commands = commands.into_iter().map(Input::Command);
    commands
        .chain(reports.into_iter().map(Input::Report))
        .collect()
}

fn reached(policy: LeaderExit, path: &[Input]) -> Machine {
    let mut machine = Machine::with(policy);
    for input in path {
        machine.step(Timestamp(0), input.clone()).unwrap();
        machine.effects().for_each(drop);
    }
    machine
}

pub(crate) fn name_of_phase(phase: &Phase) -> String {
    let name = first_word(phase);
    match phase {
        Phase::Preparing { stop } | Phase::Gated { stop, .. } | Phase::Draining { stop, .. } => {
            let stop = if stop.is_some() { "(stop)" } else { "" };
            format!("{name}{stop}")
        }
        Phase::Leaving(leaving) => {
            let gone = if leaving.tree.is_some() { ",gone" } else { "" };
            format!(
                "{name}({},{:?}{gone})",
                first_word(&leaving.why),
                leaving.row
            )
        }
        Phase::Pausing { stage, .. } => format!("{name}({stage:?})"),
        Phase::Stopping {
            stage, deadline, ..
        } => format!("{name}({stage:?},{}s)", deadline.0 / 1_000_000),
        Phase::Closing(outcome) | Phase::Closed(outcome) => {
            let exit = outcome.exit.map_or("-".to_owned(), |e| first_word(&e));
            format!("{name}({},{exit})", first_word(&outcome.reason))
        }
        Phase::Forgotten(why) => format!("{name}({})", first_word(why)),
        Phase::Accepted | Phase::Released | Phase::Running | Phase::Paused | Phase::Resuming => {
            name
        }
    }
}

pub(crate) fn name_of_effect(effect: &Effect) -> String {
    match effect {
        Effect::Append(Entry::Ended(_)) => "tell:Ended".to_owned(),
        Effect::Append(announcement) => format!("tell:{}", first_word(announcement)),
        Effect::RecordState(state) => format!("RecordState({state:?})"),
        Effect::RecordOutcome(outcome) => format!("RecordOutcome({})", first_word(&outcome.reason)),
        Effect::StopTree(plan) => format!("StopTree({}s)", plan.kill_after.as_secs()),
        other => first_word(other),
    }
}

fn name_of_input(input: &Input) -> String {
    match input {
        Input::Command(Command::Stop(order)) => format!("Stop({}s)", order.grace.as_secs()),
        Input::Command(command) => first_word(command),
        Input::Report(Report::StateRecorded(state)) => format!("StateRecorded({state:?})"),
        Input::Report(Report::StateNotRecorded(state)) => format!("StateNotRecorded({state:?})"),
        Input::Report(report) => first_word(report),
    }
}

fn first_word(value: &impl std::fmt::Debug) -> String {
    let text = format!("{value:?}");
    text.split([' ', '(', '{']).next().unwrap().to_owned()
}
