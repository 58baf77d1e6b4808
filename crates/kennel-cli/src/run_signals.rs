//! Signals that `kennel run` receives become requests to its run, as a child in the shell would receive them.

use super::link::refused;
use crate::{
    exit::{Exit, OWN_FAILURE, SIGKILL},
    failure::{Failure, because},
    link::new_request_id,
};
use kennel_client::{self as client, Connection};
use kennel_linux::{own_signals, signal_set};
use kennel_proto::pb;
use std::{future::pending, time::Duration};
use tokio::{
    signal::unix::{self, SignalKind},
    sync::watch,
    time::timeout,
};
use tokio_util::task::AbortOnDropHandle;

/// Longest wait for the answer to a request: the caller wants its terminal back.
const ANSWER_MAX: Duration = Duration::from_secs(10);

/// Forwards this process's signals to the run for as long as this value lives.
pub(super) struct Forwarder {
    _task: AbortOnDropHandle<()>,
    ended_by: watch::Receiver<Option<u8>>,
}

impl Forwarder {
    /// Starts forwarding. `with_suspend`: Ctrl-Z pauses the run and stops this process.
    pub(super) fn start(
        connection: &Connection,
        run_id: &str,
        with_suspend: bool,
    ) -> Result<Self, Failure> {
        let signals = Signals {
            interrupt: Source::listen(SignalKind::interrupt())?,
            terminate: Source::listen(SignalKind::terminate())?,
            hangup: Source::listen(SignalKind::hangup())?,
            quit: Source::listen(SignalKind::quit())?,
            suspend: if with_suspend {
                Source::listen(SignalKind::from_raw(SIGTSTP))?
            } else {
                Source(None)
            },
        };
        let (note, ended_by) = watch::channel(None);
        let (connection, run_id) = (connection.clone(), run_id.to_owned());
        let task = tokio::spawn(forward(connection, run_id, signals, note));
        Ok(Self {
            _task: AbortOnDropHandle::new(task),
            ended_by,
        })
    }

    /// Returns the signal with which this process was asked to end the run.
    pub(super) fn ended_by(&self) -> Option<u8> {
        *self.ended_by.borrow()
    }

    /// Returns the exit of this process for that of the command: the signal that it was sent itself, where the run was
    /// ended for that by the signals of its stop policy.
    pub(super) fn own(&self, exit: Exit) -> Exit {
        match (exit, self.ended_by()) {
            (Exit::Signal(signal), Some(own)) if signal != SIGKILL => Exit::Signal(own),
            _ => exit,
        }
    }
}

const SIGHUP: u8 = 1;
const SIGINT: u8 = 2;
const SIGQUIT: u8 = 3;
const SIGTERM: u8 = 15;
const SIGTSTP: i32 = 20;

struct Signals {
    interrupt: Source,
    terminate: Source,
    hangup: Source,
    quit: Source,
    suspend: Source,
}

enum Caught {
    /// End the run, or interrupt it first.
    Stop(u8),
    Suspend,
}

impl Signals {
    async fn next(&mut self) -> Caught {
        tokio::select! {
            () = self.interrupt.caught() => Caught::Stop(SIGINT),
            () = self.terminate.caught() => Caught::Stop(SIGTERM),
            () = self.hangup.caught() => Caught::Stop(SIGHUP),
            () = self.quit.caught() => Caught::Stop(SIGQUIT),
            () = self.suspend.caught() => Caught::Suspend,
        }
    }
}

/// One signal; absent: this process was started with it ignored (nohup(1)), and continues to ignore it.
struct Source(Option<unix::Signal>);

impl Source {
    fn listen(kind: SignalKind) -> Result<Self, Failure> {
        if signal_set::is_ignored(kind.as_raw_value()) {
            return Ok(Self(None));
        }
        let listens = unix::signal(kind).map_err(because("cannot listen for signals"));
        let listens = listens.map_err(|failure| failure.code(OWN_FAILURE))?;
        Ok(Self(Some(listens)))
    }

