//! `kennel attach`, and `kennel run --tty`: connects this process's terminal with that of a run.

use crate::{
    args::RunRef,
    detach_keys::DetachKeys,
    ends::Ends,
    exit::{Exit, exit_of_ended},
    failure::{Failure, because, note},
    link::{self, Link, refused},
    run_input::{end_of_file, pieces},
};
use clap::Args;
use kennel_client::{Attachment, REMEMBER_TERMINAL, put_terminal_back};
use kennel_linux::own_terminal::{self, RawMode};
use kennel_proto::pb::{self, attach_response::Response as Reported, event::Payload};
use std::{
    io::{self, IsTerminal as _},
    time::Duration,
};
use tokio::{
    signal::unix::{Signal, SignalKind, signal},
    sync::mpsc,
    time::{Instant, sleep_until},
};

#[derive(Debug, Args)]
pub struct AttachArgs {
    #[command(flatten)]
    pub(crate) run: RunRef,
    /// Watch only, without typing
    #[arg(long, conflicts_with = "take")]
    pub(crate) read_only: bool,
    /// Take the keyboard from another attached client
    #[arg(long)]
    pub(crate) take: bool,
    /// Keys that detach when typed in sequence; empty: none [default: ctrl-p,ctrl-q]
    #[arg(long, value_name = "KEYS")]
    pub(crate) detach_keys: Option<DetachKeys>,
}

/// Bytes read from standard input at once.
const TYPED_BYTES_MAX: usize = 4096;
/// Longest wait for the next one of the keys that detach: then those that were typed are the command's.
const NEXT_KEY_MAX: Duration = Duration::from_millis(300);
/// Longest wait for the delivery of the last input when detaching.
const LEAVE_MAX: Duration = Duration::from_secs(1);
/// Moves the cursor below the output of a command that continues.
const LAST_LINE: &[u8] = b"\x1b[999;1H\r\n";
const BELL: &[u8] = b"\x07";

/// Options of the attachment.
#[derive(Default)]
pub(crate) struct Manner {
    /// Whether this client only watches.
    pub(crate) read_only: bool,
    /// Whether this client becomes the writer in place of any other.
    pub(crate) take: bool,
    /// Keys that detach.
    pub(crate) keys: DetachKeys,
    /// Whether this process stands for the command: then the caller decides what SIGTERM and SIGHUP mean, and the end
    /// of a pipe ends the input.
    pub(crate) is_command: bool,
}

/// End of an attachment.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Left {
    /// The client detached, and the run continues.
    Detached,
    /// The run has ended.
    Ended,
}

pub(crate) async fn attach(link: &Link, args: AttachArgs) -> Result<u8, Failure> {
    let manner = Manner {
        read_only: args.read_only,
        take: args.take,
        keys: args.detach_keys.unwrap_or_default(),
        is_command: false,
    };
    if !link.format.is_text() {
        return Err(Failure::new("a terminal has no form for programs")
            .hint("leave --output out, or: kennel screen"));
    }
    let run_id = link.run_id(&args.run.run).await?;
    match stay(link, &run_id, manner).await? {
        Left::Detached => Ok(0),
        Left::Ended => exit_of_ended(link, &run_id).await.map(Exit::code),
    }
}

/// Shows the run's terminal on this one and sends typed input to it, until the run has ended or the detach keys are
/// typed.
pub(crate) async fn stay(link: &Link, run_id: &str, manner: Manner) -> Result<Left, Failure> {
    let mut desk = Desk::open(link, run_id, manner)?;
    let left = desk.work().await;
    desk.put_back(matches!(left, Ok(Left::Detached)));
    if let Ok(Left::Detached) = left {
        note(&format_args!(
            "left run {run_id}, which continues; kennel attach {run_id} comes back"
        ));
    }
    left
}

struct Desk {
    attachment: Attachment,
    manner: Manner,
    /// Raw mode of the terminal; absent: standard input is no terminal.
    raw: Option<RawMode>,
    typed: mpsc::Receiver<io::Result<Vec<u8>>>,
    /// Last key that was sent.
    last: Option<u8>,
    /// Time at which keys that may detach are sent.
    due: Option<Instant>,
    resized: Signal,
    ends: Ends,
    /// Whether this client is the writer.
    writes: bool,
    /// Whether anything was shown that must be undone.
    shown: bool,
}

impl Desk {
    fn open(link: &Link, run_id: &str, manner: Manner) -> Result<Self, Failure> {
        let resized = signal(SignalKind::window_change());
        let resized = resized.map_err(because("cannot listen for signals"))?;
        let mut attachment = Attachment::new(
            &link.connection,
            pb::AttachOpen {
                run_id: run_id.to_owned(),
                read_only: manner.read_only,
                size: own_size(),
                cursor: Vec::new().into(),
            },
        );
        if manner.take {
            attachment.take();
        }
        Ok(Self {
            attachment,
            typed: pieces(TYPED_BYTES_MAX),
            last: None,
            due: None,
            manner,
            raw: None,
            resized,
            ends: Ends::listen()?,
            writes: false,
            shown: false,
        })
    }

