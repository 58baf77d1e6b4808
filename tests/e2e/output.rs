//! Output: every byte once, in order, from every position, and no reader slows the child.

use kennel_proto::pb::{self, stream_events_request::Position};
use kennel_tests::{
    Heard, Kennel, PATIENCE, RunExt, SpecExt, argv, cases, complaint, must, naughty, pattern, sh,
    within,
};
use std::time::Duration;
use tonic::Code;

cases! {
    fn output_of_one_server(Kennel::on_sqlite().await);
    mebibytes_return_unchanged_on_both_streams,
    readers_agree_from_every_position,
    cut_off_reader_continues_without_gap_or_repeat,
    position_beyond_head_is_refused_except_live,
    input_comes_whole_and_ends,
    a_silent_stream_has_a_heartbeat,
}

/// Large enough to pass every buffer on the way.
const MUCH: usize = 3 * 1024 * 1024;
/// Long enough for all of it on a busy machine.
const LONG: Duration = Duration::from_mins(2);

// promise: O-1
async fn mebibytes_return_unchanged_on_both_streams(kennel: &Kennel) {
    let mut client = kennel.client().await;
    let program = kennel_tests::programs::naughty();
    let script = format!(
        "{0} bytes {MUCH} & {0} bytes 1000003 >&2; wait",
        program.display()
    );
    let run = must("spawn", client.spawn(sh(&script)).await);
    let live = within("live", LONG, client.hear_all(&run.run_id, 0)).await;
    let live = must("stream", live);
    assert!(
        live.stdout == pattern(MUCH),
        "{} bytes came",
        live.stdout.len()
    );
    assert!(
        live.stderr == pattern(1_000_003),
        "{} bytes came",
        live.stderr.len()
    );
    let later = must("stream", client.hear_all(&run.run_id, 0).await);
    assert!(later.events == live.events, "a later reader reads the same");
}

// promise: O-2
async fn readers_agree_from_every_position(kennel: &Kennel) {
    let mut client = kennel.client().await;
    let go = kennel.scratch().join("go-readers_agree");
    let program = kennel_tests::programs::naughty();
    let script = format!(
        "i=0; while [ $i -lt 200 ]; do echo line $i; i=$((i+1)); done
         while [ ! -e {} ]; do sleep 0.01; done
         {} bytes 2097152; echo end >&2",
        go.display(),
        program.display()
    );
    let run = must("spawn", client.spawn(sh(&script)).await);
    client.hear_text(&run.run_id, "line 199\n").await;

    // An unread stream fills its window without effect on other readers.
    let deaf = must(
        "stream",
        kennel.client().await.events_after(&run.run_id, 0).await,
    );
    let mut readers = tokio::task::JoinSet::new();
    for after_seq in [0, 1, 2, 3, 0] {
        let mut client = kennel.client().await;
        let run_id = run.run_id.clone();
        readers.spawn(async move {
            (
                after_seq,
                must("stream", client.hear_all(&run_id, after_seq).await),
            )
        });
    }
    std::fs::write(&go, "").expect("written");
    let ended = within("the child is not slowed", LONG, client.ended(&run.run_id)).await;
    assert_eq!(must("wait", ended).code(), Some(0));
    let heard = within("all readers end", LONG, readers.join_all()).await;
    drop(deaf);

    let whole = must("stream", client.hear_all(&run.run_id, 0).await);
    assert!(whole.stdout.ends_with(&pattern(2 * 1024 * 1024)));
    assert!(whole.events.len() > 10, "{}", whole.events.len());
    for (after_seq, heard) in heard {
        let expected: Vec<_> = whole
            .events
            .iter()
            .filter(|(seq, _)| *seq > after_seq)
            .cloned()
            .collect();
        assert!(flat(&heard.events) == flat(&expected), "from {after_seq}");
        assert!(heard.has_ended());
    }
}

/// Flattens events: output may be cut into other pieces for another reader; bytes, positions and lifecycle events may
/// not differ.
fn flat(
    events: &[(u64, pb::event::Payload)],
) -> (Vec<u8>, Vec<u8>, Vec<(u64, pb::event::Payload)>) {
    let (mut stdout, mut stderr, mut rest) = (Vec::new(), Vec::new(), Vec::new());
    for (seq, payload) in events {
        match payload {
            pb::event::Payload::Output(output) if output.stream() == pb::OutputStream::Stdout => {
                stdout.extend_from_slice(&output.data);
            }
            pb::event::Payload::Output(output) => stderr.extend_from_slice(&output.data),
            other => rest.push((*seq, other.clone())),
        }
    }
    (stdout, stderr, rest)
}

