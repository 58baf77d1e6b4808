//! The child's reports of its start.

use super::{ChildStage, Work};
use crate::{
    init_note,
    shim::namespace::Init,
    wire::{FromShim, Placement},
};
use kennel_lifecycle::{Rlimit, StartFailure, StartStage};
use kennel_linux::{
    attributes::OOM_SCORE_ADJ,
    cgroup, crash_point, identity,
    spawn::{
        child::{
            FAILED, GOING, READY, STEP_CAPABILITIES, STEP_EXEC, STEP_NAMESPACE, STEP_NETWORK,
            STEP_NICE, STEP_NO_NEW_PRIVILEGES, STEP_OOM_SCORE, STEP_PROC, STEP_RLIMITS,
            STEP_SANDBOX, STEP_SECCOMP, STEP_SECRETS, STEP_SESSION, STEP_STDIO, STEP_USER,
            STEP_WORK_DIR,
        },
        failure,
    },
};
use std::io;

impl Work {
    /// Reads the child's reports.
    pub(in crate::shim) fn read_status(&mut self) {
        let Some(status) = &self.status else { return };
        let mut buffer = [0u8; 64];
        let ended = loop {
            match nix::unistd::read(status, &mut buffer) {
                Ok(0) => break true,
                // Before the gate opens, the child reports only READY.
                Ok(read) if self.stage == ChildStage::SettingUp && buffer[..read] == [READY] => {
                    self.heard.push(READY);
                    break false;
                }
                Ok(read) => self.heard.extend_from_slice(&buffer[..read]),
                Err(nix::errno::Errno::EINTR) => {}
                Err(_) => break false,
            }
        };
        self.understand();
        if ended {
            self.status = None;
            if let Some(lent) = self.lent.take() {
                lent.end();
            }
            self.conclude();
        }
    }

    pub(super) fn understand(&mut self) {
        let heard = std::mem::take(&mut self.heard);
        let mut rest = heard.as_slice();
        loop {
            rest = match *rest {
                [READY, ref after @ ..] => {
                    self.announce();
                    after
                }
                [GOING, ref after @ ..] => {
                    self.stage = ChildStage::Going;
                    after
                }
                [FAILED, step, a, b, c, d, ref after @ ..] => {
                    self.failed(step, i32::from_le_bytes([a, b, c, d]));
                    after
                }
                _ => break,
            };
        }
        self.heard = rest.to_vec();
    }

    /// Announces the child, which waits.
    pub(super) fn announce(&mut self) {
        let announced = self.place().and_then(|()| {
            let command = identity::of_held(self.tree.leader_pid, &self.tree.leader)?;
            let shim = self.shim.map_or_else(identity::own, Ok)?;
            Ok((command, shim))
        });
        match announced {
            Ok((command, shim)) => {
                crash_point!("shim.at_gate");
                self.stage = ChildStage::AtGate;
                self.unannounced = false;
                self.will.name((&command).into());
                if let Some(init) = &self.init {
                    // Without the note the next keeper cannot report init's state.
                    let _ = init_note::write(&self.run_dir, (&command).into(), init.pid());
                }
                self.remember_announced(&command, &shim);
                let init = self.init.as_ref().map(Init::pid);
                let word = FromShim::Prepared {
                    command,
                    shim,
                    init,
                };
                self.words.push(word);
            }
            Err(error) => {
                self.kill_all();
                self.never_ran(failure(StartStage::Cgroup, &error, None));
            }
        }
    }

    pub(super) fn place(&self) -> io::Result<()> {
        match (&self.tree.cgroup, self.placement) {
            (Some(group), Placement::ByWrite) => cgroup::enter(group, self.tree.leader_pid),
            _ => Ok(()),
        }
    }

    pub(super) fn failed(&mut self, step: u8, errno: i32) {
        let shown = |path: &[u8]| String::from_utf8_lossy(path).into_owned();
        let (stage, path) = match step {
            STEP_SESSION => (StartStage::Session, None),
            STEP_STDIO => (StartStage::Stdio, None),
            STEP_WORK_DIR => (StartStage::WorkDir, Some(shown(&self.child.cwd))),
            STEP_EXEC => (StartStage::Exec, Some(shown(&self.child.executable))),
            STEP_NICE => (StartStage::Limits, Some("nice".to_owned())),
            STEP_NAMESPACE => (StartStage::Namespace, None),
            STEP_PROC => (StartStage::Namespace, Some("/proc".to_owned())),
            STEP_USER => (StartStage::Privileges, Some("user".to_owned())),
            STEP_NO_NEW_PRIVILEGES => {
                (StartStage::Privileges, Some("no_new_privileges".to_owned()))
            }
            STEP_CAPABILITIES => (StartStage::Privileges, Some("drop_capabilities".to_owned())),
            STEP_SANDBOX => (StartStage::Privileges, Some("sandbox".to_owned())),
            STEP_SECCOMP => (StartStage::Privileges, Some("seccomp_profile".to_owned())),
            STEP_NETWORK => (StartStage::Privileges, Some("network".to_owned())),
            STEP_OOM_SCORE => (StartStage::Limits, Some(OOM_SCORE_ADJ.to_owned())),
            STEP_SECRETS => (StartStage::Secret, None),
            STEP_RLIMITS.. => (StartStage::Limits, self.limit_of(step)),
            _ => (StartStage::Fork, None),
        };
        self.never_ran(StartFailure {
            stage,
            errno: Some(errno),
            path,
        });
    }

    /// Returns the name of the limit that could not be set.
    pub(super) fn limit_of(&self, step: u8) -> Option<String> {
        let limit = self
            .attributes
            .rlimits
            .get(usize::from(step - STEP_RLIMITS))?;
        let Rlimit { resource, .. } = *limit;
        Some(resource.name().to_owned())
    }

    pub(super) fn never_ran(&mut self, failure: StartFailure) {
        if matches!(self.stage, ChildStage::Ran | ChildStage::NeverRan) {
            return;
        }
        self.stage = ChildStage::NeverRan;
        self.record.never_ran = true;
        let word = if self.unannounced {
            FromShim::PrepareFailed(failure)
        } else {
            FromShim::ExecFailed(failure)
        };
        self.words.push(word);
    }
}
