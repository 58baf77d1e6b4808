//! Many readers of one run, one of which never reads: only it is affected.

use kennel_client as client;
use kennel_client::{EventReader, Start};
use kennel_proto::pb::event::Payload;
use kennel_tests::{Kennel, PATIENCE, RunExt, must, pattern, programs, sh, within};
use std::{
    fs,
    hash::{DefaultHasher, Hasher},
    time::Duration,
};
use tokio::task::JoinSet;

const READERS: usize = 19;
const BYTES: usize = 8 << 20;
/// Memory that the server may need for twenty streams, less than a megabyte or two for each, however much is written.
/// The total that they read is nearly five times more.
const GROWN_MAX: u64 = 32 << 20;

// promise: O-2a
#[tokio::test(flavor = "multi_thread")]
async fn unread_stream_costs_no_memory_or_speed() {
    let kennel = Kennel::on_sqlite().await;
    let mut client = kennel.client().await;
    let go = kennel.scratch().join("go");
    let script = format!(
        "echo up; while [ ! -e {0} ]; do sleep 0.01; done; rm {0}; {1} bytes {BYTES}",
        go.display(),
        programs::naughty().display()
    );
    // Warm-up with one reader allocates the memory that the server needs anyway.
    for readers in [1, READERS] {
        let run = must("spawn", client.spawn(sh(&script)).await);
        client.hear_text(&run.run_id, "up\n").await;
        let before = peak(&kennel);
        let deaf = must(
            "stream",
            kennel.client().await.events_after(&run.run_id, 0).await,
        );
        let mut reading = JoinSet::new();
        for _ in 0..readers {
            reading.spawn(hash_of(kennel.address(), run.run_id.clone()));
        }
        fs::write(&go, "").expect("written");
        let limit = PATIENCE + Duration::from_mins(2);
        let ended = within(
            "the command is not slowed",
            limit,
            client.ended(&run.run_id),
        )
        .await;
        assert_eq!(must("wait", ended).code(), Some(0));
        let heard = within("all others have read", limit, reading.join_all()).await;
        drop(deaf);
        let mut wanted = DefaultHasher::new();
        wanted.write(b"up\n");
        wanted.write(&pattern(BYTES));
        let wanted = (BYTES + 3, wanted.finish());
        assert!(heard.iter().all(|heard| *heard == wanted), "{heard:?}");
        let grown = peak(&kennel) - before;
        println!(
            "{readers} readers and one that never reads: the server's memory grew by {} KiB at most",
            grown >> 10
        );
        assert!(grown < GROWN_MAX, "{grown} bytes");
    }
}

/// Returns how much was read, and its hash.
async fn hash_of(address: String, run_id: String) -> (usize, u64) {
    let address = address.parse().expect("an address");
    let connection = client::connect(&address).await.expect("it serves");
    let mut reader = EventReader::new(&connection, &run_id, Start::Beginning);
    let (mut bytes, mut hash) = (0, DefaultHasher::new());
    while let Some(message) = reader.next().await.expect("it continues") {
        for event in message
            .run_events
            .into_iter()
            .flat_map(|batch| batch.events)
        {
            if let Some(Payload::Output(output)) = event.payload {
                bytes += output.data.len();
                hash.write(&output.data);
            }
        }
    }
    (bytes, hash.finish())
}

/// Returns the peak resident memory of the server, in bytes. See proc(5), `VmHWM`.
fn peak(kennel: &Kennel) -> u64 {
    let server = kennel.server().expect("it lives");
    let status = fs::read_to_string(format!("/proc/{}/status", server.pid)).expect("it lives");
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = peak.and_then(|peak| peak.trim().trim_end_matches(" kB").parse::<u64>().ok());
    kib.expect("a living process has memory") << 10
}
