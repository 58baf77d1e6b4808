//! Screens of terminals.

use super::{terminal, token::Cursor};
use crate::pb::{self, screen_color};
use kennel_supervisor::{Color, Picture, PictureLine, ScreenView, Span, Style};

pub(crate) fn screen(view: ScreenView) -> pb::Screen {
    let Picture {
        size,
        lines,
        cursor: (row, col),
        cursor_visible,
        title,
        is_alternate,
        is_untouched,
        repaint,
    } = view.picture;
    let cursor = Cursor {
        run: view.run.run,
        at: view.position,
        form: None,
    };
    pb::Screen {
        size: Some(terminal::size(size)),
        lines: lines.into_iter().map(line).collect(),
        cursor_row: row.into(),
        cursor_col: col.into(),
        cursor_visible,
        title: title.unwrap_or_default(),
        alternate: is_alternate,
        attempt: view.attempt,
        seq: view.position.seq,
        cursor: cursor.encode(),
        whole_from_seq: view.whole_from,
        repaint: repaint.into(),
        untouched: is_untouched,
    }
}

fn line(line: PictureLine) -> pb::ScreenLine {
    pb::ScreenLine {
        spans: line.spans.into_iter().map(span).collect(),
        wrapped: line.is_wrapped,
    }
}

fn span(span: Span) -> pb::ScreenSpan {
    let plain = span.style == Style::default();
    pb::ScreenSpan {
        text: span.text,
        style: (!plain).then(|| style(span.style)),
    }
}

fn style(style: Style) -> pb::ScreenStyle {
    pb::ScreenStyle {
        foreground: style.foreground.map(color),
        background: style.background.map(color),
        bold: style.bold,
        faint: style.faint,
        italic: style.italic,
        underline: style.underline,
        blink: style.blink,
        inverse: style.inverse,
        strikethrough: style.strikethrough,
    }
}

fn color(color: Color) -> pb::ScreenColor {
    let color = match color {
        Color::Indexed(index) => screen_color::Color::Indexed(index.into()),
        Color::Rgb(red, green, blue) => {
            screen_color::Color::Rgb(u32::from_be_bytes([0, red, green, blue]))
        }
    };
    pb::ScreenColor { color: Some(color) }
}
