//! Output of ended runs is removed by the node's limits, and every reader can tell exactly which bytes it has not seen.

use kennel_proto::pb::{
    self, GapReason, OutputRemovalReason, OutputStream, event::Payload, lifecycle::Station,
    output_part::Part, stream_events_request::Position,
};
use kennel_tests::{
    Client, Kennel, Options, PATIENCE, RunExt, User, complaint, eventually_async, must, programs,
    sh,
    shell::{run_to_end, text},
    within,
};
use std::{
    fs,
    os::unix::fs::{PermissionsExt, chown},
    time::Duration,
};
use tonic::Code;

/// Longest wait for the removal: the check runs every ten seconds, and the machine may be busy.
const REMOVED_MAX: Duration = Duration::from_mins(1);
const BYTES: u64 = 3_000_000;

fn keeping(words: &[&'static str]) -> Options {
    let mut all = vec!["--retain-at-least", "0s"];
    all.extend(words);
    Options {
        words: all,
        ..Options::default()
    }
}

async fn removed(client: &mut Client, run_id: &str) -> pb::OutputRemoval {
    loop {
        let run = must("get", client.get(run_id).await);
        if let Some(removal) = run.output_removed {
            return removal;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn removed_run_reports_all_its_output_missing() {
    let mut kennel = Kennel::start(keeping(&["--retain-runs", "1"])).await;
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

    let waits = Box::pin(removed(&mut client, &first.run_id));
    let removal = within("it is removed", REMOVED_MAX, waits).await;
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

#[tokio::test(flavor = "multi_thread")]
async fn oldest_output_makes_room_on_full_node() {
    let options = keeping(&["--retain-runs", "all", "--retain-bytes", "4M"]);
    let kennel = Kennel::start(options).await;
    let mut client = kennel.client().await;
    let go = kennel.scratch().join("go");
    let script = format!("{} bytes {BYTES}", programs::naughty().display());
    let waits = format!(
        "{script}; while [ ! -e {} ]; do sleep 0.05; done",
        go.display()
    );
    let mut runs = Vec::new();
    for script in [&script, &script, &waits] {
        let run = must("spawn", client.spawn(sh(script)).await);
        if script == &waits {
            let mut live = Count::default();
            live.read(&kennel, &run.run_id, BYTES).await;
        } else {
            must("wait", client.ended(&run.run_id).await);
        }
        runs.push(run.run_id);
    }
    // Three megabytes of a live one, and three of each of the others: there is space for none of them.
    for ended in &runs[..2] {
        let waits = Box::pin(removed(&mut client, ended));
        let removal = within("the ended ones go", REMOVED_MAX, waits).await;
        assert_eq!(removal.reason(), OutputRemovalReason::NodeBytes);
    }
    fs::write(&go, "").expect("written");
    must("wait", client.ended(&runs[2]).await);
    let mut whole = Count::default();
    whole.read(&kennel, &runs[2], 0).await;
    assert_eq!((whole.came, whole.missing), (BYTES, 0), "it fits alone");
}

#[tokio::test(flavor = "multi_thread")]
async fn readers_learn_of_removal_despite_readonly_directory() {
    let options = Options {
        user: User::Unprivileged,
        ..keeping(&["--retain-runs", "1"])
    };
    let kennel = Kennel::start(options).await;
    let mut client = kennel.client().await;
    let first = must("spawn", client.spawn(sh("echo gone")).await);
    must("wait", client.ended(&first.run_id).await);
    let go = kennel.scratch().join("go");
    let script = format!(
        "echo up; while [ ! -e {} ]; do sleep 0.05; done",
        go.display()
    );
    let second = must("spawn", client.spawn(sh(&script)).await);
    client.hear_up(&second.run_id).await;

    let runs = kennel.data_dir().join("runs");
    let owner = fs::metadata(&runs).expect("it is there");
    chown(&runs, Some(0), Some(0)).expect("root may take it");
    fs::set_permissions(&runs, fs::Permissions::from_mode(0o755)).expect("own directory");
    fs::write(&go, "").expect("written");
    must("wait", client.ended(&second.run_id).await);
    let waits = Box::pin(removed(&mut client, &first.run_id));
    within("it is marked", REMOVED_MAX, waits).await;
    let said = async || {
        kennel
            .log()
            .contains("cannot remove output of ended runs")
            .then_some(())
    };
    eventually_async("the log says so", PATIENCE, said).await;
    assert!(kennel.run_dir(&first.run_id).join("index").exists());
    let mut late = Count::default();
    late.read(&kennel, &first.run_id, 0).await;
    assert_eq!((late.came, late.missing, late.ended), (0, 5, true));

    let owner_uid = std::os::unix::fs::MetadataExt::uid(&owner);
    chown(&runs, Some(owner_uid), Some(owner_uid)).expect("root may give it away");
    let gone = async || (!kennel.run_dir(&first.run_id).exists()).then_some(());
    eventually_async("it goes", REMOVED_MAX, gone).await;
    let kept = must("stream", client.hear_all(&second.run_id, 0).await);
    assert_eq!(kept.text(), "up\n");
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
