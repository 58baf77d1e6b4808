//! What one owner's calls without end cost another owner: waits for a run, and requests whose body never ends.

use crate::{
    table::{Goal, Table, Times},
    tls::spawn,
};
use kennel_client::Connection;
use kennel_proto::pb;
use kennel_tests::{argv, must, net::Net, procfs, raw::Raw, sh};
use prost::Message;
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
    time::Instant,
};
use tokio::task::JoinSet;
use tokio_stream::StreamExt;
use tonic::{Code, Request, Status, client::Grpc};

/// Waits of the attacker, and those on each of its connections.
const WAITS: usize = 60_000;
const WAITS_EACH: usize = 2000;
/// Unfinished requests of the attacker, those on each of its connections, and the bytes of each that are sent.
const BODIES: usize = 1000;
const BODIES_EACH: usize = 100;
const BODY_BYTES: usize = 2_000_000;
/// Spawns and aborts of the other owner.
const ROUNDS: usize = 200;

/// Answers to the attacker's calls, by reason.
type Answers = Arc<Mutex<BTreeMap<String, usize>>>;

pub(crate) async fn measure(table: &mut Table) {
    let net = Net::start().await;
    let other = net.by_certificate("bob").await;
    rounds(&other).await;
    let alone = rounds(&other).await;
    report(table, "alone", &net, &alone);

    let (answers, mut attack) = (Answers::default(), JoinSet::new());
    let owner = net.by_certificate("alice").await;
    let run = spawn(&owner, sh("sleep 1000")).await;
    for _ in 0..WAITS / WAITS_EACH {
        let connection = net.by_certificate("alice").await;
        for _ in 0..WAITS_EACH {
            attack.spawn(wait(connection.clone(), run.clone(), Arc::clone(&answers)));
        }
    }
    let during = rounds(&other).await;
    report(table, "beside 60,000 WaitRun", &net, &during);
    attack.shutdown().await;
    table.fact(
        "answers to WaitRun",
        &format!("{:?}", answers.lock().expect("no panic")),
    );
    drop(net);

    let net = Net::start().await;
    let other = net.by_certificate("bob").await;
    rounds(&other).await;
    let (answers, mut attack) = (Answers::default(), JoinSet::new());
    for _ in 0..BODIES / BODIES_EACH {
        let connection = net.by_certificate("alice").await;
        for _ in 0..BODIES_EACH {
            attack.spawn(unfinished(connection.clone(), Arc::clone(&answers)));
        }
    }
    let during = rounds(&other).await;
    report(table, "beside 1,000 unfinished requests", &net, &during);
    attack.shutdown().await;
    table.fact(
        "answers to them",
        &format!("{:?}", answers.lock().expect("no panic")),
    );
}

fn report(table: &mut Table, what: &str, net: &Net, [spawns, aborts]: &[Times; 2]) {
    let server = net.kennel.server().map(|server| server.pid);
    let memory = server.and_then(|pid| procfs::memory_bytes(pid, "Pss"));
    let memory = memory.unwrap_or(0) / 1_000_000;
    table.fact(&format!("server {what}"), &format!("{memory} MB"));
    for (call, times) in [("Spawn", spawns), ("Abort", aborts)] {
        let p99 = times.p99_us() / 1000.0;
        table.goal(
            &format!("{call} of another owner {what}, p50 / p99 / max"),
            &format!("{} / {} / {}", times.p50(), times.p99(), times.max()),
            "",
            Goal::at_most("100 ms p99", 100.0).met_by(p99),
        );
    }
}

/// Spawns and aborts; each must be answered.
async fn rounds(connection: &Connection) -> [Times; 2] {
    let (mut spawns, mut aborts) = (Times::default(), Times::default());
    for _ in 0..ROUNDS {
        let began = Instant::now();
        let run_id = spawn(connection, argv(&["/bin/sleep", "1000"])).await;
        spawns.push(began.elapsed());
        let began = Instant::now();
        let request = pb::AbortRequest {
            run_id,
            wait: pb::AbortWait::None.into(),
            ..pb::AbortRequest::default()
        };
        must("abort", connection.processes().abort(request).await);
        aborts.push(began.elapsed());
    }
    [spawns, aborts]
}

async fn wait(connection: Connection, run_id: String, answers: Answers) {
    let request = pb::WaitRunRequest {
        run_id,
        ..pb::WaitRunRequest::default()
    };
    // A client that repeats what was refused, at once.
    while count(
        &answers,
        connection.processes().wait_run(request.clone()).await,
    ) {}
}

/// Sends a request whose body does not end, and waits for its answer.
async fn unfinished(connection: Connection, answers: Answers) {
    let request = pb::WriteInputRequest {
        data: vec![0; BODY_BYTES].into(),
        ..pb::WriteInputRequest::default()
    };
    let request = request.encode_to_vec();
    loop {
        let path = "/kennel.v1.ProcessService/WriteInput".parse();
        let body = tokio_stream::once(request.clone()).chain(tokio_stream::pending());
        let mut grpc = Grpc::new(connection.channel());
        must("ready", grpc.ready().await.map_err(|e| e.to_string()));
        let answer = grpc.client_streaming(Request::new(body), path.expect("a path"), Raw);
        if !count(&answers, answer.await) {
            return;
        }
    }
}

/// Counts an answer; returns whether the call was refused for lack of room.
fn count<T>(answers: &Answers, answer: Result<T, Status>) -> bool {
    let code = answer.err().map_or(Code::Ok, |status| status.code());
    let mut answers = answers.lock().expect("no panic");
    *answers.entry(format!("{code:?}")).or_default() += 1;
    code == Code::ResourceExhausted
}
