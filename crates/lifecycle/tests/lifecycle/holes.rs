//! Faults that reviews of earlier cores have found, each with its sequence of inputs.

use crate::samples::{GRACE, abort, failure, identity, killed_by};
use kennel_lifecycle::{
    Command, Effect, EndReason, Entry, Exit, Input, Machine, NeverRan, Outcome, Phase, Proof,
    Refusal, Report, ResumeReason, Row, RowState, Signal, StartStage, StopStage, StreamsEnd,
    Timestamp, TreeVerdict, ladder::StopPlan,
};
use std::time::Duration;

const NOW: Timestamp = Timestamp(1_000_000);
const EMPTY: TreeVerdict = TreeVerdict::Empty(Proof::CgroupAndEchild);

#[test]
fn repeated_admit_is_refused() {
    let mut run = Run::new();
    assert_eq!(run.command(Command::Admit), Ok(vec![Effect::Prepare]));
    assert_eq!(run.command(Command::Admit), Err(Refusal::AlreadyAdmitted));
    run.report(Report::Prepared(identity()));
    assert_eq!(run.command(Command::Admit), Err(Refusal::AlreadyAdmitted));
}

#[test]
fn leader_exit_before_exec_failure_has_no_code() {
    let mut run = Run::released();
    assert_eq!(run.report(Report::LeaderExited(Exit::Code(127))), []);
    assert_eq!(
        run.report(Report::ExecFailed(failure(StartStage::Exec))),
        []
    );
    assert_eq!(run.machine.ends().leader, None);
    let outcome = outcome(&run.report(Report::TreeEnded(EMPTY)));
    assert_eq!(
        outcome.reason,
        EndReason::StartFailed(failure(StartStage::Exec))
    );
    assert_eq!(outcome.exit, None);
    assert_eq!(outcome.tree, TreeVerdict::NeverRan);
}

#[test]
fn exit_code_before_exec_result_is_unknown() {
    let mut run = Run::released();
    run.report(Report::LeaderExited(Exit::Code(0)));
    let effects = run.report(Report::TreeEnded(TreeVerdict::Unverified(
        "the shim died".into(),
    )));
    assert_eq!(
        effects[0],
        Effect::Append(Entry::LeaderExited(Exit::Unknown))
    );
    let outcome = outcome(&run.report(Report::StreamsClosed(StreamsEnd::Lost)));
    assert_eq!(outcome.exit, Some(Exit::Unknown));

    // A signal exit is certain, whether or not exec happened.
    let mut run = Run::released();
    run.report(Report::LeaderExited(killed_by(Signal::KILL)));
    run.report(Report::TreeEnded(EMPTY));
    assert_eq!(run.machine.ends().leader, Some(killed_by(Signal::KILL)));
}

#[test]
fn empty_tree_does_not_wait_for_pipe_holder() {
    let mut run = Run::running();
    run.report(Report::LeaderExited(Exit::Code(0)));
    let effects = run.report(Report::TreeEnded(EMPTY));
    assert!(effects.contains(&Effect::FinishOutput), "{effects:?}");
    let outcome = outcome(&run.report(Report::StreamsClosed(StreamsEnd::Cut)));
    assert_eq!(outcome.streams, Some(StreamsEnd::Cut));
    assert_eq!(outcome.exit, Some(Exit::Code(0)));
}

#[test]
fn leader_exit_is_reported_before_pipes_close() {
    let mut run = Run::running();
    assert_eq!(
        run.report(Report::LeaderExited(Exit::Code(3))),
        [Effect::Append(Entry::LeaderExited(Exit::Code(3)))]
    );
    assert!(matches!(run.machine.phase(), Phase::Draining { .. }));
}

#[test]
fn stop_during_hanging_exec_signals_the_tree() {
    let mut run = Run::released();
    assert_eq!(run.stop(GRACE), Ok(vec![recorded(GRACE)]));
    let effects = run.report(Report::StopRecorded);
    assert_eq!(
        effects.last(),
        Some(&Effect::StopTree(StopPlan::abort(GRACE)))
    );
}

