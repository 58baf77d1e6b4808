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
CANCEL = ["cancel"] if "aio" in LANGUAGE else []


def bytes_in(given):
    """Reads bytes of a request."""
    if "text" in given:
        return given["text"].encode()
    if "b64" in given:
        return base64.b64decode(given["b64"])
    return (PERIOD * (given["pattern"] // len(PERIOD) + 1))[: given["pattern"]]


def bytes_out(data):
    """Writes bytes of an answer."""
    found = {"len": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    if len(data) <= 65536:
        found["b64"] = base64.b64encode(data).decode()
    return found


class Total:
    """Length and hash of all that a stream has given."""

    def __init__(self):
        self.len, self.hash = 0, hashlib.sha256()

    def add(self, data, count=None):
        self.len += len(data) if count is None else count
        self.hash.update(data)
        return {"len": self.len, "sha256": self.hash.hexdigest()}


def exit_out(found):
    if found is None:
        return None
    if found.is_unknown:
        return {"unknown": True}
    return {"code": found.code} if found.code is not None else {"signal": found.signal}


def run_out(run):
    return {
        "id": run.id, "state": run.state, "live": run.is_live, "attempt": run.attempt, "exit": exit_out(run.exit),
        "end_reason": run.end_reason, "verdict": run.verdict.upper(), "ready_by": run.ready_by, "labels": run.labels,
        "annotations": run.annotations, "annotations_version": run.annotations_version, "name": run.name,
        "pid": run.pid,
    }


MESSAGES = {"restart": v1.RestartPolicy, "ready": v1.Readiness, "output": v1.OutputPolicy, "spec": v1.RunSpec}


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


def command_of(args):
    return args["shell"] if "shell" in args else args.get("argv")


def limit(args, default=None):
    return args["timeout_ms"] / 1000 if "timeout_ms" in args else default


class Driver:
    """Objects by their names, and what can be done with them."""

    def __init__(self, emit):
        self.emit, self.objects, self.readers, self.totals, self.clients = emit, {}, {}, {}, []

    def client(self, name):
        return self.objects[name or "c"]

    def total(self, *key):
        return self.totals.setdefault(key, Total())

    def op_hello(self, r, a):
        ops = [name[3:] for name in dir(self) if name.startswith("op_")] + CANCEL
        return {"language": LANGUAGE, "version": kennel.__version__, "level": kennel.CONTRACT_LEVEL, "ops": ops}

    def op_connect(self, r, a):
        client = api.connect(**options_of(a))
        name = r.get("as", "c")
        client.on("lost", lambda: self.emit({"event": "lost", "of": name}))
        client.on("resumed", lambda: self.emit({"event": "resumed", "of": name}))
        self.objects[name] = client
        self.clients.append(client)

    def op_close(self, r, a):
        self.client(r.get("of")).close()

    def op_resolve(self, r, a):
        given = {key: value for key, value in a.items() if key not in ("env", "root")}
        found = Settings.target(options_of(given), Surroundings(a["env"], is_root=a.get("root", False)))
        return {name: getattr(found, name) for name in
                ("address", "ca", "certificate", "key", "server_name", "token_file", "node", "server_user")}

    def op_info(self, r, a):
        return {"version": (self.client(r.get("of")).info()).server.version, "level": None}

    def op_stats(self, r, a):
        with open("/proc/self/status", encoding="ascii") as file:
            peak = next(int(line.split()[1]) * 1024 for line in file if line.startswith("VmHWM"))
        tasks = _io.count_tasks()
        totals = [client.stats for client in self.clients]
        count = {name: sum(getattr(stats, name) for stats in totals) for name in ("lost", "resumed", "probes")}
        return {"rss_peak": peak, "tasks": tasks, "fds": len(os.listdir("/proc/self/fd")),
                "streams": sum(stats.open_streams for stats in totals), **count}

    def op_spawn(self, r, a):
        run = self.client(r.get("on")).spawn(command_of(a), **options_of(a))
        self.put(r["as"], run)
        return run_out(run)

    def put(self, name, value):
        self.objects[name] = value
        for kept in (self.readers, self.totals):
            for key in [key for key in kept if key[0] == name]:
                del kept[key]

    def op_run(self, r, a):
        more = {key: a[key] for key in ("max_output", "on_gap", "check") if key in a}
        done = self.client(r.get("on")).run(command_of(a), **more, **options_of(a))
        return {"exit": exit_out(done.exit), "state": done.state, "end_reason": done.end_reason,
                "stdout": bytes_out(done.stdout), "stderr": bytes_out(done.stderr),
                "omitted_stdout": done.omitted_stdout, "omitted_stderr": done.omitted_stderr,
                "timed_out": done.end_reason == "deadline_exceeded"}

    def op_handle(self, r, a):
        self.put(r["as"], self.client(r.get("on")).handle(a["run_id"]))
        return {"id": a["run_id"]}

    def op_get(self, r, a):
        run = self.client(r.get("on")).get(a["run_id"])
        self.put(r["as"], run)
        return run_out(run)

    def op_find(self, r, a):
        given = dict(a)
        selector = given.pop("selector", "")
        return {"ids": [run.id for run in self.client(r.get("on")).find(selector, **given)]}

    def op_refresh(self, r, a):
        return run_out(self.objects[r["of"]].refresh())

    def op_wait(self, r, a):
        run = self.objects[r["of"]]
        reached = run.wait_for(a.get("for", "ended"), limit(a))
        return {**run_out(run), "reached": reached}

    def op_ready(self, r, a):
        return run_out(self.objects[r["of"]].ready(limit(a)))

    def op_wait_output(self, r, a):
        found = self.objects[r["of"]].wait_for_output(a.get("literal"), regex=a.get("regex"), timeout=limit(a))
        return {"line": found.line, "text": found.text, "seq": found.seq, "groups": found.groups}

    def op_abort(self, r, a):
        grace = a["grace_ms"] / 1000 if "grace_ms" in a else None
        done = self.objects[r["of"]].abort(grace, wait=a.get("wait", "tree_empty"))
        return {"state": done.state, "verdict": done.verdict.upper(), "proof": done.proof, "exit": exit_out(done.exit)}

    def op_kill(self, r, a):
        self.objects[r["of"]].send_signal(a.get("signal", "SIGTERM"))

    def op_signal(self, r, a):
        answer = self.objects[r["of"]].signal(a["signal"], a.get("target", "leader"))
        return {"repeated": answer.repeated_request}

    def op_interrupt(self, r, a):
        return run_out(self.objects[r["of"]].interrupt())

    def op_pause(self, r, a):
        return run_out(self.objects[r["of"]].pause())

    def op_resume(self, r, a):
        return run_out(self.objects[r["of"]].resume())

    def op_restart(self, r, a):
        run = self.objects[r["of"]].restart()
        if "as" in r:
            self.put(r["as"], run)
        return run_out(run)

    def op_annotate(self, r, a):
        more = {key: a[key] for key in ("remove", "expected_version") if key in a}
        return run_out(self.objects[r["of"]].annotate(a.get("set"), **more))

    def op_extend(self, r, a):
        return run_out(self.objects[r["of"]].extend(a["by_ms"] / 1000))

    def op_tree(self, r, a):
        found = self.objects[r["of"]].tree()
        return {"processes": len(found), "names": [process.name for process in found]}

    def op_read_output(self, r, a):
        given = {{"bytes_max": "size"}.get(key, key): value for key, value in a.items() if key != "stream"}
        found = self.objects[r["of"]].read_output(a.get("stream", "stdout"), **given)
        return {"data": bytes_out(found.data), "omitted": found.omitted, "end_offset": found.end_offset,
                "final": found.is_final}

    def read_up_to(self, reader, at_most):
        """Reads so many bytes, fewer at the end."""
        parts, left = [], at_most
        while left is None or left > 0:
            piece = reader.read(left if left is not None else 1 << 20)
            if not piece:
                return b"".join(parts), True
            parts.append(piece)
            left = None if left is None else left - len(piece)
        return b"".join(parts), False

    def op_read(self, r, a):
        key = (r["of"], a["stream"])
        if key not in self.readers:
            run = self.objects[r["of"]]
            own = getattr(run, a["stream"])
            self.readers[key] = run.read_from(a["stream"], on_gap=a["on_gap"]) if "on_gap" in a else own
        data, eof = self.read_up_to(self.readers[key], a.get("at_most"))
        return {"data": bytes_out(data), "total": self.total(*key).add(data), "eof": eof}

    def op_lines(self, r, a):
        key = (r["of"], "lines", a.get("stream", ""))
        if key not in self.readers:
            given = {name: a[name] for name in ("json", "line_bytes_max", "tail", "on_gap") if name in a}
            streams = (a["stream"],) if a.get("stream") else ("stdout", "stderr")
            self.readers[key] = self.objects[r["of"]].lines(streams, **given)
        lines, texts, eof = [], [], True
        for line in self.readers[key]:
            texts.append(line.text + "\n")
            if len(lines) < 1000:
                lines.append({"stream": line.stream, "text": line.text, "seq": line.seq, "truncated": line.is_truncated,
                              "json": line.json() if line.is_json else None})
            if len(texts) == a.get("at_most"):
                eof = False
                break
        total = self.total(*key).add("".join(texts).encode(), len(texts))
        return {"lines": lines, "count": len(texts), "total": total, "eof": eof}

    def op_events(self, r, a):
        key = (r["of"], "events", a.get("consumer", ""))
        if key not in self.readers:
            self.readers[key] = self.objects[r["of"]].events(consumer=a.get("consumer", ""))
        found, eof = [], True
        for event in self.readers[key]:
            stream = event.kind if event.kind in ("stdout", "stderr") else None
            found.append({"kind": event.kind, "seq": event.seq, "attempt": event.attempt, "stream": stream,
                          "len": len(event.data)})
            if len(found) == a.get("at_most") or event.kind == a.get("until"):
                eof = False
                break
        return {"events": found, "eof": eof}

    def op_events_of(self, r, a):
        totals, ended = {}, 0
        with self.client(r.get("on")).events(a["selector"], kinds=["stdout", "lifecycle"]) as events:
            for event in events:
                total = totals.setdefault(event.run_id, Total())
                total.add(event.data)
                ended += event.kind == "ended"
                if ended == a["until_ended"]:
                    break
        return {"runs": len(totals), "bytes": {run: total.add(b"") for run, total in totals.items()}}

    def op_break(self, r, a):
        key = (r["of"], a["stream"])
        if a["stream"] in ("lines", "events"):
            key += (a.get("consumer", ""),)
        self.readers.pop(key).close()

    def op_ack(self, r, a):
        return {"acked_seq": self.objects[r["of"]].ack(a["consumer"], seq=a["seq"])}

    def op_write(self, r, a):
        key = (r["of"], "stdin", str(a.get("shared", False)))
        if key not in self.readers:
            run = self.objects[r["of"]]
            self.readers[key] = run.open_stdin(shared=True) if a.get("shared") else run.stdin
        self.readers[key].write(bytes_in(a["data"]))
        return {"offset": self.readers[key].offset}

    def op_end_input(self, r, a):
        self.objects[r["of"]].stdin.close()

    def op_duplex(self, r, a):
        self.put(r["as"], self.objects[r["of"]].duplex(take_over=a.get("take_over", False)))

    def op_duplex_write(self, r, a):
        self.objects[r["of"]][1].write(bytes_in(a["data"]))

    def op_duplex_end(self, r, a):
        self.objects[r["of"]][1].close()

    def op_duplex_read(self, r, a):
        data, eof = self.read_up_to(self.objects[r["of"]][0], a.get("at_most"))
        return {"data": bytes_out(data), "total": self.total(r["of"], "duplex").add(data), "eof": eof}

    def op_attach(self, r, a):
        size = (a["rows"], a["cols"]) if "rows" in a else None
        self.put(r["as"], self.objects[r["of"]].attach(size=size, read_only=a.get("read_only", False)))

    def op_t_write(self, r, a):
        self.objects[r["of"]].write(bytes_in(a["data"]))

    def op_t_expect(self, r, a):
        return {"before": bytes_out(self.objects[r["of"]].expect(a["text"], limit(a, 30)))}

    def op_t_read(self, r, a):
        return {"data": bytes_out(self.objects[r["of"]].read_all()), "eof": True}

    def op_t_resize(self, r, a):
        self.objects[r["of"]].resize(a["rows"], a["cols"])

    def op_t_take(self, r, a):
        self.objects[r["of"]].take(30)

    def op_t_detach(self, r, a):
        self.objects[r["of"]].detach()

    def op_t_state(self, r, a):
        terminal = self.objects[r["of"]]
        rows, cols = terminal.size or (None, None)
        return {"writer": terminal.is_writer, "rows": rows, "cols": cols}

    def op_screen(self, r, a):
        lines = self.objects[r["of"]].screen()
        return {"lines": lines, "rows": len(lines)}

    def op_many(self, r, a):
        client, results = self.client(r.get("on")), []

        def one():
            try:
                if not a.get("read"):
                    results.append(len((client.run(a["argv"], labels=a.get("labels", {}))).stdout))
                    return
                run = client.spawn(a["argv"], labels=a.get("labels", {}))
                waits = [_io.Task(run.wait_for, "ended") for _ in range(a.get("waits", 0))]
                data = run.stdout.read()
                for wait in waits:
                    assert wait.result()
                run.wait_for("ended")
                results.append(len(data))
            except Exception as error:
                results.append(getattr(error, "reason", "") or type(error).__name__)

        for task in [_io.Task(one) for _ in range(a["count"])]:
            task.join()
        good, errors = [item for item in results if isinstance(item, int)], {}
        for item in results:
            if not isinstance(item, int):
                errors[item] = errors.get(item, 0) + 1
        return {"ok": len(good), "errors": errors, "bytes": sum(good)}

    def op_raw(self, r, a):
        request = json_format.ParseDict(a["request"], getattr(v1, a["rpc"] + "Request")())
        answer = self.client(r.get("on")).raw.call(getattr(kennel.calls, a["rpc"]), request)
        return {"response": json_format.MessageToDict(answer)}

    def op_scope(self, r, a):
        with self.client(r.get("on")).spawn(command_of(a), **options_of(a)) as run:
            if "as" in r:
                self.put(r["as"], run)
        return run_out(run)

    def finish(self):
        """Closes everything."""
        for client in self.clients:
            client.close()
