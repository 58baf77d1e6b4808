//! Slots for connections: bounds by process, by user and in total. Refused peers have a few of their own, so that they
//! get the reason and take no slot from others; so have clients over TCP until their principal is known.

use crate::{
    accept::{
        crowd::{Crowd, Member},
        tally::Tally,
    },
    auth::{Full, Origin, Peer, PeerVerdict},
    limits::{
        CONNECTIONS_MAX, CONNECTIONS_OF_RUNS_MAX, CONNECTIONS_PER_PROCESS_MAX,
        CONNECTIONS_PER_RUN_MAX, CONNECTIONS_PER_RUNS_OF_OWNER_MAX, CONNECTIONS_PER_USER_MAX,
        CONNECTIONS_REFUSED_MAX, CONNECTIONS_RESERVED, CONNECTIONS_UNIDENTIFIED_MAX,
    },
};
use kennel_lifecycle::RunId;
use parking_lot::{Mutex, MutexGuard};
use std::{
    net::IpAddr,
    sync::{Arc, Weak},
};
use tokio_util::sync::CancellationToken;

/// Owner whose connections are counted together.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum ConnectionUser {
    Uid(u32),
    /// The principal of a certificate or token.
    Principal(String),
}

/// Part of one user: a process, all of other pid namespaces, which have no number here, being one; or a network
/// address.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum UserPart {
    Pid(Option<i32>),
    Address(IpAddr),
}

/// A process in the count of connections.
type Process = (ConnectionUser, UserPart);

/// Number of connections of each.
#[derive(Clone, Debug, Default)]
pub(crate) struct Places(Arc<Mutex<SlotsInUse>>);

#[derive(Debug, Default)]
pub(crate) struct SlotsInUse {
    refused: usize,
    admitted: Tally<Process, ConnectionUser>,
    /// Those of runs, by their owners too.
    of_runs: Tally<RunId, Arc<str>>,
    unidentified: Crowd<CONNECTIONS_UNIDENTIFIED_MAX>,
}

/// One slot; free again when it is dropped.
#[derive(Debug)]
pub(crate) struct ConnectionSlot {
    places: Places,
    of: Mutex<Pool>,
}

/// The connections among which one is counted.
#[derive(Clone, Debug)]
enum Pool {
    Admitted(Process),
    OfRun(RunId, Arc<str>),
    Unidentified(Member),
    Refused,
}

impl Places {
    /// Takes a slot for one more connection of this peer. Returns the address whose connection it has displaced, too.
    pub(crate) fn take(&self, peer: &Peer) -> Result<(ConnectionSlot, Option<IpAddr>), Full> {
        let mut taken = self.lock();
        let mut displaced = None;
        let of = match (peer.verdict, &peer.origin) {
            (PeerVerdict::Allowed, Origin::Process { uid, pid }) => {
                let process = (ConnectionUser::Uid(*uid), UserPart::Pid(*pid));
                taken.admit(&process)?;
                Pool::Admitted(process)
            }
            (PeerVerdict::Allowed, Origin::Network { address, .. }) => {
                let (member, greedy) = taken.unidentified.add(*address);
                displaced = greedy;
                Pool::Unidentified(member)
            }
            (PeerVerdict::OfARun(Some(run)), _) => {
                let owner = peer.owner.clone().unwrap_or_default();
                taken.admit_of_run(run, &owner)?;
                Pool::OfRun(run, owner)
            }
            _ if taken.refused >= CONNECTIONS_REFUSED_MAX => return Err(Full::Refused),
            _ => {
                taken.refused += 1;
                Pool::Refused
            }
        };
        drop(taken);
        let (places, of) = (self.clone(), Mutex::new(of));
        Ok((ConnectionSlot { places, of }, displaced))
    }

    /// Returns the number of connections, without the refused.
    pub(crate) fn admitted(&self) -> usize {
        let taken = self.lock();
        taken.admitted.all() + taken.of_runs.all()
    }

    pub(crate) fn downgrade(&self) -> Weak<Mutex<SlotsInUse>> {
        Arc::downgrade(&self.0)
    }

    fn lock(&self) -> MutexGuard<'_, SlotsInUse> {
        self.0.lock()
    }
}

impl From<Arc<Mutex<SlotsInUse>>> for Places {
    fn from(taken: Arc<Mutex<SlotsInUse>>) -> Self {
        Self(taken)
    }
}

