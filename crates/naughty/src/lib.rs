//! The escape suite: programs that try to outlive their run, one trick each.
//!
//! A program has a *leader*, which is the command of the run. It starts its *actors*, waits until each of them is in
//! position, prints `up`, and stays until it gets SIGUSR1: then it exits with 0 and leaves the others behind (the one
//! that kills its shim does that first, and stays). Where a trick cannot be done here it prints `cannot: <why>` and
//! exits. No process outlives [`LIFE`], whatever happens to the test.

mod actor;
mod leader;
mod place;
mod reach;

pub use reach::{NOTHING, REACH};

use nix::{
    errno::Errno,
    sys::{
        signal::{SigEvent, SigevNotify, Signal},
        timer::{Expiration, Timer, TimerSetTimeFlags},
    },
    time::ClockId,
};
use std::{
    env, ffi::OsStr, io, path::PathBuf, process::Command, process::ExitCode, time::Duration,
};

/// The word after the binary's name that selects this suite.
pub const WORD: &str = "naughty";
/// Line that a leader prints when all are in position.
pub const UP: &str = "up";
/// Prefix of the line that a leader prints when its trick cannot be done here.
pub const CANNOT: &str = "cannot: ";
/// Most processes that one program makes.
pub const STORM: u32 = 300;
/// No process of a program lives longer.
pub const LIFE: Duration = Duration::from_secs(150);

/// Requirements of a program on its arguments or its host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wants {
    /// No requirement.
    Nothing,
    /// The number of a process that is the first of another pid namespace (see [`HOLD_NAMESPACE`]).
    ForeignNamespace,
    /// A control group that its command may write to.
    WritableGroup,
    /// A copy of the binary that belongs to root and has the setuid bit, and a service that is not root.
    SetuidCopy,
}

/// One program.
#[derive(Clone, Copy, Debug)]
pub struct Program {
    /// Name on the command line and in tables.
    pub name: &'static str,
    /// Description in a few words.
    pub does: &'static str,
    /// Requirement.
    pub wants: Wants,
}

/// Declares the programs: name, description and requirement of each.
macro_rules! programs {
    ($($name:literal, $does:literal, $wants:ident;)*) => {
        /// All programs.
        pub const PROGRAMS: [Program; 20] = [
            $(Program { name: $name, does: $does, wants: Wants::$wants },)*
        ];
    };
}

programs! {
    "child", "leaves an ordinary child", Nothing;
    "setsid", "a child in a session of its own", Nothing;
    "double-fork", "a grandchild whose parent is gone", Nothing;
    "daemon", "daemon(3): forked twice, own session, no streams", Nothing;
    "no-environment", "an orphan in its own session, executed with an empty environment", Nothing;
    "overwritten", "an orphan in its own session that overwrites its argv and environ", Nothing;
    "own-pid-namespace", "an orphan in a pid namespace that the run has made", Nothing;
    "foreign-pid-namespace", "enters an unrelated pid namespace, and is orphaned there", ForeignNamespace;
    "leaves-cgroup", "moves itself out of the run's control group", WritableGroup;
    "own-cgroup", "makes a control group below the run's and moves into it", WritableGroup;
    "ignores-signals", "blocks every signal that can be blocked", Nothing;
    "stopped", "stops itself with SIGSTOP", Nothing;
    "ptraced", "is held in a trace stop by its sibling", Nothing;
    "zombie-leader", "the leader's main thread has exited, another runs on", Nothing;
    "closes-everything", "closes every descriptor", Nothing;
    "keeps-pipe", "an orphan that holds the run's output open", Nothing;
    "kills-shim", "kills its own shim; a child of it is deaf to signals", Nothing;
    "respawns", "starts each child anew that was ended", Nothing;
    "fork-storm", "300 processes, each in its own session and deaf to signals", Nothing;
    "setuid-root", "a child that becomes root by a setuid program", SetuidCopy;
}

/// The word that makes a process hold a pid namespace open for others; it prints the number of the namespace's first
/// process and stays.
pub const HOLD_NAMESPACE: &str = "hold-namespace";

/// Plays the part that the words name: a program's name or that of an actor.
pub fn main(words: &[String]) -> ExitCode {
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    if let Err(errno) = end_after_life() {
        eprint_line(&format!("no timer: {errno}"));
        return ExitCode::FAILURE;
    }
    let done = match words.split_first() {
        Some((&HOLD_NAMESPACE, [])) => actor::hold_namespace(),
        Some((&"actor", part)) => actor::play(part),
        Some((&REACH, part)) => reach::reach(part),
        Some((name, arguments)) => leader::lead(name, arguments),
        None => Err(Failed("no program is named".to_owned())),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failed(why)) => {
            eprint_line(&why);
            ExitCode::FAILURE
        }
    }
}

/// A failure, in words.
#[derive(Debug)]
struct Failed(String);

/// Converts an error, for `map_err` on a call.
fn at<E: std::fmt::Display>(what: &'static str) -> impl Fn(E) -> Failed {
    move |error| Failed(format!("{what}: {error}"))
}

/// Arms a timer that sends SIGKILL, which ends a stopped process and one that blocks signals, too. Neither fork nor
/// exec inherits it.
fn end_after_life() -> Result<(), Errno> {
    let event = SigEvent::new(SigevNotify::SigevSignal {
        signal: Signal::SIGKILL,
        si_value: 0,
    });
    let mut timer = Timer::new(ClockId::CLOCK_MONOTONIC, event)?;
    timer.set(Expiration::OneShot(LIFE.into()), TimerSetTimeFlags::empty())?;
    std::mem::forget(timer);
    Ok(())
}

/// Returns this program again, in another part.
fn again<'a>(words: impl IntoIterator<Item = &'a str>) -> Result<Command, Failed> {
    let own = env::current_exe().map_err(at("own executable"))?;
    Ok(as_actor(own, words))
}

fn as_actor<'a>(program: PathBuf, words: impl IntoIterator<Item = &'a str>) -> Command {
    let mut command = Command::new(program);
    command.arg(OsStr::new(WORD)).arg("actor").args(words);
    command
}

fn print_line(text: &str) -> Result<(), Failed> {
    use io::Write as _;
    let mut out = io::stdout().lock();
    writeln!(out, "{text}")
        .and_then(|()| out.flush())
        .map_err(at("standard output"))
}

fn eprint_line(text: &str) {
    use io::Write as _;
    // Standard error may have no reader.
    let _ = writeln!(io::stderr(), "naughty: {text}");
}
