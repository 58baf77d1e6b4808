//! The server on the network: the rights of principals, over real TLS and with real credentials.

use crate::{
    issuer_tokens::{PLANNER, admit_planner, bearing, key_set, openssl, refusal, spawn, token},
    net::{Net, follow, must_succeed, sleeper},
    run_as::{GID, GROUPS, UID, with_user},
};
use kennel_client::{Address, Connection, connect_with};
use kennel_proto::pb::{
    self, for_each_run_request::Action, for_each_run_response::Part, secret::Source,
    stream_events_request::Position,
};
use kennel_tests::{
    Options, PATIENCE, SpecExt, cases,
    client::{duration, sh},
    complaint, eventually,
    kennel::bare_command,
    must, new_run_id, programs,
    raw::Raw,
    shell::{kennel_in, run_to_end},
    within,
};
use prost::Message;
use prost_types::FileDescriptorSet;
use std::{
    collections::BTreeSet,
    fs,
    io::{Read as _, Write as _},
    net::TcpStream,
    os::unix::process::CommandExt,
    time::Duration,
};
use tonic::{Code, Request, client::Grpc};
use tonic_types::StatusExt;

/// Returns the answer to a call: code and reason; OK where the first message has come, or none within a moment.
async fn call(connection: &Connection, path: &str, message: Vec<u8>) -> (Code, String) {
    let mut grpc = Grpc::new(connection.channel());
    must("ready", grpc.ready().await.map_err(|e| e.to_string()));
    let path = path.parse().expect("a path");
    let answered = async {
        let answer = grpc
            .server_streaming(Request::new(message), path, Raw)
            .await?;
        answer.into_inner().message().await
    };
    match tokio::time::timeout(Duration::from_millis(500), answered).await {
        Err(_) | Ok(Ok(_)) => (Code::Ok, String::new()),
        Ok(Err(status)) => {
            let info = status.get_details_error_info();
            (
                status.code(),
                info.map(|info| info.reason).unwrap_or_default(),
            )
        }
    }
}

/// All RPCs of the contract, with the number of their least role.
pub(crate) fn methods() -> Vec<(String, usize)> {
    options_of_methods("kennel.v1.role")
}

/// All RPCs of the contract, with the number of an option; 0 where they have none.
pub(crate) fn options_of_methods(name: &str) -> Vec<(String, usize)> {
    let image = fs::read(programs::repository().join("proto/kennel.v1.binpb")).expect("the image");
    let pool = prost_reflect::DescriptorPool::decode(&image[..]).expect("it is an image");
    let option = pool.get_extension_by_name(name).expect("the option");
    let mut methods = Vec::new();
    for service in pool
        .services()
        .filter(|service| service.package_name() == "kennel.v1")
    {
        for method in service.methods() {
            let value = method.options().get_extension(&option).as_enum_number();
            let value = usize::try_from(value.expect("an enum")).expect("no negative one");
            methods.push((format!("/{}/{}", service.full_name(), method.name()), value));
        }
    }
    methods
}

