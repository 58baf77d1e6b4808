"""A client of one server."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Literal, Unpack

import grpc

from kennel import _calls, _channel, _rules
from kennel._aio import _io
from kennel._aio.caller import Caller
from kennel._aio.raw import Raw
from kennel._aio.run import OnGap, Run
from kennel._aio.streams import Events, EventStream
from kennel._aio.terminal import Terminal
from kennel._binary import LocalServer
from kennel._error import Failure, KennelError, failure_of
from kennel._position import kinds_of
from kennel._reasons import Closed, Configuration, UntrustedServer
from kennel._selection import Action, ForEach, RunOutcome, outcome_of, put_action
from kennel._settings import ConnectOptions, Settings
from kennel._spec import SpawnOptions, spawn_request
from kennel._target import Target
from kennel._values import CompletedRun, Seconds, Stats, seconds
from kennel.v1 import admin_service_pb2, event_pb2, process_service_pb2, run_pb2


async def connect(**options: Unpack[ConnectOptions]) -> Client:
    """Connects to a server. Without options it is the one that the command line would call."""
    settings = Settings(options)
    client = Client(Caller(Settings.target(options), settings))
    try:
        await client.dial()
    except BaseException:
        await client.close()
        raise
    return client


class Client:
    """A client. Close it at the end, or use it as a context; its runs continue."""

    def __init__(self, caller: Caller, *, is_derived: bool = False) -> None:
        self._caller = caller
        self._is_derived = is_derived
        self._fences: set[_io.Task] = set()
        self._at_close: list[Callable[[], object]] = []
        self.local: LocalServer | None = None
        """The private server of a client that `local` has made."""

    @property
    def address(self) -> str:
        """Address of the server."""
        return self._caller.target.address

    @property
    def target(self) -> Target:
        """The server, as options, variables and contexts name it."""
        return self._caller.target

    @property
    def stats(self) -> Stats:
        """Counts of this client."""
        return self._caller.stats

    @property
    def raw(self) -> Raw:
        """Calls by the messages of the contract, without repeats."""
        return Raw(self._caller)

    def on(self, event: Literal["lost", "resumed"], function: Callable[[], None]) -> None:
        """Calls a function when the server is lost, or is back."""
        if event not in ("lost", "resumed"):
            raise ValueError(f"{event!r}: it is one of lost, resumed")
        self._caller.listeners.append((event, function))

    def own(self, server: LocalServer) -> None:
        """Notes that the server belongs to this process: when it has ended, no other one comes."""
        self.local = server
        self._caller.gate.is_gone = server.is_gone

    async def dial(self) -> None:
        """Tries the connection, so that what is wrong with it shows here."""
        target, settings = self._caller.target, self._caller.settings
        until = _io.monotonic() + settings.connect_patience
        while True:
            try:
                if target.path is not None:
                    _channel.check_peer(target)
                else:
                    await self._greet()
                return
            except OSError as error:
                failed = error
            if _io.monotonic() >= until:
                if isinstance(failed, KennelError):
                    raise failed
                raise _channel.connect_failed(target, failed) from failed
            await _io.sleep(0.05)

    async def _greet(self) -> None:
        """Calls a server on the network: its certificate and the credentials are refused here."""
        target = self._caller.target
        connection, credentials = self._caller.connections.take(is_bulk=False)
        try:
            metadata = await self._caller.metadata(credentials)
            request = admin_service_pb2.GetServerInfoRequest()
            await connection.channel.unary(_calls.GetServerInfo, request, _GREET_TIMEOUT, metadata)
        except grpc.RpcError as error:
            failure = failure_of(error)
            if failure.is_of_server or failure.code == "UNIMPLEMENTED":
                if failure.reason == "UNAUTHENTICATED" or not failure.is_of_server:
                    raise failure.error() from error
                return
            if _BAD_KEY in failure.message:
                raise Configuration(f"cannot use the certificate {target.certificate} with its key") from error
            if any(word in failure.message for word in _UNTRUSTED):
                raise UntrustedServer(
                    f"the certificate of {self.address} is not trusted: {failure.message}", code=failure.code
                ) from error
            raise OSError(failure.message) from error
        finally:
            await self._caller.connections.give_back(connection)

    def on_behalf_of(self, principal: str, *, role: str = "", owner: str = "") -> Client:
        """Returns a client on the same connections whose calls are for another principal, as the server permits."""
        pairs = [("kennel-principal", principal), ("kennel-role", role), ("kennel-owner", owner)]
        return Client(self._caller.on_behalf(tuple(pair for pair in pairs if pair[1])), is_derived=True)

    def at(self, node: str) -> Client:
        """Returns a client on the same connections whose calls are for a node, by name or id."""
        return Client(self._caller.at_node(node), is_derived=True)

    async def info(self) -> admin_service_pb2.GetServerInfoResponse:
        """Returns facts about the server: version, capabilities, limits."""
        return await self._caller.call(_calls.GetServerInfo, admin_service_pb2.GetServerInfoRequest())

    async def nodes(self) -> admin_service_pb2.ListNodesResponse:
        """Returns the nodes of the database."""
        return await self._caller.call(_calls.ListNodes, admin_service_pb2.ListNodesRequest())

    # Runs

    async def spawn(self, args: Sequence[str] | str | None = None, **options: Unpack[SpawnOptions]) -> Run:
        """Starts a command, and returns its run. It starts once, however often the call is repeated.

        A Spawn that is cancelled before its answer is undone: its id is fenced."""
        request = spawn_request(args, options)
        try:
            answer = await self._caller.call(_calls.Spawn, request, run_id=request.run_id or None)
        except _io.Cancelled:
            if request.run_id and not request.validate_only:
                self._fence(request.run_id)
            raise
        message = answer.run
        if request.validate_only and not answer.HasField("run"):
            message = run_pb2.Run(spec=request.spec)
        return Run(self._caller, message, is_own=not answer.existing or message.run_id == request.run_id)

    def _fence(self, run_id: str) -> None:
        task = _io.Task(self._abort_unknown, run_id)
        self._fences = {fence for fence in self._fences if not fence.is_done()} | {task}

    async def _abort_unknown(self, run_id: str) -> None:
        request = process_service_pb2.AbortRequest(
            run_id=run_id,
            request_id=run_id,
            wait=process_service_pb2.ABORT_WAIT_NONE,
            if_unknown=process_service_pb2.ABORT_UNKNOWN_FENCE,
        )
        try:
            await self._caller.call(_calls.Abort, request, timeout=self._caller.settings.patience or None)
        except KennelError as error:
            warnings.warn(f"a cancelled Spawn of {run_id} may have started: {error}", ResourceWarning, stacklevel=1)

    async def run(
        self,
        args: Sequence[str] | str,
        *,
        max_output: int = _rules.MAX_OUTPUT_BYTES,
        on_gap: OnGap = "error",
        check: bool = False,
        **options: Unpack[SpawnOptions],
    ) -> CompletedRun:
        """Runs a command to its end, and returns its output and its exit.

        `max_output`: bytes of each stream that are returned, head and tail. `check`: raises CalledProcessError unless
        it has succeeded. Where the call is cancelled, the run is aborted."""
        rest: bytes | None = None
        given = options.get("input")
        if given is not None:
            rest = given.encode() if isinstance(given, str) else given
            if len(rest) <= _INITIAL_INPUT_MAX:
                rest = None
            else:
                options = options.copy()
                del options["input"]
                options["stdin"] = "pipe"
        run = await self.spawn(args, **options)
        try:
            if rest is None:
                await run.wait_for("ended")
            else:
                await run.communicate(rest)
            stdout, omitted_stdout = await run.collect("stdout", max_output, on_gap)
            stderr, omitted_stderr = await run.collect("stderr", max_output, on_gap)
        except _io.Cancelled:
            self._fence(run.id)
            raise
        finally:
            await run.close()
        done = CompletedRun(
            args=tuple(run.info.spec.argv.args),
            run_id=run.id,
            stdout=stdout,
            stderr=stderr,
            omitted_stdout=omitted_stdout,
            omitted_stderr=omitted_stderr,
            exit=run.exit,
            state=run.state,
            end_reason=run.end_reason or "",
            verdict=run.verdict,
        )
        if check:
            done.check_returncode()
        return done

    async def pty(
        self,
        args: Sequence[str] | str | None = None,
        *,
        size: tuple[int, int] = (40, 120),
        **options: Unpack[SpawnOptions],
    ) -> tuple[Run, Terminal]:
        """Starts a command on a terminal, and attaches to it."""
        options.setdefault("tty", size)
        run = await self.spawn(args, **options)
        return run, await run.attach()

    def handle(self, run_id: str) -> Run:
        """Returns a run by its id or name, without a call; what it is, is not known before `refresh`."""
        return Run(self._caller, run_pb2.Run(run_id=run_id))

    async def get(self, run_id: str) -> Run:
        """Returns a run by its id or name."""
        return await self.handle(run_id).refresh()

    async def find(
        self,
        selector: str = "",
        *,
        live: bool = True,
        labels: Mapping[str, str] | None = None,
        names: Sequence[str] = (),
        filter: process_service_pb2.RunFilter | None = None,  # noqa: A002 - the name of the contract
        page_size: int = 250,
    ) -> list[Run]:
        """Returns runs, newest first: live ones, or all. `selector` is that of Kubernetes: `app=web,tier!=cache`."""
        wanted = self._filter(selector, live=live, labels=labels, names=names, under=filter)
        found: list[Run] = []
        token = ""
        while True:
            request = process_service_pb2.ListRunsRequest(filter=wanted, page_size=page_size, page_token=token)
            page = await self._caller.call(_calls.ListRuns, request)
            found += [Run(self._caller, run) for run in page.runs]
            token = page.next_page_token
            if not token:
                return found

    async def inbox(self, selector: str = "", **labels: str) -> list[Run]:
        """Returns the runs that wait for input, with their `questions`: the one that waits longest is first."""
        waits = process_service_pb2.RunFilter(waits=[run_pb2.WAIT_INPUT])
        runs = await self.find(selector, labels=labels, filter=waits)
        return sorted(runs, key=lambda run: (not run.questions, *(asked.since for asked in run.questions[:1])))

    async def for_each(
        self,
        selector: str,
        action: Action,
        *,
        labels: Mapping[str, str] | None = None,
        names: Sequence[str] = (),
        filter: process_service_pb2.RunFilter | None = None,  # noqa: A002 - the name of the contract
        every: bool = False,
        at_most: int = 0,
        parallel: int = 0,
        dry_run: bool = False,
        selection: bytes = b"",
        grace: Seconds | None = None,
        signal: str = "",
        annotations: Mapping[str, str] | None = None,
        timeout: Seconds | None = None,
    ) -> ForEach:
        """Does one thing to each run of a selection. `grace` is that of abort, `signal` and `annotations` likewise.

        The call is not repeated: a lost one is ServerLost, and may be half done. `dry_run`: nothing is done, and the
        result's `selection` lets a second call act on these runs alone. `every`: an empty selection is meant."""
        request = process_service_pb2.ForEachRunRequest(
            filter=self._filter(selector, live=False, labels=labels, names=names, under=filter),
            all=every,
            at_most=at_most,
            parallel=parallel,
            dry_run=dry_run,
            selection=selection,
        )
        put_action(request, action, grace=grace, signal=signal, annotations=annotations)
        self._caller.check()
        connection, credentials = self._caller.connections.take(is_bulk=True)
        outcomes: list[RunOutcome] = []
        matched = process_service_pb2.MatchedRuns()
        try:
            metadata = await self._caller.metadata(credentials)
            limit = None if timeout is None else seconds(timeout)
            stream = connection.channel.stream(_calls.ForEachRun, request, metadata, timeout=limit)
            try:
                while (part := await stream.read()) is not None:
                    if part.HasField("matched"):
                        matched = part.matched
                    elif part.HasField("run"):
                        outcomes.append(outcome_of(part.run))
                    elif part.HasField("summary"):
                        return ForEach(
                            outcomes=tuple(outcomes),
                            counts=dict(part.summary.counts),
                            selection=matched.selection,
                            unreachable_nodes=tuple(matched.unreachable_nodes),
                        )
            finally:
                stream.cancel()
        except grpc.RpcError as error:
            failure = failure_of(error)
            if failure.is_of_server or failure.code == "DEADLINE_EXCEEDED":
                raise failure.error() from error
            raise self._caller.ended(failure) from error
        finally:
            await self._caller.connections.give_back(connection)
        raise self._caller.ended(Failure("UNAVAILABLE", "the answer ended before its summary"))

    @staticmethod
    def _filter(
        selector: str,
        *,
        live: bool,
        labels: Mapping[str, str] | None,
        names: Sequence[str],
        under: process_service_pb2.RunFilter | None,
    ) -> process_service_pb2.RunFilter:
        wanted = process_service_pb2.RunFilter()
        if under is not None:
            wanted.CopyFrom(under)
        if selector:
            wanted.label_selector = selector
        wanted.labels.update(labels or {})
        wanted.names.extend(names)
        if live and not wanted.states:
            wanted.MergeFrom(process_service_pb2.RunFilter(states=_rules.LIVE_STATES))
        return wanted

    def events(
        self,
        selector: str = "",
        *,
        kinds: Sequence[str] = (),
        labels: Mapping[str, str] | None = None,
        filter: process_service_pb2.RunFilter | None = None,  # noqa: A002 - the name of the contract
        cursor: bytes = b"",
        live: bool = False,
        lines: bool = False,
        consumer: str = "",
        follow: bool = True,
    ) -> Events:
        """Returns events of many runs: those that match now, and each that begins to match later.

        The events of one run are in order. `live`: begins with the next one. `follow=False`: ends with those that
        there are."""
        wanted = self._filter(selector, live=False, labels=labels, names=(), under=filter)
        request = process_service_pb2.StreamEventsRequest(
            filter=wanted,
            kinds=kinds_of(kinds),
            output_view=event_pb2.OUTPUT_VIEW_LINES if lines else event_pb2.OUTPUT_VIEW_RAW,
            consumer=consumer,
        )
        if cursor:
            request.cursor = cursor
        elif live:
            request.live.SetInParent()
        if not follow:
            request.until = process_service_pb2.STREAM_UNTIL_HEAD
        return Events(EventStream(self._caller, request, on_gap="skip"))

    # Scope

    async def close(self) -> None:
        """Closes it: open calls end with Closed. Its runs continue.

        Of clients on the same connections, see `at`, this one alone is closed, unless it is the first."""
        caller = self._caller
        if caller.is_closed:
            return
        fences, self._fences = self._fences, set()
        until = _io.monotonic() + _rules.CLOSE_TIMEOUT
        for fence in fences:
            await fence.join(max(0.0, until - _io.monotonic()))
            fence.cancel()
        caller.is_closed = True
        if self._is_derived:
            return
        caller.gate.close()
        await caller.connections.close()
        for function in self._at_close:
            await _io.maybe(function())

    aclose = close  # asyncio only

    def at_close(self, function: Callable[[], object]) -> None:
        """Calls a function when this client has been closed."""
        self._at_close.append(function)

    async def __aenter__(self) -> Client:
        if self._caller.is_closed:
            raise Closed("the client is closed")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.address}>"


_GREET_TIMEOUT = 10.0
_INITIAL_INPUT_MAX = 1 << 20
# What grpcio says of a certificate; it has no codes for them.
_UNTRUSTED = ("CERTIFICATE_VERIFY_FAILED", "erification", "certificate", "handshake")
_BAD_KEY = "Failed to create security handshaker"
