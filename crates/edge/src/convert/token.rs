//! Opaque positions that clients return unchanged: the start of a page, the position of a stream of events.

use base64::{Engine, prelude::BASE64_URL_SAFE_NO_PAD};
use bytes::Bytes;
use kennel_lifecycle::{Activity, NamePattern, RunId, Timestamp, Wait, labels::LabelTest};
use kennel_supervisor::{Age, Form, LINE_BYTES_MAX, ListFilter, PageStart, Position, Reached};
use serde_json::json;
use sha2::{Digest, Sha256};
use std::{collections::BTreeMap, time::Duration};

const PAGE_TOKEN_VERSION: u8 = 1;
/// With the time at which ages of the filter count.
const PAGE_TOKEN_VERSION_2: u8 = 2;
/// Version, age and key.
const PAGE_TOKEN_BYTES: usize = 1 + 8 + 16;
const PAGE_TOKEN_DOMAIN: &[u8] = b"kennel.v1.page_token\0";
/// With lengths.
const CURSOR_VERSION: u8 = 2;
/// Without lengths.
const CURSOR_VERSION_1: u8 = 1;
/// With lengths, a form and from where its views are fed.
const CURSOR_VERSION_3: u8 = 3;
/// As the third, with the longest line.
const CURSOR_VERSION_5: u8 = 5;
/// As the fifth, the third, or the second, after offsets from which on output is delivered.
const CURSOR_VERSION_4: u8 = 4;
/// Placeholder for unknown lengths.
const UNKNOWN: [u64; 2] = [u64::MAX; 2];

/// Start of a page. Sealed with the filter, so that a token of another list is recognized, at any server of the
/// database. Not a secret: the filter limits the listed runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PageToken(pub(crate) PageStart);

impl PageToken {
    /// Version, age, key, perhaps a time, and the first half of a digest over these and the filter.
    pub(crate) fn encode(&self, filter: &ListFilter) -> String {
        let mut token = vec![PAGE_TOKEN_VERSION];
        token.extend(self.0.age.0.to_be_bytes());
        token.extend(self.0.run.as_u128().to_be_bytes());
        if filter.ages.bounds() != [None; 3] {
            token[0] = PAGE_TOKEN_VERSION_2;
            token.extend(filter.ages.at.0.to_be_bytes());
        }
        let seal = seal(&token, filter);
        token.extend(seal);
        BASE64_URL_SAFE_NO_PAD.encode(token)
    }

    /// Returns the time at which ages of its filter count, if it has one.
    pub(crate) fn time(text: &str) -> Option<Timestamp> {
        let token = BASE64_URL_SAFE_NO_PAD.decode(text).ok()?;
        let token = token.strip_prefix(&[PAGE_TOKEN_VERSION_2])?;
        let time = token.get(PAGE_TOKEN_BYTES - 1..)?.first_chunk()?;
        Some(Timestamp(i64::from_be_bytes(*time)))
    }

    /// Decodes a token. Absent: not one of Kennel's for this filter, whose ages count at its time.
    pub(crate) fn decode(text: &str, filter: &ListFilter) -> Option<Self> {
        let token = BASE64_URL_SAFE_NO_PAD.decode(text).ok()?;
        let (head, sealed) = token.split_at_checked(token.len().checked_sub(16)?)?;
        let is_whole = match *head.first()? {
            PAGE_TOKEN_VERSION => head.len() == PAGE_TOKEN_BYTES,
            PAGE_TOKEN_VERSION_2 => head.len() == PAGE_TOKEN_BYTES + 8,
            _ => false,
        };
        if !is_whole || seal(head, filter) != sealed {
            return None;
        }
        Some(Self(PageStart {
            age: Age(i64::from_be_bytes(head[1..9].try_into().ok()?)),
            run: RunId::from_u128(u128::from_be_bytes(head[9..25].try_into().ok()?)),
        }))
    }
}

