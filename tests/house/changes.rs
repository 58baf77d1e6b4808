//! The page of changes: which files a change touches. For each kind with a trial the page lists exactly the files that
//! name it.

use super::source::{Source, code_lines, shipped, with_ending};
use kennel_tests::programs;
use std::{collections::BTreeSet, fs};

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

/// Returns the files that name one of these words in their code.
fn naming(sources: &[Source], words: &[String]) -> BTreeSet<String> {
    let names = |source: &&Source| {
        let mut lines = code_lines(&source.text);
        lines.any(|(_, line)| words.iter().any(|word| line.contains(word.as_str())))
    };
    let naming = sources.iter().filter(names);
    naming.map(|source| source.path.clone()).collect()
}

#[test]
fn trial_words_occur_only_in_listed_files() {
    let root = programs::repository();
    let page = fs::read_to_string(root.join(PAGE)).expect("the page is there");
    let trials = trials(&page);
    assert_eq!(trials.len(), TRIALS);
    let mut sources = shipped();
    sources.extend(with_ending("proto", [root.join("proto/kennel")]));
    for trial in trials {
        assert!(
            !trial.words.is_empty() && !trial.files.is_empty(),
            "{trial:?}"
        );
        assert_eq!(
            trial.files,
            naming(&sources, &trial.words),
            "{:?}",
            trial.words
        );
    }
}

#[test]
fn trial_section_is_parsed() {
    let page = "# P\n\n## A field\n\nTrial: `x:`, `.x`\n\n| file | what |\n|---|---|\n| `a.rs` | it |\n\n## Other\n\ntext\n";
    let [trial] = &trials(page)[..] else {
        panic!("one trial")
    };
    assert_eq!(trial.words, ["x:", ".x"]);
    assert_eq!(trial.files, BTreeSet::from(["a.rs".to_owned()]));
}
