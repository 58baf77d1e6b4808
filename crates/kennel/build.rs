//! Embeds the commit and the build in the binary. A build outside a repository sets `KENNEL_COMMIT`.

use std::{env, process::Command};

fn main() {
    let commit = env::var("KENNEL_COMMIT").ok().or_else(of_repository);
    let commit = commit.unwrap_or_else(|| "unknown".to_owned());
    println!("cargo::rustc-env=KENNEL_COMMIT={commit}");
    let of_cargo = |name| env::var(name).unwrap_or_default();
    let compiler = said("rustc", &["--version"]).unwrap_or_default();
    let build = format!(
        "{}, {}, {compiler}",
        of_cargo("PROFILE"),
        of_cargo("TARGET")
    );
    println!("cargo::rustc-env=KENNEL_BUILD={build}");
    println!("cargo::rerun-if-env-changed=KENNEL_COMMIT");
    println!("cargo::rerun-if-changed=build.rs");
    // HEAD changes with a checkout, its log with each commit.
    for file in ["HEAD", "logs/HEAD"] {
        if let Some(path) = said(
            "git",
            &["rev-parse", "--path-format=absolute", "--git-path", file],
        ) {
            println!("cargo::rerun-if-changed={path}");
        }
    }
}

fn of_repository() -> Option<String> {
    said("git", &["rev-parse", "--short=12", "HEAD"])
}

fn said(program: &str, words: &[&str]) -> Option<String> {
    let output = Command::new(program).args(words).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| text.trim().to_owned())
}
