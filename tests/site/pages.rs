//! The pages of the documentation, as the house tests and the site read them: their text, links and anchors.

use crate::repository;
use std::{
    collections::BTreeSet,
    fs,
    path::{Component, Path, PathBuf},
};

/// A page in Markdown.
pub struct Page {
    /// Its path below the repository.
    pub path: PathBuf,
    /// Its text.
    pub text: String,
}

/// Locations of pages: these files and all files below these folders.
const ROOTS: [&str; 8] = [
    "README.md",
    "ARCHITECTURE.md",
    "SPECIFICATION.md",
    "SECURITY.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "docs",
    "deploy",
];

/// The list of contents, which is no page itself.
pub const SUMMARY: &str = "docs/SUMMARY.md";
/// Beginning of its lines that stand for all pages of a folder of `docs`.
const PAGES_OF: &str = "<!-- pages of ";

/// Returns all pages of the repository, in the order of their paths.
///
/// # Panics
/// If one cannot be read.
#[must_use]
pub fn all() -> Vec<Page> {
    let mut paths = Vec::new();
    for root in ROOTS {
        collect("md", &repository().join(root), &mut paths);
    }
    paths.sort();
    let page = |path: PathBuf| {
        let text = fs::read_to_string(&path).expect("a page can be read");
        let path = path
            .strip_prefix(repository())
            .expect("it is below")
            .to_owned();
        Page { path, text }
    };
    paths
        .into_iter()
        .map(page)
        .filter(|page| page.path != Path::new(SUMMARY))
        .collect()
}

/// Adds the files with this ending: this one, or all below this folder.
pub(crate) fn collect(ending: &str, path: &Path, found: &mut Vec<PathBuf>) {
    if path.is_dir() {
        for entry in fs::read_dir(path).expect("a folder can be read") {
            collect(ending, &entry.expect("an entry").path(), found);
        }
    } else if path
        .extension()
        .is_some_and(|extension| extension == ending)
    {
        found.push(path.to_owned());
    }
}

/// Returns the lines outside of blocks of code, each with its number from 1.
pub fn prose(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut is_code = false;
    text.lines().enumerate().filter_map(move |(at, line)| {
        let fence = line.trim_start().starts_with("```");
        is_code ^= fence;
        (!fence && !is_code).then_some((at + 1, line))
    })
}

/// Returns a line without the parts between backticks.
#[must_use]
pub fn without_code(line: &str) -> String {
    line.split('`').step_by(2).collect::<Vec<_>>().join("``")
}

/// Returns the targets of all links, each with its line.
#[must_use]
pub fn links(text: &str) -> Vec<(usize, String)> {
    let of_line = |(at, line): (usize, &str)| {
        let line = without_code(line);
        let targets = line
            .split("](")
            .skip(1)
            .filter_map(|rest| rest.split(')').next());
        targets
            .map(|target| (at, target.to_owned()))
            .collect::<Vec<_>>()
    };
    prose(text).flat_map(of_line).collect()
}

/// Returns the links that stay in the repository: file, from the repository's root, and anchor.
#[must_use]
pub fn local_links(page: &Page) -> Vec<(usize, PathBuf, Option<String>)> {
    let is_local = |target: &String| !target.contains("://") && !target.starts_with("mailto:");
    links(&page.text)
        .into_iter()
        .filter(|(_, target)| is_local(target))
        .map(|(line, target)| {
            let (file, anchor) = target
                .split_once('#')
                .map_or((target.as_str(), None), |(f, a)| (f, Some(a)));
            let file = if file.is_empty() {
                page.path.clone()
            } else {
                normal(&page.path.parent().unwrap_or(Path::new("")).join(file))
            };
            (line, file, anchor.map(str::to_owned))
        })
        .collect()
}

/// Returns a path without `.` and `..`.
#[must_use]
pub fn normal(path: &Path) -> PathBuf {
    let mut out = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => {
                out.pop();
            }
            Component::CurDir => {}
            other => out.push(other),
        }
    }
    out
}

/// Returns the anchors of a page: its headings as `GitHub` and `mdBook` both write them.
#[must_use]
pub fn anchors(text: &str) -> BTreeSet<String> {
    prose(text)
        .filter(|(_, line)| line.starts_with('#'))
        .map(|(_, line)| anchor(line.trim_start_matches('#').trim()))
        .collect()
}

/// Returns the anchor of one heading.
#[must_use]
pub fn anchor(heading: &str) -> String {
    let kept = heading.chars().filter_map(|letter| match letter {
        ' ' => Some('-'),
        '-' | '_' => Some(letter),
        letter if letter.is_alphanumeric() => Some(letter.to_ascii_lowercase()),
        _ => None,
    });
    kept.collect()
}

/// Returns the list of contents, with the pages of each folder that it names, by their titles.
///
/// # Panics
/// If it or a page cannot be read.
#[must_use]
pub fn contents() -> String {
    let docs = repository().join("docs");
    let text = fs::read_to_string(repository().join(SUMMARY)).expect("the list of contents");
    let mut lines = Vec::new();
    for line in text.lines() {
        let Some((indent, folder)) = line.split_once(PAGES_OF) else {
            lines.push(line.to_owned());
            continue;
        };
        let mut pages = Vec::new();
        collect(
            "md",
            &docs.join(folder.trim_end_matches(" -->")),
            &mut pages,
        );
        pages.sort();
        for page in pages.iter().filter(|page| !page.ends_with("README.md")) {
            let text = fs::read_to_string(page).expect("a page can be read");
            let title = text.lines().next().unwrap_or_default();
            let title = title.trim_start_matches("# ");
            let target = page.strip_prefix(&docs).expect("it is below").display();
            lines.push(format!("{indent}- [{title}]({target})"));
        }
    }
    lines.join("\n") + "\n"
}

/// Returns the entries of the list of contents: the depth of each, from 0, and its page, from the repository's root.
///
/// # Panics
/// If it cannot be read.
#[must_use]
pub fn summary() -> Vec<(usize, PathBuf)> {
    let page = Page {
        path: SUMMARY.into(),
        text: contents(),
    };
    let depth = |line: usize| {
        let line = page.text.lines().nth(line - 1).unwrap_or_default();
        (line.len() - line.trim_start().len()) / 2
    };
    // A part heading's empty link resolves to this page.
    let entries = local_links(&page)
        .into_iter()
        .filter(|(_, file, _)| *file != page.path);
    entries.map(|(line, file, _)| (depth(line), file)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_in_code_blocks_are_ignored() {
        let text = "see [a](b.md#c) and `[x](y)`\n```sh\n[x](z)\n```\n[d](../e.md)\n";
        let page = Page {
            path: "docs/guide/f.md".into(),
            text: text.to_owned(),
        };
        let found: Vec<(PathBuf, Option<String>)> = local_links(&page)
            .into_iter()
            .map(|(_, file, anchor)| (file, anchor))
            .collect();
        let expected = [
            ("docs/guide/b.md".into(), Some("c".to_owned())),
            ("docs/e.md".into(), None),
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn anchors_match_those_of_github() {
        let anchors = anchors("# What's `kennel run`, in a shell?\n```\n# no heading\n```\n");
        assert_eq!(
            anchors.into_iter().collect::<Vec<_>>(),
            ["whats-kennel-run-in-a-shell"]
        );
    }
}
