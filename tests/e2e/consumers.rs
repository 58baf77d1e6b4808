//! Named consumers: the server stores the acknowledged position of each, and sends the rest again after any crash.

use kennel_proto::pb::{
    self, ConsumerState, GapReason, RunFilter, ack_events_request::Position as Acked,
    event::Payload, stream_events_request::Position,
};
use kennel_tests::{
    Client, Heard, Kennel, Options, PATIENCE, Postgres, STORE_PATIENCE, SpecExt, cases,
    client::{Complaint, fact, retry_after},
    complaint, eventually_async, must, new_run_id, pattern, programs, sh,
    shell::{run_to_end, text},
    within,
};
use std::{collections::BTreeMap, fs, time::Duration};
use tonic::{Code, Status, Streaming};

type Stream = Streaming<pb::StreamEventsResponse>;

cases! {
    fn consumers_of_one_server(Kennel::on_sqlite().await);
    command_line_consumer_continues_after_printed_output,
    newer_reader_replaces_older_one,
    consumers_are_bounded_listed_and_deleted,
    unacknowledged_output_is_given_again,
    consumer_of_many_runs_survives_deaths,
}

/// More than a few messages.
const BYTES: usize = 1 << 20;
/// Longest wait for the removal: the check runs every ten seconds, and the machine may be busy.
const REMOVED_MAX: Duration = Duration::from_mins(1);

fn writes() -> pb::RunSpec {
    sh(&format!("{} bytes {BYTES}", programs::naughty().display()))
}

fn of_run(run_id: &str, name: &str) -> pb::StreamEventsRequest {
    pb::StreamEventsRequest {
        run_id: run_id.to_owned(),
        consumer: name.to_owned(),
        ..pb::StreamEventsRequest::default()
    }
}

async fn open(client: &mut Client, request: &pb::StreamEventsRequest) -> Stream {
    let opened = client.process.stream_events(request.clone()).await;
    must("stream", opened).into_inner()
}

/// Returns the next message; absent: the stream has ended with OK.
async fn next(stream: &mut Stream) -> Option<pb::StreamEventsResponse> {
    let message = within("a message", PATIENCE, stream.message()).await;
    must("read", message)
}

/// Returns the end of the stream, after any messages.
async fn end(stream: &mut Stream) -> Complaint {
    loop {
        match within("its end", PATIENCE, stream.message()).await {
            Ok(Some(_)) => {}
            Ok(None) => panic!("it has ended well"),
            Err(status) => return complaint(&status),
        }
    }
}

async fn ack(
    client: &mut Client,
    run_id: &str,
    name: &str,
    position: Acked,
) -> Result<pb::Consumer, Status> {
    let request = pb::AckEventsRequest {
        run_id: run_id.to_owned(),
        consumer: name.to_owned(),
        position: Some(position),
    };
    let acked = client.process.ack_events(request).await?.into_inner();
    Ok(acked.consumer.expect("an answer has the consumer"))
}

async fn get(client: &mut Client, run_id: &str, name: &str) -> Result<pb::Consumer, Status> {
    let request = pb::GetConsumerRequest {
        run_id: run_id.to_owned(),
        consumer: name.to_owned(),
        ..pb::GetConsumerRequest::default()
    };
    let got = client.process.get_consumer(request).await?.into_inner();
    Ok(got.consumer.expect("an answer has the consumer"))
}

/// Reads until so many bytes came, and returns the cursor after them.
async fn read(stream: &mut Stream, heard: &mut Heard, enough: usize) -> Acked {
    while heard.stdout.len() < enough {
        heard.take(next(stream).await.expect("it continues"));
    }
    Acked::Cursor(heard.cursor.clone().into())
}

