//! The decision after an attempt that has ended.

use kennel_lifecycle::{
    Deadline, EndReason, Exit, Leftovers, MemoryKills, Outcome, Policy, Proof, RestartMode,
    RestartPolicy, RunState, Signal, StartFailure, StartStage, StopCertificate, Timestamp,
    TreeVerdict,
    restart::{self, Attempted, ClientRequest, Next},
};
use proptest::prelude::*;
use std::time::Duration;

const SECOND: Duration = Duration::from_secs(1);

// promise: B-1
#[test]
fn crashing_agent_is_restarted_with_backoff_and_limit() {
    let failed = exited(1);
    let said: Vec<Next> = (0..4)
        .map(|restarts| next(&RestartPolicy::agent(), &failed, |a| a.restarts = restarts))
        .collect();
    let again = |seconds, restarts| Next::Again {
        delay: Duration::from_secs(seconds),
        restarts,
    };
    let wanted = [
        again(1, 1),
        again(2, 2),
        again(4, 3),
        Next::Exhausted { restarts: 3 },
    ];
    assert_eq!(said, wanted);
}

// promise: B-1
#[test]
fn kept_alive_run_is_restarted_within_a_minute() {
    let policy = RestartPolicy::keepalive();
    let seconds: Vec<u64> = (0..8).map(|n| policy.pause(n, 0).as_secs()).collect();
    assert_eq!(seconds, [2, 4, 8, 16, 32, 60, 60, 60]);
    let far = next(&policy, &exited(0), |a| a.restarts = u32::MAX);
    let wanted = Next::Again {
        delay: Duration::from_mins(1),
        restarts: u32::MAX,
    };
    assert_eq!(far, wanted);
}

// promise: B-1
#[test]
fn long_attempt_resets_the_restart_count() {
    let failed = exited(1);
    let after = |uptime| {
        next(&RestartPolicy::agent(), &failed, |a| {
            a.restarts = 3;
            a.uptime = uptime;
        })
    };
    let anew = Next::Again {
        delay: SECOND,
        restarts: 1,
    };
    assert_eq!(after(Some(SECOND * 10)), anew);
    let exhausted = Next::Exhausted { restarts: 3 };
    assert_eq!(after(Some(SECOND * 9)), exhausted);
    assert_eq!(after(None), exhausted);
}

// promise: RW-103
#[test]
fn exhausted_run_is_held_until_it_is_restarted() {
    let policy = RestartPolicy {
        hold: true,
        ..RestartPolicy::agent()
    };
    let after = |request| {
        next(&policy, &exited(1), |a| {
            a.restarts = 3;
            a.request = request;
        })
    };
    let held = Next::Again {
        delay: Duration::MAX,
        restarts: 3,
    };
    assert_eq!(after(ClientRequest::None), held);
    assert_eq!(Timestamp(7).plus(Duration::MAX), Timestamp::NEVER);
    let anew = Next::Again {
        delay: Duration::ZERO,
        restarts: 0,
    };
    assert_eq!(after(ClientRequest::Restart), anew);
    assert_eq!(after(ClientRequest::Stop), Next::End);
    let unbounded = crate::spec::edited(crate::spec::good(), |s| {
        s.policy.restart = RestartPolicy {
            hold: true,
            ..RestartPolicy::keepalive()
        };
    });
    assert_eq!(unbounded.violations()[0].field, "spec.restart.hold");
}

// promise: B-1
#[test]
fn restart_depends_on_mode_and_exit_code() {
    let code = |code| Some(Exit::Code(code));
    let killed = Some(Exit::Signal {
        signal: Signal::KILL,
        core_dumped: false,
    });
    let unknown = Some(Exit::Unknown);
    let cases = [
        // Mode, then whether a restart follows exit 0, 1, the prevented 7, the forced 9, a signal, an unknown exit.
        (RestartMode::Never, [false; 6]),
        (
            RestartMode::OnFailure,
            [false, true, false, true, true, true],
        ),
        (RestartMode::Always, [true, true, false, true, true, true]),
    ];
    for (mode, wanted) in cases {
        let policy = RestartPolicy {
            mode,
            prevent_exit_codes: vec![7],
            force_exit_codes: vec![9],
            ..RestartPolicy::default()
        };
        let exits = [code(0), code(1), code(7), code(9), killed, unknown];
        let follows = exits.map(|exit| {
            let ended = outcome(EndReason::Exited, exit, empty());
            is_again(&next(&policy, &ended, |_| {}))
        });
        assert_eq!(follows, wanted, "{mode:?}");
    }
    let forced = RestartPolicy {
        mode: RestartMode::OnFailure,
        force_exit_codes: vec![0],
        ..RestartPolicy::default()
    };
    assert!(is_again(&next(&forced, &exited(0), |_| {})));
}

