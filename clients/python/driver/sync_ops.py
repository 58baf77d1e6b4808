# Made from driver/aio_ops.py by clients/python/sync. Do not edit.
"""Operations of the driver with asyncio; `sync_ops.py` is made from this file by clients/python/sync."""

import base64
import hashlib
import os

import kennel
import kennel as api
from google.protobuf import json_format
from kennel import v1
from kennel._settings import Settings
from kennel._sync import _io
from kennel._target import Surroundings

LANGUAGE = "python"
PERIOD = bytes((i * 31 + i // 251) % 256 for i in range(251 * 128))
MESSAGES = {"restart": v1.RestartPolicy, "ready": v1.Readiness, "output": v1.OutputPolicy, "spec": v1.RunSpec}


def bytes_in(given):
    """Reads bytes of a request."""
    if "pattern" in given:
        return (PERIOD * (given["pattern"] // len(PERIOD) + 1))[: given["pattern"]]
    return given["text"].encode() if "text" in given else base64.b64decode(given["b64"])


class Total:
    """Length and hash of all that a stream has given."""

    def __init__(self):
        self.len, self.hash = 0, hashlib.sha256()

    def add(self, data, count=None):
        self.len += len(data) if count is None else count
        self.hash.update(data)
        return {"len": self.len, "sha256": self.hash.hexdigest()}


def options_of(args):
    """Turns options of the protocol into those of the package."""
    found = {}
    for key, value in args.items():
        if key.endswith("_ms"):
            found[key[:-3]] = value / 1000
        elif key in MESSAGES and isinstance(value, dict):
            found[key] = json_format.ParseDict(value, MESSAGES[key]())
        elif key == "input":
            found[key] = bytes_in(value)
        elif key == "tty":
            found[key] = (value["rows"], value["cols"])
        elif key == "shell":
            found[key] = True
        elif key not in ("argv", "max_output", "on_gap", "check"):
            found[key] = value
    return found


def some(args, *names):
    return {name: args[name] for name in names if name in args}


def limit(args, default=None):
    return args["timeout_ms"] / 1000 if "timeout_ms" in args else default


def out(value):
    """Writes a value of the package as the protocol has it."""
    if isinstance(value, bytes):
        found = Total().add(value)
        return {**found, "b64": base64.b64encode(value).decode()} if len(value) <= 65536 else found
    if isinstance(value, kennel.Exit):
        code, signal = value.code, value.signal
        return {"unknown": True} if value.is_unknown else {"signal": signal} if code is None else {"code": code}
    if isinstance(value, api.Run):
        names = "id state attempt end_reason ready_by labels annotations annotations_version name pid exit"
        found = {name: out(getattr(value, name)) for name in names.split()}
        return {**found, "live": value.is_live, "verdict": value.verdict.upper()}
    if isinstance(value, kennel.CompletedRun):
        names = "exit state end_reason stdout stderr omitted_stdout omitted_stderr"
        found = {name: out(getattr(value, name)) for name in names.split()}
        return {**found, "timed_out": value.end_reason == "deadline_exceeded"}
    if isinstance(value, kennel.Stopped):
        return {"state": value.state, "verdict": value.verdict.upper(), "proof": value.proof, "exit": out(value.exit)}
    if isinstance(value, kennel.OutputMatch):
        return {"line": value.line, "text": value.text, "seq": value.seq, "groups": dict(value.groups)}
    if isinstance(value, kennel.OutputPart):
        data, end = out(value.data), value.end_offset
        return {"data": data, "omitted": value.omitted, "end_offset": end, "final": value.is_final}
    return dict(value) if hasattr(value, "keys") else value


def with_(**fields):
    """Returns a function that makes an answer of one value."""
    return lambda value: {name: field(value) for name, field in fields.items()}


# Operations on an object that are one call of it: the call, and what is made of its value.
CALLS = {
    "close": (lambda client, a: client.close(), None),
    "info": (
        lambda client, a: client.info(),
        with_(version=lambda info: info.server.version, level=lambda info: info.server.contract_level),
    ),
    "refresh": (lambda run, a: run.refresh(), out),
    "ready": (lambda run, a: run.ready(limit(a)), out),
    "interrupt": (lambda run, a: run.interrupt(), out),
    "pause": (lambda run, a: run.pause(), out),
    "resume": (lambda run, a: run.resume(), out),
    "restart": (lambda run, a: run.restart(), out),
    "extend": (lambda run, a: run.extend(a["by_ms"] / 1000), out),
    "annotate": (lambda run, a: run.annotate(a.get("set"), **some(a, "remove", "expected_version")), out),
    "kill": (lambda run, a: run.send_signal(a.get("signal", "SIGTERM")), None),
    "signal": (
        lambda run, a: run.signal(a["signal"], a.get("target", "leader")),
        with_(repeated=lambda answer: answer.repeated_request),
    ),
    "abort": (lambda run, a: run.abort(**options_of(some(a, "grace_ms", "wait"))), out),
    "wait_output": (
        lambda run, a: run.wait_for_output(a.get("literal"), regex=a.get("regex"), timeout=limit(a)),
        out,
    ),
    "tree": (lambda run, a: run.tree(), with_(processes=len, names=lambda found: [process.name for process in found])),
    "read_output": (
        lambda run, a: run.read_output(**{{"bytes_max": "size"}.get(key, key): value for key, value in a.items()}),
        out,
    ),
    "ack": (lambda run, a: run.ack(a["consumer"], seq=a["seq"]), with_(acked_seq=int)),
    "answer": (lambda run, a: run.answer(a["text"], **some(a, "question")), None),
    "remove": (lambda run, a: run.remove(), None),
    "end_input": (lambda run, a: run.stdin.close(), None),
    "screen": (lambda run, a: run.screen(), with_(lines=list, rows=len)),
    "duplex": (lambda run, a: run.duplex(take_over=a.get("take_over", False)), lambda duplex: {}),
    "duplex_write": (lambda duplex, a: duplex[1].write(bytes_in(a["data"])), lambda written: {}),
    "duplex_end": (lambda duplex, a: duplex[1].close(), None),
    "attach": (
        lambda run, a: run.attach(
            size=(a["rows"], a["cols"]) if "rows" in a else None, read_only=a.get("read_only", False)
        ),
        lambda terminal: {},
    ),
    "t_write": (lambda terminal, a: terminal.write(bytes_in(a["data"])), None),
    "t_expect": (lambda terminal, a: terminal.expect(a["text"], limit(a, 30)), with_(before=out)),
    "t_read": (lambda terminal, a: terminal.read_all(), with_(data=out, eof=lambda data: True)),
    "t_resize": (lambda terminal, a: terminal.resize(a["rows"], a["cols"]), None),
    "t_take": (lambda terminal, a: terminal.take(30), None),
    "t_detach": (lambda terminal, a: terminal.detach(), None),
}
# Operations on a client, likewise.
CLIENT_CALLS = {
    "spawn": (lambda client, a: client.spawn(a.get("shell", a.get("argv")), **options_of(a)), out),
    "run": (
        lambda client, a: client.run(
            a.get("shell", a.get("argv")), **some(a, "max_output", "on_gap", "check"), **options_of(a)
        ),
        out,
    ),
    "get": (lambda client, a: client.get(a["run_id"]), out),
    "find": (lambda client, a: client.find(**a), with_(ids=lambda runs: [run.id for run in runs])),
    "inbox": (
        lambda client, a: client.inbox(**a),
        with_(
            ids=lambda runs: [run.id for run in runs],
            texts=lambda runs: [question.text for run in runs for question in run.questions],
            numbers=lambda runs: [question.number for run in runs for question in run.questions],
            by=lambda runs: [question.by for run in runs for question in run.questions],
        ),
    ),
    "for_each": (
        lambda client, a: client.for_each(
            a.get("selector", ""),
            a["action"],
            **{**some(a, "dry_run", "at_most", "every", "signal"), **options_of(some(a, "grace_ms"))},
            selection=base64.b64decode(a.get("selection", "")),
        ),
        with_(
            ids=lambda done: sorted(one.run_id for one in done.outcomes),
            reasons=lambda done: sorted({one.reason for one in done.outcomes}),
            counts=lambda done: dict(done.counts),
            selection=lambda done: base64.b64encode(done.selection).decode(),
        ),
    ),
    "raw": (
        lambda client, a: client.raw.call(
            getattr(kennel.calls, a["rpc"]), json_format.ParseDict(a["request"], getattr(v1, a["rpc"] + "Request")())
        ),
        with_(response=json_format.MessageToDict),
    ),
}


class Driver:
    """Objects by their names, and what can be done with them."""

    def __init__(self, emit):
        self.emit, self.objects, self.readers, self.totals, self.clients = emit, {}, {}, {}, []

    def answer(self, r, a):
        """Does what a request says, and returns its answer."""
        op, found = r["op"], None
        if op in CALLS or op in CLIENT_CALLS:
            is_client = op in CLIENT_CALLS
            call, shape = (CLIENT_CALLS if is_client else CALLS)[op]
            value = call(self.client(r) if is_client else self.objects[r.get("of", "c")], a)
            if "as" in r:
                self.put(r["as"], value)
            found = shape(value) if shape else None
        else:
            found = getattr(self, f"op_{op}")(r, a)
        return found if found is not None else {}

    def client(self, r):
        return self.objects[r.get("on") or "c"]

    def put(self, name, value):
        self.objects[name] = value
        for kept in (self.readers, self.totals):
            for key in [key for key in kept if key[0] == name]:
                del kept[key]

    def reader(self, key, make):
        if key not in self.readers:
            self.readers[key] = make()
        return self.readers[key], self.totals.setdefault(key, Total())

    def op_hello(self, r, a):
        own = [name[3:] for name in dir(self) if name.startswith("op_")]
        ops = [*own, *CALLS, *CLIENT_CALLS] + (["cancel"] if "aio" in LANGUAGE else [])
        return {"language": LANGUAGE, "version": kennel.__version__, "level": kennel.CONTRACT_LEVEL, "ops": ops}

    def op_connect(self, r, a):
        client, name = api.connect(**options_of(a)), r.get("as", "c")
        client.on("lost", lambda: self.emit({"event": "lost", "of": name}))
        client.on("resumed", lambda: self.emit({"event": "resumed", "of": name}))
        self.objects[name] = client
        self.clients.append(client)

    def op_resolve(self, r, a):
        given = {key: value for key, value in a.items() if key not in ("env", "root")}
        found = Settings.target(options_of(given), Surroundings(a["env"], is_root=a.get("root", False)))
        names = "address ca certificate key server_name token_file node server_user"
        return {name: getattr(found, name) for name in names.split()}

    def op_stats(self, r, a):
        with open("/proc/self/status", encoding="ascii") as file:
            peak = next(int(line.split()[1]) * 1024 for line in file if line.startswith("VmHWM"))
        fields = {"streams": "open_streams", "lost": "lost", "resumed": "resumed", "probes": "probes"}
        fields |= {"unknown_values": "unknown_values", "unknown_events": "unknown_events"}
        counts = {name: sum(getattr(client.stats, own) for client in self.clients) for name, own in fields.items()}
        return {"rss_peak": peak, "tasks": _io.count_tasks(), "fds": len(os.listdir("/proc/self/fd")), **counts}

    def op_handle(self, r, a):
        self.put(r["as"], self.client(r).handle(a["run_id"]))
        return {"id": a["run_id"]}

    def op_wait(self, r, a):
        run = self.objects[r["of"]]
        reached = run.wait_for(a.get("for", "ended"), limit(a))
        return {**out(run), "reached": reached}

    def read_up_to(self, reader, total, at_most):
        """Reads so many bytes, fewer at the end."""
        parts, left = [], at_most
        while left is None or left > 0:
            piece = reader.read(left if left is not None else 1 << 20)
            parts.append(piece)
            left = None if left is None else left - len(piece)
            if not piece:
                break
        data = b"".join(parts)
        return {"data": out(data), "total": total.add(data), "eof": bool(parts) and not parts[-1]}

    def op_read(self, r, a):
        run, stream = self.objects[r["of"]], a["stream"]
        given = some(a, "on_gap")
        make = (lambda: run.read_from(stream, **given)) if given else (lambda: getattr(run, stream))
        return self.read_up_to(*self.reader((r["of"], stream), make), a.get("at_most"))

    def op_duplex_read(self, r, a):
        reader = self.objects[r["of"]][0]
        return self.read_up_to(*self.reader((r["of"], "duplex"), lambda: reader), a.get("at_most"))

    def op_lines(self, r, a):
        run, streams = self.objects[r["of"]], (a["stream"],) if a.get("stream") else ("stdout", "stderr")
        given = some(a, "json", "line_bytes_max", "tail", "on_gap")
        reader, total = self.reader((r["of"], "lines", a.get("stream", "")), lambda: run.lines(streams, **given))
        lines, texts, eof = [], [], True
        for line in reader:
            texts.append(line.text + "\n")
            if len(lines) < 1000:
                found = {"stream": line.stream, "text": line.text, "seq": line.seq, "truncated": line.is_truncated}
                lines.append({**found, "json": line.json() if line.is_json else None})
            if len(texts) == a.get("at_most"):
                eof = False
                break
        total = total.add("".join(texts).encode(), len(texts))
        return {"lines": lines, "count": len(texts), "total": total, "eof": eof}

    def op_events(self, r, a):
        run, consumer = self.objects[r["of"]], a.get("consumer", "")
        reader, _ = self.reader((r["of"], "events", consumer), lambda: run.events(consumer=consumer))
        found, eof = [], True
        for event in reader:
            stream = event.kind if event.kind in ("stdout", "stderr") else None
            position = {"kind": event.kind, "seq": event.seq, "attempt": event.attempt}
            found.append({**position, "stream": stream, "len": len(event.data)})
            if len(found) == a.get("at_most") or event.kind == a.get("until"):
                eof = False
                break
        return {"events": found, "eof": eof}

    def op_events_of(self, r, a):
        totals, ended = {}, 0
        with self.client(r).events(a["selector"], kinds=["stdout", "lifecycle"]) as events:
            for event in events:
                totals.setdefault(event.run_id, Total()).add(event.data)
                ended += event.kind == "ended"
                if ended == a["until_ended"]:
                    break
        return {"runs": len(totals), "bytes": {run: total.add(b"") for run, total in totals.items()}}

    def op_break(self, r, a):
        more = (a.get("consumer", ""),) if a["stream"] in ("lines", "events") else ()
        self.readers.pop((r["of"], a["stream"], *more)).close()

    def op_write(self, r, a):
        run, shared = self.objects[r["of"]], a.get("shared", False)
        make = (lambda: run.open_stdin(shared=True)) if shared else (lambda: run.stdin)
        stdin, _ = self.reader((r["of"], "stdin", shared), make)
        stdin.write(bytes_in(a["data"]))
        return {"offset": stdin.offset}

    def op_t_state(self, r, a):
        terminal = self.objects[r["of"]]
        rows, cols = terminal.size or (None, None)
        return {"writer": terminal.is_writer, "rows": rows, "cols": cols}

    def op_many(self, r, a):
        client, results = self.client(r), []

        def one():
            try:
                if not a.get("read"):
                    results.append(len((client.run(a["argv"], labels=a.get("labels", {}))).stdout))
                    return
                run = client.spawn(a["argv"], labels=a.get("labels", {}))
                waits = [_io.Task(run.wait_for, "ended") for _ in range(a.get("waits", 0))]
                data = run.stdout.read()
                run.wait_for("ended")
                for wait in waits:
                    assert wait.result()
                results.append(len(data))
            except Exception as error:
                results.append(getattr(error, "reason", "") or type(error).__name__)

        for task in [_io.Task(one) for _ in range(a["count"])]:
            task.join()
        good, bad = ([item for item in results if isinstance(item, kind)] for kind in (int, str))
        return {"ok": len(good), "errors": {item: bad.count(item) for item in bad}, "bytes": sum(good)}

    def op_scope(self, r, a):
        with self.client(r).spawn(a.get("shell", a.get("argv")), **options_of(a)) as run:
            self.put(r.get("as", "scope"), run)
        return out(run)

    def finish(self):
        """Closes everything."""
        for client in self.clients:
            client.close()