// promise: O-26
async fn unacknowledged_output_is_given_again(kennel: &Kennel) {
    let mut client = kennel.client().await;
    let run = must("spawn", client.spawn(writes()).await);
    let id = run.run_id.as_str();
    let request = of_run(id, "indexer");

    // The consumer acknowledges a quarter and reads more.
    let mut first = Heard::default();
    let mut stream = open(&mut client, &request).await;
    let position = read(&mut stream, &mut first, BYTES / 4).await;
    let acked = must("ack", ack(&mut client, id, "indexer", position).await);
    assert_eq!(acked.acked_seq, Some(first.last_seq()));
    assert!(acked.ack_time.is_some());
    let done = first.stdout.len();
    read(&mut stream, &mut first, BYTES / 2).await;
    drop(stream);

    // First the reader disconnects, then the server dies.
    for life in ["the same server", "the next server"] {
        if life == "the next server" {
            kennel.kill_server();
            client = kennel.client().await;
        }
        let mut again = Heard::default();
        let mut stream = open(&mut client, &request).await;
        while let Some(message) = next(&mut stream).await {
            again.take(message);
        }
        assert!(again.stdout == pattern(BYTES)[done..], "{life}");
        assert_eq!(again.events[0].0, acked.acked_seq.unwrap() + 1, "{life}");
        assert!(again.has_ended());
    }

    // Acknowledgements only move forward, also by seq.
    let older = must("ack", ack(&mut client, id, "indexer", Acked::Seq(1)).await);
    assert_eq!(older.acked_seq, acked.acked_seq);
    let seq = acked.acked_seq.unwrap() + 1;
    let moved = must(
        "ack",
        ack(&mut client, id, "indexer", Acked::Seq(seq)).await,
    );
    assert_eq!(moved.acked_seq, Some(seq));
    let mut rest = Heard::default();
    let mut stream = open(&mut client, &request).await;
    let last = read(&mut stream, &mut rest, 1).await;
    assert_eq!(rest.events[0].0, seq + 1);
    let head = must("stream", client.hear_all(id, 0).await).last_seq();
    let beyond = ack(&mut client, id, "indexer", Acked::Seq(head + 1)).await;
    let beyond = beyond.expect_err("beyond the head");
    assert_eq!(fact(&beyond, "head_seq"), head.to_string());
    let beyond = complaint(&beyond);
    assert_eq!(
        (beyond.code, &*beyond.reason),
        (Code::OutOfRange, "CURSOR_AHEAD")
    );
    assert_eq!(
        must("get", get(&mut client, id, "indexer").await).acked_seq,
        Some(seq)
    );

    // Positions of another run, unknown consumers and unknown runs are refused.
    let other = must("spawn", client.spawn(sh("echo other")).await);
    must("wait", client.ended(&other.run_id).await);
    open(&mut client, &of_run(&other.run_id, "indexer")).await;
    let wrong = [
        (&*other.run_id, "indexer", "INVALID_FIELD"),
        (id, "nobody", "CONSUMER_NOT_FOUND"),
        (&*new_run_id(), "indexer", "RUN_NOT_FOUND"),
        (id, "no name", "INVALID_FIELD"),
    ];
    for (run_id, name, reason) in wrong {
        let position = match reason {
            "RUN_NOT_FOUND" => Acked::Seq(1),
            _ => last.clone(),
        };
        let refused = ack(&mut client, run_id, name, position).await;
        let refused = complaint(&refused.expect_err(reason));
        assert_eq!(refused.reason, reason, "{run_id} {name}");
    }
    let all = must(
        "ack",
        ack(&mut client, id, "indexer", Acked::Seq(head)).await,
    );
    assert_eq!(all.acked_seq, Some(head));
    let mut stream = open(&mut client, &request).await;
    let mut nothing = Heard::default();
    while let Some(message) = next(&mut stream).await {
        nothing.take(message);
    }
    assert!(nothing.events.is_empty(), "{:?}", nothing.events);
}

