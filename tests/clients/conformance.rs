//! The conformance suite of clients/: each package, built and installed, against the real binary under faults.

use super::CLIENT_PATIENCE;
use kennel_tests::{
    programs::{kennel, repository, tools},
    shell::{run_to_end, text},
};
use std::{
    path::{Path, PathBuf},
    process::{Command, Output},
    time::Duration,
};

/// One column takes four minutes on two processors.
const COLUMN_PATIENCE: Duration = Duration::from_mins(20);

/// Returns the Python that builds and checks packages, as made by `.ci/tools`.
fn tool_python() -> PathBuf {
    let python = tools().join("clients-python/bin/python");
    assert!(python.exists(), "`make tools` makes {}", python.display());
    python
}

/// Builds the wheel into a directory.
pub(crate) async fn pack_python(packages: &Path) {
    let mut pack = Command::new(repository().join("clients/python/pack"));
    pack.arg(packages).env("PYTHON", tool_python());
    succeeds(pack).await;
}

/// Runs a program to its end, which must be a success.
pub(crate) async fn succeeds(command: Command) -> Output {
    let what = format!("{command:?}");
    let done = run_to_end(command, COLUMN_PATIENCE).await;
    let errors = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{what}\n{}\n{errors}", text(&done));
    done
}

/// Builds the wheel, installs it and what its tests need into an environment of its own, and returns its Python.
async fn installed_python(scratch: &Path) -> PathBuf {
    let packages = scratch.join("packages");
    pack_python(&packages).await;
    let venv = scratch.join("venv");
    let mut make = Command::new("python3");
    make.args(["-m", "venv"]).arg(&venv);
    succeeds(make).await;
    let python = venv.join("bin/python");
    let mut install = Command::new(&python);
    install
        .args([
            "-m",
            "pip",
            "install",
            "--quiet",
            "--disable-pip-version-check",
        ])
        .arg("--find-links")
        .arg(&packages)
        .args([
            "kennel-client",
            "pytest==9.2.0",
            "opentelemetry-sdk==1.45.2",
        ])
        .env("PIP_CACHE_DIR", tools().join("cache/pip"));
    succeeds(install).await;
    python
}

/// Plays all cases through a driver. A red cell fails the test, with the table.
pub(crate) async fn play(driver: &str) {
    let mut suite = Command::new(tool_python());
    suite
        .arg(repository().join("clients/conformance/run"))
        .arg("--binary")
        .arg(kennel())
        .args(["--driver", driver]);
    println!("{}", text(&succeeds(suite).await));
}

// promise: O-47
#[tokio::test(flavor = "multi_thread")]
#[ignore = "a quarter of an hour: `make conformance` runs it"]
async fn python_package_conforms_under_faults() {
    let scratch = tempfile::tempdir().expect("a directory");
    let python = installed_python(scratch.path()).await;
    let program = repository().join("clients/python/driver/driver.py");
    for form in ["aio", "sync"] {
        play(&format!(
            "{} {} {form}",
            python.display(),
            program.display()
        ))
        .await;
    }
}

// promise: O-47
#[tokio::test(flavor = "multi_thread")]
async fn python_package_passes_own_tests() {
    let scratch = tempfile::tempdir().expect("a directory");
    let python = installed_python(scratch.path()).await;
    let mut tests = Command::new(&python);
    tests
        .args(["-m", "pytest", "-q", "-p", "no:cacheprovider"])
        .arg(repository().join("clients/python/tests"))
        .env("KENNEL_BINARY", kennel())
        .env("KENNEL_REPOSITORY", repository());
    println!("{}", text(&succeeds(tests).await));
}

/// Types are checked in the installed package, as a user's checker finds it.
// promise: O-47
#[tokio::test(flavor = "multi_thread")]
async fn python_package_passes_linter_and_type_checkers() {
    let mut check = Command::new(repository().join("clients/python/check"));
    check.env("PYTHON", tool_python());
    let done = run_to_end(check, CLIENT_PATIENCE * 3).await;
    let errors = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{}\n{errors}", text(&done));
}
