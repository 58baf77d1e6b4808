//! `context`: servers by name.

use super::link::{print, print_exact};
use crate::{
    args::{ClientArgs, ContextCommand, Format, NewContext},
    config::{self, Surroundings},
    contexts::{self, Context, Contexts, DEFAULT},
    failure::{Failure, because, note},
    remote,
};
use serde_json::json;
use std::{
    fmt::Write as _,
    path::{self, PathBuf},
};

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
            show(&contexts, name.as_deref().unwrap_or(DEFAULT), here, is_json)
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
    config::server_address(None, here)
        .map_or_else(|_| "none".to_owned(), |address| address.to_string())
}

fn use_one(name: &str, here: &Surroundings) -> Result<(), Failure> {
    Contexts::change(here, |contexts| {
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
    contexts::check_name(&new.name)?;
    let Some(server) = &client.server else {
        return Err(Failure::new("a context needs a server")
            .code(crate::USAGE)
            .hint("name it with --server tcp://HOST:PORT or unix:PATH"));
    };
    let mut context = remote::above(&client.remote, Context::default());
    context.server.clone_from(server);
    for file in [
        &mut context.ca,
        &mut context.certificate,
        &mut context.key,
        &mut context.token_file,
    ] {
        make_absolute(file)?;
    }
    // A context that no command could use is refused here.
    let target = remote::target(&context, here).map_err(|failure| failure.or_code(crate::USAGE))?;
    if client.remote.any() && context.server.starts_with("unix:") {
        return Err(
            Failure::new("a unix socket takes neither certificates nor a token").code(crate::USAGE),
        );
    }
    context.server = target.address.to_string();
    Contexts::change(here, |contexts| {
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

fn show(
    contexts: &Contexts,
    name: &str,
    here: &Surroundings,
    is_json: bool,
) -> Result<(), Failure> {
    let context = if name == DEFAULT {
        Context {
            server: default_server(here),
            ..Context::default()
        }
    } else {
        contexts.get(name)?.clone()
    };
    if is_json {
        let mut value = json!(context);
        value["name"] = json!(name);
        return print_exact(&format!("{value}\n"));
    }
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
    Contexts::change(here, |contexts| {
        contexts.get(name)?;
        contexts.entries.remove(name);
        if contexts.current.as_deref() == Some(name) {
            contexts.current = None;
            note(&"it was the current context; the default is now");
        }
        Ok(())
    })
}
