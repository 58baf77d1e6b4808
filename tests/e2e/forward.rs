//! Several nodes on one database: any of them answers for the runs of all.

use crate::secrets::files_with;
use kennel_client::{
    Address, Connection, Credentials, EventReader, Start, Tls, Token, connect, connect_with,
};
use kennel_proto::pb::{
    self, AbortWait, RunState, event::Payload, secret::Source, stream_events_request::Position,
};
use kennel_tests::{
    Kennel, Options, PATIENCE, Postgres, RunExt, SpecExt, argv, cases,
    client::retry_after,
    complaint,
    crowd::{Crowd, LONG, beginning, labelled},
    eventually_async, fact,
    kennel::kill_exactly,
    must,
    procfs::Proc,
    sh,
    shell::{kennel_in, run_to_end},
    within,
};
use nix::sys::signal::Signal;
use std::{fs, net::TcpListener, path::Path};
use tempfile::TempDir;
use tokio_stream::StreamExt as _;
use tonic::{Code, Request, metadata::MetadataValue};

/// Nodes of one database: `one`, `two`, and `long`, which gives runs a longer grace.
struct Nodes {
    one: Kennel,
    two: Kennel,
    long: Kennel,
    postgres: Postgres,
}

impl Nodes {
    async fn start() -> Self {
        let postgres = Postgres::start().await;
        let node = async |words| {
            Kennel::start(Options {
                words,
                ..Options::on(&postgres.url())
            })
            .await
        };
        Self {
            one: node(vec!["--node-name", "one"]).await,
            two: node(vec!["--node-name", "two"]).await,
            long: node(vec!["--node-name", "long", "--default-grace", "20s"]).await,
            postgres,
        }
    }
}

cases! {
    fn calls_over_nodes(mut Nodes::start().await);
    parents_node_checks_the_stop_steps,
    child_runs_on_the_node_of_its_parent,
    calls_reach_runs_of_other_nodes,
    client_at_terminal_is_logged_with_its_node,
    commands_go_to_the_node_that_is_named,
    call_to_halted_node_does_not_hang,
    node_that_does_not_answer_is_named,
    stream_over_other_node_survives_both_servers,
}

cases! {
    fn calls_over_nodes_with_tls(Fleet::start().await);
    spawn_for_halted_node_runs_once_after_refusal,
    stream_over_nodes_has_own_runs_alone,
    owners_stay_apart_across_nodes,
    sent_secret_reaches_the_other_node_over_tls,
    foreign_unreadable_run_is_answered_like_absent,
}

/// The grace that the called node gives is not the one that its stop steps have to fit.
// promise: RW-102
async fn parents_node_checks_the_stop_steps(nodes: &mut Nodes) {
    let (mut there, mut here) = (nodes.long.client().await, nodes.one.client().await);
    let parent = must("spawn", there.spawn(argv(&["sleep", "600"])).await);
    let mut child = argv(&["sleep", "600"]);
    child.parent = Some(pb::Parent {
        run_id: parent.run_id.clone(),
        ..pb::Parent::default()
    });
    child.stop.get_or_insert_default().steps = vec![pb::StopAction {
        action: Some(pb::stop_action::Action::Signal("SIGUSR1".into())),
        wait: prost_types::Duration::try_from(std::time::Duration::from_secs(8)).ok(),
    }];
    let alone = pb::RunSpec {
        parent: None,
        ..child.clone()
    };
    let refused = complaint(&here.spawn(alone).await.expect_err("5 s are not enough"));
    assert_eq!(refused.fields, ["spec.stop.steps"]);
    let child = must("spawn", here.spawn(child).await);
    assert_eq!(child.node_id, parent.node_id, "{child:?}");
    must("abort", here.abort(&parent.run_id).await);
}

