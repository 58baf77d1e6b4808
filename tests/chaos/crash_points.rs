//! SIGKILL of server, keeper or both at named points of the code, each once before and once after an effect.
//!
//! A row is a point, the action during which it is reached, and the victim. Each has a bystander that writes numbered
//! lines to a reader that resumes, and a subject of the action; rows follow one another on one service. The conditions
//! afterwards are in `aftermath`.

mod aftermath;
mod again;
mod followed;
mod input;
mod orphan;
mod retain;
mod row;
mod says;
mod service;
mod table;
mod terminal;

use kennel_proto::pb::RecoveryPolicy as Recovery;
use kennel_tests::programs;
use row::Row;
use service::Service;
use std::{
    any::Any,
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};
use table::{Act, POINTS, shows_adoption};
use tokio::{
    task::{JoinError, JoinSet},
    time::error::Elapsed,
};

/// Services at the same time, each with its share of the rows: a row is mostly waiting.
const SERVICES: usize = 6;
/// Longest time of one row.
const ROW_MAX: Duration = Duration::from_mins(2);
/// Points that need a second node: `e2e/left_stops.rs` tests them.
const ELSEWHERE: [&str; 1] = ["left_stop.carried_out"];
/// Selects one row, as in `spawn.recorded:both`: the others are left out.
const ONLY: &str = "CRASH_ROW";

// promise: R-16, R-20a, R-21
#[tokio::test(flavor = "multi_thread")]
async fn spawned_command_runs_once_or_never_over_crashes() {
    play(&[Act::Spawn]).await;
}

// promise: R-20a, R-21
#[tokio::test(flavor = "multi_thread")]
async fn exit_is_reported_once_over_crashes() {
    play(&[Act::Exit]).await;
}

// promise: D-9a
#[tokio::test(flavor = "multi_thread")]
async fn exit_is_reported_once_despite_outage_and_crashes() {
    play(&[Act::Owe]).await;
}

// promise: R-20a
#[tokio::test(flavor = "multi_thread")]
async fn stop_is_carried_out_over_crashes() {
    play(&[Act::Abort, Act::Kill]).await;
}

// promise: R-20a
#[tokio::test(flavor = "multi_thread")]
async fn no_process_stays_stopped_after_crash_in_pause() {
    play(&[Act::Pause, Act::Resume]).await;
}

// promise: R-20b
#[tokio::test(flavor = "multi_thread")]
async fn output_is_neither_lost_nor_doubled_over_crashes() {
    play(&[Act::Write]).await;
}

// promise: V-7
#[tokio::test(flavor = "multi_thread")]
async fn input_is_written_once_or_count_is_unknown() {
    play(&[Act::Input]).await;
    play_with(&[Act::Input], Recovery::Adopt).await;
}

// promise: P-3
#[tokio::test(flavor = "multi_thread")]
async fn server_death_keeps_terminal_bytes_and_size() {
    play(&[Act::Terminal]).await;
}

// promise: RW-70
#[tokio::test(flavor = "multi_thread")]
async fn reports_of_a_run_are_recorded_once() {
    play(&[Act::Say]).await;
    play_with(&[Act::Say], Recovery::Adopt).await;
}

// promise: R-20
#[tokio::test(flavor = "multi_thread")]
async fn acknowledged_drain_survives_crashes() {
    play(&[Act::Drain]).await;
}

// promise: R-20, R-20b
#[tokio::test(flavor = "multi_thread")]
async fn recovery_is_completed_over_crashes() {
    play(&[Act::Restart, Act::Recover]).await;
}

