//! A store that freezes in the middle of commits, or runs out of space: nothing is killed, nothing is lost, nothing
//! runs twice.

use kennel_proto::pb::{self, RunState};
use kennel_tests::{
    Client, Footprint, Kennel, Options, PATIENCE, Postgres, RunExt, STORE_PATIENCE,
    client::retry_after, complaint, eventually, eventually_async, load::Load, must, new_run_id,
    procfs::Proc, sh, within,
};
use std::{
    fs::{self, File},
    io::Write as _,
    path::{Path, PathBuf},
};
use tokio::task::JoinHandle;
use tonic::{Code, Status};

const WORKERS: usize = 4;
/// Runs after which a load counts as continuing.
const SOME: usize = 12;

// promise: D-4a
#[tokio::test(flavor = "multi_thread")]
async fn freeze_during_commits_loses_and_repeats_nothing() {
    let postgres = Postgres::start().await;
    let kennel = Kennel::start(Options::on(&postgres.url())).await;
    let mut client = kennel.client().await;
    let go = kennel.scratch().join("go");
    let lasting = must("spawn", client.spawn(sh(&counts_until(&go))).await);
    let victim = must("spawn", client.spawn(sh("echo up; exec sleep 300")).await);
    client.hear_up(&lasting.run_id).await;
    client.hear_up(&victim.run_id).await;
    let running = "SELECT count(*) FROM runs WHERE state = 'running'";
    eventually_async("nothing is to be written", PATIENCE, async || {
        (postgres.psql(running).await == "2").then_some(())
    })
    .await;
    // One Spawn's INSERT is sent when the database freezes: its result is unknown. Others queue behind it.
    postgres.hold_writes("runs").await;
    let ran = kennel.scratch().join("ran-in-doubt");
    let (run_id, spec) = (new_run_id(), sh(&format!("echo ran > {}", ran.display())));
    let (mut asking, asked, wanted) = (client.clone(), run_id.clone(), spec.clone());
    let in_doubt = tokio::spawn(async move { asking.spawn_as(&asked, wanted).await });
    let waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'";
    eventually_async("its INSERT is sent", PATIENCE, async || {
        (postgres.psql(waiting).await == "1").then_some(())
    })
    .await;
    let mut load = Load::start(&kennel, WORKERS).await;
    let before = load.refusals();
    postgres.halt();
    let aborted = within("abort", PATIENCE, client.abort(&victim.run_id)).await;
    assert_eq!(must("abort", aborted).reason(), "aborted");
    fs::write(&go, "").expect("written");
    let ended = within("it ends", PATIENCE, client.ended(&lasting.run_id)).await;
    assert_eq!(must("wait", ended).code(), Some(3));
    // A sent statement is abandoned after the store's own time limit, so the freeze is longer than that.
    load.is_refused_since(&before, STORE_PATIENCE).await;
    is_alive_and_not_ready(&kennel).await;
    postgres.go_on();
    // Postgres now executes statements that the server abandoned long ago.
    postgres.let_write().await;

    load.continues(SOME, STORE_PATIENCE).await;
    let tally = load.finish(&mut client).await;
    assert!(tally.keys >= SOME && tally.refused >= 1, "{tally:?}");
    let refused = must("task", in_doubt.await).expect_err("the result is not known");
    assert_eq!(complaint(&refused).reason, "STORE_UNAVAILABLE");
    assert!(!ran.exists(), "it ran");
    // A run recorded late is withdrawn, and its key runs once.
    let (again, existing) = eventually_async("its key runs", STORE_PATIENCE, async || {
        match client.clone().spawn_as(&run_id, spec.clone()).await {
            Ok(spawned) => Some(spawned),
            Err(refused) => {
                // Postgres may execute the abandoned INSERT at any time, even now.
                assert_eq!(complaint(&refused).reason, "STORE_UNAVAILABLE");
                None
            }
        }
    })
    .await;
    assert!(!existing);
    must("wait", client.ended(&again.run_id).await);
    assert_eq!(fs::read_to_string(&ran).expect("it ran"), "ran\n");
    let ends = [
        (&run_id, "exited"),
        (&victim.run_id, "aborted"),
        (&lasting.run_id, "exited"),
    ];
    assert_rows(&postgres, &ends.map(|(run, end)| (run.as_str(), end))).await;
    Footprint::of_run(&victim).assert_nothing_left();
    Footprint::of_run(&lasting).assert_nothing_left();
}

