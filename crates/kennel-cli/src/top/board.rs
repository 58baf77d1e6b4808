//! State of the board, and the effect of keys. Pure but for the clock.

use super::{
    BoardInput,
    sample::{Sample, SampledRun},
};
use crate::{command, terminal_text, words};
use kennel_proto::pb;
use ratatui::crossterm::event::{
    KeyCode, KeyEvent, KeyEventKind, KeyModifiers, MouseButton, MouseEvent, MouseEventKind,
};
use std::{
    cmp::Ordering,
    time::{Duration, SystemTime},
};

/// Lines above and below runs and pages.
pub(super) const HEADER_LINES: u16 = 4;

/// Sort key of runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Sort {
    #[default]
    Age,
    State,
    Processes,
    Cpu,
    Memory,
    Output,
    Restarts,
}

const SORTS: [Sort; 7] = [
    Sort::Age,
    Sort::State,
    Sort::Processes,
    Sort::Cpu,
    Sort::Memory,
    Sort::Output,
    Sort::Restarts,
];

/// A requested action.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Action {
    Quit,
    Refresh,
    Tree(String),
    Logs(String),
    Abort(String),
    Pause(String),
    Resume(String),
}

/// The present view.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum BoardView {
    #[default]
    Runs,
    /// The filter is being typed.
    Filter,
    /// A question to confirm the action.
    Confirm(Action, String),
    Page {
        heading: String,
        lines: Vec<String>,
        from: usize,
    },
    Help,
}

/// The whole state of the board.
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a switch of its own, turned by hand"
)]
#[derive(Default)]
pub(super) struct Board {
    pub(super) address: String,
    pub(super) colour: bool,
    pub(super) info: Option<pb::ServerInfo>,
    pub(super) at: Option<SystemTime>,
    /// Reason why the server cannot be reached; absent: it can.
    pub(super) lost: Option<String>,
    pub(super) cut: bool,
    pub(super) unreadable: usize,
    runs: Vec<SampledRun>,
    pub(super) sort: Sort,
    pub(super) reverse: bool,
    pub(super) filter: String,
    pub(super) ended_too: bool,
    pub(super) place: BoardView,
    /// Result of the last action.
    pub(super) message: String,
    /// The selected run.
    selected: Option<String>,
    /// Number of runs, or lines of a page, that fit.
    pub(super) room: usize,
    /// Index of the first run shown.
    pub(super) first: usize,
}

impl Board {
    pub(super) fn new(address: String, colour: bool) -> Self {
        Self {
            address,
            colour,
            room: 1,
            ..Self::default()
        }
    }

    pub(super) fn update(&mut self, reported: BoardInput) {
        match reported {
            BoardInput::Sample(sample) => {
                let Sample {
                    info,
                    runs,
                    cut,
                    unreadable,
                    at,
                } = *sample;
                (self.info, self.at) = (Some(info), Some(at));
                (self.runs, self.cut, self.unreadable) = (runs, cut, unreadable);
                if self.lost.take().is_some() {
                    self.message = "the server is back".into();
                }
            }
            BoardInput::Lost(why) => self.lost = Some(terminal_text::one_line(&why)),
            BoardInput::Answer(answer) => self.message = terminal_text::one_line(&answer),
            BoardInput::Page(heading, lines) => {
                // A page of last lines is shown at its end.
                let from = if heading.starts_with("last") {
                    lines.len().saturating_sub(self.room)
                } else {
                    0
                };
                self.place = BoardView::Page {
                    heading,
                    lines,
                    from,
                };
            }
        }
    }

    /// Returns the runs shown, in order.
    pub(super) fn shown(&self) -> Vec<&SampledRun> {
        let mut shown: Vec<&SampledRun> =
            self.runs.iter().filter(|seen| self.wants(seen)).collect();
        shown.sort_by(|one, other| {
            let order = self.order(one, other);
            let order = if self.reverse { order.reverse() } else { order };
            order.then_with(|| other.run.run_id.cmp(&one.run.run_id))
        });
        shown
    }

    fn wants(&self, seen: &SampledRun) -> bool {
        let run = &seen.run;
        if run.end_time.is_some() && !self.ended_too {
            return false;
        }
        let filter = self.filter.to_lowercase();
        let has = |text: &str| text.to_lowercase().contains(&filter);
        filter.is_empty()
            || has(&run.run_id)
            || has(&command::or_dash(run))
            || has(&words::state(run.state()))
            || run
                .labels
                .iter()
                .any(|(key, value)| has(&format!("{key}={value}")))
    }

