//! Clients that have not identified themselves, by network address. At the bound the address with the most clients
//! loses its oldest one, so that no address locks out another.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, HashMap},
    net::{IpAddr, Ipv6Addr},
};
use tokio_util::sync::CancellationToken;

/// Bits of an IPv6 address that tell networks apart: one host may have all addresses of a network.
const NETWORK_BITS: u128 = !0 << 64;

/// At most `MAX` clients.
#[derive(Debug, Default)]
pub struct Crowd<const MAX: usize> {
    added: u64,
    len: usize,
    /// Clients of each address by age, with the token that fires when one has to leave.
    clients: HashMap<IpAddr, BTreeMap<u64, CancellationToken>>,
}

/// A client in a crowd.
#[derive(Clone, Debug)]
pub struct Member {
    /// Address by which it is counted: an IPv6 network counts as one address.
    pub address: IpAddr,
    age: u64,
    /// Fires when it has to leave.
    pub displaced: CancellationToken,
}

impl<const MAX: usize> Crowd<MAX> {
    /// Adds a client. Returns it with the address of the one that it has displaced.
    pub fn add(&mut self, address: IpAddr) -> (Member, Option<IpAddr>) {
        let address = counted(address);
        let (age, displaced) = (self.added, CancellationToken::new());
        self.added += 1;
        self.len += 1;
        let clients = self.clients.entry(address).or_default();
        clients.insert(age, displaced.clone());
        let member = Member {
            address,
            age,
            displaced,
        };
        let greedy = (self.len > MAX).then(|| self.displace()).flatten();
        (member, greedy)
    }

    /// Removes a client, if it is there.
    pub fn remove(&mut self, member: &Member) -> Option<CancellationToken> {
        let clients = self.clients.get_mut(&member.address)?;
        let removed = clients.remove(&member.age)?;
        if clients.is_empty() {
            self.clients.remove(&member.address);
        }
        self.len -= 1;
        Some(removed)
    }

    /// Displaces the oldest client of the address that has the most; of several such addresses, the oldest of all.
    fn displace(&mut self) -> Option<IpAddr> {
        let oldest = |clients: &BTreeMap<u64, _>| clients.keys().next().copied();
        let of_most =
            |(_, clients): &(&IpAddr, &BTreeMap<u64, _>)| (clients.len(), Reverse(oldest(clients)));
        let (&address, clients) = self.clients.iter().max_by_key(of_most)?;
        let member = Member {
            address,
            age: oldest(clients)?,
            displaced: CancellationToken::new(),
        };
        self.remove(&member)?.cancel();
        Some(address)
    }
}

fn counted(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() & NETWORK_BITS).into(),
        v4 @ IpAddr::V4(_) => v4,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> IpAddr {
        text.parse().expect("an address")
    }

    // promise: A-19d, AC-4a
    #[test]
    fn address_with_most_clients_loses_its_oldest() {
        let mut crowd = Crowd::<4>::default();
        let (other, _) = crowd.add(address("192.0.2.1"));
        let greedy = address("192.0.2.2");
        let held: Vec<_> = (0..3).map(|_| crowd.add(greedy).0).collect();
        let (late, displaced) = crowd.add(address("192.0.2.3"));
        assert_eq!(displaced, Some(greedy));
        let is_displaced = |member: &Member| member.displaced.is_cancelled();
        assert!(is_displaced(&held[0]));
        assert!(
            ![&other, &late, &held[1], &held[2]]
                .map(is_displaced)
                .contains(&true)
        );
        assert!(crowd.remove(&held[0]).is_none(), "its slot is free already");
        assert_eq!(crowd.add(greedy).1, Some(greedy), "it displaces its own");
        assert!(crowd.remove(&other).is_some());
        assert_eq!(crowd.add(greedy).1, None, "a slot was free");
    }

    // promise: A-19d
    #[test]
    fn ipv6_network_counts_as_one_address() {
        let mut crowd = Crowd::<3>::default();
        let (other, _) = crowd.add(address("2001:db8:0:2::1"));
        for host in ["2001:db8:0:1::1", "2001:db8:0:1:ffff::2"] {
            assert_eq!(crowd.add(address(host)).1, None);
        }
        let (_, displaced) = crowd.add(address("2001:db8:0:1::3"));
        assert_eq!(displaced, Some(address("2001:db8:0:1::")));
        assert!(!other.displaced.is_cancelled());
        assert_eq!(counted(address("::ffff:192.0.2.1")), address("192.0.2.1"));
    }
}
