//! `context`: servers by name.

use crate::{
    args::{ClientArgs, Format},
    failure::{Failure, because, note},
    link::{print, print_exact},
};
use clap::{Args, Subcommand};
use kennel_client::{Address, Context, Contexts, DEFAULT_CONTEXT as DEFAULT, Surroundings, Target};
use kennel_linux::own_file;
use serde_json::json;
use std::{
    fmt::Write as _,
    fs::File,
    io,
    path::{self, Path, PathBuf},
};

#[derive(Debug, Subcommand)]
pub enum ContextCommand {
    /// List all contexts; a star marks the current one
    Ls,
    /// Make a context the current one; `default` is the socket of this host
    Use(ContextName),
    /// Create or replace a context from --server, --tls-ca, --tls-cert, --tls-key, --tls-server-name and --token-file
    Set(NewContext),
    /// Print a context [default: the current one]
    Show {
        /// Name of the context
        #[arg(value_name = "NAME")]
        name: Option<String>,
    },
    /// Remove a context
    Rm(ContextName),
}

#[derive(Debug, Args)]
pub struct ContextName {
    /// Name of the context
    #[arg(value_name = "NAME")]
    pub(crate) name: String,
}

#[derive(Debug, Args)]
pub struct NewContext {
    /// Name of the context
    #[arg(value_name = "NAME")]
    pub(crate) name: String,
    /// Make it the current one
    #[arg(long = "use")]
    pub(crate) uses: bool,
}

/// Longest name of a context.
const NAME_CHARS_MAX: usize = 64;

pub(crate) fn context(
    client: &ClientArgs,
    command: ContextCommand,
    here: &Surroundings,
) -> Result<(), Failure> {
    let is_json = client
        .output
        .as_ref()
        .is_some_and(|form| *form == Format::Json);
    match command {
        ContextCommand::Ls => list(&Contexts::read(here)?, here, is_json),
        ContextCommand::Use(of) => use_one(&of.name, here),
        ContextCommand::Set(new) => set(client, new, here),
        ContextCommand::Show { name } => {
            let contexts = Contexts::read(here)?;
            let name = name.or_else(|| contexts.current.clone());
            show(&contexts, name.as_deref().unwrap_or(DEFAULT), here)
        }
        ContextCommand::Rm(of) => remove(&of.name, here),
    }
}

/// Lists the default, and then all others by name.
fn list(contexts: &Contexts, here: &Surroundings, is_json: bool) -> Result<(), Failure> {
    let current = contexts.current.as_deref().unwrap_or(DEFAULT);
    let default = (DEFAULT, default_server(here));
    let others = contexts.entries.iter();
    let others = others.map(|(name, context)| (name.as_str(), context.server.clone()));
    let rows: Vec<(&str, String)> = std::iter::once(default).chain(others).collect();
    let width = rows
        .iter()
        .map(|(name, _)| name.len())
        .max()
        .unwrap_or_default();
    let mut text = String::new();
    for (name, server) in rows {
        let is_current = name == current;
        // A write to a string cannot fail.
        let _ = if is_json {
            writeln!(
                text,
                "{}",
                json!({"name": name, "current": is_current, "server": server})
            )
        } else {
            let star = if is_current { "*" } else { " " };
            writeln!(text, "{star} {name:width$}  {server}")
        };
    }
    if is_json {
        print_exact(&text)
    } else {
        print(&text)
    }
}

fn default_server(here: &Surroundings) -> String {
    let address = here.default_socket().map(Address::Unix);
    address.map_or_else(|_| "none".to_owned(), |address| address.to_string())
}

fn use_one(name: &str, here: &Surroundings) -> Result<(), Failure> {
    change(here, |contexts| {
        if name != DEFAULT {
            contexts.get(name)?;
        }
        contexts.current = (name != DEFAULT).then(|| name.to_owned());
        Ok(())
    })?;
    for variable in ["KENNEL_SERVER", "KENNEL_CONTEXT"] {
        if here.var(variable).is_some() {
            note(&format_args!(
                "{variable} is set, and wins over the current context"
            ));
        }
    }
    Ok(())
}

