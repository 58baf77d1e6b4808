"""The driver of a language, as a process."""

import json
import os
import queue
import subprocess
import threading


class Red(Exception):  # noqa: N818 - the word of the table
    """A case is red."""


class Driver:
    """Requests to a driver, and its answers."""

    def __init__(self, command, directory):
        env = {name: value for name, value in os.environ.items() if not name.startswith("KENNEL_")}
        self.log = directory / "driver.log"
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, env=env, text=True,
                start_new_session=True,
            )
        self.last = 0
        self.answers = {}
        self.events = []
        self.lock = threading.Condition()
        self.is_over = False
        threading.Thread(target=self.listen, daemon=True).start()

    def listen(self):
        for line in self.process.stdout:
            try:
                message = json.loads(line)
            except ValueError:
                message = {"event": f"no JSON: {line[:200]}"}
            with self.lock:
                if "n" in message:
                    self.answers.setdefault(message["n"], queue.SimpleQueue()).put(message)
                else:
                    self.events.append(message)
                self.lock.notify_all()
        with self.lock:
            self.is_over = True
            self.lock.notify_all()

    def send(self, op, args=None, **more):
        """Sends a request, and returns its number."""
        with self.lock:
            self.last += 1
            number = self.last
            self.answers.setdefault(number, queue.SimpleQueue())
        request = {"n": number, "op": op, **{key: value for key, value in more.items() if value is not None}}
        request["args"] = args or {}
        try:
            self.process.stdin.write(json.dumps(request) + "\n")
            self.process.stdin.flush()
        except OSError as error:
            raise Red(f"the driver has ended: {error}") from error
        return number

    def answer(self, number, within):
        """Waits for the answer to a request."""
        with self.lock:
            waiting = self.answers[number]
            self.lock.wait_for(lambda: not waiting.empty() or self.is_over, within)
            if waiting.empty():
                raise Red("the driver has ended" if self.is_over else f"no answer in {within:g} s")
            return waiting.get()

    def call(self, op, args=None, within=60.0, **more):
        """Makes a request that succeeds."""
        answer = self.answer(self.send(op, args, **more), within)
        if "ok" not in answer:
            raise Red(f"{op}: {answer.get('error')}")
        return answer["ok"]

    def wait_event(self, event, within):
        """Waits for an event."""
        with self.lock:
            if not self.lock.wait_for(lambda: any(found.get("event") == event for found in self.events), within):
                raise Red(f"no event {event} in {within:g} s")

    def errors(self):
        return self.log.read_text(errors="replace").splitlines() if self.log.exists() else []

    def end(self):
        """Closes its input, and waits for its end."""
        try:
            self.process.stdin.close()
        except OSError:
            pass
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            return False
        return True
