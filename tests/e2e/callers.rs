//! Callers without permission, by every way around the access check, and connections that must not block others.

use kennel_proto::pb;
use kennel_tests::{Client, Kennel, PATIENCE, argv, cases, eventually, must, sh, within};
use std::{
    io::Write,
    os::unix::net::UnixStream,
    path::Path,
    time::{Duration, Instant},
};

/// Tries of each way around.
const TRIES: u32 = 20;
/// Connections that are held.
const HELD: usize = 2000;
/// Runs that are aborted beside a storm of connections: most of these failed when the runtime accepted.
const ABORTED_BESIDE: usize = 12;
/// Upper bound for an abort beside them.
const ABORT_MAX: Duration = Duration::from_secs(10);

/// A client that knows just enough of HTTP/2 (RFC 9113) for one call: `python - SOCKET WAY TRIES STOLEN` spawns `true`. STOLEN is the
/// file with the token of another run.
const CALL: &str = r#"
import ctypes, os, socket, struct, sys, array
path, way, tries, stolen = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]
token = None

def frame(kind, flags, stream, payload):
    return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload

def literal(name, value):
    return b"\0" + bytes([len(name)]) + name + bytes([len(value)]) + value

def call(sock):
    headers = b"".join(literal(n, v) for n, v in [
        (b":method", b"POST"), (b":scheme", b"http"), (b":authority", b"localhost"),
        (b":path", b"/kennel.v1.ProcessService/Spawn"),
        (b"content-type", b"application/grpc"), (b"te", b"trailers")]
        + ([(b"authorization", b"Bearer " + token)] if token else []))
    # SpawnRequest { spec { argv { args: "true" } } }
    argv = b"\x0a\x04true"
    spec = b"\x12" + bytes([len(argv)]) + argv
    body = b"\x1a" + bytes([len(spec)]) + spec
    message = b"\0" + struct.pack(">I", len(body)) + body
    try:
        sock.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(4, 0, 0, b"")
            + frame(1, 4, 1, headers) + frame(0, 1, 1, message))
        sock.settimeout(10)
        read = sock.makefile("rb")
        while True:
            head = read.read(9)
            if len(head) < 9:
                return "closed"
            length, kind = int.from_bytes(head[:3], "big"), head[3]
            read.read(length)
            # An answer has HEADERS or RST_STREAM.
            if kind in (1, 3):
                return "answered"
    except OSError as error:
        return "failed"

def new():
    return socket.socket(socket.AF_UNIX)

def direct():
    sock = new()
    sock.connect(path)
    return sock

def reaped():
    sock = new()
    if os.fork() == 0:
        sock.connect(path)
        os._exit(0)
    os.wait()
    return sock

def zombie():
    sock = new()
    ended, end = os.pipe()
    if os.fork() == 0:
        sock.connect(path)
        os._exit(0)
    os.close(end)
    os.read(ended, 1)
    os.close(ended)
    return sock

def daemon():
    sock = new()
    ended, end = os.pipe()
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.setsid()
            sock.connect(path)
            os._exit(0)
        os._exit(0)
    os.wait()
    os.close(end)
    os.read(ended, 1)
    os.close(ended)
    return sock

def passed():
    ours, theirs = socket.socketpair()
    if os.fork() == 0:
        sock = direct()
        socket.send_fds(theirs, [b"x"], [sock.fileno()])
        os._exit(0)
    theirs.close()
    _, fds, _, _ = socket.recv_fds(ours, 1, 1)
    os.wait()
    return socket.socket(fileno=fds[0])

# What a process prints that is made by this one, and calls itself.
def apart(first):
    ours, theirs = os.pipe()
    if os.fork() == 0:
        first()
        os.write(theirs, call(direct()).encode())
        os._exit(0)
    os.close(theirs)
    result = os.read(ours, 100).decode()
    os.close(ours)
    return result

def in_background():
    os.setsid()
    if os.fork() != 0:
        os._exit(0)
    os.setsid()

# Where it may: root can.
def leave_group():
    try:
        with open("/sys/fs/cgroup/cgroup.procs", "w") as procs:
            procs.write(str(os.getpid()))
    except OSError:
        pass

