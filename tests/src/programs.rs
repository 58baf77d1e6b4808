//! Paths of the programs that tests start: found beside the test itself, never by an absolute path.

use std::path::{Path, PathBuf};

/// Returns `target/<profile>`, where the running test was built.
///
/// # Panics
/// If the test runs from another directory.
#[must_use]
pub fn profile_dir() -> PathBuf {
    let own = std::env::current_exe().expect("a process has an executable");
    let dir = own.parent().expect("an executable has a directory");
    if dir.ends_with("deps") {
        dir.parent()
            .expect("deps lies below the profile")
            .to_owned()
    } else {
        dir.to_owned()
    }
}

/// Returns the server and command line under test.
#[must_use]
pub fn kennel() -> PathBuf {
    built("kennel", "cargo build --workspace --bins")
}

/// Returns a version that `.ci/versions` has built: `former` or `next`.
#[must_use]
pub fn version(name: &str) -> PathBuf {
    let target = profile_dir();
    let target = target.parent().expect("the profile lies below target");
    existing(
        target.join("upgrade").join(name).join("kennel"),
        "make versions",
    )
}

/// Returns the program that misbehaves.
#[must_use]
pub fn naughty() -> PathBuf {
    built("naughty", "cargo build --workspace --bins")
}

/// Returns Python with grpcio, as made by `.ci/tools`.
#[must_use]
pub fn python() -> PathBuf {
    existing(tools().join("python/bin/python"), "make tools")
}

/// Returns a program of Prometheus, as downloaded by `.ci/tools`.
#[must_use]
pub fn prometheus(name: &str) -> PathBuf {
    existing(tools().join("prometheus/usr/bin").join(name), "make tools")
}

/// Returns the directory in which npx finds a server of the Model Context Protocol, as made by `.ci/tools`.
#[must_use]
pub fn mcp_dir() -> PathBuf {
    let dir = tools().join("mcp");
    existing(
        dir.join("node_modules/.bin/mcp-server-everything"),
        "make tools",
    );
    dir
}

/// Returns the output directory of `.ci/tools`.
#[must_use]
pub fn tools() -> PathBuf {
    std::env::var_os("KENNEL_TOOLS").map_or_else(
        || {
            let target = profile_dir();
            target
                .parent()
                .expect("the profile lies below target")
                .join("tools")
        },
        PathBuf::from,
    )
}

/// Returns the repository.
#[must_use]
pub fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("the package lies in the repository")
        .to_owned()
}

fn built(name: &str, made_by: &str) -> PathBuf {
    existing(profile_dir().join(name), made_by)
}

fn existing(path: PathBuf, made_by: &str) -> PathBuf {
    assert!(
        path.exists(),
        "{} is not there; `{made_by}` makes it",
        path.display()
    );
    path
}
