//! SIGKILL of server, keeper or both at named points of the code, each once before and once after an effect.
//!
//! A row is a point, the action during which it is reached, and the victim. Each has a service of its own, a bystander
//! that writes numbered lines to a reader that resumes, and a subject of the action. The conditions afterwards are in
//! `aftermath`.

mod aftermath;
mod again;
mod input;
mod orphan;
mod retain;
mod row;
mod says;
mod table;
mod terminal;

use kennel_proto::pb::RecoveryPolicy as Recovery;
use kennel_tests::programs;
use row::Row;
use std::{
    any::Any,
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};
use table::{Act, POINTS, Victim};
use tokio::{sync::Semaphore, task::JoinSet};

/// Services at the same time: a row is mostly waiting.
const ROWS_AT_ONCE: usize = 4;
/// Longest time of one row.
const ROW_MAX: Duration = Duration::from_mins(2);
/// Points that need a second node: `e2e/left_stops.rs` tests them.
const ELSEWHERE: [&str; 1] = ["left_stop.carried_out"];
/// Selects one row, as in `spawn.recorded:both`: the others are left out.
const ONLY: &str = "CRASH_ROW";

#[tokio::test(flavor = "multi_thread")]
async fn spawned_command_runs_once_or_never_over_crashes() {
    play(&[Act::Spawn]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn exit_is_reported_once_over_crashes() {
    play(&[Act::Exit]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn exit_is_reported_once_despite_outage_and_crashes() {
    play(&[Act::Owe]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn stop_is_carried_out_over_crashes() {
    play(&[Act::Abort, Act::Kill]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn no_process_stays_stopped_after_crash_in_pause() {
    play(&[Act::Pause, Act::Resume]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn output_is_neither_lost_nor_doubled_over_crashes() {
    play(&[Act::Write]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn input_is_written_once_or_count_is_unknown() {
    play(&[Act::Input]).await;
    play_with(&[Act::Input], Recovery::Adopt).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn server_death_keeps_terminal_bytes_and_size() {
    play(&[Act::Terminal]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn reports_of_a_run_are_recorded_once() {
    play(&[Act::Say]).await;
    play_with(&[Act::Say], Recovery::Adopt).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn acknowledged_drain_survives_crashes() {
    play(&[Act::Drain]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn recovery_is_completed_over_crashes() {
    play(&[Act::Restart, Act::Recover]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn accepted_annotation_survives_each_death() {
    play(&[Act::Annotate]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn accepted_extension_survives_each_death() {
    play(&[Act::Extend]).await;
    play_with(&[Act::Extend], Recovery::Adopt).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn crash_in_upgrade_costs_what_a_crash_costs() {
    play(&[Act::Upgrade]).await;
}

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

#[tokio::test(flavor = "multi_thread")]
async fn each_attempt_runs_once_or_never_over_crashes() {
    play(&[Act::Again, Act::ComeBack]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn output_is_whole_or_removed_over_crashes() {
    play(&[Act::Retain]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn children_end_with_their_parent_over_crashes() {
    play(&[Act::Orphan]).await;
}

/// The table matches the code: no point without a row, no row without a point.
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
    let rows = POINTS.iter().filter(|point| acts.contains(&point.act));
    let rows = rows.flat_map(|point| {
        let row = |victim: &_| Row {
            point: point.name,
            act: point.act,
            victim: *victim,
            recovery,
        };
        point.victims.iter().map(row)
    });
    let at_once = Arc::new(Semaphore::new(ROWS_AT_ONCE));
    let mut playing = JoinSet::new();
    // The effect of the keeper's death on a run does not show while the keeper lives.
    let tells = |row: &Row| !row.adopts() || row.victim != Victim::Server || row.act == Act::Adopt;
    for row in rows
        .filter(tells)
        .filter(|row| only.as_ref().is_none_or(|only| *only == row.name()))
    {
        let at_once = Arc::clone(&at_once);
        playing.spawn(async move {
            let _place = at_once.acquire_owned().await;
            let outcome = tokio::spawn(tokio::time::timeout(ROW_MAX, row::play(row))).await;
            let what = match outcome {
                Ok(Ok(())) => return None,
                Ok(Err(_)) => format!("not over within {ROW_MAX:?}"),
                Err(error) => error
                    .try_into_panic()
                    .map_or_else(|error| error.to_string(), |panic| words(&*panic)),
            };
            let name = row.name();
            Some(format!(
                "{name} ({:?}): {what}\n  alone: {ONLY}={name} cargo nextest run -p kennel-tests --test chaos crash_points",
                row.act
            ))
        });
    }
    let played = playing.len();
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

fn words(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().cloned();
    text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()))
        .unwrap_or_default()
}
