//! One node that is upgraded, falls back and is upgraded again, under load, while server and keeper are killed.

use crate::{
    cast::{APP, Cast},
    later::Later,
    reader::Reader,
};
use kennel_tests::{
    Kennel, Options, PATIENCE, Postgres, SHUTDOWN_LIMIT, eventually, eventually_async, load::Load,
    must, programs, shell::run_to_end, shell::text,
};
use std::time::{Duration, Instant, SystemTime};

/// Clients that spawn one short run after the other.
const WORKERS: usize = 2;
/// Short runs between two events.
const SHORT_RUNS: usize = 6;

/// More than the time after which a server has served for long enough.
const PROVED: Duration = Duration::from_secs(5);

/// A version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Version {
    /// The commit that the next one has to meet.
    Former,
    /// This code, and one of each thing that a version may add.
    Next,
}

impl Version {
    /// Returns its binary.
    pub(crate) fn binary(self) -> std::path::PathBuf {
        programs::version(match self {
            Self::Former => "former",
            Self::Next => "next",
        })
    }
}

/// What befalls the node.
#[derive(Clone, Copy, Debug)]
enum Event {
    /// The server is replaced by one of this version, by `kennel upgrade`. The keeper stays.
    Upgrade(Version),
    /// The server is killed; its keeper starts another one.
    KillServer,
    /// Server and keeper are killed, and a service manager starts this version.
    KillService(Version),
    /// More runs begin.
    Join,
    /// Runs begin that only the next version knows all about, which serves.
    JoinLater,
    /// One of those ends, for a reason that only the next version knows, which serves.
    EndLater,
}

// promise
#[tokio::test(flavor = "multi_thread")]
async fn runs_survive_version_changes_on_sqlite() {
    play(None).await;
}

// promise
#[tokio::test(flavor = "multi_thread")]
async fn runs_survive_version_changes_on_postgres() {
    let postgres = Postgres::start().await;
    play(Some(postgres.url())).await;
}

async fn play(store: Option<String>) {
    use Event::{EndLater, Join, JoinLater, KillServer, KillService, Upgrade};
    use Version::{Former, Next};
    let mut kennel = Kennel::start(Options {
        store,
        own_binary: Some(Former.binary()),
        ..Options::default()
    })
    .await;
    let began = Instant::now();
    let reader = Reader::start(vec![kennel.socket()], APP);
    let mut cast = Cast::new(kennel.scratch());
    cast.join(&kennel).await;
    cast.join(&kennel).await;
    let mut later = Later::new(kennel.scratch());
    let (mut serves, mut keeps) = (Former, Former);
    let mut load = Some(Load::start(&kennel, WORKERS).await);
    for event in [
        Upgrade(Next),
        JoinLater,
        KillServer,
        Join,
        Upgrade(Former),
        KillServer,
        Upgrade(Next),
        EndLater,
        // The next keeper adopts the former version's shims.
        KillService(Next),
        JoinLater,
        Join,
        Upgrade(Former),
        KillServer,
        // The former version's keeper adopts shims of both versions.
        KillService(Former),
        Upgrade(Next),
        KillService(Next),
    ] {
        println!(
            "{:7.1} {event:?}, {} live",
            began.elapsed().as_secs_f64(),
            cast.living()
        );
        cast.set_limits(&kennel).await;
        if let Some(load) = &mut load {
            load.continues(SHORT_RUNS, PATIENCE * 2).await;
        }
        if let Upgrade(version) | KillService(version) = event {
            serves = version;
        }
        if let KillService(version) = event {
            keeps = version;
        }
        match event {
            Upgrade(version) => upgrade(&kennel, version).await,
            KillServer => {
                proves_itself(&kennel).await;
                kennel.replace_server().await;
            }
            KillService(version) => {
                if let Some(load) = load.take() {
                    let tally = load.finish(&mut kennel.client().await).await;
                    assert_eq!(tally.never_started, 0, "{tally:?}");
                }
                kennel.kill_service_after(|| {});
                kennel.install(&version.binary());
                kennel.restart().await;
                cast.keeper_has_died(&kennel).await;
            }
            Join => cast.join(&kennel).await,
            JoinLater => later.join(&kennel, keeps).await,
            EndLater => later.end_one(&kennel).await,
        }
        cast.look(&kennel).await;
        later.look(&kennel, serves).await;
        if load.is_none() {
            load = Some(Load::start(&kennel, WORKERS).await);
        }
    }
    println!("{:7.1} the end", began.elapsed().as_secs_f64());
    if let Some(load) = load {
        let tally = load.finish(&mut kennel.client().await).await;
        assert_eq!(tally.never_started, 0, "{tally:?}");
    }
    later.finish(&kennel).await;
    cast.finish(&kennel, reader).await;
    let status = kennel.terminate(SHUTDOWN_LIMIT).await;
    assert_eq!(status.code(), Some(0), "{}", kennel.log());
    println!("{:7.1} over", began.elapsed().as_secs_f64());
}

/// Replaces the server, and waits until the other one has the node.
pub(crate) async fn upgrade(kennel: &Kennel, version: Version) {
    let before = must_info(kennel).await;
    kennel.install(&version.binary());
    let upgraded = run_to_end(kennel.cli(&["upgrade"]), PATIENCE * 2).await;
    let said = format!(
        "{}{}",
        text(&upgraded),
        String::from_utf8_lossy(&upgraded.stderr)
    );
    assert!(
        upgraded.status.success(),
        "{version:?}: {said}\n{}",
        kennel.log()
    );
    let after = must_info(kennel).await;
    assert_eq!(after.generation, before.generation + 1, "{said}");
    let server = kennel.server().expect("it serves");
    let link = std::fs::read_link(format!("/proc/{}/exe", server.pid));
    assert!(must("exe", link).starts_with(kennel.scratch()));
}

/// Waits until the server has served for long enough: an earlier death is a failure of its upgrade, and undoes it.
async fn proves_itself(kennel: &Kennel) {
    let started = must_info(kennel).await.start_time.expect("it has begun");
    eventually("it has proved itself", PATIENCE, || {
        let age = SystemTime::now().duration_since(started.try_into().ok()?);
        (age.ok()? > PROVED).then_some(())
    })
    .await;
}

async fn must_info(kennel: &Kennel) -> kennel_proto::pb::ServerInfo {
    eventually_async("it serves", PATIENCE + Duration::from_secs(1), async || {
        kennel.client().await.server_info().await
    })
    .await
}
