//! The same server over its unix socket and over TLS: the latency of spawns, and the rate of a stream of output.
//!
//! Both ways are measured in turn, round by round.

use crate::table::{Table, Times, median};
use kennel_client::{Address, Connection, connect};
use kennel_proto::pb::{self, event::Payload};
use kennel_tests::{argv, must, net::Net, new_run_id, sh};
use std::time::Instant;

/// Default number of rounds.
const ROUNDS: usize = 5;
/// Spawns in a round, one after another.
const SPAWNS: usize = 100;
/// MiB of the run whose output is read.
const MIB: u32 = 32;

/// Results of one way to the server.
#[derive(Default)]
struct Way {
    times: Times,
    p50_us: Vec<f64>,
    /// MiB a second of a stream.
    rates: Vec<f64>,
}

/// Measures both ways in so many rounds.
pub(crate) async fn measure(table: &mut Table, rounds: Option<usize>) {
    let net = Net::start().await;
    let unix = must(
        "connect",
        connect(&Address::Unix(net.kennel.socket())).await,
    );
    let tls = net.by_token("admin").await;
    let ways = [("unix", &unix), ("TLS", &tls)];
    let output = spawn(&unix, sh(&format!("head -c {MIB}M /dev/zero"))).await;
    wait(&unix, &output).await;
    let mut results = [Way::default(), Way::default()];
    for (_, connection) in ways {
        // Warm connections, pools, pages.
        spawns(connection).await;
        stream(connection, &output).await;
    }
    for _ in 0..rounds.unwrap_or(ROUNDS) {
        for ((_, connection), way) in ways.iter().zip(&mut results) {
            let times = spawns(connection).await;
            way.p50_us.push(times.p50_us());
            way.times.extend(times);
            way.rates.push(stream(connection, &output).await);
        }
    }
    let [unix, tls] = &results;
    for (way, (name, _)) in results.iter().zip(ways) {
        let latency = format!("{} / {}", way.times.p50(), way.times.p99());
        table.fact(&format!("spawn over {name}, p50 / p99"), &latency);
        let rate = format!("{:.0} MiB/s", median(way.rates.clone()));
        table.fact(&format!("stream of output over {name}"), &rate);
    }
    let to = |of: fn(&Way) -> &Vec<f64>| {
        let rounds = of(tls).iter().zip(of(unix));
        median(rounds.map(|(tls, unix)| tls / unix).collect())
    };
    let text = format!(
        "{:.2} x the latency, {:.2} x the rate",
        to(|way| &way.p50_us),
        to(|way| &way.rates)
    );
    table.fact("TLS to unix", &text);
}

pub(crate) async fn spawns(connection: &Connection) -> Times {
    let mut times = Times::default();
    for _ in 0..SPAWNS {
        let began = Instant::now();
        let run = spawn(connection, argv(&["/bin/true"])).await;
        times.push(began.elapsed());
        wait(connection, &run).await;
    }
    times
}

pub(crate) async fn spawn(connection: &Connection, spec: pb::RunSpec) -> String {
    let run_id = new_run_id();
    let request = pb::SpawnRequest {
        run_id: run_id.clone(),
        spec: Some(spec),
        ..pb::SpawnRequest::default()
    };
    must("spawn", connection.processes().spawn(request).await);
    run_id
}

async fn wait(connection: &Connection, run: &str) {
    let request = pb::WaitRunRequest {
        run_id: run.to_owned(),
        condition: pb::WaitCondition::Ended.into(),
    };
    must("wait", connection.processes().wait_run(request).await);
}

/// Reads all events of a run; returns MiB of output a second.
async fn stream(connection: &Connection, run: &str) -> f64 {
    let request = pb::StreamEventsRequest {
        run_id: run.to_owned(),
        ..pb::StreamEventsRequest::default()
    };
    let began = Instant::now();
    let mut events = must(
        "stream",
        connection.processes().stream_events(request).await,
    )
    .into_inner();
    let mut bytes = 0;
    while let Some(message) = must("stream", events.message().await) {
        let all = message.run_events.iter().flat_map(|run| &run.events);
        for event in all {
            if let Some(Payload::Output(output)) = &event.payload {
                bytes += output.data.len();
            }
        }
    }
    assert_eq!(bytes / (1024 * 1024), MIB as usize, "the whole output");
    f64::from(MIB) / began.elapsed().as_secs_f64()
}
