use super::*;
use proptest::prelude::*;

const SIZE: TerminalSize = TerminalSize { rows: 6, cols: 20 };

fn shown(data: &[u8]) -> Picture {
    let mut screen = Screen::new(SIZE);
    screen.feed(data);
    screen.picture()
}

fn text(picture: &Picture) -> Vec<String> {
    let line = |line: &PictureLine| line.spans.iter().map(|span| &*span.text).collect();
    picture.lines.iter().map(line).collect()
}

#[test]
fn screen_shows_text_at_its_position() {
    let picture = shown("one\r\n\x1b[1;31mtwo\x1b[0m 二\x1b[5;3Hx\x1b[?25l".as_bytes());
    assert_eq!(text(&picture), ["one", "two 二", "", "", "  x", ""]);
    let second = &picture.lines[1].spans;
    let loud = Style {
        foreground: Some(Color::Indexed(1)),
        bold: true,
        ..Style::default()
    };
    assert_eq!((&*second[0].text, second[0].style), ("two", loud));
    assert_eq!(
        (&*second[1].text, second[1].style),
        (" 二", Style::default())
    );
    assert_eq!(picture.cursor, (4, 3));
    assert!(!picture.cursor_visible && !picture.is_alternate);
}

#[test]
fn main_screen_is_restored_after_an_editor() {
    let mut screen = Screen::new(SIZE);
    screen.feed(b"$ edit\r\n\x1b[?1049h\x1b[H~ file ~");
    let within = screen.picture();
    assert!(within.is_alternate);
    assert_eq!(text(&within)[0], "~ file ~");
    let mut other = Screen::new(SIZE);
    other.feed(b"\x1b[?1049hsomething else\x1b[3;5r\x1b[41m");
    other.feed(&within.repaint);
    assert_eq!(other.picture(), within);
    for screen in [&mut screen, &mut other] {
        screen.feed(b"\x1b[?1049l");
        assert_eq!(text(&screen.picture())[0], "$ edit");
    }
}

#[test]
fn repaint_restores_title_and_modes() {
    let modes = b"\x1b]0;first\x07\x1b[22;2t\x1b]2;a \xc3\xa4\x1b\\\x1b[?1000;1006h\x1b[?2004h\x1b=\x1b[?1h\x1b[4 q\x1b[?1006l";
    let mut screen = Screen::new(SIZE);
    screen.feed(modes);
    let picture = screen.picture();
    assert_eq!(picture.title.as_deref(), Some("a ä"));
    let repaint = String::from_utf8(picture.repaint.clone()).expect("it is text");
    for sequence in [
        "\x1b[?1000h",
        "\x1b[?2004h",
        "\x1b=",
        "\x1b[?1h",
        "\x1b[4 q",
    ] {
        assert!(
            repaint.contains(sequence),
            "{sequence:?} is not in {repaint:?}"
        );
    }
    assert!(!repaint.contains("\x1b[?1006h"), "{repaint:?}");
    let mut other = Screen::new(SIZE);
    other.feed(&picture.repaint);
    assert_eq!(other.picture(), picture);
    screen.feed(b"\x1b[23;2t");
    assert_eq!(screen.picture().title.as_deref(), Some("first"));
    screen.feed(b"\x1bc");
    let empty = shown(b"\x1b]2;first\x07");
    assert_eq!(screen.picture(), empty);
}

// promise: P-11
#[test]
fn any_output_marks_the_screen_as_touched() {
    let mut screen = Screen::new(SIZE);
    screen.feed(b"");
    screen.resize(TerminalSize { rows: 3, cols: 30 });
    assert!(screen.picture().is_untouched);
    for output in [b"\x1b[?2004h".as_slice(), b"\xc3"] {
        assert!(!shown(output).is_untouched);
    }
    screen.skip();
    assert!(!screen.picture().is_untouched);
}

/// Sets every mode, and leaves the cursor in the third line and fourth column.
const EVERY_MODE: &[u8] =
    b"\x1b[=3;1u\x1b[>7u\x1b[?1;5;9;12;66;1000h\x1b[?8;1007l\x1b[?1004;1006;2004;2026;2031;2048h\
    \x1b[>4;2m\x1b=\x1b[4 q\x1b[4;20h\x1b[?25;7l\x1b[?6h\x1b[2;5r\x1b[1;31m\x1b(0\x1b[2;4H";

