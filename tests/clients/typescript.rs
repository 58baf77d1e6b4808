//! The TypeScript package of clients/: packed, installed, and used with Node and Bun.

use super::conformance::{play, succeeds};
use kennel_tests::{
    programs::{kennel, repository, tools},
    shell::text,
};
use std::{
    path::{Path, PathBuf},
    process::Command,
};

/// Returns the directory of Node and Bun, as made by `.ci/tools`.
pub(crate) fn runtimes() -> PathBuf {
    tools().join("javascript/node_modules/.bin")
}

/// Makes the package in a directory, and a project that has it installed, with tests and driver.
pub(crate) async fn pack_typescript(packages: &Path, project: &Path) {
    let mut pack = Command::new(repository().join("clients/typescript/pack"));
    pack.arg(packages)
        .arg(project)
        .env("NPM_CONFIG_CACHE", tools().join("cache/npm"));
    succeeds(pack).await;
}

/// Plays all cases with a runtime.
async fn conforms(runtime: &str) {
    let scratch = tempfile::tempdir().expect("a directory");
    let project = scratch.path().join("project");
    pack_typescript(&scratch.path().join("packages"), &project).await;
    let (runtime, driver) = (runtimes().join(runtime), project.join("driver/driver.mjs"));
    play(&format!("{} {}", runtime.display(), driver.display())).await;
}

// promise: O-47a
#[tokio::test(flavor = "multi_thread")]
#[ignore = "minutes: `make conformance` runs it"]
async fn typescript_package_conforms_under_faults_with_node() {
    conforms("node").await;
}

// promise: O-47a
#[tokio::test(flavor = "multi_thread")]
#[ignore = "minutes: `make conformance` runs it"]
async fn typescript_package_conforms_under_faults_with_bun() {
    conforms("bun").await;
}

// promise: O-47a
#[tokio::test(flavor = "multi_thread")]
#[ignore = "minutes: `make conformance` runs it"]
async fn typescript_package_passes_own_tests() {
    let scratch = tempfile::tempdir().expect("a directory");
    let project = scratch.path().join("project");
    pack_typescript(&scratch.path().join("packages"), &project).await;
    for [runtime, verb] in [["node", "--test"], ["bun", "test"]] {
        let mut tests = Command::new(runtimes().join(runtime));
        tests.arg(verb).current_dir(project.join("test"));
        tests.env("KENNEL_BINARY", kennel());
        if runtime == "bun" {
            // bun's default timeout per test is five seconds.
            tests.args(["--timeout", "300000"]);
        }
        println!("{}", text(&succeeds(tests).await));
    }
}

// promise: O-47a
#[tokio::test(flavor = "multi_thread")]
async fn typescript_package_passes_linter_and_type_checker() {
    let mut check = Command::new(repository().join("clients/typescript/check"));
    check.env("NPM_CONFIG_CACHE", tools().join("cache/npm"));
    println!("{}", text(&succeeds(check).await));
}
