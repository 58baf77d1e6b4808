//! Where a command's output comes from, as descriptors.

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

/// A terminal, and the pipe through which its output goes on its way into a file. The keeper has copies of all three.
#[derive(Debug)]
pub struct TerminalEnds {
    /// The terminal's master.
    pub master: OwnedFd,
    /// Read end of the relay. What is in it comes before all else.
    pub relay_read: OwnedFd,
    /// Write end of the relay.
    pub relay_write: OwnedFd,
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
