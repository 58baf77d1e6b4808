//! Cost of SIGKILL of the server: the time without an answer, and lost runs.

use crate::table::{Goal, Table, Times};
use kennel_proto::pb;
use kennel_tests::{
    Client, Kennel, PATIENCE, RunExt, argv,
    kennel::kill_exactly,
    must,
    procfs::Proc,
    wait::{eventually, eventually_async},
};
use nix::sys::signal::Signal;
use std::time::{Duration, Instant};

/// Kills in a row.
const KILLS: usize = 10;
/// Live runs, and the goal in milliseconds. Most hosts have open files for some 3,200.
const RUNS: [(usize, f64); 4] = [(0, 200.0), (1000, 200.0), (3000, 800.0), (5000, 800.0)];
/// Uptime after which the next server is started at once.
const CALM: Duration = Duration::from_secs(3);

pub(crate) async fn measure(table: &mut Table) {
    for (runs, goal) in RUNS {
        let what =
            format!("SIGKILL of the server with {runs} live runs, to the first answer, p50 / p99");
        match kill_under(runs).await {
            Ok((took, lost)) => table.goal(
                &what,
                &format!("{} / {}", took.p50(), took.p99()),
                &format!("{lost} runs lost"),
                Goal::at_most(&format!("{goal} ms, none lost"), goal).met_by(if lost > 0 {
                    f64::INFINITY
                } else {
                    took.p50_us() / 1000.0
                }),
            ),
            Err(why) => table.not_measured(&what, &why),
        }
    }
}

/// Returns the times from each kill to the first answer, by which all runs are adopted, and the number of runs that
/// have changed.
async fn kill_under(runs: usize) -> Result<(Times, usize), String> {
    let kennel = Kennel::on_sqlite().await;
    let mut client = kennel.client().await;
    let mut before = Vec::new();
    for number in 0..runs {
        let spawned = client.spawn(argv(&["/bin/sleep", "600"])).await;
        before.push(
            spawned.map_err(|status| format!("run {number} was refused: {}", status.message()))?,
        );
    }
    let mut took = Times::default();
    for _ in 0..KILLS {
        took.push(kill_to_answer(&kennel).await);
    }
    let mut client = kennel.client().await;
    let now = must(
        "list",
        client.list_all(pb::RunFilter::default(), 1000).await,
    );
    let same = |run: &&pb::Run| {
        now.iter().any(|now| {
            now.run_id == run.run_id && now.state == run.state && now.attempt() == run.attempt()
        }) && Proc::read(run.attempt().pid).is_some()
    };
    Ok((took, before.len() - before.iter().filter(same).count()))
}

/// Kills the server, once it has served for a while, and returns the time to the first answer of the next.
pub(crate) async fn kill_to_answer(kennel: &Kennel) -> Duration {
    tokio::time::sleep(CALM).await;
    let server = eventually("a server", PATIENCE, || kennel.server()).await;
    let began = Instant::now();
    kill_exactly(&server, Signal::SIGKILL);
    // The next server accepts connections that waited in the socket's queue.
    let answered = eventually_async("an answer", PATIENCE, || async {
        let client = Client::connect(&kennel.socket()).await;
        client.ok()?.server_info().await
    });
    answered.await;
    began.elapsed()
}