// promise: O-3
async fn cut_off_reader_continues_without_gap_or_repeat(kennel: &Kennel) {
    let mut client = kennel.client().await;
    let run = must("spawn", client.spawn(naughty(&["bytes", "1500000"])).await);

    for by_cursor in [true, false] {
        let mut heard = Heard::default();
        let mut breaks = 0;
        while !heard.has_ended() {
            let position = match (by_cursor, heard.cursor.is_empty()) {
                (true, false) => Position::Cursor(heard.cursor.clone().into()),
                _ => Position::AfterSeq(heard.last_seq()),
            };
            let mut stream = must("stream", client.events(&run.run_id, position).await);
            // Read the snapshot and one more message.
            let before = heard.last_seq();
            while heard.last_seq() == before {
                match must(
                    "stream",
                    within("it comes", PATIENCE, stream.message()).await,
                ) {
                    Some(message) => heard.take(message),
                    None => break,
                }
            }
            breaks += 1;
        }
        assert!(heard.stdout == pattern(1_500_000), "by cursor: {by_cursor}");
        assert!(breaks > 2, "it was cut off {breaks} times");
    }
}

// promise: O-7
async fn position_beyond_head_is_refused_except_live(kennel: &Kennel) {
    let mut client = kennel.client().await;
    let go = kennel.scratch().join("go-position_beyond");
    let script = format!(
        "echo before; while [ ! -e {} ]; do sleep 0.01; done; echo after",
        go.display()
    );
    let run = must("spawn", client.spawn(sh(&script)).await);
    client.hear_text(&run.run_id, "before\n").await;

    let refused = client
        .hear_all(&run.run_id, 1_000_000)
        .await
        .expect_err("far ahead");
    assert_eq!(
        (
            complaint(&refused).code,
            complaint(&refused).reason.as_str()
        ),
        (Code::OutOfRange, "CURSOR_AHEAD")
    );
    let mut stream = must(
        "stream",
        client
            .events(&run.run_id, Position::Live(pb::FromLive {}))
            .await,
    );
    let first = must(
        "stream",
        within("a snapshot", PATIENCE, stream.message()).await,
    );
    let mut heard = Heard::default();
    heard.take(first.expect("a snapshot"));
    assert_eq!((heard.snapshots, heard.events.len()), (1, 0));
    std::fs::write(&go, "").expect("written");
    while let Some(message) = must(
        "stream",
        within("it continues", PATIENCE, stream.message()).await,
    ) {
        heard.take(message);
    }
    assert_eq!(heard.text(), "after\n");
    assert!(heard.has_ended());
}

// promise: O-9
async fn input_comes_whole_and_ends(kennel: &Kennel) {
    let mut client = kennel.client().await;
    let input = pattern(1024 * 1024);
    let mut spec = argv(&["/bin/cat"]);
    spec.initial_input = Some(input.clone().into());
    let run = must("spawn", client.spawn(spec).await);
    let heard = must(
        "stream",
        within("it ends", PATIENCE, client.hear_all(&run.run_id, 0)).await,
    );
    assert!(heard.stdout == input);

    let run = must(
        "spawn",
        client
            .spawn(sh("cat; [ -c /dev/stdin ] && echo a device"))
            .await,
    );
    let heard = must(
        "stream",
        within(
            "no input is an end",
            PATIENCE,
            client.hear_all(&run.run_id, 0),
        )
        .await,
    );
    assert_eq!(heard.text(), "a device\n");
}

// promise: O-8
async fn a_silent_stream_has_a_heartbeat(kennel: &Kennel) {
    let mut client = kennel.client().await;
    let run = must(
        "spawn",
        client.spawn(naughty(&["sleep"]).label("a", "b")).await,
    );
    let request = pb::StreamEventsRequest {
        run_id: run.run_id.clone(),
        position: None,
        heartbeat_interval: Some(prost_types::Duration {
            seconds: 1,
            nanos: 0,
        }),
        on_gap: pb::OnGap::Continue.into(),
        output_view: pb::OutputView::Raw.into(),
        ..pb::StreamEventsRequest::default()
    };
    let mut stream = must("stream", client.process.stream_events(request).await).into_inner();
    loop {
        let message = must(
            "stream",
            within("a heartbeat", PATIENCE, stream.message()).await,
        );
        let message = message.expect("the run lives");
        let beats = message.run_events.iter().flat_map(|run| &run.events);
        if beats
            .into_iter()
            .any(|e| matches!(e.payload, Some(pb::event::Payload::Heartbeat(_))))
        {
            break;
        }
    }
}

// promise: O-4
#[tokio::test(flavor = "multi_thread")]
async fn output_before_a_crash_is_read_afterwards() {
    let mut kennel = Kennel::on_sqlite().await;
    let mut client = kennel.client().await;
    let script = format!(
        "{} bytes 500000; echo; exec sleep 300",
        kennel_tests::programs::naughty().display()
    );
    let run = must("spawn", client.spawn(sh(&script)).await);
    let mut stream = must("stream", client.events_after(&run.run_id, 0).await);
    let mut before = Heard::default();
    while before.stdout.len() < 500_001 {
        let message = must("stream", within("output", PATIENCE, stream.message()).await);
        before.take(message.expect("the run lives"));
    }
    kennel.kill_keeper();
    kennel.restart().await;
    let mut client = kennel.client().await;
    let after = must(
        "stream",
        within("it has ended", PATIENCE, client.hear_all(&run.run_id, 0)).await,
    );
    assert!(
        after.stdout == before.stdout,
        "{} and {}",
        after.stdout.len(),
        before.stdout.len()
    );
    assert!(
        after.events.starts_with(&before.events),
        "no seq has two contents"
    );
    assert!(after.has_ended());
}
