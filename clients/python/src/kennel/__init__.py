"""A client for Kennel, a service that owns processes. `kennel.aio` has the same names for asyncio.

    with kennel.connect() as client:
        done = client.run(["make", "test"])
"""

from kennel import _quiet  # isort: skip # noqa: F401  # pyright: ignore[reportUnusedImport] - before gRPC
from kennel import _reasons as errors
from kennel import calls, ready
from kennel._error import KennelError, Violation
from kennel._reasons import *  # noqa: F403  # pyright: ignore[reportWildcardImportFromLibrary] - every reason
from kennel._rules import CONTRACT_LEVEL
from kennel._selection import Action, ForEach, RunOutcome
from kennel._settings import ConnectOptions
from kennel._spec import SpawnOptions
from kennel._sync.client import Client, connect
from kennel._sync.local import local
from kennel._sync.run import JsonLines, Run
from kennel._sync.stdin import Stdin
from kennel._sync.streams import Events, Lines, OutputReader
from kennel._sync.terminal import Terminal
from kennel._values import (
    CompletedRun,
    Event,
    Exit,
    Line,
    OutputMatch,
    OutputPart,
    Process,
    Question,
    Seconds,
    Stats,
    Stopped,
)
from kennel._version import VERSION as __version__  # noqa: N811 - the name of the language

__all__ = [
    "CONTRACT_LEVEL",
    "Action",
    "Client",
    "CompletedRun",
    "ConnectOptions",
    "Event",
    "Events",
    "Exit",
    "ForEach",
    "JsonLines",
    "KennelError",
    "Line",
    "Lines",
    "OutputMatch",
    "OutputPart",
    "OutputReader",
    "Process",
    "Question",
    "Run",
    "RunOutcome",
    "Seconds",
    "SpawnOptions",
    "Stats",
    "Stdin",
    "Stopped",
    "Terminal",
    "Violation",
    "__version__",
    "calls",
    "connect",
    "errors",
    "local",
    "ready",
]
__all__ += errors.__all__
