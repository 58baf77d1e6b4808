//! A process for tests: a child that does nothing, and ends with its owner.

use kennel_lifecycle::ProcessIdentity;
use kennel_linux::{identity, pidfd::PidFd};
use std::process::{Child, Command};

/// The child, until it is dropped.
pub(crate) struct Sleeper(Child);

impl Sleeper {
    pub(crate) fn new() -> Self {
        Self::of(Command::new("sleep").arg("1000"))
    }

    /// A child of a command that lasts as long.
    pub(crate) fn of(command: &mut Command) -> Self {
        Self(command.spawn().expect("it starts"))
    }

    pub(crate) fn pid(&self) -> i32 {
        self.0.id().cast_signed()
    }

    pub(crate) fn pidfd(&self) -> PidFd {
        PidFd::open(self.pid()).expect("a pidfd")
    }

    pub(crate) fn identity(&self) -> ProcessIdentity {
        identity::of(self.pid(), &self.pidfd()).expect("it is there")
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        // A signal of the test may have ended the process already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
