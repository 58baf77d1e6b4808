//! The pages of the documentation: every link leads somewhere, every page is two clicks away, guides begin with the reader's
//! question, lines are short, and words are the field's.

use kennel_tests::{
    pages::{self, Page},
    programs,
};
use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
};

/// Longest line, apart from tables and blocks of code, which cannot be wrapped.
const COLUMNS_MAX: usize = 120;
/// Longest README.
const README_LINES_MAX: usize = 80;
/// Deepest entry of the list of contents: the sidebar opens a part by one click.
const DEPTH_MAX: usize = 1;
/// Folders whose pages have a question as title.
const QUESTIONS: [&str; 2] = ["docs/guide", "docs/errors/README.md"];
/// The index of the guides, by question; the runbook has its own.
const GUIDES: &str = "docs/guide/README.md";
const RUNBOOK: &str = "docs/guide/runbook";
/// The index of the pages of errors, and the heading of its table.
const ERRORS: &str = "docs/errors/README.md";
/// The reasons, whose comments are their meanings in the index.
const REASONS: &str = "crates/proto/src/reason.rs";
const ERRORS_TABLE: &str = "| reason | code | meaning |\n|---|---|---|\n";

/// The files of the contract, whose comments are the reference of the API.
const CONTRACT: &str = "proto/kennel/v1";

/// Words and phrases that no page and no comment of the contract may contain, each with its replacement.
pub(super) const WORDS: [(&str, &str); 41] = [
    ("tell", "report, notify, record, log"),
    ("tells", "reports, notifies, records, logs"),
    ("told", "reported, notified, recorded, logged"),
    ("telling", "reporting"),
    ("whom", "the processes, the caller"),
    ("whomever", "any process, any caller"),
    ("whoever", "any process, any reader"),
    ("nobody", "no process, no caller"),
    ("somebody", "a process, a caller"),
    ("anybody", "any process, any caller"),
    ("everybody", "all processes, all callers"),
    ("stranger", "unrelated process"),
    ("strangers", "unrelated processes"),
    ("knock", "connect"),
    ("knocks", "connects"),
    ("door", "socket"),
    ("doors", "sockets"),
    ("station", "lifecycle event"),
    ("stations", "lifecycle events"),
    ("wish", "request"),
    ("wishes", "requests"),
    ("owe", "have pending"),
    ("owes", "has pending"),
    ("owed", "pending"),
    ("goes on", "continues"),
    ("go on", "continue"),
    ("going on", "continuing"),
    ("went on", "continued"),
    ("gone on", "continued"),
    ("take over", "acquire, replace"),
    ("takes over", "acquires, replaces"),
    ("took over", "acquired, replaced"),
    ("taken over", "acquired, replaced"),
    ("taking over", "acquiring, replacing"),
    ("in hand", "supervised"),
    ("let go", "released, closed"),
    ("lets go", "releases, closes"),
    ("last will", "exit record"),
    ("last word", "final report"),
    ("for want of", "for lack of"),
    ("store is away", "database is unavailable"),
];

/// Folders of files that are shipped beside the binary, whose texts people read: alerts, dashboards, manifests, tables.
const SHIPPED: [&str; 2] = ["deploy", "migrations"];
/// Endings of their names.
const SHIPPED_ENDINGS: [&str; 8] = [
    "yml", "yaml", "json", "tpl", "sql", "service", "socket", "conf",
];

/// Returns the files beside the binary as pages.
fn shipped_texts() -> Vec<Page> {
    let root = programs::repository();
    let mut folders: Vec<PathBuf> = SHIPPED.map(PathBuf::from).to_vec();
    let mut pages = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(root.join(&folder)).expect("a folder of the repository") {
            let entry = entry.expect("it can be listed");
            let path = folder.join(entry.file_name());
            let ending = path.extension().and_then(|ending| ending.to_str());
            if entry.path().is_dir() {
                folders.push(path);
            } else if ending.is_some_and(|ending| SHIPPED_ENDINGS.contains(&ending)) {
                let text = fs::read_to_string(entry.path()).expect("a file of text");
                pages.push(Page { path, text });
            }
        }
    }
    pages
}

