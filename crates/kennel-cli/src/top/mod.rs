//! `kennel top`: the runs of a node on a terminal, with their resource usage, updated every two seconds.
//!
//! The state is in [`board`], pure; drawing in [`draw`]; sampling in [`sample`]. The terminal is here, and is restored
//! however this ends.

mod board;
mod draw;
mod keys;
mod once;
mod sample;

use crate::{
    ends::Ends,
    failure::Failure,
    link::{Link, new_request_id},
    table::in_colour,
    values,
};
use board::{Action, Board};
use clap::Args;
use kennel_client as client;
use kennel_client::Connection;
use kennel_proto::pb;
use ratatui::{
    DefaultTerminal,
    crossterm::{
        event::{self, DisableMouseCapture, EnableMouseCapture, Event},
        execute,
    },
};
use sample::{Sample, Sampler};
use std::{
    io::{self, IsTerminal},
    thread,
    time::Duration,
};
use tokio::sync::mpsc;

#[derive(Debug, Args)]
pub struct TopArgs {
    /// Print one sample as a table and exit
    #[arg(short = 'b', long, visible_alias = "no-stream", alias = "batch")]
    pub(crate) once: bool,
    /// With --once: number of samples
    #[arg(
        short = 'n',
        long,
        alias = "count",
        value_name = "NUMBER",
        requires = "once",
        default_value_t = 1
    )]
    pub(crate) iterations: u32,
    /// Interval between samples, such as 2s; at least 500ms
    #[arg(short = 'd', long, aliases = ["interval", "delay"], value_name = "DURATION", value_parser = values::pace, default_value = "2s")]
    pub(crate) every: Duration,
}

/// Keys that wait to be handled.
const KEYS_QUEUED_MAX: usize = 64;
/// Longest time of one sample.
const ANSWER_MAX: Duration = Duration::from_secs(5);
/// Answers that wait to be shown.
const REPORTED_QUEUED_MAX: usize = 16;

/// Input beside keys.
enum BoardInput {
    Sample(Box<Sample>),
    /// The server could not be reached.
    Lost(String),
    /// Result of an action.
    Answer(String),
    /// The text of a page, below this heading.
    Page(String, Vec<String>),
}

pub(crate) async fn top(link: &Link, args: TopArgs) -> Result<(), Failure> {
    if args.once || !link.format.is_text() {
        return once::once(link, &args).await;
    }
    if !io::stdout().is_terminal() || !io::stdin().is_terminal() {
        let hint = "for a script: kennel top --once, kennel ps, kennel tree RUN";
        return Err(Failure::new("standard input and output must be a terminal").hint(hint));
    }
    let no_terminal =
        |cause: io::Error| Failure::new(format!("the terminal cannot be used: {cause}"));
    let ends = Ends::listen()?;
    // `try_init` also restores the terminal after a panic.
    let terminal = ratatui::try_init().map_err(no_terminal)?;
    let mouse = Mouse::capture();
    let watched = Box::pin(watch(link, args.every, ends, terminal)).await;
    drop(mouse);
    ratatui::restore();
    watched.map_err(no_terminal)
}

/// The mouse is captured for as long as this lives.
struct Mouse;

impl Mouse {
    fn capture() -> Self {
        // A terminal without a mouse ignores the sequence.
        let _ = execute!(io::stdout(), EnableMouseCapture);
        Self
    }
}

impl Drop for Mouse {
    fn drop(&mut self) {
        let _ = execute!(io::stdout(), DisableMouseCapture);
    }
}

