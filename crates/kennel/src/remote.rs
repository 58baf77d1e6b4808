//! The server to call, and the credentials for it: flags win over variables, variables over the context, a context over
//! the default socket.
//!
//! A context is a whole: where a flag or a variable names another server, no credentials of the current context are
//! sent to it.

use crate::{
    args::{ClientArgs, RemoteArgs},
    config::{self, Surroundings},
    contexts::{Context, Contexts, DEFAULT},
    failure::Failure,
};
use kennel_client::{Address, Credentials, Tls, Token};
use std::path::PathBuf;

/// A server to call.
#[derive(Clone, Debug)]
pub(crate) struct Target {
    pub(crate) address: Address,
    pub(crate) credentials: Credentials,
    /// Target node of calls; absent: the server's own.
    pub(crate) node: Option<String>,
}

/// Returns the server that flags, variables or the current context name; `None`: none of them does.
pub(crate) fn named(client: &ClientArgs, here: &Surroundings) -> Result<Option<Target>, Failure> {
    let context = context(client, here)?;
    let Some(context) = context else {
        return Ok(None);
    };
    let target = target(&context, here)?;
    if client.remote.any() && matches!(target.address, Address::Unix(_)) {
        return Err(
            Failure::new("a unix socket takes neither certificates nor a token")
                .hint("name a server on the network with --server tcp://HOST:PORT"),
        );
    }
    with_both(target, client, here).map(Some)
}

/// Adds the target node of calls, and the user that the server may run as.
fn with_both(
    mut target: Target,
    client: &ClientArgs,
    here: &Surroundings,
) -> Result<Target, Failure> {
    let node = client.node.as_deref().or(here.var("KENNEL_NODE"));
    target.node = node.map(str::to_owned);
    let uid = |text: &str| {
        let uid = text.parse::<u32>();
        uid.map_err(|_| format!("{text:?} is not the number of a user"))
    };
    target.credentials.server_user = here.setting(client.server_user, "KENNEL_SERVER_USER", uid)?;
    Ok(target)
}

/// Returns the server, be it the default one.
pub(crate) fn server(client: &ClientArgs, here: &Surroundings) -> Result<Target, Failure> {
    match named(client, here)? {
        Some(target) => Ok(target),
        None if client.remote.any() => Err(Failure::new(
            "certificates and tokens are for a server on the network, and none is named",
        )
        .hint("name it with --server tcp://HOST:PORT, KENNEL_SERVER or --context")),
        None => with_both(target_of_socket(None, here)?, client, here),
    }
}

/// Returns the settings in force, as a context.
fn context(client: &ClientArgs, here: &Surroundings) -> Result<Option<Context>, Failure> {
    let flags = &client.remote;
    if let Some(server) = &client.server {
        return Ok(Some(above(flags, above_variables(server, here))));
    }
    if let Some(name) = &flags.context {
        // It was given on the command line, so it wins over variables.
        return Ok(of_name(name, here)?.map(|context| above(flags, context)));
    }
    let by_variable = match (here.var("KENNEL_SERVER"), here.var("KENNEL_CONTEXT")) {
        (Some(_), Some(_)) => {
            return Err(
                Failure::new("KENNEL_SERVER and KENNEL_CONTEXT are both set")
                    .hint("unset one of them"),
            );
        }
        (Some(server), None) => return Ok(Some(above(flags, above_variables(server, here)))),
        (None, name) => name,
    };
    let context = match by_variable {
        Some(name) => of_name(name, here)?,
        None => match Contexts::read(here)?.current {
            Some(name) => of_name(&name, here)?,
            None => None,
        },
    };
    let variables = of_variables(here);
    Ok(context.map(|context| above(flags, above(&variables, context))))
}

fn of_name(name: &str, here: &Surroundings) -> Result<Option<Context>, Failure> {
    if name == DEFAULT {
        return Ok(None);
    }
    Contexts::read(here)?.get(name).cloned().map(Some)
}

fn above_variables(server: &str, here: &Surroundings) -> Context {
    let context = Context {
        server: server.to_owned(),
        ..Context::default()
    };
    above(&of_variables(here), context)
}

