//! Who may call: the server's own user and root, by the credentials of the socket. Not a process of a run: what a run
//! has started has no rights over runs. Nor one of which that cannot be said: it has ended, or cannot be read.
//!
//! A peer that may not call is connected all the same, where there is room, and gets an error for every call: it learns why.

use crate::{
    accept::places::Full,
    limits::{CONNECTIONS_MAX, CONNECTIONS_PER_PROCESS_MAX, CONNECTIONS_PER_USER_MAX},
    status,
};
use kennel_supervisor::Descent;
use tonic::{Request, Status};

/// The other end of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Peer {
    pub(crate) uid: u32,
    /// Absent: it is in a pid namespace that is not seen from here.
    pub(crate) pid: Option<i32>,
    pub(crate) standing: Standing,
}

/// Whether a peer may call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    Allowed,
    ForeignUser,
    /// It is, or descends from, a run's own process.
    OfARun,
    /// The process that has connected has ended.
    Ended,
    /// What would say whose process it is cannot be read.
    Unreadable,
    /// It could be allowed, and has too many connections.
    TooMany(Full),
}

impl Standing {
    /// What each call is answered; `None`: it may call.
    pub(crate) fn refusal(self) -> Option<Status> {
        Some(match self {
            Self::Allowed => return None,
            Self::ForeignUser => {
                status::permission_denied("only the user of this server and root may use it")
            }
            Self::OfARun => {
                status::permission_denied("a process of a run may not use the server that runs it")
            }
            Self::Ended => status::caller_unverified(
                "ended",
                "the process that has connected has ended: whose it was cannot be said any more",
            ),
            Self::Unreadable => status::caller_unverified(
                "unreadable",
                "it cannot be read whose process has connected",
            ),
            Self::TooMany(Full::Process) => {
                status::too_many("connections of one process", CONNECTIONS_PER_PROCESS_MAX)
            }
            Self::TooMany(Full::User) => {
                status::too_many("connections of one user", CONNECTIONS_PER_USER_MAX)
            }
            Self::TooMany(Full::All | Full::Refused) => {
                status::too_many("connections", CONNECTIONS_MAX)
            }
        })
    }
}

impl Peer {
    /// Judges a peer; `descent` says whether it is a run's.
    pub(crate) fn judge(
        uid: u32,
        pid: Option<i32>,
        own_uid: u32,
        descent: impl FnOnce() -> Descent,
    ) -> Self {
        let standing = if uid != own_uid && uid != 0 {
            Standing::ForeignUser
        } else {
            match descent() {
                Descent::Other => Standing::Allowed,
                Descent::Member => Standing::OfARun,
                Descent::Ended => Standing::Ended,
                Descent::Unreadable => Standing::Unreadable,
            }
        };
        Self { uid, pid, standing }
    }

    /// The principal that owns what this peer spawns.
    pub(crate) fn principal(&self) -> String {
        format!("uid:{}", self.uid)
    }
}

/// The process at the other end, where it is seen from here.
pub(crate) fn pid<T>(request: &Request<T>) -> Option<i32> {
    request.extensions().get::<Peer>().and_then(|peer| peer.pid)
}

/// The peer of a request that was let through.
pub(crate) fn principal<T>(request: &Request<T>) -> Result<String, Status> {
    let peer = request.extensions().get::<Peer>();
    peer.map(Peer::principal)
        .ok_or_else(|| status::internal("a request without a peer"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tonic::Code;

    #[test]
    fn only_own_user_and_root_may_call() {
        let standing = |uid| Peer::judge(uid, Some(9), 1000, || Descent::Other).standing;
        assert_eq!(standing(1000), Standing::Allowed);
        assert_eq!(standing(0), Standing::Allowed);
        assert_eq!(standing(1001), Standing::ForeignUser);
    }

    #[test]
    fn only_processes_known_to_be_of_no_run_may_call() {
        for uid in [0, 1000] {
            for (descent, standing) in [
                (Descent::Member, Standing::OfARun),
                (Descent::Ended, Standing::Ended),
                (Descent::Unreadable, Standing::Unreadable),
            ] {
                let peer = Peer::judge(uid, Some(9), 1000, || descent);
                assert_eq!(peer.standing, standing);
                let status = standing.refusal().expect("refused");
                assert_eq!(status.code(), Code::PermissionDenied);
            }
        }
        assert!(Standing::Allowed.refusal().is_none());
    }

    #[test]
    fn peers_with_too_many_connections_are_refused() {
        for full in [Full::Process, Full::User, Full::All] {
            let status = Standing::TooMany(full).refusal().expect("refused");
            assert_eq!(status.code(), Code::ResourceExhausted);
        }
    }
}
