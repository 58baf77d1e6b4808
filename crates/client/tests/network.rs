//! The client over TLS, against a server on a real port with real certificates.

mod far_server;

use far_server::{Authority, ClientProof, FarServer, OTHER_NAME, days};
use kennel_client as client;
use kennel_client::{ConnectError, Credentials, Token};
use kennel_proto::pb;
use std::{fs, time::Duration};
use tokio::time::{Instant, sleep};
use tonic::Code;

/// Wait for events that are bound to happen.
const PATIENCE: Duration = Duration::from_secs(20);

async fn refusal(server: &FarServer, credentials: &Credentials) -> ConnectError {
    let connected = client::connect_with(&server.address, credentials).await;
    connected.expect_err("it is refused")
}

async fn call(connection: &client::Connection) -> client::Failure {
    let answered = connection
        .admin()
        .get_server_info(pb::GetServerInfoRequest {})
        .await;
    answered.expect_err("the server has no methods").into()
}

/// Repeats a call until it fails with this reason.
async fn call_until(
    connection: &client::Connection,
    is: impl Fn(&client::Failure) -> bool,
) -> client::Failure {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let failure = call(connection).await;
        if is(&failure) {
            return failure;
        }
        assert!(Instant::now() < deadline, "still: {failure:?}");
        sleep(Duration::from_millis(20)).await;
    }
}

fn reached(failure: &client::Failure) -> bool {
    failure.code == Code::Unimplemented
}

// promise: C-60
#[tokio::test]
async fn client_certificate_reaches_the_server() {
    let ca = Authority::new("right");
    let server = FarServer::start(ca.server_config(
        &ca.server(&["localhost"], days(1)),
        &ClientProof::Certificates,
    ))
    .await;
    let credentials = ca.credentials(&ca.client("alice", days(1)));
    let connection = client::connect_with(&server.address, &credentials).await;
    let connection = connection.expect("both are trusted");
    assert!(reached(&call(&connection).await));
    let seen = server.last();
    assert_eq!(seen.certificates, 1);
    assert_eq!(seen.scheme.as_deref(), Some("https"));
    assert_eq!(seen.authorization, None);
}

// promise: C-60
#[tokio::test]
async fn server_of_another_authority_is_not_trusted() {
    let (ca, other) = (Authority::new("right"), Authority::new("wrong"));
    let server = FarServer::start(
        ca.server_config(&ca.server(&["localhost"], days(1)), &ClientProof::Tokens),
    )
    .await;
    let error = refusal(&server, &other.credentials_alone()).await;
    assert!(
        matches!(error, ConnectError::UntrustedServer { .. }),
        "{error:?}"
    );
    assert!(
        error
            .to_string()
            .contains(&other.ca_file().display().to_string()),
        "{error}"
    );
}

// promise: C-60
#[tokio::test]
async fn certificate_for_another_host_name_is_reported() {
    let ca = Authority::new("right");
    let server = FarServer::start(
        ca.server_config(&ca.server(&[OTHER_NAME], days(1)), &ClientProof::Tokens),
    )
    .await;
    let mut credentials = ca.credentials_alone();
    let error = refusal(&server, &credentials).await;
    assert!(
        error
            .to_string()
            .ends_with(&format!("is for {OTHER_NAME}, not for localhost")),
        "{error}"
    );
    credentials.tls.server_name = Some(OTHER_NAME.to_owned());
    let connected = client::connect_with(&server.address, &credentials).await;
    connected.expect("its name was given");
}

// promise: C-60
#[tokio::test]
async fn expired_certificates_are_reported_for_both_sides() {
    let ca = Authority::new("right");
    let server = FarServer::start(
        ca.server_config(&ca.server(&["localhost"], days(-1)), &ClientProof::Tokens),
    )
    .await;
    let error = refusal(&server, &ca.credentials_alone()).await;
    assert!(
        error.to_string().ends_with("is refused: it has expired"),
        "{error}"
    );

    server.use_config(ca.server_config(
        &ca.server(&["localhost"], days(1)),
        &ClientProof::Certificates,
    ));
    let error = refusal(&server, &ca.credentials(&ca.client("alice", days(-1)))).await;
    assert!(
        matches!(error, ConnectError::ClientCertificate { .. }),
        "{error:?}"
    );
    assert!(error.to_string().contains("it has expired"), "{error}");
}

// promise: C-60
#[tokio::test]
async fn missing_foreign_and_revoked_client_certificates_are_distinguished() {
    let (ca, other) = (Authority::new("right"), Authority::new("wrong"));
    let pair = ca.server(&["localhost"], days(1));
    let server = FarServer::start(ca.server_config(&pair, &ClientProof::Certificates)).await;
    let error = refusal(&server, &ca.credentials_alone()).await;
    assert!(
        matches!(error, ConnectError::NoClientCertificate { .. }),
        "{error:?}"
    );

    let mut foreign = other.credentials(&other.client("alice", days(1)));
    foreign.tls.ca = Some(ca.ca_file());
    let error = refusal(&server, &foreign).await;
    assert!(
        error
            .to_string()
            .contains("not issued by an authority of the server"),
        "{error:?}"
    );

    let alice = ca.client("alice", days(1));
    server.use_config(ca.server_config(&pair, &ClientProof::Revoked(&alice)));
    let error = refusal(&server, &ca.credentials(&alice)).await;
    assert!(error.to_string().ends_with("it is revoked"), "{error:?}");
}

