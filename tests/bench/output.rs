//! From a command to its readers, with the journal on: beside a bare pipe, a bare stream of tonic, and Node's `child_process`.

use crate::{
    floor::Bare,
    table::{Goal, Table},
};
use kennel_proto::pb::{self, event::Payload};
use kennel_tests::{
    Client, Kennel, argv, must,
    procfs::{self, Proc},
};
use std::{
    io::Read,
    path::Path,
    process::{Command, Stdio},
    time::{Duration, Instant},
};
use tokio::task::JoinSet;

/// Number of rounds whose median is each figure.
const ROUNDS: usize = 5;
const READERS: usize = 10;
/// Streams without events.
const IDLE: usize = 1000;
/// Time of observation.
const WATCH: Duration = Duration::from_secs(10);
/// Ticks of a processor second in /proc (`USER_HZ`, which Linux fixes).
const TICKS: f64 = 100.0;

/// Output to write, and its form.
struct Load {
    name: &'static str,
    command: &'static [&'static str],
    bytes: u64,
    /// Target, relative to a bare stream.
    goal: (&'static str, f64),
}

const LOADS: [Load; 2] = [
    Load {
        name: "64 KiB blocks",
        command: &[
            "dd",
            "if=/dev/zero",
            "bs=65536",
            "count=8192",
            "status=none",
        ],
        bytes: 512 << 20,
        goal: ("0.8 x bare", 0.8),
    },
    Load {
        name: "one write per line of 100 bytes",
        command: &[
            "perl",
            "-e",
            r#"$| = 1; my $l = "x" x 99 . "\n"; print $l for 1 .. 1_000_000"#,
        ],
        bytes: 100_000_000,
        goal: ("1.3 x bare", 1.3),
    },
];

/// Counts the output of a command, and prints the time in seconds.
const NODE: &str = "const { spawn } = require('child_process'); const begun = process.hrtime.bigint(); let bytes = 0;
const child = spawn(process.argv[1], process.argv.slice(2), { stdio: ['ignore', 'pipe', 'ignore'] });
child.stdout.on('data', part => { bytes += part.length; });
child.on('close', () => { console.log(bytes, Number(process.hrtime.bigint() - begun) / 1e9); });";

pub(crate) async fn measure(table: &mut Table) {
    let kennel = Kennel::on_sqlite().await;
    let bare = Bare::start().await;
    for load in &LOADS {
        let name = load.name;
        let pipe = median(ROUNDS, || std::future::ready(pipe(load))).await;
        table.fact(&format!("{name}: bare pipe"), &rate(load, pipe));
        match node(load) {
            Ok(took) => table.fact(&format!("{name}: Node, in process"), &rate(load, took)),
            Err(why) => table.not_measured(&format!("{name}: Node, in process"), &why),
        }
        let socket = kennel.socket();
        let (mut floors, mut ones) = (Vec::new(), Vec::new());
        // Rounds alternate, so that a slowing machine affects both measurements.
        for _ in 0..ROUNDS {
            floors.push(bare_stream(bare.socket(), load).await);
            warm(&kennel.data_dir(), load.bytes);
            ones.push(stream(&socket, load, 1).await);
        }
        let (floor, one) = (middle(floors), middle(ones));
        table.fact(&format!("{name}: bare tonic stream"), &rate(load, floor));
        let ratio = floor.as_secs_f64() / one.as_secs_f64();
        let (says, limit) = load.goal;
        table.goal(
            &format!("{name}: Kennel, 1 reader"),
            &rate(load, one),
            &format!("{ratio:.2} x bare"),
            Goal::at_least(says, limit).met_by(ratio),
        );
        let ten = median(ROUNDS, || stream(&socket, load, READERS)).await;
        table.fact(
            &format!("{name}: Kennel, each of {READERS} readers"),
            &rate(load, ten),
        );
    }
    // A fresh service has no memory from earlier reads.
    drop(kennel);
    idle(table, &Kennel::on_sqlite().await).await;
}

async fn median<F: Future<Output = Duration>>(
    rounds: usize,
    mut once: impl FnMut() -> F,
) -> Duration {
    let mut took = Vec::new();
    for _ in 0..rounds {
        took.push(once().await);
    }
    middle(took)
}

fn middle(mut took: Vec<Duration>) -> Duration {
    took.sort();
    took[took.len() / 2]
}

/// Releases so much page cache: a virtual machine that takes memory for the first time waits for its host, which is not
/// to be measured here.
fn warm(dir: &Path, bytes: u64) {
    let file = dir.join("warm");
    let zeros = vec![0; 1 << 20];
    let written = std::fs::File::create(&file).and_then(|mut file| {
        (0..bytes >> 20).try_for_each(|_| std::io::Write::write_all(&mut file, &zeros))
    });
    must("write", written);
    must("remove", std::fs::remove_file(&file));
}

