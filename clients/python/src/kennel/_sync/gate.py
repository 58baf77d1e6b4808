# Made from _aio/gate.py by clients/python/sync. Do not edit.
"""The gate of a client: while its server is lost, one call at a time tries, and all others wait for it."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial

from kennel import _rules
from kennel._error import Failure, KennelError
from kennel._reasons import Closed, DeadlineExceeded
from kennel._sync import _io
from kennel._values import Stats


class Probe:
    """A repeat that tries whether the server is back."""

    __slots__ = ("sent_at", "timer")

    def __init__(self) -> None:
        self.sent_at: float | None = None
        self.timer: _io.Timer | None = None

    def is_alive(self) -> bool:
        """Whether it was sent so long ago that its server must have it: it may be a wait."""
        return self.sent_at is not None and _io.monotonic() - self.sent_at >= _rules.GATE_PROBE_ALIVE

    def forget(self) -> None:
        """Ends its timer."""
        if self.timer is not None:
            self.timer.cancel()


class _Outage:
    """A time without the server."""

    __slots__ = ("cause", "end", "failures", "probe", "since")

    def __init__(self, cause: Failure) -> None:
        self.since = _io.monotonic()
        self.cause = cause
        self.failures = 0
        self.probe: Probe | None = None
        self.end: str | None = None
        """`up`, `expired` or `closed`."""


class Gate:
    """UP, or DOWN with an outage."""

    def __init__(
        self, patience: float, stats: Stats, ended: Callable[[Failure], KennelError], event: Callable[[str], None]
    ) -> None:
        self.patience = patience
        self._stats = stats
        self._ended = ended
        self._event = event
        self._events: list[str] = []
        self._signal = _io.Signal()
        self._outage: _Outage | None = None
        self._is_closed = False
        self.is_gone: Callable[[], bool] = bool
        """Whether the server is known not to come back."""

    def alive(self) -> None:
        """Notes a sign of life of the server."""
        if self._outage is not None:
            self._finish("up")
            self._report()

    def lost(self, cause: Failure, probe: Probe | None) -> None:
        """Notes that a call was lost."""
        with self._signal:
            outage = self._outage
            if outage is not None and outage.probe is probe and probe is not None:
                if probe.is_alive():
                    self._finish("up")
                else:
                    probe.forget()
                    outage.probe, outage.cause, outage.failures = None, cause, outage.failures + 1
                    self._signal.notify()
                    return
            if self._outage is None:
                self._outage = _Outage(cause)
                self._stats.lost += 1
                self._events.append("lost")
        self._report()

    def abandon(self, probe: Probe | None) -> None:
        """Notes that the caller of a probe has left."""
        with self._signal:
            outage = self._outage
            if probe is not None:
                probe.forget()
            if outage is not None and probe is not None and outage.probe is probe:
                outage.probe = None
                self._signal.notify()

    def close(self) -> None:
        """Ends all that wait."""
        self._is_closed = True
        if self._outage is not None:
            self._finish("closed")

    def admit(self, until: float | None) -> Probe | None:
        """Waits until a lost call may be made again. A probe: it is the one that tries."""
        while True:
            if self._is_closed:
                raise Closed("the client is closed")
            lost = self._outage
            if lost is not None and self.is_gone():
                self._finish("expired")
                raise self._ended(lost.cause)
            probe = self._wait(until)
            if probe is None:
                _io.sleep(random.uniform(0, _rules.GATE_SPREAD))
                if self._outage is None:
                    return None
                continue
            try:
                outage = self._outage
                failures = outage.failures if outage is not None else 0
                most = min(_rules.GATE_PROBE_MAX, _rules.GATE_PROBE_BASE * 2 ** min(failures, 10))
                _io.sleep(random.uniform(0, most))
            except BaseException:
                self.abandon(probe)
                raise
            with self._signal:
                if self._outage is not outage or outage is None:
                    continue
                if _io.monotonic() - outage.since >= self.patience:
                    outage.probe = None
                    self._finish("expired")
                    raise self._ended(outage.cause)
                probe.sent_at = _io.monotonic()
                probe.timer = _io.Timer(_rules.GATE_PROBE_ALIVE, partial(self._probe_waits, probe))
                self._stats.probes += 1
                return probe

    def _wait(self, until: float | None) -> Probe | None:
        """Waits until the server is back, or until this call is the probe."""
        with self._signal:
            outage = self._outage
            while outage is not None and outage.end is None:
                now = _io.monotonic()
                if now - outage.since >= self.patience:
                    self._finish("expired")
                    break
                if until is not None and now >= until:
                    raise DeadlineExceeded("the server was lost, and did not come back in the time of the call")
                if outage.probe is None:
                    outage.probe = Probe()
                    return outage.probe
                left = outage.since + self.patience - now
                self._signal.wait(left if until is None else min(left, until - now))
            if outage is not None and outage.end == "expired":
                raise self._ended(outage.cause)
            if outage is not None and outage.end == "closed":
                raise Closed("the client is closed")
            return None

    def _probe_waits(self, probe: Probe) -> None:
        with self._signal:
            if self._outage is not None and self._outage.probe is probe:
                self._finish("up")
        self._report()

    def _finish(self, how: str) -> None:
        with self._signal:
            outage, self._outage = self._outage, None
            if outage is None:
                return
            outage.end = how
            if outage.probe is not None:
                outage.probe.forget()
            self._signal.notify()
            if how == "up":
                self._stats.resumed += 1
                self._events.append("resumed")

    def _report(self) -> None:
        """Calls the listeners, outside of the lock: they may use the client."""
        while self._events:
            self._event(self._events.pop(0))
