//! Requests for single processes of a run: lists of its tree, and signals to each.
//!
//! A tree may have thousands of processes, so this is done in slices, between which the keeper serves other runs.

use super::{CommandStage, Run};
use crate::{
    client::{SignalOutcome, SignalTarget, SignalledProcess, SignalledProcesses},
    keeper::SLICE_PROCESSES,
    values::{Fact, InterruptWay},
    wire::{Answer, MEMBERS_LISTED_MAX, WireListing, WireMember},
};
use kennel_lifecycle::{Signal, Timestamp};
use kennel_linux::{
    clock,
    procfs::Stat,
    targets::Holds,
    tree::{ListMembers, SignalEach, Tree},
};
use std::collections::VecDeque;

/// Most requests that wait for the one in progress. More are refused.
const WAITING_MAX: usize = 1024;

/// Requests for the processes of one run, of which one is in progress.
#[derive(Default)]
pub(super) struct MemberRequests {
    waiting: VecDeque<MemberRequest>,
    current: Option<Current>,
}

struct MemberRequest {
    seq: u64,
    /// Time of the request.
    now: u64,
    what: Wanted,
}

enum Wanted {
    List,
    Signal(Signal, SignalTarget, Option<Box<str>>),
    Interrupt(Option<Box<str>>),
    WhetherSent(Box<str>),
}

enum Current {
    /// One list for all who had asked when it began.
    List(Vec<u64>, ListMembers),
    Signal(Box<SignalSequence>),
}

