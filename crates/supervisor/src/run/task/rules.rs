//! Effects of rules and probes in the run's task: the one place that decides whether a run is ready and live, what it
//! does, and when a limit of its start or its result is reached.

use super::{
    RunStage, RunTask,
    silence::{ADOPTED_LEAST, Silence},
};
use crate::{
    base::{clock, matcher::MatchGroup},
    run::rules::{
        engine::{self, Flush, RuleStep, RuleWork, STEPS_QUEUED_MAX},
        probe::Probing,
        tester::MatchedLine,
    },
    run::task::done::Done,
    streams::line::OutputLine,
};
use kennel_keeper::client::{InputAnswer, InputState};
use kennel_lifecycle::{
    AnnotationChange, Asked, Deadline, Entry, LiveProbe, OutputRule, Phase, ReadyProbe, Report,
    RuleAction, RuleMatch, RuleOff, StateProbe, StopReason, StreamsEnd, labels, limits,
};
use kennel_linux::crash_point;
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};
use tokio::{
    sync::{mpsc, watch},
    task::AbortHandle,
    time::Instant,
};

/// Conditions at which the task acts by itself: rules, probes and silence.
#[derive(Debug)]
pub(super) struct Conditions {
    steps: mpsc::Sender<RuleStep>,
    pub(super) tested: mpsc::Receiver<RuleStep>,
    /// Rules in the order of the engine.
    rules: Vec<OutputRule>,
    /// Sender to the engine; absent: it was not started.
    flush: Option<watch::Sender<Flush>>,
    /// End of the output, which is reported once every line before it was tested.
    closing: Option<StreamsEnd>,
    probe: Option<AbortHandle>,
    liveness: Option<AbortHandle>,
    /// Reason to stop the attempt: it is not live.
    not_live: Option<StopReason>,
    /// Time before which the run does not count as not ready.
    not_before: Option<Instant>,
    /// Warnings that an attempt has once.
    warned: BTreeSet<(u32, String)>,
    pub(super) silence: Silence,
}

impl Default for Conditions {
    fn default() -> Self {
        let (steps, tested) = mpsc::channel(STEPS_QUEUED_MAX);
        Self {
            steps,
            tested,
            rules: Vec::new(),
            flush: None,
            closing: None,
            probe: None,
            liveness: None,
            not_live: None,
            not_before: None,
            warned: BTreeSet::new(),
            silence: Silence::default(),
        }
    }
}

impl Conditions {
    pub(super) fn end_probe(&mut self) {
        if let Some(probe) = self.probe.take() {
            probe.abort();
        }
    }

    /// Handles too many failed liveness probes of the present attempt in a row.
    pub(super) fn not_live(&mut self, failures: u32, error: String) {
        // Failures during a pause that has begun meanwhile do not count.
        if self.liveness.is_some() {
            self.not_live = Some(StopReason::NotLive { failures, error });
        }
    }

    /// Stops to probe the liveness of an attempt.
    fn ignore_liveness(&mut self) {
        self.not_live = None;
        if let Some(probing) = self.liveness.take() {
            probing.abort();
        }
    }

    /// What the output showed then is answered: it is no question any more.
    pub(super) fn answer_shown(&self, at: Instant) {
        if let Some(flush) = &self.flush {
            flush.send_modify(|flush| flush.input = Some(at));
        }
    }

    /// Whether this attempt has not had this warning before.
    fn warns_first(&mut self, attempt: u32, message: &str) -> bool {
        self.warned.retain(|(of, _)| *of == attempt);
        self.warned.insert((attempt, message.to_owned()))
    }
}

impl RunTask {
    /// Starts the engine, once a journal exists, and the probe of a running attempt.
    pub(super) fn begin_rules(&mut self) {
        if self.output.is_none() {
            return;
        }
        let rules = self.new.policy().line_rules();
        if self.conditions.flush.is_none() && !rules.is_empty() {
            let (sender, flush) = watch::channel(Flush::now(0, 0));
            self.conditions.rules.clone_from(&rules);
            self.conditions.flush = Some(sender);
            let facets = self.facets.shown();
            let work = RuleWork {
                owner: self.new.owner.as_str().into(),
                rules,
                off: facets.switched_off.keys().cloned().collect(),
                mark: facets.matched,
                flush,
                steps: self.conditions.steps.clone(),
            };
            self.op(move |shared, run, _| engine::run(shared, run, work));
        }
        self.begin_probe();
    }

