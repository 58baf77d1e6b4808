//! Files of the audit log: `audit/<seq of the first line>.jsonl`.

use kennel_linux::own_file;
use std::{
    fs, io,
    path::{Path, PathBuf},
    time::Duration,
};

/// Directory name below the data directory.
pub(super) const DIR: &str = "audit";
/// Size at which the next file is begun.
pub(super) const FILE_BYTES_MAX: u64 = 4 * 1024 * 1024;
/// Most files.
pub(super) const FILES_MAX: usize = 16;
/// Time for which a file is retained after its last line.
pub(super) const AGE_MAX: Duration = Duration::from_hours(90 * 24);

const SUFFIX: &str = ".jsonl";

/// Lists the existing files, by rising seq of their first lines.
pub(super) fn list(dir: &Path) -> io::Result<Vec<u64>> {
    let Some(entries) = own_file::none_if_absent(fs::read_dir(dir))? else {
        return Ok(Vec::new());
    };
    let names = entries.flatten().filter_map(|entry| {
        let name = entry.file_name();
        name.to_str()?.strip_suffix(SUFFIX)?.parse().ok()
    });
    let mut firsts: Vec<u64> = names.collect();
    firsts.sort_unstable();
    Ok(firsts)
}

/// Path of the file that begins with this line.
pub(super) fn path(dir: &Path, first: u64) -> PathBuf {
    dir.join(format!("{first:020}{SUFFIX}"))
}
