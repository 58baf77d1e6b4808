//! The events of the runs of all nodes in one stream, at any node.

use kennel_proto::pb::{
    self, RunFilter, RunState, StreamedNodeState as State, stream_events_request::Position,
};
use kennel_tests::{
    Client, Kennel, Options, PATIENCE, SpecExt, cases,
    client::duration,
    complaint,
    crowd::{Crowd, LONG, beginning, labelled, message, open},
    eventually_async, fact,
    fleet::ThreeNodes,
    kennel::kill_exactly,
    must, naughty, pattern,
    procfs::Proc,
    sh,
    shell::run_to_end,
    within,
};
use nix::sys::signal::Signal;
use std::{fs, os::unix::net::UnixListener, path::Path, time::Duration};
use tonic::{Code, Request, Streaming, metadata::MetadataValue};

cases! {
    fn streams_over_three_nodes(mut ThreeNodes::start().await);
    call_that_names_node_has_its_runs,
    idle_stream_over_nodes_has_heartbeats_alone,
    slow_reader_delays_no_other_and_fills_nothing,
    halted_node_is_continued_at_its_place,
    consumer_of_absent_node_has_its_later_events,
    stream_over_nodes_loses_nothing_to_deaths,
    dead_node_is_reported_and_continues,
    forgotten_node_ends_with_its_records,
    unanswering_node_is_reported_once_it_has_runs,
    two_thousand_dead_nodes_cost_nothing,
}

/// Runs this at a node, as one of the runs of a case.
async fn spawn(at: &Kennel, case: &str, script: &str) -> String {
    let run = at.client().await.spawn(sh(script).label("app", case)).await;
    must("spawn", run).run_id
}

/// Says `begin`, and `end` when this file is there.
fn waiting(go: &Path) -> String {
    let go = go.display();
    format!("echo begin; while [ ! -e {go} ]; do sleep 0.01; done; echo end")
}

async fn until_head(
    at: &mut Client,
    case: &str,
    position: Position,
) -> Result<Streaming<pb::StreamEventsResponse>, tonic::Status> {
    let request = pb::StreamEventsRequest {
        filter: Some(labelled(case)),
        position: Some(position),
        until: pb::StreamUntil::Head.into(),
        ..pb::StreamEventsRequest::default()
    };
    let opened = at.process.stream_events(request).await;
    opened.map(tonic::Response::into_inner)
}

// promise: I-79
async fn stream_over_nodes_loses_nothing_to_deaths(nodes: &mut ThreeNodes) {
    const CASE: &str = "deaths";
    const BYTES: usize = 400_000;
    nodes.see_each_other().await;
    let nodes = [&nodes.one, &nodes.two, &nodes.three];
    // Each run waits half-way for the test.
    let go = nodes[0].scratch().join(format!("go-{CASE}"));
    let program = kennel_tests::programs::naughty();
    let script = format!(
        "{0} bytes {BYTES}; while [ ! -e {1} ]; do sleep 0.01; done; {0} bytes {BYTES}",
        program.display(),
        go.display()
    );
    let mut spawned = Vec::new();
    for node in nodes {
        spawned.push(spawn(node, CASE, &script).await);
    }
    let mut crowd = Crowd::default();
    for round in 0..3 {
        let (here, other) = (nodes[round], nodes[(round + 1) % 3]);
        let mut client = here.client().await;
        let mut stream = open(&mut client, labelled(CASE), crowd.position()).await;
        for _ in 0..6 {
            crowd.take(message(&mut stream).await);
        }
        // Another node's server dies, and the stream continues.
        eventually_async("it has a server", PATIENCE, async || other.server()).await;
        other.kill_server();
        for _ in 0..3 {
            crowd.take(message(&mut stream).await);
        }
        if round == 1 {
            fs::write(&go, "").expect("written");
        }
        // The called node's server dies; reads resume from the cursor.
        here.kill_server();
        while let Ok(Some(message)) = within("it breaks", LONG, stream.message()).await {
            crowd.take(message);
        }
        eventually_async("it has a server", PATIENCE, async || here.server()).await;
    }
    let mut client = nodes[2].client().await;
    let mut stream = open(&mut client, labelled(CASE), crowd.position()).await;
    crowd.until_ended(&mut stream, spawned.len()).await;
    let expected = [pattern(BYTES), pattern(BYTES)].concat();
    assert_eq!(crowd.runs.len(), spawned.len());
    for run in &spawned {
        let heard = &crowd.runs[run];
        assert!(
            heard.stdout == expected,
            "{run}: {} bytes",
            heard.stdout.len()
        );
        assert_eq!(heard.stations().first(), Some(&"recorded"), "{run}");
    }
    // After the last cursor no node has further events.
    for node in nodes {
        let mut client = node.client().await;
        let mut rest = must(
            "stream",
            until_head(&mut client, CASE, crowd.position()).await,
        );
        let mut nothing = Crowd::default();
        while let Some(message) = must("read", within("an end", LONG, rest.message()).await) {
            nothing.take(message);
        }
        assert_eq!(nothing.runs.len(), 0, "{:?}", nothing.runs.keys());
    }
}

