//! The contract: the types that are generated from `proto/kennel/v1`, their JSON, the reasons of errors, and the size
//! limits of messages.
//!
//! Knows no server and no client: both build on it.

/// Level of the contract: it rises with each release that adds to `proto/`. `clients/rules.toml` has the same number.
pub const CONTRACT_LEVEL: u32 = 1;

pub mod access;
pub mod call;
pub mod fields;
pub mod json;
pub mod limits;
pub mod names;
pub mod pb;
pub mod reason;