# In another pid namespace, where it may.
def unshare():
    libc = ctypes.CDLL(None)
    NEWPID, NEWUSER = 0x20000000, 0x10000000
    if libc.unshare(NEWPID) != 0:
        libc.unshare(NEWPID | NEWUSER)
    if os.fork() != 0:
        os.wait()
        os._exit(0)

def forged():
    global token
    token = b"kennel-run." + os.environb[b"KENNEL_RUN_ID"] + b".1." + b"0" * 64
    return direct()

def borrowed():
    global token
    token = open(stolen, "rb").read()
    return direct()

ways = {"direct": direct, "reaped": reaped, "zombie": zombie, "daemon": daemon, "passed": passed,
    "forged": forged, "borrowed": borrowed}
apart_ways = {"background": in_background, "left": leave_group, "namespace": unshare}
results = []
for _ in range(tries):
    if way in apart_ways:
        results.append(apart(apart_ways[way]))
        continue
    sock = ways[way]()
    results.append(call(sock))
    sock.close()
    if way == "zombie":
        os.wait()
print(way, {r: results.count(r) for r in results}, "done", flush=True)
"#;

/// Holds COUNT connections with a byte each: `python - SOCKET COUNT`.
const HOLD: &str = r#"
import resource, socket, sys, time
path, count = sys.argv[1], int(sys.argv[2])
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
held = []
for _ in range(count):
    sock = socket.socket(socket.AF_UNIX)
    sock.connect(path)
    try:
        sock.sendall(b"P")
    except OSError:
        pass
    held.append(sock)
print("held", len(held), flush=True)
time.sleep(1000)
"#;

/// Connects and closes without end, in four processes: `python - SOCKET`.
const STORM: &str = r#"
import os, socket, sys
for _ in range(4):
    if os.fork() == 0:
        while True:
            sock = socket.socket(socket.AF_UNIX)
            sock.setblocking(False)
            try:
                sock.connect(sys.argv[1])
            except OSError:
                pass
            sock.close()
print("storm", flush=True)
os.wait()
"#;

fn python(script: &str, words: &[&str]) -> pb::RunSpec {
    let words = [&["/usr/bin/python3", "-c", script], words].concat();
    argv(&words)
}

// The first test counts all runs and denied calls.
cases! {
    fn callers_of_one_server(Kennel::on_sqlite().await);
    runs_cannot_call_by_any_way_around,
    connections_held_by_a_run_block_no_client,
    connects_of_a_run_block_no_client,
    connections_of_one_process_block_no_client,
}

// promise: AU-8, A-11a
async fn runs_cannot_call_by_any_way_around(kennel: &Kennel) {
    let mut client = kennel.client().await;
    let socket = kennel.socket();
    let socket = socket.to_str().expect("UTF-8");
    let ways = [
        "direct",
        "reaped",
        "zombie",
        "daemon",
        "passed",
        "background",
        "left",
        "namespace",
        "forged",
        "borrowed",
    ];
    let mut holder = sh("exec sleep 1000");
    holder.api_access = pb::ApiAccess::Children.into();
    let holder = must("spawn", client.spawn(holder).await).run_id;
    let stolen = kennel.run_dir(&holder).join("token").display().to_string();
    for way in ways {
        let tries = TRIES.to_string();
        let spec = python(CALL, &[socket, way, &tries, &stolen]);
        let run = must("spawn", client.spawn(spec).await);
        must("end", client.ended(&run.run_id).await);
        let heard = must("stream", client.hear_all(&run.run_id, 0).await).text();
        println!("{heard}");
        let answered = format!("{{'answered': {TRIES}}} done");
        assert!(heard.contains(&answered), "{heard}");
    }
    let all = must("list", client.list_all(pb::RunFilter::default(), 0).await);
    assert_eq!(
        all.len(),
        ways.len() + 1,
        "nothing was spawned by a run: {all:#?}"
    );
    let denied = denied_calls(&mut client).await;
    let lines: u64 = u64::try_from(denied.len()).expect("few");
    let calls: u64 = denied.iter().map(|request| request.calls).sum();
    println!("{calls} denied calls in {lines} lines of the audit log");
    let made = u64::from(TRIES) * u64::try_from(ways.len()).expect("few");
    assert_eq!(calls, made, "each is counted: {denied:#?}");
    assert!(lines <= made / 10, "they are summed: {denied:#?}");
    let reasons = ["PERMISSION_DENIED", "CALLER_UNVERIFIED"];
    assert!(
        denied.iter().all(|d| reasons.contains(&&*d.reason)),
        "{denied:#?}"
    );
}