// promise: I-80, I-80a
async fn dead_node_is_reported_and_continues(nodes: &mut ThreeNodes) {
    const CASE: &str = "dead";
    nodes.see_each_other().await;
    let ThreeNodes {
        postgres,
        one,
        two,
        three,
    } = nodes;
    let go = one.scratch().join(format!("go-{CASE}"));
    let at_one = spawn(one, CASE, &waiting(&go)).await;
    let at_two = spawn(two, CASE, &waiting(&go)).await;
    let mut client = one.client().await;
    let mut stream = open(&mut client, labelled(CASE), beginning()).await;
    let mut crowd = Crowd::default();
    let begin = "begin\n";
    let both = |crowd: &Crowd| crowd.text(&at_one) == begin && crowd.text(&at_two) == begin;
    crowd.until(&mut stream, both).await;
    assert!(crowd.nodes.is_empty(), "{:?}", crowd.nodes);

    two.kill_service_after(|| {});
    crowd
        .until(&mut stream, |crowd| !crowd.nodes.is_empty())
        .await;
    assert_eq!(crowd.changes("two"), [State::Unreachable]);
    let change = &crowd.nodes[0];
    let run = must("get", client.get(&at_two).await);
    assert_eq!(change.node_id, run.other_node.expect("elsewhere").node_id);
    assert!(
        change.since_time.is_some() && !change.message.is_empty(),
        "{change:?}"
    );
    // The stream continues for other nodes and includes a joining node.
    let joined = ThreeNodes::node(postgres, "four").await;
    fs::write(&go, "").expect("written");
    let later = [
        at_one,
        spawn(three, CASE, "echo three").await,
        spawn(&joined, CASE, "echo four").await,
    ];
    crowd.until_ended(&mut stream, later.len()).await;
    let texts = later.each_ref().map(|run| crowd.text(run));
    assert_eq!(texts, ["begin\nend\n", "three\n", "four\n"]);

    // Until the head: other nodes' events, then an error about the missing one.
    let mut rest = must("stream", until_head(&mut client, CASE, beginning()).await);
    let mut present = Crowd::default();
    let missing = loop {
        match within("an end", LONG, rest.message()).await {
            Ok(message) => present.take(message.expect("it does not end well")),
            Err(status) => break status,
        }
    };
    assert_eq!(missing.code(), Code::Unavailable, "{missing}");
    assert_eq!(complaint(&missing).reason, "NODE_UNREACHABLE");
    assert_eq!(fact(&missing, "node_name"), "two");
    assert_eq!(present.ended(), later.len());
    let events = run_to_end(one.cli(&["events", "-l", &format!("app={CASE}")]), LONG).await;
    let said = String::from_utf8_lossy(&events.stderr).into_owned();
    assert!(!events.status.success(), "{said}");
    assert!(
        said.contains("events of node two are missing since 20"),
        "{said}"
    );
    let shown = String::from_utf8_lossy(&events.stdout).into_owned();
    assert!(later.iter().all(|run| shown.contains(run)), "{shown}");

    two.restart().await;
    crowd.until_ended(&mut stream, later.len() + 1).await;
    let changes = crowd.changes("two");
    assert_eq!(changes, [State::Unreachable, State::Reached]);
    let mut whole = present.position();
    for at in [&*three, &*two] {
        // Any node delivers the missing events once it sees the new lease.
        let rest = eventually_async("all nodes are reached", LONG, async || {
            let mut rest = until_head(&mut at.client().await, CASE, whole.clone())
                .await
                .ok()?;
            let mut messages = Vec::new();
            while let Some(message) = within("an end", LONG, rest.message()).await.ok()? {
                messages.push(message);
            }
            Some(messages)
        });
        for message in rest.await {
            present.take(message);
        }
        whole = present.position();
    }
    assert_eq!(present.ended(), later.len() + 1);
    assert_eq!(present.runs[&at_two].events, crowd.runs[&at_two].events);
}

