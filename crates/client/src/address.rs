//! Addresses of servers.

use std::{fmt, path::PathBuf, str::FromStr};

/// Address of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// A unix socket at this path.
    Unix(PathBuf),
    /// A TCP port with TLS.
    Tcp {
        /// Name or IP address, without brackets.
        host: String,
        /// Port.
        port: u16,
    },
}

/// The text is no address of a server.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("cannot use {0:?} as a server's address: it must be unix:PATH or tcp://HOST:PORT")]
pub struct InvalidAddress(String);

impl FromStr for Address {
    type Err = InvalidAddress;

    fn from_str(text: &str) -> Result<Self, InvalidAddress> {
        let parsed = match text.split_once(':') {
            Some(("unix", path)) if !path.is_empty() => Some(Self::Unix(path.into())),
            Some(("tcp", place)) => tcp(place.strip_prefix("//").unwrap_or(place)),
            _ => None,
        };
        parsed.ok_or_else(|| InvalidAddress(text.to_owned()))
    }
}

fn tcp(place: &str) -> Option<Address> {
    let (host, port) = place.rsplit_once(':')?;
    let bare = host
        .strip_prefix('[')
        .and_then(|host| host.strip_suffix(']'));
    // An IPv6 address needs brackets: its last group would look like a port.
    let host = match bare {
        Some(bare) => bare.parse::<std::net::Ipv6Addr>().ok()?.to_string(),
        None if host.is_empty() || host.contains([':', '/', '@']) => return None,
        None => host.to_owned(),
    };
    let port = port.parse().ok().filter(|port| *port != 0)?;
    Some(Address::Tcp { host, port })
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
            Self::Tcp { host, port } if host.contains(':') => write!(f, "tcp://[{host}]:{port}"),
            Self::Tcp { host, port } => write!(f, "tcp://{host}:{port}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn address_is_a_path_or_host_and_port() {
        for (text, shown) in [
            (
                "unix:/run/kennel/kennel.sock",
                "unix:/run/kennel/kennel.sock",
            ),
            ("tcp://node7.example:7443", "tcp://node7.example:7443"),
            ("tcp:10.0.0.7:1", "tcp://10.0.0.7:1"),
            ("tcp://[::1]:7443", "tcp://[::1]:7443"),
        ] {
            let address: Address = text.parse().expect("an address");
            assert_eq!(address.to_string(), shown);
        }
        let bad = [
            "",
            "unix:",
            "/run/x",
            "tcp://x",
            "tcp://:1",
            "tcp://x:0",
            "tcp://x:65536",
            "tcp://::1:1",
            "tcp://[x]:1",
            "tcp://u@x:1",
            "tcp://x/y:1",
            "http://x:1",
        ];
        for bad in bad {
            assert!(bad.parse::<Address>().is_err(), "{bad}");
        }
    }
}
