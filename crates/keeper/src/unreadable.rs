//! Files of runs that no decoder of this version reads. Each is moved to `<data-dir>/unreadable/<run>-<what>-<time>`: it
//! is neither taken for an absent one without a word, nor overwritten, and a version that reads it can be run again.

use crate::{
    held::Held,
    input_note, private_file, rundir,
    wire::{
        notes::{InitNote, OrphanNote, WireWill},
        strict,
    },
};
use kennel_lifecycle::{RunId, Timestamp};
use kennel_linux::{clock, own_file};
use serde::de::DeserializeOwned;
use std::{
    collections::BTreeSet,
    ffi::{CStr, OsStr},
    fs::{self, File, Permissions},
    io::{self, Read},
    os::unix::{ffi::OsStrExt, fs::PermissionsExt},
    path::{Path, PathBuf},
};

const DIR: &str = "unreadable";
/// Longest file that is read. No bound follows from a form: a record of a later version may be longer than ours.
pub(crate) const READ_BYTES_MAX: u64 = 2 * 1024 * 1024;
/// Most bytes of unreadable files that stay: the newest.
const BYTES_MAX: u64 = 64 * 1024 * 1024;

/// A file that exists and was not read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("cannot read {}: {why}", path.display())]
pub struct Unreadable {
    /// Path at which it was found, or is now.
    pub path: PathBuf,
    /// Size in bytes.
    pub bytes: u64,
    /// The reason, in plain words.
    pub why: String,
}

/// Reads a file of a run; `None`: it does not exist, or another kind of file is in its place. A file without a readable
/// content is moved away.
pub(crate) fn read<T: DeserializeOwned>(
    run_dir: &Path,
    name: &CStr,
) -> Result<Option<T>, Unreadable> {
    read_by(run_dir, name, decode)
}

/// Reads a file of a run by this decoder.
pub(crate) fn read_by<T>(
    run_dir: &Path,
    name: &CStr,
    decode: impl FnOnce(&[u8]) -> Result<T, String>,
) -> Result<Option<T>, Unreadable> {
    let unreadable = |bytes: u64, why: String| Unreadable {
        path: run_dir.join(OsStr::from_bytes(name.to_bytes())),
        bytes,
        why,
    };
    let found = own_file::none_if_absent(private_file::open_to_read(run_dir, name));
    let found = found.map_err(|error| unreadable(0, error.to_string()))?;
    let Some(file) = found.flatten() else {
        return Ok(None);
    };
    let content = content(&file).map_err(|error| unreadable(0, error.to_string()))?;
    decode(&content).map(Some).map_err(|why| {
        // A file that cannot be moved stays, and is found again.
        let _ = move_away(run_dir, name, &file);
        unreadable(file.metadata().map_or(0, |file| file.len()), why)
    })
}

