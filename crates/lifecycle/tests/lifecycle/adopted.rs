//! Adoption of a run by another server. The initial states are one table; a change of it is a change of
//! `tests/adopted.txt`.

use crate::{
    samples::{
        GRACE, MEMORY_KILLS, abort, assert_golden, identity, killed_by, recorded, step, stuck,
    },
    table::{name_of_effect, name_of_phase},
};
use kennel_lifecycle::{
    AdoptedRun, AttemptRecord, Command, Deadline, Effect, EndReason, Entry, Exit, HeldPause, Input,
    LastPause, LeaderExit, Machine, Outcome, Phase, Proof, Report, ResumeReason, RowContents,
    RowState, Signal, StopCertificate, StopOrder, StopReason, StreamsEnd, Timestamp, TreeVerdict,
    ladder::StopPlan, limits,
};
use std::{fmt::Write as _, time::Duration};

const NOW: Timestamp = Timestamp(1_000_000_000);
const EMPTY: TreeVerdict = TreeVerdict::Empty(Proof::Echild);

// promise: R-13
#[test]
fn adoption_matches_golden_table() {
    let mut table = String::new();
    for (name, adopted_run) in adopted_runs() {
        let mut machine = Machine::adopted(NOW, adopted_run);
        let effects: Vec<_> = machine.effects().map(|e| name_of_effect(&e)).collect();
        let phase = name_of_phase(machine.phase());
        writeln!(table, "{name:54} {phase} {}", effects.join(" ").trim_end()).unwrap();
    }
    assert_golden("adopted.txt", &table);
}

fn adopted_runs() -> Vec<(String, AdoptedRun)> {
    let mut all = Vec::new();
    let stops = [
        ("", None, None),
        ("stop on the row", Some(order()), None),
        ("stop on the row and reported", Some(order()), Some(order())),
        ("stop reported only", None, Some(order())),
        ("deadline on the row", Some(late()), None),
        ("deadline reported only", None, Some(late())),
    ];
    for (stop, recorded, reported) in &stops[..2] {
        for row in ["no row", "row", "first row"] {
            let mut adopted_run = adopted_run(LeaderExit::Stop);
            adopted_run.released = false;
            adopted_run.record.stopping.clone_from(reported);
            adopted_run.row = (row != "no row").then(|| RowContents {
                stop: recorded.clone(),
                is_first: row == "first row",
                ..RowContents::default()
            });
            all.push((format!("at its gate, {row}, {stop}"), adopted_run));
        }
    }
    for state in [
        None,
        Some(RowState::Running),
        Some(RowState::Pausing),
        Some(RowState::Paused),
    ] {
        for pause in [
            HeldPause::None,
            HeldPause::Stopping,
            HeldPause::Stopped,
            HeldPause::Expired,
            HeldPause::Resuming,
        ] {
            for reported in [
                LastPause::Never,
                LastPause::Paused,
                LastPause::Resumed(ResumeReason::MaxPause),
            ] {
                let mut adopted_run = adopted_run(LeaderExit::Stop);
                adopted_run.pause = pause;
                adopted_run.row = Some(RowContents {
                    state,
                    ..RowContents::default()
                });
                adopted_run.record.pause = reported;
                let state = state.map_or("Starting".to_owned(), |s| format!("{s:?}"));
                let reported = match reported {
                    LastPause::Resumed(_) => "Resumed".to_owned(),
                    other => format!("{other:?}"),
                };
                all.push((
                    format!("row {state}, pause {pause:?}, reported {reported}"),
                    adopted_run,
                ));
            }
        }
    }
    for policy in [
        LeaderExit::Stop,
        LeaderExit::Drain { timeout: None },
        LeaderExit::Keep,
    ] {
        for (stop, recorded, reported) in &stops {
            for end in ["", "leader", "tree"] {
                let mut adopted_run = adopted_run(policy);
                adopted_run.row = Some(RowContents {
                    state: Some(RowState::Running),
                    stop: recorded.clone(),
                    ..RowContents::default()
                });
                adopted_run.record.stopping.clone_from(reported);
                adopted_run.record.leader = (!end.is_empty()).then_some(Exit::Code(0));
                adopted_run.record.tree = end == "tree";
                let policy = format!("{policy:?}");
                let policy = policy.split(' ').next().unwrap();
                all.push((format!("{policy}, {end} reported, {stop}"), adopted_run));
            }
        }
    }
    all
}

