//! Keys of an issuer at a URL: fetched over real TLS, renewed, and kept while the issuer is away.

use crate::{
    issuer_tokens::{PLANNER, bearing, key_set, openssl, refusal, spawn, token_of},
    net::{Net, follow, sleeper},
};
use kennel_client::connect_with;
use kennel_tests::{PATIENCE, cases, eventually, eventually_async, must, new_run_id};
use serde_json::json;
use std::{
    collections::HashMap,
    fmt::Write as _,
    fs,
    path::Path,
    sync::{Arc, Mutex},
    time::Duration,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
    task::JoinHandle,
};
use tokio_rustls::{
    TlsAcceptor,
    rustls::{
        ServerConfig,
        crypto::ring,
        pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
    },
};
use tonic::Code;
use tonic_types::StatusExt;

/// Pause between two looks for an answer.
const POLL: Duration = Duration::from_millis(20);

const KEYS: &str = "/openid/v1/jwks";
const HEALTHY: &str = "HTTP/1.1 200 OK\r\nConnection: close\r\n";

/// An HTTPS server with an answer for each path.
pub(crate) struct Issuer {
    url: String,
    answers: Arc<Mutex<HashMap<String, String>>>,
    /// Heads of all requests.
    requests: Arc<Mutex<Vec<String>>>,
    task: JoinHandle<()>,
}

impl Drop for Issuer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Issuer {
    /// Serves with the server certificate of this directory.
    async fn start(dir: &Path) -> Self {
        let chain = CertificateDer::pem_file_iter(dir.join("ca/127.0.0.1.pem")).expect("a file");
        let chain = chain.collect::<Result<Vec<_>, _>>().expect("certificates");
        let key = PrivateKeyDer::from_pem_file(dir.join("ca/127.0.0.1-key.pem")).expect("a key");
        let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .expect("versions")
            .with_no_client_auth()
            .with_single_cert(chain, key)
            .expect("its key");
        let tls = TlsAcceptor::from(Arc::new(config));
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let answers = Arc::<Mutex<HashMap<String, String>>>::default();
        let requests = Arc::<Mutex<Vec<String>>>::default();
        let (texts, heads) = (Arc::clone(&answers), Arc::clone(&requests));
        let task = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (tls, texts, heads) = (tls.clone(), Arc::clone(&texts), Arc::clone(&heads));
                tokio::spawn(async move {
                    let Ok(mut stream) = tls.accept(stream).await else {
                        return;
                    };
                    let mut head = Vec::new();
                    while !head.ends_with(b"\r\n\r\n") {
                        head.push(stream.read_u8().await.expect("a request"));
                    }
                    let head = String::from_utf8(head).expect("text");
                    let path = head.split(' ').nth(1).expect("a path").to_owned();
                    heads.lock().expect("no panic").push(head);
                    // Wait until the test sets an answer.
                    let answer = loop {
                        let answer = texts.lock().expect("no panic").get(&path).cloned();
                        match answer {
                            Some(answer) => break answer,
                            None => tokio::time::sleep(POLL).await,
                        }
                    };
                    // The client may hang up on a huge answer.
                    let _ = stream.write_all(answer.as_bytes()).await;
                    let _ = stream.shutdown().await;
                });
            }
        });
        Self {
            url: format!("https://{address}"),
            answers,
            requests,
            task,
        }
    }

    fn answer(&self, path: &str, answer: String) {
        let mut answers = self.answers.lock().expect("no panic");
        answers.insert(path.to_owned(), answer);
    }

    fn give(&self, path: &str, document: &str) {
        self.answer(path, format!("{HEALTHY}\r\n{document}"));
    }

    /// Lets requests wait until there is an answer again.
    fn hesitate(&self, path: &str) {
        self.answers.lock().expect("no panic").remove(path);
    }

    fn requests(&self) -> Vec<String> {
        self.requests.lock().expect("no panic").clone()
    }
}

fn new_key(dir: &Path) {
    openssl(dir, &["genrsa", "-out", "key.pem", "2048"], b"");
}

/// Adds an issuer and its planner to the access file.
fn admit(net: &Net, issuers: &[(&str, String)]) {
    net.change_access(|mut text| {
        for (name, more) in issuers {
            let _ = write!(
                text,
                "\n[[issuer]]\nname = '{name}'\naudience = 'kennel'\nkeys_ca = 'ca/ca.pem'\n{more}\n\
                 [[principal]]\nname = 'oidc:{name}#{PLANNER}'\nrole = 'spawner'\nowner = 'agents'\n"
            );
        }
        text
    });
}

