//! Journals of ended runs of which files were cut, changed or removed behind the server's back.

use kennel_proto::pb::{
    self, GapReason, OutputStream, event::Payload, lifecycle::Station, output_part::Part,
    read_output_request::Range,
};
use kennel_tests::{Client, Kennel, PATIENCE, complaint, must, sh, shell::run_to_end};
use std::{
    fs,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
};
use tonic::Code;

const SAID: &str = "two and thirty bytes of the last";

/// A run that has said something and ended, and its directory.
async fn ended(kennel: &Kennel, client: &mut Client) -> (String, PathBuf) {
    let script = format!("printf '{SAID}'; exit 3");
    let run = must("spawn", client.spawn(sh(&script)).await);
    must("wait", client.ended(&run.run_id).await);
    let dir = kennel.run_dir(&run.run_id);
    (run.run_id, dir)
}

fn cut(path: &Path, bytes: u64) {
    let file = fs::OpenOptions::new().write(true).open(path);
    let file = file.expect("it is there");
    let len = file.metadata().expect("its length").len();
    file.set_len(len - bytes).expect("it is cut");
}

/// All events of a run after a position, each with its seq.
async fn events(client: &mut Client, run_id: &str, after: u64) -> Vec<(u64, Payload)> {
    let mut stream = must("stream", client.events_after(run_id, after).await);
    let mut events = Vec::new();
    while let Some(message) = must("read", stream.message().await) {
        for run in message.run_events {
            for event in run.events {
                let seq = run.base_seq + event.seq_delta;
                events.push((seq, event.payload.expect("a kind that is known")));
            }
        }
    }
    events
}

fn is_end((_, payload): &(u64, Payload)) -> bool {
    matches!(payload, Payload::Lifecycle(line) if matches!(line.station, Some(Station::Ended(_))))
}

fn gaps(events: &[(u64, Payload)]) -> Vec<&pb::Gap> {
    let gaps = events.iter().filter_map(|(_, payload)| match payload {
        Payload::Gap(gap) => Some(gap),
        _ => None,
    });
    gaps.collect()
}

async fn output(client: &mut Client, run_id: &str) -> pb::ReadOutputResponse {
    let request = pb::ReadOutputRequest {
        run_id: run_id.to_owned(),
        stream: OutputStream::Stdout.into(),
        range: Some(Range::Offset(0)),
        ..pb::ReadOutputRequest::default()
    };
    must("read", client.process.read_output(request).await).into_inner()
}

/// Zeros in the place of the last lifecycle line, which lies in the index behind its header.
fn lose_last_line(index: &Path) {
    let mut bytes = fs::read(index).expect("it is there");
    let entry = bytes[bytes.len() - 36..].to_vec();
    let number = |bytes: &[u8]| {
        let bytes = bytes.iter().rev();
        bytes.fold(0usize, |sum, byte| sum << 8 | usize::from(*byte))
    };
    let (offset, len) = (number(&entry[16..24]), number(&entry[24..28]));
    bytes[116 + offset..116 + offset + len].fill(0);
    fs::write(index, bytes).expect("written");
}

#[tokio::test(flavor = "multi_thread")]
async fn cut_output_is_told_as_damage() {
    let kennel = Kennel::on_sqlite().await;
    let mut client = kennel.client().await;
    let (run_id, dir) = ended(&kennel, &mut client).await;
    cut(&dir.join("stdout"), 30);
    let heard = events(&mut client, &run_id, 0).await;
    assert!(heard.last().is_some_and(is_end), "{heard:?}");
    let [gap] = gaps(&heard)[..] else {
        panic!("{heard:?}");
    };
    assert_eq!(gap.reason(), GapReason::JournalDamaged);
    assert_eq!(gap.missing[0].bytes, Some(SAID.len() as u64));
    let read = output(&mut client, &run_id).await;
    let parts: Vec<_> = read
        .parts
        .into_iter()
        .filter_map(|part| part.part)
        .collect();
    assert_eq!(
        parts,
        [
            Part::Data(SAID.as_bytes()[..2].to_vec().into()),
            Part::DamagedBytes(30)
        ]
    );
    assert_eq!((read.end_offset, read.end_lost), (SAID.len() as u64, false));
    let logs = run_to_end(kennel.cli(&["logs", &run_id]), PATIENCE).await;
    let said = String::from_utf8_lossy(&logs.stderr).into_owned();
    assert!(said.contains("damaged"), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn lost_end_of_journal_comes_from_record() {
    let kennel = Kennel::on_sqlite().await;
    let mut client = kennel.client().await;
    for damage in ["cut index", "no index", "lost line", "flipped index"] {
        let (run_id, dir) = ended(&kennel, &mut client).await;
        let before = events(&mut client, &run_id, 0).await;
        match damage {
            "cut index" => cut(&dir.join("index"), 2 * 36 + 5),
            "no index" => fs::remove_file(dir.join("index")).expect("it is removed"),
            "lost line" => lose_last_line(&dir.join("index")),
            _ => {
                let index = fs::File::options()
                    .read(true)
                    .write(true)
                    .open(dir.join("index"))
                    .expect("it is there");
                let at = index.metadata().expect("its length").len() - 20;
                let mut byte = [0];
                index.read_exact_at(&mut byte, at).expect("read");
                index.write_all_at(&[!byte[0]], at).expect("written");
            }
        }
        let heard = events(&mut client, &run_id, 0).await;
        assert!(heard.last().is_some_and(is_end), "{damage}: {heard:?}");
        let gaps = gaps(&heard);
        assert!(!gaps.is_empty(), "{damage}: {heard:?}");
        for gap in gaps {
            assert_eq!(gap.reason(), GapReason::JournalDamaged, "{damage}");
        }
        // After whatever seq a reader comes back, it hears of the end.
        for (seq, _) in &before[..before.len() - 1] {
            let rest = events(&mut client, &run_id, *seq).await;
            assert!(
                rest.last().is_some_and(is_end),
                "{damage}: after {seq}: {rest:?}"
            );
        }
        let read = output(&mut client, &run_id).await;
        assert!(read.r#final && read.end_lost, "{damage}: {read:?}");
        let bytes = read.parts.iter().filter_map(|part| match &part.part {
            Some(Part::Data(data)) => Some(data.clone()),
            _ => None,
        });
        let bytes = bytes.collect::<Vec<_>>().concat();
        if damage != "no index" {
            assert_eq!(bytes, SAID.as_bytes(), "{damage}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn journal_that_is_gone_is_data_loss() {
    let kennel = Kennel::on_sqlite().await;
    let mut client = kennel.client().await;
    let (run_id, dir) = ended(&kennel, &mut client).await;
    fs::remove_dir_all(dir).expect("it is removed");
    let refused = client.events_after(&run_id, 0).await.expect_err("refused");
    let complaint = complaint(&refused);
    assert_eq!(
        (complaint.code, complaint.reason.as_str()),
        (Code::DataLoss, "JOURNAL_UNREADABLE")
    );
}
