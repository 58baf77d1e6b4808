//! A server of the Model Context Protocol: one client negotiates a session, another one continues it after an upgrade.

use kennel_proto::pb::{self, line_pattern::Pattern, wait_for_output_response::Result as Found};
use kennel_tests::{Client, Kennel, PATIENCE, SpecExt, must, programs, sh, shell::run_to_end};

const INITIALIZE: &str = r#"{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-03-26","capabilities":{},"clientInfo":{"name":"kennel","version":"0"}}}"#;
const INITIALIZED: &str = r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#;
const LIST_TOOLS: &str = r#"{"jsonrpc":"2.0","id":2,"method":"tools/list"}"#;

/// Returns the answer to the message with this id.
async fn answer(
    client: &mut Client,
    run: &str,
    id: u32,
    captures: &[(&str, &str)],
) -> pb::OutputMatch {
    let captures = captures
        .iter()
        .map(|(name, at)| ((*name).to_owned(), (*at).to_owned()));
    let pattern = Pattern::Json(pb::JsonPattern {
        pointer: "/id".into(),
        equals: id.to_string(),
        captures: captures.collect(),
    });
    match must("wait", client.wait_output(run, pattern, 0).await).result {
        Some(Found::Match(found)) => found,
        other => panic!("no answer to {id}: {other:?}"),
    }
}

// promise: RW-75
#[tokio::test(flavor = "multi_thread")]
async fn negotiated_session_survives_an_upgrade() {
    let kennel = Kennel::on_sqlite().await;
    let mut client = kennel.client().await;
    let cache = kennel.scratch().join("cache").display().to_string();
    let mut spec = sh("exec npx --no-install mcp-server-everything stdio")
        .env("npm_config_cache", &cache)
        .env("npm_config_update_notifier", "false")
        .open_input();
    spec.cwd = Some(programs::mcp_dir().display().to_string());
    let run = must("spawn", client.spawn(spec).await).run_id;
    let line = format!("{INITIALIZE}\n");
    must(
        "write",
        client.write(&run, "1", None, line.as_bytes()).await,
    );
    let captures = [
        ("protocol", "/result/protocolVersion"),
        ("server", "/result/serverInfo/name"),
    ];
    let found = answer(&mut client, &run, 1, &captures).await;
    let groups: Vec<(&str, &str)> = found
        .groups
        .iter()
        .map(|group| (group.name.as_str(), group.text.as_str()))
        .collect();
    assert_eq!(groups.len(), 2, "{found:?}");
    must(
        "annotate",
        client.annotate(&run, &groups, &[], Some(0)).await,
    );
    drop(client);

    let before = kennel.server().expect("one serves").pid;
    let upgraded = run_to_end(kennel.cli(&["upgrade"]), PATIENCE).await;
    assert!(upgraded.status.success(), "{upgraded:?}");
    assert_ne!(kennel.server().expect("one serves").pid, before);

    // Another client finds and continues the session.
    let mut other = kennel.client().await;
    let seen = must("get", other.get(&run).await);
    for (name, text) in groups {
        assert_eq!(seen.annotations.get(name).map(String::as_str), Some(text));
    }
    let lines = format!("{INITIALIZED}\n{LIST_TOOLS}\n");
    must(
        "write",
        other.write(&run, "2", None, lines.as_bytes()).await,
    );
    answer(&mut other, &run, 2, &[("tool", "/result/tools/0/name")]).await;
    must("abort", other.abort(&run).await);
}
