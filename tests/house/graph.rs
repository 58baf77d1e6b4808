//! The crate graph: one direction, and neighbours on one level do not know each other. Each dependency is used.

use super::source::{Source, below, code_lines, is_test_file};
use kennel_tests::programs;
use serde_json::Value;
use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
    process::Command,
};

/// A workspace crate and the workspace crates that it may use.
const MAY_USE: [(&str, &[&str]); 15] = [
    ("kennel-lifecycle", &[]),
    ("kennel-linux", &["kennel-lifecycle"]),
    ("kennel-keeper", &["kennel-linux", "kennel-lifecycle"]),
    ("kennel-journal", &["kennel-lifecycle"]),
    ("kennel-store", &["kennel-lifecycle"]),
    (
        "kennel-supervisor",
        &[
            "kennel-keeper",
            "kennel-linux",
            "kennel-journal",
            "kennel-store",
            "kennel-lifecycle",
        ],
    ),
    ("kennel-proto", &["kennel-lifecycle"]),
    // Embeddable: the client crate pulls in no server or database.
    ("kennel-client", &["kennel-proto", "kennel-lifecycle"]),
    (
        "kennel-edge",
        &[
            "kennel-supervisor",
            "kennel-client",
            "kennel-proto",
            "kennel-lifecycle",
        ],
    ),
    // The escape suite: only the shipping binary depends on it.
    ("kennel-naughty", &["kennel-linux"]),
    // Only decoder tests use this crate.
    ("kennel-mutations", &[]),
    // Commands that call a server: the binary passes in whatever needs server code.
    (
        "kennel-cli",
        &[
            "kennel-client",
            "kennel-proto",
            "kennel-linux",
            "kennel-lifecycle",
        ],
    ),
    (
        "kennel",
        &[
            "kennel-cli",
            "kennel-client",
            "kennel-edge",
            "kennel-proto",
            "kennel-naughty",
            "kennel-supervisor",
            "kennel-keeper",
            "kennel-linux",
            "kennel-journal",
            "kennel-store",
            "kennel-lifecycle",
        ],
    ),
    (
        "kennel-tests",
        &[
            "kennel-client",
            "kennel-proto",
            "kennel-journal",
            "kennel-naughty",
            "kennel-site",
            "kennel-store",
            "kennel-lifecycle",
        ],
    ),
    // Built without kennel-tests.
    ("kennel-site", &["kennel-proto"]),
];

/// Crates of which nothing ships.
const NOT_SHIPPED: [&str; 2] = ["kennel-tests", "kennel-site"];

/// A foreign crate and the only workspace crates that may name it. The tests may name anything.
const OWNED_BY: [(&str, &[&str]); 28] = [
    ("sqlx", &["kennel-store"]),
    ("tonic", &["kennel-proto", "kennel-client", "kennel-edge"]),
    ("tonic-prost", &["kennel-proto"]),
    ("tonic-health", &["kennel-client", "kennel-edge"]),
    ("tonic-reflection", &["kennel-edge"]),
    ("tonic-types", &["kennel-client", "kennel-edge"]),
    ("prost", &["kennel-proto", "kennel-edge"]),
    (
        "prost-types",
        &["kennel-proto", "kennel-client", "kennel-edge"],
    ),
    ("prost-reflect", &["kennel-proto"]),
    // kennel-naughty makes system calls that no other part makes, each safe in nix.
    ("nix", &["kennel-keeper", "kennel-linux", "kennel-naughty"]),
    ("libc", &["kennel-keeper", "kennel-linux"]),
    ("portable-pty", &["kennel-linux"]),
    // Only the supervisor compiles client patterns, within bounds.
    ("regex-automata", &["kennel-supervisor"]),
    ("rustix", &["kennel-linux"]),
    // Only the edge identifies callers.
    ("ring", &["kennel-edge"]),
    ("jsonwebtoken", &["kennel-edge"]),
    ("clap", &["kennel", "kennel-cli"]),
    ("clap_mangen", &["kennel"]),
    ("ratatui", &["kennel-cli"]),
    ("anyhow", &["kennel"]),
    ("tracing-subscriber", &["kennel"]),
    ("axum", &["kennel"]),
    // Crates name measurements where they happen; only the binary exports them.
    (
        "opentelemetry",
        &["kennel-supervisor", "kennel-edge", "kennel"],
    ),
    ("opentelemetry_sdk", &["kennel"]),
    ("opentelemetry-otlp", &["kennel"]),
    ("opentelemetry-prometheus", &["kennel"]),
    ("prometheus", &["kennel"]),
    ("openssl-sys", &[]),
];

