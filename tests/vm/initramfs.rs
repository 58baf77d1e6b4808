//! The guest's root file system: a cpio archive ("newc", as the kernel's `buffer-format.rst` has it) in memory.

use std::{
    collections::BTreeSet,
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::Command,
};

const DIRECTORY: u32 = 0o040_755;
const FILE: u32 = 0o100_000;

/// An archive that is being written.
pub(crate) struct Initramfs {
    bytes: Vec<u8>,
    /// Its contents so far, as paths without the leading slash.
    names: BTreeSet<PathBuf>,
}

impl Initramfs {
    pub(crate) fn new() -> Self {
        Self {
            bytes: Vec::new(),
            names: BTreeSet::new(),
        }
    }

    /// Adds a file with its content, and the directories above it.
    pub(crate) fn file(&mut self, at: &str, mode: u32, content: &[u8]) {
        let name = Path::new(at.trim_start_matches('/'));
        if self.names.contains(name) {
            return;
        }
        let above: Vec<&Path> = name.ancestors().skip(1).collect();
        for dir in above.into_iter().rev() {
            if !dir.as_os_str().is_empty() && self.names.insert(dir.to_owned()) {
                self.entry(dir, DIRECTORY, &[]);
            }
        }
        self.names.insert(name.to_owned());
        self.entry(name, FILE | mode, content);
    }

    /// Adds a program of this machine, and the libraries that it needs.
    pub(crate) fn program(&mut self, from: &Path, at: &str) {
        let content = fs::read(from).expect("the program can be read");
        let mode = fs::metadata(from)
            .expect("it is there")
            .permissions()
            .mode();
        self.file(at, mode & 0o7777, &content);
        let said = Command::new("ldd").arg(from).output().expect("ldd starts");
        let said = String::from_utf8_lossy(&said.stdout).into_owned();
        for library in said.split_whitespace().filter(|word| word.starts_with('/')) {
            let content = fs::read(library).expect("the library can be read");
            self.file(library, 0o755, &content);
        }
    }

    /// Returns the whole archive.
    pub(crate) fn finish(mut self) -> Vec<u8> {
        self.entry(Path::new("TRAILER!!!"), 0, &[]);
        self.bytes
    }

    fn entry(&mut self, name: &Path, mode: u32, content: &[u8]) {
        let name = name.to_str().expect("a name in UTF-8");
        let numbers = [
            self.names.len(),
            mode as usize,
            0, // uid
            0, // gid
            1, // links
            0, // time of change
            content.len(),
            0, // device
            0,
            0, // device that it stands for
            0,
            name.len() + 1,
            0, // checksum
        ];
        self.bytes.extend(b"070701");
        for number in numbers {
            self.bytes.extend(format!("{number:08x}").bytes());
        }
        self.bytes.extend(name.bytes());
        self.bytes.push(0);
        self.pad();
        self.bytes.extend(content);
        self.pad();
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }
}
