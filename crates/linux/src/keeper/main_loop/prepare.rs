//! From PREPARE to a shim with a job.

use super::{Keeper, Shim};
use crate::{
    cgroup_limits, fdpass,
    keeper::run::{Parts, Run},
    spawn::{self, failure},
    wire::{self, Answer, Job, ToShim, mirror::WireFailure},
};
use kennel_lifecycle::{CgroupIdentity, LeaderExit, Policy, RunId, StartFailure, StartStage};
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

/// The ends of a run's pipes.
struct Pipes {
    gate: (OwnedFd, OwnedFd),
    stdout: (OwnedFd, OwnedFd),
    stderr: (OwnedFd, OwnedFd),
}

/// Why there is no child.
enum Refused {
    /// A call failed.
    Host(io::Error),
    /// It could not be held to its limits.
    Limits(StartFailure),
}

impl From<io::Error> for Refused {
    fn from(error: io::Error) -> Self {
        Self::Host(error)
    }
}

/// Sets the limits of a run on its group, before anybody is in it. A run that got no group at this moment is not let run
/// without them.
fn hold(group: &Result<CgroupIdentity, String>, policy: &Policy) -> Result<(), StartFailure> {
    let limits = &policy.limits;
    match group {
        _ if limits.knobs().is_empty() => Ok(()),
        Ok(group) => cgroup_limits::apply(Path::new(&group.path), limits)
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
        id: RunId,
        run_dir: String,
        policy: Policy,
        fds: Vec<OwnedFd>,
    ) {
        // The server makes run ids unique; a second child under one would have no owner.
        let taken = self.runs.contains_key(&id);
        let prepared = if taken {
            Err(io::Error::from_raw_os_error(libc::EEXIST).into())
        } else {
            self.hand_out(seq, id, run_dir, policy, fds)
        };
        if let Err(refused) = prepared {
            let error = match refused {
                Refused::Limits(failure) => {
                    return self.answer(seq, Answer::PrepareFailed(WireFailure::from(failure)));
                }
                Refused::Host(error) => error,
            };
            let answer = match error.raw_os_error() {
                Some(
                    libc::EMFILE
                    | libc::ENFILE
                    | libc::EAGAIN
                    | libc::ENOMEM
                    | libc::ENOBUFS
                    | libc::ETOOMANYREFS,
                )
                | None => Answer::Exhausted(error.to_string()),
                Some(_) => {
                    let failure = failure(StartStage::Prepare, &error, None);
                    Answer::PrepareFailed(WireFailure::from(failure))
                }
            };
            self.answer(seq, answer);
        }
    }

    fn hand_out(
        &mut self,
        seq: u64,
        id: RunId,
        run_dir: String,
        policy: Policy,
        fds: Vec<OwnedFd>,
    ) -> Result<(), Refused> {
        let mut fds = fds.into_iter();
        // A file that found no room in this process's table is missing here.
        let lost = || io::Error::from_raw_os_error(libc::EMFILE);
        let child = fds.next().ok_or_else(lost)?;
        let stdin = fds.next().ok_or_else(lost)?;
        let pipes = pipes()?;
        let warm = self.pool.take()?;
        let group = self.groups.create(id);
        if let Err(failure) = hold(&group, &policy) {
            self.leftovers.extend(group.ok());
            return Err(Refused::Limits(failure));
        }
        let given = self.give(
            id,
            &run_dir,
            &policy,
            &group,
            &warm.socket,
            [&child, &stdin],
            &pipes,
        );
        let token = self.next_shim;
        let watched = given.and_then(|()| {
            let event = EpollEvent::new(EpollFlags::EPOLLIN, token);
            Ok(self.epoll.add(&warm.socket, event)?)
        });
        if let Err(error) = watched {
            // The shim ends with its socket, which is dropped here.
            self.leftovers.extend(group.ok());
            return Err(error.into());
        }
        self.next_shim += 1;
        self.shim_of_pid.insert(warm.pid, token);
        self.shims.insert(
            token,
            Shim {
                pid: warm.pid,
                socket: warm.socket,
                run: id,
            },
        );
        let run = Run::new(Parts {
            id,
            seq,
            shim: token,
            policy,
            run_dir: run_dir.into(),
            cgroup: group,
            gate: pipes.gate.1,
            outputs: (pipes.stdout.0, pipes.stderr.0),
        });
        self.runs.insert(id, run);
        Ok(())
    }

    #[expect(
        clippy::too_many_arguments,
        reason = "one message is put together here"
    )]
    fn give(
        &self,
        id: RunId,
        run_dir: &str,
        policy: &Policy,
        group: &Result<CgroupIdentity, String>,
        shim: &OwnedFd,
        files: [&OwnedFd; 2],
        pipes: &Pipes,
    ) -> io::Result<()> {
        let job = ToShim::Job(Box::new(Job {
            run: id.as_u128(),
            run_dir: run_dir.to_owned(),
            policy: policy.into(),
            cgroup: group.as_ref().ok().cloned().map(Into::into),
            placement: self.groups.placement(),
            attributes: self.inherited.attributes(&policy.limits),
        }));
        let born_in = match group {
            Ok(group) => crate::cgroup::open(group)?,
            Err(_) => None,
        };
        let [child, stdin] = files;
        let mut fds = vec![
            child.as_fd(),
            stdin.as_fd(),
            pipes.stdout.1.as_fd(),
            pipes.stderr.1.as_fd(),
            pipes.gate.0.as_fd(),
        ];
        if policy.on_leader_exit == LeaderExit::Keep {
            // Whoever is kept may go on writing when nobody reads any more.
            fds.extend([pipes.stdout.0.as_fd(), pipes.stderr.0.as_fd()]);
        }
        fds.extend(born_in.as_ref().map(AsFd::as_fd));
        fdpass::send(shim, &wire::encode(&job)?, &fds)
    }
}

/// Gate and outputs. The read ends of the outputs are for the server's event loop, so they do not block; the ends of
/// the command are other descriptions and do.
fn pipes() -> io::Result<Pipes> {
    let pipes = Pipes {
        gate: spawn::small_pipe()?,
        stdout: pipe2(OFlag::O_CLOEXEC)?,
        stderr: pipe2(OFlag::O_CLOEXEC)?,
    };
    fdpass::set_nonblocking(&pipes.stdout.0)?;
    fdpass::set_nonblocking(&pipes.stderr.0)?;
    Ok(pipes)
}
