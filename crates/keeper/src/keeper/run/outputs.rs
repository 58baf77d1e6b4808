//! What a command writes to, on the side that is read. The server has its own copies; these keep a command that writes alive
//! while no server reads, and what it has written until a server has acknowledged the run.

use kennel_linux::terminal::Terminal;
use std::{os::fd::OwnedFd, rc::Rc};

/// Where the output of one attempt comes out.
pub(in crate::keeper) enum Outputs {
    /// Read ends of standard output and error.
    Pipes(Rc<OwnedFd>, Rc<OwnedFd>),
    /// Its terminal.
    Terminal(Terminal),
}

impl Outputs {
    /// Of two pipes.
    pub(in crate::keeper) fn pipes(stdout: OwnedFd, stderr: OwnedFd) -> Self {
        Self::Pipes(Rc::new(stdout), Rc::new(stderr))
    }

    /// What a server needs to read it.
    pub(super) fn for_server(&self) -> Vec<Rc<OwnedFd>> {
        match self {
            Self::Pipes(stdout, stderr) => vec![Rc::clone(stdout), Rc::clone(stderr)],
            Self::Terminal(terminal) => terminal.for_server(),
        }
    }
}
