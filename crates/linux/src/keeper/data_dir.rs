//! The data directory: made, locked, and named once.

use super::KeeperError;
use kennel_lifecycle::{KeeperEpoch, NodeId};
use std::{
    fs::{self, DirBuilder, File, OpenOptions, TryLockError},
    io::{self, Read, Write},
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::Path,
    time::{SystemTime, UNIX_EPOCH},
};

/// Makes the data directory, 0700, if it is missing.
pub(super) fn create(dir: &Path) -> Result<(), KeeperError> {
    let mut builder = DirBuilder::new();
    let made = builder.recursive(true).mode(0o700).create(dir);
    made.map_err(|source| data_dir_error(dir, source))
}

/// Takes the lock. It is held for as long as the file is open; no child inherits it past its exec or first steps.
pub(super) fn lock(dir: &Path) -> Result<File, KeeperError> {
    let path = dir.join("lock");
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).mode(0o600);
    let mut file = options
        .open(&path)
        .map_err(|source| data_dir_error(&path, source))?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            let mut text = String::new();
            let holder = file
                .read_to_string(&mut text)
                .ok()
                .and_then(|_| text.trim().parse().ok());
            return Err(KeeperError::LockBusy {
                dir: dir.to_owned(),
                holder,
            });
        }
        Err(TryLockError::Error(source)) => return Err(data_dir_error(&path, source)),
    }
    let written = file
        .set_len(0)
        .and_then(|()| writeln!(file, "{}", std::process::id()));
    written.map_err(|source| data_dir_error(&path, source))?;
    Ok(file)
}

/// The node's name, which is in `<data-dir>/node`; made if there is none.
pub fn node_id(dir: &Path) -> Result<NodeId, KeeperError> {
    let path = dir.join("node");
    let fail = |source| data_dir_error(&path, source);
    match fs::read_to_string(&path) {
        Ok(text) => {
            let parsed = text.trim().parse();
            return parsed.map_err(|error| fail(io::Error::new(io::ErrorKind::InvalidData, error)));
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(source) => return Err(fail(source)),
    }
    let node = NodeId::from_u128(new_ulid().map_err(fail)?);
    // A link never replaces: of two that make the name at once, both take the first one's.
    let temporary = dir.join(format!("node.{}", std::process::id()));
    let written = File::create(&temporary).and_then(|mut file| {
        writeln!(file, "{node}")?;
        file.sync_all()
    });
    let linked = written.and_then(|()| fs::hard_link(&temporary, &path));
    let _ = fs::remove_file(&temporary);
    match linked {
        Ok(()) => {
            let synced = File::open(dir).and_then(|dir| dir.sync_all());
            synced.map_err(fail)?;
            Ok(node)
        }
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => node_id(dir),
        Err(source) => Err(fail(source)),
    }
}

/// A name for this keeper.
pub(super) fn new_epoch() -> io::Result<KeeperEpoch> {
    new_ulid().map(KeeperEpoch::from_u128)
}

/// 48 bits of milliseconds, 80 random bits.
fn new_ulid() -> io::Result<u128> {
    let mut random = [0u8; 16];
    File::open("/dev/urandom")?.read_exact(&mut random[6..])?;
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    Ok((since.as_millis() << 80) | u128::from_be_bytes(random))
}

fn data_dir_error(path: &Path, source: io::Error) -> KeeperError {
    KeeperError::DataDir {
        path: path.to_owned(),
        source,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_node_keeps_its_name() {
        let dir = tempfile::tempdir().expect("a directory");
        let first = node_id(dir.path()).expect("it is made");
        assert_eq!(node_id(dir.path()).expect("it is read"), first);
        let entries = fs::read_dir(dir.path()).expect("a listing").count();
        assert_eq!(entries, 1);
    }

    #[test]
    fn a_second_keeper_is_told_who_holds_the_lock() {
        let dir = tempfile::tempdir().expect("a directory");
        let held = lock(dir.path()).expect("it is free");
        let refused = lock(dir.path());
        let me = i32::try_from(std::process::id()).ok();
        assert!(
            matches!(&refused, Err(KeeperError::LockBusy { holder, .. }) if *holder == me),
            "{refused:?}"
        );
        drop(held);
        lock(dir.path()).expect("it is free again");
    }
}
