//! The events of many runs in one stream: of present runs that match a filter, and of later ones.

use kennel_proto::pb::{self, RunFilter, RunState, stream_events_request::Position};
use kennel_tests::{
    Heard, Kennel, PATIENCE, SpecExt, cases, complaint,
    crowd::{Crowd, beginning, labelled, open},
    must, naughty, pattern, sh,
    shell::run_to_end,
    within,
};
use std::{fs, os::unix::fs::FileExt};
use tonic::Code;

cases! {
    fn streams_of_many_runs(Kennel::on_sqlite().await);
    stream_of_hundred_runs_is_cheap,
    filtered_stream_has_present_and_later_matches,
    newly_matching_run_is_given_whole,
    stream_of_children_has_no_other_runs,
    stream_and_cursor_are_of_run_or_filter,
    server_death_loses_no_byte_of_many_runs,
    unreadable_journal_ends_the_stream_once,
}

// promise: O-22
async fn filtered_stream_has_present_and_later_matches(kennel: &Kennel) {
    let mut client = kennel.client().await;
    let go = kennel.scratch().join("go-filtered_stream");
    let waits = format!(
        "echo begin; while [ ! -e {} ]; do sleep 0.01; done; echo end",
        go.display()
    );
    let past = must(
        "spawn",
        client.spawn(sh("echo past").label("app", "filtered")).await,
    );
    must("wait", client.ended(&past.run_id).await);
    let live = must(
        "spawn",
        client.spawn(sh(&waits).label("app", "filtered")).await,
    );
    must("spawn", client.spawn(sh(&waits).label("app", "y")).await);
    client.hear_text(&live.run_id, "begin\n").await;

    let mut all = open(&mut client, labelled("filtered"), beginning()).await;
    let mut only_live = open(
        &mut client,
        labelled("filtered"),
        Position::Live(pb::FromLive {}),
    )
    .await;
    let last_line = Position::Tail(pb::FromTail {
        amount: Some(pb::from_tail::Amount::Lines(1)),
    });
    let mut tail = open(&mut client, labelled("filtered"), last_line).await;
    // A heartbeat follows the existing messages.
    let mut crowds = [Crowd::default(), Crowd::default(), Crowd::default()];
    for (crowd, stream) in crowds.iter_mut().zip([&mut all, &mut only_live, &mut tail]) {
        while crowd.heartbeats == 0 {
            let message = within("a heartbeat", PATIENCE, stream.message()).await;
            crowd.take(must("read", message).expect("it does not end"));
        }
    }
    let late = must(
        "spawn",
        client.spawn(sh("echo late").label("app", "filtered")).await,
    );
    fs::write(&go, "").expect("written");
    for (crowd, stream) in crowds.iter_mut().zip([&mut all, &mut only_live, &mut tail]) {
        let runs = crowd.runs.len() + 1;
        crowd.until_ended(stream, runs).await;
    }
    let text = |crowd: &Crowd, run: &pb::Run| crowd.runs.get(&run.run_id).map(Heard::text);
    let texts = |crowd: &Crowd| [&past, &live, &late].map(|run| text(crowd, run));
    let some = |text: &str| Some(text.to_owned());
    let [all, only_live, tail] = &crowds;
    assert_eq!(
        texts(all),
        [some("past\n"), some("begin\nend\n"), some("late\n")]
    );
    assert_eq!(texts(only_live), [None, some("end\n"), some("late\n")]);
    assert_eq!(
        texts(tail),
        [some("past\n"), some("begin\nend\n"), some("late\n")]
    );
    for crowd in &crowds {
        assert_eq!(crowd.runs.len(), texts(crowd).into_iter().flatten().count());
    }
    let whole = must("stream", client.hear_all(&live.run_id, 0).await);
    assert_eq!(all.runs[&live.run_id].events, whole.events);

    // After the last cursor only new events follow, and so far there are none.
    let cursor = all.position();
    let mut rest = open(&mut client, labelled("filtered"), cursor.clone()).await;
    let next = must(
        "spawn",
        client.spawn(sh("echo next").label("app", "filtered")).await,
    );
    let mut resumed = Crowd::default();
    resumed.until_ended(&mut rest, 1).await;
    assert_eq!(resumed.runs.keys().collect::<Vec<_>>(), [&next.run_id]);
    let request = pb::StreamEventsRequest {
        filter: Some(labelled("filtered")),
        position: Some(cursor),
        until: pb::StreamUntil::Head.into(),
        ..pb::StreamEventsRequest::default()
    };
    let mut stream = must("stream", client.process.stream_events(request).await).into_inner();
    let mut stopped = Crowd::default();
    while let Some(message) = must("read", within("an end", PATIENCE, stream.message()).await) {
        stopped.take(message);
    }
    assert_eq!(stopped.runs.keys().collect::<Vec<_>>(), [&next.run_id]);
    assert_eq!(text(&stopped, &next), some("next\n"));
}

