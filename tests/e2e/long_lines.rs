//! Lines longer than usual, up to the length that their reader requests.

use kennel_proto::pb::{self, OutputView, event::Payload};
use kennel_tests::{Client, Kennel, complaint, must, sh};
use prost_types::value::Kind;
use tonic::{Code, Status, Streaming};

/// The longest line that can be requested.
const MOST: u32 = 16 * 1024 * 1024;
/// Larger than any message.
const MESSAGE_BYTES_MAX: usize = 64 * 1024 * 1024;
/// Letters of the written line, without the JSON around them: more than gRPC's own limit of a message.
const LETTERS: usize = 5_000_000;

async fn open(
    client: &Client,
    run_id: &str,
    view: OutputView,
    line_bytes_max: u32,
) -> Result<Streaming<pb::StreamEventsResponse>, Status> {
    let request = pb::StreamEventsRequest {
        run_id: run_id.to_owned(),
        output_view: view.into(),
        line_bytes_max,
        ..pb::StreamEventsRequest::default()
    };
    let mut client = client
        .process
        .clone()
        .max_decoding_message_size(MESSAGE_BYTES_MAX);
    Ok(client.stream_events(request).await?.into_inner())
}

async fn lines(client: &Client, run_id: &str, line_bytes_max: u32) -> Vec<pb::Line> {
    let stream = open(client, run_id, OutputView::JsonLines, line_bytes_max).await;
    let mut stream = must("stream", stream);
    let mut lines = Vec::new();
    while let Some(message) = must("message", stream.message().await) {
        let events = message.run_events.into_iter().flat_map(|e| e.events);
        lines.extend(events.filter_map(|event| match event.payload {
            Some(Payload::Line(line)) => Some(line),
            _ => None,
        }));
    }
    lines
}

// promise: O-41
#[tokio::test(flavor = "multi_thread")]
async fn long_json_lines_are_parsed_on_request() {
    let kennel = Kennel::on_sqlite().await;
    let mut client = kennel.client().await;
    let script = format!(
        r#"printf '{{"a":"'; head -c {LETTERS} /dev/zero | tr '\0' x; printf '"}}\n{{"b":1}}\n'"#
    );
    let run = must("spawn", client.spawn(sh(&script)).await);
    must("end", client.ended(&run.run_id).await);

    let whole = lines(&client, &run.run_id, MOST).await;
    assert_eq!(whole.len(), 2);
    assert!(!whole[0].truncated);
    assert_eq!(whole[0].text.len(), LETTERS + r#"{"a":""}"#.len());
    let Some(Kind::StructValue(found)) = whole[0].json.clone().and_then(|json| json.kind) else {
        panic!("it is not parsed");
    };
    let Some(Kind::StringValue(text)) = &found.fields["a"].kind else {
        panic!("{:?}", found.fields.keys());
    };
    assert_eq!(text.len(), LETTERS);

    // Default and larger limits cut lines.
    for most in [0, 1_000_000] {
        let cut = lines(&client, &run.run_id, most).await;
        let len = usize::try_from(if most == 0 { 65_536 } else { most }).expect("small");
        assert!(cut[0].truncated && cut[0].text.len() == len);
        assert!(
            cut.iter()
                .all(|line| !line.truncated || line.json.is_none())
        );
        let joined: usize = cut.iter().map(|line| line.text.len()).sum();
        assert_eq!(joined, whole.iter().map(|l| l.text.len()).sum::<usize>());
        assert_eq!(cut.last(), whole.last());
    }
    assert_line_limits_are_bounded(&kennel).await;
}

async fn assert_line_limits_are_bounded(kennel: &Kennel) {
    let mut client = kennel.client().await;
    let run = must("spawn", client.spawn(sh("exec sleep 1000")).await);
    for (run_id, view, most) in [
        (&*run.run_id, OutputView::JsonLines, MOST + 1),
        (&*run.run_id, OutputView::JsonLines, 1),
        (&*run.run_id, OutputView::Text, MOST),
        (&*run.run_id, OutputView::Unspecified, MOST),
    ] {
        let refused = open(&client, run_id, view, most).await;
        let found = complaint(&refused.expect_err("refused"));
        assert_eq!(
            (found.code, &found.fields[..]),
            (Code::InvalidArgument, &["line_bytes_max".to_owned()][..])
        );
    }
    // All readers share half a GiB for lines; each has two streams.
    let mut readers = Vec::new();
    let refused = loop {
        match open(&client, &run.run_id, OutputView::JsonLines, MOST).await {
            Ok(stream) => readers.push(stream),
            Err(refused) => break complaint(&refused),
        }
        assert!(readers.len() <= 16, "there is a bound");
    };
    assert_eq!(readers.len(), 16);
    assert_eq!(
        (refused.code, &*refused.reason),
        (Code::ResourceExhausted, "QUOTA_EXCEEDED")
    );
    let usual = open(&client, &run.run_id, OutputView::JsonLines, 0).await;
    usual.expect("lines of the usual length need none of it");
}
