# Made from _aio/raw.py by clients/python/sync. Do not edit.
"""Raw calls: messages of the contract, typed errors, and no repeats."""

from __future__ import annotations

from typing import TypeVar

import grpc

from kennel._call import UnaryCall
from kennel._error import failure_of
from kennel._sync.caller import Caller

Q = TypeVar("Q")
R = TypeVar("R")


class Raw:
    """Makes any call of `kennel.calls`, as in `client.raw.call(kennel.calls.GetRun, request)`."""

    def __init__(self, caller: Caller) -> None:
        self._caller = caller

    def call(self, rpc: UnaryCall[Q, R], request: Q, timeout: float | None = 60.0) -> R:
        """Makes a call once."""
        self._caller.check()
        connection, credentials = self._caller.connections.take(is_bulk=False)
        try:
            metadata = self._caller.metadata(credentials)
            return connection.channel.unary(rpc, request, timeout, metadata)
        except grpc.RpcError as error:
            raise failure_of(error).error() from error
        finally:
            self._caller.connections.give_back(connection)
