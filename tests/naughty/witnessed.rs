//! A command that reports its life to the witness of a test, over a connection whose end is its own: the signals that
//! it gets with their senders, the bytes that it has written, the code with which it exits.

use crate::{LIFE, again};
use kennel_tests::{pattern, witness::Report};
use nix::{
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::{
        signal::{SigSet, Signal},
        signalfd::SignalFd,
    },
    unistd::setsid,
};
use std::{
    env,
    io::{Read, Write},
    os::{fd::AsFd, unix::net::UnixStream},
    process::{ExitCode, Stdio},
    time::{Duration, Instant},
};

/// Bytes of one write: a pipe with so much space takes them at once.
const PIECE_BYTES: usize = 4096;
/// Time from one write to the next.
const PACE: Duration = Duration::from_millis(50);
/// Time for which it lives on after a SIGTERM: a second one would be noticed.
const AFTER_TERM: Duration = Duration::from_millis(300);
/// Exit code after a SIGTERM.
const TERMINATED: u8 = 7;

/// Lives for so many milliseconds and until it has written so many bytes, and exits with this code.
pub(super) fn leader(socket: &str, millis: u64, code: u8, bytes: usize) -> ExitCode {
    let mut subject = Subject::register(socket, true);
    again(&["witnessed-child", socket])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("child starts");
    let output = pattern(bytes);
    let born = Instant::now();
    let end = born + Duration::from_millis(millis).min(LIFE);
    let (mut written, mut due) = (0_usize, born);
    loop {
        let is_left = written < output.len();
        let now = Instant::now();
        if now >= end && !is_left {
            subject.report(&Report::Exits(i32::from(code)));
            return ExitCode::from(code);
        }
        let wake = if is_left { due } else { end };
        let writes = is_left && now >= due;
        let (signal, has_space) = subject.wait(wake, writes);
        if let Some(Signal::SIGTERM) = signal {
            // After SIGTERM, remaining output is never written.
            let end = Instant::now() + AFTER_TERM;
            while Instant::now() < end {
                subject.wait(end, false);
            }
            subject.report(&Report::Exits(i32::from(TERMINATED)));
            return ExitCode::from(TERMINATED);
        }
        if has_space {
            let upto = output.len().min(written + PIECE_BYTES);
            let mut stdout = std::io::stdout().lock();
            stdout
                .write_all(&output[written..upto])
                .and_then(|()| stdout.flush())
                .expect("own stdout");
            (written, due) = (upto, due + PACE);
            subject.report(&Report::Wrote(written));
        }
    }
}

/// A process of the same run in a session of its own.
pub(super) fn child(socket: &str) -> ExitCode {
    let _ = setsid();
    let mut subject = Subject::register(socket, false);
    let end = Instant::now() + LIFE;
    while Instant::now() < end {
        if let (Some(Signal::SIGTERM), _) = subject.wait(end, false) {
            break;
        }
    }
    ExitCode::SUCCESS
}

struct Subject {
    witness: UnixStream,
    signals: SignalFd,
}

impl Subject {
    /// Connects to the witness, which has noted this process when this returns.
    fn register(socket: &str, is_leader: bool) -> Self {
        let mut awaited = SigSet::empty();
        for signal in [
            Signal::SIGINT,
            Signal::SIGTERM,
            Signal::SIGHUP,
            Signal::SIGUSR1,
            Signal::SIGCONT,
        ] {
            awaited.add(signal);
        }
        awaited.thread_block().expect("signals can be blocked");
        let signals = SignalFd::new(&awaited).expect("a descriptor can be had");
        let witness = UnixStream::connect(socket).expect("the witness listens");
        let mut subject = Self { witness, signals };
        let run = env::var("KENNEL_RUN_ID").expect("it is a run's");
        subject.report(&Report::Lives { run, is_leader });
        subject
            .witness
            .read_exact(&mut [0])
            .expect("the witness answers");
        subject
    }

    fn report(&mut self, report: &Report) {
        // Ignore a missing witness: its test is over.
        let _ = self.witness.write_all(report.to_line().as_bytes());
    }

    /// Waits for a signal, space in standard output, or this time. A signal is reported. Exits with the witness.
    fn wait(&mut self, until: Instant, writes: bool) -> (Option<Signal>, bool) {
        let left = until.saturating_duration_since(Instant::now());
        // Round up, so that poll does not return early.
        let left = if writes { LIFE } else { left };
        let left = u32::try_from(left.as_millis() + 1).unwrap_or(u32::MAX);
        let left = PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX);
        let stdout = std::io::stdout();
        let mut fds = vec![
            PollFd::new(self.signals.as_fd(), PollFlags::POLLIN),
            PollFd::new(self.witness.as_fd(), PollFlags::POLLIN),
        ];
        if writes {
            fds.push(PollFd::new(stdout.as_fd(), PollFlags::POLLOUT));
        }
        poll(&mut fds, left).expect("all signals are blocked");
        let is_ready = |at: usize| {
            let events = fds.get(at).and_then(PollFd::revents);
            events.is_some_and(|events| !events.is_empty())
        };
        let (has_signal, is_over, has_space) = (is_ready(0), is_ready(1), is_ready(2));
        if is_over {
            std::process::exit(0);
        }
        if !has_signal {
            return (None, has_space);
        }
        let read = self.signals.read_signal().expect("one is pending");
        let read = read.expect("one is pending");
        let number = i32::try_from(read.ssi_signo).expect("small");
        let signal = Signal::try_from(number).expect("it is awaited");
        self.report(&Report::Signalled {
            signal: signal.as_str().to_owned(),
            sender: i32::try_from(read.ssi_pid).expect("small"),
        });
        (Some(signal), false)
    }
}
