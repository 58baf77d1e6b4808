//! A leak check over keeper, tracker and store, and the processes that a reap may touch.

use crate::world::{Nature, Stage, Weather, call, identity};
use kennel_keeper::{
    audit::{Belongings, HostScan},
    client::{Holding, KeeperInventory, LeakScan},
};
use kennel_lifecycle::{
    ProcessIdentity, RunId,
    audit::{
        Evidence, RunStatus, ScannedProcess,
        reap::{Scope, Spared},
    },
};
use kennel_supervisor::{Audit, ReapCall, ReapResult, Unverified};
use std::{collections::BTreeSet, time::Duration};

/// Process id of the keeper in this world, and that of the server.
const KEEPER: i32 = 10;
const SERVER: i32 = 2;

fn process(pid: i32, parent: i32, marker: Option<RunId>) -> ScannedProcess {
    ScannedProcess {
        identity: ProcessIdentity {
            pid,
            pgid: pid,
            sid: pid,
            start_ticks: 5,
            pidfs_handle: Some(9),
        },
        ppid: parent,
        has_ended: false,
        cgroup: None,
        marker,
    }
}

fn look(processes: Vec<ScannedProcess>, shims: Vec<(i32, RunId)>) -> LeakScan {
    LeakScan {
        scan: HostScan {
            processes,
            ..HostScan::default()
        },
        inventory: KeeperInventory {
            server: SERVER,
            shims,
            ..KeeperInventory::default()
        },
        belongings: Belongings {
            lock_is_ours: true,
            run_dirs: Vec::new(),
            run_dirs_unlisted: 0,
            host: None,
            server_fds: None,
            fds_max: None,
        },
    }
}

/// Returns an ended run, with one process left below its shim and one with its marker alone; a live run; an unrelated
/// process with a marker of no run.
async fn left_behind() -> (Stage, RunId, RunId) {
    let stage = Stage::set(Nature::default()).await;
    let over = stage.supervisor.spawn(call(None)).await.unwrap().run.run;
    stage.exits(over, 0);
    let ended = kennel_supervisor::Condition::Ended;
    stage.supervisor.wait(over, ended).await.unwrap();
    let live = stage.supervisor.spawn(call(None)).await.unwrap().run.run;
    let leader = stage
        .supervisor
        .get(live)
        .await
        .unwrap()
        .row
        .new
        .identity
        .unwrap();
    let processes = vec![
        process(500, KEEPER, None),
        process(501, 500, None),
        process(600, 90, Some(over)),
        process(leader.shim.pid, KEEPER, None),
        process(700, leader.shim.pid, Some(live)),
        process(701, 90, Some(live)),
        process(800, 90, Some(RunId::from_u128(4711))),
    ];
    let shims = vec![(500, over), (leader.shim.pid, live)];
    stage.kernel().look = Some(look(processes, shims));
    (stage, over, live)
}

fn found(audit: &Audit) -> Vec<(i32, Evidence, Option<RunStatus>)> {
    let findings = audit.findings.iter().map(|f| &f.finding);
    let short = findings.map(|f| (f.process.pid, f.evidence, f.standing));
    short.collect()
}

fn order(scope: Scope, execute: bool) -> ReapCall {
    ReapCall {
        scope,
        grace: Duration::ZERO,
        execute,
        by: "uid:0".into(),
    }
}

#[tokio::test(start_paused = true)]
async fn leak_check_names_run_of_each_process() {
    let (stage, _, _) = left_behind().await;
    let audit = stage.supervisor.audit().await.unwrap();
    let ended = Some(RunStatus::Ended);
    let expected = [
        (500, Evidence::Shim, ended),
        (501, Evidence::ShimChild, ended),
        (600, Evidence::Marker, ended),
        (701, Evidence::Marker, Some(RunStatus::Live)),
    ];
    assert_eq!(found(&audit), expected);
    assert_eq!((audit.live_runs, audit.held, audit.foreign), (1, 2, 1));
    assert_eq!(audit.unverified, []);
    assert_eq!(audit.unattended, []);
}

#[tokio::test(start_paused = true)]
async fn reused_shim_is_not_a_leak() {
    let (stage, over, live) = left_behind().await;
    let given_back = KeeperInventory {
        spare_shims: vec![500],
        ..KeeperInventory::default()
    };
    let serves_another = KeeperInventory {
        shims: vec![(500, live)],
        ..KeeperInventory::default()
    };
    let still_the_same = KeeperInventory {
        shims: vec![(500, over)],
        ..KeeperInventory::default()
    };
    for (inventory, expected) in [
        (given_back, vec![]),
        (serves_another, vec![]),
        (still_the_same, vec![500]),
    ] {
        stage.kernel().inventory_again = inventory;
        let audit = stage.supervisor.audit().await.unwrap();
        let all = found(&audit).into_iter();
        let shims: Vec<i32> = all
            .filter(|(_, evidence, _)| *evidence == Evidence::Shim)
            .map(|(pid, ..)| pid)
            .collect();
        assert_eq!(shims, expected);
    }
}

