//! Output of ended runs is removed by the node's limits, and every reader can tell exactly which bytes it has not seen.
//! The limits themselves, and directories that cannot be removed: `supervisor/tests/runs/retention.rs`.

use kennel_proto::pb::{
    self, GapReason, OutputRemovalReason, OutputStream, event::Payload, lifecycle::Station,
    output_part::Part, stream_events_request::Position,
};
use kennel_tests::{
    Client, Kennel, Options, PATIENCE, RunExt, complaint, eventually_async, must, programs, sh,
    shell::{run_to_end, text},
};
use std::time::Duration;
use tonic::Code;

/// Longest wait for the removal: the check runs every ten seconds, and the machine may be busy.
const REMOVED_MAX: Duration = Duration::from_mins(1);
const BYTES: u64 = 3_000_000;

async fn removed(client: &Client, run_id: &str) -> pb::OutputRemoval {
    eventually_async("its output is removed", REMOVED_MAX, async || {
        let run = must("get", client.clone().get(run_id).await);
        run.output_removed
    })
    .await
}

// promise: O-31, O-31a
#[tokio::test(flavor = "multi_thread")]
async fn removed_run_reports_all_its_output_missing() {
    let mut kennel = Kennel::start(Options {
        words: vec!["--retain-at-least", "0s", "--retain-runs", "1"],
        ..Options::default()
    })
    .await;
    let mut client = kennel.client().await;
    let script = format!(
        "{} bytes {BYTES}; echo error >&2; exit 3",
        programs::naughty().display()
    );
    let first = must("spawn", client.spawn(sh(&script)).await);
    let mut early = Count::default();
    early.read(&kennel, &first.run_id, 100_000).await;
    must("wait", client.ended(&first.run_id).await);
    assert!(kennel.run_dir(&first.run_id).exists());
    let second = must("spawn", client.spawn(sh("echo kept")).await);
    must("wait", client.ended(&second.run_id).await);

    let removal = removed(&client, &first.run_id).await;
    assert_eq!(removal.reason(), OutputRemovalReason::OwnerRuns);
    assert_eq!((removal.stdout_bytes, removal.stderr_bytes), (BYTES, 6));
    assert!(removal.remove_time.is_some());
    let gone = async || (!kennel.run_dir(&first.run_id).exists()).then_some(());
    eventually_async("its directory goes", PATIENCE, gone).await;

    for life in ["the same server", "the next server"] {
        let mut early = early.clone();
        early.read(&kennel, &first.run_id, 0).await;
        let mut late = Count::default();
        late.read(&kennel, &first.run_id, 0).await;
        for (who, count) in [("early", &early), ("late", &late)] {
            assert_eq!(count.came + count.missing, BYTES + 6, "{who}, {life}");
            assert!(count.ended && count.gaps > 0, "{who}, {life}: {count:?}");
            let stations = ["recorded", "started", "exited", "closed", "empty", "ended"];
            let mut came = count.stations.clone();
            came.sort_unstable_by_key(|came| stations.iter().position(|one| one == came));
            assert_eq!(came, stations, "{who}, {life}");
        }
        assert_eq!((late.came, late.missing), (0, BYTES + 6), "{life}");
        assert!(early.came >= 100_000 && early.missing > 0, "{early:?}");
        let run = must("get", client.get(&first.run_id).await);
        assert_eq!(run.code(), Some(3));
        let kept = must("stream", client.hear_all(&second.run_id, 0).await);
        assert_eq!(kept.text(), "kept\n");
        assert!(
            must("get", client.get(&second.run_id).await)
                .output_removed
                .is_none()
        );
        if life == "the same server" {
            kennel.replace_server().await;
            client = kennel.client().await;
        }
    }
    assert_other_ways_tell_it(&kennel, &mut client, &first.run_id).await;
}

