//! Commands beside the run's own: children of this process like the command, in the same control group, each in a
//! session of its own, without streams.
//!
//! When one has exited, or has taken too long, every process of its session is killed, and every one that has left the
//! session but has its environment. A process that has neither belongs to the run like any other, and ends with it. What
//! is below the run's command is no descendant of a helper: one that leaves its helper becomes a child of this process.
//! The environment of a process cannot be read while it executes a program: the end of a helper is reported once every
//! process below could be judged.

use super::work::Work;
use crate::{
    values::HelperEnd,
    wire::{FromShim, Placement},
};
use kennel_lifecycle::{Exit, PidNamespace, Policy, SecretValue, Signal, StartFailure, StartStage};
use kennel_linux::{
    cgroup, clock,
    pidfd::PidFd,
    procfs, resolve,
    spawn::{
        self, ChildImage, ChildMemory, Ends,
        child::{FAILED, OPEN},
        failure,
    },
};
use nix::{fcntl::OFlag, unistd::pipe2};
use std::{
    collections::HashSet,
    fs::{File, OpenOptions},
    io,
    os::{
        fd::OwnedFd,
        unix::ffi::{OsStrExt, OsStringExt},
    },
    path::Path,
    time::Duration,
};

/// Variable with the run and the number of a command, which its descendants inherit.
const MARK: &str = "KENNEL_HELPER_ID";
/// Rounds of SIGKILL to a session: a session that forks as fast as it is killed stays with the run.
const ROUNDS_MAX: usize = 8;
/// Longest wait for the exit of one that was killed because the run's command has exited.
const END_WAIT_MS: u16 = 100;
/// Time between two searches while a process that may be a descendant executes a program.
const SEARCH_AGAIN_MS: u64 = 2;
/// Longest time of such searches: a process that does not finish its exec stays with the run.
const SEARCH_MS_MAX: u64 = 5_000;

/// Running commands.
#[derive(Default)]
pub(super) struct Helpers {
    running: Vec<Helper>,
    /// Commands that have exited, and whose descendants are not all known to be killed.
    ending: Vec<Ending>,
    /// Number of commands that were begun.
    begun: u64,
    /// Commands of a stop that the keeper has begun here.
    of_stop: usize,
    /// Commands of a stop that were due without a keeper.
    due_alone: usize,
    /// A command of a stop has ended.
    stop_ended: bool,
}

struct Helper {
    id: u64,
    pid: i32,
    descent: HelperMarks,
    process: PidFd,
    /// Pipe with the result of the child's start.
    status: OwnedFd,
    until: u64,
    timed_out: bool,
    /// The helper was ended for the sake of the run: its exit means nothing.
    cut_off: bool,
    /// The helper belongs to a stop.
    stops: bool,
}

impl Helper {
    /// Kills the helper, which may not have reached its own session yet, and all its descendants.
    fn kill(&self) {
        self.process.signal(Signal::KILL);
        self.descent.kill();
    }
}

/// A helper that has been reaped.
struct Ending {
    descent: HelperMarks,
    stops: bool,
    /// Report of its exit, which waits for the last search.
    report: FromShim,
    search_at: u64,
    until: u64,
}

/// Relation of a process to a helper.
enum HelperRelation {
    Descendant,
    Unrelated,
    /// Not known: the process is executing a program or exiting, and its environment could not be read as a whole.
    Executing,
}

/// Result of a search for descendants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Search {
    /// Every descendant was sent SIGKILL.
    Complete,
    /// Others may exist: a process below was executing a program, or new ones kept coming.
    Incomplete,
}

/// Marks of a helper's descendants.
struct HelperMarks {
    /// Session of the helper. `None`: the helper was reaped, so that the number may be another's.
    session: Option<i32>,
    /// Its start, before which no descendant began.
    start_ticks: u64,
    /// Entry of their environment, which no other process has.
    mark: String,
    /// The run's command, below which no descendant is.
    command: i32,
}

/// Removes what only other commands of the run would need, once its own is made: a shim of a run that has none keeps no
/// secret.
pub(super) fn forget_unneeded(child: &mut ChildImage, policy: &Policy) {
    if !policy.has_other_commands() {
        child.secrets = Vec::new();
        for (_, value) in std::mem::take(&mut child.env) {
            drop(SecretValue::new(value.into_bytes()));
        }
    }
}

impl Helpers {
    /// Whether a command of a stop has ended since the last call.
    pub(super) fn has_stop_ended(&mut self) -> bool {
        std::mem::take(&mut self.stop_ended)
    }

