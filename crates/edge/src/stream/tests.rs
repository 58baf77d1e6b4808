use super::*;
use crate::access::Caller;
use crate::convert::run::tests::of_size;
use crate::load::shares::Shares;
use event::Payload as Shown;
use futures_util::{FutureExt, StreamExt};
use kennel_lifecycle::Entry;
use kennel_lifecycle::Timestamp;
use kennel_supervisor::{Gap, GapReason, Payload, Position};
use std::sync::Arc;
use tokio::sync::{Semaphore, mpsc};
use tonic::Code;
use tonic_types::StatusExt;

#[tokio::test]
async fn stream_is_snapshot_then_events_then_end() {
    let mut house = House::new(Position::Beginning, 3);
    let snapshot = house.message().await;
    let Shown::Snapshot(shown) = only(&snapshot) else {
        panic!("a snapshot: {snapshot:?}");
    };
    assert_eq!((shown.head_seq, shown.first_seq), (3, 1));
    assert_eq!(cursor(&snapshot), 0);

    house.write(&[1, 2, 3]).await;
    let batch = house.message().await;
    assert_eq!(seqs(&batch), [1, 2, 3]);
    assert_eq!(cursor(&batch), 3);

    house.end();
    assert!(house.next().await.is_none());
}

#[tokio::test]
async fn snapshot_cursor_is_the_start_position() {
    for (from, wanted) in [
        (Position::Beginning, 0),
        (after(2), 2),
        (Position::LiveOnly, 5),
    ] {
        let mut house = House::new(from, 5);
        let snapshot = house.message().await;
        assert_eq!((seqs(&snapshot), cursor(&snapshot)), (vec![wanted], wanted));
    }
}

#[tokio::test(start_paused = true)]
async fn heartbeats_do_not_move_the_cursor() {
    let mut house = House::new(after(4), 4);
    house.message().await;
    for _ in 0..2 {
        let began = tokio::time::Instant::now();
        let heartbeat = house.message().await;
        assert_eq!(began.elapsed(), HEARTBEAT);
        assert!(matches!(only(&heartbeat), Shown::Heartbeat(h) if h.head_seq == 4));
        assert_eq!((seqs(&heartbeat), cursor(&heartbeat)), (vec![4], 4));
    }
}

#[tokio::test(start_paused = true)]
async fn shutdown_sends_pending_events_and_then_its_reason() {
    let mut house = House::new(Position::Beginning, 2);
    house.message().await;
    house.going.close();
    house.write(&[1]).await;
    house.write(&[2]).await;
    // Event 3 is beyond the head at the shutdown.
    house.write(&[3]).await;
    assert_eq!(seqs(&house.message().await), [1]);
    assert_eq!(seqs(&house.message().await), [2]);
    house.assert_drained().await;
}

