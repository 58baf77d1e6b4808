//! Kills for want of memory: the reason of the end, or a report besides.

use crate::samples::{GRACE, MEMORY_KILLS, USAGE, abort, identity, killed_by, step};
use kennel_lifecycle::{
    Command, Effect, EndReason, Entry, Exit, Input, Machine, MemoryKills, Outcome, Proof, Report,
    RunState, Signal, StreamsEnd, Timestamp, TreeVerdict,
};

const KILLED: Report = Report::MemoryKills(MEMORY_KILLS);

// promise: Q-8
#[test]
fn leader_killed_for_memory_is_oom_failure() {
    let (outcome, beside) = ended(&reports(&[killed(), KILLED]));
    assert_eq!(outcome.reason, EndReason::OomKilled(MEMORY_KILLS));
    assert_eq!(outcome.exit, Some(killed_by(Signal::KILL)));
    assert_eq!(outcome.state(), RunState::Failed);
    assert_eq!(beside, None);
}

#[test]
fn sigkill_after_leader_exit_is_not_its_cause() {
    let after = Report::Signalled(step(1, Signal::KILL));
    let (outcome, beside) = ended(&reports(&[killed(), after, KILLED]));
    assert_eq!(outcome.reason, EndReason::OomKilled(MEMORY_KILLS));
    assert_eq!(beside, None);
}

// promise: Q-8a
#[test]
fn leader_that_survives_oom_kill_exited() {
    let by_itself = [Exit::Code(0), Exit::Code(137), killed_by(Signal::TERM)];
    for exit in by_itself {
        let (outcome, beside) = ended(&reports(&[Report::LeaderExited(exit), KILLED]));
        assert_eq!(outcome.reason, EndReason::Exited);
        assert_eq!(beside, Some(MEMORY_KILLS));
    }
}

// promise: Q-8a
#[test]
fn leader_possibly_killed_by_kennel_is_no_oom() {
    let of_ladder = Report::Signalled(step(1, Signal::KILL));
    for ours in [of_ladder, Report::KillSent] {
        let (outcome, beside) = ended(&reports(&[ours, killed(), KILLED]));
        assert_eq!(outcome.reason, EndReason::Exited);
        assert_eq!(beside, Some(MEMORY_KILLS));
    }
    let polite = Report::Signalled(step(1, Signal::TERM));
    let (outcome, _) = ended(&reports(&[polite, killed(), KILLED]));
    assert_eq!(outcome.reason, EndReason::OomKilled(MEMORY_KILLS));
}

// promise: Q-8a
#[test]
fn stop_overrides_oom_kill_as_end_reason() {
    let stop = Input::Command(Command::Stop(abort(GRACE)));
    let rest = reports(&[Report::StopRecorded, killed(), KILLED]);
    let (outcome, beside) = ended(&[vec![stop], rest].concat());
    assert!(matches!(outcome.reason, EndReason::Aborted { .. }));
    assert_eq!(beside, Some(MEMORY_KILLS));
}

#[test]
fn sigkill_without_oom_count_is_plain_kill() {
    let none = Report::MemoryKills(MemoryKills {
        kills: 0,
        memory_max: None,
    });
    for nothing in [&reports(&[killed()]), &reports(&[killed(), none])] {
        let (outcome, beside) = ended(nothing);
        assert_eq!(outcome.reason, EndReason::Exited);
        assert_eq!(beside, None);
    }
}

// promise: RW-120
#[test]
fn outcome_contains_resource_usage() {
    let used = Report::Usage(Box::new(USAGE));
    // The next server gets repeated reports.
    let (outcome, _) = ended(&reports(&[used.clone(), killed(), used]));
    assert_eq!(outcome.certificate.usage, Some(Box::new(USAGE)));
    let (without, _) = ended(&reports(&[killed()]));
    assert_eq!(without.certificate.usage, None);
}

fn killed() -> Report {
    Report::LeaderExited(killed_by(Signal::KILL))
}

fn reports(reported: &[Report]) -> Vec<Input> {
    reported.iter().cloned().map(Input::Report).collect()
}

/// Returns the outcome of a run that got this input and whose tree and output then ended, and the report besides.
fn ended(got: &[Input]) -> (Outcome, Option<MemoryKills>) {
    let mut machine = Machine::default();
    let start = [
        vec![Input::Command(Command::Admit)],
        reports(&[
            Report::Prepared(identity()),
            Report::Recorded,
            Report::Executed,
        ]),
    ]
    .concat();
    let end = reports(&[
        Report::TreeEnded(TreeVerdict::Empty(Proof::Echild)),
        // Reports after the tree's verdict do not count.
        Report::MemoryKills(MemoryKills {
            kills: 99,
            memory_max: None,
        }),
        Report::Usage(Box::default()),
        Report::StreamsClosed(StreamsEnd::Eof),
    ]);
    for input in start.iter().chain(got).chain(&end) {
        machine.step(Timestamp(0), input.clone()).unwrap();
    }
    let (mut outcome, mut beside) = (None, None);
    for effect in machine.effects() {
        match effect {
            Effect::RecordOutcome(written) => outcome = Some(written),
            Effect::Append(Entry::MemoryKills(kills)) => beside = Some(kills),
            _ => {}
        }
    }
    (outcome.expect("it has ended"), beside)
}
