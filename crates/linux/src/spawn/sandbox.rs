//! Access of a command in a sandbox, as rules of landlock(7). Made by the shim, applied by the child after its clone:
//! paths without a rule are closed.

pub(super) mod mounts;

use crate::attributes::PrivatePlaces;
use kennel_lifecycle::Sandbox;
use mounts::{Mounts, c_path, path_of};
use nix::errno::Errno;
use std::{
    ffi::CString,
    fs, io,
    path::{Path, PathBuf},
};

/// The oldest sufficient version: before it a file without write access could be truncated (Linux 6.2).
const ABI_MIN: libc::c_long = 3;
/// Devices have rights of their own from this version on (Linux 6.10).
const ABI_DEVICES: libc::c_long = 5;
/// Signals and abstract sockets are confined from this version on (Linux 6.12).
const ABI_SCOPES: libc::c_long = 6;

/// `LANDLOCK_CREATE_RULESET_VERSION`.
const ASK_VERSION: u32 = 1;

// Rights, by their names in linux/landlock.h.
const EXECUTE: u64 = 1;
const WRITE_FILE: u64 = 1 << 1;
const READ_FILE: u64 = 1 << 2;
const READ_DIR: u64 = 1 << 3;
const MAKE_REGULAR: u64 = 1 << 8;
const TRUNCATE: u64 = 1 << 14;
const IOCTL_DEV: u64 = 1 << 15;
/// All rights up to `TRUNCATE`: making, removing and renaming in directories too.
const ALL: u64 = (TRUNCATE << 1) - 1;
/// Rights to make a device.
const MAKE_DEVICES: u64 = 1 << 6 | 1 << 11;
const READ: u64 = EXECUTE | READ_FILE | READ_DIR;
const WRITE: u64 = (ALL & !MAKE_DEVICES) | IOCTL_DEV;
const DEVICE: u64 = READ_FILE | WRITE_FILE | READ_DIR | TRUNCATE | IOCTL_DEV;
/// Rights that apply to non-directories.
pub(super) const OF_FILES: u64 = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE | IOCTL_DEV;
/// `LANDLOCK_SCOPE_ABSTRACT_UNIX_SOCKET` and `LANDLOCK_SCOPE_SIGNAL`.
const SCOPES: u64 = 1 | 2;

/// Directory of devices.
const DEVICES_DIR: &str = "/dev";

/// Paths that every command may read and execute.
const SYSTEM: [&str; 14] = [
    "/usr",
    "/bin",
    "/sbin",
    "/lib",
    "/lib32",
    "/lib64",
    "/libx32",
    "/etc",
    "/opt",
    "/nix",
    "/proc",
    "/sys",
    "/var/cache/fontconfig",
    "/run/systemd/resolve",
];
/// Devices that it may use.
const DEVICES: [&str; 8] = [
    "/dev/null",
    "/dev/zero",
    "/dev/full",
    "/dev/random",
    "/dev/urandom",
    "/dev/tty",
    "/dev/ptmx",
    "/dev/pts",
];
/// Directories that it may write beside its own.
const SCRATCH: [&str; 3] = ["/tmp", "/var/tmp", "/dev/shm"];
/// Kennel's own configuration.
pub(super) const CONFIGURATION: &str = "/etc/kennel";
/// Most directory entries opened around closed paths.
const ENTRIES_MAX: usize = 4096;

/// The sandbox capabilities of this kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Support {
    /// Whether files can be closed; an error gives the reason.
    pub files: Result<(), String>,
    /// Whether signals and abstract sockets can be confined too.
    pub processes: Result<(), String>,
}

/// Asks the kernel.
pub fn support() -> Support {
    let has = |least: libc::c_long, what: &str| match version() {
        Ok(version) if version >= least => Ok(()),
        Ok(version) => Err(format!(
            "this kernel has version {version} of Landlock: {what} need {least}"
        )),
        Err(error) => Err(format!("landlock_create_ruleset: {error}")),
    };
    Support {
        files: has(ABI_MIN, "files"),
        processes: has(ABI_SCOPES, "signals and abstract sockets"),
    }
}

fn version() -> io::Result<libc::c_long> {
    let none = std::ptr::null::<libc::c_void>();
    // SAFETY: with this flag the call takes no attributes and returns a number.
    let version =
        unsafe { libc::syscall(libc::SYS_landlock_create_ruleset, none, 0usize, ASK_VERSION) };
    Ok(Errno::result(version)?)
}