// promise: O-27
async fn newer_reader_replaces_older_one(kennel: &Kennel) {
    let mut client = kennel.client().await;
    let go = kennel.scratch().join("go-newer_reader");
    let script = format!(
        "echo before; while [ ! -e {} ]; do sleep 0.01; done; echo after",
        go.display()
    );
    let run = must("spawn", client.spawn(sh(&script)).await);
    let id = run.run_id.as_str();
    client.hear_text(id, "before\n").await;
    // The consumer keeps the start position of its first reader.
    let live = pb::StreamEventsRequest {
        position: Some(Position::Live(pb::FromLive {})),
        ..of_run(id, "one")
    };
    let mut older = open(&mut client, &live).await;
    let mut other = open(&mut client, &of_run(id, "two")).await;
    let begun = must("get", get(&mut client, id, "one").await);
    assert!(begun.acked_seq > Some(0) && begun.ack_time.is_none());
    next(&mut older).await.expect("a snapshot");

    let from_the_beginning = pb::StreamEventsRequest {
        position: Some(Position::Beginning(pb::FromBeginning {})),
        ..of_run(id, "one")
    };
    let mut newer = open(&mut client, &from_the_beginning).await;
    let refusal = end(&mut older).await;
    assert_eq!(
        (refusal.code, &*refusal.reason),
        (Code::FailedPrecondition, "CONSUMER_TAKEN_OVER")
    );
    fs::write(&go, "").expect("written");
    let (mut heard, mut undisturbed) = (Heard::default(), Heard::default());
    while let Some(message) = next(&mut newer).await {
        heard.take(message);
    }
    assert_eq!(heard.text(), "after\n", "it was there already");
    assert_eq!(heard.events[0].0, begun.acked_seq.unwrap() + 1);
    while let Some(message) = next(&mut other).await {
        undisturbed.take(message);
    }
    assert_eq!(undisturbed.text(), "before\nafter\n");
    // A reader may give its own position.
    let own = pb::StreamEventsRequest {
        position: Some(Position::AfterSeq(0)),
        ..of_run(id, "one")
    };
    let mut own = open(&mut client, &own).await;
    let mut whole = Heard::default();
    read(&mut own, &mut whole, 1).await;
    assert_eq!(whole.events[0].0, 1);
    drop((own, newer, other));
    eventually_async("no reader is left", PATIENCE, async || {
        let idle = must("get", get(&mut kennel.client().await, id, "one").await);
        (idle.state() == ConsumerState::Idle).then_some(())
    })
    .await;
}

/// Events received of each run, and how often.
#[derive(Debug, Default)]
struct Crowd {
    stdout: BTreeMap<String, Vec<u8>>,
    ended: usize,
    cursor: Vec<u8>,
}

impl Crowd {
    fn take(&mut self, message: pb::StreamEventsResponse) {
        for run in message.run_events {
            let stdout = self.stdout.entry(run.run_id).or_default();
            for event in run.events {
                match event.payload {
                    Some(Payload::Output(output)) => {
                        let offset = usize::try_from(output.offset).expect("it fits");
                        stdout.truncate(offset);
                        stdout.resize(offset, 0);
                        stdout.extend_from_slice(&output.data);
                    }
                    Some(Payload::Lifecycle(pb::Lifecycle {
                        station: Some(pb::lifecycle::Station::Ended(_)),
                    })) => self.ended += 1,
                    _ => {}
                }
            }
        }
        if !message.cursor.is_empty() {
            self.cursor = message.cursor.to_vec();
        }
    }

    fn bytes(&self) -> usize {
        self.stdout.values().map(Vec::len).sum()
    }
}

fn of_label(app: &str) -> pb::StreamEventsRequest {
    pb::StreamEventsRequest {
        consumer: "collector".to_owned(),
        filter: Some(RunFilter {
            labels: [("app".to_owned(), app.to_owned())].into(),
            ..RunFilter::default()
        }),
        ..pb::StreamEventsRequest::default()
    }
}