/// Formats a filter as a JSON object of what it asks for, by the names of the contract, the same for each order of states
/// and kinds: page tokens and cursors are sealed with it. `tokens.lock` holds its form: clients store cursors. A field
/// that is added later is absent where it is not asked for, so that it changes no seal of before.
pub(super) fn filter_text(filter: &ListFilter) -> String {
    let set = |mut names: Vec<&str>| {
        names.sort_unstable();
        (!names.is_empty()).then(|| names.join(","))
    };
    let labels = filter.labels.to_string();
    let (ages, reports) = (filter.ages, &filter.reports);
    let secs = |age: Option<Duration>| age.map(|age| age.as_secs_f64().to_string());
    let runs: Vec<String> = filter.runs.iter().map(ToString::to_string).collect();
    let annotations = reports.annotations.iter().map(|wanted| match &wanted.test {
        LabelTest::In(values) => json!([wanted.key, "in", values]),
        LabelTest::NotIn(values) => json!([wanted.key, "notin", values]),
        LabelTest::Exists => json!([wanted.key, "exists"]),
        LabelTest::Absent => json!([wanted.key, "absent"]),
    });
    let annotations: Vec<serde_json::Value> = annotations.collect();
    let activity = |doing: &Option<Activity>| doing.map_or("unspecified", Activity::name);
    let wait = |wait: &Option<Wait>| wait.map_or("unspecified", Wait::name);
    let nodes: Vec<String> = filter.nodes.iter().map(ToString::to_string).collect();
    let parts = [
        (
            "states",
            set(filter.states.iter().map(|s| s.name()).collect()),
        ),
        (
            "kinds",
            set(filter.kinds.iter().map(|k| k.name()).collect()),
        ),
        ("labels", (!labels.is_empty()).then_some(labels)),
        (
            "id_part",
            filter.id_part.as_ref().map(|p| p.as_str().to_owned()),
        ),
        ("owner", filter.owner.clone()),
        ("node", set(nodes.iter().map(String::as_str).collect())),
        ("parent", filter.parent.map(|parent| parent.to_string())),
        (
            "owners",
            set(filter.owners.iter().map(String::as_str).collect()),
        ),
        (
            "names",
            set(filter.names.iter().map(NamePattern::as_str).collect()),
        ),
        ("runs", set(runs.iter().map(String::as_str).collect())),
        ("below", filter.below.map(|above| above.to_string())),
        (
            "end_reasons",
            set(filter.end_reasons.iter().map(String::as_str).collect()),
        ),
        ("min_age", secs(ages.min)),
        ("max_age", secs(ages.max)),
        ("ended_min_age", secs(ages.min_ended)),
        (
            "activities",
            set(reports.activities.iter().map(activity).collect()),
        ),
        ("waits", set(reports.waits.iter().map(wait).collect())),
        (
            "is_ready",
            reports.is_ready.map(|is_ready| is_ready.to_string()),
        ),
        (
            "annotations",
            (!annotations.is_empty()).then(|| json!(annotations).to_string()),
        ),
    ];
    let asked = parts
        .into_iter()
        .filter_map(|(name, value)| Some((name, value?)));
    json!(asked.collect::<BTreeMap<_, _>>()).to_string()
}

fn seal(head: &[u8], filter: &ListFilter) -> [u8; 16] {
    let digest = Sha256::new()
        .chain_update(PAGE_TOKEN_DOMAIN)
        .chain_update(head)
        .chain_update(filter_text(filter))
        .finalize();
    let mut half = [0; 16];
    half.copy_from_slice(&digest[..16]);
    half
}

/// Position of a stream of events. Not a secret, and valid for every server that has the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cursor {
    pub(crate) run: RunId,
    /// Position up to which events were delivered.
    pub(crate) at: Reached,
    /// Form of the view.
    pub(crate) form: Option<Form>,
}

impl Cursor {
    pub(crate) fn encode(self) -> Bytes {
        let mut cursor = Vec::with_capacity(2 + 16 + 7 * 8 + 1);
        let view = self.form.zip(self.at.fed_from);
        let version = match view {
            None => CURSOR_VERSION,
            Some((form, _)) if form.line_bytes_max == LINE_BYTES_MAX => CURSOR_VERSION_3,
            Some(_) => CURSOR_VERSION_5,
        };
        if let Some(begins) = self.at.begins {
            cursor.push(CURSOR_VERSION_4);
            for offset in begins {
                cursor.extend(offset.to_be_bytes());
            }
        }
        cursor.push(version);
        cursor.extend(self.run.as_u128().to_be_bytes());
        cursor.extend(self.at.seq.to_be_bytes());
        for len in self.at.lens.unwrap_or(UNKNOWN) {
            cursor.extend(len.to_be_bytes());
        }
        if let Some((form, fed_from)) = view {
            for offset in fed_from {
                cursor.extend(offset.to_be_bytes());
            }
            cursor.push(u8::from(form.plain) | u8::from(form.lines) << 1);
            if version == CURSOR_VERSION_5 {
                cursor.extend(form.line_bytes_max.to_be_bytes());
            }
        }
        cursor.into()
    }

