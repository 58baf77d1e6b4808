//! A run whose output waits for its consumers: unacknowledged output is not removed, and the run ends all the same.

use kennel_proto::pb::{
    self, OutputOverflow, RunState, StreamsEnd, ack_events_request::Position as Acked,
    event::Payload,
};
use kennel_tests::{
    Client, Heard, Kennel, Options, PATIENCE, RunExt, SpecExt, cases, complaint, eventually_async,
    must, pattern, postgres::Postgres, programs, sh, within,
};
use nix::sys::signal::Signal;
use std::{fs, path::Path, time::Duration};
use tonic::{Status, Streaming};

cases! {
    fn waiting_output_of_one_server(Kennel::on_sqlite().await);
    waiting_run_is_ended_without_loss,
    deleted_consumer_no_longer_blocks,
    command_waits_for_slowest_consumer_without_loss,
}

const MIB: usize = 1 << 20;
/// Space of a segment with a bound of one MiB, and the addition of lifecycle entries and blocks.
const SEGMENT: u64 = (MIB / 8) as u64 + 64 * 1024;
/// Long enough for all of it on a busy machine.
const LONG: Duration = Duration::from_mins(2);
/// Longest wait for the removal: the check runs every ten seconds, and the machine may be busy.
const REMOVED_MAX: Duration = Duration::from_mins(1);

fn waiting(script: &str) -> pb::RunSpec {
    sh(script).kept_output(MIB as u64, OutputOverflow::Block)
}

async fn open(
    client: &mut Client,
    run_id: &str,
    name: &str,
) -> Streaming<pb::StreamEventsResponse> {
    let request = pb::StreamEventsRequest {
        run_id: run_id.to_owned(),
        consumer: name.to_owned(),
        ..pb::StreamEventsRequest::default()
    };
    must("stream", client.process.stream_events(request).await).into_inner()
}

async fn ack(client: &mut Client, run_id: &str, name: &str, position: Acked) {
    must("ack", try_ack(client, run_id, name, position).await);
}

async fn try_ack(
    client: &mut Client,
    run_id: &str,
    name: &str,
    position: Acked,
) -> Result<(), Status> {
    let request = pb::AckEventsRequest {
        run_id: run_id.to_owned(),
        consumer: name.to_owned(),
        position: Some(position),
    };
    client.process.ack_events(request).await.map(|_| ())
}

/// Returns the size of a run's journal.
fn on_disk(dir: &Path) -> u64 {
    let files = fs::read_dir(dir).expect("its directory");
    let len = |file: std::io::Result<fs::DirEntry>| file.and_then(|f| f.metadata());
    files
        .map(|file| len(file).map_or(0, |found| found.len()))
        .sum()
}

/// Waits until a warning reports that output waits, with these words.
async fn says_that_it_waits(client: &mut Client, run_id: &str, words: &str) {
    let stream = client.events_after(run_id, 0).await;
    let mut stream = must("stream", stream);
    let waits = async {
        loop {
            let message = must("read", stream.message().await).expect("it continues");
            for event in message.run_events.iter().flat_map(|run| &run.events) {
                if let Some(Payload::Warning(warning)) = &event.payload
                    && warning.message.contains(words)
                {
                    return;
                }
            }
        }
    };
    within("a warning", PATIENCE, waits).await;
}

