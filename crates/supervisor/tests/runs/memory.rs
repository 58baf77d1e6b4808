//! Runs of which the kernel killed a process for lack of memory.

use crate::world::{Nature, Stage, call};
use kennel_keeper::client::{Fact, KeeperEvent, KeeperReport};
use kennel_lifecycle::{EndReason, Entry, Exit, MemoryKills, RunState, Signal, Timestamp};
use kennel_supervisor::{Condition, Payload, Position, RunView};

const KILLS: MemoryKills = MemoryKills {
    kills: 2,
    memory_max: Some(4096),
};

const KILLED: Exit = Exit::Signal {
    signal: Signal::KILL,
    core_dumped: false,
};

#[tokio::test]
async fn leader_killed_for_memory_is_oom_failure() {
    let (run, reasons) = ended(KILLED, false).await;
    assert_eq!(run.row.outcome.unwrap().reason, EndReason::OomKilled(KILLS));
    assert_eq!(run.state, RunState::Failed);
    assert_eq!(reasons, ["oom_killed"]);
}

// promise: Q-8a
#[tokio::test]
async fn memory_kills_survived_by_leader_are_a_warning() {
    let (run, reasons) = ended(Exit::Code(0), false).await;
    assert_eq!(run.row.outcome.unwrap().reason, EndReason::Exited);
    assert_eq!(run.state, RunState::Succeeded);
    let warning = "the kernel killed 2 processes of this run for lack of memory; the run has a memory limit of 4096 bytes";
    assert_eq!(reasons, [warning, "exited"]);
}

// promise: Q-8a
#[tokio::test]
async fn leader_killed_by_caller_is_not_oom() {
    let (run, reasons) = ended(KILLED, true).await;
    assert_eq!(run.row.outcome.unwrap().reason, EndReason::Exited);
    assert_eq!(reasons.len(), 2, "{reasons:?}");
}

/// Returns a run with kills that ended so, maybe after a caller's SIGKILL; its warnings, and the reason of its end.
async fn ended(exit: Exit, kill_sent: bool) -> (RunView, Vec<String>) {
    let nature = Nature {
        memory_kills: Some(KILLS),
        ..Nature::default()
    };
    let stage = Stage::set(nature).await;
    let run = stage.supervisor.spawn(call(None)).await.unwrap().run.run;
    if kill_sent {
        let fact = Fact::SignalSent {
            signal: Signal::KILL,
            targets: Some(1),
            errno: None,
        };
        let at = Timestamp(1);
        stage.send_event(KeeperEvent::Report(KeeperReport { run, at, fact }));
    }
    stage.world.end(run, exit);
    let waited = stage.supervisor.wait(run, Condition::Ended).await.unwrap();
    let row = stage.world.store.row(run).unwrap();
    assert_eq!(row.outcome, waited.run.outcome);

    let events = stage.supervisor.events(run, Position::Beginning).await;
    let (_, mut events) = events.unwrap();
    let mut reasons = Vec::new();
    while let Some(batch) = events.next(1 << 20).await.unwrap() {
        for event in batch {
            match event.payload {
                Payload::Lifecycle(Entry::Ended(outcome)) => {
                    reasons.push(outcome.reason.name().to_owned());
                }
                Payload::Lifecycle(entry) => reasons.extend(entry.warning()),
                _ => {}
            }
        }
    }
    (waited.run, reasons)
}