#[expect(clippy::cast_precision_loss, reason = "a display figure")]
fn rate(load: &Load, took: Duration) -> String {
    format!("{:.0} MB/s", load.bytes as f64 / 1e6 / took.as_secs_f64())
}

fn pipe(load: &Load) -> Duration {
    let begun = Instant::now();
    let mut child = Command::new(load.command[0])
        .args(&load.command[1..])
        .stdout(Stdio::piped())
        .spawn()
        .expect("it starts");
    let mut stdout = child.stdout.take().expect("a pipe");
    let mut buffer = vec![0; 65536];
    let mut bytes = 0;
    loop {
        match stdout.read(&mut buffer).expect("a pipe is read") {
            0 => break,
            some => bytes += some as u64,
        }
    }
    child.wait().expect("own child");
    assert_eq!(bytes, load.bytes);
    begun.elapsed()
}

fn node(load: &Load) -> Result<Duration, String> {
    let mut took = Vec::new();
    for _ in 0..ROUNDS {
        let mut command = Command::new("node");
        let output = command.args(["-e", NODE, "--"]).args(load.command).output();
        let output = output.map_err(|error| error.to_string())?;
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        let mut words = said.split_whitespace();
        let bytes = words.next().and_then(|word| word.parse::<u64>().ok());
        let seconds = words.next().and_then(|word| word.parse::<f64>().ok());
        match (bytes, seconds) {
            (Some(bytes), Some(seconds)) if bytes == load.bytes => {
                took.push(Duration::from_secs_f64(seconds));
            }
            _ => return Err(format!("it says {said:?}")),
        }
    }
    took.sort();
    Ok(took[ROUNDS / 2])
}

/// Measures from the request to the last byte.
async fn bare_stream(socket: &Path, load: &Load) -> Duration {
    let mut client = must("connect", Client::connect(socket).await);
    let begun = Instant::now();
    let line = load.command.join("\0");
    let bytes = read(must("stream", client.events_after(&line, 0).await)).await;
    assert_eq!(bytes, load.bytes);
    begun.elapsed()
}

/// Measures from the spawn until all readers have the last byte.
async fn stream(socket: &Path, load: &Load, readers: usize) -> Duration {
    let mut client = must("connect", Client::connect(socket).await);
    let mut spec = argv(load.command);
    spec.output = Some(pb::OutputPolicy {
        max_bytes: Some(1 << 30),
        ..pb::OutputPolicy::default()
    });
    let begun = Instant::now();
    let run = must("spawn", client.spawn(spec).await);
    let mut reading = JoinSet::new();
    for _ in 0..readers {
        let (socket, run) = (socket.to_owned(), run.run_id.clone());
        reading.spawn(async move {
            let mut client = must("connect", Client::connect(&socket).await);
            read(must("stream", client.events_after(&run, 0).await)).await
        });
    }
    let bytes = reading.join_all().await;
    let took = begun.elapsed();
    assert!(bytes.iter().all(|bytes| *bytes == load.bytes), "{bytes:?}");
    took
}

async fn read(mut events: tonic::Streaming<pb::StreamEventsResponse>) -> u64 {
    let mut bytes = 0;
    while let Some(message) = must("a message", events.message().await) {
        for event in message.run_events.iter().flat_map(|batch| &batch.events) {
            if let Some(Payload::Output(output)) = &event.payload {
                bytes += output.data.len() as u64;
            }
        }
    }
    bytes
}

async fn idle(table: &mut Table, kennel: &Kennel) {
    let mut client = kennel.client().await;
    let run = must("spawn", client.spawn(argv(&["/bin/sleep", "600"])).await);
    let server = kennel.server().expect("it serves");
    let memory = |server: &Proc| procfs::memory_bytes(server.pid, "Pss").unwrap_or_default();
    let before = memory(&server);
    let mut streams = Vec::new();
    for _ in 0..IDLE {
        let mut events = must("stream", client.events_after(&run.run_id, 0).await);
        must("a message", events.message().await);
        streams.push(events);
    }
    let grown = memory(&server).saturating_sub(before);
    let ticks = procfs::cpu_ticks(server.pid).unwrap_or_default();
    tokio::time::sleep(WATCH).await;
    let spent = procfs::cpu_ticks(server.pid)
        .unwrap_or_default()
        .saturating_sub(ticks);
    #[expect(clippy::cast_precision_loss, reason = "display figures")]
    let (per_stream, percent) = (
        grown as f64 / 1024.0 / IDLE as f64,
        spent as f64 / TICKS / WATCH.as_secs_f64() * 100.0,
    );
    table.fact(
        &format!("memory per idle reader at {IDLE}, on one connection"),
        &format!("{per_stream:.1} kB"),
    );
    table.fact(
        &format!("processor time at {IDLE} idle readers"),
        &format!("{percent:.2} % of one"),
    );
    drop(streams);
    must("abort", client.abort(&run.run_id).await);
}
