//! The spare copy of a run's row: what the run is, should the database lose the row while a keeper holds the run.
//!
//! It is left before anything else of a run is made, and removed after all else that goes: whatever has a copy is not
//! done with. All copies lie in one directory, so that a start finds these runs among any number of finished ones.

use crate::persisted_spec;
use kennel_lifecycle::RunId;
use kennel_linux::{own_file, rundir};
use kennel_store::NewRun;
use std::{
    fs::{self, DirBuilder},
    io::{self, Write},
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
};

fn room(data_dir: &Path) -> PathBuf {
    data_dir.join("unfinished")
}

fn path(data_dir: &Path, run: RunId) -> PathBuf {
    room(data_dir).join(run.to_string())
}

/// Leaves the copy, whole or not at all, readable by nobody else. A host that goes down takes the run with it, so it
/// need not be synced.
pub(crate) fn leave(data_dir: &Path, new: &NewRun) -> io::Result<()> {
    let place = path(data_dir, new.run);
    let half = place.with_extension("half");
    let written = open(&half)
        .or_else(|error| match error.kind() {
            io::ErrorKind::NotFound => make_room(data_dir).and_then(|()| open(&half)),
            _ => Err(error),
        })
        .and_then(|mut file| file.write_all(&new.spare()))
        .and_then(|()| fs::rename(&half, &place));
    written.inspect_err(|_| drop(fs::remove_file(&half)))
}

fn open(path: &Path) -> io::Result<fs::File> {
    let mut how = own_file::options();
    how.write(true).create(true).truncate(true);
    how.open(path)
}

fn make_room(data_dir: &Path) -> io::Result<()> {
    let mut how = DirBuilder::new();
    how.recursive(true).mode(0o700).create(room(data_dir))
}

/// Whether there is one: then something is left to do.
pub(crate) fn is_there(data_dir: &Path, run: RunId) -> bool {
    path(data_dir, run).exists()
}

/// What the run is; the error says why that cannot be told.
pub(crate) fn read(data_dir: &Path, run: RunId) -> Result<NewRun, String> {
    let bytes = fs::read(path(data_dir, run)).map_err(|e| e.to_string())?;
    NewRun::from_spare(&bytes)
}

/// The copy goes last, so that whoever comes after a crash finds what is left to do.
fn remove(data_dir: &Path, run: RunId) -> io::Result<()> {
    match fs::remove_file(path(data_dir, run)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        Ok(()) | Err(_) => Ok(()),
    }
}

/// Removes what a run that has ended, and whose end is told, needs no more.
pub(crate) fn tidy(data_dir: &Path, run: RunId) -> io::Result<()> {
    remove_needless(data_dir, run)?;
    remove(data_dir, run)
}

/// What the command was told of, and what another attempt would have been made of. The copy stays where the journal did
/// not take the end: the next start goes through it again.
pub(crate) fn remove_needless(data_dir: &Path, run: RunId) -> io::Result<()> {
    persisted_spec::remove(&rundir::path(data_dir, run))?;
    rundir::remove_tmp(data_dir, run)
}

/// Removes all of a run that leaves no trace.
pub(crate) fn forget(data_dir: &Path, run: RunId) -> io::Result<()> {
    rundir::remove(data_dir, run)?;
    remove(data_dir, run)
}

/// All runs that have a copy. What a crash has left of one that was being written is removed.
pub(crate) fn all(data_dir: &Path) -> io::Result<Vec<RunId>> {
    let entries = match fs::read_dir(room(data_dir)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let mut runs = Vec::new();
    for entry in entries {
        let path = entry?.path();
        let name = path.file_name().and_then(|name| name.to_str());
        match name.and_then(|name| name.parse().ok()) {
            Some(run) => runs.push(run),
            None if path.extension().is_some_and(|what| what == "half") => fs::remove_file(&path)?,
            // Nobody's that is known here.
            None => {}
        }
    }
    Ok(runs)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_copy_is_there_until_it_is_removed_and_half_a_one_never() {
        let data = tempfile::tempdir().unwrap();
        assert!(all(data.path()).unwrap().is_empty());
        let new = crate::tracker::tests::new_run();
        leave(data.path(), &new).unwrap();
        let place = path(data.path(), new.run);
        fs::write(place.with_extension("half"), b"{").unwrap();
        for (path, wanted) in [(place.clone(), 0o600), (room(data.path()), 0o700)] {
            let mode = fs::metadata(path).unwrap().permissions().mode();
            assert_eq!(mode & 0o777, wanted);
        }
        assert_eq!(all(data.path()).unwrap(), [new.run]);
        assert!(!place.with_extension("half").exists());
        assert_eq!(read(data.path(), new.run).unwrap().spec, new.spec);
        remove(data.path(), new.run).unwrap();
        remove(data.path(), new.run).unwrap();
        assert!(all(data.path()).unwrap().is_empty());
        assert!(read(data.path(), new.run).is_err());
    }

    #[test]
    fn a_copy_that_cannot_be_written_leaves_nothing() {
        let data = tempfile::tempdir().unwrap();
        let new = crate::tracker::tests::new_run();
        // A directory stands in its place: the rename fails.
        fs::create_dir_all(path(data.path(), new.run)).unwrap();
        assert!(leave(data.path(), &new).is_err());
        assert!(!path(data.path(), new.run).with_extension("half").exists());
    }
}
