//! One polite interrupt: the key of a terminal, or SIGINT.

use super::{Outputs, Run, Stage};
use crate::{
    client::{SignalOutcome, SignalTarget},
    values::{Fact, InterruptWay, SignalResult},
    wire::Answer,
};
use kennel_lifecycle::Signal;
use kennel_linux::{
    clock,
    terminal::{Terminal, TypedInterrupt},
    tree::Tree,
};

impl Run {
    /// Sends SIGINT to the leader's group, or what interrupts on a terminal, unless a signal was sent under this
    /// request id.
    pub(in crate::keeper) fn interrupt(&mut self, seq: u64, request_id: Option<&str>, now: u64) {
        if self.sent_before(seq, request_id, now) {
            return;
        }
        let live = matches!(self.stage, Stage::Released | Stage::Ran) && !self.ended;
        let Some(tree) = self.tree.as_ref().filter(|_| live) else {
            self.answer_signal(seq, SignalResult::Gone);
            return;
        };
        let at = clock::wall();
        let (sent, way) = match &self.outputs {
            Some(Outputs::Terminal(terminal)) => on_terminal(terminal, tree),
            Some(Outputs::Pipes(..)) | None => group(tree),
        };
        let errno = match sent {
            SignalOutcome::Delivered => None,
            SignalOutcome::Gone => Some(libc::ESRCH),
            SignalOutcome::Failed(errno) => Some(errno),
        };
        // A key that the command reads is no signal.
        if way != InterruptWay::Typed {
            let signal_sent = Fact::SignalSent {
                signal: Signal::INT,
                targets: None,
                errno,
            };
            self.report_at(at, signal_sent);
        }
        if errno.is_none() {
            self.requests.remember(request_id, now);
        }
        let answer = match sent {
            SignalOutcome::Delivered => Answer::Interrupted(way),
            SignalOutcome::Gone => Answer::Signal(SignalResult::Gone),
            SignalOutcome::Failed(errno) => Answer::Signal(SignalResult::Failed(errno)),
        };
        self.answer(seq, answer);
    }
}

fn group(tree: &Tree) -> (SignalOutcome, InterruptWay) {
    (tree.signal_group(Signal::INT), InterruptWay::Group)
}

/// Types the key, where the terminal makes a signal of it and has space for it, or the command reads its keys itself;
/// else sends the signal, to the processes that the key would reach.
fn on_terminal(terminal: &Terminal, tree: &Tree) -> (SignalOutcome, InterruptWay) {
    match terminal.type_interrupt() {
        TypedInterrupt::ForTerminal => return (SignalOutcome::Delivered, InterruptWay::Key),
        TypedInterrupt::ForCommand => return (SignalOutcome::Delivered, InterruptWay::Typed),
        TypedInterrupt::NoRoom(errno) => {
            return (SignalOutcome::Failed(errno), InterruptWay::Typed);
        }
        TypedInterrupt::NoKey => {}
    }
    // The leader may have given its terminal up.
    let Ok(signalled) = tree.signal_each(Signal::INT, SignalTarget::TerminalForeground) else {
        return group(tree);
    };
    let results = || signalled.iter().map(|process| &process.result);
    let failed = results().find_map(|result| match result {
        SignalOutcome::Failed(errno) => Some(*errno),
        SignalOutcome::Delivered | SignalOutcome::Gone => None,
    });
    let sent = match failed {
        _ if results().any(|result| *result == SignalOutcome::Delivered) => {
            SignalOutcome::Delivered
        }
        Some(errno) => SignalOutcome::Failed(errno),
        None => SignalOutcome::Gone,
    };
    (sent, InterruptWay::Foreground)
}
