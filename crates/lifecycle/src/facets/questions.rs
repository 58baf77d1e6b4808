//! Questions of a run's command: what it waits for an answer to, and who answered.

use crate::{Timestamp, limits, names::named};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, VecDeque};

/// What is known of a question when it is asked.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Asked {
    /// Its number in the run, from 1.
    pub number: u64,
    /// Its text, of bounded length.
    pub text: String,
    /// Whether a longer text was cut.
    pub is_cut: bool,
    /// Named groups of the match.
    pub captures: BTreeMap<String, String>,
    /// Where it was read; absent: the command or a client has reported it.
    pub line: Option<AskedLine>,
    /// Number of bytes of input that were accepted before; absent: not known.
    pub accepted: Option<u64>,
    /// Whether the terminal does not show what is typed.
    pub echo_off: bool,
}

/// Place of a question in the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AskedLine {
    /// 1: standard output, 2: standard error.
    pub stream: u8,
    /// Offset of the first byte of its line in the whole of the stream.
    pub offset: u64,
    /// Length of the text of the line up to the end of the question.
    pub len: usize,
}

/// A question that waits for an answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Question {
    /// Number of the attempt that asks.
    pub attempt: u32,
    /// Time at which it was asked.
    pub at: Timestamp,
    /// Name of an output rule, `notify`, or a principal.
    pub by: String,
    /// The rest.
    #[serde(flatten)]
    pub asked: Asked,
}

named! {
    /// What has ended a question.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum AnsweredBy {
        /// Input that names the question.
        Answer = "answer",
        /// Other input.
        Input = "input",
        /// An Interrupt.
        Interrupt = "interrupt",
    }
}

/// An answered question.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Answered {
    /// Number of the question.
    pub number: u64,
    /// Principal who answered; empty: not known.
    pub by: String,
    /// What was written.
    pub write: Option<AnsweringWrite>,
}

/// Input that has answered a question.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AnsweringWrite {
    /// Id of the write.
    pub id: String,
    /// Offset of its first byte.
    pub start: u64,
    /// Offset after its last byte.
    pub end: u64,
}

/// Questions of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Questions {
    /// Number of the questions so far.
    pub count: u64,
    /// Those that wait, the oldest first.
    pub open: VecDeque<Question>,
    /// The last that were answered.
    pub answered: VecDeque<Answered>,
}

impl Questions {
    /// Adds a question; the oldest go where it is one too many, or their texts are too long.
    pub(super) fn ask(&mut self, at: Timestamp, attempt: u32, by: &str, asked: &Asked) {
        self.count = asked.number;
        self.open.retain(|question| question.attempt == attempt);
        self.open.push_back(Question {
            attempt,
            at,
            by: by.to_owned(),
            asked: asked.clone(),
        });
        let is_full = |open: &VecDeque<Question>| {
            let bytes: usize = open.iter().map(Question::bytes).sum();
            open.len() > limits::QUESTIONS_MAX || bytes > limits::QUESTIONS_BYTES_MAX
        };
        while self.open.len() > 1 && is_full(&self.open) {
            self.open.pop_front();
        }
    }

    /// Ends these questions; returns whether that is news.
    pub(super) fn answer(
        &mut self,
        numbers: &[u64],
        by: &str,
        write: Option<&AnsweringWrite>,
    ) -> bool {
        let is_new = |number: &&u64| self.answer_to(**number).is_none();
        let new: Vec<u64> = numbers.iter().filter(is_new).copied().collect();
        self.open.retain(|open| !new.contains(&open.asked.number));
        // The write answers no other question.
        for question in &mut self.open {
            question.asked.accepted = write.map(|write| write.end).or(question.asked.accepted);
        }
        for number in &new {
            self.answered.push_back(Answered {
                number: *number,
                by: by.to_owned(),
                write: write.cloned(),
            });
        }
        while self.answered.len() > limits::QUESTIONS_MAX {
            self.answered.pop_front();
        }
        !new.is_empty()
    }

    /// Returns the questions of this attempt that wait.
    pub fn of(&self, attempt: u32) -> impl Iterator<Item = &Question> {
        let open = self.open.iter();
        open.filter(move |question| question.attempt == attempt)
    }

    /// Returns their numbers.
    pub fn numbers(&self, attempt: u32) -> Vec<u64> {
        self.of(attempt).map(|open| open.asked.number).collect()
    }

    /// Whether more input was accepted than when this attempt asked.
    pub fn are_behind(&self, attempt: u32, accepted: u64) -> bool {
        self.of(attempt)
            .any(|question| question.asked.accepted.is_some_and(|then| then < accepted))
    }

    /// Returns the answer to this question, where it is one of the last.
    pub fn answer_to(&self, number: u64) -> Option<&Answered> {
        self.answered
            .iter()
            .rev()
            .find(|answered| answered.number == number)
    }
}

impl Question {
    fn bytes(&self) -> usize {
        let captures = self.asked.captures.iter();
        self.asked.text.len()
            + captures
                .map(|(key, value)| key.len() + value.len())
                .sum::<usize>()
    }
}
