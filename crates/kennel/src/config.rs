//! Paths and addresses: flags win over the environment, the environment over the defaults.
//!
//! The environment comes in as a value, so that every rule here is testable. A variable that is set to the empty text
//! counts as not set.

use crate::{args::ServeFlags, http::HttpAddress, listen};
use kennel_cli::{Failure, failure::because};
use kennel_client::Surroundings;
use kennel_keeper::keeper::ListenAddress;
use kennel_store::StoreUrl;
use std::{
    fs,
    path::{Path, PathBuf},
};

/// Returns the default path of the configuration file.
pub(crate) fn default_config_file(here: &Surroundings) -> Option<PathBuf> {
    if here.root {
        return Some(PathBuf::from("/etc/kennel/kennel.toml"));
    }
    Some(here.config_dir()?.join("kennel.toml"))
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
            None => here.default_data_dir().ok_or_else(|| {
                Failure::new("there is no default data directory: HOME is not set")
                    .hint("name one with --data-dir DIR or KENNEL_DATA_DIR")
            })?,
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

fn absolute(path: &Path) -> Result<PathBuf, Failure> {
    let name = path.display();
    std::path::absolute(path).map_err(because(format_args!(
        "{name} cannot be made an absolute path"
    )))
}

#[cfg(test)]
mod tests {
    use super::*;
    use kennel_client::{Given, Target, TargetError};

    fn server_address(server: Option<&str>, here: &Surroundings) -> Result<String, TargetError> {
        let mut given = Given::default();
        given.values.server = server.unwrap_or_default().to_owned();
        Ok(Target::resolve(&given, here)?.address.to_string())
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
    fn default_directories_depend_on_user() {
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
    fn user_without_home_must_set_a_directory() {
        assert!(
            refusal(&ServeFlags::default(), &Surroundings::of(&[])).contains("HOME is not set")
        );
        let client = server_address(None, &Surroundings::of(&[]));
        let client = client.map_err(|error| Failure::from(error).to_string());
        assert!(
            client.is_err_and(|said| said.contains("--server unix:PATH")),
            "the message names a flag of the client"
        );
    }

    // promise: C-7
    #[test]
    fn client_and_server_have_the_same_default_socket() {
        for here in [
            root(&[]),
            Surroundings::of(&[("XDG_RUNTIME_DIR", "/r"), ("HOME", "/h")]),
            Surroundings::of(&[("HOME", "/h")]),
        ] {
            let client = server_address(None, &here);
            let served = resolved(&ServeFlags::default(), &here).listen;
            let client = client.expect("an address");
            assert_eq!(client, served[0].to_string());
        }
    }

    // promise: C-7
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

        let address = |flag| server_address(flag, &here).ok();
        assert_eq!(address(None).as_deref(), Some("unix:/e/server"));
        assert_eq!(address(Some("unix:/f")).as_deref(), Some("unix:/f"));
    }

    #[test]
    fn default_store_is_in_the_data_directory() {
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
}