// promise: C-61
#[tokio::test]
async fn token_is_sent_with_each_call_and_hidden() {
    let ca = Authority::new("right");
    let server = FarServer::start(
        ca.server_config(&ca.server(&["localhost"], days(1)), &ClientProof::Tokens),
    )
    .await;
    server.demand("Bearer secret");
    let error = refusal(&server, &ca.credentials_alone()).await;
    assert!(
        matches!(error, ConnectError::NoCredentials { .. }),
        "{error:?}"
    );

    let with = |text: &str| Credentials {
        token: Some(Token::Text(text.to_owned())),
        ..ca.credentials_alone()
    };
    let error = refusal(&server, &with("guessed")).await;
    assert!(matches!(error, ConnectError::Token { .. }), "{error:?}");
    assert!(!format!("{error:?} {error}").contains("guessed"));

    let credentials = with("secret");
    let connection = client::connect_with(&server.address, &credentials).await;
    let connection = connection.expect("it is accepted");
    assert!(reached(&call(&connection).await));
    assert_eq!(
        server.last().authorization.as_deref(),
        Some("Bearer secret")
    );
    assert!(!format!("{credentials:?} {connection:?}").contains("secret"));
}

// promise: C-61
#[tokio::test]
async fn replaced_token_is_used_on_an_open_connection() {
    let ca = Authority::new("right");
    let server = FarServer::start(
        ca.server_config(&ca.server(&["localhost"], days(1)), &ClientProof::Tokens),
    )
    .await;
    let file = ca.file("token");
    fs::write(&file, "first\n").expect("own directory");
    server.demand("Bearer first");
    let credentials = Credentials {
        token: Some(Token::File(file.clone())),
        ..ca.credentials_alone()
    };
    let connection = client::connect_with(&server.address, &credentials).await;
    let connection = connection.expect("it is accepted");

    fs::write(&file, "second\n").expect("own directory");
    server.demand("Bearer second");
    call_until(&connection, reached).await;
    assert_eq!(server.connections(), 1);
}

// promise: C-61
#[tokio::test]
async fn replaced_certificates_are_used_for_the_next_connection() {
    let (ca, next) = (Authority::new("right"), Authority::new("next"));
    let server = FarServer::start(ca.server_config(
        &ca.server(&["localhost"], days(1)),
        &ClientProof::Certificates,
    ))
    .await;
    let credentials = ca.credentials(&ca.client("alice", days(1)));
    let connection = client::connect_with(&server.address, &credentials).await;
    let connection = connection.expect("both are trusted");

    server.use_config(next.server_config(
        &next.server(&["localhost"], days(1)),
        &ClientProof::Certificates,
    ));
    server.cut();
    let failure = call_until(&connection, |failure| {
        failure.message.contains("not trusted")
    })
    .await;
    assert!(failure.connection_lost, "{failure:?}");

    let renewed = next.credentials(&next.client("alice", days(1)));
    Authority::replace_by(&credentials, &renewed);
    call_until(&connection, reached).await;
    assert_eq!(server.last().certificates, 1);
}

// promise: C-60
#[tokio::test]
async fn unusable_tls_files_are_named_in_errors() {
    let ca = Authority::new("right");
    let server = FarServer::start(ca.server_config(
        &ca.server(&["localhost"], days(1)),
        &ClientProof::Certificates,
    ))
    .await;
    let alice = ca.credentials(&ca.client("alice", days(1)));
    let bob = ca.credentials(&ca.client("bob", days(1)));
    let refused = async |change: &dyn Fn(&mut Credentials)| {
        let mut credentials = alice.clone();
        change(&mut credentials);
        refusal(&server, &credentials).await.to_string()
    };
    let said = refused(&|c| c.tls.ca = Some("/no/such/file".into())).await;
    assert!(
        said.starts_with("cannot read a CA certificate from /no/such/file"),
        "{said}"
    );
    let said = refused(&|c| c.tls.ca = c.tls.key.clone()).await;
    assert!(
        said.starts_with("cannot find a CA certificate in "),
        "{said}"
    );
    let said = refused(&|c| c.tls.key = c.tls.certificate.clone()).await;
    assert!(said.starts_with("cannot find a private key in "), "{said}");
    let said = refused(&|c| c.tls.key = bob.tls.key.clone()).await;
    assert!(said.starts_with("cannot use the certificate "), "{said}");
    let said = refused(&|c| c.tls.key = None).await;
    assert!(said.contains("must be given together"), "{said}");
    let said = refused(&|c| c.token = Some(Token::File("/no/such/token".into()))).await;
    assert!(
        said.starts_with("cannot read a token from /no/such/token"),
        "{said}"
    );
}

// promise: C-60
#[tokio::test]
async fn server_without_tls_differs_from_unreachable_server() {
    let ca = Authority::new("right");
    let plain = FarServer::start_plain().await;
    let error = refusal(&plain, &ca.credentials_alone()).await;
    assert!(matches!(error, ConnectError::Insecure { .. }), "{error:?}");
    let gone = "tcp://localhost:1".parse().expect("an address");
    let connected = client::connect_with(&gone, &ca.credentials_alone()).await;
    let error = connected.expect_err("no process listens");
    assert!(matches!(error, ConnectError::NoServer { .. }), "{error:?}");
}