fn of_variables(here: &Surroundings) -> RemoteArgs {
    let path = |name: &str| here.var(name).map(PathBuf::from);
    RemoteArgs {
        context: None,
        tls_ca: path("KENNEL_TLS_CA"),
        tls_cert: path("KENNEL_TLS_CERT"),
        tls_key: path("KENNEL_TLS_KEY"),
        tls_server_name: here.var("KENNEL_TLS_SERVER_NAME").map(str::to_owned),
        token_file: path("KENNEL_TOKEN_FILE"),
    }
}

/// Returns the given values, completed by the context. Certificate and key belong together.
pub(crate) fn above(given: &RemoteArgs, context: Context) -> Context {
    let pair = if given.tls_cert.is_some() || given.tls_key.is_some() {
        (given.tls_cert.clone(), given.tls_key.clone())
    } else {
        (context.certificate, context.key)
    };
    Context {
        server: context.server,
        ca: given.tls_ca.clone().or(context.ca),
        certificate: pair.0,
        key: pair.1,
        server_name: given.tls_server_name.clone().or(context.server_name),
        token_file: given.token_file.clone().or(context.token_file),
    }
}

/// Returns the server of a context.
pub(crate) fn target(context: &Context, here: &Surroundings) -> Result<Target, Failure> {
    if !context.server.starts_with("tcp:") {
        let mut target = target_of_socket(Some(&context.server), here)?;
        target.credentials.token = token_of_run(here).map(Token::File);
        return Ok(target);
    }
    let address = context.server.parse().map_err(|_| {
        Failure::new(format!("{:?} is not an address", context.server))
            .hint("write it as tcp://HOST:PORT")
    })?;
    if context.certificate.is_some() != context.key.is_some() {
        return Err(
            Failure::new("a certificate and its key must be given together")
                .hint("name both with --tls-cert and --tls-key"),
        );
    }
    Ok(Target {
        address,
        node: None,
        credentials: Credentials {
            tls: Tls {
                ca: context.ca.clone(),
                certificate: context.certificate.clone(),
                key: context.key.clone(),
                server_name: context.server_name.clone(),
            },
            token: context.token_file.clone().map(Token::File),
            server_user: None,
            local_pings: None,
            is_shared: false,
        },
    })
}

/// The file with the token of the run that this process is of. Over a unix socket no other token is sent.
fn token_of_run(here: &Surroundings) -> Option<PathBuf> {
    here.var("KENNEL_RUN_TOKEN_FILE").map(PathBuf::from)
}

