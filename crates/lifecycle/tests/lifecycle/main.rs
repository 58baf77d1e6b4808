//! The core from outside: values in, values out.

#![expect(clippy::unwrap_used, reason = "a failure of the test itself")]

mod adopted;
mod audit;
mod backoff;
mod certificate;
mod countdown;
mod entries;
mod facets;
mod holes;
mod id;
mod input_ledger;
mod labels;
mod ladder;
mod memory;
mod names;
mod properties;
mod recorded_spec;
mod recovery;
mod restart;
mod samples;
mod signal;
mod spec;
mod stories;
mod stuck;
mod table;
mod verdict;
mod world;
