//! The database file by its name and its identity: a file that was removed or replaced under a live server still takes
//! writes, and no later server finds them.

use std::{
    fs, io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

/// The file that was opened.
#[derive(Clone, Debug)]
pub(super) struct OpenedFile {
    path: PathBuf,
    device: u64,
    inode: u64,
}

impl OpenedFile {
    /// Identifies the file of this name, which is open by now.
    pub(super) fn of(path: &Path) -> io::Result<Self> {
        let found = fs::metadata(path)?;
        Ok(Self {
            path: path.to_owned(),
            device: found.dev(),
            inode: found.ino(),
        })
    }

    /// Whether its name still leads to it; the error describes the present file.
    pub(super) fn check(&self) -> Result<(), String> {
        let path = self.path.display();
        match fs::metadata(&self.path) {
            Ok(found) if (found.dev(), found.ino()) == (self.device, self.inode) => Ok(()),
            Ok(_) => Err(format!(
                "the database {path} was replaced by another file while it was open"
            )),
            Err(error) => Err(format!(
                "the database {path} is open and cannot be found by its name: {error}"
            )),
        }
    }
}