#[test]
fn adoption_first_writes_missing_journal_entries() {
    let mut silent = adopted_run(LeaderExit::Stop);
    silent.record = AttemptRecord::default();
    let mut machine = Machine::adopted(NOW, silent.clone());
    assert_eq!(effects(&mut machine), [Effect::Append(recorded())]);
    assert!(matches!(machine.phase(), Phase::Released));

    silent.row = Some(RowContents {
        state: Some(RowState::Running),
        stop: None,
        ..RowContents::default()
    });
    let mut machine = Machine::adopted(NOW, silent);
    let reported = [recorded(), Entry::Started];
    assert_eq!(effects(&mut machine), reported.map(Effect::Append));
    assert!(matches!(machine.phase(), Phase::Running));
    assert_eq!(report(&mut machine, Report::Executed), []);
}

// promise: R-14
#[test]
fn stop_keeps_its_grace_despite_clock_changes() {
    for gone in [0, 2, 5, 3600] {
        let mut adopted_run = adopted_run(LeaderExit::Stop);
        adopted_run.row = Some(RowContents {
            state: Some(RowState::Running),
            stop: Some(order()),
            ..RowContents::default()
        });
        let now = NOW.plus(Duration::from_secs(gone));
        let mut machine = Machine::adopted(now, adopted_run);
        let (order, deadline) = order();
        let again = order.clone();
        let recorded = Effect::RecordStop {
            order: again,
            deadline,
        };
        assert_eq!(effects(&mut machine), [recorded], "recorded again first");
        assert_eq!(
            report(&mut machine, Report::StopRecorded),
            [
                Effect::Append(Entry::Stopping { order, deadline }),
                Effect::StopTree(StopPlan::abort(GRACE))
            ]
        );
    }
}

// promise: R-14
#[test]
fn adopted_stop_continues_with_remaining_grace() {
    // A clock set back does not delay the stop.
    for (gone, left) in [(0, 2), (1, 1), (3600, 0), (-3600, 5)] {
        let mut adopted_run = adopted_run(LeaderExit::Stop);
        let (first, reported) = order();
        let sooner = NOW.plus(Duration::from_secs(2));
        assert!(sooner < reported);
        adopted_run.row = Some(RowContents {
            state: Some(RowState::Running),
            stop: Some((first.clone(), sooner)),
            ..RowContents::default()
        });
        adopted_run.record.stopping = Some((first, reported));
        let now = Timestamp(NOW.0 + gone * 1_000_000);
        adopted_run.stop_now = now;
        // The current clock setting is an hour ahead.
        let mut machine = Machine::adopted(NOW.plus(Duration::from_hours(1)), adopted_run);
        assert_eq!(effects(&mut machine).len(), 1, "recorded again first");
        let left = StopPlan::abort(Duration::from_secs(left));
        let stopped = report(&mut machine, Report::StopRecorded);
        assert_eq!(stopped, [Effect::StopTree(left)]);
    }
}

// promise: R-14
#[test]
fn repeated_deadline_report_has_no_effect() {
    let mut adopted_run = adopted_run(LeaderExit::Stop);
    let (order, deadline) = late();
    adopted_run.row = Some(RowContents {
        state: Some(RowState::Running),
        stop: Some((order.clone(), deadline)),
        ..RowContents::default()
    });
    adopted_run.record.stopping = Some((order, deadline));
    let mut machine = Machine::adopted(NOW.plus(GRACE / 2), adopted_run);
    assert_eq!(effects(&mut machine), []);
    let exceeded = Report::KeeperStops {
        reason: StopReason::DeadlineExceeded(Deadline::MaxRuntime),
        grace: GRACE,
    };
    machine.step(NOW, Input::Report(exceeded)).unwrap();
    assert_eq!(effects(&mut machine), []);
}

