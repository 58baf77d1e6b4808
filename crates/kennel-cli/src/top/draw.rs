//! Draws the board, in any size of terminal.

use super::{
    board::{Board, BoardView, Sort, age, restarts},
    keys,
    sample::SampledRun,
};
use crate::{
    command, render, sentence, terminal_text,
    top::board::HEADER_LINES,
    values::{self, short_bytes as bytes},
};
use kennel_proto::pb;
use ratatui::{
    Frame,
    layout::Rect,
    style::{Color, Modifier, Style},
    text::{Line, Span},
    widgets::Paragraph,
};
use std::time::{Duration, SystemTime};

const FOOTER_LINES: u16 = 1;
/// Width below which a run is shown by the end of its id, and without readiness and activity.
const WIDE: u16 = 120;
/// Characters of a shortened id.
const SHORT_ID_CHARS: usize = 10;
/// Least width of the states.
const STATE_CHARS: usize = 9;
/// Text for an unknown value.
const UNKNOWN: &str = "-";

pub(super) fn board(frame: &mut Frame, board: &mut Board) {
    let area = frame.area();
    let rest = area.height.saturating_sub(HEADER_LINES + FOOTER_LINES);
    board.room = usize::from(rest).max(1);
    board.scroll();
    let mut lines = header(board, area.width);
    lines.truncate(usize::from(HEADER_LINES));
    match &board.place {
        BoardView::Help => {
            let keys = keys::HELP.iter();
            lines.extend(keys.map(|(key, does)| Line::raw(format!("{key:20} {does}"))));
        }
        BoardView::Page {
            heading,
            lines: page,
            from,
        } => {
            let styled = Style::new().add_modifier(Modifier::BOLD);
            if let Some(last) = lines.last_mut() {
                *last = Line::styled(heading.clone(), styled);
            }
            let shown = page.iter().skip(*from).take(board.room);
            lines.extend(shown.map(|line| Line::raw(line.clone())));
        }
        BoardView::Runs | BoardView::Filter | BoardView::Confirm(..) => {
            lines.extend(runs(board, area.width));
        }
    }
    lines.truncate(usize::from(area.height.saturating_sub(FOOTER_LINES)));
    frame.render_widget(Paragraph::new(lines), area);
    if area.height > FOOTER_LINES {
        let y = area.y + area.height - FOOTER_LINES;
        let footer_area = Rect::new(area.x, y, area.width, FOOTER_LINES);
        frame.render_widget(Paragraph::new(footer(board)), footer_area);
    }
}

fn header(board: &Board, width: u16) -> Vec<Line<'static>> {
    let bold = Style::new().add_modifier(Modifier::BOLD);
    let Some(info) = &board.info else {
        let waiting = match &board.lost {
            Some(why) => alarm(board, format!("no server: {why}; trying again")),
            None => Line::raw(format!("asking {} ...", board.address)),
        };
        return vec![
            Line::styled("kennel top", bold),
            Line::raw(""),
            waiting,
            Line::raw(""),
        ];
    };
    let live = sentence::of("liveRuns", info);
    let (processes, cpu, memory) = board.totals();
    let second = format!(
        "{live}  processes {processes}  cpu {}%  memory {}",
        percent(cpu),
        bytes(memory)
    );
    vec![
        Line::styled(sentence::of("topServer", info), bold),
        Line::raw(second),
        state_line(board),
        heading(board, width),
    ]
}

/// Returns the present error, else the question, else the order and filter of runs.
fn state_line(board: &Board) -> Line<'static> {
    if let Some(why) = &board.lost {
        return alarm(board, format!("the server is lost: {why}; trying again"));
    }
    if !board.message.is_empty() {
        return Line::raw(board.message.clone());
    }
    let order = values::only_if(board.reverse, ", the other way round");
    let which = if board.ended_too {
        "all runs"
    } else {
        "live runs"
    };
    let cut = values::only_if(board.cut, " (the newest of them)");
    let unreadable = match board.unreadable {
        0 => String::new(),
        count => format!(", {count} cannot be read here"),
    };
    let filter = match board.filter.as_str() {
        "" => String::new(),
        filter => format!(" with {filter:?}"),
    };
    let sort = name(board.sort);
    Line::raw(format!(
        "{which}{cut}{unreadable}{filter}, by {sort}{order}"
    ))
}

fn alarm(board: &Board, text: String) -> Line<'static> {
    let style = if board.colour {
        Style::new().fg(Color::Red).add_modifier(Modifier::BOLD)
    } else {
        Style::new().add_modifier(Modifier::BOLD)
    };
    Line::styled(text, style)
}

fn name(sort: Sort) -> &'static str {
    match sort {
        Sort::Age => "age",
        Sort::State => "state",
        Sort::Processes => "processes",
        Sort::Cpu => "cpu",
        Sort::Memory => "memory",
        Sort::Output => "output",
        Sort::Restarts => "restarts",
    }
}