/// Starts an issuer, and admits it with a key at this URL.
pub(crate) async fn admitted(net: &Net) -> Issuer {
    let dir = net.dir.path();
    new_key(dir);
    let issuer = Issuer::start(dir).await;
    issuer.give(KEYS, &key_set(dir, "first"));
    let more = format!("keys_url = '{}{KEYS}'", issuer.url);
    admit(net, &[("https://issuer.example", more)]);
    issuer
}

/// Waits until a token of this issuer and key may spawn.
async fn accepted(net: &Net, issuer: &str, kid: &str) {
    let token = token_of(issuer, net.dir.path(), (kid, "kennel", PLANNER), 600);
    let bearing = bearing(net, token);
    eventually_async("the token is accepted", PATIENCE, async || {
        let connection = connect_with(&net.address(), &bearing).await.ok()?;
        spawn(&connection, &new_run_id()).await.ok()
    })
    .await;
}

// The last two tests replace the server.
cases! {
    fn keys_of_issuers(Net::start().await);
    discovery_names_keys_and_bad_answers_are_refused,
    keys_of_a_cluster_come_from_its_server,
    clients_outlast_a_server_without_keys,
}

// promise: I-102
async fn keys_of_a_cluster_come_from_its_server(net: &Net) {
    const CLUSTER: &str = "https://kubernetes.default.svc.cluster.local";
    let dir = net.dir.path();
    new_key(dir);
    let issuer = Issuer::start(dir).await;
    issuer.give(KEYS, &key_set(dir, "first"));
    fs::write(net.file("sa.token"), "token-of-the-pod\n").expect("own directory");
    let more = format!("keys_url = '{}{KEYS}'\nkeys_token = 'sa.token'", issuer.url);
    admit(net, &[(CLUSTER, more)]);
    accepted(net, CLUSTER, "first").await;
    let requests = issuer.requests();
    assert_eq!(requests.len(), 1, "{requests:?}");
    let sent = requests[0].to_lowercase();
    assert!(
        sent.contains("authorization: bearer token-of-the-pod\r\n"),
        "{sent}"
    );

    // The first token with a new key is refused and triggers a fetch; removed keys end their streams.
    let token = token_of(CLUSTER, dir, ("first", "kennel", PLANNER), 600);
    let planner = net.connect(&bearing(net, token)).await;
    let run = new_run_id();
    must("spawn", spawn(&planner, &run).await);
    let stream = tokio::spawn(follow(planner.processes(), run));
    new_key(dir);
    issuer.give(KEYS, &key_set(dir, "second"));
    let token = token_of(CLUSTER, dir, ("second", "kennel", PLANNER), 600);
    let refused = refusal(net, token).await;
    assert!(refused.contains("key is not its issuer's"), "{refused}");
    accepted(net, CLUSTER, "second").await;
    let ended = tokio::time::timeout(PATIENCE, stream).await;
    let status = ended.expect("the stream is cut").expect("no panic");
    assert_ne!(status.code(), Code::Ok);

    // While the issuer is down, cached keys stay valid, but a new server has none until it returns.
    issuer.answer(
        KEYS,
        "HTTP/1.1 503 Away\r\nConnection: close\r\n\r\n".to_owned(),
    );
    accepted(net, CLUSTER, "second").await;
    net.kennel.kill_server();
    let token = token_of(CLUSTER, dir, ("second", "kennel", PLANNER), 600);
    eventually_async("it cannot fetch", PATIENCE, async || {
        let refused = refusal(net, token.clone()).await;
        refused.contains("have not been fetched yet").then_some(())
    })
    .await;
    let planner = net.connect(&bearing(net, token)).await;
    let refused = spawn(&planner, &new_run_id()).await.expect_err("refused");
    assert_eq!(refused.code(), Code::Unavailable);
    let reason = refused.get_details_error_info().map(|info| info.reason);
    assert_eq!(reason.as_deref(), Some("ISSUER_UNAVAILABLE"));
    eventually("the failure is logged", PATIENCE, || {
        let log = net.kennel.log();
        log.contains("has answered 503").then_some(())
    })
    .await;
    assert!(!net.kennel.log().contains("token-of-the-pod"));
}

