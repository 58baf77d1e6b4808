//! The data directory: made, locked, and given its node id once.

use super::KeeperError;
use kennel_lifecycle::{KeeperEpoch, NodeId};
use kennel_linux::{own_file, procfs};
use nix::unistd::geteuid;
use std::{
    fs::{self, DirBuilder, File, Metadata, Permissions, TryLockError},
    io::{self, Read, Seek, Write},
    os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt},
    path::Path,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

/// Time by which a lock may outlive its holder.
const DEAD_HOLDER_WAIT: Duration = Duration::from_secs(2);
/// Pause between two attempts.
const DEAD_HOLDER_LOOK: Duration = Duration::from_millis(5);

/// Mode of the directory.
const MODE: u32 = 0o700;
/// Names that this service makes in it, where no setting names another place.
const ENTRIES: [&str; 17] = [
    "lock",
    "node",
    "server.lock",
    "digest-key",
    "drain",
    "log",
    "kennel.db",
    "kennel.db-wal",
    "kennel.db-shm",
    "kennel.db-journal",
    "runs",
    "servers",
    "adoptable",
    "audit",
    "exits",
    "spare",
    "detached",
];
/// Makes the data directory, 0700, if it is missing. An existing one must belong to this user and be closed to all
/// others, and Kennel's files in it must belong to this user and be no symbolic links. Nothing in it is changed.
pub(super) fn create(dir: &Path) -> Result<(), KeeperError> {
    let fail = |source| data_dir_error(dir, source);
    let mut builder = DirBuilder::new();
    let made = builder.recursive(true).mode(MODE).create(dir);
    made.map_err(fail)?;
    check_dir(dir, &fs::metadata(dir).map_err(fail)?).map_err(fail)?;
    for name in ENTRIES {
        let path = dir.join(name);
        let found = own_file::none_if_absent(fs::symlink_metadata(&path));
        let checked = found.and_then(|found| found.as_ref().map_or(Ok(()), check_entry));
        checked.map_err(|error| data_dir_error(&path, error))?;
    }
    Ok(())
}

fn check_dir(dir: &Path, found: &Metadata) -> io::Result<()> {
    check_owner(found)?;
    let mode = found.mode() & 0o777;
    if mode & !MODE == 0 {
        return Ok(());
    }
    // An empty directory, such as a fresh volume, counts as made here.
    if fs::read_dir(dir)?.next().is_none() {
        return fs::set_permissions(dir, Permissions::from_mode(MODE));
    }
    Err(refused(format!(
        "its mode is {mode:04o}, which lets other users in, and must be {MODE:04o}: chmod {MODE:o} it if you trust what is in it"
    )))
}

fn check_entry(found: &Metadata) -> io::Result<()> {
    if found.file_type().is_symlink() {
        return Err(refused(
            "it is a symbolic link, which is not followed".to_owned(),
        ));
    }
    check_owner(found)
}

fn check_owner(found: &Metadata) -> io::Result<()> {
    let own = geteuid().as_raw();
    if found.uid() == own {
        return Ok(());
    }
    let owner = found.uid();
    Err(refused(format!(
        "it belongs to user {owner}, and this service is user {own}"
    )))
}

fn refused(why: String) -> io::Error {
    io::Error::new(io::ErrorKind::PermissionDenied, why)
}

