//! The command of the run: starts the actors, reports that they are in position, and stays until it is signalled to
//! exit.

use crate::{CANNOT, Failed, LIFE, STORM, UP, again, as_actor, at, print_line};
use nix::{
    sys::signal::{SigSet, Signal, kill},
    unistd::getppid,
};
use std::{
    fs,
    io::{self, PipeReader, PipeWriter, Read},
    path::PathBuf,
    process::{Child, Command, Stdio, exit},
    thread::{self, sleep},
    time::Duration,
};

/// Time between two checks of a state that is about to change.
const LOOK_EVERY: Duration = Duration::from_millis(1);

/// The pipe on which actors report that they are in position: they have its end as standard input.
struct Ready {
    reader: PipeReader,
    writer: PipeWriter,
    expected: u32,
}

/// Plays the leader of one program.
pub(crate) fn lead(name: &str, arguments: &[&str]) -> Result<(), Failed> {
    if name == "zombie-leader" {
        return zombie_leader();
    }
    let leave = leave_signal()?;
    let mut ready = Ready::new()?;
    match (name, arguments) {
        ("child", []) => ready.start(&["stay"])?,
        ("setsid", []) => ready.start(&["session"])?,
        ("double-fork", []) => ready.orphan(&["stay"])?,
        ("daemon", []) => ready.orphan(&["daemon"])?,
        ("no-environment", []) => ready.orphan(&["bare", "session"])?,
        ("overwritten", []) => ready.orphan(&["overwritten"])?,
        ("own-pid-namespace", []) => ready.start(&["own-namespace"])?,
        ("foreign-pid-namespace", [first]) => ready.start(&["enter", first])?,
        ("leaves-cgroup", []) => ready.start(&["leaves-group"])?,
        ("own-cgroup", []) => ready.start(&["own-group"])?,
        ("ignores-signals" | "kills-shim", []) => ready.start(&["deaf"])?,
        ("stopped", []) => ready.start(&["stopped"])?,
        ("ptraced", []) => traced_by_sibling(&mut ready)?,
        ("closes-everything", []) => ready.start(&["closes"])?,
        ("keeps-pipe", []) => keeps_pipe(&mut ready)?,
        ("respawns", []) => ready.start(&["respawns"])?,
        ("fork-storm", []) => {
            ready.start(&["storm", "1"])?;
            ready.expected = STORM;
        }
        ("setuid-root", [copy]) => {
            ready.start_command(as_actor(PathBuf::from(copy), ["root"]))?;
        }
        _ => return Err(Failed(format!("no program {name:?} {arguments:?}"))),
    }
    if let Err(why) = ready.wait()? {
        return print_line(&format!("{CANNOT}{why}"));
    }
    print_line(UP)?;
    leave.wait().map_err(at("sigwait"))?;
    if name == "kills-shim" {
        kill_shim()?;
        sleep(LIFE);
    }
    Ok(())
}

/// Blocks the signal that ends a leader; its children do not inherit this.
fn leave_signal() -> Result<SigSet, Failed> {
    let mut set = SigSet::empty();
    set.add(Signal::SIGUSR1);
    set.thread_block().map_err(at("block SIGUSR1"))?;
    Ok(set)
}

impl Ready {
    fn new() -> Result<Self, Failed> {
        let (reader, writer) = io::pipe().map_err(at("pipe"))?;
        Ok(Self {
            reader,
            writer,
            expected: 0,
        })
    }

    /// Starts an actor that is a child of the leader, silent.
    fn start(&mut self, part: &[&str]) -> Result<(), Failed> {
        self.start_command(again(part.iter().copied())?).map(|_| ())
    }

    /// Starts an actor whose parent has exited when this returns.
    fn orphan(&mut self, part: &[&str]) -> Result<(), Failed> {
        let parts = ["orphan"].iter().chain(part).copied();
        let mut middle = self.start_command(again(parts)?)?;
        let status = middle.wait().map_err(at("wait"))?;
        status
            .success()
            .then_some(())
            .ok_or_else(|| Failed(format!("the process between: {status}")))
    }

    fn start_command(&mut self, mut command: Command) -> Result<Child, Failed> {
        command.stdout(Stdio::null()).stderr(Stdio::null());
        self.start_as_is(command)
    }

    fn start_as_is(&mut self, mut command: Command) -> Result<Child, Failed> {
        let end = self.writer.try_clone().map_err(at("pipe"))?;
        self.expected += 1;
        command.stdin(Stdio::from(end)).spawn().map_err(at("spawn"))
    }

    /// Waits until all are in position; `Err` in `Ok`: one reports why it cannot be.
    fn wait(self) -> Result<Result<(), String>, Failed> {
        // Without its own write end the leader notices when the last actor is gone.
        drop(self.writer);
        wait_for(self.expected, &self.reader)
    }
}

fn wait_for(actors: u32, mut reader: &PipeReader) -> Result<Result<(), String>, Failed> {
    let mut byte = [0; 1];
    for _ in 0..actors {
        reader
            .read_exact(&mut byte)
            .map_err(at("an actor ended before it was in position"))?;
        if byte != *b"u" {
            return Ok(Err(line(reader)?));
        }
    }
    Ok(Ok(()))
}

fn line(mut reader: &PipeReader) -> Result<String, Failed> {
    let mut text = Vec::new();
    let mut byte = [0; 1];
    while reader.read(&mut byte).map_err(at("pipe"))? == 1 && byte != *b"\n" {
        text.push(byte[0]);
    }
    Ok(String::from_utf8_lossy(&text).into_owned())
}

fn traced_by_sibling(ready: &mut Ready) -> Result<(), Failed> {
    let traced = ready.start_command(again(["session"])?)?;
    let number = traced.id().to_string();
    // A process stopped before it is in position would never get there.
    if wait_for(1, &ready.reader)?.is_err() {
        return Err(Failed("the one to be traced is not there".to_owned()));
    }
    ready.expected = 0;
    ready.start(&["tracer", &number])
}

fn keeps_pipe(ready: &mut Ready) -> Result<(), Failed> {
    let mut middle = ready.start_as_is(again(["orphan", "session"])?)?;
    middle.wait().map_err(at("wait")).map(|_| ())
}

/// Kills its shim: `kill -9 $PPID`.
#[expect(clippy::disallowed_methods, reason = "that is the trick")]
fn kill_shim() -> Result<(), Failed> {
    let shim = getppid();
    kill(shim, Signal::SIGKILL).map_err(at("kill of the shim"))?;
    Ok(())
}

/// Ends the main thread, which leaves a zombie at the head of a process that lives.
fn zombie_leader() -> Result<(), Failed> {
    let leave = leave_signal()?;
    let mut ready = Ready::new()?;
    ready.start(&["session"])?;
    if let Err(why) = ready.wait()? {
        return print_line(&format!("{CANNOT}{why}"));
    }
    thread::spawn(move || {
        let own = std::process::id();
        let stat = format!("/proc/{own}/task/{own}/stat");
        while !fs::read_to_string(&stat).is_ok_and(|stat| stat.contains(") Z ")) {
            sleep(LOOK_EVERY);
        }
        let left = print_line(UP).and_then(|()| leave.wait().map_err(at("sigwait")));
        exit(i32::from(left.is_err()));
    });
    kennel_linux::end_main_thread(LIFE)
}
