//! `kennel attach` and `kennel run --tty` on a terminal of another project, beside the same programs without them.

use kennel_proto::pb;
use kennel_tests::{
    Footprint, Kennel, Options, PATIENCE, RunExt, SpecExt, argv, cases, eventually,
    eventually_async, must, programs, sh, tmux::Tmux,
};
use std::{fs, time::Duration};

const SIZE: (u16, u16) = (24, 90);

// Only these tests need vim and top.
cases! {
    fn programs_look_as_without_kennel(Kennel::start(Options::default()).await);
    attached_editor_looks_as_without_kennel,
    attached_monitor_looks_as_without_kennel,
}

cases! {
    fn shells_look_as_without_kennel(Kennel::start(Options::default()).await);
    command_on_own_terminal_has_keys_and_exit,
    output_while_detached_is_shown_on_attach,
}

// promise: P-11
async fn attached_editor_looks_as_without_kennel(kennel: &Kennel) {
    let mut client = kennel.client().await;
    let file = kennel.scratch().join("text");
    let lines: Vec<String> = (1..=400)
        .map(|n| format!("line {n}: ä 二 \ttext"))
        .collect();
    fs::write(&file, lines.join("\n")).expect("a file");
    let file = file.to_str().expect("UTF-8").to_owned();
    // `-n`: no swap file, so that two editors may open the file.
    let vim = ["vim", "-n", "-u", "NONE", "-c", "set number ruler", &file];
    let run = must(
        "spawn",
        client.spawn(argv(&vim).on_terminal(terminal(SIZE))).await,
    );
    let attach = format!("{} attach {}", client_line(kennel), run.run_id);

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
    // Detach, then attach from another terminal.
    ours.keys(&["C-p", "C-q"]);
    ours.shows("which continues").await;
    let back = Tmux::start(kennel.scratch(), "back", SIZE, &attach);
    same(&direct, &back).await;
    let drawn = must("screen", client.screen(&run.run_id).await);
    assert!(drawn.alternate);
    // After reattaching, the editor gets the keys and the size.
    for tmux in [&direct, &back] {
        tmux.keys(&[":%d", "Enter", "iall is new", "Escape"]);
    }
    same(&direct, &back).await;
    back.keys(&[":q!", "Enter"]);
    let ended = must("wait", client.ended(&run.run_id).await);
    Footprint::of_run(&ended).assert_nothing_left();
}

/// A program that redraws by itself, and in colours.
// promise: P-11
async fn attached_monitor_looks_as_without_kennel(kennel: &Kennel) {
    let mut client = kennel.client().await;
    // All that top shows of a sleeping process is constant.
    let sleeps = must("spawn", client.spawn(sh("exec sleep 1000")).await);
    let pid = sleeps.attempt().pid.to_string();
    let home = kennel.scratch().display().to_string();
    let top = ["top", "-d", "1000", "-p", &pid];
    let line = format!("HOME={home} TERM=xterm-256color {}", top.join(" "));
    // Hide the varying lines about the whole machine in top's saved settings.
    let first = Tmux::start(kennel.scratch(), "first", SIZE, &line);
    first.shows("COMMAND").await;
    for (key, line) in [("l", "load average"), ("t", "Tasks:"), ("m", "MiB Mem")] {
        while first.shown().contains(line) {
            // On an idle host a key press may change nothing visible.
            let _ = tokio::time::timeout(SAME_MAX, press(&first, key)).await;
        }
    }
    first.keys(&["W"]);
    first.shows("Wrote configuration").await;

    let spec = argv(&top).on_terminal(terminal(SIZE)).env("HOME", &home);
    let run = must("spawn", client.spawn(spec).await);
    let attach = format!("{} attach {}", client_line(kennel), run.run_id);
    let direct = Tmux::start(kennel.scratch(), "top-direct", SIZE, &line);
    let ours = Tmux::start(kennel.scratch(), "top-ours", SIZE, &attach);
    for tmux in [&direct, &ours] {
        tmux.shows("COMMAND").await;
    }
    // Toggle colours, then the full command line.
    for key in ["z", "x", "b", "c"] {
        for tmux in [&direct, &ours] {
            press(tmux, key).await;
        }
        same(&direct, &ours).await;
        same_in_colour(&direct, &ours).await;
    }
    assert!(direct.shown().contains("sleep 1000"), "{}", direct.shown());
    for tmux in [&direct, &ours] {
        tmux.resize((15, 60));
    }
    same(&direct, &ours).await;
    ours.keys(&["C-p", "C-q"]);
    ours.shows("which continues").await;
    let back = Tmux::start(kennel.scratch(), "top-back", (15, 60), &attach);
    same(&direct, &back).await;
    same_in_colour(&direct, &back).await;
    for tmux in [&direct, &back] {
        tmux.keys(&["h"]);
    }
    back.shows("Quit").await;
    same(&direct, &back).await;
    back.keys(&["q"]);
    // top drops a key that it reads together with the help's closing key.
    eventually("the help is closed", PATIENCE, || {
        (!back.shown().contains("Quit")).then_some(())
    })
    .await;
    back.keys(&["q"]);
    let ended = must("wait", client.ended(&run.run_id).await);
    assert_eq!(ended.code(), Some(0));
    Footprint::of_run(&ended).assert_nothing_left();
    must("abort", client.abort(&sleeps.run_id).await);
}