/// Takes the lock. It is held for as long as the file is open; no child inherits it past its exec or first steps.
pub(super) fn lock(dir: &Path) -> Result<File, KeeperError> {
    let path = dir.join("lock");
    let mut options = own_file::options();
    options.read(true).write(true).create(true);
    let opened = options.open(&path).and_then(own_file::regular);
    let mut file = opened.map_err(|source| data_dir_error(&path, source))?;
    let give_up = Instant::now() + DEAD_HOLDER_WAIT;
    loop {
        match file.try_lock() {
            Ok(()) => break,
            Err(TryLockError::WouldBlock) => {
                let holder = read_holder(&mut file);
                // A keeper killed during fork leaves a newborn child that keeps the lock for a moment.
                if holder.is_none_or(is_alive) || Instant::now() >= give_up {
                    let dir = dir.to_owned();
                    return Err(KeeperError::LockBusy { dir, holder });
                }
                std::thread::sleep(DEAD_HOLDER_LOOK);
            }
            Err(TryLockError::Error(source)) => return Err(data_dir_error(&path, source)),
        }
    }
    let written = file
        .set_len(0)
        .and_then(|()| file.rewind())
        .and_then(|()| writeln!(file, "{}", std::process::id()));
    written.map_err(|source| data_dir_error(&path, source))?;
    Ok(file)
}

fn read_holder(file: &mut File) -> Option<i32> {
    let mut text = String::new();
    file.rewind().ok()?;
    file.read_to_string(&mut text).ok()?;
    text.trim().parse().ok()
}

fn is_alive(pid: i32) -> bool {
    procfs::stat(pid).is_ok_and(|stat| !stat.is_dead())
}

/// Traces of a server in the directory of a node that has its id.
const TRACES_OF_NODE: [&str; 2] = ["log", "runs"];

/// Returns the node's id, which is in `<data-dir>/node`; makes it if there is none.
pub fn node_id(dir: &Path) -> Result<NodeId, KeeperError> {
    let path = dir.join("node");
    let fail = |source| data_dir_error(&path, source);
    if let Some(text) = own_file::none_if_absent(own_file::read_to_string(&path)).map_err(fail)? {
        let unreadable = "it does not hold this node's name, a ULID";
        let parsed = text.trim().parse();
        return parsed.map_err(|_| fail(io::Error::new(io::ErrorKind::InvalidData, unreadable)));
    }
    if let Some(trace) = TRACES_OF_NODE
        .into_iter()
        .find(|name| dir.join(name).exists())
    {
        let lost = format!(
            "it is missing, and `{trace}` says that this directory was used before: under another name its runs would be \
             another node's. Put the node's name back, which table `nodes` of the store has, or use another directory"
        );
        return Err(fail(io::Error::new(io::ErrorKind::NotFound, lost)));
    }
    let node = NodeId::from_u128(new_ulid().map_err(fail)?);
    // link(2) never replaces a file: of two processes that make the id at once, both take the first one's.
    let temporary = dir.join(format!("node.{}", std::process::id()));
    // A process killed here may have left the temporary file.
    let _ = fs::remove_file(&temporary);
    let fresh = own_file::options()
        .write(true)
        .create_new(true)
        .open(&temporary);
    let written = fresh.and_then(|mut file| {
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

/// Makes an epoch for this keeper.
pub(super) fn new_epoch() -> io::Result<KeeperEpoch> {
    new_ulid().map(KeeperEpoch::from_u128)
}

/// Makes a ULID: 48 bits of milliseconds, 80 random bits.
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
    fn node_id_is_created_once() {
        let dir = tempfile::tempdir().expect("a directory");
        let first = node_id(dir.path()).expect("it is made");
        assert_eq!(node_id(dir.path()).expect("it is read"), first);
        let entries = fs::read_dir(dir.path()).expect("a listing").count();
        assert_eq!(entries, 1);
    }

    // promise: I-42
    #[test]
    fn used_directory_without_node_name_is_refused() {
        let dir = tempfile::tempdir().expect("a directory");
        fs::create_dir(dir.path().join("runs")).expect("a directory");
        for _ in 0..2 {
            let refused = node_id(dir.path()).expect_err("its name is lost");
            let why = refused.to_string();
            let cause = std::error::Error::source(&refused).map(ToString::to_string);
            let said = format!("{why}: {}", cause.unwrap_or_default());
            assert!(said.contains("used before"), "{said}");
        }
        assert!(!dir.path().join("node").exists());
    }

    #[test]
    fn busy_lock_error_names_its_holder() {
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