fn set(client: &ClientArgs, new: NewContext, here: &Surroundings) -> Result<(), Failure> {
    check_name(&new.name)?;
    if client.server.is_none() {
        return Err(Failure::new("a context needs a server")
            .code(crate::USAGE)
            .hint("name it with --server tcp://HOST:PORT or unix:PATH"));
    }
    let mut context = client.given().values;
    for file in [
        &mut context.ca,
        &mut context.certificate,
        &mut context.key,
        &mut context.token_file,
    ] {
        make_absolute(file)?;
    }
    // A context that no command could use is refused here.
    let target = Target::of(&context, here);
    let target = target.map_err(|error| Failure::from(error).or_code(crate::USAGE))?;
    if context.has_credentials() && context.server.starts_with("unix:") {
        return Err(
            Failure::new("a unix socket takes neither certificates nor a token").code(crate::USAGE),
        );
    }
    context.server = target.address.to_string();
    change(here, |contexts| {
        contexts.entries.insert(new.name.clone(), context);
        if new.uses {
            contexts.current = Some(new.name);
        }
        Ok(())
    })
}

/// Makes the path absolute: the file is found from any directory.
fn make_absolute(file: &mut Option<PathBuf>) -> Result<(), Failure> {
    if let Some(file) = file {
        let absolute = path::absolute(&*file);
        let what = format!("cannot make {} absolute", file.display());
        *file = absolute.map_err(because(what))?;
    }
    Ok(())
}

fn show(contexts: &Contexts, name: &str, here: &Surroundings) -> Result<(), Failure> {
    let context = if name == DEFAULT {
        Context {
            server: default_server(here),
            ..Context::default()
        }
    } else {
        contexts.get(name)?.clone()
    };
    let path = |path: Option<PathBuf>| path.map(|path| path.display().to_string());
    let rows = [
        ("name", Some(name.to_owned())),
        ("server", Some(context.server)),
        ("ca", path(context.ca)),
        ("certificate", path(context.certificate)),
        ("key", path(context.key)),
        ("server name", context.server_name),
        ("token file", path(context.token_file)),
    ];
    let mut text = String::new();
    for (key, value) in rows {
        if let Some(value) = value {
            let _ = writeln!(text, "{key:12} {value}");
        }
    }
    print(&text)
}

fn remove(name: &str, here: &Surroundings) -> Result<(), Failure> {
    change(here, |contexts| {
        contexts.get(name)?;
        contexts.entries.remove(name);
        if contexts.current.as_deref() == Some(name) {
            contexts.current = None;
            note(&"it was the current context; the default is now");
        }
        Ok(())
    })
}

/// Changes the file, whole or not at all, for this user alone. Others that change it wait meanwhile.
fn change(
    here: &Surroundings,
    change: impl FnOnce(&mut Contexts) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let path = Contexts::path(here).ok_or_else(|| {
        Failure::new("there is no place for contexts: neither XDG_CONFIG_HOME nor HOME is set")
    })?;
    let cannot =
        |cause: io::Error| Failure::new(format!("cannot write {}: {cause}", path.display()));
    let dir = path.parent().unwrap_or(Path::new("/"));
    own_file::make_dir(dir).map_err(cannot)?;
    // The directory is locked, since the file is replaced. The lock ends with its descriptor.
    let lock = File::open(dir).map_err(cannot)?;
    lock.lock().map_err(cannot)?;
    let mut contexts = Contexts::read(here)?;
    change(&mut contexts)?;
    let text = toml::to_string(&contexts).map_err(because("cannot write contexts"))?;
    own_file::replace(&path, text.as_bytes()).map_err(cannot)
}

/// Whether a context can have this name.
fn check_name(name: &str) -> Result<(), Failure> {
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
    fn contexts_file_is_private_to_its_user() {
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
        super::change(&here, change).expect("written");
        assert_eq!(Contexts::read(&here).expect("it is there"), contexts);
        let file = Contexts::path(&here).expect("a place");
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

    // promise: C-62
    #[test]
    fn concurrent_context_changes_are_all_saved() {
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
                    change(here, add).expect("changed");
                });
            }
        });
        let contexts = Contexts::read(&here).expect("it is there");
        assert_eq!(contexts.entries.len(), MANY);
    }

    #[test]
    fn context_name_must_be_plain_ascii() {
        assert!(check_name("prod-7.eu").is_ok());
        for bad in ["", DEFAULT, "a b", "a/b", "\u{e4}", &"x".repeat(65)] {
            assert!(check_name(bad).is_err(), "{bad}");
        }
    }
}