#[test]
fn stop_deadline_holds_while_draining() {
    let mut run = Run::stopping();
    run.report(Report::LeaderExited(killed_by(Signal::TERM)));
    let Phase::Draining { stop, deadline, .. } = run.machine.phase() else {
        panic!("{:?}", run.machine.phase());
    };
    assert_eq!(
        (stop, deadline),
        (&Some(abort(GRACE)), &Some(NOW.plus(GRACE)))
    );
}

#[test]
fn child_death_at_gate_leaves_no_open_row() {
    let death = Report::LeaderExited(killed_by(Signal::KILL));
    // If the row arrives, it must be closed.
    let mut run = Run::gated();
    assert_eq!(run.report(death.clone()), [Effect::ShutGate]);
    assert_eq!(run.report(Report::TreeEnded(EMPTY)), []);
    let closed = outcome(&run.report(Report::Recorded));
    assert_eq!((closed.exit, closed.tree), (None, TreeVerdict::NeverRan));

    // If the INSERT's result is unknown, the row may still arrive: withdraw it.
    let mut run = Run::gated();
    run.report(death.clone());
    run.report(Report::RecordUnknown);
    assert_eq!(run.report(Report::TreeEnded(EMPTY)), [Effect::Withdraw]);
    assert_eq!(
        run.report(Report::Withdrawn),
        [Effect::Acknowledge, Effect::Forget]
    );

    // If the INSERT failed, no row needs closing.
    let mut run = Run::gated();
    run.report(death);
    run.report(Report::RecordFailed);
    assert_eq!(
        run.report(Report::TreeEnded(EMPTY)),
        [Effect::Acknowledge, Effect::Forget]
    );
}

#[test]
fn child_that_ended_at_gate_is_not_released() {
    let mut run = Run::gated();
    assert_eq!(run.report(Report::TreeEnded(EMPTY)), [Effect::ShutGate]);
    outcome(&run.report(Report::Recorded));
}

#[test]
fn stop_before_the_row_is_recorded() {
    // A late retry of the spawn must find the stop.
    let mut run = Run::new();
    let closed = outcome(&run.stop(GRACE).unwrap());
    assert_eq!((closed.reason, closed.exit), (aborted(), None));

    let mut run = Run::new();
    run.command(Command::Admit).unwrap();
    assert_eq!(run.stop(GRACE), Ok(vec![]));
    assert_eq!(run.report(Report::Prepared(identity())), [Effect::ShutGate]);
    let closed = outcome(&run.report(Report::TreeEnded(EMPTY)));
    assert_eq!((closed.reason, closed.exit), (aborted(), None));
}

#[test]
fn stop_survives_a_failed_row_insert() {
    let mut run = Run::gated();
    run.report(Report::RecordFailed);
    assert_eq!(run.stop(GRACE), Ok(vec![]));
    let closed = outcome(&run.report(Report::TreeEnded(EMPTY)));
    assert_eq!(closed.reason, aborted());

    let mut run = Run::gated();
    run.report(Report::NotReleased);
    assert_eq!(run.stop(GRACE), Ok(vec![]));
    run.report(Report::RecordFailed);
    let closed = outcome(&run.report(Report::TreeEnded(EMPTY)));
    assert_eq!(closed.reason, aborted());
}

#[test]
fn stop_for_another_runs_row_is_refused() {
    let mut run = Run::gated();
    assert_eq!(run.report(Report::KeyTaken), [Effect::ShutGate]);
    assert_eq!(run.stop(GRACE), Err(Refusal::Ended));
    assert_eq!(
        run.report(Report::TreeEnded(EMPTY)),
        [Effect::Acknowledge, Effect::Forget]
    );
    assert_eq!(run.machine.phase(), &Phase::Forgotten(NeverRan::Superseded));
    assert_eq!(run.stop(GRACE), Err(Refusal::Ended));
}

#[test]
fn failed_row_insert_closes_the_gate() {
    for (report, row) in [
        (Report::RecordFailed, Row::Absent),
        (Report::RecordUnknown, Row::Void),
        (Report::KeyTaken, Row::Absent),
    ] {
        let mut run = Run::gated();
        assert_eq!(run.report(report), [Effect::ShutGate]);
        // A late success opens no gate.
        assert_eq!(run.report(Report::Recorded), []);
        let Phase::Leaving(leaving) = run.machine.phase() else {
            panic!("{:?}", run.machine.phase());
        };
        assert_eq!(leaving.row, row);
    }
}