// promise: RW-54
#[test]
fn success_exit_code_causes_no_restart() {
    let policy = Policy {
        success_exit_codes: vec![143],
        ..Policy::default()
    };
    let restart = |force_exit_codes| RestartPolicy {
        mode: RestartMode::OnFailure,
        force_exit_codes,
        ..RestartPolicy::default()
    };
    let succeeded = policy.judge(exited(143));
    assert_eq!(succeeded.reason, EndReason::SuccessExit);
    assert_eq!(succeeded.state(), RunState::Succeeded);
    assert_eq!(succeeded.exit, Some(Exit::Code(143)));
    assert_eq!(next(&restart(vec![]), &succeeded, |_| {}), Next::End);
    assert!(is_again(&next(&restart(vec![143]), &succeeded, |_| {})));
    let other = policy.judge(exited(144));
    assert_eq!(other, exited(144));
    assert!(is_again(&next(&restart(vec![]), &other, |_| {})));
}

#[test]
fn finally_ended_run_is_not_restarted() {
    let by = || "uid:0".to_owned();
    let reasons = [
        EndReason::Aborted {
            by: by(),
            request_id: None,
        },
        EndReason::Fenced { by: by() },
        EndReason::DeadlineExceeded(Deadline::MaxRuntime),
        EndReason::DeadlineExceeded(Deadline::Inactivity),
        EndReason::RestartsExhausted { restarts: 3 },
    ];
    for reason in reasons {
        let ended = outcome(reason, Some(Exit::Code(1)), empty());
        let said = next(&RestartPolicy::keepalive(), &ended, |_| {});
        assert_eq!(said, Next::End, "{:?}", ended.reason);
    }
    let stopped = next(&RestartPolicy::keepalive(), &exited(1), |a| {
        a.request = ClientRequest::Stop;
    });
    assert_eq!(stopped, Next::End);
}

#[test]
fn failed_first_start_is_reported_and_later_retried() {
    let failure = StartFailure {
        stage: StartStage::Exec,
        errno: Some(2),
        path: None,
    };
    let failed = outcome(EndReason::StartFailed(failure), None, TreeVerdict::NeverRan);
    let at = |number| next(&RestartPolicy::agent(), &failed, |a| a.number = number);
    assert_eq!(at(1), Next::End);
    assert!(is_again(&at(2)));
    let last = next(&RestartPolicy::agent(), &failed, |a| {
        a.number = 4;
        a.restarts = 3;
    });
    assert_eq!(last, Next::Exhausted { restarts: 3 });
}

#[test]
fn first_attempt_never_run_is_not_restarted() {
    let stopped = outcome(EndReason::ServerShutdown, None, TreeVerdict::NeverRan);
    let of = |number: u32| {
        next(&RestartPolicy::keepalive(), &stopped, |a| {
            a.number = number;
            a.outlives_service = true;
        })
    };
    assert_eq!(of(1), Next::End);
    assert!(is_again(&of(2)));
}

#[test]
fn unrecorded_attempt_is_not_counted_in_row() {
    let failure = StartFailure {
        stage: StartStage::Record,
        errno: None,
        path: None,
    };
    let failed = outcome(EndReason::StartFailed(failure), None, TreeVerdict::NeverRan);
    let said = next(&RestartPolicy::agent(), &failed, |a| {
        a.number = 4;
        a.restarts = 3;
    });
    let again = Next::Again {
        delay: SECOND * 4,
        restarts: 3,
    };
    assert_eq!(said, again);
}

#[test]
fn oom_kill_counts_as_failure_for_restart() {
    let kills = MemoryKills {
        kills: 1,
        memory_max: None,
    };
    let policy = RestartPolicy {
        mode: RestartMode::OnFailure,
        ..RestartPolicy::default()
    };
    let ended = outcome(EndReason::OomKilled(kills), Some(Exit::Unknown), empty());
    assert!(is_again(&next(&policy, &ended, |_| {})));
}

