# Made from _aio/connections.py by clients/python/sync. Do not edit.
"""Connections of a client: one for short calls, and others for streams and waits, so that an Abort never waits for room
behind streams."""

from __future__ import annotations

import os
import weakref
from typing import Protocol

from kennel import _channel, _rules
from kennel._reasons import Closed, Forked
from kennel._sync import _io
from kennel._target import Target


class Closable(Protocol):
    """A stream."""

    def close(self) -> None:
        """Closes it."""


class Connection:
    """A channel and the calls on it."""

    def __init__(self, channel: _io.Channel, files: tuple[object, ...]) -> None:
        self.channel = channel
        self.calls = 0
        self.files = files
        self.tokens: set[str] = set()
        self.is_retired = False
        self.is_suspect = False
        """Whether a call on it was lost: the next one begins with a new connection, without a wait of the transport."""
        self.since = _io.monotonic()


class Connections:
    """Channels to one server."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.files = _channel.Files(target)
        self._control: Connection | None = None
        self._bulk: list[Connection] = []
        self._retired: list[Connection] = []
        self._kept: list[Connection] = []
        self._signal = _io.Signal()
        self._streams: weakref.WeakSet[Closable] = weakref.WeakSet()
        self._pid = os.getpid()
        self._is_closed = False

    @property
    def pid(self) -> int:
        """Process that the channels belong to."""
        return self._pid

    def take(self, *, is_bulk: bool) -> tuple[Connection, _io.Metadata]:
        """Returns a connection for a call, and the credentials of the call."""
        token = self.files.token()
        if os.getpid() != self._pid:
            self._leave_to_parent()
        with self._signal:
            if self._is_closed:
                raise Closed("the client is closed")
            connection = self._bulk_connection() if is_bulk else self._control
            if connection is None or not self._is_good(connection, token):
                self._retire(connection)
                connection = self._open()
                if is_bulk:
                    self._bulk.append(connection)
                else:
                    self._control = connection
            if token is not None:
                connection.tokens.add(token)
            connection.calls += 1
        metadata = [("authorization", f"Bearer {token}")] if token is not None else []
        return connection, metadata

    def add(self, stream: Closable) -> None:
        """Notes a stream, which is closed with the client."""
        with self._signal:
            self._streams.add(stream)

    def give_back(self, connection: Connection) -> None:
        """Notes the end of a call."""
        with self._signal:
            connection.calls -= 1
            over = [retired for retired in self._retired if retired.calls == 0]
            for retired in over:
                self._retired.remove(retired)
        for retired in over:
            retired.channel.close()

    def check_owner(self, pid: int, what: str) -> None:
        """Refuses what another process has opened."""
        if os.getpid() != pid:
            raise Forked(f"{what} belongs to the process that opened it: open another one after a fork")

    def close(self) -> None:
        """Ends all of them."""
        with self._signal:
            self._is_closed = True
            found = [*self._bulk, *self._retired, *([self._control] if self._control else [])]
            self._bulk, self._retired, self._control = [], [], None
        if os.getpid() != self._pid:
            self._kept += found
            return
        for stream in list(self._streams):
            stream.close()
        for connection in found:
            connection.channel.close()

    def _bulk_connection(self) -> Connection | None:
        for connection in self._bulk:
            if connection.calls < _rules.CALLS_PER_CONNECTION:
                return connection
        return None

    def _is_good(self, connection: Connection, token: str | None) -> bool:
        if connection.is_suspect and _io.monotonic() - connection.since >= _rules.CONNECT_BACKOFF_MIN:
            return False
        is_other = token is not None and token not in connection.tokens
        if is_other and len(connection.tokens) >= _rules.TOKENS_PER_CONNECTION:
            return False
        return self.target.path is not None or connection.files == self.files.state()

    def _retire(self, connection: Connection | None) -> None:
        if connection is None:
            return
        connection.is_retired = True
        if connection in self._bulk:
            self._bulk.remove(connection)
        self._retired.append(connection)

    def _open(self) -> Connection:
        try:
            _channel.check_peer(self.target)
        except OSError:
            pass  # the call that follows is lost, and says why
        files = self.files.state()
        channel = _io.Channel(
            _channel.uri(self.target), self.files.credentials(), _channel.options(self.target)
        )
        return Connection(channel, files)

    def _leave_to_parent(self) -> None:
        """After a fork: new channels; the old ones belong to the parent, and are never destroyed here."""
        self._kept += [*self._bulk, *self._retired, *([self._control] if self._control else [])]
        self._bulk, self._retired, self._control = [], [], None
        self._signal = _io.Signal()
        self._pid = os.getpid()
