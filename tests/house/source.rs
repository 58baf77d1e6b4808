//! Restrictions on the text of each room: the places of `unsafe`, SQL, clocks, environment and printing.

use kennel_tests::programs;
use std::{
    fs,
    path::{Path, PathBuf},
};

/// Words that only some files may contain.
struct Rule {
    /// Explanation for a reader.
    says: &'static str,
    /// The words, outside of comments and test modules.
    words: &'static [&'static str],
    /// Prefixes of the permitted paths.
    allowed: &'static [&'static str],
}

const RULES: [Rule; 9] = [
    Rule {
        says: "unsafe lives in linux and keeper alone",
        words: &["unsafe {", "unsafe fn", "unsafe impl", "unsafe extern"],
        allowed: &["crates/linux/", "crates/keeper/"],
    },
    Rule {
        says: "SQL lives in store alone",
        words: &[
            "INSERT INTO ",
            "DELETE FROM ",
            "SELECT ",
            "CREATE TABLE ",
            "sqlx::",
        ],
        allowed: &["crates/store/"],
    },
    Rule {
        says: "the wall clock is read in the supervisor's clock, in keeper and shim, for lines of the log, where ages are shown or asked for, and where credentials expire",
        words: &["SystemTime::now()", "UNIX_EPOCH.elapsed()"],
        allowed: &[
            "crates/supervisor/src/base/clock",
            "crates/edge/src/access/rules",
            "crates/linux/",
            "crates/keeper/",
            "crates/kennel-cli/src/inbox.rs",
            "crates/kennel-cli/src/list.rs",
            "crates/kennel-cli/src/top/",
            "crates/kennel/src/telemetry/records.rs",
            "crates/kennel-cli/src/values/time.rs",
        ],
    },
    Rule {
        says: "only the supervisor has timers, keeper and shim theirs, commands while they wait, clients for the age of a token, and quotas",
        words: &["Instant::now()"],
        allowed: &[
            "crates/client/src/credentials",
            "crates/edge/src/load/shares",
            "crates/supervisor/",
            "crates/keeper/",
            "crates/linux/",
            "crates/kennel-cli/",
            "crates/kennel/src/own_service.rs",
            "crates/kennel/src/prove/",
        ],
    },
    Rule {
        says: "only the binary, the surroundings of a client, and the server for what its keeper has left there read the environment",
        words: &["env::var(", "env::vars(", "env::var_os(", "env::vars_os("],
        allowed: &[
            "crates/kennel/",
            "crates/kennel-cli/",
            "crates/client/src/surroundings.rs",
            "crates/keeper/src/server_socket.rs",
            "crates/linux/src/crash_point.rs",
        ],
    },
    Rule {
        says: "only the binary prints",
        words: &["println!(", "eprintln!(", "print!(", "eprint!("],
        allowed: &["crates/kennel/"],
    },
    Rule {
        says: "generated types live in proto, status codes in client and edge; the binary takes them from there",
        words: &["prost::", "tonic::"],
        allowed: &["crates/proto/", "crates/client/", "crates/edge/"],
    },
    Rule {
        says: "each channel has a bound, with a reason for its size",
        words: &["unbounded_channel", "UnboundedSender", "UnboundedReceiver"],
        allowed: &[],
    },
    Rule {
        says: "delays that grow from retry to retry are drawn by the backoff of lifecycle",
        words: &["pause * 2", "pause *= 2", "delay * 2", "delay *= 2"],
        allowed: &["crates/lifecycle/"],
    },
];

/// A crate's source, its path relative to the repository.
pub(super) struct Source {
    pub(super) path: String,
    pub(super) text: String,
}

/// Returns the code of all rooms that ship; their own tests are unrestricted.
pub(super) fn shipped() -> Vec<Source> {
    let root = programs::repository();
    let rooms = fs::read_dir(root.join("crates")).expect("the rooms are there");
    let rooms = rooms.map(|room| room.expect("a room").path().join("src"));
    let mut sources = below(rooms);
    sources.retain(|source| !is_test_file(&source.path));
    assert!(
        sources.len() > 20,
        "only {} files were found",
        sources.len()
    );
    sources
}

/// Returns all Rust files below these folders.
pub(super) fn below(folders: impl IntoIterator<Item = PathBuf>) -> Vec<Source> {
    with_ending("rs", folders)
}

/// Returns all files with this ending below these folders.
pub(super) fn with_ending(ending: &str, folders: impl IntoIterator<Item = PathBuf>) -> Vec<Source> {
    let root = programs::repository();
    let mut files = Vec::new();
    for folder in folders {
        collect(ending, &folder, &mut files);
    }
    let source = |file: PathBuf| {
        let path = file.strip_prefix(&root).expect("below the repository");
        Source {
            path: path.display().to_string(),
            text: fs::read_to_string(&file).expect("a source file is UTF-8"),
        }
    };
    files.into_iter().map(source).collect()
}