// promise: RW-3
#[tokio::test(flavor = "multi_thread")]
async fn accepted_annotation_survives_each_death() {
    play(&[Act::Annotate]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn accepted_extension_survives_each_death() {
    play(&[Act::Extend]).await;
    play_with(&[Act::Extend], Recovery::Adopt).await;
}

// promise: R-20
#[tokio::test(flavor = "multi_thread")]
async fn crash_in_upgrade_loses_no_more_than_crash() {
    play(&[Act::Upgrade]).await;
}

// promise: R-51a
#[tokio::test(flavor = "multi_thread")]
async fn adoptable_runs_survive_any_crash() {
    let acts = [
        Act::Exit,
        Act::Abort,
        Act::Kill,
        Act::Pause,
        Act::Resume,
        Act::Write,
        Act::Restart,
        Act::Adopt,
    ];
    play_with(&acts, Recovery::Adopt).await;
}

// promise: B-3
#[tokio::test(flavor = "multi_thread")]
async fn attempts_run_at_most_once_across_crashes() {
    play(&[Act::Again, Act::ComeBack]).await;
}

// promise: O-32
#[tokio::test(flavor = "multi_thread")]
async fn output_is_complete_or_removed_over_crashes() {
    play(&[Act::Retain]).await;
}

// promise: K-13
#[tokio::test(flavor = "multi_thread")]
async fn removed_run_stays_removed_over_crashes() {
    play(&[Act::Remove]).await;
}

// promise: RW-81
#[tokio::test(flavor = "multi_thread")]
async fn children_end_with_their_parent_over_crashes() {
    play(&[Act::Orphan]).await;
}

/// The table matches the code: no point without a row, no row without a point.
// promise: R-20
#[test]
fn every_crash_point_is_in_the_table() {
    let mut files = Vec::new();
    sources(&programs::repository().join("crates"), &mut files);
    let mut named = BTreeSet::new();
    for file in files {
        let text = fs::read_to_string(&file).expect("a source file is UTF-8");
        for rest in text.split("crash_point!(\"").skip(1) {
            let name = rest.split('"').next().unwrap_or_default().to_owned();
            assert!(named.insert(name.clone()), "{name} stands in two places");
        }
    }
    for name in ELSEWHERE {
        assert!(named.remove(name), "{name} is no point");
    }
    let rows: BTreeSet<String> = POINTS.iter().map(|point| point.name.to_owned()).collect();
    assert_eq!(named, rows);
}

fn sources(dir: &Path, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).expect("a directory").flatten() {
        let path = entry.path();
        if path.is_dir() {
            sources(&path, files);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
}

async fn play(acts: &[Act]) {
    play_with(acts, Recovery::Terminate).await;
}

async fn play_with(acts: &[Act], recovery: Recovery) {
    let only = std::env::var(ONLY).ok();
    let mut chains: Vec<Vec<Row>> = vec![Vec::new(); SERVICES];
    let points: Vec<_> = POINTS.iter().filter(|p| acts.contains(&p.act)).collect();
    for (number, point) in points.iter().enumerate() {
        let rows = point.victims.iter().map(|victim| Row {
            point: point.name,
            act: point.act,
            victim: *victim,
            recovery,
        });
        let rows = rows
            .filter(|row| !row.adopts() || shows_adoption(point, row.victim))
            .filter(|row| only.as_ref().is_none_or(|only| *only == row.name()));
        for (turn, row) in rows.enumerate() {
            // Rows of one point share a chain, unless only that point plays.
            let chain = if points.len() == 1 { turn } else { number };
            chains[chain % SERVICES].push(row);
        }
    }
    let played: usize = chains.iter().map(Vec::len).sum();
    let mut playing = JoinSet::new();
    for rows in chains {
        playing.spawn(play_chain(rows));
    }
    let mut failed: Vec<String> = playing.join_all().await.into_iter().flatten().collect();
    failed.sort_unstable();
    assert!(
        failed.is_empty(),
        "{} of {played} rows:\n{}",
        failed.len(),
        failed.join("\n")
    );
    println!("{played} rows");
}

/// Plays rows on one service, and on another one after a row that failed. Returns the failures.
async fn play_chain(rows: Vec<Row>) -> Vec<String> {
    let mut failed = Vec::new();
    let mut service = None;
    let mut former: Vec<String> = Vec::new();
    for row in rows {
        let name = row.name();
        let began = Instant::now();
        let played = tokio::time::timeout(ROW_MAX, play_row(row, service.take()));
        let played = outcome(tokio::spawn(played).await);
        println!(
            "{:>6.1} s {name} ({:?})",
            began.elapsed().as_secs_f64(),
            row.act
        );
        match played {
            Ok(back) => service = Some(back),
            Err(what) => failed.push(format!(
                "{name} ({:?}, after {former:?} of its service): {what}\n  alone: {ONLY}={name} cargo nextest run -p \
                 kennel-tests --test chaos crash_points",
                row.act
            )),
        }
        former.push(name);
        if service.is_none() {
            former.clear();
        }
    }
    if let Some(service) = service {
        let ended = tokio::time::timeout(ROW_MAX, service.end());
        let ended = outcome(tokio::spawn(ended).await);
        failed.extend(ended.err().map(|what| format!("after {former:?}: {what}")));
    }
    failed
}

async fn play_row(row: Row, service: Option<Service>) -> Service {
    let mut service = match service {
        Some(service) => service,
        None => Service::start(row.act).await,
    };
    row::play(row, &mut service).await;
    service
}

fn outcome<T>(played: Result<Result<T, Elapsed>, JoinError>) -> Result<T, String> {
    match played {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(_)) => Err(format!("not over within {ROW_MAX:?}")),
        Err(error) => Err(error
            .try_into_panic()
            .map_or_else(|error| error.to_string(), |panic| words(&*panic))),
    }
}

fn words(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().cloned();
    text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()))
        .unwrap_or_default()
}