impl SlotsInUse {
    fn admit(&mut self, process: &Process) -> Result<(), Full> {
        let [of_process, of_user, all] = self.admitted.counts(process, &process.0);
        // The last connections are for processes without any.
        let reserved = if of_process > 0 {
            CONNECTIONS_RESERVED
        } else {
            0
        };
        if of_process >= CONNECTIONS_PER_PROCESS_MAX {
            return Err(Full::Process);
        }
        if of_user + reserved >= CONNECTIONS_PER_USER_MAX {
            return Err(Full::User);
        }
        if all >= CONNECTIONS_MAX {
            return Err(Full::All);
        }
        self.admitted.add(process, &process.0);
        Ok(())
    }

    fn admit_of_run(&mut self, run: RunId, owner: &Arc<str>) -> Result<(), Full> {
        let [of_run, of_owner, all] = self.of_runs.counts(&run, owner);
        // The last connections are for owners without any.
        let reserved = if of_owner > 0 {
            CONNECTIONS_RESERVED
        } else {
            0
        };
        if of_run >= CONNECTIONS_PER_RUN_MAX
            || of_owner >= CONNECTIONS_PER_RUNS_OF_OWNER_MAX
            || all + reserved >= CONNECTIONS_OF_RUNS_MAX
        {
            return Err(Full::Run);
        }
        self.of_runs.add(&run, owner);
        Ok(())
    }
}

impl ConnectionSlot {
    /// Counts a client over TCP with the others of its principal, from its first call on.
    pub(crate) fn identify(&self, principal: &str) -> Result<(), Full> {
        let mut of = self.of.lock();
        if let Pool::Unidentified(member) = &*of {
            let user = ConnectionUser::Principal(principal.to_owned());
            let process = (user, UserPart::Address(member.address));
            let mut taken = self.places.lock();
            taken.admit(&process)?;
            taken.unidentified.remove(member);
            drop(taken);
            *of = Pool::Admitted(process);
        }
        Ok(())
    }