    /// Orders the largest first; unknown values last.
    fn order(&self, one: &SampledRun, other: &SampledRun) -> Ordering {
        let (a, b) = (&one.usage, &other.usage);
        let largest =
            |x: Option<f64>, y: Option<f64>| y.unwrap_or(-1.0).total_cmp(&x.unwrap_or(-1.0));
        match self.sort {
            // Ids rise with time, and the newest run comes first.
            Sort::Age => other.run.run_id.cmp(&one.run.run_id),
            Sort::State => words::state(one.run.state()).cmp(&words::state(other.run.state())),
            Sort::Processes => b.processes.cmp(&a.processes),
            Sort::Cpu => largest(a.cpu_percent, b.cpu_percent),
            Sort::Memory => b.memory_bytes.cmp(&a.memory_bytes),
            Sort::Output => largest(a.output_rate, b.output_rate),
            Sort::Restarts => restarts(&other.run).cmp(&restarts(&one.run)),
        }
    }

    /// Returns the index of the selected run among those shown.
    pub(super) fn pointed(&self, shown: &[&SampledRun]) -> usize {
        let is_it = |seen: &&SampledRun| Some(&seen.run.run_id) == self.selected.as_ref();
        shown.iter().position(is_it).unwrap_or(0)
    }

    fn point(&mut self, by: isize) {
        let shown = self.shown();
        let last = shown.len().saturating_sub(1);
        let at = self.pointed(&shown).saturating_add_signed(by).min(last);
        let id = shown.get(at).map(|seen| seen.run.run_id.clone());
        self.selected = id;
    }

    fn run(&self) -> Option<pb::Run> {
        let shown = self.shown();
        let at = self.pointed(&shown);
        shown.get(at).map(|seen| seen.run.clone())
    }

    /// Handles a key; returns the requested action.
    pub(super) fn key(&mut self, key: KeyEvent) -> Option<Action> {
        if key.kind == KeyEventKind::Release {
            return None;
        }
        let control = key.modifiers.contains(KeyModifiers::CONTROL);
        if control && key.code == KeyCode::Char('c') {
            return Some(Action::Quit);
        }
        match std::mem::take(&mut self.place) {
            BoardView::Runs => self.key_among_runs(key.code),
            BoardView::Filter => {
                self.key_of_filter(key.code);
                None
            }
            BoardView::Confirm(action, _) => match key.code {
                KeyCode::Char('y' | 'Y') => Some(action),
                _ => {
                    self.message = "nothing was done".into();
                    None
                }
            },
            BoardView::Page {
                heading,
                lines,
                from,
            } => {
                self.key_on_page(key.code, heading, lines, from);
                None
            }
            BoardView::Help => None,
        }
    }

    /// Handles the mouse: the wheel scrolls, a click selects, and one on the selected run opens it.
    pub(super) fn mouse(&mut self, mouse: MouseEvent) -> Option<Action> {
        let key = |code| KeyEvent::new(code, KeyModifiers::NONE);
        if !matches!(self.place, BoardView::Runs | BoardView::Page { .. }) {
            return None;
        }
        match mouse.kind {
            MouseEventKind::ScrollUp => self.key(key(KeyCode::Up)),
            MouseEventKind::ScrollDown => self.key(key(KeyCode::Down)),
            MouseEventKind::Down(MouseButton::Left) if self.place == BoardView::Runs => {
                let line = usize::from(mouse.row).checked_sub(usize::from(HEADER_LINES))?;
                let at = self.first + line;
                let shown = self.shown();
                let run = shown.get(at).filter(|_| line < self.room)?;
                let run_id = run.run.run_id.clone();
                if self.selected.as_ref() == Some(&run_id) {
                    return Some(Action::Tree(run_id));
                }
                self.selected = Some(run_id);
                None
            }
            _ => None,
        }
    }

    /// Scrolls as little as needed, so that the selected run is shown.
    pub(super) fn scroll(&mut self) {
        let shown = self.shown();
        let pointed = self.pointed(&shown);
        let least = (pointed + 1).saturating_sub(self.room);
        self.first = self.first.clamp(least, pointed.max(least));
    }

