//! The context file: servers by name, with their credentials. Tokens and keys stay in files of their own, which it
//! refers to.

use crate::{
    config::{Surroundings, read_default},
    failure::{Failure, because},
};
use kennel_linux::own_file;
use serde::{Deserialize, Serialize};
use std::{
    collections::BTreeMap,
    fs::File,
    io,
    path::{Path, PathBuf},
};

/// Name of the context without an entry: the socket of this host.
pub(crate) const DEFAULT: &str = "default";
const FILE: &str = "contexts.toml";
/// Longest name of a context.
const NAME_CHARS_MAX: usize = 64;

/// The contents of the file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Contexts {
    /// The context that is used by default; absent: the default socket.
    pub(crate) current: Option<String>,
    #[serde(default, rename = "context")]
    pub(crate) entries: BTreeMap<String, Context>,
}

/// One server, and its credentials.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Context {
    pub(crate) server: String,
    pub(crate) ca: Option<PathBuf>,
    pub(crate) certificate: Option<PathBuf>,
    pub(crate) key: Option<PathBuf>,
    pub(crate) server_name: Option<String>,
    pub(crate) token_file: Option<PathBuf>,
}

/// Returns the path of the file; `None`: this user has no directory for it.
pub(crate) fn path(here: &Surroundings) -> Option<PathBuf> {
    Some(here.config_dir()?.join(FILE))
}

impl Contexts {
    /// Reads the file; a missing one has no contexts.
    pub(crate) fn read(here: &Surroundings) -> Result<Self, Failure> {
        let Some(path) = path(here) else {
            return Ok(Self::default());
        };
        let text =
            read_default(&path).map_err(because(format_args!("cannot read {}", path.display())))?;
        let Some(text) = text else {
            return Ok(Self::default());
        };
        toml::from_str(&text).map_err(|error| {
            Failure::new(format!(
                "cannot use {}: {}",
                path.display(),
                error.to_string().trim_end()
            ))
            .hint("kennel context set NAME --server ... writes a context anew")
        })
    }

    /// Changes the file, whole or not at all, for this user alone. Others that change it wait meanwhile.
    pub(crate) fn change(
        here: &Surroundings,
        change: impl FnOnce(&mut Self) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let path = path(here).ok_or_else(|| {
            Failure::new("there is no place for contexts: neither XDG_CONFIG_HOME nor HOME is set")
        })?;
        let cannot =
            |cause: io::Error| Failure::new(format!("cannot write {}: {cause}", path.display()));
        let dir = path.parent().unwrap_or(Path::new("/"));
        own_file::make_dir(dir).map_err(cannot)?;
        // The directory: the file is replaced. The lock ends with its descriptor.
        let lock = File::open(dir).map_err(cannot)?;
        lock.lock().map_err(cannot)?;
        let mut contexts = Self::read(here)?;
        change(&mut contexts)?;
        let text = toml::to_string(&contexts).map_err(because("cannot write contexts"))?;
        own_file::replace(&path, text.as_bytes()).map_err(cannot)
    }

    /// Returns the context of a name, which must exist.
    pub(crate) fn get(&self, name: &str) -> Result<&Context, Failure> {
        self.entries.get(name).ok_or_else(|| {
            Failure::new(format!("there is no context {name:?}"))
                .hint("kennel context ls lists them")
        })
    }
}

/// Whether a context can have this name.
pub(crate) fn check_name(name: &str) -> Result<(), Failure> {
    let is_good = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    if name == DEFAULT {
        return Err(Failure::new(
            "default is the socket of this host, and cannot be changed",
        ));
    }
    if name.is_empty() || name.len() > NAME_CHARS_MAX || !name.chars().all(is_good) {
        return Err(
            Failure::new(format!("{name:?} cannot be the name of a context"))
                .hint("letters, digits, dots, dashes and underscores, at most 64"),
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{fs, os::unix::fs::PermissionsExt as _, thread};

    fn in_dir(dir: &Path) -> Surroundings {
        Surroundings::of(&[("XDG_CONFIG_HOME", dir.to_str().expect("UTF-8"))])
    }

    #[test]
    fn contexts_are_kept_for_their_user_alone() {
        let dir = tempfile::tempdir().expect("a directory");
        let here = in_dir(dir.path());
        assert_eq!(Contexts::read(&here).expect("none"), Contexts::default());
        let context = Context {
            server: "tcp://node7:7443".to_owned(),
            token_file: Some("/t".into()),
            ..Context::default()
        };
        let contexts = Contexts {
            current: Some("prod".to_owned()),
            entries: [("prod".to_owned(), context)].into(),
        };
        let wanted = contexts.clone();
        let change = |contexts: &mut Contexts| {
            *contexts = wanted;
            Ok(())
        };
        Contexts::change(&here, change).expect("written");
        assert_eq!(Contexts::read(&here).expect("it is there"), contexts);
        let file = path(&here).expect("a place");
        let mode = |path: &Path| {
            fs::metadata(path)
                .expect("it is there")
                .permissions()
                .mode()
                & 0o777
        };
        assert_eq!(mode(&file), 0o600);
        assert_eq!(mode(file.parent().expect("a directory")), 0o700);

        fs::write(&file, "[context.prod]\nserver = 'unix:/s'\ncaa = '/x'\n").expect("own file");
        let refused = Contexts::read(&here)
            .expect_err("a misspelt key")
            .to_string();
        assert!(
            refused.contains("caa") && refused.contains("line 3"),
            "{refused}"
        );
    }

    #[test]
    fn changes_at_the_same_time_are_all_made() {
        const MANY: usize = 24;
        let dir = tempfile::tempdir().expect("a directory");
        let here = in_dir(dir.path());
        thread::scope(|scope| {
            for number in 0..MANY {
                let here = &here;
                scope.spawn(move || {
                    let add = |contexts: &mut Contexts| {
                        let name = format!("c{number}");
                        contexts.entries.insert(name, Context::default());
                        Ok(())
                    };
                    Contexts::change(here, add).expect("changed");
                });
            }
        });
        let contexts = Contexts::read(&here).expect("it is there");
        assert_eq!(contexts.entries.len(), MANY);
    }

    #[test]
    fn context_names_are_plain() {
        assert!(check_name("prod-7.eu").is_ok());
        for bad in ["", DEFAULT, "a b", "a/b", "\u{e4}", &"x".repeat(65)] {
            assert!(check_name(bad).is_err(), "{bad}");
        }
    }
}
