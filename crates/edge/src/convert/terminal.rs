//! Terminals: in specs, and in their present state.

use crate::pb::{self, run_spec::Stdio};
use kennel_lifecycle::{RunKind, TerminalSize, TerminalSpec, Violation, limits};
use kennel_supervisor::InterruptWay;

/// Returns the kind in force, and the terminal that a spec requests, if it does.
pub(super) fn parse(
    kind: RunKind,
    names_no_kind: bool,
    stdio: Option<&Stdio>,
    found: &mut Vec<Violation>,
) -> (RunKind, Option<TerminalSpec>) {
    let terminal = match stdio {
        Some(Stdio::Terminal(terminal)) => terminal,
        None if kind == RunKind::Terminal => &pb::Terminal::default(),
        Some(Stdio::Pipes(_)) | None => return (kind, None),
    };
    let kind = if names_no_kind {
        RunKind::Terminal
    } else {
        kind
    };
    let default = TerminalSpec::default();
    let mut parsed_side = |field: &str, given: Option<u32>, default: u16| {
        given.map_or(default, |given| side(field, given, found))
    };
    let rows = parsed_side("spec.terminal.rows", terminal.rows, default.size.rows);
    let cols = parsed_side("spec.terminal.cols", terminal.cols, default.size.cols);
    let term = match terminal.term.as_str() {
        "" => default.term,
        term => term.to_owned(),
    };
    let size = TerminalSize { rows, cols };
    (kind, Some(TerminalSpec { term, size }))
}

/// Returns the terminal of a spec for reads.
pub(super) fn shown(terminal: &TerminalSpec) -> pb::Terminal {
    pb::Terminal {
        rows: Some(terminal.size.rows.into()),
        cols: Some(terminal.size.cols.into()),
        term: terminal.term.clone(),
    }
}

/// Parses rows or columns.
fn side(field: &str, given: u32, found: &mut Vec<Violation>) -> u16 {
    match u16::try_from(given) {
        Ok(side @ 1..) => side,
        Ok(0) | Err(_) => {
            found.push(Violation::new(field, limits::TERMINAL_SIDE_WANTED));
            // The value has no effect: the request is refused.
            1
        }
    }
}

/// Parses a complete size; `prefix` is put before its fields, such as `resize.`, or empty.
pub(crate) fn given_size(
    prefix: &str,
    pb::TerminalSize { rows, cols }: pb::TerminalSize,
    found: &mut Vec<Violation>,
) -> TerminalSize {
    TerminalSize {
        rows: side(&format!("{prefix}rows"), rows, found),
        cols: side(&format!("{prefix}cols"), cols, found),
    }
}

pub(crate) fn size(size: TerminalSize) -> pb::TerminalSize {
    pb::TerminalSize {
        rows: size.rows.into(),
        cols: size.cols.into(),
    }
}

pub(crate) fn method(way: Option<InterruptWay>) -> pb::InterruptMethod {
    match way {
        None => pb::InterruptMethod::Unspecified,
        Some(InterruptWay::Group) => pb::InterruptMethod::ProcessGroup,
        Some(InterruptWay::Key) => pb::InterruptMethod::TerminalKey,
        Some(InterruptWay::Foreground) => pb::InterruptMethod::TerminalForeground,
        Some(InterruptWay::Typed) => pb::InterruptMethod::TerminalInput,
    }
}
