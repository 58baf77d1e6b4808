"""Positions of streams: where they begin again after a loss, what is a repeat, and what is missing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kennel._reasons import DataGap
from kennel._values import Event, Line, Stats, enum_text
from kennel.v1 import event_pb2, process_service_pb2, run_pb2

_LIFECYCLE = process_service_pb2.EVENT_KIND_LIFECYCLE
_STREAMS: dict[int, str] = {run_pb2.OUTPUT_STREAM_STDOUT: "stdout", run_pb2.OUTPUT_STREAM_STDERR: "stderr"}


def stream_name(stream: int) -> str:
    """Returns the name of a stream."""
    return _STREAMS.get(stream) or enum_text(run_pb2.OutputStream, "OUTPUT_STREAM_", stream).lower()


class Repeats:
    """Drops events of many runs that came before, where their stream is opened anew at its last cursor."""

    def __init__(self) -> None:
        self._came: dict[str, tuple[int, int]] = {}
        self._skip: dict[str, tuple[int, int]] = {}

    def begin_anew(self) -> None:
        """Notes that the stream is opened anew at its last cursor."""
        for run, (seq, count) in self._came.items():
            last = self._skip.get(run, (0, 0))
            if seq == last[0]:
                self._skip[run] = (seq, last[1] + count)
            elif seq > last[0]:
                self._skip[run] = (seq, count)
        self._came.clear()

    def cover(self) -> None:
        """Notes a cursor after everything that came."""
        self._came.clear()

    def is_new(self, run: str, seq: int) -> bool:
        """Notes an event, and returns whether it did not come before."""
        last = self._came.get(run)
        self._came[run] = (seq, last[1] + 1 if last is not None and last[0] == seq else 1)
        skip = self._skip.get(run)
        if skip is None:
            return True
        if seq < skip[0]:
            return False
        if seq == skip[0] and skip[1] > 0:
            self._skip[run] = (seq, skip[1] - 1)
            return False
        if seq > skip[0]:
            del self._skip[run]
        return True


class Position:
    """Where a stream of events is."""

    def __init__(self, request: process_service_pb2.StreamEventsRequest, on_gap: str, stats: Stats) -> None:
        if on_gap not in ("error", "skip"):
            raise ValueError(f"on_gap={on_gap!r}: it is one of error, skip")
        self._request = request
        self._on_gap = on_gap
        self._stats = stats
        self._is_many = not request.run_id
        self._repeats = Repeats() if self._is_many else None
        self._is_raw = request.output_view in (event_pb2.OUTPUT_VIEW_UNSPECIFIED, event_pb2.OUTPUT_VIEW_RAW)
        begins = request.WhichOneof("position")
        is_whole = begins in (None, "beginning") or (begins == "after_seq" and request.after_seq == 0)
        self._expected: dict[int, int] = {1: 0, 2: 0} if is_whole and not request.consumer else {}
        self._wanted = frozenset(request.kinds)
        self.cursor = b""
        """Cursor after the last message whose events were all given to the caller."""
        self.seq = 0
        """Seq of the last event that was given to the caller."""
        self.has_ended = False
        """Whether the run's last event came."""
        self._opened = 0
        self._after_seq_used = False

    def request(self) -> process_service_pb2.StreamEventsRequest:
        """Returns the request that begins here."""
        request = process_service_pb2.StreamEventsRequest()
        request.CopyFrom(self._request)
        if self._wanted and _LIFECYCLE not in self._wanted:
            request.kinds.append(_LIFECYCLE)
        if self.cursor:
            request.cursor = self.cursor
        if self._opened and self._repeats is not None:
            self._repeats.begin_anew()
        self._opened += 1
        return request

    def refused(self, reason: str) -> bool:
        """Changes the position after the server has refused it; whether there is another one to try."""
        if reason == "INVALID_FIELD" and self.cursor and not self._is_many and not self._after_seq_used:
            self._after_seq_used = True
            self.cursor = b""
            self._request.after_seq = self.seq
            return True
        if reason == "CURSOR_AHEAD" and self.cursor and not self._is_many:
            self.cursor = b""
            self._request.live.SetInParent()
            self._expected = {}
            return True
        return False

    def events(self, message: process_service_pb2.StreamEventsResponse) -> Iterator[Event]:
        """Reads a message. When all of its events are taken the position is after it."""
        for batch in message.run_events:
            base_nanos = batch.base_time.seconds * 1_000_000_000 + batch.base_time.nanos
            for event in batch.events:
                seq = batch.base_seq + event.seq_delta
                kind = event.WhichOneof("payload")
                if kind is None:
                    self._stats.unknown_events += 1
                    continue
                if kind == "heartbeat":
                    continue
                if kind == "snapshot":
                    if self._opened > 1 and not self._is_many:
                        continue
                elif self._repeats is not None and not self._repeats.is_new(batch.run_id, seq):
                    continue
                elif not self._is_many:
                    self.seq = max(self.seq, seq)
                delta = event.time_delta.seconds * 1_000_000_000 + event.time_delta.nanos
                found = self._event(batch, event, kind, seq, base_nanos + delta if base_nanos else 0)
                if found is not None:
                    yield found
        if message.cursor:
            self.cursor = message.cursor
            if self._repeats is not None:
                self._repeats.cover()

    def _event(
        self, batch: event_pb2.RunEvents, event: event_pb2.Event, kind: str, seq: int, nanos: int
    ) -> Event | None:
        data, line = b"", None
        if kind == "output":
            output = event.output
            data = self._checked(output.stream, output.offset, output.data)
            if not data:
                return None
            kind = stream_name(output.stream)
        elif kind == "line":
            kind = stream_name(event.line.stream)
            line = Line(
                stream=kind,
                text=event.line.text,
                seq=seq,
                attempt=batch.attempt,
                offset=event.line.offset,
                is_truncated=event.line.truncated,
                is_json=event.line.HasField("json"),
            )
        elif kind == "gap":
            self._check_gap(event.gap, batch.run_id)
        elif kind == "lifecycle":
            station = event.lifecycle.WhichOneof("station")
            if station is None:
                self._stats.unknown_events += 1
                return None
            kind = station
            if kind == "ended":
                self.has_ended = True
            if self._wanted and _LIFECYCLE not in self._wanted:
                return None
        elif kind == "snapshot" and not event.snapshot.run.HasField("spec"):
            # The record of a fence has no events.
            self.has_ended = self.has_ended or event.snapshot.run.HasField("end_reason")
        return Event(kind, batch.run_id, seq, batch.attempt, nanos, data, line, event)

    def _checked(self, stream: int, offset: int, data: bytes) -> bytes:
        """Cuts bytes that came before, and finds those that are missing."""
        if self._is_many or not self._is_raw:
            return data
        expected = self._expected.get(stream)
        if expected is not None and offset > expected and self._on_gap == "error":
            raise DataGap(f"{offset - expected} bytes of {stream_name(stream)} are missing at {expected}")
        if expected is not None and offset < expected:
            data = data[expected - offset :]
            offset = expected
        self._expected[stream] = max(offset + len(data), expected or 0)
        return data

    def _check_gap(self, gap: event_pb2.Gap, run_id: str) -> None:
        missing: list[str] = []
        for part in gap.missing:
            if self._is_read(part.stream):
                at = self._expected.get(part.stream)
                count = part.bytes if part.HasField("bytes") else part.end_offset - (at or 0)
                if count:
                    missing.append(f"{count} bytes of {stream_name(part.stream)}")
            if not self._is_many:
                self._expected[part.stream] = part.end_offset
        if missing and self._on_gap == "error":
            why = enum_text(event_pb2.GapReason, "GAP_REASON_", gap.reason)
            raise DataGap(f"{' and '.join(missing)} are no longer kept ({why})", run_id=run_id)

    def _is_read(self, stream: int) -> bool:
        kind = process_service_pb2.EVENT_KIND_STDOUT if stream == 1 else process_service_pb2.EVENT_KIND_STDERR
        return not self._wanted or kind in self._wanted


def kinds_of(names: Sequence[str]) -> list[str]:
    """Reads names of kinds, such as `stdout`."""
    known = [name.removeprefix("EVENT_KIND_").lower() for name in process_service_pb2.EventKind.keys()[1:]]
    if not set(names) <= set(known):
        raise ValueError(f"kinds={list(names)!r}: they are of {', '.join(known)}")
    return [f"EVENT_KIND_{name.upper()}" for name in names]
