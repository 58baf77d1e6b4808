//! A server of the Model Context Protocol under npx, as agents start them.

use super::{Work, abort_leaves_nothing, end_leaves_nothing};
use kennel_proto::pb::RunSpec;
use kennel_tests::{Options, SpecExt, programs, sh};
use std::path::Path;

/// The first message of a client.
const INITIALIZE: &str = r#"{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-03-26","capabilities":{},"clientInfo":{"name":"kennel","version":"0"}}}"#;

// promise: T-80c
#[tokio::test(flavor = "multi_thread")]
async fn aborted_tool_server_leaves_no_process() {
    // Expected: the shell, the stdin holder with its sleep, npx, the server.
    abort_leaves_nothing(
        Options::default().without_cgroup(),
        tool_server,
        "\"serverInfo\"",
        4,
    )
    .await;
}

// promise: T-80c
#[tokio::test(flavor = "multi_thread")]
async fn finished_tool_server_leaves_no_process() {
    end_leaves_nothing(Options::default(), tool_server).await;
}

/// The server answers `initialize` and ends with its input.
fn tool_server(scratch: &Path, work: Work) -> RunSpec {
    let server = "npx --no-install mcp-server-everything stdio";
    let mut spec = sh(&match work {
        Work::Stays => format!("{{ cat; sleep 600; }} | {server}"),
        Work::Ends => format!("setsid sleep 600 </dev/null >/dev/null 2>&1 & exec {server}"),
    });
    spec = spec
        .env(
            "npm_config_cache",
            &scratch.join("cache").display().to_string(),
        )
        .env("npm_config_update_notifier", "false");
    spec.cwd = Some(programs::mcp_dir().display().to_string());
    spec.initial_input = Some(format!("{INITIALIZE}\n").into_bytes().into());
    spec
}
