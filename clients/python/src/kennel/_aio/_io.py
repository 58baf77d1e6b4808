"""Waiting, tasks and channels with asyncio. `_sync/_io.py` has the same names with threads."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable, Sequence
from types import TracebackType
from typing import Any, Generic, ParamSpec, TypeVar, cast

import grpc
import grpc.aio

from kennel._call import BidiCall, StreamCall, UnaryCall
from kennel._reasons import Closed, WrongLoop

P = ParamSpec("P")
Q = TypeVar("Q")
R = TypeVar("R")

monotonic = time.monotonic
sleep = asyncio.sleep
Cancelled: tuple[type[BaseException], ...] = (asyncio.CancelledError, KeyboardInterrupt, SystemExit)


def count_tasks() -> int:
    """Returns the number of tasks of this loop."""
    return len(asyncio.all_tasks())


class Signal:
    """What others wait for. Used as a context around its state, which one loop alone changes."""

    def __init__(self) -> None:
        self._waiters: set[asyncio.Future[None]] = set()

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None

    async def wait(self, timeout: float | None = None) -> None:
        """Waits for the next notify, or for a time."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.add(waiter)
        try:
            await asyncio.wait({waiter}, timeout=timeout)
        finally:
            self._waiters.discard(waiter)
            waiter.cancel()

    def notify(self) -> None:
        """Wakes all that wait."""
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)


class Lock:
    """A mutex across waits."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()

    async def __aenter__(self) -> None:
        await self._lock.acquire()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lock.release()


class Timer:
    """Calls a function later, in this loop."""

    def __init__(self, delay: float, function: Callable[[], None]) -> None:
        self._handle = asyncio.get_running_loop().call_later(delay, function)

    def cancel(self) -> None:
        """Forgets it."""
        self._handle.cancel()


class Task:
    """A function that runs beside its caller."""

    def __init__(self, function: Callable[P, Awaitable[Any]], *args: P.args, **kwargs: P.kwargs) -> None:
        self._task = asyncio.ensure_future(function(*args, **kwargs))

    async def join(self, timeout: float | None = None) -> bool:
        """Waits for its end; whether it came."""
        done, _ = await asyncio.wait({self._task}, timeout=timeout)
        return bool(done)

    async def result(self) -> Any:
        """Waits for its end, and returns its value or raises its error."""
        return await asyncio.shield(self._task)

    def is_done(self) -> bool:
        """Whether it has ended."""
        return self._task.done()

    def cancel(self) -> None:
        """Ends it."""
        self._task.cancel()


async def cancelled(task: Task) -> None:
    """Waits for the end of a task that was cancelled; its errors are dropped."""
    await task.join(1)


class Home:
    """The loop that a client belongs to: the first one that uses it."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None

    def check(self) -> None:
        """Refuses another loop."""
        running = asyncio.get_running_loop()
        if self._loop is None:
            self._loop = running
        elif self._loop is not running:
            if self._loop.is_closed():
                raise Closed("the event loop of this client is closed: connect in each asyncio.run")
            raise WrongLoop("this client belongs to another event loop")


def _is_own_cancel() -> bool:
    """Whether the running task was cancelled by its caller, and not the call by the closed channel."""
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0


class Stream(Generic[R]):
    """Messages of a server. A read that is cancelled loses none: the next one has its message."""

    def __init__(self, call: Any) -> None:
        self._call = call
        self._pending: asyncio.Future[Any] | None = None

    async def read(self, timeout: float | None = None) -> R | None:
        """Returns the next message; None: the server has ended the stream. Raises grpc.RpcError, or TimeoutError."""
        pending = self._pending
        if pending is None:
            pending = self._pending = asyncio.ensure_future(self._call.read())
        if not pending.done():
            await asyncio.wait({pending}, timeout=timeout)
            if not pending.done():
                raise TimeoutError
        self._pending = None
        if pending.cancelled():
            raise Closed("the stream is closed")
        message = pending.result()
        if message is grpc.aio.EOF:
            return None
        return cast(R, message)

    def cancel(self) -> None:
        """Ends the call."""
        if self._pending is not None:
            self._pending.cancel()
        self._call.cancel()


class Bidi(Stream[R], Generic[Q, R]):
    """Messages of both sides."""

    async def write(self, message: Q) -> None:
        """Sends a message. A lost stream is found by the next read."""
        try:
            await self._call.write(message)
        except (grpc.RpcError, asyncio.InvalidStateError):
            return
        except asyncio.CancelledError:
            if _is_own_cancel():
                raise

    async def finish(self) -> None:
        """Ends this side."""
        try:
            await self._call.done_writing()
        except (grpc.RpcError, asyncio.InvalidStateError):
            return
        except asyncio.CancelledError:
            if _is_own_cancel():
                raise


Metadata = Sequence[tuple[str, str | bytes]]


class Channel:
    """A connection to a server."""

    def __init__(
        self, uri: str, credentials: grpc.ChannelCredentials | None, options: Sequence[tuple[str, str | int]]
    ) -> None:
        if credentials is None:
            self._channel = grpc.aio.insecure_channel(uri, options=options)
        else:
            self._channel = grpc.aio.secure_channel(uri, credentials, options=options)
        self._unary: dict[str, Any] = {}
        self._is_closed = False

    async def unary(
        self, rpc: UnaryCall[Q, R], request: Q, timeout: float | None, metadata: Metadata
    ) -> R:
        """Makes a call with one answer."""
        call = self._unary.get(rpc.path)
        if call is None:
            call = self._channel.unary_unary(
                rpc.path, request_serializer=rpc.serialize, response_deserializer=rpc.parse
            )
            self._unary[rpc.path] = call
        try:
            return cast(R, await call(request, timeout=timeout, metadata=metadata))
        except asyncio.CancelledError:
            if _is_own_cancel():
                raise
            raise Closed("the client is closed") from None
        except grpc.aio.UsageError:
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
        return Stream(open_stream(request, timeout=timeout, metadata=metadata))

    def bidi(self, rpc: BidiCall[Q, R], metadata: Metadata) -> Bidi[Q, R]:
        """Opens streams in both directions."""
        open_stream = self._channel.stream_stream(
            rpc.path, request_serializer=rpc.serialize, response_deserializer=rpc.parse
        )
        return Bidi(open_stream(metadata=metadata))

    async def close(self) -> None:
        """Ends it, with all its calls."""
        self._is_closed = True
        await self._channel.close()


async def maybe(value: Any) -> Any:
    """Awaits what a callback has returned, where it is to be awaited."""
    return await value if inspect.isawaitable(value) else value
