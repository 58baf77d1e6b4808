//! Single processes of a run: signals to some of them, and lists of them.

use super::{Run, RunMessage, Stage};
use crate::{
    client::{SignalOutcome, SignalTarget, SignalledProcess, SignalledProcesses},
    values::Fact,
    wire::{self, Answer, MEMBERS_LISTED_MAX, WireListing, WireMember},
};
use kennel_lifecycle::Signal;
use kennel_linux::{clock, memfd};
use std::rc::Rc;

impl Run {
    /// Sends a signal to the processes that `target` names, unless one was sent under this request id.
    pub(in crate::keeper) fn signal(
        &mut self,
        seq: u64,
        signal: Signal,
        target: SignalTarget,
        request_id: Option<&str>,
        now: u64,
    ) {
        if self.sent_before(seq, request_id, now) {
            return;
        }
        let live = matches!(self.stage, Stage::Released | Stage::Ran) && !self.ended;
        let tree = self.tree.as_ref().filter(|_| live);
        let at = clock::wall();
        let signalled = tree.map_or(Ok(Vec::new()), |tree| tree.signal_each(signal, target));
        let no_terminal = signalled.is_err();
        let mut signalled = signalled.unwrap_or_default();
        let reached = |process: &&SignalledProcess| process.result == SignalOutcome::Delivered;
        let targets = u32::try_from(signalled.iter().filter(reached).count()).ok();
        let errno = signalled.iter().find_map(|process| match process.result {
            SignalOutcome::Failed(errno) => Some(errno),
            SignalOutcome::Delivered | SignalOutcome::Gone => None,
        });
        if live && !no_terminal {
            let sent = Fact::SignalSent {
                signal,
                targets,
                errno,
            };
            self.report_at(at, sent);
        }
        // Remembered also where there is no space for the answer: the signal was sent.
        if targets != Some(0) {
            self.requests.remember(request_id, now);
        }
        let unlisted = signalled.len().saturating_sub(MEMBERS_LISTED_MAX);
        signalled.truncate(MEMBERS_LISTED_MAX);
        let results = SignalledProcesses {
            signalled,
            unlisted: u32::try_from(unlisted).unwrap_or(u32::MAX),
            no_terminal,
        };
        self.answer_with_file(seq, Answer::Signalled, &results);
    }

    /// Answers with the processes of the tree.
    pub(in crate::keeper) fn list(&mut self, seq: u64) {
        let tree = self.tree.as_ref().filter(|_| !self.ended);
        let (members, unlisted) =
            tree.map_or_else(Default::default, |t| t.list(MEMBERS_LISTED_MAX));
        let members = members.into_iter().map(|(pid, stat, holds)| WireMember {
            pid,
            start_ticks: stat.start_ticks,
            holds,
        });
        let listing = WireListing {
            members: members.collect(),
            unlisted: u32::try_from(unlisted).unwrap_or(u32::MAX),
        };
        self.answer_with_file(seq, Answer::Listed, &listing);
    }

    /// Answers with a file, since lists may be longer than a message.
    fn answer_with_file(&mut self, seq: u64, answer: Answer, list: &impl serde::Serialize) {
        let file = wire::encode(list).and_then(|bytes| memfd::sealed("kennel-list", &bytes));
        self.outgoing.push(match file {
            Ok(file) => RunMessage::Answer(seq, answer, vec![Rc::new(file)]),
            Err(error) => RunMessage::Answer(seq, Answer::Exhausted(error.to_string()), Vec::new()),
        });
    }
}