/// Returns one valid request of each RPC that takes a run.
pub(crate) fn requests(run: &str) -> Vec<(&'static str, Vec<u8>)> {
    let run_id = run.to_owned();
    macro_rules! request {
        ($name:ident { $($field:ident: $value:expr),* }) => {
            #[allow(clippy::needless_update)]
            pb::$name { run_id: run_id.clone(), $($field: $value,)* ..Default::default() }.encode_to_vec()
        };
    }
    let consumer = || "c".to_owned();
    let pattern = || {
        Some(pb::LinePattern {
            pattern: Some(pb::line_pattern::Pattern::Literal("x".to_owned())),
        })
    };
    vec![
        ("Interrupt", request!(InterruptRequest {})),
        (
            "Signal",
            request!(SignalRequest {
                signal: "SIGUSR1".to_owned()
            }),
        ),
        (
            "ResizeTerminal",
            request!(ResizeTerminalRequest { rows: 10, cols: 10 }),
        ),
        ("ReadScreen", request!(ReadScreenRequest {})),
        ("GetTree", request!(GetTreeRequest {})),
        ("Pause", request!(PauseRequest {})),
        ("Resume", request!(ResumeRequest {})),
        ("Restart", request!(RestartRequest {})),
        ("RemoveRun", request!(RemoveRunRequest {})),
        (
            "WriteInput",
            request!(WriteInputRequest { data: "x".into() }),
        ),
        ("CloseInput", request!(CloseInputRequest {})),
        ("GetInputStatus", request!(GetInputStatusRequest {})),
        ("GetRun", request!(GetRunRequest {})),
        ("WaitRun", request!(WaitRunRequest {})),
        (
            "WaitForOutput",
            request!(WaitForOutputRequest { pattern: pattern() }),
        ),
        (
            "AnnotateRun",
            request!(AnnotateRunRequest {
                remove: vec!["a".to_owned()]
            }),
        ),
        (
            "ExtendTimeouts",
            request!(ExtendTimeoutsRequest {
                duration: Some(duration(Duration::from_secs(1)))
            }),
        ),
        ("StreamEvents", request!(StreamEventsRequest {})),
        (
            "StreamEvents",
            request!(StreamEventsRequest {
                consumer: consumer()
            }),
        ),
        (
            "GetConsumer",
            request!(GetConsumerRequest {
                consumer: consumer()
            }),
        ),
        (
            "DeleteConsumer",
            request!(DeleteConsumerRequest {
                consumer: consumer()
            }),
        ),
        (
            "ReadOutput",
            request!(ReadOutputRequest {
                stream: pb::OutputStream::Stdout.into()
            }),
        ),
    ]
}

// The first two tests expect neither calls nor runs of Bob. The last two revoke Bob's certificate and end the server.
cases! {
    fn principals_on_one_server(mut with_permissions().await);
    credentials_are_in_the_audit_log,
    network_callers_inherit_named_variables,
    foreign_run_is_answered_like_an_absent_one,
    consumers_of_owners_are_apart,
    only_named_users_are_given,
    only_named_secrets_are_given,
    service_account_tokens_of_a_named_issuer_call,
    half_open_handshakes_lock_no_client_out,
    listed_user_may_use_a_shared_socket,
    open_streams_end_when_their_credentials_do,
    port_is_served_after_server_and_keeper_deaths,
}

/// A server where Alice may run as another user and with some of the server's secrets.
async fn with_permissions() -> Net {
    let env = [
        ("KENNEL_INHERIT", "NET_NAMED*"),
        ("NET_NAMED", "yes"),
        ("NET_SECRET", "hush"),
    ];
    let options = Options {
        env: env.map(|(name, value)| (name.into(), value.into())).into(),
        ..Options::default()
    };
    Net::start_prepared(options, &[], |text| {
        let name = "name = \"spiffe://kennel/alice\"";
        let [first, second] = GROUPS;
        text.replace(
            name,
            &format!(
                "{name}\nrun_as = [{UID}]\nrun_as_groups = [{GID}, {first}, {second}]\n\
                 secrets = [\"file:team/*\", \"credential:db\"]"
            ),
        )
    })
    .await
}

