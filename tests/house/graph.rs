//! The crate graph: one direction, and neighbours on one level do not know each other.

use kennel_tests::programs;
use serde_json::Value;
use std::{
    collections::{BTreeMap, BTreeSet},
    process::Command,
};

/// A workspace crate and the workspace crates that it may use.
const MAY_USE: [(&str, &[&str]); 13] = [
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
    // Embeddable: no server and no database comes with it.
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
    // The escape suite: only the binary, which ships it, knows it.
    ("kennel-naughty", &["kennel-linux"]),
    // For tests of decoders alone.
    ("kennel-mutations", &[]),
    (
        "kennel",
        &[
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
            "kennel-store",
            "kennel-lifecycle",
        ],
    ),
];

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
    // Its programs are made of system calls that no part of the product makes, each safe in nix.
    ("nix", &["kennel-keeper", "kennel-linux", "kennel-naughty"]),
    ("libc", &["kennel-keeper", "kennel-linux"]),
    ("portable-pty", &["kennel-linux"]),
    // Patterns of clients are compiled in one place, with their bounds.
    ("regex", &["kennel-supervisor"]),
    ("rustix", &["kennel-linux"]),
    // Callers are identified in one place.
    ("ring", &["kennel-edge"]),
    ("jsonwebtoken", &["kennel-edge"]),
    ("clap", &["kennel"]),
    ("clap_mangen", &["kennel"]),
    ("ratatui", &["kennel"]),
    ("anyhow", &["kennel"]),
    ("tracing-subscriber", &["kennel"]),
    ("axum", &["kennel"]),
    // Measurements are named where they happen; the binary alone exports them.
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

/// All crates that the pure core may use.
const LIFECYCLE_USES: [&str; 4] = ["serde", "thiserror", "ulid", "zeroize"];

type Graph = BTreeMap<String, BTreeSet<String>>;

/// Returns each workspace crate with its dependencies, without development dependencies.
fn graph() -> Graph {
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
    let metadata: Value = serde_json::from_slice(&output.stdout).expect("metadata is JSON");
    let packages = metadata["packages"].as_array().expect("packages");
    packages
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
    for (name, uses) in graph.iter().filter(|(name, _)| *name != "kennel-tests") {
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

#[test]
fn crates_know_only_the_level_below() {
    assert_eq!(wrong_edges(&graph()), Vec::<String>::new());
}

#[test]
fn each_foreign_crate_is_in_its_room_only() {
    assert_eq!(wrong_owners(&graph()), Vec::<String>::new());
}

#[test]
fn graph_check_sees_a_known_neighbour() {
    let mut graph = graph();
    let linux = graph.get_mut("kennel-linux").expect("it is there");
    linux.insert("kennel-store".to_owned());
    assert_eq!(
        wrong_edges(&graph),
        ["kennel-linux must not use kennel-store"]
    );
}

#[test]
fn owner_check_sees_crate_in_wrong_room() {
    let mut graph = graph();
    let journal = graph.get_mut("kennel-journal").expect("it is there");
    journal.insert("sqlx".to_owned());
    assert_eq!(wrong_owners(&graph), ["kennel-journal must not name sqlx"]);
}
