//! Every RPC for every kind of caller, over real TLS: a table made of the contract, and the answer of each cell.

use crate::{
    issuer_tokens::{PLANNER, admit_planner, openssl, token_until},
    net::{Net, ROLES, must_succeed},
    network::{methods, requests},
};
use kennel_proto::pb::{self, for_each_run_request::Action};
use kennel_tests::{must, new_run_id, raw::Raw, shell::kennel_in};
use prost::Message;
use std::{
    collections::BTreeMap,
    fmt::Write as _,
    fs,
    os::{fd::OwnedFd, unix::net::UnixListener},
    path::Path,
    process::{Command, Stdio},
    thread,
    time::Duration,
};
use tonic::{
    Code, Request,
    client::Grpc,
    transport::{Channel, Endpoint},
};
use tonic_types::StatusExt;

/// Roles that see the runs of their owner alone, by number.
const SCOPED: [usize; 2] = [1, 2];

/// Who calls.
pub(crate) struct Column {
    pub(crate) name: String,
    pub(crate) channel: Channel,
    pub(crate) token: Option<String>,
}

/// What a column is answered.
#[derive(Clone, Copy)]
enum Expects {
    /// No connection comes about.
    NoConnection,
    Unauthenticated,
    /// By the role of this number; the runs that are named are those of another owner.
    Role(usize),
}

/// A channel through `openssl s_client`: with a certificate of any kind, or with none.
fn tunnel(net: &Net, name: &str, certificate: Option<(&Path, &str)>) -> Channel {
    let path = net.file(&format!("{name}.sock"));
    let listener = UnixListener::bind(&path).expect("own directory");
    let mut words = vec![
        "s_client".to_owned(),
        "-quiet".to_owned(),
        "-alpn".to_owned(),
        "h2".to_owned(),
        "-CAfile".to_owned(),
        net.file("ca/ca.pem").display().to_string(),
        "-connect".to_owned(),
        format!("127.0.0.1:{}", net.port),
    ];
    if let Some((dir, name)) = certificate {
        let file = |end: &str| dir.join(format!("{name}{end}")).display().to_string();
        words.extend(["-cert".to_owned(), file(".pem")]);
        words.extend(["-key".to_owned(), file("-key.pem")]);
    }
    thread::spawn(move || {
        while let Ok((socket, _)) = listener.accept() {
            let write = socket.try_clone().expect("a descriptor");
            let child = Command::new("openssl")
                .args(&words)
                .stdin(Stdio::from(OwnedFd::from(socket)))
                .stdout(Stdio::from(OwnedFd::from(write)))
                .stderr(Stdio::null())
                .spawn();
            let mut child = child.expect("openssl is installed");
            thread::spawn(move || child.wait());
        }
    });
    let endpoint = Endpoint::from_shared(format!("unix://{}", path.display()));
    endpoint.expect("a path").connect_lazy()
}

/// What a call is answered: code and reason; OK where the first message has come, or none within a moment. UNAVAILABLE without a
/// reason where no server has answered: each of its errors has one.
pub(crate) async fn answer(column: &Column, path: &str, message: Vec<u8>) -> (Code, String) {
    let mut grpc = Grpc::new(column.channel.clone());
    let mut request = Request::new(message);
    if let Some(token) = &column.token {
        let value = format!("Bearer {token}").parse().expect("a header");
        request.metadata_mut().insert("authorization", value);
    }
    let path = path.parse().expect("a path");
    let answered = async {
        let ready = grpc.ready().await;
        ready.map_err(|error| tonic::Status::unavailable(error.to_string()))?;
        let answer = grpc.server_streaming(request, path, Raw).await?;
        answer.into_inner().message().await
    };
    match tokio::time::timeout(Duration::from_millis(1500), answered).await {
        Err(_) | Ok(Ok(_)) => (Code::Ok, String::new()),
        Ok(Err(status)) => match status.get_details_error_info() {
            Some(info) => (status.code(), info.reason),
            None => (Code::Unavailable, String::new()),
        },
    }
}

