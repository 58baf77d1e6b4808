//! Prompts of programs that many people use, on pipes and terminals: each is a question once, with its text, and
//! `kennel answer` answers it, also where the server dies between the two.

use crate::{
    play_at_once,
    questions::{asks, texts},
    rules::{regex, rule, with},
};
use kennel_proto::pb::{self, Activity, RunState, output_rule::Action};
use kennel_tests::{Kennel, PATIENCE, RunExt, SpecExt, argv, must, shell::run_to_end};
use std::{fs, process::Command};

/// What a person takes for a question, at the end of a line: `name: (app)` of npm too.
const PROMPT: &str = r"(\?|:|: \(\S*\)|\? \(yes\)|\([Yy]/[Nn]\)\??)\s*$";

/// A question, as the run has it, with the answer.
type Step = (&'static str, &'static str);

// promise: AS-1, AS-2
#[tokio::test(flavor = "multi_thread")]
async fn prompts_of_common_programs_are_answered() {
    let kennel = Kennel::on_sqlite().await;
    play_at_once! {
        &kennel;
        bash_reads_a_name,
        python_reads_from_a_pipe,
        python_reads_from_a_terminal,
        hidden_password_is_read,
        npm_makes_a_package,
        pip_asks_before_it_removes,
    };
}

// promise: AS-2
#[tokio::test(flavor = "multi_thread")]
async fn prompt_is_answered_after_a_server_death() {
    let kennel = Kennel::on_sqlite().await;
    let script = "for n in range(8): print('got', input(f'Part {n}? '))";
    let spec = argv(&["python3", "-c", script]).open_input();
    let run = spawn(&kennel, spec).await;
    for number in 1..=8 {
        let open = next(&kennel, &run, number).await;
        assert_eq!(open.text, format!("Part {}?", number - 1));
        kennel.kill_server();
        answer(&kennel, &run, number, &number.to_string()).await;
    }
    let got = (0..8).map(|n| format!("Part {n}? got {}\n", n + 1));
    ends_with(&kennel, &run, &got.collect::<String>(), 8).await;
}

async fn bash_reads_a_name(kennel: &Kennel) {
    let script = "read -p 'Your name? ' name; echo hello $name";
    let spec = argv(&["bash", "-c", script]).on_terminal(pb::Terminal::default());
    let steps = [("Your name?", "bob")];
    converse(kennel, spec, &steps, "Your name? bob\r\nhello bob\r\n").await;
}

const INPUT: [&str; 3] = ["python3", "-c", "print('got', input('How old: '))"];

async fn python_reads_from_a_pipe(kennel: &Kennel) {
    let spec = argv(&INPUT).open_input();
    converse(kennel, spec, &[("How old:", "4")], "How old: got 4\n").await;
}

async fn python_reads_from_a_terminal(kennel: &Kennel) {
    let spec = argv(&INPUT).on_terminal(pb::Terminal::default());
    let output = "How old: 4\r\ngot 4\r\n";
    converse(kennel, spec, &[("How old:", "4")], output).await;
}

async fn hidden_password_is_read(kennel: &Kennel) {
    let script = "import getpass; print(len(getpass.getpass()))";
    let spec = argv(&["python3", "-c", script]).on_terminal(pb::Terminal::default());
    let run = spawn(kennel, spec).await;
    let open = next(kennel, &run, 1).await;
    assert_eq!((&*open.text, open.echo_off), ("Password:", true));
    answer(kennel, &run, 1, "secret").await;
    ends_with(kennel, &run, "Password: \r\n6\r\n", 1).await;
}