    /// Returns the token that fires when the connection has to end, so that another client has its slot.
    pub(super) fn displaced(&self) -> CancellationToken {
        match &*self.of.lock() {
            Pool::Unidentified(member) => member.displaced.clone(),
            _ => CancellationToken::new(),
        }
    }
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        let of = self.of.get_mut();
        let mut taken = self.places.lock();
        match of {
            Pool::Admitted(process) => taken.admitted.remove(process, &process.0),
            Pool::OfRun(run, owner) => taken.of_runs.remove(run, owner),
            Pool::Unidentified(member) => {
                taken.unidentified.remove(member);
            }
            Pool::Refused => taken.refused -= 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn take(places: &Places, peer: &Peer) -> Result<ConnectionSlot, Full> {
        places.take(peer).map(|(place, _)| place)
    }

    fn network(address: &str) -> Peer {
        Peer::of_network(address.parse().expect("an address"), None)
    }

    fn peer(uid: u32, pid: i32, verdict: PeerVerdict) -> Peer {
        let pid = Some(pid);
        let origin = Origin::Process { uid, pid };
        Peer {
            origin,
            verdict,
            owner: None,
        }
    }

    fn of_run(run: u128, owner: &str) -> Peer {
        let verdict = PeerVerdict::OfARun(Some(RunId::from_u128(run)));
        Peer {
            owner: Some(owner.into()),
            ..peer(1000, 1, verdict)
        }
    }

    #[test]
    fn connections_of_one_process_are_limited() {
        let places = Places::default();
        let greedy = peer(1000, 1, PeerVerdict::Allowed);
        let held: Vec<_> = (0..CONNECTIONS_PER_PROCESS_MAX)
            .map(|_| take(&places, &greedy).expect("a place"))
            .collect();
        assert_eq!(take(&places, &greedy).expect_err("enough"), Full::Process);
        let other = take(&places, &peer(1000, 2, PeerVerdict::Allowed));
        other.expect("a place of another process");
        drop(held);
        take(&places, &greedy).expect("free again");
        assert_eq!(places.admitted(), 0);
    }

    // promise: A-19
    #[test]
    fn connection_limit_of_user_reserves_slots_for_others() {
        let places = Places::default();
        let mut held = Vec::new();
        let full = (1..).find_map(|pid| {
            let of = peer(1000, pid, PeerVerdict::Allowed);
            loop {
                match take(&places, &of) {
                    Ok(place) => held.push(place),
                    Err(Full::Process) => return None,
                    Err(full) => return Some(full),
                }
            }
        });
        assert_eq!(full, Some(Full::User));
        assert_eq!(held.len(), CONNECTIONS_PER_USER_MAX - CONNECTIONS_RESERVED);
        let fresh = (0..CONNECTIONS_RESERVED).map(|n| {
            let pid = 1_000_000 + i32::try_from(n).expect("small");
            take(&places, &peer(1000, pid, PeerVerdict::Allowed))
        });
        held.extend(fresh.map(|place| place.expect("one for a process that has none")));
        let of_root =
            (0..CONNECTIONS_RESERVED).map(|_| take(&places, &peer(0, 7, PeerVerdict::Allowed)));
        held.extend(of_root.map(|place| place.expect("one for another user")));
        let last = take(&places, &peer(0, 8, PeerVerdict::Allowed));
        assert_eq!(last.expect_err("all"), Full::All);
    }

    // promise: RW-139
    #[test]
    fn connections_of_runs_are_limited_per_owner() {
        let places = Places::default();
        let mut held = Vec::new();
        let mut take_all = |owner: &str, runs: std::ops::Range<u128>| {
            let mut taken = 0;
            for run in runs {
                while let Ok(place) = take(&places, &of_run(run, owner)) {
                    held.push(place);
                    taken += 1;
                }
            }
            taken
        };
        assert_eq!(take_all("a", 0..1), CONNECTIONS_PER_RUN_MAX);
        let rest = CONNECTIONS_PER_RUNS_OF_OWNER_MAX - CONNECTIONS_PER_RUN_MAX;
        assert_eq!(take_all("a", 1..64), rest);
        // The runs of two owners leave connections for those of a third.
        let left = CONNECTIONS_OF_RUNS_MAX - CONNECTIONS_PER_RUNS_OF_OWNER_MAX;
        assert_eq!(take_all("b", 100..164), left - CONNECTIONS_RESERVED);
        assert_eq!(take_all("c", 200..264), 1);
        assert_eq!(take_all("d", 300..301), 1);
        take(&places, &peer(1000, 1, PeerVerdict::Allowed)).expect("a place");
        held.clear();
        take(&places, &of_run(0, "a")).expect("free again");
        assert_eq!(places.admitted(), 0);
        assert!(places.lock().of_runs.is_empty());
    }

    #[test]
    fn refused_peers_use_a_separate_connection_limit() {
        let places = Places::default();
        let refused = peer(1000, 1, PeerVerdict::OfARun(None));
        let held: Vec<_> = (0..CONNECTIONS_REFUSED_MAX)
            .map(|_| take(&places, &refused).expect("a place"))
            .collect();
        assert_eq!(take(&places, &refused).expect_err("enough"), Full::Refused);
        assert_eq!(places.admitted(), 0);
        take(&places, &peer(1000, 1, PeerVerdict::Allowed)).expect("a place");
        drop(held);
        take(&places, &refused).expect("free again");
    }

    // promise: A-19d
    #[test]
    fn unidentified_clients_use_a_separate_connection_limit() {
        let places = Places::default();
        let one = take(&places, &network("192.0.2.1")).expect("a place");
        let ended = one.displaced();
        let greedy = network("192.0.2.2");
        let mut held: Vec<_> = (0..CONNECTIONS_UNIDENTIFIED_MAX * 2)
            .map(|_| take(&places, &greedy).expect("a place"))
            .collect();
        assert!(held[0].displaced().is_cancelled());
        assert!(!ended.is_cancelled());
        assert_eq!(places.admitted(), 0);
        one.identify("token:ci").expect("a place of a principal");
        one.identify("token:ci").expect("it has one");
        assert_eq!(places.admitted(), 1);
        for place in held.iter().rev().take(CONNECTIONS_PER_PROCESS_MAX) {
            place.identify("token:b").expect("a place");
        }
        assert_eq!(held[0].identify("token:b"), Err(Full::Process));
        held.clear();
        drop(one);
        assert_eq!(places.admitted(), 0);
        assert!(places.lock().admitted.is_empty());
    }
}
