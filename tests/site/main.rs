//! `make site`: builds the documentation with mdBook from the pages of the repository and generated ones, and checks
//! that every link of the result leads somewhere, every page is two clicks away, and, where chromium is installed, that
//! tables fit and texts are readable.
//!
//! `site DIR` writes into `DIR/src`, `DIR/book.toml` and `DIR/book`. The binary writes its own pages (`kennel
//! help-pages`).

mod api;
mod check;
mod describe;
mod rendered;

use anyhow::{Context as _, bail, ensure};
use kennel_site::{
    pages::{self, Page},
    promises, repository,
};
use std::{
    collections::BTreeSet,
    env,
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

/// The line of the list of contents that the generated pages replace.
const GENERATED: &str = "<!-- generated pages -->";

/// Pages that search leaves out: records of what was promised, changed and decided, in the words of all others.
const NOT_SEARCHED: [&str; 4] = [
    "CHANGELOG.md",
    "SPECIFICATION.md",
    "docs/adr",
    "generated/promises.md",
];

/// Its title is on every page.
const BOOK: &str = "\
[book]
title = \"Kennel VERSION\"
language = \"en\"
src = \"src\"

[build]
build-dir = \"book\"
create-missing = false

[output.html]
default-theme = \"light\"
preferred-dark-theme = \"navy\"
no-section-label = true
smart-punctuation = false
additional-css = [\"site.css\"]
additional-js = [\"search.js\"]

[output.html.fold]
enable = true
level = 0

[output.html.search]
limit-results = 30
boost-title = 4
";

const STYLE: &str = include_str!("site.css");
const SEARCH: &str = include_str!("search.js");

fn main() -> anyhow::Result<()> {
    let words: Vec<String> = env::args().skip(1).collect();
    let [dir] = &words[..] else {
        bail!("usage: site DIR");
    };
    let dir = PathBuf::from(dir);
    let source = dir.join("src");
    if source.exists() {
        fs::remove_dir_all(&source).context("cannot remove the former pages")?;
    }
    let pages = pages::all();
    copy(&pages, &source)?;
    let generated = generate(&source)?;
    write(&source.join("SUMMARY.md"), &contents(&generated)?)?;
    write(&dir.join("book.toml"), &configuration())?;
    write(&dir.join("site.css"), STYLE)?;
    write(&dir.join("search.js"), SEARCH)?;
    build(&dir)?;
    let book = dir.join("book");
    let sources = pages.iter().map(|page| page.path.clone());
    let generated_sources = generated.iter().map(|(_, path)| PathBuf::from(path));
    let mut shown = Vec::new();
    for path in sources.chain(generated_sources) {
        shown.push(describe::page(&source, &book, &path)?);
    }
    let wrong = check::wrong(&book)?;
    for line in &wrong {
        println!("{line}");
    }
    ensure!(wrong.is_empty(), "{} links lead nowhere", wrong.len());
    let far = check::far(&book)?;
    ensure!(far.is_empty(), "more than two clicks away: {far:?}");
    match rendered::faults(&book, &shown)? {
        None => println!("tables and colours were not measured: chromium is not installed"),
        Some(faults) => ensure!(
            faults.is_empty(),
            "tables that do not fit, and colours that are hard to read:\n{}",
            faults.join("\n")
        ),
    }
    println!(
        "{} pages and {} generated ones in {}",
        pages.len(),
        generated.len(),
        book.display()
    );
    Ok(())
}

/// Returns the configuration of mdBook.
fn configuration() -> String {
    let mut text = BOOK.replace("VERSION", env!("CARGO_PKG_VERSION"));
    for path in NOT_SEARCHED {
        let _ = write!(
            text,
            "\n[output.html.search.chapter.\"{path}\"]\nenable = false\n"
        );
    }
    text
}

/// Copies the pages, and the files that they link to, to the same paths.
fn copy(pages: &[Page], source: &Path) -> anyhow::Result<()> {
    for page in pages {
        // mdBook makes README.md the index of its folder, but does not rewrite links to it.
        let text = page
            .text
            .replace("README.md)", "index.md)")
            .replace("README.md#", "index.md#");
        write(&source.join(&page.path), &text)?;
    }
    let linked: BTreeSet<PathBuf> = pages
        .iter()
        .flat_map(pages::local_links)
        .map(|(_, file, _)| file)
        .collect();
    for file in linked {
        let (from, to) = (repository().join(&file), source.join(&file));
        ensure!(
            from.is_file(),
            "{} is linked to and is no file",
            file.display()
        );
        if !to.exists() {
            fs::create_dir_all(to.parent().unwrap_or(source))?;
            fs::copy(&from, &to).with_context(|| format!("cannot copy {}", file.display()))?;
        }
    }
    Ok(())
}

/// Generates the pages, and returns title and path of each.
fn generate(source: &Path) -> anyhow::Result<Vec<(String, String)>> {
    let mut listed = vec![
        (
            "Settings of kennel serve".to_owned(),
            "generated/settings.md".to_owned(),
        ),
        (
            "Commands and flags".to_owned(),
            "generated/commands.md".to_owned(),
        ),
    ];
    let status = Command::new(beside("kennel")?)
        .arg("help-pages")
        .arg(source.join("generated"))
        .status()
        .context("cannot start kennel")?;
    ensure!(status.success(), "kennel help-pages: {status}");
    for page in api::pages()? {
        let path = format!("generated/{}", page.file);
        write(&source.join(&path), &page.text)?;
        listed.push((page.title, path));
    }
    let path = "generated/promises.md";
    write(&source.join(path), &promises::table_of_tests())?;
    listed.push(("Tests of the promises".to_owned(), path.to_owned()));
    Ok(listed)
}

/// Returns the list of contents in mdBook's form: paths from the root, generated pages in their place.
fn contents(generated: &[(String, String)]) -> anyhow::Result<String> {
    let text = pages::contents();
    let mut lines = Vec::new();
    for line in text.lines() {
        if line.trim() == GENERATED {
            let indent = &line[..line.len() - line.trim_start().len()];
            lines.extend(
                generated
                    .iter()
                    .map(|(title, path)| format!("{indent}- [{title}]({path})")),
            );
        } else if let Some((before, target)) =
            line.split_once("](").filter(|_| !line.ends_with("()"))
        {
            let target = target.trim_end_matches(')');
            let path = pages::normal(&Path::new("docs").join(target));
            lines.push(format!("{before}]({})", path.display()));
        } else {
            lines.push(line.to_owned());
        }
    }
    ensure!(
        lines.iter().any(|line| line.contains("generated/")),
        "{} has no line {GENERATED}",
        pages::SUMMARY
    );
    Ok(lines.join("\n") + "\n")
}

fn build(dir: &Path) -> anyhow::Result<()> {
    let tools = match env::var_os("KENNEL_TOOLS") {
        Some(tools) => PathBuf::from(tools),
        None => beside("../tools")?,
    };
    let mdbook = tools.join("mdbook/bin/mdbook");
    ensure!(
        mdbook.exists(),
        "{} is missing: `.ci/tools mdbook` installs it",
        mdbook.display()
    );
    let output = Command::new(mdbook)
        .arg("build")
        .arg(dir)
        .output()
        .context("cannot start mdbook")?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    // mdBook warns about faulty pages, such as unclosed markup.
    ensure!(
        output.status.success() && !said.contains("WARN"),
        "mdbook: {said}"
    );
    Ok(())
}

/// Returns the path of a file beside this program.
fn beside(name: &str) -> anyhow::Result<PathBuf> {
    let own = env::current_exe().context("a process has an executable")?;
    Ok(own.with_file_name(name))
}

fn write(path: &Path, text: &str) -> anyhow::Result<()> {
    fs::create_dir_all(path.parent().context("a file has a folder")?)?;
    fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}