#[tokio::test(start_paused = true)]
async fn stream_ends_at_once_when_server_is_replaced() {
    let mut house = House::new(Position::Beginning, 2);
    house.message().await;
    house.write(&[1]).await;
    house.going.leave();
    let began = tokio::time::Instant::now();
    let last = house
        .next()
        .await
        .expect("an end")
        .expect_err("the end has a status");
    assert_eq!(last.code(), Code::Unavailable);
    let details = last.get_error_details();
    let reason = details.error_info().map(|info| info.reason.as_str());
    assert_eq!(reason, Some("SERVER_REPLACED"));
    assert!(details.retry_info().is_some());
    assert!(house.next().await.is_none());
    assert_eq!(began.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn shutdown_does_not_wait_for_missing_events() {
    let mut house = House::new(Position::Beginning, 2);
    house.message().await;
    house.going.close();
    let began = tokio::time::Instant::now();
    house.assert_drained().await;
    assert_eq!(began.elapsed(), limits::LAST_WORDS_MAX);
}

#[tokio::test]
async fn fault_of_the_source_ends_stream_with_status() {
    let mut house = House::new(Position::Beginning, 2);
    house.message().await;
    let fault = CallError::JournalUnreadable {
        run: RunId::from_u128(1),
        why: "torn".to_owned(),
    };
    house.feed(Err(fault)).await;
    let status = house.next().await.expect("an item").expect_err("a status");
    assert_eq!(status.code(), Code::DataLoss);
    assert!(house.next().await.is_none());
}

// promise: O-12
#[tokio::test]
async fn gap_is_sent_in_order_or_ends_stream() {
    let gap = Gap {
        first_seq: 2,
        last_seq: 9,
        bytes: [Some(700), None],
        ends: [707, 8],
        reason: GapReason::Bound,
        at: Timestamp(0),
        attempt: 1,
    };
    for fails in [false, true] {
        let mut house = House::with(Position::Beginning, 10, fails);
        house.message().await;
        let mut events: Vec<Event> = [1, 9, 10]
            .map(|seq| Event {
                seq,
                attempt: 1,
                at: Timestamp(0),
                payload: Payload::Lifecycle(Entry::Started),
            })
            .into();
        events[1].payload = Payload::Gap(gap.clone());
        house.feed(Ok(events)).await;
        let batch = house.message().await;
        if !fails {
            assert_eq!(seqs(&batch), [1, 9, 10]);
            let Some(Shown::Gap(shown)) = &batch.run_events[0].events[1].payload else {
                panic!("no gap: {batch:?}");
            };
            assert_eq!((shown.first_seq, shown.last_seq), (2, 9));
            assert_eq!(shown.reason(), pb::GapReason::OutputLimit);
            let of = |m: &pb::MissingOutput| (m.stream(), m.bytes, m.end_offset);
            let missing: Vec<_> = shown.missing.iter().map(of).collect();
            let stdout = (pb::OutputStream::Stdout, Some(700), 707);
            assert_eq!(missing, [stdout, (pb::OutputStream::Stderr, None, 8)]);
            continue;
        }
        assert_eq!((seqs(&batch), cursor(&batch)), (vec![1], 1));
        let status = house.next().await.expect("an item").expect_err("a status");
        assert_eq!(status.code(), Code::OutOfRange);
        let details = status.get_error_details();
        let info = details.error_info().expect("a reason");
        assert_eq!(info.reason, "CURSOR_EXPIRED");
        assert_eq!(info.metadata["last_seq"], "9");
        assert!(house.next().await.is_none());
    }
}

#[tokio::test]
async fn stream_holds_its_slot_until_dropped() {
    let house = House::new(Position::Beginning, 0);
    let places = house.places.clone();
    assert_eq!(places.available_permits(), 0);
    drop(house);
    assert_eq!(places.available_permits(), 1);
}

/// Upper bound for every step here.
const TOO_LONG: Duration = Duration::from_secs(10);

const HEARTBEAT: Duration = Duration::from_secs(7);

type Given = Result<Vec<Event>, CallError>;

/// A source of the events written into it.
struct Pipe {
    head: u64,
    at: u64,
    given: mpsc::Receiver<Given>,
}

impl Source for Pipe {
    fn head(&self) -> u64 {
        self.head
    }

    fn whole_from(&self) -> u64 {
        self.head.min(1)
    }

    fn position(&self) -> Reached {
        Reached {
            seq: self.at,
            ..Reached::default()
        }
    }

    async fn next(&mut self, _bytes_max: usize) -> Result<Option<Vec<Event>>, CallError> {
        let given = self.given.recv().await.transpose()?;
        self.at = given.iter().flatten().last().map_or(self.at, |e| e.seq);
        Ok(given)
    }
}

struct House {
    stream: Pin<Box<dyn Stream<Item = Result<pb::StreamEventsResponse, Status>> + Send>>,
    writer: Option<mpsc::Sender<Given>>,
    going: Serving,
    places: Arc<Semaphore>,
}

impl House {
    fn new(from: Position, head: u64) -> Self {
        Self::with(from, head, false)
    }

    fn with(from: Position, head: u64, fails_on_gap: bool) -> Self {
        let (writer, given) = mpsc::channel(8);
        let going = Serving::default();
        let places = Arc::new(Semaphore::new(1));
        let permit = places.clone().try_acquire_owned().expect("a free place");
        let place = Shares::default().stream(&Caller::default(), permit);
        let place = place.expect("no quota");
        let call = EventsCall {
            run: RunId::from_u128(1),
            from,
            heartbeat: HEARTBEAT,
            fails_on_gap,
            form: None,
            as_json: false,
            kinds: kennel_supervisor::Kinds::ALL,
            until_head: false,
            consumer: None,
        };
        let at = match from {
            Position::Beginning => 0,
            Position::After(at) => at.seq,
            Position::LiveOnly | Position::Tail(_) => head,
        };
        let source = Pipe { head, at, given };
        let reader = StreamReader::new(of_size(1, 1), source, &call, going.clone(), place);
        Self {
            stream: Box::pin(reader.into_stream()),
            writer: Some(writer),
            going,
            places,
        }
    }

    async fn feed(&self, given: Given) {
        let writer = self.writer.as_ref().expect("not ended");
        writer.send(given).await.expect("the reader is alive");
    }

    async fn write(&self, seqs: &[u64]) {
        let events = seqs.iter().map(|seq| Event {
            seq: *seq,
            attempt: 1,
            at: Timestamp(0),
            payload: Payload::Output {
                stream: 1,
                offset: 0,
                data: b"x".as_slice().into(),
            },
        });
        self.feed(Ok(events.collect())).await;
    }

    fn end(&mut self) {
        self.writer = None;
    }

    async fn next(&mut self) -> Option<Result<pb::StreamEventsResponse, Status>> {
        let next = tokio::time::timeout(TOO_LONG, self.stream.next()).await;
        next.expect("in bounded time")
    }

    async fn message(&mut self) -> pb::StreamEventsResponse {
        self.next().await.expect("an item").expect("a message")
    }

    async fn assert_drained(&mut self) {
        let status = self.next().await.expect("an item").expect_err("a status");
        assert_eq!(status.code(), Code::Unavailable);
        let details = status.get_error_details();
        assert_eq!(
            details.error_info().expect("ErrorInfo").reason,
            "NODE_DRAINING"
        );
        assert!(self.next().now_or_never().expect("at once").is_none());
    }
}

fn only(message: &pb::StreamEventsResponse) -> &Shown {
    let [events] = &message.run_events[..] else {
        panic!("one run: {message:?}");
    };
    let [event] = &events.events[..] else {
        panic!("one event: {message:?}");
    };
    event.payload.as_ref().expect("a payload")
}

fn seqs(message: &pb::StreamEventsResponse) -> Vec<u64> {
    let of = |events: &pb::RunEvents| -> Vec<u64> {
        let base = events.base_seq;
        events.events.iter().map(|e| base + e.seq_delta).collect()
    };
    message.run_events.iter().flat_map(of).collect()
}

fn cursor(message: &pb::StreamEventsResponse) -> u64 {
    Cursor::decode(&message.cursor).expect("a cursor").at.seq
}

fn after(seq: u64) -> Position {
    Position::After(Reached {
        seq,
        ..Reached::default()
    })
}