/// Filters that match a run of alice alone, each by one field; every field of the contract is there, but for those that
/// name a parent, an end, or a node.
fn filters_that_match(run: &str) -> Vec<(&'static str, pb::RunFilter)> {
    let text = str::to_owned;
    let of_this_one = || pb::RunFilter {
        labels: [(text("seen"), text("alone"))].into(),
        ..pb::RunFilter::default()
    };
    let mut all: Vec<(&str, pb::RunFilter)> = Vec::new();
    macro_rules! by {
        ($field:ident, $value:expr) => {
            all.push((
                stringify!($field),
                pb::RunFilter {
                    $field: $value,
                    ..of_this_one()
                },
            ));
        };
    }
    let hour = prost_types::Duration {
        seconds: 3600,
        nanos: 0,
    };
    by!(states, vec![pb::RunState::Running.into()]);
    by!(kinds, vec![pb::RunKind::Heartbeat.into()]);
    by!(labels, [(text("seen"), text("alone"))].into());
    by!(label_selector, text("a=b"));
    by!(run_id_part, run[..20].to_owned());
    by!(owners, vec![text("spiffe://kennel/alice")]);
    by!(names, vec![text("pay*")]);
    by!(activities, vec![pb::Activity::Unspecified.into()]);
    by!(is_ready, Some(true));
    by!(waits, vec![pb::Wait::Unspecified.into()]);
    by!(
        annotations,
        vec![pb::AnnotationRequirement {
            key: text("none"),
            test: pb::RequirementTest::Absent.into(),
            values: Vec::new(),
        }]
    );
    by!(max_age, Some(hour));
    by!(run_ids, vec![text(run)]);
    let named = [
        "node",
        "parent_run_id",
        "min_age",
        "end_reasons",
        "below_run_id",
        "ended_min_age",
    ];
    let known: BTreeSet<&str> = all.iter().map(|(field, _)| *field).chain(named).collect();
    let set = FileDescriptorSet::decode(pb::FILE_DESCRIPTOR_SET).expect("our own");
    let messages = set.file.iter().flat_map(|file| &file.message_type);
    let filter = messages.filter(|message| message.name() == "RunFilter");
    let fields: BTreeSet<&str> = filter
        .flat_map(|filter| &filter.field)
        .map(prost_types::FieldDescriptorProto::name)
        .collect();
    assert_eq!(fields, known, "each field of a filter is tried");
    all
}

