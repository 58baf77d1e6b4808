//! A command's terminal, as the keeper holds it: opened and resized with portable-pty, which is used for nothing else.
//!
//! That crate marks its descriptors close-on-exec in a separate step. The keeper has one thread, so no process is
//! forked between the two. It never spawns, and its writer is never taken, which types a newline and an end of file
//! when it is dropped.

use kennel_lifecycle::TerminalSize;
use nix::{
    errno::Errno,
    fcntl::{FcntlArg, OFlag, SpliceFFlags, fcntl, splice},
    sys::termios::{InputFlags, LocalFlags, SetArg, SpecialCharacterIndices, tcgetattr, tcsetattr},
    unistd::pipe2,
};
use portable_pty::{MasterPty, PtySize, native_pty_system};
use serde::{Deserialize, Serialize};
use std::{
    fmt, fs, io,
    os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd},
    rc::Rc,
};

/// A terminal, and the pipe through which its output goes into a file. The keeper has copies of all three.
#[derive(Debug)]
pub struct TerminalEnds {
    /// The terminal's master.
    pub master: OwnedFd,
    /// Read end of the relay. Its contents come before all else.
    pub relay_read: OwnedFd,
    /// Write end of the relay.
    pub relay_write: OwnedFd,
}

/// Files with the number of open terminals, and with their maximum.
const OPEN_NOW: &str = "/proc/sys/kernel/pty/nr";
const OPEN_MAX: &str = "/proc/sys/kernel/pty/max";

/// Byte that a keyboard sends for Ctrl-C.
const CTRL_C: u8 = 0x03;

/// Result of typing the interrupt key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TypedInterrupt {
    /// The key was typed, and the terminal sends SIGINT to its foreground.
    ForTerminal,
    /// The terminal is raw: the key was typed, and the command reads it.
    ForCommand,
    /// The terminal is raw and took no key, with this errno(3).
    NoRoom(i32),
    /// There is no such key, the terminal makes no signal of it, or has no space.
    NoKey,
}

/// Reason why there is no terminal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NoPty {
    /// The host's terminals are used up.
    Exhausted {
        /// Number of open terminals, where that can be read.
        current: Option<u64>,
        /// Maximum number, where that can be read.
        max: Option<u64>,
    },
    /// This host provides none.
    Unavailable {
        /// The reason, in a few words.
        why: String,
        /// errno(3) of the call that failed, where one did.
        errno: Option<i32>,
    },
}

impl fmt::Display for NoPty {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exhausted { .. } => f.write_str("the terminals of this host are used up"),
            Self::Unavailable { why, .. } => f.write_str(why),
        }
    }
}

/// An open terminal. Its output passes a pipe, both ends of which are held here: bytes that a server had moved into
/// that, and not into a file when it died, are found by the next one.
pub struct Terminal {
    pty: Box<dyn MasterPty + Send>,
    size: TerminalSize,
    /// Another descriptor of the same description, non-blocking.
    master: Rc<OwnedFd>,
    relay: (Rc<OwnedFd>, Rc<OwnedFd>),
    /// Prevents a hang-up while the leader lives, which may close its terminal and open it again.
    slave: Option<OwnedFd>,
}

impl Terminal {
    /// Opens a terminal, and returns the command's end too. The caller is single-threaded.
    pub fn open(size: TerminalSize) -> io::Result<Result<(Self, OwnedFd), NoPty>> {
        // The crate reports errors only as text: errno is read.
        Errno::clear();
        let Ok(pair) = native_pty_system().openpty(pty_size(size)) else {
            return no_pty(Errno::last());
        };
        // `_slave` stays open until `slave` is: a terminal that no process has open hangs up.
        let (pty, _slave) = (pair.master, pair.slave);
        let raw = pty.as_raw_fd().ok_or(Errno::EBADF)?;
        // SAFETY: `pty` is open, and is not dropped while `fd` is used.
        let fd = unsafe { BorrowedFd::borrow_raw(raw) };
        // O_NOCTTY: opening the slave again must not set a controlling terminal (TIOCGPTPEER, ioctl_tty(2)).
        let flags = OFlag::O_RDWR | OFlag::O_NOCTTY | OFlag::O_CLOEXEC;
        // SAFETY: the request takes an integer and returns a new descriptor.
        let peer = unsafe { libc::ioctl(raw, libc::TIOCGPTPEER, flags.bits()) };
        let peer = match Errno::result(peer) {
            Ok(peer) => peer,
            Err(errno) => return no_pty(errno),
        };
        // SAFETY: the kernel has just made this descriptor for us; no other code owns it.
        let slave = unsafe { OwnedFd::from_raw_fd(peer) };
        let mut settings = tcgetattr(&slave)?;
        // A terminal's user types UTF-8: backspace erases a character, not a byte.
        settings.input_flags.insert(InputFlags::IUTF8);
        tcsetattr(&slave, SetArg::TCSANOW, &settings)?;
        fcntl(fd, FcntlArg::F_SETFL(OFlag::O_RDWR | OFlag::O_NONBLOCK))?;
        let master = Rc::new(fd.try_clone_to_owned()?);
        let (relay_read, relay_write) = pipe2(OFlag::O_CLOEXEC | OFlag::O_NONBLOCK)?;
        let of_command = slave.try_clone()?;
        let terminal = Self {
            pty,
            size,
            master,
            relay: (Rc::new(relay_read), Rc::new(relay_write)),
            slave: Some(slave),
        };
        Ok(Ok((terminal, of_command)))
    }