/// All crates that the pure core may use. What a later version has recorded is kept as its JSON text.
const LIFECYCLE_USES: [&str; 5] = ["serde", "serde_json", "thiserror", "ulid", "zeroize"];

/// A dependency that only generated code names.
const NAMED_IN_GENERATED_CODE: [(&str, &str); 1] = [("kennel-proto", "tonic-prost")];

/// A dependency whose library has another name.
const LIBRARY_NAMES: [(&str, &str); 1] = [("rustls-webpki", "webpki")];

type Graph = BTreeMap<String, BTreeSet<String>>;

/// Returns the workspace crates as cargo describes them.
fn packages() -> Vec<Value> {
    let output = Command::new(env!("CARGO"))
        .args([
            "metadata",
            "--format-version",
            "1",
            "--no-deps",
            "--offline",
        ])
        .current_dir(programs::repository())
        .output()
        .expect("cargo runs");
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let mut metadata: Value = serde_json::from_slice(&output.stdout).expect("metadata is JSON");
    match metadata["packages"].take() {
        Value::Array(packages) => packages,
        other => panic!("no packages: {other}"),
    }
}

/// Returns each workspace crate with its dependencies, without development dependencies.
fn graph() -> Graph {
    packages()
        .iter()
        .map(|package| {
            let uses = package["dependencies"].as_array().expect("dependencies");
            let names = uses
                .iter()
                .filter(|dependency| dependency["kind"] != "dev")
                .map(|dependency| dependency["name"].as_str().expect("a name").to_owned());
            let name = package["name"].as_str().expect("a name").to_owned();
            (name, names.collect())
        })
        .collect()
}

fn wrong_edges(graph: &Graph) -> Vec<String> {
    let rooms: BTreeMap<&str, &[&str]> = MAY_USE.into_iter().collect();
    let mut wrong = Vec::new();
    for (name, uses) in graph {
        let Some(allowed) = rooms.get(name.as_str()) else {
            wrong.push(format!("{name} is not a room of the house"));
            continue;
        };
        for used in uses {
            if graph.contains_key(used) && !allowed.contains(&used.as_str()) {
                wrong.push(format!("{name} must not use {used}"));
            }
        }
    }
    wrong
}

fn wrong_owners(graph: &Graph) -> Vec<String> {
    let mut wrong = Vec::new();
    for (name, uses) in graph
        .iter()
        .filter(|(name, _)| !NOT_SHIPPED.contains(&name.as_str()))
    {
        for (foreign, owners) in OWNED_BY {
            if uses.contains(foreign) && !owners.contains(&name.as_str()) {
                wrong.push(format!("{name} must not name {foreign}"));
            }
        }
    }
    let decides = &graph["kennel-lifecycle"];
    for used in decides
        .iter()
        .filter(|used| !LIFECYCLE_USES.contains(&used.as_str()))
    {
        wrong.push(format!("kennel-lifecycle must not name {used}"));
    }
    wrong
}

/// A dependency as a crate's manifest lists it.
struct Listed {
    package: String,
    dependency: String,
    /// Absent for normal ones; `dev`, `build`.
    kind: Value,
    folder: String,
}

fn listed() -> Vec<Listed> {
    let text = |value: &Value| value.as_str().expect("a text").to_owned();
    let mut listed = Vec::new();
    for package in packages() {
        let manifest = text(&package["manifest_path"]);
        let folder = Path::new(&manifest).parent().expect("a folder");
        for dependency in package["dependencies"].as_array().expect("dependencies") {
            listed.push(Listed {
                package: text(&package["name"]),
                dependency: text(&dependency["name"]),
                kind: dependency["kind"].clone(),
                folder: folder.display().to_string(),
            });
        }
    }
    listed
}

