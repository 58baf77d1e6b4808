# Made from _aio/run.py by clients/python/sync. Do not edit.
"""A run: its state, its output and input, and its end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Literal

from kennel import _calls, _rules
from kennel._position import kinds_of, stream_name
from kennel._reasons import DataGap, NotReady, RunEnded
from kennel._sync import _io
from kennel._sync.caller import Caller
from kennel._sync.stdin import Stdin
from kennel._sync.streams import Events, EventStream, Lines, OutputReader
from kennel._sync.terminal import Terminal, screen_text
from kennel._ulid import new_id
from kennel._values import OutputMatch, OutputPart, Process, Seconds, Stopped, duration, exit_of, seconds
from kennel._view import RunView, verdict_of
from kennel.v1 import consumer_pb2, event_pb2, process_service_pb2, run_pb2, terminal_pb2

Condition = Literal["started", "paused", "leader_exited", "streams_closed", "tree_empty", "ended", "ready"]
"""What can be waited for."""
OnGap = Literal["error", "skip"]
"""What happens where output is no longer kept."""


class Run(RunView):
    """One run. The server has it: a handle that is dropped ends nothing. As a context it is aborted at the end."""

    def __init__(self, caller: Caller, message: run_pb2.Run, *, is_own: bool = False) -> None:
        self._caller = caller
        self._message = message
        self._stats = caller.stats
        self._is_own = is_own
        self._readers: dict[str, OutputReader] = {}
        self._stdin: Stdin | None = None

    def refresh(self) -> Run:
        """Reads it anew."""
        request = process_service_pb2.GetRunRequest(run_id=self.id)
        self._message = (self._caller.call(_calls.GetRun, request, run_id=self.id)).run
        return self

    def wait(self, timeout: Seconds | None = None) -> int:
        """Waits for its end, and returns the exit code or the negative number of a signal.

        Raises ExitUnknown where the exit is not known. A timeout ends the wait alone, with TimeoutError."""
        self.wait_for("ended", timeout)
        code = self.returncode
        return 0 if code is None else code

    def wait_for(self, condition: Condition, timeout: Seconds | None = None) -> bool:
        """Waits for a condition; False: it can no longer be met."""
        request = process_service_pb2.WaitRunRequest(run_id=self.id, condition=f"WAIT_CONDITION_{condition.upper()}")
        limit = None if timeout is None else seconds(timeout)
        answer = self._caller.call(_calls.WaitRun, request, timeout=limit, run_id=self.id)
        self._message = answer.run
        return answer.reached

    def ready(self, timeout: Seconds | None = None) -> Run:
        """Waits until it is ready. Raises NotReady where it ends before."""
        if not self.wait_for("ready", timeout):
            raise NotReady(f"the run ended before it was ready: {self.end_reason or self.state}", run_id=self.id)
        return self

    def wait_for_output(
        self,
        pattern: str | None = None,
        *,
        regex: str | None = None,
        streams: Sequence[Literal["stdout", "stderr"]] = (),
        after_seq: int = 0,
        timeout: Seconds | None = None,
    ) -> OutputMatch:
        """Waits for a line that has a text, or that matches a regular expression.

        Raises RunEnded where the run ends without it."""
        if (pattern is None) == (regex is None):
            raise TypeError("exactly one of pattern and regex")
        line = run_pb2.LinePattern(regex=regex) if regex is not None else run_pb2.LinePattern(literal=pattern or "")
        request = process_service_pb2.WaitForOutputRequest(
            run_id=self.id,
            pattern=line,
            streams=[f"OUTPUT_STREAM_{name.upper()}" for name in streams],
            after_seq=after_seq,
        )
        limit = None if timeout is None else seconds(timeout)
        answer = self._caller.call(_calls.WaitForOutput, request, timeout=limit, run_id=self.id)
        self._message = answer.run
        if answer.WhichOneof("result") != "match":
            raise RunEnded("the run ended without a line that matches", run_id=self.id)
        found = answer.match
        return OutputMatch(
            line=found.line,
            text=found.text,
            groups={group.name: group.text for group in found.groups if group.name},
            stream=stream_name(found.stream),
            seq=found.seq,
            attempt=found.attempt,
        )

    def abort(
        self,
        grace: Seconds | None = None,
        *,
        wait: Literal["none", "leader_exited", "tree_empty"] = "tree_empty",
        timeout: Seconds | None = None,
    ) -> Stopped:
        """Ends it with all its processes, and waits until none is left: SIGTERM, the grace, SIGKILL.

        Grace 0 is SIGKILL at once; without one it is the run's own. An abort of an ended run returns how it ended."""
        if not self._message.HasField("grace") and timeout is None and grace is None:
            self.refresh()  # how long it may take is not known of a handle
        unknown = process_service_pb2.ABORT_UNKNOWN_FENCE if self._is_own else process_service_pb2.ABORT_UNKNOWN_REFUSE
        request = process_service_pb2.AbortRequest(
            run_id=self.id,
            request_id=new_id(),
            grace=None if grace is None else duration(grace),
            wait=f"ABORT_WAIT_{wait.upper()}",
            if_unknown=unknown,
        )
        if timeout is None:
            own = self._message.grace.seconds if grace is None else seconds(grace)
            timeout = own + _rules.ABORT_TIMEOUT
        answer = self._caller.call(_calls.Abort, request, timeout=seconds(timeout), run_id=self.id)
        self._message = answer.run
        kind, proof = verdict_of(answer.run.tree_verdict)
        return Stopped(self.state, kind, proof, exit_of(answer.run.current_attempt.exit))

    def terminate(self) -> None:
        """Ends it by its stop policy, and does not wait for its end."""
        self.abort(wait="none")

    def kill(self) -> None:
        """Ends it by SIGKILL, and does not wait for its end."""
        self.abort(grace=0, wait="none")

    def send_signal(self, signal: str | int) -> None:
        """Sends a signal: SIGTERM and SIGKILL end the run, others go to the command."""
        name = _signal_name(signal)
        if name == "SIGTERM":
            self.terminate()
        elif name == "SIGKILL":
            self.kill()
        else:
            self.signal(name)

    def signal(
        self, name: str, target: Literal["leader", "group", "tree", "terminal_foreground"] = "leader"
    ) -> process_service_pb2.SignalResponse:
        """Sends one signal by name, once, and returns the outcome for each process."""
        request = process_service_pb2.SignalRequest(
            run_id=self.id,
            request_id=new_id(),
            signal=name,
            target=f"SIGNAL_TARGET_{target.upper()}",
        )
        answer = self._caller.call(_calls.Signal, request, run_id=self.id)
        self._message = answer.run
        return answer

    def interrupt(self) -> Run:
        """Sends one SIGINT, as Ctrl-C does; the run stays live."""
        request = process_service_pb2.InterruptRequest(run_id=self.id, request_id=new_id())
        self._message = (self._caller.call(_calls.Interrupt, request, run_id=self.id)).run
        return self

    def pause(self) -> Run:
        """Stops every process. A repeat after a lost answer may undo another client's resume."""
        request = process_service_pb2.PauseRequest(run_id=self.id)
        self._message = (self._caller.call(_calls.Pause, request, run_id=self.id)).run
        return self

    def resume(self) -> Run:
        """Continues a paused run."""
        request = process_service_pb2.ResumeRequest(run_id=self.id)
        self._message = (self._caller.call(_calls.Resume, request, run_id=self.id)).run
        return self

    def restart(
        self,
        *,
        grace: Seconds | None = None,
        env: Mapping[str, str] | None = None,
        input: bytes | None = None,  # noqa: A002 - the name of the contract
        secrets: Mapping[str, bytes] | None = None,
        timeout: Seconds | None = None,
    ) -> Run:
        """Begins the next attempt, or of an ended run another run, which is returned."""
        self.refresh()
        request = process_service_pb2.RestartRequest(
            run_id=self.id,
            request_id=new_id(),
            grace=None if grace is None else duration(grace),
            expected_attempt=self.attempt,
            new_run_id=new_id() if not self.is_live else "",
            env=env,
            initial_input=input,
            secrets=secrets,
        )
        own = self._message.grace.seconds if grace is None else seconds(grace)
        limit = own + self._caller.settings.call_timeout if timeout is None else seconds(timeout)
        answer = self._caller.call(_calls.Restart, request, timeout=limit, run_id=self.id)
        if answer.run.run_id == self.id:
            self._message = answer.run
            return self
        return Run(self._caller, answer.run, is_own=True)

    def annotate(
        self,
        set: Mapping[str, str] | None = None,  # noqa: A002 - the name of the contract
        *,
        remove: Sequence[str] = (),
        expected_version: int | None = None,
        activity: Literal["working", "awaiting_input", "idle"] | None = None,
    ) -> Run:
        """Changes annotations. Raises AnnotationsChanged where they have another version than the expected one."""
        request = process_service_pb2.AnnotateRunRequest(
            run_id=self.id,
            set=set,
            remove=remove,
            expected_version=expected_version,
            activity=None if activity is None else f"ACTIVITY_{activity.upper()}",
        )
        self._message = (self._caller.call(_calls.AnnotateRun, request, run_id=self.id)).run
        return self

    def answer(self, text: str | bytes, *, question: int | None = None) -> None:
        """Answers a question, if it still waits: of several answers one is accepted, over every death of the server.

        A str gets the end of a line, bytes are written as they are. `question` is its number; None: the only one that
        waits. Raises AnsweredAlready, with who answered in `metadata`, or QuestionGone."""
        asked = (self.refresh()).questions
        found = [one for one in asked if question is None or one.number == question]
        if question is None and len(found) != 1:
            raise ValueError(f"{len(found)} questions wait: choose one by its number, of `questions`")
        attempt = found[0].attempt if found else self.attempt
        if isinstance(text, str):
            is_terminal = self._message.kind == run_pb2.RUN_KIND_TERMINAL
            text = (text + ("\r" if is_terminal else "\n")).encode()
        request = process_service_pb2.WriteInputRequest(
            run_id=self.id,
            data=text,
            write_id=new_id(),
            expected_attempt=attempt,
            if_awaiting=found[0].number if found else question,
        )
        status = (self._caller.call(_calls.WriteInput, request, run_id=self.id)).input
        self.stdin.continue_at(status)

    def extend(
        self,
        by: Seconds,
        limits: Sequence[Literal["max_runtime", "inactivity", "start_timeout"]] = (),
    ) -> Run:
        """Gives it more time: each limit is reached no sooner than so long from now on."""
        request = process_service_pb2.ExtendTimeoutsRequest(
            run_id=self.id,
            duration=duration(by),
            limits=[f"DEADLINE_{name.upper()}" for name in limits],
        )
        self._message = (self._caller.call(_calls.ExtendTimeouts, request, run_id=self.id)).run
        return self

    def tree(self) -> list[Process]:
        """Returns its processes, as they are now."""
        request = process_service_pb2.GetTreeRequest(run_id=self.id)
        answer = self._caller.call(_calls.GetTree, request, run_id=self.id)
        self._message = answer.run
        return [
            Process(
                pid=found.pid,
                parent_pid=found.parent_pid,
                name=found.name,
                args=tuple(found.args),
                state=found.state,
                rss_bytes=found.rss_bytes,
                ports=tuple(found.listening_tcp_ports),
            )
            for found in answer.processes
        ]

    def remove(self) -> None:
        """Removes the record and the output of an ended run."""
        request = process_service_pb2.RemoveRunRequest(run_id=self.id, request_id=new_id())
        self._caller.call(_calls.RemoveRun, request, run_id=self.id)

    # Output

    @property
    def stdout(self) -> OutputReader:
        """Standard output from its beginning, opened at the first read; of a terminal all that it shows."""
        return self._reader("stdout")

    @property
    def stderr(self) -> OutputReader:
        """Standard error from its beginning, opened at the first read."""
        return self._reader("stderr")

    def _reader(self, name: str) -> OutputReader:
        if name not in self._readers:
            self._readers[name] = self.read_from(name)
        return self._readers[name]

    def read_from(self, stream: str, *, on_gap: OnGap = "error") -> OutputReader:
        """Returns another reader of `stdout` or `stderr`. `on_gap="skip"` leaves out what is no longer kept."""
        if stream not in ("stdout", "stderr"):
            raise ValueError(f"stream={stream!r}: it is one of stdout, stderr")
        return OutputReader(self._stream(kinds=("lifecycle", stream), on_gap=on_gap), stream)

    def _stream(
        self,
        *,
        kinds: Sequence[str],
        on_gap: str,
        view: event_pb2.OutputView | None = None,
        cursor: bytes = b"",
        tail: int | None = None,
        is_live: bool = False,
        line_bytes_max: int = 0,
        consumer: str = "",
        until_head: bool = False,
    ) -> EventStream:
        request = process_service_pb2.StreamEventsRequest(
            run_id=self.id,
            kinds=kinds_of(kinds),
            output_view=view or event_pb2.OUTPUT_VIEW_RAW,
            line_bytes_max=line_bytes_max,
            consumer=consumer,
        )
        if until_head:
            request.until = process_service_pb2.STREAM_UNTIL_HEAD
        if cursor:
            request.cursor = cursor
        elif tail is not None:
            request.tail.lines = tail
        elif is_live:
            request.live.SetInParent()
        return EventStream(self._caller, request, on_gap=on_gap)

    def lines(
        self,
        streams: Sequence[Literal["stdout", "stderr"]] = ("stdout", "stderr"),
        *,
        text: bool = False,
        json: bool = False,
        tail: int | None = None,
        cursor: bytes = b"",
        follow: bool = True,
        line_bytes_max: int = 0,
        on_gap: OnGap = "error",
    ) -> Lines:
        """Returns lines of both streams as they come, each once.

        `text`: without escape sequences. `json`: each line says whether it is JSON. `tail`: begins with the last lines.
        `follow=False`: ends with those that there are. `line_bytes_max`: up to 16 MiB."""
        view = event_pb2.OUTPUT_VIEW_TEXT_LINES if text else event_pb2.OUTPUT_VIEW_LINES
        stream = self._stream(
            kinds=("lifecycle", *streams),
            on_gap=on_gap,
            view=event_pb2.OUTPUT_VIEW_JSON_LINES if json else view,
            cursor=cursor,
            tail=tail,
            line_bytes_max=line_bytes_max,
            until_head=not follow,
        )
        return Lines(stream)

    def json_lines(self, streams: Sequence[Literal["stdout", "stderr"]] = ("stdout",), **options: Any) -> JsonLines:
        """Returns the values of those lines of standard output that are JSON."""
        return JsonLines(self.lines(streams, json=True, **options))

    def events(
        self,
        kinds: Sequence[str] = (),
        *,
        cursor: bytes = b"",
        live: bool = False,
        consumer: str = "",
        follow: bool = True,
    ) -> Events:
        """Returns all events, those of some kinds (`lifecycle stdout stderr signal_sent warning`) where given.

        `live`: begins with the next one. `consumer`: the server stores the position, see `ack`."""
        stream = self._stream(
            kinds=kinds, on_gap="skip", cursor=cursor, is_live=live, consumer=consumer, until_head=not follow
        )
        return Events(stream)

    def ack(self, consumer: str, *, cursor: bytes = b"", seq: int | None = None) -> int:
        """Acknowledges events of a consumer, and returns the position in force."""
        request = consumer_pb2.AckEventsRequest(run_id=self.id, consumer=consumer)
        if seq is not None:
            request.seq = seq
        else:
            request.cursor = cursor
        return (self._caller.call(_calls.AckEvents, request, run_id=self.id)).consumer.acked_seq

    def read_output(
        self,
        stream: Literal["stdout", "stderr"] = "stdout",
        *,
        offset: int = 0,
        size: int = 0,
        head: int | None = None,
        tail: int | None = None,
    ) -> OutputPart:
        """Returns output that is there, without waiting: up to 1 MiB from an offset, or head and tail."""
        request = process_service_pb2.ReadOutputRequest(
            run_id=self.id, stream=f"OUTPUT_STREAM_{stream.upper()}", bytes_max=size
        )
        if head is not None or tail is not None:
            request.head_tail.head_bytes, request.head_tail.tail_bytes = head or 0, tail or 0
        else:
            request.offset = offset
        answer = self._caller.call(_calls.ReadOutput, request, run_id=self.id)
        data, omitted, missing = bytearray(), 0, 0
        for part in answer.parts:
            data += part.data
            omitted += part.omitted_bytes
            missing += part.removed_bytes + part.damaged_bytes
        begin = answer.parts[0].offset if answer.parts else offset
        return OutputPart(
            bytes(data), begin, omitted, missing, answer.next_offset, answer.end_offset, answer.final
        )

    def collect(
        self, stream: Literal["stdout", "stderr"], most: int, on_gap: OnGap = "error"
    ) -> tuple[bytes, int]:
        """Returns all output of a stream so far, of more than `most` bytes its head and tail, and what was left out."""
        first = self._piece(stream, 0, min(most, _PIECE), on_gap)
        end = first.end_offset
        head_end, tail_begin = (end, end) if end <= most else (most // 2, end - (most - most // 2))
        parts = [first.data[:head_end]]
        offset = min(first.next_offset, head_end)
        while offset < head_end:
            part = self._piece(stream, offset, min(head_end - offset, _PIECE), on_gap)
            parts.append(part.data)
            offset = part.next_offset
        offset = max(offset, tail_begin)
        while offset < end:
            part = self._piece(stream, offset, min(end - offset, _PIECE), on_gap)
            if part.next_offset <= offset:
                break
            parts.append(part.data)
            offset = part.next_offset
        return b"".join(parts), tail_begin - head_end

    def _piece(
        self, stream: Literal["stdout", "stderr"], offset: int, size: int, on_gap: OnGap
    ) -> OutputPart:
        part = self.read_output(stream, offset=offset, size=size)
        if part.missing and on_gap == "error":
            raise DataGap(f"{part.missing} bytes of {stream} are no longer kept", run_id=self.id)
        return part

    # Input

    @property
    def stdin(self) -> Stdin:
        """Standard input of a run that was spawned with `stdin="pipe"`, or of a terminal."""
        if self._stdin is None:
            self._stdin = self.open_stdin()
        return self._stdin

    def open_stdin(self, *, shared: bool = False) -> Stdin:
        """Returns another writer. `shared`: several may write, each piece where it comes."""
        is_new = self._is_own and self.attempt == 1 and self._stdin is None and not shared
        return Stdin(
            self._caller,
            self.id,
            attempt=1 if is_new else None,
            offset=0 if is_new else None,
            is_shared=shared,
            is_duplex=False,
        )

    def input_status(self) -> run_pb2.InputStatus:
        """Returns how many bytes of standard input were accepted, and whether it is open."""
        request = process_service_pb2.GetInputStatusRequest(run_id=self.id)
        return (self._caller.call(_calls.GetInputStatus, request, run_id=self.id)).input

    def duplex(self, *, take_over: bool = False) -> tuple[OutputReader, Stdin]:
        """Returns standard output and standard input of the present attempt, as a connection.

        `take_over`: another process continues with it: output from now on, and input where it is."""
        if take_over or not self._is_own:
            self.refresh()
        attempt = self.attempt
        offset = None if take_over or not self._is_own else 0
        writer = Stdin(self._caller, self.id, attempt=attempt, offset=offset, is_shared=False, is_duplex=True)
        stream = self._stream(kinds=("lifecycle", "stdout"), on_gap="error", is_live=take_over)
        if take_over:
            stream.open()
        return OutputReader(stream, "stdout", attempt), writer

    def communicate(
        self, input: bytes | str | None = None, timeout: Seconds | None = None  # noqa: A002
    ) -> tuple[bytes, bytes]:
        """Writes input and closes it, where there is some, reads both streams to their end, and waits."""
        readers = [_io.Task(self.stdout.read), _io.Task(self.stderr.read)]
        try:
            if input is not None:
                self._send_input(input)
            self.wait_for("ended", timeout)
            return readers[0].result(), readers[1].result()
        except BaseException:
            for reader in readers:
                reader.cancel()
            raise

    def _send_input(self, data: bytes | str) -> None:
        try:
            self.stdin.write(data)
            self.stdin.close()
        except BrokenPipeError:
            pass  # the command did not want all of it

    # Terminal

    def attach(self, *, size: tuple[int, int] | None = None, read_only: bool = False) -> Terminal:
        """Attaches to its terminal. The first client that does not only read may type; see `Terminal.take`."""
        terminal = Terminal(self._caller, self.id, size=size, is_read_only=read_only)
        terminal.open()
        return terminal

    def screen(self) -> list[str]:
        """Returns the lines that its terminal shows, as text."""
        request = terminal_pb2.ReadScreenRequest(run_id=self.id)
        return screen_text((self._caller.call(_calls.ReadScreen, request, run_id=self.id)).screen)

    def resize(self, rows: int, cols: int) -> Run:
        """Changes the size of its terminal."""
        request = process_service_pb2.ResizeTerminalRequest(run_id=self.id, rows=rows, cols=cols)
        self._message = (self._caller.call(_calls.ResizeTerminal, request, run_id=self.id)).run
        return self

    def close(self) -> None:
        """Closes its readers; the run is left as it is."""
        for reader in list(self._readers.values()):
            reader.close()

    def __enter__(self) -> Run:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if self.is_live:
                self.abort()
        finally:
            self.close()


class JsonLines:
    """Values of lines that are JSON; other lines are left out."""

    def __init__(self, lines: Lines) -> None:
        self._lines = lines

    def __iter__(self) -> JsonLines:
        return self

    def __next__(self) -> Any:
        while True:
            line = self._lines.__next__()
            if line.is_json:
                return line.json()

    def __enter__(self) -> JsonLines:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Closes it."""
        self._lines.close()


_PIECE = 1 << 20


def _signal_name(signal: str | int) -> str:
    import signal as signals

    name = signals.Signals(signal).name if isinstance(signal, int) else signal
    return name if name.startswith("SIG") else f"SIG{name}"


