//! A tree that SIGKILL does not end, and that exits later.

use crate::samples::{GRACE, abort, identity, stuck};
use kennel_lifecycle::{
    Command, Effect, Entry, Exit, Input, LeaderExit, Machine, Proof, Report, RunState, StreamsEnd,
    Timestamp, TreeVerdict,
};

// promise: T-26
#[test]
fn stuck_tree_is_reported_once_and_never_ended() {
    let mut run = Run::up_to_stop();
    let reported = Effect::Append(Entry::Stuck(stuck()));
    assert_eq!(run.report(Report::TreeStuck(stuck())), [reported]);
    assert_eq!(run.report(Report::TreeStuck(stuck())), []);
    run.report(Report::LeaderExited(Exit::Unknown));
    let effects = run.report(Report::StreamsClosed(StreamsEnd::Eof));
    let closes = |effect: &Effect| matches!(effect, Effect::RecordOutcome(_));
    assert!(!effects.iter().any(closes), "{effects:?}");
    assert_eq!(run.0.phase().public(), RunState::Stopping);
    assert_eq!(run.0.stuck(), Some(&stuck()));

    let effects = run.report(Report::TreeEnded(TreeVerdict::Empty(Proof::Echild)));
    assert!(effects.iter().any(closes), "{effects:?}");
    assert_eq!(run.0.stuck(), None);
}

// promise: T-26
#[test]
fn change_of_stuck_processes_is_reported() {
    let mut run = Run::up_to_stop();
    run.report(Report::TreeStuck(stuck()));
    let mut others = stuck();
    others.processes[0].pid = 44;
    assert!(!others.names_the_same(&stuck()));
    let reported = Effect::Append(Entry::Stuck(others.clone()));
    assert_eq!(run.report(Report::TreeStuck(others)), [reported]);
}

#[test]
fn stuck_run_without_a_stop_is_ending() {
    let mut run = Run::running();
    run.report(Report::TreeStuck(stuck()));
    assert_eq!(run.0.phase().public(), RunState::Stopping);
}

#[test]
fn killed_process_is_not_detached() {
    let kept = |effects: &[Effect]| effects.contains(&Effect::KeepRest);
    let exited = Report::LeaderExited(Exit::Code(0));
    let mut run = Run::under(LeaderExit::Keep);
    assert!(kept(&run.report(exited.clone())), "without a stop it is");

    let mut run = Run::under(LeaderExit::Keep);
    run.report(Report::TreeStuck(stuck()));
    assert!(!kept(&run.report(exited)));
}

struct Run(Machine);

impl Run {
    fn running() -> Self {
        Self::under(LeaderExit::default())
    }

    fn under(policy: LeaderExit) -> Self {
        let mut run = Self(Machine::with(policy));
        run.feed(Input::Command(Command::Admit));
        run.report(Report::Prepared(identity()));
        run.report(Report::Recorded);
        run.report(Report::Executed);
        run
    }

    fn up_to_stop() -> Self {
        let mut run = Self::running();
        run.feed(Input::Command(Command::Stop(abort(GRACE))));
        run.report(Report::StopRecorded);
        run
    }

    fn report(&mut self, report: Report) -> Vec<Effect> {
        self.feed(Input::Report(report))
    }

    fn feed(&mut self, input: Input) -> Vec<Effect> {
        self.0.step(Timestamp(0), input).unwrap();
        self.0.effects().collect()
    }
}
