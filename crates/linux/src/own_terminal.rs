//! The terminal of this process itself, as far as a client needs it: see termios(3), `ioctl_tty(2)`.

use kennel_lifecycle::TerminalSize;
use nix::{
    errno::Errno,
    sys::{
        signal::{SigSet, Signal},
        termios::{LocalFlags, SetArg, Termios, cfmakeraw, tcgetattr, tcsetattr},
    },
    unistd::{getpgrp, tcgetpgrp},
};
use std::io::{self, IsTerminal, Stdin};

/// Raw mode: keys arrive as they are typed, also those that make signals, until it is dropped.
#[derive(Debug)]
pub struct RawMode {
    stdin: Stdin,
    before: Termios,
}

impl RawMode {
    /// Enters raw mode; `None` where standard input is no terminal.
    pub fn enter() -> io::Result<Option<Self>> {
        Self::set(cfmakeraw)
    }

    fn set(change: impl FnOnce(&mut Termios)) -> io::Result<Option<Self>> {
        let stdin = io::stdin();
        if !stdin.is_terminal() {
            return Ok(None);
        }
        let before = tcgetattr(&stdin)?;
        let mut raw = before.clone();
        change(&mut raw);
        tcsetattr(&stdin, SetArg::TCSADRAIN, &raw)?;
        Ok(Some(Self { stdin, before }))
    }
}

impl Drop for RawMode {
    fn drop(&mut self) {
        // A terminal that has hung up needs no restoring.
        let _ = tcsetattr(&self.stdin, SetArg::TCSADRAIN, &self.before);
    }
}

/// Does not show what is typed, until it is dropped; `None` where standard input is no terminal.
pub fn echo_off() -> io::Result<Option<RawMode>> {
    RawMode::set(|settings| settings.local_flags.remove(LocalFlags::ECHO))
}

/// Lets reads of the terminal by this thread fail with EIO while another process group is in its foreground, instead of
/// stopping this process (SIGTTIN, see termios(3)).
pub fn fail_reads_in_background() {
    let mut stops = SigSet::empty();
    stops.add(Signal::SIGTTIN);
    // Blocking fails only for an invalid argument.
    let _ = stops.thread_block();
}

/// Whether this process may read the terminal at standard input.
pub fn is_in_foreground() -> bool {
    tcgetpgrp(io::stdin()).is_ok_and(|foreground| foreground == getpgrp())
}

/// Whether standard input is a terminal that is gone: each call on it fails with EIO.
pub fn has_hung_up() -> bool {
    matches!(tcgetattr(io::stdin()), Err(Errno::EIO))
}

/// Returns the size of the terminal at standard output, else at standard input; `None` where neither is one, or it
/// reports no size.
pub fn size() -> Option<TerminalSize> {
    [libc::STDOUT_FILENO, libc::STDIN_FILENO]
        .into_iter()
        .find_map(size_of)
}

fn size_of(descriptor: libc::c_int) -> Option<TerminalSize> {
    let mut size = libc::winsize {
        ws_row: 0,
        ws_col: 0,
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    // SAFETY: TIOCGWINSZ writes one `winsize`, and fails for a closed descriptor or a non-terminal.
    let got = unsafe { libc::ioctl(descriptor, libc::TIOCGWINSZ, &raw mut size) };
    let (rows, cols) = (size.ws_row, size.ws_col);
    (got == 0 && rows > 0 && cols > 0).then_some(TerminalSize { rows, cols })
}
