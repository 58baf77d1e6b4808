//! SIGKILL of server, keeper, or both while commands wait at their gates.
//!
//! Each command writes its run id as its first act. Afterwards: no id without a row that records its start, no waiting
//! child, and every row closed.

use kennel_proto::pb;
use kennel_tests::{
    Client, Kennel, Options, PATIENCE, Postgres, RunExt, SpecExt, complaint, eventually,
    eventually_async, must, new_run_id, procfs, sh,
};
use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};
use tokio::task::JoinSet;
use tonic::Code;

/// SIGKILLs on SQLite and on Postgres; `gate_storm` has 200.
const KILLS_ON_SQLITE: u32 = 24;
const KILLS_ON_POSTGRES: u32 = 12;
/// Services on SQLite that are killed at the same time, each its own share: a round is mostly waiting.
const SERVICES: u32 = 2;
/// Clients of one service that spawn at the same time, each one run after another.
const SPAWNERS: usize = 8;
/// Children that wait at the same time.
const GATED: usize = 6;
/// Runs of one client in one round, at most; the kill comes much sooner.
const RUNS_MAX: usize = 12;

/// Longest time of a spawn in the plan of rounds.
const SPAWN_MAX: Duration = Duration::from_millis(40);

/// Victim of a round.
#[derive(Clone, Copy, Debug)]
enum Victim {
    Server,
    Keeper,
    Both,
}

/// The attempts of one round, with the answer to each.
type Answers = BTreeMap<String, Result<(), Code>>;

// promise: D-1
#[tokio::test(flavor = "multi_thread")]
async fn no_command_runs_unrecorded_on_sqlite() {
    kill_on_sqlite(SERVICES, KILLS_ON_SQLITE).await;
}

/// Kills so many services on SQLite at the same time, all together so many times.
pub(crate) async fn kill_on_sqlite(services: u32, kills: u32) {
    let mut dying = JoinSet::new();
    for _ in 0..services {
        dying.spawn(kill_at_the_gate(Options::default(), kills / services));
    }
    dying.join_all().await;
}

// promise: D-1
#[tokio::test(flavor = "multi_thread")]
async fn no_command_runs_unrecorded_on_postgres() {
    let postgres = Postgres::start().await;
    kill_at_the_gate(Options::on(&postgres.url()), KILLS_ON_POSTGRES).await;
}

/// The store is halted, so that every child waits at its gate; a child that held a sibling's gate open would wait for
/// ever (hazard A: descriptors copied by a fork).
// promise: D-2
#[tokio::test(flavor = "multi_thread")]
async fn children_at_gate_end_when_service_dies() {
    let postgres = Postgres::start().await;
    let mut kennel = Kennel::start(Options::on(&postgres.url())).await;
    let ran_file = kennel.scratch().join("ran");
    fs::write(&ran_file, "").expect("written");
    for victim in [Victim::Server, Victim::Keeper, Victim::Both] {
        postgres.halt();
        let mut spawners = JoinSet::new();
        for number in 0..GATED {
            let client = kennel.client().await;
            spawners.spawn(spawn_until_refused(client, number, ran_file.clone()));
        }
        eventually("all wait at their gates", PATIENCE, || {
            (at_the_gate(&kennel) == GATED).then_some(())
        })
        .await;
        kill(&mut kennel, victim);
        goes(&mut kennel, victim).await;
        let answers: Answers = spawners.join_all().await.into_iter().flatten().collect();
        assert_eq!(answers.len(), GATED);
        postgres.go_on();
        comes_back(&mut kennel, victim).await;
        let ran = ids_in(&ran_file);
        assert_eq!(ran, BTreeSet::new(), "{victim:?}");
        verify(&mut kennel.client().await, &answers, &ran).await;
    }
}

/// Returns the number of children of shims that still have Kennel's name: not yet executed.
fn at_the_gate(kennel: &Kennel) -> usize {
    let all = procfs::all();
    kennel
        .shims()
        .iter()
        .flat_map(|shim| procfs::descendants(&all, shim.pid))
        .filter(|child| child.comm == "kennel-shim")
        .count()
}

fn kill(kennel: &mut Kennel, victim: Victim) {
    match victim {
        Victim::Server => kennel.kill_server(),
        Victim::Keeper => kennel.kill_keeper(),
        Victim::Both => {
            let server = kennel.server().expect("it runs");
            kennel.kill_keeper();
            kennel_tests::kennel::kill_exactly(&server, nix::sys::signal::Signal::SIGKILL);
        }
    }
}

/// Waits for the victim's death: that of the server alone ends only children at their gates.
async fn goes(kennel: &mut Kennel, victim: Victim) {
    match victim {
        Victim::Server => {
            eventually("no run waits at a gate", PATIENCE, || {
                (at_the_gate(kennel) == 0).then_some(())
            })
            .await;
        }
        Victim::Keeper | Victim::Both => kennel.wait_until_all_is_gone(PATIENCE).await,
    }
}

/// Waits until the service is back: the keeper restarts its server by itself.
async fn comes_back(kennel: &mut Kennel, victim: Victim) {
    match victim {
        Victim::Server => {
            let info = kennel.client().await.server_info().await;
            assert!(info.is_some(), "{}", kennel.log());
        }
        Victim::Keeper | Victim::Both => kennel.restart().await,
    }
}

/// Ends the runs that have not ended with their service, so that none of them writes any more that it has run.
async fn end_live_runs(client: &Client, answers: &Answers) {
    let mut aborts = JoinSet::new();
    for id in answers.keys() {
        let (mut client, id) = (client.clone(), id.clone());
        aborts.spawn(async move {
            if client
                .get(&id)
                .await
                .is_ok_and(|run| run.end_time.is_none())
            {
                must("abort", client.abort(&id).await);
            }
        });
    }
    aborts.join_all().await;
}

