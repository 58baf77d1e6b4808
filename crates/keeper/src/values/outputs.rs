//! Where a command's output comes from, as descriptors.

pub use kennel_linux::terminal::TerminalEnds;
use std::os::fd::OwnedFd;

/// All are non-blocking.
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
    /// Of what the keeper has sent; absent: some of it found no room in this process's table.
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
