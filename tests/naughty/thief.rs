//! Tries to take over a foreign run: its process and its output.

use crate::say;
use nix::{
    errno::Errno,
    sys::{
        signal::{SigSet, Signal, kill},
        socket::{AddressFamily, MsgFlags, SockFlag, SockType, UnixAddr, connect, recv, socket},
    },
    unistd::Pid,
};
use std::{
    fs::{self, File, OpenOptions},
    io::Write as _,
    os::fd::{AsRawFd as _, OwnedFd},
    path::Path,
    thread::sleep,
    time::{Duration, Instant},
};

/// Connections queued since before the keeper's death.
const QUEUED: usize = 3;
/// Time for which it continues after the keeper's death.
const TRIES_FOR: Duration = Duration::from_secs(3);
/// Between two tries.
const TRY_EVERY: Duration = Duration::from_millis(5);
/// Buffer for the first bytes of a message.
const BYTES: usize = 64;

/// Blocks polite signals, queues at the run's socket, kills the keeper, takes its lock, and keeps connecting. The
/// result is in `report` then.
pub(crate) fn take_run(data_dir: &Path, run: &str, keeper: i32, report: &Path) {
    let door = data_dir.join("adoptable").join(run);
    let all = SigSet::all().thread_block();
    all.expect("signals can be blocked");
    let mut sockets: Vec<OwnedFd> = (0..QUEUED).filter_map(|_| knock(&door)).collect();
    let queued = sockets.len();
    say("up");
    while !report.with_extension("go").exists() {
        sleep(TRY_EVERY);
    }
    kill(Pid::from_raw(keeper), Signal::SIGKILL).expect("the keeper is of the same user");
    let until = Instant::now() + TRIES_FOR;
    let mut lock = None;
    let mut taken = false;
    while Instant::now() < until && !taken {
        if lock.is_none() {
            lock = lock_as_keeper(&data_dir.join("lock"));
        }
        sockets.extend(knock(&door));
        taken = sockets.iter().any(has_message);
        sockets.retain(|socket| !has_ended(socket));
        sleep(TRY_EVERY);
    }
    let word = if taken { "taken" } else { "refused" };
    let locked = lock.is_some();
    drop(lock);
    let fresh = report.with_extension("new");
    fs::write(&fresh, format!("{word} queued={queued} locked={locked}\n")).expect("own file");
    fs::rename(&fresh, report).expect("own file");
}

/// Returns a connection to the socket, if it takes one.
fn knock(door: &Path) -> Option<OwnedFd> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let socket = socket(AddressFamily::Unix, SockType::SeqPacket, flags, None).ok()?;
    let address = UnixAddr::new(door).ok()?;
    connect(socket.as_raw_fd(), &address).ok()?;
    Some(socket)
}

/// Whether it got any message; the first message would be the run.
fn has_message(socket: &OwnedFd) -> bool {
    peek(socket).is_ok_and(|bytes| bytes > 0)
}

fn has_ended(socket: &OwnedFd) -> bool {
    !matches!(peek(socket), Err(Errno::EAGAIN))
}

fn peek(socket: &OwnedFd) -> nix::Result<usize> {
    let mut bytes = [0; BYTES];
    recv(socket.as_raw_fd(), &mut bytes, MsgFlags::MSG_PEEK)
}

/// Locks the data directory and registers in it as its keeper.
fn lock_as_keeper(path: &Path) -> Option<File> {
    let mut file = OpenOptions::new().read(true).write(true).open(path).ok()?;
    file.try_lock().ok()?;
    file.set_len(0).ok()?;
    writeln!(file, "{}", std::process::id()).ok()?;
    Some(file)
}