// promise: RW-82a
async fn child_runs_on_the_node_of_its_parent(nodes: &mut Nodes) {
    let Nodes { one, two, .. } = nodes;
    let (mut here, mut there) = (one.client().await, two.client().await);
    let parent = here.spawn(argv(&["sleep", "600"])).await;
    let parent = must("spawn", parent);
    let child = pb::RunSpec {
        parent: Some(pb::Parent {
            run_id: parent.run_id.clone(),
            ..pb::Parent::default()
        }),
        ..argv(&["sleep", "600"])
    };
    let child = must("spawn", there.spawn(child).await);
    assert_eq!(child.node_id, parent.node_id);
    must("abort", there.abort(&parent.run_id).await);
    let ended = must("wait", there.ended(&child.run_id).await);
    assert_eq!(ended.reason(), "parent_ended");
}

// promise: I-40b
async fn call_to_halted_node_does_not_hang(nodes: &mut Nodes) {
    let Nodes { one, two, .. } = nodes;
    let (mut here, mut there) = (one.client().await, two.client().await);
    let run = must("spawn", here.spawn(argv(&["sleep", "600"])).await).run_id;
    must("tree", there.tree(&run).await);
    let server = one.server().expect("it serves");
    let keeper = Proc::read(one.keeper_pid()).expect("own child");
    for process in [&keeper, &server] {
        kill_exactly(process, Signal::SIGSTOP);
    }
    let address: Address = two.address().parse().expect("an address");
    let connection = must("connect", connect(&address).await);
    let mut reader = EventReader::new(&connection, &run, Start::Beginning);
    let (refused, unread) = within("an answer", PATIENCE * 2, async {
        tokio::join!(there.tree(&run), reader.next())
    })
    .await;
    let refused = refused.expect_err("its node is halted");
    assert_eq!(refused.code(), Code::Unavailable, "{refused}");
    assert_eq!(complaint(&refused).reason, "NODE_UNREACHABLE");
    assert_eq!(retry_after(&refused), None, "it was waited for");
    let unread = unread.expect_err("its node is halted");
    assert!(unread.is("NODE_UNREACHABLE"), "{unread:?}");
    assert_eq!(unread.retry_after, None, "{unread:?}");
    for process in [&server, &keeper] {
        kill_exactly(process, Signal::SIGCONT);
    }
    must("abort", one.client().await.abort(&run).await);
}

// promise: I-40
async fn calls_reach_runs_of_other_nodes(nodes: &mut Nodes) {
    let Nodes { one, two, .. } = nodes;
    let (mut here, mut there) = (one.client().await, two.client().await);
    let spec = argv(&["cat"]).open_input().max_runtime(PATIENCE * 10);
    let id = &must("spawn", here.spawn(spec).await).run_id;

    must("write", there.write(id, "a", Some(0), b"typed\n").await);
    there.hear_text(id, "typed\n").await;
    let paused = must("pause", there.pause(id).await);
    assert_eq!(paused.state(), RunState::Paused);
    assert_eq!(must("get", here.get(id).await).state(), RunState::Paused);
    must("resume", there.resume(id).await);
    let tree = must("tree", there.tree(id).await);
    assert_eq!(tree.processes.len(), 1);
    let extended = must("extend", there.extend(id, &[], PATIENCE * 20).await);
    let own = must("get", here.get(id).await);
    assert!(extended.time_limits[0].extended.is_some(), "{extended:?}");
    assert_eq!(own.time_limits, extended.time_limits);
    must("close", there.close_input(id, Some(6)).await);
    let ended = must("wait", there.ended(id).await);
    assert_eq!(ended.state(), RunState::Succeeded);
    let heard = must("events", there.hear_all(id, 0).await);
    assert_eq!(heard.text(), "typed\n");
    assert!(heard.has_ended());

    let stopped = must("spawn", here.spawn(argv(&["sleep", "600"])).await).run_id;
    let ended = there.abort_with(&stopped, None, AbortWait::TreeEmpty).await;
    assert_eq!(must("abort", ended).state(), RunState::Cancelled);
    let logged = must("trail", here.logged_requests(&stopped).await);
    let asked = logged.iter().find(|asked| asked.rpc == "Abort");
    let asked = asked.expect("the node of the run writes it down");
    assert!(asked.by.starts_with("uid:"), "{asked:?}");
    assert!(asked.asked["via"].starts_with("uid:"), "{asked:?}");
}

