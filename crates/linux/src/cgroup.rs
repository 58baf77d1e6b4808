//! Control groups (v2): the place of Kennel's groups, one fresh directory per run, freeze and kill.

use crate::{kernel_file, own_file};
use kennel_lifecycle::{CgroupIdentity, NodeId, verdict::GroupEvidence};
use nix::{
    dir::{Dir, Type},
    errno::Errno,
    fcntl::{OFlag, openat},
    sys::stat::{Mode, fstat},
    unistd::{UnlinkatFlags, unlinkat},
};
use std::{
    ffi::{CStr, CString, OsStr},
    fs::{self, File},
    io::{self, Write},
    os::{
        fd::OwnedFd,
        unix::{ffi::OsStrExt, fs::MetadataExt},
    },
    path::{Path, PathBuf},
    sync::OnceLock,
};

/// Longest extended attribute that is read.
const ATTRIBUTE_BYTES_MAX: usize = 64;

/// Mount point of cgroup v2, and the group that the mount shows as its root.
struct Mount {
    point: PathBuf,
    root: PathBuf,
}

fn mount() -> Option<&'static Mount> {
    static MOUNT: OnceLock<Option<Mount>> = OnceLock::new();
    MOUNT.get_or_init(find_mount).as_ref()
}

/// Returns the directory of the topmost group that is mounted here.
pub fn mount_point() -> Option<&'static Path> {
    mount().map(|mount| mount.point.as_path())
}

/// `proc_pid_mountinfo(5)`: id, parent, device, root, point, options, optional fields, `-`, type, ...
fn find_mount() -> Option<Mount> {
    let text = fs::read_to_string("/proc/self/mountinfo").ok()?;
    text.lines().find_map(|line| {
        let (left, right) = line.split_once(" - ")?;
        if right.split(' ').next()? != "cgroup2" {
            return None;
        }
        let mut fields = left.split(' ').skip(3);
        Some(Mount {
            root: unescape(fields.next()?),
            point: unescape(fields.next()?),
        })
    })
}

/// Decodes space, tab, newline and backslash, which are written as three octal digits.
fn unescape(field: &str) -> PathBuf {
    let bytes = field.as_bytes();
    let mut plain = Vec::with_capacity(bytes.len());
    let mut i = 0;
    while i < bytes.len() {
        let octal = bytes.get(i + 1..i + 4).filter(|_| bytes[i] == b'\\');
        let value = octal.and_then(|o| u8::from_str_radix(std::str::from_utf8(o).ok()?, 8).ok());
        plain.push(value.unwrap_or(bytes[i]));
        i += if value.is_some() { 4 } else { 1 };
    }
    PathBuf::from(OsStr::from_bytes(&plain))
}

/// Returns the cgroup v2 directory of a process, as a path in this mount namespace.
pub fn path_of(pid: i32) -> Option<PathBuf> {
    read_path_of(pid).ok().flatten()
}

/// As [`path_of`], with the error. `None`: the process is in no group that this mount shows, or there is no such mount.
pub fn read_path_of(pid: i32) -> io::Result<Option<PathBuf>> {
    let Some(mount) = mount() else {
        return Ok(None);
    };
    let text = fs::read_to_string(format!("/proc/{pid}/cgroup"))?;
    let group = text.lines().find_map(|line| line.strip_prefix("0::"));
    let group = group.map(|group| group.strip_suffix(" (deleted)").unwrap_or(group));
    let below = group.and_then(|group| Path::new(group).strip_prefix(&mount.root).ok());
    // Joining an empty path would append a slash.
    Ok(below.map(|below| match below.components().next() {
        None => mount.point.clone(),
        Some(_) => mount.point.join(below),
    }))
}

/// Returns the identity of a directory, if the path is one.
pub fn identify(path: &Path) -> io::Result<CgroupIdentity> {
    Ok(CgroupIdentity {
        path: path
            .to_str()
            .ok_or(io::ErrorKind::InvalidFilename)?
            .to_owned(),
        inode: fs::metadata(path)?.ino(),
    })
}

/// Prefix of the directories of all keepers, before their node.
pub const BASE: &str = "kennel-";

