"""A call of the contract: its path, its messages, and its class."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from kennel import _rules

Q = TypeVar("Q")
R = TypeVar("R")


class Call(Generic[Q, R]):
    """One rpc."""

    __slots__ = ("done", "is_repeated", "is_timed", "kind", "name", "parse", "path", "serialize")

    def __init__(
        self,
        path: str,
        serialize: Callable[[Q], bytes],
        parse: Callable[[bytes], R],
        kind: str,
        done: str | None,
    ) -> None:
        self.path = path
        self.name = path.rpartition("/")[2]
        self.serialize = serialize
        self.parse = parse
        self.kind = kind
        self.done = done
        """Reason with which a repeat is answered once the first call has succeeded."""
        self.is_repeated = kind in _rules.REPEATED
        self.is_timed = kind in _rules.TIMED


class UnaryCall(Call[Q, R]):
    """An rpc with one request and one response."""


class StreamCall(Call[Q, R]):
    """An rpc that answers with a stream."""


class BidiCall(Call[Q, R]):
    """An rpc of two streams."""
