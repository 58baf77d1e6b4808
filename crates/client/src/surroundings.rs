//! Surroundings of a process: its environment, and the places of Kennel's files that follow from it.

use crate::TargetError;
use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

/// Surroundings of a process at its start. A variable that is set to the empty text counts as not set.
#[derive(Clone, Debug, Default)]
pub struct Surroundings {
    /// Whether it runs as uid 0.
    pub root: bool,
    /// Its environment, without values that are not UTF-8.
    pub env: BTreeMap<String, String>,
    /// Names of those values, as far as they are UTF-8.
    pub skipped: Vec<String>,
}

impl Surroundings {
    /// Returns those of this process, which runs as this effective user.
    pub fn here(uid: u32) -> Self {
        let mut here = Self {
            root: uid == 0,
            ..Self::default()
        };
        for (name, value) in std::env::vars_os() {
            match (name.to_str(), value.into_string()) {
                (Some(name), Ok(value)) => {
                    here.env.insert(name.to_owned(), value);
                }
                _ => here.skipped.push(name.to_string_lossy().into_owned()),
            }
        }
        here
    }

    /// Returns those of a user with these variables alone.
    pub fn of(env: &[(&str, &str)]) -> Self {
        let owned = |&(name, value): &(&str, &str)| (name.to_owned(), value.to_owned());
        Self {
            env: env.iter().map(owned).collect(),
            ..Self::default()
        }
    }

    /// Returns a variable that is set.
    pub fn var(&self, name: &str) -> Option<&str> {
        let value = self.env.get(name).map(String::as_str);
        value.filter(|value| !value.is_empty())
    }

    /// Returns this user's directory for files about Kennel; absent: the environment names none.
    pub fn config_dir(&self) -> Option<PathBuf> {
        let config = self.dir("XDG_CONFIG_HOME").map(Path::to_owned);
        let config = config.or_else(|| Some(self.dir("HOME")?.join(".config")));
        Some(config?.join("kennel"))
    }

    /// Returns a directory from the environment. By the XDG specification a path that is not absolute is ignored.
    fn dir(&self, name: &str) -> Option<&Path> {
        self.var(name).map(Path::new).filter(|p| p.is_absolute())
    }

    /// Returns the default directory of a server's data; absent: HOME is not set.
    pub fn default_data_dir(&self) -> Option<PathBuf> {
        if self.root {
            return Some(PathBuf::from("/var/lib/kennel"));
        }
        match self.dir("XDG_STATE_HOME") {
            Some(state) => Some(state.join("kennel")),
            None => Some(self.dir("HOME")?.join(".local/state/kennel")),
        }
    }

    /// Returns the default socket of a server.
    pub fn default_socket(&self) -> Result<PathBuf, TargetError> {
        if self.root {
            return Ok(PathBuf::from("/run/kennel/kennel.sock"));
        }
        if let Some(runtime) = self.dir("XDG_RUNTIME_DIR") {
            return Ok(runtime.join("kennel/kennel.sock"));
        }
        let data_dir = self.default_data_dir();
        Ok(data_dir.ok_or(TargetError::NoDefault)?.join("kennel.sock"))
    }
}
