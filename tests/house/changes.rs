//! The page of changes: which files a change touches. For each kind with a trial the page lists exactly the files that
//! name it.

use super::source::{code_lines, is_test_file};
use kennel_tests::programs;
use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

const PAGE: &str = "docs/internals/changes.md";
/// Number of kinds with a trial.
const TRIALS: usize = 4;

/// A kind of change, with the words that name its trial and the files of the page's table.
#[derive(Debug, Default)]
struct Trial {
    words: Vec<String>,
    files: BTreeSet<String>,
}

/// Reads the trials of the page: below a heading a line `Trial:` with words in backticks, and a table whose first cells
/// are files in backticks.
fn trials(page: &str) -> Vec<Trial> {
    let mut trials = Vec::new();
    for part in page.split("\n## ").skip(1) {
        let Some((_, rest)) = part.split_once("\nTrial: ") else {
            continue;
        };
        let (words, table) = rest.split_once("\n\n").unwrap_or((rest, ""));
        let in_backticks = |text: &str| -> Vec<String> {
            text.split('`')
                .skip(1)
                .step_by(2)
                .map(str::to_owned)
                .collect()
        };
        let rows = table.lines().filter(|line| line.starts_with("| `"));
        let cells = rows.filter_map(|row| row.split('|').nth(1));
        trials.push(Trial {
            words: in_backticks(words),
            files: cells.flat_map(in_backticks).collect(),
        });
    }
    trials
}

/// Returns the files of the product that name one of these words in their code.
fn naming(root: &Path, words: &[String]) -> BTreeSet<String> {
    let mut files = Vec::new();
    collect(&root.join("proto/kennel"), &mut files);
    for room in fs::read_dir(root.join("crates")).expect("the rooms are there") {
        collect(&room.expect("a room").path().join("src"), &mut files);
    }
    let path = |file: &Path| {
        let path = file.strip_prefix(root).expect("below the repository");
        path.display().to_string()
    };
    let names = |file: &PathBuf| {
        let text = fs::read_to_string(file).expect("a source file is UTF-8");
        let mut lines = code_lines(&text);
        lines.any(|(_, line)| words.iter().any(|word| line.contains(word.as_str())))
    };
    let files = files
        .into_iter()
        .filter(|file| !is_test_file(&path(file)) && names(file));
    files.map(|file| path(&file)).collect()
}

fn collect(dir: &Path, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        let path = entry.path();
        let ending = path.extension().and_then(|ending| ending.to_str());
        if path.is_dir() {
            collect(&path, files);
        } else if matches!(ending, Some("rs" | "proto")) {
            files.push(path);
        }
    }
}

#[test]
fn trials_of_changes_touch_the_listed_files() {
    let root = programs::repository();
    let page = fs::read_to_string(root.join(PAGE)).expect("the page is there");
    let trials = trials(&page);
    assert_eq!(trials.len(), TRIALS);
    for trial in trials {
        assert!(
            !trial.words.is_empty() && !trial.files.is_empty(),
            "{trial:?}"
        );
        assert_eq!(
            trial.files,
            naming(&root, &trial.words),
            "{:?}",
            trial.words
        );
    }
}

#[test]
fn planted_trial_is_read() {
    let page = "# P\n\n## A field\n\nTrial: `x:`, `.x`\n\n| file | what |\n|---|---|\n| `a.rs` | it |\n\n## Other\n\ntext\n";
    let [trial] = &trials(page)[..] else {
        panic!("one trial")
    };
    assert_eq!(trial.words, ["x:", ".x"]);
    assert_eq!(trial.files, BTreeSet::from(["a.rs".to_owned()]));
}
