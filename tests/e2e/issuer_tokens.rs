//! Tokens signed by an issuer, as Kubernetes projects them into pods: made by openssl.

use crate::net::{Net, sleeper};
use base64::{Engine, prelude::BASE64_URL_SAFE_NO_PAD as BASE64};
use kennel_client::{Connection, Credentials, Token, connect_with};
use kennel_tests::new_run_id;
use serde_json::{Value, json};
use std::{
    fs,
    io::Write as _,
    path::Path,
    process::{Command, Stdio},
    time::SystemTime,
};
use tonic::Status;

const ISSUER: &str = "https://kubernetes.default.svc.cluster.local";
pub(crate) const PLANNER: &str = "system:serviceaccount:agents:planner";

/// Returns the output of openssl.
pub(crate) fn openssl(dir: &Path, words: &[&str], input: &[u8]) -> Vec<u8> {
    let mut child = Command::new("openssl")
        .args(words)
        .current_dir(dir)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("openssl is installed");
    let mut stdin = child.stdin.take().expect("a pipe");
    stdin.write_all(input).expect("it reads");
    drop(stdin);
    let output = child.wait_with_output().expect("it ends");
    assert!(output.status.success(), "openssl {words:?}");
    output.stdout
}

/// Returns a set of keys with the public half of `key.pem`.
pub(crate) fn key_set(dir: &Path, kid: &str) -> String {
    let modulus = openssl(dir, &["rsa", "-in", "key.pem", "-noout", "-modulus"], b"");
    let modulus = String::from_utf8(modulus).expect("text");
    let digits = modulus.trim().trim_start_matches("Modulus=");
    let bytes = (0..digits.len() / 2).map(|at| u8::from_str_radix(&digits[2 * at..2 * at + 2], 16));
    let bytes: Result<Vec<u8>, _> = bytes.collect();
    let n = BASE64.encode(bytes.expect("hexadecimal"));
    let key =
        json!({ "use": "sig", "kty": "RSA", "kid": kid, "alg": "RS256", "n": n, "e": "AQAB" });
    json!({ "keys": [key] }).to_string()
}

/// Returns a token of a service account, as the API server makes one.
pub(crate) fn token(dir: &Path, kid: &str, audience: &str, subject: &str) -> String {
    token_until(dir, kid, audience, subject, 600)
}

/// The same, good for so many seconds from now.
pub(crate) fn token_until(
    dir: &Path,
    kid: &str,
    audience: &str,
    subject: &str,
    seconds: i64,
) -> String {
    token_of(ISSUER, dir, (kid, audience, subject), seconds)
}

/// The same, of this issuer.
pub(crate) fn token_of(
    issuer: &str,
    dir: &Path,
    (kid, audience, subject): (&str, &str, &str),
    seconds: i64,
) -> String {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let now = i64::try_from(now.expect("after 1970").as_secs()).expect("small");
    let made = now.min(now + seconds - 1);
    let part = |value: Value| BASE64.encode(value.to_string());
    let header = part(json!({ "alg": "RS256", "kid": kid }));
    let claims = part(json!({
        "aud": [audience], "exp": now + seconds, "iat": made, "nbf": made, "iss": issuer, "sub": subject,
        "kubernetes.io": { "namespace": "agents", "pod": { "name": "planner-0", "uid": "1" } },
    }));
    let message = format!("{header}.{claims}");
    let sign = ["dgst", "-sha256", "-sign", "key.pem"];
    let signature = openssl(dir, &sign, message.as_bytes());
    format!("{message}.{}", BASE64.encode(signature))
}

pub(crate) fn bearing(net: &Net, token: String) -> Credentials {
    Credentials {
        token: Some(Token::Text(token)),
        ..net.anonymous()
    }
}

/// Makes a key of the issuer, and its planner a principal.
pub(crate) async fn admit_planner(net: &Net) {
    let dir = net.dir.path();
    openssl(dir, &["genrsa", "-out", "key.pem", "2048"], b"");
    fs::write(net.file("keys.json"), key_set(dir, "first")).expect("own directory");
    net.change_rules(|text| {
        format!(
            "{text}\n[[issuer]]\nname = '{ISSUER}'\naudience = 'kennel'\nkeys = 'keys.json'\n\
             [[principal]]\nname = 'oidc:{ISSUER}#{PLANNER}'\nrole = 'spawner'\nowner = 'agents'\n"
        )
    })
    .await;
}

/// Returns why a token may not spawn.
pub(crate) async fn refusal(net: &Net, token: String) -> String {
    match connect_with(&net.address(), &bearing(net, token)).await {
        Err(refused) => refused.to_string(),
        Ok(connection) => {
            let refused = spawn(&connection, &new_run_id()).await;
            refused.expect_err("refused").message().to_owned()
        }
    }
}

pub(crate) async fn spawn(connection: &Connection, run: &str) -> Result<(), Status> {
    let spawned = connection.processes().spawn(sleeper(run, &[])).await;
    spawned.map(|_| ())
}