/// Size of a data directory that is to be filled.
pub(crate) const ROOM: &str = "24m";

/// Returns the script of a run of these tests: it counts, until the file is there, then exits with 3.
fn counts_until(go: &Path) -> String {
    let go = go.display();
    format!("echo up; i=0; until [ -e {go} ]; do i=$((i+1)); echo $i; sleep 0.05; done; exit 3")
}

// promise: D-23
#[tokio::test(flavor = "multi_thread")]
async fn full_disk_under_sqlite_loses_no_end() {
    let options = Options {
        data_room: Some(ROOM),
        ..Options::default()
    };
    let mut kennel = Kennel::start(options).await;
    let mut client = kennel.client().await;
    let runs = Runs::begin(&kennel, &mut client).await;
    let full = Full::make(&kennel);

    let refused = client.spawn(sh("exit 0")).await.expect_err("it is full");
    let refusal = complaint(&refused);
    let expected = [
        (Code::Unavailable, "STORE_UNAVAILABLE"),
        (Code::ResourceExhausted, "SPAWN_FAILED"),
    ];
    assert!(
        expected.contains(&(refusal.code, refusal.reason.as_str())),
        "{refused:?}"
    );
    assert!(retry_after(&refused).is_some(), "{refused:?}");
    let abort = runs.end_unrecorded(&client).await;
    assert!(kennel.is_serving("liveness").await);
    // The next server finds the disk full too.
    kennel.replace_server().await;
    drop(abort);

    full.make_room();
    let mut client = kennel.client().await;
    runs.are_reported(&mut client).await;
    // Once ready, the server answers from the database instead of pending changes.
    kennel.becomes_ready(true).await;
    counted_in_order(&mut client, &runs.counter).await;
    continues_unchanged(&mut client, &runs.bystander).await;
}

// promise: D-23
#[tokio::test(flavor = "multi_thread")]
async fn full_disk_during_store_outage_loses_no_end() {
    let mut postgres = Postgres::start().await;
    let options = Options {
        data_room: Some(ROOM),
        ..Options::on(&postgres.url())
    };
    let mut kennel = Kennel::start(options).await;
    let mut client = kennel.client().await;
    let runs = Runs::begin(&kennel, &mut client).await;
    postgres.crash().await;
    let full = Full::make(&kennel);

    let abort = runs.end_unrecorded(&client).await;
    is_alive_and_not_ready(&kennel).await;
    kennel.replace_server().await;
    drop(abort);

    // Free space suffices for reports; the database is needed for writes.
    full.make_room();
    let mut client = kennel.client().await;
    runs.are_reported(&mut client).await;
    postgres.run().await;
    kennel.becomes_ready(true).await;
    counted_in_order(&mut client, &runs.counter).await;
    continues_unchanged(&mut client, &runs.bystander).await;
    assert_rows(
        &postgres,
        &[
            (&runs.victim.run_id, "aborted"),
            (&runs.counter.run_id, "exited"),
        ],
    )
    .await;
}

/// Runs during a full disk: one that exits by itself, one that is aborted, one that is left running.
struct Runs {
    counter: pb::Run,
    victim: pb::Run,
    bystander: pb::Run,
    /// File at which the counter exits.
    go: PathBuf,
}

impl Runs {
    async fn begin(kennel: &Kennel, client: &mut Client) -> Self {
        let go = kennel.scratch().join("go");
        let counter = must("spawn", client.spawn(sh(&counts_until(&go))).await);
        let victim = must("spawn", client.spawn(sh("echo up; exec sleep 300")).await);
        let bystander = must("spawn", client.spawn(sh("echo up; exec sleep 300")).await);
        for run in [&counter, &victim, &bystander] {
            client.hear_up(&run.run_id).await;
        }
        Self {
            counter,
            victim,
            bystander,
            go,
        }
    }