/// Returns the prefix of the directories of a node's keepers, before the keeper's own name.
pub fn base_prefix(node: NodeId) -> String {
    format!("{BASE}{node}-")
}

/// Makes a fresh directory: one that exists is never used again (a killed one kills what is cloned into it).
pub fn create(path: &Path) -> io::Result<CgroupIdentity> {
    create_open(path).map(|(group, _)| group)
}

/// Creates a directory like [`create`] and returns it opened: its identity is that of the opened one.
pub fn create_open(path: &Path) -> io::Result<(CgroupIdentity, OwnedFd)> {
    let made = || -> io::Result<_> {
        let name = path.to_str().ok_or(io::ErrorKind::InvalidFilename)?;
        let flags = OFlag::O_DIRECTORY | OFlag::O_CLOEXEC | OFlag::O_RDONLY;
        let dir = nix::fcntl::open(path, flags, Mode::empty())?;
        let identity = CgroupIdentity {
            path: name.to_owned(),
            inode: fstat(&dir)?.st_ino,
        };
        Ok((identity, dir))
    };
    fs::create_dir(path)?;
    made().inspect_err(|_| {
        let _ = fs::remove_dir(path);
    })
}

/// Opens the very directory: `Ok(None)` when it has been removed, even if its path exists again.
pub fn open(group: &CgroupIdentity) -> io::Result<Option<OwnedFd>> {
    let flags = OFlag::O_DIRECTORY | OFlag::O_CLOEXEC | OFlag::O_RDONLY;
    match nix::fcntl::open(group.path.as_str(), flags, Mode::empty()) {
        Ok(dir) => Ok((fstat(&dir)?.st_ino == group.inode).then_some(dir)),
        Err(Errno::ENOENT | Errno::ENOTDIR) => Ok(None),
        Err(errno) => Err(errno.into()),
    }
}

/// Reads a control file of an opened directory; `Ok(None)` when the directory was removed or the file does not exist.
pub fn read_in(dir: &OwnedFd, file: &str) -> io::Result<Option<String>> {
    let opened = openat(dir, file, OFlag::O_RDONLY | OFlag::O_CLOEXEC, Mode::empty());
    let read = opened
        .map_err(io::Error::from)
        .and_then(|fd| text(kernel_file::read_record(File::from(fd))?));
    match read {
        Ok(text) => Ok(Some(text)),
        // The directory was removed between the two steps (ENODEV on read).
        Err(error) if matches!(error.raw_os_error(), Some(libc::ENODEV | libc::ENOENT)) => Ok(None),
        Err(error) => Err(error),
    }
}

fn text(bytes: Vec<u8>) -> io::Result<String> {
    String::from_utf8(bytes).map_err(|_| io::ErrorKind::InvalidData.into())
}

fn write(group: &CgroupIdentity, file: &str, value: &str) -> io::Result<()> {
    let Some(dir) = open(group)? else {
        return Err(io::ErrorKind::NotFound.into());
    };
    let opened = openat(
        &dir,
        file,
        OFlag::O_WRONLY | OFlag::O_CLOEXEC,
        Mode::empty(),
    );
    File::from(opened?).write_all(value.as_bytes())
}

fn event(dir: &OwnedFd, key: &str) -> io::Result<bool> {
    let events = read_in(dir, "cgroup.events")?.unwrap_or_default();
    let mut lines = events.lines();
    Ok(lines.any(|line| line.split_once(' ') == Some((key, "1"))))
}

/// Whether a living process is in the group or below it. A removed directory holds no process.
pub fn is_populated(group: &CgroupIdentity) -> io::Result<bool> {
    open(group)?.map_or(Ok(false), |dir| is_populated_in(&dir))
}

/// Whether a living process is in an opened group or below it.
pub fn is_populated_in(dir: &OwnedFd) -> io::Result<bool> {
    event(dir, "populated")
}

/// Returns the group's evidence on a tree; `None`: a process is in it.
pub fn evidence(group: &CgroupIdentity) -> Option<GroupEvidence> {
    match is_populated(group) {
        Ok(true) => None,
        Ok(false) => Some(GroupEvidence::Empty),
        Err(error) => Some(GroupEvidence::Unreadable(error.to_string())),
    }
}