async fn watch(
    link: &Link,
    every: Duration,
    mut ends: Ends,
    mut terminal: DefaultTerminal,
) -> io::Result<()> {
    let mut keys = typed()?;
    let (reported, mut tidings) = mpsc::channel(REPORTED_QUEUED_MAX);
    let mut board = Board::new(link.address.clone(), in_colour());
    let (wants, wanted) = mpsc::channel(1);
    let sampling = tokio::spawn(sample_for_ever(
        link.connection.clone(),
        every,
        reported.clone(),
        wanted,
    ));
    loop {
        terminal.draw(|frame| draw::board(frame, &mut board))?;
        let action = tokio::select! {
            () = ends.came() => break,
            typed = keys.recv() => match typed {
                Some(Event::Key(key)) => board.key(key),
                Some(Event::Mouse(mouse)) => board.mouse(mouse),
                // A resized terminal is drawn again.
                Some(_) => None,
                None => break,
            },
            Some(reported) = tidings.recv() => {
                // A new sample shows the result of the action.
                let looks = matches!(reported, BoardInput::Answer(_));
                board.update(reported);
                looks.then_some(Action::Refresh)
            }
        };
        match action {
            None => {}
            Some(Action::Quit) => break,
            Some(Action::Refresh) => drop(wants.try_send(())),
            Some(action) => {
                let (connection, reported) = (link.connection.clone(), reported.clone());
                // The task ends with its call; its result may have no reader.
                tokio::spawn(async move {
                    let answer = carry_out(&connection, action).await;
                    drop(reported.send(answer).await);
                });
            }
        }
    }
    sampling.abort();
    Ok(())
}

/// Returns keys and sizes, read by a thread that ends with this process.
fn typed() -> io::Result<mpsc::Receiver<Event>> {
    let (sender, keys) = mpsc::channel(KEYS_QUEUED_MAX);
    let read = move || {
        while let Ok(event) = event::read() {
            if sender.blocking_send(event).is_err() {
                return;
            }
        }
    };
    thread::Builder::new().name("keys".into()).spawn(read)?;
    Ok(keys)
}

async fn sample_for_ever(
    connection: Connection,
    every: Duration,
    reported: mpsc::Sender<BoardInput>,
    mut wanted: mpsc::Receiver<()>,
) {
    let mut sampler = Sampler::new(connection);
    loop {
        let heard = match tokio::time::timeout(ANSWER_MAX, sampler.sample()).await {
            Ok(Ok(sample)) => BoardInput::Sample(Box::new(sample)),
            Ok(Err(failure)) => BoardInput::Lost(failure.to_string()),
            // The keeper's socket accepts connections even while no server runs.
            Err(_) => BoardInput::Lost(format!("no answer within {ANSWER_MAX:?}")),
        };
        if reported.send(heard).await.is_err() {
            return;
        }
        tokio::select! {
            () = tokio::time::sleep(every) => {}
            _ = wanted.recv() => {}
        }
    }
}

async fn carry_out(connection: &Connection, action: Action) -> BoardInput {
    let mut processes = connection.processes();
    let done = match action {
        Action::Quit | Action::Refresh => return BoardInput::Answer(String::new()),
        Action::Tree(run) => {
            return page(
                sample::tree(connection, &run).await,
                format!("tree of {run}"),
            );
        }
        Action::Logs(run) => {
            let heading = format!("last lines of {run}");
            return page(sample::logs(connection, &run).await, heading);
        }
        Action::Abort(run) => {
            let request = pb::AbortRequest {
                run_id: run.clone(),
                request_id: new_request_id(),
                grace: None,
                wait: pb::AbortWait::None.into(),
                if_unknown: pb::AbortUnknown::Refuse.into(),
            };
            let done = processes.abort(request).await;
            done.map(|_| format!("{run} is being ended"))
        }
        Action::Pause(run) => {
            let request = pb::PauseRequest {
                run_id: run.clone(),
            };
            let done = processes.pause(request).await;
            done.map(|_| format!("{run} is paused"))
        }
        Action::Resume(run) => {
            let request = pb::ResumeRequest {
                run_id: run.clone(),
            };
            let done = processes.resume(request).await;
            done.map(|_| format!("{run} continues"))
        }
    };
    BoardInput::Answer(done.unwrap_or_else(|status| {
        let failure = client::Failure::from(status);
        format!("refused: {failure}")
    }))
}

fn page(read: Result<Vec<String>, client::Failure>, heading: String) -> BoardInput {
    match read {
        Ok(lines) => BoardInput::Page(heading, lines),
        Err(failure) => BoardInput::Answer(format!("refused: {failure}")),
    }
}
