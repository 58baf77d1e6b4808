//! Tests lines by the rules of a run, rule by rule, in turns of its owner: each rule has the memory of the thread for
//! all lines of a batch.

use crate::{
    base::matcher::{LineMatch, LineMatcher, Scratch},
    registry::{allowance::Allowance, owner_threads::TurnEnd},
    streams::line::OutputLine,
};
use kennel_lifecycle::{Asked, OutputRule, RuleOff, RunId};
use std::{collections::BTreeSet, vec};

/// A line that matched rules.
#[derive(Debug)]
pub(crate) struct MatchedLine {
    /// The line, without its bytes.
    pub(crate) line: OutputLine,
    /// What it asks, where a rule says so.
    pub(crate) question: Option<Asked>,
    /// Indexes of the rules, and their matches in the line.
    pub(crate) rules: Vec<(usize, LineMatch)>,
}

/// Lines that one rule tests after the other. It bounds the matches in memory: a match may have hundreds of groups.
const LINES_AT_ONCE: usize = 64;

/// The rules of a run, and the lines that are being tested.
#[derive(Debug)]
pub(super) struct Tester {
    run: RunId,
    rules: Vec<TestedRule>,
    allowance: Allowance,
    waiting: vec::IntoIter<OutputLine>,
    /// The lines that are tested now, and their matches.
    lines: Vec<(OutputLine, Vec<(usize, LineMatch)>)>,
    /// Index of the next rule, and of the line that it tests next.
    next: (usize, usize),
    matched: Vec<MatchedLine>,
    switched_off: Vec<(usize, RuleOff)>,
}

#[derive(Debug)]
struct TestedRule {
    rule: OutputRule,
    pattern: Pattern,
}

#[derive(Debug)]
enum Pattern {
    /// To be compiled, which takes time of the thread as well.
    Text,
    Compiled(LineMatcher),
    /// No line is tested.
    Off,
}

impl Tester {
    pub(super) fn new(run: RunId, rules: Vec<OutputRule>, off: &BTreeSet<String>) -> Self {
        let rules = rules.into_iter().map(|rule| TestedRule {
            pattern: if off.contains(&rule.name) {
                Pattern::Off
            } else {
                Pattern::Text
            },
            rule,
        });
        Self {
            run,
            rules: rules.collect(),
            allowance: Allowance::default(),
            waiting: Vec::new().into_iter(),
            lines: Vec::new(),
            next: (0, 0),
            matched: Vec::new(),
            switched_off: Vec::new(),
        }
    }

    /// Takes the next lines, once those before are tested.
    pub(super) fn begin(&mut self, lines: Vec<OutputLine>) {
        self.waiting = lines.into_iter();
        self.next_lines();
    }

    pub(super) fn is_done(&self) -> bool {
        self.lines.is_empty()
    }

    /// Tests lines until some have matched, or the turn is over.
    pub(super) fn turn(&mut self, scratch: &mut Scratch) {
        let end = TurnEnd::begin();
        while !self.is_done() && self.matched.is_empty() && !end.is_over() {
            if self.next.0 < self.rules.len() {
                self.turn_of_rule(scratch, end);
            } else {
                self.next_lines();
            }
        }
    }

    fn turn_of_rule(&mut self, scratch: &mut Scratch, end: TurnEnd) {
        let (at, first) = self.next;
        self.next = (at + 1, 0);
        let TestedRule { rule, pattern } = &mut self.rules[at];
        if let Pattern::Text = pattern {
            *pattern = compiled(self.run, rule, scratch);
        }
        let Pattern::Compiled(matcher) = pattern else {
            return;
        };
        let mut off = None;
        let mut tests = self.allowance.begin(at, matcher, scratch);
        for (of_line, (line, matches)) in self.lines.iter_mut().enumerate().skip(first) {
            let asks = rule.asks_in_unfinished_lines();
            if !rule.streams[usize::from(line.stream) - 1] || line.is_quiet && !asks {
                continue;
            }
            let text = match () {
                () if line.is_quiet => line.question(),
                () if asks => &line.text[line.asked.min(line.text.len())..],
                () => &line.text,
            };
            if text.is_empty() && line.asked > 0 {
                continue;
            }
            let tested = tests.test(text);
            matches.extend(tested.found.map(|found| (at, found)));
            off = tested.off;
            if off.is_some() || tests.has_reached(end) {
                self.next = (at, of_line + 1);
                break;
            }
        }
        if let Some((dearest, _)) = off {
            self.rules[dearest].pattern = Pattern::Off;
            self.switched_off.extend(off);
        }
    }

    fn next_lines(&mut self) {
        let (tested, own) = (self.lines.drain(..), &self.rules);
        let matched = tested.filter(|(_, rules)| !rules.is_empty());
        let matched = matched.map(|(line, rules)| MatchedLine {
            question: rules
                .iter()
                .any(|(at, _)| own[*at].rule.asks())
                .then(|| line.asked_now()),
            line: OutputLine {
                text: Vec::new(),
                ..line
            },
            rules,
        });
        self.matched.extend(matched);
        let next = self.waiting.by_ref().take(LINES_AT_ONCE);
        self.lines.extend(next.map(|line| (line, Vec::new())));
        self.next = (0, 0);
    }

    /// Gives the lines that have matched meanwhile, in order.
    pub(super) fn matched(&mut self) -> Vec<MatchedLine> {
        std::mem::take(&mut self.matched)
    }

    /// Gives the rules that were switched off meanwhile.
    pub(super) fn switched_off(&mut self) -> Vec<(usize, RuleOff)> {
        std::mem::take(&mut self.switched_off)
    }
}

/// Patterns were compiled when the spec was accepted; one that no longer compiles matches nothing.
fn compiled(run: RunId, rule: &OutputRule, scratch: &mut Scratch) -> Pattern {
    match LineMatcher::new(&rule.pattern, scratch) {
        Ok(matcher) => Pattern::Compiled(matcher),
        Err(why) => {
            tracing::error!(run_id = %run, rule = rule.name, why, "the pattern of an output rule is refused");
            Pattern::Off
        }
    }
}