// promise: I-79, I-80, I-80a
async fn halted_node_is_continued_at_its_place(nodes: &mut ThreeNodes) {
    const CASE: &str = "halted";
    nodes.see_each_other().await;
    let ThreeNodes { one, two, .. } = nodes;
    let go = one.scratch().join(format!("go-{CASE}"));
    let run = spawn(two, CASE, &waiting(&go)).await;
    let mut client = one.client().await;
    let live = Position::Live(pb::FromLive {});
    two.client().await.hear_text(&run, "begin\n").await;
    let mut stream = open(&mut client, labelled(CASE), live).await;
    // Before any event, the cursor is already known.
    let mut crowd = Crowd::default();
    crowd.take(message(&mut stream).await);
    assert!(
        !crowd.cursor.is_empty() && crowd.nodes.is_empty(),
        "{crowd:?}"
    );
    let server = two.server().expect("it serves");
    let keeper = Proc::read(two.keeper_pid()).expect("own child");
    for process in [&keeper, &server] {
        kill_exactly(process, Signal::SIGSTOP);
    }
    // The run continues meanwhile.
    fs::write(&go, "").expect("written");
    crowd
        .until(&mut stream, |crowd| !crowd.nodes.is_empty())
        .await;
    assert_eq!(crowd.changes("two"), [State::Unreachable]);
    for process in [&server, &keeper] {
        kill_exactly(process, Signal::SIGCONT);
    }
    let mut resumed = Crowd {
        cursor: crowd.cursor.clone(),
        ..Crowd::default()
    };
    crowd.until_ended(&mut stream, 1).await;
    assert_eq!(crowd.changes("two"), [State::Unreachable, State::Reached]);
    assert_eq!(crowd.text(&run), "end\n");
    // Node two delivers the same events from the cursor.
    let mut client = two.client().await;
    let mut stream = open(&mut client, labelled(CASE), resumed.position()).await;
    resumed.until_ended(&mut stream, 1).await;
    assert_eq!(resumed.runs[&run].events, crowd.runs[&run].events);
}

