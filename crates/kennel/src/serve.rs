//! `kennel serve`: the keeper, and the server that the keeper starts.

use crate::{
    args::{CgroupUse, ORPHAN_TTL_DEFAULT, ServeArgs},
    config::ServeConfig,
    http::HttpAddress,
    server::{self, LOST},
    settings::Settings,
    telemetry,
};
use clap::ArgMatches;
use kennel_cli::{
    ClientArgs, Failure,
    failure::{in_time, note},
};
use kennel_client::{Surroundings, shown};
use kennel_keeper::keeper::{self, CgroupChoice, KeeperConfig, KeeperError, ServiceManager};
use kennel_lifecycle::limits;
use std::{
    ffi::OsString,
    path::{Path, PathBuf},
    time::Duration,
};

/// Exit code of an unusable command line or configuration.
const UNUSABLE: u8 = 2;

/// Most sockets of a service manager: all go to a server in one message.
const PASSED_SOCKETS_MAX: usize = 64;

/// Variables that a binary gets when it is checked.
const PREFLIGHT_VARIABLES: [&str; 2] = ["PATH", "LD_LIBRARY_PATH"];

/// Becomes the keeper, and returns the exit code. `words` is the command line, which is passed to the server: it finds
/// the store by itself, and a password in the environment does not get into argv.
pub(crate) fn keeper(
    client: &ClientArgs,
    typed: &ArgMatches,
    (here, words): (&Surroundings, &[OsString]),
) -> Result<i32, Failure> {
    let (settings, usable) = usable_by(client, typed, here)?;
    let Usable {
        flags,
        config,
        private,
    } = usable;
    let code = keeper::run(&KeeperConfig {
        data_dir: config.data_dir,
        listen: config.listen,
        passed_sockets: passed_sockets(here)?,
        server_argv: server_words(words, &settings),
        cgroup: match flags.cgroup.unwrap_or_default() {
            CgroupUse::Auto => CgroupChoice::Auto,
            CgroupUse::Stay => CgroupChoice::Stay,
            CgroupUse::Off => CgroupChoice::Off,
        },
        preflight_env: PREFLIGHT_VARIABLES
            .iter()
            .filter_map(|name| Some(((*name).to_owned(), here.env.get(*name)?.clone())))
            .collect(),
        orphan_ttl: flags.orphan_ttl.unwrap_or(ORPHAN_TTL_DEFAULT),
        shutdown_timeout: (flags.shutdown_timeout).unwrap_or(limits::SHUTDOWN_TIMEOUT_DEFAULT),
        memory_reserve: flags.memory_reserve,
        default_limits: flags.default_limits()?,
        service_manager: service_manager(here),
        private,
    })
    .map_err(|error| not_kept(&error))?;
    if code == i32::from(LOST) {
        // The server has not reported: it was the lost component.
        let failure = Failure::new("the service has ended without its server, every run was ended");
        return Err(failure
            .code(LOST)
            .hint("the next start records how they ended"));
    }
    // Only a signal ends the service in order.
    Ok(match code {
        0 => flags.exit_code_on_signal.unwrap_or_default().into(),
        code => code,
    })
}

/// Settings that are no values of flags.
pub(crate) struct Usable {
    flags: ServeArgs,
    pub(crate) config: ServeConfig,
    /// Paths beside the data directory that are none of a run's.
    private: Vec<PathBuf>,
}

/// Reads those of a command line, which must have no flags of clients.
pub(crate) fn usable_by(
    client: &ClientArgs,
    typed: &ArgMatches,
    here: &Surroundings,
) -> Result<(Settings, Usable), Failure> {
    if client.any() {
        return Err(
            Failure::new("--server and --output are for commands that ask a server")
                .code(UNUSABLE)
                .hint("where to listen is said by --listen unix:PATH"),
        );
    }
    usable(typed, here).map_err(|failure| failure.or_code(UNUSABLE))
}

/// Reads all settings, also those that only the server needs: an unusable value is reported to the caller before
/// anything is started.
pub(crate) fn usable(
    typed: &ArgMatches,
    here: &Surroundings,
) -> Result<(Settings, Usable), Failure> {
    let settings = Settings::read(typed, here)?;
    match read(typed, &settings.here) {
        Ok(mut usable) => {
            usable.private.extend(settings.file().map(Path::to_owned));
            Ok((settings, usable))
        }
        Err(failure) => Err(settings.blame(failure)),
    }
}

fn read(typed: &ArgMatches, here: &Surroundings) -> Result<Usable, Failure> {
    let flags = ServeArgs::completed(typed, here)?;
    flags.default_limits()?;
    flags.default_grace()?;
    let scraped_at = flags.telemetry.resolve(here)?.scraped_at;
    telemetry::filter(flags.log.as_deref())?;
    let config = ServeConfig::resolve(&flags.base, here)?;
    let secrets = flags.secrets(here, &config.data_dir)?;
    let access = server::access(&config)?;
    let health = config.health.as_ref();
    let served = health.into_iter().chain(&scraped_at);
    let database = config.store.file().into_iter().flat_map(beside_database);
    let store_file = flags.base.store_file.clone();
    let store_file = store_file.or(here.var("KENNEL_STORE_FILE").map(PathBuf::from));
    let private = secrets.dirs.into_iter().chain(secrets.credentials_dir);
    let private = private.chain(access.private_files());
    let private = private.chain(served.filter_map(HttpAddress::socket).cloned());
    let private = private.chain(database).chain(store_file);
    let private = private
        .map(|path| std::path::absolute(&path).unwrap_or(path))
        .collect();
    Ok(Usable {
        flags,
        config,
        private,
    })
}

