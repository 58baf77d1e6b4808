//! Calls and reads: client requests, answered from the tracker or the store.

pub(crate) mod calls;
pub(crate) mod reads;
pub(crate) mod upgrade;
