use super::*;
use proptest::prelude::*;

const LINES: Form = Form {
    plain: false,
    lines: true,
    line_bytes_max: LINE_BYTES_MAX,
};
const PLAIN_LINES: Form = Form {
    plain: true,
    lines: true,
    line_bytes_max: LINE_BYTES_MAX,
};
const PLAIN: Form = Form {
    plain: true,
    lines: false,
    line_bytes_max: LINE_BYTES_MAX,
};

/// Returns all pieces of bytes that come in these parts.
fn pieces<'a>(form: Form, parts: impl IntoIterator<Item = &'a [u8]>) -> Vec<Piece> {
    let mut view = View::new(form, 0);
    let mut pieces: Vec<Piece> = parts.into_iter().flat_map(|p| view.feed(p)).collect();
    pieces.extend(view.finish());
    pieces
}

fn lines(form: Form, data: &[u8]) -> Vec<(u64, String, bool)> {
    let shown = |p: &Piece| (p.offset, p.data.escape_ascii().to_string(), p.is_cut);
    pieces(form, [data]).iter().map(shown).collect()
}

fn line(offset: u64, text: &str) -> (u64, String, bool) {
    (offset, text.to_owned(), false)
}

#[test]
fn line_ends_at_newline_or_end_of_stream() {
    assert_eq!(
        lines(LINES, b"one\r\n\ntwo\r\r\nthree\rfour\x1b[m"),
        [
            line(0, "one"),
            line(5, ""),
            line(6, r"two\r"),
            line(12, r"three\rfour\x1b[m"),
        ]
    );
    assert_eq!(lines(LINES, b"last\r"), [line(0, "last")]);
    assert_eq!(lines(LINES, b""), []);
    assert_eq!(
        lines(PLAIN_LINES, b"\x1b[1mone\x1b[0m\n\x1b]0;a\nb\x07two"),
        [line(4, "one"), line(20, "two")]
    );
}

// promise: O-15
#[test]
fn long_line_is_split_between_characters() {
    let max = usize::try_from(LINE_BYTES_MAX).expect("small");
    let mut long = vec![b'x'; max];
    long.push(b'\n');
    let whole = pieces(LINES, [&long[..]]);
    assert_eq!((whole.len(), whole[0].is_cut), (1, false));

    let mut long = vec![b'x'; max - 2];
    long.extend("€ and so on\n".as_bytes());
    let found = pieces(LINES, [&long[..]]);
    assert_eq!((found[0].data.len(), found[0].is_cut), (max - 2, true));
    assert_eq!(found[1].data, "€ and so on".as_bytes());
    assert_eq!((found[1].offset, found[1].is_cut), (max as u64 - 2, false));

    let endless = vec![0x80; max * 3];
    let found = pieces(LINES, [&endless[..]]);
    assert_eq!(found.iter().map(|p| p.data.len()).sum::<usize>(), max * 3);
}

// promise: O-41
#[test]
fn line_length_limit_is_set_by_the_reader() {
    let form = |line_bytes_max| Form {
        line_bytes_max,
        ..LINES
    };
    let long = [vec![b'x'; 100_000], b"\nend\n".to_vec()].concat();
    let whole = pieces(form(100_000), long.chunks(777));
    let lens = |found: &[Piece]| {
        let lens = found.iter().map(|p| (p.data.len(), p.is_cut));
        lens.collect::<Vec<_>>()
    };
    assert_eq!(lens(&whole), [(100_000, false), (3, false)]);
    let cut = pieces(form(60_000), long.chunks(777));
    assert_eq!(lens(&cut), [(60_000, true), (40_000, false), (3, false)]);
}