#[tokio::test(start_paused = true)]
async fn leak_check_without_store_uses_keepers_inventory() {
    let (stage, over, live) = left_behind().await;
    stage.world.store.set(Weather::Away);
    let audit = stage.supervisor.audit().await.unwrap();
    assert!(matches!(audit.unverified[..], [Unverified::StoreAway(_)]));
    let expected = [
        (500, Evidence::Shim, None),
        (501, Evidence::ShimChild, None),
        (600, Evidence::Marker, None),
        (701, Evidence::Marker, Some(RunStatus::Live)),
        (800, Evidence::Marker, None),
    ];
    assert_eq!(found(&audit), expected);
    let _ = (over, live);
    // A process that only a row could identify is spared, whatever the scope names.
    let scope = Scope {
        evidence: BTreeSet::from([Evidence::Marker]),
        ..Scope::default()
    };
    let report = stage.supervisor.reap(order(scope, true)).await.unwrap();
    let results: Vec<_> = report
        .judged
        .iter()
        .map(|j| (j.process.pid, j.result))
        .collect();
    let unknown = ReapResult::Spared(Spared::RunUnknown);
    let lives = ReapResult::Spared(Spared::RunIsLive);
    assert_eq!(results, [(600, unknown), (701, lives), (800, unknown)]);
    assert!(stage.kernel().reaped.is_empty());
}

#[tokio::test(start_paused = true)]
async fn only_reap_execute_signals_leaked_processes() {
    let (stage, over, _) = left_behind().await;
    let planned = stage
        .supervisor
        .reap(order(Scope::default(), false))
        .await
        .unwrap();
    let results: Vec<_> = planned
        .judged
        .iter()
        .map(|j| (j.process.pid, j.result))
        .collect();
    let expected = [
        (500, ReapResult::Spared(Spared::Shim)),
        (501, ReapResult::Planned),
        (600, ReapResult::Spared(Spared::MarkerNotNamed)),
        (701, ReapResult::Spared(Spared::RunIsLive)),
    ];
    assert_eq!(results, expected);
    assert!(
        stage.kernel().reaped.is_empty(),
        "a dry run signals no process"
    );

    stage
        .supervisor
        .reap(order(Scope::default(), true))
        .await
        .unwrap();
    let reaped: Vec<i32> = stage
        .kernel()
        .reaped
        .iter()
        .map(|v| v.process.pid)
        .collect();
    assert_eq!(reaped, [501]);

    let marker = Scope {
        runs: BTreeSet::from([over]),
        evidence: BTreeSet::from([Evidence::Marker]),
        ..Scope::default()
    };
    stage.supervisor.reap(order(marker, true)).await.unwrap();
    let last = stage.kernel().reaped.last().cloned().unwrap();
    assert_eq!(last.process.pid, 600);
    assert_eq!(last.holding, Holding::Marker(over));
}

// promise: F-5
#[tokio::test(start_paused = true)]
async fn reap_is_filtered_by_labels_age_and_identity() {
    let (stage, _, _) = left_behind().await;
    let count = async |scope: Scope| {
        let report = stage.supervisor.reap(order(scope, false)).await.unwrap();
        let planned = report
            .judged
            .iter()
            .filter(|j| j.result == ReapResult::Planned);
        planned.count()
    };
    assert_eq!(count(Scope::default()).await, 1);
    let other_label = Scope {
        labels: "team=nobody".parse().expect("a selector"),
        ..Scope::default()
    };
    assert_eq!(count(other_label).await, 0);
    let older = |older| Scope {
        older,
        ..Scope::default()
    };
    assert_eq!(count(older(Duration::from_secs(59))).await, 1);
    assert_eq!(count(older(Duration::from_secs(61))).await, 0);
    let exactly = |start_ticks| Scope {
        processes: vec![ProcessIdentity {
            start_ticks,
            ..identity(501).command
        }],
        ..Scope::default()
    };
    assert_eq!(count(exactly(5)).await, 1);
    assert_eq!(count(exactly(6)).await, 0);
    let report = stage
        .supervisor
        .reap(order(exactly(6), true))
        .await
        .unwrap();
    assert_eq!(report.judged[0].result, ReapResult::NotFound);
    assert!(stage.kernel().reaped.is_empty());
}
