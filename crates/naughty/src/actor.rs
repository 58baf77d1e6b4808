//! The actors that a leader starts: each gets into its position, reports that, and stays.

use crate::{Failed, LIFE, STORM, again, at, place, print_line};
use nix::{
    errno::Errno,
    fcntl::{OFlag, open},
    sched::{CloneFlags, setns, unshare},
    sys::{
        ptrace,
        signal::{SigSet, Signal, raise},
        stat::Mode,
        wait::{WaitPidFlag, waitpid},
    },
    unistd::{
        Pid, Uid, chdir, close, dup2_stderr, dup2_stdin, dup2_stdout, geteuid, setresuid, setsid,
        write,
    },
};
use std::{
    fs::{File, OpenOptions},
    io,
    os::unix::{
        fs::{FileExt, MetadataExt},
        process::CommandExt,
    },
    process::Stdio,
    thread::sleep,
    time::Duration,
};

/// Number of times that a child is started anew.
const RESPAWNS_MAX: u32 = 100;
/// Number of descriptors that `closes` closes: more than it can have.
const DESCRIPTORS: i32 = 1024;
/// Time between two checks for children that have exited.
const REAP_EVERY: Duration = Duration::from_millis(10);

/// Plays one actor. It reports on standard input that it is in position.
pub(crate) fn play(part: &[&str]) -> Result<(), Failed> {
    let played = match part {
        ["stay"] => Ok(()),
        ["session"] => own_session(),
        ["orphan", rest @ ..] => return orphan(rest),
        ["bare", rest @ ..] => return bare(rest),
        ["daemon"] => daemon(),
        ["overwritten"] => own_session().and_then(|()| overwrite()),
        ["own-namespace"] => return own_namespace(),
        ["first-of-namespace"] => return first_of_namespace(true),
        ["first-of-held-namespace"] => return first_of_namespace(false),
        ["enter", first] => enter(first),
        ["leaves-group"] => own_session().and_then(|()| place::leave()),
        ["own-group"] => own_session().and_then(|()| place::go_below()),
        ["deaf"] => deaf(),
        ["stopped"] => return stopped(),
        ["tracer", pid] => trace(pid),
        ["closes"] => return closes(),
        ["respawns"] => return respawns(),
        ["storm", place] => storm(place),
        ["root"] => become_root(),
        other => Err(Failed(format!("no part {other:?}"))),
    };
    if let Err(Failed(why)) = &played {
        report(format!("!{why}\n").as_bytes());
    } else if !matches!(part, ["enter", _]) {
        // A process that enters a namespace leaves the report to its child there.
        in_position();
    }
    played?;
    stay();
    Ok(())
}

fn in_position() {
    report(b"u");
}

/// Reports to the leader, which may be gone already.
fn report(bytes: &[u8]) {
    let _ = write(io::stdin(), bytes);
}

fn stay() {
    sleep(LIFE);
}

fn own_session() -> Result<(), Failed> {
    setsid().map(|_| ()).map_err(at("setsid"))
}

/// Starts another part and exits, so that the other has lost its parent.
fn orphan(part: &[&str]) -> Result<(), Failed> {
    // The parent exits at once: the process that adopts the child reaps it.
    again(part.iter().copied())?.spawn().map_err(at("spawn"))?;
    Ok(())
}

/// Becomes another part with an empty environment.
fn bare(part: &[&str]) -> Result<(), Failed> {
    let error = again(part.iter().copied())?.env_clear().exec();
    Err(at("exec")(error))
}

fn daemon() -> Result<(), Failed> {
    own_session()?;
    chdir("/").map_err(at("chdir"))?;
    in_position();
    let null = open("/dev/null", OFlag::O_RDWR | OFlag::O_CLOEXEC, Mode::empty())
        .map_err(at("open /dev/null"))?;
    // The second report goes to /dev/null.
    dup2_stdin(&null)
        .and_then(|()| dup2_stdout(&null))
        .and_then(|()| dup2_stderr(&null))
        .map_err(at("dup2"))
}

/// Writes over the memory that /proc shows as arguments and environment (fields 48 to 51 of `proc_pid_stat(5)`).
fn overwrite() -> Result<(), Failed> {
    let stat = std::fs::read_to_string("/proc/self/stat").map_err(at("own stat"))?;
    let rest = stat.rsplit_once(") ").map_or("", |(_, rest)| rest);
    let bounds: Vec<u64> = rest
        .split_ascii_whitespace()
        .skip(45)
        .take(4)
        .filter_map(|field| field.parse().ok())
        .collect();
    let &[arguments, arguments_end, environment, environment_end] = bounds.as_slice() else {
        return Err(Failed("/proc/self/stat is short".to_owned()));
    };
    let memory = OpenOptions::new()
        .write(true)
        .open("/proc/self/mem")
        .map_err(at("own memory"))?;
    for (from, to) in [(arguments, arguments_end), (environment, environment_end)] {
        let length = usize::try_from(to.saturating_sub(from)).map_err(at("own memory"))?;
        memory
            .write_all_at(&vec![b'x'; length], from)
            .map_err(at("own memory"))?;
    }
    Ok(())
}

