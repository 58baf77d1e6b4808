//! `kennel certs` and `kennel context` with the real binary: their files, checked by openssl.

use kennel_tests::{
    PATIENCE, cases,
    shell::{kennel_in, run_to_end},
};
use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::Path,
    process::{Command, Output},
};
use tempfile::TempDir;

/// Returns all of standard output.
fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Returns the output; the command must succeed.
async fn answer(dir: &Path, words: &[&str]) -> String {
    let output = kennel_in(dir, words).await;
    assert!(output.status.success(), "{words:?}: {output:?}");
    text(&output)
}

/// Returns the exit code and the error; the command must fail.
async fn refusal(dir: &Path, words: &[&str]) -> (Option<i32>, String) {
    let output = kennel_in(dir, words).await;
    (
        output.status.code(),
        String::from_utf8_lossy(&output.stderr).into_owned(),
    )
}

async fn openssl(dir: &Path, words: &str) -> Option<Output> {
    let mut command = Command::new("openssl");
    command
        .current_dir(dir.join("certs"))
        .args(words.split(' '));
    if Command::new("openssl").arg("version").output().is_err() {
        eprintln!("there is no openssl on this host: what it would say is not looked at");
        return None;
    }
    Some(run_to_end(command, PATIENCE).await)
}

async fn verifies(dir: &Path, words: &str) {
    if let Some(output) = openssl(dir, &format!("verify -x509_strict -CAfile ca.pem {words}")).await
    {
        assert!(output.status.success(), "{words}: {output:?}");
    }
}

/// Makes a directory with an authority, a server and a client.
async fn with_certificates() -> (TempDir, String) {
    let dir = TempDir::new().expect("a directory");
    answer(dir.path(), &["certs", "init", "certs"]).await;
    let server = answer(
        dir.path(),
        &["certs", "server", "certs", "node7.example", "10.0.0.7"],
    )
    .await;
    let client = answer(
        dir.path(),
        &["certs", "client", "certs", "alice", "--owner", "team"],
    )
    .await;
    (dir, server + &client)
}

// The second test counts all certificates.
cases! {
    fn certificates_and_tokens(with_certificates().await);
    three_commands_make_a_chain_that_openssl_accepts,
    revoked_certificates_are_refused_by_openssl_too,
    files_are_only_replaced_by_force,
    token_is_in_file_and_hashed_in_entry,
}

// promise: C-63
async fn three_commands_make_a_chain_that_openssl_accepts((dir, access): &(TempDir, String)) {
    let dir = dir.path();
    verifies(
        dir,
        "-purpose sslserver -verify_hostname node7.example node7.example.pem",
    )
    .await;
    verifies(
        dir,
        "-purpose sslserver -verify_ip 10.0.0.7 node7.example.pem",
    )
    .await;
    verifies(dir, "-purpose sslclient alice.pem").await;
    if let Some(output) = openssl(dir, "verify -CAfile ca.pem -purpose sslserver alice.pem").await {
        assert!(
            !output.status.success(),
            "a client is no server: {output:?}"
        );
    }
    if let Some(output) = openssl(dir, "x509 -in alice.pem -noout -ext subjectAltName").await {
        assert!(
            text(&output).contains("URI:spiffe://kennel/alice"),
            "{output:?}"
        );
    }
    for file in fs::read_dir(dir.join("certs"))
        .expect("a directory")
        .flatten()
    {
        let mode = file.metadata().expect("a file").permissions().mode() & 0o777;
        assert_eq!(mode, 0o600, "{}", file.path().display());
    }
    for line in [
        "[tls]",
        &format!(
            "certificate = \"{}\"",
            dir.join("certs/node7.example.pem").display()
        ),
        &format!("crl = \"{}\"", dir.join("certs/crl.pem").display()),
        "[[principal]]",
        "name = \"spiffe://kennel/alice\"",
        "role = \"spawner\"",
        "owner = \"team\"",
    ] {
        assert!(
            access.lines().any(|one| one == line),
            "{line} is not in\n{access}"
        );
    }
}