/// Whether every task in the group is seen frozen.
pub fn is_frozen(group: &CgroupIdentity) -> io::Result<bool> {
    open(group)?.map_or(Ok(false), |dir| event(&dir, "frozen"))
}

/// Freezes or thaws the group.
pub fn freeze(group: &CgroupIdentity, on: bool) -> io::Result<()> {
    write(group, "cgroup.freeze", if on { "1" } else { "0" })
}

/// Moves a process into the group: slow (up to 20 ms), so only where clone3(2) cannot do it.
pub fn enter(group: &CgroupIdentity, pid: i32) -> io::Result<()> {
    write(group, "cgroup.procs", &pid.to_string())
}

/// Sends SIGKILL to all processes in the group and below it. Refused if this process is among them.
pub fn kill(group: &CgroupIdentity) -> io::Result<()> {
    let me = std::process::id().cast_signed();
    if path_of(me).is_some_and(|own| own.starts_with(&group.path)) {
        return Err(io::Error::other("this process is in the group"));
    }
    write(group, "cgroup.kill", "1")
}

/// Returns all processes in the group and below it; the kernel leaves zombies out.
pub fn members(group: &CgroupIdentity) -> Vec<i32> {
    let Ok(Some(top)) = open(group) else {
        return Vec::new();
    };
    let mut found = members_in(&top, c".");
    let read = |parent: &OwnedFd, name: &CStr| found.extend(members_in(parent, name));
    // A directory that is removed meanwhile has no members.
    let _ = visit_below(top, read);
    found
}

fn members_in(parent: &OwnedFd, name: &CStr) -> Vec<i32> {
    let dir = openat(parent, name, own_file::DIR_FLAGS, Mode::empty());
    let list = dir.and_then(|dir| {
        let flags = OFlag::O_RDONLY | OFlag::O_CLOEXEC;
        openat(&dir, "cgroup.procs", flags, Mode::empty())
    });
    let list = list.map_err(io::Error::from);
    let procs = list.and_then(|list| text(kernel_file::read_list(File::from(list))?));
    let procs = procs.unwrap_or_default();
    procs.lines().filter_map(|pid| pid.parse().ok()).collect()
}

/// Visits all directories below this one by their parent and name, each after those below it. Neither their paths nor
/// their levels have a bound: one of them is open at a time, as no process can move it.
fn visit_below(top: OwnedFd, mut visit: impl FnMut(&OwnedFd, &CStr)) -> nix::Result<()> {
    let mut levels = vec![names_in(&top)?];
    let mut dir = top;
    while let Some(names) = levels.last_mut() {
        if let Some(name) = names.last() {
            match openat(&dir, name.as_c_str(), own_file::DIR_FLAGS, Mode::empty()) {
                Ok(below) => {
                    levels.push(names_in(&below)?);
                    dir = below;
                }
                // The directory was removed.
                Err(_) => drop(names.pop()),
            }
            continue;
        }
        levels.pop();
        if let Some(name) = levels.last_mut().and_then(Vec::pop) {
            dir = openat(&dir, c"..", own_file::DIR_FLAGS, Mode::empty())?;
            visit(&dir, &name);
        }
    }
    Ok(())
}

/// Returns the names of the directories in this one.
fn names_in(dir: &OwnedFd) -> nix::Result<Vec<CString>> {
    let mut dir = Dir::openat(dir, ".", own_file::DIR_FLAGS, Mode::empty())?;
    let entries = dir.iter().flatten();
    let dirs = entries.filter(|entry| entry.file_type() == Some(Type::Directory));
    let names = dirs.map(|entry| entry.file_name().to_owned());
    Ok(names
        .filter(|name| name.as_c_str() != c"." && name.as_c_str() != c"..")
        .collect())
}

/// Returns the subdirectories of a directory.
pub fn directories(dir: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    entries
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
        .map(|entry| entry.path())
        .collect()
}

/// Removes the directory and those that its processes made below it. `false`: a process is still in it.
pub fn remove(group: &CgroupIdentity) -> bool {
    match open(group) {
        Ok(Some(_)) => remove_empty(Path::new(&group.path)),
        Ok(None) => true,
        Err(_) => false,
    }
}