// promise: K-11, AC-2, RW-82
async fn foreign_run_is_answered_like_an_absent_one(net: &mut Net) {
    let (alice, bob) = (
        net.by_certificate("alice").await,
        net.by_certificate("bob").await,
    );
    let (run, absent) = (new_run_id(), new_run_id());
    let mut named = sleeper(&run, &[("a", "b"), ("seen", "alone")]);
    "payroll".clone_into(&mut named.spec.as_mut().expect("a spec").name);
    let spawned = alice.processes().spawn(named).await;
    let spawned = must("spawn", spawned).into_inner().run.expect("a run");
    assert_eq!(spawned.owner, "spiffe://kennel/alice");
    for ((rpc, foreign), (_, absent)) in requests("payroll").into_iter().zip(requests("charity")) {
        let path = format!("/kennel.v1.ProcessService/{rpc}");
        let foreign = call(&bob, &path, foreign).await;
        assert_eq!(foreign, call(&bob, &path, absent).await, "{rpc}");
        assert_eq!(foreign.0, Code::NotFound, "{rpc}: {foreign:?}");
    }
    for (field, filter) in filters_that_match(&run) {
        for (client, expected) in [(&alice, 1), (&bob, 0)] {
            let list = pb::ListRunsRequest {
                filter: Some(filter.clone()),
                ..pb::ListRunsRequest::default()
            };
            let listed = must("list", client.processes().list_runs(list).await);
            assert_eq!(listed.into_inner().runs.len(), expected, "{field}");
            let each = pb::ForEachRunRequest {
                filter: Some(filter.clone()),
                action: Some(Action::Pause(pb::PauseRequest::default())),
                dry_run: true,
                ..pb::ForEachRunRequest::default()
            };
            let mut each = must("each", client.processes().for_each_run(each).await).into_inner();
            let first = must("answer", each.message().await).expect("an answer");
            let Some(Part::Matched(matched)) = first.part else {
                panic!("{first:?}");
            };
            assert_eq!(matched.count as usize, expected, "{field}");
        }
    }
    for ((rpc, foreign), (_, absent)) in requests(&run).into_iter().zip(requests(&absent)) {
        let path = format!("/kennel.v1.ProcessService/{rpc}");
        let (foreign, absent) = (
            call(&bob, &path, foreign).await,
            call(&bob, &path, absent).await,
        );
        assert_eq!(foreign, absent, "{rpc}");
        assert_eq!(foreign.0, Code::NotFound, "{rpc}: {foreign:?}");
    }
    // No filter, repeated Spawn or Abort reveals the run; Abort would fence an unknown id.
    let listed = bob
        .processes()
        .list_runs(pb::ListRunsRequest::default())
        .await;
    assert_eq!(must("list", listed).into_inner().runs, []);
    let all = pb::StreamEventsRequest {
        filter: Some(pb::RunFilter::default()),
        position: Some(Position::Beginning(pb::FromBeginning {})),
        until: pb::StreamUntil::Head.into(),
        ..Default::default()
    };
    let mut events = must("stream", bob.processes().stream_events(all).await).into_inner();
    while let Some(message) = must("events", events.message().await) {
        assert_eq!(message.run_events, []);
    }
    let again = bob.processes().spawn(sleeper(&run, &[("a", "b")])).await;
    assert_eq!(again.expect_err("taken").code(), Code::AlreadyExists);
    let child_of = |parent: &str| {
        let mut child = sleeper(&new_run_id(), &[]);
        child.spec.as_mut().expect("a spec").parent = Some(pb::Parent {
            run_id: parent.to_owned(),
            ..pb::Parent::default()
        });
        child
    };
    let below = bob.processes().spawn(child_of(&run)).await;
    let below = below.expect_err("not his");
    let below_absent = bob.processes().spawn(child_of(&absent)).await;
    let below_absent = below_absent.expect_err("not there");
    assert_eq!(below.code(), Code::NotFound);
    assert_eq!(
        below.message().replace(&run, &absent),
        below_absent.message()
    );
    let abort = pb::AbortRequest {
        run_id: run.clone(),
        ..Default::default()
    };
    let aborted = bob.processes().abort(abort.clone()).await;
    assert_eq!(aborted.expect_err("not his").code(), Code::NotFound);
    // An operator may abort, and the owner sees the operator's name.
    let operator = net.by_token("operator").await;
    must("abort", operator.processes().abort(abort).await);
    let ended = alice
        .processes()
        .get_run(pb::GetRunRequest { run_id: run })
        .await;
    let ended = must("get", ended).into_inner().run.expect("a run");
    assert_eq!(ended.state(), pb::RunState::Cancelled);
    assert!(format!("{:?}", ended.end_reason).contains("token:operator"));
}

// promise: O-28
async fn consumers_of_owners_are_apart(net: &mut Net) {
    let (alice, bob) = (
        net.by_certificate("alice").await,
        net.by_certificate("bob").await,
    );
    let request = |name: &str| pb::StreamEventsRequest {
        filter: Some(pb::RunFilter::default()),
        consumer: name.to_owned(),
        ..pb::StreamEventsRequest::default()
    };
    let open =
        async |by: &Connection, name: &str| by.processes().stream_events(request(name)).await;
    let own = must("first", open(&alice, "collector").await);
    must("the same name", open(&bob, "collector").await);
    for number in 1..64 {
        must("bob's", open(&bob, &format!("c{number}")).await);
    }
    let refused = open(&bob, "c64").await.map(drop);
    assert_eq!(refused.expect_err("full").code(), Code::ResourceExhausted);
    must("a place of her own", open(&alice, "second").await);
    let get = async |by: &Connection, owner: &str| {
        let request = pb::GetConsumerRequest {
            consumer: "collector".to_owned(),
            owner: owner.to_owned(),
            ..pb::GetConsumerRequest::default()
        };
        let got = by.processes().get_consumer(request).await;
        got.map(|got| got.into_inner().consumer.expect("an answer has it"))
    };
    // Alice's reader was not replaced.
    let hers = must("get", get(&alice, "").await);
    assert_eq!(
        (hers.state(), &*hers.owner),
        (pb::ConsumerState::Read, "spiffe://kennel/alice")
    );
    drop(own);
    let foreign = get(&bob, "spiffe://kennel/alice").await;
    assert_eq!(foreign.expect_err("not his").code(), Code::NotFound);
    let operator = net.by_token("operator").await;
    let seen = must("an operator", get(&operator, "spiffe://kennel/bob").await);
    assert_eq!(seen.owner, "spiffe://kennel/bob");
    let owners = async |by: &Connection| {
        let all = pb::ListConsumersRequest {
            page_size: 1000,
            ..pb::ListConsumersRequest::default()
        };
        let listed = must("list", by.processes().list_consumers(all).await).into_inner();
        let owners = listed.consumers.into_iter().map(|consumer| consumer.owner);
        owners.collect::<BTreeSet<_>>().len()
    };
    assert_eq!((owners(&bob).await, owners(&operator).await), (1, 2));
}