    /// Returns the size that was set last.
    pub fn size(&self) -> TerminalSize {
        self.size
    }

    /// Sets the size: its foreground group gets SIGWINCH, unless the size is the same.
    pub fn resize(&mut self, size: TerminalSize) -> io::Result<()> {
        // The crate reports errors only as text: errno is read.
        Errno::clear();
        let resized = self.pty.resize(pty_size(size));
        resized.map_err(|_| io::Error::from(Errno::last()))?;
        self.size = size;
        Ok(())
    }

    /// Types the interrupt key, where there is one.
    pub fn type_interrupt(&self) -> TypedInterrupt {
        let Ok(settings) = tcgetattr(&*self.master) else {
            return TypedInterrupt::NoKey;
        };
        let flags = settings.local_flags;
        if !flags.intersects(LocalFlags::ISIG | LocalFlags::ICANON) {
            return match nix::unistd::write(&*self.master, &[CTRL_C]) {
                Ok(1) => TypedInterrupt::ForCommand,
                Ok(_) => TypedInterrupt::NoRoom(Errno::EAGAIN as i32),
                Err(errno) => TypedInterrupt::NoRoom(errno as i32),
            };
        }
        let key = settings.control_chars[SpecialCharacterIndices::VINTR as usize];
        let is_typed = flags.contains(LocalFlags::ISIG)
            && key != libc::_POSIX_VDISABLE
            && nix::unistd::write(&*self.master, &[key]) == Ok(1);
        if is_typed {
            TypedInterrupt::ForTerminal
        } else {
            TypedInterrupt::NoKey
        }
    }

    /// Returns the descriptor that input is written to.
    pub fn master(&self) -> &Rc<OwnedFd> {
        &self.master
    }

    /// Returns the descriptors that a server needs to read it, in this order: the master, and both ends of the relay.
    pub fn for_server(&self) -> Vec<Rc<OwnedFd>> {
        let (read, write) = &self.relay;
        vec![Rc::clone(&self.master), Rc::clone(read), Rc::clone(write)]
    }

    /// Lets the terminal hang up when no process of the run has it open any more.
    pub fn leader_is_gone(&mut self) {
        self.slave = None;
    }
}

fn pty_size(size: TerminalSize) -> PtySize {
    PtySize {
        rows: size.rows,
        cols: size.cols,
        pixel_width: 0,
        pixel_height: 0,
    }
}

/// Interprets an errno of opening a terminal.
fn no_pty<T>(errno: Errno) -> io::Result<Result<T, NoPty>> {
    match errno {
        Errno::ENOSPC => Ok(Err(NoPty::Exhausted {
            current: number(OPEN_NOW),
            max: number(OPEN_MAX),
        })),
        // The process or the host is out of resources.
        Errno::EMFILE | Errno::ENFILE | Errno::ENOMEM => Err(errno.into()),
        errno => Ok(Err(NoPty::Unavailable {
            why: format!("a terminal cannot be opened: {}", errno.desc()),
            errno: Some(errno as i32),
        })),
    }
}

/// Whether the terminal of this master does not show what is typed.
pub fn is_echo_off(master: impl AsFd) -> bool {
    tcgetattr(master).is_ok_and(|settings| !settings.local_flags.contains(LocalFlags::ECHO))
}

/// Returns how many terminals of all users this host may have open; absent: that cannot be read.
pub fn terminals_max() -> Option<u64> {
    number(OPEN_MAX)
}

fn number(path: &str) -> Option<u64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