/// Rules for one command.
#[derive(Debug)]
pub(super) struct Rules {
    /// The kernel's `landlock_ruleset_attr`: rights that are closed where no rule opens them, none of networks, scopes.
    pub(super) attributes: [u64; 3],
    /// Number of its bytes that this kernel knows.
    pub(super) attributes_len: usize,
    /// Paths without links, and the rights to each and all below. A path that is missing, or has become a link, is left
    /// out.
    pub(super) rights: Vec<(CString, u64)>,
}

impl Rules {
    /// Returns the places in which the command may make files, and the files among them.
    pub(super) fn writable(&self) -> impl Iterator<Item = &Path> {
        let written = self
            .rights
            .iter()
            .filter(|(_, rights)| rights & MAKE_REGULAR != 0);
        written.map(|(path, _)| path_of(path))
    }
}

/// Kennel's private paths.
struct Closed {
    paths: Vec<PathBuf>,
}

/// Returns the rules of a run whose command has this working directory, and its mounts where it can have any.
pub(super) fn rules(
    sandbox: &Sandbox,
    places: &PrivatePlaces,
    cwd: &Path,
) -> io::Result<(Rules, Option<Mounts>)> {
    let run_dir = Path::new(&places.run_dir);
    let data_dir = run_dir.ancestors().nth(2).unwrap_or(run_dir);
    let data_dir = data_dir.canonicalize()?;
    let closed = mounts::closed(places, &data_dir);
    let rules = landlock(sandbox, (run_dir, &data_dir, &closed), cwd)?;
    let mounts = places.has_mounts;
    let mounts = mounts.then(|| mounts::mounts(places, &rules, &data_dir, &closed));
    Ok((rules, mounts.transpose()?))
}

/// Returns the rules where these are Kennel's places: the run's directory, the data directory, and others.
fn landlock(
    sandbox: &Sandbox,
    (run_dir, data_dir, private): (&Path, &Path, &[PathBuf]),
    cwd: &Path,
) -> io::Result<Rules> {
    let version = version()?;
    let is_scoped = version >= ABI_SCOPES;
    let devices = if version >= ABI_DEVICES { IOCTL_DEV } else { 0 };
    let handled = ALL | devices;
    let private = private.iter().map(PathBuf::as_path).chain([data_dir]);
    let closed = Closed {
        paths: private.map(Path::to_owned).collect(),
    };
    let but_devices = Closed {
        paths: closed
            .paths
            .iter()
            .cloned()
            .chain([DEVICES_DIR.into()])
            .collect(),
    };
    let mut rights = Vec::new();
    let mut open =
        |path: &Path, access: u64| closed.open_around(path, access & handled, &mut rights);
    for path in SYSTEM {
        open(Path::new(path), READ)?;
    }
    for path in DEVICES {
        open(Path::new(path), DEVICE)?;
    }
    open(Path::new(DEVICES_DIR), READ_DIR)?;
    for path in SCRATCH {
        open(Path::new(path), WRITE)?;
    }
    let readable = sandbox.readable_paths.iter().map(Path::new);
    let writable = sandbox.writable_paths.iter().map(Path::new);
    let cwd = Some(cwd).filter(|cwd| *cwd != Path::new("/"));
    let readable = readable.map(|path| (path, READ));
    let writable = writable.chain(cwd).map(|path| (path, WRITE));
    // The command of an earlier attempt, or of the parent, may have put a link there: links are skipped. A missing
    // directory makes the start fail later, with its path.
    let rules = readable.chain(writable);
    for (path, access) in rules.filter(|(path, _)| is_direct(path) == Some(true)) {
        // A disk device contains all files of the host: only a rule for its own path opens it.
        let closed = if path.starts_with(DEVICES_DIR) {
            &closed
        } else {
            &but_devices
        };
        closed.open_below(path, access & handled, &mut rights)?;
    }
    // Only these entries below the data directory are the command's; `token` exists if the spec grants one.
    for (own, access) in [("tmp", WRITE), ("token", READ_FILE)] {
        if let Ok(own) = run_dir.join(own).canonicalize() {
            rights.push((c_path(&own)?, access & handled));
        }
    }
    let attributes = [handled, 0, if is_scoped { SCOPES } else { 0 }];
    Ok(Rules {
        attributes,
        attributes_len: if is_scoped { 24 } else { 8 },
        rights,
    })
}

/// Returns the first path of a sandbox, its working directory among them, that leads elsewhere: by a symbolic link or `..`.
pub(super) fn indirect<'a>(sandbox: &'a Sandbox, cwd: &'a Path) -> Option<&'a Path> {
    let paths = sandbox.readable_paths.iter().chain(&sandbox.writable_paths);
    let mut paths = paths.map(Path::new).chain([cwd]);
    paths.find(|path| is_direct(path) == Some(false))
}

