//! Notices without end: of the command, with descriptors in them, and of a process that is none of the run.

use crate::notify::by_notice;
use kennel_proto::pb::{WaitCondition, event::Payload};
use kennel_tests::{Kennel, PATIENCE, RunExt, argv, eventually, must, sh};
use std::{
    fs,
    time::{Duration, Instant},
};

/// Sends statuses as fast as the socket takes them, each with as many descriptors as a message may have.
const FLOOD: &str = r#"
import array, os, socket, sys
path = sys.argv[1] if len(sys.argv) > 1 else os.environ["NOTIFY_SOCKET"]
manager = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
manager.connect(path)
null = os.open("/dev/null", os.O_RDONLY)
rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [null] * 253))]
print("up", flush=True)
sent = 0
while True:
    sent += 1
    text = b"STATUS=%d" % sent
    if sent == 1000:
        text += b"\nREADY=1"
        print("sent", flush=True)
    try:
        manager.sendmsg([text], rights)
    except OSError:
        # Too many descriptors are on their way.
        manager.send(text)
"#;

/// Interval at which the last status is recorded.
const CHANGE_EVERY: Duration = Duration::from_millis(100);
/// Most refused notices of a run that are reported.
const REFUSALS_MAX: usize = 8;

fn descriptors(pid: i32) -> usize {
    let all = fs::read_dir(format!("/proc/{pid}/fd")).expect("own process");
    all.count()
}

// promise: RW-71a
#[tokio::test(flavor = "multi_thread")]
async fn notice_flood_is_bounded_and_delays_no_run() {
    let kennel = Kennel::on_sqlite().await;
    let mut client = kennel.client().await;
    let keeper = kennel.keeper_pid();
    let quiet = descriptors(keeper);
    let began = Instant::now();
    let mut flood = argv(&["/usr/bin/env", "python3", "-c", FLOOD]);
    flood.readiness = Some(by_notice(None));
    let flood = must("spawn", client.spawn(flood).await).run_id;
    client.hear_up(&flood).await;
    let socket = kennel.run_dir(&flood).join("notify");
    let socket = socket.to_str().expect("UTF-8");
    let stranger = argv(&["/usr/bin/env", "python3", "-c", FLOOD, socket]);
    let stranger = must("spawn", client.spawn(stranger).await).run_id;
    client.hear_up(&stranger).await;

    for _ in 0..20 {
        let run = must("spawn", client.spawn(sh("exit 3")).await).run_id;
        let ended = must("wait", client.ended(&run).await);
        assert_eq!(ended.code(), Some(3));
    }
    let ready = client.wait(&flood, WaitCondition::Ready);
    let (_, reached) = must("wait", ready.await);
    assert!(reached, "it is heard through the flood");
    must("abort", client.abort(&stranger).await);
    let run = must("abort", client.abort(&flood).await);
    let lasted = began.elapsed();

    assert!(run.tree_is_empty(), "{run:?}");
    eventually("the keeper has closed all", PATIENCE, || {
        // Waiting shims account for a few descriptors.
        (descriptors(keeper) <= quiet + 40).then_some(())
    })
    .await;
    let heard = must("hear", client.hear_all(&flood, 0).await);
    let changes = heard.stations();
    let changes = changes.iter().filter(|s| **s == "status_changed").count();
    // The first change is recorded at once, the last at the end.
    let changes = u32::try_from(changes).expect("a few");
    let most = lasted + 2 * CHANGE_EVERY;
    assert!(
        changes > 0 && changes * CHANGE_EVERY <= most,
        "{changes} in {most:?}"
    );
    let is_refusal = |(_, payload): &&(u64, Payload)| match payload {
        Payload::Warning(warning) => warning.message.contains("it is no process of this run"),
        _ => false,
    };
    let refusals = heard.events.iter().filter(is_refusal).count();
    assert!((1..=REFUSALS_MAX).contains(&refusals), "{refusals}");
}