    /// Returns when the first time limit is reached, or the next search is due.
    pub(super) fn wake_at(&self) -> Option<u64> {
        let waiting = self.running.iter().filter(|helper| !helper.timed_out);
        let limits = waiting.map(|helper| helper.until);
        let searches = self.ending.iter().map(|ending| ending.search_at);
        limits.chain(searches).min()
    }

    /// Ends commands that have reached their time limit, and searches again for descendants of others. Returns reports
    /// of those that have ended.
    pub(super) fn keep_time(&mut self, now: u64) -> Vec<FromShim> {
        for helper in &mut self.running {
            if !helper.timed_out && now >= helper.until {
                helper.timed_out = true;
                helper.kill();
            }
        }
        let is_over = |ending: &mut Ending| {
            if now < ending.search_at {
                return false;
            }
            ending.search_at = now + SEARCH_AGAIN_MS;
            ending.descent.kill() == Search::Complete || now >= ending.until
        };
        let over = self.ending.extract_if(.., is_over).collect();
        self.report_all(over)
    }

    fn report_all(&mut self, over: Vec<Ending>) -> Vec<FromShim> {
        self.stop_ended |= over.iter().any(|ending| ending.stops);
        over.into_iter().map(|ending| ending.report).collect()
    }

    /// Handles a child that has exited and is not reaped yet. Returns a report, if it is one of these and has ended.
    pub(super) fn ended(&mut self, pid: i32, exit: Exit) -> Option<FromShim> {
        let of_pid = |helper: &Helper| helper.pid == pid;
        let at = self.running.iter().position(of_pid)?;
        let mut helper = self.running.remove(at);
        // INVARIANT: the session id is the pid of an unreaped child, so no other session has it.
        let search = helper.descent.kill();
        let end = match start_failure(&helper.status) {
            _ if helper.timed_out => HelperEnd::TimedOut,
            _ if helper.cut_off => HelperEnd::Refused,
            Some(failure) => HelperEnd::Failed(failure),
            None => HelperEnd::Exited(exit),
        };
        let id = helper.id;
        let report = FromShim::Helped { id, end };
        if search == Search::Complete {
            self.stop_ended |= helper.stops;
            return Some(report);
        }
        helper.descent.session = None;
        let now = clock::boot_ms();
        self.ending.push(Ending {
            descent: helper.descent,
            stops: helper.stops,
            report,
            search_at: now + SEARCH_AGAIN_MS,
            until: now + SEARCH_MS_MAX,
        });
        None
    }

    /// Ends all of them: the run's command has exited, and they are no part of what it leaves behind. Returns reports of
    /// those that had exited.
    pub(super) fn end_all(&mut self) -> Vec<FromShim> {
        for helper in &mut self.running {
            helper.cut_off = true;
            helper.kill();
        }
        for helper in &self.running {
            helper.process.await_end(END_WAIT_MS);
        }
        let until = clock::boot_ms() + u64::from(END_WAIT_MS);
        let over = std::mem::take(&mut self.ending);
        let running = self.running.iter().map(|helper| &helper.descent);
        for descent in running.chain(over.iter().map(|ending| &ending.descent)) {
            while descent.kill() == Search::Incomplete && clock::boot_ms() < until {
                std::thread::sleep(Duration::from_millis(SEARCH_AGAIN_MS));
            }
        }
        self.report_all(over)
    }
}

impl Work {
    /// Starts a command; reports at once if that fails.
    pub(super) fn help(&mut self, id: u64, argv: Vec<String>, timeout_ms: u64, stops: bool) {
        self.helpers.of_stop += usize::from(stops);
        let may_run = if stops {
            self.may_run_of_stop()
        } else {
            self.has_live_command()
        };
        // The keeper asked before it received the report of the exit.
        if !may_run {
            self.helpers.stop_ended |= stops;
            let end = HelperEnd::Refused;
            self.words.push(FromShim::Helped { id, end });
            return;
        }
        match self.begin_helper(argv) {
            Ok((pid, descent, process, status)) => self.helpers.running.push(Helper {
                id,
                pid,
                descent,
                process,
                status,
                until: clock::boot_ms().saturating_add(timeout_ms),
                timed_out: false,
                cut_off: false,
                stops,
            }),
            Err(failure) => {
                self.helpers.stop_ended |= stops;
                let end = HelperEnd::Failed(failure);
                let word = FromShim::Helped { id, end };
                self.words.push(word);
            }
        }
    }

