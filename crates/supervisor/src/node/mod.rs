//! The node as a whole: how a server starts, recovers and shuts down, and its periodic work.

pub(crate) mod adopt;
pub(crate) mod boot;
pub(crate) mod data_dir;
pub(crate) mod drain;
pub(crate) mod floors;
pub(crate) mod forget;
pub(crate) mod gauges;
pub(crate) mod history;
pub(crate) mod keeper_watch;
pub(crate) mod leak_check;
pub(crate) mod lease;
pub(crate) mod left_stops;
pub(crate) mod pending_ends;
pub(crate) mod recover;
pub(crate) mod retention;
pub(crate) mod stops;
pub(crate) mod takeover;

/// Most rows requested at once.
pub(crate) const ROWS_MAX: usize = 500;
