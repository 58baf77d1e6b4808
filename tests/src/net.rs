//! A server with a port, an authority, and credentials of all roles, for the tests of the network.

use crate::{Kennel, Options, PATIENCE, eventually, must, shell::kennel_in};
use kennel_client::{Address, Connection, Credentials, Tls, Token, connect_with};
use kennel_proto::pb::{self, process_service_client::ProcessServiceClient};
use std::{fmt::Write as _, fs, path::PathBuf};
use tempfile::TempDir;
use tonic::Status;

/// All roles, each with a token of its name.
pub const ROLES: [&str; 4] = ["viewer", "spawner", "operator", "admin"];

/// A server with a port, an authority, and tokens of all roles.
pub struct Net {
    /// The server.
    pub kennel: Kennel,
    /// Directory of the authority and the access file.
    pub dir: TempDir,
    /// Its port.
    pub port: u16,
}

impl Net {
    /// Starts it.
    pub async fn start() -> Self {
        Self::start_with(Options::default()).await
    }

    /// Starts it, with these options too.
    pub async fn start_with(options: Options) -> Self {
        Self::start_prepared(options, &[], |text| text).await
    }

    /// Starts it likewise, with a certificate for each of these names too, and with the access file that this function
    /// makes of the usual one.
    pub async fn start_prepared(
        options: Options,
        names: &[&str],
        prepare: impl FnOnce(String) -> String,
    ) -> Self {
        let dir = tempfile::Builder::new().prefix("kennel-net-").tempdir();
        let dir = dir.expect("a directory");
        let certs = async |words: &[&str]| {
            let words: Vec<&str> = ["certs"].iter().chain(words).copied().collect();
            kennel_in(dir.path(), &words).await
        };
        drop(must_succeed(&certs(&["init", "ca"]).await));
        let mut access = must_succeed(&certs(&["server", "ca", "127.0.0.1"]).await);
        for name in ["alice", "bob"].iter().chain(names) {
            access += &must_succeed(&certs(&["client", "ca", name]).await);
        }
        for role in ROLES.into_iter().chain(["expired"]) {
            let entry = must_succeed(&certs(&["token", "ca", role]).await);
            let entry = entry.replace(
                "\"spawner\"",
                &format!("\"{}\"", role.replace("expired", "admin")),
            );
            access += &match role {
                "expired" => with_expiry(&entry, "2020-01-01T00:00:00Z"),
                _ => entry,
            };
        }
        let file = dir.path().join("access.toml");
        fs::write(&file, prepare(access)).expect("own directory");
        let listen = format!(
            "unix:{}/k.sock?mode=0666,tcp:127.0.0.1:0",
            dir.path().display()
        );
        let words = [
            "--listen".to_owned(),
            listen,
            "--access".to_owned(),
            file.display().to_string(),
        ];
        let words = words.into_iter().map(|word| &*word.leak());
        let options = Options {
            words: words.chain(options.words).collect(),
            ..options
        };
        let kennel = Kennel::start(options).await;
        let port = kennel.tcp_port().await;
        Self { kennel, dir, port }
    }

    /// Returns the path of a file of the directory.
    #[must_use]
    pub fn file(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Connects with a certificate.
    pub async fn by_certificate(&self, name: &str) -> Connection {
        self.connect(&self.certificate(name)).await
    }

    /// Returns credentials with a certificate.
    #[must_use]
    pub fn certificate(&self, name: &str) -> Credentials {
        let mut credentials = self.anonymous();
        credentials.tls.certificate = Some(self.file(&format!("ca/{name}.pem")));
        credentials.tls.key = Some(self.file(&format!("ca/{name}-key.pem")));
        credentials
    }

    /// Returns credentials with the authority alone.
    #[must_use]
    pub fn anonymous(&self) -> Credentials {
        Credentials {
            tls: Tls {
                ca: Some(self.file("ca/ca.pem")),
                ..Tls::default()
            },
            ..Credentials::default()
        }
    }

    /// Connects with a token.
    pub async fn by_token(&self, id: &str) -> Connection {
        let mut credentials = self.anonymous();
        credentials.token = Some(Token::File(self.file(&format!("ca/{id}.token"))));
        self.connect(&credentials).await
    }

    /// Returns the address of the port.
    #[must_use]
    pub fn address(&self) -> Address {
        Address::Tcp {
            host: "127.0.0.1".to_owned(),
            port: self.port,
        }
    }

    /// Connects with these credentials.
    pub async fn connect(&self, credentials: &Credentials) -> Connection {
        must("connect", connect_with(&self.address(), credentials).await)
    }

    /// Rewrites the access file.
    pub fn change_access(&self, change: impl Fn(String) -> String) {
        let file = self.file("access.toml");
        let text = fs::read_to_string(&file).expect("it is there");
        fs::write(file, change(text)).expect("own directory");
    }

    /// Rewrites the access file, and waits until the server has read it.
    pub async fn change_rules(&self, change: impl Fn(String) -> String) {
        let read = || self.kennel.log().matches("access file read again").count();
        let before = read();
        self.change_access(change);
        eventually("the access file is read", PATIENCE, || {
            (read() > before).then_some(())
        })
        .await;
    }
}

/// Returns the standard output of a command that succeeded.
#[must_use]
pub fn must_succeed(output: &std::process::Output) -> String {
    assert!(output.status.success(), "{output:?}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn with_expiry(entry: &str, expires: &str) -> String {
    let mut out = String::new();
    for line in entry.lines() {
        let is_expiry = line.starts_with("expires");
        let line = if is_expiry {
            format!("expires = \"{expires}\"")
        } else {
            line.to_owned()
        };
        writeln!(out, "{line}").expect("a string");
    }
    out
}

/// Returns a request for a run that sleeps.
#[must_use]
pub fn sleeper(run_id: &str, labels: &[(&str, &str)]) -> pb::SpawnRequest {
    let args = ["/bin/sleep", "300"].map(str::to_owned).to_vec();
    let labels = labels
        .iter()
        .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
    pb::SpawnRequest {
        run_id: run_id.to_owned(),
        spec: Some(pb::RunSpec {
            command: Some(pb::run_spec::Command::Argv(pb::Argv {
                args,
                ..pb::Argv::default()
            })),
            stdio: Some(pb::run_spec::Stdio::Pipes(pb::Pipes {
                input: pb::InputMode::Open.into(),
            })),
            labels: labels.collect(),
            ..pb::RunSpec::default()
        }),
        ..pb::SpawnRequest::default()
    }
}

/// Follows the events of a run; returns the end of the stream.
pub async fn follow(
    mut client: ProcessServiceClient<kennel_client::Authorized>,
    run: String,
) -> Status {
    let request = pb::StreamEventsRequest {
        run_id: run,
        ..Default::default()
    };
    let mut events = must("stream", client.stream_events(request).await).into_inner();
    loop {
        match events.message().await {
            Ok(Some(_)) => {}
            Ok(None) => return Status::ok(""),
            Err(status) => return status,
        }
    }
}
