//! Listening TCP sockets: their addresses by inode.

use std::{
    collections::HashMap,
    fmt::Display,
    fs::File,
    io::{BufRead, BufReader, Read},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
};

/// Most bytes of one socket table that are read.
const TABLE_BYTES_MAX: u64 = 16 * 1024 * 1024;
/// State of a listening socket in /proc/net/tcp (`TCP_LISTEN`).
const LISTENING: &str = "0A";

/// Reads the listening sockets of the network namespace of this directory of /proc: addresses by inode.
pub fn listening(process: impl Display) -> HashMap<u64, SocketAddr> {
    let mut found = HashMap::new();
    for table in ["tcp", "tcp6"] {
        let Ok(file) = File::open(format!("/proc/{process}/net/{table}")) else {
            continue;
        };
        let lines = BufReader::new(file.take(TABLE_BYTES_MAX)).lines().skip(1);
        // The kernel lists listening sockets first (`tcp_get_idx` in `net/ipv4/tcp_ipv4.c`).
        found.extend(lines.map_while(|line| parse(&line.ok()?)));
    }
    found
}

/// Returns the inodes of those sockets that the kernel may choose for a connection to this address: the address itself
/// comes before any, and a socket of its family before one of both. Several share a port (`SO_REUSEPORT`).
pub fn accepting(sockets: &HashMap<u64, SocketAddr>, to: SocketAddr) -> Vec<u64> {
    let rank = |at: &SocketAddr| {
        let is_same = at.ip().to_canonical() == to.ip();
        let is_family = at.is_ipv4() == to.is_ipv4();
        let is_any = at.ip().is_unspecified() && (is_family || at.is_ipv6());
        (at.port() == to.port() && (is_same || is_any)).then_some((is_same, is_family))
    };
    let best = sockets.values().filter_map(rank).max();
    let best = sockets
        .iter()
        .filter(|(_, at)| best.is_some() && rank(at) == best);
    best.map(|(inode, _)| *inode).collect()
}

/// Parses inode and address of a line of /proc/net/tcp, if the socket listens.
fn parse(line: &str) -> Option<(u64, SocketAddr)> {
    let mut fields = line.split_ascii_whitespace().skip(1);
    let (ip, port) = fields.next()?.rsplit_once(':')?;
    let state = fields.nth(1)?;
    // Field 10 is the inode; the first 4 fields are already read.
    let inode = fields.nth(5)?.parse().ok()?;
    let port = u16::from_str_radix(port, 16).ok()?;
    (state == LISTENING).then_some((inode, SocketAddr::new(address(ip)?, port)))
}

/// Parses an address: words of 32 bits in the byte order of the network, each printed as a number of this host.
fn address(hex: &str) -> Option<IpAddr> {
    let word = |at| {
        Some(
            u32::from_str_radix(hex.get(at..at + 8)?, 16)
                .ok()?
                .to_ne_bytes(),
        )
    };
    if hex.len() == 8 {
        return Some(Ipv4Addr::from(word(0)?).into());
    }
    let words = [word(0)?, word(8)?, word(16)?, word(24)?];
    let bytes: [u8; 16] = words.concat().try_into().ok()?;
    Some(Ipv6Addr::from(bytes).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_listening_socket_has_an_address() {
        let listens = "   0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4711 1 0 100 0 0 10 0";
        let at = |text: &str| text.parse().expect("an address");
        assert_eq!(parse(listens), Some((4711, at("127.0.0.1:8080"))));
        let wide = "   1: 00000000000000000000000001000000:1F91 00000000000000000000000000000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4712 1 0 100 0 0 10 0";
        assert_eq!(parse(wide), Some((4712, at("[::1]:8081"))));
        assert_eq!(parse(&listens.replace(" 0A ", " 01 ")), None);
        assert_eq!(parse("sl local_address"), None);
    }

    // promise: RW-160
    #[test]
    fn connection_is_matched_to_most_specific_listener() {
        let chosen = |sockets: &[&str], to: &str| {
            let at = |text: &str| text.parse::<SocketAddr>().expect("an address");
            let sockets = (1..).zip(sockets.iter().map(|text| at(text))).collect();
            let mut chosen = accepting(&sockets, at(to));
            chosen.sort_unstable();
            chosen
        };
        let (v4, v6) = ("127.0.0.1:80", "[::1]:80");
        assert_eq!(chosen(&["0.0.0.0:80", v4, "[::]:80"], v4), [2]);
        assert_eq!(chosen(&["[::]:80", "0.0.0.0:80"], v4), [2]);
        assert_eq!(chosen(&["[::]:80", "0.0.0.0:80"], v6), [1]);
        assert_eq!(chosen(&["[::ffff:127.0.0.1]:80", "0.0.0.0:80"], v4), [1]);
        assert_eq!(chosen(&["0.0.0.0:80", "0.0.0.0:80"], v4), [1, 2]);
        let others = ["0.0.0.0:80", "127.0.0.2:80", "[::]:81"];
        assert_eq!(chosen(&others, v6), [0; 0]);
    }
}