    /// Decodes a cursor. Absent: not a cursor.
    pub(crate) fn decode(cursor: &[u8]) -> Option<Self> {
        match cursor.split_first()? {
            (&CURSOR_VERSION_4, rest) => {
                let (begins, rest) = rest.split_at_checked(16)?;
                let number =
                    |at: usize| Some(u64::from_be_bytes(begins[at..][..8].try_into().ok()?));
                let begins = Some([number(0)?, number(8)?]);
                let plain = Self::decode_plain(rest)?;
                let at = Reached { begins, ..plain.at };
                Some(Self { at, ..plain })
            }
            _ => Self::decode_plain(cursor),
        }
    }

    fn decode_plain(cursor: &[u8]) -> Option<Self> {
        let (version, rest) = cursor.split_first()?;
        let (run, rest) = rest.split_at_checked(16)?;
        let (seq, lens) = rest.split_at_checked(8)?;
        let number = |bytes: &[u8]| Some(u64::from_be_bytes(bytes.try_into().ok()?));
        let (lens, view) = match (*version, lens.len()) {
            (CURSOR_VERSION_1, 0) => (UNKNOWN, None),
            (CURSOR_VERSION, 16) => ([number(&lens[..8])?, number(&lens[8..])?], None),
            (CURSOR_VERSION_3, 33) | (CURSOR_VERSION_5, 37) => {
                let line_bytes_max = match &lens[33..] {
                    [] => LINE_BYTES_MAX,
                    most => u32::from_be_bytes(most.try_into().ok()?),
                };
                let form = Form {
                    plain: lens[32] & 1 != 0,
                    lines: lens[32] & 2 != 0,
                    line_bytes_max,
                };
                let fed_from = [number(&lens[16..24])?, number(&lens[24..32])?];
                let lens = [number(&lens[..8])?, number(&lens[8..16])?];
                // `fed_from` cannot exceed the lengths of the position.
                if fed_from[0] > lens[0] || fed_from[1] > lens[1] {
                    return None;
                }
                (lens, Some((form, fed_from)))
            }
            _ => return None,
        };
        Some(Self {
            run: RunId::from_u128(u128::from_be_bytes(run.try_into().ok()?)),
            at: Reached {
                seq: number(seq)?,
                lens: (lens != UNKNOWN).then_some(lens),
                fed_from: view.map(|(_, fed_from)| fed_from),
                begins: None,
            },
            form: view.map(|(form, _)| form),
        })
    }

