"""Streams of events that outlive their server, and the output in them."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from types import TracebackType

import grpc

from kennel import _calls
from kennel._aio import _io
from kennel._aio.caller import Caller, Patience
from kennel._aio.connections import Connection
from kennel._aio.gate import Probe
from kennel._error import Failure, KennelError, failure_of
from kennel._position import Position
from kennel._reasons import AttemptEnded, Closed
from kennel._values import Event, Line
from kennel.v1 import event_pb2, process_service_pb2


class EventStream:
    """Events of one run or of many: each once, in order, whatever dies meanwhile. It is opened at the first read."""

    def __init__(
        self, caller: Caller, request: process_service_pb2.StreamEventsRequest, *, on_gap: str = "error"
    ) -> None:
        self._caller = caller
        self._run_id = request.run_id or None
        self._position = Position(request, on_gap, caller.stats)
        self._ends_at_head = request.until == process_service_pb2.STREAM_UNTIL_HEAD
        self._pid = os.getpid()
        self._patience = Patience(caller.settings.patience)
        self._connection: Connection | None = None
        self._stream: _io.Stream[process_service_pb2.StreamEventsResponse] | None = None
        self._probe: Probe | None = None
        self._events: Iterator[Event] = iter(())
        self._error: KennelError | None = None
        self._is_over = False
        self._is_closed = False

    @property
    def cursor(self) -> bytes:
        """Position after the last message whose events were all read, for `events(cursor=...)`."""
        return self._position.cursor

    @property
    def seq(self) -> int:
        """Seq of the last event that was read."""
        return self._position.seq

    async def open(self) -> None:
        """Opens it now, so that its position is fixed: what happens from here on is in it."""
        self._check()
        while self._stream is None and not self._is_over:
            message = await self._read()
            if message is not None:
                self._events = self._position.events(message)

    async def next_event(self) -> Event | None:
        """Returns the next event; None: there is no further one."""
        while True:
            self._check()
            try:
                for event in self._events:
                    return event
            except KennelError as error:
                self._error = error
                await self._end()
                raise
            if self._is_over:
                return None
            message = await self._read()
            if message is not None:
                self._events = self._position.events(message)

    def _check(self) -> None:
        if self._error is not None:
            raise self._error
        if self._is_closed:
            raise Closed("the stream is closed", run_id=self._run_id)
        self._caller.connections.check_owner(self._pid, "the stream")

    async def _read(self) -> process_service_pb2.StreamEventsResponse | None:
        """Reads a message, of a stream that it opens where it is not. None: it has ended, or begins anew."""
        caller = self._caller
        caller.check()
        failure: Failure
        try:
            if self._stream is None:
                await self._open()
            assert self._stream is not None
            message = await self._stream.read()
        except grpc.RpcError as error:
            failure = failure_of(error)
        except BaseException:
            caller.gate.abandon(self._probe)
            raise
        else:
            caller.gate.alive()
            self._probe = None
            if message is not None:
                self._patience.reset()
                return message
            if self._position.has_ended or self._ends_at_head:
                self._is_over = True
                await self._end()
                return None
            failure = Failure("UNAVAILABLE", "the stream ended before the run")
        if failure.is_lost and self._connection is not None:
            self._connection.is_suspect = True
        await self._end()
        if self._is_closed or caller.is_closed:
            raise Closed("the stream is closed", run_id=self._run_id)
        await self._overcome(failure)
        return None

    async def _open(self) -> None:
        connection, credentials = self._caller.connections.take(is_bulk=True)
        try:
            metadata = await self._caller.metadata(credentials)
            self._stream = connection.channel.stream(_calls.StreamEvents, self._position.request(), metadata)
        except BaseException:
            await self._caller.connections.give_back(connection)
            raise
        self._connection = connection
        self._caller.connections.add(self)
        self._caller.stats.open_streams += 1

    async def _overcome(self, failure: Failure) -> None:
        """Waits until the stream may be opened again, or raises."""
        caller = self._caller
        probe, self._probe = self._probe, None
        if failure.is_of_server:
            caller.gate.alive()
        if failure.not_now(is_spawn=False, is_stream=True) and caller.settings.patience > 0:
            delay = self._patience.delay(failure)
            if delay is not None:
                await _io.sleep(delay)
                return
        elif failure.is_lost and caller.settings.patience > 0:
            caller.gate.lost(failure, probe)
            self._probe = await caller.gate.admit(None)
            caller.stats.repeats += 1
            return
        elif failure.is_of_server and self._position.refused(failure.reason):
            warnings.warn(f"the position of a stream was refused ({failure.reason})", RuntimeWarning, stacklevel=2)
            if failure.reason == "CURSOR_AHEAD":
                gap = event_pb2.Event(gap=event_pb2.Gap(reason=event_pb2.GAP_REASON_HOST_LOST))
                self._events = iter((Event("gap", self._run_id or "", self.seq, 0, 0, message=gap),))
            return
        self._error = caller.ended(failure) if failure.is_lost else failure.error(self._run_id)
        raise self._error

    async def _end(self) -> None:
        """Ends the call, not the stream."""
        stream, self._stream = self._stream, None
        connection, self._connection = self._connection, None
        if stream is not None:
            stream.cancel()
            self._caller.stats.open_streams -= 1
        if connection is not None:
            await self._caller.connections.give_back(connection)

    async def close(self) -> None:
        """Closes it; the run is left as it is."""
        self._is_closed = True
        await self._end()

    def __del__(self) -> None:
        stream, connection = getattr(self, "_stream", None), getattr(self, "_connection", None)
        if stream is not None and connection is not None:
            self._caller.stats.open_streams -= 1
            connection.calls -= 1


class Events:
    """Events of a run or of many, one by one."""

    def __init__(self, stream: EventStream) -> None:
        self._stream = stream

    @property
    def cursor(self) -> bytes:
        """Position after the last message whose events were all read, for `events(cursor=...)`."""
        return self._stream.cursor

    def __aiter__(self) -> Events:
        return self

    async def __anext__(self) -> Event:
        event = await self._stream.next_event()
        if event is None:
            await self.close()
            raise StopAsyncIteration
        return event

    async def __aenter__(self) -> Events:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Closes it."""
        await self._stream.close()

    aclose = close  # asyncio only


