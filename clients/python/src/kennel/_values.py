"""Values that calls return, without gRPC."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from kennel._reasons import ExitUnknown

if TYPE_CHECKING:
    from kennel.v1 import event_pb2, run_pb2

Seconds = float | timedelta
"""A duration: seconds, or a timedelta."""


def enum_text(enum: Any, prefix: str, number: int) -> str:
    """Returns a value of an enum without its prefix, or `UNKNOWN(n)` where a newer server sent it."""
    try:
        return str(enum.Name(number)).removeprefix(prefix)
    except ValueError:
        return f"UNKNOWN({number})"


def seconds(value: Seconds) -> float:
    """Returns a duration in seconds."""
    return value.total_seconds() if isinstance(value, timedelta) else float(value)


def duration(value: Seconds) -> Duration:
    """Returns a duration as a message."""
    nanos = round(seconds(value) * 1_000_000_000)
    return Duration(seconds=nanos // 1_000_000_000, nanos=nanos % 1_000_000_000)


def moment(time: Timestamp) -> datetime:
    """Returns a time with its zone, UTC."""
    return datetime.fromtimestamp(time.seconds, UTC) + timedelta(microseconds=time.nanos // 1000)


@dataclass(frozen=True, slots=True)
class Exit:
    """How a command exited: exactly one of code, signal, and unknown."""

    code: int | None = None
    """Exit code."""
    signal: str | None = None
    """Name of the signal that ended it, such as `SIGKILL`."""
    signal_number: int | None = None
    """Number of that signal."""
    is_unknown: bool = False
    """Whether the exit is not known: the service died with the run."""
    core_dumped: bool = False
    """Whether a core was dumped."""

    @property
    def returncode(self) -> int:
        """Code, or the negative number of the signal. Raises ExitUnknown where neither is known."""
        if self.code is not None:
            return self.code
        if self.signal_number is not None:
            return -self.signal_number
        raise ExitUnknown("the exit of the command is not known: the service died while it ran")


def exit_of(message: run_pb2.Exit) -> Exit | None:
    """Reads an exit; None: the command has not exited."""
    kind = message.WhichOneof("result")
    if kind == "code":
        return Exit(code=message.code, core_dumped=message.core_dumped)
    if kind == "signal":
        signal = message.signal
        return Exit(signal=signal.name, signal_number=signal.number, core_dumped=message.core_dumped)
    return Exit(is_unknown=True) if kind == "unknown" else None


@dataclass(frozen=True, slots=True)
class Line:
    """A line that a command wrote."""

    stream: str
    """`stdout` or `stderr`."""
    text: str
    """Text without its end."""
    seq: int
    """Seq of the event in which it ended; several lines may have one."""
    attempt: int
    """Number of the attempt."""
    offset: int
    """Offset of its first byte in the stream."""
    is_truncated: bool
    """Whether it continues in the next line, or is cut by a gap."""
    is_json: bool = False
    """Whether it is JSON, as far as it was asked for."""

    def json(self) -> Any:
        """Returns its value as JSON, numbers as they were written."""
        return json.loads(self.text)


@dataclass(frozen=True, slots=True)
class Event:
    """An event of a run. `message` has all that the contract says of it."""

    kind: str
    """`snapshot gap signal_sent warning stdout stderr`, or a lifecycle event such as `started` or `ended`."""
    run_id: str
    """Run that it is of."""
    seq: int
    """Position in the run; for a snapshot that of the last event before it."""
    attempt: int
    """Number of the attempt."""
    time_nanos: int
    """Time in nanoseconds since 1970. 0: it has none."""
    data: bytes = b""
    """Bytes of output."""
    line: Line | None = None
    """Line of output, with a view by lines."""
    message: event_pb2.Event | None = field(default=None, repr=False)
    """Event of the contract."""

    @property
    def time(self) -> datetime | None:
        """Time, in UTC."""
        nanos = self.time_nanos
        if not nanos:
            return None
        whole = datetime.fromtimestamp(nanos // 1_000_000_000, UTC)
        return whole + timedelta(microseconds=nanos % 1_000_000_000 // 1000)


@dataclass(frozen=True, slots=True)
class Stopped:
    """How a run ended after an abort."""

    state: str
    """State, such as `CANCELLED`."""
    verdict: str
    """Verdict on the processes of the run, such as `empty`."""
    proof: str | None
    """Proof that no process is left, such as `CGROUP_AND_ECHILD`. None: the verdict is another one."""
    exit: Exit | None
    """Exit of the command."""

    @property
    def signal(self) -> str | None:
        """Name of the signal that ended the command, such as `SIGTERM`. None: it exited, or never ran."""
        return self.exit.signal if self.exit is not None else None


@dataclass(frozen=True, slots=True)
class OutputMatch:
    """A line of output that matched a pattern."""

    line: str
    """The line."""
    text: str
    """Part of it that matched."""
    groups: Mapping[str, str]
    """Named groups."""
    stream: str
    """`stdout` or `stderr`."""
    seq: int
    """Seq of the event in which it ended: a next search begins after it."""
    attempt: int
    """Number of the attempt."""


@dataclass(frozen=True, slots=True)
class Question:
    """What a run asks."""

    number: int
    """Number in the run, from 1."""
    text: str
    """What it asks, as far as it said so; of at most 4096 bytes."""
    is_truncated: bool
    """Whether a longer text was cut."""
    captures: Mapping[str, str]
    """Named groups of the rule that saw it."""
    by: str
    """Name of that rule, `notify` for the command itself, or a principal."""
    since: datetime
    """Time since which it waits, in UTC."""
    attempt: int
    """Number of the attempt that asks."""
    is_hidden: bool
    """Whether the terminal does not show what is typed, as for a password."""


def question_of(message: run_pb2.Question) -> Question:
    """Reads a question."""
    return Question(
        number=message.number,
        text=message.text,
        is_truncated=message.truncated,
        captures=dict(message.captures),
        by=message.by,
        since=moment(message.since_time),
        attempt=message.attempt,
        is_hidden=message.echo_off,
    )


@dataclass(frozen=True, slots=True)
class Process:
    """A process of a run."""

    pid: int
    parent_pid: int
    name: str
    args: Sequence[str]
    state: str
    rss_bytes: int
    ports: Sequence[int]
    """TCP ports on which it listens."""


@dataclass(frozen=True, slots=True)
class OutputPart:
    """Output that was read by offset."""

    data: bytes
    """Bytes that are there, in order."""
    offset: int
    """Offset of the first of them."""
    omitted: int
    """Bytes that were left out between head and tail."""
    missing: int
    """Bytes that are not kept any more, or cannot be read."""
    next_offset: int
    """Where a next call continues."""
    end_offset: int
    """Length of the stream so far."""
    is_final: bool
    """Whether the run has ended, so that the stream does not grow."""


@dataclass(frozen=True, slots=True)
class CompletedRun:
    """A command that has run to its end."""

    args: Sequence[str]
    """Command and arguments."""
    run_id: str
    """Id of the run."""
    stdout: bytes
    """Standard output; where `omitted_stdout` is not 0, its head and its tail."""
    stderr: bytes
    """Standard error, likewise."""
    omitted_stdout: int
    """Bytes left out of `stdout`."""
    omitted_stderr: int
    """Bytes left out of `stderr`."""
    exit: Exit | None
    """Exit; None: the command never ran."""
    state: str
    """State, such as `SUCCEEDED`."""
    end_reason: str
    """Why it ended, such as `exited` or `deadline_exceeded`."""
    verdict: str
    """Verdict on its processes, such as `empty`."""

    @property
    def returncode(self) -> int:
        """Exit code, or the negative number of a signal. Raises ExitUnknown where it is not known."""
        if self.exit is None:
            raise ExitUnknown("the command never ran")
        return self.exit.returncode

    @property
    def text(self) -> str:
        """Standard output as text; bytes that are not UTF-8 are replaced."""
        return self.stdout.decode("utf-8", "replace")

    def check_returncode(self) -> None:
        """Raises subprocess.CalledProcessError unless the run has succeeded."""
        if self.state != "SUCCEEDED":
            raise subprocess.CalledProcessError(self.returncode, list(self.args), self.stdout, self.stderr)


@dataclass(slots=True)
class Stats:
    """Counts of a client."""

    lost: int = 0
    """Times that the server was lost."""
    resumed: int = 0
    """Times that it came back."""
    probes: int = 0
    """Repeats that were sent while it was lost."""
    repeats: int = 0
    """Calls that were made again."""
    unknown_values: int = 0
    """Values of enums that a newer server sent."""
    unknown_events: int = 0
    """Kinds of events that a newer server sent, which were skipped."""
    open_streams: int = 0
    """Streams that are open."""