// promise: R-11b
#[test]
fn orphaned_run_reports_its_stop_once() {
    for reported in [false, true] {
        let mut adopted_run = adopted_run(LeaderExit::Stop);
        let order = StopOrder {
            reason: StopReason::Orphaned,
            grace: GRACE,
        };
        adopted_run.record.stopping = reported.then(|| (order.clone(), NOW.plus(GRACE)));
        let mut machine = Machine::adopted(NOW.plus(GRACE / 2), adopted_run);
        let orphaned = Report::KeeperStops {
            reason: StopReason::Orphaned,
            grace: GRACE,
        };
        machine.step(NOW, Input::Report(orphaned)).unwrap();
        let effects = effects(&mut machine);
        let says = |effect: &Effect| matches!(effect, Effect::Append(Entry::Stopping { order: said, deadline }) if *said == order && *deadline == NOW.plus(GRACE));
        assert_eq!(effects.iter().any(says), !reported, "{effects:?}");
        assert!(
            !effects.iter().any(|e| matches!(e, Effect::StopTree(_))),
            "{effects:?}"
        );
        report(&mut machine, Report::LeaderExited(killed_by(Signal::TERM)));
        report(&mut machine, Report::StreamsClosed(StreamsEnd::Eof));
        let outcome = closed(&mut machine);
        assert_eq!(outcome.reason, EndReason::OrphanTerminated);
        assert_eq!(outcome.exit, Some(killed_by(Signal::TERM)));
    }
}

#[test]
fn journaled_stop_reason_overrides_the_row() {
    let mut adopted_run = adopted_run(LeaderExit::Stop);
    adopted_run.record.stopping = Some(late());
    adopted_run.record.leader = Some(killed_by(Signal::TERM));
    // A store that went back lost the first order, and got another one.
    adopted_run.row = Some(RowContents {
        state: Some(RowState::Running),
        stop: Some(order()),
        ..RowContents::default()
    });
    let mut machine = Machine::adopted(NOW, adopted_run);
    report(&mut machine, Report::LeaderExited(killed_by(Signal::TERM)));
    report(&mut machine, Report::StreamsClosed(StreamsEnd::Eof));
    let reason = closed(&mut machine).reason;
    assert_eq!(reason, EndReason::DeadlineExceeded(Deadline::MaxRuntime));
}

#[test]
fn repeated_signal_rounds_are_counted_once() {
    let listed = u32::try_from(limits::STEPS_LISTED_MAX).unwrap();
    let mut adopted_run = adopted_run(LeaderExit::Stop);
    adopted_run.record.leader = Some(killed_by(Signal::KILL));
    adopted_run.record.streams = Some(StreamsEnd::Eof);
    adopted_run.record.steps = listed + 3;
    let mut machine = Machine::adopted(NOW, adopted_run);
    for _ in 0..2 {
        for at in 0..i64::from(listed) {
            report(&mut machine, Report::Signalled(step(at, Signal::TERM)));
        }
    }
    let outcome = closed(&mut machine);
    assert_eq!(outcome.certificate.steps.len(), limits::STEPS_LISTED_MAX);
    assert_eq!(outcome.certificate.steps_unlisted, 3);
}

#[test]
fn oom_kill_stays_reason_after_reported_leader_end() {
    for (sent, oom) in [(false, true), (true, false)] {
        let mut adopted_run = adopted_run(LeaderExit::Stop);
        adopted_run.record.leader = Some(killed_by(Signal::KILL));
        adopted_run.record.streams = Some(StreamsEnd::Eof);
        let mut machine = Machine::adopted(NOW, adopted_run);
        if sent {
            report(&mut machine, Report::KillSent);
        }
        report(&mut machine, Report::LeaderExited(killed_by(Signal::KILL)));
        report(&mut machine, Report::MemoryKills(MEMORY_KILLS));
        let reason = closed(&mut machine).reason;
        assert_eq!(matches!(reason, EndReason::OomKilled(_)), oom, "{reason:?}");
    }
}

#[test]
fn sigkill_survivors_are_reported_once() {
    let mut adopted_run = adopted_run(LeaderExit::Stop);
    adopted_run.record.stuck = Some(stuck());
    let mut machine = Machine::adopted(NOW, adopted_run);
    assert!(matches!(machine.phase(), Phase::Draining { .. }));
    assert_eq!(report(&mut machine, Report::TreeStuck(stuck())), []);
    assert_eq!(machine.stuck(), Some(&stuck()));
}

