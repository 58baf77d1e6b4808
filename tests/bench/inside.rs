//! A pid namespace of the bench's own: when it is killed, the kernel ends all that it has started.

use nix::sys::signal::{SigSet, Signal};
use std::{
    os::unix::process::CommandExt,
    process::{Command, Stdio},
    thread,
};

/// Set in the inner process.
const INSIDE: &str = "KENNEL_BENCH_INSIDE";
/// Exit code of a shell for a process that SIGINT ended.
const INTERRUPTED: i32 = 130;

/// Becomes the outer process of such a namespace. `false`: this is the inner one, or none can be made.
pub(crate) fn start_again(words: &[String]) -> bool {
    if std::env::var_os(INSIDE).is_some() {
        end_on_signal();
        return false;
    }
    let possible = unshare()
        .arg("true")
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success());
    if !possible {
        eprintln!("no pid namespace can be made here: if this is killed, something may be left");
        return false;
    }
    let own = std::env::current_exe().expect("own executable");
    let error = unshare().arg(own).args(words).env(INSIDE, "1").exec();
    panic!("unshare: {error}")
}

/// Exits on signals: the first process of a pid namespace is not ended by a signal without a handler.
fn end_on_signal() {
    let mut end_signals = SigSet::empty();
    end_signals.add(Signal::SIGINT);
    end_signals.add(Signal::SIGTERM);
    // The standard library unblocks all signals in programs it starts.
    end_signals.thread_block().expect("signals can be blocked");
    thread::spawn(move || {
        if end_signals.wait().is_ok() {
            std::process::exit(INTERRUPTED);
        }
    });
}

fn unshare() -> Command {
    let mut unshare = Command::new("unshare");
    if !nix::unistd::Uid::effective().is_root() {
        unshare.args(["--user", "--map-root-user"]);
    }
    unshare.args(["--pid", "--fork", "--mount-proc", "--kill-child"]);
    unshare
}
