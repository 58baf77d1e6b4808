"""Waiting, threads and channels. `_aio/_io.py` has the same names with asyncio; the other files of this folder are made
from those of `_aio` by clients/python/sync."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import Any, Generic, ParamSpec, TypeVar, cast

import grpc

from kennel._call import BidiCall, StreamCall, UnaryCall
from kennel._reasons import Closed

P = ParamSpec("P")
Q = TypeVar("Q")
R = TypeVar("R")

monotonic = time.monotonic
sleep = time.sleep
Cancelled: tuple[type[BaseException], ...] = (KeyboardInterrupt, SystemExit)


def count_tasks() -> int:
    """Returns the number of threads."""
    return threading.active_count()


class Signal:
    """What others wait for. Used as a context around its state."""

    def __init__(self) -> None:
        self._condition = threading.Condition(threading.RLock())

    def __enter__(self) -> None:
        self._condition.acquire()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._condition.release()

    def wait(self, timeout: float | None = None) -> None:
        """Waits for the next notify, or for a time."""
        self._condition.wait(timeout)

    def notify(self) -> None:
        """Wakes all that wait."""
        with self._condition:
            self._condition.notify_all()


class Lock:
    """A mutex across waits."""

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lock.release()


class Timer:
    """Calls a function later, in a thread of its own."""

    def __init__(self, delay: float, function: Callable[[], None]) -> None:
        self._timer = threading.Timer(delay, function)
        self._timer.daemon = True
        self._timer.start()

    def cancel(self) -> None:
        """Forgets it."""
        self._timer.cancel()


class Task:
    """A function that runs beside its caller, in a thread."""

    def __init__(self, function: Callable[P, Any], *args: P.args, **kwargs: P.kwargs) -> None:
        self._value: Any = None
        self._error: BaseException | None = None

        def run() -> None:
            try:
                self._value = function(*args, **kwargs)
            except BaseException as error:  # raised again by `result`
                self._error = error

        self._thread = threading.Thread(target=run, daemon=True)
        self._thread.start()

    def join(self, timeout: float | None = None) -> bool:
        """Waits for its end; whether it came."""
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def result(self) -> Any:
        """Waits for its end, and returns its value or raises its error."""
        self._thread.join()
        if self._error is not None:
            raise self._error
        return self._value

    def is_done(self) -> bool:
        """Whether it has ended."""
        return not self._thread.is_alive()

    def cancel(self) -> None:
        """A thread ends by itself: when its call is answered, or its client is closed."""


def cancelled(task: Task) -> None:
    """Waits a moment for the end of a task."""
    task.join(1)


class Home:
    """Any thread may use a client."""

    def check(self) -> None:
        """Refuses none."""


class Stream(Generic[R]):
    """Messages of a server."""

    def __init__(self, call: Any) -> None:
        self._call = call

    def read(self, timeout: float | None = None) -> R | None:
        """Returns the next message; None: the server has ended the stream. Raises grpc.RpcError."""
        try:
            return cast(R, next(self._call))
        except StopIteration:
            return None

    def cancel(self) -> None:
        """Ends the call."""
        self._call.cancel()


class _Requests(Generic[Q]):
    """Requests of a stream, in their order."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[Q | None] = queue.SimpleQueue()

    def put(self, message: Q | None) -> None:
        self._queue.put(message)

    def __iter__(self) -> Iterator[Q]:
        return iter(cast(Callable[[], Q], self._queue.get), None)


class Bidi(Stream[R], Generic[Q, R]):
    """Messages of both sides. A thread reads, one message ahead, so that a read can wait for a time."""

    def __init__(self, call: Any, requests: _Requests[Q]) -> None:
        super().__init__(call)
        self._requests = requests
        self._signal = threading.Condition()
        self._slot: list[tuple[R | None, grpc.RpcError | None]] = []
        self._is_closed = False
        threading.Thread(target=self._pump, daemon=True).start()

    def _pump(self) -> None:
        while True:
            item: tuple[R | None, grpc.RpcError | None]
            try:
                item = (cast(R, next(self._call)), None)
            except StopIteration:
                item = (None, None)
            except grpc.RpcError as error:
                item = (None, error)
            with self._signal:
                while self._slot and not self._is_closed:
                    self._signal.wait()
                self._slot.append(item)
                self._signal.notify_all()
            if item[0] is None or self._is_closed:
                self._requests.put(None)
                return

    def read(self, timeout: float | None = None) -> R | None:
        """Returns the next message; None: the server has ended the stream. Raises grpc.RpcError, or TimeoutError."""
        with self._signal:
            if not self._signal.wait_for(lambda: bool(self._slot), timeout):
                raise TimeoutError
            message, error = self._slot[0]
            if message is not None:
                self._slot.pop(0)
                self._signal.notify_all()
        if error is not None:
            raise error
        return message

    def write(self, message: Q) -> None:
        """Sends a message. A lost stream is found by the next read."""
        self._requests.put(message)

    def finish(self) -> None:
        """Ends this side."""
        self._requests.put(None)

    def cancel(self) -> None:
        """Ends the call."""
        with self._signal:
            self._is_closed = True
            self._signal.notify_all()
        self._requests.put(None)
        super().cancel()


Metadata = Sequence[tuple[str, str | bytes]]


class Channel:
    """A connection to a server."""

    def __init__(
        self, uri: str, credentials: grpc.ChannelCredentials | None, options: Sequence[tuple[str, str | int]]
    ) -> None:
        if credentials is None:
            self._channel = grpc.insecure_channel(uri, options=options)
        else:
            self._channel = grpc.secure_channel(uri, credentials, options=options)
        self._unary: dict[str, Any] = {}
        self._is_closed = False

    def unary(self, rpc: UnaryCall[Q, R], request: Q, timeout: float | None, metadata: Metadata) -> R:
        """Makes a call with one answer."""
        call = self._unary.get(rpc.path)
        if call is None:
            call = self._channel.unary_unary(
                rpc.path, request_serializer=rpc.serialize, response_deserializer=rpc.parse
            )
            self._unary[rpc.path] = call
        try:
            return cast(R, call(request, timeout=timeout, metadata=tuple(metadata)))
        except ValueError:
            # What grpcio raises where another thread has closed the channel.
            if self._is_closed:
                raise Closed("the client is closed") from None
            raise

    def stream(
        self, rpc: StreamCall[Q, R], request: Q, metadata: Metadata, timeout: float | None = None
    ) -> Stream[R]:
        """Opens a stream of answers."""
        open_stream = self._channel.unary_stream(
            rpc.path, request_serializer=rpc.serialize, response_deserializer=rpc.parse
        )
        return Stream(open_stream(request, timeout=timeout, metadata=tuple(metadata)))

    def bidi(self, rpc: BidiCall[Q, R], metadata: Metadata) -> Bidi[Q, R]:
        """Opens streams in both directions."""
        open_stream = self._channel.stream_stream(
            rpc.path, request_serializer=rpc.serialize, response_deserializer=rpc.parse
        )
        requests: _Requests[Q] = _Requests()
        return Bidi(open_stream(iter(requests), metadata=tuple(metadata)), requests)

    def close(self) -> None:
        """Ends it, with all its calls."""
        self._is_closed = True
        self._channel.close()


def maybe(value: Any) -> Any:
    """Returns what a callback has returned."""
    return value
