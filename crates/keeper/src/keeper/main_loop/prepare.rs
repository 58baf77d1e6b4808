//! From PREPARE to a shim with a job.

use super::{Keeper, RunShim};
use crate::{
    exit_slots::ExitPlace,
    keeper::{
        groups::Group,
        run::{Outputs, Run, RunInput, RunNotices, RunParts, is_exhaustion},
    },
    notify_place::NotifyPlace,
    wire::{self, Answer, Head, Job, PrepareRequest, ToShim, adoption::WireKeepsake},
};
use kennel_lifecycle::{Held, Policy, Recovery, RunId, StartFailure, StartStage, TerminalSize};
use kennel_linux::{
    attributes::{Attributes, PrivatePlaces},
    cgroup_limits, clock, crash_point, fdpass,
    spawn::failure,
    terminal::{NoPty, Terminal},
};
use nix::{
    fcntl::OFlag,
    sys::epoll::{EpollEvent, EpollFlags},
    unistd::pipe2,
};
use std::{
    io,
    os::fd::{AsFd, OwnedFd},
    path::Path,
};

/// The streams of a run: the command's ends, and those that the keeper retains.
struct Streams {
    stdin: OwnedFd,
    stdout: OwnedFd,
    stderr: OwnedFd,
    outputs: Outputs,
    input: Option<RunInput>,
}

/// Reason why no child was made.
enum PrepareError {
    /// A call failed.
    Failed(io::Error),
    /// The limits could not be set.
    Limits(StartFailure),
    /// The available containment is weaker than the spec allows.
    TooWeak(Held),
    /// No terminal is available for it.
    NoPty(NoPty),
}

impl From<io::Error> for PrepareError {
    fn from(error: io::Error) -> Self {
        Self::Failed(error)
    }
}

/// Sets the limits of a run on its group, before any process is in it. A run that got no group at this moment must not
/// run without them.
fn hold(group: &Result<Group, String>, policy: &Policy) -> Result<(), StartFailure> {
    let limits = &policy.limits;
    match group {
        _ if limits.knobs().is_empty() => Ok(()),
        Ok(group) => cgroup_limits::apply(Path::new(&group.identity.path), limits)
            .map_err(|not| failure(StartStage::Limits, &not.error, Some(&not.file))),
        Err(why) => Err(StartFailure {
            stage: StartStage::Limits,
            errno: None,
            path: Some(why.clone()),
        }),
    }
}

impl Keeper {
    pub(super) fn prepare(
        &mut self,
        seq: u64,
        run: RunId,
        mut request: PrepareRequest,
        fds: Vec<OwnedFd>,
    ) {
        crash_point!("keeper.prepare");
        // Recovery is decided here: no process of the run checks the host's capabilities again.
        let recovery = request
            .policy
            .recovery()
            .on_host(self.sockets.can_be_made());
        request.policy.decide(recovery);
        if !request.policy.is_known() {
            return self.answer(seq, Answer::Unknown {});
        }
        let prepared = match self.runs.get(&run) {
            None => {
                let run_dir = Path::new(&request.run_dir);
                let place = NotifyPlace::of(self.node, run, run_dir, &request.policy);
                let handed_out = self.hand_out((seq, run), request, fds, place.clone());
                // A refused run may have left its notify socket.
                handed_out.inspect_err(|_| place.remove())
            }
            // A child that a lost server requested and no server adopted is being ended.
            Some(run) if run.acknowledged => Err(io::Error::from_raw_os_error(libc::EAGAIN).into()),
            // The server makes run ids unique; a second child under one would have no owner.
            Some(_) => Err(io::Error::from_raw_os_error(libc::EEXIST).into()),
        };
        match prepared {
            Ok(()) => {}
            Err(PrepareError::TooWeak(held)) => self.answer(seq, Answer::TooWeak(held)),
            Err(PrepareError::Limits(failure)) => {
                self.answer(seq, Answer::PrepareFailed(failure));
            }
            Err(PrepareError::NoPty(none)) => self.answer(seq, Answer::NoPty(none)),
            Err(PrepareError::Failed(error)) => self.answer(seq, unmade(&error)),
        }
    }