/// Returns the files of the contract as pages of their comments, with lines of code left empty.
fn contract() -> Vec<Page> {
    let folder = programs::repository().join(CONTRACT);
    let files = fs::read_dir(folder).expect("the contract is there");
    let page = |file: PathBuf| {
        let text = fs::read_to_string(&file).expect("a file of the contract can be read");
        let path = Path::new(CONTRACT).join(file.file_name().expect("it has a name"));
        let text = comments(&text);
        Page { path, text }
    };
    let files = files.map(|file| file.expect("it can be listed").path());
    let mut pages: Vec<Page> = files.map(page).collect();
    pages.sort_by(|a, b| a.path.cmp(&b.path));
    pages
}

/// Returns the comments, at their lines.
fn comments(code: &str) -> String {
    let comment = |line: &str| {
        line.split_once("//")
            .map_or(String::new(), |(_, text)| text.to_owned())
    };
    code.lines().map(comment).collect::<Vec<_>>().join("\n")
}

fn name(page: &Page) -> String {
    page.path.display().to_string()
}

/// Returns the faults of the links of these pages.
fn wrong_links(pages: &[Page]) -> Vec<String> {
    let anchors: BTreeMap<&Path, BTreeSet<String>> = pages
        .iter()
        .map(|page| (page.path.as_path(), pages::anchors(&page.text)))
        .collect();
    let mut wrong = Vec::new();
    for page in pages {
        for (line, file, anchor) in pages::local_links(page) {
            let place = format!("{}:{line}", name(page));
            if !anchors.contains_key(file.as_path())
                && !programs::repository().join(&file).is_file()
            {
                wrong.push(format!("{place}: {} is no file", file.display()));
            } else if let Some(anchor) = anchor
                && !anchors
                    .get(file.as_path())
                    .is_some_and(|anchors| anchors.contains(&anchor))
            {
                wrong.push(format!(
                    "{place}: {} has no heading {anchor}",
                    file.display()
                ));
            }
        }
    }
    wrong
}

/// Returns pages that the list of contents lacks, and entries that are too deep or listed twice.
fn unreachable(pages: &[Page], summary: &[(usize, PathBuf)]) -> Vec<String> {
    let listed: BTreeSet<&PathBuf> = summary.iter().map(|(_, path)| path).collect();
    let lacking = pages.iter().filter(|page| !listed.contains(&page.path));
    let lacking = lacking.map(|page| format!("{} is not in {}", name(page), pages::SUMMARY));
    let deep = summary.iter().filter(|(depth, _)| *depth > DEPTH_MAX);
    let deep = deep.map(|(_, path)| format!("{} is more than two clicks away", path.display()));
    let mut seen = BTreeSet::new();
    // mdBook refuses a second entry.
    let again = summary.iter().filter(|(_, path)| !seen.insert(path));
    let again = again.map(|(_, path)| format!("{} is listed twice", path.display()));
    lacking.chain(deep).chain(again).collect()
}

/// Returns guides that do not begin with a question and its answer.
fn without_question(pages: &[Page]) -> Vec<String> {
    let guides = pages
        .iter()
        .filter(|page| QUESTIONS.iter().any(|folder| page.path.starts_with(folder)));
    guides
        .filter(|page| {
            let mut lines = page.text.lines().filter(|line| !line.is_empty());
            let title = lines
                .next()
                .is_some_and(|line| line.starts_with("# ") && line.ends_with('?'));
            let answer = lines.next().is_some_and(|line| {
                line.starts_with(|first: char| first.is_alphanumeric() || first == '`')
            });
            !(title && answer)
        })
        .map(|page| {
            format!(
                "{} does not begin with a question and its answer",
                name(page)
            )
        })
        .collect()
}

fn long_lines(pages: &[Page]) -> Vec<String> {
    let of_page = |page: &Page| {
        let long = pages::prose(&page.text)
            .filter(|(_, line)| !line.starts_with('|') && line.chars().count() > COLUMNS_MAX)
            .map(|(at, _)| format!("{}:{at} is longer than {COLUMNS_MAX}", name(page)));
        long.collect::<Vec<_>>()
    };
    pages.iter().flat_map(of_page).collect()
}