pub(crate) async fn kill_at_the_gate(options: Options, kills: u32) {
    let mut kennel = Kennel::start(options).await;
    let ran_file = kennel.scratch().join("ran");
    fs::write(&ran_file, "").expect("written");
    let unit = time_of_a_spawn(&mut kennel.client().await).await;
    let (mut ran_total, mut tried_total) = (0, 0);
    for round in 0..kills {
        let victim = [Victim::Server, Victim::Keeper, Victim::Both][round as usize % 3];
        // The delay varies per round, from a fraction of a spawn to several.
        let moment = unit / 10 * (1 + round * 7919 % 40);
        let answers = one_round(&mut kennel, victim, moment, &ran_file).await;
        comes_back(&mut kennel, victim).await;
        end_live_runs(&kennel.client().await, &answers).await;
        let ran = ids_in(&ran_file);
        verify(&mut kennel.client().await, &answers, &ran).await;
        tried_total += answers.len();
        ran_total += ran.len();
        fs::write(&ran_file, "").expect("written");
    }
    verify_that_no_row_is_open(&mut kennel.client().await).await;
    // Some kills hit before a command ran, some after.
    assert!(
        (1..tried_total).contains(&ran_total),
        "{ran_total} of {tried_total} ran"
    );
    println!("{kills} kills, {tried_total} spawns tried, {ran_total} commands ran");
}

/// Measures the time of one spawn on this host, beside as many others as in a round: machines differ.
async fn time_of_a_spawn(client: &mut Client) -> Duration {
    let began = Instant::now();
    let mut spawns = JoinSet::new();
    for _ in 0..SPAWNERS {
        let mut client = client.clone();
        spawns.spawn(async move { must("spawn", client.spawn(sh(":")).await) });
    }
    spawns.join_all().await;
    began.elapsed().min(SPAWN_MAX)
}

async fn one_round(kennel: &mut Kennel, victim: Victim, moment: Duration, ran: &Path) -> Answers {
    let mut spawners = JoinSet::new();
    for number in 0..SPAWNERS {
        let client = kennel.client().await;
        let ran = ran.to_owned();
        spawners.spawn(spawn_until_refused(client, number, ran));
    }
    tokio::time::sleep(moment).await;
    kill(kennel, victim);
    let answers = spawners.join_all().await.into_iter().flatten().collect();
    goes(kennel, victim).await;
    answers
}

async fn spawn_until_refused(
    mut client: Client,
    number: usize,
    ran: PathBuf,
) -> Vec<(String, Result<(), Code>)> {
    let mut answers = Vec::new();
    for turn in 0..RUNS_MAX {
        let run_id = new_run_id();
        // Every second run stays alive, so that kills also hit live trees.
        let then = if (number + turn).is_multiple_of(2) {
            "; exec sleep 300"
        } else {
            ""
        };
        let script = format!("echo $KENNEL_RUN_ID >> {}{then}", ran.display());
        let spec = sh(&script).grace(Duration::from_millis(300));
        match client.spawn_as(&run_id, spec).await {
            Ok(_) => answers.push((run_id, Ok(()))),
            Err(status) => {
                answers.push((run_id, Err(status.code())));
                break;
            }
        }
    }
    answers
}

fn ids_in(file: &Path) -> BTreeSet<String> {
    let text = fs::read_to_string(file).expect("it is there");
    let ids: Vec<String> = text.lines().map(str::to_owned).collect();
    let set: BTreeSet<String> = ids.iter().cloned().collect();
    assert_eq!(ids.len(), set.len(), "a command ran twice");
    assert!(set.iter().all(|id| id.len() == 26), "{set:?}");
    set
}

async fn verify(client: &mut Client, answers: &Answers, ran: &BTreeSet<String>) {
    for id in ran {
        assert!(answers.contains_key(id), "{id} ran and was never asked for");
    }
    for (id, answer) in answers {
        let run = match client.get(id).await {
            Ok(run) => run,
            Err(status) => {
                assert_eq!(
                    complaint(&status).reason,
                    "RUN_NOT_FOUND",
                    "{id}: {status:?}"
                );
                assert!(!ran.contains(id), "{id} ran unrecorded");
                assert!(answer.is_err(), "{id} was answered and is not recorded");
                continue;
            }
        };
        let run = if run.end_time.is_some() {
            run
        } else {
            must("wait", client.ended(id).await)
        };
        let never_ran = run.reason() == "start_failed"
            || matches!(
                run.tree_verdict
                    .as_ref()
                    .and_then(|tree| tree.verdict.as_ref()),
                Some(pb::tree_verdict::Verdict::NeverRan(_))
            );
        assert!(
            !(never_ran && ran.contains(id)),
            "{id} ran, and its row denies it: {run:?}"
        );
        assert!(
            !(never_ran && answer.is_ok()),
            "{id} was answered, and its row denies it: {run:?}"
        );
        if run.code() == Some(0) {
            assert!(ran.contains(id), "{id} cannot have succeeded: {run:?}");
        }
    }
}

async fn verify_that_no_row_is_open(client: &mut Client) {
    let open = eventually_async("every row is closed", PATIENCE, || {
        let mut client = client.clone();
        async move {
            let runs = client.list_all(pb::RunFilter::default(), 1000).await.ok()?;
            runs.iter()
                .all(|run| run.end_time.is_some())
                .then_some(runs.len())
        }
    })
    .await;
    assert!(open > 0);
}
