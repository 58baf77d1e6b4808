//! Signals by number, with the names that people use.

use serde::{Deserialize, Serialize};
use std::{fmt, str::FromStr};

/// A Linux signal number, 1 to 64 (signal(7)).
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "i32", into = "i32")]
pub struct Signal(i32);

/// The number is of no signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0} is the number of no signal")]
pub struct NoSignal(pub i32);

impl TryFrom<i32> for Signal {
    type Error = NoSignal;

    fn try_from(number: i32) -> Result<Self, NoSignal> {
        Self::from_number(number).ok_or(NoSignal(number))
    }
}

impl From<Signal> for i32 {
    fn from(signal: Signal) -> Self {
        signal.0
    }
}

/// The numbers of x86, arm64 and riscv (signal(7)); the index is the number.
const NAMES: [&str; 32] = [
    "",
    "SIGHUP",
    "SIGINT",
    "SIGQUIT",
    "SIGILL",
    "SIGTRAP",
    "SIGABRT",
    "SIGBUS",
    "SIGFPE",
    "SIGKILL",
    "SIGUSR1",
    "SIGSEGV",
    "SIGUSR2",
    "SIGPIPE",
    "SIGALRM",
    "SIGTERM",
    "SIGSTKFLT",
    "SIGCHLD",
    "SIGCONT",
    "SIGSTOP",
    "SIGTSTP",
    "SIGTTIN",
    "SIGTTOU",
    "SIGURG",
    "SIGXCPU",
    "SIGXFSZ",
    "SIGVTALRM",
    "SIGPROF",
    "SIGWINCH",
    "SIGIO",
    "SIGPWR",
    "SIGSYS",
];
const RTMIN: i32 = 34;
const MAX: i32 = 64;

impl Signal {
    /// Hang-up.
    pub const HUP: Self = Self(1);
    /// Interrupt from the keyboard.
    pub const INT: Self = Self(2);
    /// Kill; cannot be caught.
    pub const KILL: Self = Self(9);
    /// User-defined.
    pub const USR1: Self = Self(10);
    /// Polite request to end.
    pub const TERM: Self = Self(15);
    /// Continue if stopped.
    pub const CONT: Self = Self(18);
    /// Stop; cannot be caught.
    pub const STOP: Self = Self(19);

    /// Returns the signal with this number, if there is one.
    pub fn from_number(number: i32) -> Option<Self> {
        (1..=MAX).contains(&number).then_some(Self(number))
    }

    /// Returns the number.
    pub fn number(self) -> i32 {
        self.0
    }

    /// Whether a process can catch it: a stop begins with no other one.
    pub fn is_polite(self) -> bool {
        self != Self::KILL && self != Self::STOP
    }
}

impl fmt::Display for Signal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match usize::try_from(self.0).ok().and_then(|n| NAMES.get(n)) {
            Some(name) => f.write_str(name),
            None if self.0 == RTMIN => f.write_str("SIGRTMIN"),
            None if self.0 > RTMIN => write!(f, "SIGRTMIN+{}", self.0 - RTMIN),
            None => write!(f, "SIG{}", self.0),
        }
    }
}

impl fmt::Debug for Signal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for Signal {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let text = match text {
            "SIGIOT" => "SIGABRT",
            "SIGCLD" => "SIGCHLD",
            "SIGPOLL" => "SIGIO",
            text => text,
        };
        if let Some(number) = NAMES.iter().skip(1).position(|name| *name == text) {
            return i32::try_from(number + 1).map(Self).map_err(|_| ());
        }
        let (sign, rest) = match (text.strip_prefix("SIGRTMIN"), text.strip_prefix("SIGRTMAX")) {
            (Some(rest), _) => ('+', rest),
            (_, Some(rest)) => ('-', rest),
            _ => return Err(()),
        };
        let digits = rest.strip_prefix(sign).or(rest.is_empty().then_some("0"));
        let digits = digits.filter(|digits| digits.bytes().all(|b| b.is_ascii_digit()));
        let offset = digits
            .and_then(|digits| digits.parse::<u8>().ok())
            .ok_or(())?;
        let offset = i32::from(offset);
        let number = if sign == '+' {
            RTMIN + offset
        } else {
            MAX - offset
        };
        Self::from_number(number)
            .filter(|_| number >= RTMIN)
            .ok_or(())
    }
}