// promise: O-29
async fn command_waits_for_slowest_consumer_without_loss(kennel: &Kennel) {
    let bytes = 8 * MIB;
    let mut client = kennel.client().await;
    let program = programs::naughty();
    let script = format!("{} bytes {bytes}", program.display());
    let run = must("spawn", client.spawn(waiting(&script)).await);
    let id = run.run_id.as_str();
    let dir = kennel.run_dir(id);
    // The slow consumer is registered and acknowledges nothing yet.
    let mut slow = open(&mut client, id, "slow").await;
    says_that_it_waits(&mut client, id, "has not acknowledged the oldest").await;
    assert!(on_disk(&dir) <= MIB as u64 + SEGMENT);

    // Acknowledgements of only one consumer release nothing.
    let mut quick_client = kennel.client().await;
    let quick_id = run.run_id.clone();
    let quick_address = kennel.address().parse().expect("an address");
    let (begins, begun) = tokio::sync::oneshot::channel();
    let quick = tokio::spawn(async move {
        let connection = kennel_client::connect(&quick_address).await;
        let connection = connection.expect("it serves");
        let start = kennel_client::Start::Beginning;
        let mut reader = kennel_client::EventReader::new(&connection, &quick_id, start);
        reader.request.consumer = "quick".into();
        let mut heard = Heard::default();
        let mut begins = Some(begins);
        while let Some(message) = reader.next().await.expect("it continues") {
            heard.take(message);
            reader.ack().await.expect("it is acknowledged");
            if let Some(begins) = begins.take() {
                begins.send(()).expect("the test waits for it");
            }
        }
        heard
    });
    // Register both first: data removed earlier does not wait for a consumer.
    begun.await.expect("it reads");
    let mut heard = Heard::default();
    let mut most = 0;
    let mut deaths = vec![bytes * 3 / 4, bytes / 4];
    while !heard.has_ended() {
        let message = within("it continues", LONG, slow.message()).await;
        let Ok(Some(message)) = message else {
            // The server died: acknowledgements stay valid, and the next server still waits.
            client = kennel.client().await;
            slow = open(&mut client, id, "slow").await;
            continue;
        };
        heard.take(message);
        most = most.max(on_disk(&dir));
        if deaths.last().is_some_and(|at| heard.stdout.len() > *at) {
            deaths.pop();
            let position = Acked::Seq(heard.last_seq());
            ack(&mut client, id, "slow", position).await;
            kennel.kill_server();
            continue;
        }
        let position = Acked::Cursor(heard.cursor.clone().into());
        let acked = try_ack(&mut client, id, "slow", position.clone()).await;
        if acked.is_err() {
            // The server died after it sent this message.
            client = kennel.client().await;
            ack(&mut client, id, "slow", position).await;
            slow = open(&mut client, id, "slow").await;
        }
    }
    assert!(deaths.is_empty(), "{deaths:?}");
    assert!(heard.stdout == pattern(bytes), "{}", heard.stdout.len());
    let quick = within("the other one", LONG, quick).await.expect("it ends");
    assert!(quick.stdout == pattern(bytes), "{}", quick.stdout.len());
    assert!(most <= MIB as u64 + SEGMENT, "{most} bytes on disk");
    println!("{bytes} bytes, at most {most} on disk");
    let ended = must("wait", quick_client.ended(id).await);
    assert_eq!(ended.code(), Some(0));
}

/// The numbers from 1 on, as seq(1) writes them.
pub(crate) fn numbers(last: u32) -> String {
    use std::fmt::Write as _;
    (1..=last).fold(String::new(), |mut text, number| {
        let _ = writeln!(text, "{number}");
        text
    })
}

/// Writes lines of one KiB and reports after each how many it has written.
fn lines(progress: &Path) -> String {
    format!(
        "i=0; while printf '%01023d\\n' $i; do i=$((i+1)); echo $i >> {}; done",
        progress.display()
    )
}

// promise: O-29b
async fn waiting_run_is_ended_without_loss(kennel: &Kennel) {
    let mut client = kennel.client().await;
    let mut runs = Vec::new();
    for name in ["abort", "runtime", "orphan"] {
        let progress = kennel.scratch().join(name);
        let mut spec = waiting(&lines(&progress));
        if name == "runtime" {
            spec = spec.max_runtime(Duration::from_secs(5));
        }
        let run = must("spawn", client.spawn(spec).await);
        says_that_it_waits(
            &mut client,
            &run.run_id,
            "no consumer of the run is registered",
        )
        .await;
        runs.push((name, progress, run.run_id));
    }
    // The next server also waits, before any consumer calls.
    kennel.kill_server();
    let mut client = kennel.client().await;
    for (name, progress, id) in runs {
        if name != "runtime" {
            let before = must("get", client.get(&id).await);
            assert_eq!(before.state(), RunState::Running);
            must("abort", client.abort(&id).await);
        }
        let run = within("its end", LONG, client.ended(&id)).await;
        let run = must("wait", run);
        let reason = match name {
            "runtime" => "deadline_exceeded",
            _ => "aborted",
        };
        assert_eq!(run.reason(), reason, "{name}");
        assert!(run.tree_is_empty(), "{:?}", run.tree_verdict);
        assert_eq!(run.attempt().streams_end(), StreamsEnd::Eof, "{name}");
        let heard = must("stream", client.hear_all(&id, 0).await);
        let is_gap = |payload: &Payload| matches!(payload, Payload::Gap(_));
        assert!(!heard.events.iter().any(|(_, payload)| is_gap(payload)));
        let said = fs::read_to_string(&progress).expect("it has written");
        let said = said.lines().count();
        assert!(said > 900, "{name}: {said}");
        let whole = heard.stdout.len() / 1024;
        assert!(whole >= said, "{name}: {whole} lines of {said}");
        for (number, line) in heard.stdout.chunks_exact(1024).enumerate() {
            let number = format!("{number:01023}\n");
            assert!(line == number.as_bytes(), "{name}: line {number}");
        }
        let size = on_disk(&kennel.run_dir(&id));
        assert!(
            (900_000..MIB as u64 + 2 * SEGMENT).contains(&size),
            "{name}: {size}"
        );
    }
}

