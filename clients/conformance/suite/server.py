"""A server of a case, and the faults that happen to it."""

import os
import signal
import subprocess
import time
from pathlib import Path

START = 30.0


def processes():
    """Returns pid, parent, state and command line of every process."""
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            stat = Path(f"/proc/{entry}/stat").read_text(encoding="utf-8", errors="replace")
            words = Path(f"/proc/{entry}/cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        fields = stat.rpartition(")")[2].split()
        yield int(entry), int(fields[1]), fields[0], words


def signal_process(pid, number):
    """Sends a signal; a process that is gone is none."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True


class Server:
    """A service in a directory: keeper, server, and what they start."""

    def __init__(self, binary, directory, words=(), env=None):
        self.binary, self.directory, self.words, self.env = binary, directory, list(words), env or {}
        self.socket = directory / "k.sock"
        self.data = directory / "data"
        self.keeper = None
        self.starts = 0
        self.known = set()

    @property
    def address(self):
        return f"unix:{self.socket}"

    def start(self):
        """Starts it, and waits until it listens."""
        config = self.directory / "kennel.toml"
        config.write_text("")
        self.starts += 1
        env = {name: value for name, value in os.environ.items() if not name.startswith("KENNEL_")}
        words = [self.binary, "serve", "--config", config, "--data-dir", self.data, "--listen", self.address]
        with open(self.directory / f"log{self.starts}", "wb") as log:
            self.keeper = subprocess.Popen(
                [*words, *self.words], stdin=subprocess.DEVNULL, stdout=log, stderr=log, env={**env, **self.env},
                start_new_session=True,
            )
        until = time.monotonic() + START
        while not self.is_serving():
            if self.keeper.poll() is not None or time.monotonic() > until:
                raise RuntimeError(f"kennel serve does not listen: {self.log()[-2000:]}")
            time.sleep(0.01)

    def log(self):
        return (self.directory / f"log{self.starts}").read_text(errors="replace")

    def is_serving(self):
        return self.socket.exists() and self.server() is not None

    def server(self):
        """Returns the pid of the API server, while there is one."""
        for pid, parent, state, words in processes():
            if parent == self.keeper.pid and words[1:2] == [b"server"] and state != "Z":
                return pid
        return None

    def remember(self):
        """Notes every process below the keeper."""
        below = {self.keeper.pid}
        found = list(processes())
        for _ in range(6):
            below |= {pid for pid, parent, _, _ in found if parent in below}
        self.known |= below

    def kill_server(self):
        """Kills the API server; its keeper starts another one."""
        until = time.monotonic() + START
        while (pid := self.server()) is None:
            if time.monotonic() > until:
                raise RuntimeError("there is no server to kill")
            time.sleep(0.005)
        signal_process(pid, signal.SIGKILL)
        while any(found == pid and state != "Z" for found, _, state, _ in processes()):
            time.sleep(0.002)

    def halt_server(self):
        """Halts the API server, which neither answers nor ends."""
        signal_process(self.server(), signal.SIGSTOP)

    def upgrade(self):
        """Has the API server replaced by another one of the same binary, and waits for it."""
        before = self.server()
        words = [self.binary, "--server", self.address, "upgrade"]
        subprocess.run(words, check=True, capture_output=True, timeout=60)
        until = time.monotonic() + START
        while self.server() in (None, before):
            if time.monotonic() > until:
                raise RuntimeError("no other server came")
            time.sleep(0.01)

    def kill_keeper(self):
        """Kills the keeper; its other processes notice that by themselves."""
        self.remember()
        self.keeper.kill()
        self.keeper.wait()

    def kill_service(self):
        """Kills keeper and server, neither of which can react to the other's death."""
        self.remember()
        server = self.server()
        signal_process(self.keeper.pid, signal.SIGSTOP)
        if server is not None:
            signal_process(server, signal.SIGKILL)
        self.keeper.kill()
        self.keeper.wait()

    def stop(self):
        """Ends it in order, and returns whether it ended by itself."""
        if self.keeper is None:
            return True
        self.remember()
        if self.keeper.poll() is None:
            server = self.server()
            if server is not None:
                signal_process(server, signal.SIGCONT)
            self.keeper.terminate()
        try:
            self.keeper.wait(30)
        except subprocess.TimeoutExpired:
            self.keeper.kill()
            self.keeper.wait()
            return False
        return True

    def left(self):
        """Returns the processes of runs of this server that live, by a marker in their environment."""
        marker = f"KENNEL_RUN_DIR={self.data}/".encode()
        found = []
        for pid, _, state, words in processes():
            if state == "Z":
                continue
            try:
                env = Path(f"/proc/{pid}/environ").read_bytes()
            except OSError:
                continue
            if marker in env:
                found.append((pid, b" ".join(words).decode(errors="replace")))
        return found

    def sweep(self):
        """Ends what is left of it, by pid, where its keeper was killed."""
        marker = str(self.data).encode()
        for pid, _, state, words in processes():
            if state != "Z" and pid in self.known and (marker in words or any(marker in word for word in words)):
                signal_process(pid, signal.SIGKILL)
        for pid, _ in self.left():
            signal_process(pid, signal.SIGKILL)
