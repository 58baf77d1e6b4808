//! Reports of the command about itself, as received by the keeper. The keeper repeats them to each server until the run
//! is acknowledged: what an earlier server has written is no news.

use super::RunTask;
use crate::audit_log::{LoggedRequest, TrailEntry, TrailRecord};
use kennel_keeper::client::Notified;
use kennel_lifecycle::{Activity, Entry, NOTIFIED, StatusText, Timestamp};

/// Name of refused notices in the audit log.
const CALL: &str = "sd_notify";

impl RunTask {
    pub(super) fn notified(&mut self, at: Timestamp, notified: Notified) {
        let attempt = self.new.attempt;
        let runs = self.machine.record().started && self.machine.record().leader.is_none();
        let is_news = match notified {
            Notified::Ready => runs && self.become_ready(attempt, NOTIFIED),
            Notified::Status(status) => self.note_status(status),
            // The keeper repeats its report to each server: a client, or a rule, may have set a newer one since.
            Notified::Activity(_) if self.has_newer_activity(at) => false,
            Notified::Activity(activity) => self.does(activity, NOTIFIED),
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

    fn has_newer_activity(&self, than: Timestamp) -> bool {
        let attempt = self.new.attempt;
        let doing = self.facets.shown().activity.as_ref();
        doing.is_some_and(|doing| doing.attempt == attempt && doing.at > than)
    }

    /// The attempt does this from here on. Returns whether it is news.
    pub(super) fn does(&mut self, activity: Activity, by: &str) -> bool {
        let attempt = self.new.attempt;
        let is_news = self.facets.shown().activity_of(attempt) != Some(activity);
        if is_news {
            let by = by.to_owned();
            self.note(&Entry::ActivityChanged {
                attempt,
                activity,
                by,
            });
        }
        is_news
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
