"""Options of `connect`."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Mapping
from typing import TypedDict

from kennel import _rules
from kennel._target import Context, Surroundings, Target, resolve
from kennel._values import Seconds, seconds

Metadata = Callable[[], Mapping[str, str] | Awaitable[Mapping[str, str]]]
"""A function that returns metadata for the next call, such as `traceparent`."""


class ConnectOptions(TypedDict, total=False):
    """Options of `connect`. Without any, the server is found as by the command line."""

    server: str
    """Address: `unix:PATH` or `tcp://HOST:PORT`."""
    context: str
    """Name of a context of `kennel context`."""
    node: str
    """Node that calls are for, by name or id."""
    ca_file: str | os.PathLike[str]
    """Authorities of the server's certificate."""
    cert_file: str | os.PathLike[str]
    """Certificate of this client."""
    key_file: str | os.PathLike[str]
    """Key of that certificate."""
    server_name: str
    """Name that the server's certificate is for."""
    token_file: str | os.PathLike[str]
    """File of a token; it is read for each call."""
    token: str
    """A token."""
    server_user: int
    """User that the server of a unix socket may run as, beside this one and root."""
    patience: Seconds
    """Longest time without a sign of life of the server. 0: no call is repeated. Default: 60 s."""
    call_timeout: Seconds
    """Longest time of a short call with its repeats. Default: 60 s."""
    connect_patience: Seconds
    """Time to wait where nothing listens yet. Default: none."""
    metadata: Metadata
    """Function that returns metadata for each call."""


class Settings:
    """Options of `connect`, read."""

    def __init__(self, options: ConnectOptions) -> None:
        unknown = sorted(set(options) - set(ConnectOptions.__annotations__))
        if unknown:
            raise TypeError(f"unknown option {', '.join(unknown)}")
        self.patience = seconds(options.get("patience", _rules.PATIENCE))
        self.call_timeout = seconds(options.get("call_timeout", _rules.CALL_TIMEOUT))
        self.connect_patience = seconds(options.get("connect_patience", _rules.CONNECT_PATIENCE))
        self.metadata = options.get("metadata")

    @staticmethod
    def target(options: ConnectOptions, here: Surroundings | None = None) -> Target:
        """Returns the server to call."""

        def path(name: str) -> str | None:
            value = options.get(name)
            return os.fspath(value) if isinstance(value, (str, os.PathLike)) and value else None

        given = Context(
            server=options.get("server", ""),
            ca=path("ca_file"),
            certificate=path("cert_file"),
            key=path("key_file"),
            server_name=options.get("server_name"),
            token_file=path("token_file"),
        )
        return resolve(
            given,
            context=options.get("context"),
            node=options.get("node"),
            server_user=options.get("server_user"),
            token=options.get("token"),
            here=here,
        )