    async fn work(&mut self) -> Result<Left, Failure> {
        let mut listens = true;
        loop {
            let Self {
                attachment,
                typed,
                resized,
                ends,
                ..
            } = self;
            let due = self.due;
            let leaves_at_signals = !self.manner.is_command;
            let can_type = attachment.can_type();
            tokio::select! {
                reported = attachment.next() => match reported.map_err(refused)? {
                    Some(reported) => self.show(reported)?,
                    None => return Ok(Left::Ended),
                },
                typed = typed.recv(), if listens && can_type => match typed {
                    Some(Ok(typed)) => {
                        let (keys, leaves) = self.manner.keys.filter(&typed);
                        self.type_in(keys);
                        if leaves {
                            return Ok(self.leave().await);
                        }
                        self.due = Some(Instant::now() + NEXT_KEY_MAX);
                    }
                    Some(Err(_)) | None => {
                        listens = false;
                        let mut keys = self.manner.keys.release();
                        if self.manner.is_command && !io::stdin().is_terminal() {
                            keys.extend(end_of_file(keys.last().copied().or(self.last)));
                        }
                        self.type_in(keys);
                    }
                },
                () = sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() && can_type => {
                    self.due = None;
                    let keys = self.manner.keys.release();
                    self.type_in(keys);
                }
                _ = resized.recv() => if let (true, Some(size)) = (self.writes, own_size()) {
                    self.attachment.resize(size);
                },
                () = ends.came(), if leaves_at_signals => return Ok(self.leave().await),
            }
        }
    }

    fn type_in(&mut self, keys: Vec<u8>) {
        if let Some(last) = keys.last() {
            self.last = Some(*last);
            self.attachment.type_in(keys, super::link::new_request_id());
        }
    }

    /// Detaches, after the pending input was delivered.
    async fn leave(&mut self) -> Left {
        self.attachment.leave();
        let rest = async { while let Ok(Some(_)) = self.attachment.next().await {} };
        let _ = tokio::time::timeout(LEAVE_MAX, rest).await;
        Left::Detached
    }

    fn show(&mut self, reported: Reported) -> Result<(), Failure> {
        match reported {
            Reported::Opened(opened) => {
                // Raw mode begins here, so that earlier errors appear on a terminal in its normal state.
                if self.raw.is_none() {
                    let raw = RawMode::enter();
                    self.raw =
                        raw.map_err(because("cannot take the terminal's keys as they are"))?;
                }
                // An untouched screen need not replace the contents of this terminal.
                if let Some(screen) = opened.screen.filter(|screen| !screen.untouched) {
                    self.show_bytes(&screen.repaint)?;
                }
                self.writes = opened.writer.is_some_and(|writer| writer.you);
                Ok(())
            }
            Reported::Events(events) => {
                for event in events.run_events.into_iter().flat_map(|e| e.events) {
                    if let Some(Payload::Output(output)) = event.payload {
                        self.show_bytes(&output.data)?;
                    }
                }
                Ok(())
            }
            Reported::Writer(writer) => {
                let becomes = writer.you && !self.writes;
                self.writes = writer.you;
                if let (true, Some(size)) = (becomes, own_size()) {
                    self.attachment.resize(size);
                }
                Ok(())
            }
            // Another client is the writer, or no process reads the input.
            Reported::Refused(_) => write(BELL),
            Reported::Taken(_) => Ok(()),
        }
    }

    fn show_bytes(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        if !self.shown && io::stdout().is_terminal() {
            write(REMEMBER_TERMINAL.as_bytes())?;
        }
        self.shown = true;
        write(bytes)
    }

    /// Restores this process's terminal.
    fn put_back(&mut self, continues: bool) {
        if self.shown && io::stdout().is_terminal() {
            // The terminal may be gone.
            let _ = write(put_terminal_back().as_bytes());
            if continues {
                let _ = write(LAST_LINE);
            }
        }
        self.raw = None;
    }
}

/// Gives a terminal without a size the size of this one at the start.
pub(crate) fn size_as_ours(spec: &mut pb::RunSpec) {
    if let (Some(pb::run_spec::Stdio::Terminal(terminal)), Some(size)) =
        (&mut spec.stdio, own_size())
    {
        terminal.rows.get_or_insert(size.rows);
        terminal.cols.get_or_insert(size.cols);
    }
}

fn own_size() -> Option<pb::TerminalSize> {
    own_terminal::size().map(|size| pb::TerminalSize {
        rows: size.rows.into(),
        cols: size.cols.into(),
    })
}

fn write(bytes: &[u8]) -> Result<(), Failure> {
    link::write(io::stdout().lock(), bytes)
}
