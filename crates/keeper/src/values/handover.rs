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
    /// Name in a critical message about it that the keeper does not know.
    pub pinned: Option<String>,
    /// Descriptors of the command's output; absent where they exceeded this process's limit.
    pub outputs: Option<Outputs>,
    /// Size that Kennel has set last on its terminal; absent: it has none.
    pub terminal: Option<TerminalSize>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        client::{ClientError, Fact, KeeperClient, KeeperEvent, KeeperHello, Kernel},
        values::{Levels, SkippedBy},
        wire::{
            self, Answer, Decoded, Head, ToKeeper, ToServer,
            handover::WireHeldRun,
            versions::{Versions, WIRE},
        },
    };
    use kennel_lifecycle::{
        Containment, HostIdentity, KeeperEpoch, LeaderExit, LimitPowers, ProcessIdentity, Timestamp,
    };
    use kennel_linux::fdpass::{self, Received};
    use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

    type Connected = Result<
        (
            KeeperClient,
            crate::client::KeeperEvents,
            KeeperHello,
            Vec<HeldRun>,
        ),
        ClientError,
    >;

    #[tokio::test]
    async fn server_gets_complete_handover_before_first_event() {
        let (keeper, server) = fdpass::pair().expect("a pair");
        let (out, err) = nix::unistd::pipe().expect("a pipe");
        say(&keeper, None, &hello(2), &[]);
        say(&keeper, Some(1), &held_run(), &[out.as_fd(), err.as_fd()]);
        // The second descriptor exceeded the descriptor limit.
        say(&keeper, Some(2), &held_run(), &[out.as_fd()]);
        let (at, fact) = (Timestamp(5), Fact::Executed {});
        say(&keeper, Some(2), &ToServer::Report { at, fact }, &[]);
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
        assert_eq!((report.run, report.fact), (held[1].run, Fact::Executed {}));
        let late = RunId::from_u128(9);
        let fds = [out.as_fd(), err.as_fd()];
        say(&keeper, Some(9), &held_run(), &fds);
        assert_eq!(events.recv().await, KeeperEvent::ShimReconnected(late));
        let held = client.take_held(late).expect("it is there");
        assert!(held.outputs.is_some() && client.take_held(late).is_none());
        say(&keeper, Some(9), &ToServer::ShimGone {}, &[]);
        assert_eq!(events.recv().await, KeeperEvent::ShimGone(late));
    }

    // promise: W-11b
    #[test]
    fn detached_identity_needs_cgroup_or_pid_1() {
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
        say(&keeper, None, &hello(0), &[]);
        let _connected = KeeperClient::connect(server).await.expect("a keeper");
        say(&keeper, None, &ToServer::Ping {}, &[]);
        let answer = loop {
            match fdpass::receive(&keeper).expect("it can be read") {
                Received::Message(bytes, mut fds) => {
                    break wire::decode::<ToKeeper>(&bytes, &mut fds);
                }
                Received::WouldBlock => tokio::task::yield_now().await,
                Received::Eof => panic!("the server is gone"),
            }
        };
        let Decoded::Known { message, .. } = answer.expect("our own") else {
            panic!("it is known");
        };
        assert_eq!(message, ToKeeper::Pong {});
    }

    // promise: A-22g
    #[tokio::test]
    async fn request_unknown_to_the_keeper_fails_at_once() {
        let (keeper, server) = fdpass::pair().expect("a pair");
        say(&keeper, None, &hello(0), &[]);
        let (client, _events, ..) = KeeperClient::connect(server).await.expect("a keeper");
        let answer = async {
            loop {
                match fdpass::receive(&keeper).expect("it can be read") {
                    Received::Message(bytes, mut fds) => {
                        let request = wire::decode::<ToKeeper>(&bytes, &mut fds);
                        let Ok(Decoded::Known { head, .. }) = request else {
                            panic!("it is known");
                        };
                        break head;
                    }
                    Received::WouldBlock => tokio::task::yield_now().await,
                    Received::Eof => panic!("the server is gone"),
                }
            }
        };
        let answer = async {
            let Head { seq, run } = answer.await;
            assert_eq!(run, Some(RunId::from_u128(1)));
            let answer = ToServer::Answer(Answer::Unknown {});
            wire::send(&keeper, Head { seq, run: None }, &answer, &[]).expect("it is sent");
        };
        let (asked, ()) = tokio::join!(client.pause(RunId::from_u128(1)), answer);
        assert!(matches!(asked, Err(ClientError::KeeperOlder)), "{asked:?}");
    }

    /// Connects to a keeper that this server may be of another version than.
    async fn connect(change: impl FnOnce(&mut KeeperHello)) -> (OwnedFd, Connected) {
        let (keeper, server) = fdpass::pair().expect("a pair");
        let ToServer::Hello {
            held,
            hello: mut said,
        } = hello(0)
        else {
            panic!("it is one");
        };
        change(&mut said);
        say(&keeper, None, &ToServer::Hello { held, hello: said }, &[]);
        (keeper, KeeperClient::connect(server).await)
    }

    // promise: A-22c, A-22i
    #[tokio::test]
    async fn keeper_without_common_level_is_refused() {
        let max = WIRE.max;
        for (min, max, is_taken) in [
            (max - 1, max, true),
            (max, max + 1, true),
            (max - 1, max - 1, false),
            (max + 1, max + 1, false),
        ] {
            let speaks = Levels { min, max };
            let (_keeper, connected) = connect(|hello| hello.speaks = speaks).await;
            match connected {
                Ok(_) => assert!(is_taken, "{speaks}"),
                Err(error) => {
                    let both = format!("levels {speaks} of messages, and this server {WIRE}");
                    assert!(!is_taken && error.to_string().contains(&both), "{error}");
                }
            }
        }
    }

    // promise: A-22c
    #[tokio::test]
    async fn older_keeper_gets_only_known_message_kinds() {
        let (keeper, connected) = connect(|hello| hello.knows.retain(|kind| kind != "pause")).await;
        let (client, _events, ..) = connected.expect("a keeper");
        let asked = client.pause(RunId::from_u128(1)).await;
        assert!(matches!(asked, Err(ClientError::KeeperOlder)), "{asked:?}");
        client.ready();
        let Received::Message(bytes, mut fds) = fdpass::receive(&keeper).expect("a message") else {
            panic!("it is there");
        };
        let first = wire::decode::<ToKeeper>(&bytes, &mut fds).expect("our own");
        let Decoded::Known { message, .. } = first else {
            panic!("it is known");
        };
        assert_eq!(message, ToKeeper::Ready(Versions::of_server()));
    }

    // promise: A-22a
    #[tokio::test]
    async fn unknown_message_kinds_are_reported_once() {
        let (keeper, connected) = connect(|_| {}).await;
        let (_client, mut events, ..) = connected.expect("a keeper");
        let body = br#"{"run":"00000000000000000000000005","kind":{"of_tomorrow":{}}}"#;
        let mut later = vec![b'K', 1, 0, 0, 0, 0, 0, 0];
        later[4] = u8::try_from(body.len()).expect("it is short");
        later.extend(body);
        for _ in 0..2 {
            fdpass::send(&keeper, &later, &[]).expect("it is sent");
        }
        say(&keeper, None, &ToServer::Ping {}, &[]);
        say(&keeper, None, &ToServer::Event(KeeperEvent::Leave {}), &[]);
        let skipped = KeeperEvent::Skipped {
            reader: SkippedBy::Server,
            name: "of_tomorrow".into(),
        };
        assert_eq!(events.recv().await, skipped);
        assert_eq!(events.recv().await, KeeperEvent::Leave {});
    }

    fn say(keeper: &OwnedFd, run: Option<u128>, message: &ToServer, fds: &[BorrowedFd<'_>]) {
        let head = run.map(|run| Head::of_run(RunId::from_u128(run)));
        wire::send(keeper, head.unwrap_or_default(), message, fds).expect("it is sent");
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
        let Versions { speaks, knows } = Versions::of_keeper();
        let hello = KeeperHello {
            speaks,
            knows,
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

    fn held_run() -> ToServer {
        ToServer::Held(Box::new(WireHeldRun {
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
            pinned: None,
            terminal: None,
        }))
    }
}