// promise: P-11
#[test]
fn repaint_restores_keyboard_modes_for_late_client() {
    for leaves in [b"".as_slice(), b"\x1b[?1049h", b"\x1b[<u\x1b[=8;2u\x1b[>4m"] {
        let mut there = Screen::new(SIZE);
        there.feed(b"\x1b[?1049h\x1b[>1u\x1b[>5u\x1b[?1049l");
        there.feed(EVERY_MODE);
        there.feed(leaves);
        let repaint = String::from_utf8(there.picture().repaint).expect("it is text");
        assert!(
            repaint.contains("\x1b[?1047h\x1b[>1u\x1b[>5u"),
            "{repaint:?}"
        );
        let mut late = Screen::new(SIZE);
        late.feed(b"\x1b[?1049h\x1b[>2u\x1b[>4;1m\x1b[?2026h");
        late.feed(&there.picture().repaint);
        assert_eq!(late.marks, there.marks, "{}", leaves.escape_ascii());
        for screen in [&mut there, &mut late] {
            screen.feed(b"\x1b[<u\x1b[?1049l\x1b[<2u");
        }
        assert_eq!(late.marks, there.marks, "{}", leaves.escape_ascii());
    }
}

// promise: P-14
#[test]
fn terminal_reset_keeps_the_cursor_position() {
    for within in [b"".as_slice(), b"\x1b[?1049h\x1b[>5u"] {
        let mut screen = Screen::new(SIZE);
        screen.feed(EVERY_MODE);
        let cursor = screen.picture().cursor;
        assert_eq!(cursor, (2, 3));
        screen.feed(within);
        screen.feed(kennel_lifecycle::put_terminal_back().as_bytes());
        let after = screen.picture();
        assert_eq!(screen.marks, ScreenMarks::default());
        assert!(!after.is_alternate && after.cursor_visible);
        if within.is_empty() {
            assert_eq!(after.cursor, cursor);
        }
        // No origin mode, margins, insert mode, character set or colours remain.
        screen.feed(b"\x1b[H0123456789abcdefghij\x1b[Hq");
        let after = screen.picture();
        assert_eq!(text(&after)[0], "q123456789abcdefghij");
        assert_eq!(after.lines[0].spans[0].style, Style::default());
    }
}

#[test]
fn resize_rewraps_lines_and_limits_the_grid() {
    let mut screen = Screen::new(SIZE);
    screen.feed(b"0123456789abcdefghij+\r\n");
    assert!(screen.picture().lines[0].is_wrapped);
    screen.resize(TerminalSize { rows: 3, cols: 30 });
    assert_eq!(text(&screen.picture()), ["0123456789abcdefghij+", "", ""]);
    let huge = TerminalSize {
        rows: u16::MAX,
        cols: u16::MAX,
    };
    assert!(!is_drawn(huge));
    screen.resize(huge);
    assert!(is_drawn(screen.size()));
}

#[test]
fn gap_resets_an_unfinished_sequence() {
    let mut screen = Screen::new(SIZE);
    screen.feed(b"a\x1b]2;half of a title\xc3");
    screen.skip();
    screen.feed(b"b");
    assert_eq!(text(&screen.picture())[0], "ab");
    assert_eq!(screen.picture().title, None);
}

// promise: P-10
#[test]
fn title_of_hostile_output_is_bounded() {
    let mut screen = Screen::new(SIZE);
    screen.feed(b"\x1b]2;");
    for _ in 0..64 {
        screen.feed(&vec![b'x'; 64 * 1024]);
    }
    screen.feed(b"\x07\x1b[");
    screen.feed(&vec![b'1'; 64 * 1024]);
    screen.feed(b"h\x1b[99999999999999999999;1H\x1b[65535b");
    let picture = screen.picture();
    assert_eq!(
        picture.title.map_or(0, |title| title.len()),
        1024 - "2;".len()
    );
}

// promise: P-10a
#[test]
fn drawing_cost_is_the_number_of_cells() {
    let large = TerminalSize {
        rows: 512,
        cols: 512,
    };
    let long: &[u8] = b"x\x1b[65535b";
    let cases = [
        (SIZE, long, 65_535),
        (large, b"\x1b[2J".as_slice(), 512 * 512),
        (large, b"\x1b[4hx".as_slice(), 512),
        (SIZE, b"plain".as_slice(), 5),
    ];
    for (size, data, least) in cases {
        let mut screen = Screen::new(size);
        screen.read(data);
        let mut steps = u64::MAX;
        assert!(screen.draw(&mut steps));
        let cost = u64::MAX - steps;
        assert!((least..2 * least + 16).contains(&cost), "{data:?}: {cost}");
    }
    let mut whole = Screen::new(SIZE);
    whole.feed(long);
    let mut turns = Screen::new(SIZE);
    turns.read(long);
    let mut count = 1;
    while !turns.draw(&mut 1_000) {
        count += 1;
    }
    assert!(count > 60, "{count}");
    assert_eq!(turns.picture(), whole.picture());
}

