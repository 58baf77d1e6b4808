//! The command line over the network: three commands, a context, a token, and their revocation, with the real server.

use kennel_tests::{
    Kennel, Options, PATIENCE, cases, programs,
    shell::{kennel_in, run_to_end},
};
use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
    time::Duration,
};
use tempfile::TempDir;
use tokio::time::{Instant, sleep};

/// Asks a server for its version, with a certificate and with a token.
const PYTHON: &str = r#"
import sys, grpc
address, certs, token = sys.argv[1:]
read = lambda name: open(f"{certs}/{name}", "rb").read()
def ask(credentials):
    channel = grpc.secure_channel(address, credentials)
    call = channel.unary_unary("/kennel.v1.AdminService/GetServerInfo")
    return call(b"", timeout=10)
ca, key, certificate = read("ca.pem"), read("alice-key.pem"), read("alice.pem")
assert b"0.1.0" in ask(grpc.ssl_channel_credentials(ca, key, certificate))
bearer = grpc.access_token_call_credentials(open(token).read().strip())
trusting = grpc.ssl_channel_credentials(ca)
assert b"0.1.0" in ask(grpc.composite_channel_credentials(trusting, bearer))
try:
    ask(grpc.ssl_channel_credentials(ca))
    sys.exit("it was answered without credentials")
except grpc.RpcError as error:
    assert error.code() == grpc.StatusCode.UNAUTHENTICATED, error
print("answered")
"#;

/// A host with a server, an authority and a client's configuration.
struct Host {
    kennel: Kennel,
    dir: TempDir,
    address: String,
}

impl Host {
    async fn start() -> Self {
        let dir = tempfile::Builder::new()
            .prefix("kennel-network-")
            .tempdir()
            .expect("a directory");
        let made = async |words: &[&str]| {
            let output = kennel_in(dir.path(), words).await;
            assert!(output.status.success(), "{words:?}: {output:?}");
            text(&output)
        };
        made(&["certs", "init", "certs"]).await;
        let mut access = made(&["certs", "server", "certs", "localhost", "127.0.0.1"]).await;
        access += &made(&["certs", "client", "certs", "alice"]).await;
        let file = dir.path().join("access.toml");
        fs::write(&file, access).expect("own directory");
        let words = [
            "--listen",
            "tcp:127.0.0.1:0",
            "--access",
            file.to_str().expect("UTF-8"),
        ];
        let options = Options {
            words: words.iter().map(|word| &*word.to_string().leak()).collect(),
            ..Options::default()
        };
        let kennel = Kennel::start(options).await;
        let port = kennel.tcp_port().await;
        Self {
            kennel,
            dir,
            address: format!("tcp://localhost:{port}"),
        }
    }

    fn path(&self) -> &Path {
        self.dir.path()
    }

    fn file(&self, name: &str) -> PathBuf {
        self.path().join("certs").join(name)
    }

    /// Makes the context of a client, and uses it.
    async fn use_context(&self, words: &[&str]) {
        let server = ["context", "set", "far", "--use", "--server", &self.address];
        let ca = ["--tls-ca", "certs/ca.pem"];
        let output = kennel_in(self.path(), &[&server[..], &ca, words].concat()).await;
        assert!(output.status.success(), "{output:?}");
    }

    async fn use_alice(&self) {
        self.use_context(&[
            "--tls-cert",
            "certs/alice.pem",
            "--tls-key",
            "certs/alice-key.pem",
        ])
        .await;
    }

    async fn cli(&self, words: &[&str]) -> Output {
        kennel_in(self.path(), words).await
    }

    /// Makes a token, and waits until the server has read it.
    async fn add_token(&self, id: &str) {
        let entry = self
            .cli(&["certs", "token", "certs", id, "--role", "viewer"])
            .await;
        let access = self.path().join("access.toml");
        let before = fs::read_to_string(&access).expect("own directory");
        fs::write(&access, before + &text(&entry)).expect("own directory");
        let token = format!("certs/{id}.token");
        self.use_context(&["--token-file", &token]).await;
        self.ps_until(|output| output.status.success()).await;
    }

    /// Repeats `ps` until it is refused for this reason.
    async fn refused(&self, why: &str) {
        self.ps_until(|output| said(output).contains(why)).await;
    }

    async fn ps_until(&self, is: impl Fn(&Output) -> bool) {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let output = self.cli(&["ps"]).await;
            if is(&output) {
                return;
            }
            assert!(
                Instant::now() < deadline,
                "{output:?}\n{}",
                self.kennel.log()
            );
            sleep(Duration::from_millis(100)).await;
        }
    }
}

/// Returns all of standard output.
fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

// The last two tests replace the server and revoke the client.
cases! {
    fn command_line_over_the_network(Host::start().await);
    callers_without_valid_credentials_learn_why,
    token_is_accepted_once_in_access_file,
    why_names_an_unreadable_audit_log_once,
    three_commands_and_a_context_reach_a_server,
    revoked_client_is_refused_and_renewed_accepted,
}