// promise: P-11
async fn output_while_detached_is_shown_on_attach(kennel: &Kennel) {
    let mut client = kennel.client().await;
    // The flood has colours, wide characters and wrapped lines.
    let flood = r#"printf 'ready\r\n'; read x; i=0; while [ $i -lt 300 ]; do i=$((i+1)); printf "\033[3$((i%8))m%d " $i; printf '%09000d' $i; printf ' 二\033[0m\r\n'; done; printf 'done'; read x"#;
    let run = must(
        "spawn",
        client.spawn(sh(flood).on_terminal(terminal(SIZE))).await,
    );
    let attach = format!("{} attach {}", client_line(kennel), run.run_id);
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
    there.shows("which continues").await;
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
    // Another server repaints identically.
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

// promise: P-14
async fn command_on_own_terminal_has_keys_and_exit(kennel: &Kennel) {
    let line = format!(
        "printf '\\033]2;ours\\007'; {} run --tty -- sh -c 'printf \"\\033]2;theirs\\007\"; stty size; trap \"echo interrupted\" INT; until read x; do :; done; echo got $x; exit 7'; echo code $?; stty -a | grep -o -e '-\\?icanon'",
        client_line(kennel)
    );
    let tmux = Tmux::start(kennel.scratch(), "t", (17, 61), &line);
    tmux.shows("17 61").await;
    // The title may come later: a repaint ends with it.
    let has_title = || (tmux.variable("pane_title") == "theirs").then_some(());
    eventually("the title of the command", PATIENCE, has_title).await;
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
    assert_eq!(tmux.variable("pane_title"), "ours");

    // Resize while the command runs.
    let line = format!(
        "{} run --tty -- sh -c 'trap \"stty size\" WINCH; echo up; while :; do sleep 0.05; done'",
        client_line(kennel)
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

/// Time after which a program that draws at each key has drawn the same again.
const SAME_MAX: Duration = Duration::from_secs(3);

/// Types a key for a program that draws when it has read one, and not before, and waits until it has drawn.
async fn press(tmux: &Tmux, key: &str) {
    let before = tmux.shown_in_colour();
    tmux.keys(&[key]);
    let drawn = || (tmux.shown_in_colour() != before).then_some(());
    eventually("it draws", PATIENCE, drawn).await;
}

/// Waits until both show the same in the same colours.
async fn same_in_colour(wanted: &Tmux, seen: &Tmux) {
    let mut last = (Vec::new(), Vec::new());
    eventually("both show the same colours", PATIENCE, || {
        last = (
            letters(&wanted.shown_in_colour()),
            letters(&seen.shown_in_colour()),
        );
        (last.0 == last.1 && !last.0.is_empty()).then_some(())
    })
    .await;
}

/// Returns each letter with its style: bold, reversed, its colour and its background. The colour of a blank is
/// invisible.
fn letters(coloured: &str) -> Vec<(char, [u32; 4])> {
    let mut look = [0; 4];
    let mut seen = Vec::new();
    let mut rest = coloured.chars();
    while let Some(letter) = rest.next() {
        if letter != '\u{1b}' {
            let [_, reverse, _, behind] = look;
            let visible = if letter.is_whitespace() {
                [0, reverse, 0, behind]
            } else {
                look
            };
            // tmux may or may not print blanks at a line's end.
            while letter == '\n' && seen.last().is_some_and(|(last, _)| *last == ' ') {
                seen.pop();
            }
            seen.push((letter, if letter == '\n' { [0; 4] } else { visible }));
            continue;
        }
        let sequence: String = rest.by_ref().take_while(|c| *c != 'm').collect();
        let codes = sequence.trim_start_matches('[').split(';');
        for code in codes.map(|code| code.parse().unwrap_or(0)) {
            match code {
                0 => look = [0; 4],
                1 => look[0] = 1,
                7 => look[1] = 1,
                27 => look[1] = 0,
                30..=37 | 90..=97 => look[2] = code,
                39 => look[2] = 0,
                40..=47 | 100..=107 => look[3] = code,
                49 => look[3] = 0,
                other => panic!("{other} is not known here: {coloured:?}"),
            }
        }
    }
    seen
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
