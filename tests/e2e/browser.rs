//! A real browser: many processes, sandbox helpers, sessions of their own.

use crate::with_and_without_cgroup;
use kennel_tests::{
    Footprint, Heard, Kennel, Options, RunExt, argv, eventually, must, procfs, within,
};
use std::{fs, time::Duration};

with_and_without_cgroup!(nothing_of_an_aborted_browser_is_left);

/// A browser's first start on a busy machine.
const BROWSER_PATIENCE: Duration = Duration::from_mins(2);

async fn nothing_of_an_aborted_browser_is_left(options: Options) {
    let kennel = Kennel::start(options).await;
    let mut client = kennel.client().await;
    let page = kennel.scratch().join("page.html");
    fs::write(
        &page,
        "<title>Kennel</title><script>setInterval(() => document.title += '.', 10)</script>",
    )
    .expect("written");
    let profile = format!(
        "--user-data-dir={}",
        kennel.scratch().join("profile").display()
    );
    let url = format!("file://{}", page.display());
    let run = must(
        "spawn",
        client
            .spawn(argv(&[
                "chromium",
                "--headless",
                "--no-sandbox",
                "--disable-gpu",
                "--disable-quic",
                "--no-first-run",
                "--disable-background-networking",
                "--disable-component-update",
                "--disable-sync",
                "--remote-debugging-port=0",
                &profile,
                &url,
            ]))
            .await,
    );
    let mut stream = must("stream", client.events_after(&run.run_id, 0).await);
    let mut heard = Heard::default();
    while !String::from_utf8_lossy(&heard.stderr).contains("DevTools listening") {
        let message = within("the browser is up", BROWSER_PATIENCE, stream.message()).await;
        let message = must("stream", message);
        heard.take(message.unwrap_or_else(|| panic!("it ended: {heard:?}")));
    }
    let shim = run.attempt().shim_pid;
    let tree = eventually("it has children", BROWSER_PATIENCE, || {
        let tree = procfs::descendants(&procfs::all(), shim);
        (tree.len() >= 4).then_some(tree)
    })
    .await;
    let mut print = Footprint::of_run(&run);
    print.learn(shim);
    let before = print.count();
    assert!(
        before.marker.len() >= 2 && before.ancestry.len() >= tree.len() / 2,
        "{before}"
    );

    let run = must(
        "abort",
        within("it ends", BROWSER_PATIENCE, client.abort(&run.run_id)).await,
    );

    assert_eq!(run.reason(), "aborted");
    assert!(run.tree_is_empty(), "{:?}", run.tree_verdict);
    run.three_ends();
    print.assert_nothing_left();
}
