//! A child program that misbehaves, one trick at a time: `naughty <trick> [argument...]`.
//!
//! No trick makes more than [`STORM_MAX`] processes, and each ends on its own after [`LIFE`].

#![expect(
    clippy::zombie_processes,
    reason = "leaving children behind is the trick"
)]

mod thief;
mod witnessed;

use nix::{
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::{
        signal::{SigSet, Signal, raise},
        signalfd::SignalFd,
        socket::{MsgFlags, recvmsg},
    },
    unistd::setsid,
};
use std::{
    env, fs,
    io::{self, IoSliceMut, Write},
    os::fd::{AsFd, AsRawFd, RawFd},
    os::unix::{net::UnixStream, process::CommandExt},
    path::Path,
    process::{Command, ExitCode, Stdio, exit},
    thread::sleep,
    time::Duration,
};

/// Longest life of such a process, in case a test loses it.
const LIFE: Duration = Duration::from_mins(5);
/// Most processes that one trick makes.
const STORM_MAX: u32 = 300;

fn main() -> ExitCode {
    let args: Vec<String> = env::args().skip(1).collect();
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["sleep"] => stay(),
        ["daemon"] => daemon(&["in-own-session"], false),
        ["envless-daemon"] => daemon(&["in-own-session"], true),
        ["in-own-session"] => in_own_session(),
        ["mixed-tree"] => mixed_tree(),
        ["double-fork"] => double_fork(),
        ["tree", count] => tree(number(count), 0),
        ["tree", count, apart] => tree(number(count), number(apart)),
        ["storm"] => storm(8),
        ["storm-node", depth] => storm(number(depth)),
        ["stop-self"] => stop_self(),
        ["hold-pipe"] => hold_pipe(),
        ["disguise"] => disguise(),
        ["kill-parent"] => kill_parent(),
        ["bytes", count] => bytes(number(count)),
        ["tell-signals", file] => tell_signals(file),
        ["listen"] => listen(),
        ["with-socket", path, command @ ..] => with_socket(path, command),
        ["take-run", data_dir, run, keeper, report] => {
            thief::take_run(data_dir.as_ref(), run, number(keeper), report.as_ref());
        }
        ["witnessed", socket, millis, code, bytes] => {
            return witnessed::leader(socket, number(millis), number(code), number(bytes));
        }
        ["witnessed-child", socket] => return witnessed::child(socket),
        ["bystander", millis] => return bystander(number(millis)),
        ["talk", dir, millis] => return talk(dir.as_ref(), number(millis)),
        other => {
            eprintln!("naughty: no trick {other:?}");
            return ExitCode::from(2);
        }
    }
    ExitCode::SUCCESS
}

fn number<T: std::str::FromStr>(text: &str) -> T {
    text.parse().unwrap_or_else(|_| {
        eprintln!("naughty: {text:?} is not a number");
        exit(2)
    })
}

fn again(words: &[&str]) -> Command {
    let mut command = Command::new(env::current_exe().expect("own executable"));
    command.args(words);
    command
}

fn say(text: &str) {
    println!("{text}");
    io::stdout().flush().expect("own stdout");
}

fn stay() {
    say("up");
    sleep(LIFE);
}

/// Makes a grandchild in its own session whose parent is gone; the leader stays.
fn daemon(words: &[&str], without_env: bool) {
    launch_orphan(words, without_env);
    say("up");
    sleep(LIFE);
}

/// Starts `naughty <words>` below a shell that exits at once.
fn launch_orphan(words: &[&str], without_env: bool) {
    let own = env::current_exe().expect("own executable");
    let mut shell = Command::new("/bin/sh");
    shell
        .args(["-c", "\"$0\" \"$@\" </dev/null >/dev/null 2>&1 &"])
        .arg(own)
        .args(words);
    if without_env {
        shell.env_clear();
    }
    shell.status().expect("sh runs");
}

fn in_own_session() {
    // setsid fails only for a group leader: either in its own session, or a test notices.
    let _ = setsid();
    sleep(LIFE);
}

/// Makes one of each: a plain child, one in its own session, one in its own session without environment.
fn mixed_tree() {
    again(&["sleep"])
        .stdout(Stdio::null())
        .spawn()
        .expect("child starts");
    launch_orphan(&["in-own-session"], false);
    launch_orphan(&["in-own-session"], true);
    say("up");
    sleep(LIFE);
}

/// The leader exits at once; a grandchild in its own session stays.
fn double_fork() {
    launch_orphan(&["in-own-session"], false);
    say("left one behind");
}

/// Makes `count` children, and `apart` in sessions of their own; the leader not counted.
fn tree(count: u32, apart: u32) {
    let count = count.min(STORM_MAX);
    for number in 0..count + apart.min(STORM_MAX - count) {
        let word = if number < count {
            "sleep"
        } else {
            "in-own-session"
        };
        again(&[word])
            .stdout(Stdio::null())
            .spawn()
            .expect("child starts");
    }
    say("up");
    sleep(LIFE);
}