/// A good request of each RPC for a run, with what it is answered where the run is there and the caller may see it: the run sleeps
/// and has no terminal. Absent: it names no run.
pub(crate) fn good_requests(run: &str) -> BTreeMap<&'static str, Vec<u8>> {
    let run_id = || run.to_owned();
    let mut all: BTreeMap<_, _> = requests(run).into_iter().collect();
    let abort = pb::AbortRequest {
        run_id: run_id(),
        ..pb::AbortRequest::default()
    };
    let attach = pb::AttachRequest {
        request: Some(pb::attach_request::Request::Open(pb::AttachOpen {
            run_id: run_id(),
            ..pb::AttachOpen::default()
        })),
    };
    let events = pb::StreamEventsRequest {
        run_id: run_id(),
        ..pb::StreamEventsRequest::default()
    };
    let ack = pb::AckEventsRequest {
        run_id: run_id(),
        consumer: "c".to_owned(),
        position: Some(pb::ack_events_request::Position::Seq(1)),
    };
    let spawn = pb::SpawnRequest {
        validate_only: true,
        ..crate::net::sleeper("", &[])
    };
    let resolve = pb::ResolveCommandRequest {
        spec: spawn.spec.clone(),
    };
    let each = pb::ForEachRunRequest {
        filter: Some(pb::RunFilter {
            run_ids: vec![run_id()],
            ..pb::RunFilter::default()
        }),
        action: Some(Action::Pause(pb::PauseRequest::default())),
        dry_run: true,
        ..pb::ForEachRunRequest::default()
    };
    all.extend([
        ("ForEachRun", each.encode_to_vec()),
        ("ResolveCommand", resolve.encode_to_vec()),
        ("Abort", abort.encode_to_vec()),
        ("Attach", attach.encode_to_vec()),
        ("StreamEvents", events.encode_to_vec()),
        ("AckEvents", ack.encode_to_vec()),
        ("Spawn", spawn.encode_to_vec()),
    ]);
    for rpc in [
        "ListRuns",
        "ListConsumers",
        "GetServerInfo",
        "ListNodes",
        "AuditLeaks",
        "StreamAudit",
        "Undrain",
        "Drain",
        "Upgrade",
        "ForgetNode",
        "ReapLeaks",
        "SweepRunDirectories",
    ] {
        all.insert(rpc, Vec::new());
    }
    all
}

/// RPCs that name no run, with the answer to a good request of one who may. Absent: it is not asked, for it changes the node.
const WITHOUT_RUN: [(&str, Option<(Code, &str)>); 15] = [
    ("ForEachRun", Some((Code::Ok, ""))),
    ("Spawn", Some((Code::Ok, ""))),
    ("ResolveCommand", Some((Code::Ok, ""))),
    ("ListRuns", Some((Code::Ok, ""))),
    ("ListConsumers", Some((Code::Ok, ""))),
    ("GetServerInfo", Some((Code::Ok, ""))),
    ("ListNodes", Some((Code::Ok, ""))),
    ("AuditLeaks", Some((Code::Ok, ""))),
    ("StreamAudit", Some((Code::Ok, ""))),
    ("ForgetNode", Some((Code::NotFound, "NODE_NOT_FOUND"))),
    ("ReapLeaks", Some((Code::Ok, ""))),
    ("SweepRunDirectories", Some((Code::Ok, ""))),
    ("Undrain", Some((Code::Ok, ""))),
    ("Drain", None),
    ("Upgrade", None),
];

/// What is not OK of what a run's own owner may call: the run sleeps and has neither a terminal, nor a consumer, nor a restart
/// policy.
const OF_OWN_RUN: [(&str, Code, &str); 9] = [
    ("RemoveRun", Code::FailedPrecondition, "INVALID_STATE"),
    ("ExtendTimeouts", Code::FailedPrecondition, "NO_TIME_LIMIT"),
    ("ResizeTerminal", Code::FailedPrecondition, "NO_TERMINAL"),
    ("ReadScreen", Code::FailedPrecondition, "NO_TERMINAL"),
    ("Attach", Code::FailedPrecondition, "NO_TERMINAL"),
    ("Restart", Code::FailedPrecondition, "INVALID_STATE"),
    ("AckEvents", Code::NotFound, "CONSUMER_NOT_FOUND"),
    ("GetConsumer", Code::NotFound, "CONSUMER_NOT_FOUND"),
    ("DeleteConsumer", Code::NotFound, "CONSUMER_NOT_FOUND"),
];