// promise: O-23
async fn server_death_loses_no_byte_of_many_runs(kennel: &Kennel) {
    const BYTES: usize = 400_000;
    let mut client = kennel.client().await;
    let program = kennel_tests::programs::naughty();
    // Each run waits half-way for the test.
    let go = kennel.scratch().join("go-server_death");
    let script = format!(
        "{0} bytes {BYTES}; while [ ! -e {1} ]; do sleep 0.01; done; {0} bytes {BYTES}",
        program.display(),
        go.display()
    );
    let mut spawned = Vec::new();
    for _ in 0..4 {
        let run = client.spawn(sh(&script).label("app", "deaths")).await;
        spawned.push(must("spawn", run).run_id);
    }
    let mut crowd = Crowd::default();
    for round in 0..4 {
        let mut stream = open(&mut client, labelled("deaths"), crowd.position()).await;
        for _ in 0..6 {
            let message = within("it continues", PATIENCE, stream.message()).await;
            crowd.take(must("read", message).expect("it does not end"));
        }
        if round == 1 {
            fs::write(&go, "").expect("written");
        }
        kennel.kill_server();
        client = kennel.client().await;
        // The run may start and end while it has no reader.
        let run = client
            .spawn(naughty(&["bytes", "100000"]).label("app", "deaths"))
            .await;
        spawned.push(must("spawn", run).run_id);
    }
    let mut stream = open(&mut client, labelled("deaths"), crowd.position()).await;
    crowd.until_ended(&mut stream, spawned.len()).await;
    let half = pattern(BYTES);
    for (number, run_id) in spawned.iter().enumerate() {
        let stdout = &crowd.runs[run_id].stdout;
        if number < 4 {
            assert!(
                *stdout == [&half[..], &half[..]].concat(),
                "{}",
                stdout.len()
            );
        } else {
            assert!(*stdout == pattern(100_000), "{}", stdout.len());
        }
    }
    assert_eq!(crowd.runs.len(), spawned.len());
}

// promise: O-24
async fn stream_of_hundred_runs_is_cheap(kennel: &Kennel) {
    const RUNS: usize = 100;
    let mut client = kennel.client().await;
    let deaf = open(&mut kennel.client().await, labelled("cheap"), beginning()).await;
    let mut stream = open(&mut client, labelled("cheap"), beginning()).await;
    let script = "head -c 400000 /dev/zero";
    let mut others = kennel.client().await;
    let before = resident_kib(kennel);
    let spawning = async {
        for _ in 0..RUNS {
            must(
                "spawn",
                others.spawn(sh(script).label("app", "cheap")).await,
            );
        }
    };
    let mut crowd = Crowd::default();
    tokio::join!(spawning, crowd.until_ended(&mut stream, RUNS));
    for heard in crowd.runs.values() {
        assert_eq!(heard.stdout.len(), 400_000);
    }
    // 40 MB were written, and one reader has read nothing.
    let grown = resident_kib(kennel).saturating_sub(before);
    assert!(grown < 64 * 1024, "it has grown by {grown} KiB");
    assert!(crowd.cursor.len() < 16 * 1024, "{}", crowd.cursor.len());
    // Ended runs, listed by the store, have the same events.
    let mut later = Crowd::default();
    let mut stream = open(&mut client, labelled("cheap"), beginning()).await;
    later.until_ended(&mut stream, RUNS).await;
    for (run_id, heard) in &later.runs {
        assert!(heard.events.len() >= 6 && crowd.runs[run_id].stdout == heard.stdout);
    }
    drop(deaf);
}