async fn npm_makes_a_package(kennel: &Kennel) {
    let dir = kennel.scratch().join("app");
    fs::create_dir(&dir).expect("made");
    let mut spec = argv(&["npm", "--no-update-notifier", "init"])
        .env("npm_config_progress", "false")
        .on_terminal(pb::Terminal::default());
    spec.cwd = Some(dir.display().to_string());
    let run = spawn(kennel, spec).await;
    let mut seen = Vec::new();
    while !seen.iter().any(|text: &String| text.ends_with("(yes)")) {
        let number = seen.len() as u64 + 1;
        let open = next(kennel, &run, number).await;
        let text = if open.text.ends_with("version: (1.0.0)") {
            "3.2.1"
        } else {
            ""
        };
        // The preview line looks like a question but is not one.
        if !open.text.starts_with("About to write") {
            answer(kennel, &run, number, text).await;
        }
        seen.push(open.text);
    }
    let mut client = kennel.client().await;
    let ended = must("wait", client.ended(&run).await);
    assert_eq!(ended.state(), RunState::Succeeded, "{ended:?}");
    assert!(seen[0].ends_with("package name: (app)"), "{seen:?}");
    let written = fs::read_to_string(dir.join("package.json")).expect("it is written");
    assert!(written.contains("\"version\": \"3.2.1\""), "{written}");
    let heard = must("hear", client.hear_all(&run, 0).await);
    assert_eq!(texts(&heard), seen, "each once");
}

async fn pip_asks_before_it_removes(kennel: &Kennel) {
    let dir = kennel.scratch().join("venv");
    let made = Command::new("python3")
        .args(["-m", "venv"])
        .arg(&dir)
        .status();
    assert!(made.expect("it runs").success());
    let pip = dir.join("bin/pip").display().to_string();
    let spec = argv(&[&*pip, "uninstall", "pip"]).on_terminal(pb::Terminal::default());
    let run = spawn(kennel, spec).await;
    let mut client = kennel.client().await;
    let open = asks(&mut client, &run, |open| {
        open.iter().any(|open| open.text == "Proceed (Y/n)?")
    });
    let open = open.await.pop().expect("a question");
    answer(kennel, &run, open.number, "n").await;
    let ended = must("wait", client.ended(&run).await);
    assert_eq!(ended.state(), RunState::Succeeded, "{ended:?}");
    assert!(dir.join("bin/pip").exists(), "the answer was no");
}

/// Answers the questions in order, and compares the output of the run once it has ended.
async fn converse(kennel: &Kennel, spec: pb::RunSpec, steps: &[Step], output: &str) {
    let run = spawn(kennel, spec).await;
    for (number, (text, reply)) in (1..).zip(steps) {
        assert_eq!(next(kennel, &run, number).await.text, *text);
        answer(kennel, &run, number, reply).await;
    }
    ends_with(kennel, &run, output, steps.len()).await;
}

async fn spawn(kennel: &Kennel, spec: pb::RunSpec) -> String {
    let asks = Action::Activity(Activity::AwaitingInput.into());
    let spec = with(spec, vec![rule("asks", regex(PROMPT), asks)]);
    let mut client = kennel.client().await;
    must("spawn", client.spawn(spec).await).run_id
}

/// Waits for the question of this number.
async fn next(kennel: &Kennel, run: &str, number: u64) -> pb::Question {
    let mut client = kennel.client().await;
    let is_it = |open: &pb::Question| open.number == number;
    let open = asks(&mut client, run, |open| open.iter().any(is_it)).await;
    open.into_iter().find(is_it).expect("it is there")
}

async fn answer(kennel: &Kennel, run: &str, number: u64, text: &str) {
    let number = number.to_string();
    let words = ["answer", "--question", &number, run, text];
    let answered = run_to_end(kennel.cli(&words), PATIENCE).await;
    assert!(answered.status.success(), "{answered:?}");
}

/// Waits for the end, and compares the whole output and the number of questions.
async fn ends_with(kennel: &Kennel, run: &str, output: &str, asked: usize) {
    let mut client = kennel.client().await;
    let ended = must("wait", client.ended(run).await);
    assert_eq!(ended.code(), Some(0), "{ended:?}");
    let heard = must("hear", client.hear_all(run, 0).await);
    assert_eq!(heard.text(), output);
    assert_eq!(texts(&heard).len(), asked, "{heard:?}");
}
