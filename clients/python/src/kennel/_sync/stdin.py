# Made from _aio/stdin.py by clients/python/sync. Do not edit.
"""Standard input of a run: each byte once, whatever dies meanwhile."""

from __future__ import annotations

from types import TracebackType

from kennel import _calls, _rules
from kennel._reasons import AttemptEnded, AttemptMismatch, InputClosed, InputOffsetUnknown, RunEnded
from kennel._sync import _io
from kennel._sync.caller import Caller
from kennel._ulid import new_id
from kennel.v1 import process_service_pb2, run_pb2


class Stdin:
    """Writes to the standard input of one attempt. `write` returns when the command's pipe has all bytes."""

    def __init__(
        self, caller: Caller, run_id: str, *, attempt: int | None, offset: int | None, is_shared: bool, is_duplex: bool
    ) -> None:
        self._caller = caller
        self._run_id = run_id
        self._attempt = attempt
        self._offset = offset
        self._is_shared = is_shared
        self._is_duplex = is_duplex
        self._is_closed = False
        self._lock = _io.Lock()

    @property
    def offset(self) -> int | None:
        """Number of bytes that were accepted. None: not known before the first write."""
        return self._offset

    def continue_at(self, status: run_pb2.InputStatus) -> None:
        """Continues after bytes that were written elsewhere."""
        self._attempt = status.attempt or None
        self._offset = status.accepted_offset if status.HasField("accepted_offset") else None

    def write(self, data: bytes | bytearray | memoryview | str) -> int:
        """Writes all of it, and returns its length. It waits while the command does not read.

        Where the call is cancelled, a part may be written: `offset` says how much, after the next write."""
        if isinstance(data, str):
            data = data.encode()
        view = memoryview(data).cast("B")
        with self._lock:
            if self._is_closed:
                raise InputClosed("standard input is closed", code="FAILED_PRECONDITION", run_id=self._run_id)
            for begin in range(0, len(view), _rules.INPUT_PIECE_BYTES):
                self._write_piece(bytes(view[begin : begin + _rules.INPUT_PIECE_BYTES]))
        return len(view)

    def _write_piece(self, piece: bytes) -> None:
        self._locate()
        request = process_service_pb2.WriteInputRequest(run_id=self._run_id, data=piece, write_id=new_id())
        if not self._is_shared:
            request.offset = self._offset or 0
        if self._attempt is not None:
            request.expected_attempt = self._attempt
        offset, self._offset = self._offset, None
        try:
            answer = self._caller.call(
                _calls.WriteInput,
                request,
                timeout=_NO_END,
                try_timeout=_rules.INPUT_CALL_TIMEOUT,
                is_bulk=True,
                run_id=self._run_id,
            )
        except (AttemptMismatch, RunEnded) as error:
            raise self._over(error) from error
        except InputClosed as error:
            self._offset = int(error.metadata.get("accepted_offset", offset or 0))
            raise self._over(error) from error
        self._offset = answer.input.accepted_offset if self._is_shared else (offset or 0) + len(piece)

    def _over(self, error: AttemptMismatch | RunEnded | InputClosed) -> Exception:
        """Returns the error of an input that has ended."""
        if isinstance(error, AttemptMismatch) and self._is_duplex:
            return AttemptEnded("the attempt has ended", code=error.code, run_id=self._run_id)
        if isinstance(error, RunEnded):
            return InputClosed(error.message, code=error.code, metadata=error.metadata, run_id=self._run_id)
        return error

    def _locate(self) -> None:
        """Finds the attempt and the position, where they are not known: at first, and after a cancelled write."""
        if self._offset is not None and self._attempt is not None:
            return
        request = process_service_pb2.GetInputStatusRequest(run_id=self._run_id)
        status = (self._caller.call(_calls.GetInputStatus, request, run_id=self._run_id)).input
        if self._attempt is None:
            self._attempt = status.attempt or None
        if not status.HasField("accepted_offset"):
            raise InputOffsetUnknown(
                "the number of accepted bytes is not known", code="FAILED_PRECONDITION", run_id=self._run_id
            )
        self._offset = status.accepted_offset

    def close(self) -> None:
        """Closes standard input: the command reads its end after the last byte."""
        with self._lock:
            if self._is_closed:
                return
            self._locate()
            request = process_service_pb2.CloseInputRequest(run_id=self._run_id)
            if not self._is_shared:
                request.offset = self._offset or 0
            if self._attempt is not None:
                request.expected_attempt = self._attempt
            try:
                self._caller.call(_calls.CloseInput, request, run_id=self._run_id)
            except (InputClosed, RunEnded, AttemptMismatch):
                pass  # it is closed already
            self._is_closed = True

    def __enter__(self) -> Stdin:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


_NO_END = 10.0 * 365 * 86_400