/// Makes a binary tree of sessions, each node of which ignores polite signals: 2^depth - 1 processes.
fn storm(depth: u32) {
    let _ = setsid();
    SigSet::all()
        .thread_block()
        .expect("signals can be blocked");
    if depth > 1 && 2_u32.pow(depth) <= STORM_MAX {
        for _ in 0..2 {
            again(&["storm-node", &(depth - 1).to_string()])
                .stdout(Stdio::null())
                .spawn()
                .expect("child starts");
        }
    }
    say("up");
    sleep(LIFE);
}

fn stop_self() {
    say("up");
    raise(Signal::SIGSTOP).expect("it can stop itself");
    sleep(LIFE);
}

/// The leader exits; a grandchild holds standard output open and writes to it no more.
fn hold_pipe() {
    again(&["in-own-session"]).spawn().expect("child starts");
    say("the pipe stays open");
}

/// Changes its name in the process list.
fn disguise() {
    let error = again(&["sleep"]).arg0("[kworker/0:1]").exec();
    panic!("exec: {error}");
}

/// Kills its own shim: `kill -9 $PPID`.
fn kill_parent() {
    Command::new("/bin/sh")
        .args(["-c", "kill -9 \"$0\""])
        .arg(nix::unistd::getppid().to_string())
        .status()
        .expect("sh runs");
    say("up");
    sleep(LIFE);
}

/// Writes bytes of every value, the same for the same count.
fn bytes(count: usize) {
    let mut stdout = io::stdout().lock();
    stdout
        .write_all(&kennel_tests::pattern(count))
        .expect("own stdout");
    stdout.flush().expect("own stdout");
}

/// Writes each polite signal that it gets to a file, a line each, and never exits of it.
fn tell_signals(file: &str) {
    let mut awaited = SigSet::empty();
    for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP] {
        awaited.add(signal);
    }
    awaited.thread_block().expect("signals can be blocked");
    say("up");
    loop {
        let signal = awaited.wait().expect("the set is not empty");
        let mut out = fs::OpenOptions::new()
            .append(true)
            .create(true)
            .open(file)
            .expect("the file can be written");
        // One write call: concurrent readers see whole lines.
        out.write_all(format!("{signal}\n").as_bytes())
            .expect("the file can be written");
    }
}

/// Listens on a port of this host alone, and prints it.
fn listen() {
    let Ok(socket) = std::net::TcpListener::bind("127.0.0.1:0") else {
        exit(1)
    };
    match socket.local_addr() {
        Ok(address) => println!("{}", address.port()),
        Err(_) => exit(1),
    }
    stay();
}

/// Executes a command with the socket that is lent at this path, which it keeps open, as a service manager hands it on.
fn with_socket(path: &str, command: &[&str]) {
    let lender = UnixStream::connect(path).expect("the test lends");
    let (mut byte, mut space) = ([0], nix::cmsg_space!([RawFd; 1]));
    let mut parts = [IoSliceMut::new(&mut byte)];
    let flags = MsgFlags::empty();
    let got = recvmsg::<()>(lender.as_raw_fd(), &mut parts, Some(&mut space), flags);
    let got = got.expect("the test lends");
    assert_eq!(got.cmsgs().expect("one message").count(), 1, "a socket");
    let (program, args) = command.split_first().expect("a command");
    panic!("exec: {}", Command::new(program).args(args).exec());
}

/// An unrelated process that notices every signal: it blocks all that can be blocked, exits when one comes, and reports
/// it.
fn bystander(millis: u64) -> ExitCode {
    let _ = setsid();
    SigSet::all()
        .thread_block()
        .expect("signals can be blocked");
    // The signalfd becomes and stays readable once a signal is pending: it is never read.
    let signals = SignalFd::new(&SigSet::all()).expect("a descriptor can be had");
    let mut fds = [PollFd::new(signals.as_fd(), PollFlags::POLLIN)];
    let life = PollTimeout::try_from(millis).expect("a bystander's life is short");
    match poll(&mut fds, life).expect("all signals are blocked") {
        0 => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    }
}

/// Prints a numbered line every so many milliseconds, and writes the number of the last one that it has printed into
/// `RUN.lines` of this directory. Exits with the code in `RUN.exit`, once that is there.
fn talk(dir: &Path, millis: u64) -> ExitCode {
    let run = env::var("KENNEL_RUN_ID").expect("it is a run's");
    let (lines, code) = (
        dir.join(format!("{run}.lines")),
        dir.join(format!("{run}.exit")),
    );
    // A later attempt continues the earlier one's count.
    let said = fs::read_to_string(&lines).ok();
    let mut count: u64 = said.map_or(0, |said| number(&said));
    loop {
        if let Ok(code) = fs::read_to_string(&code) {
            return ExitCode::from(number::<u8>(&code));
        }
        count += 1;
        say(&format!("line {count}"));
        // Rename atomically: the process may be killed at any moment.
        let new = dir.join(format!("{run}.said"));
        fs::write(&new, count.to_string()).expect("the file can be written");
        fs::rename(&new, &lines).expect("the file can be written");
        sleep(Duration::from_millis(millis));
    }
}