    fn key_among_runs(&mut self, key: KeyCode) -> Option<Action> {
        let page = isize::try_from(self.room).unwrap_or(1);
        self.message.clear();
        match key {
            KeyCode::Char('q') => return Some(Action::Quit),
            KeyCode::Char(' ') => return Some(Action::Refresh),
            KeyCode::Up | KeyCode::Char('k') => self.point(-1),
            KeyCode::Down | KeyCode::Char('j') => self.point(1),
            KeyCode::PageUp => self.point(-page),
            KeyCode::PageDown => self.point(page),
            KeyCode::Home => self.point(isize::MIN),
            KeyCode::End => self.point(isize::MAX),
            KeyCode::Char('s') => self.sort_by(1),
            KeyCode::Char('S') => self.sort_by(SORTS.len() - 1),
            KeyCode::Char('r') => self.reverse = !self.reverse,
            KeyCode::Char('a') => self.ended_too = !self.ended_too,
            KeyCode::Char('/') => self.place = BoardView::Filter,
            KeyCode::Esc => self.filter.clear(),
            KeyCode::Char('?' | 'h') => self.place = BoardView::Help,
            KeyCode::Enter | KeyCode::Char('t') => return Some(Action::Tree(self.run()?.run_id)),
            KeyCode::Char('l') => return Some(Action::Logs(self.run()?.run_id)),
            KeyCode::Char('x') => self.confirm_abort(),
            KeyCode::Char('p') => self.confirm_pause(),
            _ => {}
        }
        None
    }

    fn sort_by(&mut self, further: usize) {
        let at = SORTS
            .iter()
            .position(|sort| *sort == self.sort)
            .unwrap_or(0);
        self.sort = SORTS[(at + further) % SORTS.len()];
    }

    fn confirm_abort(&mut self) {
        let Some(run) = self.run() else { return };
        if run.end_time.is_some() {
            self.message = "it has ended".into();
            return;
        }
        let ask = format!("end {} and its whole tree?", run.run_id);
        self.place = BoardView::Confirm(Action::Abort(run.run_id), ask);
    }

    fn confirm_pause(&mut self) {
        let Some(run) = self.run() else { return };
        let id = run.run_id.clone();
        let (action, ask) = match run.state() {
            pb::RunState::Paused => (Action::Resume(id), "resume"),
            pb::RunState::Running => (Action::Pause(id), "pause"),
            state => {
                self.message = format!("it is {}", words::state(state));
                return;
            }
        };
        self.place = BoardView::Confirm(action, format!("{ask} {}?", run.run_id));
    }

    fn key_of_filter(&mut self, key: KeyCode) {
        self.place = BoardView::Filter;
        match key {
            KeyCode::Enter => self.place = BoardView::Runs,
            KeyCode::Esc => {
                self.filter.clear();
                self.place = BoardView::Runs;
            }
            KeyCode::Backspace => drop(self.filter.pop()),
            KeyCode::Char(c) => self.filter.push(c),
            _ => {}
        }
    }

    fn key_on_page(&mut self, key: KeyCode, heading: String, lines: Vec<String>, from: usize) {
        let last = lines.len().saturating_sub(self.room);
        let from = match key {
            KeyCode::Up | KeyCode::Char('k') => from.saturating_sub(1),
            KeyCode::Down | KeyCode::Char('j') => from + 1,
            KeyCode::PageUp => from.saturating_sub(self.room),
            KeyCode::PageDown | KeyCode::Char(' ') => from + self.room,
            KeyCode::Home => 0,
            KeyCode::End => last,
            KeyCode::Esc | KeyCode::Enter | KeyCode::Char('q') => return,
            _ => from,
        };
        self.place = BoardView::Page {
            heading,
            lines,
            from: from.min(last),
        };
    }

    /// Returns the totals of all live runs, as far as known: those that the filter hides are among them.
    pub(super) fn totals(&self) -> (u32, Option<f64>, u64) {
        let usages = self.runs.iter().map(|seen| &seen.usage);
        let mut total = (0, None, 0);
        for usage in usages {
            total.0 += usage.processes.unwrap_or(0);
            total.2 += usage.memory_bytes.unwrap_or(0);
            if let Some(cpu) = usage.cpu_percent {
                total.1 = Some(total.1.unwrap_or(0.0) + cpu);
            }
        }
        total
    }
}

pub(super) fn restarts(run: &pb::Run) -> u32 {
    let attempt = run.current_attempt.as_ref();
    attempt.map_or(0, |attempt| attempt.number.saturating_sub(1))
}

pub(super) fn age(run: &pb::Run, now: SystemTime) -> Option<Duration> {
    let created = SystemTime::try_from(run.create_time?).ok()?;
    Some(now.duration_since(created).unwrap_or_default())
}

#[cfg(test)]
mod tests;
