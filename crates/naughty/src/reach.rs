//! Access of an untrusted command: the data directory, the keeper, and the service's own socket.

use crate::{Failed, print_line};
use nix::{sys::signal::kill, unistd::Pid};
use std::{fs, path::Path, process::Command};

/// The word that selects it.
pub const REACH: &str = "reach";
/// Output where it has reached nothing.
pub const NOTHING: &str = "nothing";

/// Runs `reach DATA_DIR KEEPER SOCKET`: prints what it has reached, in one line. It changes nothing.
#[expect(
    clippy::disallowed_methods,
    reason = "that is what it tries; signal 0 ends no process"
)]
pub(crate) fn reach(words: &[&str]) -> Result<(), Failed> {
    let [data_dir, keeper, socket] = words else {
        return Err(Failed("reach DATA_DIR KEEPER SOCKET".to_owned()));
    };
    let pid: i32 = keeper
        .parse()
        .map_err(|_| Failed("KEEPER is a number".to_owned()))?;
    let list = || fs::read_dir(data_dir).is_ok();
    let read = || fs::File::open(Path::new(data_dir).join("node")).is_ok();
    let signal = || kill(Pid::from_raw(pid), None).is_ok();
    let memory = || fs::read(format!("/proc/{pid}/environ")).is_ok();
    let mut reached = Vec::new();
    for (what, is_reached) in [
        ("the data directory", list()),
        ("a file of it", read()),
        ("the keeper by a signal", signal()),
        ("the memory of the keeper", memory()),
        ("the service by its socket", calls(socket)),
    ] {
        if is_reached {
            reached.push(what);
        }
    }
    match reached[..] {
        [] => print_line(NOTHING),
        _ => print_line(&reached.join(", ")),
    }
}

/// Whether a call is answered.
fn calls(socket: &str) -> bool {
    let Ok(own) = std::env::current_exe() else {
        return false;
    };
    let asked = Command::new(own)
        .args(["--server", &format!("unix:{socket}"), "list"])
        .output();
    asked.is_ok_and(|answer| answer.status.success())
}