    /// Returns the position, for a reader in this form: bytes pending in another one are searched anew.
    pub(crate) fn position(self, form: Option<Form>) -> Position {
        let fed_from = self.at.fed_from.filter(|_| self.form == form);
        match self.at.seq {
            0 if self.at.begins.is_none() => Position::Beginning,
            _ => Position::After(Reached {
                fed_from,
                ..self.at
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        convert::{
            many_cursor::{self, ManyCursor, Seal},
            nodes_cursor::NodesCursor,
        },
        keys::digest::DigestKey,
        pb::{self, stream_events_request::Position as Start},
    };
    use kennel_lifecycle::{NodeId, RunKind, RunState, labels::Requirement};
    use kennel_supervisor::{Ages, Amount, ConsumerKey, ManyReached, Reports, Tail};
    use std::{fs, path::Path};

    /// A filter with each part.
    fn filter() -> ListFilter {
        ListFilter {
            states: vec![RunState::Running, RunState::Paused],
            kinds: vec![RunKind::Job, RunKind::Service],
            labels: "a=b,c in (d,e),!f".parse().expect("a selector"),
            id_part: Some("7A".parse().expect("a part")),
            owner: Some("uid:0".to_owned()),
            nodes: vec![NodeId::from_u128(3)],
            parent: Some(RunId::from_u128(5)),
            ..ListFilter::default()
        }
    }

    /// A filter with each part that came later.
    fn later_filter() -> ListFilter {
        let requirement = |key: &str, test| Requirement {
            key: key.to_owned(),
            test,
        };
        ListFilter {
            owners: vec!["uid:2".to_owned(), "uid:1".to_owned()],
            names: NamePattern::new("web-*").into_iter().collect(),
            runs: vec![RunId::from_u128(6)],
            below: Some(RunId::from_u128(7)),
            ages: Ages {
                at: Timestamp(8),
                min: Some(Duration::from_millis(1500)),
                max: Some(Duration::from_hours(1)),
                min_ended: Some(Duration::from_mins(1)),
            },
            end_reasons: vec!["oom_killed".to_owned()],
            reports: Reports {
                activities: vec![None, Some(Activity::Idle)],
                waits: vec![Some(Wait::Input)],
                is_ready: Some(true),
                annotations: vec![
                    requirement("a", LabelTest::In(["x".to_owned()].into())),
                    requirement("b", LabelTest::Absent),
                ],
            },
            ..ListFilter::default()
        }
    }

    /// Clients store tokens and cursors, and send them to later versions and to other nodes: a line of a version that
    /// was released never changes. `UPDATE=1` writes the file anew.
    // promise: A-9b
    #[test]
    fn token_and_cursor_formats_match_lock_file() {
        let at = Reached {
            seq: 5,
            lens: Some([9, 4]),
            fed_from: Some([7, 4]),
            begins: Some([1, 2]),
        };
        let form = Form {
            plain: true,
            lines: true,
            ..Form::default()
        };
        let run = RunId::from_u128(77);
        let cursor = |at, form| Cursor { run, at, form }.encode();
        let whole = Reached {
            fed_from: None,
            begins: None,
            ..at
        };
        let long = Form {
            line_bytes_max: 1 << 20,
            ..form
        };
        let tail = Tail {
            amount: Amount::Lines(3),
            streams: [true, false],
        };
        let many = ManyCursor {
            seal: Seal::of(&filter()),
            form: Some(form),
            reached: ManyReached {
                given: vec![(Age(0), Age(6)), (Age(8), Age(1_700_000_000_000_000))],
                open: [(run, at)].into(),
                tail: Some((tail, Age(4))),
            },
        };
        let many_bytes = many_cursor::encode(many.seal, many.form, &many.reached);
        let mut nodes = NodesCursor::starting(many.seal, Start::Live(pb::FromLive {}));
        let place = Start::Cursor(many_bytes.clone());
        nodes.nodes.insert(NodeId::from_u128(3), place);
        let consumer = ConsumerKey {
            run: None,
            owner: "uid:0".to_owned(),
            name: "indexer".to_owned(),
        };
        let key = DigestKey::new([1; 32]);
        let of_consumer = many_cursor::of_consumer(&nodes.encode(), (2, 3), &consumer, &key);
        let base64 = |bytes: &[u8]| BASE64_URL_SAFE_NO_PAD.encode(bytes);
        let samples = [
            ("filter", filter_text(&filter())),
            ("filter of all", filter_text(&ListFilter::default())),
            ("filter with later parts", filter_text(&later_filter())),
            ("page token", token().encode(&filter())),
            ("cursor", base64(&cursor(whole, None))),
            ("cursor of a view", base64(&cursor(at, Some(form)))),
            ("cursor of long lines", base64(&cursor(at, Some(long)))),
            ("cursor of many runs", base64(&many_bytes)),
            ("cursor of nodes", base64(&nodes.encode())),
            ("cursor of a consumer", base64(&of_consumer)),
        ];
        assert_eq!(many_cursor::decode(&many_bytes), Some(many));
        assert_eq!(NodesCursor::decode(&of_consumer), Some(nodes));
        let found = samples.map(|sample| serde_json::json!(sample).to_string() + "\n");
        let found = found.concat();
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/convert/tokens.lock");
        if std::env::var_os("UPDATE").is_some() {
            fs::write(&path, &found).expect("it is written");
        }
        assert_eq!(fs::read_to_string(&path).expect("it is there"), found);
    }

    #[test]
    fn page_token_round_trips() {
        let filter = ListFilter::default();
        for created in [0, -5, i64::MAX] {
            let token = PageToken(PageStart {
                age: Age(created),
                run: RunId::from_u128(u128::MAX / 3),
            });
            let text = token.encode(&filter);
            assert_eq!(PageToken::decode(&text, &filter), Some(token));
        }
    }

    // promise: I-73
    #[test]
    fn page_token_for_another_filter_is_refused() {
        let two = ListFilter {
            states: vec![RunState::Running, RunState::Paused],
            kinds: vec![RunKind::Job],
            labels: "a=b".parse().expect("a selector"),
            ..ListFilter::default()
        };
        let text = token().encode(&two);
        let turned = ListFilter {
            states: vec![RunState::Paused, RunState::Running],
            ..two.clone()
        };
        assert!(PageToken::decode(&text, &turned).is_some());
        let one = ListFilter {
            states: vec![RunState::Running],
            ..two.clone()
        };
        assert_eq!(PageToken::decode(&text, &one), None);
        let elsewhere = ListFilter {
            nodes: vec![NodeId::from_u128(3)],
            ..two
        };
        assert_eq!(PageToken::decode(&text, &elsewhere), None);
    }

    #[test]
    fn tampered_page_token_is_refused() {
        let filter = ListFilter::default();
        let text = token().encode(&filter);
        let bytes = BASE64_URL_SAFE_NO_PAD.decode(&text).expect("our own");
        for at in 0..bytes.len() {
            let mut bent = bytes.clone();
            bent[at] ^= 1;
            let bent = BASE64_URL_SAFE_NO_PAD.encode(bent);
            assert_eq!(PageToken::decode(&bent, &filter), None, "byte {at}");
        }
        for bad in ["!", "AAAA", &text[..text.len() - 4], &format!("{text}AAAA")] {
            assert_eq!(PageToken::decode(bad, &filter), None, "{bad}");
        }
    }

    // promise: A-22
    #[test]
    fn cursor_decoding_survives_corrupt_bytes() {
        let filter = ListFilter::default();
        let text = token().encode(&filter);
        kennel_mutations::each(text.as_bytes(), |wrong| {
            let read = std::str::from_utf8(wrong).ok();
            let read = read.and_then(|read| PageToken::decode(read, &filter));
            assert!(read.is_none() || wrong == text.as_bytes(), "{wrong:02x?}");
        });
        for fed_from in [None, Some([7, 4])] {
            let cursor = Cursor {
                run: RunId::from_u128(77),
                at: Reached {
                    seq: 5,
                    lens: Some([9, 4]),
                    fed_from,
                    begins: None,
                },
                form: None,
            };
            kennel_mutations::each(&cursor.encode(), |wrong| {
                if let Some(read) = Cursor::decode(wrong) {
                    assert_eq!(Cursor::decode(&read.encode()), Some(read), "{wrong:02x?}");
                }
            });
        }
    }

    #[test]
    fn cursor_round_trips_and_malformed_one_is_refused() {
        let cursor = |lens| Cursor {
            run: RunId::from_u128(77),
            at: Reached {
                seq: u64::MAX,
                lens,
                fed_from: None,
                begins: None,
            },
            form: None,
        };
        let unknown = cursor(None).encode();
        assert_eq!(Cursor::decode(&unknown), Some(cursor(None)));
        let known = cursor(Some([3, u64::MAX]));
        let bytes = known.encode();
        assert_eq!(Cursor::decode(&bytes), Some(known));
        // The format of the earlier version.
        let former = [&[1], &bytes[1..25]].concat();
        assert_eq!(Cursor::decode(&former), Some(cursor(None)));
        assert_eq!(Cursor::decode(&bytes[..bytes.len() - 1]), None);
        assert_eq!(Cursor::decode(&[&bytes[..], b"x"].concat()), None);
        assert_eq!(Cursor::decode(&[&[9], &bytes[1..]].concat()), None);
        assert_eq!(Cursor::decode(b""), None);
        let mut viewed = cursor(Some([9, 4]));
        viewed.at.fed_from = Some([7, 4]);
        viewed.form = Some(Form {
            plain: false,
            lines: true,
            ..Form::default()
        });
        let bytes = viewed.encode();
        assert_eq!(Cursor::decode(&bytes), Some(viewed));
        assert_eq!(viewed.position(viewed.form), Position::After(viewed.at));
        let elsewhere = Reached {
            fed_from: None,
            ..viewed.at
        };
        assert_eq!(viewed.position(None), Position::After(elsewhere));
        viewed.at.begins = Some([0, 8]);
        let bytes = viewed.encode();
        assert_eq!(Cursor::decode(&bytes), Some(viewed));
        assert_eq!(Cursor::decode(&[&bytes[..17], &bytes[..]].concat()), None);
        viewed.at.seq = 0;
        assert_eq!(viewed.position(viewed.form), Position::After(viewed.at));
        viewed.at.begins = None;
        assert_eq!(viewed.position(viewed.form), Position::Beginning);
        viewed.at.fed_from = Some([10, 4]);
        assert_eq!(Cursor::decode(&viewed.encode()), None);
    }

    fn token() -> PageToken {
        PageToken(PageStart {
            age: Age(1_700_000_000_000_000),
            run: RunId::from_u128(5),
        })
    }
}
