//! The pages of the repository, their links and promises, as the site and the house tests read them.

pub mod pages;
pub mod promises;

use std::path::{Path, PathBuf};

/// Returns the repository.
///
/// # Panics
/// Never: the package lies in it.
#[must_use]
pub fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .ancestors()
        .nth(2)
        .expect("the package lies in the repository")
        .to_owned()
}
