//! The directory of an authority: files of 0600, none replaced unasked, one command at a time.

use crate::failure::{Failure, because};
use kennel_linux::own_file;
use serde::{Deserialize, Serialize};
use std::{
    fmt::Write as _,
    fs::{self, DirBuilder, File},
    io::{self, Read as _},
    os::unix::fs::DirBuilderExt as _,
    path::{self, Path, PathBuf},
};

pub(super) const CA: &str = "ca.pem";
pub(super) const CA_KEY: &str = "ca-key.pem";
pub(super) const CRL: &str = "crl.pem";
const ISSUED: &str = "issued.toml";
/// Longest part of a file name that is made of a name.
const STEM_CHARS_MAX: usize = 100;

/// A directory, locked by this command until it is dropped.
pub(super) struct Directory {
    path: PathBuf,
    _lock: File,
}

/// Files that were written.
pub(super) struct Made {
    pub(super) files: Vec<PathBuf>,
    /// Whether they replaced others.
    pub(super) replaced: bool,
}

/// All issued certificates.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Issued {
    /// Name of the authority, as in its certificate.
    pub(super) authority: String,
    #[serde(default, rename = "certificate")]
    pub(super) certificates: Vec<Certificate>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Certificate {
    pub(super) kind: String,
    pub(super) name: String,
    /// Serial number in hexadecimal.
    pub(super) serial: String,
    pub(super) expires: String,
    /// Time of its revocation, in seconds of Unix time.
    pub(super) revoked: Option<i64>,
}

impl Directory {
    /// Opens a directory that must exist.
    pub(super) fn open(dir: &Path) -> Result<Self, Failure> {
        let cannot =
            |cause: io::Error| Failure::new(format!("cannot use {}: {cause}", dir.display()));
        let path = path::absolute(dir).map_err(cannot)?;
        let lock = File::open(&path).map_err(|cause| match cause.kind() {
            io::ErrorKind::NotFound => cannot(cause).hint(format!(
                "make an authority there: kennel certs init {}",
                dir.display()
            )),
            _ => cannot(cause),
        })?;
        lock.lock().map_err(cannot)?;
        Ok(Self { path, _lock: lock })
    }

    /// Opens a directory, which is created where it is missing.
    pub(super) fn create(dir: &Path) -> Result<Self, Failure> {
        let made = DirBuilder::new().recursive(true).mode(0o700).create(dir);
        made.map_err(because(format_args!("cannot make {}", dir.display())))?;
        Self::open(dir)
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    pub(super) fn read(&self, name: &str) -> Result<String, Failure> {
        let path = self.path(name);
        // Symbolic links are followed: files of a mounted Secret are links.
        fs::read_to_string(&path).map_err(|cause| {
            let failure = Failure::new(format!("cannot read {}: {cause}", path.display()));
            if cause.kind() == io::ErrorKind::NotFound {
                return failure.hint(format!(
                    "make an authority there: kennel certs init {}",
                    self.path.display()
                ));
            }
            failure
        })
    }

    /// Writes files: all, or none where one exists already.
    pub(super) fn write(&self, files: &[(&str, &str)], force: bool) -> Result<Made, Failure> {
        let replaced = self.check(files.iter().map(|(name, _)| *name), force)?;
        let mut made = Made {
            files: Vec::new(),
            replaced,
        };
        for (name, text) in files {
            let path = self.path(name);
            own_file::replace(&path, text.as_bytes())
                .map_err(because(format_args!("cannot write {}", path.display())))?;
            made.files.push(path);
        }
        Ok(made)
    }

    /// Whether one of these files exists; without force a failure.
    pub(super) fn check<'a>(
        &self,
        names: impl IntoIterator<Item = &'a str>,
        force: bool,
    ) -> Result<bool, Failure> {
        let there = names
            .into_iter()
            .map(|name| self.path(name))
            .find(|path| fs::symlink_metadata(path).is_ok());
        match there {
            Some(path) if !force => {
                Err(Failure::new(format!("{} is there already", path.display()))
                    .hint("replace it with --force"))
            }
            there => Ok(there.is_some()),
        }
    }

    pub(super) fn issued(&self) -> Result<Issued, Failure> {
        let path = self.path(ISSUED);
        if fs::symlink_metadata(&path).is_err_and(|error| error.kind() == io::ErrorKind::NotFound) {
            return Ok(Issued::default());
        }
        toml::from_str(&self.read(ISSUED)?)
            .map_err(because(format_args!("cannot use {}", path.display())))
    }

    pub(super) fn set_issued(&self, issued: &Issued) -> Result<(), Failure> {
        let text = toml::to_string(issued);
        let text = text.map_err(because(format_args!("cannot write {ISSUED}")))?;
        self.write(&[(ISSUED, &text)], true).map(drop)
    }
}

impl Issued {
    pub(super) fn table(&self) -> String {
        let mut text = String::new();
        for one in &self.certificates {
            let state = if one.revoked.is_some() {
                "revoked"
            } else {
                "issued"
            };
            let _ = writeln!(
                text,
                "{:7} {:6} {}  {}  {}",
                state, one.kind, one.expires, one.serial, one.name
            );
        }
        text
    }
}

/// Converts a name to a part of a file name: special characters become dashes.
pub(super) fn stem(name: &str) -> Result<String, Failure> {
    let mut stem = String::new();
    for letter in name.chars() {
        match letter {
            letter if letter.is_ascii_alphanumeric() || "._".contains(letter) => stem.push(letter),
            '*' => stem.push_str("any"),
            _ if stem.ends_with('-') => {}
            _ => stem.push('-'),
        }
    }
    let is_taken = matches!(stem.as_str(), "ca" | "crl") || stem.ends_with("-key");
    if is_taken || stem.starts_with('.') || stem.len() > STEM_CHARS_MAX {
        return Err(
            Failure::new(format!("{name:?} cannot name a file here")).hint("take another name")
        );
    }
    Ok(stem)
}

/// Returns random bytes that no process can guess.
pub(super) fn random<const N: usize>() -> Result<[u8; N], Failure> {
    let mut bytes = [0; N];
    File::open("/dev/urandom")
        .and_then(|mut file| file.read_exact(&mut bytes))
        .map_err(because("cannot read /dev/urandom"))?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    // promise: C-63a
    #[test]
    fn certificate_name_cannot_overwrite_authority_files() {
        assert_eq!(stem("node7.example").expect("a stem"), "node7.example");
        assert_eq!(
            stem("spiffe://prod/ns/a").expect("a stem"),
            "spiffe-prod-ns-a"
        );
        assert_eq!(stem("*.example").expect("a stem"), "any.example");
        assert_eq!(stem("::1").expect("a stem"), "-1");
        for bad in ["ca", "crl", "ca-key", "ca/key", "../ca", "bob-key"] {
            assert!(stem(bad).is_err(), "{bad}");
        }
    }
}
