//! Keys of this server: one for digests, and those made of it that seal what is stored.

pub(crate) mod digest;
pub(crate) mod seal;
