//! Who may call: the server's own user and root, by the credentials of the socket. Not a process of a run: what a run
//! has started has no rights over runs.
//!
//! A peer that may not call is connected all the same and gets `PERMISSION_DENIED` to every call: it learns why.

use crate::status;
use tonic::{Request, Status, transport::server::Connected};

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
}

impl Peer {
    /// Judges a peer; `of_a_run` says whether a process is one of a run's.
    ///
    /// A peer without pid is in a pid namespace that is not seen from here, where no run of ours can be.
    pub(crate) fn judge(
        uid: u32,
        pid: Option<i32>,
        own_uid: u32,
        of_a_run: impl FnOnce(i32) -> bool,
    ) -> Self {
        let standing = if uid != own_uid && uid != 0 {
            Standing::ForeignUser
        } else if pid.is_some_and(|pid| pid > 0 && of_a_run(pid)) {
            Standing::OfARun
        } else {
            Standing::Allowed
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

/// Refuses what a peer without rights asks, whatever it is.
pub(crate) fn admit(request: Request<()>) -> Result<Request<()>, Status> {
    match request.extensions().get::<Peer>().map(|p| p.standing) {
        Some(Standing::Allowed) => Ok(request),
        Some(Standing::ForeignUser) => Err(status::permission_denied(
            "only the user of this server and root may use it",
        )),
        Some(Standing::OfARun) => Err(status::permission_denied(
            "a process of a run may not use the server that runs it",
        )),
        None => Err(status::internal("a request without a peer")),
    }
}

impl Connected for crate::accept::Accepted {
    type ConnectInfo = Peer;

    fn connect_info(&self) -> Peer {
        self.peer().clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tonic::Code;

    #[test]
    fn own_user_and_root_may_call_and_nobody_else() {
        let standing = |uid| Peer::judge(uid, Some(9), 1000, |_| false).standing;
        assert_eq!(standing(1000), Standing::Allowed);
        assert_eq!(standing(0), Standing::Allowed);
        assert_eq!(standing(1001), Standing::ForeignUser);
        assert_eq!(
            Peer::judge(0, None, 1000, |_| true).standing,
            Standing::Allowed
        );
    }

    #[test]
    fn a_process_of_a_run_may_not_call_whoever_it_is() {
        for uid in [0, 1000] {
            let peer = Peer::judge(uid, Some(9), 1000, |pid| pid == 9);
            assert_eq!(peer.standing, Standing::OfARun);
        }
    }

    #[test]
    fn only_an_allowed_peer_is_admitted() {
        let ask = |standing| {
            let mut request = Request::new(());
            request.extensions_mut().insert(Peer {
                uid: 7,
                pid: None,
                standing,
            });
            admit(request).map(|r| principal(&r).expect("there is a peer"))
        };
        assert_eq!(ask(Standing::Allowed).expect("allowed"), "uid:7");
        for standing in [Standing::ForeignUser, Standing::OfARun] {
            let status = ask(standing).expect_err("refused");
            assert_eq!(status.code(), Code::PermissionDenied);
        }
        assert_eq!(
            admit(Request::new(())).expect_err("no peer").code(),
            Code::Internal
        );
    }
}
