//! Facets of a run: what its clients and its output report of it beside its state. [`Facets::fold`] derives them from
//! the run's entries, over all attempts; the row stores them as one value.

mod annotations;
mod questions;

pub use annotations::{AnnotationChange, AnnotationRefusal, Annotations};
pub use questions::{Answered, AnsweredBy, AnsweringWrite, Asked, AskedLine, Question, Questions};

use crate::{
    Activity, Entry, Extension, Extensions, RuleAction, RuleMatch, RuleOff, StatusText, Timestamp,
};
use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, time::Duration};

/// Facets of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Facets {
    /// Number of entries that have changed a facet: the copy with the higher number is the newer.
    pub revision: u64,
    /// Key and value pairs that clients and rules have set.
    pub annotations: Annotations,
    /// The newest attempt that was ready.
    pub ready: Option<Ready>,
    /// Activity of the newest attempt that a rule saw one of.
    pub activity: Option<ReportedActivity>,
    /// Questions that it waits for answers to.
    #[serde(skip_serializing_if = "crate::is_default")]
    pub questions: Questions,
    /// Last status of the newest attempt that reported one.
    pub status: Option<ReportedStatus>,
    /// Extensions of limits of time.
    pub extensions: Extensions,
    /// The newest attempt whose result is available.
    pub result: Option<ResultDue>,
    /// Position up to which lines of output have matched rules.
    pub matched: RuleMark,
    /// Output rules that were switched off, by name: no server tests lines by them any more.
    pub switched_off: BTreeMap<String, SwitchedOff>,
}

/// An output rule that was switched off.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SwitchedOff {
    /// Time at which it was switched off.
    pub at: Timestamp,
    /// Reason why it was switched off.
    pub reason: RuleOff,
}

/// An attempt that was ready.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ready {
    /// Number of the attempt.
    pub attempt: u32,
    /// Time at which it became ready.
    pub at: Timestamp,
    /// Evidence of that.
    pub by: String,
}

/// Activity of an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReportedActivity {
    /// Number of the attempt.
    pub attempt: u32,
    /// Start of the activity.
    pub at: Timestamp,
    /// The activity.
    pub activity: Activity,
}

/// Status that an attempt has reported.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReportedStatus {
    /// Number of the attempt.
    pub attempt: u32,
    /// Time of the report.
    pub at: Timestamp,
    /// The status.
    pub status: StatusText,
}

/// An attempt whose result is available.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResultDue {
    /// Number of the attempt.
    pub attempt: u32,
    /// Name of the rule that has seen the result.
    pub rule: String,
    /// Time at which the attempt is stopped.
    pub due: Timestamp,
    /// Grace of that stop.
    pub grace: Duration,
}

/// Position up to which lines of output have matched rules: lines before it are not tested again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct RuleMark {
    /// Seq of the event in which the last matched line ended; 0: none has matched.
    pub seq: u64,
    /// Offset of the last matched line of each stream; absent: none has matched.
    pub offsets: [Option<u64>; 2],
    /// Number of events that rules have emitted.
    pub events: u32,
    /// Line of the last question of each stream, and the length of its text up to the end of that.
    #[serde(skip_serializing_if = "crate::is_default")]
    pub asked: [Option<(u64, usize)>; 2],
}

impl RuleMark {
    fn mark_asked(&mut self, line: Option<AskedLine>) {
        if let Some(AskedLine {
            stream,
            offset,
            len,
        }) = line
            && let Some(asked) = self.asked.get_mut(usize::from(stream).saturating_sub(1))
        {
            *asked = Some((offset, len));
        }
    }

    /// Whether this part of a line was asked before.
    pub fn has_asked(&self, line: AskedLine) -> bool {
        let at = usize::from(line.stream).saturating_sub(1);
        let last = self.asked.get(at).copied().flatten();
        last.is_some_and(|last| (line.offset, line.len) <= last)
    }
}