/// Returns the files of a database in a file.
fn beside_database(path: &Path) -> [PathBuf; 3] {
    ["", "-wal", "-shm"].map(|end| {
        let mut file = path.as_os_str().to_owned();
        file.push(end);
        file.into()
    })
}

/// Returns the service manager, as `sd_notify(3)` and `sd_watchdog_enabled(3)` find it. A watchdog of another process
/// does not count.
fn service_manager(here: &Surroundings) -> ServiceManager {
    let of_this = |pid: &str| pid.parse() == Ok(std::process::id());
    let is_ours = here.var("WATCHDOG_PID").is_none_or(of_this);
    let usec = here.var("WATCHDOG_USEC").filter(|_| is_ours);
    let watchdog = usec.and_then(|usec| usec.parse().ok());
    let Some(name) = here.var("NOTIFY_SOCKET") else {
        return ServiceManager::default();
    };
    let connected = ServiceManager::connect(name, watchdog.map(Duration::from_micros));
    connected.unwrap_or_else(|error| {
        let text = format!("cannot reach the service manager at NOTIFY_SOCKET: {error}");
        in_time(move || note(&text));
        ServiceManager::default()
    })
}

/// Returns the names of the sockets that a service manager has passed to this process, as `sd_listen_fds(3)` finds them.
fn passed_sockets(here: &Surroundings) -> Result<Vec<String>, Failure> {
    let is_this = |pid: &str| pid.parse() == Ok(std::process::id());
    let Some(count) = here
        .var("LISTEN_FDS")
        .filter(|_| here.var("LISTEN_PID").is_some_and(is_this))
    else {
        return Ok(Vec::new());
    };
    let fits = |count: &usize| *count <= PASSED_SOCKETS_MAX;
    let count = count.parse().ok().filter(fits).ok_or_else(|| {
        let what =
            format!("LISTEN_FDS: {count:?} is not a number of sockets up to {PASSED_SOCKETS_MAX}");
        Failure::new(what).code(UNUSABLE)
    })?;
    let names = here.var("LISTEN_FDNAMES").unwrap_or_default().split(':');
    let names = names
        .map(str::to_owned)
        .chain(std::iter::repeat("unknown".to_owned()));
    Ok(names.take(count).collect())
}

/// Returns the words after the program's name, with `server` for `serve`, and the settings of the configuration file.
fn server_words(words: &[OsString], settings: &Settings) -> Vec<OsString> {
    let mut rest: Vec<OsString> = words.iter().skip(1).cloned().collect();
    if let Some(at) = rest.iter().position(|word| word == "serve") {
        rest.remove(at);
    }
    rest.insert(0, "server".into());
    rest.extend(settings.as_flags());
    rest
}

fn not_kept(error: &KeeperError) -> Failure {
    let failure = Failure::new(shown(error)).code(u8::try_from(error.exit_code()).unwrap_or(1));
    match error {
        KeeperError::LockBusy { .. } => {
            failure.hint("a server runs there already: kennel status; or name another --data-dir")
        }
        KeeperError::DataDir { .. } => failure.hint("name another with --data-dir DIR"),
        KeeperError::Listen { .. } => {
            failure.hint("name another with --listen unix:PATH or tcp:ADDRESS:PORT")
        }
        KeeperError::PassedSocket { .. } => failure
            .hint("each ListenStream= of the unit of the socket must be an address of --listen"),
        KeeperError::MemoryReserve { .. } => {
            failure.hint("set less with --memory-reserve, or give the service more memory")
        }
        KeeperError::DefaultLimits(_) => {
            failure.hint("set others with --default-limit; kennel status says what runs can have")
        }
        KeeperError::HardLimit(_) => failure.hint(
            "lift it: LimitFSIZE=infinity, LimitCPU=infinity in a unit of systemd, else as root",
        ),
        KeeperError::Server(_) | KeeperError::Host { .. } => failure,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::{Origin, Setting};

    #[test]
    fn server_gets_the_keepers_arguments_and_settings() {
        let words = |line: &str| line.split(' ').map(OsString::from).collect::<Vec<_>>();
        let settings = Settings {
            all: vec![Setting {
                key: "log_format".to_owned(),
                value: Some("json".to_owned()),
                origin: Origin::File("/f".into()),
            }],
            here: Surroundings::default(),
        };
        assert_eq!(
            server_words(&words("kennel serve --store serve --cgroup off"), &settings),
            words("server --store serve --cgroup off --config= --log-format=json")
        );
    }
}
