//! Flags for secrets of a run.

use clap::Args;
use std::{path::PathBuf, str::FromStr};

/// Secrets of the command.
#[derive(Debug, Args)]
pub(crate) struct SecretArgs {
    /// Give the command a secret as the variable NAME. SOURCE is file:PATH below a directory of `serve --secret-dir`,
    /// credential:NAME of the server's unit, @FILE or env:VARIABLE from here, or nothing: the variable NAME from here. May be
    /// repeated
    #[arg(long, value_name = "NAME[=SOURCE]")]
    pub(crate) secret: Vec<SecretArg>,
    /// As --secret, but the variable NAME is the path of a file in memory with the value. May be repeated
    #[arg(long, value_name = "NAME[=SOURCE]")]
    pub(crate) secret_file: Vec<SecretArg>,
    /// Leave out one line end at the end of each secret
    #[arg(long)]
    pub(crate) trim_secrets: bool,
}

/// A secret, by its name and source: a value is never typed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SecretArg {
    pub(crate) name: String,
    pub(crate) source: SecretFrom,
}

/// Source of a secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum SecretFrom {
    /// A file of the server.
    ServerFile(String),
    /// A credential of the server.
    Credential(String),
    /// A variable of this command.
    Variable(String),
    /// A file here.
    File(PathBuf),
}

impl FromStr for SecretArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, source) = match text.split_once('=') {
            None => (text, SecretFrom::Variable(text.to_owned())),
            Some((name, source)) => {
                let source = match (source.split_once(':'), source.strip_prefix('@')) {
                    (_, Some(path)) => SecretFrom::File(path.into()),
                    (Some(("file", path)), _) => SecretFrom::ServerFile(path.to_owned()),
                    (Some(("credential", name)), _) => SecretFrom::Credential(name.to_owned()),
                    (Some(("env", name)), _) => SecretFrom::Variable(name.to_owned()),
                    // Errors must not show the text, which may be the value.
                    _ => {
                        return Err(format!(
                            "the source of {name} is file:PATH, credential:NAME, env:VARIABLE or @FILE, and never the value"
                        ));
                    }
                };
                (name, source)
            }
        };
        if name.is_empty() {
            return Err("write it as NAME=SOURCE or NAME".to_owned());
        }
        Ok(Self {
            name: name.to_owned(),
            source,
        })
    }
}
