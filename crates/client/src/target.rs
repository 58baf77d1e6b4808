//! The server to call, and the credentials for it: flags win over variables, variables over the context, a context over
//! the default socket.
//!
//! A context is a whole: where a flag or a variable names another server, no credentials of the current context are
//! sent to it.

pub(crate) mod error;

use crate::{
    Address, ConnectError, Connection, Context, Contexts, Credentials, DEFAULT_CONTEXT,
    Surroundings, Tls, Token, connect_with,
};
use error::TargetError;
use std::path::{Path, PathBuf};

/// `sun_path` of unix(7), less the closing NUL.
pub(crate) const SOCKET_PATH_BYTES_MAX: usize = 107;

/// A server to call.
#[derive(Clone, Debug)]
pub struct Target {
    /// Its address.
    pub address: Address,
    /// Credentials for it.
    pub credentials: Credentials,
    /// Target node of calls; absent: the server's own.
    pub node: Option<String>,
}

/// What a caller has given, as by flags; it wins over all else.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Given {
    /// The context by its name.
    pub context: Option<String>,
    /// User that the server of a unix socket may run as, beside this one and root.
    pub server_user: Option<u32>,
    /// Target node of calls.
    pub node: Option<String>,
    /// The server, where it is not empty, and credentials.
    pub values: Context,
}

impl Target {
    /// Returns the server that the caller, variables or the current context name; `None`: none of them does.
    pub fn named(given: &Given, here: &Surroundings) -> Result<Option<Self>, TargetError> {
        let Some(context) = context(given, here)? else {
            return Ok(None);
        };
        let target = Self::of(&context, here)?;
        if given.values.has_credentials() && matches!(target.address, Address::Unix(_)) {
            return Err(TargetError::SocketWithCredentials);
        }
        target.with_both(given, here).map(Some)
    }

    /// Returns the server, be it the default one.
    pub fn resolve(given: &Given, here: &Surroundings) -> Result<Self, TargetError> {
        match Self::named(given, here)? {
            Some(target) => Ok(target),
            None if given.values.has_credentials() => Err(TargetError::CredentialsAlone),
            None => Self::of_socket(here.default_socket()?).with_both(given, here),
        }
    }

    /// Returns the server of a context. Over a unix socket the token of the run is sent that this process is of, and no
    /// other one.
    pub fn of(context: &Context, here: &Surroundings) -> Result<Self, TargetError> {
        if !context.server.starts_with("tcp:") {
            let mut target = Self::of_socket(socket_path(&context.server)?);
            let token = here.var("KENNEL_RUN_TOKEN_FILE");
            target.credentials.token = token.map(|file| Token::File(file.into()));
            return Ok(target);
        }
        let address = context.server.parse();
        let address = address.map_err(|_| TargetError::NotAnAddress(context.server.clone()))?;
        if context.certificate.is_some() != context.key.is_some() {
            return Err(TargetError::HalfCertificate);
        }
        let context = context.clone();
        let tls = Tls {
            ca: context.ca,
            certificate: context.certificate,
            key: context.key,
            server_name: context.server_name,
        };
        let credentials = Credentials {
            tls,
            token: context.token_file.map(Token::File),
            ..Credentials::default()
        };
        Ok(Self {
            address,
            credentials,
            node: None,
        })
    }

    /// Connects to it.
    pub async fn connect(&self) -> Result<Connection, ConnectError> {
        connect_with(&self.address, &self.credentials).await
    }

    fn of_socket(path: PathBuf) -> Self {
        Self {
            address: Address::Unix(path),
            credentials: Credentials::default(),
            node: None,
        }
    }

    /// Adds the target node of calls, and the user that the server may run as.
    fn with_both(mut self, given: &Given, here: &Surroundings) -> Result<Self, TargetError> {
        let node = given.node.as_deref().or(here.var("KENNEL_NODE"));
        self.node = node.map(str::to_owned);
        let text = here.var("KENNEL_SERVER_USER");
        let text = text.filter(|_| given.server_user.is_none());
        let wrong = |text: &str| TargetError::ServerUser(text.to_owned());
        let user = text.map(|text| text.parse().map_err(|_| wrong(text)));
        let user = user.transpose()?.or(given.server_user);
        self.credentials.server_user = user;
        Ok(self)
    }
}