/// Reads to the end and acknowledges each message as soon as it is received.
async fn read_to_the_end(kennel: &Kennel, id: &str, name: &str, heard: &mut Heard) {
    let mut client = kennel.client().await;
    let mut stream = open(&mut client, id, name).await;
    while !heard.has_ended() {
        let Ok(Some(message)) = within("it continues", LONG, stream.message()).await else {
            client = kennel.client().await;
            stream = open(&mut client, id, name).await;
            continue;
        };
        heard.take(message);
        let position = Acked::Cursor(heard.cursor.clone().into());
        eventually_async("it is acknowledged", LONG, async || {
            let client = &mut kennel.client().await;
            let acked = try_ack(client, id, name, position.clone()).await;
            acked.ok()
        })
        .await;
    }
}

// promise: O-29a
#[tokio::test(flavor = "multi_thread")]
async fn waiting_command_survives_a_store_outage() {
    let mut postgres = Postgres::start().await;
    let kennel = Kennel::start(Options::on(&postgres.url())).await;
    let mut client = kennel.client().await;
    let script = format!("{} bytes {}", programs::naughty().display(), 6 * MIB);
    let run = must("spawn", client.spawn(waiting(&script)).await);
    let id = run.run_id.as_str();
    let mut heard = Heard::default();
    let mut stream = open(&mut client, id, "reads").await;
    says_that_it_waits(&mut client, id, "has not acknowledged the oldest").await;
    postgres.crash().await;
    while heard.stdout.is_empty() {
        let message = within("it is read", LONG, stream.message()).await;
        heard.take(must("read", message).expect("it continues"));
    }
    let position = Acked::Cursor(heard.cursor.clone().into());
    let refused = try_ack(&mut client, id, "reads", position).await;
    let refused = complaint(&refused.expect_err("the store is away"));
    assert_eq!(refused.reason, "STORE_UNAVAILABLE");
    // Unacknowledged data is still on disk.
    let held = on_disk(&kennel.run_dir(id));
    assert!(held > 900_000 && held <= MIB as u64 + SEGMENT, "{held}");
    drop(stream);
    postgres.run().await;
    // Reading starts over: nothing was acknowledged.
    let mut heard = Heard::default();
    eventually_async("the consumer is known again", LONG, async || {
        let request = pb::GetConsumerRequest {
            run_id: id.to_owned(),
            consumer: "reads".to_owned(),
            ..pb::GetConsumerRequest::default()
        };
        let mut client = kennel.client().await;
        client.process.get_consumer(request).await.ok()
    })
    .await;
    read_to_the_end(&kennel, id, "reads", &mut heard).await;
    assert!(heard.stdout == pattern(6 * MIB), "{}", heard.stdout.len());
}

/// Both ends of a terminal wait, and so do those of a server that is being replaced.
// promise: O-29a
#[tokio::test(flavor = "multi_thread")]
async fn terminal_output_blocks_across_an_upgrade() {
    let kennel = Kennel::start(Options {
        own_binary: Some(programs::kennel()),
        ..Options::default()
    })
    .await;
    let mut client = kennel.client().await;
    let spec = waiting("stty -onlcr; seq 1 600000; exit 5");
    let spec = spec.on_terminal(pb::Terminal::default());
    let run = must("spawn", client.spawn(spec).await);
    let id = run.run_id.as_str();
    drop(open(&mut client, id, "reads").await);
    says_that_it_waits(&mut client, id, "has not acknowledged the oldest").await;
    let before = client.server_info().await.expect("it serves").generation;
    kennel.install(&programs::kennel());
    kennel.signal(Signal::SIGHUP);
    client.has_node_after(before).await;
    let size = on_disk(&kennel.run_dir(id));
    assert!(size <= MIB as u64 + SEGMENT, "{size}");
    let mut heard = Heard::default();
    read_to_the_end(&kennel, id, "reads", &mut heard).await;
    let wanted = numbers(600_000);
    assert!(heard.text() == wanted, "{} bytes", heard.text().len());
    let ended = must("wait", client.ended(id).await);
    assert_eq!(ended.code(), Some(5));
}

