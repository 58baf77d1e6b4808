"""A server that belongs to this process."""

from __future__ import annotations

import os
from typing import Unpack

from kennel import _binary
from kennel._aio import _io
from kennel._aio.client import Client
from kennel._aio.client import connect as connect_to
from kennel._reasons import ConnectFailed
from kennel._settings import ConnectOptions

_START_TIMEOUT = 30.0
_STOP_TIMEOUT = 30.0


async def local(binary: str | os.PathLike[str] | None = None, **options: Unpack[ConnectOptions]) -> Client:
    """Starts a private server in a fresh directory, and connects to it. `close` ends it with all its runs.

    `binary`: path of the binary; else KENNEL_BINARY, `kennel` in PATH, or that of the wheel kennel-bin. It ends too
    when this process dies, however that happens: use a server of the host for runs that shall outlive it."""
    server = _binary.LocalServer(binary)
    options["server"] = server.address
    try:
        client = await _connect(server, options)
    except BaseException:
        await _end(server)
        raise
    client.own(server)
    client.at_close(lambda: _end(server))
    return client


async def _connect(server: _binary.LocalServer, options: ConnectOptions) -> Client:
    until = _io.monotonic() + _START_TIMEOUT
    while True:
        server.check()
        try:
            client = await connect_to(**options)
        except ConnectFailed:
            if _io.monotonic() >= until:
                raise
            await _io.sleep(0.02)
            continue
        await client.info()
        return client


async def _end(server: _binary.LocalServer) -> None:
    server.stop()
    until = _io.monotonic() + _STOP_TIMEOUT
    while not server.is_gone() and _io.monotonic() < until:
        await _io.sleep(0.01)
    server.remove()