/// Removes a directory with all below it, as far as they contain no process.
pub fn remove_empty(dir: &Path) -> bool {
    let remove = || match fs::remove_dir(dir) {
        Ok(()) => true,
        Err(error) => error.kind() == io::ErrorKind::NotFound,
    };
    // Hardly any command makes control groups, so they are searched only if the removal fails.
    if remove() {
        return true;
    }
    let below = nix::fcntl::open(dir, own_file::DIR_FLAGS, Mode::empty());
    // A group that cannot be removed keeps its parents.
    let _ = below.and_then(|below| {
        visit_below(below, |parent, name| {
            let _ = unlinkat(parent, name, UnlinkatFlags::RemoveDir);
        })
    });
    remove()
}

/// Returns an extended attribute of a directory, as far as it can be read.
pub fn attribute(dir: &Path, name: &CStr) -> Option<Vec<u8>> {
    let path = CString::new(dir.as_os_str().as_bytes()).ok()?;
    let mut value = [0u8; ATTRIBUTE_BYTES_MAX];
    let (room, len) = (value.as_mut_ptr().cast(), value.len());
    // SAFETY: both strings are NUL-terminated and outlive the call, which writes at most `len` bytes to `room`.
    let got = unsafe { libc::getxattr(path.as_ptr(), name.as_ptr(), room, len) };
    Some(value[..usize::try_from(got).ok()?].to_vec())
}

/// Whether a freeze was requested.
pub fn read_freeze(group: &CgroupIdentity) -> bool {
    let opened = open(group).ok().flatten();
    let text = opened.and_then(|dir| read_in(&dir, "cgroup.freeze").ok()?);
    text.is_some_and(|text| text.trim() == "1")
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::stat::mkdirat;

    /// Longer than a path may be.
    // promise: T-46
    #[test]
    fn nested_cgroups_are_read_and_removed() {
        let top = tempfile::tempdir().expect("a directory");
        let group = identify(top.path()).expect("it is there");
        let name = OsStr::from_bytes(&[b'g'; 200]);
        let mut dir = open(&group).expect("it opens").expect("it is there");
        for level in 1..=40 {
            for name in [OsStr::new("side"), name] {
                mkdirat(&dir, name, Mode::S_IRWXU).expect("a directory");
            }
            dir = openat(&dir, name, own_file::DIR_FLAGS, Mode::empty()).expect("it is there");
            let flags = OFlag::O_CREAT | OFlag::O_WRONLY;
            let list = openat(&dir, "cgroup.procs", flags, Mode::S_IRWXU).expect("a file");
            writeln!(File::from(list), "{level}").expect("written");
        }
        let mut found = members(&group);
        found.sort_unstable();
        assert_eq!(found, (1..=40).collect::<Vec<_>>());
        // An ordinary file blocks the removal, as a process would.
        assert!(!remove(&group));
        let remove_file = |parent: &OwnedFd, name: &CStr| {
            let list = [name.to_bytes(), b"/cgroup.procs"].concat();
            let _ = unlinkat(parent, list.as_slice(), UnlinkatFlags::NoRemoveDir);
        };
        let below = open(&group).expect("it opens").expect("it is there");
        visit_below(below, remove_file).expect("they are visited");
        assert!(remove(&group));
        assert!(!top.path().exists());
    }

    // promise: T-46
    #[test]
    fn unreadable_cgroup_is_not_reported_empty() {
        let dir = tempfile::tempdir().expect("a directory");
        let group = identify(dir.path()).expect("it is there");
        let events = dir.path().join("cgroup.events");
        fs::write(&events, "populated 1\nfrozen 0\n").expect("a file");
        assert_eq!(evidence(&group), None);
        fs::write(&events, "populated 0\nfrozen 0\n").expect("a file");
        assert_eq!(evidence(&group), Some(GroupEvidence::Empty));
        // Reading a directory fails with an error other than a removed group's.
        fs::remove_file(&events).expect("it goes");
        fs::create_dir(&events).expect("a directory");
        let unread = evidence(&group);
        assert!(
            matches!(unread, Some(GroupEvidence::Unreadable(_))),
            "{unread:?}"
        );
    }
}
