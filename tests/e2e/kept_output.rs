//! A run retains no more output than its bound, and every reader can tell exactly which bytes it has not seen.

use crate::play_scenes;
use kennel_proto::pb::{self, event::Payload, stream_events_request::Position};
use kennel_tests::{Kennel, RunExt, SpecExt, complaint, must, pattern, sh, within};
use std::{fs, time::Duration};
use tonic::Code;

const MIB: usize = 1 << 20;
/// Long enough for all of it on a busy machine.
const LONG: Duration = Duration::from_mins(2);

// promise: O-11
#[tokio::test(flavor = "multi_thread")]
async fn read_and_missing_output_equal_written() {
    let kennel = Kennel::on_sqlite().await;
    let mut client = kennel.client().await;
    let half = pattern(6 * MIB);
    let go = kennel.scratch().join("go");
    for on_full in [pb::OutputOverflow::Rotate, pb::OutputOverflow::HeadTail] {
        let script = format!(
            "{0} bytes {1}; while [ ! -e {2} ]; do sleep 0.01; done; {0} bytes {1}",
            kennel_tests::programs::naughty().display(),
            half.len(),
            go.display(),
        );
        let spec = sh(&script).kept_output(MIB as u64, on_full);
        let run = must("spawn", client.spawn(spec.clone()).await);
        let kept = run.spec.as_ref().and_then(|s| s.output).expect("a bound");
        assert_eq!(
            (kept.max_bytes, kept.on_full()),
            (Some(MIB as u64), on_full)
        );
        // Reads return the effective values of omitted fields.
        assert_eq!(kept.on_disk_full(), pb::DiskFullAction::Block);
        let mut live = Count::of(&half);
        let reads = Box::pin(live.read(&kennel, &run.run_id, 0));
        let kills = async {
            let mut early = Count::of(&half);
            early.read(&kennel, &run.run_id, MIB as u64).await;
            kennel.kill_server();
            fs::write(&go, "").expect("written");
            early.read(&kennel, &run.run_id, 0).await;
            early
        };
        let both = Box::pin(async { tokio::join!(kills, reads) });
        let (early, ()) = within("they come to the end", LONG, both).await;
        client = kennel.client().await;
        let ended = must("wait", client.ended(&run.run_id).await);
        assert_eq!(ended.code(), Some(0));
        let mut late = Count::of(&half);
        let reads = Box::pin(late.read(&kennel, &run.run_id, 0));
        within("a late one", LONG, reads).await;

        let written = 2 * half.len() as u64;
        for (who, count) in [("live", &live), ("early", &early), ("late", &late)] {
            assert_eq!(count.came + count.missing, written, "{who}: {count:?}");
            assert!(count.ended, "{who}");
        }
        assert!((700_000..MIB as u64).contains(&late.came), "{late:?}");
        assert_eq!(late.gaps, 1, "{late:?}");
        let dir = kennel.data_dir().join("runs").join(&run.run_id);
        let files = fs::read_dir(dir).expect("its directory");
        let sizes = files.map(|f| f.and_then(|f| f.metadata()).map_or(0, |m| m.len()));
        let size: u64 = sizes.sum();
        assert!(size < MIB as u64 + 64 * 1024, "{size} bytes on disk");
        fs::remove_file(&go).expect("it was there");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn output_beyond_bound_is_refused_or_ends_run() {
    let kennel = Kennel::on_sqlite().await;
    play_scenes! {
        &kennel;
        expired_position_is_refused_if_gaps_are_unwanted,
        run_over_its_output_bound_ends_by_policy,
    }
}

// promise: O-12
async fn expired_position_is_refused_if_gaps_are_unwanted(kennel: &Kennel) {
    let mut client = kennel.client().await;
    let script = format!(
        "{} bytes 4000000",
        kennel_tests::programs::naughty().display()
    );
    let spec = sh(&script).kept_output(MIB as u64, pb::OutputOverflow::Rotate);
    let run = must("spawn", client.spawn(spec).await);
    must("wait", client.ended(&run.run_id).await);
    let ask = |position| pb::StreamEventsRequest {
        run_id: run.run_id.clone(),
        position: Some(position),
        heartbeat_interval: None,
        on_gap: pb::OnGap::Fail.into(),
        output_view: pb::OutputView::Raw.into(),
        ..pb::StreamEventsRequest::default()
    };
    let stream = client.process.stream_events(ask(Position::AfterSeq(0)));
    let mut stream = must("stream", stream.await).into_inner();
    let mut first_seq = 0;
    let refused = loop {
        match stream.message().await {
            Ok(message) => {
                let message = message.expect("it does not end in order");
                for event in message.run_events.iter().flat_map(|e| &e.events) {
                    match event.payload.as_ref().expect("a known one") {
                        Payload::Snapshot(snapshot) => first_seq = snapshot.first_seq,
                        Payload::Lifecycle(_) => {}
                        other => panic!("{other:?}"),
                    }
                }
            }
            Err(status) => break status,
        }
    };
    let complaint = complaint(&refused);
    assert_eq!(
        (complaint.code, complaint.reason.as_str()),
        (Code::OutOfRange, "CURSOR_EXPIRED")
    );
    assert!(first_seq > 3, "{first_seq}");
    // Positions after the missing data yield no gap.
    let whole = ask(Position::AfterSeq(first_seq - 1));
    let mut stream = must("stream", client.process.stream_events(whole).await).into_inner();
    while let Some(message) = must("the rest", stream.message().await) {
        drop(message);
    }
}

// promise: O-19
async fn run_over_its_output_bound_ends_by_policy(kennel: &Kennel) {
    let mut client = kennel.client().await;
    let spec = sh("exec cat /dev/zero").kept_output(MIB as u64, pb::OutputOverflow::Abort);
    let run = must("spawn", client.spawn(spec).await);
    let ended = must("wait", client.ended(&run.run_id).await);
    let reason = ended.end_reason.and_then(|end| end.reason);
    let bytes = pb::end_reason::LimitExceeded {
        limit: pb::Limit::OutputBytes.into(),
    };
    assert_eq!(reason, Some(pb::end_reason::Reason::LimitExceeded(bytes)));
}

/// Standard output that one reader has received, across the deaths of servers.
#[derive(Debug)]
struct Count<'a> {
    half: &'a [u8],
    at: u64,
    came: u64,
    missing: u64,
    gaps: u32,
    ended: bool,
    cursor: Option<Position>,
}

impl<'a> Count<'a> {
    /// Makes the count for a run that writes this twice.
    fn of(half: &'a [u8]) -> Self {
        Self {
            half,
            at: 0,
            came: 0,
            missing: 0,
            gaps: 0,
            ended: false,
            cursor: None,
        }
    }

    /// Reads until it is so far in the output, whatever of it is missing, or to the end.
    async fn read(&mut self, kennel: &Kennel, run_id: &str, enough: u64) {
        while !self.ended {
            let mut client = kennel.client().await;
            let position = match &self.cursor {
                Some(cursor) => cursor.clone(),
                None => Position::AfterSeq(0),
            };
            let Ok(mut stream) = client.events(run_id, position).await else {
                continue;
            };
            while let Ok(Some(message)) = stream.message().await {
                self.take(message);
                if enough > 0 && self.at >= enough {
                    return;
                }
            }
        }
    }

    fn take(&mut self, message: pb::StreamEventsResponse) {
        for event in message.run_events.into_iter().flat_map(|e| e.events) {
            match event.payload.expect("every kind of event is known") {
                Payload::Output(output) => {
                    assert_eq!(output.offset, self.at);
                    self.check(&output.data);
                    self.at += output.data.len() as u64;
                    self.came += output.data.len() as u64;
                }
                Payload::Gap(gap) => {
                    let stdout = gap.missing.first().expect("each stream is named");
                    let bytes = stdout.bytes.expect("it goes on after a cursor");
                    self.at += bytes;
                    assert_eq!(self.at, stdout.end_offset);
                    self.missing += bytes;
                    self.gaps += 1;
                }
                Payload::Lifecycle(pb::Lifecycle {
                    station: Some(pb::lifecycle::Station::Ended(_)),
                }) => self.ended = true,
                _ => {}
            }
        }
        self.cursor = Some(Position::Cursor(message.cursor));
    }

    fn check(&self, mut data: &[u8]) {
        let mut at = usize::try_from(self.at).expect("it fits") % self.half.len();
        while !data.is_empty() {
            let (now, later) = data.split_at(data.len().min(self.half.len() - at));
            assert!(now == &self.half[at..at + now.len()], "at {}", self.at);
            (at, data) = (0, later);
        }
    }
}
