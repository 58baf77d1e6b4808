//! Names and output of runs on the terminal of an operator.

use kennel_tests::{
    Kennel, PATIENCE, SpecExt, argv, must, programs,
    shell::{run_to_end, text},
    tmux::Tmux,
};

/// A name that would clear the screen, set a title, forge a line, and reverse the rest.
const HOSTILE: &str =
    "a\u{1b}[2J\u{1b}]0;b\u{7}\u{9b}1m\nstate           SUCCEEDED\rc\u{202e}d\u{2066}";

#[tokio::test(flavor = "multi_thread")]
async fn text_of_runs_cannot_act_on_a_terminal() {
    let kennel = Kennel::on_sqlite().await;
    let mut client = kennel.client().await;
    let script = "printf 'before \\342\\200\\256 \\033[2J\\033]0;b\\007\\033[31mafter\\033[0m\\n'; sleep 300";
    let spec = argv(&["sh", "-c", script, HOSTILE]).env("NAME", HOSTILE);
    let run = must("spawn", client.spawn(spec).await).run_id;
    client.hear_text(&run, "after").await;

    let refused = format!("01JD{HOSTILE}");
    for words in [
        &["get", &run][..],
        &["ps"],
        &["tree", &run],
        &["why", &run],
        &["events", &run],
        &["audit", &run],
        &["abort", &refused],
        &["get", &refused],
        &["run", "--", HOSTILE],
    ] {
        let output = run_to_end(kennel.cli(words), PATIENCE).await;
        for shown in [&output.stdout, &output.stderr] {
            let shown = String::from_utf8(shown.clone()).expect("text");
            let acts = |c: char| (c.is_control() && c != '\n') || "\u{202e}\u{2066}".contains(c);
            assert!(!shown.contains(acts), "{words:?}: {shown:?}");
            assert!(
                !shown.contains("\nstate           SUCC"),
                "{words:?}: {shown:?}"
            );
        }
    }
    // JSON and output to a non-terminal are exact.
    let json = run_to_end(kennel.cli(&["get", "-o", "json", &run]), PATIENCE).await;
    let json: serde_json::Value = serde_json::from_str(&text(&json)).expect("JSON");
    assert_eq!(json["spec"]["argv"]["args"][3], HOSTILE);
    let logs = run_to_end(kennel.cli(&["logs", &run]), PATIENCE).await;
    assert!(text(&logs).contains("\u{202e} \u{1b}[2J"), "{logs:?}");

    let line = |flag: &str| {
        let (address, kennel) = (kennel.address(), programs::kennel());
        format!(
            "KENNEL_SERVER={address} {} logs {flag} {run}",
            kennel.display()
        )
    };
    let safe = Tmux::start(kennel.scratch(), "safe", (10, 80), &line(""));
    let shown = safe.shows("after").await;
    assert!(shown.contains("before \\u{202e}"), "{shown}");
    assert!(!safe.shown_in_colour().contains("\u{1b}[31m"));
    let raw = Tmux::start(kennel.scratch(), "raw", (10, 80), &line("--raw"));
    let shown = raw.shows("after").await;
    assert!(!shown.contains("before"), "{shown}");
    must("abort", client.abort(&run).await);
}
