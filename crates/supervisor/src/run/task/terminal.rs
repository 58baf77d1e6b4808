//! Size of a run's terminal, and its report to readers.

use super::RunTask;
use crate::{
    base::calls::{CallError, ResizeCall},
    run::task::done::{Done, ResizeDone, ResizeReply},
};
use kennel_keeper::client::Resized;
use kennel_lifecycle::{Entry, Phase, Refusal, TerminalSize};
use kennel_linux::crash_point;

impl RunTask {
    /// Returns the size, while a process is on the terminal.
    pub(super) fn terminal_now(&self) -> Option<TerminalSize> {
        let over = matches!(
            self.machine.phase(),
            Phase::Closing(_) | Phase::Closed(_) | Phase::Forgotten(_)
        );
        self.terminal.filter(|_| !over)
    }

    /// Reports the size at the beginning of an attempt, or a size that was set by a server that died before its report.
    pub(super) fn note_terminal_size(&mut self) {
        if let Some(size) = self.terminal {
            self.note(&Entry::TerminalResized(size));
        }
    }

    /// Sets the size.
    pub(super) fn resize(&mut self, call: ResizeCall, reply: ResizeReply) {
        let attempt = self.new.attempt;
        let error = if call.expected_attempt.is_some_and(|meant| meant != attempt) {
            let run = self.run;
            CallError::OtherAttempt { run, attempt }
        } else if self.new.policy().kind != kennel_lifecycle::RunKind::Terminal {
            CallError::NotOnTerminal { run: self.run }
        } else if self.terminal_now().is_none() || self.times().started.is_none() {
            self.refuse_call(Refusal::NotRunningYet)
        } else {
            return self.op(move |shared, run, done| async move {
                let result = shared.kernel.resize(run, attempt, call.size).await;
                let resized = ResizeDone {
                    call,
                    attempt,
                    result,
                    reply,
                };
                let _ = done.send(Done::Resized(Box::new(resized))).await;
            });
        };
        // A caller that is gone needs no answer.
        drop(reply.send(Err(error)));
    }

    pub(super) fn resized(&mut self, done: ResizeDone) {
        crash_point!("terminal.resized");
        let run = self.run;
        let answer = match done.result {
            Ok(Resized::Done) => {
                if done.attempt == self.new.attempt && self.terminal != Some(done.call.size) {
                    self.terminal = Some(done.call.size);
                    self.note_terminal_size();
                    self.publish();
                }
                Ok(())
            }
            Ok(Resized::NoTerminal) => Err(CallError::NotOnTerminal { run }),
            Ok(Resized::OtherAttempt) => Err(CallError::OtherAttempt {
                run,
                attempt: self.new.attempt,
            }),
            Ok(Resized::Failed(errno)) => {
                let what = format!("the terminal could not be resized (errno {errno})");
                Err(CallError::Internal(what))
            }
            Ok(Resized::Gone) => Err(self.refuse_call(Refusal::Stopping)),
            Err(error) => Err(error.into()),
        };
        drop(done.reply.send(answer));
    }
}