// promise: T-7c
#[test]
fn lost_shim_is_failure_despite_exit_code_0() {
    let policy = RestartPolicy {
        mode: RestartMode::OnFailure,
        ..RestartPolicy::default()
    };
    let ended = outcome(EndReason::ShimLost, Some(Exit::Code(0)), empty());
    assert!(is_again(&next(&policy, &ended, |_| {})));
}

#[test]
fn run_ended_with_service_is_restarted_at_once() {
    let reasons = [
        EndReason::ServerShutdown,
        EndReason::ServiceLost,
        EndReason::Rebooted,
        EndReason::OrphanTerminated,
    ];
    for reason in reasons {
        let ended = outcome(reason, Some(Exit::Unknown), empty());
        let of = |outlives: bool| {
            next(&RestartPolicy::agent(), &ended, |a| {
                a.outlives_service = outlives;
                a.restarts = 3;
            })
        };
        assert_eq!(of(false), Next::End, "{:?}", ended.reason);
        let at_once = Next::Again {
            delay: Duration::ZERO,
            restarts: 3,
        };
        assert_eq!(of(true), at_once, "{:?}", ended.reason);
        let never = next(&RestartPolicy::default(), &ended, |a| {
            a.outlives_service = true;
        });
        assert_eq!(never, Next::End, "{:?}", ended.reason);
    }
}

#[test]
fn reboot_allows_restart_of_unverified_tree() {
    let why = TreeVerdict::Unverified("another boot".into());
    let ended = outcome(EndReason::Rebooted, Some(Exit::Unknown), why);
    let of = |boot_over: bool| {
        next(&RestartPolicy::keepalive(), &ended, |a| {
            a.outlives_service = true;
            a.boot_over = boot_over;
        })
    };
    assert_eq!(of(false), Next::NotProven);
    assert!(is_again(&of(true)));
}

#[test]
fn all_violations_of_a_policy_are_reported() {
    let spec = crate::spec::edited(crate::spec::good(), |s| {
        s.policy.restart = RestartPolicy {
            mode: RestartMode::Always,
            delay: Duration::ZERO,
            factor: 11,
            max_delay: SECOND * 100_000,
            jitter_percent: 101,
            max_restarts: Some(0),
            min_uptime: Duration::ZERO,
            prevent_exit_codes: vec![1],
            force_exit_codes: vec![1],
            hold: true,
        };
        s.policy.on_leader_exit = kennel_lifecycle::LeaderExit::Keep;
    });
    let fields: Vec<String> = spec.violations().into_iter().map(|v| v.field).collect();
    let wanted = [
        "spec.restart.delay",
        "spec.restart.factor",
        "spec.restart.max_delay",
        "spec.restart.jitter_percent",
        "spec.restart.max_restarts",
        "spec.restart.min_uptime",
        "spec.restart.force_exit_codes",
        "spec.on_leader_exit.action",
    ];
    assert_eq!(fields, wanted);
    for good in [
        RestartPolicy::default(),
        RestartPolicy::agent(),
        RestartPolicy::keepalive(),
    ] {
        let spec = crate::spec::edited(crate::spec::good(), |s| {
            s.policy.restart = good;
        });
        assert_eq!(spec.violations(), []);
    }
}

proptest! {
    // promise: B-2
    #[test]
    fn no_restart_while_tree_may_have_survivors(
        attempted in any_attempt(),
        policy in any_policy(),
        chance in any::<u32>(),
    ) {
        let (ended, edit) = attempted;
        let left = !matches!(ended.tree, TreeVerdict::Empty(_) | TreeVerdict::NeverRan);
        let said = next_by(&policy, &ended, |a| *a = edit.over(a.outcome), chance);
        if left && !edit.boot_over {
            prop_assert!(!is_again(&said), "{said:?}");
        }
        if edit.request == ClientRequest::Stop || !policy.restarts() {
            prop_assert_eq!(said, Next::End);
        }
    }

    #[test]
    fn restarts_and_delays_are_bounded(
        policy in any_policy(),
        restarts in 0..20_u32,
        chance in any::<u32>(),
    ) {
        let said = next_by(&policy, &exited(1), |a| a.restarts = restarts, chance);
        if let Next::Again { delay, restarts: after } = said {
            prop_assert!(policy.max_restarts.is_none_or(|most| after <= most));
            prop_assert_eq!(after, restarts + 1);
            prop_assert!(delay >= policy.delay.min(policy.max_delay));
            let widest = policy.max_delay * (100 + policy.jitter_percent) / 100;
            prop_assert!(delay <= widest, "{delay:?} of {widest:?}");
        }
    }

    #[test]
    fn restart_backoff_never_decreases(policy in any_policy(), restarts in 0..200_u32) {
        prop_assert!(policy.pause(restarts, 7) <= policy.pause(restarts + 1, 7));
        prop_assert!(policy.pause(restarts, 0) <= policy.pause(restarts, u32::MAX));
    }
}

