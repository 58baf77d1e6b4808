//! Views of output: plain text, lines, JSON; the same for any position of the reader.

use kennel_proto::pb::{
    self, OutputStream, OutputView, event::Payload, stream_events_request::Position,
};
use kennel_tests::{Client, Kennel, PATIENCE, SpecExt, cases, must, sh, within};
use prost_types::value::Kind;
use tonic::Code;

cases! {
    fn views_of_output(Kennel::on_sqlite().await);
    a_line_that_is_json_comes_parsed,
    line_with_a_gap_is_shown_cut,
    a_view_that_is_not_known_is_refused,
    view_is_same_wherever_its_reader_resumes,
}

/// Pieces that a reader of a view has received.
#[derive(Clone, Debug, Default, PartialEq)]
struct Shown {
    /// Lines in order, by stream: text, whether it was cut.
    lines: [Vec<(String, bool)>; 2],
    /// Bytes of standard output and standard error.
    bytes: [Vec<u8>; 2],
}

impl Shown {
    fn take(&mut self, message: &pb::StreamEventsResponse) {
        for event in message.run_events.iter().flat_map(|e| &e.events) {
            match &event.payload {
                Some(Payload::Line(line)) => {
                    let line_shown = (line.text.clone(), line.truncated);
                    self.lines[slot(line.stream())].push(line_shown);
                }
                Some(Payload::Output(output)) => {
                    self.bytes[slot(output.stream())].extend(&output.data);
                }
                _ => {}
            }
        }
    }

    fn followed_by(&self, later: &Self) -> Self {
        let mut both = self.clone();
        for stream in 0..2 {
            both.lines[stream].extend(later.lines[stream].clone());
            both.bytes[stream].extend(&later.bytes[stream]);
        }
        both
    }
}

fn slot(stream: OutputStream) -> usize {
    match stream {
        OutputStream::Stdout => 0,
        OutputStream::Stderr => 1,
        OutputStream::Unspecified => panic!("a stream that has no name"),
    }
}

async fn open(
    client: &mut Client,
    run_id: &str,
    view: OutputView,
    position: Position,
) -> tonic::Streaming<pb::StreamEventsResponse> {
    let request = pb::StreamEventsRequest {
        run_id: run_id.to_owned(),
        position: Some(position),
        output_view: view.into(),
        ..pb::StreamEventsRequest::default()
    };
    must("stream", client.process.stream_events(request).await).into_inner()
}

async fn read_all(
    client: &mut Client,
    run_id: &str,
    view: OutputView,
    position: Position,
) -> Shown {
    let mut stream = open(client, run_id, view, position).await;
    let mut shown = Shown::default();
    while let Some(message) = must("read", within("the end", PATIENCE, stream.message()).await) {
        shown.take(&message);
    }
    shown
}

/// Writes that never end at the end of a line, a letter or a sequence. Each waits until the live readers have read the
/// one before.
const AWKWARD: &str = r#"
    w() { printf "$1"; sleep 0.02; }
    w 'one\r\n\033[1'; w ';31mre'; w 'd\033]0;ti'; w 'tle\033\\\n\303'; w '\251t\303\251\302'; w '\2331mX'
    printf 'err' >&2; w '\nlast'; printf 'or\nrest' >&2
    w ' \033[0mline'"#;

fn line(text: &str) -> (String, bool) {
    (text.to_owned(), false)
}

// promise: O-14
async fn view_is_same_wherever_its_reader_resumes(kennel: &Kennel) {
    let mut client = kennel.client().await;
    let mut wanted = vec![];
    let lines = |stdout: &[&str]| {
        [stdout, &["error", "rest"]].map(|all| all.iter().map(|l| line(l)).collect())
    };
    wanted.push((
        OutputView::TextLines,
        Shown {
            lines: lines(&["one", "red", "étéX", "last line"]),
            ..Shown::default()
        },
    ));
    let title = "\x1b[1;31mred\x1b]0;title\x1b\\";
    wanted.push((
        OutputView::Lines,
        Shown {
            lines: lines(&["one", title, "ét\u{e9}\u{9b}1mX", "last \x1b[0mline"]),
            ..Shown::default()
        },
    ));
    wanted.push((
        OutputView::Text,
        Shown {
            bytes: ["one\r\nred\nétéX\nlast line", "error\nrest"]
                .map(|text| text.as_bytes().to_vec()),
            ..Shown::default()
        },
    ));
    for (view, wanted) in wanted {
        let run = must("spawn", client.spawn(sh(AWKWARD)).await);
        // A live reader stores pieces and cursor at each message.
        let beginning = Position::Beginning(pb::FromBeginning {});
        let mut stream = open(&mut client, &run.run_id, view, beginning).await;
        let mut live = Shown::default();
        let mut stops = Vec::new();
        while let Some(message) = must("read", within("live", PATIENCE, stream.message()).await) {
            live.take(&message);
            let events = message.run_events.iter().flat_map(|e| {
                let base = e.base_seq;
                e.events.iter().map(move |event| base + event.seq_delta)
            });
            let seq = events.last().unwrap_or_default();
            stops.push((live.clone(), message.cursor.clone(), seq));
        }
        assert_eq!(live, wanted, "{view:?}");
        // Resumed reads use the next server.
        kennel.kill_server();
        client = kennel.client().await;
        for (before, cursor, seq) in stops {
            let resumed = read_all(&mut client, &run.run_id, view, Position::Cursor(cursor)).await;
            assert_eq!(
                before.followed_by(&resumed),
                wanted,
                "{view:?} by cursor after {seq}"
            );
            // After a seq, a reader completes cut lines, but not cut byte sequences.
            if view == OutputView::Lines {
                let resumed =
                    read_all(&mut client, &run.run_id, view, Position::AfterSeq(seq)).await;
                assert_eq!(before.followed_by(&resumed), wanted, "after seq {seq}");
            }
        }
    }
}

