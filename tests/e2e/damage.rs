//! Journals of ended runs whose files were cut, changed or removed behind the server's back.

use crate::play_scenes;
use kennel_proto::pb::{
    self, GapReason, OutputStream, event::Payload, lifecycle::Station, output_part::Part,
    read_output_request::Range,
};
use kennel_tests::{Client, Kennel, PATIENCE, complaint, eventually, must, sh, shell::run_to_end};
use std::{
    fs,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
};
use tonic::Code;

const SAID: &str = "two and thirty bytes of the last";

/// Returns a run that has written output and ended, and its directory.
async fn ended(kennel: &Kennel, client: &mut Client) -> (String, PathBuf) {
    // `sleep` separates the output from the exit.
    let script = format!("printf '{SAID}'; sleep 0.2; exit 3");
    let run = must("spawn", client.spawn(sh(&script)).await);
    must("wait", client.ended(&run.run_id).await);
    let dir = kennel.run_dir(&run.run_id);
    // Until the server has cleaned up after the run, its journal does not count as closed.
    let server = kennel.server().expect("it serves").pid;
    eventually("the run is tidied up", PATIENCE, || {
        let files = fs::read_dir(format!("/proc/{server}/fd")).ok()?.flatten();
        let mut files = files.filter_map(|file| fs::read_link(file.path()).ok());
        let is_open = files.any(|file| file.starts_with(&dir));
        (!dir.join("child").exists() && !is_open).then_some(())
    })
    .await;
    (run.run_id, dir)
}

fn cut(path: &Path, bytes: u64) {
    let file = fs::OpenOptions::new().write(true).open(path);
    let file = file.expect("it is there");
    let len = file.metadata().expect("its length").len();
    file.set_len(len - bytes).expect("it is cut");
}

/// Returns all events of a run after a position, each with its seq.
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

/// Writes zeros in place of the last lifecycle line, which is in the index after its header.
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
async fn damaged_journals_are_reported_and_repaired_from_row() {
    let kennel = Kennel::on_sqlite().await;
    play_scenes! {
        &kennel;
        truncated_output_is_reported_as_damage,
        entries_of_damaged_journal_come_from_record,
        story_of_lost_journal_comes_from_record,
        journal_of_unknown_version_is_data_loss,
    }
}

// promise: O-40, O-40b
async fn truncated_output_is_reported_as_damage(kennel: &Kennel) {
    let mut client = kennel.client().await;
    let (run_id, dir) = ended(kennel, &mut client).await;
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

/// Returns the entries of the run without output, each with its seq.
fn entries(events: &[(u64, Payload)]) -> Vec<&(u64, Payload)> {
    let is_entry = |payload: &Payload| matches!(payload, Payload::Lifecycle(_));
    let entries = events.iter().filter(|(_, payload)| is_entry(payload));
    entries.collect()
}

/// Returns the bytes of stdout received, and those missing.
fn bytes(events: &[(u64, Payload)]) -> (usize, u64) {
    let came = events.iter().map(|(_, payload)| match payload {
        Payload::Output(output) => output.data.len(),
        _ => 0,
    });
    let missing = gaps(events).into_iter().map(|gap| {
        assert_eq!(gap.reason(), GapReason::JournalDamaged);
        gap.missing[0].bytes.expect("counted")
    });
    (came.sum(), missing.sum())
}

// promise: O-40a
async fn entries_of_damaged_journal_come_from_record(kennel: &Kennel) {
    let mut client = kennel.client().await;
    for damage in [
        "cut index",
        "no output entry",
        "no index",
        "foreign index",
        "lost line",
        "flipped index",
    ] {
        let (run_id, dir) = ended(kennel, &mut client).await;
        let before = events(&mut client, &run_id, 0).await;
        let index = dir.join("index");
        match damage {
            "cut index" => cut(&index, 2 * 36 + 5),
            "no output entry" => cut(&index, 5 * 36),
            "no index" => fs::remove_file(&index).expect("it is removed"),
            "foreign index" => fs::write(&index, "not an index at all").expect("written"),
            "lost line" => lose_last_line(&index),
            _ => {
                let index = fs::File::options()
                    .read(true)
                    .write(true)
                    .open(&index)
                    .expect("it is there");
                let at = index.metadata().expect("its length").len() - 20;
                let mut byte = [0];
                index.read_exact_at(&mut byte, at).expect("read");
                index.write_all_at(&[!byte[0]], at).expect("written");
            }
        }
        let heard = events(&mut client, &run_id, 0).await;
        assert_eq!(entries(&heard), entries(&before), "{damage}");
        let (came, missing) = bytes(&heard);
        assert_eq!(came as u64 + missing, SAID.len() as u64, "{damage}");
        let has_output = !matches!(damage, "no output entry" | "no index" | "foreign index");
        assert_eq!(came > 0, has_output, "{damage}");
        // A reader that resumes after any seq gets the remaining events.
        for (seq, _) in &before {
            let rest = events(&mut client, &run_id, *seq).await;
            let left: Vec<_> = before.iter().filter(|(at, _)| at > seq).cloned().collect();
            assert_eq!(entries(&rest), entries(&left), "{damage}: after {seq}");
        }
        let read = output(&mut client, &run_id).await;
        assert!(read.r#final, "{damage}: {read:?}");
        let bytes = read.parts.iter().filter_map(|part| match &part.part {
            Some(Part::Data(data)) => Some(data.clone()),
            _ => None,
        });
        let bytes = bytes.collect::<Vec<_>>().concat();
        if damage == "foreign index" {
            assert_damaged(&read);
        } else {
            assert!(read.end_lost, "{damage}: {read:?}");
        }
        if !matches!(damage, "no index" | "foreign index") {
            assert_eq!(bytes, SAID.as_bytes(), "{damage}");
        }
    }
}

/// Asserts that all of it is damaged.
#[track_caller]
fn assert_damaged(read: &pb::ReadOutputResponse) {
    let parts: Vec<_> = read.parts.iter().map(|part| part.part.clone()).collect();
    assert_eq!(parts, [Some(Part::DamagedBytes(SAID.len() as u64))]);
}

// promise: O-40a
async fn story_of_lost_journal_comes_from_record(kennel: &Kennel) {
    let mut client = kennel.client().await;
    let (run_id, dir) = ended(kennel, &mut client).await;
    let before = events(&mut client, &run_id, 0).await;
    fs::remove_dir_all(dir).expect("it is removed");
    let heard = events(&mut client, &run_id, 0).await;
    assert_eq!(entries(&heard), entries(&before));
    assert_eq!(bytes(&heard), (0, SAID.len() as u64));
    assert_damaged(&output(&mut client, &run_id).await);
    let why = run_to_end(kennel.cli(&["why", &run_id]), PATIENCE).await;
    let said = String::from_utf8_lossy(&why.stdout).into_owned();
    assert!(
        why.status.success() && said.contains("exited with code 3"),
        "{why:?}"
    );
    assert!(said.contains("damaged"), "{said}");
}

// promise: O-40
async fn journal_of_unknown_version_is_data_loss(kennel: &Kennel) {
    let mut client = kennel.client().await;
    let (run_id, dir) = ended(kennel, &mut client).await;
    let index = fs::File::options().write(true).open(dir.join("index"));
    index
        .expect("it is there")
        .write_all_at(&[99], 8)
        .expect("written");
    let refused = client.events_after(&run_id, 0).await.expect_err("refused");
    let complaint = complaint(&refused);
    assert_eq!(
        (complaint.code, complaint.reason.as_str()),
        (Code::DataLoss, "JOURNAL_UNREADABLE")
    );
}