class Lines:
    """Lines of a run, one by one."""

    def __init__(self, stream: EventStream) -> None:
        self._stream = stream

    @property
    def cursor(self) -> bytes:
        """Position after the last message whose lines were all read, for `lines(cursor=...)`."""
        return self._stream.cursor

    def __aiter__(self) -> Lines:
        return self

    async def __anext__(self) -> Line:
        while True:
            event = await self._stream.next_event()
            if event is None:
                await self.close()
                raise StopAsyncIteration
            if event.line is not None:
                return event.line

    async def __aenter__(self) -> Lines:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Closes it."""
        await self._stream.close()

    aclose = close  # asyncio only


class OutputReader:
    """Bytes of one stream of a run. It has one reader; one that stops delays no other reader and no command."""

    def __init__(self, stream: EventStream, name: str, attempt: int | None = None) -> None:
        self._stream = stream
        self._name = name
        self._attempt = attempt
        self._buffer = bytearray()
        self._is_over = False
        self._error: KennelError | None = None

    async def _fill(self) -> bool:
        """Waits for more bytes; False: there are none."""
        while not self._is_over:
            event = await self._stream.next_event()
            if event is None:
                self._is_over = True
                await self._stream.close()
            elif self._attempt is not None and event.attempt == self._attempt and event.kind == "attempt_ended":
                self._error = AttemptEnded("the attempt has ended, and another one follows", run_id=event.run_id)
                self._is_over = True
                await self._stream.close()
            elif event.kind == self._name and (self._attempt is None or event.attempt == self._attempt):
                self._buffer += event.data
                return True
        return False

    def _take(self, size: int) -> bytes:
        taken = bytes(self._buffer[:size])
        del self._buffer[:size]
        return taken

    async def read(self, size: int = -1) -> bytes:
        """Returns up to `size` bytes, as soon as there is one; -1: all up to the end. Empty: the stream has ended."""
        if size == 0:
            return b""
        if size < 0:
            while await self._fill():
                pass
        elif not self._buffer:
            await self._fill()
        if not self._buffer and self._error is not None:
            raise self._error
        return self._take(len(self._buffer) if size < 0 else size)

    async def readexactly(self, size: int) -> bytes:
        """Returns so many bytes. Raises EOFError where the stream ends before."""
        while len(self._buffer) < size:
            if not await self._fill():
                if self._error is not None:
                    raise self._error
                raise EOFError(f"the stream ended {size - len(self._buffer)} bytes too early")
        return self._take(size)

    async def readline(self) -> bytes:
        """Returns the next line with its end; the last one may have none. Empty: the stream has ended."""
        searched = 0
        while True:
            found = self._buffer.find(b"\n", searched)
            if found >= 0:
                return self._take(found + 1)
            searched = len(self._buffer)
            if not await self._fill():
                if not self._buffer and self._error is not None:
                    raise self._error
                return self._take(searched)

    def __aiter__(self) -> OutputReader:
        return self

    async def __anext__(self) -> bytes:
        line = await self.readline()
        if not line:
            raise StopAsyncIteration
        return line

    async def close(self) -> None:
        """Closes it; the run is left as it is."""
        self._is_over = True
        await self._stream.close()

    aclose = close  # asyncio only