fn collect(ending: &str, dir: &Path, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).expect("a folder of sources").flatten() {
        let path = entry.path();
        if path.is_dir() {
            collect(ending, &path, files);
        } else if path
            .extension()
            .is_some_and(|extension| extension == ending)
        {
            files.push(path);
        }
    }
}

/// Whether it is `tests.rs`, `src/testing/` or `conformance`: compiled for tests only.
pub(super) fn is_test_file(path: &str) -> bool {
    [
        "/tests.rs",
        "/tests/",
        "/testing",
        "/conformance",
        "/golden.rs",
    ]
    .iter()
    .any(|part| path.contains(part))
}

fn violations(sources: &[Source], rule: &Rule) -> Vec<String> {
    let mut found = Vec::new();
    for source in sources {
        if rule
            .allowed
            .iter()
            .any(|prefix| source.path.starts_with(prefix))
        {
            continue;
        }
        for (number, line) in code_lines(&source.text) {
            if rule.words.iter().any(|word| holds(line, word)) {
                found.push(format!("{}:{number}: {}", source.path, line.trim()));
            }
        }
    }
    found
}

/// Whether the word occurs in the line, and not as the end of a longer one.
fn holds(line: &str, word: &str) -> bool {
    line.match_indices(word).any(|(at, _)| {
        !line[..at]
            .chars()
            .next_back()
            .is_some_and(|before| before.is_alphanumeric() || before == '_')
    })
}

/// Returns the lines up to the file's test module, which is last.
pub(super) fn shipped_lines(text: &str) -> impl Iterator<Item = &str> {
    // `mod tests;` in a separate file opens no block.
    let opens_tests = |line: &str| line.contains("mod ") && line.contains('{');
    let mut lines = text.lines().peekable();
    std::iter::from_fn(move || {
        let line = lines.next()?;
        let tests = line == "#[cfg(test)]" && lines.peek().is_some_and(|next| opens_tests(next));
        (!tests).then_some(line)
    })
    .fuse()
}

/// Returns these lines, numbered and without comments.
pub(super) fn code_lines(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let code = |line: &'_ str| line.find("//").unwrap_or(line.len());
    shipped_lines(text)
        .enumerate()
        .map(move |(index, line)| (index + 1, &line[..code(line)]))
}

#[test]
fn forbidden_words_stay_out_of_each_crate() {
    let sources = shipped();
    let found: Vec<String> = RULES
        .iter()
        .flat_map(|rule| {
            violations(&sources, rule)
                .into_iter()
                .map(|line| format!("{}: {line}", rule.says))
        })
        .collect();
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn each_rule_detects_a_planted_breach() {
    for rule in &RULES {
        for word in rule.words {
            let planted = [Source {
                path: "crates/journal/src/planted.rs".to_owned(),
                text: format!("fn f() {{\n    {word}x\n}}\n"),
            }];
            assert_eq!(violations(&planted, rule).len(), 1, "{word}");
        }
    }
}

#[test]
fn comments_and_test_modules_are_not_code() {
    let text = "// unsafe { }\nfn f() {}\n#[cfg(test)]\nmod tests { unsafe {} }\n";
    let planted = [Source {
        path: "crates/journal/src/planted.rs".to_owned(),
        text: text.to_owned(),
    }];
    assert_eq!(violations(&planted, &RULES[0]), Vec::<String>::new());
}

#[test]
fn release_binary_is_stripped() {
    let manifest = fs::read_to_string(programs::repository().join("Cargo.toml"));
    let manifest = manifest.expect("it is there");
    let release = manifest.split("[profile.release.package]").nth(1);
    let mut overrides = release.expect("overrides of the release profile").lines();
    // A package override without `strip` resets the profile's `strip`.
    let binary = overrides.find(|line| line.starts_with("kennel = "));
    assert!(binary.is_some_and(|line| line.contains("strip = true")));
}

#[test]
fn crates_without_unsafe_use_workspace_lints() {
    let root = programs::repository();
    let workspace = fs::read_to_string(root.join("Cargo.toml")).expect("it is there");
    assert!(workspace.contains("unsafe_code = \"forbid\""));
    for room in [
        "lifecycle",
        "journal",
        "store",
        "supervisor",
        "edge",
        "kennel",
        "naughty",
    ] {
        let manifest = fs::read_to_string(root.join(format!("crates/{room}/Cargo.toml")))
            .expect("it is there");
        assert!(
            manifest.contains("[lints]\nworkspace = true"),
            "crates/{room} has lints of its own"
        );
    }
}

#[test]
fn sqlite_and_postgres_migrations_have_same_numbers() {
    let root = programs::repository();
    let names = |backend: &str| {
        let mut names: Vec<String> = fs::read_dir(root.join("migrations").join(backend))
            .expect("the migrations are there")
            .map(|entry| {
                let name = entry.expect("an entry").file_name();
                name.to_string_lossy().into_owned()
            })
            .collect();
        names.sort();
        names
    };
    assert!(!names("sqlite").is_empty());
    assert_eq!(names("postgres"), names("sqlite"));
}