// promise: O-27
async fn consumer_of_many_runs_survives_deaths(kennel: &Kennel) {
    let mut client = kennel.client().await;
    let request = of_label("x");
    let mut first = open(&mut client, &request).await;
    let mut runs = Vec::new();
    for _ in 0..4 {
        let run = must("spawn", client.spawn(writes().label("app", "x")).await);
        runs.push(run.run_id);
    }
    let mut crowd = Crowd::default();
    while crowd.bytes() < BYTES {
        crowd.take(next(&mut first).await.expect("it does not end"));
    }
    let older = Acked::Cursor(crowd.cursor.clone().into());
    must(
        "ack",
        ack(&mut client, "", "collector", older.clone()).await,
    );
    let (done, over) = (crowd.stdout.clone(), crowd.ended);
    let done_bytes = crowd.bytes();
    while crowd.bytes() < 2 * BYTES {
        crowd.take(next(&mut first).await.expect("it does not end"));
    }
    let unsaid = Acked::Cursor(crowd.cursor.clone().into());

    // A reader without position at the next server gets no acknowledged events again.
    kennel.kill_server();
    let mut client = kennel.client().await;
    let mut second = open(&mut client, &request).await;
    let mut again = Crowd::default();
    let mut came = 0;
    while over + again.ended < runs.len() {
        let message = next(&mut second).await.expect("it does not end");
        for run in &message.run_events {
            for event in &run.events {
                if let Some(Payload::Output(output)) = &event.payload {
                    came += output.data.len();
                }
            }
        }
        again.take(message);
    }
    assert_eq!(came, 4 * BYTES - done_bytes, "each byte once that is left");
    for run_id in &runs {
        let begin = done.get(run_id).map_or(0, Vec::len);
        let rest = again.stdout.get(run_id).and_then(|all| all.get(begin..));
        assert!(rest.unwrap_or_default() == &pattern(BYTES)[begin..]);
    }
    // The replaced reader cannot acknowledge any more; its earlier acknowledgements stay valid.
    let refused = ack(&mut client, "", "collector", unsaid.clone()).await;
    let refused = complaint(&refused.expect_err("another one reads"));
    assert_eq!(refused.reason, "CONSUMER_TAKEN_OVER");
    let Acked::Cursor(stale) = unsaid else {
        unreachable!()
    };
    let stale = pb::StreamEventsRequest {
        position: Some(Position::Cursor(stale)),
        ..request.clone()
    };
    let refused = client.process.stream_events(stale).await;
    let refused = complaint(&refused.expect_err("it is an earlier reader's"));
    assert_eq!(refused.reason, "CONSUMER_TAKEN_OVER");
    // A call with another filter is refused and replaces no reader.
    let refused = client.process.stream_events(of_label("y")).await;
    assert_eq!(
        complaint(&refused.expect_err("another filter")).reason,
        "INVALID_FIELD"
    );

    // A reader that resumes with its own cursor may acknowledge earlier events.
    let resumed = pb::StreamEventsRequest {
        position: Some(Position::Cursor(again.cursor.clone().into())),
        ..request.clone()
    };
    let mut third = open(&mut client, &resumed).await;
    assert_eq!(end(&mut second).await.reason, "CONSUMER_TAKEN_OVER");
    let last = Acked::Cursor(again.cursor.clone().into());
    let acked = must("ack", ack(&mut client, "", "collector", last).await);
    assert_eq!((acked.acked_seq, &*acked.run_id), (None, ""));
    let late = must(
        "spawn",
        client.spawn(sh("echo late").label("app", "x")).await,
    );
    let mut rest = Crowd::default();
    while rest.ended == 0 {
        rest.take(next(&mut third).await.expect("it does not end"));
    }
    assert_eq!(rest.stdout.keys().collect::<Vec<_>>(), [&late.run_id]);
    assert_eq!(rest.stdout[&late.run_id], b"late\n");
    // The consumer is deleted while read.
    let request = pb::DeleteConsumerRequest {
        run_id: String::new(),
        consumer: "collector".to_owned(),
        ..pb::DeleteConsumerRequest::default()
    };
    must("delete", client.process.delete_consumer(request).await);
    assert_eq!(end(&mut third).await.reason, "CONSUMER_NOT_FOUND");
}