#[test]
fn stop_is_recorded_before_any_signal() {
    for mut run in [
        Run::released(),
        Run::running(),
        Run::pausing(),
        Run::paused(),
    ] {
        let effects = run.stop(GRACE).unwrap();
        assert_eq!(effects, [recorded(GRACE)]);
    }
}

#[test]
fn repeated_stop_only_shortens_the_grace() {
    let mut run = Run::stopping();
    assert_eq!(run.stop(GRACE), Ok(vec![]));
    assert_eq!(run.stop(GRACE * 2), Ok(vec![]));
    let deadline = NOW.plus(GRACE / 2);
    assert_eq!(run.stop(GRACE / 2), Ok(vec![recorded(GRACE / 2)]));
    assert_eq!(
        run.report(Report::StopRecorded),
        [Effect::StopTree(StopPlan::abort(GRACE / 2))]
    );
    // Further orders are compared with the shortened deadline.
    assert_eq!(run.stop(GRACE), Ok(vec![]));
    let Phase::Stopping {
        stage,
        deadline: in_force,
        ..
    } = run.machine.phase()
    else {
        panic!("{:?}", run.machine.phase());
    };
    assert_eq!((*stage, *in_force), (StopStage::Ordered, deadline));
}

#[test]
fn stop_during_drain_terminates_remaining_processes() {
    let mut run = Run::running();
    run.report(Report::LeaderExited(Exit::Code(0)));
    assert_eq!(run.stop(Duration::ZERO), Ok(vec![recorded(Duration::ZERO)]));
    assert_eq!(
        run.report(Report::StopRecorded),
        [Effect::StopTree(StopPlan::abort(Duration::ZERO))]
    );
    // The leader exited by itself before the stop.
    run.report(Report::TreeEnded(EMPTY));
    let closed = outcome(&run.report(Report::StreamsClosed(StreamsEnd::Eof)));
    assert_eq!(closed.reason, EndReason::Exited);
}

#[test]
fn leader_exit_before_stop_signal_counts_as_exited() {
    let mut run = Run::running();
    run.stop(GRACE).unwrap();
    run.report(Report::LeaderExited(Exit::Code(0)));
    // The order still reaches the remaining processes.
    assert_eq!(
        run.report(Report::StopRecorded),
        [Effect::StopTree(StopPlan::abort(GRACE))]
    );
    run.report(Report::TreeEnded(EMPTY));
    let closed = outcome(&run.report(Report::StreamsClosed(StreamsEnd::Eof)));
    assert_eq!(closed.reason, EndReason::Exited);
}

#[test]
fn stop_of_ended_run_has_no_effect() {
    let mut run = Run::stopping();
    run.report(Report::LeaderExited(killed_by(Signal::TERM)));
    run.report(Report::StreamsClosed(StreamsEnd::Eof));
    let closing = outcome(&run.report(Report::TreeEnded(EMPTY)));
    assert_eq!(run.stop(GRACE), Ok(vec![]));
    run.report(Report::OutcomeRecorded);
    assert_eq!(run.stop(Duration::ZERO), Ok(vec![]));
    assert_eq!(run.machine.phase(), &Phase::Closed(closing));
}

#[test]
fn tree_without_leader_report_still_ends() {
    let mut run = Run::running();
    let effects = run.report(Report::TreeEnded(TreeVerdict::Unverified(
        "the shim died".into(),
    )));
    assert_eq!(
        effects[0],
        Effect::Append(Entry::LeaderExited(Exit::Unknown))
    );
    let closed = outcome(&run.report(Report::StreamsClosed(StreamsEnd::Lost)));
    assert_eq!(closed.exit, Some(Exit::Unknown));
    // A late exit report changes nothing.
    assert_eq!(run.report(Report::LeaderExited(Exit::Code(0))), []);
    assert_eq!(run.machine.phase(), &Phase::Closing(closed));
}

