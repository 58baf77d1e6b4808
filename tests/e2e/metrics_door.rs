//! The address of metrics: open to other hosts only on request.

use kennel_tests::{kennel::bare_command, must, programs, shell::text};

// promise: M-22
#[test]
fn public_metrics_address_needs_a_flag() {
    let scratch = must("a directory", tempfile::tempdir());
    let dir = scratch.path().join("data");
    let mut serve = bare_command(&programs::kennel());
    serve
        .args(["serve", "--metrics-listen", "0.0.0.0:0", "--data-dir"])
        .arg(&dir);
    let refused = serve.output().expect("it runs");
    assert_eq!(refused.status.code(), Some(2), "{}", text(&refused));
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(said.contains("--metrics-public"), "{said}");
    assert!(!dir.exists(), "nothing was made");
}
