//! Live runs that a server takes over from the one before it.

use super::Outputs;
pub use kennel_lifecycle::HeldPause;
use kennel_lifecycle::{Held, Policy, RunId, RunIdentity, TerminalSize};

/// A run that the keeper holds from an earlier server of its own, and whose outcome no server has acknowledged.
#[derive(Debug)]
pub struct HeldRun {
    /// Run id.
    pub run: RunId,
    /// Command, shim, control group, host.
    pub identity: RunIdentity,
    /// Containment of the run, with its gaps.
    pub held: Held,
    /// Policy that keeper and shim apply on their own.
    pub policy: Policy,
    /// Whether the gate was opened; if not, nothing ran or will run.
    pub released: bool,
    /// State of its pause.
    pub pause: HeldPause,
    /// Whether a stop ladder is in progress, by any request.
    pub stopping: bool,
    /// Descriptors of the command's output; absent where they exceeded this process's limit.
    pub outputs: Option<Outputs>,
    /// Size that Kennel has set last on its terminal; absent: it has none.
    pub terminal: Option<TerminalSize>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        client::{ClientError, Fact, KeeperClient, KeeperEvent, KeeperHello, KeeperReport, Kernel},
        wire::{self, Answer, ToKeeper, ToServer, handover::WireHeldRun},
    };
    use kennel_lifecycle::{
        Containment, HostIdentity, KeeperEpoch, LeaderExit, LimitPowers, ProcessIdentity, Timestamp,
    };
    use kennel_linux::fdpass::{self, Received};
    use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

    #[tokio::test]
    async fn server_gets_whole_handover_before_first_event() {
        let (keeper, server) = fdpass::pair().expect("a pair");
        let (out, err) = nix::unistd::pipe().expect("a pipe");
        say(&keeper, &hello(2), &[]);
        say(
            &keeper,
            &ToServer::Held(Box::new(run(1))),
            &[out.as_fd(), err.as_fd()],
        );
        // As where the second descriptor exceeded the limit.
        say(&keeper, &ToServer::Held(Box::new(run(2))), &[out.as_fd()]);
        let report = KeeperEvent::Report(KeeperReport {
            run: RunId::from_u128(2),
            at: Timestamp(5),
            fact: Fact::Executed,
        });
        say(&keeper, &ToServer::Event(report), &[]);
        let connected = KeeperClient::connect(server).await.expect("a keeper");
        let (client, mut events, hello, held) = connected;
        assert_eq!(hello.restarts, 3);
        assert_eq!(hello.late, [RunId::from_u128(9)]);
        let seen: Vec<_> = held
            .iter()
            .map(|h| (h.run.as_u128(), h.outputs.is_some()))
            .collect();
        assert_eq!(seen, [(1, true), (2, false)]);
        assert_eq!(held[0].pause, HeldPause::Stopped);
        assert!(held[0].released && !held[0].stopping);
        assert_eq!(held[0].policy, policy());
        let KeeperEvent::Report(report) = events.recv().await else {
            panic!("no report")
        };
        assert_eq!((report.run, report.fact), (held[1].run, Fact::Executed));
        let late = RunId::from_u128(9);
        let fds = [out.as_fd(), err.as_fd()];
        say(&keeper, &ToServer::Held(Box::new(run(9))), &fds);
        assert_eq!(events.recv().await, KeeperEvent::ShimReconnected(late));
        let held = client.take_held(late).expect("it is there");
        assert!(held.outputs.is_some() && client.take_held(late).is_none());
        say(&keeper, &ToServer::Event(KeeperEvent::ShimGone(late)), &[]);
        assert_eq!(events.recv().await, KeeperEvent::ShimGone(late));
    }

    #[test]
    fn detached_identity_needs_group_or_process_1() {
        let base = || Ok("/c/kennel-N-E".into());
        let none = || Err("none".to_owned());
        for (pid, cgroup_base, is_known, adopts) in [
            (2, base(), true, false),
            (1, base(), true, false),
            (1, none(), true, true),
            (2, none(), false, false),
        ] {
            let ToServer::Hello { mut hello, .. } = hello(0) else {
                panic!("it is one");
            };
            hello.keeper.pid = pid;
            hello.cgroup_base = cgroup_base;
            hello.judge_detached();
            let why = hello.lacks(crate::client::CapabilityName::DetachedIdentity);
            assert_eq!((why.is_none(), hello.adopts_as_init()), (is_known, adopts));
        }
    }

    #[tokio::test]
    async fn server_that_reads_messages_answers_a_ping() {
        let (keeper, server) = fdpass::pair().expect("a pair");
        say(&keeper, &hello(0), &[]);
        let _connected = KeeperClient::connect(server).await.expect("a keeper");
        say(&keeper, &ToServer::Ping, &[]);
        let answer = loop {
            match fdpass::receive(&keeper).expect("it can be read") {
                Received::Message(bytes, mut fds) => {
                    break wire::decode::<ToKeeper>(&bytes, &mut fds);
                }
                Received::WouldBlock => tokio::task::yield_now().await,
                Received::Eof => panic!("the server is gone"),
            }
        };
        assert_eq!(answer.expect("our own"), Some(ToKeeper::Pong));
    }

    #[tokio::test]
    async fn request_unknown_to_the_keeper_fails_at_once() {
        let (keeper, server) = fdpass::pair().expect("a pair");
        say(&keeper, &hello(0), &[]);
        let (client, _events, ..) = KeeperClient::connect(server).await.expect("a keeper");
        let answer = async {
            loop {
                match fdpass::receive(&keeper).expect("it can be read") {
                    Received::Message(bytes, _) => break wire::seq_of(&bytes).expect("a request"),
                    Received::WouldBlock => tokio::task::yield_now().await,
                    Received::Eof => panic!("the server is gone"),
                }
            }
        };
        let answer = async {
            let (seq, answer) = (answer.await, Answer::Unknown);
            say(&keeper, &ToServer::Answer { seq, answer }, &[]);
        };
        let (asked, ()) = tokio::join!(client.pause(RunId::from_u128(1)), answer);
        assert!(matches!(asked, Err(ClientError::KeeperOlder)), "{asked:?}");
    }

    fn say(keeper: &OwnedFd, message: &ToServer, fds: &[BorrowedFd<'_>]) {
        wire::send(keeper, message, fds).expect("it is sent");
    }

    fn policy() -> Policy {
        Policy {
            on_leader_exit: LeaderExit::Keep,
            ..Policy::default()
        }
    }

    fn process() -> ProcessIdentity {
        ProcessIdentity {
            pid: 1,
            pgid: 1,
            sid: 1,
            start_ticks: 1,
            pidfs_handle: None,
        }
    }

    fn host() -> HostIdentity {
        HostIdentity {
            boot_id: "b".into(),
            pidns_inode: 1,
            init_start_ticks: Some(7),
        }
    }

    fn hello(held: u32) -> ToServer {
        let hello = KeeperHello {
            epoch: KeeperEpoch::from_u128(1),
            keeper: process(),
            host: host(),
            cgroup_base: Err("none".into()),
            pidfs: false,
            powers: LimitPowers {
                hard_max: Vec::new(),
                nice_min: 0,
                oom_score_adj_min: None,
                knobs: Err("none".into()),
            },
            kernel: "k".into(),
            capabilities: Vec::new(),
            late: vec![RunId::from_u128(9)],
            restarts: 3,
            version: "0".into(),
            former: None,
            upgrade: None,
        };
        let hello = Box::new(hello);
        ToServer::Hello { held, hello }
    }

    fn run(number: u128) -> WireHeldRun {
        WireHeldRun {
            run: RunId::from_u128(number),
            identity: RunIdentity {
                command: process(),
                shim: process(),
                cgroup: None,
                host: host(),
            },
            held: Held {
                by: Containment::Subreaper,
                gaps: Vec::new(),
            },
            policy: policy().into(),
            released: true,
            pause: HeldPause::Stopped,
            stopping: false,
            terminal: None,
        }
    }
}