// promise: O-26a
#[tokio::test(flavor = "multi_thread")]
async fn acknowledgement_is_durable_or_refused_without_store() {
    let mut postgres = Postgres::start().await;
    let kennel = Kennel::start(Options::on(&postgres.url())).await;
    let mut client = kennel.client().await;
    let run = must("spawn", client.spawn(writes()).await);
    let id = run.run_id.as_str();
    let mut heard = Heard::default();
    let mut stream = open(&mut client, &of_run(id, "indexer")).await;
    let position = read(&mut stream, &mut heard, 1).await;
    let known = must("ack", ack(&mut client, id, "indexer", position).await);
    must("wait", client.ended(id).await);

    postgres.crash().await;
    // The stream continues; acknowledgements fail without the database.
    let position = read(&mut stream, &mut heard, BYTES).await;
    let refused = ack(&mut client, id, "indexer", position.clone()).await;
    let refused = refused.expect_err("the store is away");
    assert!(retry_after(&refused).is_some());
    assert_eq!(complaint(&refused).reason, "STORE_UNAVAILABLE");
    let refused = client.process.stream_events(of_run(id, "indexer")).await;
    assert_eq!(
        complaint(&refused.expect_err("the store is away")).reason,
        "STORE_UNAVAILABLE"
    );

    postgres.run().await;
    let stands = eventually_async("the store is back", STORE_PATIENCE, async || {
        get(&mut kennel.client().await, id, "indexer").await.ok()
    })
    .await;
    assert_eq!(stands.acked_seq, known.acked_seq);
    let acked = eventually_async("it is acknowledged", STORE_PATIENCE, async || {
        let client = &mut kennel.client().await;
        ack(client, id, "indexer", position.clone()).await.ok()
    })
    .await;
    assert_eq!(acked.acked_seq, Some(heard.last_seq()));
    postgres.crash().await;
    postgres.run().await;
    let stands = eventually_async("the store is back", STORE_PATIENCE, async || {
        get(&mut kennel.client().await, id, "indexer").await.ok()
    })
    .await;
    assert_eq!(stands.acked_seq, Some(heard.last_seq()));
}

// promise: O-28a
#[tokio::test(flavor = "multi_thread")]
async fn consumer_gets_exact_gap_of_removed_output() {
    let kennel = Kennel::start(Options {
        words: vec!["--retain-at-least", "0s", "--retain-runs", "1"],
        ..Options::default()
    })
    .await;
    let mut client = kennel.client().await;
    let run = must("spawn", client.spawn(writes()).await);
    let id = run.run_id.as_str();
    let mut heard = Heard::default();
    let mut stream = open(&mut client, &of_run(id, "indexer")).await;
    let position = read(&mut stream, &mut heard, BYTES / 3).await;
    must("ack", ack(&mut client, id, "indexer", position).await);
    drop(stream);
    must("wait", client.ended(id).await);
    let next_run = must("spawn", client.spawn(sh("echo kept")).await);
    must("wait", client.ended(&next_run.run_id).await);
    // A starting server checks retention first.
    kennel.kill_server();
    let mut client = kennel.client().await;
    eventually_async("its output goes", REMOVED_MAX, async || {
        let run = must("get", kennel.client().await.get(id).await);
        run.output_removed
    })
    .await;

    let mut stream = open(&mut client, &of_run(id, "indexer")).await;
    let mut gaps = Vec::new();
    let mut last = 0;
    while let Some(message) = next(&mut stream).await {
        for run in message.run_events {
            for event in run.events {
                last = run.base_seq + event.seq_delta;
                if let Some(Payload::Gap(gap)) = event.payload {
                    gaps.push(gap);
                }
            }
        }
    }
    assert_eq!(gaps[0].first_seq, heard.last_seq() + 1);
    let missing = gaps.iter().map(|gap| {
        assert_eq!(gap.reason(), GapReason::Retention);
        gap.missing[0].bytes.expect("counted")
    });
    let left = (BYTES - heard.stdout.len()) as u64;
    assert_eq!(missing.sum::<u64>(), left);
    let end = gaps.last().map(|gap| gap.missing[0].end_offset);
    assert_eq!(end, Some(BYTES as u64));
    let acked = must(
        "ack",
        ack(&mut client, id, "indexer", Acked::Seq(last)).await,
    );
    assert_eq!(acked.acked_seq, Some(last));
}