/// Returns the settings in force, as a context.
fn context(given: &Given, here: &Surroundings) -> Result<Option<Context>, TargetError> {
    let (flags, variables) = (&given.values, of_variables(here));
    if !flags.server.is_empty() {
        return Ok(Some(flags.above(variables)));
    }
    if let Some(name) = &given.context {
        // A context named by the caller wins over variables.
        return Ok(of_name(name, here)?.map(|context| flags.above(context)));
    }
    let name = match (here.var("KENNEL_SERVER"), here.var("KENNEL_CONTEXT")) {
        (Some(_), Some(_)) => return Err(TargetError::TwoVariables),
        (Some(server), None) => {
            let server = server.to_owned();
            return Ok(Some(flags.above(Context {
                server,
                ..variables
            })));
        }
        (None, Some(name)) => Some(name.to_owned()),
        (None, None) => Contexts::read(here)?.current,
    };
    let context = name.map(|name| of_name(&name, here)).transpose()?.flatten();
    Ok(context.map(|context| flags.above(variables.above(context))))
}

fn of_name(name: &str, here: &Surroundings) -> Result<Option<Context>, TargetError> {
    if name == DEFAULT_CONTEXT {
        return Ok(None);
    }
    Contexts::read(here)?.get(name).cloned().map(Some)
}

fn of_variables(here: &Surroundings) -> Context {
    let path = |name: &str| here.var(name).map(PathBuf::from);
    Context {
        server: String::new(),
        ca: path("KENNEL_TLS_CA"),
        certificate: path("KENNEL_TLS_CERT"),
        key: path("KENNEL_TLS_KEY"),
        server_name: here.var("KENNEL_TLS_SERVER_NAME").map(str::to_owned),
        token_file: path("KENNEL_TOKEN_FILE"),
    }
}

/// Reads `unix:PATH` or `unix://PATH`, and returns the absolute path of the socket.
pub fn socket_path(text: &str) -> Result<PathBuf, TargetError> {
    let path = text.strip_prefix("unix:");
    let path = path.ok_or_else(|| TargetError::NotAnAddress(text.to_owned()))?;
    let path = path.strip_prefix("//").unwrap_or(path);
    if path.is_empty() || path.ends_with('/') {
        return Err(TargetError::NoFile(text.to_owned()));
    }
    let relative = |source| TargetError::Relative {
        path: path.into(),
        source,
    };
    let socket = std::path::absolute(Path::new(path)).map_err(relative)?;
    if socket.as_os_str().len() > SOCKET_PATH_BYTES_MAX {
        return Err(TargetError::LongPath(socket.display().to_string()));
    }
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

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
        let here = here(&dir, &[]);
        let path = Contexts::path(&here).expect("a place");
        fs::create_dir_all(path.parent().expect("a directory")).expect("made");
        let text = toml::to_string(&contexts).expect("it has a form");
        fs::write(path, text).expect("written");
        dir
    }

    /// Resolves flags, as the command line has them.
    fn resolved(words: &str, here: &Surroundings) -> Result<Target, String> {
        let mut given = Given::default();
        let words: Vec<&str> = words.split_whitespace().collect();
        for flag in words.chunks(2) {
            let value = flag[1].to_owned();
            match flag[0] {
                "--context" => given.context = Some(value),
                "--server" => given.values.server = value,
                "--tls-ca" => given.values.ca = Some(value.into()),
                "--tls-cert" => given.values.certificate = Some(value.into()),
                other => panic!("{other}"),
            }
        }
        Target::resolve(&given, here).map_err(|error| error.to_string())
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

    // promise: C-62
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

    // promise: C-62
    #[test]
    fn context_credentials_are_not_sent_to_other_servers() {
        let dir = contexts();
        let target = resolved("--server tcp://f:1", &here(&dir, &[])).expect("an address");
        assert_eq!(shown(&target), "tcp://f:1    ");
        let split =
            resolved("--tls-cert /f/cert", &here(&dir, &[])).expect_err("its key is missing");
        assert!(split.contains("together"), "{split}");
    }

    // promise: C-62
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
                "--server unix:/s --tls-ca /x",
                &none,
                "a unix socket takes neither",
            ),
            ("--context default --tls-ca /x", &none, "none is named"),
            ("--server tcp://x", &none, "is not an address"),
            ("", &both, "are both set"),
        ] {
            let refused = resolved(words, here).expect_err(words);
            assert!(refused.contains(said), "{words}: {refused}");
        }
    }

    #[test]
    fn unix_address_becomes_an_absolute_path() {
        let parse = |text: &str| socket_path(text).ok();
        assert_eq!(parse("unix:/a/b").as_deref(), Some(Path::new("/a/b")));
        assert_eq!(parse("unix:///a/b").as_deref(), Some(Path::new("/a/b")));
        let relative = parse("unix:b.sock").unwrap_or_default();
        assert!(
            relative.is_absolute() && relative.ends_with("b.sock"),
            "{relative:?}"
        );
        for text in ["", "/a/b", "unix:", "unix:/a/", "vsock:3", "localhost:1"] {
            assert_eq!(parse(text), None, "{text:?}");
        }
        assert_eq!(parse(&format!("unix:/{}", "a".repeat(107))), None);
    }
}
