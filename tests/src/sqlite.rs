//! Interference of another program with a SQLite database in use.

use nix::{
    fcntl::{FcntlArg, fcntl},
    libc,
};
use std::{fs::File, path::Path};

/// Blocks all other writers of this database until it is dropped: the lock of the one writer of a write-ahead log
/// (`WAL_WRITE_LOCK`, byte 120 of the shared memory file).
///
/// # Panics
/// If there is no such database in use.
#[must_use]
pub fn lock_writes(database: &Path) -> File {
    let shm = database.with_extension("db-shm");
    let file = File::options().read(true).write(true).open(shm);
    let file = file.expect("SQLite has made it");
    let lock = libc::flock {
        l_type: libc::F_WRLCK.try_into().expect("small"),
        l_whence: libc::SEEK_SET.try_into().expect("small"),
        l_start: 120,
        l_len: 1,
        l_pid: 0,
    };
    fcntl(&file, FcntlArg::F_SETLKW(&lock)).expect("locked");
    file
}
