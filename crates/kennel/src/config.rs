//! Paths and addresses: flags win over the environment, the environment over the defaults.
//!
//! The environment comes in as a value, so that every rule here is testable. A variable that is set to the empty text
//! counts as not set.

use crate::{
    args::ServeFlags,
    failure::{Failure, because},
    http::HttpAddress,
    listen,
};
use kennel_client::Address;
use kennel_keeper::keeper::ListenAddress;
use kennel_store::StoreUrl;
use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
};

/// `sun_path` of unix(7), less the closing NUL.
const SOCKET_PATH_BYTES_MAX: usize = 107;

/// Surroundings of a process at its start.
#[derive(Clone, Debug, Default)]
pub(crate) struct Surroundings {
    /// Whether it runs as uid 0.
    pub(crate) root: bool,
    /// Its environment, without values that are not UTF-8.
    pub(crate) env: BTreeMap<String, String>,
    /// Names of those values, as far as they are UTF-8.
    pub(crate) skipped: Vec<String>,
}

impl Surroundings {
    /// Returns those of this process.
    pub(crate) fn here() -> Self {
        let mut here = Self {
            root: kennel_linux::effective_uid() == 0,
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

    /// Returns a variable that is set.
    pub(crate) fn var(&self, name: &str) -> Option<&str> {
        self.env
            .get(name)
            .map(String::as_str)
            .filter(|v| !v.is_empty())
    }

    /// Returns a flag, else its variable.
    pub(crate) fn setting<T>(
        &self,
        flag: Option<T>,
        name: &str,
        read: impl FnOnce(&str) -> Result<T, String>,
    ) -> Result<Option<T>, Failure> {
        match (flag, self.var(name)) {
            (Some(flag), _) => Ok(Some(flag)),
            (None, Some(text)) => {
                let value = read(text).map_err(|why| Failure::new(format!("{name}: {why}")))?;
                Ok(Some(value))
            }
            (None, None) => Ok(None),
        }
    }

    /// Returns the default path of the configuration file.
    pub(crate) fn default_config_file(&self) -> Option<PathBuf> {
        if self.root {
            return Some(PathBuf::from("/etc/kennel/kennel.toml"));
        }
        Some(self.config_dir()?.join("kennel.toml"))
    }

    /// Returns this user's directory for files about Kennel; absent: the environment names none.
    pub(crate) fn config_dir(&self) -> Option<PathBuf> {
        let config = self.dir("XDG_CONFIG_HOME").map(Path::to_owned);
        let config = config.or_else(|| Some(self.dir("HOME")?.join(".config")));
        Some(config?.join("kennel"))
    }

    /// Returns a directory from the environment. By the XDG specification a path that is not absolute is ignored.
    fn dir(&self, name: &str) -> Option<&Path> {
        self.var(name).map(Path::new).filter(|p| p.is_absolute())
    }

    fn default_data_dir(&self) -> Result<PathBuf, Failure> {
        if self.root {
            return Ok(PathBuf::from("/var/lib/kennel"));
        }
        if let Some(state) = self.dir("XDG_STATE_HOME") {
            return Ok(state.join("kennel"));
        }
        match self.dir("HOME") {
            Some(home) => Ok(home.join(".local/state/kennel")),
            None => Err(
                Failure::new("there is no default data directory: HOME is not set")
                    .hint("name one with --data-dir DIR or KENNEL_DATA_DIR"),
            ),
        }
    }

    pub(crate) fn default_socket(&self) -> Result<PathBuf, Failure> {
        if self.root {
            return Ok(PathBuf::from("/run/kennel/kennel.sock"));
        }
        match self.dir("XDG_RUNTIME_DIR") {
            Some(runtime) => Ok(runtime.join("kennel/kennel.sock")),
            None => Ok(self.default_data_dir()?.join("kennel.sock")),
        }
    }
}

/// Reads `unix:PATH` or `unix://PATH`, and returns the absolute path of the socket.
pub(crate) fn socket(text: &str) -> Result<PathBuf, Failure> {
    let Some(path) = text.strip_prefix("unix:") else {
        let of_http = ["http://", "https://"];
        let of_http = of_http.iter().find_map(|scheme| text.strip_prefix(scheme));
        let of_network = of_http.or(Some(text)).filter(|text| {
            let port = text.rsplit_once(':').map(|(_, port)| port.parse::<u16>());
            matches!(port, Some(Ok(_))) && !text.contains('/')
        });
        return Err(
            Failure::new(format!("{text:?} is not an address")).hint(match of_network {
                Some(at) if !at.starts_with("tcp:") => format!("did you mean tcp://{at}"),
                _ if text.contains('/') && of_http.is_none() => format!("did you mean unix:{text}"),
                _ => "write it as unix:PATH, or tcp://HOST:PORT".to_owned(),
            }),
        );
    };
    let path = path.strip_prefix("//").unwrap_or(path);
    if path.is_empty() || path.ends_with('/') {
        return Err(Failure::new(format!("{text:?} names no socket file")));
    }
    let socket = absolute(Path::new(path))?;
    if socket.as_os_str().len() > SOCKET_PATH_BYTES_MAX {
        return Err(Failure::new(format!(
            "the path of the socket is longer than {SOCKET_PATH_BYTES_MAX} bytes: {}",
            socket.display()
        )));
    }
    Ok(socket)
}

/// Returns the address of the server for a client: `--server`, `KENNEL_SERVER`, the default socket.
pub(crate) fn server_address(flag: Option<&str>, here: &Surroundings) -> Result<Address, Failure> {
    let path = match flag.or_else(|| here.var("KENNEL_SERVER")) {
        Some(text) => socket(text)?,
        // The server's reason is its data directory, which a client cannot set.
        None => here.default_socket().map_err(|_| {
            Failure::new("there is no default socket: neither XDG_RUNTIME_DIR nor HOME is set")
                .hint("name the server with --server unix:PATH or KENNEL_SERVER")
        })?,
    };
    Ok(Address::Unix(path))
}

/// Addresses and paths of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ServeConfig {
    /// Addresses to listen at; at least one.
    pub(crate) listen: Vec<ListenAddress>,
    /// Address for other nodes.
    pub(crate) advertise: String,
    /// Display name; absent: the host's name.
    pub(crate) node_name: Option<String>,
    /// Address of health over HTTP.
    pub(crate) health: Option<HttpAddress>,
    /// The access file.
    pub(crate) access: Option<PathBuf>,
    pub(crate) store: StoreUrl,
    pub(crate) data_dir: PathBuf,
}

impl ServeConfig {
    pub(crate) fn resolve(flags: &ServeFlags, here: &Surroundings) -> Result<Self, Failure> {
        let path = |flag: &Option<PathBuf>, name: &str| {
            let path = flag.as_deref().or(here.var(name).map(Path::new));
            path.map(absolute).transpose()
        };
        let data_dir = match path(&flags.data_dir, "KENNEL_DATA_DIR")? {
            Some(dir) => dir,
            None => here.default_data_dir()?,
        };
        let listen = listen::addresses(&flags.listen, here)?;
        let advertise = flags.advertise.as_deref().or(here.var("KENNEL_ADVERTISE"));
        let advertise = listen::advertised(advertise, &listen)?;
        let node_name = flags.node_name.as_deref().or(here.var("KENNEL_NODE_NAME"));
        let node_name = node_name.map(listen::node_name).transpose()?;
        let health = flags.health_listen.as_deref();
        let health = health.or(here.var("KENNEL_HEALTH_LISTEN"));
        let health = health.map(HttpAddress::parse).transpose()?;
        let access = path(&flags.access, "KENNEL_ACCESS")?;
        if listen::has_port(&listen) && access.is_none() {
            return Err(
                Failure::new("a TCP port needs certificates, and rules for who may call")
                    .hint("name the access file with --access FILE"),
            );
        }
        let store = store(flags, here, &data_dir)?;
        Ok(Self {
            listen,
            advertise,
            node_name,
            health,
            access,
            store,
            data_dir,
        })
    }
}

fn store(flags: &ServeFlags, here: &Surroundings, data_dir: &Path) -> Result<StoreUrl, Failure> {
    if let Some(url) = &flags.store {
        return parse_store(url);
    }
    if let Some(file) = &flags.store_file {
        return store_in_file(file);
    }
    match (here.var("KENNEL_STORE"), here.var("KENNEL_STORE_FILE")) {
        (Some(_), Some(_)) => Err(
            Failure::new("KENNEL_STORE and KENNEL_STORE_FILE are both set")
                .hint("unset one of them"),
        ),
        (Some(url), None) => parse_store(url),
        (None, Some(file)) => store_in_file(Path::new(file)),
        (None, None) => Ok(StoreUrl::sqlite(data_dir.join("kennel.db"))),
    }
}

/// Parses a store URL. An error does not repeat the text: a password may be in it.
pub(crate) fn parse_store(url: &str) -> Result<StoreUrl, Failure> {
    url.parse().map_err(|cause| {
        Failure::new(format!("the store's URL cannot be used: {cause}"))
            .hint("for example --store sqlite:/var/lib/kennel/kennel.db")
    })
}

/// Reads the URL from a file: so a password stays out of argv and environment.
pub(crate) fn store_in_file(file: &Path) -> Result<StoreUrl, Failure> {
    let name = file.display();
    let text = fs::read_to_string(file);
    let text = text.map_err(because(format_args!(
        "cannot read the store's URL from {name}"
    )))?;
    match text.trim() {
        "" => Err(Failure::new(format!("{name} is empty"))
            .hint("write the store's URL into it: sqlite:PATH or postgres://...")),
        url => Ok(parse_store(url)?.in_file(file)),
    }
}

/// Reads a file at a default path; absent: it does not exist, as far as this user may see. HOME may be another user's.
pub(crate) fn read_default(path: &Path) -> io::Result<Option<String>> {
    match fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(_) if path.symlink_metadata().is_err() => Ok(None),
        Err(error) => Err(error),
    }
}