/// Returns the forbidden words of a text, code left out, each with its line.
fn vague_words(text: &str) -> Vec<(usize, &'static str)> {
    let mut found = Vec::new();
    // A phrase may span two lines.
    let lines: Vec<(usize, String)> = pages::prose(text)
        .map(|(at, line)| (at, pages::without_code(line).to_lowercase()))
        .collect();
    let mut before = "";
    for (at, line) in &lines {
        let words = words_of(line);
        let joined = format!("{before} {words}");
        for (word, _) in WORDS {
            let here = if word.contains(' ') { &joined } else { &words };
            let count = format!(" {here} ").matches(&format!(" {word} ")).count();
            let earlier = if word.contains(' ') {
                format!(" {before} ").matches(&format!(" {word} ")).count()
            } else {
                0
            };
            found.extend(std::iter::repeat_n(
                (*at, word),
                count.saturating_sub(earlier),
            ));
        }
        before = line;
    }
    found
}

pub(super) fn words_of(line: &str) -> String {
    let words =
        line.split(|letter: char| !letter.is_alphanumeric() && !matches!(letter, '\'' | '_'));
    words
        .filter(|word| !word.is_empty())
        .collect::<Vec<_>>()
        .join(" ")
}

/// Returns the guides that their index lacks, or lists under another title.
fn wrong_in_index(pages: &[Page], index: &str) -> Vec<String> {
    let folder = Path::new(GUIDES).parent().expect("it is in a folder");
    let guides = pages.iter().filter(|page| {
        page.path.starts_with(folder) && !page.path.starts_with(RUNBOOK) && name(page) != GUIDES
    });
    let row = |page: &Page| {
        let title = page.text.lines().next().unwrap_or_default();
        let title = title.trim_start_matches("# ");
        let target = page.path.strip_prefix(folder).expect("it is below");
        let (from, to) = (
            format!("| {title} | ["),
            format!("]({}) |", target.display()),
        );
        let is_row = |line: &str| line.starts_with(&from) && line.ends_with(&to);
        (!index.lines().any(is_row)).then(|| format!("{GUIDES} has no row {from}...{to}"))
    };
    guides.filter_map(row).collect()
}

/// Builds the index of errors: their codes from the heads of their pages, their meanings from the list of reasons.
fn errors_table(pages: &[Page]) -> String {
    let reasons = fs::read_to_string(programs::repository().join(REASONS)).expect("the reasons");
    let meanings = meanings(&reasons);
    let mut table = ERRORS_TABLE.to_owned();
    let errors = pages
        .iter()
        .filter(|page| page.path.starts_with("docs/errors") && name(page) != ERRORS);
    for page in errors {
        let reason = page.path.file_stem().expect("a name").to_string_lossy();
        let head = page.text.lines().nth(2).unwrap_or_default();
        let code = head.trim_start_matches("Code: ").split(['.', ':']).next();
        let code = code.unwrap_or_default();
        let meaning = meanings.get(&*reason).expect("each page is a reason's");
        writeln!(table, "| [{reason}]({reason}.md) | {code} | {meaning} |")
            .expect("a string takes all");
    }
    table
}

/// Returns the doc comment of each reason, by its text: the line above `Variant = "TEXT", Code;`.
fn meanings(source: &str) -> BTreeMap<&str, &str> {
    let lines: Vec<&str> = source.lines().map(str::trim).collect();
    lines
        .windows(2)
        .filter_map(|pair| {
            let meaning = pair[0].strip_prefix("/// ")?;
            let (_, text) = pair[1].split_once(" = \"")?;
            Some((text.split('"').next()?, meaning))
        })
        .collect()
}

#[test]
fn every_link_of_a_page_resolves() {
    let pages = pages::all();
    assert!(pages.len() > 100, "only {} pages were found", pages.len());
    assert_eq!(wrong_links(&pages), Vec::<String>::new());
}

// promise: RW-114
#[test]
fn every_page_is_within_two_clicks() {
    assert_eq!(
        unreachable(&pages::all(), &pages::summary()),
        Vec::<String>::new()
    );
}

#[test]
fn guides_begin_with_question_and_answer() {
    assert_eq!(without_question(&pages::all()), Vec::<String>::new());
}