/// A new server has no keys until the issuer answers: no client gets the answer that its token is wrong.
// promise: I-102a
async fn clients_outlast_a_server_without_keys(net: &Net) {
    let dir = net.dir.path();
    new_key(dir);
    let issuer = Issuer::start(dir).await;
    issuer.give(KEYS, &key_set(dir, "first"));
    let name = issuer.url.clone();
    admit(
        net,
        &[(&name, format!("keys_url = '{}{KEYS}'", issuer.url))],
    );
    accepted(net, &name, "first").await;
    let token = token_of(&name, dir, ("first", "kennel", PLANNER), 600);
    issuer.hesitate(KEYS);
    let asked = issuer.requests().len();
    net.kennel.kill_server();
    let (address, bearing, run) = (net.address(), bearing(net, token), new_run_id());
    let calling = tokio::spawn(async move {
        let connection = connect_with(&address, &bearing).await;
        let connection = connection.expect("the token is not refused");
        connection.call(sleeper(&run, &[])).await
    });
    eventually("the next server asks for keys", PATIENCE, || {
        (issuer.requests().len() > asked).then_some(())
    })
    .await;
    issuer.give(KEYS, &key_set(dir, "first"));
    must("spawn", calling.await.expect("no panic"));
}

// promise: I-103
async fn discovery_names_keys_and_bad_answers_are_refused(net: &Net) {
    let dir = net.dir.path();
    let access = fs::read_to_string(net.file("access.toml")).expect("it is there");
    new_key(dir);
    let issuer = Issuer::start(dir).await;
    let keys = key_set(dir, "first");
    issuer.give("/keys", &keys);
    let of = |name: &str| format!("{}/{name}", issuer.url);
    let discovery = |name: &str, document: &serde_json::Value| {
        let path = format!("/{name}/.well-known/openid-configuration");
        issuer.give(&path, &document.to_string());
    };
    discovery(
        "good",
        &json!({ "issuer": of("good"), "jwks_uri": of("keys") }),
    );
    discovery(
        "posing",
        &json!({ "issuer": of("good"), "jwks_uri": of("keys") }),
    );
    discovery(
        "plain",
        &json!({ "issuer": of("plain"), "jwks_uri": of("keys").replace("https", "http") }),
    );
    issuer.answer(
        "/moved",
        format!(
            "HTTP/1.1 302 Found\r\nLocation: {}\r\nConnection: close\r\n\r\n",
            of("keys")
        ),
    );
    issuer.give("/huge", &format!("{keys}{}", " ".repeat(512 * 1024)));
    issuer.give("/odd", "<html>");
    let at = |name: &str| {
        (
            of(&format!("of-{name}")),
            format!("keys_url = '{}'", of(name)),
        )
    };
    let mut issuers: Vec<(String, String)> = ["moved", "huge", "odd", "silent"].map(at).to_vec();
    issuers.extend(["good", "posing", "plain"].map(|name| (of(name), String::new())));
    let web = (of("of-web"), format!("keys_url = '{}'", of("keys")));
    let all: Vec<_> = issuers
        .iter()
        .map(|(name, more)| (name.as_str(), more.clone()))
        .collect();
    admit(net, &all);
    // No public CA issued this issuer's certificate.
    net.change_access(|text| {
        let (name, more) = &web;
        format!("{text}\n[[issuer]]\nname = '{name}'\naudience = 'kennel'\n{more}\n")
    });
    accepted(net, &of("good"), "first").await;
    for why in [
        "has answered 302",
        "more than 262144 bytes",
        "of-odd",
        "is of another issuer",
        "does not begin with https://",
        "UnknownIssuer",
    ] {
        eventually(why, PATIENCE, || {
            net.kennel.log().contains(why).then_some(())
        })
        .await;
    }
    for name in [
        "of-moved",
        "of-huge",
        "of-odd",
        "of-silent",
        "posing",
        "plain",
        "of-web",
    ] {
        let token = token_of(&of(name), dir, ("first", "kennel", PLANNER), 600);
        let refused = refusal(net, token).await;
        assert!(
            refused.contains("have not been fetched yet"),
            "{name}: {refused}"
        );
    }
    // No redirect was followed, and calls do not wait for keys.
    let followed = issuer
        .requests()
        .iter()
        .filter(|head| head.starts_with("GET /keys "))
        .count();
    assert_eq!(followed, 1);
    tokio::time::timeout(Duration::from_secs(5), accepted(net, &of("good"), "first"))
        .await
        .expect("others are served");
    net.change_rules(|_| access.clone()).await;
}
