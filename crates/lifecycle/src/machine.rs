//! Stub.

/// One attempt to run one command.
#[derive(Debug)]
pub struct Machine;