fn target_of_socket(text: Option<&str>, here: &Surroundings) -> Result<Target, Failure> {
    Ok(Target {
        address: config::server_address(text, here)?,
        node: None,
        credentials: Credentials::default(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::Cli;
    use clap::Parser as _;

    fn here(dir: &tempfile::TempDir, env: &[(&str, &str)]) -> Surroundings {
        let home = ("XDG_CONFIG_HOME", dir.path().to_str().expect("UTF-8"));
        Surroundings {
            root: true,
            ..Surroundings::of(&[env, &[home]].concat())
        }
    }

    /// Makes a directory with the contexts `prod`, the current one, and `test`.
    fn contexts() -> tempfile::TempDir {
        let dir = tempfile::tempdir().expect("a directory");
        let context = |name: &str| Context {
            server: format!("tcp://{name}:1"),
            ca: Some(format!("/{name}/ca").into()),
            certificate: Some(format!("/{name}/cert").into()),
            key: Some(format!("/{name}/key").into()),
            server_name: None,
            token_file: Some(format!("/{name}/token").into()),
        };
        let contexts = Contexts {
            current: Some("prod".to_owned()),
            entries: ["prod", "test"]
                .map(|name| (name.to_owned(), context(name)))
                .into(),
        };
        let write = |there: &mut Contexts| {
            *there = contexts;
            Ok(())
        };
        Contexts::change(&here(&dir, &[]), write).expect("written");
        dir
    }

    fn resolved(words: &str, here: &Surroundings) -> Result<Target, String> {
        let words = ["kennel", "ps"].into_iter().chain(words.split_whitespace());
        let cli = Cli::try_parse_from(words).map_err(|error| error.to_string())?;
        server(&cli.client, here).map_err(|failure| failure.to_string())
    }

    fn shown(target: &Target) -> String {
        let path = |path: &Option<PathBuf>| {
            path.as_ref()
                .map(|p| p.display().to_string())
                .unwrap_or_default()
        };
        let Credentials { tls, token, .. } = &target.credentials;
        let token = match token {
            Some(Token::File(file)) => file.display().to_string(),
            _ => String::new(),
        };
        let files = [&tls.ca, &tls.certificate, &tls.key].map(path).join(" ");
        format!("{} {files} {token}", target.address)
    }

    #[test]
    fn flags_win_over_variables_and_variables_over_contexts() {
        let dir = contexts();
        let none = here(&dir, &[]);
        let ca = ("KENNEL_TLS_CA", "/v/ca");
        let set = here(&dir, &[ca, ("KENNEL_TOKEN_FILE", "/v/token")]);
        let elsewhere = here(&dir, &[ca, ("KENNEL_SERVER", "tcp://v:1")]);
        let other = here(&dir, &[ca, ("KENNEL_CONTEXT", "test")]);
        let test = "tcp://test:1 /test/ca /test/cert /test/key /test/token";
        for (words, here, expected) in [
            (
                "",
                &none,
                "tcp://prod:1 /prod/ca /prod/cert /prod/key /prod/token",
            ),
            ("", &set, "tcp://prod:1 /v/ca /prod/cert /prod/key /v/token"),
            (
                "--tls-ca /f/ca",
                &set,
                "tcp://prod:1 /f/ca /prod/cert /prod/key /v/token",
            ),
            ("", &elsewhere, "tcp://v:1 /v/ca   "),
            (
                "",
                &other,
                "tcp://test:1 /v/ca /test/cert /test/key /test/token",
            ),
            ("--context test", &set, test),
            ("--context test", &elsewhere, test),
            (
                "--context default",
                &set,
                "unix:/run/kennel/kennel.sock    ",
            ),
            ("--server unix:/s", &set, "unix:/s    "),
        ] {
            let target = resolved(words, here).expect(words);
            assert_eq!(shown(&target), expected, "{words}");
        }
    }

    #[test]
    fn token_is_sent_only_from_within_a_run() {
        let dir = contexts();
        let server = ("KENNEL_SERVER", "unix:/s");
        let token = ("KENNEL_TOKEN_FILE", "/v/token");
        let outside = resolved("", &here(&dir, &[server, token])).expect("a socket");
        assert_eq!(shown(&outside), "unix:/s    ");
        let run = ("KENNEL_RUN_TOKEN_FILE", "/r/token");
        let inside = resolved("", &here(&dir, &[server, token, run])).expect("a socket");
        assert_eq!(shown(&inside), "unix:/s    /r/token");
        let remote = ("KENNEL_SERVER", "tcp://v:1");
        let abroad = resolved("", &here(&dir, &[remote, run])).expect("a server");
        assert_eq!(shown(&abroad), "tcp://v:1    ");
    }

    #[test]
    fn context_secrets_go_to_its_server_only() {
        let dir = contexts();
        let target = resolved("--server tcp://f:1", &here(&dir, &[])).expect("an address");
        assert_eq!(shown(&target), "tcp://f:1    ");
        let split =
            resolved("--tls-cert /f/cert", &here(&dir, &[])).expect_err("its key is missing");
        assert!(split.contains("together"), "{split}");
    }

    #[test]
    fn unusable_combinations_are_refused() {
        let dir = contexts();
        let none = here(&dir, &[]);
        let both = here(
            &dir,
            &[("KENNEL_SERVER", "unix:/s"), ("KENNEL_CONTEXT", "test")],
        );
        for (words, here, said) in [
            (
                "--context nowhere",
                &none,
                "there is no context \"nowhere\"",
            ),
            (
                "--context test --server unix:/s",
                &none,
                "cannot be used with",
            ),
            (
                "--server unix:/s --tls-ca /x",
                &none,
                "a unix socket takes neither",
            ),
            ("--context default --tls-ca /x", &none, "none is named"),
            ("--server tcp://x", &none, "tcp://HOST:PORT"),
            ("", &both, "are both set"),
        ] {
            let refused = resolved(words, here).expect_err(words);
            assert!(refused.contains(said), "{words}: {refused}");
        }
    }
}