// promise: AC-9
async fn client_at_terminal_is_logged_with_its_node(nodes: &mut Nodes) {
    let Nodes { one, two, .. } = nodes;
    let (mut here, there) = (one.client().await, two.client().await);
    let spec = argv(&["sleep", "600"]).on_terminal(pb::Terminal::default());
    let id = &must("spawn", here.spawn(spec).await).run_id;
    let open = pb::AttachOpen {
        run_id: id.clone(),
        ..pb::AttachOpen::default()
    };
    let open = pb::AttachRequest {
        request: Some(pb::attach_request::Request::Open(open)),
    };
    let open = tokio_stream::once(open).chain(tokio_stream::pending());
    let attached = must("attach", there.clone().process.attach(open).await);
    let mut attached = attached.into_inner();
    must("screen", attached.message().await).expect("it is open");
    let logged = must("trail", here.logged_requests(id).await);
    let asked = logged.iter().find(|asked| asked.rpc == "Attach");
    let asked = asked.expect("it is written down");
    assert!(asked.asked["via"].starts_with("uid:"), "{asked:?}");
    must("abort", here.abort(id).await);
}

// promise: I-40
async fn stream_over_other_node_survives_both_servers(nodes: &mut Nodes) {
    let Nodes { one, two, .. } = nodes;
    let script = "i=0; while [ $i -lt 1200 ]; do echo line $i; i=$((i+1)); [ $((i % 100)) = 0 ] && sleep 0.2; done";
    let id = must("spawn", one.client().await.spawn(sh(script)).await).run_id;
    let address: Address = two.address().parse().expect("an address");
    let connection = must("connect", connect(&address).await);
    let mut reader = EventReader::new(&connection, &id, Start::Beginning);
    let (mut text, mut kills) = (Vec::new(), 0);
    while let Some(message) = must("stream", reader.next().await) {
        for run in message.run_events {
            for event in run.events {
                if let Some(Payload::Output(output)) = event.payload {
                    text.extend_from_slice(&output.data);
                }
            }
        }
        // Kill node one's server, then node two's.
        if text.len() > 3000 * (kills + 1) && kills < 2 {
            let node = if kills == 0 { &*one } else { &*two };
            if node.server().is_some() {
                node.kill_server();
                kills += 1;
            }
        }
    }
    let text = String::from_utf8_lossy(&text);
    assert_eq!(text.lines().count(), 1200);
    for (at, line) in text.lines().enumerate() {
        assert_eq!(line, format!("line {at}"));
    }
    assert_eq!(kills, 2);
}

// promise: I-40b
async fn node_that_does_not_answer_is_named(nodes: &mut Nodes) {
    let Nodes {
        one,
        two,
        long,
        postgres,
    } = nodes;
    let mut there = two.client().await;
    let id = must(
        "spawn",
        one.client().await.spawn(sh("echo up; sleep 600")).await,
    )
    .run_id;
    there.hear_up(&id).await;
    one.kill_service_after(|| {});
    let refused = there.pause(&id).await.expect_err("no server is there");
    assert_eq!(refused.code(), Code::Unavailable);
    assert_eq!(complaint(&refused).reason, "NODE_UNREACHABLE");
    assert_eq!(fact(&refused, "node_name"), "one");
    assert_eq!(fact(&refused, "address"), one.address());
    // The first call may have met the closing connection. Later calls are not retried: no process listens.
    let refused = there.pause(&id).await.expect_err("no server is there");
    assert_eq!(retry_after(&refused), None);
    for words in [&["logs", &id][..], &["events", &id], &["screen", &id]] {
        let read = run_to_end(two.cli(words), PATIENCE).await;
        let said = String::from_utf8_lossy(&read.stderr).into_owned();
        assert!(
            !read.status.success() && said.contains("node one ("),
            "{words:?}: {said}"
        );
    }
    let why = run_to_end(two.cli(&["why", &id]), PATIENCE).await;
    let said = String::from_utf8_lossy(&why.stdout).into_owned();
    assert!(said.contains("its journal: node one ("), "{said}");
    // Another node now has this address, like a new pod of that name, without these runs.
    let address = format!(
        "UPDATE nodes SET address = '{}' WHERE name = 'one'",
        long.address()
    );
    postgres.psql(&address).await;
    let refused = there.pause(&id).await.expect_err("another node is there");
    assert_eq!(complaint(&refused).reason, "NODE_UNREACHABLE", "{refused}");
    one.launch_again().await;
    // The error advises to repeat the call.
    eventually_async("it answers again", PATIENCE, async || {
        let mut there = two.client().await;
        there.abort(&id).await.ok()
    })
    .await;
    let ended = must("wait", there.ended(&id).await);
    assert!(ended.end_reason.is_some(), "{ended:?}");
    one.becomes_ready(true).await;
}

