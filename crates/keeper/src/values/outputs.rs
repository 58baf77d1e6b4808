//! Descriptors of a command's output.

pub use kennel_linux::terminal::TerminalEnds;
use std::os::fd::OwnedFd;

/// Descriptors of a command's output, all non-blocking.
#[derive(Debug)]
pub enum Outputs {
    /// The read ends of two pipes.
    Pipes {
        /// Of standard output.
        stdout: OwnedFd,
        /// Of standard error.
        stderr: OwnedFd,
    },
    /// A terminal.
    Terminal(TerminalEnds),
}

impl Outputs {
    /// Builds the value from the received descriptors; absent: some of them exceeded this process's limit.
    pub(crate) fn of(terminal: bool, fds: Vec<OwnedFd>) -> Option<Self> {
        let mut fds = fds.into_iter();
        let mut next = || fds.next();
        Some(if terminal {
            Self::Terminal(TerminalEnds {
                master: next()?,
                relay_read: next()?,
                relay_write: next()?,
            })
        } else {
            Self::Pipes {
                stdout: next()?,
                stderr: next()?,
            }
        })
    }
}
