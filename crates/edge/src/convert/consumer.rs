//! Consumers: requests about them, and their contract form.

use super::{many_cursor, request, time, token::Cursor};
use crate::{access::Caller, keys::digest::DigestKey, limits, pb};
use base64::{Engine, prelude::BASE64_URL_SAFE_NO_PAD};
use kennel_lifecycle::Violation;
use kennel_supervisor::{AckPoint, ConsumerFilter, ConsumerKey, ConsumerView, Reached};

/// Longest name.
const NAME_BYTES_MAX: usize = 64;

/// An acknowledgement, with its consumer.
#[derive(Clone, Debug)]
pub(crate) struct AckCall {
    pub(crate) key: ConsumerKey,
    pub(crate) point: AckPoint,
    /// The cursor that the client sent; absent: a seq.
    cursor: Option<Vec<u8>>,
}

impl AckCall {
    /// Returns the position at which the consumer continues, after the one before.
    pub(crate) fn cursor(self, before: &[u8]) -> Vec<u8> {
        match (self.cursor, self.key.run, self.point) {
            (None, Some(run), AckPoint::Seq(seq)) => {
                // Only the previous cursor knows where its tail begins.
                let begins = Cursor::decode(before).and_then(|cursor| cursor.at.begins);
                let at = Reached {
                    seq,
                    begins,
                    ..Reached::default()
                };
                let form = None;
                Cursor { run, at, form }.encode().into()
            }
            (cursor, _, _) => cursor.unwrap_or_default(),
        }
    }
}

/// Page of consumers.
pub(crate) struct ConsumersCall {
    pub(crate) filter: ConsumerFilter,
    pub(crate) limit: u32,
}

/// Checks a name.
pub(crate) fn name(field: &str, text: &str, found: &mut Vec<Violation>) -> String {
    let is_fit = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    let len = text.len();
    if len == 0 || len > NAME_BYTES_MAX || !text.bytes().all(is_fit) {
        let why = format!("must be 1 to {NAME_BYTES_MAX} of the characters A-Z a-z 0-9 . _ -");
        found.push(Violation::new(field, why));
    }
    text.to_owned()
}

/// Parses the consumer that a request names by run, name and owner; without an owner: the caller's.
pub(crate) fn named(
    (run_id, consumer, owner): (&str, &str, &str),
    caller: &Caller,
    found: &mut Vec<Violation>,
) -> ConsumerKey {
    let own = owner.is_empty().then_some(&*caller.owner);
    key(run_id, consumer, own.unwrap_or(owner), found)
}

/// Parses the key of a request's consumer.
fn key(run_id: &str, consumer: &str, owner: &str, found: &mut Vec<Violation>) -> ConsumerKey {
    ConsumerKey {
        name: name("consumer", consumer, found),
        run: request::optional_run_id(run_id, found),
        owner: owner.to_owned(),
    }
}

/// Parses an acknowledgement of a consumer of this owner.
pub(crate) fn ack(
    request: &pb::AckEventsRequest,
    owner: &str,
    seal: &DigestKey,
    found: &mut Vec<Violation>,
) -> AckCall {
    use pb::ack_events_request::Position;
    let key = key(&request.run_id, &request.consumer, owner, found);
    let mut is_wrong = |field: &str, why: &str| {
        found.push(Violation::new(field, why));
        AckPoint::Seq(0)
    };
    let mut cursor = None;
    let point = match (&request.position, key.run) {
        (None, _) => is_wrong("position", "must be given"),
        (Some(Position::Seq(seq)), Some(_)) => AckPoint::Seq(*seq),
        (Some(Position::Seq(_)), None) => is_wrong("seq", "is of one run"),
        (Some(Position::Cursor(bytes)), Some(run)) => match Cursor::decode(bytes) {
            Some(at) if at.run == run => {
                cursor = Some(bytes.to_vec());
                AckPoint::Seq(at.at.seq)
            }
            Some(_) => is_wrong("cursor", "is one of another run"),
            None => is_wrong("cursor", "is not one that a server has given for this run"),
        },
        (Some(Position::Cursor(bytes)), None) => match many_cursor::place(bytes, &key, seal) {
            Some(place) => {
                cursor = Some(bytes.to_vec());
                AckPoint::Message {
                    session: place.session,
                    number: place.number,
                }
            }
            None => is_wrong("cursor", "is not one that this consumer was given"),
        },
    };
    AckCall { key, point, cursor }
}

/// Parses a list request. `scope`: the owner whose consumers alone the caller may see.
pub(crate) fn list(
    request: &pb::ListConsumersRequest,
    scope: Option<String>,
    found: &mut Vec<Violation>,
) -> ConsumersCall {
    let run = request::optional_run_id(&request.run_id, found);
    let limit = request::page_size(request.page_size, found);
    let after = match &*request.page_token {
        "" => None,
        token => {
            let after = after(token);
            if after.is_none() {
                let why = "is not one that this server has given";
                found.push(Violation::new("page_token", why));
            }
            after
        }
    };
    let filter = ConsumerFilter {
        run: run.map(Some),
        name: None,
        owner: scope,
        after,
    };
    ConsumersCall { filter, limit }
}

/// Returns the consumer in a page token.
fn after(token: &str) -> Option<ConsumerKey> {
    let text = BASE64_URL_SAFE_NO_PAD.decode(token).ok()?;
    let text = String::from_utf8(text).ok()?;
    let (run, rest) = text.split_once('/')?;
    let (name, owner) = rest.split_once('/')?;
    let run = match run {
        "" => None,
        run => Some(run.parse().ok()?),
    };
    Some(ConsumerKey {
        run,
        owner: owner.to_owned(),
        name: name.to_owned(),
    })
}

/// Returns the consumers that fit on a page, and the start of the next page.
pub(crate) fn page(views: Vec<ConsumerView>, limit: u32) -> pb::ListConsumersResponse {
    let mut response = pb::ListConsumersResponse::default();
    let is_full = views.len() >= limit as usize;
    let of = views.len();
    let mut bytes = 0;
    let mut last = None;
    for view in views {
        bytes += view.row.cursor.len() + 256;
        if last.is_some() && bytes > limits::PAGE_BYTES_MAX {
            break;
        }
        last = Some(view.row.key.clone());
        response.consumers.push(consumer(view));
    }
    if let Some(key) = last.filter(|_| is_full || response.consumers.len() < of) {
        let run = key.run.map(|run| run.to_string()).unwrap_or_default();
        let token = format!("{run}/{}/{}", key.name, key.owner);
        response.next_page_token = BASE64_URL_SAFE_NO_PAD.encode(token);
    }
    response
}

pub(crate) fn consumer(view: ConsumerView) -> pb::Consumer {
    let row = view.row;
    let state = if view.is_read {
        pb::ConsumerState::Read
    } else {
        pb::ConsumerState::Idle
    };
    pb::Consumer {
        acked_seq: row.key.run.is_some().then_some(row.acked),
        run_id: row.key.run.map(|run| run.to_string()).unwrap_or_default(),
        name: row.key.name,
        owner: row.key.owner,
        cursor: row.cursor.into(),
        state: state.into(),
        create_time: Some(time::timestamp(row.created)),
        ack_time: row.acked_at.map(time::timestamp),
    }
}
