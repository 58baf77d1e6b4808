//! Contents of a stop certificate, and what it never contains.

use crate::samples::{GRACE, abort, identity, left, step};
use kennel_lifecycle::{
    Command, Effect, EndReason, Exit, Input, Machine, Outcome, Proof, Report, Signal, SignalSender,
    StopCertificate, StopStep, StreamsEnd, Stuck, Timestamp, TreeVerdict,
    limits::STEPS_LISTED_MAX,
    recovery::{
        Before, CgroupSeen, Decision, ExitRecord, Host, Observation, ProcessPresence, decide,
    },
};

#[test]
fn run_ended_by_itself_has_no_stop_steps() {
    let outcome = ended(&[]);
    let wanted = StopCertificate {
        census: Some(Timestamp(9)),
        ..StopCertificate::default()
    };
    assert_eq!(outcome.certificate, wanted);
}

// promise: T-22
#[test]
fn certificate_lists_each_signal_round_once() {
    let (term, kill) = (step(1, Signal::TERM), step(2, Signal::KILL));
    let reported = [
        Report::Signalled(term),
        Report::Signalled(kill),
        // Reports may come twice.
        Report::Signalled(term),
        Report::LeftBehind(left()),
    ];
    let certificate = ended(&reported).certificate;
    assert_eq!(certificate.steps, [term, kill]);
    assert_eq!(certificate.leftovers, left());
    assert_eq!(term.targets(), 2);
}

// promise: T-25
#[test]
fn signal_rounds_beyond_limit_are_counted() {
    let all = i64::try_from(STEPS_LISTED_MAX).unwrap() + 3;
    let reported: Vec<_> = (0..all)
        .map(|at| Report::Signalled(step(at, Signal::KILL)))
        .collect();
    let certificate = ended(&reported).certificate;
    assert_eq!(certificate.steps.len(), STEPS_LISTED_MAX);
    assert_eq!(certificate.steps_unlisted, 3);
}

#[test]
fn run_never_released_has_an_empty_certificate() {
    let mut machine = Machine::default();
    let stop = Input::Command(Command::Stop(abort(GRACE)));
    machine.step(Timestamp(0), stop).unwrap();
    let outcome = outcome(&mut machine);
    assert_eq!(outcome.tree, TreeVerdict::NeverRan);
    assert_eq!(outcome.certificate, StopCertificate::default());
}

// promise: T-24
#[test]
fn recovery_certificate_has_steps_of_shim_and_recovery() {
    let by_shim = StopStep {
        sender: SignalSender::Shim,
        ..step(1, Signal::TERM)
    };
    let by_us = step(2, Signal::KILL);
    let mut seen = Observation {
        host: Host::Same,
        exit_record: Some(ExitRecord {
            exit: None,
            by_itself: None,
            tree: None,
            never_ran: false,
            steps: vec![by_shim],
            census: Some(Timestamp(3)),
            shutdown: false,
        }),
        shim: ProcessPresence::Gone,
        command: ProcessPresence::Gone,
        cgroup: CgroupSeen::Empty,
        held: Vec::new(),
        hints: vec![],
        namespace: None,
        end_begun: false,
        steps: vec![by_us],
        stuck: Stuck::default(),
        at: Timestamp(4),
    };
    let terminated = Before {
        terminated: true,
        ..Before::default()
    };
    let Decision::Close(outcome) = decide(&seen, terminated) else {
        panic!("no process is left")
    };
    assert_eq!(outcome.reason, EndReason::OrphanTerminated);
    assert_eq!(outcome.certificate.steps, [by_shim, by_us]);
    assert_eq!(outcome.certificate.census, Some(Timestamp(4)));
    // After a reboot only the shim's scan counts.
    seen.host = Host::Other;
    let Decision::Close(outcome) = decide(&seen, Before::default()) else {
        panic!("there is nothing to wait for")
    };
    assert_eq!(outcome.certificate.census, Some(Timestamp(3)));
}

/// Returns the outcome of a run that was stopped, got these reports meanwhile, and ended.
fn ended(reported: &[Report]) -> Outcome {
    let mut machine = Machine::default();
    let mut feed = |input| machine.step(Timestamp(0), input).unwrap();
    feed(Input::Command(Command::Admit));
    for report in [
        Report::Prepared(identity()),
        Report::Recorded,
        Report::Executed,
    ] {
        feed(Input::Report(report));
    }
    for report in reported {
        feed(Input::Report(report.clone()));
    }
    for report in [
        Report::LeaderExited(Exit::Code(0)),
        Report::Census(Timestamp(9)),
        Report::TreeEnded(TreeVerdict::Empty(Proof::Echild)),
        // Reports after the tree's verdict do not count.
        Report::Signalled(step(10, Signal::KILL)),
        Report::Census(Timestamp(10)),
        Report::StreamsClosed(StreamsEnd::Eof),
    ] {
        feed(Input::Report(report));
    }
    outcome(&mut machine)
}

fn outcome(machine: &mut Machine) -> Outcome {
    let mut outcomes = machine.effects().filter_map(|effect| match effect {
        Effect::RecordOutcome(outcome) => Some(outcome),
        _ => None,
    });
    outcomes.next().expect("it has ended")
}