/// A signal that is sent to one process after the other.
pub(super) struct SignalSequence {
    /// Absent: its server is gone.
    pub(super) seq: Option<u64>,
    pub(super) now: u64,
    pub(super) at: Timestamp,
    pub(super) request_id: Option<Box<str>>,
    pub(super) signal: Signal,
    /// How this interrupts, where it is an Interrupt.
    pub(super) way: Option<InterruptWay>,
    pub(super) each: SignalEach,
}

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
        let what = Wanted::Signal(signal, target, request_id.map(Box::from));
        self.want(seq, what, now);
    }

    /// Sends SIGINT to the leader's group, or what interrupts on a terminal, unless a signal was sent under this
    /// request id.
    pub(in crate::keeper) fn interrupt(&mut self, seq: u64, request_id: Option<&str>, now: u64) {
        self.want(seq, Wanted::Interrupt(request_id.map(Box::from)), now);
    }

    /// Answers whether a signal was sent under this id.
    pub(in crate::keeper) fn answer_whether_sent(&mut self, seq: u64, id: &str, now: u64) {
        self.want(seq, Wanted::WhetherSent(id.into()), now);
    }

    /// Answers with the processes of the tree.
    pub(in crate::keeper) fn list(&mut self, seq: u64, now: u64) {
        self.want(seq, Wanted::List, now);
    }

    fn want(&mut self, seq: u64, what: Wanted, now: u64) {
        let requests = &mut self.member_requests;
        if requests.waiting.len() >= WAITING_MAX {
            let full = "free space for requests to this run's processes".to_owned();
            return self.answer(seq, Answer::Exhausted(full));
        }
        requests.waiting.push_back(MemberRequest { seq, now, what });
        // A small tree is handled within this call.
        if requests.current.is_none() {
            self.serve_member_requests();
        }
    }

    /// Whether work on its processes is in progress.
    pub(in crate::keeper) fn has_tree_work(&self) -> bool {
        let requests = &self.member_requests;
        // Deferred exits of leader and tree come before further requests.
        let begins = self.deferred.is_empty() && !requests.waiting.is_empty();
        let is_asked = requests.current.is_some() || begins;
        let is_signalled = self.rung.is_some() || self.killing.is_some();
        is_asked || self.is_passing() || is_signalled || self.census.is_some()
    }

    /// Reads, stops or signals some of the processes.
    pub(in crate::keeper) fn do_tree_work(&mut self, now: u64) {
        if self.is_passing() {
            self.continue_pausing(now);
        }
        self.continue_rung(now);
        self.continue_killing(now);
        self.serve_member_requests();
        self.hear_deferred(now);
    }

    /// Whether a pause looks at the processes.
    fn is_passing(&self) -> bool {
        self.ladder.is_none() && self.tree.is_some() && self.pause.is_passing()
    }

    fn serve_member_requests(&mut self) {
        for _ in 0..SLICE_PROCESSES {
            let is_idle = self.member_requests.current.is_none();
            if is_idle && !(self.deferred.is_empty() && self.begin_member_request()) {
                return;
            }
            self.step_member_request();
        }
    }

    fn step_member_request(&mut self) {
        let Some(current) = &mut self.member_requests.current else {
            return;
        };
        let is_done = self.tree.as_ref().is_none_or(|tree| match current {
            Current::List(_, list) => list.step(tree),
            Current::Signal(signalling) => signalling.each.step(tree),
        });
        if is_done {
            self.end_member_request();
        }
    }

    /// Whether signals are sent whose report comes before what they cause.
    pub(super) fn is_signalling(&self) -> bool {
        let current = &self.member_requests.current;
        self.rung.is_some() || matches!(current, Some(Current::Signal(_)))
    }

    /// Sends signals in progress to all who have not had them.
    pub(super) fn finish_signals(&mut self, now: u64) {
        while self.tree.is_some() && self.is_signalling() {
            self.continue_rung(now);
            if let Some(Current::Signal(_)) = self.member_requests.current {
                self.step_member_request();
            }
        }
    }

    /// Answers all requests: the tree is gone.
    pub(super) fn end_member_requests(&mut self) {
        self.end_member_request();
        while self.begin_member_request() {
            self.end_member_request();
        }
    }

    /// Drops what has no effect yet: its server is gone.
    pub(super) fn forget_member_requests(&mut self) {
        self.member_requests.waiting.clear();
        match &mut self.member_requests.current {
            Some(Current::Signal(signalling)) => signalling.seq = None,
            Some(Current::List(..)) => self.member_requests.current = None,
            None => {}
        }
    }

    /// Begins the next request; `false` where none is in progress then.
    fn begin_member_request(&mut self) -> bool {
        while let Some(request) = self.member_requests.waiting.pop_front() {
            self.member_requests.current = self.begun(request);
            if self.member_requests.current.is_some() {
                return true;
            }
        }
        false
    }

    /// Begins a request, or answers it.
    fn begun(&mut self, MemberRequest { seq, now, what }: MemberRequest) -> Option<Current> {
        match what {
            Wanted::List => {
                let list = self.tree.as_ref().filter(|_| !self.ended);
                let list = list.map(|tree| ListMembers::new(tree, MEMBERS_LISTED_MAX));
                let mut seqs = vec![seq];
                self.member_requests.waiting.retain(|other| {
                    let same = matches!(other.what, Wanted::List);
                    seqs.extend(same.then_some(other.seq));
                    !same
                });
                let Some(list) = list else {
                    self.answer_list(seqs, Vec::new(), 0);
                    return None;
                };
                Some(Current::List(seqs, list))
            }
            Wanted::WhetherSent(id) => {
                if !self.sent_before(seq, Some(&id), now) {
                    self.answer(seq, Answer::NotSent {});
                }
                None
            }
            Wanted::Interrupt(id) => {
                if self.sent_before(seq, id.as_deref(), now) {
                    return None;
                }
                let signalling = self.begin_interrupt(seq, id, now)?;
                Some(Current::Signal(Box::new(signalling)))
            }
            Wanted::Signal(signal, target, id) => {
                if self.sent_before(seq, id.as_deref(), now) {
                    return None;
                }
                let at = clock::wall();
                match self
                    .live_tree()
                    .map(|tree| SignalEach::new(tree, signal, target))
                {
                    Some(Ok(each)) => Some(Current::Signal(Box::new(SignalSequence {
                        seq: Some(seq),
                        now,
                        at,
                        request_id: id,
                        signal,
                        way: None,
                        each,
                    }))),
                    refused => {
                        self.answer_signalled(Some(seq), Vec::new(), refused.is_some());
                        None
                    }
                }
            }
        }
    }

    /// Returns the tree while its command may be signalled.
    pub(super) fn live_tree(&self) -> Option<&Tree> {
        let live = matches!(self.stage, CommandStage::Released | CommandStage::Ran) && !self.ended;
        self.tree.as_ref().filter(|_| live)
    }

    /// Answers the request in progress with what was done.
    fn end_member_request(&mut self) {
        match self.member_requests.current.take() {
            Some(Current::List(seqs, list)) => {
                // An ended run has no processes.
                if self.ended {
                    return self.answer_list(seqs, Vec::new(), 0);
                }
                self.answer_list(seqs, list.listed, list.unlisted);
            }
            Some(Current::Signal(signalling)) => match signalling.way {
                Some(way) => self.interrupted(&signalling, way),
                None => self.signalled(*signalling),
            },
            None => {}
        }
    }

    fn signalled(&mut self, signalling: SignalSequence) {
        let signalled = signalling.each.signalled;
        let reached = |process: &&SignalledProcess| process.result == SignalOutcome::Delivered;
        let targets = u32::try_from(signalled.iter().filter(reached).count()).ok();
        let errno = signalled.iter().find_map(|process| match process.result {
            SignalOutcome::Failed(errno) => Some(errno),
            SignalOutcome::Delivered | SignalOutcome::Gone => None,
        });
        let sent = Fact::SignalSent {
            signal: signalling.signal,
            targets,
            errno,
        };
        self.report_at(signalling.at, sent);
        // The request id is remembered even without space for the answer: the signal was sent.
        if targets != Some(0) {
            let id = signalling.request_id.as_deref();
            self.requests.remember(id, signalling.now);
        }
        self.answer_signalled(signalling.seq, signalled, false);
    }

    fn answer_signalled(
        &mut self,
        seq: Option<u64>,
        mut signalled: Vec<SignalledProcess>,
        no_terminal: bool,
    ) {
        let unlisted = signalled.len().saturating_sub(MEMBERS_LISTED_MAX);
        signalled.truncate(MEMBERS_LISTED_MAX);
        let results = SignalledProcesses {
            signalled,
            unlisted: u32::try_from(unlisted).unwrap_or(u32::MAX),
            no_terminal,
        };
        if let Some(seq) = seq {
            self.answer(seq, Answer::Signalled(results));
        }
    }

    fn answer_list(&mut self, seqs: Vec<u64>, members: Vec<(i32, Stat, Holds)>, unlisted: usize) {
        let members = members.into_iter().map(|(pid, stat, holds)| WireMember {
            pid,
            start_ticks: stat.start_ticks,
            holds,
        });
        let listing = WireListing {
            members: members.collect(),
            unlisted: u32::try_from(unlisted).unwrap_or(u32::MAX),
        };
        for seq in seqs {
            self.answer(seq, Answer::Listed(listing.clone()));
        }
    }
}