// promise: I-81
async fn forgotten_node_ends_with_its_records(nodes: &mut ThreeNodes) {
    const CASE: &str = "forgotten";
    nodes.see_each_other().await;
    let ThreeNodes {
        one, two, three, ..
    } = nodes;
    let ended = spawn(two, CASE, "echo whole").await;
    must("wait", two.client().await.ended(&ended).await);
    let lives = spawn(two, CASE, "echo up; exec sleep 600").await;
    let mut client = one.client().await;
    let mut stream = open(&mut client, labelled(CASE), beginning()).await;
    let mut crowd = Crowd::default();
    let is_up = |crowd: &Crowd| crowd.text(&lives) == "up\n" && crowd.ended() == 1;
    crowd.until(&mut stream, is_up).await;
    two.kill_service_after(|| {});
    eventually_async("it is forgotten", PATIENCE, async || {
        let forgotten = run_to_end(three.cli(&["node", "forget", "two"]), PATIENCE).await;
        forgotten.status.success().then_some(())
    })
    .await;
    let is_lost = |crowd: &Crowd| crowd.states.get(&lives) == Some(&RunState::Lost);
    crowd.until(&mut stream, is_lost).await;
    assert_eq!(crowd.changes("two"), [State::Unreachable, State::Forgotten]);
    assert_eq!(
        (crowd.text(&ended), crowd.ended()),
        ("whole\n".to_owned(), 1)
    );

    // A new stream gets only database records.
    let mut client = three.client().await;
    let mut rest = must("stream", until_head(&mut client, CASE, beginning()).await);
    let mut records = Crowd::default();
    while let Some(message) = must("read", within("an end", LONG, rest.message()).await) {
        records.take(message);
    }
    assert_eq!(records.changes("two"), [State::Forgotten]);
    assert!(is_lost(&records) && records.runs[&ended].has_ended());
    assert_eq!(records.text(&ended), "", "its output is with the node");

    // The forgotten node returns and has further events.
    two.restart().await;
    crowd
        .until(&mut stream, |crowd| crowd.changes("two").len() > 2)
        .await;
    assert_eq!(crowd.changes("two").last(), Some(&State::Reached));
    let again = spawn(two, CASE, "echo again").await;
    // The closed run's events are delivered too, now that they can be read.
    crowd.until_ended(&mut stream, 3).await;
    assert_eq!(crowd.text(&again), "again\n");
    assert_eq!(crowd.text(&lives), "up\n");
    assert!(crowd.runs[&lives].has_ended());
}

/// Rows of 2,000 dead nodes, each with an ended run and at one address, cost no connection and no statement of their own: of a
/// stream by filter, a list of runs, and a drain. One half was stopped in order, the other half crashed.
// promise: I-78a, I-78b
async fn two_thousand_dead_nodes_cost_nothing(nodes: &mut ThreeNodes) {
    const CASE: &str = "dead-nodes";
    nodes.see_each_other().await;
    let address = nodes.one.scratch().join("dead.sock");
    let listener = must("listen", UnixListener::bind(&address));
    must("set", listener.set_nonblocking(true));
    let run = spawn(&nodes.two, CASE, "exit 0").await;
    must("wait", nodes.two.client().await.ended(&run).await);
    let postgres = &nodes.postgres;
    postgres
        .psql("ALTER SYSTEM SET log_statement = 'all'")
        .await;
    postgres.psql("SELECT pg_reload_conf()").await;
    let (before, reported) = statements_for(nodes, CASE).await;
    assert_eq!(reported, 0);
    let node = "'01ARZ3NDEKTSV4RRFFQ' || to_char(i, 'FM0000000')";
    let address_of = format!("'unix:{}'", address.display());
    let values = [
        ("node", node),
        ("name", "'dead' || i"),
        ("address", &address_of),
        ("lease_us", "r.lease_us * (i % 2)"),
        ("heard_us", "r.heard_us - 3600000000"),
    ];
    postgres.copy_rows("nodes", "name = 'two'", &values).await;
    let id = "'01ARZ3NDEKTSV4RRFFR' || to_char(i, 'FM0000000')";
    let which = format!("run_id = '{run}'");
    let of_others = ("labels", "'{\"app\": \"other\"}'");
    // First no copied node has a matching run, then each has one.
    for (labels, missing) in [(of_others, 0), (("labels", "r.labels"), 1000)] {
        let values = [("run_id", id), ("node", node), labels];
        postgres.copy_rows("runs", &which, &values).await;
        let (after, reported) = statements_for(nodes, CASE).await;
        assert_eq!(reported, missing, "crashed nodes are unreachable");
        // Lease renewals add statements meanwhile.
        assert!(after < before + 200, "statements: {before}, then {after}");
        assert!(listener.accept().is_err(), "a dead node was called");
        postgres
            .psql("DELETE FROM runs WHERE run_id LIKE '01ARZ3NDEKTSV4RRFFR%'")
            .await;
    }
    postgres.psql("ALTER SYSTEM RESET log_statement").await;
    postgres.psql("SELECT pg_reload_conf()").await;
    postgres
        .psql("DELETE FROM nodes WHERE name LIKE 'dead%'")
        .await;
}

