//! Signals to a run's processes, and their listing.

use crate::{
    abort,
    world::{Nature, Stage, call, member},
};
use kennel_keeper::client::{SignalOutcome, SignalTarget};
use kennel_lifecycle::{Refusal, RunId, RunState, Signal};
use kennel_supervisor::{CallError, SignalCall};
use std::time::Duration;

fn hang_up(run: RunId, request_id: Option<&str>) -> SignalCall {
    SignalCall {
        run,
        signal: Signal::HUP,
        target: SignalTarget::Group,
        request_id: request_id.map(str::to_owned),
    }
}

async fn running() -> (Stage, RunId) {
    let stage = Stage::set(Nature::default()).await;
    let run = stage.supervisor.spawn(call(None)).await.unwrap().run.run;
    (stage, run)
}

// promise: T-15
#[tokio::test]
async fn signal_is_sent_once_per_request_with_result() {
    let (stage, run) = running().await;
    let first = stage.supervisor.signal(hang_up(run, Some("a"))).await;
    let first = first.unwrap();
    assert!(!first.repeated);
    assert_eq!(first.run.state, RunState::Running);
    assert_eq!(
        first.signalled.signalled[0].result,
        SignalOutcome::Delivered
    );
    let again = stage.supervisor.signal(hang_up(run, Some("a"))).await;
    let again = again.unwrap();
    assert!(again.repeated && again.signalled.signalled.is_empty());
    let expected = (run, Signal::HUP, SignalTarget::Group);
    assert_eq!(stage.kernel().signals, [expected]);

    // Interrupts and signals share one memory of request ids.
    let request = |id: &str| Some(id.to_owned());
    stage.supervisor.interrupt(run, request("a")).await.unwrap();
    assert_eq!(stage.kernel().interrupts, 0);
    stage.supervisor.interrupt(run, request("b")).await.unwrap();
    let signalled = stage.supervisor.signal(hang_up(run, Some("b"))).await;
    assert!(signalled.unwrap().repeated);
    assert_eq!(stage.kernel().signals.len(), 1);
    for _ in 0..2 {
        let unnamed = stage.supervisor.signal(hang_up(run, None)).await;
        assert!(!unnamed.unwrap().repeated);
    }
    assert_eq!(stage.kernel().signals.len(), 3);
}

// promise: T-15a
#[tokio::test]
async fn undelivered_signal_is_resent_on_retry() {
    let (stage, run) = running().await;
    for result in [SignalOutcome::Failed(1), SignalOutcome::Gone] {
        stage.kernel().signal_result = result;
        let signalled = stage.supervisor.signal(hang_up(run, Some("a"))).await;
        assert_eq!(signalled.unwrap().signalled.signalled[0].result, result);
    }
    stage.kernel().signal_result = SignalOutcome::Delivered;
    for repeated in [false, true] {
        let signalled = stage.supervisor.signal(hang_up(run, Some("a"))).await;
        assert_eq!(signalled.unwrap().repeated, repeated);
    }
    assert_eq!(stage.kernel().signals.len(), 3);
}

// promise: T-30
#[tokio::test]
async fn signal_for_missing_terminal_is_refused_and_repeatable() {
    let (stage, run) = running().await;
    let to_terminal = SignalCall {
        target: SignalTarget::TerminalForeground,
        ..hang_up(run, Some("a"))
    };
    let refused = stage.supervisor.signal(to_terminal).await.unwrap_err();
    assert!(matches!(refused, CallError::NoTerminal { run: of } if of == run));
    let signalled = stage.supervisor.signal(hang_up(run, Some("a"))).await;
    assert!(!signalled.unwrap().repeated);
}

// promise: T-16
#[tokio::test]
async fn signal_to_paused_or_ended_run_is_refused() {
    let (stage, run) = running().await;
    stage.supervisor.pause(run).await.unwrap();
    let refused = stage.supervisor.signal(hang_up(run, Some("a"))).await;
    let Err(CallError::Refused { refusal, .. }) = refused else {
        panic!("{refused:?}")
    };
    assert_eq!(refusal, Refusal::Paused);
    stage.supervisor.resume(run).await.unwrap();
    // A refused request is not remembered.
    let signalled = stage.supervisor.signal(hang_up(run, Some("a"))).await;
    assert!(!signalled.unwrap().repeated);
    stage.supervisor.abort(abort(run)).await.unwrap();
    let refused = stage.supervisor.signal(hang_up(run, None)).await;
    let Err(CallError::Refused { refusal, .. }) = refused else {
        panic!("{refused:?}")
    };
    assert_eq!(refusal, Refusal::Ended);
    assert_eq!(stage.kernel().signals.len(), 1);
}

