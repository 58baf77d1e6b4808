//! Mounts of a command in a sandbox: all read-only but its own places, and Kennel's private places covered. Planned by
//! the shim, made by the child after its clone.

use super::{CONFIGURATION, Rules};
use crate::attributes::PrivatePlaces;
use nix::errno::Errno;
use std::{
    ffi::{CStr, CString, OsStr},
    fs, io,
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
    sync::atomic::AtomicI32,
};

/// Entries of the file system that covers the data directory, which cover the other places.
pub(in crate::spawn) const EMPTY_DIR: &CStr = c"empty";
pub(in crate::spawn) const EMPTY_FILE: &CStr = c"none";

/// Mounts for one command.
#[derive(Debug)]
pub(in crate::spawn) struct Mounts {
    /// Places that stay as they are outside of the data directory.
    pub(in crate::spawn) writable: Vec<RestoredMount>,
    /// The data directory.
    pub(in crate::spawn) data_dir: CString,
    /// Directories and files to be made in its cover, as paths in it: mount points of the places below.
    pub(in crate::spawn) points: Vec<(CString, Kind)>,
    /// Places in the data directory that the command reaches.
    pub(in crate::spawn) own: Vec<RestoredMount>,
    /// Other places, to be covered.
    pub(in crate::spawn) covered: Vec<(CString, Kind)>,
}

/// Place that is put back over the read-only mounts.
#[derive(Debug)]
pub(in crate::spawn) struct RestoredMount {
    pub(in crate::spawn) path: CString,
    pub(in crate::spawn) is_writable: bool,
    /// Descriptor of its mount in the child, while it has no position; -1: the place is missing.
    pub(in crate::spawn) mount: AtomicI32,
}

/// Kind of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::spawn) enum Kind {
    Directory,
    File,
}

impl RestoredMount {
    fn new(path: &Path, is_writable: bool) -> io::Result<Self> {
        Ok(Self {
            path: c_path(path)?,
            is_writable,
            mount: AtomicI32::new(-1),
        })
    }
}

impl Mounts {
    /// Plans mounts that cover this data directory, and leave nothing as it is.
    pub(in crate::spawn) fn of(data_dir: &Path) -> io::Result<Self> {
        Ok(Self {
            writable: Vec::new(),
            data_dir: c_path(&data_dir.canonicalize()?)?,
            points: vec![
                (EMPTY_DIR.to_owned(), Kind::Directory),
                (EMPTY_FILE.to_owned(), Kind::File),
            ],
            own: Vec::new(),
            covered: Vec::new(),
        })
    }
}

/// Returns Kennel's private places without links and each once: those that exist, beside the data directory.
pub(in crate::spawn) fn closed(places: &PrivatePlaces, data_dir: &Path) -> Vec<PathBuf> {
    let named = places.closed.iter().map(Path::new);
    let paths = named.chain([Path::new(CONFIGURATION)]);
    let paths = paths.filter_map(|path| path.canonicalize().ok());
    outermost(paths.filter(|path| !path.starts_with(data_dir)).collect())
}

/// Removes the paths below others of the list.
fn outermost(mut paths: Vec<PathBuf>) -> Vec<PathBuf> {
    paths.sort();
    // Sorting puts a path right before the paths below it.
    paths.dedup_by(|path, before| path.starts_with(&*before));
    paths
}

/// Plans the mounts of a command that these rules open places to.
pub(in crate::spawn) fn mounts(
    places: &PrivatePlaces,
    rules: &Rules,
    data_dir: &Path,
    closed: &[PathBuf],
) -> io::Result<Mounts> {
    let run_dir = Path::new(&places.run_dir).canonicalize()?;
    let is_own = |path: &PathBuf| path.starts_with(data_dir);
    let writable = rules
        .writable()
        .map(PathBuf::from)
        .filter(|path| !is_own(path));
    let writable = outermost(writable.collect());
    let writable = writable.iter().map(|path| RestoredMount::new(path, true));
    let sockets = places.sockets.iter().map(Path::new);
    let sockets = sockets.filter_map(|path| path.canonicalize().ok());
    // Only a run with a token may reach Kennel's sockets.
    let may_call = run_dir.join("token").exists();
    let (reached, shut): (Vec<_>, Vec<_>) = sockets.partition(|_| may_call);
    let in_run_dir = [("tmp", true), ("token", false), ("notify", false)];
    let own = in_run_dir.map(|(name, is_writable)| (run_dir.join(name), is_writable));
    let own = own
        .into_iter()
        .chain(reached.into_iter().map(|path| (path, false)));
    let own = own.filter(|(path, _)| is_own(path) && path.exists());
    let mut mounts = Mounts::of(data_dir)?;
    for (path, is_writable) in own {
        points_to(&path, data_dir, &mut mounts.points)?;
        mounts.own.push(RestoredMount::new(&path, is_writable)?);
    }
    let covered = closed.iter().cloned().chain(shut);
    // A cover above the data directory would cover the run's own places.
    let covered = covered.filter(|path| !is_own(path) && !data_dir.starts_with(path));
    let covered = covered.map(|path| Ok((c_path(&path)?, kind(&path))));
    mounts.covered = covered.collect::<io::Result<_>>()?;
    mounts.writable = writable.collect::<io::Result<_>>()?;
    Ok(mounts)
}

/// Adds the mount point of a path below this directory, and the directories that lead to it.
fn points_to(path: &Path, dir: &Path, points: &mut Vec<(CString, Kind)>) -> io::Result<()> {
    let below = path.strip_prefix(dir).map_err(io::Error::other)?;
    let mut above: Vec<&Path> = below.ancestors().skip(1).collect();
    above.pop();
    for dir in above.into_iter().rev() {
        let point = (c_path(dir)?, Kind::Directory);
        if !points.contains(&point) {
            points.push(point);
        }
    }
    points.push((c_path(below)?, kind(path)));
    Ok(())
}

fn kind(path: &Path) -> Kind {
    match fs::metadata(path) {
        Ok(found) if found.is_dir() => Kind::Directory,
        Ok(_) | Err(_) => Kind::File,
    }
}

pub(in crate::spawn) fn c_path(path: &Path) -> io::Result<CString> {
    CString::new(path.as_os_str().as_bytes()).map_err(|_| Errno::EINVAL.into())
}

/// Returns the path of such a string.
pub(in crate::spawn) fn path_of(path: &CStr) -> &Path {
    Path::new(OsStr::from_bytes(path.to_bytes()))
}
