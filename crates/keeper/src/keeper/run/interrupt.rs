//! One polite interrupt: the key of a terminal, or SIGINT.

use super::{Outputs, Run, members::SignalSequence};
use crate::{
    client::{SignalOutcome, SignalTarget},
    values::{Fact, InterruptWay, SignalResult},
    wire::Answer,
};
use kennel_lifecycle::{Signal, Timestamp};
use kennel_linux::{
    clock,
    terminal::{Terminal, TypedInterrupt},
    tree::{NoTerminal, SignalEach, Tree},
};

/// Result of an attempt to interrupt.
enum Begun {
    Done(SignalOutcome, InterruptWay),
    /// The kernel addresses no such group: its processes are signalled one by one.
    Each(Box<SignalEach>, InterruptWay),
}

impl Run {
    /// Interrupts, and answers; returns what is to be signalled one by one instead.
    pub(super) fn begin_interrupt(
        &mut self,
        seq: u64,
        request_id: Option<Box<str>>,
        now: u64,
    ) -> Option<SignalSequence> {
        let at = clock::wall();
        let Some(tree) = self.live_tree() else {
            self.answer_signal(seq, SignalResult::Gone);
            return None;
        };
        let begun = match &self.outputs {
            Some(Outputs::Terminal(terminal)) => on_terminal(terminal, tree),
            Some(Outputs::Pipes(..)) | None => group(tree),
        };
        match begun {
            Begun::Done(sent, way) => {
                self.report_interrupt(at, sent, way);
                self.answer_interrupt((Some(seq), request_id.as_deref(), now), sent, way);
                None
            }
            Begun::Each(each, way) => Some(SignalSequence {
                seq: Some(seq),
                now,
                at,
                request_id,
                signal: Signal::INT,
                way: Some(way),
                each: *each,
            }),
        }
    }

    /// Answers an interrupt whose processes were signalled one by one.
    pub(super) fn interrupted(&mut self, signalling: &SignalSequence, way: InterruptWay) {
        let results = || {
            signalling
                .each
                .signalled
                .iter()
                .map(|process| process.result)
        };
        let failed = results().find(|result| matches!(result, SignalOutcome::Failed(_)));
        let sent = if results().any(|result| result == SignalOutcome::Delivered) {
            SignalOutcome::Delivered
        } else {
            failed.unwrap_or(SignalOutcome::Gone)
        };
        self.report_interrupt(signalling.at, sent, way);
        let id = signalling.request_id.as_deref();
        self.answer_interrupt((signalling.seq, id, signalling.now), sent, way);
    }

    fn report_interrupt(&mut self, at: Timestamp, sent: SignalOutcome, way: InterruptWay) {
        // A key press that the command reads is not a signal.
        if way == InterruptWay::Typed {
            return;
        }
        let errno = match sent {
            SignalOutcome::Delivered => None,
            SignalOutcome::Gone => Some(libc::ESRCH),
            SignalOutcome::Failed(errno) => Some(errno),
        };
        let signal_sent = Fact::SignalSent {
            signal: Signal::INT,
            targets: None,
            errno,
        };
        self.report_at(at, signal_sent);
    }

    fn answer_interrupt(
        &mut self,
        (seq, request_id, now): (Option<u64>, Option<&str>, u64),
        sent: SignalOutcome,
        way: InterruptWay,
    ) {
        if sent == SignalOutcome::Delivered {
            self.requests.remember(request_id, now);
        }
        let answer = match sent {
            SignalOutcome::Delivered => Answer::Interrupted(way),
            SignalOutcome::Gone => Answer::Signal(SignalResult::Gone),
            SignalOutcome::Failed(errno) => Answer::Signal(SignalResult::Failed(errno)),
        };
        if let Some(seq) = seq {
            self.answer(seq, answer);
        }
    }
}

fn group(tree: &Tree) -> Begun {
    let way = InterruptWay::Group;
    match tree.leader.signal_group(Signal::INT) {
        // Before Linux 6.9 pidfd_send_signal(2) cannot address a process group.
        SignalOutcome::Failed(libc::EINVAL) => each(tree, SignalTarget::Group, way),
        sent => Begun::Done(sent, way),
    }
}

fn each(tree: &Tree, target: SignalTarget, way: InterruptWay) -> Begun {
    match SignalEach::new(tree, Signal::INT, target) {
        Ok(each) => Begun::Each(Box::new(each), way),
        // The leader may have given up its terminal.
        Err(NoTerminal) => group(tree),
    }
}

/// Types the key, where the terminal makes a signal of it and has space for it, or the command reads its keys itself;
/// else sends the signal, to the processes that the key would reach.
fn on_terminal(terminal: &Terminal, tree: &Tree) -> Begun {
    let (sent, way) = match terminal.type_interrupt() {
        TypedInterrupt::ForTerminal => (SignalOutcome::Delivered, InterruptWay::Key),
        TypedInterrupt::ForCommand => (SignalOutcome::Delivered, InterruptWay::Typed),
        TypedInterrupt::NoRoom(errno) => (SignalOutcome::Failed(errno), InterruptWay::Typed),
        TypedInterrupt::NoKey => {
            let target = SignalTarget::TerminalForeground;
            return each(tree, target, InterruptWay::Foreground);
        }
    };
    Begun::Done(sent, way)
}
