"""Conditions under which a run is ready, for the option `ready` of `spawn`."""

from __future__ import annotations

from collections.abc import Sequence

from kennel._values import Seconds, duration
from kennel.v1 import run_pb2

Ready = run_pb2.Readiness
"""A condition, as the contract has it."""


def _timed(
    readiness: Ready, interval: Seconds | None, timeout: Seconds | None, start_timeout: Seconds | None
) -> Ready:
    for name, value in (("interval", interval), ("timeout", timeout), ("start_timeout", start_timeout)):
        if value is not None:
            getattr(readiness, name).CopyFrom(duration(value))
    return readiness


def line(*, literal: str | None = None, regex: str | None = None, start_timeout: Seconds | None = None) -> Ready:
    """A line of the output matches."""
    if (literal is None) == (regex is None):
        raise TypeError("exactly one of literal and regex")
    pattern = run_pb2.LinePattern(literal=literal) if literal is not None else run_pb2.LinePattern(regex=regex or "")
    return _timed(Ready(line=pattern), None, None, start_timeout)


def tcp(
    port: int, *, interval: Seconds | None = None, timeout: Seconds | None = None, start_timeout: Seconds | None = None
) -> Ready:
    """A port of this host accepts a connection."""
    return _timed(Ready(tcp=run_pb2.TcpProbe(port=port)), interval, timeout, start_timeout)


def http(
    port: int,
    path: str = "/",
    *,
    interval: Seconds | None = None,
    timeout: Seconds | None = None,
    start_timeout: Seconds | None = None,
) -> Ready:
    """A GET of a path succeeds."""
    return _timed(Ready(http=run_pb2.HttpProbe(port=port, path=path)), interval, timeout, start_timeout)


def grpc(
    port: int,
    service: str = "",
    *,
    interval: Seconds | None = None,
    timeout: Seconds | None = None,
    start_timeout: Seconds | None = None,
) -> Ready:
    """The health service of gRPC reports serving."""
    return _timed(Ready(grpc=run_pb2.GrpcProbe(port=port, service=service)), interval, timeout, start_timeout)


def command(
    args: Sequence[str],
    *,
    interval: Seconds | None = None,
    timeout: Seconds | None = None,
    start_timeout: Seconds | None = None,
) -> Ready:
    """A command of its own exits with 0."""
    return _timed(Ready(exec=run_pb2.ExecProbe(args=args)), interval, timeout, start_timeout)


def notify(*, start_timeout: Seconds | None = None) -> Ready:
    """The command reports READY=1 by sd_notify(3)."""
    return _timed(Ready(notify=run_pb2.NotifyProbe()), None, None, start_timeout)
