//! A real browser: many processes, sandbox helpers, sessions of their own.

use crate::with_and_without_cgroup;
use kennel_proto::pb::{Run, RunState, SignalTarget};
use kennel_tests::{
    Client, Footprint, Heard, Kennel, Options, RunExt, SpecExt, argv, eventually, must, procfs,
    within,
};
use std::{
    fs,
    io::{BufRead, BufReader, Read, Write},
    net::TcpStream,
    path::{Path, PathBuf},
    time::Duration,
};

with_and_without_cgroup!(
    nothing_of_an_aborted_browser_is_left,
    nothing_of_a_browser_that_ends_is_left,
);

/// A browser's first start on a busy machine.
const BROWSER_PATIENCE: Duration = Duration::from_mins(2);
/// Pages that are open.
const PAGES: usize = 5;
/// The line with which the browser reports its control port.
const DOOR: &str = "DevTools listening on ws://";

// promise: T-9
async fn nothing_of_an_aborted_browser_is_left(options: Options) {
    let kennel = Kennel::start(options).await;
    let mut client = kennel.client().await;
    let (run, print) = open_pages(&kennel, &mut client).await;

    let aborting = client.abort(&run.run_id);
    let run = must("abort", within("it ends", BROWSER_PATIENCE, aborting).await);

    assert_eq!(run.reason(), "aborted");
    assert!(run.tree_is_empty(), "{:?}", run.tree_verdict);
    run.three_ends();
    print.assert_nothing_left();
}

// promise: T-9
async fn nothing_of_a_browser_that_ends_is_left(options: Options) {
    let kennel = Kennel::start(options).await;
    let mut client = kennel.client().await;
    let (run, print) = open_pages(&kennel, &mut client).await;

    // Only the browser gets the signal and ends its processes itself, as when a user quits.
    let asked = client.signal(&run.run_id, "SIGTERM", SignalTarget::Leader, "quit");
    must("signal", asked.await);
    let ended = client.ended(&run.run_id);
    let run = must("wait", within("it ends", BROWSER_PATIENCE, ended).await);

    assert_eq!(run.state(), RunState::Succeeded, "{run:?}");
    assert!(run.tree_is_empty(), "{:?}", run.tree_verdict);
    run.three_ends();
    print.assert_nothing_left();
}

/// Starts a browser with all its pages open.
async fn open_pages(kennel: &Kennel, client: &mut Client) -> (Run, Footprint) {
    let pages: Vec<PathBuf> = (0..PAGES)
        .map(|number| kennel.scratch().join(format!("page-{number}.html")))
        .collect();
    for page in &pages {
        fs::write(
            page,
            "<title>Kennel</title><script>setInterval(() => document.title += '.', 10)</script>",
        )
        .expect("written");
    }
    let run = launch(kennel, client, &pages[0]).await;
    let door = door(client, &run).await;
    for page in &pages[1..] {
        ask(&door, "PUT", &format!("/json/new?{}", url(page)));
    }
    eventually("all pages are open", BROWSER_PATIENCE, || {
        let targets: serde_json::Value =
            serde_json::from_str(&ask(&door, "GET", "/json/list")).ok()?;
        let is_page = |target: &&serde_json::Value| target["type"] == "page";
        (targets.as_array()?.iter().filter(is_page).count() == PAGES).then_some(())
    })
    .await;
    let shim = run.attempt().shim_pid;
    let tree = eventually("each page has its process", BROWSER_PATIENCE, || {
        let tree = procfs::descendants(&procfs::all(), shim);
        // Renderers join their arguments into one string.
        let draws = |words: &[String]| words.iter().any(|word| word.contains("--type=renderer"));
        let drawing = tree.iter().filter(|proc| draws(&proc.cmdline())).count();
        (drawing >= PAGES).then_some(tree)
    })
    .await;
    let print = Footprint::of_run(&run);
    let before = print.count();
    assert!(
        before.marker.len() >= 2 && before.ancestry.len() >= tree.len() / 2,
        "{before}"
    );
    (run, print)
}

async fn launch(kennel: &Kennel, client: &mut Client, page: &Path) -> Run {
    let profile = format!(
        "--user-data-dir={}",
        kennel.scratch().join("profile").display()
    );
    let words = [
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
        &url(page),
    ];
    // The browser does not always remove its temporary directories.
    let temporary = kennel.scratch().join("temporary");
    fs::create_dir(&temporary).expect("own directory");
    let temporary = temporary.display().to_string();
    must(
        "spawn",
        client.spawn(argv(&words).env("TMPDIR", &temporary)).await,
    )
}

fn url(page: &Path) -> String {
    format!("file://{}", page.display())
}

/// Returns host and port of the browser's control socket.
async fn door(client: &mut Client, run: &Run) -> String {
    let mut stream = must("stream", client.events_after(&run.run_id, 0).await);
    let mut heard = Heard::default();
    loop {
        let said = String::from_utf8_lossy(&heard.stderr);
        if let Some((_, rest)) = said.split_once(DOOR)
            && let Some((door, _)) = rest.split_once('/')
        {
            return door.to_owned();
        }
        let message = within("the browser is up", BROWSER_PATIENCE, stream.message()).await;
        let message = must("stream", message);
        heard.take(message.unwrap_or_else(|| panic!("it ended: {heard:?}")));
    }
}

/// Returns the body of the answer to one request. The browser keeps the connection, so the answer ends with its length.
fn ask(door: &str, method: &str, path: &str) -> String {
    let mut socket = must("connect", TcpStream::connect(door));
    must("timeout", socket.set_read_timeout(Some(BROWSER_PATIENCE)));
    let request = format!("{method} {path} HTTP/1.1\r\nHost: {door}\r\n\r\n");
    must("ask", socket.write_all(request.as_bytes()));
    let mut answer = BufReader::new(socket);
    let mut length = 0;
    for (number, line) in answer.by_ref().lines().enumerate() {
        let line = must("hear", line).to_ascii_lowercase();
        assert!(number > 0 || line.starts_with("http/1.1 200"), "{line}");
        if let Some(value) = line.strip_prefix("content-length:") {
            length = value.trim().parse().expect("a number");
        }
        if line.is_empty() {
            break;
        }
    }
    let mut body = vec![0; length];
    must("hear", answer.read_exact(&mut body));
    String::from_utf8(body).expect("text")
}