/// Returns how many statements the database got from three nodes during a stream by filter, a list of runs and a drain, and
/// how many nodes the stream has reported as unreachable.
async fn statements_for(nodes: &ThreeNodes, case: &str) -> (usize, usize) {
    let log = nodes.postgres.socket_dir().join("log");
    let count = || must("the log", fs::read(&log));
    let count = || String::from_utf8_lossy(&count()).matches("LOG:  ").count();
    let begun = count();
    let mut client = nodes.one.client().await;
    let mut stream = must("stream", until_head(&mut client, case, beginning()).await);
    let mut reported = 0;
    let last = loop {
        match stream.message().await {
            Ok(Some(message)) => reported += message.nodes.len(),
            Ok(None) => break "",
            Err(_) => break "NODE_UNREACHABLE",
        }
    };
    assert_eq!(last.is_empty(), reported == 0, "{last}");
    for words in [
        &["ps"][..],
        &["nodes"],
        &["drain", "three"],
        &["undrain", "three"],
    ] {
        let done = run_to_end(nodes.one.cli(words), PATIENCE).await;
        assert!(done.status.success(), "{words:?}: {done:?}");
    }
    (count() - begun, reported)
}

// promise: O-8
async fn idle_stream_over_nodes_has_heartbeats_alone(nodes: &mut ThreeNodes) {
    const CASE: &str = "idle";
    nodes.see_each_other().await;
    let ThreeNodes { one, two, .. } = nodes;
    let runs = [
        spawn(one, CASE, "exec sleep 600").await,
        spawn(two, CASE, "exec sleep 600").await,
    ];
    // The interval exceeds the allowed silence between nodes.
    let request = pb::StreamEventsRequest {
        filter: Some(labelled(CASE)),
        position: Some(beginning()),
        heartbeat_interval: Some(prost_types::Duration {
            seconds: 6,
            nanos: 0,
        }),
        ..pb::StreamEventsRequest::default()
    };
    let mut client = one.client().await;
    let opened = must("stream", client.process.stream_events(request).await);
    let (mut stream, mut crowd) = (opened.into_inner(), Crowd::default());
    let snapshots = |crowd: &Crowd| runs.each_ref().map(|run| crowd.runs[run].snapshots);
    crowd
        .until(&mut stream, |crowd| crowd.runs.len() == runs.len())
        .await;
    // Three heartbeats take longer than the allowed silence.
    let is_over = |crowd: &Crowd| crowd.heartbeats >= 3 || snapshots(crowd) != [1, 1];
    crowd.until(&mut stream, is_over).await;
    assert_eq!(
        snapshots(&crowd),
        [1, 1],
        "no node's stream was opened again"
    );
    assert!(crowd.nodes.is_empty(), "{:?}", crowd.nodes);
}

// promise: I-80, I-80a
async fn unanswering_node_is_reported_once_it_has_runs(nodes: &mut ThreeNodes) {
    const CASE: &str = "unanswering";
    nodes.see_each_other().await;
    let ThreeNodes { postgres, one, .. } = nodes;
    // Node five has a lease but is unreachable.
    let nowhere = "unix:/nowhere/kennel.sock";
    let words = vec![
        "--node-name",
        "five",
        "--node-lease",
        "3s",
        "--advertise",
        nowhere,
    ];
    let mut five = Kennel::start(Options {
        words,
        ..Options::on(&postgres.url())
    })
    .await;
    let mut client = one.client().await;
    // The stream opens once node five is known to have no runs.
    let mut stream = open(&mut client, labelled(CASE), Position::Live(pb::FromLive {})).await;
    let mut crowd = Crowd::default();
    spawn(&five, CASE, "exec sleep 600").await;
    let reported = crowd.until(&mut stream, |crowd| !crowd.changes("five").is_empty());
    within("it is reported", LONG, reported).await;
    assert_eq!(crowd.changes("five"), [State::Unreachable]);

    five.kill_service_after(|| {});
    eventually_async("it is forgotten", PATIENCE, async || {
        let forgotten = run_to_end(one.cli(&["node", "forget", "five"]), PATIENCE).await;
        forgotten.status.success().then_some(())
    })
    .await;
    crowd
        .until(&mut stream, |crowd| crowd.changes("five").len() == 2)
        .await;
    five.restart().await;
    let reported = crowd.until(&mut stream, |crowd| crowd.changes("five").len() == 3);
    within("it is reported again", LONG, reported).await;
    assert_eq!(
        crowd.changes("five"),
        [State::Unreachable, State::Forgotten, State::Unreachable]
    );
}

