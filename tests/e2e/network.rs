//! The server on the network: the rights of principals, over real TLS and with real credentials.

use crate::net::{Net, ROLES, follow, must_succeed, sleeper};
use kennel_client::{Address, Connection, connect_with};
use kennel_proto::pb::{self, stream_events_request::Position};
use kennel_tests::{
    PATIENCE,
    client::duration,
    eventually,
    kennel::bare_command,
    must, new_run_id, programs,
    raw::Raw,
    shell::{kennel_in, run_to_end},
};
use prost::Message;
use std::{fs, io::Write as _, net::TcpStream, os::unix::process::CommandExt, time::Duration};
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

#[tokio::test(flavor = "multi_thread")]
async fn each_role_may_call_what_the_contract_says() {
    let net = Net::start().await;
    let mut callers = Vec::new();
    for role in ROLES {
        callers.push(net.by_token(role).await);
    }
    let refused = connect_with(&net.address(), &net.anonymous()).await;
    let refused = refused.expect_err("no credentials").to_string();
    assert!(refused.contains("certificate or a token"), "{refused}");
    // Tokens that are no longer valid: another text, and an expired one.
    for (name, becomes) in [("unknown", "unknown text"), ("late", "")] {
        let file = net.file(&format!("ca/{name}.token"));
        must("copy", fs::copy(net.file("ca/admin.token"), &file));
        let connection = net.by_token(name).await;
        match becomes {
            "" => drop(must("copy", fs::copy(net.file("ca/expired.token"), &file))),
            text => must("write", fs::write(&file, text)),
        }
        callers.push(connection);
    }
    let (expired, unknown) = (callers.pop().expect("one"), callers.pop().expect("one"));
    tokio::time::sleep(Duration::from_secs(3)).await;
    let methods = methods();
    assert_eq!(methods.len(), 35);
    for (path, least) in &methods {
        let denied = (Code::Unauthenticated, "UNAUTHENTICATED".to_owned());
        assert_eq!(call(&unknown, path, Vec::new()).await, denied, "{path}");
        assert_eq!(call(&expired, path, Vec::new()).await, denied, "{path}");
        for (at, caller) in callers.iter().enumerate() {
            // Calls that change the node are not made by a principal that may.
            let changes_node = ["/Drain", "/Undrain", "/Upgrade"]
                .iter()
                .any(|end| path.ends_with(end));
            if at + 1 < *least {
                let denied = (Code::PermissionDenied, "PERMISSION_DENIED".to_owned());
                assert_eq!(
                    call(caller, path, Vec::new()).await,
                    denied,
                    "{path} by {}",
                    ROLES[at]
                );
            } else if !changes_node {
                let (code, reason) = call(caller, path, Vec::new()).await;
                let is_denied = matches!(code, Code::PermissionDenied | Code::Unauthenticated);
                assert!(!is_denied, "{path} by {}: {reason}", ROLES[at]);
            }
        }
    }
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

#[tokio::test(flavor = "multi_thread")]
async fn foreign_run_is_answered_like_an_absent_one() {
    let net = Net::start().await;
    let (alice, bob) = (
        net.by_certificate("alice").await,
        net.by_certificate("bob").await,
    );
    let (run, absent) = (new_run_id(), new_run_id());
    let spawned = alice.processes().spawn(sleeper(&run, &[("a", "b")])).await;
    let spawned = must("spawn", spawned).into_inner().run.expect("a run");
    assert_eq!(spawned.owner, "spiffe://kennel/alice");
    for ((rpc, foreign), (_, absent)) in requests(&run).into_iter().zip(requests(&absent)) {
        let path = format!("/kennel.v1.ProcessService/{rpc}");
        let (foreign, absent) = (
            call(&bob, &path, foreign).await,
            call(&bob, &path, absent).await,
        );
        assert_eq!(foreign, absent, "{rpc}");
        assert_eq!(foreign.0, Code::NotFound, "{rpc}: {foreign:?}");
    }
    // Neither by a filter, nor by a repeated Spawn, nor by Abort, which would fence an unknown id.
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
    // An operator may, and the owner sees the operator's name.
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

#[tokio::test(flavor = "multi_thread")]
async fn open_streams_end_when_their_credentials_do() {
    let net = Net::start().await;
    let (alice, bob) = (
        net.by_certificate("alice").await,
        net.by_certificate("bob").await,
    );
    let viewer = net.by_token("operator").await;
    let run = new_run_id();
    must("spawn", alice.processes().spawn(sleeper(&run, &[])).await);
    let own = new_run_id();
    must("spawn", bob.processes().spawn(sleeper(&own, &[])).await);
    let mut of_alice = tokio::spawn(follow(alice.processes(), run.clone()));
    let of_bob = tokio::spawn(follow(bob.processes(), own.clone()));
    let of_token = tokio::spawn(follow(viewer.processes(), run.clone()));
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert!(!of_bob.is_finished() && !of_token.is_finished());

    // Bob's certificate is revoked, the token is removed.
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
    // Nothing else was touched.
    assert!(
        tokio::time::timeout(Duration::from_secs(1), &mut of_alice)
            .await
            .is_err()
    );
    must(
        "get",
        alice
            .processes()
            .get_run(pb::GetRunRequest { run_id: run })
            .await,
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn half_open_handshakes_lock_no_client_out() {
    let net = Net::start().await;
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

#[tokio::test(flavor = "multi_thread")]
async fn port_is_served_after_server_and_keeper_deaths() {
    let mut net = Net::start().await;
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
    // The access file is invalid while the server dies: the next one serves its own user alone, until the file is
    // repaired.
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

#[tokio::test(flavor = "multi_thread")]
async fn listed_user_may_use_a_shared_socket() {
    const FOREIGN_UID: u32 = 65534;
    let net = Net::start().await;
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
