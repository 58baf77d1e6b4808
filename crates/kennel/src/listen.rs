//! Listen addresses of a server, as in `--listen`.

use kennel_cli::Failure;
use kennel_client::{Surroundings, socket_path};
use kennel_keeper::keeper::ListenAddress;
use std::{net::SocketAddr, path::PathBuf};

/// Longest name of a node.
const NODE_NAME_BYTES_MAX: usize = 128;

/// Returns the addresses of `--listen`, else of `KENNEL_LISTEN`, separated by commas, else the default socket.
pub(crate) fn addresses(
    flags: &[String],
    here: &Surroundings,
) -> Result<Vec<ListenAddress>, Failure> {
    let variable = here.var("KENNEL_LISTEN").unwrap_or_default();
    let lists: Vec<&str> = match flags {
        [] => vec![variable],
        flags => flags.iter().map(String::as_str).collect(),
    };
    let texts = lists.into_iter().flat_map(|list| list.split(','));
    let texts: Vec<&str> = texts
        .map(str::trim)
        .filter(|text| !text.is_empty())
        .collect();
    if texts.is_empty() {
        return Ok(vec![ListenAddress::private(here.default_socket()?)]);
    }
    texts.into_iter().map(parse).collect()
}

/// Whether one of them is a port.
pub(crate) fn has_port(listen: &[ListenAddress]) -> bool {
    let is_tcp = |address: &ListenAddress| matches!(address, ListenAddress::Tcp(_));
    listen.iter().any(is_tcp)
}

/// Returns the first unix socket among them.
pub(crate) fn socket(listen: &[ListenAddress]) -> Option<&PathBuf> {
    listen.iter().find_map(|address| match address {
        ListenAddress::Unix { path, .. } => Some(path),
        ListenAddress::Tcp(_) => None,
    })
}

/// Reads `unix:PATH[?mode=0660&group=NAME]` or `tcp:ADDRESS:PORT`.
fn parse(text: &str) -> Result<ListenAddress, Failure> {
    if let Some(address) = text.strip_prefix("tcp:") {
        let address = address.strip_prefix("//").unwrap_or(address);
        let address: SocketAddr = address.parse().map_err(|_| {
            Failure::new(format!("{text:?} is not an address and a port"))
                .hint("for example --listen tcp:0.0.0.0:7443 or tcp:[::1]:7443")
        })?;
        return Ok(ListenAddress::Tcp(address));
    }
    let (path, options) = text.split_once('?').unwrap_or((text, ""));
    let path = socket_path(path)?;
    let (mut mode, mut gid) = (0o600, None);
    for option in options.split('&').filter(|option| !option.is_empty()) {
        match option.split_once('=') {
            Some(("mode", value)) => mode = file_mode(value)?,
            Some(("group", value)) => gid = Some(group(value)?),
            _ => {
                return Err(Failure::new(format!("{option:?} is no option of a socket"))
                    .hint("there are mode=0660 and group=NAME"));
            }
        }
    }
    Ok(ListenAddress::Unix { path, mode, gid })
}

/// Returns the address for other nodes of a server that listens at `listen`.
pub(crate) fn advertised(text: Option<&str>, listen: &[ListenAddress]) -> Result<String, Failure> {
    if let Some(text) = text {
        let address: kennel_client::Address = text.parse().map_err(|_| {
            Failure::new(format!("{text:?} is not an address for other nodes"))
                .hint("for example --advertise tcp://node7.example:7443")
        })?;
        return Ok(address.to_string());
    }
    let is_reachable = |address: &&ListenAddress| matches!(address, ListenAddress::Tcp(at) if !at.ip().is_unspecified());
    let first = listen.iter().find(is_reachable).or(listen.first());
    Ok(first.map(ToString::to_string).unwrap_or_default())
}

/// Checks a name that must be valid in metadata and in a table.
pub(crate) fn node_name(text: &str) -> Result<String, Failure> {
    let is_named = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    if text.is_empty() || text.len() > NODE_NAME_BYTES_MAX || !text.chars().all(is_named) {
        return Err(
            Failure::new(format!("{text:?} cannot be the name of a node"))
                .hint("up to 128 of letters, digits, '-', '_' and '.'"),
        );
    }
    Ok(text.to_owned())
}

fn file_mode(text: &str) -> Result<u32, Failure> {
    match u32::from_str_radix(text, 8) {
        // Using a socket requires write permission.
        Ok(mode) if mode <= 0o777 && mode & 0o600 == 0o600 => Ok(mode),
        _ => Err(
            Failure::new(format!("{text:?} is not the mode of a socket"))
                .hint("for example mode=0660: the service's own user always has read and write"),
        ),
    }
}

fn group(text: &str) -> Result<u32, Failure> {
    if let Ok(gid) = text.parse() {
        return Ok(gid);
    }
    match kennel_linux::group_id(text) {
        Ok(Some(gid)) => Ok(gid),
        Ok(None) => Err(Failure::new(format!("there is no group {text:?}"))),
        Err(error) => Err(Failure::new(format!(
            "cannot look up group {text:?}: {error}"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Option<String> {
        let address = parse(text).ok()?;
        Some(match &address {
            ListenAddress::Unix { mode, gid, .. } => format!("{address} {mode:o} {gid:?}"),
            ListenAddress::Tcp(_) => address.to_string(),
        })
    }

    #[test]
    fn listen_addresses_are_comma_separated() {
        let flags = ["unix:/a, tcp:127.0.0.1:1".to_owned(), "unix:/b".to_owned()];
        let found = addresses(&flags, &Surroundings::default()).map(|all| all.len());
        assert_eq!(found, Ok(3));
    }

    #[test]
    fn socket_address_takes_mode_and_group() {
        assert_eq!(parsed("unix:/a/b").as_deref(), Some("unix:/a/b 600 None"));
        let shared = parsed("unix:/a/b?mode=0660&group=0");
        assert_eq!(shared.as_deref(), Some("unix:/a/b 660 Some(0)"));
        let named = parsed("unix:/a/b?group=root");
        assert_eq!(named.as_deref(), Some("unix:/a/b 600 Some(0)"));
    }

    #[test]
    fn ports_need_a_numeric_address() {
        assert_eq!(
            parsed("tcp:0.0.0.0:7443").as_deref(),
            Some("tcp:0.0.0.0:7443")
        );
        assert_eq!(
            parsed("tcp://[::1]:7443").as_deref(),
            Some("tcp:[::1]:7443")
        );
        for text in [
            "tcp:7443",
            "tcp:localhost:7443",
            "/a/b",
            "unix:/a/b?mode=9",
            "unix:/a/b?mode=0060",
            "unix:/a/b?owner=me",
            "unix:/a/b?group=no-such-group",
        ] {
            assert_eq!(parsed(text), None, "{text}");
        }
    }
}
