//! Reports of the command about itself, as received by the keeper. The keeper repeats them to each server until the run
//! is acknowledged: what an earlier server has written is no news.

use super::RunTask;
use crate::audit_log::{LoggedRequest, TrailEntry, TrailRecord};
use kennel_keeper::client::Notified;
use kennel_lifecycle::{
    Activity, AnsweredBy, AnsweringWrite, Asked, Entry, NOTIFIED, StatusText, Timestamp,
};

/// Name of refused notices in the audit log.
const CALL: &str = "sd_notify";

impl RunTask {
    pub(super) fn notified(&mut self, at: Timestamp, notified: Notified) {
        let attempt = self.new.attempt;
        let runs = self.machine.record().started && self.machine.record().leader.is_none();
        let is_news = match notified {
            Notified::Ready => runs && self.become_ready(attempt, NOTIFIED),
            Notified::Status(status) => self.note_status(status),
            // The keeper repeats its report to each server: a client or a rule may have set newer activity since.
            Notified::Activity(_) if self.facets.shown().has_activity_after(attempt, at) => false,
            Notified::Activity(activity) => {
                let status = self.facets.shown().status_of(attempt);
                let text = status.map(|status| status.text.clone()).unwrap_or_default();
                let question = self.facets.shown().asks_now(attempt, activity, text);
                self.does(activity, NOTIFIED, question)
            }
            Notified::Extends(time) => self.extends(at, time),
            Notified::Refused { pid, uid, ended } => {
                self.refuse_notice(at, pid, uid, ended);
                return;
            }
        };
        if is_news {
            self.facets_changed();
        }
    }

    fn note_status(&mut self, status: StatusText) -> bool {
        let attempt = self.new.attempt;
        let is_news = self.facets.shown().status_of(attempt) != Some(&status);
        if is_news {
            self.note(&Entry::StatusChanged { attempt, status });
        }
        is_news
    }

    /// The attempt does this from here on, and asks this. Returns whether it is news.
    pub(super) fn does(&mut self, activity: Activity, by: &str, question: Option<Asked>) -> bool {
        let attempt = self.new.attempt;
        let facets = self.facets.shown();
        let is_new = |asked: &Asked| {
            let line = asked.line.as_ref();
            line.is_none_or(|line| !facets.matched.has_asked(*line))
        };
        let question = question.filter(is_new).map(|asked| {
            let number = facets.questions.count + 1;
            Box::new(Asked { number, ..asked })
        });
        let is_news = facets.activity_of(attempt) != Some(activity) || question.is_some();
        if is_news {
            let by = by.to_owned();
            self.note(&Entry::ActivityChanged {
                attempt,
                activity,
                by,
                question,
            });
        }
        is_news
    }

    /// Ends these questions of the present attempt; `None`: all of them.
    pub(super) fn answered(
        &mut self,
        these: Option<&[u64]>,
        how: AnsweredBy,
        by: String,
        write: Option<AnsweringWrite>,
    ) {
        let attempt = self.new.attempt;
        let mut questions = self.facets.shown().questions.numbers(attempt);
        questions.retain(|open| these.is_none_or(|these| these.contains(open)));
        if !questions.is_empty() {
            self.note(&Entry::Answered {
                attempt,
                questions,
                how,
                by,
                write,
            });
            self.facets_changed();
        }
    }

    fn refuse_notice(&mut self, at: Timestamp, pid: i32, uid: u32, ended: bool) {
        if self.machine.record().notices_refused.contains(&(pid, uid)) {
            return;
        }
        tracing::warn!(run_id = %self.run, pid, uid, ended, "notice refused: its sender is not verified as a process of the run");
        self.note(&Entry::NoticeRefused { pid, uid, ended });
        let refused = LoggedRequest {
            rpc: CALL.to_owned(),
            by: format!("uid:{uid}"),
            pid: (pid > 0).then_some(pid),
            code: "PERMISSION_DENIED".to_owned(),
            reason: "CALLER_UNVERIFIED".to_owned(),
            calls: 1,
            ..LoggedRequest::default()
        };
        let run = Some(self.run.to_string());
        self.shared
            .trail
            .record(TrailRecord::at(at, run, TrailEntry::Request(refused)));
    }
}