/// Returns the dependencies that are not named where their kind says that they are used.
fn unused(listed: &[Listed]) -> Vec<String> {
    let mut sources: BTreeMap<&str, Vec<Source>> = BTreeMap::new();
    let mut found = Vec::new();
    for listed in listed {
        let Listed {
            package,
            dependency,
            kind,
            folder,
        } = listed;
        if NAMED_IN_GENERATED_CODE.contains(&(package.as_str(), dependency.as_str())) {
            continue;
        }
        let sources = sources
            .entry(folder)
            .or_insert_with(|| below([folder.into()]));
        let is_named = sources
            .iter()
            .filter(|source| may_name(source, package, kind))
            .any(|source| names(source, dependency, ships(package, kind)));
        if !is_named {
            let kind = kind.as_str().unwrap_or("normal");
            found.push(format!(
                "{package} does not use its {kind} dependency {dependency}"
            ));
        }
    }
    found
}

/// Whether a dependency of this kind is for code that ships. The tests of the real binary never do.
fn ships(package: &str, kind: &Value) -> bool {
    kind.is_null() && !NOT_SHIPPED.contains(&package)
}

/// Folders of other crates below that of the tests.
const NESTED: [&str; 2] = ["tests/mutations/", "tests/site/"];

/// Whether a source may name dependencies of this kind.
fn may_name(source: &Source, package: &str, kind: &Value) -> bool {
    let is_build_script = source.path.ends_with("/build.rs");
    match kind.as_str() {
        Some("build") => is_build_script,
        Some(_) => !is_build_script,
        None if ships(package, kind) => {
            source.path.contains("/src/") && !is_test_file(&source.path)
        }
        // Nested crates have their own manifest.
        None => {
            package != "kennel-tests"
                || !NESTED.iter().any(|folder| source.path.starts_with(folder))
        }
    }
}

/// Whether the code has a path that begins with the dependency.
fn names(source: &Source, dependency: &str, shipped: bool) -> bool {
    let renamed = LIBRARY_NAMES.iter().find(|(name, _)| *name == dependency);
    let library = renamed.map_or(dependency, |(_, library)| library);
    let library = library.replace('-', "_");
    let has_path = |line: &str| {
        line.match_indices(&library).any(|(at, _)| {
            let (before, after) = (&line[..at], &line[at + library.len()..]);
            let goes_on = before.ends_with(|c: char| c.is_alphanumeric() || "_:".contains(c));
            let is_imported = before.ends_with("use ") && after.starts_with([';', ' ']);
            !goes_on && (after.starts_with("::") || is_imported)
        })
    };
    if shipped {
        return code_lines(&source.text).any(|(_, line)| has_path(line));
    }
    source.text.lines().any(has_path)
}

#[test]
fn each_dependency_is_used() {
    assert_eq!(unused(&listed()), Vec::<String>::new());
}

#[test]
fn unused_dependency_is_detected() {
    let mut listed = listed();
    listed.retain(|listed| listed.package == "kennel-journal" && listed.dependency == "bytes");
    assert_eq!(unused(&listed), Vec::<String>::new());
    // Only journal tests use tempfile; shipped code does not.
    "tempfile".clone_into(&mut listed[0].dependency);
    assert_eq!(
        unused(&listed),
        ["kennel-journal does not use its normal dependency tempfile"]
    );
    listed[0].kind = "dev".into();
    assert_eq!(unused(&listed), Vec::<String>::new());
}

#[test]
fn crates_depend_only_on_the_level_below() {
    assert_eq!(wrong_edges(&graph()), Vec::<String>::new());
}

#[test]
fn external_crates_are_used_only_by_owners() {
    assert_eq!(wrong_owners(&graph()), Vec::<String>::new());
}

#[test]
fn graph_check_detects_a_forbidden_dependency() {
    let mut graph = graph();
    let linux = graph.get_mut("kennel-linux").expect("it is there");
    linux.insert("kennel-store".to_owned());
    assert_eq!(
        wrong_edges(&graph),
        ["kennel-linux must not use kennel-store"]
    );
}

#[test]
fn owner_check_detects_crate_in_wrong_place() {
    let mut graph = graph();
    let journal = graph.get_mut("kennel-journal").expect("it is there");
    journal.insert("sqlx".to_owned());
    assert_eq!(wrong_owners(&graph), ["kennel-journal must not name sqlx"]);
}
