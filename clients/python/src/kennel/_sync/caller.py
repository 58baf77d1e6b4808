# Made from _aio/caller.py by clients/python/sync. Do not edit.
"""Calls with their repeats: the gate, deadlines, and answers that say "not now"."""

from __future__ import annotations

import os
import random
import warnings
from dataclasses import replace
from typing import TypeVar

import grpc

from kennel import _channel, _rules
from kennel._call import UnaryCall
from kennel._error import Failure, KennelError, failure_of
from kennel._reasons import Closed, DeadlineExceeded, ServerLost, ServiceEnded
from kennel._settings import Settings
from kennel._sync import _io
from kennel._sync.connections import Connections
from kennel._sync.gate import Gate, Probe
from kennel._target import Target
from kennel._values import Stats

_DEADLINE_SLACK = 0.05

Q = TypeVar("Q")
R = TypeVar("R")


class Patience:
    """How long a call has waited because the server asked for it."""

    __slots__ = ("_most", "_since")

    def __init__(self, most: float) -> None:
        self._most = most
        self._since: float | None = None

    def reset(self) -> None:
        """Begins anew, after progress."""
        self._since = None

    def delay(self, failure: Failure) -> float | None:
        """Returns how long to wait before the repeat; None: no longer."""
        now = _io.monotonic()
        if self._since is None:
            self._since = now
        if failure.reason == "SERVER_REPLACED":
            delay = random.uniform(0, _rules.GATE_REPLACED)
        else:
            least = failure.retry_after if failure.retry_after is not None else _rules.GATE_RETRY_AFTER_DEFAULT
            delay = least + random.uniform(0, least / 2)
        return delay if now + delay - self._since <= self._most else None


class Caller:
    """What all objects of a client share."""

    def __init__(self, target: Target, settings: Settings) -> None:
        self.target = target
        self.settings = settings
        self.stats = Stats()
        self.connections = Connections(target)
        self.home = _io.Home()
        self.listeners: list[tuple[str, object]] = []
        self.is_closed = False
        self.behalf: tuple[tuple[str, str], ...] = ()
        self.gate = self._new_gate()
        self._pid = os.getpid()

    def _new_gate(self) -> Gate:
        return Gate(self.settings.patience, self.stats, self.ended, self._event)

    def on_behalf(self, pairs: tuple[tuple[str, str], ...]) -> Caller:
        """Returns one with the same connections whose calls are for another principal."""
        other = object.__new__(Caller)
        other.__dict__.update(self.__dict__)
        other.behalf = pairs
        return other

    def at_node(self, node: str) -> Caller:
        """Returns one with the same connections whose calls are for a node."""
        other = self.on_behalf(self.behalf)
        other.target = replace(self.target, node=node)
        return other

    def _event(self, name: str) -> None:
        for wanted, function in list(self.listeners):
            if wanted != name or not callable(function):
                continue
            try:
                function()
            except Exception as error:
                warnings.warn(f"a listener of {name!r} failed: {error!r}", RuntimeWarning, stacklevel=2)

    def check(self) -> None:
        """Refuses a closed client, another loop, and renews what a fork has split."""
        if self.is_closed:
            raise Closed("the client is closed")
        if os.getpid() != self._pid:
            self._pid = os.getpid()
            self.gate = self._new_gate()
        self.home.check()

    def ended(self, cause: Failure) -> KennelError:
        """Returns the error of a server that does not come back."""
        listens = not self.gate.is_gone() and _channel.listens(self.target, cause.message)
        kind = ServerLost if listens else ServiceEnded
        what = "the server does not answer" if listens else f"nothing listens at {self.target.address}"
        return kind(f"{what}; last cause: {cause.message}", code=cause.code, is_retryable=True)

    def metadata(self, credentials: _io.Metadata) -> _io.Metadata:
        """Returns the metadata of a call."""
        found = [*credentials, *self.behalf]
        if self.target.node is not None:
            found.append(("kennel-node", self.target.node))
        if self.settings.metadata is not None:
            more = _io.maybe(self.settings.metadata())
            found += [(str(key), str(value)) for key, value in more.items()]
        return found

    def call(
        self,
        rpc: UnaryCall[Q, R],
        request: Q,
        *,
        timeout: float | None = None,
        try_timeout: float | None = None,
        is_bulk: bool = False,
        run_id: str | None = None,
    ) -> R:
        """Makes a call, and makes it again where it was lost or the server was not ready, as its class allows.

        `timeout` covers all tries; `try_timeout` one of them, after which the same request follows."""
        self.check()
        if timeout is None and rpc.is_timed:
            timeout = self.settings.call_timeout
        until = None if timeout is None else _io.monotonic() + timeout
        patience = Patience(self.settings.patience)
        probe: Probe | None = None
        is_repeat = False
        while True:
            left = None if until is None else until - _io.monotonic()
            if left is not None and left <= 0:
                self.gate.abandon(probe)
                raise self._too_late(rpc.name, timeout, run_id)
            limit = min((time for time in (left, try_timeout) if time is not None), default=None)
            began = _io.monotonic()
            try:
                connection, credentials = self.connections.take(is_bulk=is_bulk or rpc.kind == "wait")
            except BaseException:
                self.gate.abandon(probe)
                raise
            try:
                try:
                    metadata = self.metadata(credentials)
                    answer = connection.channel.unary(rpc, request, limit, metadata)
                finally:
                    self.connections.give_back(connection)
            except grpc.RpcError as error:
                failure = failure_of(error)
                connection.is_suspect = failure.is_lost and failure.code != "DEADLINE_EXCEEDED"
            except BaseException:
                self.gate.abandon(probe)
                raise
            else:
                self.gate.alive()
                return answer
            if self.is_closed:
                raise Closed("the client is closed", run_id=run_id)
            if failure.is_of_server:
                self.gate.alive()
            took = _io.monotonic() - began
            if failure.code == "DEADLINE_EXCEEDED" and limit is not None and took >= limit - _DEADLINE_SLACK:
                self.gate.abandon(probe)
                probe, is_repeat = None, True
                continue
            if is_repeat and rpc.done is not None and rpc.done == failure.reason:
                return rpc.parse(b"")
            if failure.not_now(is_spawn=rpc.name == "Spawn", is_stream=False) and rpc.is_repeated:
                delay = patience.delay(failure)
                if delay is None or self.settings.patience == 0:
                    raise failure.error(run_id)
                if until is not None and _io.monotonic() + delay >= until:
                    raise failure.error(run_id)
                _io.sleep(delay)
                probe = None
            elif failure.is_lost and rpc.is_repeated and self.settings.patience > 0:
                self.gate.lost(failure, probe)
                probe = self.gate.admit(until)
            elif failure.is_lost:
                raise self.ended(failure)
            else:
                raise failure.error(run_id)
            is_repeat = True
            self.stats.repeats += 1

    def _too_late(self, name: str, timeout: float | None, run_id: str | None) -> DeadlineExceeded:
        return DeadlineExceeded(
            f"{name} was not answered in {timeout:g} s; what it has begun continues",
            code="DEADLINE_EXCEEDED",
            is_retryable=True,
            run_id=run_id,
        )

