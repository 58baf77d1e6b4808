//! The secret of this installation, with which specs are digested and tokens of runs are made: 32 random bytes, made
//! once, in the data directory.

use kennel_linux::own_file;
use std::{
    fs::File,
    io::{self, Read as _},
    path::Path,
};

const FILE: &str = "digest-key";
const BYTES: usize = 32;

/// Returns the secret, which is made if there is none. Without the original one no repeated Spawn is recognised.
pub(crate) fn digest_key(data_dir: &Path) -> io::Result<[u8; BYTES]> {
    let path = data_dir.join(FILE);
    let Some(bytes) = own_file::none_if_absent(read(&path))? else {
        return make(data_dir, &path);
    };
    bytes.try_into().map_err(|_| {
        let what = format!("{} does not hold {BYTES} bytes", path.display());
        io::Error::new(io::ErrorKind::InvalidData, what)
    })
}

fn read(path: &Path) -> io::Result<Vec<u8>> {
    let opened = own_file::options().read(true).open(path);
    let mut bytes = Vec::new();
    opened
        .and_then(own_file::regular)?
        .take(BYTES as u64 + 1)
        .read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn make(data_dir: &Path, path: &Path) -> io::Result<[u8; BYTES]> {
    let mut key = [0; BYTES];
    File::open("/dev/urandom")?.read_exact(&mut key)?;
    // Whole or not at all: a key truncated by a crash would lock this installation out.
    own_file::replace(path, &key)?;
    File::open(data_dir)?.sync_all()?;
    Ok(key)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{fs, os::unix::fs::PermissionsExt as _};

    #[test]
    fn key_is_created_once_for_its_owner_only() -> io::Result<()> {
        let dir = tempfile::tempdir()?;
        let first = digest_key(dir.path())?;
        assert_eq!(digest_key(dir.path())?, first);
        assert_ne!(first, [0; BYTES]);
        let mode = fs::metadata(dir.path().join(FILE))?.permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert_eq!(fs::read_dir(dir.path())?.count(), 1, "nothing else is left");
        Ok(())
    }

    #[test]
    fn a_key_that_was_damaged_is_refused() -> io::Result<()> {
        let dir = tempfile::tempdir()?;
        fs::write(dir.path().join(FILE), b"short")?;
        let refused = digest_key(dir.path()).map_err(|error| error.kind());
        assert_eq!(refused, Err(io::ErrorKind::InvalidData));
        Ok(())
    }
}
