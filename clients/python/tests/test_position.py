"""Positions of streams: what comes twice, what is missing, and where a stream begins anew."""

import kennel
import pytest
from kennel import v1
from kennel._position import Position, Repeats
from kennel._values import Exit, Stats
from kennel._view import RunView


def left(repeats, seqs):
    """Returns what is left of events with these seqs."""
    return [seq for seq in seqs if repeats.is_new("run", seq)]


def test_line_before_gap_is_no_repeat():
    repeats = Repeats()
    assert left(repeats, [3, 4, 4]) == [3, 4, 4]
    assert left(repeats, [4, 9]) == [4, 9]


def test_stream_opened_anew_repeats_no_event():
    repeats = Repeats()
    assert left(repeats, [1, 2]) == [1, 2]
    repeats.cover()
    assert left(repeats, [3, 4, 4]) == [3, 4, 4]
    repeats.begin_anew()
    repeats.cover()
    assert left(repeats, [3, 4]) == []
    repeats.begin_anew()
    assert left(repeats, [3]) == []
    repeats.cover()
    assert left(repeats, [4, 4, 4, 9]) == [4, 9]
    repeats.begin_anew()
    assert left(repeats, [4, 4, 4, 9, 10]) == [10]


def message(*events, cursor=b"", run_id="run"):
    """Makes a message of pairs of a seq and an event."""
    found = v1.StreamEventsResponse(cursor=cursor)
    batch = found.run_events.add(run_id=run_id, attempt=1)
    for seq, event in events:
        event.seq_delta = seq
        batch.events.append(event)
    return found


def output(offset, data, stream=v1.OUTPUT_STREAM_STDOUT):
    return v1.Event(output=v1.Output(stream=stream, data=data, offset=offset))


def gap(end_offset, missing):
    lost = v1.MissingOutput(stream=v1.OUTPUT_STREAM_STDOUT, bytes=missing, end_offset=end_offset)
    return v1.Event(gap=v1.Gap(missing=[lost], reason=v1.GAP_REASON_OUTPUT_LIMIT))


def position(on_gap="error", **fields):
    return Position(v1.StreamEventsRequest(run_id="run", **fields), on_gap, Stats())


def test_bytes_that_came_are_cut():
    found = position()
    pieces = [event.data for event in found.events(message((1, output(0, b"abc")), (2, output(1, b"bcde"))))]
    assert pieces == [b"abc", b"de"]
    assert [event.data for event in found.events(message((3, output(2, b"cd"))))] == []


def test_missing_bytes_without_gap_are_an_error():
    found = position()
    with pytest.raises(kennel.DataGap, match="2 bytes of stdout are missing at 3"):
        list(found.events(message((1, output(0, b"abc")), (2, output(5, b"f")))))


def test_gap_is_an_error_or_skipped():
    parts = [(1, output(0, b"abc")), (5, gap(10, 7)), (6, output(10, b"k"))]
    with pytest.raises(kennel.DataGap, match="7 bytes of stdout are no longer kept"):
        list(position().events(message(*parts)))
    found = [event.data for event in position("skip").events(message(*parts)) if event.kind == "stdout"]
    assert found == [b"abc", b"k"]


def test_gap_of_unread_stream_is_no_error():
    found = position(kinds=[v1.EVENT_KIND_LIFECYCLE, v1.EVENT_KIND_STDERR])
    assert [event.kind for event in found.events(message((5, gap(10, 7))))] == ["gap"]


def test_position_is_after_messages_that_were_read_whole():
    found = position()
    events = found.events(message((1, output(0, b"a")), (2, output(1, b"b")), cursor=b"C"))
    next(events)
    assert found.cursor == b""
    assert list(events)
    assert found.cursor == b"C"
    assert found.request().cursor == b"C"


def test_snapshot_comes_once():
    found = position()
    snapshot = v1.Event(snapshot=v1.Snapshot(run=v1.Run(run_id="run", spec=v1.RunSpec())))
    found.request()
    assert [event.kind for event in found.events(message((0, snapshot)))] == ["snapshot"]
    found.request()
    assert list(found.events(message((0, snapshot)))) == []


def test_refused_cursor_is_replaced_once_by_its_seq():
    found = position()
    list(found.events(message((7, output(0, b"a")), cursor=b"C")))
    assert found.refused("INVALID_FIELD")
    assert found.request().after_seq == 7
    list(found.events(message((8, output(1, b"b")), cursor=b"D")))
    assert not found.refused("INVALID_FIELD")


def test_cursor_ahead_continues_at_the_head():
    found = position()
    list(found.events(message((7, output(0, b"a")), cursor=b"C")))
    assert found.refused("CURSOR_AHEAD")
    assert found.request().WhichOneof("position") == "live"
    assert not position().refused("CURSOR_AHEAD")


def test_unknown_events_are_skipped_and_counted():
    stats = Stats()
    found = Position(v1.StreamEventsRequest(run_id="run"), "error", stats)
    newer = v1.Event.FromString(b"\xfa\x06\x02hi")
    station = v1.Event(lifecycle=v1.Lifecycle())
    assert list(found.events(message((1, newer), (2, station)))) == []
    assert stats.unknown_events == 2


def test_lifecycle_is_read_and_not_given_where_it_was_not_asked_for():
    found = position(kinds=[v1.EVENT_KIND_STDOUT])
    assert v1.EVENT_KIND_LIFECYCLE in found.request().kinds
    ended = v1.Event(lifecycle=v1.Lifecycle(ended=v1.Lifecycle.Ended()))
    assert list(found.events(message((3, ended)))) == []
    assert found.has_ended


def test_unknown_exit_is_no_number():
    assert (Exit(code=3).returncode, Exit(signal="SIGKILL", signal_number=9).returncode) == (3, -9)
    with pytest.raises(kennel.ExitUnknown):
        _ = Exit(is_unknown=True).returncode


def test_unknown_state_of_newer_server_stays_a_number():
    stats = Stats()
    view = RunView()
    view._message, view._stats = v1.Run(state=99, spec=v1.RunSpec()), stats
    assert (view.state, view.is_live) == ("UNKNOWN(99)", False)
    assert stats.unknown_values
    newer = v1.Run.FromString(v1.Run(run_id="R").SerializeToString() + b"\xfa\x3f\x02hi")
    view._message = newer
    assert view.id == "R"