/// Whether a path leads to its own place, over no link and no `..`; absent: there is none.
fn is_direct(path: &Path) -> Option<bool> {
    path.canonicalize().ok().map(|real| real == path)
}

impl Closed {
    /// Opens what is below `path` and not closed: entry by entry, where a closed path lies below.
    fn open_around(
        &self,
        path: &Path,
        access: u64,
        rights: &mut Vec<(CString, u64)>,
    ) -> io::Result<()> {
        // A path that is missing, or closed to this user, cannot be reached anyway.
        let Ok(path) = path.canonicalize() else {
            return Ok(());
        };
        self.open_below(&path, access, rights)
    }

    fn open_below(
        &self,
        path: &Path,
        access: u64,
        rights: &mut Vec<(CString, u64)>,
    ) -> io::Result<()> {
        if self.paths.iter().any(|closed| path.starts_with(closed)) {
            return Ok(());
        }
        if !self.paths.iter().any(|closed| closed.starts_with(path)) {
            rights.push((c_path(path)?, access));
            return Ok(());
        }
        let Ok(entries) = fs::read_dir(path) else {
            return Ok(());
        };
        for entry in entries.flatten() {
            if rights.len() >= ENTRIES_MAX {
                return Err(Errno::E2BIG.into());
            }
            // A link may lead to a closed path.
            let is_link = entry.file_type().is_ok_and(|kind| kind.is_symlink());
            if !is_link {
                self.open_below(&entry.path(), access, rights)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(sandbox: &Sandbox, run: &Path, cwd: &Path) -> io::Result<Rules> {
        let places = PrivatePlaces {
            run_dir: run.display().to_string(),
            ..PrivatePlaces::default()
        };
        Ok(super::rules(sandbox, &places, cwd)?.0)
    }

    fn opened(rules: &Rules, path: &Path) -> Option<u64> {
        let found = rules
            .rights
            .iter()
            .find(|(open, _)| path.starts_with(path_of(open)));
        found.map(|(_, rights)| *rights)
    }

    // promise: AC-17
    #[test]
    fn data_directory_is_hidden_below_writable_paths() {
        let dir = tempfile::tempdir().expect("a directory");
        let root = dir.path().canonicalize().expect("it is there");
        let data = root.join("work/data");
        let run = data.join("runs/one");
        for made in ["work/data/runs/one/tmp", "work/data/runs/two", "work/other"] {
            fs::create_dir_all(root.join(made)).expect("own directory");
        }
        std::os::unix::fs::symlink(&data, root.join("work/link")).expect("own directory");
        let sandbox = Sandbox {
            writable_paths: vec![data.join("runs").display().to_string()],
            ..Sandbox::default()
        };
        let rules = rules(&sandbox, &run, &root.join("work")).expect("a kernel with Landlock");
        assert_eq!(opened(&rules, &data.join("kennel.db")), None);
        assert_eq!(opened(&rules, &data.join("runs/two/stdout")), None);
        assert_eq!(opened(&rules, &root.join("work/link")), None);
        let own = opened(&rules, &run.join("tmp/file")).expect("its own");
        assert_ne!(own & WRITE_FILE, 0);
        let other = opened(&rules, &root.join("work/other")).expect("below its directory");
        assert_ne!(other & WRITE_FILE, 0);
        let system = opened(&rules, Path::new("/usr/bin/env")).expect("the system");
        assert_eq!(system & (WRITE_FILE | TRUNCATE), 0);
    }

    // promise: AC-17
    #[test]
    fn writable_root_excludes_block_devices() {
        let dir = tempfile::tempdir().expect("a directory");
        let run = dir.path().join("data/runs/one");
        fs::create_dir_all(&run).expect("own directory");
        let everything = Sandbox {
            writable_paths: vec!["/".into()],
            ..Sandbox::default()
        };
        let written = |rules: &Rules, path: &str| {
            let rights = opened(rules, Path::new(path));
            rights.is_some_and(|rights| rights & WRITE_FILE != 0)
        };
        let all = rules(&everything, &run, dir.path()).expect("a kernel with Landlock");
        assert!(written(&all, "/srv/file") && !written(&all, "/dev/sda"));
        // A working directory that is `/` under another name is not writable.
        let none = rules(&Sandbox::default(), &run, Path::new("/usr/..")).expect("rules");
        assert!(!written(&none, "/srv/file"));
        let own = Sandbox {
            readable_paths: vec!["/dev/net".into()],
            ..Sandbox::default()
        };
        rules(&own, &run, Path::new("/")).expect("rules");
    }
}
