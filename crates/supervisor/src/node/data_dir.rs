//! Puts mode and owner of the data directory back where another process has changed them: without them this server
//! cannot write, or other users can read.

use crate::{base::blocking::blocking, registry::Shared};
use std::{
    fs::{File, Metadata},
    io,
    os::unix::fs::{MetadataExt, fchown},
    path::Path,
    sync::Arc,
    time::Duration,
};

/// Interval between two checks.
const CHECK_EVERY: Duration = Duration::from_secs(1);

/// The open data directory, and its attributes at the start of this server, which its keeper has checked.
#[derive(Debug)]
struct DataDir {
    dir: File,
    before: Metadata,
}

impl DataDir {
    fn open(path: &Path) -> io::Result<Self> {
        let dir = File::from(kennel_linux::own_file::open_dir(path)?);
        let before = dir.metadata()?;
        Ok(Self { dir, before })
    }

    /// Puts the attributes back; returns those that were found, where they were others.
    fn put_back(&self) -> io::Result<Option<Metadata>> {
        let (found, before) = (self.dir.metadata()?, &self.before);
        let owner = |seen: &Metadata| (seen.uid(), seen.gid());
        if owner(&found) == owner(before) && found.mode() == before.mode() {
            return Ok(None);
        }
        if owner(&found) != owner(before) {
            fchown(&self.dir, Some(before.uid()), Some(before.gid()))?;
        }
        // `fchown` may have changed the mode.
        self.dir.set_permissions(before.permissions())?;
        Ok(Some(found))
    }
}

/// Checks the data directory for as long as this server serves.
pub(crate) async fn look_after(shared: Arc<Shared>) {
    let path = shared.config.data_dir.clone();
    let opened = blocking(move || DataDir::open(&path)).await;
    let dir = match opened.flatten() {
        Ok(dir) => Arc::new(dir),
        Err(error) => {
            tracing::error!(%error, "cannot open the data directory: its mode and owner are not checked");
            return;
        }
    };
    let mut has_failed = false;
    loop {
        let checked = Arc::clone(&dir);
        let checked = blocking(move || checked.put_back()).await;
        match checked.flatten() {
            Ok(None) => has_failed = false,
            Ok(Some(found)) => {
                has_failed = false;
                let (mode, uid) = (found.mode() & 0o7777, found.uid());
                tracing::warn!(
                    mode = format!("{mode:04o}"),
                    uid,
                    "mode or owner of the data directory was changed by another process, and was put back"
                );
                let detail = [("mode", format!("{mode:04o}")), ("uid", uid.to_string())];
                shared.trail.note("data_directory_put_back", detail);
            }
            Err(error) if !std::mem::replace(&mut has_failed, true) => {
                tracing::error!(%error, "cannot restore mode and owner of the data directory, retrying");
            }
            Err(_) => {}
        }
        tokio::select! {
            () = tokio::time::sleep(CHECK_EVERY) => {}
            () = shared.serving.until_leaving() => return,
            () = shared.serving.until_keeper_lost() => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{
        fs::{self, Permissions},
        os::unix::fs::{PermissionsExt, chown},
    };

    // promise: AC-23
    #[test]
    fn changed_mode_of_data_directory_is_restored() {
        let parent = tempfile::tempdir().expect("a directory");
        let path = parent.path().join("data");
        kennel_linux::own_file::make_dir(&path).expect("own directory");
        let dir = DataDir::open(&path).expect("it is there");
        assert!(dir.put_back().expect("it can be read").is_none());
        for mode in [0, 0o755, 0o1777] {
            fs::set_permissions(&path, Permissions::from_mode(mode)).expect("own directory");
            let found = dir.put_back().expect("it is put back").expect("it differs");
            assert_eq!(found.mode() & 0o7777, mode);
            let seen = fs::metadata(&path).expect("it is there");
            assert_eq!(seen.mode() & 0o7777, 0o700);
        }
        if kennel_linux::effective_uid() == 0 {
            chown(&path, Some(65534), Some(65534)).expect("root may give it away");
            dir.put_back().expect("it is put back").expect("it differs");
            let seen = fs::metadata(&path).expect("it is there");
            assert_eq!(
                (seen.uid(), seen.gid()),
                (dir.before.uid(), dir.before.gid())
            );
        }
        assert!(dir.put_back().expect("it can be read").is_none());
    }
}