    fn hand_out(
        &mut self,
        (seq, id): (u64, RunId),
        request: PrepareRequest,
        fds: Vec<OwnedFd>,
        place: NotifyPlace,
    ) -> Result<(), PrepareError> {
        let mut fds = fds.into_iter();
        // A file is missing because this process had no free descriptor for it.
        let lost = || io::Error::from_raw_os_error(libc::EMFILE);
        let child = fds.next().ok_or_else(lost)?;
        let streams = match request.terminal {
            Some(size) => on_terminal(&request, size)?,
            None => on_pipes(&request, || fds.next().ok_or_else(lost))?,
        };
        let gate = pipe2(OFlag::O_CLOEXEC).map_err(io::Error::from)?;
        let outlives = request.policy.recovery() == Recovery::Adopt;
        // Sockets are opened before the control group, which a failure would leave behind.
        let notices = RunNotices::open(&request.policy, place, outlives)?;
        let group = self.groups.create(id);
        crash_point!("keeper.group_made");
        let limited = hold(&group, &request.policy);
        let held = Held::on(
            &self.facts,
            group.as_ref().map(|_| ()).map_err(Clone::clone),
            &request.policy,
        );
        let group = group.ok();
        let refused = match limited {
            _ if request
                .policy
                .min_containment
                .is_some_and(|least| held.by < least) =>
            {
                Some(PrepareError::TooWeak(held.clone()))
            }
            Ok(()) => None,
            Err(failure) => Some(PrepareError::Limits(failure)),
        };
        if let Some(refused) = refused {
            let group = group.map(|group| group.identity);
            self.leftovers.add(group, clock::boot_ms());
            return Err(refused);
        }
        let given = self.pool.take().and_then(|warm| {
            let files = (&child, &gate.0, &streams, notices.as_ref());
            let slot = self.exits.take(self.next_shim);
            // The shim is watched first: with a job it may write to a slot that a failure has freed.
            let event = EpollEvent::new(EpollFlags::EPOLLIN, self.next_shim);
            self.epoll.add(&warm.socket, event)?;
            self.give(
                id,
                &request,
                &held,
                group.as_ref(),
                (&warm.socket, slot),
                files,
            )
            .inspect_err(|_| {
                let _ = self.epoll.delete(&warm.socket);
            })?;
            Ok(warm)
        });
        let group = group.map(|group| group.identity);
        let warm = match given {
            Ok(warm) => warm,
            Err(error) => {
                // The shim got no job and exits when its socket closes.
                self.exits.never_used(self.next_shim);
                self.leftovers.add(group, clock::boot_ms());
                self.sockets.remove(id);
                return Err(error.into());
            }
        };
        let token = self.next_shim;
        self.next_shim += 1;
        self.shim_of_pid.insert(warm.pid, token);
        self.shims.insert(
            token,
            RunShim {
                pid: warm.pid,
                socket: warm.socket,
                run: id,
                foreign: None,
                at_end: false,
                is_free: false,
                is_vacated: false,
                missing: Vec::new(),
            },
        );
        let parts = RunParts {
            id,
            shim: token,
            policy: request.policy,
            run_dir: request.run_dir.into(),
            cgroup: group,
            held,
            outputs: streams.outputs,
            input: streams.input,
            notices,
            counting: self.groups.counting(),
        };
        let run = Run::wanted(parts, seq, gate.1);
        self.runs.insert(id, run);
        self.exit_slot_of.insert(id, token);
        crash_point!("keeper.job_given");
        Ok(())
    }

    /// Attributes of the command.
    fn attributes(&self, request: &PrepareRequest) -> Attributes {
        let sandbox = request.policy.privileges.sandbox.as_ref();
        Attributes {
            private: sandbox.map(|_| PrivatePlaces {
                run_dir: request.run_dir.clone(),
                ..self.private.clone()
            }),
            ..self.inherited.attributes(&request.policy)
        }
    }

