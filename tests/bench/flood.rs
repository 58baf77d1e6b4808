//! Floods of one owner, or of a client without a name, and what they cost another owner: waits for a run, requests whose
//! body never ends, half-open handshakes at the port, connections to the socket that are closed at once, calls about a
//! tree of thousands of processes.

use crate::{
    table::{Goal, Table, Times},
    tls::spawn,
};
use kennel_client::Connection;
use kennel_proto::pb;
use kennel_tests::{argv, must, net::Net, procfs, raw::Raw, sh};
use nix::{
    libc::linger,
    sys::socket::{setsockopt, sockopt::Linger},
};
use prost::Message;
use std::{
    collections::{BTreeMap, VecDeque},
    io::{self, Write},
    net::TcpStream,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
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
/// Threads that begin handshakes, 10,000 a second in sum: one waits a second where the queue of the port is full.
const HANDSHAKE_THREADS: usize = 20;
/// Time between two handshakes of a thread, and those that it holds.
const HANDSHAKE_EVERY: Duration = Duration::from_millis(2);
const HANDSHAKES_HELD: usize = 50;
/// Spawns and aborts of the other owner.
const ROUNDS: usize = 200;
/// Processes of the attacker's tree.
const TREE: usize = 10_000;
/// Further connections of the other owner.
const CONNECTIONS: usize = 20;

/// A command that connects to the socket and closes, over and over.
const CONNECTS: &str = "
import socket, sys
while True:
    one = socket.socket(socket.AF_UNIX)
    try:
        one.connect(sys.argv[1])
    except OSError:
        pass
    one.close()
";

/// Answers to the attacker's calls, by reason.
type Answers = Arc<Mutex<BTreeMap<String, usize>>>;

pub(crate) async fn measure(table: &mut Table) {
    let (net, other) = quiet().await;
    report(table, "alone", &net, &rounds(&other).await);
    let (answers, mut attack) = (Answers::default(), JoinSet::new());
    let owner = net.by_certificate("alice").await;
    let run = spawn(&owner, sh("sleep 1000")).await;
    for _ in 0..WAITS / WAITS_EACH {
        let connection = net.by_certificate("alice").await;
        for _ in 0..WAITS_EACH {
            attack.spawn(wait(connection.clone(), run.clone(), Arc::clone(&answers)));
        }
    }
    report(table, "beside 60,000 WaitRun", &net, &rounds(&other).await);
    attack.shutdown().await;
    table.fact("answers to WaitRun", &shown(&answers));

    let (net, other) = quiet().await;
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
    table.fact("answers to them", &shown(&answers));

    let (net, other) = quiet().await;
    let attack = HalfHandshakes::begin(net.port);
    let during = rounds(&other).await;
    report(table, "beside half-open handshakes", &net, &during);
    let mut connects = Times::default();
    for _ in 0..CONNECTIONS {
        let began = Instant::now();
        drop(net.by_certificate("bob").await);
        connects.push(began.elapsed());
    }
    let what = "connection of another owner beside them, p50 / max";
    table.fact(what, &format!("{} / {}", connects.p50(), connects.max()));
    let rate = attack.end();
    table.fact("half-open handshakes", &format!("{rate:.0} a second"));

    let (net, other) = quiet().await;
    let socket = net.kennel.socket().display().to_string();
    let attacker = net.by_certificate("alice").await;
    spawn(&attacker, argv(&["python3", "-c", CONNECTS, &socket])).await;
    let during = rounds(&other).await;
    report(table, "beside connections closed at once", &net, &during);
    large_tree(table).await;
}

/// Measures beside an owner that reads and pauses a large tree over and over, and then aborts it.
async fn large_tree(table: &mut Table) {
    let (net, other) = quiet().await;
    let attacker = net.by_certificate("alice").await;
    let script = format!("i=0; while [ $i -lt {TREE} ]; do sleep 1000 & i=$((i+1)); done; wait");
    let run_id = spawn(&attacker, sh(&script)).await;
    let request = pb::GetTreeRequest {
        run_id: run_id.clone(),
    };
    let processes = async || {
        let mut client = attacker.processes();
        let tree = must("get tree", client.get_tree(request.clone()).await).into_inner();
        tree.processes.len() + tree.unlisted_processes as usize
    };
    while processes().await <= TREE {}
    let mut attack = JoinSet::new();
    let (mut client, run) = (attacker.processes(), run_id.clone());
    attack.spawn(async move {
        loop {
            // Pause is refused during Resume, and vice versa.
            let run_id = run.clone();
            let _ = client.pause(pb::PauseRequest { run_id }).await;
            let run_id = run.clone();
            let _ = client.resume(pb::ResumeRequest { run_id }).await;
        }
    });
    let mut client = attacker.processes();
    attack.spawn(async move {
        loop {
            let _ = client.get_tree(request.clone()).await;
        }
    });
    let what = "beside GetTree, Pause and Resume of 10,000 processes";
    report(table, what, &net, &rounds(&other).await);
    attack.shutdown().await;
    let abort = pb::AbortRequest {
        run_id,
        grace: Some(prost_types::Duration::default()),
        wait: pb::AbortWait::None.into(),
        ..pb::AbortRequest::default()
    };
    must("abort", attacker.processes().abort(abort).await);
    let what = "beside the Abort of 10,000 processes";
    report(table, what, &net, &rounds(&other).await);
}

/// Starts a server, and a client of the other owner that has made its calls once.
async fn quiet() -> (Net, Connection) {
    let net = Net::start().await;
    let other = net.by_certificate("bob").await;
    rounds(&other).await;
    (net, other)
}

/// Threads that begin handshakes and finish none: half of them without a byte, half with the begin of a message.
struct HalfHandshakes {
    began: Instant,
    ends: Arc<AtomicBool>,
    threads: Vec<JoinHandle<u32>>,
}

impl HalfHandshakes {
    fn begin(port: u16) -> Self {
        let (began, ends) = (Instant::now(), Arc::new(AtomicBool::new(false)));
        let attack = |_| {
            let ended = Arc::clone(&ends);
            thread::spawn(move || {
                let (mut held, mut count) = (VecDeque::new(), 0_u32);
                while !ended.load(Ordering::Relaxed) {
                    held.push_back(must("connect", half_open(port, count.is_multiple_of(2))));
                    count += 1;
                    if held.len() > HANDSHAKES_HELD {
                        held.pop_front();
                    }
                    let due = began + HANDSHAKE_EVERY * count;
                    thread::sleep(due.saturating_duration_since(Instant::now()));
                }
                count
            })
        };
        let threads = (0..HANDSHAKE_THREADS).map(attack).collect();
        Self {
            began,
            ends,
            threads,
        }
    }

    /// Returns the number of handshakes in a second.
    fn end(self) -> f64 {
        let seconds = self.began.elapsed().as_secs_f64();
        self.ends.store(true, Ordering::Relaxed);
        let counts = self.threads.into_iter();
        let counts = counts.map(|thread| thread.join().expect("no panic"));
        f64::from(counts.sum::<u32>()) / seconds
    }
}

fn half_open(port: u16, is_silent: bool) -> io::Result<TcpStream> {
    let mut socket = TcpStream::connect(("127.0.0.1", port))?;
    // Zero linger resets the connection on drop, freeing the attacker's port.
    let reset = linger {
        l_onoff: 1,
        l_linger: 0,
    };
    setsockopt(&socket, Linger, &reset)?;
    if !is_silent {
        // The server may have closed the socket.
        let _ = socket.write_all(&[0x16, 0x03, 0x01, 0x02, 0x00, 0x01]);
    }
    Ok(socket)
}

fn shown(answers: &Answers) -> String {
    format!("{:?}", answers.lock().expect("no panic"))
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
    // The client retries refused calls at once.
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