    fn begin_probe(&mut self) {
        let attempt = self.new.attempt;
        let runs = self.times().started.is_some() && self.machine.record().leader.is_none();
        let Some(readiness) = &self.new.policy().readiness else {
            return;
        };
        let ReadyProbe::State(server) = &readiness.probe else {
            return;
        };
        if !runs || self.conditions.probe.is_some() || self.facets.shown().is_ready(attempt) {
            return;
        }
        let probing = self.probing(server, readiness.interval, readiness.timeout);
        self.conditions.probe = Some(self.link.ops.spawn(probing.until_ready()));
    }

    /// Probes the liveness of an attempt while it runs and is ready: not while it is paused, and anew after that.
    fn watch_liveness(&mut self) {
        let Some(liveness) = &self.new.policy().liveness else {
            return;
        };
        // The keeper handles watchdog messages, which the command sends itself.
        let LiveProbe::State(probe) = &liveness.probe else {
            return;
        };
        let attempt = self.new.attempt;
        let is_ready = !self.new.policy().has_ready_sign() || self.facets.shown().is_ready(attempt);
        let counts = is_ready
            && matches!(self.machine.phase(), Phase::Running)
            && self.machine.record().leader.is_none();
        if !counts {
            self.conditions.ignore_liveness();
        } else if self.conditions.liveness.is_none() {
            let probing = self.probing(probe, liveness.interval, liveness.timeout);
            let probing = probing.until_not_live(liveness.failure_threshold);
            self.conditions.liveness = Some(self.link.ops.spawn(probing));
        }
    }

    fn probing(&self, server: &StateProbe, interval: Duration, timeout: Duration) -> Probing {
        Probing {
            server: server.clone(),
            interval,
            timeout,
            attempt: self.new.attempt,
            run: self.run,
            health: Arc::clone(&self.shared.config.health),
            kernel: Arc::clone(&self.shared.kernel),
            done: self.link.done_sender.clone(),
            own: None,
        }
    }

    /// Records a warning, once for each attempt.
    pub(super) fn warn_once(&mut self, attempt: u32, message: String) {
        if attempt == self.new.attempt && self.conditions.warns_first(attempt, &message) {
            if self.machine.record().recorded {
                self.warn(message);
            } else {
                // The warning follows the record of the run.
                self.reporting.warnings.push(message);
            }
        }
    }

    /// Resumes the rules of a run of an earlier server.
    pub(super) fn resume_rules(&mut self) {
        self.conditions.not_before = clock::instant().checked_add(ADOPTED_LEAST);
        if self.facets.shown().is_ready(self.new.attempt) {
            self.attempts.restarts = 0;
        }
        self.begin_rules();
        let attempt = self.new.attempt;
        if self.facets.shown().questions.of(attempt).next().is_some() {
            self.op(move |shared, run, done| async move {
                let asked = shared.kernel.input_state(run, attempt).await;
                if let Ok(InputAnswer::Result(InputState { accepted, .. }, _)) = asked {
                    let _ = done.send(Done::InputStands { attempt, accepted }).await;
                }
            });
        }
    }

    /// Handles the end of the attempt's output: reported once all its lines were tested.
    pub(super) fn close_streams(&mut self, end: StreamsEnd) {
        let head = self.output.as_ref().map(|output| output.hub().head().seq);
        let (Some(flush), Some(seq)) = (&self.conditions.flush, head) else {
            return self.report(Report::StreamsClosed(end));
        };
        self.conditions.closing = Some(end);
        let end = Flush::now(self.new.attempt, seq);
        flush.send_modify(|flush| {
            let input = flush.input;
            *flush = end;
            flush.input = input;
        });
    }

    pub(super) fn rule_step(&mut self, step: RuleStep) {
        self.at = clock::now();
        match step {
            // The row has the entries of the run: its journal gets no other one beside the end.
            RuleStep::Matched(_) | RuleStep::SwitchedOff(..)
                if self.attempts.stage == RunStage::Ending => {}
            RuleStep::Matched(line) => self.line_matched(&line),
            RuleStep::SwitchedOff(rule, reason) => self.switch_off(rule, reason),
            RuleStep::Tested(attempt) if attempt == self.new.attempt => self.lines_tested(),
            RuleStep::Late(attempt) if attempt == self.new.attempt => {
                if self.conditions.closing.is_some() {
                    self.warn(format!(
                        "output rules have not tested all lines of attempt {attempt} in time"
                    ));
                }
                self.lines_tested();
            }
            RuleStep::Tested(_) | RuleStep::Late(_) => {}
        }
    }

