use super::*;
use kennel_client::Time;

fn known(reason: Reason, exit: Option<pb::exit::Result>) -> Records {
    let run = pb::Run {
        end_reason: Some(pb::EndReason {
            reason: Some(reason),
        }),
        current_attempt: Some(pb::Attempt {
            exit: exit.map(|result| pb::Exit {
                result: Some(result),
                core_dumped: false,
            }),
            leader_exited_time: Some(Time {
                seconds: 100,
                nanos: 5,
            }),
            ..pb::Attempt::default()
        }),
        ..pb::Run::default()
    };
    Records {
        run,
        ..Records::default()
    }
}

fn signal(name: &str) -> pb::exit::Result {
    pb::exit::Result::Signal(pb::exit::Signal {
        name: name.into(),
        number: 9,
    })
}

// promise: AU-5
#[test]
fn oom_is_explained_with_numbers_and_unknown_parts() {
    let killed = pb::end_reason::OomKilled {
        kills: 2,
        memory_max_bytes: Some(64 << 20),
    };
    let reported = answer(&known(Reason::OomKilled(killed), Some(signal("SIGKILL"))));
    let begins = "Ended for lack of memory: the kernel killed 2 processes";
    assert!(reported.line.starts_with(begins), "{}", reported.line);
    assert!(
        reported.line.contains("67108864 bytes"),
        "{}",
        reported.line
    );
    assert!(reported.unknown[0].contains("the kernel does not say"));
}

// promise: RW-121
#[test]
fn memory_reserve_is_explained_with_numbers() {
    let short = pb::end_reason::MemoryReserve {
        limit_bytes: 1 << 30,
        used_bytes: 1_000_000_000,
        reserve_bytes: 64 << 20,
    };
    let reported = answer(&known(
        Reason::MemoryReserve(short),
        Some(signal("SIGTERM")),
    ));
    let begins = "Ended by Kennel as the largest run, because the memory of its node was short: \
        1000000000 of 1073741824 bytes used, and 67108864 reserved";
    assert!(reported.line.starts_with(begins), "{}", reported.line);
    assert_eq!(reported.unknown, Vec::<String>::new());
}

// promise: AU-6
#[test]
fn why_names_caller_only_of_requested_signal() {
    let exited = Reason::Exited(pb::end_reason::Exited {});
    let mut known = known(exited, Some(signal("SIGUSR1")));
    let outside = answer(&known);
    assert!(
        outside.line.contains("who did is not known"),
        "{}",
        outside.line
    );
    assert_eq!(outside.unknown.len(), 1);
    known.audit.push(pb::AuditRecord {
        time: Some(Time {
            seconds: 99,
            nanos: 0,
        }),
        record: Some(Record::Request(pb::AuditRequest {
            rpc: "Signal".into(),
            by: "uid:7".into(),
            code: "OK".into(),
            asked: [("signal".to_owned(), "SIGUSR1".to_owned())].into(),
            ..pb::AuditRequest::default()
        })),
        ..pb::AuditRecord::default()
    });
    let asked = answer(&known);
    assert_eq!(
        asked.line,
        "Ended by SIGUSR1, which uid:7 had requested (Signal), at 1970-01-01T00:01:40Z."
    );
    assert!(asked.unknown.is_empty());
}

// promise: AU-6
#[test]
fn caller_text_is_escaped_for_terminals() {
    let aborted = pb::end_reason::Aborted {
        by: "uid:0".into(),
        request_id: "\x1b]0;title\x07\n".into(),
    };
    let reported = answer(&known(Reason::Aborted(aborted), None));
    assert!(
        !reported.line.chars().any(char::is_control),
        "{}",
        reported.line
    );
}

// promise: A-22j
#[test]
fn why_names_the_cause_of_a_pin() {
    let run = pb::Run {
        state: pb::RunState::Running.into(),
        pinned: Some(pb::PinnedRun {
            by: "of_\x1btomorrow".into(),
            since: None,
        }),
        ..pb::Run::default()
    };
    let now = std::time::SystemTime::UNIX_EPOCH;
    assert_eq!(crate::render::state(&run, now), "PINNED (RUNNING)");
    let line = answer(&Records {
        run,
        ..Records::default()
    })
    .line;
    assert!(
        line.contains("It is pinned") && line.contains("only Abort acts"),
        "{line}"
    );
    assert!(!line.chars().any(char::is_control), "{line}");
}

#[test]
fn why_shows_last_state_of_unreachable_node() {
    let run = pb::Run {
        state: pb::RunState::Running.into(),
        other_node: Some(pb::Node {
            node_name: "one".into(),
            reachability: pb::NodeReachability::Unreachable.into(),
            ..pb::Node::default()
        }),
        left_stop: Some(pb::LeftStop {
            by: "uid:7".into(),
            ..pb::LeftStop::default()
        }),
        ..pb::Run::default()
    };
    let reported = answer(&Records {
        run,
        ..Records::default()
    });
    for said in [
        "its node one is unreachable since",
        "RUNNING is its last known state",
        "A stop is left for its node: by uid:7; not done before the node is back",
    ] {
        assert!(reported.line.contains(said), "{}", reported.line);
    }
}
