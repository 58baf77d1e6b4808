//! Finds an expression in a line: the match by a lazy automaton, its groups by a backtracker on that match only. Both are
//! bounded in memory and in steps, and neither falls back to a slower engine.

use super::{GaveUp, LineMatch, MatchGroup, matched_text};
use kennel_lifecycle::limits;
use regex_automata::{
    Anchored, Input, MatchErrorKind, MatchKind,
    hybrid::{
        dfa::{self, DFA},
        regex::{self, Regex},
    },
    nfa::thompson::{
        self, Compiler, NFA, WhichCaptures,
        backtrack::{self, BoundedBacktracker},
    },
    util::{captures::Captures, primitives::PatternID, syntax},
};

/// Memory for the states of a lazy automaton: an expression that needs more for a few bytes of a line is given up.
const STATES_BYTES_MAX: usize = 2 << 20;
/// How often that memory is cleared before an expression can be given up.
const CLEARS_MIN: usize = 3;
/// Bytes of a line that each state of the automaton is worth.
const BYTES_PER_STATE_MIN: usize = 10;
/// States of the expression that add a byte to the cost of a new state of the automaton: making one takes time in
/// proportion to them.
const STATES_PER_BYTE: usize = 16;
/// Memory for the visited places of a backtracker: one bit for each state of the expression and byte of the line, which
/// is a step at most.
const VISITED_BYTES_MAX: usize = 4 << 20;

/// A compiled expression.
#[derive(Debug)]
pub(super) struct Expression {
    automata: Regex,
    backtracker: BoundedBacktracker,
}

/// Memory of a thread that tests lines. One expression at a time has it.
#[derive(Debug)]
pub struct Scratch {
    states: Option<regex::Cache>,
    visited: Option<backtrack::Cache>,
}

impl Scratch {
    pub(crate) fn new() -> Self {
        Self {
            states: None,
            visited: None,
        }
    }
}

impl Expression {
    pub(super) fn new(text: &str) -> Result<Self, String> {
        // Lines are bytes, so a match need not be UTF-8.
        let hir = syntax::parse_with(text, &syntax::Config::new().utf8(false));
        let hir = hir.map_err(|error| error.to_string())?;
        let compile = |config: thompson::Config| {
            let config = config.utf8(false).shrink(false);
            let config = config.nfa_size_limit(Some(limits::REGEX_BYTES_MAX));
            let compiled = Compiler::new().configure(config).build_from_hir(&hir);
            compiled.map_err(|error| format!("cannot be compiled: {error}"))
        };
        let forward = compile(thompson::Config::new())?;
        let reverse = thompson::Config::new().reverse(true);
        let reverse = compile(reverse.which_captures(WhichCaptures::None))?;
        let visited = backtrack::Config::new().visited_capacity(VISITED_BYTES_MAX);
        let backtracker = backtrack::Builder::new()
            .configure(visited)
            .build_from_nfa(forward.clone());
        let backtracker = backtracker.map_err(|error| format!("cannot be searched: {error}"))?;
        let forward = automaton(forward, MatchKind::LeftmostFirst)?;
        let reverse = automaton(reverse, MatchKind::All)?;
        Ok(Self {
            automata: Regex::builder().build_from_dfas(forward, reverse),
            backtracker,
        })
    }

    pub(super) fn group_names(&self) -> impl Iterator<Item = &str> {
        let groups = self.backtracker.get_nfa().group_info();
        groups.pattern_names(PatternID::ZERO).flatten()
    }

    pub(super) fn begin(&self, scratch: &mut Scratch) {
        let new = || self.automata.create_cache();
        scratch.states.get_or_insert_with(new).reset(&self.automata);
        let new = || self.backtracker.create_cache();
        let visited = scratch.visited.get_or_insert_with(new);
        visited.reset(&self.backtracker);
    }

    pub(super) fn test(
        &self,
        line: &[u8],
        scratch: &mut Scratch,
    ) -> Result<Option<LineMatch>, GaveUp> {
        let Scratch { states, visited } = scratch;
        let (Some(states), Some(visited)) = (states, visited) else {
            return Err(GaveUp);
        };
        let input = Input::new(line);
        let span = match self.automata.try_search(states, &input) {
            Ok(None) => return Ok(None),
            Ok(Some(found)) => Some(found.span()),
            // The automaton quits on lines with non-ASCII bytes: it lacks Unicode `\b`.
            Err(error) if matches!(error.kind(), MatchErrorKind::Quit { .. }) => None,
            Err(_) => return Err(GaveUp),
        };
        let mut captures = self.backtracker.create_captures();
        let searched = match span {
            Some(_) if captures.group_len() == 1 => Ok(()),
            Some(span) => {
                let input = input.span(span).anchored(Anchored::Yes);
                let searched = self.backtracker.try_captures(visited, input, &mut captures);
                // A match whose groups take too many steps is returned without groups.
                searched.or(Ok(()))
            }
            None => self.backtracker.try_captures(visited, input, &mut captures),
        };
        searched.map_err(|_| GaveUp)?;
        let span = span.or_else(|| Some(captures.get_match()?.span()));
        Ok(span.map(|span| LineMatch {
            text: matched_text(&line[span]),
            groups: groups(line, &captures),
        }))
    }
}

/// Returns the groups that took part in a match.
fn groups(line: &[u8], captures: &Captures) -> Vec<MatchGroup> {
    let names = captures.group_info().pattern_names(PatternID::ZERO);
    let groups = captures.iter().zip(names).skip(1);
    let groups = groups.filter_map(|(span, name)| {
        Some(MatchGroup {
            name: name.unwrap_or_default().to_owned(),
            text: matched_text(&line[span?]),
            is_cut: span?.len() > limits::MATCH_TEXT_BYTES_MAX,
        })
    });
    groups.collect()
}

fn automaton(nfa: NFA, kind: MatchKind) -> Result<DFA, String> {
    let bytes_per_state = BYTES_PER_STATE_MIN.max(nfa.states().len() / STATES_PER_BYTE);
    let config = dfa::Config::new()
        .match_kind(kind)
        .unicode_word_boundary(true)
        .cache_capacity(STATES_BYTES_MAX)
        .skip_cache_capacity_check(true)
        .minimum_cache_clear_count(Some(CLEARS_MIN))
        .minimum_bytes_per_state(Some(bytes_per_state));
    let built = dfa::Builder::new().configure(config).build_from_nfa(nfa);
    built.map_err(|error| format!("cannot be searched: {error}"))
}