// promise: O-28
async fn consumers_are_bounded_listed_and_deleted(kennel: &Kennel) {
    let mut client = kennel.client().await;
    let run = must("spawn", client.spawn(sh("echo one; sleep 600")).await);
    let id = run.run_id.as_str();
    let mut streams = Vec::new();
    for number in 0..16 {
        let request = of_run(id, &format!("c{number:02}"));
        streams.push(open(&mut client, &request).await);
    }
    let refused = client.process.stream_events(of_run(id, "c16")).await;
    let refused = refused.expect_err("there is no room");
    assert_eq!(fact(&refused, "limit"), "16");
    let refused = complaint(&refused);
    assert_eq!(
        (refused.code, &*refused.reason),
        (Code::ResourceExhausted, "QUOTA_EXCEEDED")
    );
    let mut names = Vec::new();
    let mut page_token = String::new();
    loop {
        let request = pb::ListConsumersRequest {
            run_id: id.to_owned(),
            page_size: 5,
            page_token,
        };
        let page = must("list", client.process.list_consumers(request).await).into_inner();
        names.extend(page.consumers.into_iter().map(|consumer| consumer.name));
        page_token = page.next_page_token;
        if page_token.is_empty() {
            break;
        }
    }
    let wanted: Vec<_> = (0..16).map(|number| format!("c{number:02}")).collect();
    assert_eq!(names, wanted);

    let listed = text(&run_to_end(kennel.cli(&["consumers", "ls", id]), PATIENCE).await);
    assert!(
        listed.contains("c07") && listed.contains("read"),
        "{listed}"
    );
    let gone = run_to_end(
        kennel.cli(&["consumers", "rm", "c07", "--run", id]),
        PATIENCE,
    )
    .await;
    assert!(gone.status.success(), "{gone:?}");
    assert_eq!(end(&mut streams[7]).await.reason, "CONSUMER_NOT_FOUND");
    let unknown = get(&mut client, id, "c07").await;
    assert_eq!(
        complaint(&unknown.expect_err("it is no more")).reason,
        "CONSUMER_NOT_FOUND"
    );
    open(&mut client, &of_run(id, "c16")).await;
    must("abort", client.abort(id).await);
}

// promise: O-28
async fn command_line_consumer_continues_after_printed_output(kennel: &Kennel) {
    let mut client = kennel.client().await;
    let go = kennel.scratch().join("go-command_line");
    let script = format!(
        "echo one; echo two; while [ ! -e {} ]; do sleep 0.01; done; echo three",
        go.display()
    );
    let run = must("spawn", client.spawn(sh(&script)).await);
    let id = run.run_id.as_str();
    client.hear_text(id, "one\ntwo\n").await;
    let logs = async |words: &[&str]| {
        let all = [&["logs", id], words].concat();
        text(&run_to_end(kennel.cli(&all), PATIENCE).await)
    };
    // Without --ack, output is sent again.
    for _ in 0..2 {
        assert_eq!(logs(&["--consumer", "cli"]).await, "one\ntwo");
    }
    assert_eq!(logs(&["--consumer", "cli", "--ack"]).await, "one\ntwo");
    assert_eq!(logs(&["--consumer", "cli", "--ack"]).await, "");
    fs::write(&go, "").expect("written");
    let rest = logs(&["-f", "--consumer", "cli", "--ack"]).await;
    assert_eq!(rest, "three");
    let events = ["events", "--all", "--consumer", "all", "--ack"];
    let first = text(&run_to_end(kennel.cli(&events), PATIENCE).await);
    assert!(first.contains("ended"), "{first}");
    let again = text(&run_to_end(kennel.cli(&events), PATIENCE).await);
    assert_eq!(again, "");
}
