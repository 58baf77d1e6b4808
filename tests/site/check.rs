//! Every link of the built site leads to a file of it, and its anchor to an element; every page is two clicks away.

use anyhow::Context as _;
use kennel_site::pages::normal;
use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

/// Pages that mdBook makes of all others; their links are those of the pages themselves.
const WHOLE: [&str; 2] = ["print.html", "404.html"];
/// The sidebar, which each page shows: one click opens a part of it, the next one a page.
const SIDEBAR: &str = "toc.html";
/// Lists within lists of the sidebar that two clicks reach: the parts, and the pages of a part.
const LEVELS_MAX: usize = 2;

/// Returns links that lead nowhere, as `page: target`.
pub(crate) fn wrong(book: &Path) -> anyhow::Result<Vec<String>> {
    let mut pages = BTreeMap::new();
    collect(book, book, &mut pages)?;
    anyhow::ensure!(pages.len() > 100, "only {} pages were built", pages.len());
    let ids: BTreeMap<&PathBuf, BTreeSet<&str>> = pages
        .iter()
        .map(|(path, text)| (path, values(text, "id").collect()))
        .collect();
    let mut wrong = Vec::new();
    for (path, text) in &pages {
        if WHOLE.iter().any(|name| path == Path::new(name)) {
            continue;
        }
        let targets = values(text, "href").chain(values(text, "src"));
        wrong.extend(
            targets
                .filter(|target| !leads_somewhere(book, path, target, &ids))
                .map(|target| format!("{}: {target}", path.display())),
        );
    }
    Ok(wrong)
}

/// Returns pages that two clicks in the sidebar do not reach.
pub(crate) fn far(book: &Path) -> anyhow::Result<Vec<String>> {
    let mut pages = BTreeMap::new();
    collect(book, book, &mut pages)?;
    let sidebar = pages.remove(Path::new(SIDEBAR));
    let sidebar = sidebar.with_context(|| format!("the site has no {SIDEBAR}"))?;
    let near = near(&sidebar);
    anyhow::ensure!(near.len() > 100, "the sidebar has {} pages", near.len());
    let is_far = |path: &&PathBuf| {
        // The first page is also the index.
        let is_index = path.as_path() == Path::new("index.html");
        !is_index
            && !near.contains(*path)
            && WHOLE.iter().all(|name| path.as_path() != Path::new(name))
    };
    let far = pages.keys().filter(is_far);
    Ok(far.map(|path| path.display().to_string()).collect())
}

/// Returns the pages that the sidebar links to at most two lists deep.
fn near(sidebar: &str) -> BTreeSet<PathBuf> {
    let mut near = BTreeSet::new();
    let mut depth = 0_usize;
    for tag in sidebar.split('<') {
        if tag.starts_with("ol") {
            depth += 1;
        } else if tag.starts_with("/ol") {
            depth = depth.saturating_sub(1);
        } else if depth <= LEVELS_MAX && tag.starts_with("a ") {
            near.extend(values(tag, "href").map(|target| normal(Path::new(target))));
        }
    }
    near
}

fn leads_somewhere(
    book: &Path,
    page: &Path,
    target: &str,
    ids: &BTreeMap<&PathBuf, BTreeSet<&str>>,
) -> bool {
    if target.contains("://") || target.starts_with("mailto:") || target.starts_with("data:") {
        return true;
    }
    let (file, anchor) = target.split_once('#').unwrap_or((target, ""));
    let file = if file.is_empty() {
        page.to_owned()
    } else {
        normal(&page.parent().unwrap_or(Path::new("")).join(file))
    };
    let has_anchor = || ids.get(&file).is_some_and(|ids| ids.contains(anchor));
    book.join(&file).is_file() && (anchor.is_empty() || has_anchor())
}

/// Returns the values of an attribute.
fn values<'a>(text: &'a str, attribute: &str) -> impl Iterator<Item = &'a str> {
    let begin = format!(" {attribute}=\"");
    let mut at = 0;
    std::iter::from_fn(move || {
        let from = at + text[at..].find(&begin)? + begin.len();
        let value = &text[from..from + text[from..].find('"')?];
        at = from + value.len();
        Some(value)
    })
}

fn collect(root: &Path, dir: &Path, found: &mut BTreeMap<PathBuf, String>) -> anyhow::Result<()> {
    for entry in fs::read_dir(dir).with_context(|| format!("cannot read {}", dir.display()))? {
        let path = entry?.path();
        if path.is_dir() {
            collect(root, &path, found)?;
        } else if path
            .extension()
            .is_some_and(|extension| extension == "html")
        {
            let text = fs::read_to_string(&path)?;
            found.insert(path.strip_prefix(root)?.to_owned(), text);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_file_and_missing_anchor_are_detected() {
        let dir = tempfile::tempdir().expect("a directory");
        fs::write(dir.path().join("a.html"), "").expect("a file");
        let here = PathBuf::from("a.html");
        let ids = BTreeMap::from([(&here, BTreeSet::from(["here"]))]);
        let leads = |target| leads_somewhere(dir.path(), &here, target, &ids);
        assert!(
            leads("#here") && leads("a.html#here") && leads("./a.html") && leads("https://x/y")
        );
        assert!(!leads("#there") && !leads("b.html") && !leads("a.html#there"));
    }

    // promise: RW-114
    #[test]
    fn page_below_two_levels_is_not_listed() {
        let page = |name: &str| format!("<li><a class=\"x\" href=\"{name}\">");
        let sidebar = format!(
            "<ol>{}<ol>{}<ol>{}</ol></ol></ol>{}",
            page("a.html"),
            page("b.html"),
            page("c.html"),
            page("d.html")
        );
        let found: Vec<_> = near(&sidebar).into_iter().collect();
        assert_eq!(found, ["a.html", "b.html", "d.html"].map(PathBuf::from));
    }

    #[test]
    fn html_attributes_are_read() {
        let text = "<a class=\"x\" href=\"y\"><h2 id=\"z\">";
        assert_eq!(values(text, "href").collect::<Vec<_>>(), ["y"]);
        assert_eq!(values(text, "id").collect::<Vec<_>>(), ["z"]);
    }
}