/// The answer of a cell; absent: the call is not made.
fn expected(
    expects: Expects,
    rpc: &str,
    least: usize,
    absent: bool,
) -> Option<(Code, &'static str)> {
    let role = match expects {
        Expects::NoConnection => return Some((Code::Unavailable, "")),
        Expects::Unauthenticated => return Some((Code::Unauthenticated, "UNAUTHENTICATED")),
        Expects::Role(role) => role,
    };
    if role < least {
        return Some((Code::PermissionDenied, "PERMISSION_DENIED"));
    }
    if let Some((_, answer)) = WITHOUT_RUN.iter().find(|(name, _)| *name == rpc) {
        return *answer;
    }
    // Callers limited to their owner's runs find foreign runs absent; other roles name no foreign run.
    let is_absent = absent || SCOPED.contains(&role);
    match rpc {
        // Abort fences an unknown id.
        "Abort" if absent => Some((Code::Ok, "")),
        _ if is_absent => Some((Code::NotFound, "RUN_NOT_FOUND")),
        _ => None,
    }
}

/// How the authority signs a certificate with dates of its own.
const AUTHORITY: &str = "
[ca]
default_ca = d
[d]
database = late-index
serial = late-serial
new_certs_dir = .
default_md = sha256
policy = p
x509_extensions = e
[p]
commonName = supplied
[e]
subjectAltName = URI:spiffe://kennel/alice
extendedKeyUsage = clientAuth
";

/// A certificate of Alice's, `ca/late.pem`, that has expired.
fn make_expired(net: &Net) {
    let dir = net.dir.path();
    for (name, text) in [
        ("late.conf", AUTHORITY),
        ("late-index", ""),
        ("late-serial", "01"),
    ] {
        fs::write(net.file(name), text).expect("own directory");
    }
    let copied = fs::copy(net.file("ca/alice-key.pem"), net.file("ca/late-key.pem"));
    must("copy", copied);
    let subject = ["-subj", "/CN=late", "-out", "late.csr"];
    let request = [&["req", "-new", "-key", "ca/late-key.pem"][..], &subject].concat();
    openssl(dir, &request, b"");
    let dates = [
        "-startdate",
        "20200101000000Z",
        "-enddate",
        "20200201000000Z",
    ];
    let authority = ["-cert", "ca/ca.pem", "-keyfile", "ca/ca-key.pem"];
    let files = [
        "-config",
        "late.conf",
        "-in",
        "late.csr",
        "-out",
        "ca/late.pem",
    ];
    let sign = [&["ca", "-batch", "-notext"][..], &dates, &authority, &files].concat();
    openssl(dir, &sign, b"");
}

async fn columns(net: &Net) -> Vec<(Column, Expects)> {
    let dir = net.dir.path();
    for words in [
        &["certs", "init", "wrong"][..],
        &["certs", "client", "wrong", "mallory"],
    ] {
        drop(must_succeed(&kennel_in(dir, words).await));
    }
    make_expired(net);
    let text = |name: &str| {
        let text = fs::read_to_string(net.file(&format!("ca/{name}.token")));
        text.expect("it is there").trim().to_owned()
    };
    let none = tunnel(net, "none", None);
    let jwt = |audience: &str, seconds: i64| token_until(dir, "first", audience, PLANNER, seconds);
    let with_token = |name: &str, token: Option<String>, expects| {
        let column = Column {
            name: name.to_owned(),
            channel: none.clone(),
            token,
        };
        (column, expects)
    };
    let mut columns = vec![
        with_token("no identity", None, Expects::Unauthenticated),
        with_token(
            "unknown token",
            Some("guessed".to_owned()),
            Expects::Unauthenticated,
        ),
        with_token(
            "expired token",
            Some(text("expired")),
            Expects::Unauthenticated,
        ),
        with_token(
            "expired signed token",
            Some(jwt("kennel", -600)),
            Expects::Unauthenticated,
        ),
        with_token(
            "wrong audience",
            Some(jwt("vault", 600)),
            Expects::Unauthenticated,
        ),
        with_token("signed token", Some(jwt("kennel", 600)), Expects::Role(2)),
    ];
    for (name, role) in ROLES.into_iter().zip(1..) {
        columns.push(with_token(name, Some(text(name)), Expects::Role(role)));
    }
    let by = |name: &str, certificate, expects| {
        let column = Column {
            name: name.to_owned(),
            channel: tunnel(net, &name.replace(' ', "-"), Some(certificate)),
            token: None,
        };
        (column, expects)
    };
    let (ca, wrong) = (net.file("ca"), net.file("wrong"));
    columns.push(by("wrong CA", (&wrong, "mallory"), Expects::NoConnection));
    columns.push(by(
        "expired certificate",
        (&ca, "late"),
        Expects::NoConnection,
    ));
    columns.push(by("foreign owner", (&ca, "bob"), Expects::Role(2)));
    columns
}