    /// Starts a command of a stop without a keeper, until the next rung at most: not one that the keeper has begun
    /// before.
    pub(super) fn stop_command_alone(&mut self, argv: Vec<String>, now: u64) {
        self.helpers.due_alone += 1;
        if self.helpers.due_alone > self.helpers.of_stop {
            let ladder = self.ladder.as_ref();
            let timeout_ms = ladder.map_or(0, |ladder| ladder.time_of_command(now));
            self.help(0, argv, timeout_ms, true);
        } else {
            self.helpers.stop_ended = true;
        }
        if self.helpers.has_stop_ended() {
            self.ladder.iter_mut().for_each(|ladder| ladder.hurry(now));
        }
    }

    fn begin_helper(
        &mut self,
        argv: Vec<String>,
    ) -> Result<(i32, HelperMarks, PidFd, OwnedFd), StartFailure> {
        self.helpers.begun += 1;
        // The run id keeps numbers of nested services apart.
        let number = format!("{}.{}", self.tree.run, self.helpers.begun);
        let mark = (MARK.to_owned(), number);
        let prepare = |error: &io::Error| failure(StartStage::Prepare, error, None);
        let own = &self.child;
        let name = argv.first().cloned().unwrap_or_default();
        let cwd = Path::new(std::ffi::OsStr::from_bytes(&own.cwd));
        let path = own.env.iter().find(|(name, _)| name == "PATH");
        let found = resolve::executable(&name, cwd, path.map(|(_, path)| path.as_str()));
        let executable = found.map_err(|_| StartFailure {
            stage: StartStage::Exec,
            errno: Some(libc::ENOENT),
            path: Some(name),
        })?;
        let image = ChildImage {
            executable: executable.into_os_string().into_vec(),
            argv: argv.into_iter().map(String::into_bytes).collect(),
            env: own.env.iter().cloned().chain([mark.clone()]).collect(),
            cwd: own.cwd.clone(),
            secrets: own.secrets.clone(),
        };
        let null = OpenOptions::new().read(true).write(true).open("/dev/null");
        let null = null.map_err(|e| prepare(&e))?;
        let copy = |file: &File| file.try_clone().map(OwnedFd::from).map_err(|e| prepare(&e));
        let (gate, open) = pipe2(OFlag::O_CLOEXEC).map_err(|e| prepare(&e.into()))?;
        let cgroup_failure = |e: &io::Error| failure(StartStage::Cgroup, e, None);
        let born_in = match (&self.tree.cgroup, self.placement) {
            (Some(group), Placement::ByClone) => {
                cgroup::open(group).map_err(|e| cgroup_failure(&e))?
            }
            _ => None,
        };
        let ends = Ends {
            stdin: copy(&null)?,
            stdout: copy(&null)?,
            stderr: copy(&null)?,
            gate,
            terminal: false,
            born_in,
        };
        let shared = PidNamespace::Shared;
        let gated = spawn::fork_gated(&image, ends, &self.attributes, shared, ChildMemory::Copied)?;
        if let (Some(group), Placement::ByWrite) = (&self.tree.cgroup, self.placement) {
            // A command that cannot enter the group does not run: its gate is never opened.
            cgroup::enter(group, gated.pid).map_err(|e| cgroup_failure(&e))?;
        }
        let descent = HelperMarks {
            session: Some(gated.pid),
            start_ticks: procfs::stat(gated.pid).map_or(u64::MAX, |stat| stat.start_ticks),
            mark: format!("{}={}", mark.0, mark.1),
            command: self.tree.leader_pid,
        };
        // One byte always fits; a child that is gone reports why.
        let _ = nix::unistd::write(&open, &[OPEN]);
        Ok((gated.pid, descent, gated.leader, gated.status))
    }
}

impl HelperMarks {
    /// Sends SIGKILL to every descendant below this process, until no other is found.
    fn kill(&self) -> Search {
        let own = std::process::id().cast_signed();
        // The helper itself counts as dead; if it is alive, its exit starts another search.
        let mut dead: HashSet<i32> = self.session.into_iter().collect();
        let mut killed = HashSet::new();
        for _ in 0..ROUNDS_MAX {
            let (mut is_changing, mut is_executing) = (false, false);
            // Reading an environment may block, and then no exit is collected: the command's tree is skipped.
            for pid in procfs::descendants_beside(own, &HashSet::from([self.command])) {
                let Some(seen) = procfs::stat(pid).ok().filter(|stat| !stat.is_dead()) else {
                    // A dead process's children became this process's, perhaps after the listing.
                    is_changing |= dead.insert(pid);
                    continue;
                };
                match self.membership(pid, &seen) {
                    HelperRelation::Unrelated => {}
                    HelperRelation::Executing => is_executing = true,
                    HelperRelation::Descendant => {
                        is_changing |=
                            kill(pid, seen.start_ticks) && killed.insert((pid, seen.start_ticks));
                    }
                }
            }
            match (is_changing, is_executing) {
                (true, _) => {}
                (false, true) => return Search::Incomplete,
                (false, false) => return Search::Complete,
            }
        }
        Search::Incomplete
    }