fn resident_kib(kennel: &Kennel) -> u64 {
    let pid = kennel.server().expect("it serves").pid;
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("it lives");
    let mut lines = status.lines();
    let line = lines.find_map(|line| line.strip_prefix("VmRSS:"));
    let words = line.expect("its memory").split_whitespace().next();
    words.and_then(|kib| kib.parse().ok()).expect("a number")
}

// promise: O-24b
async fn unreadable_journal_ends_the_stream_once(kennel: &Kennel) {
    let mut client = kennel.client().await;
    let mut runs = Vec::new();
    for _ in 0..3 {
        let run = must(
            "spawn",
            client.spawn(sh("echo it").label("app", "unreadable")).await,
        );
        must("wait", client.ended(&run.run_id).await);
        runs.push(run.run_id);
    }
    // The server has closed the ended run's journal.
    let index = kennel.data_dir().join("runs").join(&runs[1]).join("index");
    let index = fs::File::options().write(true).open(index);
    // 99 is an unknown format version.
    index
        .expect("it is there")
        .write_all_at(&[99], 8)
        .expect("written");
    let mut crowd = Crowd::default();
    let mut refusals = Vec::new();
    while crowd.ended() < 2 {
        let mut stream = open(&mut client, labelled("unreadable"), crowd.position()).await;
        loop {
            match within("it continues", PATIENCE, stream.message()).await {
                Ok(message) => crowd.take(message.expect("it does not end in order")),
                Err(status) => {
                    refusals.push(complaint(&status).reason);
                    break;
                }
            }
            if crowd.ended() == 2 && !refusals.is_empty() {
                break;
            }
        }
    }
    assert_eq!(refusals, ["JOURNAL_UNREADABLE"]);
    assert!(!crowd.runs.contains_key(&runs[1]));
    // A resumed stream reports no refusal.
    let mut stream = open(&mut client, labelled("unreadable"), crowd.position()).await;
    let beats = crowd.heartbeats;
    while crowd.heartbeats == beats {
        let message = within("a heartbeat", PATIENCE, stream.message()).await;
        crowd.take(must("read", message).expect("it does not end"));
    }
    let logs = run_to_end(kennel.cli(&["logs", "-l", "app=unreadable"]), PATIENCE).await;
    assert!(logs.status.success(), "{logs:?}");
    let lines = String::from_utf8(logs.stdout).expect("text");
    assert_eq!(lines.lines().count(), 2, "{lines}");
    let said = String::from_utf8(logs.stderr).expect("text");
    assert!(said.contains(&runs[1]), "{said}");
}

// promise: O-22
async fn newly_matching_run_is_given_whole(kennel: &Kennel) {
    let mut client = kennel.client().await;
    let filter = || RunFilter {
        states: vec![RunState::Failed.into()],
        ..labelled("newly")
    };
    let go = kennel.scratch().join("go-newly_matching");
    let fails = format!(
        "echo it; while [ ! -e {} ]; do sleep 0.01; done; exit 3",
        go.display()
    );
    let failing = must(
        "spawn",
        client.spawn(sh(&fails).label("app", "newly")).await,
    );
    let mut stream = open(&mut client, filter(), beginning()).await;
    let mut crowd = Crowd::default();
    while crowd.heartbeats == 0 {
        let message = within("a heartbeat", PATIENCE, stream.message()).await;
        crowd.take(must("read", message).expect("it does not end"));
    }
    assert!(crowd.runs.is_empty());
    // A reconnecting reader gets new runs too.
    let mut stream = open(&mut client, filter(), crowd.position()).await;
    must(
        "spawn",
        client.spawn(sh("true").label("app", "newly")).await,
    );
    fs::write(&go, "").expect("written");
    crowd.until_ended(&mut stream, 1).await;
    assert_eq!(crowd.runs.keys().collect::<Vec<_>>(), [&failing.run_id]);
    assert_eq!(crowd.runs[&failing.run_id].text(), "it\n");
}

