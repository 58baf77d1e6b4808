"""The client for asyncio: the names of `kennel`, awaited.

    async with await kennel.aio.connect() as client:
        done = await client.run(["make", "test"])

A client belongs to the event loop in which it was used first.
"""

from kennel._aio.client import Client, connect
from kennel._aio.local import local
from kennel._aio.run import JsonLines, Run
from kennel._aio.stdin import Stdin
from kennel._aio.streams import Events, Lines, OutputReader
from kennel._aio.terminal import Terminal

__all__ = [
    "Client",
    "Events",
    "JsonLines",
    "Lines",
    "OutputReader",
    "Run",
    "Stdin",
    "Terminal",
    "connect",
    "local",
]
