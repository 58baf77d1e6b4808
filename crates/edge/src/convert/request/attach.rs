//! Requests of a client to a terminal.

use super::{parse_run_id, terminal, whole};
use crate::{
    convert::{input, token::Cursor},
    pb::{self, attach_request::Request as Asked},
    status,
};
use kennel_lifecycle::{RunId, TerminalSize, Violation};
use kennel_supervisor::{Reached, ResizeCall, WriteCall};
use tonic::Status;

/// Terminal and options.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct AttachCall {
    pub(crate) run: RunId,
    /// Whether it only watches.
    pub(crate) read_only: bool,
    /// Requested size of the terminal if it writes.
    pub(crate) size: Option<TerminalSize>,
    /// Position that it has seen; absent: it gets the screen.
    pub(crate) after: Option<Reached>,
}

/// Parses the first request.
pub(crate) fn attach(first: Option<Asked>) -> Result<AttachCall, Status> {
    let Some(Asked::Open(open)) = first else {
        let why = "must be the first request, and given";
        return Err(status::invalid(&[Violation::new("open", why)]));
    };
    let mut found = Vec::new();
    let run = parse_run_id(&open.run_id, &mut found);
    let size = open
        .size
        .map(|size| terminal::given_size("open.size.", size, &mut found));
    let mut wrong = |why| {
        found.push(Violation::new("open.cursor", why));
        None
    };
    let after = if open.cursor.is_empty() {
        None
    } else {
        match Cursor::decode(&open.cursor) {
            Some(cursor) if run.is_some_and(|run| run != cursor.run) => {
                wrong("is one of another run")
            }
            Some(cursor) => Some(cursor.at),
            None => wrong("is not one that a server has given"),
        }
    };
    Ok(AttachCall {
        run: whole(run, &found)?,
        read_only: open.read_only,
        size,
        after,
    })
}

/// Returns the error for a second `open`, or for nothing at all.
pub(crate) fn not_after_open() -> Status {
    let why = "must be one of input, resize and take";
    status::invalid(&[Violation::new("request", why)])
}

pub(crate) fn attach_input(
    run: RunId,
    by: String,
    input: pb::AttachInput,
) -> Result<WriteCall, Status> {
    let request = pb::WriteInputRequest {
        run_id: run.to_string(),
        data: input.data,
        write_id: input.write_id,
        ..pb::WriteInputRequest::default()
    };
    let mut found = Vec::new();
    let call = input::write(request, by, &mut found);
    call.ok_or_else(|| status::invalid(&found))
}

pub(crate) fn attach_resize(run: RunId, size: pb::TerminalSize) -> Result<ResizeCall, Status> {
    let mut found = Vec::new();
    let size = terminal::given_size("resize.", size, &mut found);
    status::no_violations(&found)?;
    Ok(resize_to(run, size))
}

/// Makes a request for this size, for any attempt.
pub(crate) fn resize_to(run: RunId, size: TerminalSize) -> ResizeCall {
    ResizeCall {
        run,
        size,
        expected_attempt: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RUN: &str = "01ARZ3NDEKTSV4RRFFQ69G5FAV";

    #[test]
    fn attach_must_open_first_and_reports_all_violations() {
        let whole = open(RUN, Some((24, 80)), &[]).expect("valid");
        assert_eq!(whole.size, Some(TerminalSize { rows: 24, cols: 80 }));
        assert_eq!(whole.after, None);
        let cursor = Cursor {
            run: RUN.parse().expect("an id"),
            at: Reached {
                seq: 7,
                ..Reached::default()
            },
            form: None,
        };
        let later = open(RUN, None, &cursor.encode()).expect("valid");
        assert_eq!(later.after.map(|at| at.seq), Some(7));

        let refused = open("x", Some((0, 70_000)), b"?").expect_err("four faults");
        let wanted = ["run_id", "open.size.rows", "open.size.cols", "open.cursor"];
        assert_eq!(status::violated(&refused), wanted);
        let input = Asked::Take(pb::TakeWriter {});
        for first in [None, Some(input)] {
            assert!(attach(first).is_err());
        }
        let other = open("01ARZ3NDEKTSV4RRFFQ69G5FAW", None, &cursor.encode());
        assert!(
            other
                .expect_err("of another run")
                .message()
                .contains("another run")
        );
    }

    fn open(run: &str, size: Option<(u32, u32)>, cursor: &[u8]) -> Result<AttachCall, Status> {
        attach(Some(Asked::Open(pb::AttachOpen {
            run_id: run.to_owned(),
            read_only: false,
            size: size.map(|(rows, cols)| pb::TerminalSize { rows, cols }),
            cursor: cursor.to_vec().into(),
        })))
    }
}