fn absolute(path: &Path) -> Result<PathBuf, Failure> {
    let name = path.display();
    std::path::absolute(path).map_err(because(format_args!(
        "{name} cannot be made an absolute path"
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Surroundings {
        /// Returns those of a user with these variables alone.
        pub(crate) fn of(env: &[(&str, &str)]) -> Self {
            let owned = |&(name, value): &(&str, &str)| (name.to_owned(), value.to_owned());
            Self {
                env: env.iter().map(owned).collect(),
                ..Self::default()
            }
        }
    }

    fn root(env: &[(&str, &str)]) -> Surroundings {
        Surroundings {
            root: true,
            ..Surroundings::of(env)
        }
    }

    fn resolved(flags: &ServeFlags, here: &Surroundings) -> ServeConfig {
        match ServeConfig::resolve(flags, here) {
            Ok(config) => config,
            Err(failure) => panic!("refused: {failure}"),
        }
    }

    fn refusal(flags: &ServeFlags, here: &Surroundings) -> String {
        match ServeConfig::resolve(flags, here) {
            Ok(config) => panic!("accepted: {:?}", config.listen),
            Err(failure) => failure.to_string(),
        }
    }

    #[test]
    fn places_are_those_of_the_system_or_user() {
        let system = [("XDG_STATE_HOME", "/x")];
        // An empty variable counts as not set.
        let empty = [("KENNEL_LISTEN", ""), ("KENNEL_STORE", "")];
        let home = [("HOME", "/home/u"), ("XDG_STATE_HOME", "not/absolute")];
        let xdg = [
            ("XDG_RUNTIME_DIR", "/run/user/1000"),
            ("XDG_STATE_HOME", "/s"),
            ("HOME", "/home/u"),
        ];
        let (below, state) = ("/run/user/1000/kennel", "/home/u/.local/state/kennel");
        for (here, socket_dir, data_dir) in [
            (root(&system), "/run/kennel", "/var/lib/kennel"),
            (root(&empty), "/run/kennel", "/var/lib/kennel"),
            (Surroundings::of(&xdg), below, "/s/kennel"),
            (Surroundings::of(&home), state, state),
        ] {
            let config = resolved(&ServeFlags::default(), &here);
            let socket = format!("unix:{socket_dir}/kennel.sock");
            assert_eq!(config.listen[0].to_string(), socket, "{here:?}");
            assert_eq!(config.data_dir, Path::new(data_dir), "{here:?}");
            let store = format!("sqlite:{data_dir}/kennel.db");
            assert_eq!(config.store.to_string(), store, "{here:?}");
        }
    }

    #[test]
    fn user_without_home_must_name_a_directory() {
        assert!(
            refusal(&ServeFlags::default(), &Surroundings::of(&[])).contains("HOME is not set")
        );
        let client = server_address(None, &Surroundings::of(&[])).map_err(|f| f.to_string());
        assert!(
            client.is_err_and(|said| said.contains("--server unix:PATH")),
            "the message names a flag of the client"
        );
    }

    #[test]
    fn client_and_server_have_the_same_default_socket() {
        for here in [
            root(&[]),
            Surroundings::of(&[("XDG_RUNTIME_DIR", "/r"), ("HOME", "/h")]),
            Surroundings::of(&[("HOME", "/h")]),
        ] {
            let client = server_address(None, &here).map_err(|f| f.to_string());
            let served = resolved(&ServeFlags::default(), &here).listen;
            let client = client.expect("an address").to_string();
            assert_eq!(client, served[0].to_string());
        }
    }

    #[test]
    fn flags_win_over_environment_and_environment_over_defaults() {
        let here = root(&[
            ("KENNEL_LISTEN", "unix:/e/sock"),
            ("KENNEL_DATA_DIR", "/e/data"),
            ("KENNEL_STORE", "postgres://e/db"),
            ("KENNEL_SERVER", "unix:/e/server"),
        ]);
        let config = resolved(&ServeFlags::default(), &here);
        assert_eq!(config.listen[0].to_string(), "unix:/e/sock");
        assert_eq!(config.data_dir, Path::new("/e/data"));
        assert_eq!(config.store.to_string(), "postgres://e/db");

        let flags = ServeFlags {
            listen: vec!["unix:/f/sock".to_owned()],
            store: Some("sqlite:/f/db".to_owned()),
            data_dir: Some(PathBuf::from("/f/data")),
            ..ServeFlags::default()
        };
        let config = resolved(&flags, &here);
        assert_eq!(config.listen[0].to_string(), "unix:/f/sock");
        assert_eq!(config.advertise, "unix:/f/sock");
        assert_eq!(config.data_dir, Path::new("/f/data"));
        assert_eq!(config.store.to_string(), "sqlite:/f/db");

        let address = |flag| server_address(flag, &here).map(|a| a.to_string()).ok();
        assert_eq!(address(None).as_deref(), Some("unix:/e/server"));
        assert_eq!(address(Some("unix:/f")).as_deref(), Some("unix:/f"));
    }

    #[test]
    fn the_default_store_lies_in_the_data_directory() {
        let flags = ServeFlags {
            data_dir: Some(PathBuf::from("/d")),
            ..ServeFlags::default()
        };
        assert_eq!(
            resolved(&flags, &root(&[])).store.to_string(),
            "sqlite:/d/kennel.db"
        );
    }

    #[test]
    fn the_stores_url_can_come_from_a_file() -> std::io::Result<()> {
        let dir = tempfile::tempdir()?;
        let file = dir.path().join("url");
        std::fs::write(&file, "postgres://kennel:secret@db/kennel\n")?;
        let flags = ServeFlags {
            store_file: Some(file.clone()),
            ..ServeFlags::default()
        };
        // The flag for a file wins over a variable for a URL.
        let here = root(&[("KENNEL_STORE", "sqlite:/x")]);
        assert_eq!(
            resolved(&flags, &here).store,
            "postgres://kennel:secret@db/kennel"
                .parse::<StoreUrl>()
                .expect("it is well formed")
                .in_file(&file)
        );

        std::fs::write(&file, "\n")?;
        assert!(refusal(&flags, &here).contains("is empty"));
        std::fs::remove_file(&file)?;
        assert!(refusal(&flags, &here).contains("cannot read the store's URL"));
        Ok(())
    }

    #[test]
    fn unreadable_store_is_refused_without_its_password() {
        for url in [
            "mysql://u:secret@h/d",
            "postgres://u:secret@h:port/d",
            "sqlite:",
        ] {
            let flags = ServeFlags {
                store: Some(url.to_owned()),
                ..ServeFlags::default()
            };
            let refused = refusal(&flags, &root(&[]));
            assert!(!refused.contains("secret"), "{refused}");
        }
    }

    #[test]
    fn two_variables_for_one_store_are_refused() {
        let here = root(&[("KENNEL_STORE", "sqlite:/x"), ("KENNEL_STORE_FILE", "/y")]);
        assert!(refusal(&ServeFlags::default(), &here).contains("both set"));
    }

    #[test]
    fn port_needs_an_access_file() {
        let flags = ServeFlags {
            listen: vec!["tcp://127.0.0.1:50051".to_owned()],
            ..ServeFlags::default()
        };
        assert!(refusal(&flags, &root(&[])).contains("needs certificates"));
        let flags = ServeFlags {
            access: Some("/etc/kennel/access.toml".into()),
            ..flags
        };
        let config = resolved(&flags, &root(&[]));
        assert_eq!(config.listen[0].to_string(), "tcp:127.0.0.1:50051");
    }

    #[test]
    fn addresses_are_unix_sockets_with_an_absolute_path() {
        let parse = |text: &str| socket(text).ok();
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