    fn give(
        &self,
        id: RunId,
        request: &PrepareRequest,
        held: &Held,
        group: Option<&Group>,
        (shim, exit_slot): (&OwnedFd, Option<ExitPlace>),
        (child, gate, streams, notices): (&OwnedFd, &OwnedFd, &Streams, Option<&RunNotices>),
    ) -> io::Result<()> {
        let outlives = request.policy.recovery() == Recovery::Adopt;
        let listener = outlives.then(|| self.sockets.make(id)).transpose()?;
        let keepsake = outlives.then(|| WireKeepsake {
            held: held.clone(),
            host: self.host.clone(),
        });
        let input = streams.input.as_ref().and_then(RunInput::for_shim);
        let notify = notices.and_then(RunNotices::for_shim);
        let job = ToShim::Job(Box::new(Job {
            run_dir: request.run_dir.clone(),
            policy: request.policy.clone(),
            cgroup: group.map(|group| group.identity.clone()),
            placement: self.groups.placement(),
            attributes: self.attributes(request),
            keepsake,
            input: input.is_some(),
            notify: notify.is_some(),
            terminal: request.terminal.is_some(),
            exit_slot,
        }));
        let mut fds = vec![
            child.as_fd(),
            streams.stdin.as_fd(),
            streams.stdout.as_fd(),
            streams.stderr.as_fd(),
            gate.as_fd(),
        ];
        // With the read ends in the shim, the command may write without server and keeper.
        if let Outputs::Pipes(stdout, stderr) = &streams.outputs {
            fds.extend([stdout.as_fd(), stderr.as_fd()]);
        }
        fds.extend(listener.iter().map(AsFd::as_fd));
        fds.extend(input);
        fds.extend(notify);
        fds.extend(group.map(|group| group.dir.as_fd()));
        wire::send(shim, Head::of_run(id), &job, &fds)
    }
}

fn unmade(error: &io::Error) -> Answer {
    if error.raw_os_error().is_none_or(is_exhaustion) {
        Answer::Exhausted(error.to_string())
    } else {
        Answer::PrepareFailed(failure(StartStage::Prepare, error, None))
    }
}

/// Makes two pipes for the outputs. Their read ends are for the server's event loop, so they do not block; the ends of
/// the command are other descriptions and do. `file` returns standard input, where that is not a pipe.
fn on_pipes(
    request: &PrepareRequest,
    file: impl FnOnce() -> io::Result<OwnedFd>,
) -> io::Result<Streams> {
    let (input, stdin) = match request.input {
        Some(attempt) => {
            let outlives = request.policy.recovery() == Recovery::Adopt;
            let (input, stdin) = RunInput::new(attempt, Path::new(&request.run_dir), outlives)?;
            (Some(input), stdin)
        }
        None => (None, file()?),
    };
    let (stdout_read, stdout) = pipe2(OFlag::O_CLOEXEC)?;
    let (stderr_read, stderr) = pipe2(OFlag::O_CLOEXEC)?;
    fdpass::set_nonblocking(&stdout_read)?;
    fdpass::set_nonblocking(&stderr_read)?;
    Ok(Streams {
        stdin,
        stdout,
        stderr,
        outputs: Outputs::pipes(stdout_read, stderr_read),
        input,
    })
}

/// Makes a terminal for all three streams.
fn on_terminal(request: &PrepareRequest, size: TerminalSize) -> Result<Streams, PrepareError> {
    let (terminal, slave) = Terminal::open(size)?.map_err(PrepareError::NoPty)?;
    let input = match request.input {
        Some(attempt) => {
            let run_dir = Path::new(&request.run_dir);
            Some(RunInput::on_terminal(attempt, run_dir, terminal.master())?)
        }
        None => None,
    };
    Ok(Streams {
        stdin: slave.try_clone()?,
        stdout: slave.try_clone()?,
        stderr: slave,
        outputs: Outputs::Terminal(terminal),
        input,
    })
}
