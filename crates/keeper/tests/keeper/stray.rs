//! Meaningless signals to Kennel's processes.

use crate::{
    scenarios::{COUNTERS, counting, counts},
    stage::{Stage, is_alive, until},
};
use kennel_keeper::client::{Fact, KeeperEvent, Kernel};
use kennel_lifecycle::Exit;

/// Signals that by default end a process and have no meaning for a keeper, those of libc itself and the last one
/// included.
const STRAY: [i32; 16] = [
    libc::SIGUSR1,
    libc::SIGALRM,
    libc::SIGVTALRM,
    libc::SIGPROF,
    libc::SIGIO,
    libc::SIGPWR,
    libc::SIGSTKFLT,
    libc::SIGXCPU,
    libc::SIGXFSZ,
    32,
    33,
    34,
    35,
    48,
    63,
    64,
];

pub(crate) fn plays(name: &str) -> bool {
    matches!(
        name,
        "stray_signals_end_neither_keeper_nor_shim"
            | "quit_ends_service_in_order"
            | "usr2_ends_service_in_order"
            | "commands_start_with_default_signals"
    )
}

pub(crate) async fn play(name: &str, stage: &mut Stage) {
    match name {
        "stray_signals_end_neither_keeper_nor_shim" => stray(stage).await,
        "quit_ends_service_in_order" => ends(stage, libc::SIGQUIT).await,
        "usr2_ends_service_in_order" => ends(stage, libc::SIGUSR2).await,
        "commands_start_with_default_signals" => defaults(stage).await,
        other => panic!("no scenario {other}"),
    }
}

fn send(pid: i32, number: i32) {
    // SAFETY: kill takes integers; the process is the live keeper or a live shim.
    let sent = unsafe { libc::kill(pid, number) };
    assert_eq!(sent, 0, "signal {number} to {pid}");
}

async fn stray(stage: &mut Stage) {
    let (run, spec) = stage.shell(COUNTERS);
    let prepared = stage.start(run, &spec).await;
    counting(stage).await;
    let (keeper, shim) = (stage.hello.keeper.pid, prepared.identity.shim.pid);
    for number in STRAY {
        send(keeper, number);
        send(shim, number);
    }
    for number in [libc::SIGTERM, libc::SIGINT, libc::SIGHUP, libc::SIGQUIT] {
        send(shim, number);
    }
    // Each stray signal is reported once, by name and sender.
    for _ in STRAY {
        let KeeperEvent::Stray(seen) = stage.event().await else {
            panic!("another event");
        };
        assert!(STRAY.contains(&seen.number), "{seen:?}");
        assert_eq!(
            (seen.pid, seen.count),
            (std::process::id().cast_signed(), 1)
        );
    }
    let before = counts(stage);
    until(|| (counts(stage) > before).then_some(())).await;
    assert!(is_alive(keeper) && is_alive(shim));
    stage.client.stop(run, &spec.policy.stop_plan());
    stage.end(run).await;
}

async fn ends(stage: &mut Stage, number: i32) {
    send(stage.hello.keeper.pid, number);
    assert_eq!(stage.event().await, KeeperEvent::Shutdown {});
}

/// Returns what a command inherits of signals: its mask, and the ignored ones.
async fn defaults(stage: &mut Stage) {
    let (run, spec) = stage.command(
        "/bin/grep",
        &[
            "grep",
            "-E",
            "^Sig(Blk|Ign):\t0{16}$",
            "-c",
            "/proc/self/status",
        ],
    );
    let prepared = stage.start(run, &spec).await;
    let facts = stage.end(run).await;
    assert!(
        facts.contains(&Fact::LeaderExited(Exit::Code(0))),
        "{facts:?}"
    );
    let (out, _) = crate::stage::pipes(prepared.outputs);
    assert_eq!(crate::stage::drain(out), "2\n");
}