/// Checks reads by offset, without gaps, and the command line.
async fn assert_other_ways_tell_it(kennel: &Kennel, client: &mut Client, run_id: &str) {
    let request = pb::ReadOutputRequest {
        run_id: run_id.to_owned(),
        stream: OutputStream::Stdout.into(),
        ..pb::ReadOutputRequest::default()
    };
    let read = must("read", client.process.read_output(request).await).into_inner();
    let parts: Vec<_> = read.parts.iter().map(|part| part.part.clone()).collect();
    assert_eq!(parts, [Some(Part::RemovedBytes(BYTES))]);
    assert_eq!((read.end_offset, read.next_offset), (BYTES, BYTES));
    assert!(read.output_removed.is_some() && read.r#final);

    let request = pb::StreamEventsRequest {
        run_id: run_id.to_owned(),
        on_gap: pb::OnGap::Fail.into(),
        ..pb::StreamEventsRequest::default()
    };
    let stream = client.process.stream_events(request).await;
    let mut stream = must("stream", stream).into_inner();
    let refused = loop {
        if let Err(status) = stream.message().await {
            break complaint(&status);
        }
    };
    let expired = (Code::OutOfRange, "CURSOR_EXPIRED");
    assert_eq!((refused.code, refused.reason.as_str()), expired);

    let logs = run_to_end(kennel.cli(&["logs", run_id]), PATIENCE).await;
    assert!(logs.status.success() && logs.stdout.is_empty(), "{logs:?}");
    let said = String::from_utf8_lossy(&logs.stderr).into_owned();
    assert!(said.contains("removed after the run's end"), "{said}");
    assert!(said.contains(&format!("{BYTES} bytes of stdout")), "{said}");
    let get = text(&run_to_end(kennel.cli(&["get", run_id]), PATIENCE).await);
    assert!(
        get.contains("removed at") && get.contains("its owner has newer ones"),
        "{get}"
    );
    let status = text(&run_to_end(kennel.cli(&["status"]), PATIENCE).await);
    assert!(
        status.contains("of the last 1 ended runs of each owner"),
        "{status}"
    );
    let info = client.server_info().await.expect("it answers");
    let retention = info.retention.expect("it says");
    assert_eq!(
        (retention.runs_per_owner, retention.node_bytes),
        (Some(1), None)
    );
}

/// Bytes that one reader has received, of both streams together.
#[derive(Clone, Debug, Default)]
struct Count {
    came: u64,
    missing: u64,
    gaps: u32,
    stations: Vec<&'static str>,
    ended: bool,
    cursor: Option<Position>,
}

impl Count {
    /// Reads until so many bytes came (0: to the end).
    async fn read(&mut self, kennel: &Kennel, run_id: &str, enough: u64) {
        let mut client = kennel.client().await;
        let position = self.cursor.clone().unwrap_or(Position::AfterSeq(0));
        let mut stream = must("stream", client.events(run_id, position).await);
        while let Some(message) = must("more", stream.message().await) {
            self.take(message);
            if enough > 0 && self.came >= enough {
                return;
            }
        }
    }

    fn take(&mut self, message: pb::StreamEventsResponse) {
        for event in message.run_events.into_iter().flat_map(|e| e.events) {
            assert!(!self.ended, "something after the end: {event:?}");
            match event.payload.expect("every kind of event is known") {
                Payload::Output(output) => self.came += output.data.len() as u64,
                Payload::Gap(gap) => {
                    assert_eq!(gap.reason(), GapReason::Retention);
                    let missing = gap.missing.iter().map(|m| m.bytes.expect("counted"));
                    self.missing += missing.sum::<u64>();
                    self.gaps += 1;
                }
                Payload::Lifecycle(pb::Lifecycle {
                    station: Some(station),
                }) => {
                    self.ended = matches!(station, Station::Ended(_));
                    self.stations.push(match station {
                        Station::Recorded(_) => "recorded",
                        Station::Started(_) => "started",
                        Station::LeaderExited(_) => "exited",
                        Station::StreamsClosed(_) => "closed",
                        Station::TreeEmpty(_) => "empty",
                        Station::Ended(_) => "ended",
                        other => panic!("{other:?}"),
                    });
                }
                _ => {}
            }
        }
        self.cursor = Some(Position::Cursor(message.cursor));
    }
}