// promise: I-78b, I-79
async fn consumer_of_absent_node_has_its_later_events(nodes: &mut ThreeNodes) {
    const CASE: &str = "absent";
    nodes.see_each_other().await;
    let ThreeNodes {
        postgres, one, two, ..
    } = nodes;
    let before = spawn(two, CASE, "echo before").await;
    must("wait", two.client().await.ended(&before).await);
    let request = pb::StreamEventsRequest {
        filter: Some(RunFilter {
            node: "two".to_owned(),
            ..labelled(CASE)
        }),
        position: Some(Position::Live(pb::FromLive {})),
        consumer: "later".to_owned(),
        ..pb::StreamEventsRequest::default()
    };
    let mut client = one.client().await;
    two.kill_service_after(|| {});
    // The consumer registers before the position of its first event is known.
    let opened = client.process.stream_events(request.clone()).await;
    drop(must("registered", opened));
    let of_all = pb::StreamEventsRequest {
        heartbeat_interval: Some(duration(Duration::from_secs(1))),
        position: Some(Position::Tail(pb::FromTail {
            amount: Some(pb::from_tail::Amount::Lines(0)),
        })),
        filter: Some(labelled(CASE)),
        ..pb::StreamEventsRequest::default()
    };
    // Get a cursor from after node two's lease ended, while its runs are being looked up.
    let standing = "SELECT count(*) FROM nodes WHERE name = 'two' AND heard_us + lease_us < \
        EXTRACT(EPOCH FROM clock_timestamp()) * 1000000";
    eventually_async("its lease ends", PATIENCE, async || {
        (postgres.psql(standing).await.trim() == "1").then_some(())
    })
    .await;
    let lock = "BEGIN; LOCK TABLE runs IN ACCESS EXCLUSIVE MODE; SELECT pg_sleep(4)";
    let is_locked = "SELECT count(*) FROM pg_locks WHERE relation = 'runs'::regclass AND granted \
        AND mode = 'AccessExclusiveLock'";
    let searching = async { postgres.psql(lock).await };
    let reading = async {
        eventually_async("its runs cannot be read", PATIENCE, async || {
            (postgres.psql(is_locked).await.trim() == "1").then_some(())
        })
        .await;
        let mut client = one.client().await;
        let opened = client.process.stream_events(of_all.clone()).await;
        let (mut stream, mut early) = (must("stream", opened).into_inner(), Crowd::default());
        early.until(&mut stream, |crowd| crowd.heartbeats > 1).await;
        early.cursor
    };
    let (_, early) = tokio::join!(searching, reading);
    two.restart().await;
    let opened = must("stream", client.process.stream_events(request).await);
    let (mut stream, mut crowd) = (opened.into_inner(), Crowd::default());
    let run = spawn(two, CASE, "echo later").await;
    within("its events", LONG, crowd.until_ended(&mut stream, 1)).await;
    assert_eq!(crowd.text(&run), "later\n");
    let resumed = pb::StreamEventsRequest {
        position: Some(Position::Cursor(early.into())),
        ..of_all
    };
    let opened = must("stream", client.process.stream_events(resumed).await);
    let last = spawn(two, CASE, "echo last").await;
    let (mut stream, mut crowd) = (opened.into_inner(), Crowd::default());
    within(
        "its end",
        LONG,
        crowd.until(&mut stream, |crowd| crowd.text(&last) == "last\n"),
    )
    .await;
    assert_eq!(
        crowd.text(&before),
        "",
        "it had ended before the stream began"
    );
}