    async fn caught(&mut self) {
        match &mut self.0 {
            Some(signal) => {
                signal.recv().await;
            }
            None => pending().await,
        }
    }
}

/// Forwards signals: the first Ctrl-C interrupts; every other ends the run, and any later one ends it at once.
async fn forward(
    connection: Connection,
    run_id: String,
    mut signals: Signals,
    note: watch::Sender<Option<u8>>,
) {
    let (mut interrupted, mut ended) = (false, false);
    loop {
        let signal = match signals.next().await {
            Caught::Suspend => {
                suspend(&connection, &run_id, &mut signals.suspend).await;
                continue;
            }
            Caught::Stop(signal) => signal,
        };
        if signal == SIGINT && !interrupted && !ended {
            interrupted = true;
            let request = pb::InterruptRequest {
                run_id: run_id.clone(),
                request_id: new_request_id(),
            };
            match connection.call(request).await {
                Ok(_) => continue,
                // Without a process to interrupt, the run must not begin.
                Err(refusal) if has_not_begun(&refusal) => {}
                Err(refusal) => {
                    // A paused run, or one that is ending: the next Ctrl-C ends it.
                    refused(refusal).report();
                    continue;
                }
            }
        }
        note.send_modify(|first| *first = first.or(Some(signal)));
        end(&connection, &run_id, ended).await;
        ended = true;
    }
}

fn has_not_begun(refusal: &client::Failure) -> bool {
    let state = refusal.metadata.get("state").map(String::as_str);
    // No process exists between two attempts either.
    let no_process = matches!(state, Some("STARTING" | "BACKOFF"));
    refusal.is("RUN_NOT_FOUND") || (refusal.is("INVALID_STATE") && no_process)
}

/// Requests the run's end; `now` skips the grace.
pub(super) async fn end(connection: &Connection, run_id: &str, now: bool) {
    let request = pb::AbortRequest {
        run_id: run_id.to_owned(),
        request_id: new_request_id(),
        grace: now.then(Default::default),
        wait: pb::AbortWait::None.into(),
        // The spawn may still be in progress.
        if_unknown: pb::AbortUnknown::Fence.into(),
    };
    match timeout(ANSWER_MAX, connection.call(request)).await {
        Ok(Ok(_)) => {}
        // The run continues, and so does this process: the signal may be sent again.
        Ok(Err(refusal)) => {
            refused(refusal).report();
        }
        Err(_) => {
            no_answer(&format!("kennel abort {run_id}")).report();
        }
    }
}

/// Pauses the run, stops this process, and resumes the run when this process is continued.
async fn suspend(connection: &Connection, run_id: &str, keys: &mut Source) {
    let run_id = run_id.to_owned();
    let request = pb::PauseRequest {
        run_id: run_id.clone(),
    };
    let is_paused = match timeout(ANSWER_MAX, connection.call(request)).await {
        Ok(Ok(_)) => true,
        // There is no run to pause, and this process is about to exit.
        Ok(Err(refusal)) if refusal.is("RUN_ENDED") => return,
        Ok(Err(refusal)) => {
            refused(refusal).report();
            false
        }
        Err(_) => {
            no_answer(&format!("kennel pause {run_id}")).report();
            false
        }
    };
    if let Err(cause) = own_signals::stop_self() {
        Failure::new(format!("cannot stop this process: {cause}")).report();
    }
    // Keys typed while this process was being stopped referred to this stop.
    while timeout(Duration::ZERO, keys.caught()).await.is_ok() {}
    let hint = format!("kennel resume {run_id}");
    if is_paused
        && let Err(refusal) = connection.call(pb::ResumeRequest { run_id }).await
        // The run was ended or resumed meanwhile.
        && !refusal.is("RUN_ENDED")
        && !refusal.is("INVALID_STATE")
    {
        refused(refusal).hint(hint).report();
    }
}

fn no_answer(hint: &str) -> Failure {
    let seconds = ANSWER_MAX.as_secs();
    Failure::new(format!("the server did not answer within {seconds} s")).hint(hint)
}