// promise: AC-3
async fn open_streams_end_when_their_credentials_do(net: &mut Net) {
    let (alice, bob) = (
        net.by_certificate("alice").await,
        net.by_certificate("bob").await,
    );
    let viewer = net.by_token("operator").await;
    let run = new_run_id();
    must("spawn", alice.processes().spawn(sleeper(&run, &[])).await);
    let own = new_run_id();
    must("spawn", bob.processes().spawn(sleeper(&own, &[])).await);
    let of_alice = tokio::spawn(follow(alice.processes(), run.clone()));
    let of_bob = tokio::spawn(follow(bob.processes(), own.clone()));
    let of_token = tokio::spawn(follow(viewer.processes(), run.clone()));
    // Streams with valid credentials survive re-checks.
    net.change_rules(|text| text + "\n").await;
    net.change_rules(|text| text + "\n").await;
    assert!(!of_bob.is_finished() && !of_token.is_finished());

    // Revoke Bob's certificate and remove the token.
    let revoked = kennel_in(net.dir.path(), &["certs", "revoke", "ca", "bob"]).await;
    drop(must_succeed(&revoked));
    net.change_access(|text| {
        text.replace("token:operator", "token:other")
            .replace("id = \"operator\"", "id = \"other\"")
    });
    let token = fs::read(net.file("ca/operator.token")).expect("it is there");
    net.change_access(|text| {
        let hash = text
            .split("id = \"other\"")
            .nth(1)
            .and_then(|rest| rest.split('"').nth(1).map(str::to_owned));
        text.replace(&hash.expect("a hash"), &"0".repeat(64))
    });
    assert!(!token.is_empty());
    for (name, stream) in [("certificate", of_bob), ("token", of_token)] {
        let ended = tokio::time::timeout(Duration::from_secs(5), stream).await;
        let status = ended
            .unwrap_or_else(|_| panic!("the stream by {name} goes on"))
            .expect("no panic");
        assert_ne!(status.code(), Code::Ok, "{name}");
    }
    // Alice's stream is unaffected and reaches the run's end.
    assert!(!of_alice.is_finished());
    let abort = pb::AbortRequest {
        run_id: run,
        ..Default::default()
    };
    must("abort", alice.processes().abort(abort).await);
    let status = within("the end of the run", PATIENCE, of_alice).await;
    assert_eq!(status.expect("no panic").code(), Code::Ok);
}

// promise: AC-4
async fn half_open_handshakes_lock_no_client_out(net: &mut Net) {
    let address = ("127.0.0.1", net.port);
    let mut held = Vec::new();
    for n in 0..600 {
        let mut socket = must("a connection", TcpStream::connect(address));
        match n % 3 {
            0 => {}
            1 => drop(socket.write_all(b"GET / HTTP/1.1\r\n\r\n")),
            _ => drop(socket.write_all(&[0x16, 0x03, 0x01, 0x02, 0x00, 0x01])),
        }
        held.push(socket);
    }
    let alice = net.by_certificate("alice").await;
    let run = new_run_id();
    must("spawn", alice.processes().spawn(sleeper(&run, &[])).await);
    let abort = pb::AbortRequest {
        run_id: run,
        ..Default::default()
    };
    must("abort", alice.processes().abort(abort).await);
    assert_eq!(held.len(), 600);
}