/// Context that a property varies besides the outcome.
#[derive(Clone, Copy, Debug)]
struct Around {
    number: u32,
    restarts: u32,
    boot_over: bool,
    outlives_service: bool,
    request: ClientRequest,
}

impl Around {
    fn over(self, outcome: &Outcome) -> Attempted<'_> {
        Attempted {
            outcome,
            number: self.number,
            uptime: None,
            restarts: self.restarts,
            boot_over: self.boot_over,
            outlives_service: self.outlives_service,
            request: self.request,
        }
    }
}

fn any_attempt() -> impl Strategy<Value = (Outcome, Around)> {
    let trees = prop_oneof![
        Just(empty()),
        Just(TreeVerdict::NeverRan),
        Just(TreeVerdict::Survivors(vec![7])),
        Just(TreeVerdict::Unverified("no word".into())),
        Just(TreeVerdict::Kept(Leftovers::default())),
    ];
    let reasons = prop_oneof![
        Just(EndReason::Exited),
        Just(EndReason::ServerShutdown),
        Just(EndReason::ServiceLost),
        Just(EndReason::Rebooted),
        Just(EndReason::OrphanTerminated),
        Just(EndReason::ShimLost),
        Just(EndReason::DeadlineExceeded(Deadline::MaxPause)),
    ];
    let around = (
        1..5_u32,
        0..5_u32,
        any::<bool>(),
        any::<bool>(),
        any::<bool>(),
    );
    (reasons, 0..3_i32, trees, around).prop_map(|(reason, code, tree, around)| {
        let (number, restarts, boot_over, outlives_service, stop) = around;
        let around = Around {
            number,
            restarts,
            boot_over,
            outlives_service,
            request: if stop {
                ClientRequest::Stop
            } else {
                ClientRequest::None
            },
        };
        (outcome(reason, Some(Exit::Code(code)), tree), around)
    })
}

fn any_policy() -> impl Strategy<Value = RestartPolicy> {
    let modes = prop_oneof![
        Just(RestartMode::Never),
        Just(RestartMode::OnFailure),
        Just(RestartMode::Always),
    ];
    let numbers = (10..5_000_u64, 1..10_u32, 0..100_000_u64, 0..100_u32);
    let most = prop_oneof![Just(None), (1..9_u32).prop_map(Some)];
    (modes, numbers, most).prop_map(
        |(mode, (delay, factor, more, jitter_percent), max_restarts)| RestartPolicy {
            mode,
            delay: Duration::from_millis(delay),
            factor,
            max_delay: Duration::from_millis(delay + more),
            jitter_percent,
            max_restarts,
            ..RestartPolicy::default()
        },
    )
}

fn next<'a>(
    policy: &RestartPolicy,
    ended: &'a Outcome,
    edit: impl FnOnce(&mut Attempted<'a>),
) -> Next {
    next_by(policy, ended, edit, 0)
}

fn next_by<'a>(
    policy: &RestartPolicy,
    ended: &'a Outcome,
    edit: impl FnOnce(&mut Attempted<'a>),
    chance: u32,
) -> Next {
    let mut attempted = Attempted {
        outcome: ended,
        number: 1,
        uptime: None,
        restarts: 0,
        boot_over: false,
        outlives_service: false,
        request: ClientRequest::None,
    };
    edit(&mut attempted);
    restart::next(policy, &attempted, chance)
}

fn is_again(next: &Next) -> bool {
    matches!(next, Next::Again { .. })
}

fn empty() -> TreeVerdict {
    TreeVerdict::Empty(Proof::CgroupAndEchild)
}

fn exited(code: i32) -> Outcome {
    outcome(EndReason::Exited, Some(Exit::Code(code)), empty())
}

fn outcome(reason: EndReason, exit: Option<Exit>, tree: TreeVerdict) -> Outcome {
    Outcome {
        reason,
        exit,
        tree,
        streams: None,
        certificate: StopCertificate::default(),
    }
}
