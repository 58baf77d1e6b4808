//! Control groups (v2): where ours are, one fresh directory per run, freeze and kill.

use std::{
    ffi::OsStr,
    fs,
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
    sync::OnceLock,
};

/// Where cgroup v2 is mounted, and which group the mount shows as its root.
struct Mount {
    point: PathBuf,
    root: PathBuf,
}

fn mount() -> Option<&'static Mount> {
    static MOUNT: OnceLock<Option<Mount>> = OnceLock::new();
    MOUNT.get_or_init(find_mount).as_ref()
}

/// proc_pid_mountinfo(5): id, parent, device, root, point, options, optional fields, `-`, type, ...
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

/// Space, tab, newline and backslash stand as three octal digits.
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

/// The cgroup v2 directory of a process, as a path in this mount namespace.
pub(crate) fn path_of(pid: i32) -> Option<PathBuf> {
    let mount = mount()?;
    let text = fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?;
    let group = text.lines().find_map(|line| line.strip_prefix("0::"))?;
    let group = group.strip_suffix(" (deleted)").unwrap_or(group);
    let below = Path::new(group).strip_prefix(&mount.root).ok()?;
    Some(mount.point.join(below))
}