// promise: I-47
async fn commands_go_to_the_node_that_is_named(nodes: &mut Nodes) {
    let Nodes { one, two, .. } = nodes;
    let output = run_to_end(one.cli(&["nodes"]), PATIENCE).await;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    for (name, address) in [("one", one.address()), ("two", two.address())] {
        let line = text.lines().find(|line| line.contains(&address));
        let line = line.unwrap_or_else(|| panic!("{text}"));
        assert!(line.contains(name) && line.contains("reachable"), "{text}");
        assert_eq!(line.starts_with('*'), name == "one", "{text}");
    }
    must_run(two, &["--node", "one", "drain"]).await;
    let refused = one.client().await.spawn(sh("true")).await;
    let refused = refused.expect_err("it is drained");
    assert_eq!(complaint(&refused).reason, "NODE_DRAINING");
    let run = must_run(one, &["--node", "two", "run", "--", "echo", "said"]).await;
    assert_eq!(run, "said\n");
    must_run(two, &["--node", "one", "drain", "--undo"]).await;
    must_run(one, &["run", "--", "true"]).await;

    let absent = run_to_end(one.cli(&["--node", "three", "ps"]), PATIENCE).await;
    let said = String::from_utf8_lossy(&absent.stderr).into_owned();
    assert!(!absent.status.success() && said.contains("three"), "{said}");
}

