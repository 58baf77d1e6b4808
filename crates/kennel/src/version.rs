//! Version and build of this binary.

/// The commit that it was built from; `unknown` outside a repository.
pub(crate) const COMMIT: &str = env!("KENNEL_COMMIT");
/// Its build: profile, target and compiler.
pub(crate) const BUILD: &str = env!("KENNEL_BUILD");

/// For `kennel --version`.
pub(crate) const LONG: &str = concat!(
    env!("CARGO_PKG_VERSION"),
    "\ncommit ",
    env!("KENNEL_COMMIT"),
    "\nbuild  ",
    env!("KENNEL_BUILD"),
);
