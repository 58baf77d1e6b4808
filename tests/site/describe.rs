//! The description of each page, as search engines and previews of links show it: its first paragraph.

use anyhow::{Context as _, ensure};
use kennel_site::pages::prose;
use std::{
    fs,
    path::{Path, PathBuf},
};

/// What mdBook writes into a page without a description.
const EMPTY: &str = "<meta name=\"description\" content=\"\">";
/// Longest description, in characters.
const CHARS_MAX: usize = 160;

/// Describes the page of the book that is made of this source, and returns its path.
pub(crate) fn page(source: &Path, book: &Path, path: &Path) -> anyhow::Result<PathBuf> {
    let text = fs::read_to_string(source.join(path))
        .with_context(|| format!("cannot read {}", path.display()))?;
    let html = if path.ends_with("README.md") {
        path.with_file_name("index.html")
    } else {
        path.with_extension("html")
    };
    let file = book.join(&html);
    let page =
        fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))?;
    ensure!(
        page.contains(EMPTY),
        "{} has no place for a description",
        html.display()
    );
    let described = format!(
        "<meta name=\"description\" content=\"{}\">",
        escaped(&description(&text))
    );
    fs::write(&file, page.replacen(EMPTY, &described, 1))
        .with_context(|| format!("cannot write {}", file.display()))?;
    Ok(html)
}

/// Returns the first paragraph of a page without markup, cut between words; the title where there is none.
fn description(text: &str) -> String {
    let is_prose = |line: &&str| {
        let is_sentence =
            line.starts_with(|first: char| first.is_alphanumeric() || "`[*".contains(first));
        is_sentence && !line.starts_with("Code: ")
    };
    let lines = prose(text).map(|(_, line)| line);
    let paragraph: Vec<&str> = lines
        .skip_while(|line| !is_prose(line))
        .take_while(|line| !line.is_empty())
        .collect();
    let title = text
        .lines()
        .next()
        .unwrap_or_default()
        .trim_start_matches("# ");
    let plain = plain(&paragraph.join(" "));
    shortened(if plain.is_empty() { title } else { &plain })
}

/// Returns a paragraph without the markup of links, code and stress.
fn plain(paragraph: &str) -> String {
    let mut out = String::new();
    let mut rest = paragraph;
    while let Some((before, target)) = rest.split_once("](") {
        out.push_str(before);
        rest = target.split_once(')').map_or("", |(_, after)| after);
    }
    out.push_str(rest);
    out.replace(['`', '*', '['], "")
}

fn shortened(text: &str) -> String {
    if text.chars().count() <= CHARS_MAX {
        return text.to_owned();
    }
    let cut: String = text.chars().take(CHARS_MAX - 3).collect();
    let words = cut.rsplit_once(' ').map_or(&*cut, |(words, _)| words);
    format!("{}...", words.trim_end_matches([',', ':', ';']))
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('"', "&quot;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn description_is_the_first_paragraph_without_markup() {
        let page =
            "# Why?\n\n```sh\nkennel\n```\n\nBecause `a` is\n[b](c.md), and **d**.\n\nMore.\n";
        assert_eq!(description(page), "Because a is b, and d.");
        assert_eq!(
            description("# X\n\nCode: ABORTED.\n\n## What it means\n\nIt is \"so\".\n"),
            "It is \"so\"."
        );
        assert_eq!(description("# Only a title\n"), "Only a title");
    }

    #[test]
    fn long_description_is_cut_between_words() {
        let cut = description(&format!("# T\n\n{}\n", "word, ".repeat(40)));
        assert!(
            cut.ends_with("word...") && cut.chars().count() <= CHARS_MAX,
            "{cut}"
        );
    }
}