/// Returns the whole content, or enough of it to show that it is too long.
fn content(file: &File) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    file.take(READ_BYTES_MAX + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

pub(crate) fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, String> {
    if bytes.len() as u64 > READ_BYTES_MAX {
        return Err(format!("it is longer than {READ_BYTES_MAX} bytes"));
    }
    strict::read(bytes).map_err(|error| error.to_string())
}

fn move_away(run_dir: &Path, name: &CStr, file: &File) -> io::Result<()> {
    let to = place(run_dir, name)?;
    file.set_permissions(Permissions::from_mode(0o600))?;
    fs::rename(run_dir.join(OsStr::from_bytes(name.to_bytes())), to)
}

/// Saves the bytes of a file that is about to be removed.
pub(crate) fn save(run_dir: &Path, name: &CStr, bytes: &[u8]) -> io::Result<()> {
    own_file::replace(&place(run_dir, name)?, bytes)
}

/// Returns a new path for an unreadable file of this name.
fn place(run_dir: &Path, name: &CStr) -> io::Result<PathBuf> {
    let run = run_dir.file_name().and_then(OsStr::to_str);
    let run = run.and_then(|run| run.parse::<RunId>().ok());
    let run = run.ok_or(io::ErrorKind::InvalidFilename)?;
    let dir = rundir::data_dir(run_dir)?.join(DIR);
    own_file::make_dir(&dir)?;
    let what = name.to_string_lossy();
    Ok(dir.join(format!("{run}-{what}-{}", clock::wall().0)))
}

/// Lists the files by time, the newest first, each with its name and size.
fn list(data_dir: &Path) -> Vec<(i64, String, u64)> {
    let entries = fs::read_dir(data_dir.join(DIR)).into_iter().flatten();
    let of = |entry: fs::DirEntry| {
        let name = entry.file_name().into_string().ok()?;
        let time = name.rsplit('-').next()?.parse().ok()?;
        Some((time, name, entry.metadata().ok()?.len()))
    };
    let mut files: Vec<_> = entries.flatten().filter_map(of).collect();
    files.sort_unstable_by(|one, other| other.cmp(one));
    files
}

/// Number of files that no decoder has read, and that were not removed with their runs.
pub fn count(data_dir: &Path) -> usize {
    list(data_dir).len()
}

/// Removes the oldest files beyond the bound, and those that `is_old` where their run has no directory any more: it had
/// no output that they could go with. Returns those of the others that are not `known`, the newest first, each with its
/// reason by this version: only these are read. All that stay are known from then on.
pub fn sweep(
    data_dir: &Path,
    known: &mut BTreeSet<PathBuf>,
    is_old: impl Fn(Timestamp) -> bool,
) -> Vec<Unreadable> {
    let (mut all, mut kept, mut found) = (0, BTreeSet::new(), Vec::new());
    for (time, name, bytes) in list(data_dir) {
        let path = data_dir.join(DIR).join(&name);
        all += bytes;
        let run = name.split('-').next().and_then(|run| run.parse().ok());
        let has_dir = run.is_none_or(|run| rundir::path(data_dir, run).exists());
        if all > BYTES_MAX || !has_dir && is_old(Timestamp(time)) {
            let _ = fs::remove_file(&path);
            continue;
        }
        let Some(what) = name.split('-').nth(1) else {
            continue;
        };
        if !known.contains(&path) {
            let why = reason(&path, what);
            let path = path.clone();
            found.push(Unreadable { path, bytes, why });
        }
        kept.insert(path);
    }
    *known = kept;
    found
}

/// Removes the files of a run.
pub(crate) fn purge(data_dir: &Path, run: RunId) {
    let run = run.to_string();
    for (_, name, _) in list(data_dir) {
        if name.starts_with(&run) {
            let _ = fs::remove_file(data_dir.join(DIR).join(name));
        }
    }
}

fn reason(path: &Path, what: &str) -> String {
    let file = own_file::options().read(true).open(path);
    let read = match file.and_then(|file| content(&file)) {
        Err(error) => Err(error.to_string()),
        Ok(bytes) => match what {
            "exit" => decode::<WireWill>(&bytes).map(drop),
            "held" => decode::<Held>(&bytes).map(drop),
            "init" => decode::<InitNote>(&bytes).map(drop),
            "orphan" => decode::<OrphanNote>(&bytes).map(drop),
            _ => input_note::decode(&bytes).map(drop),
        },
    };
    let other = || "another version could not read it".to_owned();
    read.err().unwrap_or_else(other)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(run_dir: &Path, bytes: &[u8]) {
        fs::write(run_dir.join("init"), bytes).expect("a file");
    }

    fn read_note(run_dir: &Path) -> Result<Option<u32>, Unreadable> {
        read::<u32>(run_dir, c"init")
    }

    // promise: A-23a
    #[test]
    fn unreadable_file_is_set_aside_until_run_removal() {
        let data = tempfile::tempdir().expect("a directory");
        let run = RunId::from_u128(7);
        let run_dir = rundir::create(data.path(), run).expect("it is made");
        assert_eq!(read_note(&run_dir), Ok(None));
        let bytes = vec![0xff; 300];
        write(&run_dir, &bytes);
        let found = read_note(&run_dir).expect_err("no decoder reads it");
        assert_eq!((found.bytes, &found.path), (300, &run_dir.join("init")));
        assert_eq!(read_note(&run_dir), Ok(None), "it is moved once");

        let too_long = vec![b' '; usize::try_from(READ_BYTES_MAX).expect("it fits") + 1];
        write(&run_dir, &too_long);
        let found = read_note(&run_dir).expect_err("it is too long");
        assert!(found.why.contains("longer than"), "{found}");

        write(&run_dir, br#"{"a":1,"a":2}"#);
        let found = read::<serde_json::Value>(&run_dir, c"init");
        let found = found.expect_err("two readers could read two values");
        assert!(found.why.contains("twice"), "{found}");

        let mut known = BTreeSet::new();
        let kept = sweep(data.path(), &mut known, |_| true);
        let again = sweep(data.path(), &mut known, |_| true);
        assert_eq!(again, [], "each is reported once");
        assert_eq!((kept.len(), count(data.path())), (3, 3));
        let one = kept.iter().find(|one| one.bytes == 300).expect("the first");
        let mode = fs::metadata(&one.path)
            .expect("metadata")
            .permissions()
            .mode();
        assert_eq!(mode & 0o777, 0o600);
        assert_eq!(fs::read(&one.path).expect("it is there"), bytes);
        assert!(!one.why.is_empty());

        purge(data.path(), RunId::from_u128(8));
        assert_eq!(count(data.path()), 3, "another run's");
        rundir::set_aside(data.path(), run).expect("it is removed");
        assert_eq!(count(data.path()), 0);
    }

    // promise: A-23
    #[test]
    fn newest_unreadable_files_stay_within_the_bound() {
        let data = tempfile::tempdir().expect("a directory");
        let dir = data.path().join(DIR);
        own_file::make_dir(&dir).expect("it is made");
        let run = RunId::from_u128(7);
        for time in 1..=3 {
            let file = File::create(dir.join(format!("{run}-exit-{time}"))).expect("a file");
            file.set_len(BYTES_MAX / 2).expect("a sparse one");
        }
        let kept: Vec<PathBuf> = sweep(data.path(), &mut BTreeSet::new(), |_| false)
            .into_iter()
            .map(|one| one.path)
            .collect();
        assert_eq!(
            kept,
            [3, 2].map(|time| dir.join(format!("{run}-exit-{time}")))
        );
        assert_eq!(count(data.path()), 2);
        // Without a run directory only age removes these files.
        let kept = sweep(data.path(), &mut BTreeSet::new(), |at| at < Timestamp(3));
        assert_eq!((kept.len(), count(data.path())), (1, 1));
    }

    #[test]
    fn unreadable_file_outside_run_directory_is_left() {
        let dir = tempfile::tempdir().expect("a directory");
        write(dir.path(), &[0xff; 9]);
        read_note(dir.path()).expect_err("no decoder reads it");
        assert!(dir.path().join("init").exists());
    }
}
