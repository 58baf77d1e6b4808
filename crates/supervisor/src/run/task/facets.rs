//! The facets of a run in its task: what clients change of them, and when a change is durable.

use super::RunTask;
use crate::{
    base::calls::{AnnotateCall, CallError},
    run::task::RunStage,
};
use kennel_lifecycle::{AnnotationRefusal, Entry, Facets, Phase, Refusal, Timestamp, limits};
use kennel_store::{Change, NewRun, RunRow};
use tokio::sync::oneshot;

type Reply = oneshot::Sender<Result<(), CallError>>;

/// Facets, and the callers that wait until they are durable.
#[derive(Debug, Default)]
pub(super) struct RunFacets {
    facets: Facets,
    /// Revision that is durable.
    recorded: u64,
    /// Revision that each caller waits for, in order.
    waiting: Vec<(u64, Reply)>,
}

impl RunFacets {
    /// The facets by all entries so far.
    pub(super) fn shown(&self) -> &Facets {
        &self.facets
    }

    /// Applies an entry that is about to be written.
    pub(super) fn fold(&mut self, at: Timestamp, entry: &Entry) {
        self.facets.fold(at, entry);
    }

    /// Returns the entry with the annotations of a spec, if it has some and none were set before.
    pub(super) fn first_annotations(&self, new: &NewRun) -> Option<Entry> {
        let annotations = &self.facets.annotations;
        let first = annotations.change(new.spec.first_annotations(), &new.owner);
        first.ok()?.filter(|_| annotations.version == 0)
    }
}

impl RunTask {
    /// Writes an entry that changes annotations, and counts their bytes for the owner.
    pub(super) fn note_annotations(&mut self, entry: &Entry) {
        let bytes = |task: &Self| task.facets.facets.annotations.bytes() as u64;
        let before = bytes(self);
        self.note(entry);
        let owner = &self.new.owner;
        self.shared.record_bytes.change(owner, before, bytes(self));
        self.write_facets();
    }

    /// Continues with the facets of an earlier server: those of the row, or of the journal where its server died before
    /// it had written them to the row.
    pub(super) fn resume_facets(&mut self, row: &RunRow, by_entries: Facets) {
        self.facets.recorded = row.facets.revision;
        let known = std::mem::take(&mut self.facets.facets);
        self.facets.facets = known.newest(row.facets.clone()).newest(by_entries);
        if self.facets.facets.revision > row.facets.revision && row.outcome.is_none() {
            self.write_facets();
        }
    }

    /// Queues the facets as they are now; they take the place of older ones that are queued.
    pub(super) fn write_facets(&mut self) {
        if !self.projection.replace_facets(&self.facets.facets) {
            self.write(Change::Facets(Box::new(self.facets.facets.clone())));
        }
    }

    /// Facets up to this revision are durable; absent: the row is another server's.
    pub(super) fn facets_recorded(&mut self, revision: Option<u64>) {
        self.facets.recorded = revision.unwrap_or(self.facets.recorded);
        let ended = self.refuse_call(Refusal::Ended);
        let reached = |wanted: &u64| revision.is_none_or(|revision| *wanted <= revision);
        for (_, reply) in self
            .facets
            .waiting
            .extract_if(.., |(wanted, _)| reached(wanted))
        {
            // A caller that has gone needs no answer.
            let _ = reply.send(match revision {
                Some(_) => Ok(()),
                None => Err(ended.clone()),
            });
        }
    }

    /// Changes annotations and activity, both or neither, and answers when that is durable.
    pub(super) fn annotate(&mut self, call: AnnotateCall, reply: Reply) {
        let AnnotateCall {
            run,
            change,
            activity,
            question,
            by,
        } = call;
        if let Some(refusal) = self.refuses_facets() {
            return drop(reply.send(Err(self.refuse_call(refusal))));
        }
        if !change.set.is_empty()
            && let Err(full) = self.shared.check_records(&self.new.owner)
        {
            return drop(reply.send(Err(full)));
        }
        match self.facets.facets.annotations.change(change, &by) {
            Ok(Some(entry)) => {
                self.note_annotations(&entry);
                self.publish();
            }
            // The annotations have these values already, perhaps still pending for the store.
            Ok(None) => {}
            Err(refusal) => {
                let error = match refusal {
                    AnnotationRefusal::Version { expected, present } => {
                        CallError::AnnotationsChanged {
                            run,
                            expected,
                            present,
                        }
                    }
                    AnnotationRefusal::TooLarge => CallError::QuotaExceeded {
                        what: refusal.to_string(),
                        limit: limits::ANNOTATIONS_MAX as u64,
                    },
                };
                return drop(reply.send(Err(error)));
            }
        }
        if let Some(activity) = activity {
            let attempt = self.new.attempt;
            let question = self.facets.facets.asks_now(attempt, activity, question);
            if self.does(activity, &by, question) {
                self.facets_changed();
            }
        }
        self.answer_when_durable(reply);
    }

    /// Answers OK when the facets are durable as they are now.
    pub(super) fn answer_when_durable(&mut self, reply: Reply) {
        let revision = self.facets.facets.revision;
        if revision > self.facets.recorded {
            self.facets.waiting.push((revision, reply));
        } else {
            let _ = reply.send(Ok(()));
        }
    }

    /// Facets have a place from the record of the first attempt to the end of the run.
    fn refuses_facets(&self) -> Option<Refusal> {
        let is_over = matches!(self.machine.phase(), Phase::Closed(_) | Phase::Forgotten(_))
            && !self.attempts.has_next_attempt();
        if is_over || matches!(self.attempts.stage, RunStage::Ending | RunStage::Disowned) {
            return Some(Refusal::Ended);
        }
        let has_row = self.new.attempt > 1 || self.machine.record().recorded;
        (!has_row).then_some(Refusal::NotRunningYet)
    }
}