// promise: C-64
async fn three_commands_and_a_context_reach_a_server(host: &Host) {
    host.use_alice().await;
    let output = host
        .cli(&["run", "--", "sh", "-c", "echo far; echo err >&2; exit 7"])
        .await;
    assert_eq!(
        output.status.code(),
        Some(7),
        "{output:?}\n{}",
        host.kennel.log()
    );
    assert_eq!(
        (text(&output).as_str(), said(&output).as_str()),
        ("far\n", "err\n")
    );
    let listed = text(&host.cli(&["ps", "--all", "-o", "json"]).await);
    assert!(
        listed.contains("\"owner\":\"spiffe://kennel/alice\""),
        "{listed}"
    );

    // `logs -f` continues at the next server.
    let go = host.path().join("go").display().to_string();
    let script = format!("until [ -e {go} ]; do sleep 0.05; done; echo late");
    let run = text(&host.cli(&["spawn", "--", "sh", "-c", &script]).await);
    host.kennel.kill_server();
    let words = ["logs", "-f", run.trim()];
    let read = async {
        // Wait until the next server answers: output comes afterwards.
        host.kennel.client().await;
        fs::write(&go, "").expect("own directory");
    };
    let (output, ()) = tokio::join!(host.cli(&words), read);
    assert_eq!(text(&output), "late\n", "{output:?}");
}

// promise: C-64a
async fn callers_without_valid_credentials_learn_why(host: &Host) {
    host.use_context(&[]).await;
    host.refused("demands a certificate or a token").await;
    fs::write(host.path().join("guessed"), "guessed").expect("own directory");
    host.use_context(&["--token-file", "guessed"]).await;
    host.refused("refused the token").await;
    let mallory = host.cli(&["certs", "init", "other"]).await;
    assert!(mallory.status.success(), "{mallory:?}");
    host.cli(&["certs", "client", "other", "alice"]).await;
    host.use_context(&[
        "--tls-cert",
        "other/alice.pem",
        "--tls-key",
        "other/alice-key.pem",
    ])
    .await;
    host.refused(
        "refused the certificate of this client: it was not issued by an authority of the server",
    )
    .await;
    let alone = ["ps", "--server", &host.address, "--tls-ca", "other/ca.pem"];
    let output = host.cli(&alone).await;
    assert!(said(&output).contains("is not trusted"), "{output:?}");
}

// promise: C-64a
async fn token_is_accepted_once_in_access_file(host: &Host) {
    let entry = host
        .cli(&["certs", "token", "certs", "ci", "--role", "viewer"])
        .await;
    let token = host.file("ci.token").display().to_string();
    host.use_context(&["--token-file", &token]).await;
    host.refused("refused the token").await;
    let access = host.path().join("access.toml");
    let text_before = fs::read_to_string(&access).expect("own directory");
    fs::write(&access, text_before + &text(&entry)).expect("own directory");
    host.ps_until(|output| output.status.success()).await;
    let output = host.cli(&["spawn", "--", "true"]).await;
    assert_eq!(
        output.status.code(),
        Some(1),
        "a viewer starts nothing: {output:?}"
    );
}

async fn why_names_an_unreadable_audit_log_once(host: &Host) {
    host.use_alice().await;
    let run = text(&host.cli(&["spawn", "--", "true"]).await);
    // Operators may not read the audit log.
    let output = host.cli(&["why", run.trim()]).await;
    let why = text(&output);
    assert_eq!(why.matches("audit").count(), 1, "{why}\n{output:?}");
}

// promise: C-64a
async fn revoked_client_is_refused_and_renewed_accepted(host: &Host) {
    host.use_alice().await;
    host.ps_until(|output| output.status.success()).await;
    let revoked = host.cli(&["certs", "revoke", "certs", "alice"]).await;
    assert!(revoked.status.success(), "{revoked:?}");
    host.refused("refused the certificate of this client: it is revoked")
        .await;
    let renewed = host
        .cli(&["certs", "client", "certs", "alice", "--force"])
        .await;
    assert!(renewed.status.success(), "{renewed:?}");
    host.ps_until(|output| output.status.success()).await;
}

// promise: C-64
#[tokio::test(flavor = "multi_thread")]
async fn python_client_shows_certificate_or_token() {
    let host = Host::start().await;
    host.add_token("ci").await;
    let token = host.file("ci.token");
    let mut python = Command::new(programs::python());
    python.args(["-c", PYTHON, host.address.trim_start_matches("tcp://")]);
    python.arg(host.file("")).arg(&token);
    let output = run_to_end(python, PATIENCE).await;
    assert_eq!(text(&output), "answered\n", "{output:?}");
}