// promise: C-63, C-63a
async fn files_are_only_replaced_by_force((dir, _): &(TempDir, String)) {
    let dir = dir.path();
    let read = |name: &str| fs::read(dir.join("certs").join(name)).expect("a file");
    let (ca, alice) = (read("ca-key.pem"), read("alice-key.pem"));
    for words in [
        &["certs", "init", "certs"][..],
        &["certs", "client", "certs", "alice"],
    ] {
        let (code, said) = refusal(dir, words).await;
        assert_eq!(code, Some(1), "{said}");
        assert!(
            said.contains("is there already") && said.contains("--force"),
            "{said}"
        );
    }
    for name in ["ca", "ca-key", "crl", "../x"] {
        let (code, said) = refusal(dir, &["certs", "client", "certs", name, "--force"]).await;
        assert!(code != Some(0), "{name}: {said}");
    }
    assert_eq!(
        (read("ca-key.pem"), read("alice-key.pem")),
        (ca.clone(), alice.clone())
    );
    // `--out` issues a server certificate elsewhere and leaves a symlinked authority unchanged.
    let mounted = dir.join("mounted");
    fs::create_dir(&mounted).expect("a directory");
    for name in ["ca-key.pem", "issued.toml"] {
        std::os::unix::fs::symlink(dir.join("certs").join(name), mounted.join(name))
            .expect("a link");
    }
    let issued = read("issued.toml");
    let words = [
        "certs", "server", "--out", "out", "mounted", "server", "10.0.0.9",
    ];
    let entry = answer(dir, &words).await;
    assert!(entry.contains("out/server.pem"), "{entry}");
    assert_eq!(refusal(dir, &words).await.0, Some(1), "it is there already");
    // The entry is the same: an access file has one [tls] section.
    let again = answer(dir, &[&words[..], &["--force"]].concat()).await;
    assert_eq!(again, entry);
    let absent = refusal(dir, &["certs", "ls", "absent"]).await;
    assert!(
        absent
            .1
            .contains("hint: make an authority there: kennel certs init absent")
    );
    assert_eq!(read("issued.toml"), issued);
    verifies(dir, "../out/server.pem").await;
    // No entry: Alice's principal already exists.
    assert_eq!(
        answer(dir, &["certs", "client", "certs", "alice", "--force"]).await,
        ""
    );
    assert_ne!(read("alice-key.pem"), alice);
    verifies(dir, "alice.pem").await;
}

// promise: C-63
async fn revoked_certificates_are_refused_by_openssl_too((dir, _): &(TempDir, String)) {
    let dir = dir.path();
    let checked = "verify -CAfile ca.pem -crl_check -CRLfile crl.pem";
    let old = fs::read(dir.join("certs/alice.pem")).expect("a file");
    fs::write(dir.join("certs/alice-old.pem"), old).expect("own directory");
    answer(dir, &["certs", "client", "certs", "alice", "--force"]).await;
    answer(dir, &["certs", "client", "certs", "bob"]).await;
    let refused = async |name: &str| {
        let output = openssl(dir, &format!("{checked} {name}")).await?;
        Some(!output.status.success())
    };
    for name in ["alice-old.pem", "alice.pem", "bob.pem"] {
        assert_ne!(refused(name).await, Some(true), "{name} is valid");
    }
    answer(dir, &["certs", "revoke", "certs", "alice"]).await;
    answer(dir, &["certs", "revoke", "certs", "node7.example"]).await;
    for name in ["alice-old.pem", "alice.pem", "node7.example.pem"] {
        assert_ne!(refused(name).await, Some(false), "{name} is revoked");
    }
    assert_ne!(refused("bob.pem").await, Some(true));
    let listed = answer(dir, &["certs", "ls", "certs"]).await;
    let revoked = listed.lines().filter(|line| line.starts_with("revoked"));
    assert_eq!(
        (revoked.count(), listed.lines().count()),
        (3, 4),
        "{listed}"
    );
    let (code, said) = refusal(dir, &["certs", "revoke", "certs", "carol"]).await;
    assert_eq!(code, Some(1));
    assert!(said.contains("no certificate of \"carol\""), "{said}");
}