// promise: RW-83
async fn stream_of_children_has_no_other_runs(kennel: &Kennel) {
    let mut client = kennel.client().await;
    let parent = must("spawn", client.spawn(sh("exec sleep 1000")).await).run_id;
    let child = || pb::RunSpec {
        parent: Some(pb::Parent {
            run_id: parent.clone(),
            ..pb::Parent::default()
        }),
        ..sh("echo child")
    };
    let past = must("spawn", client.spawn(child()).await).run_id;
    must("wait", client.ended(&past).await);
    let filter = RunFilter {
        parent_run_id: parent.clone(),
        ..RunFilter::default()
    };
    let mut stream = open(&mut client, filter, beginning()).await;
    let mut crowd = Crowd::default();
    crowd.until_ended(&mut stream, 1).await;
    must("spawn", client.spawn(sh("echo other")).await);
    let late = must("spawn", client.spawn(child()).await).run_id;
    crowd.until_ended(&mut stream, 2).await;
    assert_eq!(crowd.runs.keys().collect::<Vec<_>>(), [&past, &late]);
}

// promise: O-24
async fn stream_and_cursor_are_of_run_or_filter(kennel: &Kennel) {
    let mut client = kennel.client().await;
    let run = must(
        "spawn",
        client.spawn(sh("true").label("app", "cursor")).await,
    );
    let mut stream = open(&mut client, labelled("cursor"), beginning()).await;
    let message = within("a snapshot", PATIENCE, stream.message()).await;
    let cursor = must("read", message).expect("one").cursor;
    let ask = |run_id: &str, filter, position| pb::StreamEventsRequest {
        run_id: run_id.to_owned(),
        filter,
        position: Some(position),
        ..pb::StreamEventsRequest::default()
    };
    for (request, field) in [
        (ask("", None, beginning()), "run_id"),
        (
            ask(&run.run_id, Some(labelled("cursor")), beginning()),
            "run_id",
        ),
        (
            ask("", Some(labelled("cursor")), Position::AfterSeq(1)),
            "after_seq",
        ),
        (
            ask("", Some(labelled("y")), Position::Cursor(cursor.clone())),
            "cursor",
        ),
        (ask(&run.run_id, None, Position::Cursor(cursor)), "cursor"),
    ] {
        let refused = client.process.stream_events(request).await;
        let complaint = complaint(&refused.expect_err("refused"));
        assert_eq!(
            (complaint.code, complaint.fields),
            (Code::InvalidArgument, vec![field.to_owned()])
        );
    }
}

// promise: O-25
#[tokio::test(flavor = "multi_thread")]
async fn logs_of_many_runs_prefix_lines_with_run() {
    let kennel = Kennel::on_sqlite().await;
    let mut client = kennel.client().await;
    let mut wanted = Vec::new();
    for script in ["echo one; printf open", "echo two; echo err >&2"] {
        let run = must("spawn", client.spawn(sh(script).label("app", "x")).await);
        must("wait", client.ended(&run.run_id).await);
        wanted.push(run.run_id);
    }
    let other = must(
        "spawn",
        client.spawn(sh("echo other").label("app", "y")).await,
    );
    must("wait", client.ended(&other.run_id).await);
    let logs = run_to_end(kennel.cli(&["logs", "-l", "app=x"]), PATIENCE).await;
    let [one, two] = &wanted[..] else {
        panic!("two runs");
    };
    let mut lines: Vec<_> = std::str::from_utf8(&logs.stdout)
        .expect("text")
        .lines()
        .collect();
    lines.sort_unstable();
    let mut expected = [
        format!("{one} | one"),
        format!("{one} | open"),
        format!("{two} | two"),
    ];
    expected.sort_unstable();
    assert_eq!(lines, expected);
    assert_eq!(logs.stderr, format!("{two} | err\n").as_bytes());
    let last = ["logs", "--tail", "1", "--all", "--stream", "stdout"];
    let last = run_to_end(kennel.cli(&last), PATIENCE).await;
    let text = String::from_utf8(last.stdout).expect("text");
    assert_eq!(text.lines().count(), 3, "{text}");
    let events = run_to_end(kennel.cli(&["events", "-l", "app=x"]), PATIENCE).await;
    let text = String::from_utf8(events.stdout).expect("text");
    for run_id in &wanted {
        let own = text
            .lines()
            .filter(|line| line.starts_with(run_id.as_str()));
        assert!(own.count() >= 6, "{text}");
    }
}