// promise: O-29a
#[tokio::test(flavor = "multi_thread")]
async fn acknowledged_output_survives_the_keeper() {
    let mut kennel = Kennel::on_sqlite().await;
    let mut client = kennel.client().await;
    let progress = kennel.scratch().join("progress");
    let run = must("spawn", client.spawn(waiting(&lines(&progress))).await);
    let id = run.run_id.as_str();
    drop(open(&mut client, id, "reads").await);
    says_that_it_waits(&mut client, id, "has not acknowledged the oldest").await;
    kennel.kill_keeper();
    kennel.restart().await;
    let mut client = kennel.client().await;
    let ended = within("its end", LONG, client.ended(id)).await;
    let ended = must("wait", ended);
    assert_eq!(ended.reason(), "service_lost");
    let mut heard = Heard::default();
    read_to_the_end(&kennel, id, "reads", &mut heard).await;
    // Output includes bytes left in the pipe at the keeper's death.
    let said = fs::read_to_string(&progress).expect("it has written");
    let whole = heard.stdout.len() / 1024;
    assert!(said.lines().count() <= whole, "{whole} lines are kept");
    assert!(whole > 900, "{whole}");
    for (number, line) in heard.stdout.chunks_exact(1024).enumerate() {
        let number = format!("{number:01023}\n");
        assert!(line == number.as_bytes(), "line {number}");
    }
}

// promise: O-29b
async fn deleted_consumer_no_longer_blocks(kennel: &Kennel) {
    let mut client = kennel.client().await;
    let script = format!("{} bytes {}", programs::naughty().display(), 4 * MIB);
    let run = must("spawn", client.spawn(waiting(&script)).await);
    let id = run.run_id.as_str();
    let forgotten = open(&mut client, id, "forgotten").await;
    let mut reads = open(&mut client, id, "reads").await;
    drop(forgotten);
    let mut heard = Heard::default();
    says_that_it_waits(&mut client, id, "has not acknowledged the oldest").await;
    let request = pb::DeleteConsumerRequest {
        run_id: id.to_owned(),
        consumer: "forgotten".to_owned(),
        ..pb::DeleteConsumerRequest::default()
    };
    must("delete", client.process.delete_consumer(request).await);
    while !heard.has_ended() {
        let message = within("it continues", LONG, reads.message()).await;
        heard.take(must("read", message).expect("it continues"));
        let position = Acked::Cursor(heard.cursor.clone().into());
        ack(&mut client, id, "reads", position).await;
    }
    assert!(heard.stdout == pattern(4 * MIB));
}

// promise: O-29a
#[tokio::test(flavor = "multi_thread")]
async fn waiting_output_of_ended_run_stays_until_acknowledged() {
    let kennel = Kennel::start(Options {
        words: vec!["--retain-at-least", "0s", "--retain-runs", "1"],
        ..Options::default()
    })
    .await;
    let mut client = kennel.client().await;
    let waits = must("spawn", client.spawn(waiting("echo waits")).await);
    let id = waits.run_id.as_str();
    drop(open(&mut client, id, "reads").await);
    must("wait", client.ended(id).await);
    let plain = must("spawn", client.spawn(sh("echo plain")).await);
    must("wait", client.ended(&plain.run_id).await);
    let last = must("spawn", client.spawn(sh("echo last")).await);
    must("wait", client.ended(&last.run_id).await);
    let removed = async |id: &str| {
        let run = must("get", kennel.client().await.get(id).await);
        run.output_removed
    };
    // Each server starts with a check, which would remove both runs' output together.
    kennel.kill_server();
    let mut client = kennel.client().await;
    let gone = async || removed(&plain.run_id).await;
    eventually_async("the plain one goes", REMOVED_MAX, gone).await;
    let heard = must("stream", client.hear_all(id, 0).await);
    assert_eq!(heard.text(), "waits\n");
    ack(&mut client, id, "reads", Acked::Seq(heard.last_seq())).await;
    kennel.kill_server();
    let gone = async || removed(id).await;
    eventually_async("it goes once it is acknowledged", REMOVED_MAX, gone).await;
}
