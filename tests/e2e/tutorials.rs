//! Every tutorial, run from its own text: files are written, blocks for the shell are run in order in one shell, and
//! the text block after one is its expected output.

use kennel_tests::{
    Kennel, kennel::bare_command, must, programs, project::Project, shell::run_to_end,
};
use std::{fs, path::Path, time::Duration};

/// Longest time of a page, which is ended then with all that it has started.
const TUTORIAL_MAX: Duration = Duration::from_secs(100);
/// A whole tutorial takes some seconds on an idle machine.
const TUTORIAL_PATIENCE: Duration = Duration::from_mins(2);
/// Placeholder for any text in the output of a block.
const ANY: &str = "...";
/// Ends the background processes of a page that fails.
const END_JOBS: &str = "trap 'kill $(jobs -p) 2>/dev/null || true' EXIT\n";
/// Printed between two blocks.
const MARK: &str = "-- end of block --\n";

/// A block for the shell, and its expected output.
#[derive(Debug, PartialEq, Eq)]
struct Step {
    commands: String,
    prints: Option<String>,
}

fn steps(text: &str) -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::new();
    let mut lines = text.lines();
    let mut is_file = false;
    while let Some(line) = lines.next() {
        let Some(language) = line.strip_prefix("```") else {
            if !line.is_empty() {
                is_file = line.starts_with("Save as ");
            }
            continue;
        };
        let block: Vec<&str> = lines.by_ref().take_while(|line| *line != "```").collect();
        let block = block.join("\n") + "\n";
        match (language, steps.last_mut()) {
            _ if is_file => {}
            ("sh", _) => steps.push(Step {
                commands: block,
                prints: None,
            }),
            ("text", Some(step)) => step.prints = Some(block),
            _ => {}
        }
        is_file = false;
    }
    steps
}

/// Text with one space in place of each row of them: the width of a table's column is that of its values.
fn one_space(text: &str) -> String {
    let mut words = text.split(' ').filter(|word| !word.is_empty());
    let first = words.next().unwrap_or_default().to_owned();
    words.fold(first, |all, word| all + " " + word)
}

/// Whether a text matches the page, with any text in place of the dots.
fn is_as_said(said: &str, text: &str) -> bool {
    let (said, text) = (one_space(said), one_space(text));
    let parts: Vec<&str> = said.split(ANY).collect();
    let [first, middle @ .., last] = &parts[..] else {
        return said == text;
    };
    let Some(mut rest) = text.strip_prefix(first) else {
        return false;
    };
    for part in middle {
        let Some(at) = rest.find(part) else {
            return false;
        };
        rest = &rest[at + part.len()..];
    }
    rest.ends_with(last)
}

async fn run_tutorial(name: &str) {
    let kennel = Kennel::on_sqlite().await;
    let path = programs::repository().join(format!("docs/guide/tutorial/{name}.md"));
    let dir = kennel.scratch().join("tutorial");
    must("a directory", fs::create_dir(&dir));
    Project::read(&path).write_files(&dir);
    // A browser leaves its temporary directories behind.
    let temporary = kennel.scratch().join("temporary");
    must("a directory", fs::create_dir(&temporary));
    let proto = programs::repository().join("proto");
    let mut copy = bare_command(Path::new("/bin/cp"));
    copy.arg("-r").arg(proto).arg(dir.join("proto"));
    let copied = run_to_end(copy, TUTORIAL_PATIENCE).await;
    assert!(copied.status.success(), "{copied:?}");
    let steps = steps(&must("the page", fs::read_to_string(&path)));
    let mark = format!("printf '%s' '{MARK}'\n");
    let script = steps
        .iter()
        .flat_map(|step| [step.commands.as_str(), &mark]);
    let script: String = [END_JOBS].into_iter().chain(script).collect();
    // A script file keeps the page's commands out of the shell's arguments.
    must("a script", fs::write(dir.join(".page.sh"), script));
    let binary = programs::kennel();
    let binaries = binary.parent().expect("it is in a directory").display();
    // `timeout` also ends background jobs.
    let mut shell = bare_command(Path::new("/usr/bin/timeout"));
    shell
        .arg(TUTORIAL_MAX.as_secs().to_string())
        .args(["/bin/bash", "-euo", "pipefail", ".page.sh"])
        .current_dir(&dir)
        .env("PATH", format!("{binaries}:/usr/bin:/bin"))
        .env("NPM_CONFIG_CACHE", programs::tools().join("cache/npm"))
        .env("KENNEL_SERVER", kennel.address())
        .env("TMPDIR", temporary);
    let ran = run_to_end(shell, TUTORIAL_PATIENCE).await;
    let printed = String::from_utf8_lossy(&ran.stdout);
    let errors = String::from_utf8_lossy(&ran.stderr);
    assert!(
        ran.status.success(),
        "{name}: {}\n{printed}\n{errors}",
        ran.status
    );
    let printed: Vec<&str> = printed.split_terminator(MARK).collect();
    assert_eq!(printed.len(), steps.len(), "{name}: {printed:?}");
    for (step, printed) in steps.iter().zip(printed) {
        if let Some(said) = &step.prints {
            assert!(
                is_as_said(said, printed),
                "{name}:\n{}printed\n{printed}instead of\n{said}",
                step.commands
            );
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn agent_runner_page_works_as_written() {
    run_tutorial("agent-runner").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn inbox_page_works_as_written() {
    run_tutorial("inbox").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn ci_job_page_works_as_written() {
    run_tutorial("ci-job").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn build_farm_page_works_as_written() {
    run_tutorial("build-farm").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn terminal_page_works_as_written() {
    run_tutorial("terminal").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn browser_terminal_page_works_as_written() {
    run_tutorial("browser-terminal").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn notebook_page_works_as_written() {
    run_tutorial("notebook").await;
}

#[test]
fn every_tutorial_has_a_test() {
    let dir = programs::repository().join("docs/guide/tutorial");
    let source = must(
        "this file",
        fs::read_to_string(programs::repository().join("tests/e2e/tutorials.rs")),
    );
    for file in must("the tutorials", fs::read_dir(dir)) {
        let name = must("a page", file)
            .file_name()
            .to_string_lossy()
            .replace(".md", "");
        assert!(
            source.contains(&format!("run_tutorial(\"{name}\")")),
            "no test runs {name}"
        );
    }
}

#[test]
fn ellipsis_in_expected_output_matches_anything() {
    assert!(is_as_said("a\n", "a\n") && is_as_said("... b ... d\n", "a b c d\n"));
    assert!(is_as_said("a  ...     c\n", "a  1234  c\n"));
    assert!(
        !is_as_said("a\n", "a\nb\n") && !is_as_said("...b\n", "a\n") && !is_as_said("a...", "b")
    );
    let page = "Save as `x.py`\n\n```text\nno\n```\n\n```sh\necho a\n```\n\n```text\na\n```\n```sh\ntrue\n```\n";
    let step = |commands: &str, prints: Option<&str>| Step {
        commands: commands.to_owned(),
        prints: prints.map(str::to_owned),
    };
    assert_eq!(
        steps(page),
        [step("echo a\n", Some("a\n")), step("true\n", None)]
    );
}