// promise: A-19
async fn connections_held_by_a_run_block_no_client(kennel: &Kennel) {
    let mut client = kennel.client().await;
    let socket = kennel.socket();
    let count = HELD.to_string();
    let spec = python(HOLD, &[socket.to_str().expect("UTF-8"), &count]);
    let run = must("spawn", client.spawn(spec).await);
    client.hear_text(&run.run_id, &format!("held {HELD}")).await;
    abort_within(kennel, &run.run_id).await;
    assert_warned(kennel, "peers that may not call have too many connections").await;
}

// promise: A-19b
async fn connects_of_a_run_block_no_client(kennel: &Kennel) {
    let mut client = kennel.client().await;
    let socket = kennel.socket();
    let spec = python(STORM, &[socket.to_str().expect("UTF-8")]);
    let storm = must("spawn", client.spawn(spec).await).run_id;
    client.hear_text(&storm, "storm").await;
    for _ in 0..ABORTED_BESIDE {
        let run = must("spawn", client.spawn(argv(&["sleep", "1000"])).await);
        abort_within(kennel, &run.run_id).await;
    }
    abort_within(kennel, &storm).await;
    let heard = must("stream", client.hear_all(&storm, 0).await);
    let warned = heard.warnings();
    assert_eq!(warned.len(), 1, "{warned:?}");
    assert!(
        warned[0].contains("refused or closed at once"),
        "{warned:?}"
    );
}

// promise: A-19
async fn connections_of_one_process_block_no_client(kennel: &Kennel) {
    let mut client = kennel.client().await;
    let run = must("spawn", client.spawn(argv(&["sleep", "1000"])).await);
    let socket = kennel.socket();
    let holding = tokio::task::spawn_blocking(move || hold(&socket));
    let held = within("hold", PATIENCE, holding).await.expect("held");
    println!("{} connections held by one process", held.len());
    abort_within(kennel, &run.run_id).await;
    assert_warned(kennel, "one process has too many connections").await;
    drop(held);
    assert!(client.server_info().await.is_some(), "it is served again");
}

fn hold(socket: &Path) -> Vec<UnixStream> {
    let connect = |_| {
        let mut stream = UnixStream::connect(socket).expect("it listens");
        // The server may close this connection at once.
        let _ = stream.write_all(b"P");
        stream
    };
    (0..HELD).map(connect).collect()
}

/// Aborts by the command line, which is a separate process.
async fn abort_within(kennel: &Kennel, run_id: &str) {
    let began = Instant::now();
    let mut abort = kennel.cli(&["abort", run_id, "--grace", "0"]);
    let aborting = tokio::task::spawn_blocking(move || abort.output());
    let done = within("abort", ABORT_MAX, aborting).await;
    let done = done.expect("it runs").expect("it starts");
    println!("aborted in {:?} beside {HELD} connections", began.elapsed());
    assert!(
        done.status.success(),
        "{}",
        String::from_utf8_lossy(&done.stderr)
    );
}

async fn assert_warned(kennel: &Kennel, what: &str) {
    let lines = eventually("a warning", PATIENCE, || {
        let log = kennel.log();
        let lines = log.lines().filter(|line| line.contains(what)).count();
        (lines > 0).then_some(lines)
    });
    let lines = lines.await;
    assert!(lines <= 20, "{lines} lines: {}", kennel.log());
}

async fn denied_calls(client: &mut Client) -> Vec<pb::AuditRequest> {
    let mut requests = must("audit", client.logged_requests("").await);
    requests.retain(|request| request.code == "PERMISSION_DENIED");
    requests
}