#[test]
fn unreported_stored_outcome_is_reported_after_adoption() {
    let outcome = Outcome {
        reason: EndReason::Exited,
        exit: Some(Exit::Code(3)),
        tree: EMPTY,
        streams: Some(StreamsEnd::Cut),
        certificate: StopCertificate::default(),
    };
    let lines = [
        Entry::LeaderExited(Exit::Code(3)),
        Entry::StreamsClosed(StreamsEnd::Cut),
        Entry::TreeEnded(EMPTY),
        Entry::Ended(Box::new(outcome.clone())),
    ];
    for reported in 0..=lines.len() {
        let record = crate::world::record_of(&lines[..reported]);
        let mut machine = Machine::ended(NOW, outcome.clone(), record, None);
        let mut rest: Vec<_> = lines[reported..]
            .iter()
            .cloned()
            .map(Effect::Append)
            .collect();
        rest.push(Effect::Acknowledge);
        assert_eq!(effects(&mut machine), rest);
        assert_eq!(machine.phase(), &Phase::Closed(outcome.clone()));
    }
}

/// A running run without any request.
fn adopted_run(on_leader_exit: LeaderExit) -> AdoptedRun {
    AdoptedRun {
        identity: identity(),
        on_leader_exit,
        released: true,
        pause: HeldPause::None,
        row: Some(RowContents::default()),
        stop_now: NOW,
        record: AttemptRecord {
            recorded: true,
            started: true,
            ..AttemptRecord::default()
        },
    }
}

fn order() -> (StopOrder, Timestamp) {
    (abort(GRACE), NOW.plus(GRACE))
}

fn late() -> (StopOrder, Timestamp) {
    let order = StopOrder {
        reason: StopReason::DeadlineExceeded(Deadline::MaxRuntime),
        grace: GRACE,
    };
    (order, NOW.plus(GRACE))
}

fn effects(machine: &mut Machine) -> Vec<Effect> {
    machine.effects().collect()
}

fn report(machine: &mut Machine, report: Report) -> Vec<Effect> {
    machine.step(NOW, Input::Report(report)).unwrap();
    effects(machine)
}

fn closed(machine: &mut Machine) -> Outcome {
    report(machine, Report::TreeEnded(EMPTY));
    match machine.phase() {
        Phase::Closing(outcome) => outcome.clone(),
        other => panic!("{other:?}"),
    }
}

/// Returns the first attempt of a run that was recorded, and whose server died before it opened the gate.
fn recorded_at_gate() -> Machine {
    let mut adopted_run = adopted_run(LeaderExit::Stop);
    adopted_run.released = false;
    adopted_run.row = Some(RowContents {
        is_first: true,
        ..RowContents::default()
    });
    Machine::adopted(NOW, adopted_run)
}

// promise: R-16
#[test]
fn row_of_attempt_left_at_gate_is_withdrawn() {
    let mut machine = recorded_at_gate();
    let mut report = |report| {
        machine.step(NOW, Input::Report(report)).unwrap();
        machine.effects().collect::<Vec<_>>()
    };
    assert_eq!(report(Report::NotReleased), []);
    let ended = Report::TreeEnded(TreeVerdict::NeverRan);
    assert_eq!(report(ended.clone()), [Effect::Withdraw]);
    assert_eq!(report(ended), []);
    assert_eq!(
        report(Report::Withdrawn),
        [Effect::Acknowledge, Effect::Forget]
    );
    assert!(matches!(machine.phase(), Phase::Forgotten(_)));
}

// promise: R-16
#[test]
fn stop_of_attempt_left_at_gate_is_recorded() {
    for stop_at in 0..3 {
        let mut machine = recorded_at_gate();
        let reports = [
            Report::NotReleased,
            Report::TreeEnded(TreeVerdict::NeverRan),
            Report::Withdrawn,
        ];
        let mut effects = Vec::new();
        for (at, report) in reports.into_iter().enumerate() {
            if at == stop_at {
                let stop = Input::Command(Command::Stop(abort(GRACE)));
                machine.step(NOW, stop).unwrap();
            }
            machine.step(NOW, Input::Report(report)).unwrap();
            effects.extend(machine.effects());
        }
        let recorded = |effect: &Effect| matches!(effect, Effect::RecordOutcome(outcome) if outcome.reason == abort(GRACE).reason.into());
        assert!(effects.iter().any(recorded), "{stop_at}: {effects:?}");
    }
}
