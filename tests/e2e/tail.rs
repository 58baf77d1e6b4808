//! The tail of the output, found by the server; and selected kinds of events.

use kennel_proto::pb::{
    self, EventKind, event::Payload, from_tail::Amount, stream_events_request::Position,
};
use kennel_tests::{Client, Heard, Kennel, PATIENCE, SpecExt, cases, complaint, must, sh, within};
use std::fs;
use tonic::Code;

cases! {
    fn streams_give_tails_and_kinds(mut Kennel::on_sqlite().await);
    tail_over_a_gap_reports_it,
    only_requested_kinds_come_and_cursors_continue,
    tail_is_last_lines_then_new_ones,
}

fn ask(run_id: &str, position: Position, kinds: &[EventKind]) -> pb::StreamEventsRequest {
    pb::StreamEventsRequest {
        run_id: run_id.to_owned(),
        position: Some(position),
        kinds: kinds.iter().map(|kind| (*kind).into()).collect(),
        ..pb::StreamEventsRequest::default()
    }
}

fn tail(amount: Amount) -> Position {
    Position::Tail(pb::FromTail {
        amount: Some(amount),
    })
}

/// Returns all messages of a stream until it ends.
async fn heard(client: &mut Client, request: pb::StreamEventsRequest) -> Heard {
    let mut stream = must("stream", client.process.stream_events(request).await).into_inner();
    let mut heard = Heard::default();
    while let Some(message) = must("read", within("the end", PATIENCE, stream.message()).await) {
        heard.take(message);
    }
    heard
}

// promise: O-20
async fn tail_is_last_lines_then_new_ones(kennel: &mut Kennel) {
    let mut client = kennel.client().await;
    let go = kennel.scratch().join("go");
    // A huge line, a progress bar, binary bytes, and lines of both streams, one of them unterminated.
    let script = format!(
        r#"w() {{ printf "$1"; sleep 0.05; }}
        w 'first\n'; head -c 3000000 /dev/zero | tr '\0' y; w '\n'; w '1%%\r2%%\r3%%\n'; w '\377\000\n'
        printf 'oh\nno' >&2; sleep 0.05; w 'last\n'; w 'open'
        while [ ! -e {} ]; do sleep 0.01; done; echo end"#,
        go.display()
    );
    let run = must("spawn", client.spawn(sh(&script)).await);
    client.hear_text(&run.run_id, "open").await;
    let huge = [vec![b'y'; 3_000_000], b"\n".to_vec()].concat();
    let huge_first = [&huge[..], b"1%\r2%\r3%\n\xff\0\nlast\nopen"].concat();
    let wanted: [(Amount, &[u8], &[u8]); 6] = [
        (Amount::Lines(0), b"", b""),
        (Amount::Lines(1), b"open", b""),
        (Amount::Lines(3), b"last\nopen", b"no"),
        (
            Amount::Lines(6),
            b"1%\r2%\r3%\n\xff\0\nlast\nopen",
            b"oh\nno",
        ),
        (Amount::Lines(7), &huge_first, b"oh\nno"),
        (Amount::Bytes(11), b"last\nopen", b"no"),
    ];
    // Read existing messages up to the head, and the position after each, including the snapshot's.
    let mut begun = Vec::new();
    for (amount, stdout, stderr) in wanted {
        let mut request = ask(&run.run_id, tail(amount), &[]);
        request.until = pb::StreamUntil::Head.into();
        let stopped = heard(&mut client, request).await;
        assert_eq!(stopped.snapshots, 1);
        assert!(
            stopped.stdout == stdout,
            "{amount:?}: {}",
            stopped.stdout.len()
        );
        assert_eq!(stopped.stderr, stderr, "{amount:?}");
        let request = ask(&run.run_id, tail(amount), &[]);
        let mut stream = must("stream", client.process.stream_events(request).await).into_inner();
        let snapshot = must(
            "read",
            within("a snapshot", PATIENCE, stream.message()).await,
        );
        let cursors = [snapshot.expect("one").cursor, stopped.cursor.clone().into()];
        begun.push((amount, stdout, stderr, stopped, cursors, stream));
    }
    kennel.replace_server().await;
    client = kennel.client().await;
    fs::write(&go, "").expect("written");
    for (amount, stdout, stderr, stopped, [first, last], former) in begun {
        drop(former);
        let resumed = heard(&mut client, ask(&run.run_id, Position::Cursor(first), &[])).await;
        assert!(resumed.stdout == [stdout, b"end\n"].concat(), "{amount:?}");
        assert_eq!(resumed.stderr, stderr, "{amount:?}");
        assert!(resumed.has_ended());
        let rest = heard(&mut client, ask(&run.run_id, Position::Cursor(last), &[])).await;
        assert_eq!((rest.text(), rest.stderr.len()), ("end\n".to_owned(), 0));
        let seqs = |heard: &Heard| heard.events.iter().map(|(seq, _)| *seq).collect::<Vec<_>>();
        assert_eq!([seqs(&stopped), seqs(&rest)].concat(), seqs(&resumed));
        // Once the run has ended, its last line differs.
        let ended = heard(&mut client, ask(&run.run_id, tail(Amount::Lines(1)), &[])).await;
        assert_eq!(ended.text(), "openend\n");
    }
    let stderr = ask(&run.run_id, tail(Amount::Lines(1)), &[EventKind::Stderr]);
    let stderr = heard(&mut client, stderr).await;
    assert_eq!(
        (&stderr.stdout[..], &stderr.stderr[..]),
        (&b""[..], &b"no"[..])
    );
}