/// Whether a terminal can be opened and its output moved without a copy. The caller is single-threaded.
pub fn probe() -> io::Result<Result<(), NoPty>> {
    let (terminal, slave) = match Terminal::open(TerminalSize::default()) {
        Ok(Ok(opened)) => opened,
        // Exhausted terminals are not a missing capability.
        Ok(Err(NoPty::Exhausted { .. })) => return Ok(Ok(())),
        Ok(Err(none)) => return Ok(Err(none)),
        Err(error) => return Err(error),
    };
    nix::unistd::write(&slave, b"?")?;
    let flags = SpliceFFlags::SPLICE_F_NONBLOCK;
    let moved = splice(&*terminal.master, None, &*terminal.relay.1, None, 1, flags);
    Ok(moved.map(drop).map_err(|errno| NoPty::Unavailable {
        why: format!(
            "this kernel does not splice from a terminal: {}",
            errno.desc()
        ),
        errno: Some(errno as i32),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exhausted_ptys_differ_from_unavailable_ones() {
        let none = |errno| no_pty::<()>(errno);
        let Ok(Err(NoPty::Exhausted { current, max })) = none(Errno::ENOSPC) else {
            panic!("not exhausted")
        };
        assert!(current.is_some() && max.is_some());
        for errno in [Errno::ENOENT, Errno::EIO, Errno::ENOTTY, Errno::EACCES] {
            let Ok(Err(NoPty::Unavailable {
                errno: reported, ..
            })) = none(errno)
            else {
                panic!("{errno} is not unavailable")
            };
            assert_eq!(reported, Some(errno as i32));
        }
        let full = none(Errno::EMFILE).expect_err("room for nothing");
        assert_eq!(full.raw_os_error(), Some(libc::EMFILE));
    }

    #[test]
    fn terminal_has_its_size_and_private_descriptors() {
        let size = TerminalSize { rows: 3, cols: 500 };
        let (mut terminal, slave) = Terminal::open(size).expect("room").expect("a terminal");
        let seen = |terminal: &Terminal| {
            let size = terminal.pty.get_size().expect("it says");
            (size.rows, size.cols)
        };
        assert_eq!(seen(&terminal), (3, 500));
        let other = TerminalSize { rows: 24, cols: 80 };
        terminal.resize(other).expect("it can be");
        assert_eq!((seen(&terminal), terminal.size()), ((24, 80), other));
        let flags = |fd: &OwnedFd, arg| fcntl(fd, arg).expect("it says");
        for fd in terminal.for_server().iter().map(|fd| &**fd).chain([&slave]) {
            assert_eq!(flags(fd, FcntlArg::F_GETFD), libc::FD_CLOEXEC);
        }
        let master = terminal.master();
        let status = flags(master, FcntlArg::F_GETFL);
        assert_ne!(status & libc::O_NONBLOCK, 0);
        assert_eq!(flags(&slave, FcntlArg::F_GETFL) & libc::O_NONBLOCK, 0);
        // The key has no effect here: no process is in the foreground.
        assert_eq!(terminal.type_interrupt(), TypedInterrupt::ForTerminal);
    }

    // promise: P-11b
    #[test]
    fn backspace_erases_a_character_of_several_bytes() {
        let size = TerminalSize::default();
        let (terminal, slave) = Terminal::open(size).expect("room").expect("a terminal");
        let typed = "a\u{e9}\u{7f}\n".as_bytes();
        assert_eq!(
            nix::unistd::write(terminal.master(), typed),
            Ok(typed.len())
        );
        let mut line = [0; 8];
        let read = nix::unistd::read(&slave, &mut line).expect("a line");
        assert_eq!(&line[..read], b"a\n");
    }

    #[test]
    fn raw_terminal_gets_the_interrupt_character() {
        let size = TerminalSize::default();
        let (terminal, slave) = Terminal::open(size).expect("room").expect("a terminal");
        let mut settings = tcgetattr(&slave).expect("it says");
        settings.local_flags.remove(LocalFlags::ISIG);
        tcsetattr(&slave, SetArg::TCSANOW, &settings).expect("it can be");
        assert_eq!(terminal.type_interrupt(), TypedInterrupt::NoKey);
        settings.local_flags.remove(LocalFlags::ICANON);
        tcsetattr(&slave, SetArg::TCSANOW, &settings).expect("it can be");
        assert_eq!(terminal.type_interrupt(), TypedInterrupt::ForCommand);
        let mut read = [0; 2];
        assert_eq!(nix::unistd::read(&slave, &mut read), Ok(1));
        assert_eq!(read[0], CTRL_C);
    }
}