fn heading(board: &Board, width: u16) -> Line<'static> {
    let text = row(
        (width, state_chars(board)),
        [
            "RUN", "STATE", "READY", "ACTIVITY", "AGE", "PROC", "CPU%", "MEM", "OUT/S", "RST",
            "COMMAND",
        ]
        .map(str::to_owned),
    );
    let mut style = Style::new().add_modifier(Modifier::BOLD);
    if board.colour {
        style = style.fg(Color::Cyan);
    }
    Line::styled(text, style)
}

fn row((width, state_chars): (u16, usize), cells: [String; 11]) -> String {
    let [
        run,
        state,
        ready,
        activity,
        age,
        processes,
        cpu,
        memory,
        output,
        restarts,
        command,
    ] = cells;
    let id = if width < WIDE { SHORT_ID_CHARS + 1 } else { 26 };
    let facets = if width < WIDE {
        String::new()
    } else {
        format!("{ready:5} {activity:14} ")
    };
    format!(
        "{run:id$} {state:state_chars$} {facets}{age:>6} {processes:>4} {cpu:>6} {memory:>6} {output:>7} {restarts:>3} {command}"
    )
}

/// Returns when the runs shown were seen.
fn taken_at(board: &Board) -> SystemTime {
    board.at.unwrap_or(SystemTime::UNIX_EPOCH)
}

/// Returns the width of the longest state shown.
fn state_chars(board: &Board) -> usize {
    let now = taken_at(board);
    let shown = board.shown();
    let states = shown.iter().map(|seen| render::state(&seen.run, now).len());
    states.max().unwrap_or(0).max(STATE_CHARS)
}

fn runs(board: &Board, width: u16) -> Vec<Line<'static>> {
    let shown = board.shown();
    let pointed = board.pointed(&shown);
    let (room, from) = (board.room, board.first);
    let (now, widths) = (taken_at(board), (width, state_chars(board)));
    let lines = shown.iter().enumerate().skip(from).take(room);
    lines
        .map(|(nth, seen)| {
            let text = run(seen, now, widths);
            let mut style = Style::new();
            if board.lost.is_some() {
                style = style.add_modifier(Modifier::DIM);
            }
            if nth == pointed {
                style = style.add_modifier(Modifier::REVERSED);
            }
            if board.colour {
                style = style.patch(colour(seen.run.state()));
            }
            Line::styled(text, style)
        })
        .collect()
}

fn colour(state: pb::RunState) -> Style {
    match state {
        pb::RunState::Failed | pb::RunState::Lost => Style::new().fg(Color::Red),
        pb::RunState::Stopping | pb::RunState::Backoff => Style::new().fg(Color::Yellow),
        pb::RunState::Paused | pb::RunState::Starting => Style::new().fg(Color::Blue),
        _ => Style::new(),
    }
}

fn run(seen: &SampledRun, now: SystemTime, widths: (u16, usize)) -> String {
    let SampledRun { run, usage } = seen;
    let id = if widths.0 < WIDE {
        // An id begins with its time, which is similar for all runs.
        let from = run.run_id.len().saturating_sub(SHORT_ID_CHARS);
        format!("~{}", run.run_id.get(from..).unwrap_or(&run.run_id))
    } else {
        run.run_id.clone()
    };
    let unknown = || UNKNOWN.to_owned();
    row(
        widths,
        [
            id,
            render::state(run, now),
            render::ready(run).unwrap_or(UNKNOWN).to_owned(),
            sentence::activity(run.activity()).to_owned(),
            age(run, now).map_or_else(unknown, short_age),
            usage.processes.map_or_else(unknown, |n| n.to_string()),
            percent(usage.cpu_percent),
            usage.memory_bytes.map_or_else(unknown, bytes),
            usage.output_rate.map(whole).map_or_else(unknown, bytes),
            restarts(run).to_string(),
            terminal_text::one_line(&command::or_dash(run)),
        ],
    )
}

fn short_age(age: Duration) -> String {
    if age < Duration::from_secs(1) {
        return "0s".to_owned();
    }
    values::age(age)
}

/// Returns a rate in whole bytes.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a rate is positive and far below the limit"
)]
pub(super) fn whole(rate: f64) -> u64 {
    rate as u64
}

pub(super) fn percent(percent: Option<f64>) -> String {
    percent.map_or_else(|| UNKNOWN.to_owned(), |percent| format!("{percent:.1}"))
}

fn footer(board: &Board) -> Line<'static> {
    let bold = Style::new().add_modifier(Modifier::BOLD);
    match &board.place {
        BoardView::Confirm(_, ask) => alarm(board, format!("{ask} y: yes, any other key: no")),
        BoardView::Filter => Line::from(vec![
            Span::styled("show only: ", bold),
            Span::raw(format!("{}_", terminal_text::one_line(&board.filter))),
        ]),
        BoardView::Help => Line::styled("any key goes back", bold),
        BoardView::Page { .. } => Line::styled("Esc back  up down PgUp PgDn Home End", bold),
        BoardView::Runs => Line::styled(
            "q quit  ? help  t tree  l logs  x end  p pause  s sort  / filter  a all",
            bold,
        ),
    }
}