impl Facets {
    /// Returns the facets after these entries of a whole run: (time, attempt, entry), in order.
    pub fn of<'a>(entries: impl IntoIterator<Item = (Timestamp, u32, &'a Entry)>) -> Self {
        let mut facets = Self::default();
        for (at, _, entry) in entries {
            facets.fold(at, entry);
        }
        facets
    }

    /// Applies one entry. Returns whether it has changed a facet.
    pub fn fold(&mut self, at: Timestamp, entry: &Entry) -> bool {
        let changed = match entry {
            Entry::Annotated {
                version,
                set,
                removed,
                ..
            } => self.annotations.apply(*version, set, removed),
            Entry::Ready { attempt, by } => {
                let is_news = !self.is_ready(*attempt);
                if is_news {
                    let (attempt, by) = (*attempt, by.clone());
                    self.ready = Some(Ready { attempt, at, by });
                }
                is_news
            }
            Entry::ActivityChanged {
                attempt,
                activity,
                by,
                question,
            } => {
                if *activity != Activity::AwaitingInput {
                    self.questions.open.clear();
                }
                let new = question.as_ref();
                let new = new.filter(|asked| asked.number > self.questions.count);
                if let Some(asked) = new {
                    self.questions.ask(at, *attempt, by, asked);
                    self.matched.mark_asked(asked.line);
                }
                self.do_now(at, *attempt, *activity) || new.is_some()
            }
            Entry::Answered {
                attempt,
                questions,
                by,
                write,
                ..
            } => {
                let is_news = self.questions.answer(questions, by, write.as_ref());
                if is_news && self.questions.of(*attempt).next().is_none() {
                    self.do_now(at, *attempt, Activity::Working);
                }
                is_news
            }
            Entry::StatusChanged { attempt, status } => {
                let is_news = self.status_of(*attempt) != Some(status);
                if is_news {
                    let (attempt, status) = (*attempt, status.clone());
                    self.status = Some(ReportedStatus {
                        attempt,
                        at,
                        status,
                    });
                }
                is_news
            }
            Entry::Extended {
                attempt,
                limit,
                total,
                end,
                ..
            } => {
                let (total, end) = (*total, *end);
                self.extensions
                    .apply(*attempt, *limit, Extension { total, end })
            }
            Entry::OutputMatched {
                attempt,
                seq,
                stream,
                offset,
                rules,
            } => self.match_line(at, *attempt, (*seq, *stream, *offset), rules),
            Entry::RuleSwitchedOff { rule, reason } => self.switch_off(at, rule, *reason),
            _ => false,
        };
        self.revision += u64::from(changed);
        changed
    }

    fn do_now(&mut self, at: Timestamp, attempt: u32, activity: Activity) -> bool {
        let is_news = self.activity_of(attempt) != Some(activity);
        if is_news {
            self.activity = Some(ReportedActivity {
                attempt,
                at,
                activity,
            });
        }
        is_news
    }

    /// Whether this attempt is ready, or a later one.
    pub fn is_ready(&self, attempt: u32) -> bool {
        self.ready
            .as_ref()
            .is_some_and(|ready| ready.attempt >= attempt)
    }

    /// Whether this attempt has reported an activity after this time.
    pub fn has_activity_after(&self, attempt: u32, than: Timestamp) -> bool {
        let doing = self.activity.as_ref();
        doing.is_some_and(|doing| doing.attempt == attempt && doing.at > than)
    }

    /// Returns the question of an attempt that waits from here on, or that has a new text.
    pub fn asks_now(&self, attempt: u32, activity: Activity, text: String) -> Option<Asked> {
        let begins = self.activity_of(attempt) != Some(activity);
        // A report may be repeated: by a client that repeats its call, and by the keeper to each server.
        let before = self.questions.of(attempt).last();
        let is_other = before.is_none_or(|before| before.asked.text != text);
        let asks = activity == Activity::AwaitingInput;
        let is_new = asks && (begins || !text.is_empty() && is_other);
        is_new.then(|| Asked {
            text,
            ..Asked::default()
        })
    }

    /// Returns the activity of this attempt, if a rule has seen one.
    pub fn activity_of(&self, attempt: u32) -> Option<Activity> {
        let reported = self.activity.filter(|reported| reported.attempt == attempt);
        reported.map(|reported| reported.activity)
    }

    /// Returns the last status that this attempt has reported.
    pub fn status_of(&self, attempt: u32) -> Option<&StatusText> {
        let reported = self.status.as_ref();
        let reported = reported.filter(|reported| reported.attempt == attempt);
        reported.map(|reported| &reported.status)
    }

    /// Returns when this attempt is stopped because its result is available.
    pub fn result_of(&self, attempt: u32) -> Option<&ResultDue> {
        self.result.as_ref().filter(|due| due.attempt == attempt)
    }

    /// Whether this line was tested before, and its actions done.
    pub fn has_matched(&self, stream: u8, offset: u64) -> bool {
        let at = usize::from(stream).saturating_sub(1);
        let last = self.matched.offsets.get(at).copied().flatten();
        last.is_some_and(|last| offset <= last)
    }

    /// Returns the newer of two copies.
    #[must_use]
    pub fn newest(self, other: Self) -> Self {
        if other.revision > self.revision {
            other
        } else {
            self
        }
    }

    fn switch_off(&mut self, at: Timestamp, rule: &str, reason: RuleOff) -> bool {
        let is_news = !self.switched_off.contains_key(rule);
        if is_news {
            let off = SwitchedOff { at, reason };
            self.switched_off.insert(rule.to_owned(), off);
        }
        is_news
    }

    fn match_line(
        &mut self,
        at: Timestamp,
        attempt: u32,
        (seq, stream, offset): (u64, u8, u64),
        rules: &[RuleMatch],
    ) -> bool {
        if self.has_matched(stream, offset) {
            return false;
        }
        self.matched.seq = self.matched.seq.max(seq);
        if let Some(last) = self
            .matched
            .offsets
            .get_mut(usize::from(stream).saturating_sub(1))
        {
            *last = Some(offset);
        }
        for RuleMatch { rule, action, .. } in rules {
            match action {
                RuleAction::Event => self.matched.events = self.matched.events.saturating_add(1),
                RuleAction::Result { after, grace } if self.result_of(attempt).is_none() => {
                    self.result = Some(ResultDue {
                        attempt,
                        rule: rule.clone(),
                        due: at.plus(*after),
                        grace: *grace,
                    });
                }
                RuleAction::Result { .. }
                | RuleAction::Ready
                | RuleAction::Activity(_)
                | RuleAction::Annotate => {}
            }
        }
        true
    }
}
