//! `kennel attach` and `kennel run --tty` on a terminal that nobody here wrote, beside the same programs without them.

use kennel_edge::pb;
use kennel_tests::{
    Footprint, Kennel, Options, PATIENCE, SpecExt, argv, eventually, eventually_async, must,
    programs, sh, tmux::Tmux,
};
use std::fs;

const SIZE: (u16, u16) = (24, 90);

#[tokio::test(flavor = "multi_thread")]
async fn an_editor_looks_as_without_us_also_after_leaving_and_coming_back() {
    let kennel = Kennel::start(Options::default()).await;
    let mut client = kennel.client().await;
    let file = kennel.scratch().join("text");
    let lines: Vec<String> = (1..=400)
        .map(|n| format!("line {n}: ä 二 \ttext"))
        .collect();
    fs::write(&file, lines.join("\n")).expect("a file");
    let file = file.to_str().expect("UTF-8").to_owned();
    // No swap file, so that two may edit the same text.
    let vim = ["vim", "-n", "-u", "NONE", "-c", "set number ruler", &file];
    let run = must(
        "spawn",
        client.spawn(argv(&vim).on_terminal(terminal(SIZE))).await,
    );
    let attach = format!("{} attach {}", client_line(&kennel), run.run_id);

    let direct = format!(
        "TERM=xterm-256color {}",
        vim.map(|word| format!("'{word}'")).join(" ")
    );
    let direct = Tmux::start(kennel.scratch(), "direct", SIZE, &direct);
    direct.shows("line 1:").await;
    let ours = Tmux::start(kennel.scratch(), "ours", SIZE, &attach);
    ours.shows("line 1:").await;
    let steps: [&[&str]; 3] = [
        &["200G"],
        &["d3d", "o", "typed", "Escape"],
        &["/line 39", "Enter", "zt"],
    ];
    for keys in steps {
        direct.keys(keys);
        ours.keys(keys);
        same(&direct, &ours).await;
    }
    // Leave it, and look from somewhere else.
    ours.keys(&["C-p", "C-q"]);
    ours.shows("which goes on").await;
    let back = Tmux::start(kennel.scratch(), "back", SIZE, &attach);
    same(&direct, &back).await;
    let drawn = must("screen", client.screen(&run.run_id).await);
    assert!(drawn.alternate);
    // What is typed after coming back is the editor's, and so is the size.
    for tmux in [&direct, &back] {
        tmux.keys(&[":%d", "Enter", "iall is new", "Escape"]);
    }
    same(&direct, &back).await;
    back.keys(&[":q!", "Enter"]);
    let ended = must("wait", client.ended(&run.run_id).await);
    Footprint::of_run(&ended).assert_nothing_left();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_came_while_nobody_was_there_is_shown_as_if_somebody_had_been() {
    let kennel = Kennel::start(Options::default()).await;
    let mut client = kennel.client().await;
    // More than ten megabytes, in colours, with wide letters and lines that wrap.
    let flood = r#"printf 'ready\r\n'; read x; i=0; while [ $i -lt 1200 ]; do i=$((i+1)); printf "\033[3$((i%8))m%d " $i; printf '%09000d' $i; printf ' 二\033[0m\r\n'; done; printf 'done'; read x"#;
    let run = must(
        "spawn",
        client.spawn(sh(flood).on_terminal(terminal(SIZE))).await,
    );
    let attach = format!("{} attach {}", client_line(&kennel), run.run_id);
    let there = Tmux::start(kennel.scratch(), "there", SIZE, &attach);
    let direct = Tmux::start(
        kennel.scratch(),
        "direct",
        SIZE,
        &format!("sh -c '{}'", flood.replace('\'', r"'\''")),
    );
    there.shows("ready").await;
    direct.shows("ready").await;
    there.keys(&["C-p", "C-q"]);
    there.shows("which goes on").await;
    direct.keys(&["Enter"]);
    must("type", client.type_in(&run.run_id, "\n").await);
    direct.shows("done").await;
    eventually_async("all of it is there", PATIENCE, async || {
        let screen = kennel.client().await.screen(&run.run_id).await.ok()?;
        let last = screen.lines.iter().rev().find_map(|line| line.spans.last());
        last.is_some_and(|span| span.text.ends_with("done"))
            .then_some(())
    })
    .await;
    let back = Tmux::start(kennel.scratch(), "back", SIZE, &attach);
    same(&direct, &back).await;
    // And at another server.
    kennel.kill_server();
    must("get", kennel.client().await.get(&run.run_id).await);
    same(&direct, &back).await;
    let other = Tmux::start(
        kennel.scratch(),
        "other",
        SIZE,
        &format!("{attach} --read-only"),
    );
    same(&direct, &other).await;
    let mut client = kennel.client().await;
    must("abort", client.abort(&run.run_id).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_on_our_terminal_has_its_size_its_keys_and_its_exit_code() {
    let kennel = Kennel::start(Options::default()).await;
    let line = format!(
        "{} run --tty -- sh -c 'stty size; trap \"echo interrupted\" INT; until read x; do :; done; echo got $x; exit 7'; echo code $?; stty -a | grep -o -e '-\\?icanon'",
        client_line(&kennel)
    );
    let tmux = Tmux::start(kennel.scratch(), "t", (17, 61), &line);
    tmux.shows("17 61").await;
    tmux.keys(&["C-c"]);
    tmux.shows("interrupted").await;
    tmux.keys(&["a word", "Enter"]);
    let shown = tmux.shows("code 7").await;
    assert!(shown.contains("got a word"), "{shown}");
    let shown = tmux.shows("icanon").await;
    assert!(
        !shown.contains("-icanon"),
        "the terminal is as it was: {shown}"
    );

    // Another size while it runs.
    let line = format!(
        "{} run --tty -- sh -c 'trap \"stty size\" WINCH; echo up; while :; do sleep 0.05; done'",
        client_line(&kennel)
    );
    let tmux = Tmux::start(kennel.scratch(), "u", (17, 61), &line);
    tmux.shows("up").await;
    tmux.resize((21, 70));
    tmux.shows("21 70").await;
    let mut client = kennel.client().await;
    let running = pb::RunFilter {
        states: vec![pb::RunState::Running.into()],
        ..pb::RunFilter::default()
    };
    for run in must("list", client.list_all(running, 100).await) {
        must("abort", client.abort(&run.run_id).await);
    }
}

/// Waits until both show the same.
async fn same(wanted: &Tmux, seen: &Tmux) {
    let mut last = (String::new(), String::new());
    eventually("both show the same", PATIENCE, || {
        last = (wanted.shown(), seen.shown());
        (last.0 == last.1 && !last.0.is_empty()).then_some(())
    })
    .await;
}

fn client_line(kennel: &Kennel) -> String {
    format!(
        "KENNEL_SERVER={} {}",
        kennel.address(),
        programs::kennel().display()
    )
}

fn terminal((rows, cols): (u16, u16)) -> pb::Terminal {
    pb::Terminal {
        rows: Some(rows.into()),
        cols: Some(cols.into()),
        term: String::new(),
    }
}