    /// Ends two of them where that cannot be written. Returns the call that aborts, which may not be answered.
    async fn end_unrecorded(&self, client: &Client) -> JoinHandle<Result<pb::Run, Status>> {
        let mut asking = client.clone();
        let run_id = self.victim.run_id.clone();
        let abort = tokio::spawn(async move { asking.abort(&run_id).await });
        is_dead("the victim", &self.victim).await;
        fs::write(&self.go, "").expect("written");
        is_dead("the counter", &self.counter).await;
        abort
    }

    /// Checks how the two have ended, once there is space.
    async fn are_reported(&self, client: &mut Client) {
        let aborted = client.abort(&self.victim.run_id);
        let aborted = within("abort", STORE_PATIENCE, aborted).await;
        assert_eq!(must("abort", aborted).reason(), "aborted");
        let ended = client.ended(&self.counter.run_id);
        let ended = must("wait", within("it ends", STORE_PATIENCE, ended).await);
        assert_eq!((ended.reason(), ended.code()), ("exited", Some(3)));
    }
}

/// A data directory in which nothing more can be written.
pub(crate) struct Full(PathBuf);

impl Full {
    pub(crate) fn make(kennel: &Kennel) -> Self {
        let filler = kennel.data_dir_inside().join("filler");
        let mut file = File::create(&filler).expect("own directory");
        for size in [1 << 16, 1 << 12, 1] {
            while file.write_all(&vec![0; size]).is_ok() {}
        }
        Self(filler)
    }

    pub(crate) fn make_room(self) {
        fs::remove_file(self.0).expect("own file");
    }
}

/// Waits until the journal of a run has noticed the full disk.
pub(crate) async fn has_met(kennel: &Kennel, run: &pb::Run) {
    eventually("it has met the full disk", PATIENCE, || {
        let log = kennel.log();
        let mut lines = log.lines();
        let met = |line: &str| line.contains("journal write failed") && line.contains(&run.run_id);
        lines.any(met).then_some(())
    })
    .await;
}

async fn is_alive_and_not_ready(kennel: &Kennel) {
    kennel.becomes_ready(false).await;
    assert!(kennel.is_serving("liveness").await);
}

pub(crate) async fn is_dead(what: &str, run: &pb::Run) {
    let leader = run.attempt().pid;
    eventually(what, PATIENCE, || {
        Proc::read(leader)
            .is_none_or(|proc| !proc.is_alive())
            .then_some(())
    })
    .await;
}

/// Checks every line, once and in order.
async fn counted_in_order(client: &mut Client, run: &pb::Run) {
    let heard = must("stream", client.hear_all(&run.run_id, 0).await);
    let text = heard.text();
    let mut lines = text.lines();
    assert_eq!(lines.next(), Some("up"));
    for (number, line) in (1..).zip(lines) {
        assert_eq!(line, format!("{number}"), "{text}");
    }
    let ends = heard.stations().into_iter().filter(|s| *s == "ended");
    assert_eq!(ends.count(), 1);
}

async fn continues_unchanged(client: &mut Client, bystander: &pb::Run) {
    let seen = must("get", client.get(&bystander.run_id).await);
    assert_eq!(seen.state(), RunState::Running);
    assert_eq!(seen.lasting(), bystander.lasting());
    must("abort", client.abort(&bystander.run_id).await);
    Footprint::of_run(bystander).assert_nothing_left();
    let next = eventually_async("spawn works again", STORE_PATIENCE, async || {
        client.clone().spawn(sh("exit 0")).await.ok()
    })
    .await;
    let next = must("wait", client.ended(&next.run_id).await);
    assert_eq!(next.code(), Some(0));
}

/// Asserts that every row is closed, these with these reasons.
async fn assert_rows(postgres: &Postgres, wanted: &[(&str, &str)]) {
    eventually_async("every row is closed", STORE_PATIENCE, async || {
        let open = postgres
            .psql("SELECT count(*) FROM runs WHERE end_reason IS NULL")
            .await;
        (open == "0").then_some(())
    })
    .await;
    for (run_id, reason) in wanted {
        let sql = format!("SELECT end_reason FROM runs WHERE run_id = '{run_id}'");
        assert_eq!(postgres.psql(&sql).await, *reason, "{run_id}");
    }
}
