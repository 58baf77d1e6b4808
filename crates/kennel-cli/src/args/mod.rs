//! The command line: commands, flags, and the text of `--help`.

mod elsewhere;
mod flags;
mod form;
mod network;
mod run;
mod secrets;
mod target;

pub use elsewhere::HABITS;
pub(crate) use elsewhere::explain;
pub use form::Format;

pub(crate) use flags::{in_place_of_fields, of_enum};
pub(crate) use network::RemoteArgs;
pub(crate) use run::{EnvArg, EnvModeArg, OnConflictArg, RunArgs, SpecArgs};
pub(crate) use secrets::{SecretArg, SecretArgs, SecretFrom};
pub(crate) use target::{FilterArgs, LabelArgs, RunRef, RunRefs, SelectionArgs, Targets};

use clap::{Args, Parser, Subcommand};
use kennel_client::{Context, Given};
use std::fmt::Write as _;

/// Owns processes and never loses one.
#[derive(Debug, Parser)]
#[command(name = "kennel", version, max_term_width = 100)]
pub struct Cli<C: Subcommand> {
    /// Flags of every command that calls a server.
    #[command(flatten)]
    pub client: ClientArgs,
    /// The command.
    #[command(subcommand)]
    pub command: C,
}

/// Flags of every command that calls a server.
#[derive(Debug, Args)]
pub struct ClientArgs {
    /// Server to use [env: KENNEL_SERVER] [default: the socket of `kennel serve`]
    #[arg(long, global = true, value_name = "unix:PATH|tcp://HOST:PORT")]
    pub(crate) server: Option<String>,
    /// UID that the server of a unix socket may run as, beside this user and root [env: KENNEL_SERVER_USER]
    #[arg(long, global = true, value_name = "UID")]
    pub(crate) server_user: Option<u32>,
    /// Node that the call is for, by name or id; the server forwards the call to it [env: KENNEL_NODE] [default: the
    /// server's own]
    #[arg(long, global = true, value_name = "NODE")]
    pub(crate) node: Option<String>,
    #[command(flatten)]
    pub(crate) remote: RemoteArgs,
    /// Output format: text, wide, name, json, yaml, jsonpath='{.state}', or a template such as '{{.state}}'
    #[arg(
        short,
        long,
        global = true,
        visible_alias = "format",
        value_name = "FORM"
    )]
    pub output: Option<Format>,
}

impl ClientArgs {
    /// Whether any of them was given.
    pub fn any(&self) -> bool {
        self.output.is_some() || self.given() != Given::default()
    }

    /// Returns the server and the credentials that were given.
    pub(crate) fn given(&self) -> Given {
        let remote = self.remote.clone();
        Given {
            context: remote.context,
            server_user: self.server_user,
            node: self.node.clone(),
            values: Context {
                server: self.server.clone().unwrap_or_default(),
                ca: remote.tls_ca,
                certificate: remote.tls_cert,
                key: remote.tls_key,
                server_name: remote.tls_server_name,
                token_file: remote.token_file,
            },
        }
    }
}

/// Texts after the help of commands.
const HELP: &str = include_str!("help.txt");

/// Adds to a command, and to those below it, what `help.txt` has in the section of its name: exit codes, details,
/// examples.
pub fn with_texts(command: clap::Command, name: &str) -> clap::Command {
    let command = command.after_help(section(&format!("kennel{name}")));
    command.mut_subcommands(|below| {
        let name = format!("{name} {}", below.get_name());
        with_texts(below, &name)
    })
}

/// Lists the commands in groups in the help of the whole.
pub fn in_groups(whole: clap::Command) -> clap::Command {
    let mut text = String::new();
    let groups = section("groups").lines();
    for (group, names) in groups.filter_map(|line| line.split_once(": ")) {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{group}:");
        for known in names
            .split(' ')
            .filter_map(|name| whole.find_subcommand(name))
        {
            let (name, about) = (known.get_name(), known.get_about().cloned());
            let aliases: Vec<&str> = known.get_visible_aliases().collect();
            let aliases = match &aliases[..] {
                [] => String::new(),
                aliases => format!(" [aliases: {}]", aliases.join(", ")),
            };
            let _ = writeln!(text, "  {name:12} {}{aliases}", about.unwrap_or_default());
        }
        text.push('\n');
    }
    let template = "{about}\n\n{usage-heading} {usage}\n\n";
    whole.help_template(format!(
        "{template}{text}Options:\n{{options}}{{after-help}}"
    ))
}

fn section(name: &str) -> &'static str {
    let (_, rest) = HELP
        .split_once(&format!("\n[{name}]\n"))
        .unwrap_or_default();
    rest.split("\n[").next().unwrap_or_default().trim()
}

#[cfg(test)]
mod tests;
