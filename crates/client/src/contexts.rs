//! The context file: servers by name, with their credentials. Tokens and keys stay in files of their own, which it
//! refers to.

use crate::{Surroundings, TargetError};
use serde::{Deserialize, Serialize};
use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
};

/// Name of the context without an entry: the socket of this host.
pub const DEFAULT_CONTEXT: &str = "default";

/// The contents of the file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Contexts {
    /// The context that is used by default; absent: the default socket.
    pub current: Option<String>,
    /// All contexts.
    #[serde(default, rename = "context")]
    pub entries: BTreeMap<String, Context>,
}

/// One server, and its credentials. Where it is not whole, as in flags, its server is empty.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Context {
    /// Its address, as `unix:PATH` or `tcp://HOST:PORT`.
    pub server: String,
    /// Certificates of authorities.
    pub ca: Option<PathBuf>,
    /// Certificate of the client.
    pub certificate: Option<PathBuf>,
    /// Key of that certificate.
    pub key: Option<PathBuf>,
    /// Name to verify in the server's certificate.
    pub server_name: Option<String>,
    /// File of the token.
    pub token_file: Option<PathBuf>,
}

impl Contexts {
    /// Returns the path of the file; `None`: this user has no directory for it.
    pub fn path(here: &Surroundings) -> Option<PathBuf> {
        Some(here.config_dir()?.join("contexts.toml"))
    }

    /// Reads the file; a missing one has no contexts.
    pub fn read(here: &Surroundings) -> Result<Self, TargetError> {
        let Some(path) = Self::path(here) else {
            return Ok(Self::default());
        };
        match read_default(&path) {
            Ok(None) => Ok(Self::default()),
            Ok(Some(text)) => toml::from_str(&text).map_err(|error| TargetError::Contexts {
                path,
                why: error.to_string().trim_end().to_owned(),
            }),
            Err(source) => Err(TargetError::UnreadContexts { path, source }),
        }
    }

    /// Returns the context of a name, which must exist.
    pub fn get(&self, name: &str) -> Result<&Context, TargetError> {
        let no_context = || TargetError::NoContext(name.to_owned());
        self.entries.get(name).ok_or_else(no_context)
    }
}

impl Context {
    /// Whether it has anything that only a server on the network needs.
    pub fn has_credentials(&self) -> bool {
        let server = self.server.clone();
        *self
            != Self {
                server,
                ..Self::default()
            }
    }

    /// Returns it, completed by another one. Certificate and key belong together.
    #[must_use]
    pub fn above(&self, other: Self) -> Self {
        let (certificate, key) = match (&self.certificate, &self.key) {
            (None, None) => (other.certificate, other.key),
            given => (given.0.clone(), given.1.clone()),
        };
        let server = Some(&self.server).filter(|server| !server.is_empty());
        Self {
            server: server.cloned().unwrap_or(other.server),
            ca: self.ca.clone().or(other.ca),
            certificate,
            key,
            server_name: self.server_name.clone().or(other.server_name),
            token_file: self.token_file.clone().or(other.token_file),
        }
    }
}

/// Reads a file at a default path; absent: it does not exist, as far as this user may see. HOME may be another user's.
pub fn read_default(path: &Path) -> io::Result<Option<String>> {
    match fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(_) if path.symlink_metadata().is_err() => Ok(None),
        Err(error) => Err(error),
    }
}
