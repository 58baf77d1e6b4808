"""A case: its steps, and what must hold afterwards."""

import hashlib
import json
import os
import re
import time
from pathlib import Path

from suite.driver import Red
from suite.network import Network, listen_as, other_service, versioned_service
from suite.relay import Relay
from suite.server import Server

PROGRAMS = Path(__file__).resolve().parent.parent / "programs"
WITHIN = 60.0
SLACK = {"tasks": 4, "fds": 8}


def counter(count):
    return "".join(f"{number}\n" for number in range(count)).encode()


PERIOD = bytes((i * 31 + i // 251) % 256 for i in range(251 * 128))


def pattern(count):
    return (PERIOD * (count // len(PERIOD) + 1))[:count]


def digest(count):
    return f"{count} {hashlib.sha256(pattern(count)).hexdigest()}\n".encode()


MADE = {"counter": counter, "pattern": pattern, "digest": digest}


def made(word):
    """Returns the bytes that a word such as `counter(3)` stands for."""
    found = re.fullmatch(r"(counter|pattern|digest)\((\d+)\)", word)
    if found:
        return MADE[found[1]](int(found[2]))
    found = re.fullmatch(r"text\((.*)\)", word, re.DOTALL)
    return found[1].encode() if found else None


def new_ulid():
    """Returns a new id, of now."""
    number = time.time_ns() // 1_000_000 << 80 | int.from_bytes(os.urandom(10), "big")
    return "".join("0123456789ABCDEFGHJKMNPQRSTVWXYZ"[number >> shift & 31] for shift in range(125, -1, -5))


def difference(wanted, got, path="answer"):
    """Returns how an answer differs from what is expected of it."""
    if isinstance(wanted, str) and isinstance(got, dict) and "sha256" in got:
        data = made(wanted.removeprefix("lines "))
        if data is None:
            return f"{path}: {wanted!r} is no word for bytes"
        length = data.count(b"\n") if wanted.startswith("lines ") else len(data)
        if got["len"] != length:
            return f"{path}: length {got['len']} in place of {length}: {json.dumps(got)[:300]}"
        same = got["sha256"] == hashlib.sha256(data).hexdigest()
        return None if same else f"{path}: other bytes: {json.dumps(got)[:300]}"
    if isinstance(wanted, dict) and set(wanted) <= {"at_least", "at_most", "contains", "matches", "not"} and wanted:
        ok = True
        if "at_least" in wanted:
            ok &= got is not None and got >= wanted["at_least"]
        if "at_most" in wanted:
            ok &= got is not None and got <= wanted["at_most"]
        if "contains" in wanted:
            ok &= got is not None and wanted["contains"] in got
        if "matches" in wanted:
            ok &= re.search(wanted["matches"], got or "") is not None
        if "not" in wanted:
            ok &= got != wanted["not"]
        return None if ok else f"{path}: {json.dumps(got)[:400]} is not {wanted}"
    if isinstance(wanted, dict):
        if not isinstance(got, dict):
            return f"{path}: {json.dumps(got)[:400]} in place of {wanted}"
        for key, value in wanted.items():
            found = difference(value, got.get(key), f"{path}.{key}")
            if found:
                return found
        return None
    if wanted == "null":
        wanted = None
    return None if wanted == got else f"{path}: {json.dumps(got)[:400]} in place of {wanted!r}"


class Case:
    """A case that is played."""

    def __init__(self, case, binary, driver, directory):
        self.case, self.driver, self.directory = case, driver, directory
        self.server = Server(binary, directory, self.words(case.get("server", [])))
        self.relay = None
        self.network = None
        self.others = []
        self.answers = {}
        self.open = {}
        self.ids = {}
        self.clients = []

    def words(self, words):
        return [word.replace("${dir}", str(self.directory)) for word in words]

    def play(self, hello):
        """Plays it; Red where it is red."""
        steps = self.case["steps"]
        missing = {step["do"] for step in steps if "do" in step} | {"cancel" for step in steps if "cancel" in step}
        missing -= set(hello["ops"])
        if missing:
            raise Red(f"the driver has no {', '.join(sorted(missing))}")
        if "network" in self.case:
            self.network = Network(self.server.binary, self.directory, self.case["network"])
            self.server.words += self.network.words()
        if self.case.get("start", True):
            self.server.start()
            self.warm_up()
        before = self.driver.call("stats")
        if self.case.get("relay"):
            self.relay = Relay(self.directory / "relay.sock", self.server.socket)
        if self.case.get("connect", True):
            address = self.relay.address if self.relay else self.server.address
            options = {"server": address, "patience_ms": 20_000, **self.case.get("options", {})}
            self.request({"do": "connect", "as": "c", "args": options})
        for number, step in enumerate(self.case["steps"], 1):
            try:
                self.step(step)
            except Red as error:
                raise Red(f"step {number} ({json.dumps(step)[:160]}): {error}") from error
            except (RuntimeError, OSError) as error:
                raise Red(f"step {number} ({json.dumps(step)[:160]}): {type(error).__name__}: {error}") from error
        self.check_nothing_left(before)

    def warm_up(self):
        """Loads what a first connection loads, so that what a case leaves can be counted."""
        self.driver.call("connect", {"server": self.server.address}, **{"as": "warm"})
        self.driver.call("info", of="warm")
        self.driver.call("close", of="warm")

    def check_nothing_left(self, before):
        for client in self.clients:
            self.driver.call("close", of=client)
        until = time.monotonic() + 5
        while True:
            after = self.driver.call("stats")
            more = [name for name in ("tasks", "fds") if after[name] > before[name] + SLACK[name]]
            if not more and after["streams"] == 0:
                break
            if time.monotonic() > until:
                raise Red(f"left in the driver: {before} before, {after} after")
            time.sleep(0.05)
        if self.relay is not None:
            self.relay.close()
        if not self.server.stop():
            raise Red("the service did not stop")
        until = time.monotonic() + 10
        while left := self.server.left():
            if time.monotonic() > until:
                raise Red(f"processes are left: {left}")
            time.sleep(0.02)

    def clean(self):
        """Ends everything, also of a red case."""
        if self.relay is not None:
            self.relay.close()
        for other in self.others:
            other.kill()
            other.wait()
        self.server.stop()
        self.server.sweep()

    # Steps

    def step(self, step):
        if "do" in step:
            self.request(step)
        elif "await" in step:
            self.judge(step, self.driver.answer(self.open.pop(step["await"]), step.get("within_ms", 60_000) / 1000))
        elif "fault" in step:
            self.fault(step)
        elif "file" in step:
            self.until_file(step)
        elif "event" in step:
            self.driver.wait_event(step["event"], step.get("within_ms", 20_000) / 1000)
        elif "cancel" in step:
            self.driver.call("cancel", {"n": self.open[step["cancel"]]})
        elif "processes" in step:
            self.until_processes(step)
        elif "repeat" in step:
            for _ in range(step["repeat"]):
                for inner in step["steps"]:
                    self.step(inner)
        elif "remove_file" in step:
            Path(self.filled(step["remove_file"])).unlink()
        elif "listen_as" in step:
            self.others.append(listen_as(step["listen_as"], self.directory / "foreign.sock"))
        elif "other_service" in step:
            self.others.append(other_service(self.directory / "other.sock"))
        elif "service_of_level" in step:
            self.others.append(versioned_service(self.directory / "other.sock", step["service_of_level"]))
        elif "write_file" in step:
            path = Path(self.filled(step["write_file"]))
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(self.filled(step["text"]))
        else:
            raise Red("an unknown step")

    def request(self, step):
        args = self.filled(step.get("args", {}))
        argv = args.get("argv")
        if isinstance(argv, list) and argv and (PROGRAMS / argv[0]).exists():
            args["argv"] = [str(PROGRAMS / argv[0]), *argv[1:]]
        name = step.get("as")
        if step.get("retry"):
            self.request_until(step, args)
            return
        number = self.driver.send(step["do"], args, **{"as": name, "of": step.get("of"), "on": step.get("on")})
        if step["do"] == "connect" and "error" not in step:
            self.clients.append(name)
        if step["do"] == "close" and step.get("of") in self.clients:
            self.clients.remove(step["of"])
        if "async" in step:
            self.open[step["async"]] = number
            self.answers[number] = name
            return
        self.judge(step, self.driver.answer(number, step.get("within_ms", 60_000) / 1000), name)

    def request_until(self, step, args):
        """Makes a request again until its answer is as expected."""
        until = time.monotonic() + WITHIN
        while True:
            more = {"as": step.get("as"), "of": step.get("of"), "on": step.get("on")}
            answer = self.driver.answer(self.driver.send(step["do"], args, **more), WITHIN)
            try:
                self.judge(step, answer, step.get("as"))
                return
            except Red:
                if time.monotonic() > until:
                    raise
            time.sleep(0.05)

    def judge(self, step, answer, name=None):
        error = answer.get("error")
        if "error" in step:
            wanted = step["error"]
            wanted = wanted if isinstance(wanted, dict) else {"reason": wanted}
            if error is None:
                if step.get("or_ok"):
                    return
                raise Red(f"no error {wanted}, but {json.dumps(answer.get('ok'))[:300]}")
            found = difference(self.filled(wanted), error, "error")
            if found:
                raise Red(found)
            return
        if error is not None:
            raise Red(f"error {json.dumps(error)[:600]}")
        name = name or step.get("as")
        if name:
            self.answers[name] = answer["ok"]
        if "expect" in step:
            found = difference(self.filled(step["expect"]), answer["ok"])
            if found:
                raise Red(found)

    def filled(self, value):
        """Replaces names in texts."""
        if isinstance(value, dict):
            return {self.filled(key): self.filled(inner) for key, inner in value.items()}
        if isinstance(value, list):
            return [self.filled(inner) for inner in value]
        if not isinstance(value, str):
            return value

        def named(found):
            word = found[1]
            if word == "dir":
                return str(self.directory)
            if word == "server":
                return self.server.address
            if word == "relay":
                return self.relay.address
            if word in ("tcp", "certs", "other"):
                return str(getattr(self.network, word))
            if word.startswith("ulid"):
                return self.ids.setdefault(word, new_ulid())
            name, _, field = word.partition(".")
            if name not in self.answers:
                raise Red(f"there is no answer {name!r}")
            return str(self.answers[name][field])

        whole = re.fullmatch(r"\$\{(\w+)\.(\w+)\}", value)
        if whole and whole[1] in self.answers:
            return self.answers[whole[1]][whole[2]]
        return re.sub(r"\$\{([\w.]+)\}", named, value)

    def fault(self, step):
        fault = step["fault"]
        if fault == "cut_after_request":
            self.relay.cut_after_request(step["rpc"])
        elif fault in ("cut", "hold", "release"):
            getattr(self.relay, fault)()
        elif fault == "kill_server":
            for _ in range(step.get("times", 1)):
                self.server.kill_server()
        elif fault == "kill_service":
            self.server.kill_service()
            if "back_after_ms" in step:
                time.sleep(step["back_after_ms"] / 1000)
                self.server.start()
        elif fault == "kill_keeper":
            self.server.kill_keeper()
        elif fault == "start_service":
            self.server.start()
        elif fault == "halt_server":
            self.server.halt_server()
        elif fault == "upgrade":
            self.server.upgrade()
        elif fault == "rotate_token":
            self.network.rotate_token()
        else:
            raise Red(f"unknown fault {fault}")

    def until_file(self, step):
        """Waits until a file has a number of lines, or checks that it has."""
        path = Path(self.filled(step["file"]))
        line = step.get("line")

        def count():
            lines = path.read_text().splitlines() if path.exists() else []
            return sum(1 for found in lines if line is None or found == line)

        if "is" in step:
            if count() != step["is"]:
                raise Red(f"{count()} lines in place of {step['is']}: {path.read_text() if path.exists() else ''!r}")
            return
        until = time.monotonic() + WITHIN
        while count() < step["until"]:
            if time.monotonic() > until:
                raise Red(f"{count()} lines of {step['until']}")
            time.sleep(0.01)

    def until_processes(self, step):
        """Waits until so many processes of runs live."""
        until = time.monotonic() + step.get("within_ms", 60_000) / 1000
        while (found := len(self.server.left())) != step["processes"]:
            if time.monotonic() > until:
                raise Red(f"{found} processes in place of {step['processes']}")
            time.sleep(0.02)