// promise: I-78
async fn call_that_names_node_has_its_runs(nodes: &mut ThreeNodes) {
    const CASE: &str = "named";
    nodes.see_each_other().await;
    let ThreeNodes {
        one, two, three, ..
    } = nodes;
    let mut runs = Vec::new();
    for node in [&*one, &*two, &*three] {
        runs.push(spawn(node, CASE, "true").await);
        must(
            "wait",
            node.client().await.ended(&runs[runs.len() - 1]).await,
        );
    }
    let read = async |filter: RunFilter, name: Option<&'static str>| {
        let mut request = Request::new(pb::StreamEventsRequest {
            filter: Some(filter),
            until: pb::StreamUntil::Head.into(),
            ..pb::StreamEventsRequest::default()
        });
        if let Some(name) = name {
            let name = MetadataValue::from_static(name);
            request.metadata_mut().insert("kennel-node", name);
        }
        let opened = one.client().await.process.stream_events(request).await?;
        let (mut stream, mut crowd) = (opened.into_inner(), Crowd::default());
        while let Some(message) = within("an end", LONG, stream.message()).await? {
            crowd.take(message);
        }
        Ok::<_, tonic::Status>(crowd.runs.into_keys().collect::<Vec<_>>())
    };
    let of_node = |node: &str| RunFilter {
        node: node.to_owned(),
        ..labelled(CASE)
    };
    assert_eq!(must("all", read(labelled(CASE), None).await), runs);
    let named = must("named", read(labelled(CASE), Some("two")).await);
    assert_eq!(named, [runs[1].clone()]);
    let named = must("itself", read(labelled(CASE), Some("one")).await);
    assert_eq!(named, [runs[0].clone()]);
    let filtered = must("filter", read(of_node("three"), None).await);
    assert_eq!(filtered, [runs[2].clone()]);
    let refused = read(of_node("three"), Some("two"))
        .await
        .expect_err("which");
    assert_eq!(refused.code(), Code::InvalidArgument);
    let refused = read(of_node("five"), None).await.expect_err("none");
    assert_eq!(complaint(&refused).reason, "NODE_NOT_FOUND");
}

// promise: I-83
async fn slow_reader_delays_no_other_and_fills_nothing(nodes: &mut ThreeNodes) {
    const CASE: &str = "slow";
    const READERS: usize = 4;
    const BYTES: usize = 16_000_000;
    nodes.see_each_other().await;
    let ThreeNodes { one, two, .. } = nodes;
    let flood = naughty(&["bytes", &BYTES.to_string()]).label("app", CASE);
    let mut there = two.client().await;
    let run = must("spawn", there.spawn(flood).await).run_id;
    must("wait", there.ended(&run).await);
    let server = one.server().expect("it serves");
    let before = resident(&server);
    let mut stalled = Vec::new();
    for _ in 0..READERS {
        // Each reader stalls on its own connection.
        let mut client = one.client().await;
        let mut stream = open(&mut client, labelled(CASE), beginning()).await;
        let mut crowd = Crowd::default();
        crowd
            .until(&mut stream, |crowd| !crowd.text(&run).is_empty())
            .await;
        stalled.push((client, stream, crowd));
    }
    // Another reader uses the same connection between the nodes.
    let other = must("spawn", there.spawn(sh("echo other")).await).run_id;
    let mut here = one.client().await;
    let heard = within("another reader", PATIENCE, here.hear_all(&other, 0)).await;
    assert_eq!(must("read", heard).text(), "other\n");
    let grown = resident(&server).saturating_sub(before);
    let most = (READERS * BYTES / 2) as u64;
    assert!(grown < most, "{grown} bytes for readers that do not read");
    let expected = pattern(BYTES);
    for (_client, mut stream, mut crowd) in stalled {
        crowd.until_ended(&mut stream, 1).await;
        assert!(crowd.runs[&run].stdout == expected);
    }
}

/// Memory of a process in bytes.
fn resident(process: &Proc) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", process.pid));
    let status = status.expect("it lives");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.trim().strip_suffix(" kB"));
    kib.and_then(|kib| kib.trim().parse::<u64>().ok())
        .expect("a number")
        * 1024
}