// promise: C-63
async fn token_is_in_file_and_hashed_in_entry((dir, _): &(TempDir, String)) {
    let dir = dir.path();
    let entry = answer(
        dir,
        &[
            "certs", "token", "certs", "ci", "--days", "30", "--role", "operator",
        ],
    )
    .await;
    let token = fs::read_to_string(dir.join("certs/ci.token")).expect("a file");
    assert_eq!(token.trim().len(), 64, "{token}");
    assert!(!entry.contains(token.trim()), "{entry}");
    assert!(
        entry.contains("id = \"ci\"") && entry.contains("expires = \"20"),
        "{entry}"
    );
    assert!(
        entry.contains("name = \"token:ci\"\nrole = \"operator\""),
        "{entry}"
    );
    let mut sum = Command::new("sha256sum");
    fs::write(dir.join("bare"), token.trim()).expect("own directory");
    sum.arg(dir.join("bare"));
    let sum = text(&run_to_end(sum, PATIENCE).await);
    let hash = sum.split(' ').next().expect("a hash");
    assert!(
        entry.contains(&format!("sha256 = \"{hash}\"")),
        "{entry} {sum}"
    );

    // The second token of an id needs no new principal.
    let next = answer(dir, &["certs", "token", "certs", "ci", "--force"]).await;
    assert!(
        next.contains("[[token]]") && !next.contains("[[principal]]"),
        "{next}"
    );
    assert_ne!(
        fs::read_to_string(dir.join("certs/ci.token")).expect("a file"),
        token
    );
}

// promise: C-62
#[tokio::test(flavor = "multi_thread")]
async fn context_stores_server_and_credential_files() {
    let dir = TempDir::new().expect("a directory");
    let dir = dir.path();
    let file = |name: &str| dir.join(name).display().to_string();
    assert!(
        answer(dir, &["context", "ls"])
            .await
            .starts_with("* default")
    );
    let set = [
        "context",
        "set",
        "prod",
        "--server",
        "tcp:127.0.0.1:1",
        "--tls-ca",
        "ca.pem",
        "--token-file",
        "t",
        "--use",
    ];
    answer(dir, &set).await;
    answer(dir, &["context", "set", "test", "--server", "unix:/s"]).await;
    let config = dir.join("config/kennel/contexts.toml");
    let mode = fs::metadata(&config).expect("a file").permissions().mode() & 0o777;
    assert_eq!(mode, 0o600);
    let listed = answer(dir, &["context", "ls"]).await;
    assert!(
        listed.contains("\n* prod     tcp://127.0.0.1:1\n  test     unix:/s\n"),
        "{listed}"
    );
    let shown = answer(dir, &["context", "show"]).await;
    for value in ["tcp://127.0.0.1:1", &file("ca.pem"), &file("t")] {
        assert!(shown.contains(value), "{shown}");
    }

    // Commands use the context, whose CA file is missing.
    let (code, said) = refusal(dir, &["ps"]).await;
    assert_eq!(code, Some(1));
    assert!(said.contains(&file("ca.pem")), "{said}");
    let (_, said) = refusal(dir, &["ps", "--context", "test"]).await;
    assert!(said.contains("unix:/s"), "{said}");
    let (code, said) = refusal(dir, &["run", "--context", "nowhere", "true"]).await;
    assert!(said.contains("no context \"nowhere\""), "{said}");
    assert_eq!(code, Some(125));

    answer(dir, &["context", "use", "test"]).await;
    let (_, said) = refusal(dir, &["ps"]).await;
    assert!(said.contains("unix:/s"), "{said}");
    answer(dir, &["context", "rm", "test"]).await;
    assert!(
        answer(dir, &["context", "ls"])
            .await
            .starts_with("* default")
    );
    let json = answer(dir, &["context", "ls", "-o", "json"]).await;
    assert!(json.contains("\"name\":\"prod\""), "{json}");
    for words in [
        &["context", "set", "default", "--server", "unix:/s"][..],
        &["context", "set", "x"],
        &[
            "context", "set", "x", "--server", "unix:/s", "--tls-ca", "ca.pem",
        ],
        &[
            "context",
            "set",
            "x",
            "--server",
            "tcp://h:1",
            "--tls-cert",
            "c",
        ],
        &["context", "use", "x"],
        &["serve", "--tls-ca", "x"],
    ] {
        let (code, said) = refusal(dir, words).await;
        assert!(
            code != Some(0) && said.starts_with("error: "),
            "{words:?}: {code:?} {said}"
        );
    }
}