// promise: AC-5
async fn port_is_served_after_server_and_keeper_deaths(net: &mut Net) {
    let alice = net.by_certificate("alice").await;
    let run = new_run_id();
    must("spawn", alice.processes().spawn(sleeper(&run, &[])).await);
    net.kennel.replace_server().await;
    let alice = net.by_certificate("alice").await;
    let get = || pb::GetRunRequest {
        run_id: run.clone(),
    };
    let found = must("get", alice.processes().get_run(get()).await).into_inner();
    assert_eq!(found.run.expect("a run").state(), pb::RunState::Running);
    // The access file is invalid while the server dies: the next one serves only its own user until the repair.
    let good = fs::read_to_string(net.file("access.toml")).expect("it is there");
    net.change_access(|_| "[tls\n".to_owned());
    net.kennel.replace_server().await;
    let mut own = net.kennel.client().await;
    must("get", own.get(&run).await);
    net.change_access(|_| good.clone());
    let port = net.port;
    eventually("the port is served", PATIENCE, || {
        TcpStream::connect(("127.0.0.1", port)).ok()
    })
    .await;
    let reached = async {
        loop {
            let address = Address::Tcp {
                host: "127.0.0.1".to_owned(),
                port,
            };
            if let Ok(alice) = connect_with(&address, &net.certificate("alice")).await
                && alice.processes().get_run(get()).await.is_ok()
            {
                return;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    tokio::time::timeout(PATIENCE, reached)
        .await
        .expect("the mended file is read");
}

// promise: AC-6
async fn listed_user_may_use_a_shared_socket(net: &mut Net) {
    const FOREIGN_UID: u32 = 65534;
    let open = |path: &std::path::Path| {
        use std::os::unix::fs::PermissionsExt;
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).expect("own directory");
    };
    open(net.dir.path());
    let program = net.file("kennel");
    kennel_tests::kennel::install(&programs::kennel(), &program, "0755");
    let list = || {
        let mut command = bare_command(&program);
        command
            .arg("--server")
            .arg(format!("unix:{}", net.file("k.sock").display()));
        command
            .args(["ps", "--all", "-q"])
            .uid(FOREIGN_UID)
            .gid(FOREIGN_UID);
        run_to_end(command, PATIENCE)
    };
    let refused = list().await;
    let why = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(
        !refused.status.success() && why.contains("access file"),
        "{why}"
    );
    net.change_access(|text| {
        format!("{text}\n[[principal]]\nname = \"uid:65534\"\nrole = \"viewer\"\n")
    });
    let deadline = std::time::Instant::now() + PATIENCE;
    while !list().await.status.success() {
        assert!(
            std::time::Instant::now() < deadline,
            "the access file is read again"
        );
    }
}

// promise: RW-141, AC-4
async fn credentials_are_in_the_audit_log(net: &mut Net) {
    let alice = net.by_certificate("alice").await;
    let run = new_run_id();
    must("spawn", alice.processes().spawn(sleeper(&run, &[])).await);
    let viewer = net.by_token("viewer").await;
    let denied = viewer.processes().spawn(sleeper(&new_run_id(), &[])).await;
    assert_eq!(denied.expect_err("a viewer").code(), Code::PermissionDenied);
    let serial = openssl(
        net.dir.path(),
        &["x509", "-in", "ca/alice.pem", "-noout", "-serial"],
        b"",
    );
    let serial = String::from_utf8_lossy(&serial)
        .trim()
        .trim_start_matches("serial=")
        .to_lowercase();
    let access = fs::read_to_string(net.file("access.toml")).expect("it is there");
    let (_, entry) = access.split_once("id = \"viewer\"").expect("its entry");
    let hash = entry.split_once("sha256 = \"").expect("a hash").1;
    let mut client = net.kennel.client().await;
    let logged = must("trail", client.logged_requests("").await);
    let asked = |by: &str| {
        let found = logged.iter().find(|request| request.by == by);
        found.unwrap_or_else(|| panic!("nothing by {by}: {logged:#?}"))
    };
    let shown = asked("spiffe://kennel/alice")
        .credential
        .replace("certificate:00", "certificate:");
    assert_eq!(
        shown,
        format!("certificate:{}", serial.trim_start_matches("00"))
    );
    let denied = asked("token:viewer");
    assert_eq!(denied.code, "PERMISSION_DENIED");
    assert_eq!(denied.credential, format!("token:sha256:{}", &hash[..16]));
    let token = fs::read_to_string(net.file("ca/viewer.token")).expect("it is there");
    assert!(!net.kennel.log().contains(token.trim()));
    let mut garbage = must("a connection", TcpStream::connect(("127.0.0.1", net.port)));
    must("a write", garbage.write_all(b"GET / HTTP/1.1\r\n\r\n"));
    // The server closes connections with failed handshakes.
    let _ = garbage.read_to_end(&mut Vec::new());
    let logged = must("trail", client.logged_requests("").await);
    let failed = logged.iter().find(|request| request.rpc == "Handshake");
    let failed = failed.unwrap_or_else(|| panic!("no handshake: {logged:#?}"));
    assert_eq!(
        (&*failed.by, &*failed.code),
        ("ip:127.0.0.1", "UNAUTHENTICATED")
    );
    assert!(!failed.asked["error"].is_empty());
}

// promise: AC-31
async fn network_callers_inherit_named_variables(net: &mut Net) {
    let spec = || pb::RunSpec {
        env: Some(pb::Env {
            mode: pb::EnvMode::InheritAll.into(),
            ..pb::Env::default()
        }),
        ..sh("echo \"${PATH:+path} ${NET_NAMED:-none} ${NET_SECRET:-none}\"")
    };
    let alice = net.by_certificate("alice").await;
    let run = new_run_id();
    let request = pb::SpawnRequest {
        run_id: run.clone(),
        spec: Some(spec()),
        ..pb::SpawnRequest::default()
    };
    must("spawn", alice.processes().spawn(request).await);
    let mut client = net.kennel.client().await;
    let own = new_run_id();
    must("spawn", client.spawn_as(&own, spec()).await);
    for (run, said) in [(run, "path yes none\n"), (own, "path yes hush\n")] {
        let heard = must("output", client.hear_all(&run, 0).await);
        assert_eq!(String::from_utf8_lossy(&heard.stdout), said);
    }
}

// promise: AC-14
async fn only_named_users_are_given(net: &mut Net) {
    let as_user = |run: &str| {
        let mut request = sleeper(run, &[]);
        request.spec = request.spec.map(with_user);
        request
    };
    let bob = net.by_certificate("bob").await;
    let refused = bob.processes().spawn(as_user(&new_run_id())).await;
    assert_eq!(
        refused.expect_err("not named").code(),
        Code::PermissionDenied
    );
    let alice = net.by_certificate("alice").await;
    let run = new_run_id();
    must("alice", alice.processes().spawn(as_user(&run)).await);
    let mut root = as_user(&new_run_id());
    let spec = root.spec.as_mut().and_then(|spec| spec.privileges.as_mut());
    spec.and_then(|p| p.user.as_mut()).expect("a user").user_id = 0;
    let refused = alice.processes().spawn(root).await;
    assert_eq!(
        refused.expect_err("not named").code(),
        Code::PermissionDenied
    );
    let mut group = as_user(&new_run_id());
    let spec = group
        .spec
        .as_mut()
        .and_then(|spec| spec.privileges.as_mut());
    let user = spec.and_then(|p| p.user.as_mut()).expect("a user");
    user.supplementary_group_ids.push(0);
    let refused = alice.processes().spawn(group).await;
    assert_eq!(
        refused.expect_err("not named").code(),
        Code::PermissionDenied
    );
    let admin = net.by_token("admin").await;
    must(
        "admin",
        admin.processes().spawn(as_user(&new_run_id())).await,
    );
}

fn server_file(path: &str) -> Source {
    Source::ServerFile(path.to_owned())
}

fn credential(name: &str) -> Source {
    Source::Credential(name.to_owned())
}

// promise: RW-93a
async fn only_named_secrets_are_given(net: &mut Net) {
    let alice = net.by_certificate("alice").await;
    let bob = net.by_certificate("bob").await;
    let admin = net.by_token("admin").await;
    let (denied, absent) = ("PERMISSION_DENIED", "SECRET_UNAVAILABLE");
    for (connection, source, reason) in [
        (&alice, server_file("team/key"), absent),
        (&alice, server_file("teams/key"), denied),
        (&alice, credential("db"), absent),
        (&alice, credential("db2"), denied),
        (&bob, server_file("team/key"), denied),
        (&bob, credential("db"), denied),
        (&admin, server_file("teams/key"), absent),
    ] {
        let mut request = sleeper(&new_run_id(), &[]);
        let named = format!("{source:?}");
        request.spec = request.spec.map(|spec| spec.secret("A", source));
        let refused = connection.processes().spawn(request).await;
        let refused = refused.expect_err("this server has none");
        assert_eq!(complaint(&refused).reason, reason, "{named}");
    }
    let mut request = sleeper(&new_run_id(), &[]);
    request.spec = request
        .spec
        .map(|spec| spec.secret("A", Source::Value("sent".into())));
    must("its own value", bob.processes().spawn(request).await);
}

// promise: AC-11, AC-11a
async fn service_account_tokens_of_a_named_issuer_call(net: &mut Net) {
    let dir = net.dir.path();
    admit_planner(net).await;
    let planner = bearing(net, token(dir, "first", "kennel", PLANNER));
    let planner = net.connect(&planner).await;
    let run = new_run_id();
    must("spawn", spawn(&planner, &run).await);
    let request = pb::GetRunRequest {
        run_id: run.clone(),
    };
    let own = must("get", planner.processes().get_run(request).await);
    let own = own.into_inner().run.expect("a run");
    assert_eq!(own.owner, "agents");

    let default = "system:serviceaccount:agents:default";
    for (kid, audience, subject, why) in [
        (
            "first",
            "vault",
            PLANNER,
            "the token is for another audience",
        ),
        (
            "second",
            "kennel",
            PLANNER,
            "the token's key is not its issuer's",
        ),
        (
            "first",
            "kennel",
            default,
            "does not name this token's principal",
        ),
    ] {
        let refused = refusal(net, token(dir, kid, audience, subject)).await;
        assert!(refused.contains(why), "{refused:?} lacks {why:?}");
    }
    let good = token(dir, "first", "kennel", PLANNER);
    let (message, signature) = good.rsplit_once('.').expect("three parts");
    let other = token(dir, "first", "vault", PLANNER);
    let (_, other) = other.rsplit_once('.').expect("three parts");
    let refused = refusal(net, format!("{message}.{other}")).await;
    assert!(
        refused.contains("signature is not its issuer's"),
        "{refused:?}"
    );
    let log = net.kennel.log();
    assert!(!log.contains(message) && !log.contains(signature), "{log}");

    // The issuer changed its key: tokens signed by the old key are invalid.
    let stream = tokio::spawn(follow(planner.processes(), run));
    openssl(dir, &["genrsa", "-out", "key.pem", "2048"], b"");
    fs::write(net.file("keys.json"), key_set(dir, "second")).expect("own directory");
    let ended = tokio::time::timeout(Duration::from_secs(5), stream).await;
    let status = ended.expect("the stream is cut").expect("no panic");
    assert_ne!(status.code(), Code::Ok);
    let renewed = bearing(net, token(dir, "second", "kennel", PLANNER));
    let renewed = net.connect(&renewed).await;
    must("spawn", spawn(&renewed, &new_run_id()).await);
}
