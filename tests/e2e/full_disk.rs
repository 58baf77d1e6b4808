//! The disk is full, and each run behaves by its policy; received and missing bytes are exactly the written ones.

use crate::store_weather::{Full, ROOM, has_met, is_dead};
use kennel_proto::pb::{
    self, DiskFullAction, RunState, event::Payload, stream_events_request::Position,
};
use kennel_tests::{
    Client, Footprint, Kennel, Options, PATIENCE, RunExt, STORE_PATIENCE, SpecExt, complaint,
    eventually, must, sh, within,
};
use std::{fs, path::Path};

/// Bytes that one of them writes at a time.
const PIECE: u64 = 50_000;
/// So many pieces are more than pipes and their readers can hold.
const MANY: u64 = 40;
/// Bytes of a run that waits for space.
const MUCH: u64 = 1_000_000;

// promise: O-18, O-18a
#[tokio::test(flavor = "multi_thread")]
async fn each_run_follows_its_policy_on_full_disk() {
    let options = Options {
        data_room: Some(ROOM),
        ..Options::default()
    };
    let kennel = Kennel::start(options).await;
    let mut client = kennel.client().await;
    let place = |name: &str| kennel.scratch().join(name);
    let (go, calm, end, count) = (place("go"), place("calm"), place("end"), place("count"));
    let waits = format!("echo up; {}", until(&go, "sleep 0.05"));
    let piece = format!(
        "head -c {PIECE} /dev/zero; n=$((n+1)); echo $n > {0}.new; mv {0}.new {0}",
        count.display()
    );
    let continues = format!(
        "{waits}; n=0; {}; {}; echo bye; exit 4",
        until(&calm, &piece),
        until(&end, "sleep 0.05")
    );
    let mut begin = async |script: String, action| {
        let spec = sh(&script).on_disk_full(action);
        let run = must("spawn", client.spawn(spec).await);
        client.hear_up(&run.run_id).await;
        run
    };
    let waits_for_room = format!("{waits}; head -c {MUCH} /dev/zero; exit 3");
    let blocked = begin(waits_for_room, DiskFullAction::Block).await;
    let dropped = begin(continues, DiskFullAction::Drop).await;
    let paused = begin("echo up; exec sleep 1000".to_owned(), DiskFullAction::Block).await;
    let floods = format!("{waits}; exec cat /dev/zero");
    let aborted = begin(floods, DiskFullAction::Abort).await;

    let full = Full::make(&kennel);
    fs::write(&go, "").expect("written");
    is_dead("the one that is to be stopped", &aborted).await;
    eventually("the one that goes on does", PATIENCE, || {
        let pieces = fs::read_to_string(&count).ok()?;
        (pieces.trim().parse::<u64>().ok()? >= MANY).then_some(())
    })
    .await;
    fs::write(&calm, "").expect("written");
    has_met(&kennel, &blocked).await;
    let refused = client.pause(&paused.run_id).await.expect_err("no room");
    assert_eq!(
        refused.code(),
        tonic::Code::ResourceExhausted,
        "{refused:?}"
    );
    assert_eq!(complaint(&refused).reason, "SIGNAL_FAILED");
    assert!(refused.message().contains("No space left"), "{refused:?}");
    full.make_room();
    must("pause", client.pause(&paused.run_id).await);
    must("abort", client.abort(&paused.run_id).await);

    let warned = within("a warning comes", STORE_PATIENCE, async {
        Heard::read(&client, &dropped.run_id, |heard| !heard.warnings.is_empty()).await
    });
    let warned = warned.await;
    let exact = format!("{} bytes of stdout", warned.missing);
    assert!(
        warned.missing > PIECE && warned.warnings[0].contains(&exact),
        "{warned:?}"
    );
    fs::write(&end, "").expect("written");

    let ended = has_ended(&mut client, &dropped.run_id).await;
    assert_eq!(ended.code(), Some(4));
    let heard = Heard::read(&client, &dropped.run_id, |_| false).await;
    let pieces = fs::read_to_string(&count).expect("it was counted");
    let pieces = PIECE * pieces.trim().parse::<u64>().expect("a number");
    assert_eq!(heard.came + heard.missing, 3 + pieces + 4, "{heard:?}");
    assert_eq!(heard.missing, warned.missing, "{heard:?}");
    assert_eq!(heard.reasons, [pb::GapReason::DiskFull]);

    let ended = has_ended(&mut client, &blocked.run_id).await;
    assert_eq!(ended.code(), Some(3));
    let heard = Heard::read(&client, &blocked.run_id, |_| false).await;
    assert_eq!((heard.came, heard.missing), (3 + MUCH, 0), "{heard:?}");
    assert!(
        heard.warnings[0].contains("no output is missing"),
        "{heard:?}"
    );

    let ended = has_ended(&mut client, &aborted.run_id).await;
    assert_eq!(ended.state(), RunState::Failed);
    let reason = ended.end_reason.and_then(|end| end.reason);
    let disk = pb::end_reason::LimitExceeded {
        limit: pb::Limit::Disk.into(),
    };
    assert_eq!(reason, Some(pb::end_reason::Reason::LimitExceeded(disk)));
    let heard = Heard::read(&client, &aborted.run_id, |_| false).await;
    assert!(heard.missing > 0, "{heard:?}");
    for run in [&blocked, &dropped, &aborted] {
        Footprint::of_run(run).assert_nothing_left();
    }
}

/// Returns a loop of the shell.
fn until(file: &Path, what: &str) -> String {
    format!("until [ -e {} ]; do {what}; done", file.display())
}

async fn has_ended(client: &mut Client, run_id: &str) -> pb::Run {
    let ended = within("it ends", STORE_PATIENCE, client.ended(run_id)).await;
    must("wait", ended)
}

/// Standard output received by a reader from the beginning.
#[derive(Debug, Default)]
struct Heard {
    came: u64,
    missing: u64,
    reasons: Vec<pb::GapReason>,
    warnings: Vec<String>,
}

impl Heard {
    /// Reads until it is enough, or to the end.
    async fn read(client: &Client, run_id: &str, enough: impl Fn(&Self) -> bool) -> Self {
        let mut client = client.clone();
        let stream = client.events(run_id, Position::AfterSeq(0)).await;
        let mut stream = must("stream", stream);
        let mut heard = Self::default();
        while let Some(message) = must("the rest", stream.message().await) {
            let events = message.run_events.into_iter().flat_map(|run| run.events);
            events.for_each(|event| heard.take(event.payload.expect("a known one")));
            if enough(&heard) {
                break;
            }
        }
        heard
    }

    fn take(&mut self, payload: Payload) {
        match payload {
            Payload::Output(output) => {
                assert_eq!(output.offset, self.came + self.missing);
                self.came += output.data.len() as u64;
            }
            Payload::Gap(gap) => {
                self.reasons.push(gap.reason());
                let stdout = gap.missing.first().expect("each stream is named");
                self.missing += stdout.bytes.expect("it was counted");
                assert_eq!(self.came + self.missing, stdout.end_offset);
            }
            Payload::Warning(warning) => self.warnings.push(warning.message),
            _ => {}
        }
    }
}