async fn must_run(kennel: &Kennel, words: &[&str]) -> String {
    let output = run_to_end(kennel.cli(words), PATIENCE).await;
    assert!(output.status.success(), "{words:?}: {output:?}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Two nodes that reach each other over TLS, and clients with tokens.
struct Fleet {
    postgres: Postgres,
    one: Kennel,
    two: Kennel,
    dir: TempDir,
    ports: [u16; 2],
}

impl Fleet {
    async fn start() -> Self {
        let postgres = Postgres::start().await;
        let dir = tempfile::Builder::new().prefix("kennel-fleet-").tempdir();
        let dir = dir.expect("a directory");
        let certs = async |words: &[&str]| {
            let words: Vec<&str> = ["certs"].iter().chain(words).copied().collect();
            let made = kennel_in(dir.path(), &words).await;
            assert!(made.status.success(), "{made:?}");
            String::from_utf8_lossy(&made.stdout).into_owned()
        };
        certs(&["init", "ca"]).await;
        let mut access = certs(&["server", "ca", "127.0.0.1"]).await;
        for token in ["alice", "bob"] {
            access += &certs(&["token", "ca", token]).await;
        }
        access += &certs(&["node", "ca", "nodes"]).await;
        fs::write(dir.path().join("access.toml"), access).expect("own directory");
        let held: Vec<_> = (0..2)
            .map(|_| TcpListener::bind("127.0.0.1:0").expect("a port"))
            .collect();
        let port = |at: usize| held[at].local_addr().expect("bound").port();
        let ports = [port(0), port(1)];
        drop(held);
        let one = Self::node(&postgres, dir.path(), ports[0], "one").await;
        let two = Self::node(&postgres, dir.path(), ports[1], "two").await;
        Self {
            postgres,
            one,
            two,
            dir,
            ports,
        }
    }

    async fn node(postgres: &Postgres, dir: &Path, port: u16, name: &'static str) -> Kennel {
        let listen = format!("unix:{0}/{port}.sock,tcp:127.0.0.1:{port}", dir.display());
        let access = dir.join("access.toml").display().to_string();
        let name = ["--node-name", name, "--node-lease", "3s"];
        let words = [["--listen", listen.leak(), "--access", access.leak()], name].concat();
        Kennel::start(Options {
            words,
            ..Options::on(&postgres.url())
        })
        .await
    }

    async fn client(&self, at: usize, token: &str) -> Connection {
        let credentials = Credentials {
            tls: Tls {
                ca: Some(self.dir.path().join("ca/ca.pem")),
                ..Tls::default()
            },
            token: Some(Token::File(
                self.dir.path().join(format!("ca/{token}.token")),
            )),
            ..Credentials::default()
        };
        let address = Address::Tcp {
            host: "127.0.0.1".to_owned(),
            port: self.ports[at],
        };
        must("connect", connect_with(&address, &credentials).await)
    }
}

fn sleeper() -> pb::SpawnRequest {
    pb::SpawnRequest {
        run_id: kennel_tests::new_run_id(),
        spec: Some(argv(&["sleep", "600"])),
        ..pb::SpawnRequest::default()
    }
}

/// Reads present events.
async fn present(at: &Connection, position: Position) -> Result<Crowd, tonic::Status> {
    let request = pb::StreamEventsRequest {
        filter: Some(labelled("own")),
        position: Some(position),
        until: pb::StreamUntil::Head.into(),
        ..pb::StreamEventsRequest::default()
    };
    let mut stream = at.processes().stream_events(request).await?.into_inner();
    let mut crowd = Crowd::default();
    while let Some(message) = within("an end", LONG, stream.message()).await? {
        crowd.take(message);
    }
    Ok(crowd)
}

// promise: I-82
async fn stream_over_nodes_has_own_runs_alone(fleet: &Fleet) {
    let mut own = Vec::new();
    for (at, name) in [(0, "alice"), (1, "bob")] {
        let spawn = pb::SpawnRequest {
            spec: Some(argv(&["sleep", "600"]).label("app", "own")),
            ..pb::SpawnRequest::default()
        };
        let run = fleet.client(at, name).await.processes().spawn(spawn).await;
        own.push(must("spawn", run).into_inner().run.expect("a run").run_id);
    }
    // Each client calls the other's node.
    let (alice, bob) = (fleet.client(1, "alice").await, fleet.client(0, "bob").await);
    let of_alice = must("alice's", present(&alice, beginning()).await);
    let of_bob = must("bob's", present(&bob, beginning()).await);
    assert_eq!(of_alice.runs.keys().collect::<Vec<_>>(), [&own[0]]);
    assert_eq!(of_bob.runs.keys().collect::<Vec<_>>(), [&own[1]]);

    // A cursor belongs to its owner.
    let refused = present(&bob, of_alice.position())
        .await
        .expect_err("alice's");
    assert_eq!(refused.code(), Code::InvalidArgument);
    // A cursor forged by bob from alice's positions opens nothing.
    let seal = |crowd: &Crowd| crowd.cursor[3..11].to_vec();
    let (alices, bobs) = (seal(&of_alice), seal(&of_bob));
    let mut spliced = of_alice.cursor.clone();
    let mut replaced = 0;
    for at in 0..spliced.len() - 8 {
        if spliced[at..at + 8] == alices {
            spliced[at..at + 8].copy_from_slice(&bobs);
            replaced += 1;
        }
    }
    assert!(replaced > 2, "the seal of each place");
    for bob in [bob, fleet.client(1, "bob").await] {
        let position = Position::Cursor(spliced.clone().into());
        let found = must("spliced", present(&bob, position).await);
        assert!(!found.runs.contains_key(&own[0]), "alice's run");
    }
    for (id, at) in own.iter().zip([0, 1]) {
        let name = ["alice", "bob"][at];
        let abort = pb::AbortRequest {
            run_id: id.clone(),
            ..pb::AbortRequest::default()
        };
        must(
            "abort",
            fleet.client(at, name).await.processes().abort(abort).await,
        );
    }
}

// promise: AC-9
async fn owners_stay_apart_across_nodes(fleet: &Fleet) {
    let alice = fleet.client(0, "alice").await;
    let spawned = must("spawn", alice.processes().spawn(sleeper()).await).into_inner();
    let id = spawned.run.expect("a run").run_id;
    let pause = || pb::PauseRequest { run_id: id.clone() };

    let (alice, bob) = (fleet.client(1, "alice").await, fleet.client(1, "bob").await);
    let refused = bob.processes().pause(pause()).await.expect_err("alice's");
    assert_eq!(complaint(&refused).reason, "RUN_NOT_FOUND");
    must("pause", alice.processes().pause(pause()).await);
    // The other node records the caller's name.
    let logged = fleet.one.client().await.logged_requests(&id).await;
    let logged = must("trail", logged);
    let by = logged.iter().find(|asked| asked.rpc == "Pause");
    let by = by.expect("it is written down");
    assert_eq!(by.by, "token:alice");
    assert_eq!(by.asked["via"], "spiffe://kennel/nodes");

    // Forged metadata gives a spawner no other rights.
    let mut request = Request::new(pause());
    for (key, value) in [
        ("principal", "token:bob"),
        ("role", "admin"),
        ("owner", "token:bob"),
    ] {
        let key = format!("kennel-{key}").parse::<tonic::metadata::AsciiMetadataKey>();
        let value = MetadataValue::try_from(value).expect("ASCII");
        request.metadata_mut().insert(key.expect("ASCII"), value);
    }
    let refused = bob.processes().pause(request).await.expect_err("no admin");
    assert_eq!(refused.code(), Code::PermissionDenied);
    let abort = pb::AbortRequest {
        run_id: id.clone(),
        ..pb::AbortRequest::default()
    };
    must("abort", alice.processes().abort(abort).await);
    let mut owner = fleet.two.client().await;
    must("wait", owner.ended(&id).await);
}

/// A later version has written the record, and its node cannot be reached: who may not see the run may not end it.
// promise: I-92a
async fn foreign_unreadable_run_is_answered_like_absent(fleet: &Fleet) {
    let alice = fleet.client(0, "alice").await;
    let spawned = must("spawn", alice.processes().spawn(sleeper()).await).into_inner();
    let id = spawned.run.expect("a run").run_id;
    eventually_async("it runs", PATIENCE, async || {
        let run = must("get", fleet.two.client().await.get(&id).await);
        (run.state() == RunState::Running).then_some(())
    })
    .await;
    let server = fleet.one.server().expect("it serves");
    kill_exactly(&server, Signal::SIGSTOP);
    let lost = "UPDATE nodes SET address = 'unix:/nonexistent/kennel.sock' WHERE name = 'one'";
    let postgres = &fleet.postgres;
    postgres.psql(lost).await;
    let known = format!("SELECT spec FROM runs WHERE run_id = '{id}'");
    let known = postgres.psql(&known).await;
    let write = async |spec: &str| {
        let sql = format!("UPDATE runs SET spec = $spec${spec}$spec$ WHERE run_id = '{id}'");
        postgres.psql(&sql).await;
    };
    write(r#"{"policy":{"kind":"later"}}"#).await;
    let stops = async || postgres.psql("SELECT count(*) FROM left_stops").await;
    let (alice, bob) = (fleet.client(1, "alice").await, fleet.client(1, "bob").await);
    let at = |node: Option<&'static str>| {
        let mut request = Request::new(pb::AbortRequest {
            run_id: id.clone(),
            ..pb::AbortRequest::default()
        });
        if let Some(name) = node {
            let name = MetadataValue::from_static(name);
            request.metadata_mut().insert("kennel-node", name);
        }
        request
    };
    for node in [None, Some("two")] {
        let refused = bob.processes().abort(at(node)).await.expect_err("alice's");
        let refused = complaint(&refused);
        assert_eq!(
            (refused.code, refused.reason.as_str()),
            (Code::NotFound, "RUN_NOT_FOUND")
        );
        assert_eq!(stops().await.trim(), "0");
    }
    let left = alice.processes().abort(at(None)).await;
    let left = left.expect_err("it is left");
    assert_eq!(complaint(&left).reason, "ABORT_QUEUED");
    assert_eq!(stops().await.trim(), "1");
    write(&known).await;
    kill_exactly(&server, Signal::SIGCONT);
    let mut there = fleet.two.client().await;
    let ended = must("wait", there.ended(&id).await);
    assert_eq!(ended.reason(), "aborted");
}

// promise: RW-140
async fn sent_secret_reaches_the_other_node_over_tls(fleet: &Fleet) {
    const SECRET: &str = "canary-for-another-node-7c02d5";
    let alice = fleet.client(1, "alice").await;
    let value = || Source::Value(SECRET.as_bytes().to_vec().into());
    let script = r#"printf %s "$V" | rev; printf / ; rev <"$F""#;
    let spec = sh(script).secret("V", value()).secret_file("F", value());
    let mut named = Request::new(pb::SpawnRequest {
        run_id: kennel_tests::new_run_id(),
        spec: Some(spec),
        ..pb::SpawnRequest::default()
    });
    let name = MetadataValue::from_static("one");
    named.metadata_mut().insert("kennel-node", name);
    let run = must("spawn", alice.processes().spawn(named).await).into_inner();
    let run = run.run.expect("a run");
    let seen = must("get", fleet.two.client().await.get(&run.run_id).await);
    assert_eq!(seen.other_node.expect("elsewhere").node_name, "one");
    let mut here = fleet.one.client().await;
    must("end", here.ended(&run.run_id).await);
    let heard = must("events", here.hear_all(&run.run_id, 0).await);
    let back: String = SECRET.chars().rev().collect();
    assert_eq!(heard.text(), format!("{back}/{back}"));
    for node in [&fleet.one, &fleet.two] {
        let found = files_with(SECRET, &node.data_dir());
        assert!(found.is_empty(), "{found:?}");
        assert!(!node.log().contains(SECRET));
    }
}

// promise: I-75, I-75a
async fn spawn_for_halted_node_runs_once_after_refusal(fleet: &Fleet) {
    let server = fleet.one.server().expect("it serves");
    let keeper = Proc::read(fleet.one.keeper_pid()).expect("own child");
    for process in [&keeper, &server] {
        kill_exactly(process, Signal::SIGSTOP);
    }
    let alice = fleet.client(1, "alice").await;
    let spawn = sleeper();
    let at_one = || {
        let mut named = Request::new(spawn.clone());
        let name = MetadataValue::from_static("one");
        named.metadata_mut().insert("kennel-node", name);
        named
    };
    let refused = alice.processes().spawn(at_one()).await;
    let refused = refused.expect_err("it is halted");
    assert_eq!(refused.code(), Code::Unavailable);
    assert_eq!(complaint(&refused).reason, "NODE_UNREACHABLE");
    assert_eq!(fact(&refused, "node_name"), "one");
    let get = pb::GetRunRequest {
        run_id: spawn.run_id.clone(),
    };
    let gone = alice.processes().get_run(get).await;
    let gone = gone.expect_err("nothing is started");
    assert_eq!(complaint(&gone).reason, "RUN_NOT_FOUND");

    let spawned = must("spawn", alice.processes().spawn(spawn.clone()).await).into_inner();
    assert!(!spawned.existing);
    for process in [&server, &keeper] {
        kill_exactly(process, Signal::SIGCONT);
    }
    // A repeat naming any node returns the existing run.
    eventually_async("the halted node is back", PATIENCE, async || {
        let again = alice.processes().spawn(at_one()).await.ok()?.into_inner();
        assert!(again.existing);
        let run = again.run.expect("a run");
        assert_eq!(run.other_node.expect("elsewhere").node_name, "two");
        Some(())
    })
    .await;
    must("abort", fleet.two.client().await.abort(&spawn.run_id).await);
}