#[test]
fn guide_index_lists_each_page_by_title() {
    let pages = pages::all();
    let index = pages.iter().find(|page| name(page) == GUIDES);
    let index = &index.expect("an index of guides").text;
    assert_eq!(wrong_in_index(&pages, index), Vec::<String>::new());
}

#[test]
fn pages_are_wrapped_and_readme_is_short() {
    let pages = pages::all();
    assert_eq!(long_lines(&pages), Vec::<String>::new());
    let readme = pages
        .iter()
        .find(|page| name(page) == "README.md")
        .expect("a README");
    let lines = readme.text.lines().count();
    assert!(lines <= README_LINES_MAX, "README.md has {lines} lines");
}

#[test]
fn error_index_matches_the_error_pages() {
    let pages = pages::all();
    let table = errors_table(&pages);
    let path = programs::repository().join(ERRORS);
    let page = fs::read_to_string(&path).expect("the index");
    let (before, _) = page.split_once(ERRORS_TABLE).expect("it has the table");
    let wanted = format!("{before}{table}");
    if std::env::var_os("UPDATE").is_some() {
        fs::write(path, wanted).expect("the index can be written");
    } else {
        assert!(page == wanted, "UPDATE=1 rewrites {ERRORS}");
    }
}

#[test]
fn pages_and_contract_have_no_vague_words() {
    let contract = contract();
    assert!(contract.len() > 8, "only {} files", contract.len());
    let instead: BTreeMap<&str, &str> = WORDS.into_iter().collect();
    let of_page = |page: &Page| {
        let words = vague_words(&page.text).into_iter();
        let said =
            words.map(|(at, word)| format!("{}:{at}: {word} (say: {})", name(page), instead[word]));
        said.collect::<Vec<_>>()
    };
    let beside = shipped_texts();
    assert!(beside.len() > 20, "only {} files", beside.len());
    let all = pages::all().into_iter().chain(contract).chain(beside);
    let wrong: Vec<String> = all.flat_map(|page| of_page(&page)).collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn planted_faults_of_pages_are_detected() {
    let page = |path: &str, text: &str| Page {
        path: path.into(),
        text: text.to_owned(),
    };
    let planted = [
        page(
            "docs/guide/a.md",
            "# Why?\n\nBecause [b](no.md), [c](../../README.md#nowhere), [d](#why).\n",
        ),
        page(
            "docs/guide/b.md",
            &format!("# No question\n\n{}\n", "x".repeat(COLUMNS_MAX + 1)),
        ),
        page("README.md", "# Title\n"),
    ];
    assert_eq!(
        wrong_links(&planted),
        [
            "docs/guide/a.md:3: docs/guide/no.md is no file",
            "docs/guide/a.md:3: README.md has no heading nowhere",
        ]
    );
    assert_eq!(
        without_question(&planted),
        ["docs/guide/b.md does not begin with a question and its answer"]
    );
    assert_eq!(
        long_lines(&planted),
        ["docs/guide/b.md:3 is longer than 120"]
    );
    let index = "| Why? | [a](a.md) |\n| Another title | [b](b.md) |\n";
    assert_eq!(
        wrong_in_index(&planted, index),
        ["docs/guide/README.md has no row | No question | [...](b.md) |"]
    );
    let summary = [
        (0, "README.md".into()),
        (2, "docs/guide/a.md".into()),
        (0, "README.md".into()),
    ];
    assert_eq!(
        unreachable(&planted, &summary),
        [
            "docs/guide/b.md is not in docs/SUMMARY.md",
            "docs/guide/a.md is more than two clicks away",
            "README.md is listed twice"
        ]
    );
    let code = "// It goes\n// on.\nstring door = 1; // A door.\n";
    assert_eq!(vague_words(&comments(code)), [(2, "goes on"), (3, "door")]);
    let text = "Nobody is told.\n`told` untold\n```\nwhom\n```\nit goes\non, and goes on\n";
    let found: Vec<_> = vague_words(text);
    assert_eq!(
        found,
        [(1, "told"), (1, "nobody"), (7, "goes on"), (7, "goes on")]
    );
}