    /// Whether a process is of the session, or has the mark.
    fn membership(&self, pid: i32, stat: &procfs::Stat) -> HelperRelation {
        if self.session == Some(stat.sid) {
            return HelperRelation::Descendant;
        }
        if stat.start_ticks < self.start_ticks {
            return HelperRelation::Unrelated;
        }
        // An unreadable environment belongs to a process of another user.
        let Ok(environ) = std::fs::read(format!("/proc/{pid}/environ")) else {
            return HelperRelation::Unrelated;
        };
        let mut entries = environ.split(|byte| *byte == 0);
        if entries.any(|entry| entry == self.mark.as_bytes()) {
            return HelperRelation::Descendant;
        }
        let is_whole = procfs::environment_bytes(pid) == Some(environ.len() as u64);
        if is_whole {
            HelperRelation::Unrelated
        } else {
            HelperRelation::Executing
        }
    }
}

/// Sends SIGKILL to a process. `false`: it is gone.
fn kill(pid: i32, start_ticks: u64) -> bool {
    let Ok(process) = PidFd::open(pid) else {
        return false;
    };
    let is_same = procfs::stat(pid).is_ok_and(|again| again.start_ticks == start_ticks);
    if is_same {
        process.signal(Signal::KILL);
    }
    is_same
}

/// Reads the child's report of a step that failed.
fn start_failure(status: &OwnedFd) -> Option<StartFailure> {
    let mut said = [0; 64];
    let len = nix::unistd::read(status, &mut said).ok()?;
    let at = said[..len].iter().position(|byte| *byte == FAILED)?;
    let errno = said.get(at + 2..at + 6)?;
    Some(StartFailure {
        stage: StartStage::Exec,
        errno: Some(i32::from_le_bytes(errno.try_into().ok()?)),
        path: None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use kennel_lifecycle::{SecretDelivery, StopAction, ladder::Action};
    use kennel_linux::spawn::ChildSecret;
    use std::{fs, os::unix::fs::PermissionsExt, process::Command};

    /// A script that executes itself, in a session of its own: often it has no environment.
    #[test]
    fn executing_descendant_of_helper_is_ended() {
        const TRIES: usize = 40;
        let dir = tempfile::tempdir().expect("a directory");
        let script = dir.path().join("again");
        fs::write(&script, "#!/bin/sh\nexec \"$0\"\n").expect("own directory");
        fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).expect("own file");
        for _ in 0..TRIES {
            let mut command = Command::new("setsid");
            command.arg(&script).env(MARK, "1.1");
            let mut child = command.spawn().expect("util-linux is installed");
            let pid = child.id().cast_signed();
            let start = loop {
                let stat = procfs::stat(pid).expect("it is not reaped");
                assert!(!stat.is_dead(), "it executes itself for ever");
                if stat.sid == pid {
                    break stat.start_ticks;
                }
            };
            let descent = HelperMarks {
                session: None,
                start_ticks: start,
                mark: format!("{MARK}=1.1"),
                command: 0,
            };
            let until = clock::boot_ms() + SEARCH_MS_MAX;
            while descent.kill() == Search::Incomplete {
                assert!(clock::boot_ms() < until, "it is never found");
            }
            let process = PidFd::open(pid).expect("it is not reaped");
            process.await_end(10_000);
            let is_ended = process.has_ended();
            process.signal(Signal::KILL);
            child.wait().expect("own child");
            assert!(is_ended, "the search was complete without it");
        }
    }

    #[test]
    fn secrets_are_forgotten_without_stop_commands() {
        let kept = |policy: &Policy| {
            let mut child = ChildImage {
                executable: b"/bin/true".to_vec(),
                argv: vec![b"true".to_vec()],
                env: vec![("A".to_owned(), "1".to_owned())],
                cwd: b"/".to_vec(),
                secrets: vec![ChildSecret {
                    name: "B".to_owned(),
                    delivery: SecretDelivery::Variable,
                    value: SecretValue::new(b"hush".to_vec()),
                }],
            };
            forget_unneeded(&mut child, policy);
            (child.env.len(), child.secrets.len())
        };
        let mut policy = Policy::default();
        assert_eq!(kept(&policy), (0, 0));
        policy.stop.steps = vec![StopAction {
            action: Action::Exec(vec!["true".to_owned()]),
            wait: std::time::Duration::ZERO,
        }];
        assert_eq!(kept(&policy), (1, 1));
    }
}