// promise: A-10a, A-10b, AC-1
#[tokio::test(flavor = "multi_thread")]
async fn each_rpc_answers_each_caller_by_role() {
    let net = Net::start().await;
    admit_planner(&net).await;
    let alice = net.by_certificate("alice").await;
    let run = new_run_id();
    let request = crate::net::sleeper(&run, &[]);
    must("spawn", alice.processes().spawn(request).await);
    let columns = columns(&net).await;
    let of_alice = good_requests(&run);
    let methods = methods();
    assert_eq!(methods.len(), 39);
    let (mut table, mut wrong, mut cells) = (String::new(), String::new(), 0);
    for (path, least) in &methods {
        let rpc = path.rsplit('/').next().expect("a name");
        let _ = writeln!(table, "{rpc}");
        for (column, expects) in &columns {
            for absent in [false, true] {
                // Without an identity no answer depends on the run.
                if absent && !matches!(expects, Expects::Role(_)) {
                    continue;
                }
                let of_none = absent.then(|| good_requests(&new_run_id()));
                let message = of_none.as_ref().unwrap_or(&of_alice).get(rpc);
                let message = message.unwrap_or_else(|| panic!("no request for {rpc}"));
                let Some(expected) = expected(*expects, rpc, *least, absent) else {
                    continue;
                };
                let (code, reason) = answer(column, path, message.clone()).await;
                cells += 1;
                let _ = writeln!(table, "  {}: {code:?} {reason}", column.name);
                if (code, &*reason) != expected {
                    let _ = writeln!(
                        wrong,
                        "{rpc} by {} (absent: {absent}): {code:?} {reason}, not {expected:?}",
                        column.name
                    );
                }
            }
        }
    }
    let own = Column {
        name: "own run".to_owned(),
        channel: tunnel(&net, "own-run", Some((&net.file("ca"), "alice"))),
        token: None,
    };
    for (path, _) in &methods {
        let rpc = path.rsplit('/').next().expect("a name");
        if WITHOUT_RUN.iter().any(|(name, _)| *name == rpc) {
            continue;
        }
        let run = new_run_id();
        let request = crate::net::sleeper(&run, &[]);
        must("spawn", alice.processes().spawn(request).await);
        let (code, reason) = answer(&own, path, good_requests(&run)[rpc].clone()).await;
        cells += 1;
        let expected = OF_OWN_RUN.iter().find(|(name, ..)| *name == rpc);
        let expected = expected.map_or((Code::Ok, ""), |(_, code, reason)| (*code, *reason));
        let _ = writeln!(table, "{rpc} of an own run: {code:?} {reason}");
        if (code, &*reason) != expected {
            let _ = writeln!(
                wrong,
                "{rpc} of an own run: {code:?} {reason}, not {expected:?}"
            );
        }
    }
    println!("{table}{cells} cells");
    assert!(wrong.is_empty(), "{wrong}");
    // None of these calls changed the run.
    let request = pb::GetRunRequest { run_id: run };
    let left = must("get", alice.processes().get_run(request).await);
    let left = left.into_inner().run.expect("a run");
    assert_eq!(left.state(), pb::RunState::Running);
}
