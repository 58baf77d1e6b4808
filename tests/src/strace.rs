//! The system calls of a serving Kennel, as strace(1) sees them.

use crate::Kennel;
use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};
use tempfile::TempDir;

/// Calls that make a directory.
const MAKING: [&str; 2] = ["mkdir", "mkdirat"];
/// Calls that open a file, and create it on request.
const OPENING: [&str; 4] = ["open", "openat", "openat2", "creat"];
/// Calls that remove a file or a directory.
const REMOVING: [&str; 3] = ["unlink", "unlinkat", "rmdir"];
/// Calls that wait for the disk.
const SYNCING: [&str; 4] = ["fsync", "fdatasync", "sync_file_range", "msync"];

/// Process that made a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    /// `kennel serve`.
    Keeper,
    /// The API server, all its threads.
    Server,
    /// A shim, from its fork on.
    Shim,
    /// A command, from its fork on.
    Command,
}

/// A strace that is attached to keeper, zygote, server and warm shims, and follows what they fork.
pub struct Strace {
    out: TempDir,
    tracer: Child,
    known: BTreeMap<i32, Role>,
}

/// One system call that has returned.
#[derive(Clone, Debug)]
pub struct Call {
    /// Process that made it.
    pub role: Role,
    /// The line of strace: name, arguments, result; descriptors with their paths.
    pub line: String,
}

/// The changes that calls have made below a directory.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// Files and directories that were made.
    pub made: Vec<PathBuf>,
    /// Files and directories that were removed.
    pub removed: Vec<PathBuf>,
    /// Files and directories that got another name.
    pub renamed: Vec<PathBuf>,
}

impl Strace {
    /// Attaches to all serving processes. The error gives the reason why that is impossible: no strace here, or no
    /// right to trace.
    pub fn attach(kennel: &Kennel) -> Result<Self, String> {
        let server = kennel.server().ok_or("there is no server")?;
        let mut known = BTreeMap::from([(kennel.keeper_pid(), Role::Keeper)]);
        known.extend(kennel.zygote().map(|zygote| (zygote.pid, Role::Keeper)));
        known.extend(kennel.shims().iter().map(|shim| (shim.pid, Role::Shim)));
        let attached: Vec<i32> = known.keys().copied().chain([server.pid]).collect();
        known.extend(threads(server.pid).map(|thread| (thread, Role::Server)));
        let out = tempfile::tempdir().map_err(|error| error.to_string())?;
        let mut strace = Command::new("strace");
        strace.args(["-ff", "-y", "-s", "16", "-o"]);
        strace.arg(out.path().join("calls"));
        for pid in &attached {
            strace.args(["-p", &pid.to_string()]);
        }
        strace.stdin(Stdio::null()).stderr(Stdio::piped());
        let mut tracer = strace.spawn().map_err(|error| format!("strace: {error}"))?;
        let said = tracer.stderr.take().expect("it is piped");
        await_attached(BufReader::new(said), attached.len())?;
        Ok(Self { out, tracer, known })
    }

    /// Detaches, and returns all calls since [`Self::attach`]. They are in order for each thread alone.
    #[must_use]
    pub fn detach(mut self) -> Vec<Call> {
        // strace writes whole lines at once, and the kernel detaches all processes when their tracer dies.
        let _ = self.tracer.kill();
        let _ = self.tracer.wait();
        let files = fs::read_dir(self.out.path()).into_iter().flatten();
        let mut calls = Vec::new();
        for file in files.flatten() {
            let text = fs::read(file.path()).unwrap_or_default();
            let text = String::from_utf8_lossy(&text);
            let name = file.file_name().to_string_lossy().into_owned();
            let thread = name.rsplit('.').next().and_then(|n| n.parse().ok());
            let known = thread.and_then(|thread: i32| self.known.get(&thread).copied());
            let role = known.unwrap_or_else(|| role(&text));
            let made = text.lines().filter(|line| name_of(line).is_some());
            // In debug builds, the standard library checks each descriptor that it closes.
            let made = made.filter(|line| !line.contains(", F_GETFD)"));
            calls.extend(made.map(|line| Call {
                role,
                line: line.to_owned(),
            }));
        }
        calls
    }
}

impl Drop for Strace {
    fn drop(&mut self) {
        // strace also detaches when it dies.
        let _ = self.tracer.kill();
        let _ = self.tracer.wait();
    }
}

impl Call {
    /// Returns the name of the call.
    #[must_use]
    pub fn name(&self) -> &str {
        name_of(&self.line).unwrap_or_default()
    }

    /// Whether it waits for the disk.
    #[must_use]
    pub fn is_sync(&self) -> bool {
        SYNCING.contains(&self.name())
    }

    /// Whether it has failed.
    #[must_use]
    pub fn has_failed(&self) -> bool {
        self.line.contains(") = -1 ") || self.line.contains(") = ?")
    }