#[test]
fn stop_during_a_pause_cancels_the_freeze() {
    let mut run = Run::running();
    run.command(Command::Pause).unwrap();
    run.stop(GRACE).unwrap();
    let recorded = Report::StateRecorded(kennel_lifecycle::RowState::Pausing);
    assert_eq!(run.report(recorded), []);
    assert_eq!(run.report(Report::Frozen), []);
    assert!(matches!(run.machine.phase(), Phase::Stopping { .. }));
}

// promise: TM-7
#[test]
fn resume_report_before_pause_report_is_reordered() {
    let mut run = Run::pausing();
    assert_eq!(run.report(Report::PauseExpired), []);
    let expected = [
        Effect::Append(Entry::Paused),
        Effect::Append(Entry::Resumed {
            reason: ResumeReason::MaxPause,
        }),
        Effect::RecordState(RowState::Running),
    ];
    assert_eq!(run.report(Report::Frozen), expected);
    assert!(matches!(run.machine.phase(), Phase::Running));
}

// promise: TM-7
#[test]
fn pause_resumed_twice_ends_once() {
    let mut run = Run::paused();
    run.command(Command::Resume).unwrap();
    assert_eq!(run.report(Report::PauseExpired), []);
    let resumed = Effect::Append(Entry::Resumed {
        reason: ResumeReason::Asked,
    });
    assert_eq!(run.report(Report::Thawed)[0], resumed);
    assert_eq!(run.report(Report::PauseExpired), []);

    let mut run = Run::paused();
    let resumed = Effect::Append(Entry::Resumed {
        reason: ResumeReason::MaxPause,
    });
    assert_eq!(run.report(Report::PauseExpired)[0], resumed);
    assert_eq!(run.report(Report::PauseExpired), []);
}

/// A machine with short names for its inputs; time stands still.
struct Run {
    machine: Machine,
}

impl Run {
    fn new() -> Self {
        Self {
            machine: Machine::default(),
        }
    }

    fn gated() -> Self {
        let mut run = Self::new();
        run.command(Command::Admit).unwrap();
        let effects = run.report(Report::Prepared(identity()));
        assert_eq!(effects, [Effect::Record]);
        run
    }

    fn released() -> Self {
        let mut run = Self::gated();
        let effects = run.report(Report::Recorded);
        assert_eq!(effects.last(), Some(&Effect::Release));
        run
    }

    fn running() -> Self {
        let mut run = Self::released();
        let effects = run.report(Report::Executed);
        assert_eq!(effects[0], Effect::Append(Entry::Started));
        run
    }

    fn pausing() -> Self {
        let mut run = Self::running();
        run.command(Command::Pause).unwrap();
        let recorded = Report::StateRecorded(kennel_lifecycle::RowState::Pausing);
        assert_eq!(run.report(recorded), [Effect::Freeze]);
        run
    }

    fn paused() -> Self {
        let mut run = Self::pausing();
        run.report(Report::Frozen);
        assert!(matches!(run.machine.phase(), Phase::Paused));
        run
    }

    fn stopping() -> Self {
        let mut run = Self::running();
        run.stop(GRACE).unwrap();
        run.report(Report::StopRecorded);
        run
    }

    fn stop(&mut self, grace: Duration) -> Result<Vec<Effect>, Refusal> {
        self.command(Command::Stop(abort(grace)))
    }

    fn command(&mut self, command: Command) -> Result<Vec<Effect>, Refusal> {
        self.machine.step(NOW, Input::Command(command))?;
        Ok(self.machine.effects().collect())
    }

    fn report(&mut self, report: Report) -> Vec<Effect> {
        self.machine.step(NOW, Input::Report(report)).unwrap();
        self.machine.effects().collect()
    }
}

/// The effect of an accepted stop with this grace.
fn recorded(grace: Duration) -> Effect {
    Effect::RecordStop {
        order: abort(grace),
        deadline: NOW.plus(grace),
    }
}

fn aborted() -> EndReason {
    abort(GRACE).reason.into()
}

/// Returns the outcome that is being written, which is the last effect.
fn outcome(effects: &[Effect]) -> Outcome {
    match effects.last() {
        Some(Effect::RecordOutcome(outcome)) => outcome.clone(),
        other => panic!("no outcome but {other:?}"),
    }
}