// promise: T-13a
#[tokio::test]
async fn refusal_names_state_at_decision_time() {
    let (stage, run) = running().await;
    stage.supervisor.pause(run).await.unwrap();
    stage.world.signals_held.send_replace(true);
    let supervisor = stage.supervisor.clone();
    let asked = tokio::spawn(async move { supervisor.interrupt(run, Some("a".into())).await });
    while stage.world.signals_held.receiver_count() == 0 {
        tokio::task::yield_now().await;
    }
    // The interrupt is refused by now, but not answered yet.
    stage.supervisor.resume(run).await.unwrap();
    stage.world.signals_held.send_replace(false);
    let refused = asked.await.unwrap();
    let Err(CallError::Refused { refusal, state, .. }) = refused else {
        panic!("{refused:?}")
    };
    assert_eq!((refusal, state), (Refusal::Paused, RunState::Paused));
}

// promise: T-15a
#[tokio::test]
async fn sent_signal_is_reported_after_the_stop() {
    let (stage, run) = running().await;
    let request = || Some("a".to_owned());
    stage.supervisor.interrupt(run, request()).await.unwrap();
    stage.supervisor.pause(run).await.unwrap();
    let again = stage.supervisor.signal(hang_up(run, Some("a"))).await;
    assert!(again.unwrap().repeated);
    stage.supervisor.interrupt(run, request()).await.unwrap();
    let refused = stage.supervisor.signal(hang_up(run, Some("b"))).await;
    assert!(
        matches!(refused, Err(CallError::Refused { .. })),
        "{refused:?}"
    );
    assert_eq!(stage.kernel().interrupts, 1);
    assert!(stage.kernel().signals.is_empty());
}

// promise: A-15
#[tokio::test]
async fn many_signals_to_ended_run_are_answered() {
    const MANY: usize = 40;
    let (stage, run) = running().await;
    stage.kernel().signal_result = SignalOutcome::Gone;
    stage.world.signals_held.send_replace(true);
    let mut calls = tokio::task::JoinSet::new();
    for number in 0..MANY {
        let supervisor = stage.supervisor.clone();
        let id = number.to_string();
        calls.spawn(async move { supervisor.signal(hang_up(run, Some(&id))).await });
    }
    while stage.world.signals_held.receiver_count() < MANY {
        tokio::task::yield_now().await;
    }
    stage.supervisor.abort(abort(run)).await.unwrap();
    // The task accepts no more orders, and waits for work in progress.
    while !stage.supervisor.drain_status().remaining.is_empty() {
        tokio::task::yield_now().await;
    }
    stage.world.signals_held.send_replace(false);
    let signalled = tokio::time::timeout(Duration::from_mins(1), calls.join_all()).await;
    let signalled = signalled.expect("a caller waits for ever");
    let gone = |signalled: &Result<kennel_supervisor::Signalled, CallError>| {
        let signalled = signalled
            .as_ref()
            .map(|signalled| signalled.signalled.signalled[0].result);
        matches!(signalled, Ok(SignalOutcome::Gone))
    };
    assert!(signalled.iter().all(gone), "{signalled:?}");
}

// promise: T-18
#[tokio::test]
async fn tree_is_listed_while_run_lives() {
    let (stage, run) = running().await;
    let (view, tree) = stage.supervisor.tree(run).await.unwrap();
    assert_eq!((view.run, view.state), (run, RunState::Running));
    assert_eq!(tree.members, [member()]);
    stage.supervisor.pause(run).await.unwrap();
    assert_eq!(stage.supervisor.tree(run).await.unwrap().1.members.len(), 1);
    stage.supervisor.abort(abort(run)).await.unwrap();
    let (view, tree) = stage.supervisor.tree(run).await.unwrap();
    assert!(view.state.is_terminal() && tree.members.is_empty());
    let unknown = stage.supervisor.tree(RunId::from_u128(9)).await;
    assert!(
        matches!(unknown, Err(CallError::RunNotFound(_))),
        "{unknown:?}"
    );
}

// promise: T-15b
#[tokio::test]
async fn oversized_signal_answer_does_not_resend_signal() {
    let (stage, run) = running().await;
    stage.kernel().full = true;
    let listed = stage.supervisor.tree(run).await;
    assert!(matches!(listed, Err(CallError::HostFull(_))), "{listed:?}");
    let sent = stage.supervisor.signal(hang_up(run, Some("a"))).await;
    assert!(matches!(sent, Err(CallError::HostFull(_))), "{sent:?}");
    stage.kernel().full = false;
    let again = stage.supervisor.signal(hang_up(run, Some("a"))).await;
    assert!(again.unwrap().repeated);
    assert_eq!(stage.kernel().signals.len(), 1);
}
