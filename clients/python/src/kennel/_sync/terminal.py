# Made from _aio/terminal.py by clients/python/sync. Do not edit.
"""A terminal: output, and keys that are typed once whatever dies meanwhile."""

from __future__ import annotations

import os
from collections.abc import Callable
from types import TracebackType

import grpc

from kennel import _calls, _rules
from kennel._error import Failure, KennelError, failure_of
from kennel._reasons import BY_REASON, Closed, DeadlineExceeded
from kennel._sync import _io
from kennel._sync.caller import Caller, Patience
from kennel._sync.connections import Connection
from kennel._sync.gate import Probe
from kennel._ulid import new_id
from kennel._values import Seconds, seconds
from kennel.v1 import run_pb2, terminal_pb2

_Attachment = _io.Bidi[terminal_pb2.AttachRequest, terminal_pb2.AttachResponse]


class Terminal:
    """The terminal of a run. Its output begins with what draws the present screen."""

    def __init__(self, caller: Caller, run_id: str, *, size: tuple[int, int] | None, is_read_only: bool) -> None:
        self._caller = caller
        self._run_id = run_id
        self._size = size
        self._is_read_only = is_read_only
        self._wants_writer = False
        self._cursor = b""
        self._buffer = bytearray()
        self._unanswered: dict[str, terminal_pb2.AttachRequest] = {}
        self._signal = _io.Signal()
        self._pid = os.getpid()
        self._patience = Patience(caller.settings.patience)
        self._connection: Connection | None = None
        self._attachment: _Attachment | None = None
        self._probe: Probe | None = None
        self._is_pumping = False
        self._is_over = False
        self._is_closed = False
        self._error: KennelError | None = None
        self._refusal: KennelError | None = None
        self._is_writer = False
        self._writer = ""
        self._was_opened = False
        self._is_open = False
        self._is_leaving = False

    @property
    def is_writer(self) -> bool:
        """Whether this client may type."""
        return self._is_writer

    @property
    def writer(self) -> str:
        """Principal of the client that may type. Empty: there is none."""
        return self._writer

    @property
    def size(self) -> tuple[int, int] | None:
        """Rows and columns that were set here last."""
        return self._size

    @property
    def cursor(self) -> bytes:
        """Position after the output that was received."""
        return self._cursor

    def open(self) -> None:
        """Waits until the server has attached this client."""
        self._until(lambda: self._was_opened, None)

    def write(self, data: bytes | str) -> None:
        """Types. It waits while eight writes are not answered."""
        if isinstance(data, str):
            data = data.encode()
        for begin in range(0, len(data), _rules.INPUT_PIECE_BYTES):
            piece = data[begin : begin + _rules.INPUT_PIECE_BYTES]
            if len(self._unanswered) >= _rules.TERMINAL_UNANSWERED_MAX:
                self._until(lambda: len(self._unanswered) < _rules.TERMINAL_UNANSWERED_MAX, None)
            self._check()
            write_id = new_id()
            request = terminal_pb2.AttachRequest(input=terminal_pb2.AttachInput(data=piece, write_id=write_id))
            self._unanswered[write_id] = request
            self._send(request)

    def flush(self) -> None:
        """Waits until the terminal has all that was typed. Raises the error of a refused write."""
        self._until(lambda: not self._unanswered, None)

    def sendline(self, line: str = "") -> None:
        """Types a line and Return."""
        self.write(line.encode() + b"\r")

    def resize(self, rows: int, cols: int) -> None:
        """Changes the size."""
        self._check()
        self._size = (rows, cols)
        self._send(terminal_pb2.AttachRequest(resize=run_pb2.TerminalSize(rows=rows, cols=cols)))

    def take(self, timeout: Seconds | None = None) -> None:
        """Makes this client the one that may type, and waits until it is."""
        self._check()
        self._wants_writer = True
        if self._is_writer:
            return
        self._send(terminal_pb2.AttachRequest(take=terminal_pb2.TakeWriter()))
        self._until(lambda: self._is_writer, timeout)

    def read(self, size: int = -1, timeout: Seconds | None = None) -> bytes:
        """Returns output as soon as there is some; empty: the run has ended. `size` bounds it."""
        self._until(lambda: bool(self._buffer), timeout)
        taken = bytes(self._buffer[:size] if size >= 0 else self._buffer)
        del self._buffer[: len(taken)]
        self._signal.notify()
        return taken

    def read_all(self) -> bytes:
        """Returns all output up to the end of the run."""
        found = bytearray()
        while True:
            piece = self.read()
            if not piece:
                return bytes(found)
            found += piece

    def expect(self, text: bytes | str, timeout: Seconds | None = 30.0) -> bytes:
        """Waits until the output has a text, and returns the output up to its end. Searches the last MiB.

        Raises EOFError where the run ends without it, and TimeoutError."""
        wanted = text.encode() if isinstance(text, str) else text
        seen = bytearray()
        until = None if timeout is None else _io.monotonic() + seconds(timeout)
        try:
            while True:
                left = None if until is None else max(0.0, until - _io.monotonic())
                piece = self.read(timeout=left)
                begin = max(0, len(seen) - len(wanted) + 1)
                seen += piece
                found = seen.find(wanted, begin)
                if found >= 0:
                    end = found + len(wanted)
                    self._buffer[:0] = seen[end:]
                    del seen[end:]
                    result = bytes(seen)
                    seen.clear()
                    return result
                if not piece:
                    raise EOFError(f"the run ended without {text!r}")
                del seen[: -_rules.EXPECT_BYTES]
        finally:
            self._buffer[:0] = seen

    def detach(self) -> None:
        """Leaves the terminal when all that was typed is answered; the run continues."""
        if self._is_closed:
            return
        try:
            self._is_leaving = True
            if not self._is_over and self._error is None and self._was_opened:
                self.flush()
                if self._attachment is not None:
                    self._attachment.finish()
        finally:
            self.close()

    def close(self) -> None:
        """Leaves the terminal at once; the run continues."""
        self._is_closed = True
        self._end()
        self._signal.notify()

    def __enter__(self) -> Terminal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        (self.detach() if error is None else self.close())

    def __iter__(self) -> Terminal:
        return self

    def __next__(self) -> bytes:
        piece = self.read()
        if not piece:
            raise StopIteration
        return piece

    def _check(self) -> None:
        refusal, self._refusal = self._refusal, None
        if refusal is not None:
            raise refusal
        if self._error is not None:
            raise self._error
        if self._is_closed:
            raise Closed("the terminal is closed", run_id=self._run_id)
        self._caller.connections.check_owner(self._pid, "the terminal")

    def _send(self, request: terminal_pb2.AttachRequest) -> None:
        """Sends a request, where the terminal is attached; one that is not is sent when it is."""
        attachment = self._attachment
        if attachment is not None and self._is_open:
            attachment.write(request)
        elif not self._was_opened:
            self.open()

    def _until(self, is_met: Callable[[], bool], timeout: Seconds | None) -> None:
        """Reads from the server until a condition holds or the run has ended. One caller at a time reads."""
        until = None if timeout is None else _io.monotonic() + seconds(timeout)
        while True:
            with self._signal:
                self._check()
                if is_met() or self._is_over:
                    return
                left = None if until is None else until - _io.monotonic()
                if left is not None and left <= 0:
                    raise DeadlineExceeded("nothing of that came in time", run_id=self._run_id)
                is_reader = not self._is_pumping
                if not is_reader:
                    self._signal.wait(left)
                    continue
                self._is_pumping = True
            try:
                self._pump(left)
            finally:
                with self._signal:
                    self._is_pumping = False
                    self._signal.notify()

    def _pump(self, timeout: float | None) -> None:
        """Takes one message, and attaches anew where the server was lost."""
        caller = self._caller
        caller.check()
        failure: Failure
        try:
            if self._attachment is None:
                self._attach()
            assert self._attachment is not None
            message = self._attachment.read(timeout)
        except TimeoutError:
            return
        except grpc.RpcError as error:
            failure = failure_of(error)
        except BaseException:
            caller.gate.abandon(self._probe)
            raise
        else:
            caller.gate.alive()
            self._probe = None
            if message is None:
                self._is_over = True
                self._end()
                return
            self._patience.reset()
            self._take(message)
            return
        if failure.is_lost and self._connection is not None:
            self._connection.is_suspect = True
        self._end()
        if self._is_closed or caller.is_closed:
            raise Closed("the terminal is closed", run_id=self._run_id)
        self._overcome(failure)

    def _overcome(self, failure: Failure) -> None:
        caller = self._caller
        probe, self._probe = self._probe, None
        if failure.is_of_server:
            caller.gate.alive()
        if failure.not_now(is_spawn=False, is_stream=True) and caller.settings.patience > 0:
            delay = self._patience.delay(failure)
            if delay is not None:
                _io.sleep(delay)
                return
        elif failure.is_lost and caller.settings.patience > 0:
            caller.gate.lost(failure, probe)
            self._probe = caller.gate.admit(None)
            caller.stats.repeats += 1
            return
        elif self._cursor and failure.reason in ("INVALID_FIELD", "CURSOR_AHEAD"):
            self._cursor = b""
            return
        self._error = caller.ended(failure) if failure.is_lost else failure.error(self._run_id)
        raise self._error

    def _attach(self) -> None:
        connection, credentials = self._caller.connections.take(is_bulk=True)
        try:
            metadata = self._caller.metadata(credentials)
            attachment: _Attachment = connection.channel.bidi(_calls.Attach, metadata)
        except BaseException:
            self._caller.connections.give_back(connection)
            raise
        self._connection, self._attachment = connection, attachment
        self._caller.connections.add(self)
        self._caller.stats.open_streams += 1
        opening = terminal_pb2.AttachOpen(run_id=self._run_id, read_only=self._is_read_only, cursor=self._cursor)
        if self._size is not None and not self._is_read_only:
            opening.size.rows, opening.size.cols = self._size
        attachment.write(terminal_pb2.AttachRequest(open=opening))

    def _take(self, message: terminal_pb2.AttachResponse) -> None:
        kind = message.WhichOneof("response")
        if kind == "opened":
            self._opened(message.opened)
        elif kind == "events":
            for batch in message.events.run_events:
                for event in batch.events:
                    if event.WhichOneof("payload") == "output" and not self._is_leaving:
                        self._buffer += event.output.data
            self._cursor = message.events.cursor or self._cursor
        elif kind == "taken":
            self._unanswered.pop(message.taken.write_id, None)
        elif kind == "refused":
            refused = message.refused
            self._unanswered.pop(refused.write_id, None)
            of_reason = BY_REASON.get(refused.reason, KennelError)
            self._refusal = of_reason(refused.message, reason=refused.reason, run_id=self._run_id)
        elif kind == "writer":
            self._set_writer(message.writer)
        self._signal.notify()

    def _opened(self, opened: terminal_pb2.AttachOpened) -> None:
        if opened.HasField("screen"):
            if not opened.screen.untouched or self._was_opened:
                self._buffer += opened.screen.repaint
            self._cursor = opened.screen.cursor
        self._set_writer(opened.writer)
        attachment = self._attachment
        if attachment is None:
            return
        if self._wants_writer and not self._is_writer and not self._is_read_only:
            attachment.write(terminal_pb2.AttachRequest(take=terminal_pb2.TakeWriter()))
        if self._was_opened and self._size is not None and not self._is_read_only:
            rows, cols = self._size
            attachment.write(terminal_pb2.AttachRequest(resize=run_pb2.TerminalSize(rows=rows, cols=cols)))
        self._was_opened = True
        for request in list(self._unanswered.values()):
            attachment.write(request)
        self._is_open = True

    def _set_writer(self, writer: terminal_pb2.WriterChanged) -> None:
        if self._is_writer and not writer.you and self._is_open:
            self._wants_writer = False
        self._is_writer, self._writer = writer.you, writer.principal

    def _end(self) -> None:
        attachment, self._attachment, self._is_open = self._attachment, None, False
        connection, self._connection = self._connection, None
        if attachment is not None:
            attachment.cancel()
            self._caller.stats.open_streams -= 1
        if connection is not None:
            self._caller.connections.give_back(connection)


def screen_text(screen: terminal_pb2.Screen) -> list[str]:
    """Returns the lines of a screen as text."""
    return ["".join(span.text for span in line.spans) for line in screen.lines]
