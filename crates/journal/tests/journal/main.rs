//! The journal from outside: real files, real readers.

#![expect(clippy::unwrap_used, reason = "a failure of the test itself")]

mod bound;
mod by_offset;
mod common;
mod damage;
mod late;
mod live;
mod recovery;
mod speed;
mod tail;
mod whole;