// promise: O-20
async fn tail_over_a_gap_reports_it(kennel: &mut Kennel) {
    let mut client = kennel.client().await;
    let script = "seq -f 'line %.0f' 100000 399999";
    for on_full in [pb::OutputOverflow::Rotate, pb::OutputOverflow::HeadTail] {
        let spec = sh(script).kept_output(1 << 20, on_full);
        let run = must("spawn", client.spawn(spec).await);
        must("wait", client.ended(&run.run_id).await);
        let written = 300_000 * 12;
        let few = heard(&mut client, ask(&run.run_id, tail(Amount::Lines(3)), &[])).await;
        assert_eq!(few.text(), "line 399997\nline 399998\nline 399999\n");
        assert!(!few.events.iter().any(|(_, p)| matches!(p, Payload::Gap(_))));
        // A longer tail spans the hole (HeadTail), or begins with the gap (Rotate).
        let request = ask(&run.run_id, tail(Amount::Lines(1_000_000)), &[]);
        let mut stream = must("stream", client.process.stream_events(request).await).into_inner();
        let (mut at, mut missing) = (0, 0);
        while let Some(message) = must("read", stream.message().await) {
            for event in message.run_events.into_iter().flat_map(|e| e.events) {
                match event.payload {
                    Some(Payload::Output(output)) => {
                        assert_eq!(output.offset, at);
                        at += output.data.len() as u64;
                    }
                    Some(Payload::Gap(gap)) => {
                        missing += gap.missing[0].bytes.expect("it is known");
                        at = gap.missing[0].end_offset;
                    }
                    _ => {}
                }
            }
        }
        assert_eq!(at, written);
        assert!(missing > 0);
    }
}

// promise: O-21
async fn only_requested_kinds_come_and_cursors_continue(kennel: &mut Kennel) {
    let mut client = kennel.client().await;
    let go = kennel.scratch().join("go-on");
    let script = format!(
        "echo out; echo err >&2; while [ ! -e {} ]; do sleep 0.01; done",
        go.display()
    );
    let run = must("spawn", client.spawn(sh(&script)).await);
    client.hear_text(&run.run_id, "out\n").await;
    let mut request = ask(
        &run.run_id,
        Position::Beginning(pb::FromBeginning {}),
        &[EventKind::Warning],
    );
    request.heartbeat_interval = Some(prost_types::Duration {
        seconds: 1,
        nanos: 0,
    });
    // Only heartbeats arrive; their positions advance past skipped events.
    let mut stream = must("stream", client.process.stream_events(request).await).into_inner();
    let cursor = loop {
        let message = must(
            "read",
            within("a heartbeat", PATIENCE, stream.message()).await,
        );
        let message = message.expect("the run lives");
        let events = &message.run_events[0];
        match &events.events[0].payload {
            Some(Payload::Heartbeat(heartbeat)) if heartbeat.head_seq == events.base_seq => {
                break message.cursor;
            }
            Some(Payload::Heartbeat(_) | Payload::Snapshot(_)) => {}
            other => panic!("{other:?}"),
        }
    };
    fs::write(&go, "").expect("written");
    let all = heard(&mut client, ask(&run.run_id, Position::Cursor(cursor), &[])).await;
    assert_eq!((&all.stdout[..], &all.stderr[..]), (&b""[..], &b""[..]));
    assert!(all.has_ended());
    let beginning = || Position::Beginning(pb::FromBeginning {});
    let stations = ask(&run.run_id, beginning(), &[EventKind::Lifecycle]);
    let stations = heard(&mut client, stations).await;
    assert_eq!(stations.stations()[..2], ["recorded", "started"]);
    assert!(stations.has_ended() && stations.text().is_empty());
    let whole = heard(&mut client, ask(&run.run_id, beginning(), &[])).await;
    for event in &stations.events {
        assert!(whole.events.contains(event), "{event:?}");
    }
    let stderr = ask(&run.run_id, beginning(), &[EventKind::Stderr]);
    let stderr = heard(&mut client, stderr).await;
    assert_eq!(
        (&stderr.stdout[..], &stderr.stderr[..]),
        (&b""[..], &b"err\n"[..])
    );

    let nothing = ask(&run.run_id, tail(Amount::Lines(1)), &[EventKind::Lifecycle]);
    let refused = client.process.stream_events(nothing).await;
    let complaint = complaint(&refused.expect_err("refused"));
    assert_eq!(
        (complaint.code, complaint.fields),
        (Code::InvalidArgument, vec!["tail".to_owned()])
    );
}
