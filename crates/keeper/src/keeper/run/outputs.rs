//! A command's outputs, on the reading side. The server has its own copies; these keep a writing command alive while no
//! server reads, and what it has written until a server has acknowledged the run.

use kennel_linux::terminal::Terminal;
use std::{os::fd::OwnedFd, rc::Rc};

/// Reading ends of one attempt's output.
pub(in crate::keeper) enum Outputs {
    /// Read ends of standard output and error.
    Pipes(Rc<OwnedFd>, Rc<OwnedFd>),
    /// Its terminal.
    Terminal(Terminal),
}

impl Outputs {
    /// Makes the outputs of two pipes.
    pub(in crate::keeper) fn pipes(stdout: OwnedFd, stderr: OwnedFd) -> Self {
        Self::Pipes(Rc::new(stdout), Rc::new(stderr))
    }

    /// Returns the descriptors that a server needs to read them.
    pub(super) fn for_server(&self) -> Vec<Rc<OwnedFd>> {
        match self {
            Self::Pipes(stdout, stderr) => vec![Rc::clone(stdout), Rc::clone(stderr)],
            Self::Terminal(terminal) => terminal.for_server(),
        }
    }
}