    fn lines_tested(&mut self) {
        if let Some(end) = self.conditions.closing.take() {
            self.report(Report::StreamsClosed(end));
        }
    }

    /// Switches a rule off for the rest of the run.
    fn switch_off(&mut self, rule: usize, reason: RuleOff) {
        let Some(rule) = self.conditions.rules.get(rule) else {
            return;
        };
        let rule = rule.name.clone();
        if self.facets.shown().switched_off.contains_key(&rule) {
            return;
        }
        let why = match reason {
            RuleOff::GaveUp => "its pattern takes too many steps for a line",
            RuleOff::TestTime => "the test of a line took more than 100 ms of processor time",
            RuleOff::ProcessorShare => {
                "the rules of the run took more than a tenth of a processor for 10 s, and this one the most"
            }
        };
        tracing::warn!(run_id = %self.run, rule, why, "output rule switched off");
        self.note(&Entry::RuleSwitchedOff {
            rule: rule.clone(),
            reason,
        });
        self.warn(format!("output rule {rule} is switched off: {why}"));
        self.facets_changed();
    }

    /// Handles a successful probe of this attempt.
    pub(super) fn probed(&mut self, attempt: u32, by: &str) {
        if attempt == self.new.attempt && matches!(self.machine.phase(), Phase::Running) {
            self.become_ready(attempt, by);
            self.facets_changed();
        }
    }

    /// Acts on a line that matched. The entry of the line is written last: a server that dies before it leaves the line
    /// to the next one, for which the effects are no news.
    fn line_matched(&mut self, line: &MatchedLine) {
        let OutputLine {
            attempt,
            seq,
            stream,
            offset,
            is_quiet,
            ..
        } = line.line;
        if !is_quiet && self.facets.shown().has_matched(stream, offset) {
            return;
        }
        let mut rules = Vec::new();
        for (at, found) in &line.rules {
            let Some(rule) = self.conditions.rules.get(*at).cloned() else {
                continue;
            };
            let (groups, cut) = named(&found.groups);
            for group in cut {
                let (rule, most) = (&rule.name, limits::ANNOTATION_VALUE_BYTES_MAX);
                let why = "and is not recorded: a part of it would be another value";
                let message = format!(
                    "group {group} of output rule {rule} has more than {most} bytes, {why}"
                );
                self.warn_once(attempt, message);
            }
            let question = line.question.clone();
            if self.act(&rule, attempt, &groups, question) {
                rules.push(RuleMatch {
                    rule: rule.name,
                    groups,
                    action: rule.action,
                });
            }
        }
        if rules.is_empty() {
            return;
        }
        if is_quiet {
            // An unfinished line gets an entry once it ends.
            return self.facets_changed();
        }
        crash_point!("rule.acted");
        self.note(&Entry::OutputMatched {
            attempt,
            seq,
            stream,
            offset,
            rules,
        });
        crash_point!("rule.noted");
        self.facets_changed();
    }

    /// Acts on a rule. Returns whether that is news.
    fn act(
        &mut self,
        rule: &OutputRule,
        attempt: u32,
        groups: &BTreeMap<String, String>,
        question: Option<Asked>,
    ) -> bool {
        // Output of an exited attempt still counts, but its matches stop nothing.
        let is_present = attempt == self.new.attempt;
        let runs = is_present && self.machine.record().leader.is_none();
        match &rule.action {
            RuleAction::Ready => is_present && self.become_ready(attempt, &rule.name),
            RuleAction::Activity(activity) => {
                let question = question.filter(|_| rule.asks()).map(|mut question| {
                    question.captures.clone_from(groups);
                    if let Some(text) = question.captures.remove("question") {
                        (question.text, question.is_cut) = (text, false);
                    }
                    question
                });
                is_present && self.does(*activity, &rule.name, question)
            }
            RuleAction::Annotate => self.annotate_by_rule(rule, groups),
            RuleAction::Event => {
                let events = self.facets.shown().matched.events;
                if events == limits::RULE_EVENTS_MAX - 1 {
                    self.warn(format!(
                        "output rules of this run have emitted {} events: no more are emitted",
                        limits::RULE_EVENTS_MAX
                    ));
                }
                events < limits::RULE_EVENTS_MAX
            }
            RuleAction::Result { .. } => runs && self.facets.shown().result_of(attempt).is_none(),
        }
    }