/// Makes a pid namespace of its own, in which the namespace's first process adopts an orphan.
fn own_namespace() -> Result<(), Failed> {
    if let Err(Failed(why)) = own_session().and_then(|()| unshare_pids()) {
        report(format!("!{why}\n").as_bytes());
        return Err(Failed(why));
    }
    again(["first-of-namespace"])?
        .status()
        .map_err(at("spawn"))?;
    Ok(())
}

/// Unshares the pid namespace; without privileges this needs a user namespace, too.
fn unshare_pids() -> Result<(), Failed> {
    let mut flags = CloneFlags::CLONE_NEWPID;
    if !geteuid().is_root() {
        flags |= CloneFlags::CLONE_NEWUSER;
    }
    unshare(flags).map_err(at("unshare of a pid namespace"))
}

/// Reaps every process that it adopts.
fn first_of_namespace(with_orphan: bool) -> Result<(), Failed> {
    if with_orphan {
        again(["orphan", "session"])?
            .status()
            .map_err(at("spawn"))?;
    }
    for _ in 0..LIFE.as_millis() / REAP_EVERY.as_millis() {
        while waitpid(None, Some(WaitPidFlag::WNOHANG)).is_ok_and(|status| status.pid().is_some()) {
        }
        sleep(REAP_EVERY);
    }
    Ok(())
}

/// Prints the number of the first process of a new pid namespace, and waits for its exit.
pub(crate) fn hold_namespace() -> Result<(), Failed> {
    unshare_pids()?;
    let mut first = again(["first-of-held-namespace"])?
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
        .map_err(at("spawn"))?;
    print_line(&first.id().to_string())?;
    first.wait().map_err(at("wait")).map(|_| ())
}

/// Enters the pid namespace of this process. An unrelated process adopts orphans that were started there.
fn enter(first: &str) -> Result<(), Failed> {
    let namespace = |kind: &str| File::open(format!("/proc/{first}/ns/{kind}"));
    let user = namespace("user").map_err(at("user namespace"))?;
    let pids = namespace("pid").map_err(at("pid namespace"))?;
    let own = File::open("/proc/self/ns/user").map_err(at("user namespace"))?;
    let inode = |file: &File| file.metadata().map(|meta| meta.ino());
    if inode(&user).ok() != inode(&own).ok() {
        setns(user, CloneFlags::CLONE_NEWUSER).map_err(at("setns to a user namespace"))?;
    }
    setns(pids, CloneFlags::CLONE_NEWPID).map_err(at("setns to a pid namespace"))?;
    again(["orphan", "session"])?
        .status()
        .map_err(at("spawn"))
        .map(|_| ())
}

/// Blocks all signals that can be blocked.
fn deaf() -> Result<(), Failed> {
    SigSet::all().thread_block().map_err(at("sigprocmask"))
}

fn stopped() -> Result<(), Failed> {
    in_position();
    raise(Signal::SIGSTOP).map_err(at("SIGSTOP"))?;
    stay();
    Ok(())
}

/// Holds another process in a trace stop for ever.
fn trace(pid: &str) -> Result<(), Failed> {
    let pid = Pid::from_raw(pid.parse().map_err(at("pid"))?);
    ptrace::attach(pid).map_err(at("ptrace"))?;
    waitpid(pid, Some(WaitPidFlag::__WALL)).map_err(at("wait for the trace stop"))?;
    Ok(())
}

fn closes() -> Result<(), Failed> {
    own_session()?;
    in_position();
    for descriptor in 0..DESCRIPTORS {
        match close(descriptor) {
            Ok(()) | Err(Errno::EBADF) => {}
            Err(errno) => return Err(at("close")(errno)),
        }
    }
    stay();
    Ok(())
}

/// Blocks signals, and starts another child as often as its child is ended.
fn respawns() -> Result<(), Failed> {
    deaf()?;
    let mut said = false;
    for _ in 0..RESPAWNS_MAX {
        let mut child = again(["stay"])?;
        child.stdout(Stdio::null()).stderr(Stdio::null());
        if said {
            child.stdin(Stdio::null());
        }
        said = true;
        let mut child = child.spawn().map_err(at("spawn"))?;
        child.wait().map_err(at("wait"))?;
    }
    Ok(())
}

/// Makes a binary tree, numbered from 1: the children of n are 2n and 2n + 1.
fn storm(place: &str) -> Result<(), Failed> {
    let place: u32 = place.parse().map_err(at("place"))?;
    own_session()?;
    deaf()?;
    for child in [2 * place, 2 * place + 1] {
        if child <= STORM {
            let number = child.to_string();
            again(["storm", &number])?.spawn().map_err(at("spawn"))?;
        }
    }
    Ok(())
}

/// Becomes root in every respect, so that no other user may signal it. For a setuid copy of this program.
fn become_root() -> Result<(), Failed> {
    if !geteuid().is_root() {
        return Err(Failed(
            "the setuid bit does not act here (nosuid or no_new_privs)".to_owned(),
        ));
    }
    let root = Uid::from_raw(0);
    setresuid(root, root, root).map_err(at("setresuid"))
}
