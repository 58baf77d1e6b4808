//! What callers take of this server, and the bounds of it: by owner, by run, and in total.

pub(crate) mod admission;
pub(crate) mod in_flight;
pub(crate) mod pace;
pub(crate) mod run_waits;
pub(crate) mod shares;