/// Generates bytes in which sequences, letters and ends of lines are frequent.
fn hard() -> impl Strategy<Value = Vec<u8>> {
    let word = prop_oneof![
        Just(b"\x1b[31m".to_vec()),
        Just(b"\x1b]0;t\x07".to_vec()),
        Just(b"\x1bPq\x1b\\".to_vec()),
        Just(b"\xc2\x9b1m".to_vec()),
        Just("é€😀".as_bytes().to_vec()),
        Just(b"\r\n".to_vec()),
        Just(b"\n".to_vec()),
        Just(b"\x1b".to_vec()),
        Just(b"\xc2".to_vec()),
        Just(b"\x9c".to_vec()),
        Just(vec![b'y'; 40_000]),
        Just("€".repeat(9_000).into_bytes()),
        proptest::collection::vec(any::<u8>(), 1..8),
        Just(b"word".to_vec()),
    ];
    proptest::collection::vec(word, 0..24).prop_map(|words| words.concat())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(192))]

    // promise: O-14
    #[test]
    fn lines_do_not_depend_on_read_boundaries(
        data in hard(),
        cuts in proptest::collection::vec(any::<proptest::sample::Index>(), 0..12),
    ) {
        let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(data.len() + 1)).collect();
        cuts.extend([0, data.len()]);
        cuts.sort_unstable();
        let parts: Vec<&[u8]> = cuts.windows(2).map(|cut| &data[cut[0]..cut[1]]).collect();
        for form in [LINES, PLAIN_LINES] {
            prop_assert_eq!(pieces(form, [&data[..]]), pieces(form, parts.iter().copied()));
        }
        let joined = |pieces: Vec<Piece>| pieces.into_iter().map(|p| p.data).collect::<Vec<_>>().concat();
        prop_assert_eq!(joined(pieces(PLAIN, [&data[..]])), joined(pieces(PLAIN, parts)));
    }

    // promise: O-14
    #[test]
    fn resumed_view_continues_like_the_first(
        data in hard(),
        cut in any::<proptest::sample::Index>(),
    ) {
        let cut = cut.index(data.len() + 1);
        for form in [PLAIN, LINES, PLAIN_LINES] {
            let mut first = View::new(form, 0);
            let given = first.feed(&data[..cut]);
            let begin = first.resumes_at();
            let mut later = View::new(form, begin);
            let again = later.feed(&data[usize::try_from(begin).expect("small")..cut]);
            // Only a control character within a sequence is returned, and may be returned again.
            let is_control = |p: &Piece| p.data.iter().all(|b| b"\t\r\n".contains(b));
            prop_assert!(again.iter().all(is_control), "{again:?} came again after {given:?}");
            prop_assert_eq!(later.feed(&data[cut..]), first.feed(&data[cut..]));
            prop_assert_eq!(later.finish(), first.finish());
        }
    }

    #[test]
    fn lines_and_terminators_cover_all_bytes(data in hard()) {
        let found = pieces(LINES, [&data[..]]);
        let mut end = 0;
        for piece in &found {
            let begin = usize::try_from(piece.offset).expect("small");
            let between = &data[end..begin];
            prop_assert!([&b""[..], b"\n", b"\r\n"].contains(&between), "{between:?} before {begin}");
            end = begin + piece.data.len();
            prop_assert_eq!(&data[begin..end], &piece.data[..]);
        }
        prop_assert!([&b""[..], b"\n", b"\r\n", b"\r"].contains(&&data[end..]));
    }
}

#[test]
fn split_at_any_byte_yields_same_lines() {
    let data =
        "a\x1b[1;31mré\u{9b}1md\x1b]0;é\u{9c}t\x1b\\x\r\n\x1b(B€\n\x1bPq\n\x1b\\end".as_bytes();
    for form in [LINES, PLAIN_LINES] {
        let whole = pieces(form, [data]);
        assert_eq!(pieces(form, data.chunks(1)), whole);
        for cut in 0..=data.len() {
            assert_eq!(
                pieces(form, [&data[..cut], &data[cut..]]),
                whole,
                "cut at {cut}"
            );
        }
    }
}
