//! `kennel serve`: the keeper, and the server that the keeper starts.

use crate::{
    args::{CgroupUse, ClientArgs, ServeArgs},
    config::{ServeConfig, ServeFlags, Surroundings},
    failure::{Failure, chain},
    telemetry,
};
use kennel_keeper::keeper::{self, CgroupChoice, KeeperConfig, KeeperError};
use std::{ffi::OsString, process::ExitCode};

/// Exit code after the loss of a part.
pub(crate) const LOST: u8 = 70;

/// Exit code of a command line or a configuration that cannot be used.
const UNUSABLE: u8 = 2;

/// What a binary that is to say what it is gets of the environment.
const PREFLIGHT_VARIABLES: [&str; 2] = ["PATH", "LD_LIBRARY_PATH"];

/// Becomes the keeper. `words` is the command line, which the server is given again: it finds the store by itself,
/// and a password in the environment does not get into argv.
pub(crate) fn keeper(
    client: &ClientArgs,
    flags: &ServeArgs,
    here: &Surroundings,
    words: &[OsString],
) -> ExitCode {
    match keep(client, flags, here, words) {
        Ok(code) => ExitCode::from(u8::try_from(code).unwrap_or(crate::failure::FAILED)),
        Err(failure) => failure.report(),
    }
}

fn keep(
    client: &ClientArgs,
    flags: &ServeArgs,
    here: &Surroundings,
    words: &[OsString],
) -> Result<i32, Failure> {
    if client.server.is_some() || client.output.is_some() || flags.of_clients.any() {
        return Err(
            Failure::new("--server and --output are for commands that ask a server")
                .code(UNUSABLE)
                .hint("where to listen is said by --listen unix:PATH"),
        );
    }
    let config = resolve(flags, here).map_err(|failure| failure.or_code(UNUSABLE))?;
    let retention = flags.retention.resolve(here);
    retention.map_err(|failure| failure.or_code(UNUSABLE))?;
    let telemetry = flags.telemetry.resolve(here);
    telemetry.map_err(|failure| failure.or_code(UNUSABLE))?;
    // The server logs, but what it cannot use is the caller's to correct, before anything is started.
    telemetry::filter(here.env.get("KENNEL_LOG").map(String::as_str))
        .map_err(|failure| failure.or_code(UNUSABLE))?;
    let code = keeper::run(&KeeperConfig {
        data_dir: config.data_dir,
        listen: vec![config.listen.socket],
        server_argv: server_words(words),
        cgroup: match flags.cgroup {
            CgroupUse::Auto => CgroupChoice::Auto,
            CgroupUse::Stay => CgroupChoice::Stay,
            CgroupUse::Off => CgroupChoice::Off,
        },
        preflight_env: PREFLIGHT_VARIABLES
            .iter()
            .filter_map(|name| Some(((*name).to_owned(), here.env.get(*name)?.clone())))
            .collect(),
        orphan_ttl: flags.orphan_ttl,
    })
    .map_err(|error| not_kept(&error))?;
    if code == i32::from(LOST) {
        // The server said nothing: it is the one that was lost.
        let failure = Failure::new("the service has ended without its server, every run was ended");
        return Err(failure
            .code(LOST)
            .hint("the next start records how they ended"));
    }
    Ok(code)
}

pub(crate) fn resolve(flags: &ServeArgs, here: &Surroundings) -> Result<ServeConfig, Failure> {
    let flags = ServeFlags {
        listen: flags.listen.clone(),
        store: flags.store.clone(),
        store_file: flags.store_file.clone(),
        data_dir: flags.data_dir.clone(),
    };
    ServeConfig::resolve(&flags, here)
}

/// The words after the program's name, with `server` for `serve`.
fn server_words(words: &[OsString]) -> Vec<OsString> {
    let mut rest: Vec<OsString> = words.iter().skip(1).cloned().collect();
    if let Some(at) = rest.iter().position(|word| word == "serve") {
        rest.remove(at);
    }
    rest.insert(0, "server".into());
    rest
}

fn not_kept(error: &KeeperError) -> Failure {
    let failure = Failure::new(chain(error)).code(u8::try_from(error.exit_code()).unwrap_or(1));
    match error {
        KeeperError::LockBusy { .. } => {
            failure.hint("a server runs there already: kennel status; or name another --data-dir")
        }
        KeeperError::DataDir { .. } => failure.hint("name another with --data-dir DIR"),
        KeeperError::Listen { .. } => failure.hint("name another with --listen unix:PATH"),
        KeeperError::Server(_) | KeeperError::Host { .. } => failure,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_server_is_given_the_keepers_words() {
        let words = |line: &str| line.split(' ').map(OsString::from).collect::<Vec<_>>();
        assert_eq!(
            server_words(&words("kennel serve --store serve --cgroup off")),
            words("server --store serve --cgroup off")
        );
    }
}