    pub(super) fn become_ready(&mut self, attempt: u32, by: &str) -> bool {
        if self.facets.shown().is_ready(attempt) {
            return false;
        }
        let by = by.to_owned();
        self.note(&Entry::Ready { attempt, by });
        self.attempts.restarts = 0;
        self.conditions.end_probe();
        let waited = self.times().started.map(|started| self.at.since(started));
        if let Some(waited) = waited {
            self.reporting.spans.ready(waited);
        }
        tracing::info!(run_id = %self.run, attempt, seconds = waited.map(|time| time.as_secs_f64()), "run is ready");
        true
    }

    fn annotate_by_rule(&mut self, rule: &OutputRule, groups: &BTreeMap<String, String>) -> bool {
        if groups.is_empty() {
            return false;
        }
        let change = AnnotationChange {
            set: groups.clone(),
            ..AnnotationChange::default()
        };
        match self.facets.shown().annotations.change(change, "") {
            Ok(Some(entry)) => {
                self.note(&entry);
                true
            }
            Ok(None) => false,
            Err(error) => {
                self.warn(format!("rule {} annotates nothing: {error}", rule.name));
                false
            }
        }
    }

    fn warn(&mut self, message: String) {
        self.note(&Entry::Warning { message });
    }

    pub(super) fn facets_changed(&mut self) {
        self.write_facets();
        self.publish();
    }

    /// Returns when the next limit of start or result is reached, while one counts.
    pub(super) fn rules_due(&self) -> Option<Instant> {
        let from_now = |left: Duration| clock::instant().checked_add(left);
        let start = self.start_left().and_then(from_now);
        let start = start.map(|at| self.conditions.not_before.map_or(at, |least| at.max(least)));
        let result = self.result_left().and_then(from_now);
        start.into_iter().chain(result).min()
    }

    /// Returns the reason to stop the run, once such a limit is reached.
    pub(super) fn keep_rules(&mut self) -> Option<StopReason> {
        if self.machine.record().leader.is_some() {
            self.conditions.end_probe();
        }
        self.watch_liveness();
        if let Some(reason) = self.conditions.not_live.take() {
            return Some(reason);
        }
        let due = self.rules_due()?;
        if due > clock::instant() {
            return None;
        }
        if self.result_left().is_some_and(|left| left.is_zero()) {
            let due = self.facets.shown().result_of(self.new.attempt);
            let rule = due.map(|due| due.rule.clone()).unwrap_or_default();
            return Some(StopReason::Result { rule });
        }
        Some(StopReason::NotReady)
    }

    fn start_left(&self) -> Option<Duration> {
        if self.new.policy().is_ready_by_notice() {
            // The keeper counts the start timeout, which the command can extend.
            return None;
        }
        let start_timeout = self.extended_limit(Deadline::StartTimeout)?;
        let counts = matches!(self.machine.phase(), Phase::Running)
            && !self.facets.shown().is_ready(self.new.attempt);
        let passed = self.run_time().filter(|_| counts)?;
        Some(start_timeout.saturating_sub(passed))
    }

    fn result_left(&self) -> Option<Duration> {
        let counts = matches!(self.machine.phase(), Phase::Running | Phase::Paused);
        let due = self.facets.shown().result_of(self.new.attempt)?;
        let rules = &self.new.policy().output_rules;
        let rule = rules.iter().find(|rule| rule.name == due.rule);
        let after = match rule?.action {
            RuleAction::Result { after, .. } if counts => after,
            _ => return None,
        };
        let seen_at = due.due.minus(after);
        Some(due.due.since(self.shared.clock.now_as_of(seen_at)))
    }
}

/// Returns the groups that may be annotations: with a name, and of a bounded length; and the names of longer ones.
fn named(groups: &[MatchGroup]) -> (BTreeMap<String, String>, Vec<String>) {
    let fits = |group: &&MatchGroup| {
        !group.is_cut && group.text.len() <= limits::ANNOTATION_VALUE_BYTES_MAX
    };
    let named = groups
        .iter()
        .filter(|group| labels::check_key(&group.name).is_ok());
    let (fit, cut): (Vec<_>, Vec<_>) = named.partition(fits);
    let fit = fit
        .into_iter()
        .map(|group| (group.name.clone(), group.text.clone()));
    (
        fit.collect(),
        cut.into_iter().map(|group| group.name.clone()).collect(),
    )
}
