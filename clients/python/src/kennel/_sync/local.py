# Made from _aio/local.py by clients/python/sync. Do not edit.
"""A server that belongs to this process."""

from __future__ import annotations

import os
from typing import Unpack

from kennel import _binary
from kennel._reasons import ConnectFailed
from kennel._settings import ConnectOptions
from kennel._sync import _io
from kennel._sync.client import Client
from kennel._sync.client import connect as connect_to

_START_TIMEOUT = 30.0
_STOP_TIMEOUT = 30.0


def local(binary: str | os.PathLike[str] | None = None, **options: Unpack[ConnectOptions]) -> Client:
    """Starts a private server in a fresh directory, and connects to it. `close` ends it with all its runs.

    `binary`: path of the binary; else KENNEL_BINARY, `kennel` in PATH, or that of the wheel kennel-bin. It ends too
    when this process dies, however that happens: use a server of the host for runs that shall outlive it."""
    server = _binary.LocalServer(binary)
    options["server"] = server.address
    try:
        client = _connect(server, options)
    except BaseException:
        _end(server)
        raise
    client.own(server)
    client.at_close(lambda: _end(server))
    return client


def _connect(server: _binary.LocalServer, options: ConnectOptions) -> Client:
    until = _io.monotonic() + _START_TIMEOUT
    while True:
        server.check()
        try:
            client = connect_to(**options)
        except ConnectFailed:
            if _io.monotonic() >= until:
                raise
            _io.sleep(0.02)
            continue
        client.info()
        return client


def _end(server: _binary.LocalServer) -> None:
    server.stop()
    until = _io.monotonic() + _STOP_TIMEOUT
    while not server.is_gone() and _io.monotonic() < until:
        _io.sleep(0.01)
    server.remove()