    /// Returns the paths in its arguments, each with the directory that it is relative to.
    fn paths(&self) -> Vec<PathBuf> {
        let parts: Vec<&str> = self.line.split('"').collect();
        let named = parts.chunks_exact(2);
        let path = |pair: &[&str]| {
            let base = pair[0]
                .strip_suffix(">, ")
                .and_then(|s| s.rsplit('<').next());
            Path::new(base.unwrap_or_default()).join(pair[1])
        };
        named.map(path).collect()
    }
}

impl Changes {
    /// Returns the changes of these calls below `dir`, in which these paths existed before.
    #[must_use]
    pub fn below(dir: &Path, before: &BTreeSet<PathBuf>, calls: &[Call]) -> Self {
        let mut changes = Self::default();
        let mut made: BTreeSet<PathBuf> = before.clone();
        for call in calls.iter().filter(|call| !call.has_failed()) {
            let mut paths = call.paths();
            paths.retain(|path| path.starts_with(dir));
            let Some(path) = paths.first() else { continue };
            let (path, name) = (path.clone(), call.name());
            if MAKING.contains(&name) {
                changes.made.push(path);
            } else if REMOVING.contains(&name) {
                changes.removed.push(path);
            } else if name.starts_with("rename") {
                changes.renamed.push(path);
            } else if OPENING.contains(&name)
                && call.line.contains("O_CREAT")
                && made.insert(path.clone())
            {
                changes.made.push(path);
            }
        }
        changes
    }
}

/// Returns everything below `dir`.
#[must_use]
pub fn listing(dir: &Path) -> BTreeSet<PathBuf> {
    let mut found = BTreeSet::new();
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        found.insert(entry.path());
        found.extend(listing(&entry.path()));
    }
    found
}

fn threads(pid: i32) -> impl Iterator<Item = i32> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task"));
    let tasks = tasks.into_iter().flatten().flatten();
    tasks.filter_map(|task| task.file_name().to_str()?.parse().ok())
}

/// Waits until strace has reported all of them. Its later output is read, so that it never blocks.
fn await_attached(said: impl BufRead + Send + 'static, count: usize) -> Result<(), String> {
    let mut lines = said.lines().map_while(Result::ok);
    let mut attached = 0;
    while attached < count {
        let line = lines.next().ok_or("strace attaches to nothing")?;
        // The shim of a run that just ended may be gone.
        if !line.contains("attached") && !line.contains("No such process") {
            return Err(line);
        }
        attached += 1;
    }
    std::thread::spawn(move || lines.for_each(drop));
    Ok(())
}

/// Returns the role of a process or thread that was not there before.
fn role(text: &str) -> Role {
    if text.contains("\"kennel-shim\"") {
        Role::Shim
    } else if text.contains("execve(") {
        Role::Command
    } else {
        Role::Server
    }
}

/// Returns the call's name, where the line is one of a call.
fn name_of(line: &str) -> Option<&str> {
    let (name, _) = line.split_once('(')?;
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    (!name.is_empty() && name.chars().all(is_name)).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(line: &str) -> Call {
        Call {
            role: Role::Server,
            line: line.to_owned(),
        }
    }

    #[test]
    fn file_changes_are_counted_below_the_directory() {
        let calls = [
            r#"mkdir("/d/runs/a", 0700) = 0"#,
            r#"mkdirat(18</d/runs/a>, "tmp", 0700) = 0"#,
            r#"openat(AT_FDCWD</x>, "/d/runs/a/index", O_RDWR|O_CREAT|O_EXCL, 0600) = 1</d/runs/a/index>"#,
            r#"openat(AT_FDCWD</x>, "/d/runs/a/index", O_RDWR|O_CREAT, 0600) = 1</d/runs/a/index>"#,
            r#"openat(AT_FDCWD</x>, "/d/old", O_RDWR|O_CREAT, 0600) = 1</d/old>"#,
            r#"openat(AT_FDCWD</x>, "/d/runs/a/in", O_RDONLY) = 1</d/runs/a/in>"#,
            r#"renameat(5</d/runs/a>, "exit.new", 5</d/runs/a>, "exit") = 0"#,
            r#"unlinkat(5</d/runs/a>, "tmp", AT_REMOVEDIR) = 0"#,
            r#"unlink("/d/runs/a/none") = -1 ENOENT (No such file or directory)"#,
            r#"mkdir("/sys/fs/cgroup/x", 0777) = 0"#,
        ];
        let before = BTreeSet::from([PathBuf::from("/d/old")]);
        let found = Changes::below(Path::new("/d"), &before, &calls.map(call));
        let made = ["/d/runs/a", "/d/runs/a/tmp", "/d/runs/a/index"].map(PathBuf::from);
        assert_eq!(found.made, made);
        assert_eq!(found.removed, [PathBuf::from("/d/runs/a/tmp")]);
        assert_eq!(found.renamed, [PathBuf::from("/d/runs/a/exit.new")]);
    }
}