#[test]
fn repaint_restores_tab_stops() {
    let cleared = "      ä \x0e\x1b[g".as_bytes();
    let added = b"\x1b[1;4H\x1bH";
    let none = b"\x1b[3g";
    let histories: [&[u8]; 4] = [b"", cleared, added, none];
    for data in histories {
        for before in histories {
            let mut there = Screen::new(SIZE);
            there.feed(data);
            let mut late = Screen::new(SIZE);
            late.feed(before);
            late.feed(&there.picture().repaint);
            for screen in [&mut there, &mut late] {
                screen.feed(b"\r\tone\ttwo");
            }
            assert_eq!(
                text(&late.picture()),
                text(&there.picture()),
                "{data:?} after {before:?}"
            );
        }
    }
}

/// Pieces that have an effect on a terminal.
fn pieces() -> impl Strategy<Value = Vec<u8>> {
    let fixed: &[&[u8]] = &[
        b"\x1b[?1049h",
        b"\x1b[?1049l",
        b"\x1b[2J",
        b"\x1b[H",
        b"\x1b[3;4H",
        b"\x1b[1;31m",
        b"\x1b[0m",
        b"\r\n",
        b"\x1b[2;4r",
        b"\x1b]2;title\x07",
        b"\x1b]0;other\x1b\\",
        b"\x1b[?2004h",
        b"\x1b[?1000l",
        b"\xe4\xba\x8c",
        b"\xc3\xa4",
        b"\xff",
        b"\xe4\xba",
        b"\xf0\x9f\x98\x80",
        b"\x1b",
        b"\x1b[",
        b"\x9b",
        b"\xc2\x9b",
        b"\x18",
        b"\x1bM",
        b"\x1b(0",
        b"\x1bc",
        b"\x1b[4h",
        b"\t",
        b"\x1bP$q\x1b\\",
        b"\x1b7",
        b"\x1b8",
        b"\x1b[!p",
        b"\x1b[g",
        b"\x1bH",
        b"        \x1b[g",
        b"\x1b[>1u",
        b"\x1b[=5;2u",
        b"\x1b[<u",
        b"\x1b[>4;2m",
        b"\x1b[?6h",
        b"\x1b[?2026h",
        b"\x1b[?8l",
    ];
    let fixed: Vec<Vec<u8>> = fixed.iter().map(|piece| piece.to_vec()).collect();
    let piece = prop_oneof![
        3 => proptest::sample::select(fixed),
        2 => "[a-z ]{1,30}".prop_map(String::into_bytes),
        1 => proptest::collection::vec(any::<u8>(), 1..6),
    ];
    proptest::collection::vec(piece, 0..40).prop_map(|pieces| pieces.concat())
}

proptest! {
    // promise: P-10
    #[test]
    fn screen_does_not_depend_on_read_boundaries(data in pieces(), cut in any::<proptest::sample::Index>()) {
        let whole = shown(&data);
        let mut halves = Screen::new(SIZE);
        let (left, right) = data.split_at(cut.index(data.len() + 1));
        halves.feed(left);
        halves.feed(right);
        prop_assert_eq!(&halves.picture(), &whole);
        let mut single = Screen::new(SIZE);
        for byte in &data {
            single.feed(&[*byte]);
        }
        prop_assert_eq!(&single.picture(), &whole);
        let mut turns = Screen::new(SIZE);
        turns.read(&data);
        while !turns.draw(&mut 3) {}
        prop_assert_eq!(&turns.picture(), &whole);
    }

    // promise: P-10a
    #[test]
    fn intermediate_sizes_of_resize_stay_drawable(sides in any::<[u16; 4]>()) {
        let [from, to] = [[sides[0], sides[1]], [sides[2], sides[3]]];
        let size = |[rows, cols]: [u16; 2]| within(TerminalSize { rows, cols });
        let (mut at, to) = (size(from), size(to));
        for next in way(at, to) {
            let peak = TerminalSize { rows: at.rows.max(next.rows), cols: at.cols.max(next.cols) };
            prop_assert!(is_drawn(peak), "{:?} to {:?}", at, next);
            at = next;
        }
        prop_assert_eq!(at, to);
    }

    /// A client that attaches in the middle sees the same as one that was attached all the time, from then on too.
    // promise: P-11
    #[test]
    fn repaint_reproduces_the_live_screen(data in pieces(), before in pieces(), after in pieces()) {
        let mut there = Screen::new(SIZE);
        there.feed(&data);
        let mut late = Screen::new(SIZE);
        late.feed(&before);
        late.skip();
        late.feed(&there.picture().repaint);
        let (wanted, seen) = (there.picture(), late.picture());
        prop_assert_eq!(text(&seen), text(&wanted));
        prop_assert_eq!(&seen.lines, &wanted.lines);
        prop_assert_eq!((seen.cursor, seen.cursor_visible, seen.is_alternate), (wanted.cursor, wanted.cursor_visible, wanted.is_alternate));
        there.feed(&after);
        late.feed(&after);
        prop_assert_eq!(text(&late.picture()), text(&there.picture()));
    }
}