// promise: O-14
async fn a_line_that_is_json_comes_parsed(kennel: &Kennel) {
    let mut client = kennel.client().await;
    let script = r#"echo '{"type":"result","cost":0.25,"big":12345678901234567890}'; echo 'no {json'; echo 7"#;
    let run = must("spawn", client.spawn(sh(script)).await);
    must("wait", client.ended(&run.run_id).await);
    for view in [OutputView::JsonLines, OutputView::TextLines] {
        let beginning = Position::Beginning(pb::FromBeginning {});
        let mut stream = open(&mut client, &run.run_id, view, beginning).await;
        let mut lines = Vec::new();
        while let Some(message) = must("read", stream.message().await) {
            for event in message.run_events.into_iter().flat_map(|e| e.events) {
                if let Some(Payload::Line(line)) = event.payload {
                    lines.push(line);
                }
            }
        }
        assert!(lines[0].text.contains("12345678901234567890"), "{lines:?}");
        let kind = |line: &pb::Line| line.json.clone().and_then(|json| json.kind);
        let parsed: Vec<_> = lines.iter().map(kind).collect();
        if view == OutputView::TextLines {
            assert_eq!(parsed, [None, None, None]);
            continue;
        }
        let Some(Kind::StructValue(object)) = &parsed[0] else {
            panic!("no object: {parsed:?}");
        };
        let text = Kind::StringValue("result".to_owned());
        assert_eq!(object.fields["type"].kind, Some(text));
        assert_eq!(object.fields["cost"].kind, Some(Kind::NumberValue(0.25)));
        assert_eq!(parsed[1..], [None, Some(Kind::NumberValue(7.0))]);
    }
}

// promise: O-15
async fn line_with_a_gap_is_shown_cut(kennel: &Kennel) {
    let mut client = kennel.client().await;
    // A 4 MB line, of which 1 MB is retained.
    let script = "printf begin; head -c 4000000 /dev/zero | tr '\\0' x; echo end; echo whole";
    let spec = sh(script).kept_output(1 << 20, pb::OutputOverflow::Rotate);
    let run = must("spawn", client.spawn(spec).await);
    must("wait", client.ended(&run.run_id).await);
    let beginning = Position::Beginning(pb::FromBeginning {});
    let shown = read_all(&mut client, &run.run_id, OutputView::Lines, beginning).await;
    let [stdout, _] = &shown.lines;
    let (last, rest) = stdout.split_last().expect("lines");
    assert_eq!(*last, line("whole"));
    let (end, pieces) = rest.split_last().expect("pieces");
    assert!(end.0.ends_with("xend") && !end.1, "{}", end.0.len());
    assert!(
        pieces
            .iter()
            .all(|(text, cut)| *cut && text.len() <= 64 * 1024)
    );
    let kept: usize = stdout.iter().map(|(text, _)| text.len()).sum();
    assert!((200_000..1 << 20).contains(&kept), "{kept}");
}

async fn a_view_that_is_not_known_is_refused(kennel: &Kennel) {
    let mut client = kennel.client().await;
    let run = must("spawn", client.spawn(sh("true")).await);
    let request = pb::StreamEventsRequest {
        run_id: run.run_id,
        output_view: 99,
        ..pb::StreamEventsRequest::default()
    };
    let refused = client.process.stream_events(request).await;
    let complaint = kennel_tests::complaint(&refused.expect_err("refused"));
    assert_eq!(
        (complaint.code, complaint.fields),
        (Code::InvalidArgument, vec!["output_view".to_owned()])
    );
}
